//! A week of each payer: what it held, what that cost, what of it was for nothing, and how that compares.
//!
//! Method. Three stretches of the ledger as money: the week, the one before, and the month to date, which is the
//! month of the week's Sunday up to that day's end. A payer's figures are sums of its lines. Waste is every state
//! that is money for nothing, by job and state, the dearest first.
//!
//! Missing is never zero. A stretch says of which of its days nothing is recorded; its sums are of the others, and
//! two weeks are compared only where both are recorded whole. Time without a price is in no sum of money, and is
//! said with its reason. Whether a recorded day was watched throughout, `unobserved` time says.
//!
//! Limits: [`TOP`] wastes of each payer.

use std::collections::{BTreeMap, BTreeSet};

mod week;

#[cfg(test)]
mod tests;

pub use week::{DAYS, Week};

use crate::chargeback::budget::Standing;
use crate::chargeback::view::{By, Group};
use crate::chargeback::{Chargeback, Fleet, Sum, Tariff};
use crate::ledger::State;
use crate::report::efficiency::{Advised, RunTime, Training, Waste, training, waste};
use crate::taken;

/// Wastes of a payer that are named: what nobody does anything about is not worth a line.
pub const TOP: usize = 3;

/// A stretch of days as money.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// Its lines.
    pub made: &'a Chargeback,
    /// What they point into.
    pub fleet: &'a Fleet,
    /// Days of it of which nothing is recorded, of any cluster or of some, since the Unix epoch.
    pub missing: &'a [i64],
    /// The clusters that lack some of these days; none where nothing of any is recorded of them.
    pub missing_of: &'a [String],
}

/// What a digest is made from.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Which week.
    pub week: Week,
    /// That week.
    pub this: Stretch<'a>,
    /// The one before.
    pub before: Stretch<'a>,
    /// The month to date.
    pub month: Stretch<'a>,
    /// That something of these stretches cannot be read, in a sentence; none where all can.
    pub not_read: Option<&'a str>,
    /// Training runs of the week.
    pub runs: &'a [RunTime],
    /// Why there may have been others; none where these are all.
    pub runs_untold: Option<&'a str>,
    /// Where teams stand with the month's budgets.
    pub budgets: &'a [Standing],
    /// What was advised in the week.
    pub advised: &'a Advised,
}

/// The time and money of a payer in a stretch of days.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spent {
    /// Everything that it pays for.
    pub sum: Sum,
    /// By state.
    pub states: BTreeMap<State, Sum>,
    /// GPU-milliseconds that somebody held for it: not what it pays of GPUs and commitments that nobody used.
    pub held_gpu_millis: i64,
    /// Days of which nothing is recorded, of any cluster or of some; those of everybody.
    pub missing: Vec<i64>,
    /// The clusters that lack some of them; none where nothing of any is recorded.
    pub missing_of: Vec<String>,
}

/// A payer's week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Which week.
    pub week: Week,
    /// Who pays: a team, `unowned` or `nobody`.
    pub payer: String,
    /// The currency.
    pub currency: String,
    /// The week.
    pub this: Spent,
    /// The week before.
    pub before: Spent,
    /// The month to date.
    pub month: Spent,
    /// That something of the week, the week before or the month cannot be read and is in no figure, in a sentence;
    /// none where all can.
    pub not_read: Option<String>,
    /// Its training runs of the week.
    pub training: Training,
    /// Why there may have been others; none where these are all.
    pub runs_untold: Option<String>,
    /// The dearest waste of the week, at most [`TOP`].
    pub waste: Vec<Waste>,
    /// Where it stands with its budget; none where it has none.
    pub budget: Option<Standing>,
    /// Why time of the week has no price, of what most of it has none.
    pub unpriced: Option<String>,
    /// What it was advised in the week, and what that saved in it.
    pub advised: taken::Sum,
    /// Why that may not be all; none where it is.
    pub advice_not_kept: Option<String>,
}

impl Spent {
    /// The states that are meant, together.
    pub fn of(&self, is_meant: impl Fn(State) -> bool) -> Sum {
        let mut sum = Sum::default();
        let meant = self.states.iter().filter(|it| is_meant(*it.0));
        meant.for_each(|it| sum.add(it.1));
        sum
    }

    /// Adds another payer's of the same days.
    pub fn add(&mut self, other: &Self) {
        self.sum.add(&other.sum);
        for (state, sum) in &other.states {
            self.states.entry(*state).or_default().add(sum);
        }
        self.held_gpu_millis += other.held_gpu_millis;
    }

    /// Whether each day is recorded.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }
}

impl Stretch<'_> {
    /// Each payer's part.
    fn spent(&self) -> BTreeMap<String, Spent> {
        let held = self.made.held();
        let groups = self.made.grouped(self.fleet, &[By::Team]);
        let of = |group: Group| {
            let payer = group.words.concat();
            let spent = Spent {
                held_gpu_millis: held.get(payer.as_str()).copied().unwrap_or(0),
                missing: self.missing.to_vec(),
                missing_of: self.missing_of.to_vec(),
                sum: group.sum,
                states: group.states,
            };
            (payer, spent)
        };
        groups.into_iter().map(of).collect()
    }

    /// By payer why its time has no price: the reason of the most of it.
    fn unpriced(&self) -> BTreeMap<&str, &str> {
        let mut millis: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for (key, sum) in &self.made.lines {
            if let Tariff::Unpriced(why) = &self.made.tariffs[key.tariff] {
                let payer = self.made.payers[key.payer].name();
                *millis.entry((payer, why)).or_default() += sum.gpu_millis;
            }
        }
        let mut all: Vec<((&str, &str), i64)> = millis.into_iter().collect();
        all.sort_by_key(|it| it.1);
        all.into_iter().map(|it| it.0).collect()
    }
}

/// The week of everybody who paid for anything in it or in the week before, the dearest first.
pub fn summaries(asked: &Asked<'_>) -> Vec<Summary> {
    let Asked {
        this,
        before,
        month,
        ..
    } = asked;
    let mut spent = [this, before, month].map(|it| it.spent());
    let two_weeks = spent.iter().take(2);
    let payers: BTreeSet<String> = two_weeks.flat_map(|it| it.keys().cloned()).collect();
    let trained = training(this.made, asked.runs);
    let unpriced = this.unpriced();
    let advised = asked
        .advised
        .by_payer(&(this.made.from_ms..this.made.until_ms));
    let mut wastes: BTreeMap<String, Vec<Waste>> = BTreeMap::new();
    for one in waste(this.made, this.fleet) {
        let own = wastes.entry(one.payer.clone()).or_default();
        if own.len() < TOP {
            own.push(one);
        }
    }
    let stretches = [this, before, month];
    let summary = |payer: String| {
        let mut of = |number: usize| {
            let nothing = || Spent {
                missing: stretches[number].missing.to_vec(),
                missing_of: stretches[number].missing_of.to_vec(),
                ..Spent::default()
            };
            spent[number].remove(&payer).unwrap_or_else(nothing)
        };
        Summary {
            week: asked.week,
            currency: this.made.currency.clone(),
            this: of(0),
            before: of(1),
            month: of(2),
            not_read: asked.not_read.map(str::to_owned),
            training: trained.get(payer.as_str()).copied().unwrap_or_default(),
            runs_untold: asked.runs_untold.map(str::to_owned),
            waste: wastes.remove(&payer).unwrap_or_default(),
            budget: asked.budgets.iter().find(|it| it.team == payer).cloned(),
            advised: advised.get(payer.as_str()).copied().unwrap_or_default(),
            advice_not_kept: asked.advised.not_kept.clone(),
            unpriced: unpriced.get(payer.as_str()).map(|it| (*it).to_owned()),
            payer,
        }
    };
    let mut all: Vec<Summary> = payers.into_iter().map(summary).collect();
    // Stable: who costs the same stays in the order of names.
    all.sort_by_key(|it| std::cmp::Reverse((it.this.sum.cost, it.this.sum.gpu_millis)));
    all
}
