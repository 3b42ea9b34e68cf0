//! What is seen of an advice now: it is given again, what it proposed is there, or neither.
//!
//! Limits. A number of a knob counts when it moved the way that was proposed; a word when it is another. Runs do
//! the same work only where all other settings are as they were, and their GPUs are as many at the same price. Of knobs
//! that were turned in one run, all of them advised, nobody can tell apart what each saved: it is of all together, and
//! whoever adds up counts it once.

use super::{Advice, Before, Kind, Record, Standing};

/// A million.
const MILLION: i128 = 1_000_000;

/// The least that a job's cost must fall by to be a change: what is proposed saves a tenth at least.
const LEAST_LESS: (i128, i128) = (9, 10);

/// What is seen of an advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// It is given still.
    Given(Box<Advice>),
    /// It is given no more, and nothing that it proposed is there.
    Unchanged,
    /// What it proposed is there.
    Changed {
        /// What is paid less a day than before, nano-units; below 0 where it is more. Or why nobody knows.
        less_a_day: Result<i64, &'static str>,
    },
    /// All that it was about was given back.
    GivenBack,
    /// It ended by itself.
    Over,
    /// Nobody sees what it was about.
    NotSeen,
}

/// A job's GPUs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobNow {
    /// How many it has.
    pub gpus: u32,
    /// What these cost a day, nano-units; none where one has no price.
    pub day_cost: Option<i64>,
    /// How many of them are idle, millionths: a share counts by its part of the card, rounded.
    pub idle_micros: u64,
    /// What these cost a day.
    pub idle_cost: Option<i64>,
    /// How many of them nobody observes or knows whose they are, or have not come up yet; with those that it lost with
    /// their nodes, which are not in what is above.
    pub unseen: u32,
}

/// A run now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunNow {
    /// Its name.
    pub run: String,
    /// When it started.
    pub started_ms: i64,
    /// What it costs, and what its other settings are.
    pub before: Before,
    /// The knob's value; none where it is not told.
    pub knob: Option<String>,
    /// What it trains on in a day.
    pub tokens_a_day: Option<i64>,
    /// The steps that it makes in a day.
    pub steps_a_day: Option<i64>,
}

/// Thousandths of GPUs by millionths: what parts of a card are rounded by adds up to less.
pub const fn milli(micros: u64) -> u64 {
    (micros + 500) / 1_000
}

/// Whether a value moved the way that was proposed.
pub fn moved(today: &str, proposed: &str, now: &str) -> bool {
    let number = |text: &str| {
        let text = text.split_whitespace().next()?;
        text.parse::<f64>().ok().filter(|it| it.is_finite())
    };
    if now == today || now.is_empty() || today.is_empty() {
        return false;
    }
    let (Some(was), Some(is)) = (number(today), number(now)) else {
        return true;
    };
    // `1.5 times as many` is no number of it.
    let wanted = match proposed.contains("times as") {
        true => number(proposed).map(|it| it * was),
        false => number(proposed),
    };
    wanted.is_none_or(|wanted| (is > was) == (wanted > was))
}

impl Record {
    /// What is seen of a knob by the runs of its job that go on.
    /// `advised`: all knobs that are advised of that job.
    pub fn sight_of_runs(&self, runs: &[RunNow], advised: &[&str]) -> Sight {
        let was = &self.advice.before;
        let later = runs
            .iter()
            .filter(|it| it.run != was.run && it.started_ms > was.started_ms);
        let Some(now) = later.max_by_key(|it| it.started_ms) else {
            // The one that it was told of is as it was, or is over: the next may be another.
            return match runs.iter().any(|it| it.run == was.run) {
                true => Sight::Unchanged,
                false => Sight::NotSeen,
            };
        };
        match &now.knob {
            Some(knob) if moved(&self.advice.today, &self.advice.proposed, knob) => {
                Sight::Changed {
                    less_a_day: less_a_day(was, now, advised),
                }
            }
            _ => Sight::Unchanged,
        }
    }

    /// What is seen of a job that was told to do with fewer or smaller GPUs, or to give back idle ones; none where it
    /// has none. `was_freed`: whether a GPU that it had is seen now, and is not its; a GPU that nobody sees any more
    /// was not given back. `has_completed`: whether a run of it is known to have come to its end.
    pub fn sight_of_job(&self, job: Option<JobNow>, was_freed: bool, has_completed: bool) -> Sight {
        let was = &self.advice.before;
        let is_idle = self.advice.kind == Kind::Idle;
        let Some(job) = job else {
            return match (is_idle, has_completed) {
                // What came to its end did that by itself.
                (true, true) => Sight::Over,
                // Idle to the last: somebody gave them back.
                (true, false) if was_freed => Sight::GivenBack,
                // A job may come back with fewer.
                _ => Sight::NotSeen,
            };
        };
        if job.unseen > 0 {
            return Sight::NotSeen;
        }
        let was_cost = was.day_cost;
        let is_cost = match is_idle {
            true => job.idle_cost,
            false => job.day_cost,
        };
        let is_changed = match is_idle {
            true => milli(job.idle_micros) < was.idle_milli(),
            false => is_less(was_cost, is_cost) && (was_freed || self.standing != Standing::Told),
        };
        match is_changed {
            true => Sight::Changed {
                less_a_day: less(was_cost, is_cost),
            },
            false => Sight::Unchanged,
        }
    }

    /// What is seen of nodes that could be off at this time of the week, of which so many are there. `others`: how many
    /// of those that are off other advice of the same time accounts for.
    pub fn sight_of_nodes(&self, nodes: u32, others: u32) -> Sight {
        let was = &self.advice.before;
        let off = was.count.saturating_sub(nodes).saturating_sub(others);
        let off = off.min(was.nodes);
        match off {
            0 => Sight::Unchanged,
            _ => Sight::Changed {
                less_a_day: was
                    .day_cost
                    .and_then(|it| it.checked_mul(i64::from(off)))
                    .ok_or("the nodes have no price"),
            },
        }
    }
}

/// Whether what was paid a day fell by so much that this is a change.
pub(super) fn is_less(was: Option<i64>, is: Option<i64>) -> bool {
    was.zip(is)
        .is_some_and(|(was, is)| i128::from(is) * LEAST_LESS.1 <= i128::from(was) * LEAST_LESS.0)
}

fn less(was: Option<i64>, is: Option<i64>) -> Result<i64, &'static str> {
    let both = was.zip(is).ok_or("not all of its GPUs have a price")?;
    Ok(both.0.saturating_sub(both.1))
}

/// What a run's work costs less a day than it would have cost before.
fn less_a_day(was: &Before, now: &RunNow, advised: &[&str]) -> Result<i64, &'static str> {
    let is = &now.before;
    let names = was.knobs.keys().chain(is.knobs.keys());
    let mut turned = names.filter(|it| was.knobs.get(*it) != is.knobs.get(*it));
    if was.settings != is.settings || turned.any(|it| !advised.contains(&it.as_str())) {
        return Err("its runs differ in more than what was advised");
    }
    if was.count != is.count || was.day_cost != is.day_cost {
        return Err("its GPUs are others, or have another price");
    }
    let of = |was: i64, is: i64, done: i64| {
        let less = (i128::from(was) - i128::from(is)) * i128::from(done) / MILLION;
        i64::try_from(less).unwrap_or(i64::MAX)
    };
    let tokens = was.million_tokens.zip(is.million_tokens);
    if let (Some((was, is)), Some(done)) = (tokens, now.tokens_a_day) {
        return Ok(of(was, is, done));
    }
    let steps = was.million_steps.zip(is.million_steps);
    match (steps, now.steps_a_day) {
        (Some((was, is)), Some(done)) => Ok(of(was, is, done)),
        _ => Err("not all of its GPUs have a price, or it has no pace yet"),
    }
}
