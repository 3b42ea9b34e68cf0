//! Answers that cost much: one is made for all who ask the same, to its end, whether who asked waits or
//! not, and kept for a while. So a request whose time is up leaves its answer to the next.
//!
//! Limits: how many are kept, how many are made at once and how many wait for that, as who has them says; of what is
//! asked one is made.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use gpufleet_telemetry::time::Clock;
use tokio::sync::{Semaphore, watch};

/// Answers by what was asked: `T`, or `E` that says why there is none.
pub struct Answers<K, T, E>(Arc<Shared<K, T, E>>);

struct Shared<K, T, E> {
    fresh_for: Range<Duration>,
    most: usize,
    at_once: Semaphore,
    /// How many may be made or wait for it, and what is said beyond.
    refuses: Option<(usize, E)>,
    held: Mutex<Held<K, T, E>>,
}

struct Held<K, T, E> {
    /// The stale ones too.
    kept: BTreeMap<K, Kept<T>>,
    making: BTreeMap<K, watch::Receiver<Option<Made<T, E>>>>,
}

struct Kept<T> {
    /// When its making began: what it says is no older.
    begun: Duration,
    /// When it was made.
    made: Duration,
    answer: Arc<T>,
}

/// What making an answer came to.
type Made<T, E> = Result<Arc<T>, E>;

impl<K, T, E> Answers<K, T, E>
where
    K: Ord + Clone + Send + 'static,
    T: Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    /// None yet. The newest `most` are kept, are fresh for so long, and so many are made `at_once`.
    pub fn new(fresh_for: Duration, most: usize, at_once: usize) -> Self {
        Self::growing(fresh_for..fresh_for, most, at_once)
    }

    /// The same of what is told while a server comes up: an answer is fresh for as long as the server had been up when
    /// it was made, within these bounds. So one of a fleet that was not heard yet does not stand for long.
    pub fn growing(fresh_for: Range<Duration>, most: usize, at_once: usize) -> Self {
        Self::with(fresh_for, most, at_once, None)
    }

    /// None yet, as [`Self::new`]. Of so many at most one is made or waits for it, and beyond them this is said.
    pub fn refusing(fresh_for: Duration, most: usize, at_once: usize, refuses: (usize, E)) -> Self {
        Self::with(fresh_for..fresh_for, most, at_once, Some(refuses))
    }

    fn with(
        fresh_for: Range<Duration>,
        most: usize,
        at_once: usize,
        refuses: Option<(usize, E)>,
    ) -> Self {
        Self(Arc::new(Shared {
            fresh_for,
            most,
            at_once: Semaphore::new(at_once),
            refuses,
            held: Mutex::new(Held {
                kept: BTreeMap::new(),
                making: BTreeMap::new(),
            }),
        }))
    }

    /// The answer as it was last made, however old that is; none before the first.
    pub fn last(&self, asked: &K) -> Option<Arc<T>> {
        let held = self.0.lock();
        held.kept.get(asked).map(|it| Arc::clone(&it.answer))
    }

    /// The same where its making began within so long.
    pub fn last_within(&self, asked: &K, clock: &Arc<dyn Clock>, age: Duration) -> Option<Arc<T>> {
        let held = self.0.lock();
        let now = clock.monotonic();
        let kept = held.kept.get(asked);
        let kept = kept.filter(|it| now.saturating_sub(it.begun) < age)?;
        Some(Arc::clone(&kept.answer))
    }

    /// Keeps it no longer: who asks next has it made anew.
    pub fn forget(&self, asked: &K) {
        self.0.lock().kept.remove(asked);
    }

    /// As [`Self::get`], where nobody waits for an answer while the last one is younger than `age`, from when its making
    /// began: that is given meanwhile, and also where the next one could not be made.
    ///
    /// # Errors
    /// As [`Self::get`], where the last one is older.
    ///
    /// # Panics
    /// As [`Self::get`].
    pub async fn get_standing<F>(
        &self,
        asked: K,
        clock: &Arc<dyn Clock>,
        age: Duration,
        make: F,
    ) -> Made<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let last = self.last_within(&asked, clock, age);
        let made = self.get(asked, clock, make);
        match last {
            Some(last) => Ok(made.now_or_never().and_then(Result::ok).unwrap_or(last)),
            None => made.await,
        }
    }

    /// The answer that is fresh or being made, else what `make` comes to.
    ///
    /// # Errors
    /// What making it failed with, which is not kept, or that too many are made.
    ///
    /// # Panics
    /// When making it did.
    pub async fn get<F>(&self, asked: K, clock: &Arc<dyn Clock>, make: F) -> Made<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let mut told = {
            let mut held = self.0.lock();
            let now = clock.monotonic();
            let is_fresh = |made: Duration| {
                let Range { start, end } = self.0.fresh_for;
                now.saturating_sub(made) < made.clamp(start, end)
            };
            if let Some(kept) = held.kept.get(&asked)
                && is_fresh(kept.made)
            {
                return Ok(Arc::clone(&kept.answer));
            }
            // One that ended without a word is begun anew.
            held.making.retain(|_, it| it.has_changed().is_ok());
            let making = held.making.len();
            match held.making.get(&asked) {
                Some(making) => making.clone(),
                None => {
                    if let Some((most, why)) = &self.0.refuses
                        && making >= *most
                    {
                        return Err(why.clone());
                    }
                    let (tell, told) = watch::channel(None);
                    held.making.insert(asked.clone(), told.clone());
                    let (shared, clock) = (Arc::clone(&self.0), Arc::clone(clock));
                    tokio::spawn(async move {
                        let _one = shared.at_once.acquire().await;
                        let begun = clock.monotonic();
                        let outcome = make.await.map(Arc::new);
                        shared.keep(asked, &outcome, (begun, clock.monotonic()));
                        tell.send_replace(Some(outcome));
                    });
                    told
                }
            }
        };
        let outcome = told.wait_for(Option::is_some).await.map(|it| it.clone());
        let outcome = outcome.ok().flatten();
        outcome.expect("who makes an answer tells what came of it, or has panicked")
    }
}

impl<K: Ord + Clone, T, E> Shared<K, T, E> {
    fn keep(&self, asked: K, outcome: &Made<T, E>, (begun, made): (Duration, Duration)) {
        let mut held = self.lock();
        held.making.remove(&asked);
        if let Ok(answer) = outcome {
            let answer = Arc::clone(answer);
            held.kept.insert(
                asked,
                Kept {
                    begun,
                    made,
                    answer,
                },
            );
        }
        while held.kept.len() > self.most {
            let oldest = held.kept.iter().min_by_key(|it| it.1.made);
            let Some(oldest) = oldest.map(|it| it.0.clone()) else {
                return;
            };
            held.kept.remove(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held<K, T, E>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::hand::Hand;

    const FRESH_FOR: Duration = Duration::from_secs(10);

    /// Answers of which two are kept and two made at once, and their clock.
    struct Asked {
        answers: Answers<&'static str, u32, &'static str>,
        hand: Arc<Hand>,
    }

    impl Asked {
        fn new() -> Self {
            Self {
                answers: Answers::new(FRESH_FOR, 2, 2),
                hand: Arc::default(),
            }
        }

        /// So many seconds after the clock began.
        fn at(&self, second: u64) {
            self.hand.put_monotonic(Duration::from_secs(second));
        }

        async fn get<F>(&self, asked: &'static str, make: F) -> Result<u32, &'static str>
        where
            F: Future<Output = Result<u32, &'static str>> + Send + 'static,
        {
            let clock: Arc<dyn Clock> = self.hand.clone();
            self.answers.get(asked, &clock, make).await.map(|it| *it)
        }

        /// The same of what is made at once.
        async fn quick(&self, asked: &'static str, answer: u32) -> u32 {
            let made = self.get(asked, async move { Ok(answer) }).await;
            made.expect("it does not fail")
        }
    }

    #[tokio::test]
    async fn who_goes_leaves_his_answer_to_the_next_and_keeps_nobody_else_waiting() {
        let asked = Asked::new();
        let (open, opened) = oneshot::channel();
        let slow = async move { opened.await.map_err(|_| "nobody opened") };
        let mut first = Box::pin(asked.get("a", slow));
        assert!((&mut first).now_or_never().is_none());
        drop(first);
        assert_eq!(asked.quick("b", 2).await, 2, "another question");
        let mut next = Box::pin(asked.quick("a", 3));
        assert!((&mut next).now_or_never().is_none(), "it is being made");
        open.send(1).expect("it goes on");
        assert_eq!(next.await, 1);
        assert_eq!(asked.quick("a", 4).await, 1, "it is kept");
    }

    #[tokio::test]
    async fn so_many_are_made_at_once_and_the_next_when_one_of_them_is() {
        let asked = Asked::new();
        let (tell, mut begun) = mpsc::unbounded_channel();
        let mut gates = Vec::new();
        for name in ["a", "b", "c"] {
            let (open, opened) = oneshot::channel();
            let tell = tell.clone();
            let making = async move {
                tell.send(name).map_err(|_| "nobody looks")?;
                opened.await.map_err(|_| "nobody opened")
            };
            assert!(asked.get(name, making).now_or_never().is_none());
            gates.push(open);
        }
        assert_eq!(begun.recv().await, Some("a"));
        assert_eq!(begun.recv().await, Some("b"));
        assert!(begun.try_recv().is_err(), "two are being made");
        gates.remove(0).send(1).expect("it goes on");
        assert_eq!(begun.recv().await, Some("c"));
    }

    #[tokio::test]
    async fn so_many_wait_to_be_made_and_beyond_them_what_is_new_is_refused_alone() {
        let mut asked = Asked::new();
        asked.answers = Answers::refusing(FRESH_FOR, 3, 1, (2, "too many are made"));
        assert_eq!(asked.quick("a", 1).await, 1);
        let (open, opened) = oneshot::channel();
        let slow = async move { opened.await.map_err(|_| "nobody opened") };
        assert!(asked.get("b", slow).now_or_never().is_none());
        assert!(asked.get("c", async { Ok(3) }).now_or_never().is_none());
        let refused = asked.get("d", async { Ok(4) }).await;
        assert_eq!(refused, Err("too many are made"));
        assert_eq!(asked.quick("a", 5).await, 1, "it is kept");
        open.send(2).expect("it goes on");
        assert_eq!(asked.quick("c", 5).await, 3, "it was waiting");
        assert_eq!(asked.quick("d", 4).await, 4, "there is room again");
    }

    #[tokio::test]
    async fn the_newest_are_given_until_they_are_too_old_and_stand_while_the_next_is_made() {
        let asked = Asked::new();
        for (second, name) in [(0, "a"), (1, "b"), (2, "c")] {
            asked.at(second);
            assert_eq!(asked.quick(name, 1).await, 1);
        }
        assert_eq!(asked.quick("b", 2).await, 1);
        asked.at(10);
        assert_eq!(asked.quick("c", 2).await, 1);
        asked.at(11);
        assert_eq!(asked.answers.last(&"a"), None, "the oldest of three");
        assert_eq!(asked.answers.last(&"b").as_deref(), Some(&1));
        assert_eq!(asked.quick("b", 2).await, 2, "ten seconds old");
        assert_eq!(asked.answers.last(&"b").as_deref(), Some(&2));
        assert_eq!(asked.quick("a", 2).await, 2, "the oldest of three");
    }

    #[tokio::test]
    async fn nobody_waits_while_the_next_is_made_and_none_is_older_than_is_said() {
        const STANDS_FOR: Duration = Duration::from_secs(30);
        let asked = Asked::new();
        let clock: Arc<dyn Clock> = asked.hand.clone();
        let slow = |opened: oneshot::Receiver<u32>| async move {
            opened.await.map_err(|_| "nobody opened")
        };
        let standing = |opened| {
            let (answers, made) = (&asked.answers, slow(opened));
            let told = answers.get_standing("a", &clock, STANDS_FOR, made);
            async move { told.await.map(|it| *it) }
        };
        // The first takes five seconds, so that it is five seconds old when it comes.
        let (open, opened) = oneshot::channel();
        let mut first = Box::pin(standing(opened));
        assert_eq!((&mut first).now_or_never(), None, "there is none");
        tokio::task::yield_now().await;
        asked.at(5);
        open.send(1).expect("it is waited for");
        assert_eq!(first.await, Ok(1));
        let (open, opened) = oneshot::channel();
        asked.at(15);
        assert_eq!(standing(opened).now_or_never(), Some(Ok(1)));
        asked.at(29);
        let unheard = || oneshot::channel().1;
        assert_eq!(standing(unheard()).now_or_never(), Some(Ok(1)), "still");
        asked.at(30);
        let mut late = Box::pin(standing(unheard()));
        assert_eq!((&mut late).now_or_never(), None, "it is too old");
        open.send(2).expect("it is still being made");
        assert_eq!(late.await, Ok(2), "what was being made, and no third");
        // One that cannot be made leaves the last one until that is too old, and is told then.
        asked.at(59);
        assert_eq!(standing(unheard()).await, Ok(2));
        asked.at(60);
        assert_eq!(standing(unheard()).await, Err("nobody opened"));
    }

    #[tokio::test]
    async fn an_answer_from_the_first_moments_is_kept_for_a_shorter_time() {
        let mut asked = Asked::new();
        asked.answers = Answers::growing(Duration::from_secs(2)..FRESH_FOR, 2, 2);
        for (second, answer, told) in [
            (0, 1, 1),
            (1, 2, 1),
            (2, 2, 2),
            (4, 3, 3),
            (7, 4, 3),
            (8, 4, 4),
        ] {
            asked.at(second);
            assert_eq!(asked.quick("a", answer).await, told, "at {second}");
        }
        asked.at(100);
        assert_eq!(asked.quick("a", 5).await, 5);
        asked.at(110);
        assert_eq!(
            asked.quick("a", 6).await,
            6,
            "and never for longer than is said"
        );
    }

    #[tokio::test]
    async fn what_failed_is_told_and_made_anew_and_so_is_what_panicked() {
        let asked = Arc::new(Asked::new());
        let failed = asked.get("a", async { Err("the store is gone") }).await;
        assert_eq!(failed, Err("the store is gone"));
        assert_eq!(asked.quick("a", 1).await, 1);
        let panicking = Arc::clone(&asked);
        let panicked = async move { panicking.get("b", async { panic!("as told") }).await };
        assert!(tokio::spawn(panicked).await.is_err());
        assert_eq!(asked.quick("b", 2).await, 2);
    }
}
