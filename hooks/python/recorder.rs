//! What the Python half calls at every step.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use gpufleet_hooks_shm::client::{Client, Options};
use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::reader::Reader;
use gpufleet_hooks_shm::stepping::{Flops, Stepping, Work};
use gpufleet_hooks_shm::words::{Phase, WriterKind};
use gpufleet_hooks_shm::writer::Writer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator};

use crate::batches::Batches;
use crate::flight::Flight;
use crate::listen;
use crate::span::Span;

/// The region of this process, the clock of its steps and the thread that hands it to an agent.
#[pyclass(frozen, module = "gpufleet._native")]
pub(crate) struct Recorder {
    pub(crate) client: Client,
    pub(crate) writer: Writer,
    /// Held for some nanoseconds and never while Python runs, so that nobody waits for it and no
    /// fork finds it taken.
    stepping: Mutex<Stepping>,
    thread: ThreadId,
    made_at: u64,
    process_began_at: u64,
    reader: Mutex<Option<Reader>>,
    pub(crate) flight: Mutex<Flight>,
}

impl Recorder {
    pub(crate) fn stepping(&self) -> MutexGuard<'_, Stepping> {
        self.stepping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the thread that made the recorder: the one that trains.
    pub(crate) fn is_training_thread(&self) -> bool {
        std::thread::current().id() == self.thread
    }

    /// A reader of the region of this very process.
    pub(crate) fn own_reader(&self) -> PyResult<Reader> {
        let file = self.writer.file().ok_or_else(|| {
            PyRuntimeError::new_err(
                "this process has no region: it was forked, or has no memory file",
            )
        })?;
        Reader::new(file).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// The first step begins, if none has: startup is over.
    pub(crate) fn begin_at(&self, stepping: &mut Stepping, now: u64) {
        if let Some(stood_still_ns) = stepping.begin(now) {
            let startup_ns = now.saturating_sub(self.process_began_at);
            self.writer
                .spent(Phase::Startup, startup_ns.saturating_sub(stood_still_ns));
            self.writer.back_in(None);
        }
    }
}

#[pymethods]
impl Recorder {
    /// Makes the region and begins to look for an agent. `process_age_ns`: how long ago the process
    /// began.
    #[new]
    #[pyo3(signature = (socket = None, process_age_ns = 0))]
    fn new(socket: Option<PathBuf>, process_age_ns: u64) -> Self {
        let mut options = Options::new(WriterKind::Python);
        if let Some(socket) = socket {
            options.socket = socket;
        }
        let client = Client::start(options);
        let writer = client.writer();
        let ago = i64::try_from(process_age_ns).unwrap_or_default();
        writer.enter(Phase::Startup, unix_ns().saturating_sub(ago));
        let made_at = monotonic_ns();
        Self {
            client,
            writer,
            stepping: Mutex::default(),
            thread: std::thread::current().id(),
            made_at,
            process_began_at: made_at.saturating_sub(process_age_ns),
            reader: Mutex::default(),
            flight: Mutex::default(),
        }
    }

    /// Whether an agent has the region: away, connected, refused or off.
    fn state(&self) -> &'static str {
        self.client.state().text()
    }

    /// Training begins now, if it has not.
    fn begin(&self) {
        self.begin_at(&mut self.stepping(), monotonic_ns());
    }

    /// A step ended. A number below 0: the next one. 0, or the sum of 1, about once a second: the time to do what
    /// is done now and then, and 2: the agent asks for a profile, or one is begun.
    #[pyo3(signature = (number = -1, tokens = 0, samples = 0, flops = 0.0))]
    fn step(&self, number: i64, tokens: i64, samples: i64, flops: f64) -> u8 {
        let now = monotonic_ns();
        let mut stepping = self.stepping();
        // Where neither loader nor model is watched nothing says when the first step began.
        self.begin_at(&mut stepping, self.made_at);
        stepping.add(work(tokens, samples, flops));
        let (step, is_tick) = stepping.end(now, unix_ns(), u64::try_from(number).ok());
        self.writer.step(&step);
        u8::from(is_tick) | u8::from(self.client.asked().is_any()) << 1
    }

    /// More tokens, samples, FLOPs of the running step: of a micro-batch.
    #[pyo3(signature = (tokens = 0, samples = 0, flops = 0.0))]
    fn add(&self, tokens: i64, samples: i64, flops: f64) {
        self.stepping().add(work(tokens, samples, flops));
    }

    /// The number of the last step.
    pub(crate) fn last_step(&self) -> u64 {
        self.stepping().last()
    }

    /// The run goes on after this step.
    fn go_on_after(&self, step: i64) {
        self.stepping().go_on_after(count(step));
    }

    /// What a step costs in FLOPs, of this rank.
    fn flops(&self, per_step: f64, per_token: f64) {
        self.stepping().flops = Flops {
            per_step: positive(per_step),
            per_token: positive(per_token),
        };
    }

    /// A phase as a context manager.
    fn span(slf: Py<Self>, phase: &str) -> PyResult<Span> {
        let phase = phase_named(phase)?;
        Ok(Span::new(slf, phase))
    }

    /// Around a loader's iterator.
    #[pyo3(signature = (inner, on_batch = None))]
    fn batches(slf: Py<Self>, inner: Py<PyIterator>, on_batch: Option<Py<PyAny>>) -> Batches {
        Batches::new(slf, inner, on_batch)
    }

    /// Time spent in a phase that was measured elsewhere, on the GPU.
    fn spent(&self, phase: &str, duration_ns: u64) -> PyResult<()> {
        self.writer.spent(phase_named(phase)?, duration_ns);
        Ok(())
    }

    /// Training stood still for a data wait, a checkpoint or an evaluation that was measured elsewhere
    /// and ended just now. Nothing inside another stall.
    fn stood_still(&self, phase: &str, duration_ns: u64) -> PyResult<()> {
        let phase = phase_named(phase)?;
        let mut stepping = self.stepping();
        let is_outermost = stepping.stall();
        if is_outermost {
            self.writer.spent(phase, duration_ns);
        }
        stepping.go_on(phase, is_outermost.then_some(duration_ns));
        Ok(())
    }

    /// The process is in this phase from now on, or in none: to be seen when it hangs. What it spends
    /// there is measured elsewhere.
    #[pyo3(signature = (phase = None))]
    fn now_in(&self, phase: Option<&str>) -> PyResult<()> {
        match phase {
            Some(phase) => {
                self.writer.enter(phase_named(phase)?, unix_ns());
            }
            None => self.writer.back_in(None),
        }
        Ok(())
    }

    /// Whether training stands still for data, a checkpoint or an evaluation.
    fn is_stalled(&self) -> bool {
        self.stepping().is_stalled()
    }

    /// What an agent would read now, as a dict; steps are those since the call before.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = match &mut *reader {
            Some(reader) => reader,
            none => none.insert(self.own_reader()?),
        };
        let snapshot = reader
            .snapshot(unix_ns())
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        listen::shown(py, &snapshot)
    }
}

/// The phase of this name.
fn phase_named(name: &str) -> PyResult<Phase> {
    Phase::from_text(name)
        .ok_or_else(|| PyValueError::new_err(format!("there is no phase `{name}`")))
}

/// A count from Python: below zero it says nothing.
pub(crate) fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A number of FLOPs: only a finite one above zero says something.
fn positive(number: f64) -> f64 {
    if number.is_finite() && number > 0.0 {
        number
    } else {
        0.0
    }
}

fn work(tokens: i64, samples: i64, flops: f64) -> Work {
    Work {
        tokens: count(tokens),
        samples: count(samples),
        flops: positive(flops),
    }
}
