//! The probe inside this process (`_probe.py`): what it comes to goes into the region.
//!
//! Nothing here waits for the GPU, and the interpreter is let go while the driver is called.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::records::Probe;
use gpufleet_hooks_shm::words::ProbeVerdict;
use gpufleet_probe::inside::{Cannot, Found, Inside, Lent, Polled, Room};
use gpufleet_probe::measured::Measured;
use gpufleet_probe::ptx::Work;
use gpufleet_probe::verdict::{self, Verdict};
use gpufleet_probe::wrong::{Reach, Wrong};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::recorder::Recorder;

/// Longest that the end of a script waits for the driver's compiler.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Probes the GPU that this process computes on.
#[pyclass(frozen, module = "gpufleet._native")]
pub(crate) struct Prober {
    recorder: Py<Recorder>,
    inside: Inside,
    /// A spoilt one is told to nobody but its caller.
    is_spoilt: bool,
    last: Mutex<Last>,
}

/// What the last one came to.
#[derive(Default)]
struct Last {
    verdict: Option<Verdict>,
    reason: String,
    sm: Option<u32>,
    gpu_seconds: f64,
    checked_bytes: u64,
    runs: u64,
    /// What no run since found to be right.
    wrong: Wrong,
}

#[pymethods]
impl Prober {
    /// `spoil`: the work whose expectation is spoilt, to see it fail.
    ///
    /// Raises ValueError where there is no such work.
    #[new]
    #[pyo3(signature = (recorder, spoil = None))]
    fn new(recorder: Py<Recorder>, spoil: Option<&str>) -> PyResult<Self> {
        let named = |name| Work::ALL.into_iter().find(|it| it.name() == name);
        let work = spoil.map(|name| {
            let names = Work::ALL.map(Work::name).join(", ");
            let none = || PyValueError::new_err(format!("spoil={name}: it may be {names}"));
            named(name).ok_or_else(none)
        });
        let work = work.transpose()?;
        Ok(Self {
            recorder,
            inside: Inside::spoilt(work),
            is_spoilt: work.is_some(),
            last: Mutex::default(),
        })
    }

    /// Whether the node's agent wants none.
    fn is_off(&self) -> bool {
        self.recorder.get().client.is_probe_off()
    }

    /// `ready`; `waits` for the compiler, or a run that is on its way; `told` why it cannot be now; `never`.
    fn prepare(&self, py: Python<'_>) -> &'static str {
        match py.detach(|| self.inside.prepare(now())) {
            Ok(true) => "ready",
            Ok(false) => "waits",
            Err(cannot) => {
                self.told(Err(&cannot));
                if self.inside.is_over() {
                    "never"
                } else {
                    "told"
                }
            }
        }
    }

    /// How many bytes a run would borrow now, after what is on the framework's stream; 0: none, and why was
    /// told; below 0: a graph is being captured.
    fn room(&self, py: Python<'_>, stream: u64) -> i64 {
        match py.detach(|| self.inside.room(stream)) {
            Ok(Room::Bytes(bytes)) => i64::try_from(bytes).unwrap_or(0),
            Ok(Room::Captured) => -1,
            Err(cannot) => {
                self.told(Err(&cannot));
                0
            }
        }
    }

    /// Launches a run on memory of the GPU that nobody else uses until `poll` says `over`. Whether the memory
    /// is in use from now on; where it is not, why was told.
    fn start(&self, py: Python<'_>, address: u64, bytes: usize, stream: u64) -> bool {
        let lent = Lent { address, bytes };
        match py.detach(|| self.inside.start(lent, stream, now())) {
            Ok(()) => true,
            Err(cannot) => {
                self.told(Err(&cannot));
                false
            }
        }
    }

    /// Where the run is: `idle`, `running`, `over` (its memory is free), or `lost`: its memory may never be
    /// used again.
    fn poll(&self, py: Python<'_>) -> &'static str {
        match py.detach(|| self.inside.poll(now())) {
            Polled::Idle => "idle",
            Polled::Running => "running",
            Polled::Over(found) => {
                self.told(found.as_deref());
                "over"
            }
            Polled::Lost(cannot) => {
                self.told(Err(&cannot));
                "lost"
            }
        }
    }

    /// Nothing is known, for a reason that Python knows.
    fn could_not(&self, reason: String) {
        self.tell(Verdict::CouldNotMeasure, reason, None, &Measured::default());
    }

    /// What the last one came to: verdict, reason, the SM to blame, seconds on the GPU, bytes of memory gone
    /// through, how many there were. The verdict is empty before the first.
    fn last(&self) -> (&'static str, String, Option<u32>, f64, u64, u64) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let verdict = match last.verdict {
            None => "",
            Some(Verdict::CouldNotMeasure) => "could not measure",
            Some(verdict) => verdict.name(),
        };
        let reason = last.reason.clone();
        (
            verdict,
            reason,
            last.sm,
            last.gpu_seconds,
            last.checked_bytes,
            last.runs,
        )
    }

    /// The script ends: waits some seconds for the driver's compiler, if it is at it.
    fn finish(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inside.finish(FINISH_WITHIN))
    }
}

impl Prober {
    fn told(&self, found: Result<&Found, &Cannot>) {
        match found {
            Ok(found) => {
                let judgement = &found.judgement;
                let reason = judgement.reason.clone();
                self.tell(judgement.verdict, reason, judgement.sm, &found.measured);
            }
            Err(cannot) => self.could_not(cannot.to_string()),
        }
    }

    /// Keeps what a run came to, and says it to whoever reads the region. What was found wrong stands until it was
    /// measured again and is right.
    fn tell(&self, verdict: Verdict, reason: String, sm: Option<u32>, measured: &Measured) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.runs += 1;
        let reach = Reach::of(measured, false);
        last.wrong.take(&reach, verdict);
        if verdict != Verdict::Fail && !last.wrong.is_nothing() {
            return;
        }
        *last = Last {
            verdict: Some(verdict),
            reason,
            sm,
            gpu_seconds: measured.gpu_seconds,
            checked_bytes: measured.checked_bytes,
            runs: last.runs,
            wrong: last.wrong,
        };
        if self.is_spoilt {
            return;
        }
        let recorder = self.recorder.get();
        recorder.writer.probe(&Probe {
            at: unix_ns(),
            verdict: match verdict {
                Verdict::Pass | Verdict::Degraded => ProbeVerdict::Passed,
                Verdict::Fail => ProbeVerdict::Failed,
                Verdict::CouldNotMeasure => ProbeVerdict::CouldNotRun,
            },
            step: recorder.last_step(),
            sm,
            sms: u64::from(measured.sms),
            covered: u64::from(verdict::covered(measured)),
            checked_bytes: measured.checked_bytes,
            gpu_ns: (measured.gpu_seconds * 1e9) as u64,
            runs: last.runs,
            right: reach.right.bits(),
            wrong: last.wrong.works().bits(),
            reason: last.reason.clone(),
        });
    }
}

fn now() -> Duration {
    Duration::from_nanos(monotonic_ns())
}
