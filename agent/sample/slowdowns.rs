//! How often the hardware began to slow a GPU down: the driver counts for how long it did, and not how often.
//!
//! Limits: what begins and ends between two samples is not seen, and of two within one period one counts.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::sample::Sample;

use super::series::Series;

/// NVML's throttle reasons that are the hardware's: slowdown, heat, power brake.
const BY_HARDWARE: u32 = 0x8 | 0x40 | 0x80;

/// What is counted of one GPU.
#[derive(Debug, Default)]
pub(super) struct Slowdowns {
    count: u32,
    /// By which reader it was seen last, and whether it was slowed down then.
    last: Option<(usize, bool)>,
}

impl Slowdowns {
    /// The count, where this round of a reader says why the clocks are low: one more each time that the hardware slows
    /// it down and did not at the reading before. Two readers see the same at other moments, so only the one that is
    /// believed counts.
    pub(super) fn next(
        &mut self,
        reader: usize,
        known: &[Series],
        samples: &[Sample],
    ) -> Option<Sample> {
        let id = gpu::THROTTLE_REASONS.id;
        let is_it = |it: &&Sample| it.metric == id && it.part.is_none();
        let reading = samples.iter().find(is_it)?.reading;
        let of_known = known.iter().find(|it| it.metric.id == id);
        if of_known.is_some_and(|it| it.producer != reader) {
            return None;
        }
        if let Ok(reasons) = reading {
            let is_slow = reasons as u32 & BY_HARDWARE != 0;
            let began = is_slow && self.last == Some((reader, false));
            self.count += u32::from(began);
            self.last = Some((reader, is_slow));
        }
        Some(Sample {
            metric: gpu::HARDWARE_SLOWDOWNS.id,
            part: None,
            reading: reading.map(|_| f64::from(self.count)),
        })
    }
}
