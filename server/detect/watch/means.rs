//! What part of the last minutes, and of the last seconds, a counter of time grew: means that forget.
//!
//! [`Means`] are exact. [`SmallMeans`] are the same in five bytes, for what grows on cards that are well: to 1/65,535 a
//! reading, which may add up to 0.003 where it is read each second, and to a tenth of that each ten seconds.

use std::cmp::Ordering;

use gpufleet_analysis::health::MEMORY_S;

use super::counter::{Growth, Rest, Step};

/// Over how long a part is meant that is to explain what is slow now, seconds.
const NOW_S: f64 = 30.0;

/// A counter that did not grow for this long is at rest, seconds.
const OVER_S: f64 = 60.0;

/// Parts below this are as good as 0: from 1 it takes 58 minutes.
const LEAST_PART: f32 = 1e-5;

/// Means of one counter.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Means {
    /// Growth a second over the last minutes.
    part: f32,
    /// The same over the last seconds.
    now: f32,
    rest: Rest,
}

/// The same in five bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct SmallMeans {
    part: Part,
    now: Part,
    rest: Rest,
}

/// A part of 1, in 65,535ths.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Part([u8; 2]);

const _: () = assert!(size_of::<Means>() <= 12 && size_of::<SmallMeans>() <= 5);

impl Means {
    /// Takes in a reading, if there is a newer one.
    pub(super) fn take(&mut self, step: Option<Step>) {
        let Some(step) = step else {
            return;
        };
        match step.growth {
            Growth::Known { by, seconds } => {
                let moved = |mean: f32, memory_s: f64| {
                    let weight = 1.0 - (-seconds / memory_s).exp();
                    (f64::from(mean) + weight * (by / seconds - f64::from(mean))) as f32
                };
                self.part = moved(self.part, MEMORY_S);
                self.now = moved(self.now, NOW_S);
            }
            Growth::Unknown | Growth::Reset => (self.part, self.now) = (0.0, 0.0),
        }
        self.rest.take(&step);
    }

    /// Part of the last minutes, 0 at rest, if the newest reading is so old.
    pub(super) fn part(&self, age_s: f64) -> f64 {
        match self.rest.seconds(age_s) > OVER_S {
            true => 0.0,
            false => f64::from(self.part).min(1.0),
        }
    }

    /// Part of the last seconds.
    pub(super) fn now(&self) -> f64 {
        self.now.into()
    }

    /// Whether all of it is forgotten.
    pub(super) fn is_over(&self) -> bool {
        self.part.max(self.now) < LEAST_PART
    }
}

impl SmallMeans {
    /// Takes in a reading, if there is a newer one.
    pub(super) fn take(&mut self, step: Option<Step>) {
        let mut means = self.means();
        means.take(step);
        self.part = self.part.toward(means.part);
        self.now = self.now.toward(means.now);
        self.rest = means.rest;
    }

    pub(super) fn means(self) -> Means {
        Means {
            part: self.part.value(),
            now: self.now.value(),
            rest: self.rest,
        }
    }
}

impl Part {
    fn value(self) -> f32 {
        f32::from(u16::from_le_bytes(self.0)) / f32::from(u16::MAX)
    }

    /// Where it moves to: up as it rises and down as it falls, so that it gets there and does not stop short of it.
    fn toward(self, value: f32) -> Self {
        let units = value * f32::from(u16::MAX);
        let units = match value.total_cmp(&self.value()) {
            Ordering::Equal => return self,
            Ordering::Less => units.floor(),
            Ordering::Greater => units.ceil(),
        };
        Self((units as u16).to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

    use super::*;
    use crate::detect::watch::counter::Counter;
    use crate::detect::watch::last::IN_A_SECOND;
    use crate::view::fixture::NOW;

    /// Both means of a counter that is read each so many seconds and grows by such a part of them.
    fn read(each: usize, parts: impl Iterator<Item = f64>, mut see: impl FnMut(&Means, &Means)) {
        let (mut counter, mut value) = (Counter::default(), 0.0);
        let (mut exact, mut small) = (Means::default(), SmallMeans::default());
        for (place, part) in parts.enumerate() {
            value += part * each as f64;
            let now = NOW.shifted((place * each) as i64 * NANOS_PER_SECOND);
            let step = counter.read(Some((value, now)), IN_A_SECOND, now);
            exact.take(step);
            small.take(step);
            see(&exact, &small.means());
        }
    }

    #[test]
    fn small_means_are_those_that_are_exact_within_what_they_say() {
        for (each, most) in [(10, 0.0003), (1, 0.003)] {
            // Nearly never, half of the time, nearly always, and then never more.
            let parts = [20, 2, 1].into_iter().flat_map(|every| {
                (0..2_000).map(move |place| f64::from(u8::from(place % every == 0)))
            });
            let mut apart: f64 = 0.0;
            read(each, parts.chain([0.0; 5]), |exact, small| {
                let now = (exact.now() - small.now()).abs();
                let part = (exact.part(0.0) - small.part(0.0)).abs();
                apart = apart.max(now).max(part);
            });
            assert!(apart <= most, "{apart} each {each} s");
        }
    }

    #[test]
    fn small_means_end_at_0_and_at_1() {
        let parts = (0..3_000).map(|place| f64::from(u8::from(place < 1_500)));
        let mut told = Vec::new();
        read(10, parts, |_, small| told.push(small.part));
        assert_eq!(told.get(1_499), Some(&1.0));
        assert_eq!(told.last(), Some(&0.0));
    }

    #[test]
    fn a_part_that_is_kept_as_it_is_stays() {
        for units in [0, 1, 7, 32_768, 65_534, 65_535_u16] {
            let part = Part(units.to_le_bytes());
            assert_eq!(part.toward(part.value()), part);
        }
        let most = Part::default().toward(1.2);
        assert_eq!(most.value(), 1.0, "jitter makes no more of it");
    }

    #[test]
    fn times_before_the_first_reading_and_after_a_gap_are_not_added() {
        let mut means = Means::default();
        let mut counter = Counter::default();
        let mut at = |value: f64, seconds: i64| {
            let now: Timestamp = NOW.shifted(seconds * NANOS_PER_SECOND);
            means.take(counter.read(Some((value, now)), IN_A_SECOND, now));
            (means.part > 0.0, means.is_over())
        };
        assert_eq!(at(1_000.0, 0), (false, true));
        assert_eq!(at(1_010.0, 10), (true, false));
        assert_eq!(at(1_100.0, 200), (false, true));
    }
}
