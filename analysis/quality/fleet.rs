//! What no statistics are needed for: ports that came up slow, readings over a limit, GPUs that are held and unused,
//! nodes that fall silent.

use std::time::Duration;

use gpufleet_telemetry::minute::Bitmaps;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, Well, middle, normal};
use crate::incident::Family;
use crate::limit::{State, Test};
use crate::port::{self, Machine, Port};
use crate::silent::is_silent;
use crate::states::{AtNode, Now, Policy, Recent, now};
use crate::unused::{IDLE_AFTER_S, unused};

const SEEDS: u32 = 20;
const START: Timestamp = Timestamp::from_seconds(1_790_000_000);
const MODEL: &str = "NVIDIA H100 80GB HBM3";
/// Between two looks, seconds.
const TICK_S: i64 = 10;

fn at(seconds: i64) -> Timestamp {
    START.shifted(seconds * NANOS_PER_SECOND)
}

/// Of each seed how long it took to be told, seconds; none where it was not, or before there was anything.
fn row(
    detector: &'static str,
    fault: &str,
    least: u32,
    told: impl Fn(&mut ChaCha8Rng) -> Option<i64>,
) -> Faults {
    let of = |seed: u32| told(&mut ChaCha8Rng::seed_from_u64(seed.into()));
    let found = (0..SEEDS).filter_map(of).filter(|it| *it >= 0);
    let mut delays: Vec<f64> = found.map(|it| it as f64).collect();
    Faults {
        detector,
        fault: fault.to_owned(),
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, "s").filter(|it| it != "0 s"),
        least,
    }
}

/// The ports of 16 machines: eight that are there for GPUs and one of the host, now and then one that is not read. A
/// port of one machine comes up at this part of its speed. Who is named.
fn ports(random: &mut ChaCha8Rng, part: f64) -> (Vec<(String, String)>, (String, String)) {
    let culprit = (random.random_range(0..16), random.random_range(0..8));
    let speed = |gigabits: f64, random: &mut ChaCha8Rng| {
        random.random_bool(0.95).then_some(gigabits * 1e9 / 8.0)
    };
    let mut all: Vec<(String, Vec<Port>)> = Vec::new();
    for machine in 0..16 {
        let mut own = vec![Port {
            name: "eth0".into(),
            speed: speed(if machine % 2 == 0 { 25.0 } else { 100.0 }, random),
            ..Port::default()
        }];
        for number in 0..8 {
            let is_culprit = (machine, number) == culprit;
            let known = speed(400.0, random);
            own.push(Port {
                name: format!("mlx5_{number}").into(),
                is_rdma: true,
                speed: match is_culprit {
                    true => Some(part * 50e9),
                    false => known,
                },
                ..Port::default()
            });
        }
        all.push((format!("node-{machine}"), own));
    }
    let machines: Vec<Machine<'_>> = all
        .iter()
        .map(|(node, ports)| Machine {
            node,
            model: MODEL,
            ports,
        })
        .collect();
    let named = port::slow(&machines).into_iter();
    let named = named.map(|it| (it.node.to_owned(), it.port.to_owned()));
    let culprit = (format!("node-{}", culprit.0), format!("mlx5_{}", culprit.1));
    (named.collect(), culprit)
}

fn slow_port(fault: &str, part: f64) -> Faults {
    row("port", fault, SEEDS, |random| {
        let (named, culprit) = ports(random, part);
        (named == [culprit]).then_some(0)
    })
}

/// What a reading says at this second, that is wrong from `ONSET_S` on.
type Reads<'a> = &'a dyn Fn(i64, &mut ChaCha8Rng) -> f64;

const ONSET_S: i64 = 1_800;

/// How long after its onset it is told over this limit; before it less than 0.
fn over(test: Test, for_s: i64, reads: Reads<'_>, random: &mut ChaCha8Rng) -> Option<i64> {
    let mut state = State::first(test, reads(0, random), at(0));
    for second in (TICK_S..2 * ONSET_S).step_by(TICK_S as usize) {
        state.observe(test, reads(second, random), at(second));
        let since = state.is_over(test, for_s * NANOS_PER_SECOND, at(second));
        if since.is_some() {
            return Some(second - ONSET_S);
        }
    }
    None
}

/// A limit of each kind with what is well and what is not: the reading before and from [`ONSET_S`] on.
fn limits() -> [(&'static str, Test, i64, [Reads<'static>; 2]); 6] {
    const fn after(second: i64) -> f64 {
        if second > ONSET_S {
            (second - ONSET_S) as f64
        } else {
            0.0
        }
    }
    [
        (
            "a level above its limit for 5 minutes",
            Test::Above(0.9),
            300,
            [&|_, random| 0.6 + 0.05 * normal(random), &|_, random| {
                0.97 + 0.01 * normal(random)
            }],
        ),
        (
            "a level below its limit for 5 minutes",
            Test::Below(0.1),
            300,
            [&|_, random| 0.6 + 0.05 * normal(random), &|_, random| {
                0.04 + 0.01 * normal(random)
            }],
        ),
        (
            "errors, where there must be none",
            Test::Grew(3_600 * NANOS_PER_SECOND),
            0,
            [&|_, _| 7.0, &|second, _| {
                7.0 + (after(second) / 60.0).ceil()
            }],
        ),
        (
            "errors at 3 times the rate that is usual",
            Test::Rate(2.0),
            0,
            [
                &|second, random| second as f64 + random.random::<f64>(),
                &|second, random| second as f64 + 2.0 * after(second) + random.random::<f64>(),
            ],
        ),
        (
            "a link that was up and is down for a minute",
            Test::Down,
            60,
            [&|_, _| 1.0, &|_, _| 0.0],
        ),
        (
            "what has to grow and stands for 10 minutes",
            Test::Still,
            600,
            [&|second, _| second as f64, &|_, _| ONSET_S as f64],
        ),
    ]
}

/// A GPU that a job holds, looked at each ten seconds: what is told of it, and when.
struct Held {
    recent: Recent,
    second: i64,
}

impl Held {
    fn new() -> Self {
        Self {
            recent: Recent::default(),
            second: 0,
        }
    }

    /// Ten seconds in which it works, or does nothing, or only seems to work.
    fn tick(&mut self, is_active: bool, is_stalled: bool) -> Option<Family> {
        const ALL: u64 = 0x3ff;
        let when = |is_so: bool| if is_so { ALL } else { 0 };
        let bits = Bitmaps {
            observed: ALL,
            active: when(is_active),
            stalled: when(is_stalled),
            held: ALL,
            holder_known: ALL,
        };
        self.recent.tick(at(self.second), 10, &bits, true);
        self.second += TICK_S;
        let known = Now {
            now: at(self.second),
            last_point: at(self.second),
            interval: Duration::from_secs(10),
            recent: self.recent,
            missing: None,
            memory_bytes: Some(40 << 30),
            unhealthy: None,
            at_node: AtNode::default(),
        };
        let status = now(&known, &Policy::default());
        unused(&status, IDLE_AFTER_S, at(self.second))
    }

    /// A job that works for so many seconds, with pauses of at most `pause_s`; what is told of it.
    fn works(&mut self, seconds: i64, pause_s: i64, random: &mut ChaCha8Rng) -> Option<Family> {
        let end = self.second + seconds;
        while self.second < end {
            let (work, pause) = (
                random.random_range(1..=90),
                random.random_range(0..=pause_s / TICK_S),
            );
            let told = (0..work + pause).find_map(|it| self.tick(it < work, false));
            if told.is_some() {
                return told;
            }
        }
        // It ends at work.
        self.tick(true, false)
    }
}

/// A job that works for up to an hour and then does nothing, or only seems to.
fn stops(expected: Family, random: &mut ChaCha8Rng) -> Option<i64> {
    let mut gpu = Held::new();
    let works_s = random.random_range(600..3_600);
    if gpu.works(works_s, 300, random).is_some() {
        return None;
    }
    let began = gpu.second;
    let is_stalled = expected == Family::Stalled;
    let told = (0..720).find_map(|_| gpu.tick(is_stalled, is_stalled));
    (told == Some(expected)).then_some(gpu.second - began)
}

/// Looks at a node whose requests come each tick, up to four seconds late, of which this part is lost; when it is
/// first called silent, of so many ticks. After `ends` none come.
fn silent(random: &mut ChaCha8Rng, tick_s: i64, ticks: i64, ends: i64) -> Option<i64> {
    let mut heard = at(0);
    for tick in 1..=ticks {
        let late = random.random_range(0..4_000) * 1_000_000;
        // One in fifty is lost, never two in a row.
        let is_lost = tick % 2 == 0 && random.random_bool(0.02);
        let arrives = at(tick * tick_s).shifted(late);
        for look in (0..tick_s).step_by(TICK_S as usize) {
            let moment = at(tick * tick_s + look);
            if moment >= arrives && tick <= ends && !is_lost {
                heard = arrives;
            }
            if is_silent(Duration::from_secs(tick_s.unsigned_abs()), heard, moment) {
                return Some((tick - ends) * tick_s + look);
            }
        }
        if tick <= ends && !is_lost {
            heard = arrives;
        }
    }
    None
}

pub(super) fn faults() -> Vec<Faults> {
    let mut rows = vec![
        slow_port("a port of 128 that came up at half its speed", 0.5),
        slow_port("a port of 128 that came up at a quarter of it", 0.25),
    ];
    for (fault, test, for_s, [well, ill]) in limits() {
        rows.push(row("limit", fault, SEEDS, |random| {
            let reads = |second: i64, random: &mut ChaCha8Rng| match second >= ONSET_S {
                true => ill(second, random),
                false => well(second, random),
            };
            over(test, for_s, &reads, random)
        }));
    }
    rows.push(row(
        "limit",
        "a link that goes and comes each two minutes",
        SEEDS,
        |random| {
            let phase = random.random_range(0..4) * TICK_S;
            let reads = |second: i64, _: &mut ChaCha8Rng| {
                let is_down = second >= ONSET_S && (second + phase) % 120 < 40;
                f64::from(u8::from(!is_down))
            };
            over(Test::Flaps, 0, &reads, random)
        },
    ));
    rows.push(row(
        "idle",
        "a job that works and then holds on",
        SEEDS,
        |random| stops(Family::Idle, random),
    ));
    rows.push(row(
        "idle",
        "a job that is busy without work",
        SEEDS,
        |random| stops(Family::Stalled, random),
    ));
    for tick_s in [10, 60] {
        let fault = format!("a node with ticks of {tick_s} s that falls silent");
        rows.push(row("blind", &fault, SEEDS, |random| {
            silent(random, tick_s, 80, 60)
        }));
    }
    rows
}

pub(super) fn well() -> Vec<Well> {
    let seeds = || 100..200_u64;
    let count = |told: &dyn Fn(&mut ChaCha8Rng) -> bool| {
        let told = seeds().filter(|seed| told(&mut ChaCha8Rng::seed_from_u64(*seed)));
        u32::try_from(told.count()).unwrap_or(u32::MAX)
    };
    let row = |detector, world, alarms, exposure, unit| Well {
        detector,
        world,
        alarms,
        exposure,
        unit,
        most: 0,
    };
    let ports = count(&|random| !ports(random, 1.0).0.is_empty());
    let limits: u32 = limits()
        .into_iter()
        .map(|(_, test, for_s, [well, _])| {
            count(&|random| over(test, for_s, well, random).is_some())
        })
        .sum();
    let idle = count(&|random| Held::new().works(6 * 3_600, 3_000, random).is_some());
    let silent = count(&|random| silent(random, 10, 360, 360).is_some());
    vec![
        row(
            "port",
            "16 machines, host ports of two speeds, some not read",
            ports,
            100.0,
            "look",
        ),
        row(
            "limit",
            "readings of six kinds within their limits",
            limits,
            600.0,
            "reading-hour",
        ),
        row(
            "idle",
            "jobs with pauses of up to 50 minutes",
            idle,
            600.0,
            "GPU-hour",
        ),
        row(
            "blind",
            "nodes whose requests come late, one in 100 lost",
            silent,
            100.0,
            "node-hour",
        ),
    ]
}
