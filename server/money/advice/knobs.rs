//! What the adviser says of the runs that go on, and what their work costs.
//!
//! Costs are of the whole life of a run, by what its ranks counted, so that one slow minute is no figure: what its
//! GPUs cost in the time of its steps, by its tokens and by its steps.
//!
//! Limits: [`MAX_RUNS`] runs are looked at, the last that were heard of in the order of their names.

use std::collections::BTreeMap;

use gpufleet_analysis::adviser::{HELD_BACK, advise};
use gpufleet_analysis::ending::Cause;
use gpufleet_analysis::owner::Payer;
use gpufleet_analysis::taken::sight::RunNow;
use gpufleet_analysis::taken::{Advice, Before, Kind};
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::JobId;

use super::given;
use crate::App;
use crate::fnv;
use crate::money::now::MoneySnapshot;
use crate::runs::advice::{KNOBS, profile, set_up};
use crate::runs::{Run, RunKey, State};

/// Most runs that are looked at.
const MAX_RUNS: usize = 500;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// A run that goes on.
#[derive(Debug, Default)]
pub(super) struct Seen {
    run: RunNow,
    fingerprint: BTreeMap<String, String>,
    data_type: String,
    /// What is advised of it.
    pub(super) advised: Vec<Advice>,
}

/// A job's name among runs: `ml/train`.
pub fn name(job: &JobId) -> String {
    match job.namespace.as_str() {
        "" => job.name.clone(),
        namespace => format!("{namespace}/{}", job.name),
    }
}

/// Whether a holder's job (`job:ml/train`) is a run's (`ml/train`).
pub fn is_of(holder: &str, run: &str) -> bool {
    holder == run || holder.rsplit_once(':').is_some_and(|it| it.1 == run)
}

/// Looks at all runs.
pub(super) fn look(
    seen: &mut given::Seen,
    app: &App,
    specs: &Specs,
    found: &MoneySnapshot,
    at: Timestamp,
) {
    let runs = app.fleet.runs();
    let mut looked_at = 0;
    for key in runs.keys() {
        let place = (key.cluster.to_string(), name(&key.run.job));
        let Some(run) = runs.get(&key) else { continue };
        if run.facts.origin == Origin::Recorded {
            continue;
        }
        match run.state(at) {
            State::Ended { at } => {
                let cause = run.facts.ending.as_ref().map(|it| it.cause.as_str());
                if cause == Some(Cause::Finished.name()) {
                    seen.finished.push((place, at.millis()));
                }
            }
            State::Running if looked_at < MAX_RUNS && run.stands_since(at).is_none() => {
                looked_at += 1;
                let one = of_run(&key, &run, app, specs, found);
                seen.runs.entry(place).or_default().extend(one);
            }
            State::Running | State::Silent { .. } => {}
        }
    }
}

/// None of a run of which nobody said when it started.
fn of_run(
    key: &RunKey,
    run: &Run,
    app: &App,
    specs: &Specs,
    found: &MoneySnapshot,
) -> Option<Seen> {
    let started_ms = run.facts.started?.millis();
    let gpus = run.gpus_computing();
    let priced = gpus.iter().filter_map(|it| found.gpu(&key.cluster, it));
    let payer = priced
        .clone()
        .next()
        .map_or(Payer::Unowned, |it| it.payer.clone());
    // What one less would save: the mean over all nodes like its own is another with each that comes or goes.
    let seconds: Option<Vec<i64>> = priced.map(|it| it.last).collect();
    let seconds = seconds.filter(|it| !it.is_empty() && it.len() == gpus.len());
    let second: Option<i64> = seconds.map(|it| it.iter().sum());
    let pace = Pace::of(run);
    let million = |a_second: Option<f64>| {
        let cost = second? as f64 / a_second.filter(|it| *it > 0.0)? * 1e6;
        cost.is_finite().then_some(cost as i64)
    };
    let a_day = |a_second: Option<f64>| a_second.map(|it| (it * DAY_S) as i64);
    let seen = Seen {
        run: RunNow {
            run: key.run.to_string(),
            started_ms,
            before: Before {
                count: u32::try_from(run.gpu_count()).unwrap_or(u32::MAX),
                run: key.run.to_string(),
                started_ms,
                day_cost: second.and_then(|it| it.checked_mul(86_400)),
                million_tokens: million(pace.tokens),
                million_steps: million(pace.steps),
                ..Before::default()
            },
            knob: None,
            tokens_a_day: a_day(pace.tokens),
            steps_a_day: a_day(pace.steps),
        },
        fingerprint: run.facts.fingerprint.clone(),
        data_type: run.facts.data_type.clone(),
        advised: Vec::new(),
    };
    let mean = second.and_then(|it| it.checked_div(i64::try_from(gpus.len()).ok()?));
    let Some(profile) = profile(key, run, &app.fleet, mean, specs) else {
        return Some(seen);
    };
    let advised = advise(&profile).into_iter().map(|it| Advice {
        kind: Kind::Knob,
        cluster: key.cluster.to_string(),
        origin: run.facts.origin,
        about: name(&key.run.job),
        payer: payer.name().to_owned(),
        what: it.knob.name.to_owned(),
        today: it.knob.today.clone().unwrap_or_default(),
        proposed: it.knob.proposed.clone(),
        worth: it.nano_usd_per_day(&profile),
        before: seen.with_knob(it.knob.name).before,
    });
    let advised = advised.collect();
    Some(Seen { advised, ..seen })
}

impl Seen {
    /// The run with the value of a knob, those of all knobs, and all other settings.
    pub(super) fn with_knob(&self, knob: &str) -> RunNow {
        let mut run = self.run.clone();
        run.knob = self.value(knob);
        run.before.settings = self.settings();
        let told = |it: &str| Some((it.to_owned(), self.value(it)?));
        run.before.knobs = knobs().filter_map(told).collect();
        run
    }

    /// A knob's value in the words of the adviser; none where it is not told.
    fn value(&self, knob: &str) -> Option<String> {
        set_up(&self.fingerprint, &self.data_type).today(knob)
    }

    /// All settings but knobs, as a number that is stored.
    fn settings(&self) -> String {
        let is_nccls = |name: &str| HELD_BACK.iter().any(|it| it.0 == name);
        let is_knob = |name: &str| is_nccls(name) || KNOBS.iter().any(|it| it.1.contains(&name));
        let others = self.fingerprint.iter().filter(|it| !is_knob(it.0));
        let texts = others.flat_map(|(name, value)| [name, value]);
        let bytes = texts.flat_map(|it| it.bytes().chain([0]));
        format!("{:016x}", fnv::of_64_bits(bytes))
    }
}

/// Every knob that a fingerprint tells.
fn knobs() -> impl Iterator<Item = &'static str> {
    let of_nccl = HELD_BACK.iter().map(|it| it.0);
    KNOBS.iter().map(|it| it.0).chain(of_nccl)
}

/// How fast a run goes over its life, in the time of its steps.
struct Pace {
    /// Tokens a second of all ranks; none where none gives any.
    tokens: Option<f64>,
    /// Steps a second.
    steps: Option<f64>,
}

impl Pace {
    fn of(run: &Run) -> Self {
        let mut places: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        let mut steps: Option<f64> = None;
        for (number, rank) in run.computing() {
            let told = |metric: gpufleet_telemetry::catalog::Metric| rank.facts.reading(metric.id);
            let Some(wall) = told(training::STEP_WALL).filter(|it| *it > 0.0) else {
                continue;
            };
            if let Some(tokens) = told(training::TOKENS).filter(|it| *it > 0.0) {
                // Ranks of one place are given the same tokens.
                let known = places.entry(rank.place(*number)).or_default();
                *known = known.max(tokens / wall);
            }
            if let Some(made) = told(training::STEPS).filter(|it| *it > 0.0) {
                steps = Some(steps.map_or(made / wall, |it| it.min(made / wall)));
            }
        }
        Self {
            tokens: places.into_values().reduce(|sum, it| sum + it),
            steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(told: &[(&str, &str)]) -> Seen {
        let told = told.iter();
        let fingerprint = told.map(|(name, it)| ((*name).to_owned(), (*it).to_owned()));
        Seen {
            fingerprint: fingerprint.collect(),
            ..Seen::default()
        }
    }

    #[test]
    fn a_knob_is_read_as_the_adviser_says_it_and_is_in_no_other_settings() {
        let four = seen(&[("loader.num_workers", "4"), ("batch", "8")]);
        let eight = seen(&[("loader.num_workers", "8"), ("batch", "8")]);
        let other = seen(&[("loader.num_workers", "8"), ("batch", "16")]);
        assert_eq!(four.value("num_workers").as_deref(), Some("4"));
        assert_eq!(four.settings(), eight.settings());
        assert_ne!(eight.settings(), other.settings());
        let knobs = |it: &Seen| it.with_knob("compile").before.knobs;
        assert_ne!(knobs(&four), knobs(&eight));
        let on = seen(&[("compiled", "True"), ("gradient_checkpointing", "1")]);
        assert_eq!(on.value("compile").as_deref(), Some("on"));
        assert_eq!(
            on.value("activation checkpointing").as_deref(),
            Some("full")
        );
        assert_eq!(on.value("storage"), None);
        assert_eq!(on.value("num_workers"), None);
    }

    #[test]
    fn every_knob_that_is_read_has_its_names() {
        for (knob, names) in KNOBS {
            let told: Vec<(&str, &str)> = names.iter().map(|it| (*it, "1")).collect();
            assert!(seen(&told[..1]).value(knob).is_some(), "{knob}");
            for name in names {
                let (one, two) = (seen(&[(name, "1")]), seen(&[(name, "2")]));
                assert_eq!(one.settings(), two.settings(), "{name}");
            }
        }
    }

    #[test]
    fn a_holder_is_of_a_run_by_its_name() {
        assert!(is_of("job:ml/train", "ml/train"));
        assert!(is_of("ml/train", "ml/train"));
        assert!(!is_of("job:ml/train", "train"));
    }
}
