//! Why an attempt ended: one sentence, the first rank that failed, when, on what evidence, and what
//! it cost.
//!
//! Method: causes are tried from the most certain and deepest to the shallowest, because a failure
//! below shows as many failures above: a lost node shows as collective time-outs on every other
//! rank. A cause below the process (node, GPU, host memory, preemption, eviction) counts when it
//! came within [`BEFORE_NS`] before or [`AFTER_NS`] after the first failing rank, or when no rank
//! said anything. The first failing rank is the earliest whose ending is not the echo of another's
//! (a collective time-out, a signal from the launcher); only when all are echoes, the earliest. Of
//! ranks whose moments are the same none is named: that says that they were seen to end together.
//! What is not known is `unknown`, with what was looked at.
//!
//! Money is integer nano-USD; lost are the steps since the last checkpoint, priced at their time.
//! [`reliability`] turns endings into MTBF, MTTR and interruptions per 1,000 GPU-days.

use std::collections::BTreeSet;

use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::Ended;

use crate::states::FATAL_XIDS;
use crate::words::grouped;

mod evidence;

mod reliability;

pub use evidence::{Attempt, GpuFault, NodeLost, Place, Pod, RankEnd};
pub use reliability::{Exposure, Interruption, Reliability, Where, reliability};

/// How long before the first failing rank a cause below it may lie: a collective waits ten minutes
/// before it gives up, torch's default.
pub const BEFORE_NS: i64 = 900_000_000_000;

/// How long after it a cause may be told: a kubelet that died is noticed after 40 s, and the pod's
/// status is written later.
pub const AFTER_NS: i64 = 300_000_000_000;

/// Ranks that failed in one moment of which the sentence gives the numbers.
const NAMED_TOGETHER: usize = 4;

/// XIDs that end what runs on the GPU and leave the GPU whole, beside [`FATAL_XIDS`]: an NVLink
/// error and a contained memory error. 13, 31, 43 and 45 are the program's own fault or the echo of
/// its end.
pub const ENDING_XIDS: [u32; 2] = [74, 94];

/// Why an attempt ended, from the deepest cause to the shallowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The node is gone or not ready.
    NodeLost,
    /// A GPU failed (XID).
    GpuFault,
    /// The host ran out of memory, or the container hit its limit.
    HostOutOfMemory,
    /// Someone else got the machines.
    Preempted,
    /// The kubelet or a drain threw the pod out.
    Evicted,
    /// A person or a program stopped it.
    StoppedByUser,
    /// Device memory was not enough.
    CudaOutOfMemory,
    /// An exception of the script.
    Exception,
    /// A collective did not come to its end, and nothing deeper was seen.
    CollectiveTimeout,
    /// It did what it had to do.
    Finished,
    /// Nothing that was looked at says why.
    Unknown,
}

/// Why one attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The cause.
    pub cause: Cause,
    /// One sentence.
    pub sentence: String,
    /// The first rank that failed, where one is known; none where several failed in one moment.
    pub first_rank: Option<u32>,
    /// When it failed; when the attempt ended, where no rank is known.
    pub at: Option<Timestamp>,
    /// What the cause rests on, a line each, the decisive one first.
    pub evidence: Vec<String>,
    /// What was looked at, whether it said something or not.
    pub looked_at: Vec<&'static str>,
    /// Steps done since the last checkpoint; none where the steps are not known.
    pub steps_lost: Option<u64>,
    /// What these steps cost, nano-USD; none where steps, their time or the price are not known.
    pub nano_usd_lost: Option<i128>,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 11] = [
        Self::NodeLost,
        Self::GpuFault,
        Self::HostOutOfMemory,
        Self::Preempted,
        Self::Evicted,
        Self::StoppedByUser,
        Self::CudaOutOfMemory,
        Self::Exception,
        Self::CollectiveTimeout,
        Self::Finished,
        Self::Unknown,
    ];

    /// The name in the API and in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeLost => "node_lost",
            Self::GpuFault => "gpu_fault",
            Self::HostOutOfMemory => "host_out_of_memory",
            Self::Preempted => "preempted",
            Self::Evicted => "evicted",
            Self::StoppedByUser => "stopped_by_user",
            Self::CudaOutOfMemory => "cuda_out_of_memory",
            Self::Exception => "exception",
            Self::CollectiveTimeout => "collective_timeout",
            Self::Finished => "finished",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it interrupted the run against everyone's will.
    pub const fn is_interruption(self) -> bool {
        !matches!(self, Self::Finished | Self::StoppedByUser)
    }
}

/// What was found: the cause, in words, and the rank and time it names itself.
struct Found {
    cause: Cause,
    because: String,
    rank: Option<u32>,
    at: Option<Timestamp>,
}

/// Why this attempt ended.
pub fn ending(attempt: &Attempt) -> Ending {
    let firsts = first_failing(&attempt.ranks);
    let first = firsts.first().copied();
    let mut found = causes(attempt, &firsts);
    // Stable: of two equal causes the one that came first.
    found.sort_by_key(|it| (it.cause, it.at));
    // Ranks that ended together mostly say the same.
    let mut said = BTreeSet::new();
    found.retain(|it| said.insert((it.cause, it.because.clone())));
    let looked_at = attempt.looked_at();
    let decisive = found.first();
    let cause = decisive.map_or(Cause::Unknown, |it| it.cause);
    let named = decisive.and_then(|it| it.rank).or_else(|| only(&firsts));
    let rank = named.filter(|_| cause.is_interruption());
    let at = decisive
        .and_then(|it| it.at)
        .or(first.and_then(|it| it.at))
        .or(attempt.ended_at);
    let steps_lost = steps_lost(attempt, cause);
    let mut ending = Ending {
        cause,
        sentence: String::new(),
        first_rank: rank,
        at,
        evidence: found.iter().map(|it| it.because.clone()).collect(),
        looked_at,
        steps_lost,
        nano_usd_lost: steps_lost.and_then(|steps| price(attempt, steps)),
    };
    let is_open = named.is_none() && cause.is_interruption();
    ending.sentence = sentence(&ending, attempt, if is_open { &firsts } else { &[] });
    ending
}

/// The ranks that failed first, by number: those that are no echo before all that are. They are several where their
/// moments are the same.
fn first_failing(ranks: &[RankEnd]) -> Vec<&RankEnd> {
    let order = |it: &RankEnd| (it.is_echo(), it.at.unwrap_or(Timestamp(i64::MAX)));
    let failed = || ranks.iter().filter(|it| it.has_failed());
    let Some(first) = failed().map(order).min() else {
        return Vec::new();
    };
    let mut firsts: Vec<_> = failed().filter(|it| order(it) == first).collect();
    firsts.sort_by_key(|it| it.rank);
    firsts
}

/// The rank that failed first, where it is known which.
fn only(firsts: &[&RankEnd]) -> Option<u32> {
    match firsts {
        [only] => Some(only.rank),
        _ => None,
    }
}

/// Whether a cause below the processes fits the time of the first failing rank.
fn fits(at: Option<Timestamp>, first: Option<&RankEnd>) -> bool {
    match (at, first.and_then(|it| it.at)) {
        (Some(at), Some(failed)) => (-AFTER_NS..=BEFORE_NS).contains(&failed.since(at)),
        _ => true,
    }
}

fn causes(attempt: &Attempt, firsts: &[&RankEnd]) -> Vec<Found> {
    let first = firsts.first().copied();
    let mut found = Vec::new();
    // All ranks finished: whatever else happened meanwhile did not end it.
    let all_finished = !attempt.ranks.is_empty()
        && attempt
            .ranks
            .iter()
            .all(|it| it.ended == Some(Ended::Finished));
    if all_finished {
        found.push(Found {
            cause: Cause::Finished,
            because: match attempt.ranks.len() {
                1 => "its rank said that it finished".to_owned(),
                ranks => format!("all {ranks} ranks said that they finished"),
            },
            rank: None,
            at: attempt.ended_at,
        });
        return found;
    }
    let lost = attempt.nodes_lost.iter();
    for node in lost.filter(|it| it.may_end(attempt, first) && fits(Some(it.at), first)) {
        found.push(Found {
            cause: node.cause(),
            because: node.words(),
            rank: attempt.rank_on(|place| place.node == node.name),
            at: Some(node.at),
        });
    }
    for fault in &attempt.gpu_faults {
        let ends = FATAL_XIDS.contains(&fault.xid) || ENDING_XIDS.contains(&fault.xid);
        if ends && fits(Some(fault.at), first) {
            found.push(Found {
                cause: Cause::GpuFault,
                because: format!("XID {} on {}", fault.xid, fault.gpu_id),
                rank: attempt.rank_on(|place| place.gpu_id == fault.gpu_id),
                at: Some(fault.at),
            });
        }
    }
    for pod in attempt.pods.iter().filter(|pod| fits(pod.at, first)) {
        found.extend(pod.cause().map(|cause| Found {
            cause,
            because: pod.words(),
            rank: attempt.rank_on(|place| place.pod == pod.name),
            at: pod.at,
        }));
    }
    if let Some((who, at)) = &attempt.stop_asked
        && fits(Some(*at), first)
    {
        found.push(Found {
            cause: Cause::StoppedByUser,
            because: format!("{who} asked for the stop"),
            rank: None,
            at: Some(*at),
        });
    }
    found.extend(firsts.iter().filter_map(|it| {
        // A signal says how, and not why.
        let killed = it.signal.map(|_| Cause::Unknown);
        Some(Found {
            cause: it.cause().or(killed)?,
            because: it.words(),
            rank: only(firsts),
            at: it.at,
        })
    }));
    found
}

/// Steps since the last checkpoint; 0 of a run that finished.
fn steps_lost(attempt: &Attempt, cause: Cause) -> Option<u64> {
    if cause == Cause::Finished {
        return Some(0);
    }
    let done = attempt.last_step?.saturating_sub(attempt.first_step?) + 1;
    let since = match attempt.checkpoint_step {
        Some(checkpoint) => attempt.last_step?.saturating_sub(checkpoint),
        None => done,
    };
    Some(since.min(done))
}

fn price(attempt: &Attempt, steps: u64) -> Option<i128> {
    let gpu_ns = i128::from(steps)
        .checked_mul(i128::from(attempt.step_ns?))?
        .checked_mul(i128::from(attempt.gpus))?;
    let price = i128::from(attempt.nano_usd_per_gpu_hour?);
    gpu_ns.checked_mul(price).map(|it| it / 3_600_000_000_000)
}

/// `together`: the ranks that failed first in one moment, where none of them is named.
fn sentence(ending: &Ending, attempt: &Attempt, together: &[&RankEnd]) -> String {
    let what = match ending.cause {
        Cause::NodeLost => "A node was lost",
        Cause::GpuFault => "A GPU failed",
        Cause::HostOutOfMemory => "The host ran out of memory",
        Cause::Preempted => "The run was preempted",
        Cause::Evicted => "The run was evicted",
        Cause::StoppedByUser => "The run was stopped",
        Cause::CudaOutOfMemory => "Device memory ran out",
        Cause::Exception => "The script failed",
        Cause::CollectiveTimeout => "A collective timed out",
        Cause::Finished => "The run finished",
        Cause::Unknown => "It is not known why the run ended",
    };
    let mut sentence = what.to_owned();
    if let Some(rank) = ending.first_rank {
        let place = attempt.ranks.iter().find(|it| it.rank == rank);
        let node = place
            .map(|it| it.place.node.as_str())
            .filter(|it| !it.is_empty());
        let node = node.map(|it| format!(" on {it}")).unwrap_or_default();
        sentence = format!("{sentence}, first at rank {rank}{node}");
    }
    if together.len() > 1 {
        let ranks = listed(together);
        sentence =
            format!("{sentence}; {ranks} failed in one moment, and which was first is not known");
    }
    match ending.evidence.first() {
        Some(because) => sentence = format!("{sentence}: {because}"),
        None => sentence = format!("{sentence}: looked at {}", ending.looked_at.join(", ")),
    }
    let lost = ending.steps_lost.filter(|it| *it > 0);
    if let Some(steps) = lost {
        let (steps, are) = match steps {
            1 => ("1 step".to_owned(), "is"),
            steps => (format!("{} steps", grouped(steps)), "are"),
        };
        let lost = match attempt.checkpoint_step {
            Some(_) => format!("since the last checkpoint {are} lost"),
            None => format!("{are} lost, because no checkpoint was saved"),
        };
        sentence = format!("{sentence}; {steps} {lost}");
    }
    sentence.push('.');
    sentence
}

/// Ranks by their numbers: those that are many by the first of them.
fn listed(ranks: &[&RankEnd]) -> String {
    let named = ranks.iter().take(NAMED_TOGETHER);
    let mut named: Vec<String> = named.map(|it| it.rank.to_string()).collect();
    let last = match ranks.len().checked_sub(NAMED_TOGETHER) {
        None | Some(0) => named.pop().unwrap_or_default(),
        Some(more) => format!("{more} more"),
    };
    format!("ranks {} and {last}", named.join(", "))
}

#[cfg(test)]
mod tests;
