//! The child's second thread: waits for the driver's events, XIDs among them.
//!
//! It has a thread, an event set and a lane of the shared page of its own, because waiting blocks
//! and set operations are not safe from two threads. Events before registration are lost, and the
//! parent is told so by nothing: it learns of a new child from its first answer.
#![expect(
    unsafe_code,
    reason = "events are waited for through the bare bindings: the wrapper drops instance ids"
)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
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

/// How long to stay away from a driver that refuses to wait.
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
    /// Nobody can wait for events of this GPU, or of any.
    Deaf(Missing),
}

/// The waiting thread, from the reading one.
pub(crate) struct Waiting {
    told: Receiver<Told>,
    dropped: Arc<AtomicU64>,
    /// The thread goes when this does.
    _stop: SyncSender<()>,
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
        let (tell, told) = sync_channel(MAX_EVENTS);
        let (stop, stopped) = sync_channel::<()>(0);
        let dropped = Arc::new(AtomicU64::new(0));
        let waiter = Waiter {
            library: library.for_waiting(),
            gpus: gpus
                .into_iter()
                .map(|(index, device)| Registered { index, device })
                .collect(),
            tell,
            dropped: Arc::clone(&dropped),
            stopped,
        };
        thread::Builder::new()
            .name("xid-wait".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || waiter.run())?;
        Ok(Self {
            told,
            dropped,
            _stop: stop,
        })
    }

    /// What came since the last time.
    pub(crate) fn take(&self) -> impl Iterator<Item = Told> + '_ {
        self.told.try_iter()
    }

    /// How many events found the queue full since the last time.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

struct Waiter {
    library: Library,
    gpus: Vec<Registered>,
    tell: SyncSender<Told>,
    dropped: Arc<AtomicU64>,
    stopped: Receiver<()>,
}

impl Waiter {
    fn run(self) {
        let set = match self.register() {
            Ok(set) => set,
            Err(missing) => return self.tell(Told::Deaf(missing)),
        };
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
            match code {
                0 => self.told(&event),
                TIMEOUT => {}
                // A driver that refuses at once must not be asked in a busy loop.
                _ => {
                    let _ = self.stopped.recv_timeout(AFTER_A_REFUSAL);
                }
            }
            if self.stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected) {
                return;
            }
        }
    }

    fn register(&self) -> Result<nvmlEventSet_t, Missing> {
        let mut set: nvmlEventSet_t = std::ptr::null_mut();
        self.library
            .ask_raw(None, Function::EventSetCreate, |lib| {
                let create = lib.nvmlEventSetCreate.as_ref().ok()?;
                // SAFETY: the library writes one handle to where we point.
                Some(unsafe { create(&mut set) })
            })?;
        let mut registered = Err(Missing::NotSupported);
        for gpu in &self.gpus {
            match self.register_one(gpu, set) {
                Ok(()) => registered = Ok(set),
                Err(missing) => {
                    registered = registered.or(Err(missing));
                }
            }
        }
        registered
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

    fn told(&self, event: &nvmlEventData_t) {
        let Some(gpu) = self.gpus.iter().find(|gpu| gpu.device == event.device) else {
            return;
        };
        if event.eventType == nvmlEventTypeXidCriticalError as u64 {
            self.tell(Told::Xid(XidSeen {
                index: gpu.index,
                code: event.eventData,
                gpu_instance: Some(event.gpuInstanceId).filter(|id| *id != u32::MAX),
                seen_ns: uptime().as_nanos() as u64,
            }));
        } else {
            self.tell(Told::Changed(gpu.index));
        }
    }

    fn tell(&self, told: Told) {
        if self.tell.try_send(told).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
