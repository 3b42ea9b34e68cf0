//! A chargeback as a file: CSV and JSON, FOCUS 1.2, a page for people, what time was worth, and whether it adds up.
//!
//! Pure functions of a [`Report`]: the same numbers in each form, to the nano-unit where a program
//! reads it and to the cent where a person does.

use std::collections::BTreeMap;

pub mod efficiency;

pub mod focus;

mod html;

pub mod reconcile;

#[cfg(test)]
mod tests;

pub use html::html;

use crate::chargeback::budget::Standing;
use crate::chargeback::change::Change;
use crate::chargeback::commitments::Commitments;
use crate::chargeback::quota;
use crate::chargeback::reconcile::Reconciled;
use crate::chargeback::spot::{Outcome, Place, Spot};
use crate::chargeback::variance::Variance;
use crate::chargeback::view::{By, Group};
use crate::chargeback::{Chargeback, Fleet, Sum};
use crate::ledger::{Energy, Reason, State};
use crate::money::{decimal, ratio};
use crate::owner::{PLATFORM, Payer};
use crate::table;

/// What is reported.
#[derive(Debug, Clone)]
pub struct Report<'a> {
    /// What it is called, such as `October 2026`.
    pub title: String,
    /// The lines.
    pub chargeback: &'a Chargeback,
    /// What they point into.
    pub fleet: &'a Fleet,
    /// What they are grouped by; at least one.
    pub by: Vec<By>,
    /// The cost by payer with what was free borne by the policies.
    pub borne: BTreeMap<Payer, i128>,
    /// Against the invoice, where there is one.
    pub reconciled: Option<Reconciled>,
    /// Against the month before, where there is one.
    pub variance: Option<Variance>,
    /// What its whole days came to against those of the month before, or in a sentence why that cannot be said; none where
    /// it is not asked for.
    pub change: Option<Result<Change, String>>,
    /// What is compared with what there, or why nothing is, in a sentence; empty where there is nothing to say.
    pub compared: String,
    /// Where teams stand.
    pub budgets: Vec<Standing>,
    /// Where teams stand with the GPUs that they may hold.
    pub quotas: Vec<quota::Standing>,
    /// What Spot came to.
    pub spot: Spot,
    /// Training runs, where they are shown.
    pub runs: Vec<efficiency::RunTime>,
    /// What serves, where it is shown.
    pub serving: Vec<efficiency::Serving>,
    /// What was waited for, where it is shown and was seen.
    pub demand: Vec<efficiency::Demand>,
    /// Advice that was given, where it is shown.
    pub advised: efficiency::Advised,
    /// How much of the time has passed, milliseconds.
    pub passed_ms: i64,
    /// What was wrong with prices and rules, in words.
    pub findings: Vec<String>,
}

impl Report<'_> {
    /// What of it did not fit together, one sentence each.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let notes = self.chargeback.notes.iter();
        notes.map(|(note, times)| format!("{note} ({times} times)"))
    }
}

/// GPU-hours of GPU-milliseconds, to the microhour.
pub fn hours(gpu_millis: i64) -> String {
    let micros = ratio(gpu_millis.into(), 1_000, 3_600).unwrap_or(0);
    decimal(micros * 1_000)
}

/// Kilowatt-hours, to the millionth; none where nobody told any.
pub fn kilowatt_hours(energy: Energy) -> Option<String> {
    let micros = ratio(energy.told()?.into(), 1, 3_600)?;
    Some(decimal(micros * 1_000))
}

/// Seconds of milliseconds, exactly.
fn seconds(millis: i64) -> String {
    decimal(i128::from(millis) * 1_000_000)
}

/// One row for each group, state and reason. The costs add up to the total exactly.
pub fn csv(report: &Report<'_>) -> String {
    let mut out = String::new();
    let mut header: Vec<&str> = report.by.iter().map(|it| it.name()).collect();
    header.extend([
        "state",
        "reason",
        "gpu_seconds",
        "gpu_hours",
        "cost",
        "list_cost",
        "gpu_only_cost",
    ]);
    header.extend([
        "unpriced_gpu_seconds",
        "gpu_only_unpriced_gpu_seconds",
        "energy_kwh",
        "energy_metered_gpu_seconds",
        "currency",
    ]);
    table::write(&mut out, &header);
    for group in report.chargeback.grouped(report.fleet, &report.by) {
        for ((state, reason), sum) in &group.reasons {
            let numbers = [
                seconds(sum.gpu_millis),
                hours(sum.gpu_millis),
                decimal(sum.cost),
                decimal(sum.list),
                decimal(sum.gpu_cost),
                seconds(sum.unpriced_millis),
                seconds(sum.gpu_unpriced_millis),
                kilowatt_hours(sum.energy).unwrap_or_default(),
                seconds(sum.energy.metered_millis),
            ];
            let mut row: Vec<&str> = group.words.iter().map(String::as_str).collect();
            row.extend([state.name(), reason.name()]);
            row.extend(numbers.iter().map(String::as_str));
            row.push(&report.chargeback.currency);
            table::write_shown(&mut out, &row);
        }
    }
    out
}

/// Everything as JSON; money as decimal text, so that no reader rounds it.
pub fn json(report: &Report<'_>) -> String {
    let made = report.chargeback;
    let headline = made.headline();
    let groups = made.grouped(report.fleet, &report.by);
    let borne = report.borne.iter();
    let value = serde_json::json!({
        "title": report.title,
        "from": table::moment_text(made.from_ms),
        "until": table::moment_text(made.until_ms),
        "currency": made.currency,
        "total": sum_json(&headline.total),
        "idle": sum_json(&headline.idle),
        "waste": sum_json(&headline.waste),
        "active": sum_json(&headline.active),
        "parked": sum_json(&headline.parked),
        "stalled": sum_json(&headline.stalled),
        "unobserved": sum_json(&headline.unobserved),
        "unowned": sum_json(&headline.unowned),
        "unpriced": sum_json(&headline.unpriced),
        "unused_commitments": sum_json(&headline.unused),
        "states": states_json(&made.whole()),
        "balance": reconcile::balance_json(made),
        "groups": groups.iter().map(|it| group_json(report, it)).collect::<Vec<_>>(),
        "days": days_json(made),
        "borne": borne.map(|(who, cost)| serde_json::json!({
            "payer": bearer(who).0, "cost": decimal(*cost), "what": bearer(who).1,
        })).collect::<Vec<_>>(),
        "invoice": report.reconciled.as_ref().map(reconcile::invoice_json),
        "variance": report.variance.map(|it| serde_json::json!({
            "change": decimal(it.change),
            "price": decimal(it.price),
            "volume": decimal(it.volume),
            "mix": decimal(it.mix),
            "efficiency": decimal(it.efficiency),
            "compared": report.compared,
        })),
        "against": report.change.as_ref().map(|it| change_json(it, &report.compared)),
        "budgets": report.budgets.iter().map(|it| serde_json::json!({
            "team": it.team,
            "budget": decimal(it.budget),
            "spent": decimal(it.spent),
            "forecast": it.forecast.map(decimal),
            "gone_on": it.gone_on_day.map(day_text),
            "is_over": it.is_over(),
        })).collect::<Vec<_>>(),
        "quotas": report.quotas.iter().map(|it| serde_json::json!({
            "team": it.team,
            "quota_gpus": it.quota,
            "mean_gpus": it.mean.map(milli),
            "most_gpus_of_a_day": it.most_of_a_day.map(milli),
            "forecast_gpus": it.forecast.map(milli),
            "is_over": it.is_over(),
        })).collect::<Vec<_>>(),
        "spot": spot_json(&report.spot),
        "commitments": Commitments::of(made).as_ref().map(commitments_json),
        "notes": made.notes,
        "findings": report.findings,
    });
    let mut text = serde_json::to_string_pretty(&value).expect("it is made of text and numbers");
    text.push('\n');
    text
}

/// What changed since the month before; why that cannot be said stands in its place.
fn change_json(change: &Result<Change, String>, compared: &str) -> serde_json::Value {
    let known = change.as_ref().ok();
    let most = known.and_then(|it| it.most.as_ref());
    serde_json::json!({
        "compared": known.map(|_| compared),
        "not_compared": change.as_ref().err(),
        "days": known.map(|it| sum_json(&it.now)),
        "days_before": known.map(|it| sum_json(&it.before)),
        "change": known.map(|it| decimal(it.cost())),
        "moved_most": most.map(|(team, change)| serde_json::json!({
            "team": team, "change": decimal(*change),
        })),
    })
}

/// Who bears a cost where policies divide what was free, and what it is of where that is not what he used or was
/// given: what is nobody's then is the platform's.
fn bearer(payer: &Payer) -> (&str, Option<&'static str>) {
    match payer {
        Payer::Nobody => (PLATFORM, Some("not in use, not idle")),
        payer => (payer.name(), None),
    }
}

/// Thousandths as a decimal.
fn milli(thousandths: i128) -> String {
    decimal(thousandths * 1_000_000)
}

/// What Spot came to; none where none was bought.
fn spot_json(spot: &Spot) -> Option<serde_json::Value> {
    let place = |(place, outcome): (&Place, &Outcome)| {
        let mut value = outcome_json(outcome);
        value["pool"] = place.pool.as_str().into();
        value["zone"] = place.zone.as_str().into();
        value["machine_type"] = place.machine_type.as_str().into();
        value
    };
    let mut value = outcome_json(&spot.total());
    value["places"] = spot.places.iter().map(place).collect();
    value["preemptions_elsewhere"] = spot.elsewhere.into();
    value["preempted_runs_elsewhere"] = spot.elsewhere_runs.into();
    value["went_unsaid"] = spot.unsaid.into();
    value["preemptions_not_known"] = spot.untold.as_deref().into();
    (!spot.is_empty()).then_some(value)
}

fn outcome_json(it: &Outcome) -> serde_json::Value {
    let thousandths = it.preemptions_per_1000_hours();
    serde_json::json!({
        "gpu_millis": it.bought.gpu_millis,
        "cost": decimal(it.bought.spot),
        "on_demand_cost": decimal(it.bought.on_demand),
        "unknown_gpu_millis": it.bought.unknown_gpu_millis,
        "saved": decimal(it.saved()),
        "preemptions": it.known_preemptions(),
        "preemptions_without_runs": it.known_preemptions().map(|_| it.without_runs),
        "preempted_runs": it.known_preemptions().map(|_| it.runs),
        "preempted_runs_of_unknown_loss": it.unknown_losses,
        "preemptions_per_1000_gpu_hours": thousandths.map(milli),
        "lost_gpu_millis": it.lost_gpu_millis,
        "lost": decimal(it.lost),
        "net_saved": decimal(it.net()),
    })
}

fn commitments_json(it: &Commitments) -> serde_json::Value {
    let part = efficiency::part;
    let each = it.by_id.iter().map(|(id, it)| {
        serde_json::json!({
            "id": id,
            "used": decimal(it.used),
            "unused": decimal(it.unused),
            "utilisation": part(it.utilisation()),
        })
    });
    serde_json::json!({
        "coverage": part(it.coverage()),
        "utilisation": part(it.total().utilisation()),
        "effective_savings_rate": part(it.savings_rate()),
        "covered_gpu_millis": it.covered_gpu_millis,
        "on_demand_gpu_millis": it.on_demand_gpu_millis,
        "paid": decimal(it.paid),
        "list": decimal(it.list),
        "each": each.collect::<Vec<_>>(),
    })
}

/// Each day of each payer, the days in their order. They add up to the total.
fn days_json(made: &Chargeback) -> Vec<serde_json::Value> {
    let mut days: BTreeMap<(i64, &str), Sum> = BTreeMap::new();
    for (day, sum) in &made.days {
        let team = made.payers[day.payer].name();
        days.entry((day.day, team)).or_default().add(sum);
    }
    let day = |((day, team), sum): ((i64, &str), Sum)| serde_json::json!({ "day": day_text(day), "team": team, "sum": sum_json(&sum) });
    days.into_iter().map(day).collect()
}

fn group_json(report: &Report<'_>, group: &Group) -> serde_json::Value {
    let words = report.by.iter().zip(&group.words);
    let words: BTreeMap<_, _> = words.map(|(by, word)| (by.name(), word)).collect();
    serde_json::json!({ "by": words, "sum": sum_json(&group.sum), "states": states_json(group) })
}

/// The states of a group, each with its reasons, which add up to it.
fn states_json(group: &Group) -> BTreeMap<&'static str, serde_json::Value> {
    let of = |(state, sum): (&State, &Sum)| {
        let all = (*state, Reason::Unknown)..=(*state, Reason::WarmStandby);
        let reasons = group.reasons.range(all);
        let reasons = reasons.map(|((_, reason), sum)| (reason.name(), sum_json(sum)));
        let mut value = sum_json(sum);
        value["reasons"] = serde_json::json!(reasons.collect::<BTreeMap<_, _>>());
        (state.name(), value)
    };
    group.states.iter().map(of).collect()
}

fn sum_json(sum: &Sum) -> serde_json::Value {
    serde_json::json!({
        "gpu_millis": sum.gpu_millis,
        "cost": decimal(sum.cost),
        "list_cost": decimal(sum.list),
        "gpu_only_cost": decimal(sum.gpu_cost),
        "gpu_only_unpriced_gpu_millis": sum.gpu_unpriced_millis,
        "unpriced_gpu_millis": sum.unpriced_millis,
        "inefficiency_gpu_millis": sum.lost_millis,
        "energy_kwh": kilowatt_hours(sum.energy),
        "energy_metered_gpu_millis": sum.energy.metered_millis,
    })
}

/// A day counted from the epoch, as a date.
pub fn day_text(day: i64) -> String {
    let text = table::moment_text(day * crate::chargeback::MILLIS_PER_DAY);
    text.chars().take(10).collect()
}

/// The states in the order in which they are listed and stacked: work first, then what is idle, then
/// trouble. Not observed comes last: what is left over belongs to it.
pub const STACK: [State; 13] = [
    State::ActiveEfficient,
    State::ActiveUnrated,
    State::ActiveInefficient,
    State::Gap,
    State::StartingPod,
    State::StartingNode,
    State::Draining,
    State::Stalled,
    State::Parked,
    State::HeldEmpty,
    State::Unallocated,
    State::Unhealthy,
    State::Unobserved,
];
