//! What NVML says of the GPU before and after a run: who is on it, its ECC errors, how much of its
//! memory is used. Without NVML the probe runs all the same and says what it could not know.

use std::ffi::OsStr;

use gpufleet_telemetry::pcie;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::measured::Why;

/// A GPU that NVML knows.
pub(super) struct Look {
    device: Device<'static>,
}

/// What is read before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// ECC errors since the driver was loaded: corrected, uncorrected.
    pub(super) ecc: Option<(u64, u64)>,
    /// Bytes of its memory that are used.
    pub(super) used_bytes: Option<u64>,
}

fn load(library: &str) -> Result<Nvml, NvmlError> {
    match library {
        "" => Nvml::init(),
        path => Nvml::builder().lib_path(OsStr::new(path)).init(),
    }
}

/// The UUIDs of the GPUs that NVML shows: none where there is no NVML.
pub(super) fn all(library: &str) -> Vec<String> {
    those(library, |_| true)
}

/// Of those the ones that can be probed now, whole.
pub(super) fn free(library: &str) -> Vec<String> {
    those(library, |it| it.refusal(false).is_none())
}

fn those(library: &str, is_meant: impl Fn(&Look) -> bool) -> Vec<String> {
    let Ok(nvml) = load(library) else {
        return Vec::new();
    };
    // The process ends with the command: the library lives as long.
    let nvml: &'static Nvml = Box::leak(Box::new(nvml));
    let count = nvml.device_count().unwrap_or(0);
    let known = (0..count).filter_map(|index| nvml.device_by_index(index).ok());
    let meant = known.map(|device| Look { device });
    let meant = meant.filter(is_meant);
    meant.filter_map(|it| it.id()).collect()
}

impl Look {
    /// The GPU with this id, which is a UUID or an index.
    pub(super) fn open(library: &str, gpu: &str) -> Result<Self, String> {
        let nvml = load(library).map_err(|error| format!("NVML: {error}"))?;
        // The process ends with the run: the library lives as long.
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        let device = match gpu.parse() {
            Ok(index) => nvml.device_by_index(index),
            Err(_) => nvml.device_by_uuid(gpu),
        };
        let device = device.map_err(|error| format!("NVML does not know it: {error}"))?;
        Ok(Self { device })
    }

    /// Its UUID.
    pub(super) fn id(&self) -> Option<String> {
        self.device.uuid().ok()
    }

    /// Its name, as tables of peak rates have it.
    pub(super) fn name(&self) -> Option<String> {
        self.device.name().ok()
    }

    /// Why it is not to be probed now; none where nothing is against it. What cannot be read is not
    /// against it: the driver says no by itself. An instance of MIG is there because MIG is on.
    pub(super) fn refusal(&self, is_slice: bool) -> Option<Why> {
        const ENABLED: u32 = 1;
        if !is_slice && self.device.mig_mode().is_ok_and(|it| it.current == ENABLED) {
            return Some(Why::MigIsOn);
        }
        let processes = self.device.running_compute_processes().ok()?;
        let count = u32::try_from(processes.len()).unwrap_or(u32::MAX);
        (count > 0).then_some(Why::Busy(count))
    }

    /// What its PCIe link could move at best one way, bytes a second.
    pub(super) fn link(&self) -> Option<f64> {
        let generation = self.device.max_pcie_link_gen().ok()?;
        let width = self.device.max_pcie_link_width().ok()?;
        pcie::bytes_per_second(generation, width)
    }

    /// What counts now.
    pub(super) fn counts(&self) -> Counts {
        let errors = |kind| self.device.total_ecc_errors(kind, EccCounter::Volatile);
        let corrected = errors(MemoryError::Corrected).ok();
        let uncorrected = errors(MemoryError::Uncorrected).ok();
        Counts {
            ecc: corrected.zip(uncorrected),
            used_bytes: self.device.memory_info().ok().map(|it| it.used),
        }
    }
}
