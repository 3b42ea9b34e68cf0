//! Whether advice was taken, by the record, and what that saved since.
//!
//! Method. Each advice that was given is a [`Record`]: about what, whose, since when, worth how much a day. Round by
//! round what is seen of it now ([`Sight`], made in [`sight`]) moves it on: it is told while it is still given; it
//! changes when what it proposed is there; when that has held for [`Kind::settled_ms`] it counts as taken, from when
//! the change was first seen. Saved is what is measured against before: what it cost when the advice was last given
//! less what it costs now, over the time in which both are there. It may be below 0. Of GPUs that were given back with
//! all of their job nothing is left to measure, so it is taken and what it saved is not told.
//!
//! What ends by itself is not advice taken: a job that is over, a need that grew, a knob that was turned the other way.
//! Advice that was given for less than [`LEAST_TOLD_MS`] is not counted at all: nobody need have read it.
//!
//! Numbers. Milliseconds since the epoch, nano-units (integers), GPUs, nodes.
//!
//! Limits. A round stands for [`LONGEST_MS`] at most: beyond it nobody looked, and nothing is saved. Advice of which
//! nothing is seen any more is over after [`LAPSED_MS`]. Savings are counted for [`COUNTED_FOR_MS`] after the change: later
//! that is how things are. That something was done *because* of advice nobody can measure; this says that it was done
//! after it.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_telemetry::identity::Origin;
use serde::{Deserialize, Serialize};

use crate::chargeback::MILLIS_PER_DAY;
use crate::ledger::MILLIS_PER_HOUR as HOUR_MS;
use crate::lost::WHOLE_GPU;

pub mod sight;

#[cfg(test)]
mod tests;

pub use sight::Sight;

/// Advice that was given for less is not counted.
pub const LEAST_TOLD_MS: i64 = HOUR_MS;

/// The longest that a look stands for.
pub const LONGEST_MS: i64 = HOUR_MS;

/// What was not seen since for so long is over.
pub const LAPSED_MS: i64 = 30 * MILLIS_PER_DAY;

/// For so long savings are counted.
pub const COUNTED_FOR_MS: i64 = 90 * MILLIS_PER_DAY;

/// What kind of advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A knob of a training run ([`crate::adviser`]).
    Knob,
    /// Fewer or smaller GPUs ([`crate::right_size`]).
    RightSize,
    /// Nodes that could be off on a schedule ([`crate::shutdown`]).
    Shutdown,
    /// GPUs that are held and idle ([`crate::unused`]).
    Idle,
}

/// An advice as it was last given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Its kind.
    pub kind: Kind,
    /// The cluster.
    pub cluster: String,
    /// Where its data comes from.
    pub origin: Origin,
    /// The job, or the machine type of nodes.
    pub about: String,
    /// Who pays.
    pub payer: String,
    /// What is to change: a knob's name, `GPUs`, when nodes could be off.
    pub what: String,
    /// How it was.
    pub today: String,
    /// How it should be.
    pub proposed: String,
    /// What it is worth a day, nano-units; none without a price, or where nobody knows what it gains.
    pub worth: Option<i64>,
    /// What is measured against.
    pub before: Before,
}

/// What it cost before, in the terms of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Before {
    /// GPUs of the job; nodes that there were. Of idle GPUs that were advised before `milli_gpus` was kept how many.
    pub count: u32,
    /// Of idle GPUs how many these are together, thousandths: a share counts by its part of the card.
    pub milli_gpus: u64,
    /// What these cost a day, nano-units; of nodes one of them.
    pub day_cost: Option<i64>,
    /// The run that it was told of; empty of other kinds.
    pub run: String,
    /// When that run started.
    pub started_ms: i64,
    /// A million tokens of it, nano-units.
    pub million_tokens: Option<i64>,
    /// A million steps of it, nano-units.
    pub million_steps: Option<i64>,
    /// All of its settings but knobs: runs that differ in these are not the same work.
    pub settings: String,
    /// Of nodes: the first hour of the week in which they could be off, 0 is Monday 00:00 UTC.
    pub from_hour: usize,
    /// And for how many hours.
    pub hours: usize,
    /// How many nodes could be off: no more of them are saved by it.
    pub nodes: u32,
    /// Of a run the knobs that advice is about, as they were.
    pub knobs: BTreeMap<String, String>,
    /// GPUs of the job, some of them: by these is seen that it gave any back.
    pub gpus: Vec<String>,
}

/// How an advice stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It is given.
    Told,
    /// What it proposes is there, not yet for long enough.
    Changing,
    /// It was taken.
    Taken,
    /// It was taken, and is undone or over; what it saved stays.
    TakenAndOver,
    /// It ended by itself.
    Ended,
}

/// An advice and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number in the store.
    pub number: i64,
    /// What was said.
    pub advice: Advice,
    /// When it was first given.
    pub first_ms: i64,
    /// When it was last given.
    pub last_ms: i64,
    /// How it stands.
    pub standing: Standing,
    /// When the change was first seen; none without one.
    pub changed_ms: Option<i64>,
    /// What it saved by days since the epoch, nano-units, as far as that was measured.
    pub saved: BTreeMap<i64, i64>,
    /// Why what it saved was not measured, of a time in which it was not; empty else.
    #[serde(default)]
    pub unmeasured: String,
    /// When somebody last looked.
    pub looked_ms: i64,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Knob => "knob",
            Self::RightSize => "right_size",
            Self::Shutdown => "shutdown",
            Self::Idle => "idle",
        }
    }

    /// Its name for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Knob => "Settings of a run",
            Self::RightSize => "Smaller or fewer GPUs",
            Self::Shutdown => "Nodes off on a schedule",
            Self::Idle => "Idle GPUs",
        }
    }

    /// For how long a change must hold before it counts: a job's pause or a restart of its pods is none. A run with
    /// another knob is one.
    pub const fn settled_ms(self) -> i64 {
        match self {
            Self::Knob => HOUR_MS,
            Self::RightSize | Self::Idle => MILLIS_PER_DAY,
            // They were back, and are off again at their time of the next week: what is lost comes not back.
            Self::Shutdown => 7 * MILLIS_PER_DAY,
        }
    }
}

impl Standing {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Told => "open",
            Self::Changing => "changing",
            Self::Taken => "taken",
            Self::TakenAndOver => "taken_and_over",
            Self::Ended => "ended",
        }
    }

    /// Whether it was taken.
    pub const fn is_taken(self) -> bool {
        matches!(self, Self::Taken | Self::TakenAndOver)
    }

    /// Whether nothing moves it any more.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::TakenAndOver | Self::Ended)
    }
}

impl Before {
    /// How many GPUs were idle, thousandths.
    fn idle_milli(&self) -> u64 {
        match self.milli_gpus {
            0 => u64::from(self.count) * WHOLE_GPU,
            known => known,
        }
    }
}

impl Advice {
    /// What makes two the same advice.
    pub fn key(&self) -> (Kind, &str, &str, &str) {
        (self.kind, &self.cluster, &self.about, &self.what)
    }
}

impl Record {
    /// An advice that is given for the first time.
    pub fn new(number: i64, advice: Advice, now_ms: i64) -> Self {
        Self {
            number,
            advice,
            first_ms: now_ms,
            last_ms: now_ms,
            standing: Standing::Told,
            changed_ms: None,
            saved: BTreeMap::new(),
            unmeasured: String::new(),
            looked_ms: now_ms,
        }
    }

    /// Whether it counts: it was given for long enough that somebody may have read it.
    pub fn counts(&self) -> bool {
        self.last_ms - self.first_ms >= LEAST_TOLD_MS
    }

    /// Until when it says anything: when it was last given, or last saved.
    pub fn until_ms(&self) -> i64 {
        let last = self.saved.last_key_value();
        let saved = last.map_or(i64::MIN, |(day, _)| (day + 1) * MILLIS_PER_DAY - 1);
        self.last_ms
            .max(saved)
            .max(self.changed_ms.unwrap_or(i64::MIN))
    }

    /// What it saved in a range of time of whole days; none where it was not taken or nothing was measured then.
    pub fn saved_in(&self, time: &Range<i64>) -> Option<i128> {
        if !self.standing.is_taken() {
            return None;
        }
        let day = |at: i64| at.div_euclid(MILLIS_PER_DAY);
        let days = day(time.start)..day(time.end - 1) + 1;
        let saved = self.saved.range(days).map(|it| i128::from(*it.1));
        saved.reduce(|sum, it| sum + it)
    }

    /// Takes in what is seen of it now.
    pub fn look(&mut self, sight: Sight, now_ms: i64) {
        let since = self.looked_ms;
        let elapsed = (now_ms - since).clamp(0, LONGEST_MS);
        self.looked_ms = now_ms;
        match (self.standing, sight) {
            (Standing::Ended | Standing::TakenAndOver, _) => {}
            (Standing::Told, Sight::Given(advice)) => self.tell_again(*advice, now_ms),
            (Standing::Told, Sight::Changed { .. }) if self.counts() => {
                (self.standing, self.changed_ms) = (Standing::Changing, Some(now_ms));
            }
            (Standing::Told, Sight::GivenBack) if self.counts() => {
                (self.standing, self.changed_ms) = (Standing::TakenAndOver, Some(now_ms));
                "its GPUs were given back, and nothing is left to measure"
                    .clone_into(&mut self.unmeasured);
            }
            (Standing::Told, Sight::Changed { .. } | Sight::GivenBack | Sight::Over) => {
                self.standing = Standing::Ended;
            }
            (Standing::Told, Sight::Unchanged | Sight::NotSeen) => self.lapse(now_ms),
            (Standing::Changing | Standing::Taken, Sight::Changed { less_a_day }) => {
                self.add(less_a_day, elapsed, now_ms);
            }
            (Standing::Changing, Sight::Given(_) | Sight::Unchanged) => self.undo(),
            (Standing::Changing, Sight::Over | Sight::GivenBack) => self.standing = Standing::Ended,
            (Standing::Taken, Sight::NotSeen) => self.lapse(now_ms),
            (Standing::Changing, Sight::NotSeen) => {
                if now_ms - self.changed_ms.unwrap_or(now_ms) > LAPSED_MS {
                    self.standing = Standing::Ended;
                }
            }
            (Standing::Taken, _) => self.standing = Standing::TakenAndOver,
        }
        if self.standing == Standing::Ended {
            self.undone();
        }
    }

    /// Takes over what is given now. A job that has fewer GPUs already, of which none was seen to be given back yet, is
    /// measured by what it had: that is what the advice was about.
    fn tell_again(&mut self, mut again: Advice, now_ms: i64) {
        let was = &self.advice.before;
        // With as many GPUs only the price fell, which nobody saved.
        let is_smaller =
            again.before.count < was.count && sight::is_less(was.day_cost, again.before.day_cost);
        if again.kind == Kind::RightSize && is_smaller {
            again.before = was.clone();
        }
        (self.advice, self.last_ms) = (again, now_ms);
    }

    /// Adds what a look says was saved since the one before.
    fn add(&mut self, less_a_day: Result<i64, &'static str>, elapsed: i64, now_ms: i64) {
        match less_a_day {
            Ok(less) => {
                let saved = i128::from(less) * i128::from(elapsed) / i128::from(MILLIS_PER_DAY);
                let saved = i64::try_from(saved).unwrap_or(i64::MAX);
                // A look that reaches over midnight counts where it began.
                let day = (now_ms - elapsed).div_euclid(MILLIS_PER_DAY);
                let sum = self.saved.entry(day).or_default();
                *sum = sum.saturating_add(saved);
            }
            Err(why) => why.clone_into(&mut self.unmeasured),
        }
        let held = now_ms - self.changed_ms.unwrap_or(now_ms);
        if held >= self.advice.kind.settled_ms() {
            self.standing = Standing::Taken;
        }
        if held >= COUNTED_FOR_MS {
            self.standing = Standing::TakenAndOver;
        }
    }

    /// What changed is as it was before.
    fn undo(&mut self) {
        self.standing = Standing::Told;
        self.undone();
    }

    fn undone(&mut self) {
        self.changed_ms = None;
        self.saved.clear();
        self.unmeasured.clear();
    }

    /// Nothing is seen of it: it waits, for so long.
    fn lapse(&mut self, now_ms: i64) {
        let taken = self.standing == Standing::Taken;
        if now_ms - self.until_ms() > LAPSED_MS {
            self.standing = match taken {
                true => Standing::TakenAndOver,
                false => Standing::Ended,
            };
        }
    }
}

/// What became of advice in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// How many were given.
    pub given: usize,
    /// What these were worth a day together, nano-units, of those of which that is known.
    pub worth: i128,
    /// How many were taken: by changes in that time.
    pub taken: usize,
    /// What was saved in that time by all that were taken, nano-units.
    pub saved: i128,
    /// How many of those that were taken have nothing that was measured.
    pub unmeasured: usize,
    /// Of how many of those that were given nobody knows what they are worth.
    pub unpriced: usize,
    /// Of how many something was measured in that time, and of how many nothing though they were taken.
    pub measured: (usize, usize),
}

impl Sum {
    /// Adds another.
    pub fn join(&mut self, other: &Self) {
        self.given += other.given;
        self.worth += other.worth;
        self.taken += other.taken;
        self.saved += other.saved;
        self.unmeasured += other.unmeasured;
        self.unpriced += other.unpriced;
        self.measured.0 += other.measured.0;
        self.measured.1 += other.measured.1;
    }

    /// What those given were worth a day; none where that is known of none of them.
    pub fn worth(&self) -> Option<i128> {
        (self.given == 0 || self.unpriced < self.given).then_some(self.worth)
    }

    /// What was saved; none where something was taken and nothing of it was measured.
    pub fn saved(&self) -> Option<i128> {
        (self.measured.0 > 0 || self.measured.1 == 0).then_some(self.saved)
    }

    /// Adds one.
    pub fn add(&mut self, it: &Record, time: &Range<i64>) {
        if time.start <= it.last_ms && it.first_ms < time.end {
            self.given += 1;
            self.worth += it.advice.worth.map_or(0, i128::from);
            self.unpriced += usize::from(it.advice.worth.is_none());
        }
        if !it.standing.is_taken() {
            return;
        }
        let is_now = it.changed_ms.is_some_and(|it| time.contains(&it));
        self.taken += usize::from(is_now);
        self.unmeasured += usize::from(is_now && it.saved.is_empty());
        let saved = it.saved_in(time);
        let goes_on = it.changed_ms.is_some_and(|at| at < time.end) && !it.standing.is_over();
        let is_blind = is_now || (goes_on && !it.unmeasured.is_empty());
        self.measured.0 += usize::from(saved.is_some());
        self.measured.1 += usize::from(saved.is_none() && is_blind);
        self.saved += saved.unwrap_or(0);
    }
}

/// Sums of what counts of these by a word of each.
pub fn sums<'a, K: Ord>(
    all: impl IntoIterator<Item = &'a Record>,
    time: &Range<i64>,
    of: impl Fn(&'a Record) -> K,
) -> BTreeMap<K, Sum> {
    let mut sums: BTreeMap<K, Sum> = BTreeMap::new();
    for it in all.into_iter().filter(|it| it.counts()) {
        sums.entry(of(it)).or_default().add(it, time);
    }
    sums
}
