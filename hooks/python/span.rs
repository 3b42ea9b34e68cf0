//! A phase as a context manager: `with recorder.span(phase):`.

use std::sync::Mutex;

use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::records::Now;
use gpufleet_hooks_shm::stepping::is_stall;
use gpufleet_hooks_shm::words::Phase;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::recorder::Recorder;

/// A phase that begins and ends. Inside a stall only the stall is counted.
#[pyclass(frozen, module = "gpufleet._native")]
pub(crate) struct Span {
    recorder: Py<Recorder>,
    phase: Phase,
    open: Mutex<Option<Open>>,
}

/// A phase that began.
pub(crate) struct Open {
    began_at: u64,
    before: Option<Now>,
    place: Place,
}

/// Where a phase began.
#[derive(PartialEq, Eq)]
enum Place {
    /// In the thread that trains, outside every stall.
    Training,
    /// Inside a stall.
    Stalled,
    /// In another thread, whose time is not the step's.
    Aside,
}

impl Span {
    pub(crate) const fn new(recorder: Py<Recorder>, phase: Phase) -> Self {
        Self {
            recorder,
            phase,
            open: Mutex::new(None),
        }
    }
}

#[pymethods]
impl Span {
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        let span = slf.get();
        if let Ok(mut open) = span.open.try_lock() {
            *open = Some(span.recorder.get().enter(span.phase));
        }
        slf
    }

    /// How long it lasted, nanoseconds; 0 when it had not begun.
    fn end(&self) -> u64 {
        let open = self.open.try_lock().ok().and_then(|mut open| open.take());
        open.map_or(0, |open| self.recorder.get().leave(self.phase, &open))
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) -> bool {
        self.end();
        false
    }
}

impl Recorder {
    /// A phase begins.
    pub(crate) fn enter(&self, phase: Phase) -> Open {
        let began_at = monotonic_ns();
        let mut stepping = self.stepping();
        let is_training = self.is_training_thread();
        let place = match (is_training, is_stall(phase)) {
            (false, _) => Place::Aside,
            (true, true) => {
                // What is done before the first batch is startup: it is no part of a step.
                if phase == Phase::DataWait {
                    self.begin_at(&mut stepping, began_at);
                }
                match stepping.stall() {
                    true => Place::Training,
                    false => Place::Stalled,
                }
            }
            (true, false) if stepping.is_stalled() => Place::Stalled,
            (true, false) => Place::Training,
        };
        let before = match place {
            Place::Training => self.writer.enter(phase, unix_ns()),
            Place::Stalled | Place::Aside => None,
        };
        Open {
            began_at,
            before,
            place,
        }
    }

    /// It ends.
    pub(crate) fn leave(&self, phase: Phase, open: &Open) -> u64 {
        let duration_ns = monotonic_ns().saturating_sub(open.began_at);
        if open.place != Place::Stalled {
            self.writer.spent(phase, duration_ns);
        }
        if open.place == Place::Training {
            self.writer.back_in(open.before);
        }
        if open.place != Place::Aside && is_stall(phase) {
            let counted = (open.place == Place::Training).then_some(duration_ns);
            self.stepping().go_on(phase, counted);
        }
        duration_ns
    }
}
