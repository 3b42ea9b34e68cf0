//! Nodes of the inventory beside what agents tell: what is billed, and what is said of it.

use std::sync::Arc;

use gpufleet_analysis::chargeback::{Chargeback, Detail};
use gpufleet_analysis::inventory::{Node, Ready, Record};
use gpufleet_analysis::ledger::{Energy, Reason, State};
use gpufleet_telemetry::time::Timestamp;
use proptest::prelude::*;

use super::super::fixture::day_of_card;
use super::super::{Days, charge};
use super::*;
use crate::money::terms::{Sources, Terms};
use crate::store::model::{DayFacts, DayTime, LedgerDay, MoneyTable};

const FIRST_DAY: i64 = 20_000;
const HOUR: i64 = 3_600_000;
/// A dollar an hour of one of the eight GPUs, in nano-units.
const DOLLAR: i128 = 1_000_000_000;

fn ms(hour: i64) -> i64 {
    FIRST_DAY * MILLIS_PER_DAY + hour * HOUR
}

/// A node of eight from one hour to another; of one that was made by the provider, ready an hour later.
fn life(name: &str, from_h: i64, until_h: i64, is_gone: bool) -> NodeLife {
    let at = |hour: i64| Timestamp::from_millis(ms(hour));
    let node = Node {
        name: name.to_owned(),
        model: "nvidia-h100-80gb".to_owned(),
        machine: "a3-highgpu-8g".to_owned(),
        region: "here".to_owned(),
        gpus: 8,
        ready: Ready::Yes,
        created: Some(at(from_h)),
        ..Node::default()
    };
    let mut record = Record::new(node, at(from_h));
    record.ready_at = Some(at(from_h + 1));
    NodeLife {
        cluster: "lab".to_owned(),
        record,
        from_ms: ms(from_h),
        until_ms: ms(until_h),
        is_gone,
    }
}

/// All eight GPUs of a node in an hour of the first day and after: free, and unobserved from the hour
/// that stands behind on.
fn told(node: &str, from_h: i64, until_h: i64, silent_h: i64) -> Vec<LedgerDay> {
    let time = |state, from: i64, until: i64| DayTime {
        holder: 0,
        state,
        reason: Reason::NoSample,
        millis: (until - from).max(0) * HOUR,
        energy: Energy::default(),
        lost_millis: 0,
    };
    let one = |gpu: usize, day: i64| {
        let (first, end) = (from_h.max(day * 24), until_h.min(day * 24 + 24));
        let silent = silent_h.clamp(first, end);
        let times = [
            time(State::Unallocated, first, silent),
            time(State::Unobserved, silent, end),
        ];
        let facts = DayFacts {
            node: node.to_owned(),
            machine_type: "a3-highgpu-8g".to_owned(),
            region: "here".to_owned(),
            provisioning: "on_demand".to_owned(),
            ..DayFacts::default()
        };
        let id = format!("{node}-{gpu}");
        let when = (FIRST_DAY + day, (ms(first), ms(end)));
        let times = times.into_iter().filter(|it| it.millis > 0).collect();
        day_of_card(&id, facts, when, times)
    };
    let days = from_h.div_euclid(24)..=(until_h - 1).div_euclid(24);
    days.flat_map(|day| (0..8).map(move |gpu| one(gpu, day)))
        .collect()
}

fn terms(own: bool) -> Terms {
    let rates = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
        a3-highgpu-8g,here,on_demand,USD,8,,2020-01-01,,list,a\n";
    let table = MoneyTable {
        name: "rates.csv".to_owned(),
        kind: "rates".to_owned(),
        content: rates.to_owned(),
        imported: Timestamp(0),
    };
    let price = [("nvidia-h100-80gb".to_owned(), "1".to_owned())];
    Terms::of(Sources {
        gpu_hour_usd: price.into_iter().filter(|_| own).collect(),
        stored: if own { Vec::new() } else { vec![table] },
        ..Sources::default()
    })
}

fn charged(days: Vec<LedgerDay>, lives: Vec<NodeLife>) -> Chargeback {
    let days = Days {
        days,
        lives,
        ..Days::default()
    };
    let made = charge(
        &days,
        FIRST_DAY..FIRST_DAY + 31,
        &terms(false),
        Detail::Gpus,
    )
    .made;
    assert!(made.balance().is_exact(), "{:?}", made.balance());
    assert_eq!(made.total().cost, made.nodes_cost());
    made
}

/// Hours of GPUs by state; what they cost is a dollar for each.
fn hours(made: &Chargeback) -> Vec<(State, i64)> {
    let mut hours: BTreeMap<State, i64> = BTreeMap::new();
    for (key, sum) in &made.lines {
        *hours.entry(key.state).or_default() += sum.gpu_millis;
    }
    let all: i64 = hours.values().sum();
    assert_eq!(
        made.total().cost * i128::from(HOUR),
        i128::from(all) * DOLLAR
    );
    hours.into_iter().map(|it| (it.0, it.1 / HOUR)).collect()
}

#[test]
fn a_node_of_which_no_agent_ever_told_is_paid_for_and_unobserved_and_its_start_is_one() {
    let made = charged(Vec::new(), vec![life("a", 2, 50, true)]);
    assert_eq!(
        hours(&made),
        [(State::StartingNode, 8), (State::Unobserved, 8 * 47)]
    );
    assert_eq!(made.headline().idle.gpu_millis, 0);
}

#[test]
fn the_pool_is_the_node_pool_that_the_inventory_tells_whoever_told_of_the_node_first() {
    let pools = |pool: &str| {
        let mut both = vec![life("a", 2, 50, true), life("b", 2, 50, true)];
        both.iter_mut()
            .for_each(|it| it.record.node.pool = pool.to_owned());
        let made = charged(told("a", 5, 30, 29), both);
        let mut pools = made.pools;
        pools.sort_unstable();
        pools
    };
    assert_eq!(pools("a3-spot"), ["lab/a3-spot"]);
    // Of `a` nobody tells a type of GPU: its agent did not.
    assert_eq!(pools(""), ["lab", "lab/nvidia-h100-80gb"]);
}

#[test]
fn how_much_of_it_is_of_nodes_that_went_while_nobody_looked_is_told() {
    let mut went = life("a", 2, 30, true);
    went.record.unwatched_from = Some(Timestamp::from_millis(ms(20)));
    let findings = |went: &NodeLife, days: Vec<LedgerDay>| {
        let days = Days {
            days,
            lives: vec![went.clone(), life("b", 2, 30, true)],
            ..Days::default()
        };
        let range = FIRST_DAY..FIRST_DAY + 2;
        charge(&days, range, &terms(false), Detail::Nodes).findings
    };
    let told = |hours: &str| {
        format!(
            "lab: of what is unobserved, {hours} GPU-hours at most are of nodes that went while the server did not see the cluster: each counts until it was missed"
        )
    };
    assert_eq!(findings(&went, Vec::new()), [told("80.0")]);
    // Its agent told what was until 26, from its spool.
    assert_eq!(findings(&went, self::told("a", 5, 26, 26)), [told("32.0")]);
    // For an hour after it fell silent its GPUs are accounted: it may have gone by then.
    assert_eq!(findings(&went, self::told("a", 5, 26, 25)), [told("40.0")]);
    // That an agent was silent while the cluster was watched is another matter.
    assert_eq!(findings(&went, self::told("a", 5, 19, 18)), [told("80.0")]);
    went.record.unwatched_from = None;
    assert_eq!(findings(&went, Vec::new()), [""; 0]);
}

#[test]
fn what_agents_told_stays_and_the_rest_of_the_node_s_life_is_around_it() {
    let days = told("a", 5, 30, 29);
    let made = charged(days, vec![life("a", 2, 50, true)]);
    assert_eq!(
        hours(&made),
        [
            (State::StartingNode, 8),
            (State::Unallocated, 8 * 24),
            // Until the agent came, and since it fell silent.
            (State::Unobserved, 8 * (2 + 1 + 20)),
        ]
    );
}

#[test]
fn what_is_accounted_of_a_node_that_was_gone_is_not_billed_unless_it_was_seen() {
    let made = charged(told("a", 1, 11, 10), vec![life("a", 0, 10, true)]);
    assert_eq!(
        hours(&made),
        [(State::StartingNode, 8), (State::Unallocated, 8 * 9)]
    );
    // It was seen for longer than the cluster had it.
    let made = charged(told("a", 0, 12, 11), vec![life("a", 0, 10, true)]);
    assert_eq!(hours(&made), [(State::Unallocated, 8 * 11)]);
    // And one that is there is not cut.
    let made = charged(told("a", 0, 12, 11), vec![life("a", 0, 10, false)]);
    assert_eq!(
        hours(&made),
        [(State::Unallocated, 8 * 11), (State::Unobserved, 8)]
    );
}

#[test]
fn what_the_ledger_has_not_computed_yet_is_not_taken_for_silence() {
    let mut late = life("a", 0, 12, false);
    late.until_ms += BEHIND_MS;
    let made = charged(told("a", 0, 12, 12), vec![late.clone()]);
    assert_eq!(hours(&made), [(State::Unallocated, 8 * 12)]);
    late.until_ms += 40 * 60_000;
    let made = charged(told("a", 0, 12, 12), vec![late]);
    assert_eq!(
        hours(&made),
        [(State::Unallocated, 8 * 12), (State::Unobserved, 8)]
    );
}

#[test]
fn a_node_that_agents_call_by_its_full_name_is_one_and_so_is_one_that_was_made_anew() {
    let made = charged(told("a.rack", 0, 24, 24), vec![life("a", 0, 24, true)]);
    assert_eq!(hours(&made), [(State::Unallocated, 8 * 24)]);
    let other = charged(told("10.0.0.1", 0, 24, 24), vec![life("10", 0, 24, true)]);
    assert_eq!(
        other.total().gpu_millis,
        2 * 8 * 24 * HOUR,
        "an address has no domain"
    );
    // The first was never seen to go; the second began at ten.
    let lives = vec![life("a", 0, 40, false), life("a", 10, 40, true)];
    let made = charged(told("a", 1, 9, 9), lives);
    assert_eq!(
        hours(&made),
        [
            (State::StartingNode, 16),
            (State::Unallocated, 64),
            (State::Unobserved, 8 * (1 + 29)),
        ]
    );
}

#[test]
fn a_node_that_is_renamed_at_noon_is_billed_once_until_midnight() {
    let lives = || vec![life("new", 12, 48, true), life("old", 0, 12, true)];
    let charged = |is_old: &dyn Fn(usize) -> bool| {
        let mut days = told("old", 0, 24, 24);
        let mut later = told("new", 24, 48, 48);
        for (card, day) in later.iter_mut().enumerate().filter(|it| is_old(it.0)) {
            Arc::make_mut(&mut day.of).id = format!("old-{card}");
        }
        days.extend(later);
        hours(&charged(days, lives()))
    };
    assert_eq!(charged(&|_| true), [(State::Unallocated, 8 * 48)]);
    // Into a machine that was made at noon one card of the old one was put.
    let made = charged(&|card| card == 0);
    assert_eq!(
        made,
        [
            (State::StartingNode, 8),
            (State::Unallocated, 8 * 48),
            (State::Unobserved, 8 * 11),
        ]
    );
}

#[test]
fn a_node_that_is_renamed_on_the_last_day_is_billed_once_where_the_day_after_is_there() {
    let lives = vec![life("new", 12, 48, true), life("old", 0, 12, true)];
    let next = |is_old: &dyn Fn(usize) -> bool| {
        let mut next = told("new", 24, 48, 48);
        for (card, day) in next.iter_mut().enumerate().filter(|it| is_old(it.0)) {
            Arc::make_mut(&mut day.of).id = format!("old-{card}");
        }
        next
    };
    let charged = |days: Vec<LedgerDay>, next_day: Vec<LedgerDay>| {
        let days = Days {
            days: [told("old", 0, 24, 24), days].concat(),
            lives: lives.clone(),
            next_day,
            ..Days::default()
        };
        let one_day = FIRST_DAY..FIRST_DAY + 1;
        let made = charge(&days, one_day, &terms(false), Detail::Gpus).made;
        assert!(made.balance().is_exact(), "{:?}", made.balance());
        hours(&made)
    };
    let once = vec![(State::Unallocated, 8 * 24)];
    assert_eq!(charged(Vec::new(), next(&|_| true)), once);
    assert_eq!(charged(next(&|_| true), Vec::new()), once, "as in a month");
    let twice = [
        (State::StartingNode, 8),
        (State::Unallocated, 8 * 24),
        (State::Unobserved, 8 * 11),
    ];
    assert_eq!(charged(Vec::new(), Vec::new()), twice, "it is not there");
    let others = next(&|card| card != 3);
    assert_eq!(
        charged(Vec::new(), others),
        twice,
        "one is another machine's"
    );
}

#[test]
fn a_machine_with_two_names_is_billed_once_and_what_could_be_two_machines_is_told() {
    let made = charged(told("a", 0, 24, 24), vec![life("a.rack", 0, 24, true)]);
    assert_eq!(hours(&made), [(State::Unallocated, 8 * 24)]);
    // Another cluster has one of that name as well.
    let mut elsewhere = life("a", 0, 24, true);
    elsewhere.cluster = "other".to_owned();
    let lives = vec![life("a.rack", 0, 24, true), elsewhere];
    let made = charged(told("a", 0, 24, 24), lives);
    assert_eq!(made.total().gpu_millis, 2 * 8 * 24 * HOUR);
    let lives = vec![life("a.left", 0, 24, true), life("a.right", 0, 24, true)];
    let days = Days {
        days: told("a", 0, 24, 24),
        lives,
        ..Days::default()
    };
    let month = charge(
        &days,
        FIRST_DAY..FIRST_DAY + 31,
        &terms(false),
        Detail::Gpus,
    );
    assert_eq!(month.made.total().gpu_millis, 3 * 8 * 24 * HOUR);
    let told = month.findings.concat();
    assert!(told.contains("the inventory has a.left, a.right"), "{told}");
}

#[test]
fn a_node_that_is_priced_by_its_cards_pays_for_those_that_nobody_saw() {
    let mut days = told("a", 2, 10, 10);
    days.truncate(6);
    for day in &mut days {
        let facts = &mut Arc::make_mut(&mut day.of).facts;
        facts.machine_type.clear();
        facts.gpu_model = "nvidia-h100-80gb".to_owned();
    }
    let mut there = life("a", 0, 10, true);
    there.record.node.machine.clear();
    let days = Days {
        days,
        lives: vec![there, life("b", 0, 10, true)],
        ..Days::default()
    };
    let made = charge(&days, FIRST_DAY..FIRST_DAY + 31, &terms(true), Detail::Gpus).made;
    assert_eq!(made.total().gpu_millis, 160 * HOUR);
    assert_eq!(made.total().cost, 160 * DOLLAR);
    assert_eq!(
        hours(&made),
        [
            (State::StartingNode, 16),
            (State::Unallocated, 48),
            (State::Unobserved, 16 * 9 - 48),
        ]
    );
}

#[test]
fn what_nobody_saw_of_two_kinds_of_cards_costs_what_the_one_seen_least_does() {
    let of = |model: &str, at: usize, mut days: Vec<LedgerDay>| {
        let mut day = days.swap_remove(at);
        let facts = &mut Arc::make_mut(&mut day.of).facts;
        facts.machine_type.clear();
        facts.gpu_model = model.to_owned();
        day
    };
    let mut there = life("a", 0, 10, true);
    there.record.node.machine.clear();
    there.record.node.gpus = 2;
    let days = Days {
        days: vec![
            of("cheap", 0, told("a", 2, 10, 10)),
            of("dear", 1, told("a", 2, 6, 6)),
        ],
        lives: vec![there],
        ..Days::default()
    };
    let prices = [("cheap", "1"), ("dear", "3")];
    let prices = prices.map(|it| (it.0.to_owned(), it.1.to_owned()));
    let terms = Terms::of(Sources {
        gpu_hour_usd: prices.into_iter().collect(),
        ..Sources::default()
    });
    let made = charge(&days, FIRST_DAY..FIRST_DAY + 31, &terms, Detail::Gpus).made;
    assert_eq!(made.total().gpu_millis, 20 * HOUR);
    assert_eq!(made.total().cost, 40 * DOLLAR);
}

#[test]
fn days_outside_of_the_range_are_not_billed() {
    let made = charged(Vec::new(), vec![life("a", -100, 24 * 40, true)]);
    assert_eq!(hours(&made), [(State::Unobserved, 8 * 31 * 24)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever agents and cluster say: it balances, a node is there no longer than both say together,
    /// and no shorter than either does where it did not fall silent.
    #[test]
    fn what_is_billed_is_what_the_cluster_had_and_what_was_seen(
        all in prop::collection::vec((0_usize..3, 0_i64..60, 1_i64..40, any::<bool>()), 0..6),
        seen in prop::collection::vec((0_usize..3, 0_i64..60, 1_i64..40, 0_i64..3), 0..4),
    ) {
        let mut lives: Vec<NodeLife> = all
            .iter()
            .map(|(node, from, length, gone)| life(&format!("n{node}"), *from, from + length, *gone))
            .collect();
        lives.sort_by(|one, other| {
            let order = |it: &NodeLife| (it.record.node.name.clone(), it.from_ms);
            order(one).cmp(&order(other))
        });
        lives.dedup_by(|one, other| one.record.node.name == other.record.node.name && one.from_ms == other.from_ms);
        let mut of_node: BTreeMap<usize, (i64, i64, i64)> = BTreeMap::new();
        for (node, from, length, silent) in seen {
            of_node.entry(node).or_insert((from, from + length, silent));
        }
        let days = of_node.iter().flat_map(|(node, (from, until, silent))| {
            told(&format!("n{node}"), *from, *until, (until - silent).max(*from))
        });
        let made = charged(days.collect(), lives.clone());
        let hours_of = |node: &str| {
            let mut hours = [false; 128];
            let of = lives.iter().enumerate().filter(|it| it.1.record.node.name == node);
            for (at, life) in of {
                let next = lives.get(at + 1).filter(|it| it.record.node.name == node);
                let until = next.map_or(life.until_ms, |it| it.from_ms.min(life.until_ms));
                for (hour, is_there) in (0..).zip(&mut hours) {
                    *is_there |= (life.from_ms..until).contains(&ms(hour));
                }
            }
            hours
        };
        let (mut least, mut most) = (0, 0);
        for node in 0..3 {
            let mut hours = hours_of(&format!("n{node}"));
            least += hours.iter().filter(|it| **it).count() as i64;
            if let Some((from, until, _)) = of_node.get(&node) {
                for (hour, is_there) in (0..).zip(&mut hours) {
                    *is_there |= (*from..*until).contains(&hour);
                }
            }
            most += hours.iter().filter(|it| **it).count() as i64;
        }
        let billed = made.total().gpu_millis / 8 / HOUR;
        prop_assert!((least..=most).contains(&billed), "{least} {billed} {most}");
        prop_assert_eq!(made.total().gpu_millis % (8 * HOUR), 0);
    }
}
