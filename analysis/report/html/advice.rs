//! The page's section on advice: what was given, what of it was taken, and what that saved.

use super::super::Report;
use super::super::efficiency::advice::{day, time};
use super::{MAX_BARS, Row, money, or_dash};

/// By kind: given, worth a day, taken, saved.
pub(super) fn kinds(report: &Report<'_>) -> Vec<Row> {
    let sums = report.advised.by_kind(&time(report));
    let of = |(kind, sum): (crate::taken::Kind, crate::taken::Sum)| Row {
        words: vec![kind.words().to_owned()],
        numbers: vec![
            sum.given.to_string(),
            match (sum.worth(), sum.unpriced) {
                (None, _) => "no price or known gain".to_owned(),
                (Some(worth), 0) => money(worth),
                (Some(worth), count) => {
                    format!("{}, {count} without a price or known gain", money(worth))
                }
            },
            sum.taken.to_string(),
            sum.saved().map_or("not measured".to_owned(), money),
        ],
        is_bad: false,
    };
    sums.into_iter().map(of).collect()
}

/// What was taken, what saved most first.
pub(super) fn taken(report: &Report<'_>) -> Vec<Row> {
    let time = time(report);
    let taken = report.advised.taken(&time);
    let of = |it: &crate::taken::Record| {
        let advice = &it.advice;
        Row {
            words: vec![
                or_dash(&advice.payer),
                or_dash(&advice.about),
                format!("{}: {} → {}", advice.what, advice.today, advice.proposed),
                it.changed_ms.map_or("–".to_owned(), day),
            ],
            numbers: vec![it.saved_in(&time).map_or("not measured".to_owned(), money)],
            is_bad: false,
        }
    };
    taken.into_iter().take(MAX_BARS).map(of).collect()
}
