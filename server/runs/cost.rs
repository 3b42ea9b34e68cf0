//! What a run has cost and will have cost: the time it held its GPUs × their price.
//!
//! The time is that of all attempts up to this one; of an attempt that is over, and of ranks that ended before it, a rank
//! counts as one GPU.
//! The price is that of the GPUs it computes on now, of a share of one that part of the card's. A GPU without a price makes the cost unknown and
//! never smaller. All of it is in `cost.currency`, also where a name says USD.

use std::collections::BTreeMap;

use gpufleet_analysis::plan;
use gpufleet_telemetry::time::Timestamp;

use super::attempts::Attempts;
use super::compare::Side;
use super::{Run, RunKey, lookup};
use crate::App;
use crate::detect::prices::Prices;

/// Seconds of an hour.
const HOUR_S: i128 = 3_600;

/// Why there is no sum.
const BEYOND: &str = "not known: the sum is beyond reckoning";

/// What the GPUs of a run cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// GPU-nanoseconds that were held, over all attempts; or why that is not known.
    pub held_gpu_ns: Result<u128, String>,
    /// Nano-units of one of its GPUs for an hour, mean over them; or why there is none.
    pub nano_usd_per_gpu_hour: Result<i64, String>,
}

/// What of an attempt decides what it costs: all that is kept of one of which the ranks are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When it began; none where nobody said.
    pub started: Option<Timestamp>,
    /// Up to when it goes.
    pub until: Timestamp,
    /// How many GPUs it has.
    pub gpus: usize,
    /// GPU-nanoseconds of ranks that ended while others go on: their GPUs are not among `gpus`.
    pub gone_gpu_ns: u128,
    /// As [`Cost::nano_usd_per_gpu_hour`].
    pub nano_usd_per_gpu_hour: Result<i64, String>,
}

impl Attempt {
    /// That of a run.
    pub fn of(app: &App, (key, run): (&RunKey, &Run), now: Timestamp) -> Self {
        Self {
            started: run.facts.started,
            until: run.state(now).until(now),
            gpus: run.gpu_count(),
            gone_gpu_ns: run.gone_gpu_ns(),
            nano_usd_per_gpu_hour: price(app, (key, run)),
        }
    }

    /// What an hour of all its GPUs costs, nano-units.
    ///
    /// # Errors
    /// A sentence that says why that is not known.
    pub fn hour(&self) -> Result<i64, String> {
        let price = self.nano_usd_per_gpu_hour.clone()?;
        let gpus = i64::try_from(self.gpus).ok();
        let hour = gpus.and_then(|it| price.checked_mul(it));
        hour.ok_or_else(|| BEYOND.to_owned())
    }

    /// What it has cost by itself, without the attempts before it, nano-units.
    ///
    /// # Errors
    /// A sentence that says why that is not known.
    pub fn so_far(&self) -> Result<i64, String> {
        let alone = Cost {
            held_gpu_ns: self.held(),
            nano_usd_per_gpu_hour: self.nano_usd_per_gpu_hour.clone(),
        };
        alone.so_far()
    }

    fn held(&self) -> Result<u128, String> {
        let held = sum(&[(self.started, self.until, self.gpus)])?;
        Ok(held + self.gone_gpu_ns)
    }
}

impl Cost {
    /// The price, where the time is known as well: else no sum can be told.
    pub(super) fn known_price(&self) -> Option<i64> {
        let price = self.nano_usd_per_gpu_hour.as_ref().ok();
        price.filter(|_| self.held_gpu_ns.is_ok()).copied()
    }

    /// What was spent, nano-units.
    ///
    /// # Errors
    /// A sentence that says why that is not known.
    pub fn so_far(&self) -> Result<i64, String> {
        let price = self.nano_usd_per_gpu_hour.clone()?;
        let held = self.held_gpu_ns.clone()?;
        let spent = plan::cost(held, price).and_then(|it| i64::try_from(it).ok());
        spent.ok_or_else(|| BEYOND.to_owned())
    }

    /// What a step costs at the run's present pace.
    ///
    /// # Errors
    /// A sentence that says why that is not known.
    pub fn of_a_step(&self, run: &Run, now: Timestamp) -> Result<f64, String> {
        let step = run.at_its_pace(run.step_seconds(), "no step was told", now)?;
        Ok(self.a_second(run)? * step)
    }

    /// What a million tokens cost at the run's present pace.
    ///
    /// # Errors
    /// A sentence that says why that is not known.
    pub fn of_a_million_tokens(&self, run: &Run, now: Timestamp) -> Result<f64, String> {
        let tokens = run.tokens_per_second().filter(|it| *it > 0.0);
        let tokens = run.at_its_pace(tokens, "not said: no rank gives its tokens", now)?;
        Ok(self.a_second(run)? / tokens * 1e6)
    }

    /// What the steps cost that are to be done again, at the pace that the run had.
    ///
    /// # Errors
    /// A sentence that says why that is not known.
    pub fn of_lost_steps(&self, run: &Run) -> Result<f64, String> {
        let ending = run.facts.ending.as_ref();
        let steps = ending.and_then(|it| it.steps_lost);
        let steps = steps.ok_or("not known: how many steps are lost")?;
        let step = run.step_seconds().ok_or("not known: no step was told")?;
        Ok(self.a_second(run)? * step * steps as f64)
    }

    fn a_second(&self, run: &Run) -> Result<f64, String> {
        let price = self.nano_usd_per_gpu_hour.clone()?;
        Ok(usd_a_second(price, run.gpu_count()))
    }
}

/// The cost of an attempt of a job, with all before it.
pub fn of(attempts: &Attempts, key: &RunKey, last: Attempt) -> Cost {
    Cost {
        held_gpu_ns: held(attempts, key, &last),
        nano_usd_per_gpu_hour: last.nano_usd_per_gpu_hour,
    }
}

/// Nano-units of one GPU of a run for an hour, mean over its GPUs.
///
/// # Errors
/// A sentence that says why there is none.
pub fn price(app: &App, (key, run): (&RunKey, &Run)) -> Result<i64, String> {
    if let Some(why) = run.names_too_few_gpus() {
        return Err(why);
    }
    let gpus = run.gpus_computing();
    let seen = lookup::GpusSeen::of(&app.fleet, (key, run));
    let mut nodes = BTreeMap::new();
    let terms = app.money.terms();
    let covered = app.money.covered(app, &terms);
    let mut prices = Prices::at(terms, covered, app.clock.now());
    let mut sum: i128 = 0;
    for gpu in &gpus {
        let known = seen.card(gpu).zip(seen.node(gpu));
        let (card, node) =
            known.ok_or("not known: a GPU of the run is not reported, so neither is its card")?;
        let known = nodes.entry(node);
        let node = known.or_insert_with(|| lookup::node(&app.fleet, &key.cluster, node));
        let second = prices.of(&key.cluster, node.as_deref(), &card.model, 1);
        let second = second.ok_or_else(|| {
            let model = &card.model;
            format!("no price: `{model}` has none; detect.gpu_hour_usd gives it one")
        })?;
        let (slices, of) = card.part.ok_or_else(|| {
            format!("not known: nobody says how large a part of its card `{gpu}` is")
        })?;
        sum += i128::from(second) * HOUR_S * i128::from(slices) / i128::from(of.max(1));
    }
    let count = i128::try_from(gpus.len()).unwrap_or(i128::MAX);
    let mean = sum.checked_div(count);
    let mean = mean.ok_or("not known: no rank says on which GPU it computes")?;
    i64::try_from(mean).map_err(|_| "not known: the price is beyond reckoning".to_owned())
}

/// What a million tokens cost at the pace of a side.
///
/// # Errors
/// A sentence that says why that is not known.
pub(super) fn per_million_tokens(attempt: &Attempt, side: &Side) -> Result<f64, String> {
    let seconds = side.step_seconds().ok_or("not known: too few steps")?;
    let tokens = side.tokens_per_step.filter(|it| *it > 0.0);
    let tokens = tokens.ok_or("not said: the run gives no tokens")?;
    let price = attempt.nano_usd_per_gpu_hour.clone()?;
    Ok(usd_a_second(price, attempt.gpus) * seconds / tokens * 1e6)
}

/// What so many GPUs cost a second, where one costs so many nano-units an hour.
fn usd_a_second(nano_usd_per_gpu_hour: i64, gpus: usize) -> f64 {
    nano_usd_per_gpu_hour as f64 / 1e9 * gpus as f64 / HOUR_S as f64
}

fn held(attempts: &Attempts, key: &RunKey, last: &Attempt) -> Result<u128, String> {
    let mut spans = Vec::new();
    for before in attempts.before(key.run.attempt)? {
        let facts = &before.facts;
        let ranks = match facts.world {
            0 => last.gpus,
            world => world as usize,
        };
        spans.push((facts.started, facts.ended.unwrap_or(facts.heard), ranks));
    }
    Ok(sum(&spans)? + last.held()?)
}

/// GPU-nanoseconds of (start, end, GPUs).
fn sum(spans: &[(Option<Timestamp>, Timestamp, usize)]) -> Result<u128, String> {
    let mut sum = 0;
    for (from, until, gpus) in spans {
        let from = from.ok_or("not known: nobody said when an attempt began")?;
        if *gpus == 0 {
            return Err("not known: no rank was heard of".to_owned());
        }
        let length = until.since(from).max(0).unsigned_abs();
        sum += u128::from(length) * *gpus as u128;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::{Attempt, sum};
    use gpufleet_telemetry::time::Timestamp;

    #[test]
    fn every_attempt_counts_and_one_that_is_not_known_makes_the_sum_unknown() {
        let at = |seconds: i64| Timestamp::from_seconds(1_790_000_000 + seconds);
        let spans = [(Some(at(0)), at(10), 8), (Some(at(20)), at(25), 4)];
        assert_eq!(sum(&spans), Ok(100_000_000_000));
        assert!(sum(&[spans[0], (None, at(1), 1)]).is_err());
        assert!(
            sum(&[spans[0], (Some(at(0)), at(1), 0)]).is_err(),
            "not free"
        );
    }
    #[test]
    fn an_attempt_costs_what_all_its_gpus_do_and_nothing_is_known_of_one_that_nobody_saw_begin() {
        let at = |seconds: i64| Timestamp::from_seconds(1_790_000_000 + seconds);
        let attempt = Attempt {
            started: Some(at(0)),
            until: at(1_800),
            gpus: 8,
            gone_gpu_ns: 0,
            nano_usd_per_gpu_hour: Ok(10_000_000_000),
        };
        assert_eq!(attempt.hour(), Ok(80_000_000_000));
        assert_eq!(attempt.so_far(), Ok(40_000_000_000));
        // Four more GPUs held for a quarter of an hour.
        let shrunk = Attempt {
            gone_gpu_ns: 4 * 900 * 1_000_000_000,
            ..attempt.clone()
        };
        assert_eq!(shrunk.hour(), attempt.hour());
        assert_eq!(shrunk.so_far(), Ok(50_000_000_000));
        let unseen = Attempt {
            started: None,
            ..attempt.clone()
        };
        assert!(unseen.so_far().is_err() && unseen.hour().is_ok());
        let unpriced = Attempt {
            nano_usd_per_gpu_hour: Err("no price".to_owned()),
            ..attempt
        };
        assert_eq!(unpriced.hour(), Err("no price".to_owned()));
        assert_eq!(unpriced.so_far(), Err("no price".to_owned()));
    }
}
