//! Made GPUs: faults beside like GPUs, memory that leaks, and a fleet of 10,000 GPU-days that is well.

use gpufleet_telemetry::time::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Faults, Well, middle, normal};
use crate::health::{self, Asks, Gpu, Kind, Links, Pcie, Usual, Xid, findings};
use crate::leak::{
    self,
    watch::{LeakWatch, Owner},
};

pub(super) mod events;

const HOUR_NS: i64 = 3_600_000_000_000;
const NOW: Timestamp = Timestamp(HOUR_NS * 1_000);
const SEEDS: u32 = 50;
/// Looks at a GPU that became ill, ten seconds each: an hour.
const LOOKS: i64 = 360;
const LOOK_S: i64 = 10;

/// GPUs of a node.
const LIKE: usize = 8;

/// What a GPU of a node that works reads over an hour.
struct Hour {
    celsius: [f64; LIKE],
    watts: [f64; LIKE],
    corrected: u64,
    heat: f64,
    cap: f64,
    like_cap: f64,
}

fn hour(random: &mut ChaCha8Rng) -> Hour {
    let inlet = 58.0 + 10.0 * random.random::<f64>();
    let load = 520.0 + 120.0 * random.random::<f64>();
    let cap = if random.random_bool(0.2) { 0.4 } else { 0.0 };
    Hour {
        // Slots in the back of a machine are warmer.
        celsius: std::array::from_fn(|slot| inlet + slot as f64 * 0.7 + normal(random)),
        watts: std::array::from_fn(|_| load * (1.0 + 0.02 * normal(random))),
        corrected: u64::from(random.random_bool(0.02)) * random.random_range(1..40),
        heat: if random.random_bool(0.1) { 0.02 } else { 0.0 },
        cap: (cap * (1.0 + 0.1 * normal(random))).clamp(0.0, 1.0),
        like_cap: cap,
    }
}

/// The first GPU of a node, as it reads while it is well.
fn gpu(hour: &Hour) -> Gpu<'static> {
    Gpu {
        now: NOW,
        hours: 1.0,
        booted_at: Some(Timestamp(0)),
        ecc_uncorrectable: Some(0),
        ecc_correctable: Some(hour.corrected),
        has_remap_failure: Some(false),
        has_remap_pending: Some(false),
        heat_part: Some(hour.heat),
        brake_part: Some(0.0),
        cap_part: Some(hour.cap),
        like_cap_part: Some(hour.like_cap),
        temperature_celsius: Some(hour.celsius[0]),
        like_celsius: Usual::of(&mut hour.celsius.to_vec()),
        power_watts: Some(hour.watts[0]),
        like_watts: Usual::of(&mut hour.watts.to_vec()),
        last_seen: Some(NOW),
        is_expected: true,
        ..Gpu::default()
    }
}

/// What is found of the first GPU, with `change` done to it.
fn found(hour: &Hour, change: &dyn Fn(&mut Gpu<'_>)) -> Vec<Kind> {
    let mut gpu = gpu(hour);
    change(&mut gpu);
    findings(&gpu).into_iter().map(|it| it.kind).collect()
}

/// A GPU that is ill, looked at each ten seconds; `change` is given what it reads this many seconds after it became so.
fn broken(fault: &str, kind: Kind, least: u32, change: impl Fn(&mut Gpu<'_>, i64)) -> Faults {
    let mut delays = Vec::new();
    for seed in 0..SEEDS {
        let hour = hour(&mut ChaCha8Rng::seed_from_u64(seed.into()));
        let is_told = |seconds: &i64| found(&hour, &|it| change(it, *seconds)).contains(&kind);
        let told = (1..=LOOKS).map(|it| it * LOOK_S).find(is_told);
        delays.extend(told.map(|it| it as f64));
    }
    Faults {
        detector: "health",
        fault: fault.to_owned(),
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, "s"),
        least,
    }
}

/// What a part or a rate that forgets reads so many seconds after it became 1.
fn remembered(seconds: i64) -> f64 {
    1.0 - (-(seconds as f64) / health::MEMORY_S).exp()
}

/// A GPU that fell off the bus.
static OFF_THE_BUS: [Xid<'static>; 1] = [Xid {
    first: NOW,
    at: NOW,
    count: 1,
    code: 79,
    asks: Asks::Reboot,
    job: "a",
}];

/// Half the lanes, three readings in a row.
static SLOW_LINK: [Pcie; 3] = [Pcie {
    width: 8,
    best_width: 16,
    generation: 5,
    best_generation: 5,
    is_active: true,
}; 3];

/// How memory in use goes beside a leak, as a share of the capacity at an hour.
type Shape = fn(f64, &mut ChaCha8Rng) -> f64;

const SHAPES: [(&str, Shape); 3] = [
    ("noise of 2 %", |_, random| 0.01 * normal(random)),
    ("an allocator's saw", |hour, random| {
        0.1 * (hour * 3.0).fract() + 0.005 * normal(random)
    }),
    ("a day's tide of 10 %", |hour, random| {
        0.05 * (hour * std::f64::consts::PI / 12.0).sin() + 0.005 * normal(random)
    }),
];

/// What is said of a memory that leaks this share an hour, read once a minute: the hours after which it is first told,
/// and whether it is at the end.
fn watched(seed: u64, hours: i64, per_hour: f64, shape: Shape) -> (Option<f64>, bool) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let begins = 24.0 * random.random::<f64>();
    let owner = Owner::Is(random.random::<u32>());
    let mut watch = LeakWatch::default();
    let (mut first, mut is_told) = (None, false);
    for minute in 0..hours * 60 {
        let hour = minute as f64 / 60.0;
        let used = (0.3 + per_hour * hour + shape(begins + hour, &mut random)).clamp(0.0, 1.0);
        let at = NOW.shifted(minute * 60_000_000_000);
        let told = watch.read(Some(used), owner, at, &leak::Thresholds::default());
        is_told = told.is_some();
        first = first.or(told.map(|_| hour));
    }
    (first, is_told)
}

fn leak(name: &str, shape: Shape, per_hour: f64, hours: i64, least: u32) -> Faults {
    let told = (0..SEEDS).filter_map(|seed| {
        let (first, is_told) = watched(u64::from(seed), hours, per_hour, shape);
        first.filter(|_| is_told)
    });
    let mut delays: Vec<f64> = told.collect();
    Faults {
        detector: "leak",
        fault: format!("{} % an hour over {hours} h, {name}", per_hour * 100.0),
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, "h"),
        least,
    }
}

pub(super) fn faults() -> Vec<Faults> {
    use health::Cause;
    let mut rows = vec![
        broken(
            "slowed down by heat for 6 % of the time",
            Kind::Throttled(Cause::Heat),
            SEEDS,
            |it, seconds| {
                let more = 0.06 * remembered(seconds);
                it.heat_part = it.heat_part.map(|part| part + more);
            },
        ),
        broken("15 °C above like GPUs", Kind::Hot, 40, |it, _| {
            it.temperature_celsius = it.temperature_celsius.map(|own| own + 15.0);
        }),
        broken("25 °C above like GPUs", Kind::Hot, SEEDS, |it, _| {
            it.temperature_celsius = it.temperature_celsius.map(|own| own + 25.0);
        }),
        broken(
            "a third less power than like GPUs",
            Kind::Underpowered,
            SEEDS,
            |it, _| {
                it.power_watts = it.power_watts.map(|own| own * 0.67);
            },
        ),
        broken(
            "the power cap alone, a third of the time",
            Kind::Throttled(Cause::PowerCap),
            45,
            |it, seconds| {
                let more = 0.33 * remembered(seconds);
                it.cap_part = it.cap_part.map(|part| part + more);
            },
        ),
        broken(
            "slowed down by the hardware once a minute",
            Kind::Throttled(Cause::Hardware),
            SEEDS,
            // As the server counts them: the times of the last five minutes.
            |it, seconds| {
                it.slowdowns_per_minute = Some((seconds / 60 + 1).min(5) as f64 / 5.0);
            },
        ),
        broken(
            "80 corrected errors an hour",
            Kind::EccRate,
            SEEDS,
            |it, seconds| {
                it.ecc_correctable = Some(80 * seconds.unsigned_abs() / 3_600);
            },
        ),
        broken(
            "one error that was not corrected",
            Kind::EccUncorrectable,
            SEEDS,
            |it, _| it.ecc_uncorrectable = Some(1),
        ),
        broken("XID 79", Kind::Xid(79), SEEDS, |it, _| {
            it.xids = &OFF_THE_BUS
        }),
        broken(
            "PCIe with half its lanes",
            Kind::PcieDegraded,
            SEEDS,
            |it, seconds| {
                // A reading a minute.
                let readings = usize::try_from(seconds / 60).unwrap_or(0);
                it.links = Links {
                    pcie: &SLOW_LINK[..readings.min(SLOW_LINK.len())],
                    ..Links::default()
                };
            },
        ),
        broken(
            "readings that stop",
            Kind::Vanished,
            SEEDS,
            |it, seconds| it.last_seen = Some(NOW.shifted(-seconds * 1_000_000_000)),
        ),
    ];
    let sizes = [(0.005, 24), (0.01, 12), (0.01, 24), (0.05, 6)];
    // Fewest found of each shape at each size: what the seeds gave when this was written.
    let least = [[50, 50, 50, 50], [50, 50, 50, 50], [5, 19, 23, 50]];
    for ((name, shape), least) in SHAPES.into_iter().zip(least) {
        for ((per_hour, hours), least) in sizes.into_iter().zip(least) {
            rows.push(leak(name, shape, per_hour, hours, least));
        }
    }
    rows
}

pub(super) fn well() -> Vec<Well> {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    const GPU_DAYS: u32 = 10_000;
    let alarms: usize = (0..GPU_DAYS * 24)
        .map(|_| found(&hour(&mut random), &|_| {}).len())
        .sum();
    let mut rows = vec![Well {
        detector: "health",
        world: "10,000 GPU-days at work, caps and a warm slot",
        alarms: u32::try_from(alarms).unwrap_or(u32::MAX),
        exposure: f64::from(GPU_DAYS * 24) / 1_000.0,
        unit: "1,000 GPU-hours",
        most: 0,
    }];
    rows.extend(leakless());
    rows
}

/// Memories that do not leak, and for how many days each of 100 days in all is watched: the first of a job, and more.
fn leakless() -> Vec<Well> {
    const WORLDS: [&str; 3] = [
        "100 days of noise",
        "100 days of an allocator's saw",
        "100 days of a day's tide of 10 %",
    ];
    let alarms = |shape: Shape| {
        let days = [(60, 1), (10, 4)];
        let told = days.into_iter().flat_map(|(count, days)| {
            let seeds = 1_000..1_000 + count;
            seeds.filter(move |seed| watched(*seed, days * 24, 0.0, shape).0.is_some())
        });
        u32::try_from(told.count()).unwrap_or(u32::MAX)
    };
    let rows = WORLDS.into_iter().zip(SHAPES);
    rows.map(|(world, (_, shape))| Well {
        detector: "leak",
        world,
        alarms: alarms(shape),
        exposure: 100.0 * 24.0 / 1_000.0,
        unit: "1,000 GPU-hours",
        most: 0,
    })
    .collect()
}
