//! Advice that was given in the time of a report: how much of it was taken, and what that saved.
//!
//! The judgement is [`crate::taken`]'s; here it is summed by kind and by who pays, and what was taken is listed. Where
//! advice was not kept in all of the time it says so: what is not kept is not none.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Value, json};

use crate::chargeback::MILLIS_PER_DAY;
use crate::money::decimal;
use crate::report::{Report, day_text};
use crate::taken::{Kind, Record, Sum, sums};

/// Most of what was taken that is listed, what saved most first.
pub const MAX_LISTED: usize = 100;

/// What is kept of advice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Advised {
    /// What was given or saved in the time.
    pub records: Vec<Record>,
    /// Why there may have been more; none where this is all.
    pub not_kept: Option<String>,
}

impl Advised {
    /// By kind.
    pub fn by_kind(&self, time: &Range<i64>) -> BTreeMap<Kind, Sum> {
        sums(&self.records, time, |it| it.advice.kind)
    }

    /// By who pays.
    pub fn by_payer(&self, time: &Range<i64>) -> BTreeMap<&str, Sum> {
        sums(&self.records, time, |it| it.advice.payer.as_str())
    }

    /// What was taken in that time or saved in it, what saved most first, at most [`MAX_LISTED`].
    pub fn taken(&self, time: &Range<i64>) -> Vec<&Record> {
        let saved = |it: &Record| it.saved_in(time).unwrap_or(0);
        let is_then = |it: &&Record| {
            let taken = it.changed_ms.is_some_and(|it| time.contains(&it));
            it.counts() && it.standing.is_taken() && (taken || saved(it) != 0)
        };
        let mut found: Vec<&Record> = self.records.iter().filter(is_then).collect();
        found.sort_by_key(|it| (std::cmp::Reverse(saved(it)), it.number));
        found.truncate(MAX_LISTED);
        found
    }
}

/// The time of a report.
pub(crate) fn time(report: &Report<'_>) -> Range<i64> {
    report.chargeback.from_ms..report.chargeback.until_ms
}

/// A payer's columns of the CSV: given, worth a day, taken, saved; empty where nothing of it is kept.
pub(super) fn columns(advised: &Advised, sum: Option<&Sum>) -> [String; 4] {
    match (sum, &advised.not_kept) {
        (None, Some(_)) => Default::default(),
        (sum, _) => {
            let sum = sum.copied().unwrap_or_default();
            [
                sum.given.to_string(),
                sum.worth().map(decimal).unwrap_or_default(),
                sum.taken.to_string(),
                sum.saved().map(decimal).unwrap_or_default(),
            ]
        }
    }
}

/// All of it as JSON.
pub(super) fn json(report: &Report<'_>) -> Value {
    let (advised, time) = (&report.advised, time(report));
    let by_kind = advised.by_kind(&time).into_iter().map(|(kind, sum)| {
        json!({
            "kind": kind.name(),
            "given": sum.given,
            "worth_per_day": sum.worth().map(decimal),
            "without_price": sum.unpriced,
            "taken": sum.taken,
            "taken_not_measured": sum.unmeasured,
            "saved": sum.saved().map(decimal),
        })
    });
    let taken = advised.taken(&time).into_iter().map(|it| {
        let advice = &it.advice;
        json!({
            "kind": advice.kind.name(),
            "cluster": advice.cluster,
            "team": advice.payer,
            "about": advice.about,
            "what": advice.what,
            "before": advice.today,
            "proposed": advice.proposed,
            "worth_per_day": advice.worth.map(|it| decimal(it.into())),
            "given_on": day(it.first_ms),
            "taken_on": it.changed_ms.map(day),
            "is_over": it.standing.is_over(),
            "saved": it.saved_in(&time).map(decimal),
            "not_measured": Some(&it.unmeasured).filter(|it| !it.is_empty()),
        })
    });
    json!({
        "by_kind": by_kind.collect::<Vec<_>>(),
        "taken": taken.collect::<Vec<_>>(),
        "not_kept": advised.not_kept,
    })
}

/// The date of a moment.
pub(crate) fn day(at_ms: i64) -> String {
    day_text(at_ms.div_euclid(MILLIS_PER_DAY))
}
