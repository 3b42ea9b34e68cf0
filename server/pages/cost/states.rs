//! Where the month's time went and why: free because nobody wanted it, or because it did not fit.

use gpufleet_analysis::chargeback::Sum;
use gpufleet_analysis::chargeback::view::Group;
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::report::STACK;

use crate::words::text::{self, amount};

/// Time in a state for a reason.
pub(super) struct Row {
    pub(super) state: String,
    /// What the state is, in words.
    pub(super) means: &'static str,
    pub(super) why: String,
    pub(super) hours: String,
    pub(super) cost: String,
}

/// A row for each state and reason, the states in the order of reports.
pub(super) fn rows(whole: &Group, currency: &str) -> Vec<Row> {
    let of = |state: State| whole.reasons.iter().filter(move |it| it.0.0 == state);
    let row = |((state, reason), sum): (&(State, Reason), &Sum)| Row {
        state: state.name().replace('_', " "),
        means: state.help(),
        why: match reason {
            Reason::Unknown if *state == State::Unallocated => "not known".to_owned(),
            Reason::Unknown => String::new(),
            told => told.name().replace('_', " "),
        },
        hours: text::hours(sum.gpu_millis),
        cost: super::money(currency, sum),
    };
    STACK.into_iter().flat_map(of).map(row).collect()
}

/// The tile with what the GPUs cost by themselves, without the rest of their nodes.
pub(super) fn gpus_alone(total: &Sum, currency: &str) -> (&'static str, String, String) {
    let unknown = total.gpu_unpriced_millis;
    let (value, note) = match unknown {
        0 => (amount(currency, total.gpu_cost), String::new()),
        unknown if unknown >= total.gpu_millis => ("no price".to_owned(), String::new()),
        unknown => (
            amount(currency, total.gpu_cost),
            format!("; of {} GPU-hours it is not known", text::hours(unknown)),
        ),
    };
    let note = format!("of the total, without the rest of their nodes{note}");
    ("GPUs alone", value, note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_gpus_are_told_apart_by_why_nobody_had_them() {
        let hours = |count: i64| Sum {
            gpu_millis: count * 3_600_000,
            cost: i128::from(count) * 1_000_000_000,
            ..Sum::default()
        };
        let mut whole = Group::default();
        for (state, reason, count) in [
            (State::Unallocated, Reason::Fragmented, 3),
            (State::Unallocated, Reason::Unknown, 1),
            (State::ActiveUnrated, Reason::Unknown, 5),
        ] {
            whole.reasons.insert((state, reason), hours(count));
        }
        let told = rows(&whole, "USD");
        assert_eq!(told[1].means, "nobody holds it");
        let told = told
            .iter()
            .map(|it| [&it.state, &it.why, &it.cost].map(String::as_str));
        let expected = [
            ["active unrated", "", "$5.00"],
            ["unallocated", "not known", "$1.00"],
            ["unallocated", "fragmented", "$3.00"],
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_price_of_gpus_alone_says_of_which_time_it_is_not_known() {
        let told = |unknown: i64| {
            let total = Sum {
                gpu_millis: 7_200_000,
                gpu_cost: 4_000_000_000,
                gpu_unpriced_millis: unknown,
                ..Sum::default()
            };
            gpus_alone(&total, "USD")
        };
        assert_eq!(told(0).1, "$4.00");
        assert_eq!(told(7_200_000).1, "no price");
        assert!(
            told(3_600_000)
                .2
                .ends_with("; of 1.0 GPU-hours it is not known")
        );
    }
}
