//! What is kept of a counter in one row: its runs, so that growth is a pure function of rows.
//!
//! A run is a stretch of time in which every point of the counter is known: first and last raw value,
//! and what was counted before resets inside. Growth within a row, and from row to row, is worked out
//! when it is read, by [`Meter`]. So it is the same in whatever order, in however many pieces, and
//! after however many restarts the points arrived: old data that fills a pause later makes the same
//! runs as if it had come in time.
//!
//! Two runs become one only when they touch: a point that is still to come may lie in a pause, and
//! whether the counter was reset there is not known before.

use std::collections::BTreeMap;
use std::mem;

use serde::{Deserialize, Serialize};

use crate::catalog::MetricId;

/// Most runs of one counter in one row. A minute of ticks of a second, the shortest, has at most thirty
/// pauses, as many as ten minutes of ticks of 10 s; beyond this the two runs with the shortest pause
/// between them become one, which is wrong only when the counter was reset in that pause and data of
/// that pause comes later.
pub const MAX_RUNS: usize = 32;

/// Latest moment of a run in its row, ms: the end of a row of ten minutes.
pub const MAX_MOMENT: u32 = 600_000;

/// One counter in one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// How many points went in, at least 1.
    pub(super) count: u32,
    /// By time, ascending; at least one, at most [`MAX_RUNS`].
    pub(super) runs: Vec<Run>,
}

/// A stretch of time in which every point of a counter is known. All numbers are finite and not
/// negative.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// It covers the time after this moment, ms since the row began; there was no point before it in
    /// the first point's tick.
    pub(super) from: u32,
    /// Up to the moment of its last point, ms.
    pub(super) to: u32,
    /// The first raw value.
    pub(super) first: f64,
    /// The last one.
    pub(super) last: f64,
    /// The sum of the values right before resets: growth is last − first + lost.
    pub(super) lost: f64,
}

/// A stretch of time from point to point of a counter, as a row has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    /// The moment of its first point, ms since the row began.
    pub from: u32,
    /// The moment of its last point.
    pub to: u32,
    /// The first raw value.
    pub first: f64,
    /// The last one.
    pub last: f64,
    /// How much it grew from the one to the other; after a reset it counts from zero.
    pub growth: f64,
}

/// Reads the rows of one resource in the order of time and says how much its counters grew.
#[derive(Debug, Clone, Default)]
pub struct Meter(BTreeMap<MetricId, f64>);

impl Counter {
    /// One point: its raw value, and the time it covers, ms since the row began: no other point lies
    /// after `from` and before `to`. None when the value is not finite or negative.
    pub fn point(value: f64, from: u32, to: u32) -> Option<Self> {
        // −0 becomes 0, which packs better.
        let value = value + 0.0;
        let to = to.min(MAX_MOMENT);
        let run = Run {
            from: from.min(to),
            to,
            first: value,
            last: value,
            lost: 0.0,
        };
        (value.is_finite() && value >= 0.0).then(|| Self {
            count: 1,
            runs: vec![run],
        })
    }

    /// How many points went in.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The first raw value.
    pub fn first(&self) -> f64 {
        self.runs[0].first
    }

    /// The last raw value.
    pub fn last(&self) -> f64 {
        self.runs[self.runs.len() - 1].last
    }

    /// The raw value at a moment, ms since the row began: between two points straight from the one to the
    /// other; none where no point covers it. Of a run with a reset in it the first value up to its end, because
    /// when it was reset is not kept.
    pub fn at(&self, moment: u32) -> Option<f64> {
        let covers = |it: &&Run| it.from < moment && moment <= it.to;
        let run = self.runs.iter().find(covers)?;
        let (begins, ends) = (f64::from(run.from) + self.tick(), f64::from(run.to));
        let moment = f64::from(moment);
        Some(if moment >= ends {
            run.last
        } else if run.lost > 0.0 || moment <= begins || ends <= begins {
            run.first
        } else {
            run.first + (run.last - run.first) * (moment - begins) / (ends - begins)
        })
    }

    /// Growth from the first raw value to the last; after a reset it counts from zero.
    pub fn growth(&self) -> f64 {
        let whole = self.runs.iter().copied().reduce(Run::joined);
        whole.map_or(0.0, Run::growth)
    }

    /// Its stretches without a pause, by time. A point is told at the end of its tick, so each begins a tick
    /// after the time that its run covers.
    pub fn stretches(&self) -> impl Iterator<Item = Stretch> + '_ {
        let tick = self.tick();
        self.runs.iter().map(move |run| Stretch {
            from: run.from.saturating_add(tick as u32).min(run.to),
            to: run.to,
            first: run.first,
            last: run.last,
            growth: run.growth(),
        })
    }

    /// How long a point covers, ms: every one as long as any other.
    fn tick(&self) -> f64 {
        let covered: u32 = self.runs.iter().map(|it| it.to - it.from).sum();
        f64::from(covered) / f64::from(self.count.max(1))
    }

    /// The same in a row that began earlier by this much, ms.
    #[must_use]
    pub fn later(mut self, by: u32) -> Self {
        for run in &mut self.runs {
            run.from = run.from.saturating_add(by).min(MAX_MOMENT);
            run.to = run.to.saturating_add(by).min(MAX_MOMENT);
        }
        self
    }

    /// Takes in more points of the same counter and row.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        let newest = self.runs.len() - 1;
        if let ([more], known) = (&*other.runs, &mut self.runs[newest])
            && known.to == more.from
        {
            *known = known.joined(*more);
            return;
        }
        let mut runs = mem::take(&mut self.runs);
        runs.extend(&other.runs);
        runs.sort_by(Run::order);
        for run in runs {
            match self.runs.last_mut() {
                Some(known) if known.to > run.from && known.to >= run.to => known.covers(run),
                Some(known) if known.to >= run.from => *known = known.joined(run),
                _ => self.runs.push(run),
            }
        }
        while self.runs.len() > MAX_RUNS {
            self.close_shortest_pause();
        }
    }

    fn close_shortest_pause(&mut self) {
        let pauses = self.runs.windows(2).map(|pair| pair[1].from - pair[0].to);
        if let Some((place, _)) = pauses.enumerate().min_by_key(|(_, pause)| *pause) {
            let later = self.runs.remove(place + 1);
            self.runs[place] = self.runs[place].joined(later);
        }
    }
}

impl Run {
    /// From one raw value to the next and on: this run and one that follows it, or that overlaps it and
    /// goes on after it.
    ///
    /// Runs overlap where an agent was killed: two processes tell of the same tick. Which of them read first
    /// is not known, so a later run may begin a little below this one's end, and that is no reset; a
    /// reset begins at zero.
    fn joined(self, later: Self) -> Self {
        let overlaps = self.to > later.from;
        let is_reset = later.first < self.last && !(overlaps && later.first > self.last / 2.0);
        let reset = if is_reset { self.last } else { 0.0 };
        // Of the same tick the lower value was read first.
        let same_start = self.from == later.from && !is_reset;
        Self {
            from: self.from,
            to: self.to.max(later.to),
            first: if same_start {
                self.first.min(later.first)
            } else {
                self.first
            },
            last: later.last,
            lost: (self.lost + reset + later.lost).min(f64::MAX),
        }
    }

    /// A run that lies within this one: the tick in which an agent was killed, told by the next one after
    /// what followed, or the data of a pause that was closed. It changes nothing but which of two values
    /// of the same moment is the last.
    fn covers(&mut self, inside: Self) {
        if self.to == inside.to {
            self.last = self.last.max(inside.last);
        }
    }

    fn growth(self) -> f64 {
        (self.last - self.first + self.lost).clamp(0.0, f64::MAX)
    }

    /// By time; the values decide between runs of the same time, so that the order of merging does
    /// not show.
    fn order(&self, other: &Self) -> std::cmp::Ordering {
        (self.from, self.to)
            .cmp(&(other.from, other.to))
            .then(self.first.total_cmp(&other.first))
            .then(self.last.total_cmp(&other.last))
    }
}

impl Meter {
    /// How much this counter grew since the row before, or since its first point when there was none.
    /// After a silence that is the growth of the whole silence, until old data fills it.
    pub fn read(&mut self, metric: MetricId, counter: &Counter) -> f64 {
        let step = match self.0.insert(metric, counter.last()) {
            Some(before) if counter.first() >= before => counter.first() - before,
            Some(_) => counter.first(),
            None => 0.0,
        };
        (step + counter.growth()).min(f64::MAX)
    }
}

#[cfg(test)]
mod tests;
