//! Made ends of runs: one cause, its echoes on the other ranks, and what else happened meanwhile.

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::Ended;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, Well};
use crate::ending::{Attempt, Cause, GpuFault, NodeLost, Place, Pod, RankEnd, ending};

const SEEDS: u32 = 20;
const RANKS: u32 = 16;
/// Ranks of a node.
const OF_NODE: u32 = 8;
const START: Timestamp = Timestamp::from_seconds(1_790_000_000);

fn at(seconds: i64) -> Timestamp {
    START.shifted(seconds * NANOS_PER_SECOND)
}

/// A rank that is in the middle of training.
fn rank(number: u32) -> RankEnd {
    RankEnd {
        rank: number,
        place: Place {
            node: format!("node-{}", number / OF_NODE),
            gpu_id: format!("GPU-{number}"),
            pod: format!("pod-{}", number / OF_NODE),
        },
        ..RankEnd::default()
    }
}

fn raised(of: &mut RankEnd, seconds: i64, kind: &str, message: &str) {
    of.at = Some(at(seconds));
    of.ended = Some(Ended::Exception);
    of.exception = Some((kind.to_owned(), message.to_owned()));
}

fn pod(number: u32, reason: &str, seconds: i64) -> Pod {
    Pod {
        name: format!("pod-{}", number / OF_NODE),
        reason: reason.to_owned(),
        exit_code: Some(137),
        at: Some(at(seconds)),
    }
}

/// A run that trained for an hour. The others of a rank that fails wait for it until their collective times out, or
/// their launcher kills them; some say nothing any more. Meanwhile programs raise XIDs, and a pod was evicted an hour ago.
fn trained(random: &mut ChaCha8Rng) -> Attempt {
    let mut all: Vec<RankEnd> = (0..RANKS).map(rank).collect();
    for it in &mut all {
        let seconds = 3_600 + random.random_range(2..600);
        match random.random_range(0..10) {
            0..6 => raised(
                it,
                seconds,
                "torch.distributed.DistBackendError",
                "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
            ),
            6..9 => {
                (it.at, it.ended, it.signal) = (Some(at(seconds)), Some(Ended::Vanished), Some(15));
            }
            _ => {}
        }
    }
    Attempt {
        ended_at: Some(at(4_500)),
        ranks: all,
        pods: vec![pod(random.random_range(0..RANKS), "Evicted", 60)],
        gpu_faults: vec![GpuFault {
            gpu_id: format!("GPU-{}", random.random_range(0..RANKS)),
            xid: 43,
            at: at(3_600 + random.random_range(-30..30)),
        }],
        hooks_were_read: true,
        cluster_was_watched: true,
        gpus_were_read: true,
        first_step: Some(0),
        last_step: Some(3_600),
        checkpoint_step: Some(3_000),
        step_ns: Some(1_000_000_000),
        gpus: RANKS,
        nano_usd_per_gpu_hour: Some(3_600_000_000),
        ..Attempt::default()
    }
}

/// Ends a run for this cause, by a rank of this number.
fn end(attempt: &mut Attempt, cause: Cause, culprit: u32, random: &mut ChaCha8Rng) {
    let own = &mut attempt.ranks[culprit as usize];
    let vanish = |it: &mut RankEnd| {
        (it.at, it.exception) = (Some(at(3_600)), None);
        (it.ended, it.signal) = (Some(Ended::Vanished), Some(9));
    };
    // What shows below comes a little before or after the process ends.
    let shown = 3_600 + random.random_range(-20..60);
    match cause {
        Cause::NodeLost => {
            let node = own.place.node.clone();
            for it in attempt.ranks.iter_mut().filter(|it| it.place.node == node) {
                (it.ended, it.at, it.exception, it.signal) = (None, None, None, None);
            }
            attempt.nodes_lost.push(NodeLost {
                name: node,
                at: at(shown),
                is_spot: false,
            });
        }
        Cause::GpuFault => {
            let xid = [79, 74, 48, 94][random.random_range(0..4)];
            raised(
                own,
                3_600,
                "RuntimeError",
                "CUDA error: unspecified launch failure",
            );
            let gpu_id = own.place.gpu_id.clone();
            let at = at(shown);
            attempt.gpu_faults.push(GpuFault { gpu_id, xid, at });
        }
        Cause::HostOutOfMemory => {
            vanish(own);
            match random.random_bool(0.5) {
                true => own.oom_kills = 1,
                false => attempt.pods.push(pod(culprit, "OOMKilled", shown)),
            }
        }
        Cause::Preempted => {
            vanish(own);
            attempt.pods.push(pod(culprit, "Preempted", shown));
        }
        Cause::Evicted => {
            vanish(own);
            attempt.pods.push(pod(culprit, "Evicted", shown));
        }
        Cause::StoppedByUser => attempt.stop_asked = Some(("ann".to_owned(), at(shown))),
        Cause::CudaOutOfMemory => raised(
            own,
            3_600,
            "torch.OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        Cause::Exception => raised(own, 3_600, "ValueError", "loss is nan"),
        Cause::CollectiveTimeout => {
            own.stuck = Some(("AllReduce".to_owned(), 600));
            (own.at, own.exception, own.signal) = (Some(at(3_601)), None, None);
        }
        Cause::Finished | Cause::Unknown => {}
    }
}

/// Whether the end names cause and, where it is a rank's, its rank or one of its node.
fn is_right(attempt: &Attempt, cause: Cause, culprit: u32) -> bool {
    let found = ending(attempt);
    let is_of_node = |rank: u32| rank / OF_NODE == culprit / OF_NODE;
    let is_rank = match cause {
        Cause::StoppedByUser | Cause::CollectiveTimeout => true,
        Cause::GpuFault | Cause::CudaOutOfMemory | Cause::Exception => {
            found.first_rank == Some(culprit)
        }
        _ => found.first_rank.is_some_and(is_of_node),
    };
    found.cause == cause && is_rank
}

fn row(cause: Cause) -> Faults {
    let is_found = |seed: &u32| {
        let mut random = ChaCha8Rng::seed_from_u64(u64::from(*seed) + 1_000 * cause as u64);
        let mut attempt = trained(&mut random);
        let culprit = random.random_range(0..RANKS);
        end(&mut attempt, cause, culprit, &mut random);
        is_right(&attempt, cause, culprit)
    };
    let count = (0..SEEDS).filter(is_found).count();
    Faults {
        detector: "ending",
        fault: format!("{} of one of {RANKS} ranks", cause.name().replace('_', " ")),
        of: SEEDS,
        found: u32::try_from(count).unwrap_or(0),
        delay: None,
        least: SEEDS,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    let causes = Cause::ALL.into_iter();
    let causes = causes.filter(|it| !matches!(it, Cause::Finished | Cause::Unknown));
    causes.map(row).collect()
}

/// Runs of which all ranks finished, whatever happened meanwhile.
pub(super) fn well() -> Vec<Well> {
    const RUNS: u32 = 100;
    let is_wrong = |seed: &u32| {
        let mut random = ChaCha8Rng::seed_from_u64(u64::from(*seed));
        let mut attempt = trained(&mut random);
        end(&mut attempt, Cause::GpuFault, 3, &mut random);
        for it in &mut attempt.ranks {
            (it.ended, it.exception, it.signal) = (Some(Ended::Finished), None, None);
        }
        ending(&attempt).cause != Cause::Finished
    };
    let wrong = (0..RUNS).filter(is_wrong).count();
    vec![Well {
        detector: "ending",
        world: "runs that finished, a fatal XID near their end",
        alarms: u32::try_from(wrong).unwrap_or(u32::MAX),
        exposure: f64::from(RUNS),
        unit: "run",
        most: 0,
    }]
}
