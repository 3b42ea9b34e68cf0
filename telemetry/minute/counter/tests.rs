//! Growth must be the truth whatever the order, the pieces and the restarts.

use proptest::prelude::*;

use super::super::MinuteRow;
use super::*;
use crate::catalog::gpu::ENERGY;
use crate::time::{Minute, SECONDS_PER_MINUTE};

/// Seconds of a tick.
const TICK: i64 = 10;

fn point(raw: f64, from: u32, to: u32) -> Counter {
    Counter::point(raw, from, to).expect("finite")
}

fn merged(points: &[(f64, u32, u32)]) -> Counter {
    let mut points = points.iter().map(|(raw, from, to)| point(*raw, *from, *to));
    let mut all = points.next().expect("at least one");
    points.for_each(|it| all.merge(&it));
    all
}

/// The row of a tick that ends at this second, with its minute.
fn row(end: i64, raw: f64) -> (Minute, MinuteRow) {
    let minute = (end - 1).div_euclid(i64::from(SECONDS_PER_MINUTE));
    let to = u32::try_from((end - minute * 60) * 1_000).expect("within the minute");
    let mut row = MinuteRow::default();
    row.add_counter(ENERGY.id, &point(raw, to.saturating_sub(10_000), to));
    (Minute(minute), row)
}

fn total(rows: &BTreeMap<Minute, MinuteRow>) -> f64 {
    let mut meter = Meter::default();
    let counters = rows.values().flat_map(|row| &row.counters);
    counters.map(|(id, it)| meter.read(*id, it)).sum()
}

/// What a counter really did: by how much it grew in each tick, and whether it began again at zero
/// just before; none where no sample was taken.
fn life() -> impl Strategy<Value = Vec<Option<f64>>> {
    let tick = (0_u32..50, 0_u32..8, 0_u32..10);
    proptest::collection::vec(tick, 2..120).prop_map(|ticks| {
        let mut raw = 0.0;
        let taken = ticks.into_iter().map(|(grown, reset, missed)| {
            raw = f64::from(grown) + if reset == 0 { 0.0 } else { raw };
            (missed > 0).then_some(raw)
        });
        taken.collect()
    })
}

proptest! {
    /// The ticks are cut into epochs, each of which arrives in its own order of time, in commits of
    /// any size; the store packs and unpacks, as over a restart, between any two commits.
    #[test]
    fn growth_is_the_truth_in_any_order_of_epochs_and_over_any_restarts(
        life in life(),
        cuts in proptest::collection::vec(0_usize..120, 0..4),
        turns: Vec<prop::sample::Index>,
        commits: u64,
    ) {
        let points: Vec<(i64, f64)> = (1..)
            .zip(&life)
            .filter_map(|(tick, raw)| Some((tick * TICK, (*raw)?)))
            .collect();
        let truth: f64 = points
            .windows(2)
            .map(|pair| if pair[1].1 >= pair[0].1 { pair[1].1 - pair[0].1 } else { pair[1].1 })
            .sum();
        let epoch = |end: i64| cuts.iter().filter(|cut| end > **cut as i64 * TICK).count();
        let mut epochs: Vec<Vec<(i64, f64)>> = vec![Vec::new(); cuts.len() + 1];
        points.iter().for_each(|it| epochs[epoch(it.0)].push(*it));
        let mut stored: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
        let mut pending: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
        let mut turns = turns.into_iter();
        for arrival in 0.. {
            epochs.retain(|it| !it.is_empty());
            if epochs.is_empty() {
                break;
            }
            // Without more turns the newest epoch comes first, as after an outage.
            let place = turns.next().map_or(epochs.len() - 1, |it| it.index(epochs.len()));
            let (end, raw) = epochs[place].remove(0);
            let (minute, new) = row(end, raw);
            pending.entry(minute).or_default().merge(&new);
            if commits >> (arrival % 64) & 1 == 1 || epochs.iter().all(Vec::is_empty) {
                for (minute, delta) in std::mem::take(&mut pending) {
                    let known = stored.remove(&minute).unwrap_or_default();
                    let mut known = MinuteRow::unpack(&known.pack()).expect("as it was packed");
                    known.merge(&delta);
                    stored.insert(minute, known);
                }
            }
        }
        prop_assert_eq!(total(&stored), truth);
        let mut in_time: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
        for (end, raw) in points {
            let (minute, new) = row(end, raw);
            in_time.entry(minute).or_default().merge(&new);
        }
        prop_assert_eq!(stored, in_time, "the same rows as if all had come in time");
    }
}

#[test]
fn a_pause_is_filled_later_without_losing_the_reset_in_it() {
    let mut counter = merged(&[(100.0, 0, 10_000), (50.0, 30_000, 40_000)]);
    assert_eq!(counter.growth(), 50.0, "as far as is known");
    counter.merge(&point(5.0, 20_000, 30_000));
    counter.merge(&point(120.0, 10_000, 20_000));
    assert_eq!(counter.growth(), 20.0 + 5.0 + 45.0);
    assert_eq!((counter.runs.len(), counter.count()), (1, 4));
    assert_eq!((counter.first(), counter.last()), (100.0, 50.0));
}

#[test]
fn growth_goes_on_from_row_to_row_and_begins_with_the_first_point() {
    let mut meter = Meter::default();
    let mut read = |raw: &[(f64, u32, u32)]| meter.read(ENERGY.id, &merged(raw));
    assert_eq!(read(&[(100.0, 0, 10_000)]), 0.0);
    assert_eq!(read(&[(130.0, 0, 10_000), (131.0, 10_000, 20_000)]), 31.0);
    assert_eq!(read(&[(7.0, 0, 10_000)]), 7.0, "it was reset");
}

#[test]
fn a_tick_that_is_told_twice_after_a_kill_adds_nothing_whenever_it_comes() {
    // The first process came to 32.5 s and the next begins in the same tick.
    let pieces = [
        point(100.0, 20_000, 32_000),
        point(105.0, 32_000, 33_000),
        point(110.0, 32_000, 33_000),
        point(150.0, 33_000, 60_000),
    ];
    for order in (0..256).map(|it| [it % 4, it / 4 % 4, it / 16 % 4, it / 64]) {
        if (0..4).any(|piece| !order.contains(&piece)) {
            continue;
        }
        let mut all = pieces[order[0]].clone();
        order[1..].iter().for_each(|it| all.merge(&pieces[*it]));
        assert_eq!(
            (all.runs.len(), all.growth(), all.count()),
            (1, 50.0, 4),
            "{order:?}"
        );
        assert_eq!((all.first(), all.last()), (100.0, 150.0), "{order:?}");
    }
}

#[test]
fn a_reset_beside_a_tick_that_is_told_twice_is_still_one() {
    let killed = point(1e9, 32_000, 33_000);
    let mut after = point(3.0, 32_000, 33_000);
    after.merge(&point(8.0, 33_000, 34_000));
    let mut all = killed;
    all.merge(&after);
    assert_eq!((all.growth(), all.last()), (8.0, 8.0));
}

#[test]
fn the_shortest_pauses_are_closed_when_there_are_too_many() {
    // Pauses of 1,510 ms, 1,520 ms, and so on.
    let points: Vec<_> = (0..80)
        .map(|place| {
            let began = place * 3_000;
            (f64::from(place), began + place * 10, began + 1_500)
        })
        .collect();
    let counter = merged(&points);
    assert_eq!(counter.runs.len(), MAX_RUNS);
    assert_eq!((counter.growth(), counter.count()), (79.0, 80));
    let pauses: Vec<_> = counter
        .runs
        .windows(2)
        .map(|it| it[1].from - it[0].to)
        .collect();
    assert!(pauses.iter().all(|it| *it > 1_980), "{pauses:?}");
}

#[test]
fn what_is_no_total_never_enters_a_row_and_no_sum_overflows() {
    for value in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(Counter::point(value, 0, 1), None, "{value}");
    }
    let most = merged(&[(f64::MAX, 0, 1), (0.0, 1, 2), (f64::MAX, 2, 3)]);
    assert_eq!(most.growth(), f64::MAX);
    let mut meter = Meter::default();
    assert_eq!(meter.read(ENERGY.id, &point(0.0, 0, 1)), 0.0);
    assert_eq!(meter.read(ENERGY.id, &most), f64::MAX);
}

#[test]
fn rows_of_ten_minutes_are_made_of_minutes() {
    let mut bucket = merged(&[(1.0, 50_000, 60_000)]);
    bucket.merge(&merged(&[(4.0, 0, 10_000), (2.0, 10_000, 20_000)]).later(60_000));
    assert_eq!(bucket.runs.len(), 1);
    assert_eq!((bucket.growth(), bucket.runs[0].to), (5.0, 80_000));
}
