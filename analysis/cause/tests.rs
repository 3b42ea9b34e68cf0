//! Seeded faults: 20 of each cause, 20 of pairs and 20 without any, among decoys.
//!
//! A made job of 8 ranks: what a fault does to a rank's time is worked out from what it does to the
//! machine (parts of seconds at a lower clock, waits of the loader), not from what the judgement
//! reckons: steps gain only 60 to 100 % of what a clock loses, hosts cost more or less than their
//! pressure says, every reading has noise. One reading in fifty is missing, and one source in twenty
//! with all it reads: the driver, the host, the hooks, the network devices. Decoys: all ranks at the
//! power cap, all hosts waiting for I/O, some errors that are usual, heat for a moment.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::robust::median;

const RANKS: usize = 8;
const SEEDS: u64 = 20;

/// A rank as it is, before anything is read wrongly or not at all.
#[derive(Clone, Copy)]
struct Machine {
    clock: f64,
    celsius: f64,
    heat: f64,
    brake: f64,
    cap: f64,
    data: f64,
    steal: f64,
    cpu: f64,
    memory: f64,
    io: f64,
    nic: f64,
    nics_down: u32,
    corrected: f64,
    /// Time for its own part of a step, without waiting for data.
    compute: f64,
    stands: bool,
    is_broken: bool,
    uncorrectable: u64,
    remap: bool,
    pcie_generation: u32,
    nvlinks_down: u32,
    xid: Option<u32>,
}

fn noise(random: &mut ChaCha8Rng, part: f64) -> f64 {
    let sum: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
    1.0 + part * sum
}

fn between(random: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * random.random::<f64>()
}

fn job(random: &mut ChaCha8Rng) -> Vec<Machine> {
    let cap = if random.random_bool(0.3) { 0.5 } else { 0.0 };
    let io = if random.random_bool(0.3) { 0.3 } else { 0.02 };
    let data = between(random, 0.0, 0.05);
    (0..RANKS)
        .map(|_| Machine {
            clock: 1.98e9 * noise(random, 0.004),
            // Slots in the back of a machine are warmer.
            celsius: between(random, 60.0, 68.0),
            heat: if random.random_bool(0.2) { 0.03 } else { 0.0 },
            brake: 0.0,
            cap: (cap * noise(random, 0.02)).max(0.0),
            data: (data * noise(random, 0.1)).max(0.0),
            steal: between(random, 0.0, 0.01),
            cpu: between(random, 0.0, 0.05),
            memory: between(random, 0.0, 0.01),
            io: (io * noise(random, 0.1)).max(0.0),
            nic: between(random, 0.0, 0.5),
            nics_down: 0,
            corrected: between(random, 0.0, 20.0),
            compute: 0.95 * noise(random, 0.005),
            stands: false,
            is_broken: false,
            uncorrectable: 0,
            remap: false,
            pcie_generation: 5,
            nvlinks_down: 0,
            xid: None,
        })
        .collect()
}

/// Slows a machine down so that it takes about `size` of a step longer.
fn fault(machine: &mut Machine, cause: Cause, size: f64, random: &mut ChaCha8Rng) {
    let slower_clock = |machine: &mut Machine, random: &mut ChaCha8Rng| {
        let factor = 1.0 / (1.0 + size);
        machine.clock *= factor;
        machine.compute *= 1.0 + size * between(random, 0.6, 1.0);
        // The lower the clock while it is held down, the less of the window that is.
        let depth = between(random, (1.0 - factor).max(0.15), 0.7);
        ((1.0 - factor) / depth).clamp(0.08, 1.0)
    };
    match cause {
        Cause::Heat => {
            machine.heat += slower_clock(machine, random);
            machine.celsius += between(random, 8.0, 25.0);
        }
        Cause::PowerBrake => machine.brake += slower_clock(machine, random),
        Cause::PowerCap => machine.cap = (machine.cap + slower_clock(machine, random)).min(1.0),
        Cause::Clocks => _ = slower_clock(machine, random),
        Cause::Data => machine.data += size,
        Cause::Storage => {
            machine.data += size;
            machine.io += between(random, 0.4, 0.6);
        }
        Cause::HostCpu => {
            let taken = size * between(random, 0.8, 1.3);
            if random.random_bool(0.5) {
                machine.steal += taken.max(0.11);
            } else {
                machine.cpu += taken.max(0.11);
            }
            machine.compute += size * 0.7;
            machine.data += size * 0.3;
        }
        Cause::HostMemory => {
            machine.memory += (size * between(random, 0.8, 1.3)).max(0.11);
            machine.compute += size;
        }
        Cause::GpuFault => {
            machine.stands = true;
            machine.is_broken = random.random_bool(0.6);
            machine.uncorrectable = u64::from(!machine.is_broken);
            machine.xid = machine.is_broken.then_some(79);
        }
        _ => {
            machine.compute += size;
            match cause {
                Cause::GpuMemory if random.random_bool(0.5) => machine.remap = true,
                Cause::GpuMemory => machine.corrected += between(random, 80.0, 2_000.0),
                Cause::Pcie => machine.pcie_generation = 3,
                // Of some only errors are left to be seen.
                Cause::Nvlink => match random.random_range(1..=4) {
                    1 => machine.xid = Some(74),
                    down => machine.nvlinks_down = down,
                },
                Cause::Network if random.random_bool(0.3) => machine.nics_down = 1,
                Cause::Network => machine.nic += between(random, 10.0, 3_000.0),
                _ => {}
            }
        }
    }
}

/// A link of this generation that had 5.
const fn pcie(generation: u32) -> Pcie {
    Pcie {
        width: 16,
        best_width: 16,
        generation,
        best_generation: 5,
        is_active: true,
    }
}

/// What was read: peers' medians are of those whose reading is there.
fn read(machines: &[Machine], culprit: usize, random: &mut ChaCha8Rng) -> Rank {
    let own = machines[culprit];
    let mut there = |part: f64| random.random_bool(part);
    let [driver, host, hooks, network] = [(); 4].map(|()| there(0.95));
    let mut pair = |source: bool, of: fn(&Machine) -> f64| {
        let mut known: Vec<Option<f64>> = machines
            .iter()
            .map(|it| there(0.98).then_some(of(it)))
            .collect();
        let own = known.swap_remove(culprit).filter(|_| source);
        let mut peers: Vec<f64> = known.into_iter().flatten().collect();
        let like = median(&mut peers);
        Pair { own, like }
    };
    let (sm_clock, heat_part) = (pair(driver, |it| it.clock), pair(driver, |it| it.heat));
    let (brake_part, cap_part) = (pair(driver, |it| it.brake), pair(driver, |it| it.cap));
    let temperature = pair(driver, |it| it.celsius);
    let (data_wait, steal) = (pair(hooks, |it| it.data), pair(host, |it| it.steal));
    let (cpu_pressure, memory_pressure) = (pair(host, |it| it.cpu), pair(host, |it| it.memory));
    let (io_pressure, nic_errors) = (pair(host, |it| it.io), pair(network, |it| it.nic));
    let mut usual: Vec<f64> = machines.iter().map(|it| it.compute + it.data).collect();
    usual.swap_remove(culprit);
    let usual = median(&mut usual).expect("there are peers");
    let mut is_told = || driver && there(0.98);
    let is_broken = is_told().then_some(own.is_broken);
    Rank {
        slowness: if own.stands {
            f64::INFINITY
        } else {
            (own.compute + own.data) / usual
        },
        sm_clock,
        heat_part,
        brake_part,
        cap_part,
        temperature,
        collective_wait: Pair::default(),
        data_wait,
        steal,
        cpu_pressure,
        memory_pressure,
        io_pressure,
        nic_errors,
        is_broken,
        // Both are events.
        xid: own.xid.filter(|_| is_broken.is_some()),
        ecc_uncorrectable: is_told().then_some(own.uncorrectable),
        ecc_corrected_per_hour: is_told().then_some(own.corrected),
        has_remap_trouble: is_told().then_some(own.remap),
        pcie: is_told().then(|| pcie(own.pcie_generation)),
        nvlinks_up: match is_told() {
            true => Pair::new(f64::from(18 - own.nvlinks_down), 18.0),
            false => Pair::default(),
        },
        nics_down: network.then_some(own.nics_down),
    }
}

/// (right, wrong, all of them named) of the seeds.
fn score(causes: &[Cause]) -> (u64, u64, u64) {
    let (mut right, mut wrong, mut all) = (0, 0, 0);
    for seed in 0..SEEDS {
        let name = causes.iter().fold(0, |sum, it| sum * 31 + *it as u64);
        let mut random = ChaCha8Rng::seed_from_u64(seed + 1_000 * name);
        let mut machines = job(&mut random);
        let culprit = random.random_range(0..RANKS);
        for cause in causes {
            let size = between(&mut random, 0.1, 0.6);
            fault(&mut machines[culprit], *cause, size, &mut random);
        }
        let rank = read(&machines, culprit, &mut random);
        let verdict = judge(&rank);
        let named: Vec<Cause> = verdict.0.iter().map(|it| it.cause).collect();
        let is_wrong = named.iter().any(|it| !causes.contains(it));
        wrong += u64::from(is_wrong);
        right += u64::from(!is_wrong && !named.is_empty());
        all += u64::from(causes.iter().all(|it| named.contains(it)));
    }
    (right, wrong, all)
}

/// (right, wrong) of the seeds after ten minutes of ticks, at one in ten of which the host is pressed for seconds.
fn score_live(cause: Cause) -> (u64, u64) {
    const TICKS: usize = 60;
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = ChaCha8Rng::seed_from_u64(seed + 1_000 * cause as u64);
        let mut machines = job(&mut random);
        let culprit = random.random_range(0..RANKS);
        let size = between(&mut random, 0.1, 0.6);
        fault(&mut machines[culprit], cause, size, &mut random);
        let mut looks = Looks::default();
        let mut told = Verdict::default();
        for _ in 0..TICKS {
            let calm = machines[culprit].cpu;
            if random.random_bool(0.1) {
                machines[culprit].cpu = 0.6;
            }
            told = looks.take(judge(&read(&machines, culprit, &mut random)));
            machines[culprit].cpu = calm;
        }
        right += u64::from(told.cause() == cause);
        wrong += u64::from(told.cause().is_known() && told.cause() != cause);
    }
    (right, wrong)
}

/// 80 % right and 5 % wrong, of 20.
const RIGHT: u64 = 16;
const WRONG: u64 = 1;
/// Of 100 pairs, those of which both are named: the rest have one that is too small beside the other.
const BOTH: u64 = 65;

const CAUSES: [Cause; 13] = [
    Cause::GpuFault,
    Cause::GpuMemory,
    Cause::Heat,
    Cause::PowerBrake,
    Cause::PowerCap,
    Cause::Clocks,
    Cause::Pcie,
    Cause::Nvlink,
    Cause::Network,
    Cause::HostCpu,
    Cause::HostMemory,
    Cause::Storage,
    Cause::Data,
];

#[test]
fn twenty_faults_of_each_cause_are_named_and_hardly_one_wrongly() {
    let scores: Vec<_> = CAUSES.iter().map(|it| (*it, score(&[*it]))).collect();
    for (cause, (right, wrong, _)) in scores {
        assert!(
            right >= RIGHT && wrong <= WRONG,
            "{cause:?}: {right} right, {wrong} wrong"
        );
    }
}

#[test]
fn over_ten_minutes_of_looks_as_many_are_named_and_a_pressure_of_seconds_names_nobody() {
    for cause in CAUSES {
        let (right, wrong) = score_live(cause);
        assert!(
            right >= RIGHT && wrong <= WRONG,
            "{cause:?}: {right} right, {wrong} wrong"
        );
    }
    let (right, wrong) = score_live(Cause::Program);
    assert!(right == 0 && wrong <= WRONG, "{wrong} of 20 have no cause");
}

#[test]
fn of_two_causes_at_once_none_is_named_wrongly_and_mostly_both() {
    let pairs = [
        [Cause::Heat, Cause::Data],
        [Cause::PowerCap, Cause::HostCpu],
        [Cause::Storage, Cause::Clocks],
        [Cause::Heat, Cause::Pcie],
        [Cause::Data, Cause::Network],
    ];
    let scores: Vec<_> = pairs.iter().map(|it| (*it, score(it))).collect();
    let both: u64 = scores.iter().map(|(_, (_, _, all))| all).sum();
    for (pair, (right, wrong, _)) in scores {
        assert!(
            right >= RIGHT && wrong <= WRONG,
            "{pair:?}: {right} right, {wrong} wrong"
        );
    }
    assert!(both >= BOTH, "both named in {both} of 100");
}

#[test]
fn slowness_that_no_reading_explains_is_unknown() {
    for cause in [Cause::Program, Cause::Unknown, Cause::NoWork] {
        let (right, wrong, _) = score(&[cause]);
        assert_eq!(right, 0, "nobody names {cause:?}");
        assert!(wrong <= WRONG, "{wrong} of 20 have a cause that is none");
    }
}

/// A rank that is a fifth slower, of which everything is known and nothing is apart.
fn usual() -> Rank {
    let none = Pair::new(0.0, 0.0);
    Rank {
        slowness: 1.2,
        sm_clock: Pair::new(1.98e9, 1.98e9),
        heat_part: none,
        brake_part: none,
        cap_part: none,
        data_wait: Pair::new(0.02, 0.02),
        steal: none,
        cpu_pressure: none,
        memory_pressure: none,
        io_pressure: none,
        nic_errors: none,
        ..Rank::default()
    }
}

#[test]
fn a_missing_reading_names_nobody_in_its_place() {
    let mut rank = usual();
    rank.sm_clock.own = Some(1.65e9);
    assert_eq!(judge(&rank).cause(), Cause::Clocks);
    rank.heat_part.own = None;
    assert_eq!(judge(&rank).cause(), Cause::Unknown, "it may be heat");
    rank.temperature = Pair::new(69.0, 60.0);
    assert_eq!(judge(&rank).cause(), Cause::Unknown, "a warm slot");
    rank.temperature = Pair::new(78.0, 60.0);
    assert_eq!(judge(&rank).cause(), Cause::Heat, "it is hot");
    rank.heat_part.own = Some(0.0);
    assert_eq!(
        judge(&rank).cause(),
        Cause::Clocks,
        "not by heat, as is known"
    );
    let mut rank = usual();
    rank.data_wait.own = Some(0.2);
    assert_eq!(judge(&rank).cause(), Cause::Data);
    rank.io_pressure = Pair::default();
    assert_eq!(judge(&rank).cause(), Cause::Unknown, "it may be storage");
}

#[test]
fn what_is_too_small_for_the_slowness_is_not_its_cause() {
    let mut rank = usual();
    rank.sm_clock.own = Some(1.98e9 / 1.03);
    rank.heat_part.own = Some(0.2);
    assert_eq!(judge(&rank).cause(), Cause::Unknown, "3 % of 20 %");
    rank.slowness = 1.035;
    assert_eq!(judge(&rank).cause(), Cause::Heat);
    rank.slowness = 1.0;
    assert_eq!(judge(&rank), Verdict::default(), "it is not slow");
}

#[test]
fn a_verdict_shows_the_readings_beside_what_is_usual() {
    let mut rank = usual();
    rank.sm_clock.own = Some(1.65e9);
    rank.heat_part.own = Some(0.4);
    let verdict = judge(&rank);
    let readings = &verdict.0[0].readings;
    let shown: Vec<_> = readings.iter().map(|it| (it.value, it.usual)).collect();
    assert_eq!(shown, [(0.4, Some(0.0)), (1.65e9, Some(1.98e9))]);
    assert_eq!(readings[0].unit, "ratio");
    rank.temperature = Pair::new(71.0, 62.0);
    rank.collective_wait = Pair::new(0.02, 0.3);
    let beside = rank.beside();
    let shown: Vec<_> = beside.iter().map(|it| (it.value, it.usual)).collect();
    assert_eq!(shown, [(71.0, Some(62.0)), (0.02, Some(0.3))]);
}

#[test]
fn a_mark_carries_the_readings_that_show_it() {
    let of = |mark: Rank| {
        let verdict = judge(&mark);
        let told = verdict.0.first().expect("it is named");
        let reading = |it: &Reading| (it.name.clone(), it.value, it.usual);
        let readings: Vec<_> = told.readings.iter().map(reading).collect();
        (told.cause, readings)
    };
    let shown = |all: &[(&str, f64, Option<f64>)]| -> Vec<(String, f64, Option<f64>)> {
        let owned = |it: &(&str, f64, Option<f64>)| (it.0.to_owned(), it.1, it.2);
        all.iter().map(owned).collect()
    };
    let broken = Rank {
        is_broken: Some(true),
        ..usual()
    };
    let (down, up) = (Pair::new(16.0, 18.0), Pair::new(18.0, 18.0));
    let up_again = Rank {
        nvlinks_up: up,
        xid: Some(74),
        ..usual()
    };
    let two_down = Rank {
        nvlinks_up: down,
        ..usual()
    };
    let again = Rank {
        nvlinks_up: down,
        ..up_again
    };
    let fallen = Rank {
        xid: Some(79),
        ..broken
    };
    let slower = Rank {
        pcie: Some(pcie(3)),
        ..up_again
    };
    // An idle link has a lower generation to save power.
    let eight = Pcie {
        width: 8,
        is_active: false,
        ..pcie(1)
    };
    let idle = Rank {
        pcie: Some(eight),
        ..usual()
    };
    let lanes = |now| (PCIE_LANES, now, Some(16.0));
    let generation = |now| (PCIE_GENERATION, now, Some(5.0));
    let xid = |code| ("XID", code, None);
    let nvlinks = (NVLINKS_UP, 16.0, Some(18.0));
    for (rank, cause, readings) in [
        (broken, Cause::GpuFault, vec![("broken", 1.0, None)]),
        (fallen, Cause::GpuFault, vec![xid(79.0)]),
        (two_down, Cause::Nvlink, vec![nvlinks]),
        (again, Cause::Nvlink, vec![nvlinks, xid(74.0)]),
        (up_again, Cause::Nvlink, vec![xid(74.0)]),
        (slower, Cause::Pcie, vec![lanes(16.0), generation(3.0)]),
        (idle, Cause::Pcie, vec![lanes(8.0), generation(5.0)]),
    ] {
        assert_eq!(of(rank), (cause, shown(&readings)), "{rank:?}");
    }
    let well = Rank {
        pcie: Some(pcie(5)),
        nvlinks_up: up,
        xid: Some(31),
        ..usual()
    };
    assert_eq!(judge(&well), Verdict::default());
}
