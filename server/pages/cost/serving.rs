//! What serves this month, and what a million tokens of it cost.

use gpufleet_analysis::report::efficiency::Serving;

use super::MAX_ROWS;
use crate::words::text::{self, Name, amount};

/// A job that serves.
pub(super) struct Row {
    pub(super) job: Name,
    pub(super) team: Name,
    pub(super) models: String,
    pub(super) prompts: String,
    pub(super) generated: String,
    pub(super) cost: String,
    /// What a million generated tokens cost, or why that is not known.
    pub(super) per_million: String,
    pub(super) is_known: bool,
    /// The line of Health that mends it where it is not.
    pub(super) anchor: &'static str,
}

/// The rows, and how many there are beyond.
pub(super) fn rows(all: &[Serving], currency: &str) -> (Vec<Row>, usize) {
    let rows = all.iter().take(MAX_ROWS).map(|it| row(it, currency));
    (rows.collect(), all.len().saturating_sub(MAX_ROWS))
}

fn row(it: &Serving, currency: &str) -> Row {
    let tokens = |it: Option<i64>| match it {
        Some(it) => text::grouped(it as f64),
        None => "not told".to_owned(),
    };
    let per_million = match (it.per_million_generated(), it.per_million()) {
        (Some(generated), Some(all)) => format!(
            "{}, {} with prompts",
            amount(currency, generated),
            amount(currency, all)
        ),
        (Some(generated), None) => amount(currency, generated),
        (None, _) => it.why_not().unwrap_or_default().to_owned(),
    };
    let covered = it.covered().filter(|it| *it < 999_500);
    let covered = covered.map_or(String::new(), |it| {
        format!(" for {} % of its time", it / 10_000)
    });
    Row {
        job: Name::new(&it.job),
        team: Name::new(&it.payer),
        models: it.models.join(", "),
        prompts: tokens(it.prompt_tokens),
        generated: tokens(it.generated_tokens),
        cost: match it.cost {
            Some(cost) => format!("{}{covered}", amount(currency, cost)),
            None => "not known".to_owned(),
        },
        per_million,
        is_known: it.per_million_generated().is_some(),
        anchor: match (it.cost, it.why.as_str()) {
            (Some(_), _) => "readers",
            (None, "") => "prices",
            (None, _) => "holders",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    #[test]
    fn a_million_tokens_have_a_price_or_the_reason_why_there_is_none() {
        let chat = Serving {
            job: "deployment:ml/chat".to_owned(),
            models: vec!["a".to_owned(), "b".to_owned()],
            prompt_tokens: Some(30_000_000),
            generated_tokens: Some(10_000_000),
            gpu_millis: 4 * HOUR,
            held_millis: 5 * HOUR,
            cost: Some(40_000_000_000),
            ..Serving::default()
        };
        let untold = Serving {
            prompt_tokens: None,
            gpu_millis: 5 * HOUR,
            ..chat.clone()
        };
        let unknown = Serving {
            cost: None,
            why: "several jobs held GPUs of node-1".to_owned(),
            ..untold.clone()
        };
        let (rows, more) = rows(&[chat, untold, unknown], "USD");
        assert_eq!(more, 0);
        assert_eq!(rows[0].per_million, "$4.00, $1.00 with prompts");
        assert_eq!(rows[0].cost, "$40.00 for 80 % of its time");
        assert_eq!(
            (rows[1].prompts.as_str(), rows[1].per_million.as_str()),
            ("not told", "$4.00")
        );
        assert_eq!(rows[1].cost, "$40.00");
        assert!(rows[0].is_known && !rows[2].is_known);
        let anchors: Vec<&str> = rows.iter().map(|it| it.anchor).collect();
        assert_eq!(anchors, ["readers", "readers", "holders"]);
        assert_eq!(rows[2].per_million, "several jobs held GPUs of node-1");
        assert_eq!(rows[2].cost, "not known");
    }
}
