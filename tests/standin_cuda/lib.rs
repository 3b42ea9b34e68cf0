//! A library that answers like CUDA's driver and does what the probe's kernels do, from a scenario file,
//! so that the probe's real path runs on a machine without a GPU.
//!
//! The scenario is a TOML file named by [`SCENARIO_VARIABLE`], read once a process. Memory of the GPU is
//! memory of the process; a kernel is known by its name and done by [`kernels`] with formulas of its
//! own; time on the GPU is counted from the scenario's rates and not waited for. What is checked follows
//! the real driver: the version and the target of PTX, names of kernels, one GPU by CUDA_VISIBLE_DEVICES,
//! what is forbidden while a graph is captured.
//!
//! A process that has it loaded may say what goes wrong now (`gpufleet_standin_scenario`), and ask how often
//! something was done (`gpufleet_standin_calls`): each function by its name, and what [`counted`] names.
//!
//! Not imitated: whether the PTX is right. Only ptxas and a GPU can say that.

pub mod scenario;

mod driver;

mod kernels;

mod ffi;

pub use scenario::{Capture, Fault, Scenario};

/// What is counted beside the functions.
pub mod counted {
    /// Launches on a stream that others wait for, or that goes before others.
    pub const ELSEWHERE: &str = "launches elsewhere";
    /// Launches on a stream that did not wait for what was on another before.
    pub const UNORDERED: &str = "launches without order";
    /// Launches of a kernel that was not loaded before.
    pub const UNLOADED: &str = "launches unloaded";
    /// Calls that do not return.
    pub const HANGS: &str = "hangs";
    /// Captures that a call ended.
    pub const ENDED_CAPTURES: &str = "captures ended";
}

/// The environment variable that names the scenario file.
pub const SCENARIO_VARIABLE: &str = "GPUFLEET_CUDA_SCENARIO";
