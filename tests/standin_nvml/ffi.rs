//! The C interface: every symbol under its real name, thin over what the other files answer.
//!
//! Longer than 500 lines because it is one list of 78 functions of a few lines each, in the order
//! of [`crate::FUNCTIONS`].

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlEccSramErrorStatus_t, nvmlEventData_t,
    nvmlEventSet_t, nvmlFieldValue_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
    nvmlGpuFabricInfo_v2_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlMarginTemperature_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlProcessUtilizationSample_t, nvmlReturn_t, nvmlSample_t, nvmlUtilization_t, nvmlValue_t,
};

use crate::answer::{Answering, gpu_instance};
use crate::driver::{self, About, Refusal, call, code};
use crate::events::{EventSet, SUPPORTED};
use crate::gpm;
use crate::load::Load;

type Answer = Result<(), Refusal>;

/// `NVML_STRUCT_VERSION(Memory, 2)`.
const MEMORY_V2: u32 = (size_of::<nvmlMemory_v2_t>() as u32) | (2 << 24);
/// `NVML_STRUCT_VERSION(EccSramErrorStatus, 1)`.
const SRAM_V1: u32 = (size_of::<nvmlEccSramErrorStatus_t>() as u32) | (1 << 24);
/// `NVML_STRUCT_VERSION(GpuFabricInfo, 2)`.
const FABRIC_V2: u32 = (size_of::<nvmlGpuFabricInfo_v2_t>() as u32) | (2 << 24);
/// `NVML_STRUCT_VERSION(MarginTemperature, 1)`.
const MARGIN_V1: u32 = (size_of::<nvmlMarginTemperature_t>() as u32) | (1 << 24);

fn put<T>(pointer: *mut T, value: T) -> Answer {
    if pointer.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the C interface asks for a pointer that is null or valid for writing one T.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Borrows what a C caller passed.
fn borrow<'a, T>(pointer: *mut T) -> Result<&'a mut T, Refusal> {
    // SAFETY: the C interface asks for a pointer that is null or points to an initialised T that
    // nobody else uses during the call.
    unsafe { pointer.as_mut() }.ok_or(code::INVALID_ARGUMENT)
}

fn borrow_many<'a, T>(pointer: *mut T, count: usize) -> Result<&'a mut [T], Refusal> {
    if pointer.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the C interface asks for `count` initialised elements that nobody else uses during
    // the call; null was refused above.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

fn put_text(pointer: *mut c_char, length: c_uint, text: &str) -> Answer {
    let length = length as usize;
    if text.len() + 1 > length {
        return Err(code::INSUFFICIENT_SIZE);
    }
    let room = borrow_many(pointer, text.len() + 1)?;
    for (to, from) in room.iter_mut().zip(text.bytes().chain([0])) {
        *to = from as c_char;
    }
    Ok(())
}

fn text_of(pointer: *const c_char) -> Result<String, Refusal> {
    if pointer.is_null() {
        return Err(code::INVALID_ARGUMENT);
    }
    // SAFETY: the C interface asks for a NUL-terminated string; null was refused above.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(text.to_string_lossy().into_owned())
}

/// Size negotiation as NVML does it: too little room answers with the count that is needed.
fn put_many<T: Copy>(pointer: *mut T, count: *mut c_uint, values: &[T]) -> Answer {
    let room = *borrow(count)? as usize;
    put(count, values.len() as c_uint)?;
    if values.is_empty() {
        return Ok(());
    }
    if room < values.len() || pointer.is_null() {
        return Err(code::INSUFFICIENT_SIZE);
    }
    borrow_many(pointer, values.len())?.copy_from_slice(values);
    Ok(())
}

fn on(
    function: &'static str,
    device: nvmlDevice_t,
    answer: impl FnOnce(&Answering) -> Answer,
) -> nvmlReturn_t {
    call(function, About::Handle(device), |found| {
        answer(found.ok_or(code::INVALID_ARGUMENT)?)
    })
}

/// What only the whole, undivided GPU answers.
fn undivided(device: &Answering) -> Answer {
    if device.mig.is_some() || device.is_divided() {
        return Err(code::NOT_SUPPORTED);
    }
    Ok(())
}

/// What a MIG instance has no answer for.
fn whole(device: &Answering) -> Answer {
    match device.mig {
        Some(_) => Err(code::NOT_SUPPORTED),
        None => Ok(()),
    }
}

/// Exports functions of the library as a whole.
macro_rules! library {
    ($($name:ident($($argument:ident: $kind:ty),*) => $answer:expr;)+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> nvmlReturn_t {
            call(stringify!($name), About::Library, |_| $answer)
        }
    )+};
}

/// Exports functions of a device.
macro_rules! device {
    ($($name:ident($gpu:ident $(, $argument:ident: $kind:ty)*) => $answer:expr;)+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: nvmlDevice_t $(, $argument: $kind)*) -> nvmlReturn_t {
            on(stringify!($name), device, |$gpu| $answer)
        }
    )+};
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    driver::initialise("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    driver::initialise("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    driver::shut_down()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    let text: &CStr = match result {
        code::SUCCESS => c"The operation was successful",
        code::UNINITIALIZED => c"Uninitialized",
        code::INVALID_ARGUMENT => c"Invalid Argument",
        code::NOT_SUPPORTED => c"Not Supported",
        code::NO_PERMISSION => c"Insufficient Permissions",
        code::NOT_FOUND => c"Not Found",
        code::INSUFFICIENT_SIZE => c"Insufficient Size",
        code::TIMEOUT => c"Timeout",
        code::FUNCTION_NOT_FOUND => c"Function Not Found",
        code::GPU_IS_LOST => c"GPU is lost",
        code::RESET_REQUIRED => c"GPU requires restart",
        code::LIBRARY_MISMATCH => c"Driver/library version mismatch",
        code::NO_DATA => c"No data",
        code::ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        code::NOT_READY => c"Not Ready",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

library! {
    nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) =>
        put_text(version, length, &driver::scenario().driver_version);
    nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) =>
        put_text(version, length, &driver::scenario().nvml_version);
    nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) =>
        put(version, driver::scenario().cuda_version);
    nvmlDeviceGetCount_v2(count: *mut c_uint) => put(count, driver::devices().len() as c_uint);
    nvmlEventSetCreate(set: *mut nvmlEventSet_t) => put(set, EventSet::new().into_handle());
    nvmlGpmSampleAlloc(sample: *mut nvmlGpmSample_t) => put(sample, gpm::make());
    nvmlGpmSampleFree(sample: nvmlGpmSample_t) => gpm::free(sample);
}

fn find(function: &'static str, slot: Option<u8>, to: *mut nvmlDevice_t) -> nvmlReturn_t {
    match slot {
        Some(slot) => call(function, About::Slot(slot, None), |_| {
            put(to, driver::handle_of(slot, None))
        }),
        None => call(function, About::Library, |_| Err(code::INVALID_ARGUMENT)),
    }
}

/// Searches all devices for one that a person named by something else than its index.
fn search(
    function: &'static str,
    to: *mut nvmlDevice_t,
    wanted: impl Fn(&Answering) -> bool,
) -> nvmlReturn_t {
    call(function, About::Library, |_| {
        let scenario = driver::scenario();
        let devices = driver::devices();
        let found = devices.iter().enumerate().find(|(index, slot)| {
            Answering::new(scenario.clone(), **slot, None, Some(*index))
                .is_some_and(|it| wanted(&it))
        });
        let (_, slot) = found.ok_or(code::NOT_FOUND)?;
        put(to, driver::handle_of(*slot, None))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut nvmlDevice_t) -> nvmlReturn_t {
    let slot = driver::devices().get(index as usize).copied();
    find("nvmlDeviceGetHandleByIndex_v2", slot, to)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    to: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let wanted = text_of(uuid).unwrap_or_default();
    search("nvmlDeviceGetHandleByUUID", to, |it| it.uuid() == wanted)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: *const c_char,
    to: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let wanted = text_of(bus_id).unwrap_or_default().to_uppercase();
    search("nvmlDeviceGetHandleByPciBusId_v2", to, |it| {
        it.bus_id() == wanted
    })
}

device! {
    nvmlDeviceGetName(gpu, name: *mut c_char, length: c_uint) =>
        put_text(name, length, &gpu.name());
    nvmlDeviceGetUUID(gpu, uuid: *mut c_char, length: c_uint) =>
        put_text(uuid, length, &gpu.uuid());
    nvmlDeviceGetSerial(gpu, serial: *mut c_char, length: c_uint) =>
        whole(gpu).and_then(|()| put_text(serial, length, &gpu.serial()));
    nvmlDeviceGetIndex(gpu, index: *mut c_uint) => put(index, gpu.index as c_uint);
    nvmlDeviceGetMinorNumber(gpu, minor: *mut c_uint) =>
        whole(gpu).and_then(|()| put(minor, c_uint::from(gpu.slot)));
    nvmlDeviceGetPciInfo_v3(gpu, info: *mut nvmlPciInfo_t) => put(info, pci_info(gpu));
    // NVML_BRAND_NVIDIA.
    nvmlDeviceGetBrand(_gpu, brand: *mut c_uint) => put(brand, 14);
    nvmlDeviceGetArchitecture(gpu, architecture: *mut c_uint) =>
        put(architecture, gpu.model().architecture);
    nvmlDeviceGetCudaComputeCapability(gpu, major: *mut c_int, minor: *mut c_int) =>
        put(major, gpu.model().capability.0).and_then(|()| put(minor, gpu.model().capability.1));
    // NVML_GPU_VIRTUALIZATION_MODE_NONE.
    nvmlDeviceGetVirtualizationMode(gpu, mode: *mut c_uint) => whole(gpu).and_then(|()| put(mode, 0));
    nvmlDeviceGetVbiosVersion(gpu, version: *mut c_char, length: c_uint) =>
        whole(gpu).and_then(|()| put_text(version, length, "96.00.99.00.01"));
    nvmlDeviceGetMemoryInfo_v2(gpu, memory: *mut nvmlMemory_v2_t) => {
        let memory = borrow(memory)?;
        if memory.version != MEMORY_V2 {
            return Err(code::ARGUMENT_VERSION_MISMATCH);
        }
        [memory.total, memory.reserved, memory.free, memory.used] = gpu.memory();
        Ok(())
    };
    nvmlDeviceGetUtilizationRates(gpu, rates: *mut nvmlUtilization_t) => {
        undivided(gpu)?;
        let values = gpu.values();
        put(rates, nvmlUtilization_t { gpu: values.gpu_percent, memory: values.memory_percent })
    };
    nvmlDeviceGetEncoderUtilization(gpu, share: *mut c_uint, period_us: *mut c_uint) =>
        codec(gpu, 0, share, period_us);
    nvmlDeviceGetDecoderUtilization(gpu, share: *mut c_uint, period_us: *mut c_uint) =>
        codec(gpu, 1, share, period_us);
    nvmlDeviceGetSamples(
        gpu,
        _kind: c_uint,
        _since: c_ulonglong,
        value_kind: *mut c_uint,
        count: *mut c_uint,
        samples: *mut nvmlSample_t
    ) => {
        undivided(gpu)?;
        put(value_kind, 1)?;
        let value = nvmlValue_t { uiVal: gpu.values().gpu_percent };
        put_many(samples, count, &[nvmlSample_t { timeStamp: 1, sampleValue: value }])
    };
    nvmlDeviceGetFieldValues(gpu, count: c_int, values: *mut nvmlFieldValue_t) => {
        whole(gpu)?;
        let count = usize::try_from(count).map_err(|_| code::INVALID_ARGUMENT)?;
        borrow_many(values, count)?.iter_mut().for_each(|value| gpu.fill(value));
        Ok(())
    };
    nvmlDeviceGetClockInfo(gpu, clock: c_uint, mhz: *mut c_uint) =>
        put(mhz, clock_of(gpu, clock, gpu.values().clock_mhz)?);
    nvmlDeviceGetMaxClockInfo(gpu, clock: c_uint, mhz: *mut c_uint) => {
        let (sm, memory) = gpu.model().clock_mhz;
        put(mhz, clock_of(gpu, clock, [sm, memory])?)
    };
    nvmlDeviceGetTemperature(gpu, _sensor: c_uint, celsius: *mut c_uint) =>
        whole(gpu).and_then(|()| put(celsius, gpu.values().temperature_c));
    nvmlDeviceGetTemperatureThreshold(gpu, kind: c_uint, celsius: *mut c_uint) => {
        whole(gpu)?;
        match kind {
            0 => put(celsius, 95),
            1 => put(celsius, 89),
            _ => Err(code::NOT_SUPPORTED),
        }
    };
    nvmlDeviceGetMarginTemperature(gpu, margin: *mut nvmlMarginTemperature_t) => {
        whole(gpu)?;
        let margin = borrow(margin)?;
        if margin.version != MARGIN_V1 {
            return Err(code::ARGUMENT_VERSION_MISMATCH);
        }
        if !gpu.model().gpm {
            return Err(code::NOT_SUPPORTED);
        }
        margin.marginTemperature = 87 - gpu.values().temperature_c as c_int;
        Ok(())
    };
    nvmlDeviceGetPowerUsage(gpu, milliwatts: *mut c_uint) =>
        whole(gpu).and_then(|()| put(milliwatts, gpu.values().power_mw));
    nvmlDeviceGetEnforcedPowerLimit(gpu, milliwatts: *mut c_uint) =>
        whole(gpu).and_then(|()| put(milliwatts, gpu.model().power_watts.1 * 1000));
    nvmlDeviceGetPowerManagementLimit(gpu, milliwatts: *mut c_uint) =>
        whole(gpu).and_then(|()| put(milliwatts, gpu.model().power_watts.1 * 1000));
    nvmlDeviceGetTotalEnergyConsumption(gpu, millijoules: *mut c_ulonglong) =>
        whole(gpu).and_then(|()| put(millijoules, gpu.values().energy_mj));
    nvmlDeviceGetPerformanceState(gpu, state: *mut c_uint) =>
        put(state, gpu.values().performance_state);
    nvmlDeviceGetCurrentClocksThrottleReasons(gpu, reasons: *mut c_ulonglong) =>
        put(reasons, gpu.values().throttle);
    nvmlDeviceGetTotalEccErrors(gpu, kind: c_uint, _counter: c_uint, count: *mut c_ulonglong) =>
        put(count, *gpu.gpu().ecc.get(kind as usize).ok_or(code::INVALID_ARGUMENT)?);
    nvmlDeviceGetMemoryErrorCounter(
        gpu,
        kind: c_uint,
        _counter: c_uint,
        _location: c_uint,
        count: *mut c_ulonglong
    ) => put(count, *gpu.gpu().ecc.get(kind as usize).ok_or(code::INVALID_ARGUMENT)?);
    nvmlDeviceGetEccMode(gpu, current: *mut c_uint, pending: *mut c_uint) =>
        whole(gpu).and_then(|()| put(current, 1)).and_then(|()| put(pending, 1));
    nvmlDeviceGetSramEccErrorStatus(gpu, status: *mut nvmlEccSramErrorStatus_t) => {
        whole(gpu)?;
        let status = borrow(status)?;
        if status.version != SRAM_V1 {
            return Err(code::ARGUMENT_VERSION_MISMATCH);
        }
        if !gpu.model().remaps_rows {
            return Err(code::NOT_SUPPORTED);
        }
        [status.volatileCor, status.volatileUncParity, status.volatileUncSecDed] = gpu.gpu().sram;
        [status.aggregateCor, status.aggregateUncParity, status.aggregateUncSecDed] =
            gpu.sram_of_its_life();
        status.bThresholdExceeded = c_uint::from(gpu.gpu().load == Load::Distinct);
        Ok(())
    };
    nvmlDeviceGetGpuFabricInfoV(gpu, info: *mut nvmlGpuFabricInfo_v2_t) => {
        whole(gpu)?;
        let info = borrow(info)?;
        if info.version != FABRIC_V2 {
            return Err(code::ARGUMENT_VERSION_MISMATCH);
        }
        info.clusterUuid = [0x5e; 16];
        info.cliqueId = 1;
        info.status = code::SUCCESS;
        info.state = if gpu.model().nvlinks.0 == 18 { 3 } else { 0 };
        // Degraded bandwidth: false.
        info.healthMask = 2;
        Ok(())
    };
    nvmlDeviceGetRetiredPages_v2(
        gpu,
        _cause: c_uint,
        count: *mut c_uint,
        _addresses: *mut c_ulonglong,
        _times: *mut c_ulonglong
    ) => if gpu.model().remaps_rows { Err(code::NOT_SUPPORTED) } else { put(count, 0) };
    nvmlDeviceGetRemappedRows(
        gpu,
        corrected: *mut c_uint,
        uncorrected: *mut c_uint,
        pending: *mut c_uint,
        failed: *mut c_uint
    ) => {
        if !gpu.model().remaps_rows {
            return Err(code::NOT_SUPPORTED);
        }
        let rows = gpu.gpu().remapped;
        put(corrected, rows[0])?;
        put(uncorrected, rows[1])?;
        put(pending, rows[2])?;
        put(failed, rows[3])
    };
    nvmlDeviceGetPcieReplayCounter(gpu, count: *mut c_uint) => whole(gpu).and_then(|()| put(count, 0));
    nvmlDeviceGetCurrPcieLinkGeneration(gpu, generation: *mut c_uint) =>
        whole(gpu).and_then(|()| put(generation, gpu.model().pcie_generation));
    nvmlDeviceGetCurrPcieLinkWidth(gpu, width: *mut c_uint) => whole(gpu).and_then(|()| put(width, 16));
    nvmlDeviceGetMaxPcieLinkGeneration(gpu, generation: *mut c_uint) =>
        whole(gpu).and_then(|()| put(generation, gpu.model().pcie_generation));
    nvmlDeviceGetMaxPcieLinkWidth(gpu, width: *mut c_uint) => whole(gpu).and_then(|()| put(width, 16));
    nvmlDeviceGetComputeRunningProcesses_v3(gpu, count: *mut c_uint, to: *mut nvmlProcessInfo_t) =>
        put_many(to, count, &gpu.processes());
    nvmlDeviceGetGraphicsRunningProcesses_v3(gpu, count: *mut c_uint, _to: *mut nvmlProcessInfo_t) => {
        let _ = gpu;
        put(count, 0)
    };
    nvmlDeviceGetProcessUtilization(
        gpu,
        to: *mut nvmlProcessUtilizationSample_t,
        count: *mut c_uint,
        _since: c_ulonglong
    ) => {
        undivided(gpu)?;
        let samples = gpu.process_utilization();
        if samples.is_empty() {
            return Err(code::NOT_FOUND);
        }
        put_many(to, count, &samples)
    };
    nvmlDeviceGetMigMode(gpu, current: *mut c_uint, pending: *mut c_uint) => {
        if gpu.model().mig_instances == 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let on = c_uint::from(!gpu.gpu().mig.is_empty());
        put(current, on).and_then(|()| put(pending, on))
    };
    nvmlDeviceGetMaxMigDeviceCount(gpu, count: *mut c_uint) => put(count, gpu.model().mig_instances);
    nvmlDeviceGetMigDeviceHandleByIndex(gpu, index: c_uint, to: *mut nvmlDevice_t) => {
        if !gpu.is_divided() {
            return Err(code::INVALID_ARGUMENT);
        }
        let index = u8::try_from(index).map_err(|_| code::INVALID_ARGUMENT)?;
        if usize::from(index) >= gpu.gpu().mig.len() {
            return Err(code::NOT_FOUND);
        }
        put(to, driver::handle_of(gpu.slot, Some(index)))
    };
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu, to: *mut nvmlDevice_t) => {
        gpu.mig.ok_or(code::INVALID_ARGUMENT)?;
        put(to, driver::handle_of(gpu.slot, None))
    };
    nvmlDeviceIsMigDeviceHandle(gpu, is: *mut c_uint) => put(is, c_uint::from(gpu.mig.is_some()));
    nvmlDeviceGetGpuInstanceId(gpu, id: *mut c_uint) =>
        put(id, gpu_instance(gpu.mig.ok_or(code::INVALID_ARGUMENT)?));
    nvmlDeviceGetGpuInstanceById(gpu, id: c_uint, to: *mut nvmlGpuInstance_t) => {
        let instances = 0..gpu.gpu().mig.len() as u8;
        let mut instances = instances.filter(|_| gpu.is_divided());
        let found = instances.find(|mig| gpu_instance(*mig) == id);
        let mig = found.ok_or(code::NOT_FOUND)?;
        put(to, driver::handle_of(gpu.slot, Some(mig)).cast())
    };
    nvmlDeviceGetComputeInstanceId(gpu, id: *mut c_uint) => {
        gpu.mig.ok_or(code::INVALID_ARGUMENT)?;
        put(id, 0)
    };
    nvmlDeviceGetAttributes_v2(gpu, attributes: *mut nvmlDeviceAttributes_t) => {
        let (slices, memory) = gpu.profile().ok_or(code::NOT_SUPPORTED)?;
        put(attributes, nvmlDeviceAttributes_t {
            multiprocessorCount: slices * 16,
            sharedCopyEngineCount: slices,
            sharedDecoderCount: slices,
            sharedEncoderCount: 0,
            sharedJpegCount: slices,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: slices,
            computeInstanceSliceCount: gpu.compute_slices().unwrap_or(slices),
            memorySizeMB: memory,
        })
    };
    nvmlDeviceGetNvLinkState(gpu, link: c_uint, up: *mut c_uint) => {
        if link >= c_uint::from(gpu.model().nvlinks.0) {
            return Err(code::NOT_SUPPORTED);
        }
        put(up, c_uint::from(gpu.link_up(link)))
    };
    nvmlDeviceGetNvLinkVersion(gpu, link: c_uint, version: *mut c_uint) => {
        if link >= c_uint::from(gpu.model().nvlinks.0) {
            return Err(code::NOT_SUPPORTED);
        }
        put(version, 4)
    };
    nvmlDeviceGetNvLinkErrorCounter(
        gpu,
        link: c_uint,
        _counter: c_uint,
        count: *mut c_ulonglong
    ) => {
        if link >= c_uint::from(gpu.model().nvlinks.0) {
            return Err(code::NOT_SUPPORTED);
        }
        put(count, c_ulonglong::from(!gpu.link_up(link)))
    };
    nvmlDeviceGetSupportedEventTypes(gpu, types: *mut c_ulonglong) =>
        whole(gpu).and_then(|()| put(types, SUPPORTED));
    nvmlDeviceRegisterEvents(gpu, types: c_ulonglong, set: nvmlEventSet_t) =>
        borrow::<EventSet>(set.cast())?.register(gpu.slot, types);
    nvmlGpmQueryDeviceSupport(gpu, support: *mut nvmlGpmSupport_t) => {
        let support = borrow(support)?;
        if support.version != 1 {
            return Err(code::ARGUMENT_VERSION_MISMATCH);
        }
        support.isSupportedDevice = c_uint::from(gpu.model().gpm);
        Ok(())
    };
    nvmlGpmSampleGet(gpu, sample: nvmlGpmSample_t) => gpm::take(sample, gpu, None);
    nvmlGpmMigSampleGet(gpu, instance: c_uint, sample: nvmlGpmSample_t) => {
        let instances = gpu.gpu().mig.len() as u8;
        if !(0..instances).any(|mig| gpu_instance(mig) == instance) {
            return Err(code::INVALID_ARGUMENT);
        }
        gpm::take(sample, gpu, Some(instance))
    };
}

/// The handle of a GPU instance is that of the MIG device in it.
#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetInfo(
    instance: nvmlGpuInstance_t,
    info: *mut nvmlGpuInstanceInfo_t,
) -> nvmlReturn_t {
    on("nvmlGpuInstanceGetInfo", instance.cast(), |gpu| {
        let mig = gpu.mig.ok_or(code::INVALID_ARGUMENT)?;
        let (profile, start, size) = gpu.placement().ok_or(code::NOT_SUPPORTED)?;
        put(
            info,
            nvmlGpuInstanceInfo_t {
                device: driver::handle_of(gpu.slot, None),
                id: gpu_instance(mig),
                profileId: profile,
                placement: nvmlGpuInstancePlacement_t { start, size },
            },
        )
    })
}

fn pci_info(gpu: &Answering) -> nvmlPciInfo_t {
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: gpu.bus(),
        device: 0,
        pciDeviceId: 0x2330_10DE,
        pciSubSystemId: 0x16C1_10DE,
        busId: [0; 32],
    };
    let bus_id = gpu.bus_id();
    for (to, from) in info.busId.iter_mut().zip(bus_id.bytes()) {
        *to = from as c_char;
    }
    for (to, from) in info.busIdLegacy.iter_mut().zip(bus_id.bytes().skip(4)) {
        *to = from as c_char;
    }
    info
}

fn codec(gpu: &Answering, which: usize, share: *mut c_uint, period_us: *mut c_uint) -> Answer {
    undivided(gpu)?;
    put(share, gpu.values().codec_percent[which])?;
    put(period_us, 167_000)
}

/// Clock types: 0 graphics, 1 SM, 2 memory, 3 video.
fn clock_of(gpu: &Answering, clock: c_uint, mhz: [u32; 2]) -> Result<u32, Refusal> {
    whole(gpu)?;
    match clock {
        0 | 1 => Ok(mhz[0]),
        2 => Ok(mhz[1]),
        _ => Err(code::NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    call("nvmlEventSetWait_v2", About::Library, |_| {
        let set = borrow::<EventSet>(set.cast())?;
        put(
            data,
            set.wait(Duration::from_millis(u64::from(timeout_ms)))?,
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    call("nvmlEventSetFree", About::Library, |_| {
        let set = borrow::<EventSet>(set.cast())?;
        // SAFETY: the set was made by nvmlEventSetCreate through Box::into_raw, and the C interface
        // asks that it is freed once.
        drop(unsafe { Box::from_raw(std::ptr::from_mut(set)) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpmMetricsGet(request: *mut nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    let samples = borrow(request).and_then(|request| {
        let (first, second) = (request.sample1, request.sample2);
        Ok((gpm::taken(first)?, gpm::taken(second)?))
    });
    // The call is counted for the GPU whose samples it gets.
    let about = match &samples {
        Ok((_, second)) => About::Slot(second.slot, None),
        Err(_) => About::Library,
    };
    call("nvmlGpmMetricsGet", about, |_| {
        let request = borrow(request)?;
        if request.version != 1 {
            return Err(code::ARGUMENT_VERSION_MISMATCH);
        }
        let (first, second) = samples?;
        let count = request.numMetrics as usize;
        let metrics = request
            .metrics
            .get_mut(..count)
            .ok_or(code::INVALID_ARGUMENT)?;
        for metric in metrics {
            gpm::fill(metric, &first, &second);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::FUNCTIONS;

    #[test]
    fn every_exported_function_has_a_place_in_the_call_table() {
        let source = include_str!("ffi.rs");
        let exported = |name: &str| {
            source.contains(&format!("extern \"C\" fn {name}("))
                || source.contains(&format!("    {name}("))
        };
        for name in FUNCTIONS {
            assert!(exported(name), "{name} is in the table but not exported");
        }
    }
}
