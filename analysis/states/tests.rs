//! The partition on timelines drawn as pieces: (what, seconds).

use std::collections::BTreeMap;

use gpufleet_telemetry::catalog::{MetricId, gpu};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::{Aggregate, Bitmaps};
use proptest::prelude::*;

use super::*;

/// An hour of 2024, for no reason.
pub(crate) const HOUR: i64 = 480_000;

/// What a stretch of seconds shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    Active,
    Inactive,
    Stalled,
    NotHeld,
    /// Nobody holds it, and it works.
    Unclaimed,
    HolderUnknown,
    /// The agent tells of it but has no sample.
    Unseen,
    /// Nobody tells of it.
    Untold,
}
use Piece::*;
pub(crate) const PIECES: [Piece; 8] = [
    Active,
    Inactive,
    Stalled,
    NotHeld,
    Unclaimed,
    HolderUnknown,
    Unseen,
    Untold,
];

/// Minute rows of a timeline that begins `offset_s` after the start of [`HOUR`]; with memory in use
/// throughout when `memory_bytes` says how much.
pub(crate) fn rows(
    offset_s: i64,
    line: &[(Piece, u32)],
    memory_bytes: Option<f64>,
) -> BTreeMap<Minute, MinuteRow> {
    let mut rows: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
    let mut at = Timestamp::from_seconds(HOUR * 3_600 + offset_s);
    for (piece, seconds) in line {
        let mut left = *seconds;
        while left > 0 {
            let first = at.second_of_minute();
            let some = left.min(60 - first);
            if *piece != Untold {
                let row = rows.entry(at.minute()).or_default();
                let bits = ((1_u64 << some) - 1) << first;
                let evidence: &[_] = match piece {
                    Active => &[&gpu::OBSERVED, &gpu::HOLDER_KNOWN, &gpu::HELD, &gpu::ACTIVE],
                    Inactive => &[&gpu::OBSERVED, &gpu::HOLDER_KNOWN, &gpu::HELD],
                    Stalled => &[
                        &gpu::OBSERVED,
                        &gpu::HOLDER_KNOWN,
                        &gpu::HELD,
                        &gpu::ACTIVE,
                        &gpu::STALLED,
                    ],
                    NotHeld => &[&gpu::OBSERVED, &gpu::HOLDER_KNOWN],
                    Unclaimed => &[&gpu::OBSERVED, &gpu::HOLDER_KNOWN, &gpu::ACTIVE],
                    HolderUnknown => &[&gpu::OBSERVED, &gpu::ACTIVE],
                    Unseen | Untold => &[],
                };
                for metric in evidence {
                    row.bitmaps.set(metric.id, bits);
                }
                let point = |value| Aggregate::of_gauge(value, None).expect("finite");
                row.metrics.insert(gpu::GRAPHICS_ACTIVE.id, point(0.5));
                if let Some(bytes) = memory_bytes {
                    row.metrics.insert(gpu::MEMORY_USED.id, point(bytes));
                }
            }
            at = at.shifted(i64::from(some) * gpufleet_telemetry::time::NANOS_PER_SECOND);
            left -= some;
        }
    }
    rows
}

/// Seconds by state and reason of `hours` hours from [`HOUR`] on, each with the carry of the one
/// before, as far as `until_s` after its start.
fn account(
    rows: &BTreeMap<Minute, MinuteRow>,
    health: &[HealthEvent],
    hours: i64,
    until_s: i64,
) -> Vec<LedgerHour> {
    let mut carry = Carry::default();
    (HOUR..HOUR + hours)
        .map(|number| {
            let asked = Hour {
                hour: number,
                minutes: rows,
                health,
                carry,
                until: Timestamp::from_seconds(HOUR * 3_600 + until_s),
                around: &Around::default(),
            };
            let (ledger, next) = hour(&asked, &Policy::default());
            carry = next;
            ledger
        })
        .collect()
}

/// (state, reason, seconds) of one hour.
fn seconds(ledger: &LedgerHour) -> Vec<(State, Reason, i64)> {
    let entries = ledger.entries.iter();
    entries
        .map(|it| (it.state, it.reason, it.millis / 1_000))
        .collect()
}

fn check(line: &[(Piece, u32)], expected: &[(State, Reason, i64)]) {
    let rows = rows(0, line, Some(8e9));
    assert_eq!(
        seconds(&account(&rows, &[], 1, 7_200)[0]),
        expected,
        "{line:?}"
    );
}

const U: Reason = Reason::Unknown;

#[test]
fn each_kind_of_second_is_in_its_own_state() {
    check(
        &[
            (Active, 1_000),
            (NotHeld, 1_000),
            (HolderUnknown, 1_000),
            (Unseen, 600),
        ],
        &[
            (State::Unallocated, U, 1_000),
            (State::Unobserved, Reason::NoSample, 600),
            (State::Unobserved, Reason::HolderUnknown, 1_000),
            (State::ActiveUnrated, U, 1_000),
        ],
    );
}

#[test]
fn a_pause_under_five_minutes_is_a_gap_and_from_then_on_all_of_it_is_parked() {
    check(
        &[(Active, 3_301), (Inactive, 299), (Active, 600)],
        &[(State::ActiveUnrated, U, 3_301), (State::Gap, U, 299)],
    );
    check(
        &[(Active, 3_300), (Inactive, 300), (Active, 600)],
        &[(State::ActiveUnrated, U, 3_300), (State::Parked, U, 300)],
    );
}

#[test]
fn a_pause_across_the_hour_is_judged_as_a_whole_on_both_sides() {
    let line = [(Active, 3_450), (Inactive, 300), (Active, 3_450)];
    let hours = account(&rows(0, &line, Some(8e9)), &[], 2, 7_200);
    assert_eq!(hours[0].millis(State::Parked), 150_000);
    assert_eq!(hours[1].millis(State::Parked), 150_000);
    let line = [(Active, 3_450), (Inactive, 299), (Active, 3_451)];
    let hours = account(&rows(0, &line, Some(8e9)), &[], 2, 7_200);
    assert_eq!(hours[0].millis(State::Gap), 150_000);
    assert_eq!(hours[1].millis(State::Gap), 149_000);
}

#[test]
fn what_was_not_seen_cuts_a_pause_and_is_never_idle() {
    check(
        &[
            (Active, 100),
            (Inactive, 200),
            (Unseen, 60),
            (Inactive, 200),
            (Active, 3_040),
        ],
        &[
            (State::Unobserved, Reason::NoSample, 60),
            (State::ActiveUnrated, U, 3_140),
            (State::Gap, U, 400),
        ],
    );
}

#[test]
fn two_missing_ticks_are_bridged_and_more_are_not() {
    check(
        &[(Active, 1_000), (Unseen, 20), (Active, 2_580)],
        &[(State::ActiveUnrated, U, 3_600)],
    );
    check(
        &[(Active, 1_000), (Unseen, 21), (Active, 2_579)],
        &[
            (State::Unobserved, Reason::NoSample, 21),
            (State::ActiveUnrated, U, 3_579),
        ],
    );
    // Ten seconds on each side of the hour are bridged, fifteen on each side are not.
    for (half, expected) in [(10, 0), (15, 15_000)] {
        let line = [
            (NotHeld, 3_600 - half),
            (Untold, 2 * half),
            (NotHeld, 3_600 - half),
        ];
        let hours = account(&rows(0, &line, None), &[], 2, 7_200);
        let found: Vec<i64> = hours
            .iter()
            .map(|it| it.millis(State::Unobserved))
            .collect();
        assert_eq!(found, [expected, expected]);
    }
}

#[test]
fn a_stall_begins_when_it_is_detected_and_not_before() {
    check(
        &[(Active, 1_000), (Stalled, 300), (Active, 2_300)],
        &[(State::ActiveUnrated, U, 3_600)],
    );
    check(
        &[(Active, 1_000), (Stalled, 1_000), (Active, 1_600)],
        &[(State::Stalled, U, 700), (State::ActiveUnrated, U, 2_900)],
    );
    let line = [(Active, 3_400), (Stalled, 400), (Active, 3_400)];
    let hours = account(&rows(0, &line, None), &[], 2, 7_200);
    assert_eq!(hours[0].millis(State::Stalled), 0);
    assert_eq!(hours[1].millis(State::Stalled), 100_000);
}

#[test]
fn an_inactive_gpu_is_parked_empty_or_of_unknown_memory() {
    let line = [(Inactive, 3_600)];
    for (memory, expected) in [
        (Some(536_870_976.0), (State::Parked, U)),
        (Some(536_870_912.0), (State::HeldEmpty, U)),
        (None, (State::Parked, Reason::MemoryUnknown)),
    ] {
        let hour = &account(&rows(0, &line, memory), &[], 1, 7_200)[0];
        assert_eq!(seconds(hour), [(expected.0, expected.1, 3_600)]);
    }
}

#[test]
fn without_engine_activity_or_utilisation_nothing_is_called_inactive() {
    let mut rows = rows(0, &[(Inactive, 3_600)], Some(8e9));
    for row in rows.values_mut() {
        row.metrics.remove(&gpu::GRAPHICS_ACTIVE.id);
    }
    let hour = &account(&rows, &[], 1, 7_200)[0];
    assert_eq!(
        seconds(hour),
        [(State::Unobserved, Reason::ActivityUnknown, 3_600)]
    );
}

#[test]
fn a_gpu_is_accounted_from_its_first_second_and_until_an_hour_after_its_last() {
    let hours = account(&rows(1_234, &[(Active, 766)], None), &[], 3, 10_800);
    assert_eq!(
        seconds(&hours[0]),
        [
            (State::Unobserved, Reason::NoSample, 1_600),
            (State::ActiveUnrated, U, 766)
        ]
    );
    // Told of until 2,040, the end of its last minute: gone an hour after that.
    assert_eq!(
        seconds(&hours[1]),
        [(State::Unobserved, Reason::NoSample, 2_040)]
    );
    assert_eq!(seconds(&hours[2]), []);
}

#[test]
fn a_gpu_that_the_agent_reports_as_missing_is_not_gone() {
    let hours = account(
        &rows(0, &[(Active, 60), (Unseen, 10_740)], None),
        &[],
        3,
        10_800,
    );
    assert_eq!(
        seconds(&hours[2]),
        [(State::Unobserved, Reason::NoSample, 3_600)]
    );
}

#[test]
fn without_any_data_nothing_is_accounted() {
    assert_eq!(seconds(&account(&BTreeMap::new(), &[], 1, 7_200)[0]), []);
}

#[test]
fn an_hour_that_runs_is_accounted_as_far_as_data_can_be() {
    let rows = rows(0, &[(Active, 1_000)], None);
    let hour = &account(&rows, &[], 1, 900)[0];
    assert_eq!(seconds(hour), [(State::ActiveUnrated, U, 900)]);
    assert_eq!(seconds(&account(&rows, &[], 1, -5)[0]), []);
}

fn health(events: &[(i64, Edge)]) -> Vec<HealthEvent> {
    let event = |(second, edge): &(i64, Edge)| HealthEvent {
        at: Timestamp::from_seconds(HOUR * 3_600 + second),
        edge: *edge,
    };
    events.iter().map(event).collect()
}

#[test]
fn a_broken_gpu_is_unhealthy_until_it_is_healed_whatever_it_shows() {
    let rows = rows(
        0,
        &[(Active, 1_000), (Unseen, 4_000), (Active, 2_200)],
        None,
    );
    let events = health(&[
        (1_000, Edge::Broken(Reason::DeviceLost)),
        (4_800, Edge::Whole),
    ]);
    let hours = account(&rows, &events, 2, 7_200);
    assert_eq!(
        seconds(&hours[0]),
        [
            (State::Unhealthy, Reason::DeviceLost, 2_600),
            (State::ActiveUnrated, U, 1_000)
        ]
    );
    assert_eq!(
        seconds(&hours[1]),
        [
            (State::Unhealthy, Reason::DeviceLost, 1_200),
            (State::Unobserved, Reason::NoSample, 200),
            (State::ActiveUnrated, U, 2_200),
        ]
    );
}

#[test]
fn a_gpu_that_works_for_a_minute_after_a_fatal_event_is_healthy_again() {
    let rows = rows(0, &[(Active, 3_600)], None);
    let events = health(&[
        (100, Edge::Broken(Reason::FatalXid)),
        (130, Edge::Broken(Reason::FatalXid)),
    ]);
    let hour = &account(&rows, &events, 1, 7_200)[0];
    assert_eq!(
        seconds(hour),
        [
            (State::Unhealthy, Reason::FatalXid, 90),
            (State::ActiveUnrated, U, 3_510)
        ]
    );
}

#[test]
fn a_recovery_action_holds_until_the_driver_asks_for_nothing() {
    let mut rows = rows(0, &[(NotHeld, 3_600)], None);
    for (minute, value) in [(10, 1.0), (40, 0.0)] {
        let row = rows
            .get_mut(&Minute(HOUR * 60 + minute))
            .expect("it is there");
        let point = Aggregate::of_gauge(value, None).expect("finite");
        row.metrics.insert(gpu::RECOVERY_ACTION.id, point);
    }
    let events = health(&[(600, Edge::Broken(Reason::RecoveryAction))]);
    let hour = &account(&rows, &events, 1, 7_200)[0];
    assert_eq!(
        seconds(hour),
        [
            (State::Unhealthy, Reason::RecoveryAction, 1_800),
            (State::Unallocated, U, 1_800),
        ]
    );
}

#[test]
fn application_xids_break_nothing_and_unknown_codes_neither() {
    let xid = |code: &str| Event {
        at: Timestamp::from_seconds(5),
        kind: EventKind::Xid,
        severity: Severity::Error,
        resource_kind: ResourceKind::Gpu,
        resource_id: "GPU-1".into(),
        message: String::new(),
        attributes: BTreeMap::from([("xid".to_owned(), code.to_owned())]),
    };
    for (code, expected) in [
        ("79", Some(Edge::Broken(Reason::FatalXid))),
        ("13", None),
        ("31", None),
        ("74", None),
        ("not a number", None),
    ] {
        assert_eq!(edge(&xid(code)).map(|it| it.edge), expected, "{code}");
    }
}

/// A few stretches, up to two and a half hours of them.
fn line() -> impl Strategy<Value = Vec<(Piece, u32)>> {
    let seconds = prop_oneof![1_u32..50, 200_u32..400, 1_u32..4_000];
    let piece = proptest::sample::select(&PIECES[..]);
    proptest::collection::vec((piece, seconds), 0..12)
}

fn events() -> impl Strategy<Value = Vec<(i64, Edge)>> {
    let edge = prop_oneof![
        Just(Edge::Whole),
        Just(Edge::Broken(Reason::FatalXid)),
        Just(Edge::Broken(Reason::DriverHang))
    ];
    proptest::collection::vec((0_i64..7_200, edge), 0..4)
}

fn totals(hours: &[LedgerHour]) -> BTreeMap<(State, Reason), i64> {
    let mut totals = BTreeMap::new();
    for entry in hours.iter().flat_map(|it| &it.entries) {
        *totals.entry((entry.state, entry.reason)).or_default() += entry.millis;
    }
    totals
}

proptest! {
    // Each case accounts up to 16 hours second by second.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_second_is_in_exactly_one_state(
        line in line(), events in events(), until_s in 0_i64..10_800,
    ) {
        let rows = rows(0, &line, None);
        for (number, hour) in account(&rows, &health(&events), 3, until_s).iter().enumerate() {
            let asked = (until_s - number as i64 * 3_600).clamp(0, 3_600) * 1_000;
            prop_assert!(hour.entries.iter().all(|it| it.millis > 0 && it.millis % 1_000 == 0));
            prop_assert!(hour.entries.windows(2).all(|it| (it[0].state, it[0].reason) < (it[1].state, it[1].reason)));
            prop_assert!(hour.total_millis() <= asked);
            // Once told of in the first second and with no silence over an hour, all is accounted.
            let short = line.iter().all(|(piece, seconds)| *piece != Untold || *seconds < 3_500);
            let known: u32 = line.iter().map(|it| it.1).sum();
            if line.first().is_some_and(|it| it.0 == Active) && short && i64::from(known) >= until_s {
                let consecutive = line.windows(2).all(|it| it[0].0 != Untold || it[1].0 != Untold);
                if consecutive {
                    prop_assert_eq!(hour.total_millis(), asked);
                }
            }
        }
    }

    #[test]
    fn where_the_hours_are_cut_changes_no_total(
        line in line(), events in events(), shift_minutes in 0_i64..60,
    ) {
        let shift = shift_minutes * 60;
        let moved: Vec<_> = events.iter().map(|(at, edge)| (at + shift, *edge)).collect();
        let end = 6 * 3_600;
        let here = account(&rows(0, &line, None), &health(&events), 8, end);
        let there = account(&rows(shift, &line, None), &health(&moved), 8, end + shift);
        prop_assert_eq!(totals(&here), totals(&there));
    }

    #[test]
    fn the_order_in_which_data_arrives_changes_nothing(line in line(), cut in 1_u32..59) {
        let whole = rows(0, &line, None);
        let mut merged: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
        // Each minute in two parts, the later part of all minutes first, the bitmaps twice.
        for early in [false, true, false] {
            for (minute, row) in whole.iter().rev() {
                let mut part = row.clone();
                let keep = if early { (1_u64 << cut) - 1 } else { !((1_u64 << cut) - 1) };
                for metric in [gpu::OBSERVED, gpu::ACTIVE, gpu::STALLED, gpu::HELD, gpu::HOLDER_KNOWN] {
                    part.bitmaps = cut_bits(part.bitmaps, metric.id, keep);
                }
                merged.entry(*minute).or_default().merge(&part);
            }
        }
        prop_assert_eq!(
            account(&merged, &[], 3, 10_800),
            account(&whole, &[], 3, 10_800)
        );
    }
}

fn cut_bits(bits: Bitmaps, metric: MetricId, keep: u64) -> Bitmaps {
    let mut cut = Bitmaps::default();
    for (number, bitmap) in (1..).map(MetricId).zip(bits.all()) {
        let kept = if number == metric { keep } else { u64::MAX };
        cut.set(number, bitmap & kept);
    }
    cut
}
