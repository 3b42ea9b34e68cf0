//! How much a counter grew, in data that comes in several streams and not in the order of time.
//!
//! Growth is the difference to the raw value before it in the same epoch; after a reset it counts
//! from zero. Where an epoch begins it has no value before it: its first value is joined once to
//! the neighbouring value of another epoch, if one lies within [`JOIN_INTERVALS`] ticks, whichever
//! of the two arrives first. So an outage that is drained later adds up to the same total, each
//! part in its own minute, and nothing is added twice.

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use uuid::Uuid;

/// Epochs remembered per resource: one live and what an agent may be draining.
pub(super) const MAX_EPOCHS: usize = 6;

/// How many ticks apart two values may lie to be neighbours, in halves: 2.5 ticks.
pub(super) const JOIN_INTERVALS: i64 = 5;

/// Neighbours are never further apart than this: an agent that is 60 s behind opens a new epoch, so
/// the values in between are still to come in the old one. Nanoseconds.
pub(super) const MAX_JOIN: i64 = 55 * NANOS_PER_SECOND;

/// The epoch under which values read from the store after a start are remembered.
pub(super) const SEEDED: Epoch = Epoch(Uuid::nil());

/// The counters of one resource.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    /// By epoch, the most recently used first.
    epochs: Vec<(Epoch, Vec<Series>)>,
}

/// One counter in one epoch.
#[derive(Debug, Clone, Copy)]
struct Series {
    metric: MetricId,
    /// The newest raw value and its time.
    raw: f64,
    at: Timestamp,
    /// The first raw value of the epoch and its time.
    first_raw: f64,
    first_at: Timestamp,
    /// Whether the first value has been joined to a neighbour.
    joined: bool,
    /// Growth up to this time has been counted elsewhere.
    counted_until: Timestamp,
}

impl Counters {
    /// Takes in a raw value and says how much of growth it adds.
    pub(super) fn grow(
        &mut self,
        epoch: Epoch,
        metric: MetricId,
        raw: f64,
        at: Timestamp,
        interval_nanos: i64,
    ) -> f64 {
        let join = (interval_nanos.saturating_mul(JOIN_INTERVALS) / 2).clamp(0, MAX_JOIN);
        self.bring_to_front(epoch);
        let (own, others) = self
            .epochs
            .split_first_mut()
            .expect("the epoch was just brought to the front");
        let own = &mut own.1;
        let place = own.partition_point(|it| it.metric < metric);
        let is_known = own.get(place).is_some_and(|it| it.metric == metric);
        let mut growth = 0.0;
        if is_known {
            let series = &mut own[place];
            if at > series.counted_until {
                growth = difference(series.raw, raw);
            }
            (series.raw, series.at) = (raw, at);
        } else {
            let before = neighbour_before(others, metric, at, join);
            let is_joined = before.is_some();
            let mut counted_until = Timestamp(i64::MIN);
            match before {
                // The neighbour's growth was counted beyond this already: so is what follows here.
                Some(before) if at <= before.counted_until => {
                    counted_until = before.counted_until;
                }
                Some(before) => {
                    growth = difference(before.raw, raw);
                    before.counted_until = at;
                }
                None => {}
            }
            let series = Series {
                metric,
                raw,
                at,
                first_raw: raw,
                first_at: at,
                joined: is_joined,
                counted_until,
            };
            own.insert(place, series);
        }
        if !others.is_empty() {
            let series = &mut own[place];
            for after in neighbours_after(others, metric, at, join) {
                if at > series.counted_until {
                    growth += difference(raw, after.first_raw);
                    series.counted_until = after.first_at;
                    after.joined = true;
                }
            }
        }
        growth
    }

    /// Remembers a raw value that the store knows, with its time.
    pub(super) fn seed(&mut self, metric: MetricId, raw: f64, at: Timestamp) {
        self.bring_to_front(SEEDED);
        let own = &mut self.epochs[0].1;
        let place = own.partition_point(|it| it.metric < metric);
        let series = Series {
            metric,
            raw,
            at,
            first_raw: raw,
            first_at: at,
            joined: true,
            counted_until: Timestamp(i64::MIN),
        };
        own.insert(place, series);
    }

    fn bring_to_front(&mut self, epoch: Epoch) {
        match self.epochs.iter().position(|(known, _)| *known == epoch) {
            Some(0) => {}
            Some(place) => self.epochs[..=place].rotate_right(1),
            None => {
                self.epochs.truncate(MAX_EPOCHS - 1);
                self.epochs.insert(0, (epoch, Vec::new()));
            }
        }
    }
}

/// From one raw value to the next; a smaller one means that it began again at zero.
fn difference(before: f64, after: f64) -> f64 {
    if after >= before {
        after - before
    } else {
        after
    }
}

/// The newest value of another epoch shortly before `at`.
fn neighbour_before(
    others: &mut [(Epoch, Vec<Series>)],
    metric: MetricId,
    at: Timestamp,
    join: i64,
) -> Option<&mut Series> {
    others
        .iter_mut()
        .filter_map(|(_, series)| {
            let place = series.binary_search_by_key(&metric, |it| it.metric).ok()?;
            let series = &mut series[place];
            let apart = at.since(series.at);
            // One that was joined already is a neighbour only of what that joint covers.
            let is_free = series.counted_until <= series.at || at <= series.counted_until;
            (0 < apart && apart <= join && is_free).then_some(series)
        })
        .max_by_key(|series| series.at)
}

/// First values of other epochs shortly after `at` that have not been joined to anything.
fn neighbours_after(
    others: &mut [(Epoch, Vec<Series>)],
    metric: MetricId,
    at: Timestamp,
    join: i64,
) -> impl Iterator<Item = &mut Series> {
    others.iter_mut().filter_map(move |(_, series)| {
        let place = series.binary_search_by_key(&metric, |it| it.metric).ok()?;
        let series = &mut series[place];
        let apart = series.first_at.since(at);
        (!series.joined && 0 < apart && apart <= join).then_some(series)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRIC: MetricId = MetricId(33);
    const TICK: i64 = 10 * NANOS_PER_SECOND;

    fn epoch(number: u128) -> Epoch {
        Epoch(Uuid::from_u128(number))
    }

    /// Feeds (epoch, second, raw) and returns the growth each one adds.
    fn feed(counters: &mut Counters, points: &[(u128, i64, f64)]) -> Vec<f64> {
        points
            .iter()
            .map(|(number, second, raw)| {
                let at = Timestamp::from_seconds(1_000_000 + second);
                counters.grow(epoch(*number), METRIC, *raw, at, TICK)
            })
            .collect()
    }

    #[test]
    fn a_counter_grows_by_differences_and_starts_again_from_zero_after_a_reset() {
        let points = [(1, 0, 100.0), (1, 10, 130.0), (1, 20, 5.0), (1, 30, 7.0)];
        assert_eq!(
            feed(&mut Counters::default(), &points),
            [0.0, 30.0, 5.0, 2.0]
        );
    }

    #[test]
    fn an_outage_drained_after_the_live_data_adds_up_to_the_same_total() {
        // Epoch 1 was folded up to second 10; the agent went on in epoch 2 at second 110 and then
        // drained the rest of epoch 1, which ends at second 100.
        let points = [
            (1, 0, 0.0),
            (1, 10, 10.0),
            (2, 110, 110.0),
            (2, 120, 120.0),
            (1, 20, 20.0),
            (1, 90, 90.0),
            (1, 100, 100.0),
            (2, 130, 130.0),
        ];
        let growth = feed(&mut Counters::default(), &points);
        assert_eq!(growth.iter().sum::<f64>(), 130.0, "{growth:?}");
        assert_eq!(growth[2], 0.0, "the outage is not put into one minute");
    }

    #[test]
    fn a_new_epoch_right_after_the_old_one_loses_nothing_and_counts_nothing_twice() {
        let points = [
            (1, 0, 0.0),
            (2, 20, 20.0),
            // The old epoch still had a record between the two.
            (1, 10, 10.0),
            (2, 30, 30.0),
        ];
        let growth = feed(&mut Counters::default(), &points);
        assert_eq!(growth, [0.0, 20.0, 0.0, 10.0]);
    }

    #[test]
    fn after_a_start_growth_goes_on_from_what_the_store_knows() {
        let mut counters = Counters::default();
        counters.seed(METRIC, 100.0, Timestamp::from_seconds(1_000_000));
        let points = [(1, 20, 130.0), (1, 30, 140.0)];
        assert_eq!(feed(&mut counters, &points), [30.0, 10.0]);
        let mut long_ago = Counters::default();
        long_ago.seed(METRIC, 100.0, Timestamp::from_seconds(1_000_000));
        assert_eq!(feed(&mut long_ago, &[(1, 600, 130.0)]), [0.0]);
    }

    #[test]
    fn epochs_are_remembered_up_to_a_limit() {
        let mut counters = Counters::default();
        for number in 0..50 {
            feed(&mut counters, &[(number, 0, 1.0)]);
        }
        assert_eq!(counters.epochs.len(), MAX_EPOCHS);
    }
}
