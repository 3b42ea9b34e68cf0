//! The MIG instances of a GPU: finding them, noticing that they changed, reading each.
#![expect(unsafe_code, reason = "instance ids are not in the safe wrapper")]

use gpufleet_telemetry::sample::{Missing, Reading};
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t};

use super::device::{Round, push_memory};
use super::fields::Place;
use super::function::Function;
use super::gpm::Gpm;
use super::library::{Library, ends_gpu};
use super::processes::Processes;
use super::values::Samples;
use super::wire::ShareAnswer;

/// Most instances of one GPU; cards of today have 7.
const MAX_SHARES: u32 = 16;

/// NVML_DEVICE_MIG_ENABLE.
const MIG_ON: u32 = 1;

/// One MIG instance with a handle.
struct Share {
    index: u32,
    device: Device<'static>,
    uuid: String,
    profile: String,
    gpu_instance: u32,
    placement: Option<(u32, u32)>,
    slices: u32,
    gpm: Gpm,
}

/// The MIG instances of one GPU.
#[derive(Default)]
pub(crate) struct Shares {
    mig: bool,
    /// Whether the card can be cut at all, as the driver said last.
    asked: Option<Result<(), Missing>>,
    most: u32,
    shares: Vec<Share>,
    /// Where [`Shares::look`] goes on: the mode, then one instance at a time.
    next: u32,
    stale: bool,
}

impl Shares {
    /// Whether the GPU is cut into instances.
    pub(crate) fn is_mig(&self) -> bool {
        self.mig
    }

    /// The mode as a reading; a card that cannot be cut is not.
    pub(crate) fn mode(&self) -> Reading {
        match self.asked {
            Some(Ok(()) | Err(Missing::NotSupported)) => Ok(f64::from(u8::from(self.mig))),
            Some(Err(missing)) => Err(missing),
            None => Err(Missing::NotReady),
        }
    }

    /// Whether the layout is no longer what was found.
    pub(crate) fn are_stale(&self) -> bool {
        self.stale
    }

    /// Finds the layout: several calls, made when the GPU is opened and when it changed.
    pub(crate) fn find(
        &mut self,
        library: &Library,
        at: &Place,
        device: &Device<'static>,
    ) -> Result<(), Missing> {
        *self = Self::default();
        let (mig, asked) = mode(library, at)?;
        self.mig = mig;
        self.asked = Some(asked);
        if !self.mig {
            return Ok(());
        }
        self.most = library
            .ask(Some(at.index), Function::MigDeviceCount, |_| {
                device.mig_device_count()
            })?
            .min(MAX_SHARES);
        for index in 0..self.most {
            let handle = library.ask(Some(at.index), Function::MigHandleByIndex, |_| {
                device.mig_device_by_index(index)
            });
            match handle {
                Ok(share) => self.shares.extend(open(library, at, index, share)?),
                Err(missing) if ends_gpu(missing) => return Err(missing),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Looks at one piece of the layout, in one call; a difference makes it stale.
    pub(crate) fn look(
        &mut self,
        library: &Library,
        at: &Place,
        device: &Device<'static>,
    ) -> Result<(), Missing> {
        let place = self.next;
        self.next = (self.next + 1) % (self.most + 1);
        let Some(index) = place.checked_sub(1) else {
            let (mig, asked) = mode(library, at)?;
            self.asked = Some(asked);
            self.stale |= mig != self.mig;
            return Ok(());
        };
        let found = library.ask(Some(at.index), Function::MigHandleByIndex, |_| {
            device.mig_device_by_index(index)
        });
        match found {
            Err(missing) if ends_gpu(missing) => return Err(missing),
            found => {
                let known = self.shares.iter().any(|share| share.index == index);
                self.stale |= found.is_ok() != known;
            }
        }
        Ok(())
    }

    /// Reads every instance once.
    pub(crate) fn read(
        &mut self,
        at: &Place,
        round: &mut Round<'_>,
        processes: &Processes,
        to: &mut Vec<ShareAnswer>,
    ) -> Result<(), Missing> {
        for share in &mut self.shares {
            let mut samples = Samples::default();
            let memory = round
                .library
                .ask(Some(at.index), Function::MemoryInfo, |_| {
                    share.device.memory_info()
                });
            if let Err(missing) = memory {
                if ends_gpu(missing) {
                    return Err(missing);
                }
                // A handle that no longer works is an instance that is no more.
                self.stale |= missing == Missing::Unknown;
            }
            push_memory(&memory, &mut samples);
            processes.tell(Some(share.gpu_instance), &mut samples);
            share
                .gpm
                .read(round.library, at, round.request, &mut samples)?;
            to.push(ShareAnswer {
                uuid: share.uuid.clone(),
                profile: share.profile.clone(),
                gpu_instance: share.gpu_instance,
                placement: share.placement,
                slices: (share.slices, self.most),
                samples: samples.0,
            });
        }
        Ok(())
    }
}

/// Whether the card is cut, and whether it can say so.
fn mode(library: &Library, at: &Place) -> Result<(bool, Result<(), Missing>), Missing> {
    let (mut current, mut pending) = (0, 0);
    let asked = library.ask_raw(Some(at.index), Function::MigMode, |lib| {
        let get = lib.nvmlDeviceGetMigMode.as_ref().ok()?;
        // SAFETY: the handle came from this library, and both numbers are ours.
        Some(unsafe { get(at.device, &mut current, &mut pending) })
    });
    match asked {
        Ok(()) => Ok((current == MIG_ON, Ok(()))),
        Err(missing) if ends_gpu(missing) => Err(missing),
        // A card that cannot do MIG is not cut.
        Err(missing) => Ok((false, Err(missing))),
    }
}

/// What is known of a new instance; none when it was gone again before it could be asked.
fn open(
    library: &Library,
    at: &Place,
    index: u32,
    device: Device<'static>,
) -> Result<Option<Share>, Missing> {
    let uuid = library.ask(Some(at.index), Function::Uuid, |_| device.uuid());
    let name = library.ask(Some(at.index), Function::Name, |_| device.name());
    let attributes = library.ask(Some(at.index), Function::Attributes, |_| {
        device.attributes()
    });
    let mut gpu_instance = 0;
    let asked = library.ask_raw(Some(at.index), Function::GpuInstanceId, |lib| {
        let get = lib.nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
        // SAFETY: the handle came from this library and lives as long, and the number is ours.
        Some(unsafe { get(device.handle(), &mut gpu_instance) })
    });
    match (asked, uuid) {
        (Err(missing), _) | (_, Err(missing)) if ends_gpu(missing) => Err(missing),
        (Err(_), _) => Ok(None),
        (Ok(()), uuid) => {
            let placement = placement(library, at, gpu_instance)?;
            let mut gpm = Gpm::of(Some(gpu_instance));
            gpm.open(library, at);
            Ok(Some(Share {
                index,
                device,
                uuid: uuid.unwrap_or_default(),
                profile: name.map(|name| profile(&name)).unwrap_or_default(),
                gpu_instance,
                placement,
                // Of its GPU instance, which several may share, what is its own.
                slices: attributes.map_or(0, |it| it.compute_instance_slice_count),
                gpm,
            }))
        }
    }
}

/// Where an instance lies; none where the driver does not say, which it says to root alone.
fn placement(
    library: &Library,
    at: &Place,
    gpu_instance: u32,
) -> Result<Option<(u32, u32)>, Missing> {
    let mut handle = std::ptr::null_mut();
    let found = library.ask_raw(Some(at.index), Function::GpuInstanceById, |lib| {
        let get = lib.nvmlDeviceGetGpuInstanceById.as_ref().ok()?;
        // SAFETY: the device's handle came from this library, and the other one is ours to be written.
        Some(unsafe { get(at.device, gpu_instance, &mut handle) })
    });
    let mut info = nvmlGpuInstanceInfo_t {
        device: std::ptr::null_mut(),
        id: 0,
        profileId: 0,
        placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
    };
    let asked = found.and_then(|()| {
        library.ask_raw(Some(at.index), Function::GpuInstanceInfo, |lib| {
            let get = lib.nvmlGpuInstanceGetInfo.as_ref().ok()?;
            // SAFETY: this library has just given the handle, and what it writes is ours.
            Some(unsafe { get(handle, &mut info) })
        })
    });
    match asked {
        Ok(()) => Ok(Some((info.profileId, info.placement.start))),
        Err(missing) if ends_gpu(missing) => Err(missing),
        Err(_) => Ok(None),
    }
}

/// `NVIDIA H100 80GB HBM3 MIG 1g.10gb` → `1g.10gb`.
fn profile(name: &str) -> String {
    name.rsplit_once(" MIG ")
        .map(|(_, profile)| profile.to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_what_follows_mig_in_the_name() {
        assert_eq!(profile("NVIDIA H100 80GB HBM3 MIG 3g.40gb"), "3g.40gb");
        assert_eq!(profile("NVIDIA H100 80GB HBM3"), "");
    }
}
