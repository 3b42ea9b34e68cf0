//! The NVML reader end to end: this process as the parent, the real agent binary as the child, the
//! stand-in library in place of the driver's. Each test is one promise of `agent/read/nvml.rs`.

mod bench;
mod changes;
mod every_metric;
mod hangs;
mod listening;
mod values;
