//! Made GPUs of which an event, a flag or a few readings say all: rows that are not remapped, links that are down, XIDs
//! that come again, GPUs that are lost, and what a probe of them found; beside programs that fail on GPUs that are well.

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{HOUR_NS, Hour, LOOK_S, LOOKS, NOW, SEEDS, gpu, hour, remembered};
use crate::health::{Asks, Cause, Gpu, Kind, Links, Probed, Xid, findings};
use crate::quality::{Faults, Well, middle};

/// Flags, links and what the driver asks for are read once a minute.
const READ_S: i64 = 60;
/// Links of a card of 18, as an H100 has them.
const NVLINKS: u32 = 18;
/// Jobs that a GPU runs in a week, one behind the other.
const JOBS: usize = 28;
const JOB_NS: i64 = 6 * HOUR_NS;

fn kinds(gpu: &Gpu<'_>) -> Vec<Kind> {
    findings(gpu).into_iter().map(|it| it.kind).collect()
}

/// Of each seed how long it took to be told, in this unit; none where it was not.
fn row(
    fault: &str,
    (unit, least): (&str, u32),
    told: impl Fn(&Hour, &mut ChaCha8Rng) -> Option<f64>,
) -> Faults {
    let of = |seed: u32| {
        let mut random = ChaCha8Rng::seed_from_u64(seed.into());
        let hour = hour(&mut random);
        told(&hour, &mut random)
    };
    let mut delays: Vec<f64> = (0..SEEDS).filter_map(of).collect();
    Faults {
        detector: "health",
        fault: fault.to_owned(),
        of: SEEDS,
        found: u32::try_from(delays.len()).unwrap_or(0),
        delay: middle(&mut delays, unit),
        least,
    }
}

/// The first look after so many seconds at which `reads` makes of a GPU that was well one of this kind alone.
fn first(kind: Kind, reads: impl Fn(i64) -> Gpu<'static>) -> Option<f64> {
    let is_told = |seconds: &i64| kinds(&reads(*seconds)) == [kind];
    let told = (1..=LOOKS).map(|it| it * LOOK_S).find(is_told);
    told.map(|seconds| seconds as f64)
}

/// What is read once a minute says from its next reading on what `sets` does.
fn flag(fault: &str, kind: Kind, sets: fn(&mut Gpu<'static>)) -> Faults {
    row(fault, ("s", SEEDS), |hour, random| {
        let read_at = random.random_range(1..=READ_S);
        first(kind, |seconds| {
            let mut it = gpu(hour);
            if seconds >= read_at {
                sets(&mut it);
            }
            it
        })
    })
}

/// What an event says is there at the next look.
fn event(fault: &str, kind: Kind, says: fn(&mut Gpu<'static>, Timestamp)) -> Faults {
    row(fault, ("s", SEEDS), |hour, random| {
        let began = NOW.shifted(-random.random_range(0..LOOK_S * 1_000_000_000));
        first(kind, |_| {
            let mut it = gpu(hour);
            says(&mut it, began);
            it
        })
    })
}

/// The power supply slows the GPU down for this part of the time.
fn brake(part: f64, least: u32) -> Faults {
    let fault = format!(
        "slowed down by the power brake for {:.0} % of the time",
        part * 100.0
    );
    row(&fault, ("s", least), |hour, _| {
        first(Kind::Throttled(Cause::HardwareBrake), |seconds| Gpu {
            brake_part: Some(part * remembered(seconds)),
            ..gpu(hour)
        })
    })
}

/// What is found of a card at each of these readings of its links, a minute each, the first so long after its boot.
fn links<'a>(hour: &'a Hour, up: &'a [u32], booted_s: i64) -> impl Iterator<Item = Vec<Kind>> + 'a {
    (1..=up.len()).map(move |count| {
        let since_boot = booted_s + READ_S * count as i64;
        kinds(&Gpu {
            booted_at: Some(NOW.shifted(-since_boot * 1_000_000_000)),
            links: Links {
                nvlinks_up: &up[..count],
                nvlinks: NVLINKS,
                ..Links::default()
            },
            ..gpu(hour)
        })
    })
}

/// So many links go down, and one reading in fifty says nothing of it.
fn nvlinks(down: u32) -> Faults {
    let fault = format!("{down} of {NVLINKS} NVLinks down");
    row(&fault, ("s", SEEDS), |hour, random| {
        let up: Vec<u32> = (0..60)
            .map(|_| match random.random_bool(0.02) {
                true => NVLINKS,
                false => NVLINKS - down,
            })
            .collect();
        let mut looks = links(hour, &up, 86_400);
        let at = looks.position(|it| it == [Kind::NvlinkDown])?;
        Some(((at as i64 + 1) * READ_S) as f64)
    })
}

/// Jobs of the week before now, each with its name.
fn jobs() -> Vec<(String, Timestamp)> {
    let began = |job: usize| NOW.shifted(-((JOBS - job) as i64) * JOB_NS);
    (0..JOBS)
        .map(|job| (format!("job-{job}"), began(job)))
        .collect()
}

/// What is told of a GPU at the end of each of these jobs, in which a program's XID came as `fails` says: so often.
fn told_of_jobs(code: u32, hour: &Hour, mut fails: impl FnMut() -> usize) -> Option<usize> {
    let jobs = jobs();
    let mut xids: Vec<Xid<'_>> = Vec::new();
    let kind = Kind::RepeatedXid(code);
    jobs.iter().position(|(job, began)| {
        xids.extend((0..fails()).map(|it| {
            let at = began.shifted(60_000_000_000 * it as i64);
            Xid {
                first: at,
                at,
                count: 1,
                code,
                asks: Asks::Nothing,
                job,
            }
        }));
        let now = began.shifted(JOB_NS);
        kinds(&Gpu {
            now,
            xids: &xids,
            last_seen: Some(now),
            ..gpu(hour)
        })
        .contains(&kind)
    })
}

/// A sick GPU raises this XID in so many of a hundred jobs.
fn repeats(code: u32, of_jobs: u32, least: u32) -> Faults {
    let fault = format!("XID {code} in {of_jobs} % of the jobs of 6 h, within a week");
    row(&fault, ("h", least), |hour, random| {
        let fails = || usize::from(random.random_bool(f64::from(of_jobs) / 100.0));
        let at = told_of_jobs(code, hour, fails)?;
        Some(6.0 * (at as f64 + 1.0))
    })
}

/// An XID that asks for more than the program's restart.
fn xid(code: u32, action: &'static str, words: &str) -> Faults {
    let fault = format!("XID {code}, {words}");
    let kind = Kind::Xid(code);
    row(&fault, ("s", SEEDS), |hour, random| {
        let at = NOW.shifted(-random.random_range(0..LOOK_S * 1_000_000_000));
        let xids = [Xid {
            first: at,
            at,
            count: 1,
            code,
            asks: Asks::of(code, action, Severity::Error),
            job: "a",
        }];
        let it = Gpu {
            xids: &xids,
            ..gpu(hour)
        };
        (kinds(&it) == [kind]).then_some(LOOK_S as f64)
    })
}

/// A probe of a GPU that was reset some days before, or never.
fn probe(fault: &str, is_wrong: bool, sm: Option<u32>, kind: Kind) -> Faults {
    row(fault, ("s", SEEDS), |hour, random| {
        let at = NOW.shifted(-random.random_range(0..LOOK_S * 1_000_000_000));
        let hours = random.random_range(1..100);
        let healed_at = random
            .random_bool(0.5)
            .then(|| at.shifted(-hours * HOUR_NS));
        let it = Gpu {
            probe: Some(Probed { is_wrong, sm, at }),
            healed_at,
            ..gpu(hour)
        };
        (kinds(&it) == [kind]).then_some(LOOK_S as f64)
    })
}

pub(in crate::quality) fn faults() -> Vec<Faults> {
    vec![
        flag(
            "a memory row that could not be remapped",
            Kind::RemapFailed,
            |it| {
                it.has_remap_failure = Some(true);
            },
        ),
        flag(
            "a memory row that waits for a reset",
            Kind::RemapPending,
            |it| {
                it.has_remap_pending = Some(true);
            },
        ),
        brake(0.04, 0),
        brake(0.06, SEEDS),
        brake(0.2, SEEDS),
        nvlinks(1),
        nvlinks(6),
        nvlinks(NVLINKS),
        event("a GPU that is lost", Kind::Lost, |it, at| {
            it.lost_since = Some(at);
            it.last_seen = Some(at);
        }),
        event(
            "a driver call that does not return",
            Kind::DriverHung,
            |it, at| {
                it.hung_since = Some(at);
                it.last_seen = Some(at);
            },
        ),
        xid(95, "reset_gpu", "which asks for a reset"),
        xid(74, "nvlink", "of an NVLink"),
        repeats(13, 5, 12),
        repeats(13, 20, SEEDS - 4),
        repeats(31, 20, SEEDS - 4),
        repeats(31, 100, SEEDS),
        probe(
            "a probe that is wrong on one SM",
            true,
            Some(77),
            Kind::ProbeFailed(Some(77)),
        ),
        probe(
            "a probe that broke on the GPU",
            true,
            None,
            Kind::ProbeFailed(None),
        ),
        probe(
            "a probe that is right and slow",
            false,
            None,
            Kind::ProbeSlow,
        ),
    ]
}

/// How many of these worlds are wrongly told of.
fn wrongly(worlds: u32, is_told: impl Fn(&Hour, &mut ChaCha8Rng) -> bool) -> u32 {
    let of = |seed: &u32| {
        let mut random = ChaCha8Rng::seed_from_u64(5_000 + u64::from(*seed));
        let hour = hour(&mut random);
        is_told(&hour, &mut random)
    };
    u32::try_from((0..worlds).filter(of).count()).unwrap_or(u32::MAX)
}

pub(in crate::quality) fn well() -> Vec<Well> {
    let row = |world, alarms, exposure, unit, most| Well {
        detector: "health",
        world,
        alarms,
        exposure,
        unit,
        most,
    };
    // A program with a bug is started again and again where it was.
    let one_job = wrongly(1_000, |hour, random| {
        let at = random.random_range(0..JOBS);
        let mut job = 0..JOBS;
        told_of_jobs(13, hour, || if job.next() == Some(at) { 20 } else { 0 }).is_some()
    });
    let others = wrongly(2_000, |hour, random| {
        told_of_jobs(31, hour, || usize::from(random.random_bool(0.001))).is_some()
    });
    // One reading in ten misses a link, never more than four in a row; links train for nine minutes after a boot.
    let links_read = wrongly(200, |hour, random| {
        let mut in_row = 0;
        let up: Vec<u32> = (0..60)
            .map(|minute| {
                let is_short = minute < 9 || in_row < 4 && random.random_bool(0.1);
                in_row = if is_short { in_row + 1 } else { 0 };
                if is_short { NVLINKS - 1 } else { NVLINKS }
            })
            .collect();
        links(hour, &up, 0).any(|it| !it.is_empty())
    });
    vec![
        row(
            "a program that raises XID 13 twenty times on one GPU",
            one_job,
            1_000.0,
            "GPU-week",
            0,
        ),
        row(
            "28 jobs a week, of which one in 1,000 raises XID 31 itself",
            others,
            2_000.0,
            "GPU-week",
            2,
        ),
        row(
            "NVLinks that train after a boot, one reading in ten short",
            links_read,
            200.0,
            "GPU-hour",
            0,
        ),
    ]
}
