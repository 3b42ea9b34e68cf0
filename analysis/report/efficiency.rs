//! What GPU time was worth: use by team, cost of a useful GPU-hour, and waste ranked by money.
//!
//! Useful time is active time, and its share is of the time that was observed; a useful GPU-hour costs all that the
//! team's time cost, which is not known where some of it has no price. Waste is every
//! state that is money for nothing, by team, job and state, the dearest first. Inefficiency (active
//! below its target) is apart, as the money of the time that was missing to the target.
//!
//! Goodput and MFU are of training runs, joined by who pays ([`training`]); what a token cost is of model servers
//! ([`serving`]). Advice that was given, taken and saved is [`advice`]'s.

use std::borrow::Cow;
use std::collections::BTreeMap;

pub mod advice;

mod demand;

mod serving;

mod training;

pub use advice::Advised;
pub use demand::{Balance, Demand, balances};
pub use serving::Serving;
pub use training::{Mean, RunTime, Training, training};

use super::{Report, hours, milli};
use crate::chargeback::view::{By, Jobs};
use crate::chargeback::{Chargeback, Fleet, Sum};
use crate::ledger::State;
use crate::money::{decimal, ratio};
use crate::table;

/// How a payer used its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Who.
    pub payer: String,
    /// Everything.
    pub total: Sum,
    /// Active.
    pub active: Sum,
    /// Money for nothing.
    pub waste: Sum,
    /// Active share of the time that was observed, millionths; none where nothing was.
    pub active_millionths: Option<i128>,
    /// What a useful GPU-hour cost, nano-units; none without one, or where some of the time has no price.
    pub cost_per_useful_hour: Option<i128>,
    /// What inefficiency cost, nano-units; none where no active time was held against a target, or where some of the
    /// inefficient time has no price.
    pub inefficiency: Option<i128>,
    /// What its training runs came to.
    pub training: Training,
}

/// A kind of waste.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waste {
    /// Whose.
    pub payer: String,
    /// The job, with its cluster where jobs of several have its name; empty when nobody held it.
    pub job: String,
    /// In which state.
    pub state: State,
    /// How much.
    pub sum: Sum,
}

/// Use by payer, the dearest first.
pub fn uses(report: &Report<'_>) -> Vec<Use> {
    let groups = report.chargeback.grouped(report.fleet, &[By::Team]);
    let trained = training(report.chargeback, &report.runs);
    let of = |group: crate::chargeback::view::Group| {
        let (mut active, mut waste) = (Sum::default(), Sum::default());
        for (state, sum) in &group.states {
            if state.is_active() {
                active.add(sum);
            }
            if state.is_waste() {
                waste.add(sum);
            }
        }
        let low = group
            .states
            .get(&State::ActiveInefficient)
            .copied()
            .unwrap_or_default();
        let unseen = group.states.get(&State::Unobserved);
        let observed = group.sum.gpu_millis - unseen.map_or(0, |it| it.gpu_millis);
        let lost = ratio(low.cost, low.lost_millis.into(), low.gpu_millis.into());
        let is_rated = [State::ActiveEfficient, State::ActiveInefficient]
            .iter()
            .any(|it| group.states.contains_key(it));
        let payer = group.words.concat();
        Use {
            training: trained.get(payer.as_str()).copied().unwrap_or_default(),
            payer,
            total: group.sum,
            active,
            waste,
            active_millionths: ratio(active.gpu_millis.into(), 1_000_000, observed.into()),
            cost_per_useful_hour: ratio(group.sum.cost, 3_600_000, active.gpu_millis.into())
                .filter(|_| group.sum.unpriced_millis == 0),
            inefficiency: is_rated
                .then(|| lost.unwrap_or(0))
                .filter(|_| low.unpriced_millis == 0),
        }
    };
    groups.into_iter().map(of).collect()
}

/// Waste by payer, job and state, the dearest first.
pub fn waste(made: &Chargeback, fleet: &Fleet) -> Vec<Waste> {
    let jobs = Jobs::of(made, fleet);
    let mut all: BTreeMap<(&str, Cow<'_, str>, State), Sum> = BTreeMap::new();
    for (key, sum) in made.lines.iter().filter(|it| it.0.state.is_waste()) {
        let team = By::Team.word(made, fleet, key);
        let job = jobs.word(key);
        all.entry((team, job, key.state)).or_default().add(sum);
    }
    let of = |((payer, job, state), sum): ((&str, Cow<'_, str>, State), Sum)| Waste {
        payer: payer.to_owned(),
        job: job.into_owned(),
        state,
        sum,
    };
    let mut all: Vec<Waste> = all.into_iter().map(of).collect();
    all.sort_by_key(|it| std::cmp::Reverse((it.sum.cost, it.sum.gpu_millis)));
    all
}

/// Demand and supply of a cluster.
fn balance_json(it: &Balance) -> serde_json::Value {
    serde_json::json!({
        "cluster": it.cluster,
        "gpus": milli(it.gpus),
        "held_gpus": milli(it.held),
        "free_gpus": milli(it.free),
        "waited_for_gpus": it.waited_for.map(milli),
        "waiting_seen_ratio": part(Some(it.seen)),
    })
}

/// Millionths as a decimal.
pub(super) fn part(millionths: Option<i128>) -> Option<String> {
    millionths.map(|it| decimal(it * 1_000))
}

/// Use by payer as CSV.
pub fn csv(report: &Report<'_>) -> String {
    let mut out = String::new();
    let header = [
        "team",
        "gpu_hours",
        "active_gpu_hours",
        "unpriced_gpu_hours",
        "active_ratio",
        "cost",
        "waste_cost",
        "inefficiency_cost",
        "cost_per_useful_gpu_hour",
        "currency",
        "training_runs",
        "goodput",
        "goodput_covered_ratio",
        "mfu",
        "mfu_covered_ratio",
        "advice_given",
        "advice_worth_per_day",
        "advice_taken",
        "advice_saved",
    ];
    table::write(&mut out, &header);
    let advised = report.advised.by_payer(&advice::time(report));
    for it in uses(report) {
        let [given, worth, taken, saved] =
            advice::columns(&report.advised, advised.get(it.payer.as_str()));
        let row = [
            it.payer.clone(),
            hours(it.total.gpu_millis),
            hours(it.active.gpu_millis),
            hours(it.total.unpriced_millis),
            part(it.active_millionths).unwrap_or_default(),
            decimal(it.total.cost),
            decimal(it.waste.cost),
            it.inefficiency.map(decimal).unwrap_or_default(),
            it.cost_per_useful_hour.map(decimal).unwrap_or_default(),
            report.chargeback.currency.clone(),
            it.training.runs.to_string(),
            part(it.training.goodput.millionths()).unwrap_or_default(),
            part(it.training.covered(&it.training.goodput)).unwrap_or_default(),
            part(it.training.mfu.millionths()).unwrap_or_default(),
            part(it.training.covered(&it.training.mfu)).unwrap_or_default(),
            given,
            worth,
            taken,
            saved,
        ];
        table::write_shown(&mut out, &row.each_ref().map(String::as_str));
    }
    out
}

/// Use and waste as JSON; money as decimal text, so that no reader rounds it.
pub fn json(report: &Report<'_>) -> String {
    let uses = uses(report).into_iter().map(|it| {
        serde_json::json!({
            "team": it.payer,
            "gpu_millis": it.total.gpu_millis,
            "active_gpu_millis": it.active.gpu_millis,
            "active_ratio": part(it.active_millionths),
            "cost": decimal(it.total.cost),
            "waste_cost": decimal(it.waste.cost),
            "inefficiency_cost": it.inefficiency.map(decimal),
            "cost_per_useful_gpu_hour": it.cost_per_useful_hour.map(decimal),
            "unpriced_gpu_millis": it.total.unpriced_millis,
            "training_runs": it.training.runs,
            "goodput": part(it.training.goodput.millionths()),
            "goodput_covered_ratio": part(it.training.covered(&it.training.goodput)),
            "mfu": part(it.training.mfu.millionths()),
            "mfu_covered_ratio": part(it.training.covered(&it.training.mfu)),
        })
    });
    let waste = waste(report.chargeback, report.fleet);
    let waste = waste.into_iter().map(|it| {
        serde_json::json!({
            "team": it.payer,
            "job": it.job,
            "state": it.state.name(),
            "gpu_millis": it.sum.gpu_millis,
            "cost": decimal(it.sum.cost),
            "unpriced_gpu_millis": it.sum.unpriced_millis,
        })
    });
    let value = serde_json::json!({
        "title": report.title,
        "from": table::moment_text(report.chargeback.from_ms),
        "until": table::moment_text(report.chargeback.until_ms),
        "currency": report.chargeback.currency,
        "teams": uses.collect::<Vec<_>>(),
        "waste": waste.collect::<Vec<_>>(),
        "serving": serving::json(report),
        "advice": advice::json(report),
        "demand": balances(report).iter().map(balance_json).collect::<Vec<_>>(),
        "findings": report.findings,
    });
    let mut text = serde_json::to_string_pretty(&value).expect("it is made of text and numbers");
    text.push('\n');
    text
}
