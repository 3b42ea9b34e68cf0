//! What 1.3 asks of the columns on split charges and contracts. Files of 1.2 have none of them, and pass.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// What the `Elements` of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Of AllocatedMethodDetails: a part of a charge, and by what it was worked out.
    Allocated,
    /// Of ContractApplied: what a contract has of a charge.
    Contract,
}

/// Ratios add up to this, in billionths.
const ONE: i64 = 1_000_000_000;

impl Entry {
    /// Whether it is an object with at least one right entry and, beside them, only what is our own.
    pub(super) fn is_right(self, value: &str) -> bool {
        let object: Result<Map<String, Value>, _> = serde_json::from_str(value);
        let Ok(object) = object else {
            return false;
        };
        let entries = object.get("Elements").and_then(Value::as_array);
        let is_entry = |it: &Value| it.as_object().is_some_and(|it| self.is_entry(it));
        let are_entries = entries.is_some_and(|it| !it.is_empty() && it.iter().all(is_entry));
        are_entries && object.keys().all(|it| it == "Elements" || is_own(it))
    }

    fn is_entry(self, entry: &Map<String, Value>) -> bool {
        let is_text =
            |name: &str| matches!(entry.get(name), Some(Value::String(it)) if !it.is_empty());
        let is_number = |name: &str| entry.get(name).is_some_and(Value::is_number);
        let has = |name: &str| entry.contains_key(name);
        let (texts, numbers): (&[&str], &[&str]) = match self {
            Self::Allocated => (&["UsageUnit"], &["AllocatedRatio", "UsageQuantity"]),
            Self::Contract => (
                &[
                    "ContractId",
                    "ContractCommitmentId",
                    "ContractCommitmentAppliedUnit",
                ],
                &[
                    "ContractCommitmentAppliedCost",
                    "ContractCommitmentAppliedQuantity",
                ],
            ),
        };
        let are_there = match self {
            Self::Allocated => has("AllocatedRatio") && (has("UsageUnit") || !has("UsageQuantity")),
            Self::Contract => {
                let (quantity, unit) = (numbers[1], texts[2]);
                let is_applied = has(numbers[0]) || has(quantity);
                has(texts[0]) && has(texts[1]) && is_applied && has(quantity) == has(unit)
            }
        };
        let is_right = |(name, value): (&String, &Value)| {
            is_text(name) && texts.contains(&name.as_str())
                || is_number(name) && numbers.contains(&name.as_str())
                || is_own(name) && !value.is_object() && !value.is_array()
        };
        are_there && entry.iter().all(is_right)
    }
}

/// `x_` and words that begin with capitals.
fn is_own(name: &str) -> bool {
    let name = name.strip_prefix("x_").unwrap_or_default();
    name.starts_with(|it: char| it.is_ascii_uppercase())
        && name.bytes().all(|it| it.is_ascii_alphanumeric())
}

/// What is split, over all rows.
#[derive(Debug, Default)]
pub(super) struct Split {
    /// The parts of each origin together, billionths.
    origins: HashMap<[String; 4], i64>,
}

impl Split {
    /// What does not go together in one row.
    pub(super) fn together<'a>(&mut self, field: &impl Fn(&str) -> &'a str) -> Vec<String> {
        let has = |column: &str| !field(column).is_empty();
        let mut wrong = Vec::new();
        for column in [
            "AllocatedMethodDetails",
            "AllocatedResourceId",
            "AllocatedTags",
        ] {
            if has(column) && !has("AllocatedMethodId") {
                wrong.push(format!("{column} needs an AllocatedMethodId"));
            }
        }
        if has("AllocatedMethodId") && !has("AllocatedMethodDetails") {
            wrong.push("what is split has AllocatedMethodDetails".to_owned());
        }
        if has("AllocatedResourceId") != has("AllocatedResourceName") {
            let text = "AllocatedResourceId and AllocatedResourceName go together";
            wrong.push(text.to_owned());
        }
        let keys = |column: &str| -> Map<String, Value> {
            serde_json::from_str(field(column)).unwrap_or_default()
        };
        let tags = keys("Tags");
        let twice = keys("AllocatedTags");
        let twice = twice.keys().find(|it| tags.contains_key(it.as_str()));
        wrong.extend(twice.map(|it| format!("{it} is in Tags and in AllocatedTags")));
        if has("AllocatedMethodDetails") {
            let details = keys("AllocatedMethodDetails");
            let entries = details.get("Elements").and_then(Value::as_array);
            let ratio = |it: &Value| it["AllocatedRatio"].as_f64().unwrap_or(f64::NAN);
            let ratio: f64 = entries.into_iter().flatten().map(ratio).sum();
            if !(0.0..=1.0).contains(&ratio) {
                wrong.push(format!("AllocatedRatio is {ratio}"));
            }
            let origin = [
                "x_Cluster",
                "ResourceId",
                "x_PriceBasis",
                "CommitmentDiscountId",
            ];
            let origin = origin.map(|it| field(it).to_owned());
            // Nine digits of at most 1 are exact in an f64.
            let part = (ratio * 1e9).round() as i64;
            *self.origins.entry(origin).or_default() += part;
        }
        wrong
    }

    /// Origins of which the parts are not the whole.
    pub(super) fn not_whole(self) -> Vec<String> {
        let wrong = self.origins.into_iter().filter(|it| it.1 != ONE);
        let wrong = wrong.map(|([_, resource, basis, _], parts)| {
            format!("the AllocatedRatios of {resource}, {basis}, add up to {parts} billionths")
        });
        let mut wrong: Vec<String> = wrong.collect();
        wrong.sort_unstable();
        wrong
    }
}
