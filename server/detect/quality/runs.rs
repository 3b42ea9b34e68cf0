//! Faults of training runs of 16 ranks on two nodes, and of the network under them.

use gpufleet_analysis::price::Basis;
use gpufleet_telemetry::catalog::{Metric, gpu, node, training};
use gpufleet_telemetry::identity::{Part, PartKind, ResourceKind};
use gpufleet_telemetry::training::{CollectivesFrom, RankId};

use super::numbers::{self, USUALLY, learns};
use super::world::{At, Happens, Made, NOTHING, Now, Said, Server};
use super::{FEW, Fault, SEEDS};
use crate::detect::runs::tests::{Does, RUN, WELL};
use crate::fleet::{Live, LiveValue};
use crate::runs::{RunKey, SlowerThanBefore};

const NODES: (u32, u32) = (2, 8);
/// What a link gives, bytes a second.
const USUAL: f64 = 45e9;

/// A rank that is well, whatever the moment.
pub(super) fn well(_: u32, _: &Now) -> Does {
    WELL
}

/// A fault in what ranks do.
fn of_ranks(
    (finding, fault): (&'static str, &str),
    (says, at): (&'static str, At),
    least: u32,
    does: impl Fn(u32, u32, &Now) -> Does + 'static,
) -> Fault {
    Fault::of(finding, fault, least, move |seed, server| {
        let mut made = Made::new(seed, NODES, server);
        let culprit = made.rank;
        let ranks = |rank: u32, now: &Now| does(rank, culprit, now);
        let happens = Happens {
            ranks: Some(&ranks),
            ..NOTHING
        };
        made.told((says, at), 300, happens)
    })
}

/// One rank computes longer than the others, who wait for it.
fn straggler(longer: f64, least: u32) -> Fault {
    let finding = "a rank that makes the others wait";
    let fault = format!("a rank of 16 slower by {:.0} %", longer * 100.0);
    let says = ("makes the other ranks wait", At::Rank);
    of_ranks((finding, &fault), says, least, move |rank, culprit, now| {
        let is_slow = now.seconds >= 0 && rank == culprit;
        let busy = if is_slow {
            700.0 * (1.0 + longer)
        } else {
            700.0
        };
        Does {
            busy_ms: Some(busy as u64),
            ..WELL
        }
    })
}

/// All steps take longer.
fn slower(longer: f64, least: u32) -> Fault {
    let finding = "a run that became slower";
    let fault = format!("steps longer by {:.1} %", longer * 100.0);
    let says = ("its steps take longer than they did", At::Any);
    of_ranks((finding, &fault), says, least, move |_, _, now| {
        let wall = if now.seconds >= 0 {
            1_000.0 * (1.0 + longer)
        } else {
            1_000.0
        };
        Does {
            wall_ms: wall as u64,
            ..WELL
        }
    })
}

/// What was found of the runs before it is told; whether it is found is in the rows of regression between runs.
fn slower_than_before() -> Fault {
    let finding = "a run slower than the runs before it";
    Fault::of(
        finding,
        "a run a quarter slower than four before it",
        SEEDS,
        |seed, server| {
            let also = |made: &mut Made, now: &Now| {
                let id = RankId::parse(&format!("{RUN}/0")).expect("an id");
                let key = RunKey::of(&"prod".into(), &id);
                let runs = made.fleet.runs();
                let judged = runs.look(&key, |run| run.judged.clone()).flatten();
                if let Some(mut judged) = judged.filter(|_| now.seconds >= 0) {
                    judged.before = Some(SlowerThanBefore {
                        runs: 4,
                        step_ns: 1e9,
                        usual_ns: 0.75e9,
                        since: now.onset,
                    });
                    runs.judge(&key, Some(judged));
                }
            };
            let happens = Happens {
                ranks: Some(&well),
                also: &also,
                ..NOTHING
            };
            let says = (
                "its steps take longer than those of the runs before it",
                At::Any,
            );
            Made::new(seed, NODES, server).told(says, 60, happens)
        },
    )
    .injected()
}

/// Nobody steps any more, in a collective that the culprit did not come to, or with GPUs that rest.
fn stands(finding: &'static str, fault: &str, is_in_collective: bool) -> Fault {
    Fault::of(finding, fault, SEEDS, move |seed, server| {
        let mut made = Made::new(seed, NODES, server);
        let culprit = made.rank;
        let ranks = |rank: u32, now: &Now| match now.seconds >= 0 {
            true => Does {
                busy_ms: None,
                collective_s: (is_in_collective && rank != culprit).then_some(now.seconds as f64),
                ..WELL
            },
            false => WELL,
        };
        let reads = |live: &mut Live, now: &Now| {
            let rests = now.seconds >= 0 && !is_in_collective;
            if rests && live.key.kind == ResourceKind::Gpu {
                now.put(live, &gpu::TENSOR_ACTIVE, 0.0);
            }
        };
        let happens = Happens {
            ranks: Some(&ranks),
            reads: &reads,
            ..NOTHING
        };
        let at = if is_in_collective { At::Rank } else { At::Any };
        made.told(("the run stands still", at), 600, happens)
    })
}

/// Steps tell no waits; what collectives take does: ten a second of 2 ms, and what all wait for the culprit.
fn by_collectives(late_ms: f64, least: u32) -> Fault {
    let finding = "a rank that the others wait for in collectives";
    let fault = format!("the others wait {late_ms} ms in each of ten collectives a second");
    Fault::few(finding, &fault, least, move |seed, server| {
        let mut made = Made::new(seed, NODES, server).ticking(10, 40);
        let culprit = made.rank;
        let says = |rank: u32, live: &mut Live, now: &Now| {
            now.put(live, &training::STEP_WALL, 1_000.0);
            now.put(live, &training::STEP_COMMUNICATION_WAIT, 0.0);
            let plugin = CollectivesFrom::Plugin.number() as f64;
            now.put(live, &training::COLLECTIVES_FROM, plugin);
            let waits = if rank == culprit { 0.0 } else { late_ms / 1e3 };
            let late_s = (now.seconds + now.tick_s).max(0) as f64;
            let seconds = live.last_point.seconds() as f64 - 1_700_000_000.0;
            let part = || Part::new(PartKind::Collective, "00000000000000c7/AllReduce");
            now.part(
                live,
                &training::COLLECTIVE_CALLS,
                part(),
                Ok(seconds * 10.0),
            );
            let took = 2e6 + seconds * 10.0 * 0.002 + late_s * 10.0 * waits;
            now.part(live, &training::COLLECTIVE_DURATION, part(), Ok(took));
        };
        let ranks = |_: u32, _: &Now| Does {
            busy_ms: Some(970),
            ..WELL
        };
        let happens = Happens {
            ranks: Some(&ranks),
            says: Some(&says),
            ..NOTHING
        };
        made.told(("makes the other ranks wait", At::Rank), 300, happens)
    })
}

/// What a rank measures of the communicator of its place in the nodes; the later half of the ranks waits.
fn measures(now: &Now, rank: u32, live: &mut Live, bandwidth: f64) {
    let part = || Part::new(PartKind::Collective, format!("{:016x}/AllReduce", rank % 8));
    now.part(live, &training::COLLECTIVE_CALLS, part(), Ok(1e6));
    now.part(live, &training::COLLECTIVE_TRAFFIC, part(), Ok(64e12));
    let own = if rank < 8 { bandwidth } else { bandwidth * 0.6 };
    now.part(live, &training::COLLECTIVE_BUS_BANDWIDTH, part(), Ok(own));
}

fn slow_link(left: f64, least: u32) -> Fault {
    let finding = "a link slower than its like";
    let fault = format!(
        "the link of one of eight communicators gives {:.0} %",
        left * 100.0
    );
    Fault::few(finding, &fault, least, move |seed, server| {
        let mut made = Made::new(seed, NODES, server);
        let rail = made.rank % 8;
        let says = |rank: u32, live: &mut Live, now: &Now| {
            let is_slow = now.seconds >= 0 && rank % 8 == rail;
            measures(now, rank, live, if is_slow { USUAL * left } else { USUAL });
        };
        let happens = Happens {
            ranks: Some(&well),
            says: Some(&says),
            ..NOTHING
        };
        made.told(("the way between node-1 and node-2", At::Any), 300, happens)
    })
}

/// The link of one communicator gives half, in a run whose script marks no communication.
pub(super) fn slow_link_without_waits(seed: u64) -> Option<Said> {
    let mut made = Made::new(seed, NODES, Server::default());
    let rail = made.rank % 8;
    let says = |rank: u32, live: &mut Live, now: &Now| {
        let is_slow = now.seconds >= 0 && rank % 8 == rail;
        measures(now, rank, live, if is_slow { USUAL / 2.0 } else { USUAL });
        no_waits(live, now);
    };
    let happens = Happens {
        ranks: Some(&marks_nothing),
        says: Some(&says),
        ..NOTHING
    };
    made.told(("the way between node-1 and node-2", At::Any), 300, happens)
}

/// What a machine's ports carry each way, and the speed of its fourth RDMA port.
fn ports(now: &Now, live: &mut Live, (host, rdma): (f64, f64), speed: f64) {
    let of = |metric: &'static Metric, name: String, value: f64, live: &mut Live| {
        now.part(live, metric, Part::new(PartKind::Nic, name), Ok(value));
    };
    let names = std::iter::once("eth0".to_owned()).chain((0..8).map(|it| format!("mlx5_{it}")));
    for (place, name) in names.enumerate() {
        let (rate, usual) = if place == 0 {
            (host, 25e9)
        } else {
            (rdma, 50e9)
        };
        for metric in [&node::NIC_SENT, &node::NIC_RECEIVED] {
            let is_it = |it: &&LiveValue| it.part.as_ref().is_some_and(|it| *it.id == *name);
            let known = live.parts(metric.id).find(is_it).map(|it| it.reading);
            let before = known.and_then(Result::ok).unwrap_or(0.0);
            of(
                metric,
                name.clone(),
                before + rate * now.tick_s as f64,
                live,
            );
        }
        of(&node::NIC_UP, name.clone(), 1.0, live);
        if place > 0 {
            of(&node::RDMA_RETRIES, name.clone(), 0.0, live);
        }
        of(
            &node::NIC_SPEED,
            name,
            if place == 4 { speed } else { usual },
            live,
        );
    }
}

fn slow_port(part: f64, least: u32) -> Fault {
    let finding = "a port that came up slower than its like";
    let fault = format!("a port of 8 machines at {:.0} % of its speed", part * 100.0);
    Fault::few(finding, &fault, least, move |seed, server| {
        let reads = move |live: &mut Live, now: &Now| {
            if live.key.kind == ResourceKind::Node {
                let speed = if now.is_node(live) { 50e9 * part } else { 50e9 };
                ports(now, live, (3e6, 18e9), speed);
            }
        };
        let happens = Happens {
            reads: &reads,
            ..NOTHING
        };
        let says = ("a network device came up slower", At::Node);
        Made::new(seed, (8, 1), server).told(says, 300, happens)
    })
}

fn wrong_network(bytes: f64, least: u32) -> Fault {
    let finding = "a run on the wrong network";
    let fault = format!("{} GB/s over the hosts' ports, RDMA silent", bytes / 1e9);
    Fault::few(finding, &fault, least, move |seed, server| {
        let reads = move |live: &mut Live, now: &Now| {
            if live.key.kind == ResourceKind::Node {
                let wrong = (bytes, 0.0);
                let rates = if now.seconds >= 0 { wrong } else { (3e6, 18e9) };
                ports(now, live, rates, 50e9);
            }
        };
        let says_of = |rank: u32, live: &mut Live, now: &Now| measures(now, rank, live, USUAL);
        let happens = Happens {
            reads: &reads,
            ranks: Some(&well),
            says: Some(&says_of),
            ..NOTHING
        };
        let says = ("its traffic between nodes takes the wrong network", At::Any);
        Made::new(seed, NODES, server).told(says, 300, happens)
    })
}

pub(super) fn faults() -> Vec<Fault> {
    let mut all = vec![
        straggler(0.02, 0),
        straggler(0.08, SEEDS),
        straggler(0.3, SEEDS),
        slower(0.005, 0),
        slower(0.05, SEEDS).priced(Basis::LongerThanBefore),
        slower_than_before().priced(Basis::LongerThanRuns),
        stands(
            "a run that stands still",
            "one rank of 16 does not come to a collective",
            true,
        )
        .priced(Basis::RunStands),
        stands(
            "a run that stands still and leaves its GPUs idle",
            "no steps, and no GPU computes",
            false,
        )
        .priced(Basis::RunStands),
        by_collectives(1.0, 0),
        by_collectives(20.0, FEW),
    ];
    all.extend(numbers::faults());
    all.extend([
        slow_link(0.85, 0),
        slow_link(0.5, FEW).priced(Basis::LongerCollectives),
        slow_port(0.95, 0),
        slow_port(0.5, FEW),
        wrong_network(0.02e9, 0),
        wrong_network(2e9, FEW).priced(Basis::LongerCollectives),
    ]);
    all
}

/// What a run that is well tells: its collectives, its numbers.
pub(super) fn says_well(rank: u32, live: &mut Live, now: &Now) {
    measures(now, rank, live, USUAL);
    learns(live, now, 1, &|_| USUALLY);
}

/// What a rank does whose script marks no communication.
pub(super) fn marks_nothing(_: u32, _: &Now) -> Does {
    Does {
        tells_waits: false,
        ..WELL
    }
}

/// What the hooks tell of its waits.
fn no_waits(live: &mut Live, now: &Now) {
    now.put(live, &training::STEP_WALL, 1_000.0);
    now.put(live, &training::STEP_COMMUNICATION_WAIT, 0.0);
}

/// What such a run tells that is well.
pub(super) fn says_no_waits(rank: u32, live: &mut Live, now: &Now) {
    measures(now, rank, live, USUAL);
    no_waits(live, now);
}

/// What its machines read. While it saves its GPUs seem to work, all but that of the first rank.
pub(super) fn reads_well(live: &mut Live, now: &Now) {
    if live.key.kind == ResourceKind::Node {
        ports(now, live, (3e6, 18e9), 50e9);
    } else if live.key.kind == ResourceKind::Gpu {
        let waits = saves(now) && *live.key.id != *"GPU-prod-node-1-0000";
        let all = live.bits.observed;
        (live.bits.active, live.bits.stalled) = if waits { (0, all) } else { (all, 0) };
    }
}

/// A run that saves a checkpoint for seven minutes of each 20.
fn saves(now: &Now) -> bool {
    (now.seconds - 300).rem_euclid(1_200) < 420
}

/// What its ranks do.
pub(super) fn trains_well(_: u32, now: &Now) -> Does {
    match saves(now) {
        true => Does {
            busy_ms: None,
            phase: 6.0,
            ..WELL
        },
        false => WELL,
    }
}
