//! Busy times from collectives alone, without a common clock: who waits least is the late one.
//!
//! A collective ends nearly together on all ranks, so the last to arrive has the shortest duration:
//! the wait of a rank is its duration above the shortest. Its busy time is the step's wall time
//! without its waits in all of its communicators; adding them up keeps a wait that is inherited (a
//! tensor-parallel neighbour of a rank that its data-parallel group waits for) from looking like
//! its cause. Where the shortest durations grow themselves the network is slow, which is [`crate::slow_link`]'s to say.
//!
//! Limits: durations of AllReduce, AllGather and ReduceScatter only ([`Function::synchronises`]);
//! waits below [`FLOOR_NS`] are noise; a rank without a measured collective gets no reading. Collectives that run
//! beside one another, and beside what is computed, can wait for longer in all than there was time: at most
//! [`MOST_WAIT`] of it is taken for waiting.

use std::collections::BTreeMap;

use super::{Reading, Seat};

/// Waits up to this are launch jitter, nanoseconds.
pub const FLOOR_NS: u64 = 50_000;
/// The greatest part of the time that is taken for waiting.
pub const MOST_WAIT: f64 = 0.9;

/// What a collective does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Function {
    /// All get the sum.
    AllReduce,
    /// All get all parts.
    AllGather,
    /// Each gets a part of the sum.
    ReduceScatter,
    /// Any other.
    Other,
}

/// One collective, or several alike, on the ranks that reported it.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    /// What it does.
    pub function: Function,
    /// How many there were.
    pub calls: u64,
    /// Ranks and how long it ran on each, nanoseconds; of several their mean.
    pub durations: &'a [(u32, u64)],
}

impl Function {
    /// By NCCL's name of it.
    pub fn of(name: &str) -> Self {
        match name {
            "AllReduce" => Self::AllReduce,
            "AllGather" => Self::AllGather,
            "ReduceScatter" => Self::ReduceScatter,
            _ => Self::Other,
        }
    }

    /// Whether it ends together on all ranks. In a Broadcast, Reduce, Send or MoE AlltoAll a rank
    /// may leave early.
    pub const fn synchronises(self) -> bool {
        !matches!(self, Self::Other)
    }
}

/// How long each rank waited for the last one to come, nanoseconds: what its operations took above the shortest. Of
/// several that are told as their mean it is the least, because who comes last may change from one to the next. A
/// rank that nobody can be compared with is not among them.
pub fn waits(operations: &[Operation<'_>]) -> BTreeMap<u32, u64> {
    let mut waits: BTreeMap<u32, u64> = BTreeMap::new();
    let compared = |it: &&Operation<'_>| it.function.synchronises() && it.durations.len() > 1;
    for operation in operations.iter().filter(compared) {
        let least = operation.durations.iter().map(|it| it.1).min().unwrap_or(0);
        for (rank, duration_ns) in operation.durations {
            let wait_ns = duration_ns - least;
            let wait_ns = if wait_ns > FLOOR_NS { wait_ns } else { 0 };
            let sum = waits.entry(*rank).or_default();
            *sum = sum.saturating_add(wait_ns.saturating_mul(operation.calls));
        }
    }
    waits
}

/// The busy times of a step, or of another stretch of time, for [`super::Source::Collectives`].
pub fn readings(
    wall_ns: u64,
    operations: &[Operation<'_>],
    seats: &BTreeMap<u32, Seat>,
) -> Vec<Reading> {
    let most = (wall_ns as f64 * MOST_WAIT) as u64;
    let reading = |(rank, wait_ns): (u32, u64)| Reading {
        rank,
        seat: seats.get(&rank).copied().unwrap_or_default(),
        busy_ns: wall_ns - wait_ns.min(most),
    };
    waits(operations).into_iter().map(reading).collect()
}
