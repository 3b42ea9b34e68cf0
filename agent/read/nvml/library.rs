//! The driver's library in the child: loaded once, and every call marked on the shared page first.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::path::Path;
use std::sync::Arc;

use gpufleet_telemetry::sample::Missing;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlReturn_t};

use super::function::Function;
use super::page::{Lane, Page};
use super::wire::{Failure, LibraryFacts};

/// Their number among the vendors of PCI devices, as the kernel writes it.
const NVIDIA_VENDOR: &str = "0x10de";

/// The loaded library, as one thread of the child uses it.
#[derive(Clone)]
pub(crate) struct Library {
    /// The wrapper; it lives as long as the process, so devices may borrow it for ever.
    nvml: &'static Nvml,
    page: Arc<Page>,
    lane: Lane,
}

impl Library {
    /// Loads and initialises it.
    pub(crate) fn load(path: &str, page: Arc<Page>) -> Result<(Self, LibraryFacts), Failure> {
        let lane = Lane::Read;
        page.enter(lane, None, Function::Init);
        let loaded = match path {
            "" => Nvml::init(),
            path => Nvml::builder().lib_path(OsStr::new(path)).init(),
        };
        page.leave(lane);
        let nvml = loaded.map_err(|error| {
            let here = is_gpu_here(Path::new("/dev"), Path::new("/sys/bus/pci/devices"));
            failure(path, error, here)
        })?;
        let library = Self {
            nvml: Box::leak(Box::new(nvml)),
            page,
            lane,
        };
        let facts = library.facts().map_err(|missing| failure_of(missing, ""))?;
        Ok((library, facts))
    }

    fn facts(&self) -> Result<LibraryFacts, Missing> {
        let cuda = self.ask(None, Function::CudaVersion, |nvml| {
            nvml.sys_cuda_driver_version()
        });
        Ok(LibraryFacts {
            driver_version: self.ask(None, Function::DriverVersion, |nvml| {
                nvml.sys_driver_version()
            })?,
            nvml_version: self
                .ask(None, Function::NvmlVersion, |nvml| nvml.sys_nvml_version())
                .unwrap_or_default(),
            cuda_version: cuda
                .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10))
                .unwrap_or_default(),
            count: self.count()?,
        })
    }

    /// How many GPUs the library lists.
    pub(crate) fn count(&self) -> Result<u32, Missing> {
        self.ask(None, Function::Count, |nvml| nvml.device_count())
    }

    /// The same library for the thread that waits.
    pub(crate) fn for_waiting(&self) -> Self {
        Self {
            lane: Lane::Wait,
            ..self.clone()
        }
    }

    /// One call through the safe wrapper.
    pub(crate) fn ask<T>(
        &self,
        gpu: Option<u32>,
        function: Function,
        call: impl FnOnce(&'static Nvml) -> Result<T, NvmlError>,
    ) -> Result<T, Missing> {
        self.page.enter(self.lane, gpu, function);
        let result = call(self.nvml);
        self.page.leave(self.lane);
        result.map_err(|error| missing_of(&error))
    }

    /// One call through the bare bindings; the closure gives the function's return code, or none
    /// where the library has no such symbol.
    pub(crate) fn ask_raw(
        &self,
        gpu: Option<u32>,
        function: Function,
        call: impl FnOnce(&'static NvmlLib) -> Option<nvmlReturn_t>,
    ) -> Result<(), Missing> {
        match self.ask_code(gpu, function, call) {
            0 => Ok(()),
            code => Err(missing(code)),
        }
    }

    /// The same with the bare return code, where the caller must tell more of them apart.
    pub(crate) fn ask_code(
        &self,
        gpu: Option<u32>,
        function: Function,
        call: impl FnOnce(&'static NvmlLib) -> Option<nvmlReturn_t>,
    ) -> nvmlReturn_t {
        self.page.enter(self.lane, gpu, function);
        let code = call(self.nvml.lib());
        self.page.leave(self.lane);
        code.unwrap_or(FUNCTION_NOT_FOUND)
    }
}

/// NVML_ERROR_FUNCTION_NOT_FOUND.
pub(crate) const FUNCTION_NOT_FOUND: nvmlReturn_t = 13;
/// NVML_ERROR_NOT_FOUND.
pub(crate) const NOT_FOUND: nvmlReturn_t = 6;
/// NVML_ERROR_INSUFFICIENT_SIZE.
pub(crate) const INSUFFICIENT_SIZE: nvmlReturn_t = 7;
/// NVML_ERROR_TIMEOUT.
pub(crate) const TIMEOUT: nvmlReturn_t = 10;

/// Why a return code of NVML means that there is no value.
pub(crate) fn missing(code: nvmlReturn_t) -> Missing {
    match code {
        // 25: a struct version this driver does not know; 26: deprecated on this card.
        3 | 25 | 26 => Missing::NotSupported,
        4 => Missing::NoPermission,
        9 => Missing::DriverNotLoaded,
        10 => Missing::Timeout,
        13 => Missing::FunctionNotFound,
        15 | 28 => Missing::GpuLost,
        16 => Missing::ResetRequired,
        // 1: the library was shut down under us, which only a driver reload does.
        1 | 18 => Missing::LibraryMismatch,
        19 => Missing::HeldByOther,
        21 | 27 => Missing::NotReady,
        _ => Missing::Unknown,
    }
}

fn missing_of(error: &NvmlError) -> Missing {
    match error {
        NvmlError::FailedToLoadSymbol(_) => Missing::FunctionNotFound,
        NvmlError::Utf8Error(_) | NvmlError::IncorrectBits(_) => Missing::Invalid,
        error => missing(code_of(error)),
    }
}

fn code_of(error: &NvmlError) -> nvmlReturn_t {
    match error {
        NvmlError::Uninitialized => 1,
        NvmlError::NotSupported => 3,
        NvmlError::NoPermission => 4,
        NvmlError::DriverNotLoaded => 9,
        NvmlError::Timeout => 10,
        NvmlError::FunctionNotFound => 13,
        NvmlError::GpuLost => 15,
        NvmlError::ResetRequired => 16,
        NvmlError::LibRmVersionMismatch => 18,
        NvmlError::InUse => 19,
        NvmlError::NoData => 21,
        NvmlError::UnexpectedVariant(code) => *code,
        _ => 999,
    }
}

/// Whether a reason means that the whole library is of no more use to this process.
pub(crate) fn ends_library(missing: Missing) -> bool {
    matches!(missing, Missing::LibraryMismatch | Missing::DriverNotLoaded)
}

/// Whether a reason means that the GPU as a whole does not answer.
pub(crate) fn ends_gpu(missing: Missing) -> bool {
    ends_library(missing) || matches!(missing, Missing::GpuLost | Missing::ResetRequired)
}

/// Why nothing is read on a machine that has nothing of NVIDIA's.
pub(crate) const NO_GPU: &str =
    "this machine has no NVIDIA GPU: set nvml.enabled = false to silence";

/// Whether there is anything of NVIDIA's here: a PCI device of theirs, or a device file. What
/// cannot be looked at may be there.
fn is_gpu_here(devices: &Path, pci: &Path) -> bool {
    let is_theirs = |device: &DirEntry| {
        let vendor = std::fs::read_to_string(device.path().join("vendor"));
        vendor.is_ok_and(|vendor| vendor.trim() == NVIDIA_VENDOR)
    };
    let is_file = |device: &DirEntry| device.file_name().to_string_lossy().starts_with("nvidia");
    let any = |folder: &Path, found: &dyn Fn(&DirEntry) -> bool| {
        std::fs::read_dir(folder).map_or(true, |entries| entries.flatten().any(|it| found(&it)))
    };
    any(devices, &is_file) || any(pci, &is_theirs)
}

fn failure(path: &str, error: NvmlError, is_gpu_here: bool) -> Failure {
    let not_there = matches!(
        error,
        NvmlError::LibloadingError(_) | NvmlError::DriverNotLoaded
    );
    // A path that was set speaks of a library that is meant to be there.
    if not_there && !is_gpu_here && path.is_empty() {
        return Failure {
            missing: Missing::DriverNotLoaded,
            why: NO_GPU.to_owned(),
        };
    }
    if let NvmlError::LibloadingError(error) = &error {
        let tried = if path.is_empty() {
            "libnvidia-ml.so.1"
        } else {
            path
        };
        return Failure {
            missing: Missing::DriverNotLoaded,
            why: format!(
                "NVML cannot be loaded from {tried} ({error}): run the agent on a node with the \
                 NVIDIA driver, mount the driver's libraries into its container (on GKE \
                 /home/kubernetes/bin/nvidia at /usr/local/nvidia, with \
                 LD_LIBRARY_PATH=/usr/local/nvidia/lib64) or set nvml.library_path; on a machine \
                 without GPUs set nvml.enabled = false"
            ),
        };
    }
    failure_of(missing_of(&error), &error.to_string())
}

fn failure_of(missing: Missing, said: &str) -> Failure {
    let (what, fix) = match missing {
        Missing::DriverNotLoaded => (
            "the NVIDIA kernel driver is not loaded",
            "load it (modprobe nvidia) or wait for the driver installer of this node",
        ),
        Missing::NoPermission => (
            "the agent may not talk to the NVIDIA driver",
            "give its container /dev/nvidiactl and /dev/nvidia* (privileged, CDI or the device plugin)",
        ),
        Missing::LibraryMismatch => (
            "the NVML library and the kernel driver are of different versions",
            "the driver was upgraded: load the new kernel module, or restart the container so that it mounts the new library",
        ),
        _ => (
            "NVML does not initialise",
            "see dmesg for lines with NVRM, and nvidia-smi on the node",
        ),
    };
    let said = if said.is_empty() {
        String::new()
    } else {
        format!(" ({said})")
    };
    Failure {
        missing,
        why: format!("{what}{said}: {fix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_return_code_has_a_reason() {
        let facts = include_str!("../../../telemetry/catalog/driver_facts.txt");
        let mut cases: Vec<(nvmlReturn_t, &str)> = facts
            .lines()
            .filter_map(|line| {
                let (code, reason) = line.strip_prefix("code ")?.split_once(' ')?;
                Some((code.parse().expect("a code"), reason))
            })
            .collect();
        assert!(cases.len() > 10, "the table was found");
        cases.extend([(19, "held_by_other"), (12_345, "unknown")]);
        for (code, reason) in cases {
            assert_eq!(missing(code).name(), reason, "{code}");
            let wrapped = NvmlError::from(code);
            let reached = missing_of(&wrapped).name();
            assert_eq!(reached, reason, "{code} through the wrapper");
        }
    }

    #[test]
    fn a_machine_without_a_gpu_is_told_so_and_one_whose_driver_is_away_is_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (dev, pci) = (folder.path().join("dev"), folder.path().join("pci"));
        for device in ["a", "b"] {
            std::fs::create_dir_all(pci.join(device)).expect("a folder");
            std::fs::write(pci.join(device).join("vendor"), "0x8086\n").expect("a file");
        }
        std::fs::create_dir(&dev).expect("a folder");
        let why = || failure("", NvmlError::from(9), is_gpu_here(&dev, &pci)).why;
        assert!(why().contains("no NVIDIA GPU: set nvml.enabled = false"));
        std::fs::write(pci.join("b/vendor"), "0x10de\n").expect("a file");
        assert!(why().contains("modprobe"), "{}", why());
        std::fs::write(pci.join("b/vendor"), "0x8086\n").expect("a file");
        std::fs::write(dev.join("nvidiactl"), "").expect("a file");
        assert!(why().contains("modprobe"), "{}", why());
        assert!(is_gpu_here(&dev, Path::new("/nowhere")), "nobody knows");
    }

    #[test]
    fn each_failure_says_the_way_out() {
        for (missing, fix) in [
            (Missing::DriverNotLoaded, "modprobe"),
            (Missing::NoPermission, "/dev/nvidiactl"),
            (Missing::LibraryMismatch, "restart the container"),
            (Missing::Unknown, "dmesg"),
        ] {
            let why = failure_of(missing, "").why;
            assert!(why.contains(fix), "{why}");
        }
    }
}
