//! Thirty days of 64 GPUs from seconds to money: what is charged is what was drawn.

use std::collections::BTreeMap;

use gpufleet_telemetry::time::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::fixture::{FIRST_HOUR, HOUR as HOUR_MS, RATES, book, fleet, october};
use super::view::By;
use super::{GpuPeriod, NodePeriod};
use crate::ledger::State;
use crate::states::tests::{HOUR, Piece, rows};
use crate::states::{Around, Carry, Hold, Hour, Policy, Span, account};

/// Of each of four tests: together they are 64 GPUs.
const NODES: usize = 2;
const HOURS: i64 = 30 * 24;
const ALL_S: u32 = 30 * 86_400;
const BEGIN_S: i64 = FIRST_HOUR * 3_600;

/// Seconds by state, and by holder's number (0 is nobody).
#[derive(Default)]
struct Truth {
    states: BTreeMap<State, i64>,
    holders: BTreeMap<i64, i64>,
}

/// The days of one GPU, what it must come to, and who held it.
fn drawn(random: &mut ChaCha8Rng, holder: i64, truth: &mut Truth) -> (Vec<(Piece, u32)>, Around) {
    let kinds = [
        Piece::Active,
        Piece::Inactive,
        Piece::Stalled,
        Piece::NotHeld,
        Piece::Unseen,
    ];
    let (mut line, mut holds, mut at) = (Vec::new(), Vec::new(), 0_u32);
    let mut before = Piece::NotHeld;
    while at < ALL_S {
        // It begins with work: before its first sample nothing is known of a GPU.
        let next = if at == 0 {
            Piece::Active
        } else {
            kinds[random.random_range(0..kinds.len())]
        };
        if next == before {
            continue;
        }
        let seconds = random.random_range(30..3_000).min(ALL_S - at);
        // Cut short by the end it would be bridged by what was before.
        if next == Piece::Unseen && seconds <= 20 {
            continue;
        }
        let mut add =
            |state, seconds: u32| *truth.states.entry(state).or_default() += i64::from(seconds);
        match next {
            Piece::Active => add(State::ActiveUnrated, seconds),
            Piece::Inactive if seconds < 300 => add(State::Gap, seconds),
            Piece::Inactive => add(State::Parked, seconds),
            Piece::Stalled => {
                add(State::ActiveUnrated, seconds.min(300));
                add(State::Stalled, seconds.saturating_sub(300));
            }
            Piece::NotHeld => add(State::Unallocated, seconds),
            _ => add(State::Unobserved, seconds),
        }
        let who = if next == Piece::NotHeld { 0 } else { holder };
        *truth.holders.entry(who).or_default() += i64::from(seconds);
        if who > 0 {
            let from_s = BEGIN_S + i64::from(at);
            let held = Span {
                from_s,
                until_s: from_s + i64::from(seconds),
            };
            holds.push(Hold {
                holder,
                held,
                runs_from_s: Some(from_s),
            });
        }
        line.push((next, seconds));
        (before, at) = (next, at + seconds);
    }
    let around = Around {
        holds: Some(holds),
        ..Around::default()
    };
    (line, around)
}

/// A month is charged second by second as it was, and costs what its nodes cost.
fn check(seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut truth = Truth::default();
    let fleet = fleet(NODES);
    let mut periods: BTreeMap<(usize, i64), NodePeriod> = BTreeMap::new();
    for gpu in 0..NODES * 8 {
        let holder = i64::try_from(gpu % 2 + 1).expect("small");
        let (line, around) = drawn(&mut random, holder, &mut truth);
        let minutes = rows((FIRST_HOUR - HOUR) * 3_600, &line, Some(8e9));
        let mut carry = Carry::default();
        for number in 0..HOURS {
            let asked = Hour {
                hour: FIRST_HOUR + number,
                minutes: &minutes,
                health: &[],
                carry,
                until: Timestamp::from_seconds(BEGIN_S + i64::from(ALL_S)),
                around: &around,
            };
            let accounted = account(&asked, &Policy::default());
            carry = accounted.carry;
            let node = gpu / 8;
            let period = periods
                .entry((node, number))
                .or_insert_with(|| super::fixture::period(node, number, &[]));
            period.gpus[gpu % 8] = GpuPeriod::whole(gpu, &accounted);
        }
    }
    let periods: Vec<NodePeriod> = periods.into_values().collect();
    // The price rises at a quarter past noon.
    let rates = format!("{RATES}box-8g,here,on_demand,USD,100,10,2026-10-01T12:15:00Z,,list,b\n");
    let made = october(&fleet, &periods, &book(&rates, ""));
    assert_eq!(made.notes, BTreeMap::new());
    let found = made.grouped(&fleet, &[]).remove(0);
    let states = found
        .states
        .iter()
        .map(|(state, sum)| (*state, sum.gpu_millis / 1_000));
    assert_eq!(states.collect::<BTreeMap<_, _>>(), truth.states);
    let teams = made.grouped(&fleet, &[By::Team]).into_iter();
    let teams: BTreeMap<String, i64> = teams
        .map(|it| (it.words.concat(), it.sum.gpu_millis / 1_000))
        .collect();
    let named = ["nobody", "science", "money"]
        .map(str::to_owned)
        .into_iter();
    let expected = named.zip(truth.holders.values().copied());
    assert_eq!(teams, expected.collect());
    let quarters = i128::from(HOURS * 4);
    let node = (49 * 80 + (quarters - 49) * 100) * 1_000_000_000 / 4;
    assert_eq!(made.total().cost, NODES as i128 * node);
    assert_eq!(made.total().gpu_millis, NODES as i64 * 8 * HOURS * HOUR_MS);
}

#[test]
fn a_month_is_charged_as_it_was_to_the_second_and_costs_what_its_nodes_cost_gpus_0_to_15() {
    check(64);
}

#[test]
fn a_month_is_charged_as_it_was_to_the_second_and_costs_what_its_nodes_cost_gpus_16_to_31() {
    check(65);
}

#[test]
fn a_month_is_charged_as_it_was_to_the_second_and_costs_what_its_nodes_cost_gpus_32_to_47() {
    check(66);
}

#[test]
fn a_month_is_charged_as_it_was_to_the_second_and_costs_what_its_nodes_cost_gpus_48_to_63() {
    check(67);
}
