//! Made networks: jobs of 16 nodes in which a link gives less than its like, or all traffic takes the
//! hosts' ports; and such in which ranks are late, loads change and nothing is wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::time::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, Well, middle, normal};
use crate::port::{self, Port, Sign};
use crate::slow_link::{End, Finding, Group, Suspect, Watch};
use crate::straggler::collectives::Function;
use crate::wrong_network::{self, Look};

const SEEDS: u32 = 20;
const NODES: usize = 16;
const RAILS: usize = 8;
/// What a link gives.
const USUAL: f64 = 45e9;
/// Noise of a look: what else is on the network.
const NOISE: f64 = 0.03;
/// Looks before and after something becomes slow; ten seconds each.
const BEFORE: i64 = 20;
const AFTER: i64 = 20;

fn node(number: usize) -> Arc<str> {
    format!("node-{number}").into()
}

/// What is slow in a made job: given the nodes of a communicator and its rail, what part is left.
type Left<'a> = &'a dyn Fn(&[usize], usize) -> f64;

/// Communicators of four ranks a rail: each node is in two of them, with other partners.
fn groups(random: &mut ChaCha8Rng, look: i64, left: Left<'_>) -> Vec<Group> {
    let first = (0..NODES / 4).map(|it| [4 * it, 4 * it + 1, 4 * it + 2, 4 * it + 3]);
    let step = NODES / 4;
    let second = (0..step).map(|it| [it, it + step, it + 2 * step, it + 3 * step]);
    let mut found = Vec::new();
    for nodes in first.chain(second) {
        for rail in 0..RAILS {
            let own = USUAL * (1.0 + NOISE * normal(random)) * left(&nodes, rail);
            // Whoever is not last measures its wait with it.
            let last = random.random_range(0..nodes.len());
            let ends = nodes.iter().enumerate().map(|(place, number)| End {
                node: node(*number),
                gpu: format!("GPU-{number}-{rail}").into(),
                bytes_per_second: match place == last {
                    true => own,
                    false => own * (0.3 + 0.6 * random.random::<f64>()),
                },
            });
            found.push(Group {
                communicator: found.len() as u64,
                function: Function::ReduceScatter,
                bytes_per_call: 128e6,
                at: Timestamp::from_seconds(1_790_000_000 + look * 10),
                ends: ends.collect(),
            });
        }
    }
    found
}

/// Communicators of two ranks each, of these ends: every two GPUs of a node, or two nodes that are near.
fn pairs(
    ends: &[[(usize, usize); 2]],
    random: &mut ChaCha8Rng,
    look: i64,
    left: Left<'_>,
) -> Vec<Group> {
    let group = |(communicator, pair): (u64, &[(usize, usize); 2])| {
        let places = pair.map(|(node, gpu)| node * RAILS + gpu);
        let own = USUAL * (1.0 + NOISE * normal(random)) * left(&places, 0);
        Group {
            communicator,
            function: Function::AllReduce,
            bytes_per_call: 64e6,
            at: Timestamp::from_seconds(1_790_000_000 + look * 10),
            ends: pair
                .iter()
                .map(|(number, gpu)| End {
                    node: node(*number),
                    gpu: format!("GPU-{number}-{gpu}").into(),
                    bytes_per_second: own,
                })
                .collect(),
        }
    };
    (0..).zip(ends).map(group).collect()
}

/// What a job's communicators read at a look.
type Reads<'a> = &'a dyn Fn(&mut ChaCha8Rng, i64, Left<'_>) -> Vec<Group>;

/// The first look after the onset at which something is named, and what.
fn told(seed: u32, reads: Reads<'_>, left: Left<'_>) -> Option<(i64, Vec<Finding>)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed.into());
    let mut watch = Watch::default();
    for look in 0..BEFORE + AFTER {
        let left: Left<'_> = if look < BEFORE { &|_, _| 1.0 } else { left };
        let said = watch.observe(&reads(&mut random, look, left));
        if let Some(found) = said.ok().filter(|it| !it.is_empty()) {
            return Some((look - BEFORE, found));
        }
    }
    None
}

fn slow(
    fault: &str,
    least: u32,
    reads: Reads<'_>,
    of: impl Fn(u32) -> (Suspect, Box<dyn Fn(&[usize], usize) -> f64>),
) -> Faults {
    let (mut found, mut delays) = (0, Vec::new());
    for seed in 0..SEEDS {
        let (culprit, left) = of(seed);
        if let Some((delay, said)) = told(seed, reads, &*left)
            && let [only] = &said[..]
            && only.suspect == culprit
        {
            found += 1;
            delays.push((delay + 1) as f64 * 10.0);
        }
    }
    Faults {
        detector: "slow link",
        fault: fault.to_owned(),
        of: SEEDS,
        found,
        delay: middle(&mut delays, "s"),
        least,
    }
}

fn of_port(part: f64, least: u32) -> Faults {
    let fault = format!("a GPU's port of 128 gives {:.0} %", part * 100.0);
    slow(&fault, least, &groups, |seed| {
        let (own, rail) = (seed as usize % NODES, seed as usize % RAILS);
        let left = move |nodes: &[usize], at: usize| {
            if nodes.contains(&own) && at == rail {
                part
            } else {
                1.0
            }
        };
        let gpu = format!("GPU-{own}-{rail}");
        (Suspect::Gpu(node(own), gpu.into()), Box::new(left))
    })
}

fn of_node(part: f64, least: u32) -> Faults {
    let fault = format!("all ports of a node of {NODES} give {:.0} %", part * 100.0);
    slow(&fault, least, &groups, |seed| {
        let own = seed as usize % NODES;
        let left = move |nodes: &[usize], _: usize| {
            if nodes.contains(&own) { part } else { 1.0 }
        };
        (Suspect::Node(node(own)), Box::new(left))
    })
}

/// The way between two of the nodes gives less, and both are as fast with others.
fn of_pair(part: f64, least: u32) -> Faults {
    let near = (1..=4).flat_map(|far| (0..NODES).map(move |it| [(it, 0), ((it + far) % NODES, 0)]));
    let near: Vec<[(usize, usize); 2]> = near.collect();
    let fault = format!(
        "the way between two nodes of {NODES} gives {:.0} %",
        part * 100.0
    );
    let reads =
        |random: &mut ChaCha8Rng, look: i64, left: Left<'_>| pairs(&near, random, look, left);
    slow(&fault, least, &reads, |seed| {
        let [(one, _), (other, _)] = near[seed as usize % near.len()];
        let left = move |places: &[usize], _: usize| {
            let is_it = [one, other].iter().all(|it| places.contains(&(it * RAILS)));
            if is_it { part } else { 1.0 }
        };
        // In the order of their names.
        let (mut one, mut other) = (node(one), node(other));
        if other < one {
            std::mem::swap(&mut one, &mut other);
        }
        (Suspect::Pair(one, other), Box::new(left))
    })
}

/// The same where they are never alone together: four nodes are told, of which they are two.
fn of_way_among_four(part: f64, least: u32) -> Faults {
    let fault = format!(
        "the way between two of four nodes of a group gives {:.0} %",
        part * 100.0
    );
    slow(&fault, least, &groups, |seed| {
        let first = 4 * (seed as usize % (NODES / 4));
        let left = move |nodes: &[usize], _: usize| {
            let is_it = [first, first + 1].iter().all(|it| nodes.contains(it));
            if is_it { part } else { 1.0 }
        };
        let mut among: Vec<Arc<str>> = (first..first + 4).map(node).collect();
        among.sort();
        (Suspect::Among(among), Box::new(left))
    })
}

/// A GPU's way to the others of its node gives less.
fn of_nvlink(part: f64, least: u32) -> Faults {
    let within = (0..NODES).flat_map(|it| {
        let two = (0..RAILS).flat_map(|one| (one + 1..RAILS).map(move |other| (one, other)));
        two.map(move |(one, other)| [(it, one), (it, other)])
    });
    let within: Vec<[(usize, usize); 2]> = within.collect();
    let fault = format!(
        "a GPU's way to the others of its node gives {:.0} %",
        part * 100.0
    );
    let reads =
        |random: &mut ChaCha8Rng, look: i64, left: Left<'_>| pairs(&within, random, look, left);
    slow(&fault, least, &reads, |seed| {
        let (own, gpu) = (seed as usize % NODES, seed as usize % RAILS);
        let left = move |places: &[usize], _: usize| match places.contains(&(own * RAILS + gpu)) {
            true => part,
            false => 1.0,
        };
        let name = format!("GPU-{own}-{gpu}");
        (Suspect::Gpu(node(own), name.into()), Box::new(left))
    })
}

/// What a port of a slow link reads beside its like, which names one of two ends.
fn signs(fault: &str, is_it: fn(&Sign) -> bool, sets: fn(&mut Port, &mut ChaCha8Rng)) -> Faults {
    let is_found = |seed: &u32| {
        let mut random = ChaCha8Rng::seed_from_u64(u64::from(*seed));
        let mut all: Vec<Vec<Port>> = (0..NODES)
            .map(|_| ports(&mut random, [3e6; 2], 18e9))
            .collect();
        for port in all.iter_mut().flatten() {
            port.errors = Some(0.2 * random.random::<f64>());
            port.repeats = port.is_rdma.then(|| 0.5 * random.random::<f64>());
        }
        let at = random.random_range(1..=RAILS);
        sets(&mut all[0][at], &mut random);
        let others: Vec<&[Port]> = all[1..].iter().map(Vec::as_slice).collect();
        let found = port::sign(&all[0], &others);
        found.is_some_and(|(port, sign)| port.name == all[0][at].name && is_it(&sign))
    };
    Faults {
        detector: "port",
        fault: fault.to_owned(),
        of: SEEDS,
        found: (0..SEEDS).filter(is_found).count() as u32,
        delay: None,
        least: SEEDS,
    }
}

/// The ports of a node: the host's, and eight RDMA ports.
fn ports(random: &mut ChaCha8Rng, host: [f64; 2], rdma: f64) -> Vec<Port> {
    let mut port = |name: String, is_rdma: bool, [sent, received]: [f64; 2]| Port {
        name: name.into(),
        is_rdma,
        is_up: Some(true),
        speed: Some(if is_rdma { 50e9 } else { 25e9 }),
        sent: Some(sent * (1.0 + 0.2 * random.random::<f64>())),
        received: Some(received * (1.0 + 0.2 * random.random::<f64>())),
        ..Port::default()
    };
    let own = port("eth0".to_owned(), false, host);
    let fast = (0..8).map(|it| port(format!("mlx5_{it}"), true, [rdma; 2]));
    std::iter::once(own)
        .chain(fast.collect::<Vec<_>>())
        .collect()
}

/// Bytes a second of the host's port, both ways, and of each fast one, at a look.
type Traffic<'a> = dyn Fn(i64, &mut ChaCha8Rng) -> ([f64; 2], f64) + 'a;

/// The look at which a run of four nodes is called one that goes the wrong way.
fn wrong(seed: u32, looks: i64, traffic: &Traffic) -> Option<i64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed.into());
    let mut watch = wrong_network::Watch::default();
    let settings = BTreeMap::new();
    (0..looks).find(|look| {
        let (host, rdma) = traffic(*look, &mut random);
        let all: Vec<Vec<Port>> = (0..4).map(|_| ports(&mut random, host, rdma)).collect();
        let names = ["a", "b", "c", "d"];
        let nodes: Vec<(&str, &[Port])> = std::iter::zip(names, &all)
            .map(|(name, ports)| (name, ports.as_slice()))
            .collect();
        let said = watch.observe(&Look {
            nodes: &nodes,
            talks: Some(true),
            settings: &settings,
        });
        matches!(said, Ok(Some(_)))
    })
}

fn fallen_back(bytes: f64, least: u32) -> Faults {
    let mut delays = Vec::new();
    for seed in 0..SEEDS {
        let at = wrong(seed, BEFORE + AFTER, &|look, _| match look < BEFORE {
            true => ([3e6; 2], 18e9),
            false => ([bytes; 2], 1e4),
        });
        delays.extend(
            at.filter(|it| *it >= BEFORE)
                .map(|it| (it - BEFORE + 1) as f64 * 10.0),
        );
    }
    Faults {
        detector: "wrong network",
        fault: format!("{} GB/s over the hosts' ports, RDMA silent", bytes / 1e9),
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, "s"),
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    vec![
        of_port(0.8, 0),
        of_port(0.7, SEEDS),
        of_port(0.5, SEEDS),
        of_node(0.7, SEEDS),
        of_node(0.5, SEEDS),
        of_pair(0.8, 0),
        of_pair(0.5, SEEDS),
        of_way_among_four(0.5, SEEDS),
        of_nvlink(0.8, 0),
        of_nvlink(0.5, SEEDS),
        fallen_back(0.04e9, 0),
        fallen_back(0.1e9, SEEDS),
        fallen_back(2e9, SEEDS),
        signs(
            "of the ports of a slow link one that is down",
            |it| matches!(it, Sign::Down),
            |port, _| port.is_up = Some(false),
        ),
        signs(
            "of the ports of a slow link one that came up slower",
            |it| matches!(it, Sign::Slow(..)),
            |port, _| port.speed = Some(25e9),
        ),
        signs(
            "of the ports of a slow link one that makes errors",
            |it| matches!(it, Sign::Errors(..)),
            |port, random| port.errors = Some(5.0 + 20.0 * random.random::<f64>()),
        ),
        signs(
            "of the ports of a slow link one that repeats packets",
            |it| matches!(it, Sign::Repeats(..)),
            |port, random| port.repeats = Some(20.0 + 80.0 * random.random::<f64>()),
        ),
    ]
}

pub(super) fn well() -> Vec<Well> {
    const LOOKS: i64 = 360;
    let mut named = 0;
    for seed in 100..110_u64 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut watch = Watch::default();
        for look in 0..LOOKS {
            // All of the network is busier for a while, as when others save checkpoints.
            let busy = if look % 60 < 15 { 0.6 } else { 1.0 };
            let said = watch.observe(&groups(&mut random, look, &|_, _| busy));
            named += u32::from(said.is_ok_and(|it| !it.is_empty()));
        }
    }
    // Over the host's port: reading data, then saving a checkpoint, beside RDMA that works or rests.
    let called = (100..120).filter(|seed| {
        let at = wrong(*seed, LOOKS, &|look, _| match look % 60 {
            0..20 => ([5e7, 4e9], 18e9),
            20..40 => ([4e9, 5e7], 0.0),
            _ => ([3e6, 3e9], 0.0),
        });
        at.is_some()
    });
    let called = u32::try_from(called.count()).unwrap_or(u32::MAX);
    let well = |detector, world, alarms, exposure| Well {
        detector,
        world,
        alarms,
        exposure,
        unit: "run-hour",
        most: 0,
    };
    vec![
        well(
            "slow link",
            "16 nodes, late ranks, a network that is busy at times",
            named,
            10.0,
        ),
        well(
            "wrong network",
            "4 nodes that read data and save checkpoints",
            called,
            20.0,
        ),
    ]
}
