//! Why a GPU stood still in the steps of a profile: eight words of the profile's section.

use crate::layout::{self, Word};

/// More kernels than the events of a profile that are looked at can be.
const MOST_KERNELS: u64 = 10_000_000;

/// What a process worked out of the events of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gaps {
    /// Time of the steps, nanoseconds; more than 0.
    pub window_ns: u64,
    /// Of it, time in which the GPU stood still while data was waited for.
    pub data_ns: u64,
    /// In which it stood still because the host waited for it and launched only then.
    pub synchronisation_ns: u64,
    /// In which it stood still and neither explains it.
    pub launch_ns: u64,
    /// Calls in which the host waited for the GPU.
    pub synchronisations: u64,
    /// Kernels.
    pub kernels: u64,
    /// Median time of a kernel, nanoseconds.
    pub kernel_ns: u64,
    /// In which it stood still because the host did something else after it had waited for it.
    pub host_ns: u64,
}

impl Gaps {
    /// From numbers in the order of the fields.
    pub const fn of(numbers: [u64; 8]) -> Self {
        let [
            window_ns,
            data_ns,
            synchronisation_ns,
            launch_ns,
            synchronisations,
            kernels,
            kernel_ns,
            host_ns,
        ] = numbers;
        Self {
            window_ns,
            data_ns,
            synchronisation_ns,
            launch_ns,
            synchronisations,
            kernels,
            kernel_ns,
            host_ns,
        }
    }

    /// In the order of the fields.
    pub(crate) const fn numbers(&self) -> [u64; 8] {
        [
            self.window_ns,
            self.data_ns,
            self.synchronisation_ns,
            self.launch_ns,
            self.synchronisations,
            self.kernels,
            self.kernel_ns,
            self.host_ns,
        ]
    }

    /// Whether they can be: gaps do not overlap, and nothing is longer or more than there is.
    pub(crate) fn can_be(&self) -> bool {
        let gaps = [
            self.data_ns,
            self.synchronisation_ns,
            self.host_ns,
            self.launch_ns,
        ];
        let in_all = gaps.into_iter().fold(0, u64::saturating_add);
        in_all.max(self.kernel_ns) <= self.window_ns
            && self.kernels.max(self.synchronisations) <= MOST_KERNELS
    }
}

impl layout::Profile {
    /// The words of the gaps, in the order of the fields of [`Gaps`].
    pub(crate) fn gaps(&self) -> [&Word; 8] {
        [
            &self.window_ns,
            &self.gap_data_ns,
            &self.gap_synchronisation_ns,
            &self.gap_launch_ns,
            &self.synchronisations,
            &self.kernels,
            &self.kernel_ns,
            &self.gap_host_ns,
        ]
    }
}
