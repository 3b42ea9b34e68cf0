//! Faults of training runs of 16 ranks on two nodes, and of the network under them.

use gpufleet_telemetry::catalog::{Metric, gpu, node, training};
use gpufleet_telemetry::identity::{Part, PartKind, ResourceKind};
use gpufleet_telemetry::training::{CollectivesFrom, Highest, RankId};

use super::world::{At, Happens, Made, NOTHING, Now};
use super::{FEW, Fault, SEEDS};
use crate::detect::runs::tests::{Does, RUN, WELL};
use crate::fleet::{Live, LiveValue};
use crate::runs::{RunKey, SlowerThanBefore};

const NODES: (u32, u32) = (2, 8);
/// What a link gives, bytes a second.
const USUAL: f64 = 45e9;

/// A rank that is well, whatever the moment.
fn well(_: u32, _: &Now) -> Does {
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

/// How many times as large as usual a loss and a gradient norm are.
type Times = (f64, f64);
const USUALLY: Times = (1.0, 1.0);

/// The loss and the gradient norm that a rank reads of each of so many steps a second: what the last had, and what three in a
/// row of the tick held. `times` knows a step by how many are between the onset and it.
fn learns(live: &mut Live, now: &Now, a_second: i64, times: &dyn Fn(i64) -> Times) {
    /// The number of the step at the onset, higher than there are steps before it.
    const ONSET: i64 = 1_000_000;
    let (last, at) = (now.seconds * a_second, live.last_point);
    let loss = |step: i64| times(step).0 * (2.0 + (step as f64 * 0.7).sin() / 20.0);
    let norm = |step: i64| times(step).1 * (0.5 + (step as f64 * 0.3).sin() / 20.0);
    let of_tick = last - now.tick_s * a_second + 1..=last;
    let held = |of: &dyn Fn(i64) -> f64| {
        let steps = of_tick.clone();
        let readings = steps.map(|it| (at, (ONSET + it).unsigned_abs(), of(it)));
        let held = Highest::default().take(readings, at);
        held.expect("a tick has three steps")
    };
    let (loss_held, norm_held) = (held(&loss), held(&norm));
    for (metric, value) in [
        (&training::LAST_STEP, (ONSET + last) as f64),
        (&training::LOSS, loss(last)),
        (&training::LOSS_HELD, loss_held.value),
        (&training::LOSS_HELD_STEP, loss_held.step as f64),
        (&training::GRADIENT_NORM, norm(last)),
        (&training::GRADIENT_NORM_HELD, norm_held.value),
        (&training::GRADIENT_NORM_HELD_STEP, norm_held.step as f64),
    ] {
        now.put(live, metric, value);
    }
}

/// A run of ten steps a second of which some are far off, and none of them the last before its numbers are told.
fn bursts(fault: &str, says: &'static str, least: u32, times: fn(i64) -> Times) -> Fault {
    /// Ticks in which a run is learnt.
    const LEARNT: i64 = 205;
    let finding = "numbers of training that go wrong";
    Fault::few(finding, fault, least, move |seed, off| {
        let says_of = |rank: u32, live: &mut Live, now: &Now| {
            // The first that reads a loss speaks for all.
            if rank == 0 {
                learns(live, now, 10, &times);
            }
        };
        let happens = Happens {
            ranks: Some(&well),
            says: Some(&says_of),
            ..NOTHING
        };
        let mut made = Made::new(seed, (1, 1), off).ticking(10, LEARNT);
        made.told((says, At::Any), 60, happens)
    })
}

/// The ten steps of a second are wrong, in the tick that is the first to be told.
fn for_a_second(step: i64, wrong: Times) -> Times {
    if (-80..-70).contains(&step) {
        wrong
    } else {
        USUALLY
    }
}

/// One step of each tick is.
fn now_and_then(step: i64) -> Times {
    if step > -100 && step.rem_euclid(100) == 50 {
        (1.6, 5.0)
    } else {
        USUALLY
    }
}

/// What a rank reads of its numbers.
#[derive(Clone, Copy)]
enum Goes {
    NotFinite,
    Skipping,
}

fn numbers(goes: Goes, fault: &str, says: &'static str) -> Fault {
    Fault::of(
        "numbers of training that go wrong",
        fault,
        SEEDS,
        move |seed, server| {
            let says_of = move |_: u32, live: &mut Live, now: &Now| {
                learns(live, now, 1, &|_| USUALLY);
                let wrong_s = now.seconds.max(0) as f64;
                let (bad, skips) = match goes {
                    Goes::NotFinite => (wrong_s, 0.0),
                    Goes::Skipping => (0.0, (wrong_s / 5.0).floor()),
                };
                for (metric, value) in [
                    (&training::NON_FINITE_LOSSES, bad),
                    (&training::SCALER_SKIPS, skips),
                ] {
                    now.put(live, metric, value);
                }
            };
            let happens = Happens {
                ranks: Some(&well),
                says: Some(&says_of),
                ..NOTHING
            };
            Made::new(seed, NODES, server).told((says, At::Any), 300, happens)
        },
    )
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
    vec![
        straggler(0.02, 0),
        straggler(0.08, SEEDS),
        straggler(0.3, SEEDS),
        slower(0.005, 0),
        slower(0.05, SEEDS),
        slower_than_before(),
        stands(
            "a run that stands still",
            "one rank of 16 does not come to a collective",
            true,
        ),
        stands(
            "a run that stands still and leaves its GPUs idle",
            "no steps, and no GPU computes",
            false,
        ),
        by_collectives(1.0, 0),
        by_collectives(20.0, FEW),
        numbers(
            Goes::NotFinite,
            "losses that are not finite",
            "its loss is not finite",
        ),
        numbers(
            Goes::Skipping,
            "one step in five skipped",
            "the loss scaler skips",
        ),
        bursts(
            "one step of each tick, its loss 60 % above and its gradients 5 times as large",
            "its ",
            0,
            now_and_then,
        ),
        bursts(
            "ten steps of one second within a tick, their loss 60 % above",
            "its loss was far above",
            FEW,
            |step| for_a_second(step, (1.6, 1.0)),
        ),
        bursts(
            "ten steps of one second within a tick, their gradients 5 times as large",
            "its gradients burst",
            FEW,
            |step| for_a_second(step, (1.0, 5.0)),
        ),
        slow_link(0.85, 0),
        slow_link(0.5, FEW),
        slow_port(0.95, 0),
        slow_port(0.5, FEW),
        wrong_network(0.02e9, 0),
        wrong_network(2e9, FEW),
    ]
}

/// What a run that is well tells: its collectives, its numbers.
pub(super) fn says_well(rank: u32, live: &mut Live, now: &Now) {
    measures(now, rank, live, USUAL);
    learns(live, now, 1, &|_| USUALLY);
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
