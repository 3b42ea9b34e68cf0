//! The page's sections on the terms of paying: what Spot and commitments came to.

use super::super::Report;
use super::super::efficiency::{Balance, Serving};
use super::{Row, commas, hours, known_of, money, or_dash, percent, signed};
use crate::chargeback::Sum;
use crate::chargeback::commitments::Commitments;
use crate::chargeback::quota;
use crate::chargeback::spot::Outcome;
use crate::money::{ratio, tenths};

/// Spot by place, and in all where there is more than one.
pub(super) fn spot(report: &Report<'_>) -> Vec<Row> {
    let spot = &report.spot;
    let places = spot.places.iter();
    let mut rows: Vec<Row> = places
        .map(|(place, outcome)| {
            let words = [&place.pool, &place.zone, &place.machine_type];
            row(words.map(|it| or_dash(it)).to_vec(), outcome)
        })
        .collect();
    if rows.len() > 1 {
        let words = vec!["all".to_owned(), String::new(), String::new()];
        rows.push(row(words, &spot.total()));
    }
    rows
}

/// Demand and supply of a cluster.
pub(super) fn balance_row(it: &Balance) -> Row {
    Row {
        words: vec![or_dash(&it.cluster)],
        numbers: vec![
            tenths(it.gpus),
            tenths(it.held),
            tenths(it.free),
            it.waited_for.map_or("not seen".to_owned(), tenths),
            percent(it.seen, 1_000_000),
        ],
        is_bad: false,
    }
}

/// What serves, and what a million tokens of it cost.
pub(super) fn serving_row(it: &Serving) -> Row {
    let tokens =
        |it: Option<i64>| it.map_or("not told".to_owned(), |it| commas(it.unsigned_abs().into()));
    let dear = |it: Option<i128>| it.map_or("–".to_owned(), money);
    let covered = it.covered().map(|it| percent(it, 1_000_000));
    Row {
        words: vec![or_dash(&it.job), or_dash(&it.payer), it.models.join(", ")],
        numbers: vec![
            tokens(it.prompt_tokens),
            tokens(it.generated_tokens),
            hours(it.gpu_millis),
            covered.unwrap_or_else(|| "–".to_owned()),
            dear(it.cost),
            dear(it.per_million()),
            match it.why_not() {
                Some(why) => why.to_owned(),
                None => dear(it.per_million_generated()),
            },
        ],
        is_bad: false,
    }
}

/// A team and the GPUs that it may hold.
pub(super) fn quota_row(it: &quota::Standing) -> Row {
    let gpus = |milli: Option<i128>| milli.map_or("–".to_owned(), tenths);
    Row {
        words: vec![it.team.clone()],
        numbers: vec![
            it.quota.to_string(),
            gpus(it.mean),
            gpus(it.most_of_a_day),
            gpus(it.forecast),
        ],
        is_bad: it.is_over(),
    }
}

/// Kilowatt-hours, and of how much of the time they are where that is not all of it.
pub(super) fn energy(sum: &Sum) -> String {
    let Some(millijoules) = sum.energy.told() else {
        return "not told".to_owned();
    };
    let tenths = ratio(millijoules.into(), 1, 360_000_000).unwrap_or(0);
    let tenths = tenths.unsigned_abs();
    let told = format!("{}.{}", commas(tenths / 10), tenths % 10);
    known_of(
        &told,
        sum.energy.metered_millis.into(),
        sum.gpu_millis.into(),
    )
}

fn row(words: Vec<String>, it: &Outcome) -> Row {
    let rate = it.preemptions_per_1000_hours();
    let told = |count: u64| match it.is_untold {
        true => "unknown".to_owned(),
        false => count.to_string(),
    };
    Row {
        words,
        numbers: vec![
            hours(it.bought.gpu_millis),
            money(it.bought.spot),
            money(it.bought.on_demand),
            told(it.preemptions),
            told(it.runs),
            rate.map_or("–".to_owned(), tenths),
            money(it.lost),
            signed(it.net()),
        ],
        is_bad: it.net() < 0,
    }
}

/// What is to be known beside the table of Spot.
pub(super) fn spot_notes(report: &Report<'_>) -> Vec<String> {
    let (spot, mut notes) = (&report.spot, Vec::new());
    let total = spot.total();
    if let Some(why) = &spot.untold {
        notes.push(format!(
            "How often Spot was preempted is not known, and the net saving is at most that: {why}."
        ));
    }
    if total.unknown_losses > 0 {
        notes.push(format!(
            "Of {} runs not everything that they lost is known: the net saving is at most that.",
            total.unknown_losses
        ));
    }
    if total.without_runs > 0 {
        notes.push(format!(
            "On {} of the machines that were taken back no training run told its steps: what else was on them is in no loss.",
            total.without_runs
        ));
    }
    if spot.unsaid > 0 && !spot.is_empty() {
        notes.push(format!(
            "{} machines more went, and nobody says whether they were taken back or given back.",
            spot.unsaid
        ));
    }
    if total.bought.unknown_gpu_millis > 0 {
        notes.push(format!(
            "{} GPU-hours at Spot have no Spot price or no price on demand, and are in no sum.",
            hours(total.bought.unknown_gpu_millis)
        ));
    }
    if spot.elsewhere + spot.elsewhere_runs > 0 && !spot.is_empty() {
        notes.push(format!(
            "{} machines more were taken back with {} runs, which are not paid at Spot, or not known.",
            spot.elsewhere, spot.elsewhere_runs
        ));
    }
    notes
}

/// The figures of commitments; nothing where there was none.
pub(super) fn commitments(report: &Report<'_>) -> Vec<(String, String)> {
    let Some(it) = Commitments::of(report.chargeback) else {
        return Vec::new();
    };
    let part = |millionths: Option<i128>| {
        millionths.map_or("–".to_owned(), |it| {
            let sign = if it < 0 { "−" } else { "" };
            format!("{sign}{}", percent(it.abs(), 1_000_000))
        })
    };
    let total = it.total();
    let mut rows = vec![
        (
            "coverage: of the time that is paid on demand or committed".to_owned(),
            part(it.coverage()),
        ),
        (
            "utilisation: of what is paid for commitments".to_owned(),
            part(total.utilisation()),
        ),
        (
            "effective savings rate: against the list price of what was used".to_owned(),
            part(it.savings_rate()),
        ),
        (
            "saved, after what nobody used".to_owned(),
            signed(it.list - it.paid),
        ),
        ("paid for nothing".to_owned(), money(total.unused)),
    ];
    let each = it.by_id.iter().filter(|_| it.by_id.len() > 1);
    rows.extend(each.map(|(id, used)| (format!("utilisation of {id}"), part(used.utilisation()))));
    rows
}
