//! What never changes about a GPU, asked once when its handle is new.
#![expect(unsafe_code, reason = "the fabric is asked through the bare handle")]

use std::time::Duration;

use gpufleet_telemetry::sample::Missing;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::fields::Place;
use super::function::Function;
use super::library::{Library, ends_gpu};
use super::turns;
use super::wire::GpuFacts;

/// NVML_GPU_FABRIC_STATE_COMPLETED.
const FABRIC_JOINED: u8 = 3;

/// Everything that is known. What the driver does not say stays empty; a GPU that does not answer
/// at all is an error.
pub(crate) fn of(
    library: &Library,
    index: u32,
    device: &Device<'static>,
    now: Duration,
) -> Result<GpuFacts, Missing> {
    // SAFETY: the handle is only used while the library is loaded, which is for ever here.
    let handle = unsafe { device.handle() };
    let at = Place {
        index,
        device: handle,
        now,
    };
    let fabric = turns::fabric_info(library, &at).ok();
    let pci = ask(library, index, Function::PciInfo, || device.pci_info())?;
    let capability = ask(library, index, Function::ComputeCapability, || {
        device.cuda_compute_capability()
    })?;
    let text = |function, call: fn(&Device<'static>) -> Result<String, NvmlError>| {
        ask(library, index, function, || call(device)).map(Option::unwrap_or_default)
    };
    Ok(GpuFacts {
        name: text(Function::Name, Device::name)?,
        uuid: text(Function::Uuid, Device::uuid)?,
        serial: text(Function::Serial, Device::serial)?,
        pci_address: pci.map(|pci| pci.bus_id).unwrap_or_default(),
        minor: ask(library, index, Function::MinorNumber, || {
            device.minor_number()
        })?,
        compute_capability: capability
            .map(|it| format!("{}.{}", it.major, it.minor))
            .unwrap_or_default(),
        vbios: text(Function::VbiosVersion, Device::vbios_version)?,
        fabric: fabric
            .filter(|info| info.state == FABRIC_JOINED)
            .map(|info| {
                let cluster = uuid::Uuid::from_bytes(info.clusterUuid);
                (cluster.to_string(), info.cliqueId)
            }),
    })
}

fn ask<T>(
    library: &Library,
    index: u32,
    function: Function,
    call: impl FnOnce() -> Result<T, NvmlError>,
) -> Result<Option<T>, Missing> {
    match library.ask(Some(index), function, |_| call()) {
        Ok(value) => Ok(Some(value)),
        Err(missing) if ends_gpu(missing) => Err(missing),
        Err(_) => Ok(None),
    }
}
