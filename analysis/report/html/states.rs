//! The page's section on states and why: what tells free GPUs that nobody wanted from those that did not fit.

use super::super::STACK;
use super::{Row, at_least, hours, money};
use crate::chargeback::Sum;
use crate::chargeback::view::Group;
use crate::ledger::{Reason, State};

/// A row for each state and reason, the states in the order in which they are stacked; they add up to the total, which
/// comes last.
pub(super) fn rows(whole: &Group) -> Vec<Row> {
    let mut rows = Vec::new();
    for state in STACK {
        let its = whole.reasons.iter().filter(|it| it.0.0 == state);
        rows.extend(its.map(|((_, reason), sum)| {
            let why = match reason {
                Reason::Unknown if state == State::Unallocated => "not known".to_owned(),
                Reason::Unknown => "–".to_owned(),
                told => told.name().replace('_', " "),
            };
            row([state.name().replace('_', " "), why], sum)
        }));
    }
    rows.push(row(["all".to_owned(), String::new()], &whole.sum));
    rows
}

fn row(words: [String; 2], sum: &Sum) -> Row {
    Row {
        words: words.into(),
        numbers: vec![
            hours(sum.gpu_millis),
            money(sum.cost),
            gpu_only(sum),
            hours(sum.unpriced_millis),
        ],
        is_bad: false,
    }
}

/// What the GPUs cost by themselves; at least so much where that is not known of a part of the time, a dash where it
/// is known of none.
pub(super) fn gpu_only(sum: &Sum) -> String {
    at_least(sum.gpu_cost, (sum.gpu_unpriced_millis, sum.gpu_millis), "–")
}
