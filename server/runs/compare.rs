//! Two runs side by side: what they are made of first, then how fast, then the loss at equal tokens.
//!
//! Steps are those of the rank that stands for each run, all of its last [`READ_BACK`]; the first [`WARM_UP`] say
//! nothing. The speed-up is the ratio of the medians, never of pooled steps: repeats of one run
//! differ by less than a percent, single steps by much more. How uncertain it is comes from each run's
//! own stretches; [`super::repeats`] has several runs of each. Tokens are counted from 0 by each process, so that a run that
//! went on from a checkpoint, or whose process began anew, has no losses to compare. Pure, but for [`one`].

use std::collections::BTreeMap;

use gpufleet_analysis::regression::between::{self, Pace};
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND};

use super::{Run, RunFacts, RunKey, State, cost, history, lookup, words};
use crate::App;
use crate::store::{Store, StoreError};
use crate::threads::apart;
use crate::words::Said;

/// First steps that say nothing: compilation, autotuning, cold caches.
const WARM_UP: usize = 5;

/// How far back from the end of a run its steps and losses are read, nanoseconds.
const READ_BACK: i64 = 6 * 3_600 * NANOS_PER_SECOND;

/// Why there is no speed-up.
pub const NO_PACE: &str =
    "a run has fewer than 20 steps after its first 5, or they are no longer kept";

/// Why no losses are compared.
pub const NO_LOSS: &str = "a run does not say loss and tokens or went on from steps whose tokens are not counted, \
     or they have no number of tokens in common";

/// Why some of what differs is not known.
pub const NOT_TOLD: &str = "a run has not told what it is made of";

/// What is compared of a run, and what is shown beside it. Its ranks are not kept: it may have ten thousand.
#[derive(Debug)]
pub struct Compared {
    /// Which.
    pub key: RunKey,
    /// What is known of it as a whole.
    pub facts: RunFacts,
    /// How it stands.
    pub state: State,
    /// The same in a sentence.
    pub sentence: Said,
    /// What of it decides what it costs.
    pub attempt: cost::Attempt,
    /// What a million tokens cost at its pace, in `cost.currency`, or why that is not known.
    pub usd_per_million_tokens: Result<f64, String>,
    /// What is compared of it.
    pub side: Side,
}

/// A setting that differs; none where a run does not say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which.
    pub key: String,
    /// In the first.
    pub a: Option<String>,
    /// In the second.
    pub b: Option<String>,
}

/// What is compared of one run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Side {
    /// How many nanoseconds a step takes; none of too few steps.
    pub pace: Option<Pace>,
    /// How many steps that is of.
    pub steps: usize,
    /// How uncertain that is within the run, as a part of it; none of too few steps.
    pub uncertainty: Option<f64>,
    /// Tokens a step of the run; none where it does not say.
    pub tokens_per_step: Option<f64>,
    /// Loss by tokens of the run, in the order of time; none of a run whose processes did not count all of its tokens.
    pub losses: Vec<(f64, f64)>,
}

impl Side {
    /// The median step, seconds; none of too few steps.
    pub fn step_seconds(&self) -> Option<f64> {
        self.pace.as_ref().map(|it| it.median() / 1e9)
    }
}

/// One run against another.
#[derive(Debug, Clone, PartialEq)]
pub struct Against {
    /// The settings that differ, by key.
    pub differences: Vec<Difference>,
    /// Whether both said what they are made of.
    pub is_told: bool,
    /// How many times as fast the second does the same work, and by what that is told.
    pub speed_up: Option<(f64, &'static str)>,
    /// How uncertain that is within the two runs, as a part of it.
    pub uncertainty: Option<f64>,
    /// The losses at equal tokens.
    pub loss: Option<AtTokens>,
}

/// Losses of both where they had seen as many tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtTokens {
    /// So many.
    pub tokens: f64,
    /// Of the first.
    pub a: f64,
    /// Of the second.
    pub b: f64,
}

/// What the second of two runs is against the first.
pub fn against(a: (&RunFacts, &Side), b: (&RunFacts, &Side)) -> Against {
    let uncertain = a.1.uncertainty.zip(b.1.uncertainty);
    Against {
        differences: differences(a.0, b.0),
        is_told: [a.0, b.0].iter().all(|it| !it.fingerprint.is_empty()),
        speed_up: speed_up(a.1, b.1),
        uncertainty: uncertain.map(|(a, b)| a.hypot(b)),
        loss: at_equal_tokens(a.1, b.1),
    }
}

/// The settings in which two fingerprints differ, by key.
pub fn differences(a: &RunFacts, b: &RunFacts) -> Vec<Difference> {
    let (a, b) = (&a.fingerprint, &b.fingerprint);
    let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
    let mut found: Vec<Difference> = keys
        .filter(|key| a.get(*key) != b.get(*key))
        .map(|key| Difference {
            key: key.clone(),
            a: a.get(key).cloned(),
            b: b.get(key).cloned(),
        })
        .collect();
    found.sort_by(|one, other| one.key.cmp(&other.key));
    found
}

/// How many times as fast the second does the same work: by tokens where both say them, else by
/// steps, which holds only where a step is the same work.
pub fn speed_up(a: &Side, b: &Side) -> Option<(f64, &'static str)> {
    let steps = a.step_seconds()? / b.step_seconds()?;
    match (a.tokens_per_step, b.tokens_per_step) {
        (Some(of_a), Some(of_b)) if of_a > 0.0 => Some((steps * of_b / of_a, "tokens")),
        _ => Some((steps, "steps")),
    }
}

/// The losses where both had seen as many tokens, at the last such place.
pub fn at_equal_tokens(a: &Side, b: &Side) -> Option<AtTokens> {
    let last = |side: &Side| side.losses.last().map(|it| it.0);
    let first = |side: &Side| side.losses.first().map(|it| it.0);
    let tokens = last(a)?.min(last(b)?);
    if tokens < first(a)?.max(first(b)?) {
        return None;
    }
    Some(AtTokens {
        tokens,
        a: loss_at(&a.losses, tokens)?,
        b: loss_at(&b.losses, tokens)?,
    })
}

/// The loss at so many tokens, between the two points around it.
fn loss_at(losses: &[(f64, f64)], tokens: f64) -> Option<f64> {
    let behind = losses.partition_point(|it| it.0 < tokens);
    let after = losses.get(behind)?;
    match behind.checked_sub(1).map(|it| losses[it]) {
        Some(before) if after.0 > before.0 => {
            let share = (tokens - before.0) / (after.0 - before.0);
            Some(before.1 + share * (after.1 - before.1))
        }
        _ => Some(after.1),
    }
}

/// How long the steps in these blocks took, nanoseconds, in order, without the first [`WARM_UP`] and those that took no
/// time that a clock sees.
pub(super) fn walls(blocks: &[StepBlock]) -> Vec<f64> {
    let each = blocks.iter().flat_map(|block| {
        let per_entry = block.steps_per_entry();
        block.times.iter().map(move |it| it.wall_ns / per_entry)
    });
    let each = each.skip(WARM_UP).filter(|it| *it > 0);
    each.map(|it| it as f64).collect()
}

/// What the steps of the rank that stands for a run say.
pub fn pace(blocks: &[StepBlock]) -> Side {
    let walls = walls(blocks);
    let tokens: u64 = blocks.iter().map(|it| it.tokens).sum();
    let count: u64 = blocks.iter().map(|it| it.next_step() - it.first_step).sum();
    Side {
        pace: Pace::of(&walls),
        steps: walls.len(),
        uncertainty: between::uncertainty(&walls),
        tokens_per_step: (tokens > 0 && count > 0).then(|| tokens as f64 / count as f64),
        losses: Vec::new(),
    }
}

/// Loss by tokens from the minutes of a rank: where a minute has both.
pub fn losses(minutes: &BTreeMap<Minute, MinuteRow>) -> Vec<(f64, f64)> {
    let point = |row: &MinuteRow| {
        let loss = row
            .metrics
            .get(&training::LOSS.id)
            .filter(|it| it.count > 0)?;
        let tokens = row.counters.get(&training::TOKENS.id)?;
        Some((tokens.last(), loss.mean()))
    };
    let mut found: Vec<(f64, f64)> = minutes.values().filter_map(point).collect();
    // A process that began anew counts from 0: only its last life is in order.
    let begun = found.windows(2).rposition(|it| it[1].0 < it[0].0);
    if let Some(begun) = begun {
        found.drain(..=begun);
    }
    found
}

/// What is compared of a run; none where nobody knows it.
///
/// # Errors
/// When the database refuses.
pub async fn one(app: &App, key: RunKey) -> Result<Option<Compared>, StoreError> {
    let Some(run) = lookup::find(app, &key).await? else {
        return Ok(None);
    };
    let side = read(&app.store, (&key, &run)).await?;
    let now = app.clock.now();
    let attempt = cost::Attempt::of(app, (&key, &run), now);
    Ok(Some(Compared {
        state: run.state(now),
        sentence: words::said(&run, &app.incidents.of_run(&key), now, app.currency()),
        usd_per_million_tokens: cost::per_million_tokens(&attempt, &side),
        attempt,
        facts: run.facts,
        key,
        side,
    }))
}

/// What the last [`READ_BACK`] of a run says.
async fn read(store: &Store, (key, run): (&RunKey, &Run)) -> Result<Side, StoreError> {
    let Some((speaker, rank)) = run.speaker() else {
        return Ok(Side::default());
    };
    let end = run.facts.heard.shifted(NANOS_PER_SECOND);
    let range = end.shifted(-READ_BACK)..end;
    let mut steps = history::steps(store, (key, run), Some(&[speaker]), &range).await?;
    let minutes = range.start.minute()..Minute(range.end.minute().0 + 1);
    let minutes = store.minutes(&key.rank(speaker), minutes).await?;
    let blocks = steps.remove(&speaker).unwrap_or_default();
    // Six hours of quick steps are two million.
    let side = apart(move || pace(&blocks)).await;
    // What one rank was given is so much of what the run was.
    let places = run.data_places() as f64;
    let losses = match run.counts_from_its_first_step(rank) {
        true => losses(&minutes.rows),
        false => Vec::new(),
    };
    let losses = losses.into_iter();
    Ok(Side {
        tokens_per_step: side.tokens_per_step.map(|it| it * places),
        losses: losses
            .map(|(tokens, loss)| (tokens * places, loss))
            .collect(),
        ..side
    })
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::steps::StepTimes;
    use gpufleet_telemetry::time::Timestamp;

    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> RunFacts {
        let pairs = pairs
            .iter()
            .map(|(key, it)| ((*key).to_owned(), (*it).to_owned()));
        RunFacts {
            fingerprint: pairs.collect(),
            ..RunFacts::default()
        }
    }

    fn block(millis: &[u64], tokens: u64) -> StepBlock {
        let times = millis.iter().map(|it| StepTimes {
            wall_ns: it * 1_000_000,
            ..StepTimes::default()
        });
        StepBlock {
            first_step: 0,
            steps_log2: 0,
            started_at: Timestamp::default(),
            ended_at: Timestamp::default(),
            tokens,
            samples: 0,
            times: times.collect(),
        }
    }

    #[test]
    fn what_differs_is_told_with_what_only_one_says() {
        let found = differences(
            &facts(&[("torch", "2.9"), ("nccl", "2.27"), ("only_a", "1")]),
            &facts(&[("torch", "2.9"), ("nccl", "2.28"), ("only_b", "2")]),
        );
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.key.as_str(), it.a.as_deref(), it.b.as_deref()))
            .collect();
        let expected = [
            ("nccl", Some("2.27"), Some("2.28")),
            ("only_a", Some("1"), None),
            ("only_b", None, Some("2")),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_pace_leaves_the_first_steps_out_and_one_slow_step_does_not_move_it() {
        let mut millis = vec![9_000; 5];
        millis.extend([100; 24]);
        millis.push(5_000);
        let side = pace(&[block(&millis, 3_000)]);
        assert_eq!((side.step_seconds(), side.steps), (Some(0.1), 25));
        assert_eq!(side.tokens_per_step, Some(100.0));
        assert_eq!(
            pace(&[block(&millis[..20], 0)]).step_seconds(),
            None,
            "too few"
        );
    }

    #[test]
    fn the_speed_up_is_that_of_the_work_and_not_of_the_step() {
        let side = |seconds: f64, tokens_per_step| Side {
            pace: Pace::of(&[seconds * 1e9; 20]),
            tokens_per_step,
            ..Side::default()
        };
        let (a, b) = (side(1.0, Some(1_000.0)), side(1.5, Some(3_000.0)));
        assert_eq!(speed_up(&a, &b), Some((2.0, "tokens")));
        assert_eq!(speed_up(&a, &side(0.5, None)), Some((2.0, "steps")));
        assert_eq!(speed_up(&a, &Side::default()), None);
    }

    #[test]
    fn a_speed_up_is_as_uncertain_as_both_runs_together() {
        let side = |uncertainty| Side {
            pace: Pace::of(&[1e9; 20]),
            uncertainty,
            ..Side::default()
        };
        let told = facts(&[("torch", "2.9")]);
        let (a, b) = (side(Some(0.003)), side(Some(0.004)));
        let found = against((&told, &a), (&told, &b));
        assert!((found.uncertainty.unwrap_or_default() - 0.005).abs() < 1e-12);
        assert!(found.is_told);
        let found = against((&told, &a), (&RunFacts::default(), &side(None)));
        assert_eq!((found.uncertainty, found.is_told), (None, false));
    }

    #[test]
    fn losses_are_compared_where_both_had_seen_as_many_tokens() {
        let side = |losses: &[(f64, f64)]| Side {
            losses: losses.to_vec(),
            ..Side::default()
        };
        let a = side(&[(0.0, 5.0), (100.0, 4.0), (200.0, 3.0)]);
        let b = side(&[(50.0, 4.0), (150.0, 3.0)]);
        let found = at_equal_tokens(&a, &b).expect("they overlap");
        assert_eq!((found.tokens, found.a, found.b), (150.0, 3.5, 3.0));
        assert_eq!(at_equal_tokens(&a, &side(&[(300.0, 1.0)])), None);
        assert_eq!(at_equal_tokens(&a, &side(&[])), None);
    }
}
