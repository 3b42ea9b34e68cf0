//! What the writer is given and the reader gives back, as plain values.

pub use crate::gaps::Gaps;
use crate::words::{
    DataType, EndKind, FlopsSource, Function, MeshSource, Phase, ProbeVerdict, ProfileState, Untold,
};

/// One step of training. Times in nanoseconds; 0 where nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Step {
    /// Its number, as the run counts.
    pub step: u64,
    /// When it ended, Unix nanoseconds.
    pub ended_at: i64,
    /// Wall time, from the end of the step before.
    pub wall_ns: u64,
    /// Time in which the GPU was given work.
    pub busy_ns: u64,
    /// Time spent waiting for data.
    pub data_wait_ns: u64,
    /// Time spent waiting for other ranks.
    pub comm_wait_ns: u64,
    /// Time spent saving or restoring a checkpoint.
    pub checkpoint_ns: u64,
    /// Time spent in evaluation.
    pub evaluation_ns: u64,
    /// Tokens of this rank.
    pub tokens: u64,
    /// Samples of this rank.
    pub samples: u64,
    /// Model FLOPs of this rank.
    pub model_flops: f64,
}

impl Step {
    /// The same with busy time as what is left of the wall time: for those who know no better.
    #[must_use]
    pub const fn busy_for_the_rest(mut self) -> Self {
        self.busy_ns = self
            .wall_ns
            .saturating_sub(self.data_wait_ns)
            .saturating_sub(self.comm_wait_ns)
            .saturating_sub(self.checkpoint_ns)
            .saturating_sub(self.evaluation_ns);
        self
    }
}

/// One dimension of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// This rank's coordinate; -1 unknown.
    pub coordinate: i64,
    /// Size of the dimension; 0 unknown.
    pub size: u64,
}

impl Default for Axis {
    fn default() -> Self {
        Self {
            coordinate: -1,
            size: 0,
        }
    }
}

/// Where a rank is in the mesh, and who said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    /// Who said so.
    pub source: MeshSource,
    /// Data parallel.
    pub dp: Axis,
    /// Pipeline parallel.
    pub pp: Axis,
    /// Tensor parallel.
    pub tp: Axis,
    /// Context parallel.
    pub cp: Axis,
    /// Expert parallel.
    pub ep: Axis,
}

impl Default for Mesh {
    fn default() -> Self {
        Self {
            source: MeshSource::Unknown,
            dp: Axis::default(),
            pp: Axis::default(),
            tp: Axis::default(),
            cp: Axis::default(),
            ep: Axis::default(),
        }
    }
}

/// Who a rank says it is. Numbers are -1 and texts empty where nothing is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Cluster.
    pub cluster: String,
    /// Namespace of the job.
    pub job_namespace: String,
    /// Name of the job.
    pub job_name: String,
    /// Unique id of the job.
    pub job_uid: String,
    /// Restart attempt.
    pub attempt: i64,
    /// Global rank.
    pub rank: i64,
    /// Number of ranks.
    pub world: i64,
    /// Rank on this node.
    pub local_rank: i64,
    /// Ranks on this node.
    pub local_world: i64,
    /// Place in the mesh.
    pub mesh: Mesh,
    /// Framework and version.
    pub framework: String,
    /// UUID of the GPU.
    pub gpu_uuid: String,
    /// Number of the CUDA device in this process.
    pub cuda_device: i64,
    /// Process id on the host, as the writer knows it.
    pub host_pid: i64,
    /// What said rank and world.
    pub launcher: String,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            job_namespace: String::new(),
            job_name: String::new(),
            job_uid: String::new(),
            attempt: -1,
            rank: -1,
            world: -1,
            local_rank: -1,
            local_world: -1,
            mesh: Mesh::default(),
            framework: String::new(),
            gpu_uuid: String::new(),
            cuda_device: -1,
            host_pid: -1,
            launcher: String::new(),
        }
    }
}

/// What a run intends. 0 where nothing was said.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Steps planned.
    pub total_steps: u64,
    /// Tokens planned, of the whole job.
    pub total_tokens: u64,
    /// When it must be done, Unix nanoseconds.
    pub deadline_at: i64,
    /// Model FLOPs of one step of this rank.
    pub flops_per_step: f64,
    /// Model FLOPs per token.
    pub flops_per_token: f64,
    /// FLOPs of one step of this rank with recomputation.
    pub hardware_flops_per_step: f64,
    /// How they were got.
    pub flops_source: FlopsSource,
    /// Parameters of the model.
    pub parameters: u64,
    /// Type of the matrix arithmetic: `bf16`.
    pub dtype: String,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            total_steps: 0,
            total_tokens: 0,
            deadline_at: 0,
            flops_per_step: 0.0,
            flops_per_token: 0.0,
            hardware_flops_per_step: 0.0,
            flops_source: FlopsSource::Unknown,
            parameters: 0,
            dtype: String::new(),
        }
    }
}

/// A value and the step it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// The value; may be infinite or no number.
    pub value: f64,
    /// The step.
    pub step: u64,
    /// When it was read, Unix nanoseconds.
    pub at: i64,
}

/// Something that happens now and then: its totals and the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Occasion {
    /// How often.
    pub count: u64,
    /// How long in all.
    pub total_ns: u64,
    /// How long the last one took.
    pub last_ns: u64,
    /// The step of the last one.
    pub last_step: u64,
    /// When it ended, Unix nanoseconds.
    pub last_at: i64,
    /// How often it failed.
    pub failures: u64,
}

/// The framework's allocator. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// When it was read, Unix nanoseconds.
    pub at: i64,
    /// In tensors.
    pub allocated_bytes: u64,
    /// Held from the driver.
    pub reserved_bytes: u64,
    /// Most in tensors so far.
    pub peak_allocated_bytes: u64,
    /// Most held so far.
    pub peak_reserved_bytes: u64,
    /// What it may hold; 0 not said.
    pub limit_bytes: u64,
    /// Allocations that worked only after freeing the cache.
    pub retries: u64,
    /// Allocations that failed.
    pub out_of_memory: u64,
}

/// What a probe inside the process found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// When it was over, Unix nanoseconds.
    pub at: i64,
    /// What it came to.
    pub verdict: ProbeVerdict,
    /// The step after which it was over.
    pub step: u64,
    /// The SM that is to blame, where one is.
    pub sm: Option<u32>,
    /// SMs of the GPU; 0 not said.
    pub sms: u64,
    /// SMs that took part in every work.
    pub covered: u64,
    /// Bytes of memory that were gone through.
    pub checked_bytes: u64,
    /// From its first kernel to its last on the GPU, beside training's; nanoseconds.
    pub gpu_ns: u64,
    /// Probes that were over, this one among them.
    pub runs: u64,
    /// Works that were right on every SM, as bits; 0 not said.
    pub right: u64,
    /// Works that were wrong on some and not right since, as bits; 0 none, or not said.
    pub wrong: u64,
    /// Why, in words, up to 256 bytes.
    pub reason: String,
}

/// A profile that an agent asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The number it was asked for by.
    pub number: u64,
    /// What became of it.
    pub state: ProfileState,
    /// When it came to that, Unix nanoseconds.
    pub at: i64,
    /// The step after which it began.
    pub step: u64,
    /// Steps in it.
    pub steps: u64,
    /// Bytes of its file; 0 none.
    pub bytes: u64,
    /// Why the GPU stood still in them, where that was measured.
    pub gaps: Option<Gaps>,
    /// Why that was not measured, where it is said.
    pub untold: Option<Untold>,
    /// Done: the path of its file, as the process sees it. Failed: why. Up to 512 bytes.
    pub text: String,
}

/// An exception that nobody caught.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exception {
    /// When, Unix nanoseconds.
    pub at: i64,
    /// Global rank; -1 unknown.
    pub rank: i64,
    /// The step it happened in.
    pub step: u64,
    /// Its type, up to 64 bytes.
    pub kind: String,
    /// Its first line, up to 256 bytes.
    pub message: String,
    /// Its traceback; the last 2 KiB are kept.
    pub traceback: String,
}

/// How a process said that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// How.
    pub kind: EndKind,
    /// When, Unix nanoseconds.
    pub at: i64,
    /// Exit status; -1 unknown.
    pub exit_status: i64,
    /// The last step.
    pub step: u64,
}

/// Text by key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pairs {
    /// Grows by one whenever they were written.
    pub generation: u64,
    /// In the order they were written.
    pub pairs: Vec<(String, String)>,
    /// Pairs that did not fit.
    pub left_out: u64,
}

/// A communicator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Communicator {
    /// NCCL's hash of it, equal on all ranks.
    pub hash: u64,
    /// Ranks in it.
    pub ranks: u64,
    /// This process' rank in it.
    pub rank: u64,
    /// Nodes it spans.
    pub nodes: u64,
    /// Its name, may be empty.
    pub name: String,
}

/// The number of a communicator in its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommunicatorIndex(pub u8);

/// A collective, begun or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collective {
    /// On which communicator.
    pub communicator: CommunicatorIndex,
    /// NCCL's sequence number, per communicator and function, equal on all ranks.
    pub number: u64,
    /// What it does.
    pub function: Function,
    /// Type of its elements.
    pub data_type: DataType,
    /// Channels; 0 unknown.
    pub channels: u8,
    /// Bytes.
    pub bytes: u64,
    /// When it was begun, Unix nanoseconds.
    pub started_at: i64,
    /// The peer or root rank; -1 none. Kept while it is in flight only.
    pub peer: i64,
    /// Time on the GPU; 0 unknown.
    pub duration_ns: u64,
    /// Time waited for other ranks; 0 unknown.
    pub wait_ns: u64,
}

impl Function {
    /// What the bytes over the time of this function are multiplied by to be comparable with the rate of
    /// a link, whatever the number of ranks: nccl-tests' bus bandwidth. `None` where nobody knows.
    pub fn bus_factor(self, ranks: u64) -> Option<f64> {
        if ranks < 2 {
            return None;
        }
        let others = (ranks - 1) as f64 / ranks as f64;
        match self {
            Self::Other => None,
            Self::AllReduce => Some(2.0 * others),
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => Some(others),
            Self::Broadcast | Self::Reduce | Self::PointToPoint => Some(1.0),
        }
    }
}

impl Collective {
    /// Bus bandwidth, bytes a second, on a communicator of `ranks`; `None` without a duration.
    pub fn bus_bandwidth(&self, ranks: u64) -> Option<f64> {
        let factor = self.function.bus_factor(ranks)?;
        let seconds = self.duration_ns as f64 / 1e9;
        (self.duration_ns != 0).then(|| self.bytes as f64 / seconds * factor)
    }
}

/// The phase a process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Which.
    pub phase: Phase,
    /// Since when, Unix nanoseconds, rounded down to 64.
    pub since: i64,
}

impl Now {
    /// Bits of a time that the phase's number takes.
    const PHASE_BITS: u64 = 0x3f;

    /// One word, so that it is written and read whole.
    pub(crate) const fn packed(self) -> u64 {
        (self.since as u64 & !Self::PHASE_BITS) | self.phase.number()
    }

    /// What the word says; `None` in no phase, or one that a later writer has.
    pub(crate) const fn unpacked(word: u64) -> Option<Self> {
        match Phase::from_number(word & Self::PHASE_BITS) {
            Some(phase) => Some(Self {
                phase,
                since: (word & !Self::PHASE_BITS) as i64,
            }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_prints() {
        let check = |function, bytes, duration_ns, ranks, expected: Option<f64>| {
            let collective = Collective {
                communicator: CommunicatorIndex(0),
                number: 1,
                function,
                data_type: DataType::Int8,
                channels: 1,
                bytes,
                started_at: 0,
                peer: -1,
                duration_ns,
                wait_ns: 0,
            };
            let found = collective.bus_bandwidth(ranks).map(f64::round);
            assert_eq!(found, expected, "{function:?} {ranks}");
        };
        let gigabyte = 1_000_000_000;
        // NVIDIA's own figures of one AllReduce on eight ranks: 277.2 GB/s, on the bus 485.1 GB/s.
        let expected = Some(485_119_099_493.0);
        check(Function::AllReduce, 17_179_869_184, 61_974_000, 8, expected);
        let half = Some(0.5e9);
        check(Function::AllGather, gigabyte, gigabyte, 2, half);
        check(Function::ReduceScatter, gigabyte, gigabyte, 2, half);
        check(Function::AllToAll, gigabyte, gigabyte, 4, Some(0.75e9));
        check(Function::Broadcast, gigabyte, gigabyte, 8, Some(1e9));
        check(Function::PointToPoint, gigabyte, gigabyte / 2, 8, Some(2e9));
        check(Function::Other, gigabyte, gigabyte, 8, None);
        check(Function::AllReduce, gigabyte, 0, 8, None);
        check(Function::AllReduce, gigabyte, gigabyte, 1, None);
    }
}
