//! Why GPUs stand still, as a profile of some steps told it, and how much of it nobody explains.
//!
//! A profile slows the host that launches, and so makes gaps of its own: where the GPUs' own readings have fewer than it,
//! all its gaps are taken to be that much smaller.
//!
//! Limits: whether those readings see gaps of microseconds was not tried; where they do not, launches are told too small.

use super::{Profile, worth};

/// Gaps of a rank's GPU in a profile, as parts of its time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gaps {
    /// The first step of the profile.
    pub first_step: u64,
    /// Its last.
    pub last_step: u64,
    /// Part of the time in which the GPU stood still while data was waited for.
    pub data: f64,
    /// Part in which it stood still because the host waited for it and launched only then.
    pub synchronisation: f64,
    /// Part in which it stood still because the host did something else after it had waited for it.
    pub host: f64,
    /// Part in which it stood still and none of these explains it.
    pub launch: f64,
    /// Calls of a step in which the host waited for the GPU.
    pub synchronisations: f64,
    /// Kernels of a step.
    pub kernels: f64,
    /// Median time of a kernel, seconds; none where there is no kernel.
    pub kernel_s: Option<f64>,
}

impl Gaps {
    /// Where what is told of them was measured: how a reading of it begins.
    pub(super) fn measured(&self) -> String {
        let (first, last) = (self.first_step, self.last_step);
        if first == last {
            format!("measured in a profile of step {first}:")
        } else {
            format!("measured in a profile of steps {first} to {last}:")
        }
    }
}

impl Profile {
    /// The part of a step that gaps of one kind take.
    pub(super) fn gaps_of(&self, kind: fn(&Gaps) -> f64) -> f64 {
        let Some(gaps) = &self.gaps else {
            return 0.0;
        };
        let in_profile = gaps.data + gaps.synchronisation + gaps.host + gaps.launch;
        let part = match self.gpu.engine.map(|it| (1.0 - it).max(0.0)) {
            Some(today) if today < in_profile => today / in_profile,
            _ => 1.0,
        };
        kind(gaps) * part
    }

    /// The part of the time in which the GPUs stand still and do not wait for data, by their own readings.
    fn stands_still(&self) -> Option<f64> {
        let gaps = 1.0 - self.gpu.engine? - self.data_wait_s? / self.step_s;
        gaps.is_finite().then_some(gaps.clamp(0.0, 1.0))
    }
}

/// The part of the time in which the GPUs stand still, where it is worth a look, waiting for data does not explain it and
/// no profile was taken that could.
pub fn unexplained(run: &Profile) -> Option<f64> {
    worth(run.stands_still().filter(|_| run.gaps.is_none())?)
}
