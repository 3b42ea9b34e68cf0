//! Why GPUs are free, over time: samples of it become minutes, by what GPUs have in common.
//!
//! A minute counts where every sample of it, the one before it and those between said the same, and they were close
//! together: then it was so for all of the minute, as far as anybody looked. An hour is written as a whole and again
//! while it runs; a server that starts goes on from what is written of the hour.
//!
//! Limits: [`MAX_ALIKE`] kinds of GPUs, the others are counted in the log; samples are [`LONGEST`] apart at most;
//! [`MAX_UNWRITTEN`] hours wait for a store that does not answer.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_analysis::inventory::unheld::{Alike, MAX_ALIKE, WhyFree};
use gpufleet_analysis::states::Demand;
use gpufleet_telemetry::time::Minute;

use super::demand::{LONGEST, is_time};
use super::known::Moment;
use crate::store::model::FreeHour;

/// Most hours that wait to be written, each of GPUs that have something in common: ten of as many kinds as there
/// may be, and of a large fleet, which has dozens, two days.
const MAX_UNWRITTEN: usize = 10 * MAX_ALIKE;

/// Why GPUs are free, by what they have in common.
type Said = BTreeMap<Alike, Demand>;

/// What was seen and becomes minutes.
#[derive(Debug, Default)]
pub(super) struct Minutes {
    /// What every sample of the minute that runs said, from the last one before it on; none where a part of it was
    /// not seen.
    runs: Option<Said>,
    /// The last sample.
    last: Option<(Moment, Said)>,
    /// Hours that are not written as they are, by number and what GPUs have in common.
    hours: BTreeMap<(i64, Alike), FreeHour>,
    /// When hours were written last.
    written: Option<Duration>,
    /// How many kinds of GPUs the last sample left out.
    left_out: usize,
}

impl Minutes {
    /// Takes in what is written of the hour that runs.
    pub(super) fn restore(&mut self, hours: Vec<FreeHour>) {
        let hours = hours.into_iter();
        self.hours = hours.map(|it| ((it.hour, it.alike.clone()), it)).collect();
    }

    /// So it is now; none when nobody knows.
    pub(super) fn sample(&mut self, why: Option<WhyFree>, now: Moment) {
        let said = why.map(|it| {
            self.leaves_out(it.left_out);
            it.of
        });
        let is_close =
            |it: &(Moment, Said)| now.monotonic.saturating_sub(it.0.monotonic) <= LONGEST;
        let before = self.last.take().filter(is_close);
        let runs = self.runs.take();
        let (Some(said), Some((then, last))) = (&said, before) else {
            self.last = said.map(|it| (now, it));
            return;
        };
        let (minute, before) = (now.at.minute(), then.at.minute());
        let runs = runs.map(|all| common(all, said));
        if minute == before {
            self.runs = runs;
        } else if minute.0 == before.0 + 1 {
            self.add(before, runs.unwrap_or_default());
            self.runs = Some(common(last, said));
        }
        self.last = Some((now, said.clone()));
    }

    /// Says when it begins that of some nothing is said.
    fn leaves_out(&mut self, left_out: usize) {
        if self.left_out == 0 && left_out > 0 {
            tracing::warn!(
                left_out,
                "there are more than {MAX_ALIKE} kinds of GPUs by type, taints and partitions: why those are free that have the fewest free GPUs is not said"
            );
        }
        self.left_out = left_out;
    }

    /// Adds a minute that is over.
    fn add(&mut self, minute: Minute, all: Said) {
        for (alike, why) in all {
            let hour = minute.hour();
            let key = (hour, alike);
            if !self.hours.contains_key(&key) && self.hours.len() >= MAX_UNWRITTEN {
                continue;
            }
            let hour = self
                .hours
                .entry(key)
                .or_insert_with_key(|(hour, alike)| FreeHour {
                    hour: *hour,
                    alike: alike.clone(),
                    minutes: [0; 3],
                });
            hour.minutes[why as usize] |= 1 << minute.0.rem_euclid(60);
        }
    }

    /// Hours that are to be written now.
    pub(super) fn due(&self, now: Moment) -> Vec<FreeHour> {
        match is_time(self.written, now) {
            true => self.hours.values().cloned().collect(),
            false => Vec::new(),
        }
    }

    /// All that was due was written.
    pub(super) fn written(&mut self, now: Moment) {
        let running = now.at.minute().hour();
        self.hours.retain(|(hour, _), _| *hour >= running);
        self.written = Some(now.monotonic);
    }
}

/// What is the same in both.
fn common(mut all: Said, said: &Said) -> Said {
    all.retain(|alike, why| said.get(alike) == Some(why));
    all
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

    fn said(why: Demand) -> Option<WhyFree> {
        Some(WhyFree {
            of: BTreeMap::from([(Alike::default(), why)]),
            left_out: 0,
        })
    }

    /// The minutes of the first hour with each reason.
    fn minutes(of: &Minutes, at: Moment) -> [Vec<u32>; 3] {
        let due = of.due(at);
        let first = due.iter().find(|it| it.hour == 1_000);
        let bits = first.map_or([0; 3], |it| it.minutes);
        bits.map(|bits| (0..60).filter(|it| bits >> it & 1 == 1).collect())
    }

    #[test]
    fn a_minute_counts_where_all_of_it_was_seen_to_be_so() {
        let mut all = Minutes::default();
        for seconds in (10..=600).step_by(5) {
            let why = match seconds {
                // Somebody waits for a moment of minute 3.
                200 => Some(WhyFree::default()),
                // Nobody looks in a part of minute 5, and not for long in minute 8.
                310..=330 => None,
                490..=510 => continue,
                ..400 => said(Demand::None),
                _ => said(Demand::Fragmented),
            };
            all.sample(why, now(seconds));
        }
        let expected = [vec![1, 2, 4], vec![7, 8, 9], vec![]];
        // Minute 0 began before anybody looked; 6 was of both.
        assert_eq!(minutes(&all, now(601)), expected);
        // Nobody looked for longer: neither of that minute nor of the one in which he looks again.
        all.sample(said(Demand::Fragmented), now(700));
        all.sample(said(Demand::Fragmented), now(720));
        assert_eq!(minutes(&all, now(721)), expected);
    }

    #[test]
    fn an_hour_that_is_over_is_written_once_more_and_one_that_runs_goes_on_from_what_is_written() {
        let mut all = Minutes::default();
        all.restore(vec![FreeHour {
            hour: 1_000,
            alike: Alike::default(),
            minutes: [0b11, 0, 0],
        }]);
        for seconds in (3_470..=3_600).step_by(10) {
            all.sample(said(Demand::None), now(seconds));
        }
        let due = minutes(&all, now(3_600));
        assert_eq!(due[0], [0, 1, 58, 59]);
        all.written(now(3_600));
        all.sample(said(Demand::None), now(3_610));
        assert_eq!(all.due(now(3_610)), []);
        assert_eq!(all.due(now(3_660)), [], "it is not there any more");
    }
}
