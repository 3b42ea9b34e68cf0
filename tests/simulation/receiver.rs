//! The server's side: the real fleet in front of a store in memory, whose commits may fail, or
//! succeed without a word.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::ship::state::{Failure, Reply, Request};
use gpufleet_server::fleet::{Body, Fleet, FleetConfig, Offer, Outcome, Progress};
use gpufleet_server::store::model::CursorKey;
use gpufleet_spool::sim::Random;
use gpufleet_telemetry::otlp::{Limits, decode_events, decode_metrics};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::{Refusal, Stream};
use prost::Message;

use super::memory_store::MemoryStore;

/// When an agent that met a full server is to come again, as the server says it.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What may become of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFate {
    /// It succeeds, and the server hears so.
    Done,
    /// It fails.
    Failed,
    /// It succeeds, and the answer is lost.
    Unheard,
    /// It succeeds, and the server dies before it hears so.
    Died,
}

/// A server process, if it runs, and its store, which outlives it.
pub struct Receiver {
    /// The store.
    pub store: MemoryStore,
    fleet: Option<Fleet>,
    config: FleetConfig,
}

impl CommitFate {
    /// A fate by chance; mostly a good one.
    pub fn by_chance(random: &mut Random) -> Self {
        match random.below(10) {
            0 | 1 => Self::Failed,
            2 => Self::Unheard,
            3 => Self::Died,
            _ => Self::Done,
        }
    }
}

impl Receiver {
    /// A server with an empty store; it does not run yet.
    pub fn new(config: FleetConfig) -> Self {
        Self {
            store: MemoryStore::default(),
            fleet: None,
            config,
        }
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        self.fleet.is_some()
    }

    /// Starts it on what the store has.
    pub fn start(&mut self, now: Timestamp) {
        let fleet = Fleet::new(self.config.clone());
        fleet.restore(self.store.restored(), now);
        self.fleet = Some(fleet);
    }

    /// kill -9.
    pub fn die(&mut self) {
        self.fleet = None;
    }

    /// The fleet, while it runs.
    pub fn fleet(&self) -> Option<&Fleet> {
        self.fleet.as_ref()
    }

    /// Takes a request; none when nobody is there to answer.
    ///
    /// # Panics
    /// When the payload is not what the agent encoded.
    pub fn take(
        &mut self,
        request: &Request,
        sent_at: Timestamp,
        now: Timestamp,
    ) -> Option<Result<Reply, Failure>> {
        let fleet = self.fleet.as_ref()?;
        let (metrics, events);
        let body = match request.stream {
            Stream::Metrics => {
                let decoded = Message::decode(request.payload.as_slice());
                metrics = decode_metrics(decoded.expect("OTLP"), &Limits::default());
                Body::Metrics(&metrics)
            }
            Stream::Logs => {
                let decoded = Message::decode(request.payload.as_slice());
                events = decode_events(decoded.expect("OTLP"), &Limits::default());
                Body::Events(&events)
            }
        };
        let answer = fleet.offer(&Offer {
            key: CursorKey {
                agent: request.agent,
                epoch: request.epoch,
                stream: request.stream,
            },
            seq: request.seq,
            session: request.session,
            lane: request.lane,
            dropped: request.dropped,
            sent_at,
            received: now,
            bound_cluster: None,
            default_cluster: Arc::from("default"),
            body,
        });
        let durable_seq = Some(answer.durable_seq);
        let refused = |refusal, wanted_seq| {
            Err(Failure {
                refusal: Some(refusal),
                wanted_seq,
                durable_seq,
                retry_after: (refusal == Refusal::Full).then_some(RETRY_AFTER),
            })
        };
        Some(match answer.outcome {
            Outcome::Folded(_) | Outcome::Already => Ok(Reply {
                durable_seq,
                folded_seq: Some(answer.folded_seq),
            }),
            Outcome::WrongSeq { wanted } => refused(Refusal::WrongSeq, Some(wanted)),
            Outcome::Conflict => refused(Refusal::AgentIdConflict, None),
            Outcome::Quarantined { .. } => refused(Refusal::ClockQuarantine, None),
            Outcome::Full
            | Outcome::Late
            | Outcome::TooManyAgents
            | Outcome::TooManyStreams
            | Outcome::OtherCluster => refused(Refusal::Full, None),
        })
    }

    /// One commit with this fate.
    ///
    /// # Panics
    /// When the fleet believes that another server has taken over: there is none.
    pub fn commit(&mut self, now: Timestamp, fate: CommitFate) {
        let Some(fleet) = &self.fleet else { return };
        let Some(commit) = fleet.take_commit(now) else {
            return;
        };
        if fate != CommitFate::Failed {
            self.store.commit(&commit);
        }
        match fate {
            CommitFate::Done => fleet.committed(commit.number),
            CommitFate::Failed | CommitFate::Unheard => {
                let progress = fleet.commit_failed(commit.number, self.store.last_commit);
                assert_ne!(progress, Progress::Superseded);
            }
            CommitFate::Died => self.die(),
        }
    }
}
