//! One who is asked beside the rounds for one thing after the other, once for each: Slurm's controller for jobs, the
//! Kubernetes API for claims, a directory for users.
//!
//! What nobody wants any more is forgotten, or kept while there is room ([`Ask::KEEPS`]). What could not be learned is
//! asked for again after [`ASK_AGAIN`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::standing::{Source, Standing};
use super::task::Task;

/// When a thing is asked for again of which nothing could be learned.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// One who knows things.
pub(super) trait Ask: Send + Sync + 'static {
    /// What is asked for.
    type Thing: Ord + Clone + Send + Sync + 'static;
    /// What is learned of it.
    type Answer: Clone + Send + Sync + 'static;

    /// Who it is, where it is told how he is doing, because without him it may not be known who holds what.
    const SOURCE: Option<Source>;

    /// Most things that are known at once.
    const MAX: usize;

    /// Whether what nobody wants any more is kept while there is room, because it comes back.
    const KEEPS: bool = false;

    /// Asks for one thing.
    fn ask(&self, thing: &Self::Thing)
    -> impl Future<Output = Result<Self::Answer, String>> + Send;
}

/// What is known, by thing.
pub(super) type Known<A> = BTreeMap<<A as Ask>::Thing, <A as Ask>::Answer>;

/// What one knows; a task of its own asks, which ends when this is dropped.
pub(super) struct Learned<A: Ask> {
    shared: Arc<Shared<A>>,
    _task: Task,
}

struct Shared<A: Ask> {
    who: A,
    state: Mutex<State<A>>,
    wake: Notify,
    /// That something was learned, or could not be.
    told: Notify,
}

struct State<A: Ask> {
    wanted: BTreeSet<A::Thing>,
    known: Arc<Known<A>>,
    failed: BTreeMap<A::Thing, Instant>,
    standing: Standing,
}

impl<A: Ask> Learned<A> {
    /// Asks this one; needs a runtime.
    pub(super) fn start(who: A) -> Self {
        let shared = Arc::new(Shared {
            who,
            state: Mutex::new(State {
                wanted: BTreeSet::new(),
                known: Arc::default(),
                failed: BTreeMap::new(),
                standing: Standing::default(),
            }),
            wake: Notify::new(),
            told: Notify::new(),
        });
        Self {
            _task: Task::start(Arc::clone(&shared).keep()),
            shared,
        }
    }

    /// What is known, and how who is asked is doing; as new while it was never asked.
    pub(super) fn known(&self) -> (Arc<Known<A>>, Standing) {
        let state = self.shared.lock();
        (Arc::clone(&state.known), state.standing.clone())
    }

    /// Says what is wanted now; which of it was not wanted before.
    pub(super) fn want(&self, things: BTreeSet<A::Thing>) -> BTreeSet<A::Thing> {
        let mut state = self.shared.lock();
        let new = things.difference(&state.wanted).cloned().collect();
        state.wanted = things;
        drop(state);
        self.shared.wake.notify_one();
        new
    }

    /// Waits until each of these was asked for, whatever was learned, and no longer than until then.
    pub(super) async fn wait_for(&self, things: &BTreeSet<A::Thing>, until: Instant) {
        let all = async {
            loop {
                // Made before it is looked, so that nothing is missed in between.
                let told = self.shared.told.notified();
                if self.shared.has_asked_for(things) {
                    return;
                }
                told.await;
            }
        };
        // Who is slower is heard in a later round.
        _ = tokio::time::timeout_at(until, all).await;
    }
}

impl<A: Ask> Shared<A> {
    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_asked_for(&self, things: &BTreeSet<A::Thing>) -> bool {
        let state = self.lock();
        let mut things = things.iter();
        things.all(|it| state.known.contains_key(it) || state.failed.contains_key(it))
    }

    async fn keep(self: Arc<Self>) {
        loop {
            match self.next() {
                None => self.wake.notified().await,
                Some(thing) => {
                    let answer = self.who.ask(&thing).await;
                    self.note(thing, answer);
                }
            }
        }
    }

    /// A thing that is to be asked for.
    fn next(&self) -> Option<A::Thing> {
        let mut state = self.lock();
        let State {
            wanted,
            known,
            failed,
            standing,
            ..
        } = &mut *state;
        let has_room = A::KEEPS && known.len() < A::MAX;
        if !has_room && known.keys().any(|it| !wanted.contains(it)) {
            Arc::make_mut(known).retain(|it, _| wanted.contains(it));
        }
        let is_kept = |at: &Instant| A::KEEPS && at.elapsed() <= ASK_AGAIN;
        failed.retain(|it, at| wanted.contains(it) || is_kept(at));
        if failed.is_empty() {
            // What could not be learned is no longer wanted.
            standing.rests();
        }
        let is_due = |thing: &&A::Thing| {
            let again = |at: &Instant| at.elapsed() > ASK_AGAIN;
            !known.contains_key(*thing) && failed.get(*thing).is_none_or(again)
        };
        wanted.iter().take(A::MAX).find(is_due).cloned()
    }

    fn note(&self, thing: A::Thing, answer: Result<A::Answer, String>) {
        let mut state = self.lock();
        match answer {
            Ok(answer) => {
                state.failed.remove(&thing);
                Arc::make_mut(&mut state.known).insert(thing, answer);
                state.standing.heard();
            }
            Err(error) => {
                state.failed.insert(thing, Instant::now());
                if let Some(source) = A::SOURCE {
                    state.standing.failed(source, error);
                }
            }
        }
        drop(state);
        self.told.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows the half of every even number, and never comes back of 13.
    struct Halves;

    impl Ask for Halves {
        type Thing = u32;
        type Answer = u32;

        const SOURCE: Option<Source> = Some(Source::Slurm);
        const MAX: usize = 8;

        async fn ask(&self, thing: &u32) -> Result<u32, String> {
            if *thing == 13 {
                std::future::pending::<()>().await;
            }
            match thing % 2 {
                0 => Ok(thing / 2),
                _ => Err(format!("{thing} is odd")),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_wanted_before_is_waited_for_until_it_was_asked_for_or_no_longer() {
        let learned = Learned::start(Halves);
        let new = learned.want(BTreeSet::from([2, 3, 4]));
        assert_eq!(new, BTreeSet::from([2, 3, 4]));
        let until = Instant::now() + Duration::from_secs(1);
        learned.wait_for(&new, until).await;
        assert!(Instant::now() < until, "all three were asked for");
        let (known, standing) = learned.known();
        assert_eq!(*known, BTreeMap::from([(2, 1), (4, 2)]));
        assert!(standing.age().is_some());
        // Nobody answers of this one, and what is behind it waits as well.
        let new = learned.want(BTreeSet::from([2, 13, 14]));
        assert_eq!(new, BTreeSet::from([13, 14]));
        learned.wait_for(&new, until).await;
        assert!(Instant::now() >= until);
        assert_eq!(learned.want(BTreeSet::from([2, 13, 14])), BTreeSet::new());
    }

    /// Knows two even numbers at once, and keeps them.
    struct Evens;

    impl Ask for Evens {
        type Thing = u32;
        type Answer = u32;

        const SOURCE: Option<Source> = None;
        const MAX: usize = 2;
        const KEEPS: bool = true;

        async fn ask(&self, thing: &u32) -> Result<u32, String> {
            match thing % 2 {
                0 => Ok(*thing),
                _ => Err(format!("{thing} is odd")),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_keeps_does_while_there_is_room_and_of_one_who_is_no_source_no_failure_is_told()
    {
        let learned = Learned::start(Evens);
        let until = Instant::now() + Duration::from_secs(1);
        let first = learned.want(BTreeSet::from([2, 3]));
        learned.wait_for(&first, until).await;
        learned.want(BTreeSet::new());
        assert_eq!(learned.shared.next(), None);
        let (known, standing) = learned.known();
        assert_eq!(*known, BTreeMap::from([(2, 2)]));
        assert_eq!(standing.error(), None);
        learned.want(BTreeSet::from([2, 3]));
        assert_eq!(learned.shared.next(), None, "both were just asked for");
        let other = learned.want(BTreeSet::from([4]));
        learned.wait_for(&other, until).await;
        assert_eq!(learned.shared.next(), None);
        let (known, _) = learned.known();
        assert_eq!(*known, BTreeMap::from([(4, 4)]), "there was no more room");
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_learned_is_asked_for_again_later() {
        let learned = Learned::start(Halves);
        let new = learned.want(BTreeSet::from([3]));
        learned.wait_for(&new, Instant::now() + ASK_AGAIN).await;
        let (_, standing) = learned.known();
        assert_eq!(standing.error(), Some("3 is odd"));
        assert_eq!(learned.shared.next(), None, "it was just asked for");
        tokio::time::advance(ASK_AGAIN + Duration::from_millis(1)).await;
        assert_eq!(learned.shared.next(), Some(3));
    }
}
