//! What a node costs of which its GPUs tell two things.

use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY, Sum};
use gpufleet_analysis::ledger::{Energy, Reason, State};
use gpufleet_telemetry::time::Timestamp;

use super::super::fixture::day_of_card;
use super::super::{Days, charge};
use crate::money::terms::{Sources, Terms};
use crate::store::model::{DayFacts, DayTime, LedgerDay, MoneyTable};

const DAY: i64 = 20_000;
const HOUR: i64 = 3_600_000;
const USD: i128 = 1_000_000_000;

/// Eight dollars an hour on demand, four on Spot.
fn terms() -> Terms {
    let rates = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
        a3-highgpu-8g,here,on_demand,USD,8,,2020-01-01,,list,a\n\
        a3-highgpu-8g,here,spot,USD,4,,2020-01-01,,list,a\n";
    let table = MoneyTable {
        name: "rates.csv".to_owned(),
        kind: "rates".to_owned(),
        content: rates.to_owned(),
        imported: Timestamp(0),
    };
    Terms::of(Sources {
        stored: vec![table],
        ..Sources::default()
    })
}

/// Cards of one node, paid for so, from one hour of the day to another; free, and unobserved from the hour `silent_h` on.
fn cards(names: &[&str], paid: &str, [from_h, silent_h, until_h]: [i64; 3]) -> Vec<LedgerDay> {
    let ms = |hour: i64| DAY * MILLIS_PER_DAY + hour * HOUR;
    let time = |state, hours: i64| DayTime {
        holder: 0,
        state,
        reason: Reason::NoSample,
        millis: hours * HOUR,
        energy: Energy::default(),
        lost_millis: 0,
    };
    let one = |name: &&str| {
        let facts = DayFacts {
            node: "node-1".to_owned(),
            machine_type: "a3-highgpu-8g".to_owned(),
            region: "here".to_owned(),
            provisioning: paid.to_owned(),
            ..DayFacts::default()
        };
        let times = vec![
            time(State::Unallocated, silent_h - from_h),
            time(State::Unobserved, until_h - silent_h),
        ];
        day_of_card(name, facts, (DAY, (ms(from_h), ms(until_h))), times)
    };
    names.iter().map(one).collect()
}

/// What the day costs; lines and nodes say the same, and no node is larger than it is.
fn charged(days: Vec<LedgerDay>) -> (Sum, Sum) {
    let days = Days {
        days,
        ..Days::default()
    };
    let made = charge(&days, DAY..DAY + 1, &terms(), Detail::Gpus).made;
    assert!(made.balance().is_exact(), "{:?}", made.balance());
    (made.total(), made.headline().unobserved)
}

const EIGHT: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

#[test]
fn a_node_of_which_some_cards_tell_other_terms_is_billed_once_by_what_most_tell() {
    for (on_demand, hourly) in [(5, 8), (3, 4)] {
        let (most, others) = EIGHT.split_at(on_demand);
        let mut days = cards(most, "on_demand", [0, 24, 24]);
        // These came an hour later, and an agent was silent for some hours: that does not make it two machines.
        days.extend(cards(others, "spot", [1, 20, 24]));
        let (total, unobserved) = charged(days);
        assert_eq!(total.gpu_millis, 8 * 24 * HOUR);
        assert_eq!(total.cost, 24 * hourly * USD);
        let silent = i64::try_from(others.len()).expect("it is little") * (4 + 1);
        assert_eq!(unobserved.gpu_millis, silent * HOUR);
    }
}

#[test]
fn a_node_that_is_made_anew_under_its_name_is_two_machines_and_neither_is_there_with_the_other() {
    let others: Vec<String> = EIGHT.iter().map(|it| format!("new-{it}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let after = cards(&others, "on_demand", [12, 24, 24]);
    // The first went at noon and was accounted for another hour.
    for times in [[0, 12, 12], [0, 12, 13]] {
        let mut days = cards(&EIGHT, "spot", times);
        days.extend(after.clone());
        let (total, unobserved) = charged(days);
        assert_eq!(total.gpu_millis, 8 * 24 * HOUR, "{times:?}");
        assert_eq!(total.cost, 12 * (4 + 8) * USD, "{times:?}");
        assert_eq!(unobserved, Sum::default(), "{times:?}");
    }
}
