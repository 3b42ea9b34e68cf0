//! How often the detectors of training are wrong in 10,000 GPU-days of it that are well.
//!
//! They take minutes to make, so their part of the report is measured on request (`make detection-healthy`) and kept
//! elsewhere. That it is still of these detectors and worlds is held by each run of the tests: they make the first
//! GPU-days anew and judge them by thresholds so low that there is something to count. That count, the thresholds and
//! the worlds stand in the kept part.
//!
//! Limits: a change that tells on later days alone, and on nothing in the first ones, is not noticed.

mod job;

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};

use gpufleet_telemetry::time::Timestamp;

use self::job::{Job, Load, Made, Mesh};
use super::most_likely;
use super::together::{self, Told};
use crate::adviser::tests::table;
use crate::hang::tests::NOTHING;
use crate::hang::{self, Tick, Verdict};
use crate::loss::{self, Trouble};
use crate::regression::{self, Direction};
use crate::straggler::clocks::LEAST_RATIO;
use crate::straggler::{self, Run, Source, Step};

/// Where the part begins; it ends where that of the adviser begins.
const PART: &str = "## Wrongly, in 10,000 GPU-days each";
const GPU_HOURS: f64 = 240_000.0;

/// Jobs of 8, 32, 128 and 512 ranks.
const MESHES: [(u32, u32, u32); 4] = [(1, 1, 8), (4, 2, 4), (8, 4, 4), (8, 8, 8)];
const WORLDS: [(&str, Load); 2] = [
    (
        "fixed sequences",
        Load {
            own: 0.01,
            shared: 0.0,
        },
    ),
    (
        "long sequences",
        Load {
            own: 0.02,
            shared: 0.14,
        },
    ),
];

/// Most alarms that are allowed where there may be any.
const MOST: [(&str, &str, u32); 1] = [("regression", "fixed sequences", 6)];

/// How much is made of it.
struct Exposure {
    /// Jobs of each mesh, and GPU-hours of each.
    jobs: u64,
    gpu_hours: f64,
    /// Jobs of 32 GPUs that tell no steps, and ticks of each.
    together: u64,
    ticks: u64,
}

const ALL: Exposure = Exposure {
    jobs: 10,
    gpu_hours: 6_000.0,
    together: 313,
    ticks: 8_640,
};
const FIRST: Exposure = Exposure {
    jobs: 1,
    gpu_hours: 300.0,
    together: 1,
    ticks: 360,
};

/// What the detectors go by.
struct By {
    straggler: straggler::Thresholds,
    hang: hang::Thresholds,
    regression: regression::Thresholds,
    loss: loss::Thresholds,
    clocks: Told,
}

impl By {
    fn documented() -> Self {
        Self {
            straggler: straggler::Thresholds::default(),
            hang: hang::Thresholds::default(),
            regression: regression::Thresholds::default(),
            loss: loss::Thresholds::default(),
            clocks: Told {
                by: straggler::Thresholds::default(),
                least: LEAST_RATIO,
            },
        }
    }

    /// So low that what is well is often called wrong.
    fn low() -> Self {
        Self {
            straggler: straggler::Thresholds {
                ratio: 1.005,
                z: 1.0,
            },
            hang: hang::Thresholds {
                after_s: 30.0,
                gaps: 1.0,
                first_step_s: 60.0,
            },
            regression: regression::Thresholds { change: 0.001 },
            loss: loss::Thresholds {
                sigmas: 1.5,
                steps: 2.0,
                ..loss::Thresholds::default()
            },
            // Not so low that it is more than may be blamed at once.
            clocks: Told {
                by: straggler::Thresholds {
                    ratio: 1.03,
                    z: 3.0,
                },
                least: 1.0,
            },
        }
    }
}

/// What a detector said in a world.
pub(super) struct Row {
    detector: &'static str,
    world: &'static str,
    alarms: u32,
    /// Steps of the jobs; none where they tell none.
    steps: Option<u64>,
}

/// What was said of jobs that tell steps.
#[derive(Default)]
struct Said {
    steps: u64,
    straggler: u32,
    hang: u32,
    regression: u32,
    loss: u32,
}

/// A job, watched. What is said for long is one alarm.
struct Watched<'a> {
    by: &'a By,
    straggler: Run,
    named: BTreeSet<u32>,
    hang: hang::Watch,
    stands: bool,
    step: Option<u64>,
    tick_s: i64,
    regression: regression::Watch,
    loss: loss::Watch,
    wrong: Vec<Trouble>,
}

impl<'a> Watched<'a> {
    fn new(by: &'a By) -> Self {
        Self {
            by,
            straggler: Run::new(Source::Hooks),
            named: BTreeSet::new(),
            hang: hang::Watch::new(),
            stands: false,
            step: None,
            tick_s: 1_000,
            regression: regression::Watch::default(),
            loss: loss::Watch::new(),
            wrong: Vec::new(),
        }
    }

    fn observe(&mut self, made: &Made, said: &mut Said) {
        said.steps += 1;
        said.hang += self.stood(made);
        said.straggler += self.slow(made);
        let (wall_ns, is_quiet) = (made.wall_ns(), made.pauses());
        let change = self
            .regression
            .observe_by(made.step, wall_ns, is_quiet, &self.by.regression);
        said.regression += u32::from(change.is_some_and(|it| it.direction == Direction::Slower));
        said.loss += self.learnt(made);
    }

    /// Ticks of ten seconds until the step is over.
    fn stood(&mut self, made: &Made) -> u32 {
        let mut alarms = 0;
        while (self.tick_s as f64) < made.ended_s {
            let at_s = self.tick_s as f64;
            let is_away = at_s < made.began_s;
            let has_paused_for_s = at_s - made.computed_s;
            // The highest of the last minute.
            let computes = !is_away && (made.evaluates || has_paused_for_s < 60.0);
            let verdict = self.hang.observe_by(
                &Tick {
                    now: Timestamp(self.tick_s * 1_000_000_000),
                    step: self.step,
                    is_quiet: is_away || (made.is_told && has_paused_for_s >= 0.0),
                    activity: Some(if computes { 0.4 } else { 0.0 }),
                    ..NOTHING
                },
                &self.by.hang,
            );
            let stands = matches!(verdict, Verdict::Hung(_));
            alarms += u32::from(stands && !self.stands);
            self.stands = stands;
            self.tick_s += 10;
        }
        self.step = Some(made.step);
        alarms
    }

    /// A step takes ten seconds and longer, so each is judged.
    fn slow(&mut self, made: &Made) -> u32 {
        self.straggler.observe(&Step {
            step: made.step,
            wall_ns: made.wall_ns(),
            readings: &made.readings,
        });
        let told = self.straggler.judge_by(&self.by.straggler).stragglers;
        let named: BTreeSet<u32> = told.iter().map(|it| it.rank).collect();
        let alarms = named.difference(&self.named).count();
        self.named = named;
        count(alarms)
    }

    fn learnt(&mut self, made: &Made) -> u32 {
        if made.is_restarted {
            // As the server does: what was learnt is of other steps.
            (self.loss, self.wrong) = (loss::Watch::new(), Vec::new());
        }
        let found = self.loss.observe_by(&made.learnt, &self.by.loss);
        let wrong: Vec<Trouble> = found.iter().map(|it| it.trouble).collect();
        let alarms = wrong.iter().filter(|it| !self.wrong.contains(it)).count();
        self.wrong = wrong;
        count(alarms)
    }
}

fn count(alarms: usize) -> u32 {
    u32::try_from(alarms).unwrap_or(u32::MAX)
}

/// Jobs of all meshes with this load.
fn trained(load: Load, by: &By, exposure: &Exposure) -> Said {
    let mut said = Said::default();
    for (tensor, stages, replicas) in MESHES {
        let mesh = Mesh {
            tensor,
            stages,
            replicas,
        };
        let job_ns = exposure.gpu_hours * 3.6e12 / f64::from(mesh.ranks());
        for seed in 0..exposure.jobs {
            let seed = u64::from(mesh.ranks()) << 32 | seed;
            let mut watched = Watched::new(by);
            let mut left_ns = job_ns;
            for made in Job::new(seed, mesh, load) {
                watched.observe(&made, &mut said);
                left_ns -= made.wall_ns() as f64;
                if left_ns <= 0.0 {
                    break;
                }
            }
        }
    }
    said
}

fn rows(by: &By, exposure: &Exposure) -> Vec<Row> {
    let mut rows = Vec::new();
    for (world, load) in WORLDS {
        let said = trained(load, by, exposure);
        for (detector, alarms) in [
            ("straggler", said.straggler),
            ("hang", said.hang),
            ("regression", said.regression),
            ("loss", said.loss),
        ] {
            rows.push(Row {
                detector,
                world,
                alarms,
                steps: Some(said.steps),
            });
        }
    }
    let mut add = |detector, world, named: &dyn Fn(u64) -> usize| {
        rows.push(Row {
            detector,
            world,
            alarms: count((2_000..2_000 + exposure.together).map(named).sum()),
            steps: None,
        });
    };
    let collectives = Told {
        by: by.straggler,
        least: 1.0,
    };
    add(
        "straggler by collectives",
        "32 ranks that differ by 1 % in what they compute",
        &|seed| together::wrongly_by_collectives(seed, exposure.ticks, collectives),
    );
    add(
        "straggler by clocks",
        "32 cards whose clocks differ by 2 %",
        &|seed| together::wrongly_by_clocks(seed, exposure.ticks, by.clocks),
    );
    rows
}

/// Measures all of it: minutes.
pub(super) fn measured() -> Vec<Row> {
    rows(&By::documented(), &ALL)
}

/// What low thresholds say of the first GPU-days.
pub(super) fn first() -> Vec<Row> {
    rows(&By::low(), &FIRST)
}

/// What this report says was measured; none where it is of other detectors or other worlds than those that said `first`.
pub(super) fn kept(report: &str, first: &[Row]) -> Option<Vec<Row>> {
    let from = report.find(PART)?;
    let part = &report[from..];
    let part = part.split(table::HEADING).next()?;
    let row = |it: &Row| {
        let begins = format!("| {} | {} | ", it.detector, it.world);
        let line = part.lines().find_map(|line| line.strip_prefix(&begins))?;
        let mut cells = line.split(" | ");
        Some(Row {
            alarms: cells.next()?.parse().ok()?,
            steps: cells.next()?.parse().ok(),
            ..*it
        })
    };
    let rows: Option<Vec<Row>> = first.iter().map(row).collect();
    rows.filter(|rows| section(rows, first) == part)
}

/// What alarms more often than it may.
pub(super) fn wrong(rows: &[Row]) -> Vec<String> {
    let most = |row: &Row| {
        let of_row = |it: &&(&str, &str, u32)| (it.0, it.1) == (row.detector, row.world);
        MOST.iter().find(of_row).map_or(0, |it| it.2)
    };
    let above = rows.iter().filter(|it| it.alarms > most(it));
    above
        .map(|it| format!("{} {}: {} alarms", it.detector, it.world, it.alarms))
        .collect()
}

/// The part of the report.
pub(super) fn section(rows: &[Row], first: &[Row]) -> String {
    let (by, low) = (By::documented(), By::low());
    let mut text = format!(
        "{PART}\n\n\
         Made jobs of training in which nothing is wrong, of 8, 32, 128 and 512 GPUs with steps of 10 to 60 s: garbage\n\
         collection, late data and storage, checkpoints and evaluations (told by the hooks or not), a day's tide of 1 %,\n\
         restarts from the last checkpoint. Jobs without steps are of 32 GPUs and judged each 10 s. `make\n\
         detection-healthy` measures this part in minutes; it is kept elsewhere. The last column is what low thresholds\n\
         say of the first GPU-days: CI counts it anew, and fails where it, a threshold or a world differs.\n\n\
         | detector | world | alarms | steps | below, per 1,000 steps | below, per 1,000 GPU-hours | first, by low thresholds |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for (row, first) in rows.iter().zip(first) {
        let most = most_likely(row.alarms);
        let (steps, of_steps) = row.steps.map_or_else(Default::default, |steps| {
            let rate = 1_000.0 * most / steps as f64;
            (steps.to_string(), format!("{rate:.4}"))
        });
        writeln!(
            text,
            "| {} | {} | {} | {steps} | {of_steps} | {:.4} | {} |",
            row.detector,
            row.world,
            row.alarms,
            1_000.0 * most / GPU_HOURS,
            first.alarms
        )
        .expect("a string takes all");
    }
    text.push_str("\n| thresholds | measured with | low |\n|---|---|---|\n");
    for (detector, by, low) in [
        ("straggler", said(&by.straggler), said(&low.straggler)),
        ("hang", said(&by.hang), said(&low.hang)),
        ("regression", said(&by.regression), said(&low.regression)),
        ("loss", said(&by.loss), said(&low.loss)),
        ("straggler by clocks", clocks(by.clocks), clocks(low.clocks)),
    ] {
        writeln!(text, "| {detector} | {by} | {low} |").expect("a string takes all");
    }
    text.push('\n');
    text
}

fn clocks(told: Told) -> String {
    format!("{}, least ratio told: {}", said(&told.by), told.least)
}

/// Thresholds by their names.
fn said(thresholds: &dyn Debug) -> String {
    let all = format!("{thresholds:?}");
    let inner = all.strip_prefix("Thresholds { ");
    let inner = inner.and_then(|it| it.strip_suffix(" }"));
    inner.unwrap_or(&all).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(alarms: u32) -> Row {
        Row {
            detector: "hang",
            world: "fixed sequences",
            alarms,
            steps: Some(1_000),
        }
    }

    #[test]
    fn a_part_is_kept_only_while_thresholds_and_what_low_ones_say_are_as_they_were() {
        let report = section(&[row(0)], &[row(7)]) + table::HEADING;
        let is_kept = |report: &str, first| kept(report, &[row(first)]).is_some();
        assert!(is_kept(&report, 7));
        assert!(!is_kept(&report, 8), "the detector counts otherwise");
        for (said, other) in [
            ("after_s: 120.0", "after_s: 90.0"),
            ("| 0 | 1000 |", "| 1 | 1000 |"),
            ("| hang | fixed", "| hang | other"),
            (PART, "## Other"),
        ] {
            assert!(report.contains(said), "{said}");
            assert!(!is_kept(&report.replace(said, other), 7), "{other}");
        }
    }

    #[test]
    fn more_alarms_than_are_allowed_are_wrong() {
        assert_eq!((wrong(&[row(0)]).len(), wrong(&[row(1)]).len()), (0, 1));
    }
}
