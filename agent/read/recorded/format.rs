//! The recording format: JSON lines, optionally gzip. A header, then one line per reader's round.
//!
//! ```text
//! {"gpufleet_recording":1,"taken_at_seconds":1790000000,"agent_version":"0.1.0","node":"recorded"}
//! {"at_ns":0,"reader":"nvml","define":[{"number":0,"kind":"gpu","id":"GPU-…","attributes":{…}}],
//!  "samples":[{"of":0,"metric":30,"value":627.4},{"of":0,"metric":41,"missing":"not_supported"}]}
//! ```
//!
//! Metrics stand by their catalog number, which is for ever. A resource is defined in the line where
//! it is first seen or has changed, and again every [`REDEFINE_EVERY`] rounds, so that a damaged line
//! costs at most that many. A version newer than [`VERSION`] is refused.
//!
//! Limits: [`MAX_LINE_BYTES`], [`MAX_ROUNDS`].

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::{Part, PartKind, Resource, ResourceKind};
use gpufleet_telemetry::sample::{Missing, Readings, ResourceSamples, Sample};
use gpufleet_telemetry::sorted::Sorted;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 1;

/// Most bytes of one line. A round of 16 GPUs with 64 links and 100 processes each is 1.5 MB.
pub const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

/// Most rounds of one recording: a day at one a second with three readers.
pub const MAX_ROUNDS: usize = 300_000;

/// After how many rounds every resource is defined again.
pub const REDEFINE_EVERY: usize = 60;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Magic and version in one.
    pub gpufleet_recording: u32,
    /// When it was taken, Unix seconds; none where nobody knows (a capture).
    pub taken_at_seconds: Option<i64>,
    /// The version of the agent that wrote it.
    pub agent_version: String,
    /// The name of the recorded node, scrubbed: ids of GPUs without a UUID begin with it.
    pub node: String,
}

/// One round of one reader.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    /// Nanoseconds since the first round.
    pub at_ns: i64,
    /// The reader's name.
    pub reader: String,
    /// What it returned.
    pub resources: Vec<ResourceSamples>,
    /// What happened.
    pub events: Vec<Event>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    at_ns: i64,
    reader: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    define: Vec<Definition>,
    samples: Vec<LineSample>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    events: Vec<Event>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Definition {
    number: u32,
    kind: ResourceKind,
    id: String,
    attributes: Sorted<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct LineSample {
    of: u32,
    metric: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<(PartKind, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<Missing>,
}

/// Writes a recording.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    start: Option<Timestamp>,
    numbers: HashMap<(ResourceKind, Arc<str>), (u32, Arc<Resource>)>,
    rounds: usize,
}

impl<W: Write> Writer<W> {
    /// Begins with the header.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut out: W, header: &Header) -> std::io::Result<Self> {
        serde_json::to_writer(&mut out, header)?;
        out.write_all(b"\n")?;
        Ok(Self {
            out,
            start: None,
            numbers: HashMap::new(),
            rounds: 0,
        })
    }

    /// Adds one reader's round.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn round(&mut self, reader: &str, readings: &Readings) -> std::io::Result<()> {
        let start = *self.start.get_or_insert(readings.at);
        let redefine = self.rounds.is_multiple_of(REDEFINE_EVERY);
        let mut define = Vec::new();
        let mut samples = Vec::new();
        for one in &readings.resources {
            let key = (one.resource.kind, Arc::clone(&one.resource.id));
            let fresh = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            let known = self.numbers.get(&key);
            let changed = known.is_none_or(|(_, resource)| *resource != one.resource);
            let number = known.map_or(fresh, |(number, _)| *number);
            if changed || redefine {
                define.push(Definition {
                    number,
                    kind: one.resource.kind,
                    id: one.resource.id.to_string(),
                    attributes: one.resource.attributes.clone(),
                });
                self.numbers
                    .insert(key, (number, Arc::clone(&one.resource)));
            }
            samples.extend(one.samples.iter().map(|sample| LineSample {
                of: number,
                metric: sample.metric.0,
                part: sample.part.as_ref().map(|it| (it.kind, it.id.to_string())),
                value: sample.reading.ok(),
                missing: sample.reading.err(),
            }));
        }
        let line = Line {
            at_ns: readings.at.since(start),
            reader: reader.to_owned(),
            define,
            samples,
            events: readings.events.clone(),
        };
        self.rounds += 1;
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")
    }

    /// Ends the recording and gives the file back.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Reads lines; remembers which resource has which number.
#[derive(Debug, Default)]
pub struct Decoder {
    resources: HashMap<u32, Arc<Resource>>,
}

impl Decoder {
    /// The first line.
    ///
    /// # Errors
    /// When it is no header, or one of a newer version.
    pub fn header(text: &str) -> Result<Header, String> {
        let header: Header = serde_json::from_str(text).map_err(|error| {
            format!("it does not begin with the header of a recording: {error}")
        })?;
        let version = header.gpufleet_recording;
        if version == 0 || version > VERSION {
            return Err(format!(
                "it has version {version}; this agent reads up to {VERSION}: take a newer agent"
            ));
        }
        Ok(header)
    }

    /// One round. What the line says of resources counts even when a sample in it is wrong.
    ///
    /// # Errors
    /// When the line is damaged or names a resource that a damaged line defined.
    pub fn round(&mut self, text: &str) -> Result<Round, String> {
        let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for definition in line.define {
            let mut resource = Resource::new(definition.kind, definition.id);
            resource.attributes = definition.attributes;
            self.resources.insert(definition.number, Arc::new(resource));
        }
        let mut resources: Vec<(u32, ResourceSamples)> = Vec::new();
        for sample in line.samples {
            let number = sample.of;
            let reading = match (sample.value, sample.missing) {
                (Some(value), None) if value.is_finite() => Ok(value),
                (None, Some(missing)) => Err(missing),
                _ => return Err("a sample has neither a value nor a reason, or both".to_owned()),
            };
            let at = match resources.iter().position(|(other, _)| *other == number) {
                Some(at) => at,
                None => {
                    let resource = self.resources.get(&number).ok_or_else(|| {
                        format!("resource {number} was never defined, or in a damaged line")
                    })?;
                    let samples = ResourceSamples {
                        resource: Arc::clone(resource),
                        samples: Vec::new(),
                    };
                    resources.push((number, samples));
                    resources.len() - 1
                }
            };
            resources[at].1.samples.push(Sample {
                metric: MetricId(sample.metric),
                part: sample.part.map(|(kind, id)| Part::new(kind, id)),
                reading,
            });
        }
        Ok(Round {
            at_ns: line.at_ns,
            reader: line.reader,
            resources: resources.into_iter().map(|(_, samples)| samples).collect(),
            events: line.events,
        })
    }
}
