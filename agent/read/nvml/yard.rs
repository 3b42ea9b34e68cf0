//! Children that were killed and are not gone yet.
//!
//! A process in a driver call that does not return cannot be killed; waiting for it would be
//! waiting for the driver. So the dead are asked once a round, and while there are
//! [`MAX_UNREAPED`] of them no new one is made: each holds driver memory and maybe a lock.

use std::io;
use std::process::Child;

/// Most children that were killed and have not ended.
pub(crate) const MAX_UNREAPED: usize = 2;

/// What can be killed and, later, be gone.
pub(crate) trait Mortal: Send {
    /// Tells it to end, whatever it does.
    fn kill(&mut self) -> io::Result<()>;
    /// Whether it has ended; never waits.
    fn is_gone(&mut self) -> bool;
}

impl Mortal for Child {
    fn kill(&mut self) -> io::Result<()> {
        Self::kill(self)
    }

    fn is_gone(&mut self) -> bool {
        !matches!(self.try_wait(), Ok(None))
    }
}

/// The killed.
#[derive(Default)]
pub(crate) struct Yard(Vec<Box<dyn Mortal>>);

impl Yard {
    /// Kills it, and keeps it until it is gone.
    pub(crate) fn bury(&mut self, mut child: Box<dyn Mortal>) {
        // An error here means that it has ended already, which is what is asked next.
        let _ = child.kill();
        self.0.push(child);
        self.reap();
    }

    /// Lets go of those that are gone.
    pub(crate) fn reap(&mut self) {
        self.0.retain_mut(|child| !child.is_gone());
    }

    /// How many have not ended.
    pub(crate) fn unreaped(&self) -> usize {
        self.0.len()
    }

    /// Whether no new child may be made.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= MAX_UNREAPED
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Stuck(Arc<AtomicBool>);

    impl Mortal for Stuck {
        fn kill(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn is_gone(&mut self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn two_children_that_cannot_be_killed_are_enough() {
        let returned = Arc::new(AtomicBool::new(false));
        let mut yard = Yard::default();
        yard.bury(Box::new(Stuck(Arc::clone(&returned))));
        assert!(!yard.is_full());
        yard.bury(Box::new(Stuck(Arc::clone(&returned))));
        assert!(yard.is_full());
        returned.store(true, Ordering::Relaxed);
        yard.reap();
        assert_eq!((yard.unreaped(), yard.is_full()), (0, false));
    }
}
