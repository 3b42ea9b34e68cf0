//! One memory, watched: what is kept of it from reading to reading, and when it is judged.
//!
//! Method: 48 minima since its owner has it, each a part of the capacity in one byte; when they are full
//! two become one, from [`LEAST_WIDTH_S`] a bucket (a window of 4 h) to [`MOST_WIDTH`] doublings (32 h), and
//! from then on the oldest goes. [`super::judge_by`] judges each time a bucket is over, the minima and, where these do
//! not rise evenly, the least of each and its neighbours; a verdict holds until the next. The last half, third, quarter
//! and sixth of a long watch ([`LATELY`]) are judged too, so that a leak that begins after days is told before it has
//! lasted for a day; what rises there has to pass all that was before, because what a tide comes back to is no growth.
//!
//! A growth is believed ([`is_believed`]) when it lasted for three quarters of a day, because then a tide falls in a
//! third of it; when it is straight over half a day and memory is full within some times of that; or when it
//! is large and memory is full soon. A tide whose swing is large beside what is free at its height is told for that:
//! it looks as what fills the memory does until it falls.
//!
//! Limits: 64 bytes a memory; one byte tells 0.4 % of the capacity. Who begins anew learns anew; what was learnt is kept
//! while nobody knows whose the memory is, and what is read of it in that time is left out.

use gpufleet_telemetry::time::Timestamp;

use super::{BUCKETS, Leak, Reading, Thresholds, Verdict, judge_by};

/// The narrowest bucket, seconds.
const LEAST_WIDTH_S: u32 = 300;

/// How often buckets double.
const MOST_WIDTH: u8 = 3;

/// Buckets of the last windows that are judged beside the whole.
const LATELY: [usize; 4] = [24, 16, 12, 8];

/// The part of the growth of such a window that has to be above all that was before.
const ABOVE_BEFORE: f64 = 0.5;

/// A growth that lasted for so many hours is believed: a tide of a day falls as much as it rises in a third of it.
const LASTS_HOURS: f64 = 18.0;

/// From so many hours one that is straight is believed, or one that is large: nearly half a day.
const HALF_DAY_HOURS: f64 = 11.5;

/// What a straight growth is, as [`super::Leak::straight`].
const STRAIGHT: f64 = 0.5;

/// A straight growth over half a day is believed where what is free is at most so many times it: where a tenth of the
/// memory comes and goes with the day and seven are free, it is not.
const FREE_IF_STRAIGHT: f64 = 6.0;

/// A growth of this part of the capacity is large: more than many tides.
const LARGE: f64 = 0.125;

/// A large growth is believed where what is free is at most so many times it, in less than half a day and from then.
const FREE_IF_LARGE: (f64, f64) = (2.6, 4.5);

/// Any growth is believed where what is free is at most this part of it: it is full before a tide would show.
const FREE_IF_SOON: f64 = 0.75;

/// What a full memory reads.
const FULL: f64 = 254.0;

/// What is kept of one memory.
#[derive(Debug, Clone, Copy)]
pub struct LeakWatch {
    /// 1 and what was used at least, of [`FULL`]; 0 where nothing was read.
    minima: [u8; BUCKETS],
    /// When the first bucket began, seconds since 1970; 0 before the first reading.
    start_s: u32,
    /// Whose memory it is.
    owner: u32,
    /// Hours left by the last verdict; not a number where it does not leak.
    hours_left: f32,
    /// The bucket that is being filled.
    last: u8,
    /// How often the buckets have doubled.
    width: u8,
}

/// Who has a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// This one, by a number of its own ([`owner`]).
    Is(u32),
    /// Nobody.
    Nobody,
    /// It is not known whether anybody has it, and who.
    Unknown,
}

/// A memory that grows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Leaks {
    /// Hours until it is used up.
    pub hours_left: f64,
    /// What is used now, as a part.
    pub used: f64,
}

impl Default for LeakWatch {
    fn default() -> Self {
        Self {
            minima: [0; BUCKETS],
            start_s: 0,
            owner: 0,
            hours_left: f32::NAN,
            last: 0,
            width: 0,
        }
    }
}

impl LeakWatch {
    /// Takes in what part is used by whom; says whether it leaks. Nothing where nobody has it, or nobody knows who.
    pub fn read(
        &mut self,
        used: Option<f64>,
        owner: Owner,
        now: Timestamp,
        by: &Thresholds,
    ) -> Option<Leaks> {
        let owner = match owner {
            Owner::Is(owner) => owner,
            Owner::Nobody => {
                *self = Self::default();
                return None;
            }
            Owner::Unknown => return None,
        };
        let used = used.filter(|it| (0.0..=1.0).contains(it))?;
        let now_s = u32::try_from(now.seconds()).unwrap_or(0);
        if self.start_s == 0 || self.owner != owner || now_s < self.start_s {
            // Not all at one tick: each begins at a second of its own.
            let start_s = now_s.saturating_sub(owner % LEAST_WIDTH_S).max(1);
            *self = Self {
                start_s,
                owner,
                ..Self::default()
            };
        }
        let bucket = self.bucket(now_s);
        if bucket > self.last {
            self.last = bucket;
            self.judge(by);
        }
        let slot = &mut self.minima[usize::from(self.last)];
        let reading = 1 + (used * FULL).round() as u8;
        *slot = if *slot == 0 {
            reading
        } else {
            reading.min(*slot)
        };
        let hours_left = f64::from(self.hours_left);
        (!hours_left.is_nan()).then_some(Leaks { hours_left, used })
    }

    fn width_s(&self) -> u32 {
        LEAST_WIDTH_S << self.width
    }

    /// The bucket of this second; makes room for it.
    fn bucket(&mut self, now_s: u32) -> u8 {
        loop {
            let passed = (now_s - self.start_s) / self.width_s();
            if let Some(bucket) = u8::try_from(passed)
                .ok()
                .filter(|it| usize::from(*it) < BUCKETS)
            {
                return bucket;
            }
            if self.width < MOST_WIDTH {
                self.double();
            } else {
                let over = passed - (BUCKETS as u32 - 1);
                let gone = (over as usize).min(BUCKETS);
                self.minima.rotate_left(gone % BUCKETS);
                self.minima[BUCKETS - gone..].fill(0);
                self.start_s += over * self.width_s();
                self.last = self.last.saturating_sub(gone as u8);
            }
        }
    }

    fn double(&mut self) {
        let mut minima = [0; BUCKETS];
        for (slot, pair) in minima.iter_mut().zip(self.minima.chunks(2)) {
            let known = pair.iter().copied().filter(|it| *it != 0);
            *slot = known.min().unwrap_or(0);
        }
        self.minima = minima;
        self.width += 1;
        self.last /= 2;
    }

    /// Judges the buckets that are over.
    fn judge(&mut self, by: &Thresholds) {
        let at = |bucket: usize| {
            let seconds = i64::from(self.start_s) + i64::from(self.width_s()) * bucket as i64;
            Timestamp::from_seconds(seconds)
        };
        let over = &self.minima[..usize::from(self.last)];
        let own = |it: usize| (over[it] != 0).then_some(over[it]);
        let among = |it: usize| {
            let beside = it.saturating_sub(1)..(it + 2).min(over.len());
            own(it).and(beside.filter_map(own).min())
        };
        // A bucket that stands for several is read several times, evenly in its time.
        let verdict = |from: usize, minimum: &dyn Fn(usize) -> Option<u8>| {
            let (until, copies) = match self.width {
                0 => (BUCKETS, 1),
                _ => (
                    over.len(),
                    BUCKETS.div_ceil(over.len().max(1) - from).max(2),
                ),
            };
            let step_s = i64::from(self.width_s()) / copies as i64;
            let known = (from..over.len()).filter_map(|it| Some((it, minimum(it)?)));
            let readings: Vec<Reading> = known
                .flat_map(|(bucket, it)| (0..copies as i64).map(move |copy| (bucket, copy, it)))
                .map(|(bucket, copy, it)| Reading {
                    at: Timestamp::from_seconds(at(bucket).seconds() + copy * step_s),
                    used_bytes: f64::from(it - 1),
                })
                .collect();
            let hours = f64::from(self.width_s()) * (until - from) as f64 / 3_600.0;
            match judge_by(&readings, (at(from), at(until)), FULL, by) {
                Verdict::Leaks(leak) if !is_believed(&leak, hours) => Verdict::Steady,
                told => told,
            }
        };
        // An allocator's saw that is longer than a bucket jumps from one to the next, and not where it is lowest.
        let either = |from: usize| match verdict(from, &own) {
            Verdict::Steady => verdict(from, &among),
            told => told,
        };
        // What the last bucket has above all that was before those from this one on.
        let above = |from: usize| {
            let before = (0..from).filter_map(own).max().map(f64::from);
            let now = over.len().checked_sub(1).and_then(among).map(f64::from);
            now.zip(before).map_or(0.0, |(now, before)| now - before)
        };
        let whole = either(0);
        let froms = LATELY
            .iter()
            .filter_map(|it| over.len().checked_sub(*it))
            .filter(|it| *it > 0 && self.width > 0);
        // Most memories stop here.
        let rises = froms.filter(|it| above(*it) >= ABOVE_BEFORE * by.growth * FULL);
        let mut lately = rises.filter_map(|from| match either(from) {
            Verdict::Leaks(leak) if above(from) >= ABOVE_BEFORE * leak.least_growth_bytes => {
                Some(Verdict::Leaks(leak))
            }
            _ => None,
        });
        let told = match whole {
            Verdict::Leaks(_) => whole,
            _ => lately.next().unwrap_or(whole),
        };
        match told {
            Verdict::Leaks(leak) => self.hours_left = leak.hours_left as f32,
            Verdict::Steady => self.hours_left = f32::NAN,
            Verdict::Unknown => {}
        }
    }
}

/// Whether what rose for so many hours is a leak rather than the rise of a day's tide.
fn is_believed(leak: &Leak, hours: f64) -> bool {
    let is_half_a_day = hours >= HALF_DAY_HOURS;
    let growth = leak.least_growth_bytes;
    let is_full_within = |times: f64| leak.room_bytes <= times * growth;
    let if_large = match is_half_a_day {
        false => FREE_IF_LARGE.0,
        true => FREE_IF_LARGE.1,
    };
    let is_large = growth >= LARGE * FULL;
    hours >= LASTS_HOURS
        || is_full_within(FREE_IF_SOON)
        || (is_large && is_full_within(if_large))
        || (is_half_a_day && leak.straight > STRAIGHT && is_full_within(FREE_IF_STRAIGHT))
}

/// A number of its own for whoever has a memory.
pub fn owner(name: &str, id: &str) -> u32 {
    let bytes = name.bytes().chain([0]).chain(id.bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

const _: () = assert!(size_of::<LeakWatch>() <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_790_000_000;

    fn read(
        watch: &mut LeakWatch,
        used: Option<f64>,
        owner: Owner,
        at: Timestamp,
    ) -> Option<Leaks> {
        watch.read(used, owner, at, &Thresholds::default())
    }

    /// Feeds a memory for so many hours, a reading each ten seconds; what is said each hour.
    fn hours(
        watch: &mut LeakWatch,
        from: i64,
        hours: i64,
        used: impl Fn(f64) -> f64,
    ) -> Vec<Option<f64>> {
        let mut said = Vec::new();
        for second in (from * 3_600..(from + hours) * 3_600).step_by(10) {
            let hour = second as f64 / 3_600.0;
            let at = Timestamp::from_seconds(START + second);
            let last = read(watch, Some(used(hour)), Owner::Is(7), at);
            if second % 3_600 == 3_590 {
                said.push(last.map(|it| it.hours_left));
            }
        }
        said
    }

    #[test]
    fn a_leak_is_told_when_what_is_free_is_soon_gone_with_when_it_is_full() {
        let mut watch = LeakWatch::default();
        let said = hours(&mut watch, 0, 12, |hour| 0.3 + 0.04 * hour);
        assert_eq!(said[..4], [None; 4], "memory is not full soon");
        for (hour, left) in (6..).zip(&said[5..]) {
            let left = left.unwrap_or_else(|| panic!("not told at hour {hour}"));
            // 0.7 are 17.5 hours; a verdict may be as old as the half of a window.
            let expected = 17.5 - f64::from(hour);
            assert!((left - expected).abs() < 4.5, "{left} at hour {hour}");
        }
    }

    #[test]
    fn memory_that_is_full_at_once_or_goes_up_and_down_does_not_leak() {
        for used in [
            (|_| 0.93) as fn(f64) -> f64,
            |hour| 0.4 + 0.3 * (hour * 2.0).sin().abs(),
            |hour| (0.2 + 0.4 * hour).min(0.8),
        ] {
            let mut watch = LeakWatch::default();
            assert_eq!(hours(&mut watch, 0, 40, used), [None; 40]);
        }
    }

    #[test]
    fn a_leak_under_a_saw_that_is_longer_than_a_bucket_is_told() {
        let mut watch = LeakWatch::default();
        let saw = |hour: f64| 0.3 + 0.01 * hour + 0.1 * (hour * 3.0).fract();
        let said = hours(&mut watch, 0, 13, saw);
        assert!(said[12].is_some(), "after half a day: {said:?}");
        let mut watch = LeakWatch::default();
        let said = hours(&mut watch, 0, 40, |hour| 0.3 + 0.1 * (hour * 3.0).fract());
        assert_eq!(said, [None; 40]);
    }

    #[test]
    fn the_rise_of_a_tide_is_no_leak_and_a_leak_that_begins_after_days_is_told_in_time() {
        let tide = |hour: f64| 0.05 * ((hour - 6.0) * std::f64::consts::PI / 12.0).sin();
        let mut watch = LeakWatch::default();
        let said = hours(&mut watch, 0, 80, |hour| 0.3 + tide(hour));
        assert_eq!(said, [None; 80]);
        let mut watch = LeakWatch::default();
        let leak = |hour: f64| 0.3 + 0.05 * (hour - 60.0).max(0.0) + tide(hour);
        let said = hours(&mut watch, 0, 70, leak);
        assert_eq!(said[..60], [None; 60]);
        assert!(said[67].is_some(), "six hours before it is full: {said:?}");
    }

    #[test]
    fn a_leak_that_stopped_is_told_no_more_when_the_last_third_is_flat() {
        let mut watch = LeakWatch::default();
        let said = hours(&mut watch, 0, 8, |hour| 0.3 + 0.05 * hour.min(5.0));
        assert!(said[4].is_some() && said[7].is_none(), "{said:?}");
    }

    #[test]
    fn another_job_begins_anew_and_a_missing_reading_is_none() {
        let mut watch = LeakWatch::default();
        hours(&mut watch, 0, 6, |hour| 0.3 + 0.04 * hour);
        let at = |second: i64| Timestamp::from_seconds(START + 6 * 3_600 + second);
        let (own, another) = (Owner::Is(7), Owner::Is(8));
        assert!(read(&mut watch, Some(0.54), own, at(0)).is_some());
        assert_eq!(read(&mut watch, None, own, at(10)), None, "it is not read");
        let again = read(&mut watch, Some(0.54), own, at(20));
        assert!(again.is_some(), "it is again");
        let others = read(&mut watch, Some(0.2), another, at(30));
        assert_eq!(others, None, "another's");
        let nobodys = read(&mut watch, Some(0.2), Owner::Nobody, at(40));
        assert_eq!(nobodys, None, "nobody's");
    }

    #[test]
    fn what_was_learnt_is_kept_while_nobody_knows_whose_memory_it_is() {
        for (between, is_kept) in [(Owner::Unknown, true), (Owner::Nobody, false)] {
            let mut watch = LeakWatch::default();
            hours(&mut watch, 0, 6, |hour| 0.3 + 0.04 * hour);
            let at = |second: i64| Timestamp::from_seconds(START + 6 * 3_600 + second);
            for second in 0..40 {
                // It may be another's, which has less.
                let told = read(&mut watch, Some(0.1), between, at(second * 10));
                assert_eq!(told, None, "{between:?}");
            }
            let told = read(&mut watch, Some(0.54), Owner::Is(7), at(400));
            assert_eq!(told.is_some(), is_kept, "{between:?}");
        }
    }

    #[test]
    fn days_are_judged_by_their_last_32_hours_in_64_bytes() {
        let mut watch = LeakWatch::default();
        hours(&mut watch, 0, 40, |hour| 0.1 + 0.01 * hour);
        let said = hours(&mut watch, 40, 60, |_| 0.5);
        assert_eq!(said.last(), Some(&None), "it ended long ago");
        assert!(size_of::<LeakWatch>() <= 64, "{}", size_of::<LeakWatch>());
    }
}
