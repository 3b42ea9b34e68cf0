//! The seconds of a tick as evidence, one bit each.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::tick::{Point, PointValue};

use super::gpu::push;
use super::role::Load;

/// The seconds of a tick as evidence.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Evidence {
    active: u64,
    stalled: u64,
    held: u64,
}

impl Evidence {
    pub(super) fn take(&mut self, load: Load, is_held: bool, bits: u64) {
        let stalled =
            load.engine >= 0.95 && load.tensor < 0.01 && load.dram < 0.01 && load.nvlink < 0.01;
        for (set, is_so) in [
            (&mut self.active, load.engine >= 0.05),
            (&mut self.stalled, stalled),
            // A job that died holds nothing until it is started again.
            (&mut self.held, is_held && load.memory > 0.0),
        ] {
            if is_so {
                *set |= bits;
            }
        }
    }

    pub(super) fn points(self, seconds: u32, points: &mut Vec<Point>) {
        let all = (1_u64 << seconds) - 1;
        for (metric, bits) in [
            (&gpu::OBSERVED, all),
            (&gpu::ACTIVE, self.active),
            (&gpu::STALLED, self.stalled),
            (&gpu::HELD, self.held),
            (&gpu::HOLDER_KNOWN, all),
        ] {
            push(points, metric, PointValue::SecondBits(bits));
        }
    }
}
