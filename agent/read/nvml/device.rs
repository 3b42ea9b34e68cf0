//! One GPU in the child: what is asked of it in a round, within its budget of calls.
//!
//! At most [`CALLS_PER_ROUND`] driver calls for a GPU, and three more for each of its MIG instances
//! (memory, and two of GPM). What fits is asked every round; the rest takes turns in what is left of the
//! budget, so that each is read every few seconds ([`OFTEN`]) or once a minute ([`SELDOM`]). The round
//! that opens a GPU or finds a new MIG layout reads everything once and is exempt.
#![expect(
    unsafe_code,
    reason = "two functions and all handles need the bare bindings"
)]

use std::time::Duration;

use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::sample::{Missing, Reading};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, GpuVirtualizationMode, TemperatureSensor};
use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::facts;
use super::fields::{Fields, Place};
use super::function::Function;
use super::gpm::{Gpm, Request};
use super::library::{Library, ends_gpu};
use super::processes::Processes;
use super::shares::Shares;
use super::turns::{self, OFTEN, SELDOM, Turn};
use super::values::Samples;
use super::wire::{GpuAnswer, GpuFacts};

/// Driver calls for one GPU in one round. At 30 µs each, eight GPUs cost 0.3 % of a core at 1 s.
pub(crate) const CALLS_PER_ROUND: u32 = 12;

/// Calls of every round without GPM: utilisation, memory, power, temperature, two clocks, throttle
/// reasons, fields, processes.
const FIXED_CALLS: u32 = 9;

/// Calls that GPM adds: take a sample, compare it with the one before.
const GPM_CALLS: u32 = 2;

/// Whole-chip readings that do not exist while the GPU is cut into MIG instances.
const NOT_UNDER_MIG: [&Metric; 4] = [
    &gpu::UTILIZATION,
    &gpu::MEMORY_UTILIZATION,
    &gpu::ENCODER_UTILIZATION,
    &gpu::DECODER_UTILIZATION,
];

/// One GPU.
pub(crate) struct Gpu {
    index: u32,
    open: Option<Open>,
}

/// A GPU with a handle.
struct Open {
    device: Device<'static>,
    fields: Fields,
    processes: Processes,
    gpm: Gpm,
    shares: Shares,
    /// The vGPU licence: none is needed on bare metal.
    license: Reading,
    /// Turns taken so far.
    turns: usize,
    /// Whether everything is due at once: a new handle, or the driver told of a change.
    all_due: bool,
}

/// What a GPU's round needs beside the GPU.
pub(crate) struct Round<'a> {
    /// The library.
    pub(crate) library: &'a Library,
    /// GPM's shared request.
    pub(crate) request: &'a mut Request,
    /// The time on the clock both processes share.
    pub(crate) now: Duration,
}

impl Gpu {
    /// The GPU with this NVML index; nothing is asked of it yet.
    pub(crate) fn new(index: u32) -> Self {
        Self { index, open: None }
    }

    /// Its NVML index.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Its index and handle, once it has one.
    pub(crate) fn handle(&self) -> Option<(u32, nvmlDevice_t)> {
        let open = self.open.as_ref()?;
        // SAFETY: the handle is only used while the library is loaded, which is for ever here.
        Some((self.index, unsafe { open.device.handle() }))
    }

    /// The driver told that something about this GPU changed: read everything next time.
    pub(crate) fn look_again(&mut self) {
        if let Some(open) = &mut self.open {
            open.all_due = true;
        }
    }

    /// Makes sure that it has a handle; who it is, when the handle is new.
    pub(crate) fn open(&mut self, round: &mut Round<'_>) -> Result<Option<GpuFacts>, Missing> {
        if self.open.is_some() {
            return Ok(None);
        }
        let index = self.index;
        let device = round
            .library
            .ask(Some(index), Function::HandleByIndex, |nvml| {
                nvml.device_by_index(index)
            })
            // A GPU off the bus has been seen to answer "unknown error" here.
            .map_err(|missing| match missing {
                Missing::Unknown => Missing::GpuLost,
                other => other,
            })?;
        let facts = facts::of(round.library, index, &device, round.now)?;
        self.open = Some(Open::new(device));
        Ok(Some(facts))
    }

    /// The answer of a GPU that gave no handle.
    pub(crate) fn silent(&self, missing: Missing) -> GpuAnswer {
        GpuAnswer {
            index: self.index,
            outcome: Err(missing),
            samples: Vec::new(),
            shares: Vec::new(),
            xids_missing: None,
        }
    }

    /// Reads it once; it has a handle.
    pub(crate) fn read(&mut self, round: &mut Round<'_>) -> GpuAnswer {
        let mut answer = GpuAnswer {
            index: self.index,
            outcome: Ok(()),
            samples: Vec::new(),
            shares: Vec::new(),
            xids_missing: None,
        };
        answer.outcome = self.fill(round, &mut answer);
        if let Err(missing) = answer.outcome {
            answer.samples.clear();
            answer.shares.clear();
            // The next round asks for a new handle; the old one is of no more use.
            if ends_gpu(missing) {
                self.open = None;
            }
        }
        answer
    }

    fn fill(&mut self, round: &mut Round<'_>, answer: &mut GpuAnswer) -> Result<(), Missing> {
        let index = self.index;
        match &mut self.open {
            Some(open) => open.read(index, round, answer),
            None => Err(Missing::GpuLost),
        }
    }
}

impl Open {
    fn new(device: Device<'static>) -> Self {
        Self {
            device,
            fields: Fields::default(),
            processes: Processes::default(),
            gpm: Gpm::of(None),
            shares: Shares::default(),
            license: Err(Missing::NotReady),
            turns: 0,
            all_due: true,
        }
    }

    fn read(
        &mut self,
        index: u32,
        round: &mut Round<'_>,
        answer: &mut GpuAnswer,
    ) -> Result<(), Missing> {
        let at = Place {
            index,
            // SAFETY: the handle is only used while the library is loaded, which is for ever here.
            device: unsafe { self.device.handle() },
            now: round.now,
        };
        let all = std::mem::take(&mut self.all_due);
        let mut to = Samples::default();
        if all {
            // The layout decides what else is asked.
            self.shares.find(round.library, &at, &self.device)?;
            self.gpm.open(round.library, &at);
            let mode = self.ask(&at, round.library, Function::VirtualizationMode, |it| {
                it.virtualization_mode()
            })?;
            // Only its own tools can read the licence of a slice of a vGPU.
            self.license = match mode {
                Ok(GpuVirtualizationMode::Vgpu) => Err(Missing::NotSupported),
                _ => Ok(0.0),
            };
        }
        self.fixed(&at, round, &mut to)?;
        if all {
            for turn in OFTEN.into_iter().chain(SELDOM) {
                self.turn(turn, &at, round.library, &mut to)?;
            }
        } else {
            self.turns(&at, round.library, &mut to)?;
        }
        self.shares
            .read(&at, round, &self.processes, &mut answer.shares)?;
        // The layout changed under us: everything is looked at anew in the next round.
        self.all_due |= self.shares.are_stale();
        answer.samples = to.0;
        Ok(())
    }

    fn ask<T>(
        &self,
        at: &Place,
        library: &Library,
        function: Function,
        call: impl FnOnce(&Device<'static>) -> Result<T, nvml_wrapper::error::NvmlError>,
    ) -> Result<Result<T, Missing>, Missing> {
        let device = &self.device;
        fatal(library.ask(Some(at.index), function, |_| call(device)))
    }

    /// What is asked in every round.
    fn fixed(
        &mut self,
        at: &Place,
        round: &mut Round<'_>,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        let library = round.library;
        if self.shares.is_mig() {
            to.push_missing(&NOT_UNDER_MIG, Missing::NotSupported);
        } else {
            let rates = self.ask(at, library, Function::UtilizationRates, |it| {
                it.utilization_rates()
            })?;
            to.push(
                &gpu::UTILIZATION,
                rates.as_ref().map(|it| percent(it.gpu)).map_err(|it| *it),
            );
            to.push(&gpu::MEMORY_UTILIZATION, rates.map(|it| percent(it.memory)));
        }
        let memory = self.ask(at, library, Function::MemoryInfo, |it| it.memory_info())?;
        push_memory(&memory, to);
        let power = self.ask(at, library, Function::PowerUsage, |it| it.power_usage())?;
        to.push(
            &gpu::POWER,
            power.map(|milliwatts| f64::from(milliwatts) / 1e3),
        );
        let celsius = self.ask(at, library, Function::Temperature, |it| {
            it.temperature(TemperatureSensor::Gpu)
        })?;
        to.push(&gpu::TEMPERATURE, celsius.map(f64::from));
        for (metric, clock) in [
            (&gpu::SM_CLOCK, Clock::SM),
            (&gpu::MEMORY_CLOCK, Clock::Memory),
        ] {
            let mhz = self.ask(at, library, Function::ClockInfo, |it| it.clock_info(clock))?;
            to.push(metric, mhz.map(|mhz| f64::from(mhz) * 1e6));
        }
        let mut reasons = 0;
        let asked = fatal(
            library.ask_raw(Some(at.index), Function::ThrottleReasons, |lib| {
                let get = lib
                    .nvmlDeviceGetCurrentClocksThrottleReasons
                    .as_ref()
                    .ok()?;
                // SAFETY: the handle came from this library, and the number is ours.
                Some(unsafe { get(at.device, &mut reasons) })
            }),
        )?;
        to.push(&gpu::THROTTLE_REASONS, asked.map(|()| reasons as f64));
        let _ = fatal(
            self.fields
                .every_round(library, at, self.gpm.is_without(), to),
        )?;
        match fatal(self.processes.fetch(library, at.index, at.device))? {
            Ok(()) if self.shares.is_mig() => {
                // Each is told with the share it runs in; here only how many there are.
                let mut all = Samples::default();
                self.processes.tell(None, &mut all);
                to.0.extend(all.0.into_iter().filter(|it| it.part.is_none()));
            }
            Ok(()) => self.processes.tell(None, to),
            Err(missing) => to.push(&gpu::PROCESSES, Err(missing)),
        }
        self.gpm.read(library, at, round.request, to)
    }

    /// Takes as many turns as the budget has room for.
    fn turns(&mut self, at: &Place, library: &Library, to: &mut Samples) -> Result<(), Missing> {
        let gpm = if self.gpm.is_without() { 0 } else { GPM_CALLS };
        let utilization = u32::from(self.shares.is_mig());
        let room = CALLS_PER_ROUND + utilization - FIXED_CALLS - gpm;
        for _ in 0..room {
            self.turns += 1;
            let turn = turns::nth(self.turns, self.shares.is_mig());
            self.turn(turn, at, library, to)?;
        }
        Ok(())
    }

    fn turn(
        &mut self,
        turn: Turn,
        at: &Place,
        library: &Library,
        to: &mut Samples,
    ) -> Result<(), Missing> {
        let mig = self.shares.is_mig();
        match turn {
            Turn::Encoder | Turn::Decoder | Turn::ProcessUtilization if mig => Ok(()),
            Turn::ProcessUtilization => {
                let index = at.index;
                fatal(self.processes.utilization(library, index, at.device, to)).map(|_| ())
            }
            Turn::Links => fatal(self.fields.links(library, at, to)).map(|_| ()),
            Turn::LinkErrors => fatal(self.fields.link_errors(library, at, to)).map(|_| ()),
            Turn::LinkDetails => fatal(self.fields.link_details(library, at, to)).map(|_| ()),
            Turn::Mig => {
                self.shares.look(library, at, &self.device)?;
                to.push(&gpu::MIG_MODE, self.shares.mode());
                // Known since the handle was new; told as often as what is near it.
                to.push(&gpu::VGPU_LICENSE, self.license);
                Ok(())
            }
            turn => turns::simple(turn, library, at, &self.device, to),
        }
    }
}

/// Lets a failure of one reading be that reading's, and one of the whole GPU end the round.
pub(crate) fn fatal<T>(result: Result<T, Missing>) -> Result<Result<T, Missing>, Missing> {
    match result {
        Err(missing) if ends_gpu(missing) => Err(missing),
        other => Ok(other),
    }
}

pub(crate) fn percent(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

/// Tells what a memory call said.
pub(crate) fn push_memory(
    memory: &Result<nvml_wrapper::struct_wrappers::device::MemoryInfo, Missing>,
    to: &mut Samples,
) {
    let values = match memory {
        Ok(memory) => [memory.total, memory.used, memory.free, memory.reserved].map(Ok),
        Err(missing) => [Err(*missing); 4],
    };
    let metrics = [
        &gpu::MEMORY_TOTAL,
        &gpu::MEMORY_USED,
        &gpu::MEMORY_FREE,
        &gpu::MEMORY_RESERVED,
    ];
    for (metric, value) in metrics.into_iter().zip(values) {
        to.push(metric, value.map(|bytes| bytes as f64));
    }
}
