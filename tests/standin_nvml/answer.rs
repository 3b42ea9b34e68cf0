//! What a healthy device answers: identity, memory, field values, by slot and MIG instance.

use std::sync::Arc;

use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t, nvmlValue_t,
};

use crate::clock;
use crate::driver::code;
use crate::load::{self, Load, Values};
use crate::models::{self, Model};
use crate::scenario::{Gpu, Process, Scenario};

/// What NVML writes where an instance id does not apply.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;

/// A device that was found and has no fault in this call.
pub(crate) struct Answering {
    scenario: Arc<Scenario>,
    /// Its slot.
    pub(crate) slot: u8,
    /// The index of the MIG instance the handle is of.
    pub(crate) mig: Option<u8>,
    /// Its NVML index.
    pub(crate) index: usize,
    time_s: f64,
}

/// The value and NVML value type of a field.
enum Field {
    Unsigned(u32),
    UnsignedLong(u64),
    Signed(i32),
    Double(f64),
    Refused(u32),
}

impl Answering {
    pub(crate) fn new(
        scenario: Arc<Scenario>,
        slot: u8,
        mig: Option<u8>,
        index: Option<usize>,
    ) -> Option<Self> {
        let time_s = clock::seconds(&scenario);
        let gpu = scenario.slot(usize::from(slot))?;
        if mig.is_some_and(|mig| usize::from(mig) >= gpu.mig.len()) {
            return None;
        }
        Some(Self {
            slot,
            mig,
            index: index?,
            time_s,
            scenario,
        })
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        self.scenario
            .slot(usize::from(self.slot))
            .expect("the slot was there when the answer began")
    }

    pub(crate) fn model(&self) -> &'static Model {
        models::by_name(&self.gpu().model)
    }

    pub(crate) fn values(&self) -> Values {
        load::values(self.gpu(), self.model(), self.slot, self.time_s)
    }

    /// Whether the GPU is cut into MIG instances and this is the whole of it.
    pub(crate) fn is_divided(&self) -> bool {
        self.mig.is_none() && !self.gpu().mig.is_empty()
    }

    /// The slices and MiB of the MIG instance.
    pub(crate) fn profile(&self) -> Option<(u32, u64)> {
        let name = self.gpu().mig.get(usize::from(self.mig?))?;
        models::mig_profile(name)
    }

    /// The compute slices that are its own.
    pub(crate) fn compute_slices(&self) -> Option<u32> {
        let name = self.gpu().mig.get(usize::from(self.mig?))?;
        models::mig_compute_slices(name)
    }

    /// The number of the MIG instance's profile, its first memory slice and how many it has: one lies behind the other.
    pub(crate) fn placement(&self) -> Option<(u32, u32, u32)> {
        let place = |name: &String| Some(models::mig_place(models::mig_profile(name)?.0));
        let number = usize::from(self.mig?);
        let before = self.gpu().mig.iter().take(number);
        let start = before.filter_map(place).map(|it| it.1).sum();
        let (profile, size) = place(self.gpu().mig.get(number)?)?;
        Some((profile, start, size))
    }

    pub(crate) fn name(&self) -> String {
        match self
            .mig
            .and_then(|mig| self.gpu().mig.get(usize::from(mig)))
        {
            Some(profile) => format!("{} MIG {profile}", self.gpu().model),
            None => self.gpu().model.clone(),
        }
    }

    pub(crate) fn uuid(&self) -> String {
        if self.gpu().null_uuid {
            return "GPU-00000000-0000-0000-0000-000000000000".to_owned();
        }
        let slot = u32::from(self.slot);
        match self.mig {
            None => format!("GPU-5eed{slot:04x}-0000-4000-8000-{slot:012x}"),
            Some(mig) => format!(
                "MIG-5eed{slot:04x}-0000-4000-8000-{:012x}",
                u32::from(mig) + 1
            ),
        }
    }

    pub(crate) fn serial(&self) -> String {
        format!("16500000000{:02}", self.slot)
    }

    /// The bus number: cards of a real machine do not lie side by side.
    pub(crate) fn bus(&self) -> u32 {
        0x18 + u32::from(self.slot) * 3
    }

    pub(crate) fn bus_id(&self) -> String {
        format!("00000000:{:02X}:00.0", self.bus())
    }

    /// Total, reserved, free, used in bytes.
    pub(crate) fn memory(&self) -> [u64; 4] {
        const MIB: u64 = 1 << 20;
        let (total, reserved) = match self.profile() {
            Some((_, mib)) => (mib, 32),
            None => self.model().memory_mib,
        };
        let share = self.values().memory_used_mib as f64 / self.model().memory_mib.0 as f64;
        let used = ((total - reserved) as f64 * share) as u64;
        [total, reserved, total - reserved - used, used].map(|mib| mib * MIB)
    }

    /// The processes of this device; of a MIG instance those in it.
    pub(crate) fn processes(&self) -> Vec<nvmlProcessInfo_t> {
        let process = |process: &Process| nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.memory_mib << 20,
            gpuInstanceId: process.mig.map_or(NO_INSTANCE, gpu_instance),
            computeInstanceId: process.mig.map_or(NO_INSTANCE, |_| 0),
        };
        self.gpu()
            .processes
            .iter()
            .filter(|process| self.mig.is_none() || process.mig == self.mig)
            .map(process)
            .collect()
    }

    pub(crate) fn process_utilization(&self) -> Vec<nvmlProcessUtilizationSample_t> {
        let time = (self.time_s * 1e6) as u64;
        let sample = |process: &Process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: time,
            smUtil: process.sm_percent,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        self.gpu().processes.iter().map(sample).collect()
    }

    pub(crate) fn fill(&self, value: &mut nvmlFieldValue_t) {
        value.timestamp = (self.time_s * 1e6) as i64;
        value.latencyUsec = 1;
        let (kind, answer) = match self.field(value.fieldId, value.scopeId) {
            Field::Unsigned(number) => (1, nvmlValue_t { uiVal: number }),
            Field::UnsignedLong(number) => (3, nvmlValue_t { ullVal: number }),
            Field::Signed(number) => (5, nvmlValue_t { siVal: number }),
            Field::Double(number) => (0, nvmlValue_t { dVal: number }),
            Field::Refused(refusal) => {
                value.nvmlReturn = refusal;
                return;
            }
        };
        value.nvmlReturn = code::SUCCESS;
        value.valueType = kind;
        value.value = answer;
    }

    fn field(&self, id: u32, scope: u32) -> Field {
        let (gpu, model, values) = (self.gpu(), self.model(), self.values());
        if gpu.load == Load::Distinct {
            return self.distinct_field(id, scope);
        }
        match id {
            1 => Field::Unsigned(1),
            3 | 5 => Field::UnsignedLong(gpu.ecc[0]),
            4 | 6 => Field::UnsignedLong(gpu.ecc[1]),
            29..=31 if !model.remaps_rows => Field::UnsignedLong(0),
            74..=79 => Field::UnsignedLong(values.violation_ns[id as usize - 74]),
            80 | 81 => Field::UnsignedLong(0),
            82 if model.memory_sensor => Field::Unsigned(values.memory_temperature_c),
            // What drivers were seen to say for "no sensor", with a success code.
            82 => Field::Unsigned(255),
            83 => Field::UnsignedLong(values.energy_mj),
            91 if model.nvlinks.0 > 0 => Field::Unsigned(u32::from(model.nvlinks.0)),
            94 => Field::Unsigned(0),
            138..=141 if model.nvlinks.0 > 0 => {
                Field::UnsignedLong(values.nvlink_kib[(id as usize - 138) % 2])
            }
            142..=145 if model.remaps_rows => Field::Unsigned(gpu.remapped[id as usize - 142]),
            161..=165 => self.link_field(id, scope),
            173 | 179 | 180 => Field::Unsigned(0),
            193..=196 if model.gpm => Field::Signed([-8, -2, 0, 0][id as usize - 193]),
            208 | 213 | 214 | 219..=221 if model.architecture >= 10 => self.link_field(id, scope),
            185 | 186 => Field::Unsigned(values.power_mw),
            197 | 198 => Field::UnsignedLong(values.pcie_bytes[id as usize - 197]),
            230 => Field::Unsigned(gpu.recovery_action),
            _ => Field::Refused(code::NOT_SUPPORTED),
        }
    }

    /// A field reads its own id: whoever asks for another field gets another number.
    fn distinct_field(&self, id: u32, scope: u32) -> Field {
        match id {
            // A link is up or down, so that a link has a state of its own.
            165 => self.link_field(id, scope),
            161..=164 | 208 | 213 | 214 | 219..=221
                if scope >= u32::from(self.model().nvlinks.0) =>
            {
                Field::Refused(code::INVALID_ARGUMENT)
            }
            // Flags, which are 0 to 1.
            1 | 31 | 144 | 145 => Field::Double(f64::from(id) / 1_000.0),
            // Packed: the exponent is the id.
            220 => Field::UnsignedLong(0x0f00 | 220),
            _ => Field::UnsignedLong(u64::from(id)),
        }
    }

    fn link_field(&self, id: u32, link: u32) -> Field {
        let (links, speed) = self.model().nvlinks;
        if links == 0 {
            return Field::Refused(code::NOT_SUPPORTED);
        }
        if link >= u32::from(links) {
            return Field::Refused(code::INVALID_ARGUMENT);
        }
        let up = self.link_up(link);
        match id {
            // Up to NVLink 4.
            161..=163 if self.model().architecture >= 10 => Field::Refused(code::NOT_SUPPORTED),
            // A bit error ratio of 15e-254 is how a driver says none.
            220 => Field::UnsignedLong(0x0ffe),
            164 => Field::Unsigned(if up { speed } else { 0 }),
            165 => Field::Unsigned(u32::from(up)),
            _ => Field::UnsignedLong(u64::from(!up)),
        }
    }

    /// On-chip memory errors of the card's life; a card with numbers of its own was used before.
    pub(crate) fn sram_of_its_life(&self) -> [u64; 3] {
        let before = if self.gpu().load == Load::Distinct {
            100
        } else {
            0
        };
        self.gpu().sram.map(|count| count + before)
    }

    pub(crate) fn link_up(&self, link: u32) -> bool {
        !self
            .gpu()
            .links_down
            .iter()
            .any(|it| u32::from(*it) == link)
    }
}

/// The GPU instance id of the n-th MIG instance; real ones do not begin at 0 either.
pub(crate) fn gpu_instance(mig: u8) -> u32 {
    u32::from(mig) + 7
}
