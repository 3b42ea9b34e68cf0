//! How many GPUs are waited for, over time: samples of the queue become GPU-milliseconds by the hour.
//!
//! Each sample stands for the time since the one before it, of an hour that it ends in. Time in which nobody knew who
//! waits is not seen, and no demand of nothing. An hour is written as a whole and again while it runs, so that
//! writing twice changes nothing; a server that starts goes on from what is written of the hour.
//!
//! Limits: a sample stands for [`LONGEST`] at most; [`MAX_UNWRITTEN`] hours wait for a store that does not answer.

use std::time::Duration;

use gpufleet_analysis::ledger::MILLIS_PER_HOUR as HOUR_MS;

use super::known::Moment;
use crate::store::model::DemandHour;

/// The longest that two samples are apart: more than that nobody looked.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// How often the hour that runs is written.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// Hours that wait to be written: two days; what is older is given up.
const MAX_UNWRITTEN: usize = 48;

/// Whether the hour that runs is to be written again, which was when that was done last.
pub(super) fn is_time(written: Option<Duration>, now: Moment) -> bool {
    written.is_none_or(|it| now.monotonic.saturating_sub(it) >= WRITE_EVERY)
}

/// What was seen and is being added up.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The hour that runs; none before the first sample.
    runs: Option<DemandHour>,
    /// Hours that are over and not written.
    over: Vec<DemandHour>,
    /// When the last sample was taken.
    sampled: Option<Duration>,
    /// When hours were written last.
    written: Option<Duration>,
}

impl Tally {
    /// Takes in what is written of the hour that runs.
    pub(super) fn restore(&mut self, hour: Option<DemandHour>) {
        self.runs = hour;
    }

    /// So many GPUs are waited for now, and whether the nodes are seen too; none when nobody knows who waits.
    pub(super) fn sample(&mut self, waited_for: Option<(u64, bool)>, now: Moment) {
        let hour = now.at.millis().div_euclid(HOUR_MS);
        let elapsed = self.sampled.map(|it| now.monotonic.saturating_sub(it));
        self.sampled = Some(now.monotonic);
        let runs = match self.runs.take() {
            Some(runs) if runs.hour == hour => runs,
            before => {
                self.over.extend(before.filter(|it| it.seen_ms > 0));
                let given_up = self.over.len().saturating_sub(MAX_UNWRITTEN);
                self.over.drain(..given_up);
                DemandHour {
                    hour,
                    ..DemandHour::default()
                }
            }
        };
        let known = waited_for.zip(elapsed.filter(|it| *it <= LONGEST));
        self.runs = Some(match known {
            Some(((gpus, sees_nodes), elapsed)) => {
                let millis = i64::try_from(elapsed.as_millis()).unwrap_or(0);
                let gpus = i64::try_from(gpus).unwrap_or(i64::MAX);
                let of_nodes = if sees_nodes { millis } else { 0 };
                DemandHour {
                    hour,
                    seen_ms: runs.seen_ms.saturating_add(millis).min(HOUR_MS),
                    nodes_seen_ms: runs.nodes_seen_ms.saturating_add(of_nodes).min(HOUR_MS),
                    waiting_gpu_ms: runs
                        .waiting_gpu_ms
                        .saturating_add(gpus.saturating_mul(millis)),
                }
            }
            None => runs,
        });
    }

    /// Hours that are to be written now.
    pub(super) fn due(&self, now: Moment) -> Vec<DemandHour> {
        if self.over.is_empty() && !is_time(self.written, now) {
            return Vec::new();
        }
        let runs = self.runs.filter(|it| it.seen_ms > 0);
        self.over.iter().copied().chain(runs).collect()
    }

    /// These were written.
    pub(super) fn written(&mut self, hours: &[DemandHour], now: Moment) {
        self.over.retain(|it| !hours.contains(it));
        self.written = Some(now.monotonic);
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::Timestamp;

    use super::*;

    /// So many seconds after an hour began.
    fn now(seconds: i64) -> Moment {
        Moment {
            at: Timestamp::from_seconds(1_000 * 3_600 + seconds),
            monotonic: Duration::from_secs(5_000 + seconds.unsigned_abs()),
        }
    }

    fn hour(hour: i64, seen_s: i64, gpu_s: i64) -> DemandHour {
        DemandHour {
            hour,
            seen_ms: seen_s * 1_000,
            nodes_seen_ms: seen_s * 1_000,
            waiting_gpu_ms: gpu_s * 1_000,
        }
    }

    #[test]
    fn samples_become_gpu_time_and_what_nobody_saw_is_not_seen() {
        let mut tally = Tally::default();
        tally.sample(Some((16, true)), now(0));
        assert_eq!(tally.due(now(0)), [], "the first stands for nothing");
        tally.sample(Some((16, true)), now(10));
        tally.sample(None, now(20));
        tally.sample(Some((8, true)), now(25));
        // Nobody looked for ten minutes.
        tally.sample(Some((100, true)), now(625));
        tally.sample(Some((0, true)), now(635));
        assert_eq!(tally.due(now(635)), [hour(1_000, 25, 16 * 10 + 8 * 5)]);
    }

    #[test]
    fn time_in_which_nodes_are_not_listed_is_time_in_which_only_who_waits_is_seen() {
        let mut tally = Tally::default();
        tally.sample(Some((2, true)), now(0));
        tally.sample(Some((2, true)), now(10));
        tally.sample(Some((2, false)), now(30));
        let seen = DemandHour {
            nodes_seen_ms: 10_000,
            ..hour(1_000, 30, 60)
        };
        assert_eq!(tally.due(now(30)), [seen]);
    }

    #[test]
    fn an_hour_that_is_over_is_written_as_it_was_and_one_that_runs_each_minute() {
        let mut tally = Tally::default();
        tally.restore(Some(hour(1_000, 3_000, 70)));
        tally.sample(Some((2, true)), now(3_580));
        tally.sample(Some((2, true)), now(3_590));
        let due = tally.due(now(3_590));
        assert_eq!(due, [hour(1_000, 3_010, 90)], "from what was written on");
        tally.written(&due, now(3_590));
        assert_eq!(tally.due(now(3_600)), []);
        tally.sample(Some((3, true)), now(3_600));
        let due = tally.due(now(3_600));
        assert_eq!(due, [hour(1_000, 3_010, 90), hour(1_001, 10, 30)]);
        tally.written(&due, now(3_600));
        assert_eq!(tally.due(now(3_605)), []);
        tally.sample(Some((3, true)), now(3_605));
        assert_eq!(tally.due(now(3_660)), [hour(1_001, 15, 45)], "each minute");
    }

    #[test]
    fn a_store_that_does_not_answer_costs_no_memory_without_end() {
        let mut tally = Tally::default();
        for seconds in 0..100 * 360 {
            tally.sample(Some((1, true)), now(seconds * 10));
        }
        let due = tally.due(now(100 * 3_600));
        assert_eq!(due.len(), MAX_UNWRITTEN + 1);
        assert_eq!(due[0].hour, 1_000 + 99 - MAX_UNWRITTEN as i64);
    }
}
