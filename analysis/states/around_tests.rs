//! The states that need more than the GPU's own evidence, on timelines drawn as pieces.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::minute::Aggregate;
use proptest::prelude::*;

use super::tests::{HOUR, Piece, rows};
use super::*;

const START_S: i64 = HOUR * 3_600;

fn span(from: i64, until: i64) -> Span {
    Span {
        from_s: START_S + from,
        until_s: START_S + until,
    }
}

fn hold(holder: i64, from: i64, until: i64, runs_from: i64) -> Hold {
    Hold {
        holder,
        held: span(from, until),
        runs_from_s: Some(START_S + runs_from),
    }
}

/// One hour, with what the hour before handed over.
fn accounted(
    minutes: &BTreeMap<Minute, MinuteRow>,
    around: &Around,
    carry: Carry,
    hour: i64,
) -> Accounted {
    let asked = Hour {
        hour,
        minutes,
        health: &[],
        carry,
        until: Timestamp::from_seconds(START_S + 7_200),
        around,
    };
    account(&asked, &Policy::default())
}

/// (holder, state, reason, seconds) of the hour in which the line is drawn.
fn check(line: &[(Piece, u32)], around: &Around, expected: &[(i64, State, Reason, i64)]) {
    let rows = rows(0, line, Some(8e9));
    let all = accounted(&rows, around, Carry::default(), HOUR);
    let found = all.held.iter();
    let found: Vec<_> = found
        .map(|((who, state, why), held)| (*who, *state, *why, held.millis / 1_000))
        .collect();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(found, expected, "{around:?}");
}

const U: Reason = Reason::Unknown;

/// Minutes of a line in whose held seconds the holder of their time held it.
fn held(line: &[(Piece, u32)], holder_at: impl Fn(i64) -> i64) -> BTreeMap<Minute, MinuteRow> {
    let mut rows = rows(0, line, Some(8e9));
    for (minute, row) in &mut rows {
        for second in 0..60 {
            let at = minute.start().seconds() + second - START_S;
            row.hold(holder_at(at), row.bitmaps.held & 1 << second);
        }
    }
    rows
}

#[test]
fn who_held_it_is_told_by_the_minutes_and_a_run_of_idleness_is_in_one_pair_of_hands() {
    // Two hold it for half of ten idle minutes each: neither parks it for five. Ten seconds without a
    // sample change nothing; 30 do.
    let line = [
        (Piece::Inactive, 290),
        (Piece::Unseen, 10),
        (Piece::Inactive, 299),
        (Piece::Unseen, 30),
        (Piece::Inactive, 2_971),
    ];
    let minutes = held(&line, |at| if at < 310 { 5 } else { 7 });
    let around = Around::told_by(&minutes);
    let spans: Vec<_> = around
        .holds
        .iter()
        .flatten()
        .map(|it| (it.holder, it.held))
        .collect();
    let expected = [
        (5, span(0, 290)),
        (5, span(300, 310)),
        (7, span(310, 599)),
        (7, span(629, 3_600)),
    ];
    assert_eq!(spans, expected);
    let all = accounted(&minutes, &around, Carry::default(), HOUR);
    let found = all.held.iter();
    let found: Vec<_> = found
        .map(|(key, held)| (*key, held.millis / 1_000))
        .collect();
    let expected = [
        ((0, State::Unobserved, Reason::NoSample), 30),
        ((5, State::Parked, U), 310),
        ((7, State::Gap, U), 289),
        ((7, State::Parked, U), 2_971),
    ];
    assert_eq!(found, expected);
    assert_eq!(all.carry.holder, 7);
    assert_eq!(Around::told_by(&rows(0, &line, None)), Around::default());
}

#[test]
fn of_a_minute_in_which_one_second_was_held_one_second_is_its_holders() {
    let mut minutes = rows(0, &[(Piece::NotHeld, 3_600)], None);
    let minute = minutes.get_mut(&Minute(HOUR * 60 + 3));
    minute.expect("it is there").hold(5, 1 << 17);
    let all = accounted(&minutes, &Around::told_by(&minutes), Carry::default(), HOUR);
    let found = all.held.iter();
    let found: Vec<_> = found.map(|(key, held)| (key.0, held.millis)).collect();
    assert_eq!(found, [(0, 3_599_000), (5, 1_000)]);
}

#[test]
fn exactly_the_billed_seconds_are_accounted_and_those_before_it_was_ready_are_starting() {
    let around = Around {
        billed: Some(vec![span(0, 3_000)]),
        not_ready: vec![
            (span(0, 400), NotReady::Starting),
            (span(2_000, 2_100), NotReady::Lost),
        ],
        ..Around::default()
    };
    check(
        &[(Piece::Untold, 500), (Piece::NotHeld, 3_100)],
        &around,
        &[
            (0, State::StartingNode, U, 400),
            (0, State::Unobserved, Reason::NoSample, 100),
            (0, State::Unallocated, U, 2_400),
            (0, State::Unhealthy, Reason::NodeNotReady, 100),
        ],
    );
}

#[test]
fn what_was_measured_active_stays_active_while_its_node_is_not_ready() {
    let around = Around {
        not_ready: vec![(span(0, 2_000), NotReady::Lost)],
        ..Around::default()
    };
    check(
        &[(Piece::Active, 1_000), (Piece::NotHeld, 3_000)],
        &around,
        &[
            (0, State::ActiveUnrated, U, 1_000),
            (0, State::Unallocated, U, 1_600),
            (0, State::Unhealthy, Reason::NodeNotReady, 1_000),
        ],
    );
}

#[test]
fn draining_and_the_reasons_of_free_time_need_that_nobody_holds_it_and_that_it_was_seen() {
    let around = Around {
        draining: vec![span(0, 1_000)],
        demand: vec![
            (span(1_000, 1_500), Demand::None),
            (span(1_500, 1_600), Demand::Fragmented),
            (span(1_600, 1_700), Demand::Reserved),
        ],
        ..Around::default()
    };
    check(
        &[
            (Piece::NotHeld, 100),
            (Piece::Active, 200),
            (Piece::Unseen, 300),
            (Piece::NotHeld, 3_000),
        ],
        &around,
        &[
            (0, State::Draining, U, 500),
            (0, State::ActiveUnrated, U, 200),
            (0, State::Unobserved, Reason::NoSample, 300),
            (0, State::Unallocated, Reason::NoDemand, 500),
            (0, State::Unallocated, Reason::Fragmented, 100),
            (0, State::Unallocated, Reason::ReservedHold, 100),
            (0, State::Unallocated, U, 1_900),
        ],
    );
}

#[test]
fn a_holder_starts_until_its_container_runs_and_two_at_once_are_nobody_known() {
    let around = Around {
        holds: Some(vec![hold(7, 100, 2_000, 400), hold(8, 1_800, 2_500, 1_800)]),
        ..Around::default()
    };
    check(
        &[(Piece::NotHeld, 1_000), (Piece::Active, 2_600)],
        &around,
        &[
            (0, State::Unallocated, U, 100),
            (7, State::StartingPod, U, 300),
            (7, State::Parked, U, 600),
            (7, State::ActiveUnrated, U, 800),
            (0, State::Unobserved, Reason::HolderUnknown, 200),
            (8, State::ActiveUnrated, U, 500),
            // The agent saw somebody hold it whom nobody watches.
            (0, State::ActiveUnrated, U, 1_100),
        ],
    );
}

#[test]
fn what_works_while_its_container_is_said_not_to_run_is_active() {
    let around = Around {
        holds: Some(vec![hold(7, 0, 3_600, 1_000)]),
        ..Around::default()
    };
    check(
        &[
            (Piece::Inactive, 400),
            (Piece::Active, 200),
            (Piece::Inactive, 600),
            (Piece::Active, 2_400),
        ],
        &around,
        &[
            // Until 1,000, but for what it worked.
            (7, State::StartingPod, U, 800),
            (7, State::ActiveUnrated, U, 2_600),
            (7, State::Gap, U, 200),
        ],
    );
}

#[test]
fn a_watched_holder_is_known_where_the_node_does_not_know_it() {
    let around = Around {
        holds: Some(vec![hold(7, 0, 3_600, 0)]),
        ..Around::default()
    };
    check(
        &[(Piece::HolderUnknown, 3_600)],
        &around,
        &[(7, State::ActiveUnrated, U, 3_600)],
    );
}

#[test]
fn two_short_pauses_in_different_hands_are_not_one_long_one() {
    let line = [
        (Piece::Active, 1_000),
        (Piece::Inactive, 400),
        (Piece::Active, 2_200),
    ];
    let hands = |second| Around {
        holds: Some(vec![hold(1, 0, 1_200, 0), hold(second, 1_200, 3_600, 0)]),
        ..Around::default()
    };
    let active = State::ActiveUnrated;
    check(
        &line,
        &hands(2),
        &[
            (1, active, U, 1_000),
            (1, State::Gap, U, 200),
            (2, State::Gap, U, 200),
            (2, active, U, 2_200),
        ],
    );
    check(
        &line,
        &hands(1),
        &[(1, active, U, 3_200), (1, State::Parked, U, 400)],
    );
}

#[test]
fn a_run_without_steps_is_stalled_at_once_whatever_its_engine_says_and_never_when_free() {
    let around = Around {
        standing: vec![span(500, 3_600)],
        ..Around::default()
    };
    check(
        &[
            (Piece::Active, 1_000),
            (Piece::Inactive, 1_000),
            (Piece::NotHeld, 1_600),
        ],
        &around,
        &[
            (0, State::ActiveUnrated, U, 500),
            (0, State::Stalled, U, 1_500),
            (0, State::Unallocated, U, 1_600),
        ],
    );
}

#[test]
fn activity_is_split_by_the_first_target_that_a_minute_can_be_held_against() {
    let mut minutes = rows(0, &[(Piece::Active, 3_600)], None);
    for (number, (_, row)) in (0..).zip(&mut minutes) {
        let tensor = if number < 30 { 0.4 } else { 0.28 };
        let point = Aggregate::of_gauge(tensor, None).expect("finite");
        row.metrics.insert(gpu::TENSOR_ACTIVE.id, point);
    }
    let held = Some(vec![hold(1, 0, 3_600, 0)]);
    let mut around = Around {
        holds: held,
        targets: BTreeMap::from([(1, TRAINING_TARGETS.to_vec())]),
        ..Around::default()
    };
    // The last ten minutes have an MFU, which goes before tensor activity.
    let first = HOUR * 60;
    around.mfu = (50..60)
        .map(|it| ((1, Minute(first + it)), 500_000))
        .collect();
    let all = accounted(&minutes, &around, Carry::default(), HOUR);
    let of = |state| all.held[&(1, state, U)];
    assert_eq!(of(State::ActiveEfficient).millis, 2_400_000);
    let low = of(State::ActiveInefficient);
    // 0.28 of 0.35 is 80 %: a fifth of 20 minutes is missing.
    assert_eq!((low.millis, low.lost_millis), (1_200_000, 240_000));
    around.targets.clear();
    let all = accounted(&minutes, &around, Carry::default(), HOUR);
    assert_eq!(all.held[&(1, State::ActiveUnrated, U)].millis, 3_600_000);
}

#[test]
fn a_standby_is_parked_by_design_and_says_so() {
    let around = Around {
        holds: Some(vec![hold(1, 0, 3_600, 0)]),
        standby: [1].into(),
        ..Around::default()
    };
    check(
        &[(Piece::Inactive, 3_600)],
        &around,
        &[(1, State::Parked, Reason::WarmStandby, 3_600)],
    );
}

#[test]
fn since_when_it_is_idle_is_known_across_hours_and_begins_anew_in_other_hands() {
    let line = [(Piece::Active, 3_000), (Piece::Inactive, 4_200)];
    let minutes = rows(0, &line, Some(8e9));
    let since = |around: &Around| {
        let first = accounted(&minutes, around, Carry::default(), HOUR);
        let second = accounted(&minutes, around, first.carry, HOUR + 1);
        (first.carry.idle_since_s, second.carry.idle_since_s)
    };
    let began = Some(START_S + 3_000);
    assert_eq!(since(&Around::default()), (began, began));
    let around = Around {
        holds: Some(vec![hold(1, 0, 4_000, 0), hold(2, 4_000, 7_200, 4_000)]),
        ..Around::default()
    };
    assert_eq!(since(&around), (began, Some(START_S + 4_000)));
    let busy = rows(0, &[(Piece::Active, 3_600)], None);
    let carry = accounted(&busy, &Around::default(), Carry::default(), HOUR).carry;
    assert_eq!(carry.idle_since_s, None);
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    prop::collection::vec((0_i64..4_000, 1_i64..2_000), 0..3).prop_map(|all| {
        all.into_iter()
            .map(|(from, length)| span(from, from + length))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_states_of_an_hour_add_up_to_its_billed_seconds_by_holder_and_in_all(
        pieces in prop::collection::vec((0_usize..8, 1_u32..1_500), 0..8),
        billed in spans(), draining in spans(), standing in spans(), held in spans(), lost in spans(),
    ) {
        let line: Vec<_> = pieces.iter().map(|(at, seconds)| (super::tests::PIECES[*at], *seconds)).collect();
        let minutes = rows(0, &line, None);
        let holds = (1..).zip(&held).map(|(holder, span)| Hold {
            holder, held: *span, runs_from_s: Some(span.from_s + 100),
        });
        let around = Around {
            billed: Some(billed.clone()),
            not_ready: lost.iter().map(|it| (*it, NotReady::Lost)).collect(),
            draining,
            standing,
            holds: Some(holds.collect()),
            ..Around::default()
        };
        let all = accounted(&minutes, &around, Carry::default(), HOUR);
        let paid = (0..3_600).filter(|it| billed.iter().any(|span| {
            span.from_s <= START_S + it && START_S + it < span.until_s
        }));
        prop_assert_eq!(all.ledger.total_millis(), paid.count() as i64 * 1_000);
        let by_holder: i64 = all.held.values().map(|it| it.millis).sum();
        prop_assert_eq!(by_holder, all.ledger.total_millis());
        for (at, it) in &all.held {
            prop_assert!((0..=it.millis).contains(&it.lost_millis), "{:?}", at);
        }
    }
}
