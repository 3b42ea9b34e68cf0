//! The state behind the C interface: what was initialised, which devices it found, what has gone
//! wrong since, and the way every call takes: count, fault, answer, cost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::answer::Answering;
use crate::calls::CallTable;
use crate::clock;
use crate::scenario::{Fault, FaultKind, Scenario};

/// NVML's return codes that are used here, by their names in nvml.h.
pub(crate) mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const UNINITIALIZED: u32 = 1;
    pub(crate) const INVALID_ARGUMENT: u32 = 2;
    pub(crate) const NOT_SUPPORTED: u32 = 3;
    pub(crate) const NO_PERMISSION: u32 = 4;
    pub(crate) const NOT_FOUND: u32 = 6;
    pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
    pub(crate) const TIMEOUT: u32 = 10;
    pub(crate) const FUNCTION_NOT_FOUND: u32 = 13;
    pub(crate) const GPU_IS_LOST: u32 = 15;
    pub(crate) const RESET_REQUIRED: u32 = 16;
    pub(crate) const LIBRARY_MISMATCH: u32 = 18;
    pub(crate) const NO_DATA: u32 = 21;
    pub(crate) const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    pub(crate) const NOT_READY: u32 = 27;
    pub(crate) const UNKNOWN: u32 = 999;
}

/// How often at most the scenario file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a call is about.
#[derive(Clone, Copy)]
pub(crate) enum About {
    /// The library as a whole.
    Library,
    /// The device behind a handle.
    Handle(nvmlDevice_t),
    /// A slot, where the caller has no handle yet or gives it through something else.
    Slot(u8, Option<u8>),
}

/// What a function returns on failure.
pub(crate) type Refusal = nvmlReturn_t;

#[derive(Default)]
struct State {
    scenario: Arc<Scenario>,
    seen: Option<(SystemTime, u64)>,
    looked: Option<Instant>,
    loaded_at: Option<Instant>,
    /// The kernel driver's version when the library was first initialised.
    driver_version: Option<String>,
    initialised: u32,
    /// How often the library was initialised from nothing: handles of an earlier time are invalid.
    generation: u16,
    devices: Vec<u8>,
    lost: BTreeSet<u8>,
    /// Calls of this process, per slot (255: none) and function.
    calls: BTreeMap<(u8, &'static str), u64>,
    table: Option<(PathBuf, Arc<CallTable>)>,
}

fn state() -> &'static Mutex<State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(Mutex::default)
}

const HANDLE_MARK: usize = 0x1000_0000_0000;

fn handle(generation: u16, slot: u8, mig: Option<u8>) -> nvmlDevice_t {
    let mig = mig.map_or(0, |mig| usize::from(mig) + 1);
    (HANDLE_MARK | usize::from(generation) << 16 | mig << 8 | usize::from(slot)) as nvmlDevice_t
}

impl State {
    fn look(&mut self, now: Instant) {
        if self
            .looked
            .is_some_and(|looked| now.duration_since(looked) < LOOK_EVERY)
        {
            return;
        }
        self.looked = Some(now);
        let Some(path) = std::env::var_os(crate::SCENARIO_VARIABLE).map(PathBuf::from) else {
            return;
        };
        let Ok(metadata) = std::fs::metadata(&path) else {
            return;
        };
        let seen = metadata.modified().ok().map(|time| (time, metadata.len()));
        if seen == self.seen {
            return;
        }
        match std::fs::read_to_string(&path).map(|text| Scenario::parse(&text)) {
            Ok(Ok(scenario)) => {
                self.scenario = Arc::new(scenario);
                self.seen = seen;
            }
            Ok(Err(error)) => eprintln!("stand-in NVML: {}: {error}", path.display()),
            Err(error) => eprintln!("stand-in NVML: {}: {error}", path.display()),
        }
    }

    fn table(&mut self) -> Option<Arc<CallTable>> {
        let path = self.scenario.calls_path.clone()?;
        if self.table.as_ref().is_none_or(|(open, _)| *open != path) {
            let table = CallTable::open(&path)
                .inspect_err(|error| eprintln!("stand-in NVML: {}: {error}", path.display()))
                .ok()?;
            self.table = Some((path, Arc::new(table)));
        }
        self.table.as_ref().map(|(_, table)| Arc::clone(table))
    }

    fn device(&self, device: nvmlDevice_t) -> Result<(u8, Option<u8>), Refusal> {
        let value = device as usize;
        let generation = (value >> 16) as u16;
        if value & HANDLE_MARK == 0 || generation != self.generation {
            return Err(code::INVALID_ARGUMENT);
        }
        let mig = (value >> 8) as u8;
        Ok((value as u8, mig.checked_sub(1)))
    }

    fn fault(&self, function: &str, slot: Option<u8>, now: Instant) -> Option<&Fault> {
        let loaded = self.loaded_at.unwrap_or(now);
        self.scenario.faults.iter().find(|fault| {
            let here = match (fault.gpu, slot) {
                (Some(wanted), Some(slot)) => wanted == slot,
                (Some(_), None) => false,
                // A fault of all GPUs in no named function leaves the library itself working.
                (None, None) => fault.function.is_some(),
                (None, Some(_)) => true,
            };
            let named = fault.function.as_deref().is_none_or(|it| it == function);
            let calls: u64 = match &fault.function {
                Some(function) => *self
                    .calls
                    .get(&(slot.unwrap_or(u8::MAX), function.as_str()))
                    .unwrap_or(&0),
                None => self
                    .calls
                    .iter()
                    .filter(|((row, _), _)| Some(*row) == slot)
                    .map(|(_, calls)| calls)
                    .sum(),
            };
            here && named
                && calls > fault.after_calls
                && now.duration_since(loaded).as_secs_f64() >= fault.after_s
        })
    }

    fn verdict(
        &mut self,
        function: &'static str,
        about: About,
        now: Instant,
        first: bool,
    ) -> Result<Option<Answering>, Verdict> {
        self.look(now);
        let resolved = match about {
            About::Library => None,
            About::Slot(slot, mig) => Some((slot, mig)),
            About::Handle(device) => Some(self.device(device).map_err(Verdict::Refused)?),
        };
        let slot = resolved.map(|(slot, _)| slot);
        if first {
            *self
                .calls
                .entry((slot.unwrap_or(u8::MAX), function))
                .or_insert(0) += 1;
            if let Some(table) = self.table() {
                table.count(slot, function);
            }
        }
        if self.initialised == 0 {
            return Err(Verdict::Refused(code::UNINITIALIZED));
        }
        if self.driver_version.as_ref() != Some(&self.scenario.driver_version) {
            return Err(Verdict::Refused(code::LIBRARY_MISMATCH));
        }
        if let Some(kind) = self.fault(function, slot, now).map(|fault| fault.kind) {
            return Err(self.faulty(kind, function, slot));
        }
        let Some((slot, mig)) = resolved else {
            return Ok(None);
        };
        if self.is_lost(slot) {
            return Err(Verdict::Refused(code::GPU_IS_LOST));
        }
        let index = self.devices.iter().position(|it| *it == slot);
        let answering = Answering::new(Arc::clone(&self.scenario), slot, mig, index);
        answering
            .map(Some)
            .ok_or(Verdict::Refused(code::INVALID_ARGUMENT))
    }

    /// Whether this process saw the GPU die, or it is not there any more.
    fn is_lost(&self, slot: u8) -> bool {
        self.lost.contains(&slot) || self.scenario.absent.contains(&slot)
    }

    fn faulty(&mut self, kind: FaultKind, function: &str, slot: Option<u8>) -> Verdict {
        let refused = match kind {
            FaultKind::Hang => return Verdict::Hangs,
            FaultKind::Lost | FaultKind::OffBus => {
                self.lost.extend(slot);
                match (kind, function) {
                    (FaultKind::OffBus, "nvmlDeviceGetHandleByIndex_v2") => code::UNKNOWN,
                    _ => code::GPU_IS_LOST,
                }
            }
            FaultKind::ResetRequired => code::RESET_REQUIRED,
            FaultKind::NoPermission => code::NO_PERMISSION,
            FaultKind::NotSupported => code::NOT_SUPPORTED,
            FaultKind::FunctionNotFound => code::FUNCTION_NOT_FOUND,
            FaultKind::NoData => code::NO_DATA,
            FaultKind::Timeout => code::TIMEOUT,
            FaultKind::Unknown => code::UNKNOWN,
        };
        Verdict::Refused(refused)
    }
}

enum Verdict {
    Refused(Refusal),
    Hangs,
}

fn locked<T>(work: impl FnOnce(&mut State) -> T) -> T {
    // A panic while the lock was held is a bug of the stand-in; its state is still the best there
    // is, and a C caller cannot be told.
    work(&mut state().lock().unwrap_or_else(PoisonError::into_inner))
}

/// The way of one call: counted, held up or refused by a fault, answered, paid for.
pub(crate) fn call(
    function: &'static str,
    about: About,
    answer: impl FnOnce(Option<&Answering>) -> Result<(), Refusal>,
) -> nvmlReturn_t {
    let start = clock::monotonic();
    let mut first = true;
    let verdict = loop {
        let verdict = locked(|state| state.verdict(function, about, clock::monotonic(), first));
        first = false;
        match verdict {
            Err(Verdict::Hangs) => clock::wait(LOOK_EVERY),
            Err(Verdict::Refused(refusal)) => break Err(refusal),
            Ok(answering) => break answer(answering.as_ref()),
        }
    };
    clock::spend(&scenario(), start);
    verdict.err().unwrap_or(code::SUCCESS)
}

/// The scenario as it is now.
pub(crate) fn scenario() -> Arc<Scenario> {
    locked(|state| {
        state.look(clock::monotonic());
        Arc::clone(&state.scenario)
    })
}

/// `nvmlInit_v2`: counts references; from nothing it finds the devices anew. A fault in it works
/// like any other.
pub(crate) fn initialise(function: &'static str) -> nvmlReturn_t {
    let now = clock::monotonic();
    let mut first = true;
    loop {
        let hangs = locked(|state| {
            state.look(now);
            if std::mem::take(&mut first) {
                *state.calls.entry((u8::MAX, function)).or_insert(0) += 1;
                if let Some(table) = state.table() {
                    table.count(None, function);
                }
            }
            state.looked = None;
            matches!(
                state.fault(function, None, now),
                Some(Fault {
                    kind: FaultKind::Hang,
                    ..
                })
            )
        });
        if !hangs {
            break;
        }
        clock::wait(LOOK_EVERY);
    }
    locked(|state| {
        if state.scenario.init != code::SUCCESS {
            return state.scenario.init;
        }
        let version = state.scenario.driver_version.clone();
        state.loaded_at.get_or_insert(now);
        if *state.driver_version.get_or_insert_with(|| version.clone()) != version {
            return code::LIBRARY_MISMATCH;
        }
        if state.initialised == 0 {
            state.generation = state.generation.wrapping_add(1);
            state.devices = state.scenario.present();
            state.lost.clear();
        }
        state.initialised += 1;
        code::SUCCESS
    })
}

/// `nvmlShutdown`.
pub(crate) fn shut_down() -> nvmlReturn_t {
    locked(|state| match state.initialised.checked_sub(1) {
        None => code::UNINITIALIZED,
        Some(left) => {
            state.initialised = left;
            code::SUCCESS
        }
    })
}

/// The slots in the order of their indices: those found at initialisation, unless the scenario
/// says that the list follows at once.
pub(crate) fn devices() -> Vec<u8> {
    locked(|state| {
        if state.scenario.count_cached {
            state.devices.clone()
        } else {
            state.scenario.present()
        }
    })
}

/// Whether this process saw the GPU in this slot die, or it is not there any more.
pub(crate) fn is_lost(slot: u8) -> bool {
    locked(|state| state.is_lost(slot))
}

/// A handle of this generation.
pub(crate) fn handle_of(slot: u8, mig: Option<u8>) -> nvmlDevice_t {
    locked(|state| handle(state.generation, slot, mig))
}
