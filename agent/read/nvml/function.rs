//! The driver functions the child calls, by number and name: what the shared page can say.

/// Declares the functions with their NVML names.
macro_rules! functions {
    ($($variant:ident = $name:literal;)+) => {
        /// A function of the driver's library.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        #[expect(missing_docs, reason = "each is the NVML function of its name")]
        pub enum Function { $($variant),+ }

        impl Function {
            const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in nvml.h.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

functions! {
    Init = "nvmlInit_v2";
    DriverVersion = "nvmlSystemGetDriverVersion";
    NvmlVersion = "nvmlSystemGetNVMLVersion";
    CudaVersion = "nvmlSystemGetCudaDriverVersion_v2";
    Count = "nvmlDeviceGetCount_v2";
    HandleByIndex = "nvmlDeviceGetHandleByIndex_v2";
    Name = "nvmlDeviceGetName";
    Uuid = "nvmlDeviceGetUUID";
    Serial = "nvmlDeviceGetSerial";
    MinorNumber = "nvmlDeviceGetMinorNumber";
    PciInfo = "nvmlDeviceGetPciInfo_v3";
    ComputeCapability = "nvmlDeviceGetCudaComputeCapability";
    VirtualizationMode = "nvmlDeviceGetVirtualizationMode";
    VbiosVersion = "nvmlDeviceGetVbiosVersion";
    MemoryInfo = "nvmlDeviceGetMemoryInfo_v2";
    UtilizationRates = "nvmlDeviceGetUtilizationRates";
    EncoderUtilization = "nvmlDeviceGetEncoderUtilization";
    DecoderUtilization = "nvmlDeviceGetDecoderUtilization";
    FieldValues = "nvmlDeviceGetFieldValues";
    ClockInfo = "nvmlDeviceGetClockInfo";
    MaxClockInfo = "nvmlDeviceGetMaxClockInfo";
    Temperature = "nvmlDeviceGetTemperature";
    TemperatureThreshold = "nvmlDeviceGetTemperatureThreshold";
    MarginTemperature = "nvmlDeviceGetMarginTemperature";
    PowerUsage = "nvmlDeviceGetPowerUsage";
    EnforcedPowerLimit = "nvmlDeviceGetEnforcedPowerLimit";
    SramEccErrors = "nvmlDeviceGetSramEccErrorStatus";
    FabricInfo = "nvmlDeviceGetGpuFabricInfoV";
    PerformanceState = "nvmlDeviceGetPerformanceState";
    ThrottleReasons = "nvmlDeviceGetCurrentClocksThrottleReasons";
    PcieLinkGeneration = "nvmlDeviceGetCurrPcieLinkGeneration";
    PcieLinkWidth = "nvmlDeviceGetCurrPcieLinkWidth";
    ComputeProcesses = "nvmlDeviceGetComputeRunningProcesses_v3";
    ProcessUtilization = "nvmlDeviceGetProcessUtilization";
    MigMode = "nvmlDeviceGetMigMode";
    MigDeviceCount = "nvmlDeviceGetMaxMigDeviceCount";
    MigHandleByIndex = "nvmlDeviceGetMigDeviceHandleByIndex";
    GpuInstanceId = "nvmlDeviceGetGpuInstanceId";
    GpuInstanceById = "nvmlDeviceGetGpuInstanceById";
    GpuInstanceInfo = "nvmlGpuInstanceGetInfo";
    Attributes = "nvmlDeviceGetAttributes_v2";
    SupportedEventTypes = "nvmlDeviceGetSupportedEventTypes";
    RegisterEvents = "nvmlDeviceRegisterEvents";
    EventSetCreate = "nvmlEventSetCreate";
    EventSetWait = "nvmlEventSetWait_v2";
    EventSetFree = "nvmlEventSetFree";
    GpmSupport = "nvmlGpmQueryDeviceSupport";
    GpmSampleAlloc = "nvmlGpmSampleAlloc";
    GpmSampleFree = "nvmlGpmSampleFree";
    GpmSampleGet = "nvmlGpmSampleGet";
    GpmMigSampleGet = "nvmlGpmMigSampleGet";
    GpmMetricsGet = "nvmlGpmMetricsGet";
}

impl Function {
    /// The function with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether the call may take seconds with nothing wrong: with persistence mode off the first
    /// handle of a GPU powers it up, some 1.5 s each, and loading the library waits for the driver.
    pub const fn is_slow_at_times(self) -> bool {
        matches!(self, Self::Init | Self::HandleByIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_found_again_by_its_number() {
        for function in Function::ALL {
            assert_eq!(Function::from_number(*function as u16), Some(*function));
        }
        assert_eq!(Function::from_number(u16::MAX), None);
    }
}
