//! A library that answers like NVIDIA's NVML, from a scenario file, so that the agent's real FFI
//! path runs on a machine without a GPU.
//!
//! The scenario is a TOML file named by the environment variable [`SCENARIO_VARIABLE`]. It is read
//! again when it changes, so a running test can lose a GPU, upgrade the driver or inject an XID.
//! What a caller can see follows the real library: struct versions, return codes, size
//! negotiation, a device list that is fixed at `nvmlInit_v2`, handles that die with it, MIG
//! handles, GPM's two samples, events lost before registration, a set of events that one lost GPU
//! spoils. Values are functions of time and slot alone ([`load`]), so a test knows what it must read.
//!
//! Not imitated: a call that cannot be killed. A hang here is a thread that waits.

pub mod scenario;

pub mod models;

pub mod load;

pub mod calls;

mod clock;

mod driver;

mod answer;

mod ffi;

mod events;

mod gpm;

pub use calls::{CallTable, FUNCTIONS};
pub use scenario::{Fault, FaultKind, Gpu, Process, Scenario, Xid};

/// The environment variable that names the scenario file.
pub const SCENARIO_VARIABLE: &str = "GPUFLEET_NVML_SCENARIO";

/// Most GPUs of one scenario: handles keep the slot in one byte, and byte 255 means none.
pub const MAX_GPUS: usize = 64;
