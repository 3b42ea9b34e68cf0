//! A recording as ticks: what the readers returned goes through the agent's collector, as it did when it was read.
//!
//! Nothing of it joins what is live: the fleet that takes it is the replay's own. It says of no GPU whose job
//! it runs, has no steps of ranks, and nothing of the cluster.
//!
//! Limits: [`MAX_LENGTH_S`], and those of the format (docs/recordings.md). A tick is 10 s, or as long as the GPUs' reader
//! takes from one round to the next, up to a minute.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::read::NodeFacts;
use gpufleet_agent::read::exporter::table;
use gpufleet_agent::read::recorded::format;
use gpufleet_agent::read::recorded::source::Source as File;
use gpufleet_agent::sample::collect::Collector;
use gpufleet_agent::sample::{Round, SampleConfig};
use gpufleet_telemetry::identity::{AgentId, Origin, Resource, ResourceKind};
use gpufleet_telemetry::otlp::{DecodedEvent, DecodedResource};
use gpufleet_telemetry::sample::{Readings, ResourceSamples};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use uuid::Uuid;

use super::unable::{Data, Source};
use super::{Replay, ReplayError, Replayed, Sent};
use crate::config::Config;
use crate::money::Money;

/// Longest recording that is replayed, seconds: a week. `gpufleet-agent record` takes a day.
const MAX_LENGTH_S: i64 = 7 * 86_400;

/// How long a tick may be, seconds; the first is the agents' own.
const TICKS_S: [u32; 6] = [10, 12, 15, 20, 30, 60];

/// The cluster it is shown in.
const CLUSTER: &str = "replay";

/// The agent that stands for the one that took it.
const AGENT: AgentId = AgentId(Uuid::from_u128(1));

/// When a recording begins of which nobody knows when it was taken: 2026-01-01.
const UNKNOWN_START: Timestamp = Timestamp::from_seconds(1_767_225_600);

/// How far it is is told this often, in ticks.
const TELL_EVERY: u64 = 360;

/// A reader of the recording.
#[derive(Debug)]
struct Reader {
    name: Arc<str>,
    first_ns: i64,
    last_ns: i64,
    rounds: u64,
    reads_gpus: bool,
}

/// A resource of the recording: its kind, its id, and the place of the reader that told of it.
type Recorded = (ResourceKind, Arc<str>, usize);

/// Names what was recorded, as an agent of its own would.
struct Naming {
    facts: Arc<NodeFacts>,
    known: HashMap<Recorded, (Arc<Resource>, Arc<Resource>)>,
}

pub(super) fn replay(
    path: &Path,
    config: &Config,
    progress: &mut (dyn FnMut(f64, Timestamp) + Send),
) -> Result<Replayed, ReplayError> {
    let wrong = |why: String| ReplayError::Recording(format!("{}: {why}", path.display()));
    let file = File::open(path, &table::shipped());
    let file = file.map_err(|error| ReplayError::Recording(error.to_string()))?;
    if file.length_ns > MAX_LENGTH_S * NANOS_PER_SECOND {
        let days = file.length_ns / NANOS_PER_SECOND / 86_400;
        return Err(wrong(format!(
            "its last round is {days} days after its first; at most {} are replayed",
            MAX_LENGTH_S / 86_400
        )));
    }
    let again = |error: std::io::Error| wrong(format!("cannot be read again: {error}"));
    let readers = readers(file.play().map_err(again)?);
    let tick_s = tick_of(&readers);
    let length = i64::from(tick_s) * NANOS_PER_SECOND;
    let taken_at = file.header.taken_at_seconds.map(Timestamp::from_seconds);
    let begins = taken_at.unwrap_or(UNKNOWN_START);
    let mut naming = Naming::new(&file.header);
    let sampling = SampleConfig {
        ship_interval_seconds: tick_s,
        ..SampleConfig::default()
    };
    let about = readers.iter().map(|it| (Arc::clone(&it.name), it.period()));
    let mut collector = Collector::new(Arc::clone(&naming.facts), &sampling, about);
    let terms = Money::new(config).terms();
    let mut replay = Replay::new(config, terms, Data::new(Source::Recording));
    let mut rounds = file.play().map_err(again)?.peekable();
    let first = begins.aligned_to(Duration::from_secs(tick_s.into()));
    let mut start = first;
    while rounds.peek().is_some() {
        let end = start.shifted(length);
        while let Some(round) = rounds.next_if(|it| begins.shifted(it.at_ns) < end) {
            let place = readers.iter().position(|it| *it.name == *round.reader);
            let Some(place) = place else { continue };
            let at = begins.shifted(round.at_ns);
            collector.round(naming.round(round, place, at));
        }
        // The agent tells of itself in each tick: it was there while its readers paused.
        collector.own(naming.own(), end);
        let events = collector.take_events();
        let ticks = collector.close_tick(start, end);
        let mut sent = Sent::default();
        let sender = Arc::new(naming.node());
        for event in events {
            let sender = Arc::clone(&sender);
            sent.event(DecodedEvent { sender, event });
        }
        let resources = ticks.into_iter().map(DecodedResource::from);
        resources.for_each(|it| sent.resource(it));
        replay.tick(end, BTreeMap::from([(AGENT, sent)]));
        start = end;
        if replay.ticks.is_multiple_of(TELL_EVERY) {
            let done = end.since(first) as f64 / file.length_ns.max(1) as f64;
            progress(done.min(1.0), end);
        }
    }
    progress(1.0, start);
    let what = format!("the recording {}", path.display());
    let mut replayed = replay.finish(what, (first, start), tick_s);
    replayed.notes.extend(notes(&file, tick_s));
    Ok(replayed)
}

/// Who read, and how often.
fn readers(rounds: impl Iterator<Item = format::Round>) -> Vec<Reader> {
    let mut found: Vec<Reader> = Vec::new();
    for round in rounds {
        let place = found.iter().position(|it| *it.name == *round.reader);
        let place = place.unwrap_or_else(|| {
            found.push(Reader {
                name: round.reader.as_str().into(),
                first_ns: round.at_ns,
                last_ns: round.at_ns,
                rounds: 0,
                reads_gpus: false,
            });
            found.len() - 1
        });
        let reader = &mut found[place];
        reader.last_ns = reader.last_ns.max(round.at_ns);
        reader.rounds += 1;
        let mut resources = round.resources.iter();
        reader.reads_gpus |= resources.any(|it| it.resource.kind == ResourceKind::Gpu);
    }
    found
}

impl Reader {
    /// From one round to the next, in whole seconds.
    fn period(&self) -> Duration {
        let pauses = self.rounds.saturating_sub(1).max(1) as f64;
        let nanos = (self.last_ns - self.first_ns) as f64 / pauses;
        Duration::from_secs((nanos / NANOS_PER_SECOND as f64).round().max(1.0) as u64)
    }
}

/// How long a tick is, seconds: no shorter than who reads GPUs most often needs for a round.
fn tick_of(readers: &[Reader]) -> u32 {
    let of_gpus = readers.iter().filter(|it| it.reads_gpus);
    let shortest = of_gpus.map(|it| it.period().as_secs()).min().unwrap_or(0);
    let fits = TICKS_S.into_iter().find(|it| u64::from(*it) >= shortest);
    fits.unwrap_or(TICKS_S[TICKS_S.len() - 1])
}

impl Naming {
    fn new(header: &format::Header) -> Self {
        let facts = NodeFacts {
            cluster: CLUSTER.to_owned(),
            node: header.node.clone(),
            boot_id: String::new(),
            agent_id: AGENT,
            version: header.agent_version.clone(),
        };
        Self {
            facts: Arc::new(facts),
            known: HashMap::new(),
        }
    }

    fn node(&self) -> Resource {
        let (kind, id) = (ResourceKind::Node, self.facts.node.as_str());
        self.facts.resource(kind, id, Origin::Live, "agent")
    }

    /// What the agent tells of itself; its readers are added to it.
    fn own(&self) -> ResourceSamples {
        ResourceSamples {
            resource: Arc::new(self.node()),
            samples: Vec::new(),
        }
    }

    fn round(&mut self, round: format::Round, reader: usize, at: Timestamp) -> Round {
        let name = round.reader;
        let resources = round.resources.into_iter().map(|one| ResourceSamples {
            resource: self.shown(&one.resource, reader, &name),
            samples: one.samples,
        });
        let mut readings = Readings {
            at,
            resources: resources.collect(),
            events: round.events,
        };
        for event in &mut readings.events {
            event.at = at;
        }
        Round {
            reader,
            at,
            result: Ok(readings),
            duration: Duration::ZERO,
        }
    }

    /// A resource with what the server needs to place it; the same `Arc` while the recorded one is.
    fn shown(&mut self, recorded: &Arc<Resource>, reader: usize, name: &str) -> Arc<Resource> {
        let key = (recorded.kind, Arc::clone(&recorded.id), reader);
        if let Some((from, shown)) = self.known.get(&key)
            && (Arc::ptr_eq(from, recorded) || from == recorded)
        {
            return Arc::clone(shown);
        }
        let (kind, id) = (recorded.kind, Arc::clone(&recorded.id));
        let mut shown = self.facts.resource(kind, id, Origin::Live, name);
        shown.attributes.fill(&recorded.attributes);
        let shown = Arc::new(shown);
        self.known
            .insert(key, (Arc::clone(recorded), Arc::clone(&shown)));
        shown
    }
}

fn notes(file: &File, tick_s: u32) -> Vec<String> {
    let mut notes = Vec::new();
    if file.header.taken_at_seconds.is_none() {
        notes.push(
            "Nobody knows when it was taken: its times and prices are those of 2026-01-01."
                .to_owned(),
        );
    }
    if tick_s != TICKS_S[0] {
        notes.push(format!(
            "Its GPUs were read so seldom that a tick is {tick_s} s, and not {} s.",
            TICKS_S[0]
        ));
    }
    if file.damaged > 0 {
        let first = file.problems.first().map_or("", String::as_str);
        notes.push(format!(
            "{} of its lines could not be read: {first}.",
            file.damaged
        ));
    }
    notes
}

#[cfg(test)]
#[path = "recording_tests.rs"]
mod tests;
