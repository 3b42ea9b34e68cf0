//! The background jobs' health: when each last did its work and how often it failed, and how long it
//! may wait for the database.
//!
//! A job that only waits looks like one with nothing to do; its last success tells them apart.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_telemetry::time::Clock;
use tracing::Instrument as _;

/// Longest one round of a job may take. The largest, a piece of retention, takes seconds; what takes
/// this long waits for a database that does not answer.
const ROUND_WITHIN: Duration = Duration::from_secs(300);

/// Every job that has begun, by name.
#[derive(Debug, Default)]
pub struct Jobs(Mutex<BTreeMap<&'static str, Arc<Job>>>);

/// How one job goes.
#[derive(Debug)]
pub struct Job {
    name: &'static str,
    /// When it last did a round without an error, Unix milliseconds; 0 before the first.
    succeeded_ms: AtomicI64,
    /// Since when no round went well, Unix milliseconds; 0 while they do.
    failing_ms: AtomicI64,
    failures: AtomicU64,
}

impl Jobs {
    /// The job of this name, known from now on.
    pub fn of(&self, name: &'static str) -> Arc<Job> {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let job = jobs.entry(name).or_insert_with(|| {
            Arc::new(Job {
                name,
                succeeded_ms: AtomicI64::new(0),
                failing_ms: AtomicI64::new(0),
                failures: AtomicU64::new(0),
            })
        });
        Arc::clone(job)
    }

    /// The job of this name; none where it has not begun.
    pub fn known(&self, name: &str) -> Option<Arc<Job>> {
        let jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.get(name).map(Arc::clone)
    }

    /// Every job that has begun.
    pub fn all(&self) -> Vec<Arc<Job>> {
        let jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.values().map(Arc::clone).collect()
    }
}

impl Job {
    /// Does one round; none when it failed or took too long, which is logged and counted here.
    pub async fn round<T, E: std::fmt::Display>(
        &self,
        clock: &dyn Clock,
        work: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let name = self.name;
        let span = tracing::debug_span!("round", job = name);
        // On the heap: what a round holds between questions is large, and whoever waits for one would hold it too.
        match tokio::time::timeout(ROUND_WITHIN, Box::pin(work))
            .instrument(span)
            .await
        {
            Ok(Ok(done)) => {
                let now = clock.now().millis();
                self.succeeded_ms.store(now, Ordering::Relaxed);
                self.failing_ms.store(0, Ordering::Relaxed);
                return Some(done);
            }
            Ok(Err(error)) => tracing::error!(%error, "{name} failed, it will be tried again"),
            Err(_) => tracing::error!(
                "{name} has waited {} s for the database and is tried again; look for what blocks the database",
                ROUND_WITHIN.as_secs()
            ),
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.failing_ms.load(Ordering::Relaxed) == 0 {
            self.failing_ms
                .store(clock.now().millis(), Ordering::Relaxed);
        }
        None
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// When it last did a round without an error, Unix milliseconds; none before the first.
    pub fn succeeded_ms(&self) -> Option<i64> {
        Some(self.succeeded_ms.load(Ordering::Relaxed)).filter(|it| *it > 0)
    }

    /// Since when no round went well, Unix milliseconds; none while they do.
    pub fn failing_ms(&self) -> Option<i64> {
        Some(self.failing_ms.load(Ordering::Relaxed)).filter(|it| *it > 0)
    }

    /// Rounds that failed since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_program::clock::SystemClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_round_that_fails_or_hangs_is_counted_and_one_that_goes_well_is_dated() {
        let (jobs, clock) = (Jobs::default(), SystemClock::start());
        let job = jobs.of("the ledger");
        let failed = job.round(&clock, async { Err::<(), _>("no") }).await;
        assert_eq!((failed, job.failures()), (None, 1));
        let hung = std::future::pending::<Result<(), String>>();
        assert_eq!(
            job.round(&clock, hung).await,
            None,
            "the clock of the test runs by itself"
        );
        assert_eq!((job.failures(), job.succeeded_ms()), (2, None));
        assert!(job.failing_ms().is_some());
        let done = job.round(&clock, async { Ok::<_, String>(7) }).await;
        assert_eq!(done, Some(7));
        assert_eq!(job.failing_ms(), None, "it is over");
        assert!(
            jobs.of("the ledger").succeeded_ms().is_some(),
            "one job of one name"
        );
        assert_eq!(jobs.all().len(), 1);
    }
}
