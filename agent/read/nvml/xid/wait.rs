//! The child's second thread: waits for the driver's events, XIDs among them.
//!
//! It has a thread, an event set and a lane of the shared page of its own, because waiting blocks
//! and set operations are not safe from two threads. One lost GPU has the driver refuse the set of
//! all, so the thread ends at a refusal, and the next one makes a set of the GPUs that still answer.
//! Events that come before registration are lost: of each GPU it is told whether it is heard, and
//! else why not.
#![expect(
    unsafe_code,
    reason = "events are waited for through the bare bindings: the wrapper drops instance ids"
)]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use gpufleet_telemetry::sample::Missing;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventMigConfigChange, nvmlEventSet_t,
    nvmlEventTypeGpuRecoveryAction, nvmlEventTypeGpuUnavailableError,
    nvmlEventTypeXidCriticalError,
};

use crate::read::nvml::function::Function;
use crate::read::nvml::library::{Library, TIMEOUT, missing};
use crate::read::nvml::page::uptime;
use crate::read::nvml::wire::XidSeen;

/// Most events between two rounds; a storm beyond it is counted, not kept.
const MAX_EVENTS: usize = 1024;

/// One wait; the deadline that the parent watches is this and the time a call may take.
pub(crate) const WAIT: Duration = Duration::from_millis(1_000);

/// How long to stay away from a driver that refused every wait, from when the first was begun.
const AFTER_A_REFUSAL: Duration = Duration::from_secs(5);

/// The driver's library needs little stack; the default of 2 MiB is only address space, but said.
const STACK_BYTES: usize = 512 * 1024;

/// What is worth waking up for.
const WANTED: u64 = nvmlEventTypeXidCriticalError as u64
    | nvmlEventMigConfigChange as u64
    | nvmlEventTypeGpuUnavailableError as u64
    | nvmlEventTypeGpuRecoveryAction as u64;

/// What came from the driver.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    /// An XID.
    Xid(XidSeen),
    /// Something about this GPU changed: its MIG layout, its recovery action, whether it is there.
    Changed(u32),
}

/// The waiting thread, from the reading one.
pub(crate) struct Waiting {
    state: Arc<Mutex<State>>,
    begun: Duration,
}

/// What the waiting thread lets the reading one know.
#[derive(Default)]
struct State {
    /// What came since the last time.
    told: Vec<Told>,
    /// How many events found no room there.
    dropped: u64,
    /// Of each GPU, whether its events are waited for.
    hears: BTreeMap<u32, Result<(), Missing>>,
    /// Whether the driver let it wait once.
    has_waited: bool,
    /// Whether it has ended: there was nothing to wait for, or the driver refused.
    has_ended: bool,
}

impl State {
    fn tell(&mut self, told: Told) {
        if self.told.len() < MAX_EVENTS {
            self.told.push(told);
        } else {
            self.dropped += 1;
        }
    }

    /// Whether another thread may begin, so long after this one did: at once after one that did its
    /// work, and not in a busy loop where the driver refuses each.
    fn is_over(&self, since: Duration) -> bool {
        self.has_ended && (self.has_waited || since >= AFTER_A_REFUSAL)
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle that crosses to the thread.
struct Registered {
    index: u32,
    device: nvmlDevice_t,
}

// SAFETY: NVML's device handles may be used from any thread; the library is never unloaded.
unsafe impl Send for Registered {}

impl Waiting {
    /// Starts to wait for events of these GPUs.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub(crate) fn start(library: &Library, gpus: Vec<(u32, nvmlDevice_t)>) -> io::Result<Self> {
        let state: Arc<Mutex<State>> = Arc::default();
        let waiter = Waiter {
            library: library.for_waiting(),
            gpus: gpus
                .into_iter()
                .map(|(index, device)| Registered { index, device })
                .collect(),
            state: Arc::clone(&state),
        };
        thread::Builder::new()
            .name("xid-wait".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || waiter.run())?;
        Ok(Self {
            state,
            begun: uptime(),
        })
    }

    /// Whether events of this GPU are waited for; a GPU that it was not started with is not.
    pub(crate) fn hears(&self, index: u32) -> Result<(), Missing> {
        let state = locked(&self.state);
        let hears = state.hears.get(&index).copied();
        hears.unwrap_or(Err(Missing::NotReady))
    }

    /// Whether it waits no more and another one may be started. Nothing is told after that.
    pub(crate) fn is_over(&self) -> bool {
        locked(&self.state).is_over(uptime().saturating_sub(self.begun))
    }

    /// What came since the last time, and how many events there was no room for.
    pub(crate) fn take(&self) -> (Vec<Told>, u64) {
        let mut state = locked(&self.state);
        (
            std::mem::take(&mut state.told),
            std::mem::take(&mut state.dropped),
        )
    }
}

struct Waiter {
    library: Library,
    gpus: Vec<Registered>,
    state: Arc<Mutex<State>>,
}

impl Waiter {
    /// Waits until the driver refuses to, or until the process ends.
    fn run(self) {
        let why = match self.create() {
            Ok(set) => {
                // Nobody waits on an empty set: each GPU says what was the matter with it.
                let refused = self.register(set).then(|| self.wait(set));
                self.free(set);
                refused.unwrap_or(Missing::NotSupported)
            }
            Err(missing) => missing,
        };
        let mut state = locked(&self.state);
        for gpu in &self.gpus {
            let hears = state.hears.entry(gpu.index).or_insert(Ok(()));
            *hears = hears.and(Err(why));
        }
        state.has_ended = true;
    }

    fn create(&self) -> Result<nvmlEventSet_t, Missing> {
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        self.library
            .ask_raw(None, Function::EventSetCreate, |lib| {
                let create = lib.nvmlEventSetCreate.as_ref().ok()?;
                // SAFETY: the library writes one handle to where we point.
                Some(unsafe { create(&mut set) })
            })?;
        Ok(set)
    }

    fn free(&self, set: nvmlEventSet_t) {
        // One that cannot be freed is left to the end of the process.
        let _ = self.library.ask_raw(None, Function::EventSetFree, |lib| {
            let free = lib.nvmlEventSetFree.as_ref().ok()?;
            // SAFETY: the set was made by this library, and this is the last use of it.
            Some(unsafe { free(set) })
        });
    }

    /// Registers every GPU that can be; whether there is one.
    fn register(&self, set: nvmlEventSet_t) -> bool {
        let mut any = false;
        for gpu in &self.gpus {
            let registered = self.register_one(gpu, set);
            any |= registered.is_ok();
            locked(&self.state).hears.insert(gpu.index, registered);
        }
        any
    }

    /// Waits until the driver refuses to; why it did.
    fn wait(&self, set: nvmlEventSet_t) -> Missing {
        loop {
            let mut event = nvmlEventData_t {
                device: std::ptr::null_mut(),
                eventType: 0,
                eventData: 0,
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            };
            let code = self.library.ask_code(None, Function::EventSetWait, |lib| {
                let wait = lib.nvmlEventSetWait_v2.as_ref().ok()?;
                // SAFETY: the set was made by this library and is used by this thread only; the
                // event is ours.
                Some(unsafe { wait(set, &mut event, WAIT.as_millis() as u32) })
            });
            let told = match code {
                0 => self.told(&event),
                TIMEOUT => None,
                code => return missing(code),
            };
            let mut state = locked(&self.state);
            state.has_waited = true;
            if let Some(told) = told {
                state.tell(told);
            }
        }
    }

    fn register_one(&self, gpu: &Registered, set: nvmlEventSet_t) -> Result<(), Missing> {
        let mut types = 0;
        self.library
            .ask_raw(Some(gpu.index), Function::SupportedEventTypes, |lib| {
                let get = lib.nvmlDeviceGetSupportedEventTypes.as_ref().ok()?;
                // SAFETY: the handle came from this library, and the number is ours.
                Some(unsafe { get(gpu.device, &mut types) })
            })?;
        // One unknown type makes the whole registration fail, so only what it knows is asked for.
        let types = types & WANTED;
        if types & nvmlEventTypeXidCriticalError as u64 == 0 {
            return Err(Missing::NotSupported);
        }
        let code = self
            .library
            .ask_code(Some(gpu.index), Function::RegisterEvents, |lib| {
                let register = lib.nvmlDeviceRegisterEvents.as_ref().ok()?;
                // SAFETY: handle and set came from this library; this thread alone uses the set.
                Some(unsafe { register(gpu.device, types, set) })
            });
        if code == 0 {
            Ok(())
        } else {
            Err(missing(code))
        }
    }

    /// What an event says; nothing of a GPU that is not waited for.
    fn told(&self, event: &nvmlEventData_t) -> Option<Told> {
        let gpu = self.gpus.iter().find(|gpu| gpu.device == event.device)?;
        if event.eventType != nvmlEventTypeXidCriticalError as u64 {
            return Some(Told::Changed(gpu.index));
        }
        Some(Told::Xid(XidSeen {
            index: gpu.index,
            code: event.eventData,
            gpu_instance: Some(event.gpuInstanceId).filter(|id| *id != u32::MAX),
            seen_ns: uptime().as_nanos() as u64,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_refusal_another_wait_begins_at_once_unless_none_went_well() {
        let state = |has_waited, has_ended| State {
            has_waited,
            has_ended,
            ..State::default()
        };
        let moments = [Duration::ZERO, AFTER_A_REFUSAL];
        for (state, over) in [
            (state(false, false), [false, false]),
            (state(true, false), [false, false]),
            (state(true, true), [true, true]),
            (state(false, true), [false, true]),
        ] {
            assert_eq!(moments.map(|since| state.is_over(since)), over);
        }
    }

    #[test]
    fn events_beyond_the_limit_are_counted() {
        let mut state = State::default();
        for _ in 0..MAX_EVENTS + 3 {
            state.tell(Told::Changed(0));
        }
        assert_eq!((state.told.len(), state.dropped), (MAX_EVENTS, 3));
    }
}
