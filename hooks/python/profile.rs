//! A profile that the agent asks for (`_profile.py`): the request as it came, and what becomes of it.

use gpufleet_hooks_shm::process::unix_ns;
use gpufleet_hooks_shm::records::{Gaps, Profile};
use gpufleet_hooks_shm::words::{ProfileState, Untold};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::recorder::{Recorder, count};

#[pymethods]
impl Recorder {
    /// From now on the agent may ask for profiles.
    fn takes_profile(&self) {
        self.writer.takes_profile(true);
    }

    /// Begins the profile that is asked for: its number and its steps. None where none is, or it is begun.
    fn profile_begin(&self) -> Option<(u64, u64)> {
        let ask = self.client.asked().begin()?;
        Some((ask.number, ask.steps))
    }

    /// What has become of it: `running`, `done` with the path of its file, or `failed` with the reason; the step after
    /// which it began, its steps and its file's bytes; and the GPU's gaps (`_gaps.Gaps`), or why
    /// they were not measured.
    ///
    /// Raises ValueError where there is no such state or reason.
    fn profile_is(
        &self,
        number: u64,
        state: &str,
        text: String,
        counts: (i64, i64, i64),
        gaps: Option<[i64; 8]>,
        untold: Option<&str>,
    ) -> PyResult<()> {
        let state = ProfileState::from_text(state)
            .ok_or_else(|| PyValueError::new_err(format!("no profile is `{state}`")))?;
        let no_reason = || PyValueError::new_err("gaps are not untold for such a reason");
        let untold = untold
            .map(|it| Untold::from_text(it).ok_or_else(no_reason))
            .transpose()?;
        let (step, steps, bytes) = counts;
        self.writer.profile(&Profile {
            number,
            state,
            at: unix_ns(),
            step: count(step),
            steps: count(steps),
            bytes: count(bytes),
            gaps: gaps.map(|it| Gaps::of(it.map(count))),
            untold,
            text,
        });
        Ok(())
    }

    /// What was begun is over: the next may be asked for.
    fn profile_end(&self) {
        self.client.asked().end();
    }
}
