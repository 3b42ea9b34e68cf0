//! A payer's week in words and, with the same figures, for programs.
//!
//! A figure is a value, or why there is none, or a value and what is not in it: nothing that is not known is
//! written as 0. Names of teams and jobs come from labels: they are made harmless and cut to [`NAME`] characters.

use std::fmt::Write as _;

use gpufleet_analysis::chargeback::{MILLIS_PER_DAY, Sum};
use gpufleet_analysis::digest::{DAYS, Spent, Summary};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::money::{decimal, ratio};
use gpufleet_analysis::report::{day_text, efficiency::Mean, hours};
use gpufleet_analysis::table;
use serde_json::{Value, json};

use super::look;
use super::text::{self, amount, counted, harmless};

mod action;

mod advice;

use action::action;

/// Longest name of a team or a job, characters.
const NAME: usize = 100;

/// Longest reason, characters.
const REASON: usize = 200;

/// A whole, in millionths.
const WHOLE: i128 = 1_000_000;

/// A week as it is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// One line.
    pub title: String,
    /// All the rest, in lines.
    pub text: String,
    /// The same for programs; money and ratios as decimal text.
    pub figures: Value,
}

/// A figure: what is known of it, and what is not.
struct Figure<T> {
    value: Option<T>,
    note: Option<String>,
}

impl<T> Figure<T> {
    fn known(value: T) -> Self {
        Self {
            value: Some(value),
            note: None,
        }
    }

    fn unknown(why: String) -> Self {
        Self {
            value: None,
            note: Some(why),
        }
    }

    fn words(&self, of: impl Fn(&T) -> String) -> String {
        match (&self.value, &self.note) {
            (Some(value), None) => of(value),
            (Some(value), Some(note)) => format!("{} ({note})", of(value)),
            (None, note) => format!("not known: {}", note.as_deref().unwrap_or("nobody told it")),
        }
    }

    fn json(&self, of: impl Fn(&T) -> String) -> Value {
        json!({ "value": self.value.as_ref().map(of), "note": self.note })
    }
}

/// What idle time is, then what else is named of a week.
const PARTS: [(&str, State); 5] = [
    ("parked", State::Parked),
    ("held_empty", State::HeldEmpty),
    ("free", State::Unallocated),
    ("stalled", State::Stalled),
    ("unobserved", State::Unobserved),
];

/// The week of a payer; `page` is the address of our page of costs.
pub fn say(it: &Summary, page: &str) -> Said {
    let payer = harmless(&it.payer, NAME);
    let came_to = match held(it).value {
        Some(millis) => format!(
            "{} for {} GPU-hours",
            title_cost(&cost(it, &it.this.sum), &it.currency),
            text::hours(millis)
        ),
        None => "nothing is recorded of it".to_owned(),
    };
    Said {
        title: format!("Week {} of {payer}: {came_to}", it.week),
        text: text(it, page),
        figures: figures(it, &payer, page),
    }
}

fn text(it: &Summary, page: &str) -> String {
    let days = it.week.days();
    let money = |nano: &i128| amount(&it.currency, *nano);
    let mut lines = vec![format!(
        "{} to {} (UTC)",
        day(days.start),
        day(days.end - 1)
    )];
    if let Some(missing) = missing(&it.this, "the week") {
        lines.push(format!(
            "Not known: {missing}; the figures are of {}.",
            match it.this.missing_of.is_empty() {
                true => "the other days",
                false => "what is recorded",
            }
        ));
    }
    lines.extend(it.not_read.iter().map(|it| format!("Not known: {it}")));
    let active = it.this.of(State::is_active).gpu_millis;
    let active = ratio(active.into(), WHOLE, it.this.sum.gpu_millis.into());
    lines.push(format!(
        "Held: {}{}",
        held(it).words(|it| format!("{} GPU-hours", text::hours(*it))),
        active.map_or(String::new(), |it| format!(
            "; of all that it pays for {} active",
            percent(it)
        )),
    ));
    lines.push(format!("Cost: {}", cost(it, &it.this.sum).words(money)));
    lines.push(format!("Idle: {}", idle_words(it)));
    let of = |state: State| it.this.of(|it| it == state);
    lines.push(format!(
        "Stalled: {}",
        hours_and_cost(it, &of(State::Stalled))
    ));
    let unobserved = of(State::Unobserved);
    if unobserved.gpu_millis > 0 {
        lines.push(format!(
            "Not measured: {}; what was done in it is not known",
            hours_and_cost(it, &unobserved)
        ));
    }
    for (name, figure) in [
        ("Goodput", mean(it, &it.training.goodput)),
        ("MFU", mean(it, &it.training.mfu)),
    ] {
        lines.push(format!("{name}: {}", figure.words(|it| percent(*it))));
    }
    lines.push(format!("Month to date: {}", month(it)));
    lines.push(format!("Against the week before: {}", change_words(it)));
    lines.extend(advice::words(it));
    if !it.waste.is_empty() {
        lines.push("Most for nothing:".to_owned());
    }
    lines.extend((1..).zip(&it.waste).map(|(number, waste)| {
        format!(
            "{number}. {}, {}: {}. {}",
            job(&waste.job),
            look(waste.state).name,
            hours_and_cost(it, &waste.sum),
            action(waste.state, &it.payer)
        )
    }));
    lines.push(format!("Page: {page}\n"));
    lines.join("\n")
}

/// All of it that is idle, and of what kind.
fn idle_words(it: &Summary) -> String {
    let all = hours_and_cost(it, &it.this.of(State::is_idle));
    let idle = PARTS.into_iter().filter(|(_, state)| state.is_idle());
    let parts = idle.filter_map(|(_, state)| {
        let sum = it.this.of(|it| it == state);
        let words = cost(it, &sum).words(|nano| amount(&it.currency, *nano));
        (sum.gpu_millis > 0).then(|| format!("{} {words}", look(state).name))
    });
    let parts: Vec<String> = parts.collect();
    match parts.len() {
        0 => all,
        _ => format!("{all}: {}", parts.join(", ")),
    }
}

fn figures(it: &Summary, payer: &str, page: &str) -> Value {
    let days = it.week.days();
    let cost_json = |sum: &Sum| cost(it, sum).json(|it| decimal(*it));
    let part = |(name, state): (&str, State)| {
        let sum = it.this.of(|it| it == state);
        let value = json!({
            "gpu_hours": known_hours(it, sum.gpu_millis).json(|it| hours(*it)),
            "cost": cost_json(&sum),
        });
        (name.to_owned(), value)
    };
    let states: serde_json::Map<String, Value> = PARTS.into_iter().map(part).collect();
    let waste = it.waste.iter().map(|one| {
        json!({
            "job": harmless(&one.job, NAME),
            "state": one.state.name(),
            "gpu_hours": hours(one.sum.gpu_millis),
            "cost": cost_json(&one.sum),
            "action": action(one.state, &it.payer),
        })
    });
    let (budget, change) = (it.budget.as_ref(), change(it));
    let ratio_json = |of: &Mean| mean(it, of).json(|it| decimal(*it * 1_000));
    json!({
        "week": it.week.to_string(),
        "from": table::moment_text(days.start * MILLIS_PER_DAY),
        "until": table::moment_text(days.end * MILLIS_PER_DAY),
        "team": payer,
        "currency": it.currency,
        "days_not_recorded": it.this.missing.iter().map(|it| day_text(*it)).collect::<Vec<_>>(),
        "not_read": it.not_read,
        "held_gpu_hours": held(it).json(|it| hours(*it)),
        "cost": cost_json(&it.this.sum),
        "idle_cost": cost_json(&it.this.of(State::is_idle)),
        "states": states,
        "goodput": ratio_json(&it.training.goodput),
        "mfu": ratio_json(&it.training.mfu),
        "month_to_date": {
            "cost": month_cost(it).json(|it| decimal(*it)),
            "budget": budget.map(|it| decimal(it.budget)),
            "forecast": budget.and_then(|it| it.forecast).map(decimal),
            "is_over": budget.map(|it| it.is_over()),
        },
        "against_week_before": {
            "held_gpu_hours": change.json(|it| hours(it.held_gpu_millis)),
            "cost": change.json(|it| decimal(it.cost)),
            "idle_cost": change.json(|it| decimal(it.idle)),
        },
        "waste": waste.collect::<Vec<_>>(),
        "advice": advice::figures(it),
        "link": page,
    })
}

/// The payers that there was no message for, together.
pub fn say_rest(rest: &[&Summary], page: &str) -> Option<Said> {
    let first = *rest.first()?;
    let mut all = Summary {
        payer: counted(rest.len(), "more team", "more teams"),
        waste: Vec::new(),
        budget: None,
        ..first.clone()
    };
    for one in &rest[1..] {
        for (into, spent) in [
            (&mut all.this, &one.this),
            (&mut all.before, &one.before),
            (&mut all.month, &one.month),
        ] {
            into.add(spent);
        }
        all.training.join(&one.training);
        all.advised.join(&one.advised);
        all.unpriced = all.unpriced.or_else(|| one.unpriced.clone());
    }
    let mut said = say(&all, page);
    let dearest: Vec<String> = rest
        .iter()
        .take(10)
        .map(|it| harmless(&it.payer, NAME / 4))
        .collect();
    let _ = writeln!(
        said.text,
        "No message each, because there are too many: `gpufleet-server digest --week {}` prints every one. The dearest of them: {}",
        first.week,
        dearest.join(", ")
    );
    said.figures["teams"] = rest.len().into();
    Some(said)
}

/// How two weeks differ.
struct Change {
    held_gpu_millis: i64,
    cost: i128,
    idle: i128,
}

fn change(it: &Summary) -> Figure<Change> {
    if let Some(not_read) = &it.not_read {
        return Figure::unknown(not_read.clone());
    }
    for (spent, which) in [(&it.this, "the week"), (&it.before, "the week before")] {
        if let Some(missing) = missing(spent, which) {
            return Figure::unknown(missing);
        }
        if spent.sum.unpriced_millis > 0 {
            let hours = text::hours(spent.sum.unpriced_millis);
            return Figure::unknown(format!("{hours} GPU-hours of {which} have no price"));
        }
    }
    let idle = |it: &Spent| it.of(State::is_idle).cost;
    Figure::known(Change {
        held_gpu_millis: it.this.held_gpu_millis - it.before.held_gpu_millis,
        cost: it.this.sum.cost - it.before.sum.cost,
        idle: idle(&it.this) - idle(&it.before),
    })
}

fn change_words(it: &Summary) -> String {
    let more = |is_less: bool| if is_less { "less" } else { "more" };
    change(it).words(|change| {
        let money = |nano: i128| amount(&it.currency, nano.abs());
        format!(
            "{} GPU-hours {} held, {} {}, of it idle {} {}",
            text::hours(change.held_gpu_millis.abs()),
            more(change.held_gpu_millis < 0),
            money(change.cost),
            more(change.cost < 0),
            money(change.idle),
            more(change.idle < 0),
        )
    })
}

/// Of which days of a stretch nothing is recorded, or not of each cluster, in words; none where all is.
fn missing(spent: &Spent, of: &str) -> Option<String> {
    let days = &spent.missing;
    let few = usize::try_from(DAYS).unwrap_or_default();
    let (what, of) = match harmless(&spent.missing_of.join(", "), REASON).as_str() {
        "" => ("nothing", of.to_owned()),
        clusters => ("not all", format!("{of} ({clusters})")),
    };
    match days.len() {
        0 => None,
        count if count > few => Some(format!("{what} is recorded of {count} days of {of}")),
        count => {
            let dates: Vec<String> = days.iter().map(|it| day_text(*it)).collect();
            let days = counted(count, "day", "days");
            Some(format!(
                "{what} is recorded of {days} of {of}: {}",
                dates.join(", ")
            ))
        }
    }
}

/// GPU-milliseconds of the week; none where nothing of the week is recorded.
fn known_hours(it: &Summary, gpu_millis: i64) -> Figure<i64> {
    match is_nothing_recorded(it) {
        true => Figure::unknown("nothing is recorded of the week".to_owned()),
        false => Figure::known(gpu_millis),
    }
}

fn is_nothing_recorded(it: &Summary) -> bool {
    let missing = i64::try_from(it.this.missing.len());
    // Where some clusters are recorded, of who has nothing there nothing may be.
    let is_theirs = it.this.missing_of.is_empty() || it.this.sum.gpu_millis == 0;
    is_theirs && missing.is_ok_and(|count| count >= DAYS)
}

fn held(it: &Summary) -> Figure<i64> {
    known_hours(it, it.this.held_gpu_millis)
}

/// What of the week costs so much; time without a price is in no sum.
fn cost(it: &Summary, sum: &Sum) -> Figure<i128> {
    if is_nothing_recorded(it) && sum.gpu_millis == 0 {
        return Figure::unknown("nothing is recorded of the week".to_owned());
    }
    let why = it.unpriced.as_deref().unwrap_or("it has no price");
    priced(sum, &harmless(why, REASON))
}

fn priced(sum: &Sum, why: &str) -> Figure<i128> {
    match sum.unpriced_millis {
        0 => Figure::known(sum.cost),
        unpriced if unpriced >= sum.gpu_millis => Figure::unknown(why.to_owned()),
        unpriced => Figure {
            value: Some(sum.cost),
            note: Some(format!(
                "and {} GPU-hours without a price: {why}",
                text::hours(unpriced)
            )),
        },
    }
}

fn hours_and_cost(it: &Summary, sum: &Sum) -> String {
    let cost = cost(it, sum).words(|nano| amount(&it.currency, *nano));
    match sum.gpu_millis {
        0 if is_nothing_recorded(it) => cost,
        0 => "none".to_owned(),
        millis => format!("{} GPU-hours, {cost}", text::hours(millis)),
    }
}

/// The cost in a title: what is not known is said below it.
fn title_cost(cost: &Figure<i128>, currency: &str) -> String {
    match (cost.value, &cost.note) {
        (Some(nano), None) => amount(currency, nano),
        (Some(nano), Some(_)) => format!("at least {}", amount(currency, nano)),
        (None, _) => "cost not known".to_owned(),
    }
}

fn month_cost(it: &Summary) -> Figure<i128> {
    let cost = priced(&it.month.sum, "it has no price");
    match missing(&it.month, "the month") {
        None => cost,
        Some(missing) => Figure {
            note: Some(match cost.note {
                Some(note) => format!("{note}; {missing}"),
                None => missing,
            }),
            value: cost.value.filter(|_| it.month.sum.gpu_millis > 0),
        },
    }
}

fn month(it: &Summary) -> String {
    let money = |nano: i128| amount(&it.currency, nano);
    let spent = month_cost(it).words(|nano| money(*nano));
    let Some(budget) = &it.budget else {
        return format!("{spent}; no budget is set");
    };
    let part = ratio(budget.spent, WHOLE, budget.budget);
    let part = part.map_or(String::new(), |it| format!(", {}", percent(it)));
    let forecast = match budget.forecast {
        Some(nano) => format!("the month will come to {}", money(nano)),
        None => "what the month will come to is not known: no day of it is whole".to_owned(),
    };
    let over = if budget.is_over() { ": over it" } else { "" };
    format!(
        "{spent} of a budget of {}{part}; {forecast}{over}",
        money(budget.budget)
    )
}

/// Goodput or MFU, and how much of what was held is behind it.
fn mean(it: &Summary, mean: &Mean) -> Figure<i128> {
    let known = mean.millionths().zip(it.training.covered(mean));
    let figure = match (known, it.training.runs) {
        (Some((value, covered)), _) => Figure {
            value: Some(value),
            note: Some(format!("of {} of what was held", percent(covered))),
        },
        (None, 0) => Figure::unknown("no training run told it".to_owned()),
        (None, runs) => {
            let runs = counted(runs, "training run", "training runs");
            Figure::unknown(format!("none of {runs} told it"))
        }
    };
    let Some(untold) = &it.runs_untold else {
        return figure;
    };
    let untold = harmless(untold, REASON);
    let note = figure.note.map(|it| format!("{it}; {untold}"));
    Figure {
        note: note.or(Some(untold)),
        ..figure
    }
}

fn job(name: &str) -> String {
    match name {
        "" => "nobody's job".to_owned(),
        name => harmless(name, NAME),
    }
}

/// Millionths to a tenth of a percent.
fn percent(millionths: i128) -> String {
    let tenths = ratio(millionths, 1, 1_000).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// `Monday 2026-11-16`.
fn day(day: i64) -> String {
    const NAMES: [&str; 7] = [
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
    ];
    let name = usize::try_from(day.rem_euclid(DAYS)).ok();
    let name = name.and_then(|it| NAMES.get(it)).copied();
    format!("{} {}", name.unwrap_or_default(), day_text(day))
}

#[cfg(test)]
mod tests;
