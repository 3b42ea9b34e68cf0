//! GPUs that are alike: of one model, under one job.
//!
//! Each such group is held once, and its GPUs name it by its address: to read the names of a hundred thousand at
//! every tick costs more than to judge them.

use std::collections::HashSet;
use std::sync::Arc;

/// What GPUs that are alike have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::detect) struct Alike {
    pub(in crate::detect) cluster: Arc<str>,
    pub(in crate::detect) model: Arc<str>,
    /// The job that holds them; none when nobody does or it is not known.
    pub(in crate::detect) job: Option<Arc<str>>,
}

/// All groups that a GPU is of.
#[derive(Default)]
pub(super) struct Groups(HashSet<Arc<Alike>>);

impl Groups {
    /// The one that is called so.
    pub(super) fn of(&mut self, called: Alike) -> Arc<Alike> {
        let group = match self.0.get(&called) {
            Some(known) => Arc::clone(known),
            None => Arc::new(called),
        };
        self.0.insert(Arc::clone(&group));
        group
    }

    /// Forgets those that nobody names any more.
    pub(super) fn forget(&mut self) {
        self.0.retain(|it| Arc::strong_count(it) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_address_as_long_as_somebody_names_it() {
        let mut groups = Groups::default();
        let called = |job: &str| Alike {
            cluster: "prod".into(),
            model: "H100".into(),
            job: Some(job.into()),
        };
        let one = groups.of(called("a"));
        assert!(Arc::ptr_eq(&one, &groups.of(called("a"))));
        assert!(!Arc::ptr_eq(&one, &groups.of(called("b"))));
        groups.forget();
        assert_eq!(groups.0.len(), 1, "nobody is of b");
        assert!(Arc::ptr_eq(&one, &groups.of(called("a"))));
    }
}
