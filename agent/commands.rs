//! Commands ride in the server's replies: what they may ask, and how they reach the part that acts.

use tokio::sync::{mpsc, oneshot};

/// Most orders waiting for the NVML reader: one command per GPU is in flight at most, and a release
/// is about the whole library.
pub const MAX_NVML_ORDERS: usize = 4;

/// What the NVML reader may be told between two rounds.
#[derive(Debug)]
pub struct NvmlOrder {
    /// What to do.
    pub action: NvmlAction,
    /// Where to say that it is done, or why not.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// What to do with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvmlAction {
    /// Let go of NVML, so that a driver reload or a GPU reset can go ahead; samples then read
    /// [`gpufleet_telemetry::sample::Missing::Released`].
    Release,
    /// Take it again.
    Acquire,
}

/// The NVML reader's end; it looks here at the start of each round.
pub type NvmlOrders = mpsc::Receiver<NvmlOrder>;
