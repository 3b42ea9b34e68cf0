//! Communication-bound: collectives that computing does not hide.
//!
//! How long that is the run's own phase of communication says (`run.phase("communication")`). Else NCCL's own times say how
//! long it is in collectives, hidden or not, and its SMs how much of that can be in the open at most: while nothing is
//! computed NCCL holds [`OF_SMS`] of them, so that with a part `a` of the SMs active nothing but collectives runs for
//! (1 − a) ÷ (1 − [`OF_SMS`]) of the time at most, less what is known to be spent otherwise. The lesser of the two is
//! taken. Where SMs tell nothing, nothing is advised, and that is said ([`in_collectives`]).
//!
//! What to change, the first of these that the run allows: a variable that switches a way of NCCL off, sharded
//! weights with memory to spare (3 times the weights are sent in a step and not 2: a third less), more accumulation
//! (half as many reductions for the same samples). A variable counts where the way that it closes is there: one of the
//! network on several nodes, one of the way between cards where these have NVLink. Where that is not known it is named
//! without a gain, and where the way is not there it is not named: templates for machines without it set it on purpose.
//!
//! Not done: holding a collective's time against what the line could do, 2(N−1)/N · S/B + 2(N−1) · l by a ring and
//! 2·log₂N · (S/B + l) by a tree. Calls are told as their sum, and the least mean over the ranks still has in it what
//! ranks wait for one another by turns, which alone is several times the transfer of a good network: it would accuse
//! networks of uneven batches. It takes the least time over the ranks of each single call.

use gpufleet_telemetry::catalog::Unit;

use super::recompute::SPARE;
use super::{Advice, Bottleneck, Confidence, Knob, Part, Profile, SetUp, worth};
use crate::cause::Reading;

/// Part of a card's SMs that NCCL holds at most: it runs 16 to 32 blocks of one SM each, of 108 to 148.
pub(super) const OF_SMS: f64 = 0.25;
/// Part of what is sent in a step that stays away where weights are not sharded: 2 times their size and not 3.
pub(super) const OF_GATHERS: f64 = 1.0 / 3.0;
/// Factor by which communication shrinks with half as many reductions. A way of NCCL that is switched on again gains 4 to 5
/// times where all collectives went around it (sockets for RDMA); how many do is not known, and half is reckoned with.
pub(super) const HALF: f64 = 0.5;
/// Ranks from which a bucket of DDP is sent in times that latency rules.
const MANY: u64 = 64;
/// What DDP reduces at once on many ranks, MiB: the 25 of its default are a fraction of a millisecond of a fast line.
const BUCKET_MIB: u32 = 100;

/// What a variable of NCCL is about: where a run has no such thing it holds nothing back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Between nodes.
    Network,
    /// Between the cards of a node, directly.
    Cards,
    /// Between the cards of a node, over the host's memory.
    Host,
    /// Any of them.
    Any,
}

/// Variables of NCCL by which collectives become slower for some machines, with the values that do it (none: any),
/// whether they close a way altogether, and which. The rest pins what NCCL would choose by the size of a message.
pub const HELD_BACK: [(&str, &[&str], bool, Way); 11] = [
    ("NCCL_IB_DISABLE", &["1"], true, Way::Network),
    ("NCCL_NET", &["Socket"], true, Way::Network),
    ("NCCL_P2P_DISABLE", &["1"], true, Way::Cards),
    ("NCCL_P2P_LEVEL", &["LOC", "0"], true, Way::Cards),
    ("NCCL_NET_GDR_LEVEL", &["LOC", "0"], true, Way::Network),
    ("NCCL_SHM_DISABLE", &["1"], false, Way::Host),
    ("NCCL_NVLS_ENABLE", &["0"], false, Way::Cards),
    ("NCCL_ALGO", &[], false, Way::Any),
    ("NCCL_PROTO", &[], false, Way::Any),
    ("NCCL_MAX_NCHANNELS", &[], false, Way::Any),
    ("NCCL_MAX_CTAS", &[], false, Way::Any),
];

impl Way {
    /// Whether a run has it; none where that is not known.
    fn is_there(self, run: &Profile) -> Option<bool> {
        let nodes = run.nodes.map(u64::from);
        // Fewer cards than nodes are not all of them.
        let of_all = nodes.filter(|it| run.gpus >= *it);
        let has_neighbours = of_all.map(|it| run.gpus > it);
        match self {
            Self::Network => nodes.map(|it| it > 1),
            Self::Cards if has_neighbours == Some(false) || run.gpu.has_nvlink == Some(false) => {
                Some(false)
            }
            Self::Cards => has_neighbours.and(run.gpu.has_nvlink),
            Self::Host => has_neighbours,
            Self::Any => Some(true),
        }
    }
}

/// Seconds of a step in which it communicates and computes nothing, as far as that is known.
pub(super) fn not_hidden(run: &Profile) -> Option<f64> {
    run.communication_s
        .or_else(|| Some(run.in_collectives_s?.min(open_at_most(run)? * run.step_s)))
}

/// The part of the time in which nothing but collectives can run.
fn open_at_most(run: &Profile) -> Option<f64> {
    let idle = (1.0 - run.gpu.sm?) / (1.0 - OF_SMS);
    let otherwise =
        run.data_wait_s? / run.step_s + run.gaps_of(|it| it.synchronisation + it.host + it.launch);
    Some((idle - otherwise).clamp(0.0, 1.0))
}

/// The share of a step that is in collectives, where that is worth a look and nothing says how much of it computing hides.
pub fn in_collectives(run: &Profile) -> Option<f64> {
    let share = worth(run.in_collectives_s? / run.step_s)?;
    not_hidden(run).is_none().then_some(share)
}

pub(super) fn look(run: &Profile) -> Option<Advice> {
    let took = not_hidden(run)?;
    let share = run.share(Some(took))?;
    let of_step = Reading::new("share of the step", share, None, Unit::Ratio);
    let (measured, confidence) = match (run.communication_s, run.in_collectives_s) {
        (None, Some(all)) => {
            let name = "in collectives, hidden by computing or not";
            let mut measured = vec![Reading::new(name, all, None, Unit::Seconds)];
            let sm = run.gpu.sm;
            measured.extend(sm.map(|it| Reading::new("SMs active", it, None, Unit::Ratio)));
            let name = "not hidden, at most";
            measured.push(Reading::new(name, took, None, Unit::Seconds));
            (measured, Confidence::Low)
        }
        _ => {
            let name = "communication not hidden";
            let measured = vec![Reading::new(name, took, None, Unit::Seconds)];
            (measured, Confidence::Medium)
        }
    };
    let mut knobs = knobs(run);
    // One of tensors, gathers and accumulation is always among them.
    let (knob, gains, most) = knobs.remove(0);
    Some(Advice {
        bottleneck: Bottleneck::Communication,
        part: Part::Communication,
        measured: measured.into_iter().chain([of_step]).collect(),
        knob,
        also: knobs.into_iter().map(|it| it.0).collect(),
        share,
        removed: Ok(share * gains),
        confidence: confidence.min(most),
    })
}

/// What to change, the one that the gain is of first, each with the part of communication that it removes and
/// the confidence that this allows.
fn knobs(run: &Profile) -> Vec<(Knob, f64, Confidence)> {
    let set_up = &run.set_up;
    let low = |knob: Knob, gains: f64| (knob, gains, Confidence::Low);
    let mut found = Vec::new();
    found.extend(held_back(run, true, Some(true)).map(|it| low(it, HALF)));
    found.extend(sharding(run).map(|it| low(it, OF_GATHERS)));
    if set_up.tensor_ranks.is_some_and(|it| it > 1) {
        let knob = Knob {
            name: "tp_comm_overlap",
            today: None,
            proposed: "on, or fewer ranks that share a tensor".to_owned(),
        };
        found.push(low(knob, HALF));
    } else if set_up.shards_weights() {
        let knob = Knob {
            name: "micro batch",
            today: None,
            proposed: "larger, so that weights are gathered for more samples at once".to_owned(),
        };
        found.push(low(knob, HALF));
    } else {
        found.push((accumulation(set_up), HALF, Confidence::Medium));
    }
    let small = set_up.bucket_mib.filter(|it| *it < BUCKET_MIB);
    if small.is_some() && run.gpus >= MANY {
        let knob = Knob::of(set_up, "bucket_cap_mb", BUCKET_MIB.to_string());
        found.push(low(knob, 0.0));
    }
    // Whether these are there is not known: nobody can say what they gain.
    found.extend(held_back(run, true, None).map(|it| low(it, 0.0)));
    let pinned = [Some(true), None].map(|it| held_back(run, false, it));
    found.extend(pinned.into_iter().flatten().map(|it| low(it, 0.0)));
    found
}

fn accumulation(set_up: &SetUp) -> Knob {
    let twice = |today: u32| today.max(1).saturating_mul(2).to_string();
    let twice = set_up.accumulation.map(twice);
    let proposed = twice.unwrap_or_else(|| "2.0 times as many".to_owned());
    Knob::of(set_up, "accumulation", proposed)
}

/// The variables that hold NCCL back: those that close a way, or the others, of ways of which this is known.
fn held_back(
    run: &Profile,
    closes: bool,
    is_there: Option<bool>,
) -> impl Iterator<Item = Knob> + '_ {
    let is_set = |(name, values): (&str, &[&str])| {
        let today = run.set_up.nccl.get(name);
        today.is_some_and(|it| values.is_empty() || values.contains(&it.as_str()))
    };
    HELD_BACK
        .into_iter()
        .filter(move |it| it.2 == closes && it.3.is_there(run) == is_there && is_set((it.0, it.1)))
        .map(move |it| {
            let proposed = match closes {
                true => "unset, where the machine has that way",
                false => "unset, unless the machine's maker asks for it",
            };
            Knob::of(&run.set_up, it.0, proposed)
        })
}

/// Weights that are sharded although memory is to spare.
pub(super) fn sharding(run: &Profile) -> Option<Knob> {
    run.gpu.memory_part.filter(|it| *it < SPARE)?;
    if !run.set_up.shards_weights() {
        return None;
    }
    let (name, proposed) = match run.set_up.zero_stage {
        Some(_) => ("ZeRO stage", "2"),
        None => ("FSDP sharding", "SHARD_GRAD_OP"),
    };
    Some(Knob::of(&run.set_up, name, proposed))
}
