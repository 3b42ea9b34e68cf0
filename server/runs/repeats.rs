//! Two ways of doing the same by several runs of each (A/B): whether B is slower or faster than A by more than runs of
//! one way differ, which one run of each cannot say.
//!
//! By [`between::a_b`]: medians of runs and never pooled steps, three of each at least. What is held is the time of a
//! token where every run with a pace gives its tokens, else that of a step, which holds only where a step is the same
//! work. By that same time, of all steps that are read, the middle run of a side is the one that is shown. Limits:
//! [`MOST`] runs a side. Pure.

use std::collections::BTreeSet;

use gpufleet_analysis::regression::between::{self, Comparison, Pace, Verdict};

use super::compare::{self, Against, Compared, NO_PACE, Side};

/// Most runs of a side: each is read for six hours of its steps.
pub const MOST: usize = 16;

/// Two sides, and what the second is against the first.
#[derive(Debug)]
pub struct Sides {
    /// Runs of the first, the fastest first; those whose pace is not known come last.
    pub a: Vec<Compared>,
    /// Runs of the second.
    pub b: Vec<Compared>,
    /// What the middle run of the second is against that of the first; of several runs the speed-up is what they say
    /// together.
    pub against: Against,
    /// What several runs say; none of one run each.
    pub repeated: Option<Repeated>,
}

/// What several runs of each say.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeated {
    /// Whether B is slower or faster; none where all runs of a side have too few steps.
    pub comparison: Option<Comparison>,
    /// The settings in which runs of A differ from each other, and those in which runs of B do.
    pub differ_in: [Vec<String>; 2],
}

impl Sides {
    /// Holds the runs of B against those of A; there is one of each at least.
    pub fn of(mut a: Vec<Compared>, mut b: Vec<Compared>) -> Self {
        let is_by_tokens = a
            .iter()
            .chain(&b)
            .filter(|it| it.side.pace.is_some())
            .all(|it| it.side.tokens_per_step.is_some());
        let work = |side: &Side| match side.tokens_per_step {
            Some(tokens) if is_by_tokens => tokens,
            _ => 1.0,
        };
        let pace = |it: &Compared| {
            let step = it.side.step_seconds();
            step.map_or(f64::INFINITY, |step| step / work(&it.side))
        };
        for runs in [&mut a, &mut b] {
            runs.sort_by(|one, other| pace(one).total_cmp(&pace(other)));
        }
        let (middle_a, middle_b) = (middle(&a), middle(&b));
        let mut against = compare::against(
            (&middle_a.facts, &middle_a.side),
            (&middle_b.facts, &middle_b.side),
        );
        let is_repeated = a.len() > 1 || b.len() > 1;
        let repeated = is_repeated.then(|| {
            let [of_a, of_b] = [&a, &b].map(|runs| paces(runs, work));
            Repeated {
                comparison: between::a_b(&of_a, &of_b),
                differ_in: [differ_in(&a), differ_in(&b)],
            }
        });
        if let Some(told) = &repeated {
            let by = if is_by_tokens { "tokens" } else { "steps" };
            against.speed_up = told.comparison.map(|it| (1.0 / it.ratio, by));
            against.uncertainty = None;
        }
        Self {
            a,
            b,
            against,
            repeated,
        }
    }
}

impl Repeated {
    /// Whether B is slower by more than runs of one way differ.
    pub fn is_slower(&self) -> bool {
        self.comparison
            .is_some_and(|it| it.verdict == Verdict::Slower)
    }

    /// What they say, in a sentence.
    pub fn sentence(&self) -> String {
        let Some(told) = self.comparison else {
            return format!("Not known: {NO_PACE}.");
        };
        let least = format!("{:.1} %", told.told_from * 100.0);
        match told.verdict {
            verdict @ (Verdict::Slower | Verdict::Faster) => format!(
                "B is {}: by more than {least}, the least that these runs let tell, and so is each of its runs.",
                verdict.name()
            ),
            Verdict::Alike => format!(
                "B and A are not told apart: these runs let tell {least} and more, where all runs of B agree."
            ),
            Verdict::TooFewRuns => {
                "Whether that is more than runs of one way differ is not known: that takes three of each."
                    .to_owned()
            }
        }
    }
}

/// The run that stands for a side: the middle one of those whose pace is known.
pub fn middle(runs: &[Compared]) -> &Compared {
    let known = runs.iter().filter(|it| it.side.pace.is_some());
    &runs[known.count() / 2]
}

/// How fast the runs do so much work; those whose pace is not known are left out.
fn paces(runs: &[Compared], work: impl Fn(&Side) -> f64) -> Vec<Pace> {
    let sides = runs.iter().map(|it| &it.side);
    let paces = sides.filter_map(|it| Some(it.pace.as_ref()?.per(work(it))));
    paces.collect()
}

/// The settings in which runs of one side differ, by key.
fn differ_in(runs: &[Compared]) -> Vec<String> {
    let pairs = runs.windows(2);
    let differences = pairs.flat_map(|it| compare::differences(&it[0].facts, &it[1].facts));
    let keys: BTreeSet<String> = differences.map(|it| it.key).collect();
    keys.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::Timestamp;
    use gpufleet_telemetry::training::{JobId, RunId};

    use super::*;
    use crate::runs::cost::Attempt;
    use crate::runs::{RunFacts, RunKey, State};
    use crate::words::Said;

    /// A run whose 60 steps take about so many milliseconds.
    fn run(attempt: u32, millis: f64, tokens_per_step: Option<f64>) -> Compared {
        let job = JobId::parse("team/llama/u1").expect("an id");
        let walls = (-30..30).map(|it| millis * (1.0 + f64::from(it % 3) * 1e-4) * 1e6);
        let walls: Vec<f64> = walls.collect();
        Compared {
            key: RunKey {
                cluster: "prod".into(),
                run: RunId { job, attempt },
            },
            facts: RunFacts::default(),
            state: State::Running,
            sentence: Said::default(),
            attempt: Attempt {
                started: None,
                until: Timestamp::default(),
                gpus: 0,
                gone_gpu_ns: 0,
                nano_usd_per_gpu_hour: Err("no price".to_owned()),
            },
            usd_per_million_tokens: Err("no price".to_owned()),
            side: Side {
                pace: Pace::of(&walls),
                steps: 60,
                tokens_per_step,
                uncertainty: Some(0.001),
                ..Side::default()
            },
        }
    }

    fn runs(millis: &[f64], tokens: Option<f64>) -> Vec<Compared> {
        let numbered = millis.iter().zip(0..);
        numbered
            .map(|(it, attempt)| run(attempt, *it, tokens))
            .collect()
    }

    /// What is said of runs of these milliseconds a step, and by what part longer B takes.
    fn said(a: &[f64], b: &[f64]) -> (Verdict, f64) {
        let sides = Sides::of(runs(a, None), runs(b, None));
        let told = sides.repeated.expect("there are several");
        let told = told.comparison.expect("enough steps");
        let (speed_up, by) = sides.against.speed_up.expect("a pace");
        assert_eq!((by, sides.against.uncertainty), ("steps", None));
        assert!((speed_up * told.ratio - 1.0).abs() < 1e-12);
        (told.verdict, told.ratio - 1.0)
    }

    #[test]
    fn three_runs_of_each_tell_what_is_more_than_they_differ_and_two_tell_nothing() {
        let a = [100.5, 99.5, 100.0];
        let (verdict, longer) = said(&a, &[107.0, 106.0, 106.5]);
        assert_eq!(verdict, Verdict::Slower);
        assert!((longer - 0.065).abs() < 1e-3, "{longer}");
        assert_eq!(said(&a, &[94.0, 93.0, 93.5]).0, Verdict::Faster);
        assert_eq!(said(&a, &[101.0, 100.5, 101.5]).0, Verdict::Alike);
        let wide = [100.0, 110.0, 90.0];
        assert_eq!(said(&wide, &[106.0, 106.5, 107.0]).0, Verdict::Alike);
        assert_eq!(
            said(&a, &[107.0, 99.0, 106.5]).0,
            Verdict::Alike,
            "one of B is no slower"
        );
        assert_eq!(said(&a, &[150.0, 150.0]).0, Verdict::TooFewRuns);
        assert_eq!(said(&a[..2], &[150.0; 3]).0, Verdict::TooFewRuns);
    }

    #[test]
    fn the_sentence_says_from_what_on_it_is_told_and_what_is_missing() {
        let of = |a: &[f64], b: &[f64]| {
            let sides = Sides::of(runs(a, None), runs(b, None));
            sides.repeated.expect("there are several").sentence()
        };
        let a = [100.5, 99.5, 100.0];
        for (b, said) in [
            (vec![107.5, 106.5, 107.0], "B is slower: by more than 2.8 %"),
            (vec![93.5, 92.5, 93.0], "B is faster: by more than 3.0 %"),
            (
                vec![101.5, 100.5, 101.0],
                "not told apart: these runs let tell 2.9 %",
            ),
            (vec![150.0; 2], "that takes three of each"),
        ] {
            assert!(of(&a, &b).contains(said), "{said}: {}", of(&a, &b));
        }
        let mut silent = runs(&a, None);
        silent.iter_mut().for_each(|it| it.side.pace = None);
        let told = Sides::of(silent, runs(&a, None)).repeated;
        let sentence = told.expect("there are several").sentence();
        assert!(
            sentence.starts_with("Not known: a run has fewer"),
            "{sentence}"
        );
    }

    #[test]
    fn where_all_runs_give_tokens_it_is_the_time_of_a_token_that_is_held() {
        let a = || runs(&[100.0, 100.2, 99.8], Some(1_000.0));
        let longer = runs(&[150.0, 150.2, 149.8], Some(3_000.0));
        let sides = Sides::of(a(), longer);
        let told = sides.repeated.and_then(|it| it.comparison);
        assert_eq!(told.map(|it| it.verdict), Some(Verdict::Faster));
        let (speed_up, by) = sides.against.speed_up.expect("a pace");
        assert!(
            (speed_up - 2.0).abs() < 1e-2 && by == "tokens",
            "{speed_up} by {by}"
        );
        let mut one_has_no_steps = runs(&[150.0, 150.2, 149.8], Some(3_000.0));
        let mut none = run(9, 1.0, None);
        none.side.pace = None;
        one_has_no_steps.push(none);
        let sides = Sides::of(a(), one_has_no_steps);
        assert_eq!(sides.against.speed_up.map(|it| it.1), Some("tokens"));
        let mut one_is_silent = runs(&[150.0, 150.2], Some(3_000.0));
        one_is_silent.push(run(9, 149.8, None));
        let sides = Sides::of(a(), one_is_silent);
        let told = sides.repeated.and_then(|it| it.comparison);
        assert_eq!(told.map(|it| it.verdict), Some(Verdict::Slower));
        assert_eq!(sides.against.speed_up.map(|it| it.1), Some("steps"));
    }

    #[test]
    fn the_middle_run_stands_for_a_side_and_one_without_a_pace_for_none_but_itself() {
        let mut a = runs(&[103.0, 101.0, 102.0], None);
        let mut none = run(9, 1.0, None);
        none.side.pace = None;
        a.push(none);
        let torch = ("torch".to_owned(), "2.9".to_owned());
        a[0].facts.fingerprint.extend([torch]);
        let sides = Sides::of(a, runs(&[100.0], None));
        assert_eq!(
            middle(&sides.a).key.run.attempt,
            2,
            "of 101, 102 and 103 ms"
        );
        assert_eq!(sides.a.last().map(|it| it.key.run.attempt), Some(9));
        let told = sides.repeated.expect("there are several of A");
        assert_eq!(told.differ_in, [vec!["torch".to_owned()], Vec::new()]);
    }

    #[test]
    fn one_run_of_each_is_held_as_before_with_how_uncertain_each_is() {
        let sides = Sides::of(runs(&[100.0], None), runs(&[50.0], None));
        assert_eq!(sides.repeated, None);
        assert_eq!(sides.against.speed_up, Some((2.0, "steps")));
        assert!(sides.against.uncertainty.is_some());
    }
}
