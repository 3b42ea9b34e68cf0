//! What the counters of one GPU did lately: parts of the last minutes that it was slowed down, and
//! memory errors an hour.
//!
//! Method: a rate that forgets, with time constant [`MEMORY_S`], moved on by each reading of a counter.
//! What did not grow for [`OVER_S`] is over, however large its rate still is: it ended, it did not
//! fade. A counter that went back was reset and says nothing that once.
//!
//! Limits: about 150 bytes a GPU. The first reading after a start says nothing.

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::time::Timestamp;

use super::seconds_since;
use crate::fleet::Live;

/// Over how long a rate is meant, seconds.
pub(super) const MEMORY_S: f64 = 300.0;

/// A counter that did not grow for this long is at rest, seconds.
const OVER_S: f64 = 60.0;

/// Two readings further apart than this are not joined, seconds: what lies between is not known.
const GAP_S: f64 = 120.0;

/// One counter.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    last: Option<(f64, Timestamp)>,
    /// Growth a second over the last minutes.
    rate: f64,
    grew_at: Timestamp,
}

/// What is kept of one GPU.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    heat: Counted,
    brake: Counted,
    cap: Counted,
    corrected: Counted,
    uncorrected: Counted,
    /// Uncorrected errors of the last hour, and when the last of them came.
    uncorrected_count: u64,
}

/// What the counters say now. None is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) heat_part: Option<f64>,
    pub(super) brake_part: Option<f64>,
    pub(super) cap_part: Option<f64>,
    pub(super) corrected_per_hour: Option<f64>,
    pub(super) uncorrected: Option<u64>,
}

/// How long uncorrected errors are told, seconds.
const UNCORRECTED_S: f64 = 3_600.0;

impl Counted {
    /// Takes in a reading; how much the counter grew.
    fn read(&mut self, live: &Live, metric: &Metric) -> f64 {
        let Some((value, at)) = reading(live, metric) else {
            return 0.0;
        };
        let Some((before, then)) = self.last.replace((value, at)) else {
            return 0.0;
        };
        let seconds = seconds_since(at, then);
        if seconds <= 0.0 {
            return 0.0;
        }
        let growth = value - before;
        if growth < 0.0 || seconds > GAP_S {
            self.rate = 0.0;
            return 0.0;
        }
        let weight = 1.0 - (-seconds / MEMORY_S).exp();
        self.rate += weight * (growth / seconds - self.rate);
        if growth > 0.0 {
            self.grew_at = at;
        }
        growth
    }

    /// Growth a second; none before there were two readings, 0 at rest.
    fn rate(&self, now: Timestamp) -> Option<f64> {
        self.last?;
        let is_over = seconds_since(now, self.grew_at) > OVER_S;
        Some(if is_over { 0.0 } else { self.rate })
    }
}

fn reading(live: &Live, metric: &Metric) -> Option<(f64, Timestamp)> {
    let known = live.value(metric.id)?;
    let value = known.reading.ok().filter(|it| it.is_finite())?;
    Some((value, known.at))
}

impl Watch {
    /// Takes in what is live and says what it means.
    pub(super) fn read(&mut self, live: &Live, now: Timestamp) -> Rates {
        self.heat.read(live, &gpu::THROTTLE_THERMAL);
        self.brake.read(live, &gpu::THROTTLE_BOARD_LIMIT);
        self.cap.read(live, &gpu::THROTTLE_POWER);
        self.corrected.read(live, &gpu::ECC_CORRECTED_VOLATILE);
        let worse = self.uncorrected.read(live, &gpu::ECC_UNCORRECTED_VOLATILE);
        if seconds_since(now, self.uncorrected.grew_at) > UNCORRECTED_S {
            self.uncorrected_count = 0;
        }
        self.uncorrected_count += worse as u64;
        let part = |counted: &Counted| counted.rate(now).map(|it| it.min(1.0));
        Rates {
            heat_part: part(&self.heat),
            brake_part: part(&self.brake),
            cap_part: part(&self.cap),
            corrected_per_hour: self.corrected.rate(now).map(|it| it * 3_600.0),
            uncorrected: self.uncorrected.last.map(|_| self.uncorrected_count),
        }
    }
}
