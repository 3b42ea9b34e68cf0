//! The sample loop: every reader's turn, deadline and account in one place.
//!
//! Each reader has a task of its own, so a slow one never delays another. What they return goes to
//! one [`collect::Collector`], which makes ticks for the server and the newest readings for
//! /metrics.
//!
//! Limits: [`ROUNDS_WAITING`], [`OUTPUT_WAITING`]; the collector has its own.

pub mod collect;

mod evidence;
pub mod own;
mod series;
mod slowdowns;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_program::section;
use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::{Part, Resource};
use gpufleet_telemetry::sample::Reading;
use gpufleet_telemetry::sample::Readings;
use gpufleet_telemetry::tick::{MAX_TICK_SECONDS, ResourceTick};
use gpufleet_telemetry::time::{Clock, Timestamp};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::read::{NodeFacts, Read, ReadError, Turn};
use crate::sample::collect::Collector;
use crate::sample::own::Own;
use crate::steps::{Shipment, Spooled};
use crate::under_way;

/// Rounds that may wait for the collector: a few seconds of a dozen readers. A reader waits when it
/// is full, which only delays that reader.
pub const ROUNDS_WAITING: usize = 64;

/// Ticks and events that may wait for the spool: beyond it the sample loop waits for the disk.
pub const OUTPUT_WAITING: usize = 16;

/// How long after its end a tick waits for rounds that were taken in it.
const TICK_GRACE: Duration = Duration::from_millis(500);

/// How far a turn may lie ahead of the clock: a timer fires a moment early, never a second.
const AHEAD: Duration = Duration::from_secs(1);

section! {
    /// How often is sampled and shipped.
    pub struct SampleConfig {
        /// Milliseconds between two samples; a divisor of the ship interval.
        pub period_ms: u64 = 1_000,
        /// Seconds of samples that make one request; at most 60.
        pub ship_interval_seconds: u32 = 10,
    }
}

/// The newest reading of everything; a new one replaces it after each sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Latest {
    /// When the newest round was taken.
    pub at: Timestamp,
    /// Every resource that was read in the last two of its reader's periods.
    pub resources: Vec<LatestResource>,
    /// How each reader is doing.
    pub readers: Vec<ReaderHealth>,
}

/// The newest readings of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestResource {
    /// The resource with its attributes.
    pub resource: Arc<Resource>,
    /// Its readings, ordered by metric and part.
    pub values: Vec<LatestValue>,
}

/// The newest reading of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestValue {
    /// Which metric.
    pub metric: MetricId,
    /// The part it is about; none when about the resource itself.
    pub part: Option<Part>,
    /// What was read.
    pub reading: Reading,
    /// When.
    pub at: Timestamp,
}

/// How one reader is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderHealth {
    /// Its name.
    pub name: Arc<str>,
    /// Whether its last round succeeded; none before its first, and where there is nothing to read.
    pub success: Option<bool>,
    /// What its last failed round said, while it fails; or why there is nothing to read.
    pub error: Option<String>,
    /// When it last succeeded.
    pub last_success: Option<Timestamp>,
    /// How long its last round took.
    pub duration: Duration,
    /// Rounds that failed since the start.
    pub failures: u64,
}

/// Where the sample loop puts the newest readings and where others take them from.
#[derive(Debug, Default)]
pub struct LatestCell(Mutex<Arc<Latest>>);

impl ReaderHealth {
    /// The health of a reader that a test needs.
    pub fn for_tests(name: &str, success: bool) -> Self {
        Self {
            name: name.into(),
            success: Some(success),
            error: (!success)
                .then(|| ReadError::Unavailable {
                    why: "it is not there".to_owned(),
                })
                .map(|error| error.to_string()),
            last_success: None,
            duration: Duration::ZERO,
            failures: u64::from(!success),
        }
    }
}

impl LatestCell {
    /// The newest readings.
    pub fn get(&self) -> Arc<Latest> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them.
    pub fn set(&self, latest: Arc<Latest>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = latest;
    }
}

/// What one round of one reader came to.
#[derive(Debug)]
pub struct Round {
    /// Which reader, by its place in the list.
    pub reader: usize,
    /// The moment it was for.
    pub at: Timestamp,
    /// What it returned.
    pub result: Result<Readings, ReadError>,
    /// How long it took.
    pub duration: Duration,
}

/// What the sample loop hands on.
#[derive(Debug)]
pub enum Output {
    /// A tick is over: its resources.
    Tick(Vec<ResourceTick>),
    /// Something happened; flushed at once.
    Events(Vec<Event>),
    /// Steps of ranks, and where it is noted that they are spooled.
    Steps(Shipment, Arc<Spooled>),
    /// The record of a round whose tick is under way, and its time ([`crate::under_way`]).
    Round(Vec<u8>, Timestamp),
}

/// Everything the sample loop works with.
pub struct Loop {
    /// How often.
    pub config: SampleConfig,
    /// Who and where this agent is.
    pub node: Arc<NodeFacts>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// Where the newest readings are put.
    pub latest: Arc<LatestCell>,
    /// The agent's own health.
    pub own: Own,
    /// Where ticks and events go.
    pub output: mpsc::Sender<Output>,
    /// Whether the rounds of the tick under way go there as well, to be kept until it is spooled.
    pub keeps_rounds: bool,
}

impl SampleConfig {
    /// Whether these can work together.
    ///
    /// # Errors
    /// Names the key and says what it may be.
    pub fn check(&self) -> anyhow::Result<()> {
        let interval_ms = u64::from(self.ship_interval_seconds) * 1_000;
        anyhow::ensure!(
            (100..=60_000).contains(&self.period_ms),
            "sample.period_ms = {}: it must be 100 to 60000",
            self.period_ms
        );
        anyhow::ensure!(
            (1..=MAX_TICK_SECONDS).contains(&self.ship_interval_seconds),
            "sample.ship_interval_seconds = {}: it must be 1 to {MAX_TICK_SECONDS}",
            self.ship_interval_seconds
        );
        anyhow::ensure!(
            interval_ms % self.period_ms == 0,
            "sample.period_ms = {}: it must divide the ship interval of {interval_ms} ms",
            self.period_ms
        );
        Ok(())
    }

    /// The tick's length.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(u64::from(self.ship_interval_seconds))
    }

    /// The time between two samples.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }
}

impl Loop {
    /// Samples until `stop` is cancelled; then hands on what is left of the running tick.
    pub async fn run(self, readers: Vec<Box<dyn Read>>, stop: CancellationToken) {
        let about = readers
            .iter()
            .map(|reader| (Arc::from(reader.name()), reader.period()));
        let mut collector = Collector::new(Arc::clone(&self.node), &self.config, about);
        let (rounds, mut arrived) = mpsc::channel(ROUNDS_WAITING);
        for (index, reader) in readers.into_iter().enumerate() {
            tokio::spawn(take_turns(
                index,
                reader,
                Arc::clone(&self.clock),
                Arc::clone(&self.node),
                rounds.clone(),
                stop.clone(),
            ));
        }
        drop(rounds);
        let mut own = self.own;
        let mut start = self.clock.now().aligned_to(self.config.interval());
        loop {
            let end = start.shifted(nanos(self.config.interval()));
            let left = until(self.clock.now(), end.shifted(nanos(TICK_GRACE)));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(left) => {
                    collector.own(own.read(self.clock.now(), &self.node), self.clock.now());
                    let tick = collector.close_tick(start, end);
                    if !tick.is_empty() && self.output.send(Output::Tick(tick)).await.is_err() {
                        break;
                    }
                    self.latest.set(Arc::new(collector.latest()));
                    // After a jump of the clock, or a suspended machine, the next tick is now's.
                    let now = self.clock.now().aligned_to(self.config.interval());
                    let far = now.since(end).unsigned_abs() > self.config.interval().as_nanos() as u64;
                    if far && now < end {
                        collector.turn_back(now);
                    }
                    start = if far { now } else { end };
                }
                Some(round) = arrived.recv() => {
                    let now = self.clock.now();
                    // The clock went back: by it this tick would not end for as long as it went.
                    if start.since(now) > nanos(self.config.interval()) {
                        let tick = collector.close_tick(start, end);
                        if !tick.is_empty() && self.output.send(Output::Tick(tick)).await.is_err() {
                            break;
                        }
                        collector.turn_back(now);
                        start = now.aligned_to(self.config.interval());
                    }
                    let keep = self.keeps_rounds.then(|| (self.node.node.as_str(), self.config.interval()));
                    let records = take_rounds(round, &mut arrived, &mut collector, now, keep);
                    // Before the rounds they come of: what is found of a round after a kill has none.
                    let events = collector.take_events();
                    if !events.is_empty() && self.output.send(Output::Events(events)).await.is_err() {
                        break;
                    }
                    for record in records {
                        // A disk that stands still must not hold up what is read: ticks have room before.
                        if self.output.capacity() > OUTPUT_WAITING / 2 {
                            let _ = self.output.try_send(record);
                        }
                    }
                    self.latest.set(Arc::new(collector.latest()));
                }
            }
        }
        let tick = collector.close_tick(start, start.shifted(nanos(self.config.interval())));
        let _ = self.output.send(Output::Tick(tick)).await;
    }
}

/// Takes in this round and those that wait behind it; returns what is to be kept of them.
fn take_rounds(
    first: Round,
    arrived: &mut mpsc::Receiver<Round>,
    collector: &mut Collector,
    now: Timestamp,
    keep: Option<(&str, Duration)>,
) -> Vec<Output> {
    let mut records = Vec::new();
    let mut next = Some(first);
    while let Some(mut round) = next {
        // Its turn began by the clock before it went back.
        if round.at.since(now) > nanos(AHEAD) {
            round.at = now;
        }
        if let Some((node, interval)) = keep {
            let (reader, period) = collector.reader(round.reader);
            let record = under_way::record(node, reader, period, interval, &round);
            records.extend(record.map(|record| Output::Round(record, round.at)));
        }
        collector.round(round);
        next = arrived.try_recv().ok();
    }
    records
}

/// One reader's turns: aligned, one after the other, none made up for.
async fn take_turns(
    index: usize,
    mut reader: Box<dyn Read>,
    clock: Arc<dyn Clock>,
    node: Arc<NodeFacts>,
    rounds: mpsc::Sender<Round>,
    stop: CancellationToken,
) {
    let period = reader.period().max(Duration::from_millis(1));
    let mut previous = Timestamp::default();
    loop {
        let now = clock.now();
        let mut at = now.aligned_to(period);
        if at <= previous && previous.since(at) < nanos(period) {
            // This turn was taken already: wait for the next.
            at = at.shifted(nanos(period));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(until(now, at)) => {}
            }
            // A timer may fire a moment early by the wall clock, never twice for one turn.
            if clock.now().aligned_to(period) > at {
                at = clock.now().aligned_to(period);
            }
        }
        previous = at;
        let started = clock.monotonic();
        let deadline = reader.deadline();
        let turn = Turn {
            at,
            monotonic: started,
            node: Arc::clone(&node),
        };
        let span = tracing::debug_span!("read", reader = reader.name());
        let result = tokio::select! {
            () = stop.cancelled() => return,
            result = tokio::time::timeout(deadline, reader.read(turn)).instrument(span) => {
                result.unwrap_or(Err(ReadError::Timeout { after: deadline }))
            }
        };
        let round = Round {
            reader: index,
            at,
            result,
            duration: clock.monotonic().saturating_sub(started),
        };
        if rounds.send(round).await.is_err() {
            return;
        }
    }
}

/// A duration in nanoseconds as times are counted.
pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// How long from `now` until `moment`; nothing when it is past.
fn until(now: Timestamp, moment: Timestamp) -> Duration {
    Duration::from_nanos(u64::try_from(moment.since(now)).unwrap_or(0))
}

#[cfg(test)]
mod tests;
