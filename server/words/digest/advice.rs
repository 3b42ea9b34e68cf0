//! What a payer was advised in a week, what of it was taken, and what that saved.

use gpufleet_analysis::digest::Summary;
use gpufleet_analysis::money::decimal;
use serde_json::{Value, json};

use super::super::text::amount;

/// In a line; none where there was nothing, and that is known.
pub(super) fn words(it: &Summary) -> Option<String> {
    let (sum, money) = (&it.advised, |nano: i128| amount(&it.currency, nano));
    let untold = it.advice_not_kept.as_deref();
    if sum.given + sum.taken == 0 && sum.saved == 0 {
        return untold.map(|why| format!("Advice: not known: {why}"));
    }
    let unmeasured = match sum.unmeasured {
        0 => String::new(),
        count => format!(" (of {count} what was saved is not measured)"),
    };
    let worth = match (sum.worth(), sum.unpriced) {
        (None, _) => "without a price or known gain".to_owned(),
        (Some(worth), 0) => format!("worth {} a day", money(worth)),
        (Some(worth), count) => {
            let worth = money(worth);
            format!("worth {worth} a day ({count} without a price or known gain)")
        }
    };
    Some(format!(
        "Advice: {} given, {worth}; {} taken{unmeasured}; saved in the week, measured against before: {}{}",
        sum.given,
        sum.taken,
        sum.saved().map_or("not measured".to_owned(), money),
        untold.map_or(String::new(), |why| format!(" ({why})")),
    ))
}

/// The same for programs.
pub(super) fn figures(it: &Summary) -> Value {
    json!({
        "given": it.advised.given,
        "worth_per_day": it.advised.worth().map(decimal),
        "taken": it.advised.taken,
        "taken_not_measured": it.advised.unmeasured,
        "saved": it.advised.saved().map(decimal),
        "not_kept": it.advice_not_kept,
    })
}
