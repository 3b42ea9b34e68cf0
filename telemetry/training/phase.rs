//! The phases of a step, and those beside steps: each a number in the shared memory and a metric of its seconds.

use serde::{Deserialize, Serialize};

use crate::catalog::Metric;
use crate::catalog::training::PHASES;

/// What a rank spends its time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for the next batch.
    DataWait,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The optimizer.
    Optimizer,
    /// Collectives.
    Communication,
    /// Saving a checkpoint.
    CheckpointSave,
    /// Going back to a checkpoint.
    CheckpointRestore,
    /// Evaluation.
    Evaluation,
    /// From the start of the process to its first step.
    Startup,
    /// What the script named itself.
    Other,
}

names!(Phase, "phase, in the order of their numbers in the shared memory, which begin at 1",
    DataWait "data_wait", Forward "forward", Backward "backward", Optimizer "optimizer",
    Communication "communication", CheckpointSave "checkpoint_save",
    CheckpointRestore "checkpoint_restore", Evaluation "evaluation", Startup "startup",
    Other "other");

impl Phase {
    /// Those that take long while the other ranks wait, as it should be: in them a run is let alone.
    pub const QUIET: [Self; 4] = [
        Self::CheckpointSave,
        Self::CheckpointRestore,
        Self::Evaluation,
        Self::Startup,
    ];

    /// Its number as a reading ([`PHASE_NOW`](crate::catalog::training::PHASE_NOW)), in which 0 is none.
    pub fn code(self) -> f64 {
        f64::from(self as u8) + 1.0
    }

    /// The metric that counts its seconds.
    pub fn seconds(self) -> &'static Metric {
        &PHASES[self as usize]
    }
}
