//! What a fault costs: GPU time lost and dollars, so far and per hour.
//!
//! Integers only: thousandths of a GPU × milliseconds = GPU-microseconds, and nano-USD, of which what
//! is left over after a division is carried on, so that a thousand short steps add up to one long
//! one. A price that is not known is none and never 0: dollars are then those of the time that had
//! one, and [`Lost::is_priced`] says that they are not all.
//!
//! How much is lost: a GPU that does nothing loses all of itself; one at half its clock half of it;
//! a run that waits for one rank loses, on all its GPUs, the part of a step that it would not need
//! without ([`Losing::by_step`]).
//!
//! Limits: i64 nano-USD hold 9.2 billion dollars, u64 GPU-microseconds 580,000 GPU-years; beyond that
//! they stay where they are.

use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Thousandths of one GPU.
pub const WHOLE_GPU: u64 = 1_000;
/// GPU-microseconds of one GPU-second.
const MICROS_PER_SECOND: u64 = 1_000_000;
/// Seconds of an hour.
const HOUR_S: u64 = 3_600;

/// What is being lost at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Losing {
    /// How many GPUs, in thousandths.
    pub milli_gpus: u64,
    /// What a second of one of them costs, nano-USD; none is not known.
    pub nano_usd_per_gpu_second: Option<i64>,
}

/// What was lost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lost {
    /// GPU time, microseconds.
    pub gpu_micros: u64,
    /// Of that the time without a price.
    pub unpriced_gpu_micros: u64,
    /// What the time with a price cost.
    nano_usd: i64,
    /// What was left over of it, millionths of a nano-USD.
    remainder: u32,
}

impl Losing {
    /// All of so many GPUs.
    pub const fn gpus(count: u64, nano_usd_per_gpu_second: Option<i64>) -> Self {
        Self {
            milli_gpus: count.saturating_mul(WHOLE_GPU),
            nano_usd_per_gpu_second,
        }
    }

    /// A part of so many GPUs; a part that is no number or below 0 is none, above 1 all.
    pub fn part(count: u64, part: f64, nano_usd_per_gpu_second: Option<i64>) -> Self {
        Self::gpus(count, nano_usd_per_gpu_second).times(part)
    }

    /// This part of it; a part that is no number or below 0 is none, above 1 all.
    #[must_use]
    pub fn times(&self, part: f64) -> Self {
        let part = if part.is_finite() { part } else { 0.0 };
        let milli = part.clamp(0.0, 1.0) * self.milli_gpus as f64;
        Self {
            milli_gpus: milli.round() as u64,
            ..*self
        }
    }

    /// What a run that has these GPUs loses whose steps take `step_ns` and would take `without_ns`.
    #[must_use]
    pub fn by_step(&self, step_ns: u64, without_ns: u64) -> Self {
        if step_ns == 0 {
            return self.times(0.0);
        }
        let part = step_ns.saturating_sub(without_ns) as f64 / step_ns as f64;
        self.times(part)
    }

    /// Both together. The price is their mean by GPUs; without one where either has none.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let milli_gpus = self.milli_gpus.saturating_add(other.milli_gpus);
        let nano_usd_per_gpu_second = match (self.milli_gpus, other.milli_gpus) {
            (_, 0) if self.milli_gpus > 0 => self.nano_usd_per_gpu_second,
            (0, _) => other.nano_usd_per_gpu_second,
            (own, its) => self.nano_usd_per_gpu_second.and_then(|price| {
                let all = i128::from(own) * i128::from(price)
                    + i128::from(its) * i128::from(other.nano_usd_per_gpu_second?);
                Some(saturated(all / i128::from(milli_gpus)))
            }),
        };
        Self {
            milli_gpus,
            nano_usd_per_gpu_second,
        }
    }

    /// Dollars an hour, in nano-USD; none without a price. Nothing costs nothing at any price.
    pub fn nano_usd_per_hour(&self) -> Option<i64> {
        if self.milli_gpus == 0 {
            return Some(0);
        }
        let price = i128::from(self.nano_usd_per_gpu_second?);
        let hour = i128::from(self.milli_gpus) * price * i128::from(HOUR_S);
        Some(saturated(hour / i128::from(WHOLE_GPU)))
    }

    /// GPU-seconds an hour.
    pub fn gpu_seconds_per_hour(&self) -> u64 {
        self.milli_gpus.saturating_mul(HOUR_S) / WHOLE_GPU
    }
}

impl Lost {
    /// Adds what was lost between two moments; nothing when the second is not later.
    pub fn add(&mut self, from: Timestamp, to: Timestamp, losing: &Losing) {
        let millis = u64::try_from(to.since(from) / 1_000_000).unwrap_or(0);
        let micros = millis.saturating_mul(losing.milli_gpus);
        self.gpu_micros = self.gpu_micros.saturating_add(micros);
        let Some(price) = losing.nano_usd_per_gpu_second else {
            self.unpriced_gpu_micros = self.unpriced_gpu_micros.saturating_add(micros);
            return;
        };
        let per = i128::from(MICROS_PER_SECOND);
        let cost = i128::from(micros) * i128::from(price) + i128::from(self.remainder);
        self.nano_usd = saturated(i128::from(self.nano_usd) + cost.div_euclid(per));
        self.remainder = u32::try_from(cost.rem_euclid(per)).unwrap_or(0);
    }

    /// Adds what another incident lost, which turned out to be the same one.
    pub fn join(&mut self, other: &Self) {
        self.gpu_micros = self.gpu_micros.saturating_add(other.gpu_micros);
        let unpriced = other.unpriced_gpu_micros;
        self.unpriced_gpu_micros = self.unpriced_gpu_micros.saturating_add(unpriced);
        self.nano_usd = self.nano_usd.saturating_add(other.nano_usd);
    }

    /// At what pace it was lost within so long, nanoseconds; a little is not nothing.
    pub fn pace(&self, within_ns: i64) -> Losing {
        let millis = u64::try_from(within_ns / 1_000_000).unwrap_or(0).max(1);
        let priced = self.gpu_micros.saturating_sub(self.unpriced_gpu_micros);
        let per = |micros: u64| {
            let nano = i128::from(self.nano_usd) * i128::from(MICROS_PER_SECOND);
            saturated(nano / i128::from(micros))
        };
        Losing {
            milli_gpus: self.gpu_micros.div_ceil(millis),
            nano_usd_per_gpu_second: (priced > 0).then(|| per(priced)),
        }
    }

    /// What it cost, nano-USD; none when none of the time had a price.
    pub fn nano_usd(&self) -> Option<i64> {
        let is_none = self.gpu_micros > 0 && self.gpu_micros == self.unpriced_gpu_micros;
        (!is_none).then_some(self.nano_usd)
    }

    /// Whether all of the time had a price.
    pub fn is_priced(&self) -> bool {
        self.unpriced_gpu_micros == 0
    }

    /// GPU-seconds.
    pub fn gpu_seconds(&self) -> f64 {
        self.gpu_micros as f64 / MICROS_PER_SECOND as f64
    }
}

fn saturated(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value > 0 { i64::MAX } else { i64::MIN })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H100 in an a3-highgpu-8g at 88.49 USD an hour: 11.06 a GPU.
    const PRICE: i64 = 3_072_569_444;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(1_790_000_000_000 + millis)
    }

    #[test]
    fn an_hour_of_a_lost_gpu_costs_its_price_however_it_is_cut() {
        let losing = Losing::gpus(1, Some(PRICE));
        let mut whole = Lost::default();
        whole.add(at(0), at(3_600_000), &losing);
        assert_eq!(whole.nano_usd(), losing.nano_usd_per_hour());
        assert_eq!(whole.gpu_seconds(), 3_600.0);
        let mut cut = Lost::default();
        let mut last = 0;
        for millis in (1..3_600_000).step_by(7_919).chain([3_600_000]) {
            cut.add(at(last), at(millis), &losing);
            last = millis;
        }
        assert_eq!(cut, whole);
    }

    #[test]
    fn what_is_left_over_of_a_nano_dollar_is_carried_on() {
        let losing = Losing {
            milli_gpus: 1,
            nano_usd_per_gpu_second: Some(1),
        };
        let mut lost = Lost::default();
        for millis in 0..1_000_000 {
            lost.add(at(millis), at(millis + 1), &losing);
        }
        assert_eq!(lost.nano_usd(), Some(1));
    }

    #[test]
    fn without_a_price_there_are_gpu_seconds_and_no_dollars() {
        let mut lost = Lost::default();
        lost.add(at(0), at(10_000), &Losing::gpus(8, None));
        assert_eq!((lost.gpu_seconds(), lost.nano_usd()), (80.0, None));
        lost.add(at(10_000), at(11_000), &Losing::gpus(8, Some(PRICE)));
        assert_eq!(lost.nano_usd(), Some(8 * PRICE));
        assert!(!lost.is_priced(), "its dollars are not all");
        assert_eq!(Losing::gpus(8, None).nano_usd_per_hour(), None);
        assert_eq!(Losing::gpus(0, None).nano_usd_per_hour(), Some(0));
    }

    #[test]
    fn a_slow_rank_costs_its_part_of_every_gpus_step() {
        let losing = Losing::gpus(64, Some(PRICE)).by_step(1_300_000_000, 1_000_000_000);
        assert_eq!(losing.milli_gpus, 14_769, "64 × 0.3 / 1.3");
        assert_eq!(losing.gpu_seconds_per_hour(), 53_168);
        for (step, without) in [(0, 5), (5, 9)] {
            assert_eq!(Losing::gpus(64, None).by_step(step, without).milli_gpus, 0);
        }
    }

    #[test]
    fn two_things_cost_the_sum_and_what_has_no_price_makes_the_sum_have_none() {
        let (dear, cheap) = (Losing::gpus(1, Some(300)), Losing::gpus(3, Some(100)));
        assert_eq!(dear.and(&cheap), Losing::gpus(4, Some(150)));
        assert_eq!(dear.and(&Losing::gpus(1, None)), Losing::gpus(2, None));
        assert_eq!(Losing::default().and(&dear), dear);
        assert_eq!(dear.and(&Losing::default()), dear);
    }

    #[test]
    fn time_that_goes_back_and_wild_numbers_lose_nothing_and_do_not_wrap() {
        let mut lost = Lost::default();
        lost.add(at(10), at(0), &Losing::gpus(8, Some(PRICE)));
        assert_eq!(lost, Lost::default());
        assert_eq!(Losing::part(8, f64::NAN, None).milli_gpus, 0);
        assert_eq!(Losing::part(8, 7.0, None).milli_gpus, 8_000);
        let all = Losing::gpus(u64::MAX, Some(i64::MAX));
        lost.add(Timestamp(0), Timestamp(i64::MAX), &all);
        assert_eq!(lost.nano_usd(), Some(i64::MAX));
    }
}
