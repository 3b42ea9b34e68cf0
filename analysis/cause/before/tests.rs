//! Seeded runs that became slower: 20 of each cause and 20 of none that is read, among decoys.
//!
//! A made run of 16 ranks on 4 machines, in half of the seeds slowed down by one machine alone. Steps are made of what
//! each rank computes and waits for, and take as long as the rank that is last and the collectives after it: what is
//! read of them is not what the judgement reckons with. Steps gain 60 to 100 % of what a clock loses, hosts cost more or
//! less than their pressure says. One reading in fifty is missing, and one source in twenty with all it reads. Decoys:
//! all at the power cap, disks that are busy before and since, disks that become busy where nobody waits for data.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

const RANKS: usize = 16;
const PER_MACHINE: usize = 4;
const SEEDS: u64 = 20;
const STEP_NS: f64 = 1e9;
const START: i64 = 1_790_000_000;
const LOOKS: i64 = 10;

/// 80 % right and 5 % wrong, of 20.
const RIGHT: u64 = 16;
const WRONG: u64 = 1;

/// A rank with its machine, as it is.
#[derive(Clone, Copy, Default)]
struct Place {
    machine: Machines,
    compute: f64,
    data: f64,
}

fn between(random: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * random.random::<f64>()
}

fn noise(random: &mut ChaCha8Rng, part: f64) -> f64 {
    let sum: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
    1.0 + part * sum
}

/// All ranks, and what collectives take.
struct Run {
    places: [Place; RANKS],
    network: f64,
}

fn run(random: &mut ChaCha8Rng) -> Run {
    let cap = if random.random_bool(0.3) { 0.5 } else { 0.0 };
    let io = if random.random_bool(0.3) { 0.3 } else { 0.02 };
    let places = std::array::from_fn(|_| Place {
        machine: Machines {
            sm_clock: Some(1.98e9 * noise(random, 0.003)),
            heat_part: Some(0.0),
            brake_part: Some(0.0),
            cap_part: Some(cap),
            steal: Some(between(random, 0.0, 0.01)),
            cpu_pressure: Some(between(random, 0.0, 0.05)),
            memory_pressure: Some(between(random, 0.0, 0.01)),
            io_pressure: Some(io),
        },
        compute: 0.78 * noise(random, 0.005),
        data: between(random, 0.005, 0.02),
    });
    Run {
        places,
        network: 0.2,
    }
}

/// Makes a step take about `size` longer for this reason.
fn fault(run: &mut Run, cause: Cause, size: f64, random: &mut ChaCha8Rng) {
    let is_everywhere = random.random_bool(0.5);
    let machine = random.random_range(0..RANKS / PER_MACHINE);
    let (gain, pays) = (between(random, 0.6, 1.0), between(random, 0.8, 1.3));
    let depth = between(random, 0.15, 0.7);
    let is_steal = random.random_bool(0.5);
    let io = between(random, 0.4, 0.6);
    if cause == Cause::Network {
        run.network += size;
        return;
    }
    for (number, place) in run.places.iter_mut().enumerate() {
        if !is_everywhere && number / PER_MACHINE != machine {
            continue;
        }
        let add = |reading: &mut Option<f64>, more: f64| {
            *reading = reading.map(|it| (it + more).min(1.0));
        };
        let held = (size / depth).clamp(0.08, 1.0);
        let of_clock = matches!(
            cause,
            Cause::Heat | Cause::PowerBrake | Cause::PowerCap | Cause::Clocks
        );
        if of_clock {
            place.machine.sm_clock = place.machine.sm_clock.map(|it| it / (1.0 + size));
            place.compute *= 1.0 + size * gain;
        }
        match cause {
            Cause::Heat => add(&mut place.machine.heat_part, held),
            Cause::PowerBrake => add(&mut place.machine.brake_part, held),
            Cause::PowerCap => add(&mut place.machine.cap_part, held),
            Cause::Data => place.data += size,
            Cause::Storage => {
                place.data += size;
                add(&mut place.machine.io_pressure, io);
            }
            Cause::HostCpu => {
                let more = (size * pays).max(0.13);
                add(
                    match is_steal {
                        true => &mut place.machine.steal,
                        false => &mut place.machine.cpu_pressure,
                    },
                    more,
                );
                place.compute += size * 0.7;
                place.data += size * 0.3;
            }
            Cause::HostMemory => {
                add(&mut place.machine.memory_pressure, (size * pays).max(0.13));
                place.compute += size;
            }
            Cause::Program => place.compute += size,
            _ => {}
        }
    }
}

/// What is read of a run: how long its steps are, and the looks of a time.
fn read(
    run: &Run,
    sources: [bool; 4],
    random: &mut ChaCha8Rng,
) -> (f64, Option<Spent>, Vec<Machines>) {
    let [driver, host, hooks, collectives] = sources;
    let (mut walls, mut spent) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let own = run.places.map(|it| {
            let data = it.data * noise(random, 0.1);
            (it.compute * noise(random, 0.004) + data, data)
        });
        let last = own.iter().max_by(|one, other| one.0.total_cmp(&other.0));
        let (own, data) = last.copied().unwrap_or_default();
        let network = run.network * noise(random, 0.02);
        walls.push((own + network) * STEP_NS);
        spent.push(Spent {
            data_wait_ns: if hooks { data * STEP_NS } else { 0.0 } as f32,
            collective_wait_ns: if collectives { network * STEP_NS } else { 0.0 } as f32,
        });
    }
    let mut looks = Vec::new();
    for _ in 0..LOOKS {
        let seen = run.places.map(|it| {
            let mut there = |source: bool, reading: Option<f64>, part: f64| {
                let value = reading.map(|it| (it * noise(random, part)).max(0.0));
                value.filter(|_| source && random.random_bool(0.98))
            };
            let it = it.machine;
            Machines {
                sm_clock: there(driver, it.sm_clock, 0.002),
                heat_part: there(driver, it.heat_part, 0.05),
                brake_part: there(driver, it.brake_part, 0.05),
                cap_part: there(driver, it.cap_part, 0.05),
                steal: there(host, it.steal, 0.1),
                cpu_pressure: there(host, it.cpu_pressure, 0.2),
                memory_pressure: there(host, it.memory_pressure, 0.2),
                io_pressure: there(host, it.io_pressure, 0.2),
            }
        });
        looks.push(Machines::worst(&seen));
    }
    let step = median(&mut walls).expect("there are steps");
    (step, Spent::median(&spent), looks)
}

/// What is said of a run that became slower for these reasons.
fn said(seed: u64, causes: &[Cause]) -> Verdict {
    let name = causes.iter().fold(0, |sum, it| sum * 31 + *it as u64);
    let mut random = ChaCha8Rng::seed_from_u64(seed + 1_000 * name);
    let mut run = run(&mut random);
    let sources = [(); 4].map(|()| random.random_bool(0.95));
    let (step_ns, spent, before) = read(&run, sources, &mut random);
    for cause in causes {
        let size = between(&mut random, 0.05, 0.5);
        fault(&mut run, *cause, size, &mut random);
    }
    // What makes nobody wait for data is not why somebody does.
    let waits_for_data = [Cause::Data, Cause::HostCpu];
    let is_decoy = random.random_bool(0.2) && !causes.iter().any(|it| waits_for_data.contains(it));
    if is_decoy {
        for place in &mut run.places {
            place.machine.io_pressure = place.machine.io_pressure.map(|it| it + 0.25);
        }
    }
    let (now_ns, spent_since, since) = read(&run, sources, &mut random);
    let mut history = History::default();
    for (look, machines) in (0..).zip(before.iter().chain(&since)) {
        history.push(at(look * EVERY_NS), machines);
    }
    let (before, since) = history.around(at(LOOKS * EVERY_NS));
    let window = |spent, machines| Window { spent, machines };
    judge(
        now_ns / step_ns,
        step_ns,
        &window(spent, before),
        &window(spent_since, since),
    )
}

fn at(nanos: i64) -> Timestamp {
    Timestamp::from_seconds(START).shifted(nanos)
}

/// Of the seeds those of which the cause is named, and those of which another is.
fn score(cause: Cause) -> (u64, u64) {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..SEEDS {
        let verdict = said(seed, &[cause]);
        let is_wrong = verdict.0.iter().any(|it| it.cause != cause);
        wrong += u64::from(is_wrong);
        right += u64::from(!is_wrong && verdict.cause() == cause);
    }
    (right, wrong)
}

#[test]
fn twenty_runs_that_became_slower_for_each_cause_name_it_and_hardly_one_another() {
    let causes = [
        Cause::Heat,
        Cause::PowerBrake,
        Cause::PowerCap,
        Cause::Clocks,
        Cause::HostCpu,
        Cause::HostMemory,
        Cause::Storage,
        Cause::Data,
        Cause::Network,
    ];
    let scores = causes.map(|it| (it, score(it)));
    for (cause, (right, wrong)) in scores {
        assert!(
            right >= RIGHT && wrong <= WRONG,
            "{cause:?}: {right} right, {wrong} wrong of {scores:?}"
        );
    }
}

#[test]
fn a_run_that_computes_longer_with_no_reading_changed_has_an_unknown_cause() {
    let named = (0..SEEDS).filter(|seed| said(*seed, &[Cause::Program]) != Verdict::default());
    assert!(named.count() as u64 <= WRONG);
}

#[test]
fn of_two_causes_none_is_another() {
    for causes in [
        [Cause::Network, Cause::Storage],
        [Cause::Heat, Cause::Data],
        [Cause::Network, Cause::Clocks],
    ] {
        let is_wrong = |seed: &u64| {
            let verdict = said(*seed, &causes);
            verdict.0.iter().any(|it| !causes.contains(&it.cause))
        };
        let wrong = (0..SEEDS).filter(is_wrong).count() as u64;
        assert!(wrong <= WRONG, "{causes:?}: {wrong}");
    }
}

/// Of a run of which all is read, and nothing changed.
fn usual() -> Window {
    let none = Some(0.0);
    Window {
        spent: Some(Spent {
            data_wait_ns: 0.02e9,
            collective_wait_ns: 0.2e9,
        }),
        machines: Machines {
            sm_clock: Some(1.98e9),
            heat_part: none,
            brake_part: none,
            cap_part: none,
            steal: none,
            cpu_pressure: none,
            memory_pressure: none,
            io_pressure: none,
        },
    }
}

#[test]
fn what_changed_is_shown_beside_what_it_was_and_what_was_not_read_is_named() {
    let (before, mut since) = (usual(), usual());
    since.spent = Some(Spent {
        data_wait_ns: 0.12e9,
        collective_wait_ns: 0.2e9,
    });
    since.machines.io_pressure = Some(0.45);
    let verdict = judge(1.1, STEP_NS, &before, &since);
    assert_eq!(verdict.cause(), Cause::Storage);
    let readings = verdict.0[0].readings.iter();
    let shown: Vec<_> = readings.map(|it| (&*it.name, it.usual)).collect();
    let expected = [
        ("waiting for I/O", Some(0.0)),
        ("waiting for data", Some(0.02_f64)),
    ];
    for ((name, usual), (own, was)) in shown.into_iter().zip(expected) {
        assert_eq!(name, own);
        assert!((usual.unwrap_or(1.0) - was.unwrap_or(0.0)).abs() < 1e-6);
    }
    assert_eq!(untold(&before, &since), [""; 0]);
    since.machines.io_pressure = None;
    assert_eq!(judge(1.1, STEP_NS, &before, &since), Verdict::default());
    assert_eq!(untold(&before, &since), ["waiting for I/O"]);
    // A process that measures no waits tells none.
    since.spent = Some(Spent::default());
    let untold = untold(
        &Window {
            spent: since.spent,
            ..before
        },
        &since,
    );
    assert_eq!(untold[..2], ["waiting for data", "waiting in collectives"]);
}

#[test]
fn what_a_step_waits_longer_for_is_not_computed_longer() {
    let (before, mut since) = (usual(), usual());
    since.machines.sm_clock = Some(1.6e9);
    assert_eq!(judge(1.2, STEP_NS, &before, &since).cause(), Cause::Clocks);
    since.spent = Some(Spent {
        data_wait_ns: 0.02e9,
        collective_wait_ns: 0.4e9,
    });
    let causes = judge(1.2, STEP_NS, &before, &since).0;
    let causes: Vec<Cause> = causes.iter().map(|it| it.cause).collect();
    assert_eq!(causes, [Cause::Network]);
}

#[test]
fn few_looks_say_nothing_and_old_ones_go() {
    let mut history = History::default();
    let machines = usual().machines;
    for look in 0..LEAST_SAMPLES as i64 * 2 - 1 {
        assert!(history.is_due(at(look * EVERY_NS)));
        history.push(at(look * EVERY_NS), &machines);
        assert!(!history.is_due(at(look * EVERY_NS + EVERY_NS / 2)));
    }
    let (before, since) = history.around(at(LEAST_SAMPLES as i64 * EVERY_NS));
    assert_eq!(before.cpu_pressure, Some(0.0));
    assert_eq!(since, Machines::default(), "one is too few");
    for look in 0..1_000 {
        history.push(at(look * EVERY_NS), &machines);
    }
    assert_eq!(history.0.len(), SAMPLES);
    // A clock that was set back begins anew from there.
    assert!(history.is_due(at(0)));
    history.push(at(0), &machines);
    assert_eq!(history.0.len(), 1);
}

#[test]
fn a_reading_that_most_machines_lack_is_not_known() {
    let known = usual().machines;
    let lacks = Machines {
        steal: None,
        ..known
    };
    assert_eq!(Machines::worst(&[known, lacks]).steal, Some(0.0));
    let worst = Machines::worst(&[known, lacks, lacks]);
    assert_eq!((worst.steal, worst.sm_clock), (None, Some(1.98e9)));
    assert_eq!(Machines::worst(&[]), Machines::default());
}
