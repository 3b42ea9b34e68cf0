//! The device that the framework computes on, as far as it is asked whether it still answers (`_flight.py`).

use std::time::Duration;

use gpufleet_probe::inside;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The device of the thread that made this.
#[pyclass(frozen, module = "gpufleet._native")]
pub(crate) struct Device(inside::Device);

fn refused(cannot: inside::Cannot) -> PyErr {
    PyRuntimeError::new_err(cannot.to_string())
}

#[pymethods]
impl Device {
    /// Raises RuntimeError where this thread has no device.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let found = py.detach(inside::Device::of_this_thread);
        found.map(Self).map_err(refused)
    }

    /// Whether it answers within so many seconds. The interpreter is let go meanwhile.
    fn answers(&self, py: Python<'_>, within: f64) -> bool {
        let within = Duration::try_from_secs_f64(within).unwrap_or_default();
        py.detach(|| self.0.answers(within))
    }

    /// From now on what the calling thread asks of CUDA leaves graphs alone that other threads capture.
    fn leave_captures_alone(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.leave_captures_alone()).map_err(refused)
    }
}
