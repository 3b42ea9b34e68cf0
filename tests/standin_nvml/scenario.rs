//! The scenario file: which GPUs the stand-in shows, what they do, and what goes wrong when.
//!
//! GPUs are addressed by *slot*, their place in the scenario. The NVML index is the place among
//! the slots that are present, as on a real machine, where a GPU that fell away moves the others.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::load::Load;

/// A whole scenario. The default is eight idle-free H100s in training with nothing wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// What the kernel driver says. Changing it while a process has the library loaded makes
    /// every further call in that process fail with 18, as after a driver reinstall.
    pub driver_version: String,
    /// What the library says of itself.
    pub nvml_version: String,
    /// The highest CUDA version, as NVML codes it: 13000 is 13.0.
    pub cuda_version: i32,
    /// What `nvmlInit_v2` returns: 0, or for example 9 (driver not loaded), 4, 18, 999.
    pub init: u32,
    /// How long one call takes.
    pub call_cost_us: u64,
    /// How that time is spent.
    pub call_cost: CallCost,
    /// A fixed time in Unix seconds for every value; the wall clock without it. Values change once
    /// a whole second.
    pub time_s: Option<f64>,
    /// A file in which every call is counted ([`crate::CallTable`]).
    pub calls_path: Option<PathBuf>,
    /// Whether the list of devices is fixed at `nvmlInit_v2`, as in the real library.
    pub count_cached: bool,
    /// Slots that are not there.
    pub absent: Vec<u8>,
    /// The GPUs, in the order of their slots.
    pub gpus: Vec<Gpu>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// XIDs. One without a time reaches every event set that was waiting when it was added.
    pub xids: Vec<Xid>,
}

/// How the time of a call is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallCost {
    /// Not at all: calls return at once.
    None,
    /// Asleep, which costs no CPU; the kernel rounds it up by some 50 µs.
    Sleep,
    /// In a busy loop, as a driver call does. For benches: it costs what it says.
    Spin,
}

/// One GPU, or `count` equal ones in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpu {
    /// The product name; one of [`crate::models::MODELS`].
    pub model: String,
    /// How many of it.
    pub count: u8,
    /// What it does.
    pub load: Load,
    /// MIG instances by profile name (`1g.10gb`); empty: MIG is off.
    pub mig: Vec<String>,
    /// Whether its UUID reads all zeros, as in a misconfigured VM.
    pub null_uuid: bool,
    /// Whether GPM gives data (`false` on a vGPU slice, which says that it supports it).
    pub gpm_data: bool,
    /// Whether GPM values are NaN.
    pub gpm_nan: bool,
    /// Processes with a compute context.
    pub processes: Vec<Process>,
    /// Corrected and uncorrected ECC errors since the driver was loaded.
    pub ecc: [u64; 2],
    /// On-chip memory errors since the driver was loaded: corrected, parity, SEC-DED.
    pub sram: [u64; 3],
    /// Rows remapped for corrected and uncorrected errors, remapping pending, remapping failed.
    pub remapped: [u32; 4],
    /// What field 230 says.
    pub recovery_action: u32,
    /// Added to the throttle reasons that the load gives.
    pub throttle: u64,
    /// NVLink links that are down.
    pub links_down: Vec<u8>,
    /// How often it was reset: energy and volatile counters begin anew at each.
    pub resets: u32,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its pid in the host's namespace.
    pub pid: u32,
    /// Its device memory.
    pub memory_mib: u64,
    /// Its share of SM time, 0-100.
    #[serde(default)]
    pub sm_percent: u32,
    /// The index of the MIG instance it runs in.
    #[serde(default)]
    pub mig: Option<u8>,
}

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// In which slot; in all without it.
    #[serde(default)]
    pub gpu: Option<u8>,
    /// In which function; in all of the GPU's without it.
    #[serde(default)]
    pub function: Option<String>,
    /// Only after so many calls of this process to the GPU (and function).
    #[serde(default)]
    pub after_calls: u64,
    /// Only so long after the library was loaded.
    #[serde(default)]
    pub after_s: f64,
}

/// How it goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// 15, and it stays so for this process until the library is initialised again.
    Lost,
    /// 999 when a handle is asked for, 15 elsewhere: fallen off the bus.
    OffBus,
    /// 16.
    ResetRequired,
    /// The call does not return until the fault is taken out of the scenario.
    Hang,
    /// 4.
    NoPermission,
    /// 3.
    NotSupported,
    /// 13.
    FunctionNotFound,
    /// 21.
    NoData,
    /// 10.
    Timeout,
    /// 999.
    Unknown,
}

/// One XID.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// In which slot.
    pub gpu: u8,
    /// The code.
    pub code: u64,
    /// Delivered so long after the event set was made; without it, as soon as it is in the file.
    #[serde(default)]
    pub after_s: Option<f64>,
    /// The index of the MIG instance it is about.
    #[serde(default)]
    pub mig: Option<u8>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            driver_version: "580.105.08".to_owned(),
            nvml_version: "13.580.105.08".to_owned(),
            cuda_version: 13000,
            init: 0,
            call_cost_us: 30,
            call_cost: CallCost::Sleep,
            time_s: None,
            calls_path: None,
            count_cached: true,
            absent: Vec::new(),
            gpus: vec![Gpu::default()],
            faults: Vec::new(),
            xids: Vec::new(),
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            count: 8,
            load: Load::Training,
            mig: Vec::new(),
            null_uuid: false,
            gpm_data: true,
            gpm_nan: false,
            processes: Vec::new(),
            ecc: [0, 0],
            sram: [0, 0, 0],
            remapped: [0, 0, 0, 0],
            recovery_action: 0,
            throttle: 0,
            links_down: Vec::new(),
            resets: 0,
        }
    }
}

impl Fault {
    /// A fault of one GPU from now on, in all its functions.
    pub fn of(gpu: u8, kind: FaultKind) -> Self {
        Self {
            kind,
            gpu: Some(gpu),
            function: None,
            after_calls: 0,
            after_s: 0.0,
        }
    }

    /// The same in one function only.
    #[must_use]
    pub fn in_function(mut self, function: &str) -> Self {
        self.function = Some(function.to_owned());
        self
    }
}

impl Scenario {
    /// A scenario of `count` GPUs of one model at a fixed time, whose calls cost nothing.
    pub fn of(count: u8, model: &str, load: Load) -> Self {
        Self {
            call_cost: CallCost::None,
            time_s: Some(1_000_000.0),
            gpus: (0..count)
                .map(|_| Gpu {
                    model: model.to_owned(),
                    count: 1,
                    load,
                    ..Gpu::default()
                })
                .collect(),
            ..Self::default()
        }
    }

    /// The scenario in this TOML text.
    ///
    /// # Errors
    /// The text is not TOML, or has a key that no scenario has.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Writes the file in one step, so that a library that reads it never sees half of it.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = toml::to_string(self).map_err(std::io::Error::other)?;
        let beside = path.with_extension("new");
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, path)
    }

    /// The GPU in this slot.
    pub fn slot(&self, slot: usize) -> Option<&Gpu> {
        let mut first = 0;
        self.gpus.iter().find(|gpu| {
            first += usize::from(gpu.count);
            slot < first
        })
    }

    /// The slots that are there, in the order of their NVML indices.
    pub fn present(&self) -> Vec<u8> {
        let slots = self.gpus.iter().map(|gpu| usize::from(gpu.count)).sum();
        (0..crate::MAX_GPUS.min(slots))
            .filter_map(|slot| u8::try_from(slot).ok())
            .filter(|slot| !self.absent.contains(slot))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_read_back_as_it_was_written() {
        let mut scenario = Scenario::of(2, "NVIDIA H200", Load::Ramp);
        scenario.faults.push(Fault::of(1, FaultKind::Hang));
        scenario.xids.push(Xid {
            gpu: 0,
            code: 79,
            after_s: None,
            mig: None,
        });
        let text = toml::to_string(&scenario).expect("a scenario is always TOML");
        assert_eq!(Scenario::parse(&text).expect("own text"), scenario);
    }

    #[test]
    fn a_key_that_no_scenario_has_is_refused_by_name() {
        let error = Scenario::parse("modle = 1").expect_err("an unknown key");
        assert!(error.to_string().contains("modle"), "{error}");
    }

    #[test]
    fn an_absent_slot_leaves_the_others_where_they_are() {
        let scenario = Scenario {
            absent: vec![2],
            ..Scenario::default()
        };
        assert_eq!(scenario.present(), [0, 1, 3, 4, 5, 6, 7]);
        assert!(scenario.slot(7).is_some() && scenario.slot(8).is_none());
    }
}
