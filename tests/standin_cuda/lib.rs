//! A library that answers like CUDA's driver and does what the probe's kernels do, from a scenario file,
//! so that the probe's real path runs on a machine without a GPU.
//!
//! The scenario is a TOML file named by [`SCENARIO_VARIABLE`], read once a process. Memory of the GPU is
//! memory of the process; a kernel is known by its name and done by [`kernels`] with formulas of its
//! own; time on the GPU is counted from the scenario's rates and not waited for. What is checked follows
//! the real driver: the version and the target of PTX, names of kernels, one GPU by CUDA_VISIBLE_DEVICES.
//!
//! Not imitated: whether the PTX is right. Only ptxas and a GPU can say that.

pub mod scenario;

mod driver;

mod kernels;

mod ffi;

pub use scenario::{Fault, Scenario};

/// The environment variable that names the scenario file.
pub const SCENARIO_VARIABLE: &str = "GPUFLEET_CUDA_SCENARIO";
