//! How many GPUs of a node are paid for, and at which price.

use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY};
use gpufleet_analysis::ledger::{Energy, Reason, State};
use gpufleet_analysis::price_book::load;
use gpufleet_analysis::table;

use super::super::fixture::day_of_card;
use super::super::{Days, charge};
use super::*;
use crate::money::terms::Sources;
use crate::store::model::{DayFacts, DayTime, LedgerDay};

const CARD: &str = "NVIDIA L40S";
/// A dollar an hour, in nano-units.
const DOLLAR: i128 = 1_000_000_000;

/// A card of `node-1` that was there from one hour of day 20,000 to another, or of days after it.
fn card(name: &str, from_h: i64, until_h: i64) -> LedgerDay {
    card_of("", name, from_h, until_h)
}

/// The same on a machine of this type.
fn card_of(machine_type: &str, name: &str, from_h: i64, until_h: i64) -> LedgerDay {
    let day = 20_000 + from_h / 24;
    let ms = |hour: i64| 20_000 * MILLIS_PER_DAY + hour * 3_600_000;
    let facts = DayFacts {
        node: "node-1".to_owned(),
        gpu_model: CARD.to_owned(),
        machine_type: machine_type.to_owned(),
        region: "here".to_owned(),
        ..DayFacts::default()
    };
    let free = DayTime {
        holder: 0,
        state: State::Unallocated,
        reason: Reason::Unknown,
        millis: ms(until_h) - ms(from_h),
        energy: Energy::default(),
        lost_millis: 0,
    };
    day_of_card(name, facts, (day, (ms(from_h), ms(until_h))), vec![free])
}

fn hours(days: Vec<LedgerDay>, price: Option<&str>) -> (i64, i128) {
    let days = Days {
        days,
        ..Days::default()
    };
    let price = price.map(|it| (CARD.to_owned(), it.to_owned()));
    let terms = Terms::of(Sources {
        gpu_hour_usd: price.into_iter().collect(),
        cost: crate::money::CostConfig::default(),
        ..Sources::default()
    });
    let month = charge(&days, 20_000..20_031, &terms, Detail::Gpus);
    assert_eq!(month.made.total().cost, month.made.nodes_cost());
    let total = month.made.total();
    (total.gpu_millis / 3_600_000, total.cost)
}

fn all(cards: &[&str], from_h: i64, until_h: i64) -> Vec<LedgerDay> {
    cards.iter().map(|it| card(it, from_h, until_h)).collect()
}

#[test]
fn a_card_that_is_exchanged_at_noon_is_not_one_more_for_the_month() {
    let mut days = all(&["a", "b"], 0, 24);
    days.push(card("old", 0, 13));
    days.push(card("new", 12, 24));
    days.extend(all(&["a", "b", "new"], 24, 48));
    assert_eq!(hours(days.clone(), Some("1")), (145, 145 * DOLLAR));
    let (without_price, cost) = hours(days, None);
    assert_eq!(
        (without_price, cost),
        (144, 0),
        "and without a price none either"
    );
}

#[test]
fn a_machine_that_comes_back_with_other_cards_is_not_twice_as_large() {
    let mut days = all(&["a", "b", "c"], 0, 10);
    days.extend(all(&["d", "e", "f"], 11, 24));
    assert_eq!(hours(days.clone(), Some("2")), (69, 138 * DOLLAR));
    assert_eq!(hours(days, None), (69, 0));
}

#[test]
fn each_card_of_a_node_costs_what_its_own_model_does() {
    const OTHER: &str = "NVIDIA GeForce RTX 4090";
    let of_other = |name: &str| {
        let mut day = card(name, 0, 24);
        let mut of = (*day.of).clone();
        of.facts.gpu_model = OTHER.to_owned();
        day.of = of.into();
        day
    };
    let charged = |days: [LedgerDay; 2], prices: &[(&str, &str)]| {
        let prices = prices.iter().map(|it| (it.0.to_owned(), it.1.to_owned()));
        let terms = Terms::of(Sources {
            gpu_hour_usd: prices.collect(),
            ..Sources::default()
        });
        let days = Days {
            days: days.into(),
            ..Days::default()
        };
        let month = charge(&days, 20_000..20_031, &terms, Detail::Gpus);
        assert!(month.made.balance().is_exact());
        let mut pools: Vec<String> = month.fleet.nodes.iter().map(|it| it.pool.clone()).collect();
        pools.sort_unstable();
        assert_eq!(pools, [format!("lab/{OTHER}"), format!("lab/{CARD}")]);
        let total = month.made.total();
        assert_eq!(total.gpu_millis, 48 * 3_600_000);
        (total.cost / DOLLAR, total.unpriced_millis / 3_600_000)
    };
    let both = [(CARD, "3"), (OTHER, "0.5")];
    for days in [
        [card("a", 0, 24), of_other("b")],
        [of_other("a"), card("b", 0, 24)],
    ] {
        assert_eq!(charged(days.clone(), &both), (84, 0));
        assert_eq!(charged(days.clone(), &both[..1]), (72, 24), "one has none");
        assert_eq!(charged(days, &both[1..]), (12, 24));
    }
}

#[test]
fn a_node_with_more_cards_than_any_machine_pays_for_each() {
    let names: Vec<String> = (0..20).map(|it| format!("GPU-{it}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(hours(all(&names, 0, 2), Some("1.5")), (40, 60 * DOLLAR));
}

#[test]
fn a_day_costs_the_same_in_every_report_also_where_the_rate_of_its_machine_begins_later() {
    let begins = table::moment_text(20_010 * MILLIS_PER_DAY);
    let rates = format!(
        "{}\na3-highgpu-8g,here,on_demand,USD,40,,{begins},,list,a\n",
        load::RATES.join(",")
    );
    let terms = Terms::of(Sources {
        gpu_hour_usd: BTreeMap::from([(CARD.to_owned(), "1".to_owned())]),
        files: vec![("rates.csv".to_owned(), Ok(rates))],
        ..Sources::default()
    });
    assert_eq!(terms.findings, [""; 0]);
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let of_day = |day: i64| {
        let card = move |it: &str| card_of("a3-highgpu-8g", it, day * 24, day * 24 + 24);
        names.map(card)
    };
    let days = Days {
        days: [8, 9, 10, 11].into_iter().flat_map(of_day).collect(),
        ..Days::default()
    };
    let cost = |range: std::ops::Range<i64>| {
        let made = charge(&days, range, &terms, Detail::Nodes).made;
        assert_eq!(made.total().unpriced_millis, 0);
        made.total().cost / DOLLAR
    };
    let by_day = [8, 9, 10, 11].map(|day| cost(20_000 + day..20_001 + day));
    assert_eq!(by_day, [192, 192, 960, 960], "by its cards, then by itself");
    assert_eq!(cost(20_000..20_031), by_day.iter().sum::<i128>());
}

#[test]
fn what_was_there_for_most_of_the_day_counts() {
    let count = |days: Vec<LedgerDay>| {
        let mut gpus = BTreeMap::new();
        for (gpu, day) in days.iter().enumerate() {
            let spans = day.spans.iter().copied().map(Span::from).collect();
            let of_gpu = GpuDay {
                spans,
                ..GpuDay::default()
            };
            gpus.insert(gpu, of_gpu);
        }
        usual_count(&gpus)
    };
    assert_eq!(count(Vec::new()), 0);
    assert_eq!(count(all(&["a", "b"], 0, 24)), 2);
    let mut exchanged = all(&["a"], 0, 24);
    exchanged.extend([card("b", 0, 13), card("c", 12, 24)]);
    assert_eq!(count(exchanged), 2);
    let mut grown = all(&["a", "b"], 0, 24);
    grown.extend(all(&["c", "d"], 12, 24));
    assert_eq!(count(grown), 4, "of equal times the larger");
}

#[test]
fn a_machine_that_is_bought_is_paid_for_as_a_whole_from_its_first_own_rate_on() {
    let moment = |day: i64| table::moment_text(day * MILLIS_PER_DAY);
    let (listed, bought) = (moment(20_000), moment(20_010));
    let machines = format!("{}\ndgx,l40s,8,,\n", load::MACHINES.join(","));
    let rates = format!(
        "{}\ndgx,*,own,USD,24,,{bought},,list,mine\ndgx,here,on_demand,USD,40,,{listed},,list,a\n\
         dgx,here,spot,USD,8,,{listed},,list,a\n",
        load::RATES.join(",")
    );
    let file = |name: &str, text: String| (name.to_owned(), Ok(text));
    let terms = Terms::of(Sources {
        gpu_hour_usd: BTreeMap::from([(CARD.to_owned(), "1".to_owned())]),
        files: vec![file("machines.csv", machines), file("rates.csv", rates)],
        ..Sources::default()
    });
    assert_eq!(terms.findings, [""; 0]);
    // Two of the eight are seen, for two hours of a day.
    let cost = |days: &[i64], range: std::ops::Range<i64>, provisioning: &str| {
        let of_day = |day: &i64| ["a", "b"].map(|it| card_of("dgx", it, day * 24, day * 24 + 2));
        let mut days: Vec<LedgerDay> = days.iter().flat_map(of_day).collect();
        for day in &mut days {
            let of = std::sync::Arc::make_mut(&mut day.of);
            of.facts.provisioning = provisioning.to_owned();
        }
        let days = Days {
            days,
            ..Days::default()
        };
        let made = charge(&days, range, &terms, Detail::Nodes).made;
        let total = made.total();
        assert_eq!(total.cost, made.nodes_cost());
        assert_eq!(total.unpriced_millis, 0);
        (total.gpu_millis / 3_600_000, total.cost / DOLLAR)
    };
    let month = 20_000..20_031;
    assert_eq!(cost(&[10], month.clone(), ""), (16, 48), "not by its cards");
    assert_eq!(cost(&[9], month.clone(), ""), (16, 80), "rented until then");
    assert_eq!(cost(&[9, 10], month.clone(), ""), (32, 128));
    assert_eq!(cost(&[9, 10], 20_010..20_011, ""), (16, 48));
    assert_eq!(cost(&[10], month, "spot"), (16, 16), "as it says itself");
}
