//! What the faults that somebody put in mean for a training job.

use std::ops::Range;

use gpufleet_telemetry::time::Timestamp;

use super::faults::{Condition, Faults};

/// The GPU of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankGpu {
    /// The node, counted within the job's group of eight.
    pub node: usize,
    /// Its GPU.
    pub gpu: usize,
}

/// How a job is, by the faults on its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// None of its GPUs has any.
    None,
    /// The ranks of this node, counted within the group, are slow: everyone waits for them.
    Slow(usize),
    /// The rank on one GPU is.
    SlowRank(RankGpu),
    /// The port of one GPU's node is slow, and with it the collectives of its rank.
    SlowLink(RankGpu),
    /// All collectives between nodes go over the hosts' ports.
    WrongNetwork,
    /// It waits in a collective for ever.
    Stuck,
    /// A rank died, and with it the attempt.
    Broken(RankGpu),
}

impl Trouble {
    /// The trouble of the job on these nodes in the tick that begins at `start`; the worst of it.
    pub fn of(faults: &Faults, start: Timestamp, nodes: &Range<usize>, group: usize) -> Self {
        let all = faults.conditions(start);
        let mut worst = Self::None;
        for ((node, gpu), condition) in all.iter().filter(|((node, _), _)| nodes.contains(node)) {
            let node = node % group;
            worst = match (condition, worst) {
                (_, Self::Broken(_)) => worst,
                (Condition::Gone { .. }, _) => Self::Broken(RankGpu { node, gpu: *gpu }),
                (Condition::Stalled, _) => Self::Stuck,
                (Condition::Hot, Self::None | Self::SlowRank(_)) => Self::Slow(node),
                (Condition::SlowPort, Self::None) => Self::SlowLink(RankGpu { node, gpu: *gpu }),
                (Condition::WrongNetwork, Self::None) => Self::WrongNetwork,
                (Condition::Worn | Condition::LowClock, Self::None) => {
                    Self::SlowRank(RankGpu { node, gpu: *gpu })
                }
                _ => worst,
            };
        }
        worst
    }
}
