//! A run as it is at a tick, looked at whole because something may be wrong with it.

use std::sync::Arc;

use gpufleet_analysis::incident::Place;
use gpufleet_analysis::lost::Losing;
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::CollectivesFrom;

use super::{Gpus, slow};
use crate::detect::detector::TickSnapshot;
use crate::detect::gather::{GpuSnapshot, Host, part_of};
use crate::runs::{Judged, Rank, Run, RunKey, Stuck};

/// Ranks whose steps are looked at beside a slow one's: more change no median.
const PEERS: usize = 64;

/// A run in which something may be wrong.
#[derive(Debug, Clone, Default)]
pub(in crate::detect) struct RunSnapshot {
    pub(in crate::detect) cluster: String,
    pub(in crate::detect) name: String,
    pub(in crate::detect) ranks: Vec<RankSnapshot>,
    /// How many it says it has; 0 is not said.
    pub(in crate::detect) world: u32,
    /// Collectives that its ranks were told not to come out of.
    pub(in crate::detect) stuck: Vec<Stuck>,
    /// When the newest step of any rank ended.
    pub(super) stepped_at: Option<Timestamp>,
}

/// One of its ranks.
#[derive(Debug, Clone, Default)]
pub(in crate::detect) struct RankSnapshot {
    pub(in crate::detect) rank: u32,
    pub(in crate::detect) node: Arc<str>,
    /// The GPU that it computes on, or the share of one.
    pub(in crate::detect) gpu: Arc<str>,
    /// Of one that computes on a share.
    pub(super) share: Option<Share>,
    pub(in crate::detect) stage: Option<u32>,
    /// How many collectives it is in, and for how long in the oldest; none is not known.
    pub(in crate::detect) in_flight: Option<(f64, f64)>,
    /// Where what is known of its collectives comes from.
    pub(in crate::detect) collectives: Option<CollectivesFrom>,
    /// When it was last heard: what it says else is of then.
    pub(super) heard: Timestamp,
    /// What its last steps are on average, of those that are compared.
    pub(super) means: Option<slow::Means>,
    /// Of one whose GPU is not known, or that has none.
    pub(super) machine: Option<Machine>,
}

/// The share of a GPU that a rank computes on.
#[derive(Debug, Clone)]
pub(super) struct Share {
    /// The GPU that it is a part of.
    card: Arc<str>,
    /// So many slices of so many.
    part: (u32, u32),
}

/// The machine of a rank.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Machine {
    pub(super) host: Host,
    /// What a second of a rank costs on it, where it has no GPU.
    pub(super) price: Option<i64>,
}

/// A run in which something may be wrong, with the means of the ranks that are blamed and of their peers.
pub(super) fn whole(key: &RunKey, pace: Option<&Judged>, tick: &TickSnapshot<'_>) -> RunSnapshot {
    let blamed = pace.into_iter().flat_map(|it| &it.verdict.stragglers);
    let blamed: Vec<u32> = blamed.map(|it| it.rank).collect();
    let run = tick.runs().look(key, |run| seen((key, run), &blamed, tick));
    run.unwrap_or_default()
}

/// It as it is now, with the means of these ranks and of some others.
pub(in crate::detect) fn seen(
    (key, run): (&RunKey, &Run),
    blamed: &[u32],
    tick: &TickSnapshot<'_>,
) -> RunSnapshot {
    let ranks = run.living();
    let reading = |it: &Rank, metric: Metric| it.facts.reading(metric.id);
    let of = |(place, (number, it)): (usize, (&u32, &Rank))| RankSnapshot {
        rank: *number,
        node: Arc::clone(&it.facts.node),
        gpu: Arc::clone(&it.facts.gpu),
        share: share(key, it, tick),
        stage: it.facts.mesh.pp.map(|it| it.at),
        in_flight: reading(it, training::COLLECTIVES_IN_FLIGHT)
            .zip(reading(it, training::COLLECTIVE_OLDEST_AGE)),
        collectives: it.collectives_from(),
        heard: it.facts.heard,
        means: (!blamed.is_empty() && (place < PEERS || blamed.contains(number)))
            .then(|| slow::Means::of(&it.ring))
            .flatten(),
        machine: machine(key, it, tick),
    };
    RunSnapshot {
        cluster: key.cluster.to_string(),
        name: key.run.to_string(),
        ranks: ranks.enumerate().map(of).collect(),
        world: run.facts.world,
        stuck: run.stuck.clone(),
        stepped_at: run.living().filter_map(|(_, it)| it.ring.ended_at()).max(),
    }
}

/// The share that a rank computes on; none of one on a whole GPU, or on nothing that is known.
fn share(key: &RunKey, rank: &Rank, tick: &TickSnapshot<'_>) -> Option<Share> {
    let seen = tick.shares.get(&(&*key.cluster, &*rank.facts.gpu))?;
    Some(Share {
        card: Arc::clone(&seen.card),
        part: seen.part(),
    })
}

/// What is known of the machine of a rank whose GPU is not.
fn machine(key: &RunKey, rank: &Rank, tick: &TickSnapshot<'_>) -> Option<Machine> {
    if tick.card(&key.cluster, &rank.facts.gpu).is_some() {
        return None;
    }
    let name = (Arc::clone(&key.cluster), Arc::clone(&rank.facts.node));
    let of_node = tick.nodes.get(&name)?;
    Some(Machine {
        host: of_node.host,
        price: of_node.rank_price,
    })
}

/// How pressed a rank's machine is.
pub(super) fn host_of(run: &RunSnapshot, rank: &RankSnapshot, gpus: &Gpus<'_>) -> Option<Host> {
    let of_gpu = gpu_of(run, rank, gpus).map(|it| it.host);
    of_gpu.or(rank.machine.map(|it| it.host))
}

impl RankSnapshot {
    /// Its GPU, or the one of which it has a share.
    pub(in crate::detect) fn card(&self) -> &Arc<str> {
        self.share.as_ref().map_or(&self.gpu, |it| &it.card)
    }
}

/// What is known of a rank's GPU, or of the one of which it has a share.
pub(super) fn gpu_of<'a>(
    run: &RunSnapshot,
    rank: &RankSnapshot,
    gpus: &Gpus<'a>,
) -> Option<&'a GpuSnapshot> {
    gpus.get(&(run.cluster.as_str(), &**rank.card())).copied()
}

/// All its GPUs with what they cost, of shares their parts: what is lost while none of them does anything that counts.
pub(in crate::detect) fn all_of(run: &RunSnapshot, gpus: &Gpus<'_>) -> Losing {
    let of = |rank: &RankSnapshot| {
        let price = match gpu_of(run, rank, gpus) {
            Some(gpu) => gpu.price,
            None => rank.machine.and_then(|it| it.price),
        };
        part_of(rank.share.as_ref().map_or((1, 1), |it| it.part), price)
    };
    let all = run.ranks.iter().map(of);
    all.fold(Losing::default(), |sum, it| sum.and(&it))
}

/// The place of a rank, or of the run where none is to be named.
pub(super) fn place(run: &RunSnapshot, rank: Option<&RankSnapshot>) -> Place {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Place {
        cluster: run.cluster.clone(),
        node: rank.and_then(|it| known(&it.node)),
        gpu: rank.and_then(|it| known(it.card())),
        run: Some(run.name.clone()),
        rank: rank.map(|it| it.rank),
    }
}
