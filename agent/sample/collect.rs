//! Rounds in, ticks and the newest readings out. No I/O, no clock: driven by the loop and by tests.
//!
//! Limits: [`MAX_RESOURCES`], [`MAX_SERIES`], [`MAX_EVENTS`]; what is beyond them is left out and counted by reason.
//! Memory stays flat: a series lives until it was not read for [`FORGET_AFTER`], and its numbers are kept in place.

mod holders;
mod named;
mod replicas;
#[cfg(test)]
pub(super) mod rounds;
mod times;
mod witness;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::catalog::{self, MetricId};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Readings, ResourceSamples, Sample};
use gpufleet_telemetry::tick::{Point, ResourceTick};
use gpufleet_telemetry::time::Timestamp;

use super::evidence::KINDS;
use super::series::{Series, Word, checked};
use super::{Latest, LatestResource, LatestValue, ReaderHealth, Round, SampleConfig, nanos};
use crate::attribute::SOURCE;
use crate::read::{NodeFacts, ReadError};

/// Most resources of one node: 16 GPUs of 7 MIG instances, their endpoints, and the machine, eight times over.
pub const MAX_RESOURCES: usize = 1_024;

/// Most series of one node, at about 150 bytes each: 16 GPUs with 100 metrics, 18 links of 9
/// metrics and 64 processes come to 6,000.
pub const MAX_SERIES: usize = 20_000;

/// Most events between two flushes; an XID storm repeats itself.
pub const MAX_EVENTS: usize = 1_000;

/// A series or resource that was not read for this long is forgotten.
pub const FORGET_AFTER: Duration = Duration::from_secs(600);

/// What was left out, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// Samples of resources beyond [`MAX_RESOURCES`].
    pub resource_limit: u64,
    /// Samples of series beyond [`MAX_SERIES`].
    pub series_limit: u64,
    /// Samples of metrics the catalog does not have.
    pub unknown_metric: u64,
    /// Events beyond [`MAX_EVENTS`].
    pub event_limit: u64,
}

/// Makes ticks and the newest readings of what the readers return.
#[derive(Debug)]
pub struct Collector {
    node: Arc<NodeFacts>,
    readers: Vec<Reader>,
    resources: BTreeMap<Key, Entry>,
    series: usize,
    events: Vec<Event>,
    left_out: LeftOut,
    newest: Timestamp,
}

#[derive(Debug)]
struct Reader {
    rank: u8,
    period: Duration,
    /// The reader that says who holds what this one reads; beside a driver none of what others read.
    holders: Option<usize>,
    health: ReaderHealth,
}

pub(crate) type Key = (ResourceKind, Arc<str>);

#[derive(Debug)]
struct Entry {
    /// What each reader says the resource is, best first.
    sources: Vec<Source>,
    /// All of them together.
    resource: Arc<Resource>,
    series: Vec<Series>,
    places: HashMap<(MetricId, Option<Part>), usize>,
    /// Evidence: from second, to second (not included), flags in the order of [`KINDS`].
    seconds: Vec<(i64, i64, [bool; 5])>,
    /// The reader whose word counts that it is there and held.
    witness: usize,
    witnessed: Timestamp,
    seen: Timestamp,
    slowdowns: super::slowdowns::Slowdowns,
}

#[derive(Debug)]
struct Source {
    reader: usize,
    rank: u8,
    resource: Arc<Resource>,
    seen: Timestamp,
}

/// The rank of NVML.
const NVML: u8 = 0;

/// Whom to believe when two report one GPU: NVML, then an exporter, then the rest.
fn rank(name: &str) -> u8 {
    match name.split(':').next() {
        Some("nvml") => NVML,
        Some("exporter") => 1,
        Some("agent") => 3,
        _ => 2,
    }
}

/// The key under which two readers' words about one thing meet. A MIG instance is known to NVML by
/// its UUID and to an exporter by its number on the card.
pub(crate) fn key(resource: &Resource) -> Key {
    let on_card = resource
        .attribute(attribute::PARENT)
        .zip(resource.attribute(attribute::MIG_GPU_INSTANCE));
    match (resource.kind, on_card) {
        (ResourceKind::Share, Some((parent, instance))) => (
            ResourceKind::Share,
            format!("{parent}::gi{instance}").into(),
        ),
        _ => (resource.kind, Arc::clone(&resource.id)),
    }
}

impl Collector {
    /// A collector for these readers, by name and period, in the order of their numbers. One more
    /// is added for the agent itself.
    pub fn new(
        node: Arc<NodeFacts>,
        config: &SampleConfig,
        readers: impl Iterator<Item = (Arc<str>, Duration)>,
    ) -> Self {
        let own = (Arc::from("agent"), config.interval());
        let readers = readers.chain([own]).map(|(name, period)| Reader {
            rank: rank(&name),
            period,
            holders: None,
            health: ReaderHealth {
                name,
                success: None,
                error: None,
                last_success: None,
                duration: Duration::ZERO,
                failures: 0,
            },
        });
        let mut readers: Vec<Reader> = readers.collect();
        let holders = readers.iter().position(|it| *it.health.name == *SOURCE);
        let has_driver = readers.iter().any(|it| it.rank == NVML);
        for reader in &mut readers {
            reader.holders = holders.filter(|_| reader.rank == NVML || !has_driver);
        }
        Self {
            node,
            readers,
            resources: BTreeMap::new(),
            series: 0,
            events: Vec::new(),
            left_out: LeftOut::default(),
            newest: Timestamp::default(),
        }
    }

    /// A reader's name and period.
    pub fn reader(&self, index: usize) -> (&str, Duration) {
        let reader = &self.readers[index];
        (&reader.health.name, reader.period)
    }

    /// Takes in what one round came to.
    pub fn round(&mut self, round: Round) {
        self.newest = self.newest.max(round.at);
        self.judge_reader(&round);
        if let Ok(readings) = round.result {
            self.take(round.reader, round.at, readings);
        }
    }

    /// Takes in the agent's own health, with what it knows of its readers.
    pub fn own(&mut self, mut readings: ResourceSamples, at: Timestamp) {
        let readers = self.readers.iter().take(self.readers.len() - 1);
        let samples = &mut readings.samples;
        samples.extend(readers.flat_map(|reader| super::own::of_reader(&reader.health)));
        samples.extend(super::own::of_left_out(self.left_out));
        let readings = Readings {
            at,
            resources: vec![readings],
            events: Vec::new(),
        };
        self.take(self.readers.len() - 1, at, readings);
    }

    /// The tick from `start` to `end`, and the next one begins.
    #[tracing::instrument(level = "debug", name = "tick", skip_all)]
    pub fn close_tick(&mut self, start: Timestamp, end: Timestamp) -> Vec<ResourceTick> {
        self.hand_to_replicas(end);
        let mut ticks = Vec::with_capacity(self.resources.len());
        for entry in self.resources.values_mut() {
            let mut points = Vec::with_capacity(entry.series.len() + KINDS.len());
            entry.close_evidence(start, end, &mut points);
            for series in &mut entry.series {
                if let Some(value) = series.close() {
                    points.push(Point {
                        metric: series.metric.id,
                        part: series.part.clone(),
                        value,
                    });
                }
            }
            entry.name_producers();
            if !points.is_empty() {
                ticks.push(ResourceTick {
                    resource: Arc::clone(&entry.resource),
                    start,
                    end,
                    points,
                });
            }
        }
        self.forget(end);
        ticks
    }

    /// The newest readings that still stand.
    pub fn latest(&self) -> Latest {
        let resources = self.resources.values().filter_map(|entry| {
            let mut values: Vec<LatestValue> = entry
                .series
                .iter()
                .filter(|series| series.is_fresh(self.newest))
                .map(|series| LatestValue {
                    metric: series.metric.id,
                    part: series.part.clone(),
                    reading: series.last,
                    at: series.at,
                })
                .collect();
            values.sort_unstable_by(|a, b| (a.metric, &a.part).cmp(&(b.metric, &b.part)));
            (!values.is_empty()).then(|| LatestResource {
                resource: Arc::clone(&entry.resource),
                values,
            })
        });
        let readers = self.readers.iter().take(self.readers.len() - 1);
        Latest {
            at: self.newest,
            resources: resources.collect(),
            readers: readers.map(|reader| reader.health.clone()).collect(),
        }
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What was left out so far.
    pub fn left_out(&self) -> LeftOut {
        self.left_out
    }

    fn judge_reader(&mut self, round: &Round) {
        let reader = &mut self.readers[round.reader];
        let health = &mut reader.health;
        let worked = health.success != Some(false);
        health.duration = round.duration;
        health.success = Some(round.result.is_ok());
        let told = match &round.result {
            // Where there is nothing to read it neither works nor fails.
            Err(error @ ReadError::Nothing { .. }) => {
                health.success = None;
                health.error = Some(error.to_string());
                None
            }
            Ok(_) => {
                health.last_success = Some(round.at);
                health.error = None;
                (!worked).then(|| {
                    let message = format!("reader {} works again", health.name);
                    (EventKind::ReaderRecovered, Severity::Info, message)
                })
            }
            Err(error) => {
                health.failures += 1;
                let error = error.to_string();
                let message = format!("reader {} fails: {error}", health.name);
                health.error = Some(error);
                worked.then_some((EventKind::ReaderFailed, Severity::Warning, message))
            }
        };
        if let Some((kind, severity, message)) = told {
            let mut attributes = BTreeMap::from([("reader".to_owned(), health.name.to_string())]);
            attributes.extend(
                health
                    .error
                    .clone()
                    .map(|error| ("error".to_owned(), error)),
            );
            let event = Event {
                at: round.at,
                kind,
                severity,
                resource_kind: ResourceKind::Node,
                resource_id: self.node.node.as_str().into(),
                message,
                attributes,
            };
            self.push_event(event);
        }
    }

    fn push_event(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        } else {
            self.left_out.event_limit += 1;
        }
    }

    fn take(&mut self, reader: usize, at: Timestamp, readings: Readings) {
        for event in readings.events {
            self.push_event(event);
        }
        for samples in readings.resources {
            self.take_resource(reader, at, samples);
        }
    }

    fn take_resource(&mut self, reader: usize, at: Timestamp, round: ResourceSamples) {
        let Reader { rank, period, .. } = self.readers[reader];
        let key = key(&round.resource);
        // The node itself always has its place: it says what was left out.
        let is_node = key.0 == ResourceKind::Node;
        if !is_node && !self.resources.contains_key(&key) && self.resources.len() >= MAX_RESOURCES {
            self.left_out.resource_limit += round.samples.len().max(1) as u64;
            return;
        }
        let entry = self
            .resources
            .entry(key)
            .or_insert_with(|| Entry::new(reader, at));
        entry.introduce(reader, rank, at, &round.resource);
        entry.witness(&self.readers, reader, at, &round.samples);
        let slowdowns = entry.slowdowns.next(reader, &entry.series, &round.samples);
        for Sample {
            metric,
            part,
            reading,
        } in round.samples.into_iter().chain(slowdowns)
        {
            let Some(metric) = catalog::by_id(metric) else {
                self.left_out.unknown_metric += 1;
                continue;
            };
            let word = Word {
                reader,
                rank,
                period,
                at,
                reading: checked(metric, reading),
            };
            let place = (metric.id, part);
            if let Some(index) = entry.places.get(&place) {
                entry.series[*index].hear(word);
            } else if self.series < MAX_SERIES {
                self.series += 1;
                let series = Series::new(metric, place.1.clone(), word);
                entry.places.insert(place, entry.series.len());
                entry.series.push(series);
            } else {
                self.left_out.series_limit += 1;
            }
        }
    }
}

impl Entry {
    fn new(reader: usize, at: Timestamp) -> Self {
        Self {
            sources: Vec::new(),
            resource: Arc::new(Resource::new(ResourceKind::Node, "")),
            series: Vec::new(),
            places: HashMap::new(),
            seconds: Vec::new(),
            witness: reader,
            witnessed: at,
            seen: at,
            slowdowns: super::slowdowns::Slowdowns::default(),
        }
    }

    /// Notes what a reader says the resource is.
    fn introduce(&mut self, reader: usize, rank: u8, at: Timestamp, resource: &Arc<Resource>) {
        self.seen = at;
        let known = self.sources.iter_mut().find(|it| it.reader == reader);
        match known {
            Some(source) => {
                source.seen = at;
                if Arc::ptr_eq(&source.resource, resource) || source.resource == *resource {
                    return;
                }
                source.resource = Arc::clone(resource);
            }
            None => {
                self.sources.push(Source {
                    reader,
                    rank,
                    resource: Arc::clone(resource),
                    seen: at,
                });
                self.sources.sort_by_key(|it| (it.rank, it.reader));
            }
        }
        self.merge();
    }

    /// One resource of all that the readers say: the best one's word first, what only others know
    /// beside it, and all of them named as its sources.
    fn merge(&mut self) {
        let Some(best) = self.sources.first() else {
            return;
        };
        if self.sources.len() == 1 {
            self.resource = Arc::clone(&best.resource);
            return;
        }
        let mut merged = Resource::clone(&best.resource);
        let mut names: Vec<&str> = Vec::new();
        for source in &self.sources {
            names.extend(source.resource.attribute(attribute::SOURCE));
            merged.attributes.fill(&source.resource.attributes);
        }
        // The agent's own health beside the host's numbers does not make it their source.
        if names.len() > 1 {
            names.retain(|name| *name != "agent");
        }
        merged
            .attributes
            .insert(attribute::SOURCE.to_owned(), names.join(","));
        self.resource = Arc::new(merged);
    }
}
