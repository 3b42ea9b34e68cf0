//! What the memory of a training process says, in the words of telemetry: which rank it is, its readings,
//! its steps, what happened to it.
//!
//! Pure functions over [`gpufleet_hooks_shm::reader::Snapshot`], and a crate of their own because two
//! programs read that memory: the agent, and the process itself where no agent is. No I/O and no clock.

pub mod rank;

pub mod readings;

pub mod events;

use gpufleet_hooks_shm::records::Step;
use gpufleet_telemetry::steps::{StepRecord, StepTimes};
use gpufleet_telemetry::time::Timestamp;

/// A step as it is packed and sent.
pub const fn step(step: &Step) -> StepRecord {
    StepRecord {
        step: step.step,
        ended_at: Timestamp(step.ended_at),
        times: StepTimes {
            wall_ns: step.wall_ns,
            busy_ns: step.busy_ns,
            data_wait_ns: step.data_wait_ns,
            comm_wait_ns: step.comm_wait_ns,
        },
        tokens: step.tokens,
        samples: step.samples,
    }
}
