//! The native half of the Python package `gpufleet`: clocks, step records and the region they go to.
//!
//! What runs at every step is here and costs some hundred nanoseconds from Python; what runs now and
//! then is Python. Nothing here raises for what a script does wrong with a number: counts below zero
//! are 0, text is cut. The Python half catches what is left.
#![deny(missing_docs)]

use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::otlp;
use pyo3::panic::PanicException;
use pyo3::prelude::*;

mod batches;
mod device;
mod flight;
mod listen;
mod prober;
mod profile;
mod record;
mod recorder;
mod span;
mod teller;

/// The module `gpufleet._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<recorder::Recorder>()?;
    module.add_class::<span::Span>()?;
    module.add_class::<batches::Batches>()?;
    module.add_class::<listen::Listener>()?;
    module.add_class::<teller::Teller>()?;
    module.add_class::<prober::Prober>()?;
    module.add_class::<device::Device>()?;
    module.add("PanicException", module.py().get_type::<PanicException>())?;
    module.add("MISSING_REASON", otlp::MISSING_REASON)?;
    module.add("RESOURCE_ID", otlp::RESOURCE_ID)?;
    module.add("RESOURCE_KIND", attribute::KIND)?;
    module.add("STEPS_EVENT", otlp::STEPS_EVENT)?;
    module.add("SOCKET", gpufleet_hooks_shm::wire::SOCKET)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
