//! What could be saved: holders that could do with less, and nodes that could be off at a time of the week.
//!
//! Limits: [`MAX_ROWS`] of each; how many more there are is said.

use gpufleet_analysis::taken::{Kind, Record, Sum, sums};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::identity::Origin;

use super::MAX_ROWS;
use crate::money::savings::{Off, RightSize, Savings};
use crate::words::text::{Name, amount, counted, quantity};

/// What could be saved in the clusters of a section.
#[derive(Default)]
pub(super) struct Part {
    pub(super) right_size: Vec<Row>,
    pub(super) off: Vec<OffRow>,
    /// What was advised in the last 30 days, by kind.
    pub(super) advised: Vec<AdvisedRow>,
    /// Why that may not be all; empty where it is.
    pub(super) advice_not_kept: String,
    /// How many rows more there are.
    pub(super) more: usize,
    /// Whether it is the first of its origin, to which rows of Today lead.
    pub(super) has_anchor: bool,
}

impl Part {
    /// Whether nothing could be saved.
    pub(super) fn is_empty(&self) -> bool {
        self.right_size.is_empty() && self.off.is_empty() && self.advised.is_empty()
    }
}

/// A holder.
pub(super) struct Row {
    pub(super) job: Name,
    pub(super) owner: Name,
    /// `8 of NVIDIA H100 80GB HBM3`.
    pub(super) has: String,
    pub(super) would_do: String,
    pub(super) measured: String,
    pub(super) confidence: &'static str,
    pub(super) saved: String,
}

/// Nodes.
pub(super) struct OffRow {
    pub(super) nodes: Name,
    pub(super) when: String,
    pub(super) saved: String,
}

/// Advice of a kind.
pub(super) struct AdvisedRow {
    pub(super) kind: &'static str,
    pub(super) given: usize,
    pub(super) worth: String,
    pub(super) taken: usize,
    pub(super) saved: String,
}

/// The part of one origin, of one cluster where one is named.
pub(super) fn part(savings: &Savings, origin: Origin, cluster: Option<&str>) -> Part {
    let is_here = |its: Origin, name: &str| its == origin && cluster.is_none_or(|it| it == name);
    let currency = savings.currency.as_str();
    let right_size = savings.right_size.iter();
    let right_size: Vec<&RightSize> = right_size
        .filter(|it| is_here(it.origin, &it.cluster))
        .collect();
    let off = savings.off.iter();
    let off: Vec<&Off> = off.filter(|it| is_here(it.origin, &it.cluster)).collect();
    let more = |count: usize| count.saturating_sub(MAX_ROWS);
    let here = |it: &&Record| is_here(it.advice.origin, &it.advice.cluster);
    let advised = savings.advised.records.iter().filter(here);
    let kinds = sums(advised, &savings.advised_in, |it| it.advice.kind).into_iter();
    Part {
        advised: kinds.map(|it| advised_row(it, currency)).collect(),
        advice_not_kept: savings.advised.not_kept.clone().unwrap_or_default(),
        has_anchor: false,
        more: more(right_size.len()) + more(off.len()),
        right_size: right_size
            .into_iter()
            .take(MAX_ROWS)
            .map(|it| row(it, currency))
            .collect(),
        off: off
            .into_iter()
            .take(MAX_ROWS)
            .map(|it| off_row(it, currency))
            .collect(),
    }
}

fn row(it: &RightSize, currency: &str) -> Row {
    let measured = &it.proposal.measured;
    let percent = |name: &str, ratio: Option<f64>| match ratio {
        Some(ratio) => format!("{name} {:.0} %", ratio * 100.0),
        None => format!("{name} not told"),
    };
    let memory = measured.memory_peak;
    let memory = memory.map(|it| format!("memory at most {}, ", quantity(Unit::Bytes, it)));
    let memory = memory.unwrap_or_default();
    Row {
        job: Name::new(&it.job),
        owner: Name::new(it.payer.name()),
        has: format!("{} of {}", it.gpus, it.card),
        would_do: format!("{} of {}", it.proposal.gpus, it.proposal.card),
        measured: format!(
            "{memory}{}, {} in 95 of 100 stretches of ten minutes; {:.0} hours of {}",
            percent("tensor cores", measured.tensor_p95),
            percent("bandwidth", measured.dram_p95),
            measured.hours,
            counted(it.looked_at, "GPU", "GPUs"),
        ),
        confidence: it.proposal.confidence.name(),
        saved: format!("{} a day", amount(currency, it.proposal.saved_per_day)),
    }
}

fn advised_row((kind, sum): (Kind, Sum), currency: &str) -> AdvisedRow {
    AdvisedRow {
        kind: kind.words(),
        given: sum.given,
        worth: match (sum.worth(), sum.unpriced) {
            (None, _) => "no price or known gain".to_owned(),
            (Some(worth), 0) => format!("{} a day", amount(currency, worth)),
            (Some(worth), count) => {
                let worth = amount(currency, worth);
                format!("{worth} a day, {count} without a price or known gain")
            }
        },
        taken: sum.taken,
        saved: sum
            .saved()
            .map_or("not measured".to_owned(), |it| amount(currency, it)),
    }
}

fn off_row(it: &Off, currency: &str) -> OffRow {
    let count = usize::try_from(it.window.nodes).unwrap_or(usize::MAX);
    let nodes = counted(count, "node", "nodes");
    OffRow {
        nodes: Name::new(&format!("{nodes} {} of {}", it.machine_type, it.cluster)),
        when: it.window.words(),
        saved: format!("{} a week", amount(currency, it.window.saved_per_week)),
    }
}

/// Of whom nothing is said, in one line; empty where something is said of all.
pub(super) fn not_said(savings: &Savings) -> String {
    let silent = savings
        .silent
        .iter()
        .map(|(why, count)| (*count, why.to_string()));
    let more = [
        (
            savings.unknown,
            "the card has no price, or its figures are not known",
        ),
        (savings.more, "not looked at, because there are so many"),
    ];
    let more = more.into_iter().map(|(count, why)| (count, why.to_owned()));
    let all = silent.chain(more).filter(|it| it.0 > 0);
    let all: Vec<String> = all
        .map(|(count, why)| format!("{}: {why}", counted(count, "holder", "holders")))
        .collect();
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpufleet_analysis::owner::Payer;
    use gpufleet_analysis::right_size::{Measured, Silent};
    use gpufleet_analysis::shutdown::Window;

    use super::*;

    const USD: i128 = 1_000_000_000;

    #[test]
    fn each_origin_has_its_own_rows_and_who_is_not_judged_is_counted() {
        let measured = Measured {
            hours: 100.0,
            memory_peak: Some(20.0 * 1024.0 * 1024.0 * 1024.0),
            memory_p95: None,
            tensor_p95: Some(0.05),
            dram_p95: None,
        };
        let payer = Payer::Team("science".to_owned());
        let mut right_size = RightSize::for_tests("job:ml/train", payer);
        right_size.proposal.gpus = 8;
        right_size.proposal.measured = measured;
        let off = Off {
            cluster: "demo".to_owned(),
            origin: Origin::Simulated,
            machine_type: "box-8g".to_owned(),
            window: Window {
                from: 120,
                hours: 54,
                nodes: 3,
                saved_per_week: 90 * USD,
            },
        };
        let savings = Savings {
            currency: "USD".to_owned(),
            right_size: vec![right_size],
            silent: BTreeMap::from([(Silent::TooShort, 2), (Silent::Fits, 1)]),
            more: 3,
            off: vec![off],
            ..Savings::default()
        };
        let live = part(&savings, Origin::Live, None);
        assert_eq!((live.right_size.len(), live.off.len()), (1, 0));
        let row = &live.right_size[0];
        assert_eq!(
            (row.has.as_str(), row.would_do.as_str()),
            ("8 of big", "8 of small")
        );
        assert_eq!(row.saved, "$1\u{202f}760.00 a day");
        let words = "memory at most 20 GiB, tensor cores 5 %, bandwidth not told in 95 of 100 stretches of ten minutes; 100 hours of 4 GPUs";
        assert_eq!(row.measured, words);
        let demo = part(&savings, Origin::Simulated, Some("demo"));
        assert_eq!((demo.right_size.len(), demo.off.len()), (0, 1));
        assert_eq!(demo.off[0].when, "Sat 00:00 to Mon 06:00 UTC");
        assert!(
            part(&savings, Origin::Simulated, Some("else"))
                .off
                .is_empty()
        );
        let said = not_said(&savings);
        assert_eq!(
            said,
            "2 holders: held for less than a day of the last seven; 1 holder: it uses what it has; 3 holders: not looked at, because there are so many"
        );
    }
}
