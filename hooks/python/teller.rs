//! What is to be sent by OTLP where no agent reads this process: the same words as an agent's, of this
//! process alone. Python writes them as JSON and sends them (`_otlp.py`).
//!
//! Limits: [`MAX_EVENTS`], [`MAX_ENTRIES`]. Steps beyond wait in the ring of the region, as they do for an
//! agent; those that are written over there are in the totals, and told as missed.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use gpufleet_hooks_shm::process::{began_at, unix_ns};
use gpufleet_hooks_shm::reader::{Reader, Snapshot};
use gpufleet_hooks_tell::events::{Exit, Told, happened, missed, probed};
use gpufleet_hooks_tell::rank::{Said, rank_id};
use gpufleet_hooks_tell::readings::{self, Kept};
use gpufleet_telemetry::catalog::{self, Kind};
use gpufleet_telemetry::event::{Event, Severity};
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::otlp;
use gpufleet_telemetry::sample::Sample;
use gpufleet_telemetry::steps::{self, MAX_BLOCKS, MAX_ENTRIES, Packer, StepBlock};
use gpufleet_telemetry::time::Timestamp;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::recorder::Recorder;

/// Most events that wait for a server that does not answer; the oldest go.
const MAX_EVENTS: usize = 64;

/// What was not sent yet of one process.
#[pyclass(frozen, module = "gpufleet._native")]
pub(crate) struct Teller {
    recorder: Py<Recorder>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    reader: Option<Reader>,
    told: Told,
    kept: Kept,
    packer: Packer,
    events: VecDeque<Event>,
    blocks: Vec<StepBlock>,
}

#[pymethods]
impl Teller {
    /// Tells of the process with this recorder, from its first step on.
    #[new]
    fn new(recorder: Py<Recorder>) -> Self {
        Self {
            recorder,
            waiting: Mutex::default(),
        }
    }

    /// What there is to send: the readings of now, and the events and steps since the last one that was
    /// sent. None before the process has said which rank it is.
    #[pyo3(signature = (node, is_last = false))]
    fn batch<'py>(
        &self,
        py: Python<'py>,
        node: &str,
        is_last: bool,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Timestamp(unix_ns());
        let Some((resource, samples, since)) =
            waiting.take(self.recorder.get(), node, now, is_last)?
        else {
            return Ok(None);
        };
        let dict = PyDict::new(py);
        dict.set_item("at", now.0)?;
        dict.set_item("since", since)?;
        dict.set_item("resource", shown(py, &resource)?)?;
        let samples: Vec<_> = samples.iter().filter_map(sample).collect();
        dict.set_item("samples", PyList::new(py, samples)?)?;
        let events: PyResult<Vec<_>> = waiting.events.iter().map(|it| event(py, it)).collect();
        dict.set_item("events", PyList::new(py, events?)?)?;
        let packed = waiting.blocks.chunks(MAX_BLOCKS);
        let packed = packed.map(|blocks| {
            let ended_at = blocks.last().map_or(now.0, |it| it.ended_at.0);
            (ended_at, PyBytes::new(py, &steps::encode(blocks)))
        });
        dict.set_item("steps", PyList::new(py, packed.collect::<Vec<_>>())?)?;
        Ok(Some(dict))
    }

    /// The last batch's events and steps have arrived, or never will.
    fn sent(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.events.clear();
        waiting.blocks.clear();
    }
}

/// The resource of the rank, its readings, and since when its counters count.
type Taken = (Resource, Vec<Sample>, i64);

impl Waiting {
    fn take(
        &mut self,
        recorder: &Recorder,
        node: &str,
        now: Timestamp,
        is_last: bool,
    ) -> PyResult<Option<Taken>> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(recorder.own_reader()?),
        };
        let before = reader.place();
        let snapshot = reader.snapshot(now.0);
        let snapshot = snapshot.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let Some(resource) = resource(&snapshot, node) else {
            // The steps wait in the ring.
            reader.go_on_from(before);
            return Ok(None);
        };
        let entries: usize = self.blocks.iter().map(|it| it.times.len()).sum();
        if entries + snapshot.steps.len() > MAX_ENTRIES {
            reader.go_on_from(before);
        } else {
            self.take_steps(&snapshot, &resource, now, is_last);
        }
        let exit = is_last.then(Exit::default);
        let exit = exit.filter(|_| snapshot.end.is_some());
        let began = Timestamp(began_at(snapshot.header.start_ticks));
        let events = happened(&resource, &snapshot, began, exit, now, &mut self.told);
        self.events.extend(events);
        self.events
            .extend(probed(&resource, &snapshot, &mut self.told));
        let over = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..over);
        let samples = readings::of(std::iter::once(&snapshot), now, &mut self.kept);
        let since = snapshot.header.created_at.unwrap_or(now.0);
        Ok(Some((resource, samples, since)))
    }

    fn take_steps(&mut self, snapshot: &Snapshot, rank: &Resource, now: Timestamp, is_last: bool) {
        for step in &snapshot.steps {
            self.packer.push(gpufleet_hooks_tell::step(step));
        }
        let has_paused = snapshot.steps.is_empty();
        self.blocks.extend(self.packer.take(is_last || has_paused));
        if snapshot.steps_missed > 0 {
            self.events
                .push_back(missed(rank, snapshot.steps_missed, now));
        }
    }
}

/// The rank as a resource; none before it is known, or where it cannot be.
fn resource(snapshot: &Snapshot, node: &str) -> Option<Resource> {
    let said = Said::of(snapshot, std::iter::once(snapshot))?;
    let rank = rank_id(&said.identity)?.ok()?;
    let id = rank.checked().ok()?;
    let known = [
        (attribute::KIND, ResourceKind::Rank.name()),
        (attribute::NODE, node),
        (attribute::SOURCE, "hooks:otlp"),
        (attribute::CLUSTER, &said.identity.cluster),
        (attribute::GPU_ID, &said.identity.gpu_uuid),
    ];
    let resource = Resource::new(ResourceKind::Rank, id);
    let known = known.into_iter().filter(|(_, value)| !value.is_empty());
    let resource = known.fold(resource, |resource, (name, value)| {
        resource.with(name, value)
    });
    Some(said.describe(resource, &rank))
}

fn shown<'py>(py: Python<'py>, resource: &Resource) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in &resource.attributes {
        dict.set_item(name, value)?;
    }
    dict.set_item(otlp::INSTANCE_ID_KEY, &*resource.id)?;
    Ok(dict)
}

/// Name, unit, whether it counts, the part's attribute and id, the value or why there is none.
type Shown = (
    &'static str,
    &'static str,
    bool,
    Option<(&'static str, String)>,
    Option<f64>,
    Option<&'static str>,
);

fn sample(sample: &Sample) -> Option<Shown> {
    let metric = catalog::by_id(sample.metric)?;
    let part = sample.part.as_ref();
    Some((
        otlp::name(metric),
        otlp::unit(metric),
        metric.kind == Kind::Counter,
        part.map(|it| (it.kind.attribute(), it.id.to_string())),
        sample.reading.ok(),
        sample.reading.err().map(|it| it.name()),
    ))
}

fn event<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("at", event.at.0)?;
    dict.set_item(
        "name",
        format!("{}{}", otlp::EVENT_PREFIX, event.kind.name()),
    )?;
    // OTLP's numbers of severities.
    let severity = match event.severity {
        Severity::Info => 9,
        Severity::Warning => 13,
        Severity::Error => 17,
    };
    dict.set_item("severity", (severity, event.severity.name()))?;
    dict.set_item("message", &event.message)?;
    dict.set_item("attributes", &event.attributes)?;
    Ok(dict)
}
