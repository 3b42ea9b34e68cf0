//! What would make a run faster, by how much, and what that is worth a day: the bottleneck adviser.
//!
//! Method. A step is cut into parts that do not overlap ([`Part`]): waiting for data, waiting for the
//! host, communication that is not hidden, computing, the pipeline's bubble; saving checkpoints stands
//! beside the steps. An advice looks at a step without saves and evaluations; what it takes and removes of the run's time is
//! that part of the time of all such steps ([`Profile::in_steps`]). Each advice ([`ALL`]) looks at one part: what was measured, today's
//! value of a knob, the value proposed, and by what factor the part shrinks. Removing a share f by a
//! factor s gains 1 ÷ ((1 − f) + f ÷ s) (Amdahl). Advices on one part do not add up: the greatest counts;
//! those on different parts add up over the time that each removes ([`together`]), never by multiplying.
//!
//! Nothing is advised from what is not known: a missing reading makes its advice silent. Where a bottleneck was measured
//! and nothing tells what its knob gains, the advice says so and stands behind those with a gain.
//!
//! Limits: gains are what arithmetic allows if nothing else becomes the bottleneck; [`Confidence`] says
//! how directly the part was measured. Shares under [`LEAST_SHARE`] are not worth a change.

use std::collections::BTreeMap;

use crate::cause::Reading;
use crate::lost::Losing;

mod bandwidth;
mod bubble;
mod checkpoint;
mod communication;
mod data;
mod gaps;
mod host;
mod launch;
mod pinning;
mod recompute;
mod set_up;
mod tensor;

#[cfg(test)]
pub(crate) mod tests;

pub use checkpoint::{best_interval, wasted};
pub use communication::{HELD_BACK, Way, in_collectives};
pub use gaps::{Gaps, unexplained};
pub use set_up::SetUp;

/// A part of the step below this share is left alone: repeats of one run differ by as much.
pub const LEAST_SHARE: f64 = 0.03;

/// A part of a run's time. The first five make up a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Waiting for the next batch.
    Data,
    /// Waiting for the host: synchronisations, and kernels that are launched too slowly.
    Host,
    /// Communication that computing does not hide.
    Communication,
    /// Computing.
    Compute,
    /// Stages that wait for the pipeline to fill and drain.
    Bubble,
    /// Saving checkpoints, and what a failure loses since the last one.
    Checkpoint,
}

/// How directly it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// Worked out from what hints at it.
    Low,
    /// The part was measured, what shrinks it was not.
    Medium,
    /// Both were.
    High,
}

/// What limits the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bottleneck {
    /// Loading data, for want of workers.
    DataWorkers,
    /// Loading data, for want of CPU.
    DataCpu,
    /// Loading data from a disk.
    DataDisk,
    /// Loading data over the network.
    DataNetwork,
    /// Loading data from storage of which it is not told whether it is a disk.
    DataStorage,
    /// Loading data, and the host does not tell what of: without PSI a slow disk and too few workers look alike.
    DataUnknown,
    /// Data that comes to the GPU from memory that is not pinned.
    DataNotPinned,
    /// Synchronisations with the host.
    HostSync,
    /// What the host does after a synchronisation, before it launches again.
    HostWork,
    /// Communication.
    Communication,
    /// The bandwidth of the GPU's memory.
    MemoryBandwidth,
    /// Launching kernels.
    Launch,
    /// Tensor cores are not used.
    TensorCoresUnused,
    /// The pipeline's bubble.
    PipelineBubble,
    /// Recomputation with memory to spare.
    Recomputation,
    /// Checkpoints.
    Checkpoint,
}

/// A knob, with what it is and what it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Knob {
    /// Its name as the user writes it: `num_workers`.
    pub name: &'static str,
    /// Today's value; none when it is not told.
    pub today: Option<String>,
    /// The value proposed.
    pub proposed: String,
}

/// One advice.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// What limits the run.
    pub bottleneck: Bottleneck,
    /// The part of its time that this is about.
    pub part: Part,
    /// What was measured.
    pub measured: Vec<Reading>,
    /// What to change: by it the gain is worked out, where it can be.
    pub knob: Knob,
    /// What to change with it, on the same part: how much each of these gains no arithmetic says.
    pub also: Vec<Knob>,
    /// Share of the time that the part takes now.
    pub share: f64,
    /// Share of today's time that it takes no more; or why nobody can work that out, in words that follow a colon.
    pub removed: Result<f64, &'static str>,
    /// How directly it was measured.
    pub confidence: Confidence,
}

/// What is known of a run over a window. None is not known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Its GPUs.
    pub gpus: u64,
    /// The nodes that these are in.
    pub nodes: Option<u32>,
    /// What a second of one of them costs, nano-USD.
    pub nano_usd_per_gpu_second: Option<i64>,
    /// Median time of a step, seconds: of one without a save or an evaluation.
    pub step_s: f64,
    /// The part of its time that such steps take, 0 to 1: the rest saves, goes back to a checkpoint and evaluates. None, all of
    /// it.
    pub in_steps: Option<f64>,
    /// Of it, per step: waiting for data, for communication that is not hidden as the run's own phases tell it, seconds.
    pub data_wait_s: Option<f64>,
    /// See `data_wait_s`.
    pub communication_s: Option<f64>,
    /// Time in collectives per step by NCCL's own times, hidden by computing or not, without what a rank waits for those
    /// that are always later than it, seconds.
    pub in_collectives_s: Option<f64>,
    /// Why its GPUs stand still, where a profile was taken.
    pub gaps: Option<Gaps>,
    /// Where the data comes from and how pressed the host is.
    pub host: Host,
    /// What the GPUs did.
    pub gpu: GpuUse,
    /// How the run is set up.
    pub set_up: SetUp,
    /// How it saves.
    pub saving: Saving,
}

/// The host, as the loader of one rank sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Host {
    /// Part of its CPUs that is busy.
    pub cpu_busy: Option<f64>,
    /// CPUs for each rank.
    pub cpus_per_rank: Option<f64>,
    /// Whether its process told these, with what its container and its affinity allow; else they are the node's, shared
    /// out among its ranks.
    pub is_limit_known: bool,
    /// Pressure of I/O, `some`, as a part: what has some task wait, however few of all.
    pub io_pressure: Option<f64>,
    /// Whether the data is read over the network.
    pub is_network_storage: Option<bool>,
}

/// The GPUs, means over the window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuUse {
    /// Engine active.
    pub engine: Option<f64>,
    /// SMs active.
    pub sm: Option<f64>,
    /// Tensor cores active.
    pub tensor: Option<f64>,
    /// Memory interface active.
    pub dram: Option<f64>,
    /// FLOPs of a step ÷ bytes of device memory moved for it.
    pub flops_per_byte: Option<f64>,
    /// Peak FLOP/s of the type used, of 32-bit floats on the ordinary cores, of brain floats on the tensor cores, and
    /// bytes/s, of one card.
    pub peak_flops: Option<f64>,
    /// See `peak_flops`.
    pub peak_plain_flops: Option<f64>,
    /// See `peak_flops`.
    pub peak_tensor_flops: Option<f64>,
    /// See `peak_flops`.
    pub peak_bytes: Option<f64>,
    /// Most memory in use ÷ installed.
    pub memory_part: Option<f64>,
    /// Whether cards of a node have NVLink between them.
    pub has_nvlink: Option<bool>,
    /// What a card receives over PCIe ÷ what its link could move one way.
    pub pcie_received: Option<f64>,
}

/// Checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Saving {
    /// How long training stands for one, seconds.
    pub save_s: Option<f64>,
    /// From the begin of one to that of the next, seconds: the save itself is in it.
    pub interval_s: Option<f64>,
    /// Mean time between two failures of the run, seconds.
    pub mtbf_s: Option<f64>,
}

/// One advice's look at a run.
type Look = fn(&Profile) -> Option<Advice>;

/// Every advice.
const ALL: [Look; 11] = [
    data::look,
    pinning::look,
    host::synchronisations,
    host::work,
    communication::look,
    bandwidth::look,
    launch::look,
    tensor::look,
    bubble::look,
    recompute::look,
    checkpoint::look,
];

/// What would make it faster, what gains most first, and last of what nobody knows what it gains.
pub fn advise(run: &Profile) -> Vec<Advice> {
    if !run.step_s.is_finite() || run.step_s <= 0.0 {
        return Vec::new();
    }
    let all = ALL.iter().filter_map(|look| look(run));
    let mut all: Vec<Advice> = all.map(|it| it.of_all_time(run)).collect();
    all.retain(Advice::is_worth_it);
    let gains = |it: &Advice| it.removed.unwrap_or(0.0);
    all.sort_by(|one, other| gains(other).total_cmp(&gains(one)));
    all
}

/// A share of a step, where it is worth a change.
fn worth(share: f64) -> Option<f64> {
    (share.is_finite() && share >= LEAST_SHARE).then_some(share.min(1.0))
}

/// How much faster all is when a share of it becomes so many times faster.
pub fn amdahl(share: f64, factor: f64) -> f64 {
    1.0 / ((1.0 - share) + share / factor)
}

/// How much faster a run is that follows all of these whose gain is known: over disjoint parts, and of each part the
/// advice that removes most.
pub fn together(all: &[Advice]) -> f64 {
    let mut most: BTreeMap<Part, f64> = BTreeMap::new();
    for advice in all {
        let Ok(removed) = advice.removed else {
            continue;
        };
        let known = most.entry(advice.part).or_default();
        *known = known.max(removed);
    }
    1.0 / (1.0 - most.values().sum::<f64>().min(0.95))
}

impl Confidence {
    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// The name of each bottleneck, a match over all, and so the list of them.
macro_rules! names {
    ($($variant:ident $name:literal),+) => {
        impl Bottleneck {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in the API.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

names!(DataWorkers "data_workers", DataCpu "data_cpu", DataDisk "data_disk", DataNetwork "data_network",
    DataStorage "data_storage", DataUnknown "data_unknown", DataNotPinned "data_not_pinned",
    HostSync "host_sync", HostWork "host_work", Communication "communication",
    MemoryBandwidth "memory_bandwidth", Launch "launch", TensorCoresUnused "tensor_cores_unused",
    PipelineBubble "pipeline_bubble", Recomputation "recomputation", Checkpoint "checkpoint");

impl Knob {
    /// A knob that the run tells, or not.
    fn of(set_up: &SetUp, name: &'static str, proposed: impl Into<String>) -> Self {
        Self {
            name,
            today: set_up.today(name),
            proposed: proposed.into(),
        }
    }
}

impl Advice {
    /// How much faster the run is with it.
    ///
    /// # Errors
    /// Why nobody can work that out.
    pub fn gain(&self) -> Result<f64, &'static str> {
        self.removed.map(|it| 1.0 / (1.0 - it))
    }

    /// What it is worth a day: GPU time that does the same work no more; none without a price or a known gain.
    pub fn nano_usd_per_day(&self, run: &Profile) -> Option<i64> {
        let price = run.nano_usd_per_gpu_second;
        let losing = Losing::part(run.gpus, self.removed.ok()?, price);
        losing.nano_usd_per_hour()?.checked_mul(24)
    }

    /// The same as parts of all of the run's time, where it is about a part of a step.
    fn of_all_time(self, run: &Profile) -> Self {
        let in_steps = match self.part {
            Part::Checkpoint => 1.0,
            Part::Data | Part::Host | Part::Communication | Part::Compute | Part::Bubble => {
                run.in_steps.map_or(1.0, |it| it.clamp(0.0, 1.0))
            }
        };
        Self {
            share: self.share * in_steps,
            removed: self.removed.map(|it| it * in_steps),
            ..self
        }
    }

    /// Whether it removes so much that it is worth a change, as far as that is known.
    fn is_worth_it(&self) -> bool {
        let is_enough = |it: f64| it.is_finite() && it >= LEAST_SHARE / 2.0;
        self.removed.ok().is_none_or(is_enough)
    }
}

impl Profile {
    /// The share of a step that so many seconds are; none when too small to be worth a change.
    fn share(&self, seconds: Option<f64>) -> Option<f64> {
        worth(seconds? / self.step_s)
    }

    /// The share of a step that is neither waiting nor the pipeline's bubble.
    fn computing(&self) -> f64 {
        let waits = [self.data_wait_s, communication::not_hidden(self)];
        let waits: f64 = waits.into_iter().flatten().sum::<f64>() / self.step_s;
        let waits = waits + self.gaps_of(|it| it.synchronisation + it.host + it.launch);
        ((1.0 - waits) * (1.0 - bubble::share(self).unwrap_or(0.0))).clamp(0.0, 1.0)
    }
}
