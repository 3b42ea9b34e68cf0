//! The task that makes folded data durable: every 20 s, or earlier when much waits.
//!
//! After any error the number of the last commit is read back before anything else: if it is there
//! it counts as done, otherwise the same commit is tried again. Folding goes on meanwhile, within
//! the fleet's limits on memory. A server that was replaced by another stops at once.

use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use gpufleet_telemetry::time::Clock;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::fleet::{Fleet, Progress};
use crate::store::model::{Commit, Committed, FencingToken};
use crate::store::{CommitError, Store, StoreError};

/// How often the task looks whether it is time for a commit.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long the task waits after an error; the database may be starting again.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// How long the last commit of a server that was told to stop may be tried.
const LAST_TRIES: u32 = 5;

/// How long a commit, or the question for the last one, may wait for the store. The bounds of the
/// database itself are shorter; this one holds when not even they are answered.
const WITHIN: Duration = Duration::from_secs(120);

/// Where commits go: the store, or in tests one that fails as told.
pub trait CommitTo: Send + Sync {
    /// Makes a commit durable.
    fn commit(
        &self,
        commit: &Commit,
    ) -> impl Future<Output = Result<Committed, CommitError>> + Send;
    /// The number of the last commit that is durable.
    fn last_commit(&self) -> impl Future<Output = Result<u64, CommitError>> + Send;
}

/// A store with the right to write to it.
#[derive(Clone)]
pub struct Leased {
    /// The store.
    pub store: Store,
    /// The right.
    pub token: FencingToken,
}

/// How commits go, for the server's own metrics.
#[derive(Debug, Default)]
pub struct CommitHealth {
    /// Commits that are done since the start.
    pub commits: AtomicU64,
    /// Tries that failed since the start.
    pub failures: AtomicU64,
    /// Tries that failed since the last commit that is done.
    pub failures_in_a_row: AtomicU64,
    /// When the last one was done, Unix milliseconds; 0 before the first.
    pub last_done_ms: AtomicI64,
    /// Since when the one under way waits for the store, Unix milliseconds; 0 between two.
    pub began_ms: AtomicI64,
    /// When the loop last had nothing left to make durable or did not have to yet, Unix
    /// milliseconds: a commit that fails or hangs leaves it behind. 0 before the first round.
    pub round_ms: AtomicI64,
    /// How long it took, microseconds.
    pub last_duration_us: AtomicU64,
    /// The age of its fresh samples when it was done, 99th percentile over resources, of each the
    /// oldest, milliseconds.
    pub sample_age_ms: AtomicI64,
    /// Minute rows left out because their minute is no longer kept.
    pub minutes_too_late: AtomicU64,
    /// Steps left out because nobody knows their run.
    pub steps_of_nobody: AtomicU64,
    /// Steps left out because their rank told more in ten minutes than is kept.
    pub steps_too_many: AtomicU64,
}

/// Another server has taken over.
#[derive(Debug, thiserror::Error)]
#[error("another server has taken over the right to write: this one stops")]
pub struct Replaced;

impl CommitTo for Leased {
    async fn commit(&self, commit: &Commit) -> Result<Committed, CommitError> {
        self.store.commit(commit, self.token).await
    }

    async fn last_commit(&self) -> Result<u64, CommitError> {
        self.store.last_commit().await.map_err(CommitError::Unknown)
    }
}

/// Commits until told to stop, and once more then.
///
/// # Errors
/// When another server has taken over.
pub async fn run(
    fleet: &Fleet,
    to: &impl CommitTo,
    clock: &dyn Clock,
    (interval, bytes): (Duration, usize),
    health: &CommitHealth,
    stop: CancellationToken,
) -> Result<(), Replaced> {
    let mut last = clock.monotonic();
    while !stop.is_cancelled() {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => break,
        }
        fleet.look_at_clock(clock);
        health
            .round_ms
            .store(clock.now().millis(), Ordering::Relaxed);
        let is_due = clock.monotonic().saturating_sub(last) >= interval;
        if !is_due && fleet.pending_bytes() < bytes {
            continue;
        }
        last = clock.monotonic();
        while !once(fleet, to, clock, health).await? && !stop.is_cancelled() {
            tokio::time::sleep(AFTER_ERROR).await;
        }
    }
    // What was in flight, and what came after it.
    let mut tries = 0;
    let mut settled = 0;
    while settled < 2 && tries < LAST_TRIES {
        if once(fleet, to, clock, health).await? {
            settled += 1;
        } else {
            tries += 1;
            tokio::time::sleep(AFTER_ERROR).await;
        }
    }
    Ok(())
}

/// One try; whether nothing waits to be tried again.
async fn once(
    fleet: &Fleet,
    to: &impl CommitTo,
    clock: &dyn Clock,
    health: &CommitHealth,
) -> Result<bool, Replaced> {
    let Some(commit) = fleet.take_commit(clock.now()) else {
        return Ok(true);
    };
    let began = clock.monotonic();
    health
        .began_ms
        .store(clock.now().millis(), Ordering::Relaxed);
    let span = tracing::debug_span!("commit", number = commit.number);
    let committed = within(to.commit(&commit)).instrument(span).await;
    health.began_ms.store(0, Ordering::Relaxed);
    match committed {
        Ok(committed) => {
            fleet.committed(commit.number);
            note_left_out(&committed, health);
            note(fleet, &commit, clock, began, health);
            Ok(true)
        }
        Err(CommitError::Fenced { .. }) => Err(Replaced),
        Err(error) => {
            health.failures.fetch_add(1, Ordering::Relaxed);
            health.failures_in_a_row.fetch_add(1, Ordering::Relaxed);
            tracing::error!(number = commit.number, %error, "a commit failed, asking the store for its last one");
            match within(to.last_commit()).await {
                Ok(last) => match fleet.commit_failed(commit.number, last) {
                    Progress::Done => {
                        note(fleet, &commit, clock, began, health);
                        Ok(true)
                    }
                    Progress::Retry => Ok(false),
                    Progress::Superseded => Err(Replaced),
                },
                Err(error) => {
                    tracing::error!(%error, "the store does not say what its last commit is");
                    Ok(false)
                }
            }
        }
    }
}

/// Gives a store up that does not answer. Whether the commit happened is not known then, as after any
/// other error, and the same is done about it.
async fn within<T>(asked: impl Future<Output = Result<T, CommitError>>) -> Result<T, CommitError> {
    let silent = |_| CommitError::Unknown(StoreError::Silent { within: WITHIN });
    tokio::time::timeout(WITHIN, asked)
        .await
        .map_err(silent)
        .flatten()
}

fn note_left_out(committed: &Committed, health: &CommitHealth) {
    let (too_late, corrupt) = (committed.too_late, committed.corrupt);
    health
        .minutes_too_late
        .fetch_add(too_late, Ordering::Relaxed);
    let steps = [
        (&health.steps_of_nobody, committed.steps_of_nobody),
        (&health.steps_too_many, committed.steps_too_many),
    ];
    for (known, more) in steps {
        known.fetch_add(more, Ordering::Relaxed);
    }
    if too_late > 0 || corrupt > 0 {
        tracing::warn!(too_late, corrupt, "a commit left minutes out");
    }
}

fn note(fleet: &Fleet, commit: &Commit, clock: &dyn Clock, began: Duration, health: &CommitHealth) {
    let took = clock.monotonic().saturating_sub(began);
    let now = clock.now();
    let store = Ordering::Relaxed;
    health.commits.fetch_add(1, store);
    health.failures_in_a_row.store(0, store);
    health.last_done_ms.store(now.millis(), store);
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    health.last_duration_us.store(micros, store);
    if let Some(age) = fleet.sample_age_p99(now) {
        let millis = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        health.sample_age_ms.store(millis, store);
    }
    tracing::debug!(
        number = commit.number,
        minutes = commit.minutes.len(),
        took_ms = took.as_millis(),
        "committed"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use gpufleet_telemetry::event::{Event, EventKind, Severity};
    use gpufleet_telemetry::identity::{AgentId, Epoch, Resource, ResourceKind};
    use gpufleet_telemetry::otlp::{DecodedEvent, DecodedEvents};
    use gpufleet_telemetry::time::Timestamp;
    use gpufleet_telemetry::wire::{Lane, Stream};
    use uuid::Uuid;

    use super::*;
    use crate::fleet::{Body, FleetConfig, Offer};
    use crate::hand::Hand;
    use crate::store::model::CursorKey;

    const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

    /// What the store does with the next commit.
    #[derive(Clone, Copy, PartialEq)]
    enum Next {
        Takes,
        Fails,
        TakesAndLosesItsReply,
        IsFenced,
        Hangs,
    }

    /// A store that does as told, and every number it was offered.
    struct Fake {
        next: Mutex<Vec<Next>>,
        last: AtomicU64,
        offered: Mutex<Vec<u64>>,
    }

    impl CommitTo for Fake {
        async fn commit(&self, commit: &Commit) -> Result<Committed, CommitError> {
            self.offered.lock().unwrap().push(commit.number);
            let next = self.next.lock().unwrap().pop().unwrap();
            if matches!(next, Next::Takes | Next::TakesAndLosesItsReply) {
                self.last.store(commit.number, Ordering::Relaxed);
            }
            let lost = StoreError::Corrupt {
                what: "the network".to_owned(),
                why: "cut".to_owned(),
            };
            match next {
                Next::Hangs => std::future::pending().await,
                Next::Takes => Ok(Committed {
                    too_late: 2,
                    corrupt: 1,
                    ..Committed::default()
                }),
                Next::Fails | Next::TakesAndLosesItsReply => Err(CommitError::Unknown(lost)),
                Next::IsFenced => Err(CommitError::Fenced {
                    lease: "l".to_owned(),
                    found: 2,
                    ours: 1,
                }),
            }
        }

        async fn last_commit(&self) -> Result<u64, CommitError> {
            Ok(self.last.load(Ordering::Relaxed))
        }
    }

    fn key() -> CursorKey {
        CursorKey {
            agent: AgentId(Uuid::from_u128(1)),
            epoch: Epoch(Uuid::from_u128(2)),
            stream: Stream::Logs,
        }
    }

    /// Offers one event.
    fn offer(fleet: &Fleet, seq: u64) -> u64 {
        let event = DecodedEvent {
            sender: std::sync::Arc::new(Resource::new(ResourceKind::Node, "n")),
            event: Event {
                at: NOW,
                kind: EventKind::AgentStarted,
                severity: Severity::Info,
                resource_kind: ResourceKind::Node,
                resource_id: "n".into(),
                message: String::new(),
                attributes: std::collections::BTreeMap::new(),
            },
        };
        let events = DecodedEvents {
            events: vec![event],
            ..DecodedEvents::default()
        };
        let answer = fleet.offer(&Offer {
            key: key(),
            seq,
            session: 1,
            lane: Lane::Live,
            dropped: None,
            sent_at: NOW,
            received: NOW,
            bound_cluster: None,
            default_cluster: "c".into(),
            body: Body::Events(&events),
        });
        answer.durable_seq
    }

    #[tokio::test]
    async fn a_commit_of_unknown_outcome_is_settled_by_what_the_store_has() {
        let fleet = Fleet::new(FleetConfig::default());
        let fake = Fake {
            next: Mutex::new(vec![
                Next::IsFenced,
                Next::TakesAndLosesItsReply,
                Next::Takes,
                Next::Fails,
            ]),
            last: AtomicU64::new(0),
            offered: Mutex::default(),
        };
        let health = CommitHealth::default();
        let clock = Hand::at(NOW);
        let once = || once(&fleet, &fake, &clock, &health);
        assert!(once().await.unwrap(), "nothing to commit");
        offer(&fleet, 1);
        assert!(!once().await.unwrap(), "to be tried again");
        offer(&fleet, 2);
        assert_eq!(fleet.durable_seq(&key()), 0);
        assert!(once().await.unwrap());
        assert_eq!(
            fleet.durable_seq(&key()),
            1,
            "the same commit, without what came later"
        );
        assert!(once().await.unwrap(), "it was there after all");
        assert_eq!(offer(&fleet, 3), 2);
        assert!(once().await.is_err(), "another server has taken over");
        assert_eq!(*fake.offered.lock().unwrap(), [1, 1, 2, 3]);
        assert_eq!(health.commits.load(Ordering::Relaxed), 2);
        assert_eq!(health.minutes_too_late.load(Ordering::Relaxed), 2);
    }
    #[tokio::test(start_paused = true)]
    async fn a_commit_that_hangs_is_given_up_and_the_same_is_tried_again() {
        let fleet = Fleet::new(FleetConfig::default());
        let fake = Fake {
            next: Mutex::new(vec![Next::Takes, Next::Hangs]),
            last: AtomicU64::new(0),
            offered: Mutex::default(),
        };
        let health = CommitHealth::default();
        offer(&fleet, 1);
        let clock = Hand::at(NOW);
        let given_up = once(&fleet, &fake, &clock, &health).await;
        assert!(!given_up.unwrap(), "to be tried again");
        assert_eq!(health.failures_in_a_row.load(Ordering::Relaxed), 1);
        assert_eq!(
            health.began_ms.load(Ordering::Relaxed),
            0,
            "nothing waits now"
        );
        assert!(once(&fleet, &fake, &clock, &health).await.unwrap());
        assert_eq!(fleet.durable_seq(&key()), 1);
        assert_eq!(*fake.offered.lock().unwrap(), [1, 1]);
    }
}
