//! The iterator around a data loader's: what `next` takes is time spent waiting for data.

use gpufleet_hooks_shm::words::Phase;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::recorder::Recorder;

/// Iterates over batches and times the wait for each.
#[pyclass(frozen, module = "gpufleet._native")]
pub(crate) struct Batches {
    recorder: Py<Recorder>,
    inner: Py<PyIterator>,
    on_batch: Option<Py<PyAny>>,
}

impl Batches {
    /// Around `inner`; `on_batch` is called with each batch, and what it raises is dropped.
    pub(crate) const fn new(
        recorder: Py<Recorder>,
        inner: Py<PyIterator>,
        on_batch: Option<Py<PyAny>>,
    ) -> Self {
        Self {
            recorder,
            inner,
            on_batch,
        }
    }
}

#[pymethods]
impl Batches {
    const fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> Option<PyResult<Bound<'py, PyAny>>> {
        let recorder = self.recorder.get();
        let open = recorder.enter(Phase::DataWait);
        let batch = self.inner.bind(py).clone().next();
        recorder.leave(Phase::DataWait, &open);
        if let (Some(Ok(batch)), Some(on_batch)) = (&batch, &self.on_batch)
            && let Err(error) = on_batch.call1(py, (batch,))
            && !error.is_instance_of::<PyException>(py)
        {
            // Ctrl-C, which Python delivers wherever it is: the script's, not ours.
            return Some(Err(error));
        }
        batch
    }

    /// How many batches, where the loader's iterator says it.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.bind(py).len()
    }

    /// Without it an iterator that says no length could not be asked whether it is there.
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        self.inner.bind(py).is_truthy()
    }

    /// Whatever else the loader's iterator has.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.inner.bind(py).getattr(name)
    }
}
