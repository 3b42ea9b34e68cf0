//! Counts calls by GPU and function in a file that the test maps too, so that a call budget is
//! checked on the real path, across processes.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;

use crate::MAX_GPUS;

/// Every function the stand-in exports, in the order of their numbers in the table.
pub const FUNCTIONS: &[&str] = &[
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlErrorString",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetRetiredPages_v2",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkErrorCounter",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
    "nvmlEventSetFree",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlGpmMigSampleGet",
    "nvmlGpmMetricsGet",
];

/// Rows: one for each GPU, and one for calls that are about none.
const ROWS: usize = MAX_GPUS + 1;

/// The mapped file: one counter for each row and function.
#[derive(Debug)]
pub struct CallTable {
    map: MmapRaw,
}

impl CallTable {
    /// Opens the table, making an empty one where there is none.
    ///
    /// # Errors
    /// The file cannot be made or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        file.set_len((ROWS * FUNCTIONS.len() * size_of::<AtomicU64>()) as u64)?;
        Ok(Self {
            map: MmapRaw::map_raw(&file)?,
        })
    }

    fn counter(&self, gpu: Option<u8>, function: &str) -> Option<&AtomicU64> {
        let column = FUNCTIONS.iter().position(|it| *it == function)?;
        let row = gpu.map_or(MAX_GPUS, usize::from);
        let place = row * FUNCTIONS.len() + column;
        // SAFETY: the file was given the length of the whole table before it was mapped, `place`
        // lies in it (row ≤ MAX_GPUS, column < FUNCTIONS.len()), a mapping starts page-aligned,
        // and every process uses the memory through atomics only.
        (row < ROWS).then(|| unsafe { &*self.map.as_ptr().cast::<AtomicU64>().add(place) })
    }

    pub(crate) fn count(&self, gpu: Option<u8>, function: &str) {
        if let Some(counter) = self.counter(gpu, function) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often this function was called for this GPU (or for none) by any process.
    pub fn of(&self, gpu: Option<u8>, function: &str) -> u64 {
        self.counter(gpu, function)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// How many calls there were for this GPU, all functions together.
    pub fn total(&self, gpu: Option<u8>) -> u64 {
        FUNCTIONS.iter().map(|name| self.of(gpu, name)).sum()
    }
}
