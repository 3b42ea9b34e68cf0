//! The past of a simulated fleet: written into an epoch of its own before shipping begins, so that it
//! is drained as old data are, beside the live ones.

use anyhow::Context as _;
use gpufleet_spool::Spool;
use gpufleet_spool::disk::Disk;
use gpufleet_telemetry::catalog;
use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::otlp::encode_metrics;
use gpufleet_telemetry::tick::ResourceTick;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use gpufleet_tests::simulator::faults::Faults;
use gpufleet_tests::simulator::journal::Journal;
use gpufleet_tests::simulator::node::SimulatedNode;
use gpufleet_tests::simulator::training::Told;
use prost::Message as _;
use uuid::Uuid;

use crate::Arguments;

/// The tick of history: one per minute row.
const TICK_SECONDS: u32 = 60;
const TICK_NANOS: i64 = 60_000_000_000;
/// Ticks of history in one request: about 300 KiB.
const TICKS_PER_REQUEST: usize = 20;
const MINUTES_PER_HOUR: i64 = 60;
/// Of so much of the history before now the steps are shipped too: those of a day would be some
/// three million.
const STEPS_NANOS: i64 = 60 * TICK_NANOS;

/// Which minutes are history, and where live ticks begin.
#[derive(Debug)]
pub(crate) struct Span {
    minutes: Vec<Timestamp>,
    pub(crate) live_from: Timestamp,
}

/// From so many hours ago, or from where an earlier run left off, until the minute that has begun.
pub(crate) fn span(arguments: &Arguments, now: Timestamp, goes_on: Option<Timestamp>) -> Span {
    if let Some(minutes) = arguments.replay_minutes.or(arguments.outage_minutes) {
        let first = now.minute().start().shifted(-minutes * TICK_NANOS);
        return Span {
            minutes: Vec::new(),
            live_from: goes_on.unwrap_or(first),
        };
    }
    let hours = i64::from(arguments.history_hours);
    let first = now
        .minute()
        .start()
        .shifted(-hours * MINUTES_PER_HOUR * TICK_NANOS);
    let from = goes_on.map_or(first, |at| at.max(first));
    let count = now.minute().start().since(from).max(0) / TICK_NANOS;
    Span {
        minutes: (0..count)
            .map(|minute| from.shifted(minute * TICK_NANOS))
            .collect(),
        live_from: from.shifted(count * TICK_NANOS),
    }
}

/// Writes a node's history into its spool.
pub(crate) fn fill<D: Disk>(
    node: &mut SimulatedNode,
    spool: &mut Spool<D>,
    span: &Span,
    journal: &mut Option<Journal>,
    now: Timestamp,
) -> anyhow::Result<()> {
    let healthy = Faults::default();
    for minutes in span.minutes.chunks(TICKS_PER_REQUEST) {
        let mut ticks: Vec<ResourceTick> = Vec::new();
        let mut told = Told::default();
        for start in minutes {
            let has_steps = span.live_from.since(*start) <= STEPS_NANOS;
            if let Some(journal) = journal {
                journal.begin(node.index(), *start, TICK_SECONDS, has_steps)?;
            }
            ticks.extend(node.tick(*start, TICK_SECONDS, &healthy));
            let mut now = node.take_told();
            now.steps.retain(|_| has_steps);
            told.extend(now);
        }
        for request in told.requests(node.resource()) {
            spool
                .append(Stream::Logs, &request, now)
                .context("the spool does not take what the ranks told")?;
        }
        for tick in &mut ticks {
            // Old data only make minute rows: what those do not keep need not travel.
            tick.points.retain(|point| {
                catalog::by_id(point.metric).is_some_and(|metric| metric.in_minutes)
            });
        }
        let payload = encode_metrics(&ticks).encode_to_vec();
        spool
            .append(Stream::Metrics, &payload, now)
            .context("the spool does not take the history")?;
        spool.sync().context("the spool cannot be synced")?;
        for start in minutes {
            if let Some(journal) = journal {
                journal.end(node.index(), *start)?;
            }
        }
    }
    if !span.minutes.is_empty() {
        tracing::info!(
            node = node.facts().node,
            minutes = span.minutes.len(),
            "history is made and waits to be shipped beside live data"
        );
        spool
            .start_epoch(Epoch(Uuid::new_v4()), now)
            .context("the spool cannot begin an epoch")?;
    }
    Ok(())
}
