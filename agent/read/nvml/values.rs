//! From what the driver says to a reading: base unit once, here; what cannot be true is `Invalid`.

use std::time::Duration;

use gpufleet_telemetry::catalog::{Metric, Unit};
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::sample::{Missing, Reading, Sample};

/// Ratios are accepted up to this and cut to 1: the driver rounds, and a window can be a little off.
const RATIO_SLACK: f64 = 1.05;

/// No card comes near these; a reading beyond is a driver that says something else than a value.
const MOST_WATTS: f64 = 20_000.0;
const MOST_CELSIUS: f64 = 200.0;
const MOST_HERTZ: f64 = 20e9;
const MOST_BYTES_PER_SECOND: f64 = 20e12;
const MOST_BYTES: f64 = 1e15;

/// The samples of one resource in one round.
#[derive(Debug, Default)]
pub(crate) struct Samples(pub(crate) Vec<Sample>);

impl Samples {
    /// A reading of the resource itself, in the metric's base unit.
    pub(crate) fn push(&mut self, metric: &Metric, reading: Reading) {
        self.0.push(Sample {
            metric: metric.id,
            part: None,
            reading: reading.and_then(|value| plausible(metric.unit, value)),
        });
    }

    /// A reading of a part of the resource.
    pub(crate) fn push_part(&mut self, metric: &Metric, part: Part, reading: Reading) {
        self.0.push(Sample {
            metric: metric.id,
            part: Some(part),
            reading: reading.and_then(|value| plausible(metric.unit, value)),
        });
    }

    /// The reason why every one of these metrics has no value.
    pub(crate) fn push_missing(&mut self, metrics: &[&Metric], missing: Missing) {
        for metric in metrics {
            self.push(metric, Err(missing));
        }
    }
}

/// The value, if it can be one of this unit.
pub(crate) fn plausible(unit: Unit, value: f64) -> Reading {
    let range = match unit {
        Unit::Watts => 0.0..=MOST_WATTS,
        Unit::Celsius => -MOST_CELSIUS..=MOST_CELSIUS,
        Unit::Hertz => 0.0..=MOST_HERTZ,
        Unit::BytesPerSecond => 0.0..=MOST_BYTES_PER_SECOND,
        Unit::Bytes => 0.0..=MOST_BYTES,
        Unit::Ratio => 0.0..=RATIO_SLACK,
        Unit::Flag => 0.0..=1.0,
        Unit::Joules | Unit::Seconds | Unit::Count | Unit::Code => 0.0..=f64::MAX,
    };
    match (unit, range.contains(&value)) {
        (_, false) => Err(Missing::Invalid),
        (Unit::Ratio, true) => Ok(value.min(1.0)),
        (_, true) => Ok(value),
    }
}

/// A rate from the growth of a counter of bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth {
    last: Option<(u64, Duration)>,
}

impl Growth {
    /// The rate since the last reading, `scale` bytes for each count.
    ///
    /// A counter that went back while its last value fitted 32 bits wrapped there (NVML says that
    /// the PCIe counters wrap and gives no width); any other way back is a reset.
    pub(crate) fn rate(&mut self, now: Result<u64, Missing>, at: Duration, scale: f64) -> Reading {
        let now = now.inspect_err(|_| self.last = None)?;
        let last = self.last.replace((now, at));
        let (before, then) = last.ok_or(Missing::NotReady)?;
        let seconds = at.saturating_sub(then).as_secs_f64();
        if seconds <= 0.0 {
            return Err(Missing::NotReady);
        }
        let wrap = u64::from(u32::MAX) + 1;
        let grown = match now.checked_sub(before) {
            Some(grown) => grown,
            None if before < wrap => now + wrap - before,
            None => return Err(Missing::NotReady),
        };
        Ok(grown as f64 * scale / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_true_is_invalid() {
        let cases = [
            (Unit::Ratio, 0.5, Ok(0.5)),
            (Unit::Ratio, 1.02, Ok(1.0)),
            (Unit::Ratio, 2.55, Err(Missing::Invalid)),
            (Unit::Ratio, f64::NAN, Err(Missing::Invalid)),
            (Unit::Watts, -1.0, Err(Missing::Invalid)),
            (Unit::Watts, f64::INFINITY, Err(Missing::Invalid)),
            (Unit::Celsius, -8.0, Ok(-8.0)),
            (Unit::Celsius, 255.0, Err(Missing::Invalid)),
            (Unit::Count, -1.0, Err(Missing::Invalid)),
            (Unit::Code, 256.0, Ok(256.0)),
        ];
        for (unit, value, expected) in cases {
            assert_eq!(plausible(unit, value), expected, "{unit:?} {value}");
        }
    }

    #[test]
    fn a_rate_needs_two_readings_and_survives_a_wrap_at_32_bits() {
        let second = Duration::from_secs;
        let mut growth = Growth::default();
        assert_eq!(
            growth.rate(Ok(4_294_967_000), second(1), 1.0),
            Err(Missing::NotReady)
        );
        assert_eq!(growth.rate(Ok(704), second(2), 1.0), Ok(1000.0));
        assert_eq!(growth.rate(Ok(1704), second(4), 1024.0), Ok(512_000.0));
        assert_eq!(
            growth.rate(Ok(1704), second(4), 1.0),
            Err(Missing::NotReady),
            "no time passed"
        );
    }

    #[test]
    fn a_counter_of_64_bits_that_went_back_was_reset() {
        let mut growth = Growth::default();
        let _ = growth.rate(Ok(1 << 40), Duration::from_secs(1), 1.0);
        assert_eq!(
            growth.rate(Ok(5), Duration::from_secs(2), 1.0),
            Err(Missing::NotReady)
        );
        assert_eq!(growth.rate(Ok(15), Duration::from_secs(3), 1.0), Ok(10.0));
    }

    #[test]
    fn an_error_in_between_is_not_bridged() {
        let mut growth = Growth::default();
        let _ = growth.rate(Ok(5), Duration::from_secs(1), 1.0);
        let _ = growth.rate(Err(Missing::Timeout), Duration::from_secs(2), 1.0);
        assert_eq!(
            growth.rate(Ok(15), Duration::from_secs(3), 1.0),
            Err(Missing::NotReady)
        );
    }
}
