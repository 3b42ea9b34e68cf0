//! Recordings of real hardware, played back and marked as what they are.
//!
//! Every resource says `gpufleet.origin = recorded`, lives in a cluster whose name says the same, and
//! has ids derived from the node name it is shown under, so that two playbacks never collide and none
//! ever looks like the real card. How many samples a recording has is said beside it. A recording
//! that is played again and again lets its counters go on from where they were.
//!
//! Limits: [`MAX_FILES`], [`MAX_ROUNDS_PER_TURN`], [`MAX_SPEED`], those of [`format`] and [`source`].
//! Format: docs/recordings.md.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_program::section;
use gpufleet_telemetry::catalog::{self, Kind, MetricId};
use gpufleet_telemetry::identity::{Origin, Part, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Reading, Readings, ResourceSamples, Sample};

use super::exporter::table;
use super::{NodeFacts, Read, ReadError, ReadFuture, Readers, Turn, Wiring, boxed};
use crate::config::Config;
use format::Round;
use rename::Renamer;
use source::{Play, Source};

pub mod format;

pub mod source;

pub mod convert;

pub mod nvidia_smi_xml;

pub mod rename;

/// Most files of one agent.
pub const MAX_FILES: usize = 16;

/// Most rounds that one turn takes in; what is over waits for the next turn.
pub const MAX_ROUNDS_PER_TURN: usize = 1_000;

/// Fastest playback: beyond it a turn would take in more rounds than it may.
pub const MAX_SPEED: f64 = 100.0;

/// How long after its last round a recording that is repeated begins again.
const LAP_PAUSE_NS: i64 = 1_000_000_000;

section! {
    /// What is played back.
    pub struct RecordedConfig {
        /// Recordings to play back, or captures of an exporter (`.metrics`) or of `nvidia-smi -q -x`
        /// (`.xml`), each plain or gzip; at most 16.
        pub files: Vec<PathBuf> = Vec::new(),
        /// The node name the recording is shown under; empty means the file's name. With several files
        /// a number is added.
        pub node: String = String::new(),
        /// The cluster the recording is shown in: `recorded`, or a name that ends in `-recorded`.
        pub cluster: String = Origin::Recorded.name().to_owned(),
        /// How many recorded seconds pass in one second, above 0 and at most 100.
        pub speed: f64 = 1.0,
        /// Whether a recording begins again when it has ended.
        pub repeat: bool = false,
    }
}

/// The flags for playing something back without a config file. They switch the machine's own
/// readers off: a playback beside a live agent must not report the machine twice.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Plays this recording or capture back instead of reading this machine.
    #[arg(long, value_name = "FILE")]
    playback: Option<PathBuf>,
    /// The node name the recording is shown under.
    #[arg(long, value_name = "NAME", requires = "playback")]
    node: Option<String>,
    /// How many recorded seconds pass in one second.
    #[arg(long, value_name = "X", requires = "playback")]
    speed: Option<f64>,
    /// Begins again when the recording has ended.
    #[arg(long = "loop", requires = "playback")]
    repeat: bool,
}

impl Flags {
    /// The same as settings `section.key=value` of the config.
    pub fn settings(&self) -> Vec<String> {
        let Some(file) = &self.playback else {
            return Vec::new();
        };
        let file = toml::Value::String(file.to_string_lossy().into_owned());
        let mut settings = vec![
            "nvml.enabled=false".to_owned(),
            "host.enabled=false".to_owned(),
            "exporter.auto=false".to_owned(),
            format!("recorded.files=[{file}]"),
            format!("recorded.repeat={}", self.repeat),
        ];
        settings.extend(self.node.iter().map(|node| format!("recorded.node={node}")));
        let speed = self.speed.iter();
        settings.extend(speed.map(|speed| format!("recorded.speed={speed:?}")));
        settings
    }
}

/// The reader of one file.
#[derive(Debug)]
pub struct Recorded {
    name: String,
    cluster: String,
    node: String,
    source: Source,
    speed: f64,
    repeat: bool,
    renamer: Renamer,
    play: Option<Play>,
    next: Option<Round>,
    /// The monotonic clock at the start of the lap; none before the first turn.
    lap_started: Option<Duration>,
    counters: HashMap<Series, Counter>,
    renamed: HashMap<(ResourceKind, Arc<str>), Renamed>,
}

/// A resource as recorded, and as it is shown.
type Renamed = (Arc<Resource>, Arc<Resource>);

/// Resource as recorded, metric, part.
type Series = (ResourceKind, Arc<str>, MetricId, Option<Part>);

/// A counter's way through one lap, and what earlier laps added.
#[derive(Debug, Clone, Copy)]
struct Counter {
    first: f64,
    last: f64,
    earlier: f64,
}

/// What one turn gives of one resource.
type Merged = BTreeMap<
    (ResourceKind, Arc<str>),
    (Arc<Resource>, BTreeMap<(MetricId, Option<Part>), Reading>),
>;

/// A reader per file that the config names.
///
/// # Errors
/// When a file cannot be played at all, or the config is wrong; says which and why.
pub(super) fn readers(config: &Config, _: &mut Wiring) -> anyhow::Result<Readers> {
    let tables_folder = &config.exporter.tables_folder;
    Ok(boxed(recordings(&config.recorded, tables_folder)?))
}

fn recordings(config: &RecordedConfig, tables_folder: &Path) -> anyhow::Result<Vec<Recorded>> {
    if config.files.is_empty() {
        return Ok(Vec::new());
    }
    let count = config.files.len();
    if count > MAX_FILES {
        anyhow::bail!("recorded.files: {count} files, at most {MAX_FILES}");
    }
    let cluster = config.cluster.as_str();
    if cluster != "recorded" && !cluster.ends_with("-recorded") {
        anyhow::bail!("recorded.cluster: `{cluster}` must be `recorded` or end in `-recorded`");
    }
    if !(config.speed > 0.0 && config.speed <= MAX_SPEED) {
        let speed = config.speed;
        anyhow::bail!("recorded.speed: {speed} is not above 0 and at most {MAX_SPEED}");
    }
    let folder = Some(tables_folder).filter(|it| !it.as_os_str().is_empty());
    let (tables, _told_by_the_exporter) = table::load(folder);
    let mut readers: Vec<Recorded> = Vec::new();
    for (number, file) in config.files.iter().enumerate() {
        let source = Source::open(file, &tables)?;
        for problem in &source.problems {
            tracing::warn!(file = %file.display(), problem, "part of the recording is left out");
        }
        let mut node = match config.node.as_str() {
            "" => stem(file),
            node if count == 1 => node.to_owned(),
            node => format!("{node}-{}", number + 1),
        };
        if readers.iter().any(|other| other.node == node) {
            node = format!("{node}-{}", number + 1);
        }
        readers.push(Recorded::new(source, node, config));
    }
    Ok(readers)
}

/// The file's name up to its first dot: `h200.metrics.gz` is `h200`.
fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let end = name
        .find(".metrics")
        .or_else(|| name.find(".xml"))
        .or_else(|| name.find(".jsonl"))
        .or_else(|| name.find('.'));
    name[..end.unwrap_or(name.len())].to_owned()
}

impl Recorded {
    fn new(source: Source, node: String, config: &RecordedConfig) -> Self {
        Self {
            name: format!("recorded:{node}"),
            cluster: config.cluster.clone(),
            renamer: Renamer::new(&source.header.node, &node),
            node,
            source,
            speed: config.speed,
            repeat: config.repeat,
            play: None,
            next: None,
            lap_started: None,
            counters: HashMap::new(),
            renamed: HashMap::new(),
        }
    }

    fn round(&mut self, turn: &Turn) -> Result<Readings, ReadError> {
        let mut readings = Readings {
            at: turn.at,
            ..Readings::default()
        };
        let mut merged = Merged::new();
        for _ in 0..MAX_ROUNDS_PER_TURN {
            if self.play.is_none() && !self.start_lap(turn)? {
                break;
            }
            let Some(round) = &self.next else {
                if !self.lap_is_over(turn.monotonic) {
                    break;
                }
                self.end_lap();
                continue;
            };
            if !self.is_due(round.at_ns, turn.monotonic) {
                break;
            }
            let round = self.next.take();
            self.next = self.play.as_mut().and_then(Iterator::next);
            let Some(round) = round else { break };
            for event in &round.events {
                let mut event = self.renamer.event(event);
                event.at = turn.at;
                readings.events.push(event);
            }
            self.merge(round, &turn.node, &mut merged);
        }
        readings.resources = merged
            .into_values()
            .map(|(resource, values)| ResourceSamples {
                resource,
                samples: values
                    .into_iter()
                    .map(|((metric, part), reading)| Sample {
                        metric,
                        part,
                        reading,
                    })
                    .collect(),
            })
            .collect();
        Ok(readings)
    }

    /// Begins a lap; false when there is none to begin.
    fn start_lap(&mut self, turn: &Turn) -> Result<bool, ReadError> {
        if self.lap_started.is_some() && !self.repeat {
            return Ok(false);
        }
        let play = self.source.play();
        let mut play = play.map_err(|error| ReadError::Unavailable {
            why: format!("the recording cannot be read again: {error}"),
        })?;
        self.next = play.next();
        self.play = Some(play);
        self.lap_started = Some(turn.monotonic);
        Ok(true)
    }

    fn end_lap(&mut self) {
        self.play = None;
        for counter in self.counters.values_mut() {
            counter.earlier += (counter.last - counter.first).max(0.0);
            // The first value of the next lap sets both anew.
            counter.first = f64::NAN;
        }
    }

    fn is_due(&self, at_ns: i64, now: Duration) -> bool {
        let started = self.lap_started.unwrap_or(now);
        let played = now.saturating_sub(started).as_nanos() as f64 * self.speed;
        at_ns as f64 <= played
    }

    fn lap_is_over(&self, now: Duration) -> bool {
        self.repeat && self.is_due(self.source.length_ns + LAP_PAUSE_NS, now)
    }

    fn merge(&mut self, round: Round, node: &NodeFacts, merged: &mut Merged) {
        for one in round.resources {
            let resource = self.shown(&one.resource, &round.reader, node);
            let key = (one.resource.kind, Arc::clone(&one.resource.id));
            let values = match merged.entry(key) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert((resource, BTreeMap::new())),
            };
            for sample in one.samples {
                let reading = sample.reading.map(|value| {
                    let series = (
                        one.resource.kind,
                        Arc::clone(&one.resource.id),
                        sample.metric,
                        sample.part.clone(),
                    );
                    self.go_on(series, value)
                });
                values.1.insert((sample.metric, sample.part), reading);
            }
        }
    }

    /// A counter's value with what earlier laps counted; of other metrics the value.
    fn go_on(&mut self, series: Series, value: f64) -> f64 {
        let metric = catalog::by_id(series.2);
        if !self.repeat || metric.is_none_or(|metric| metric.kind != Kind::Counter) {
            return value;
        }
        let counter = self.counters.entry(series).or_insert(Counter {
            first: value,
            last: value,
            earlier: 0.0,
        });
        if counter.first.is_nan() {
            counter.first = value;
        }
        counter.last = value;
        value + counter.earlier
    }

    /// The resource as it is shown; the same `Arc` while the recorded one does not change.
    fn shown(&mut self, recorded: &Arc<Resource>, reader: &str, node: &NodeFacts) -> Arc<Resource> {
        let key = (recorded.kind, Arc::clone(&recorded.id));
        if let Some((from, shown)) = self.renamed.get(&key)
            && from == recorded
        {
            return Arc::clone(shown);
        }
        let facts = NodeFacts {
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            boot_id: Origin::Recorded.name().to_owned(),
            ..node.clone()
        };
        let renamed = self.renamer.resource(recorded);
        let (kind, id) = (renamed.kind, renamed.id);
        let mut shown = facts.resource(kind, id, Origin::Recorded, "recorded");
        for (name, value) in renamed.attributes {
            shown.attributes.insert_new(name, value);
        }
        let samples = self.source.samples.to_string();
        shown = shown
            .with(attribute::RECORDING_SAMPLES, samples)
            .with(attribute::RECORDING_READER, reader);
        if let Some(at) = self.source.header.taken_at_seconds {
            shown = shown.with(attribute::RECORDING_TAKEN_AT, at.to_string());
        }
        let shown = Arc::new(shown);
        let pair = (Arc::clone(recorded), Arc::clone(&shown));
        self.renamed.insert(key, pair);
        shown
    }
}

impl Read for Recorded {
    fn name(&self) -> &str {
        &self.name
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn period(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(async move { self.round(&turn) })
    }
}

#[cfg(test)]
#[path = "recorded/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "recorded/real_data_tests.rs"]
mod real_data_tests;
