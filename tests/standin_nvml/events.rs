//! Event sets: XIDs reach a set from the moment a GPU is registered with it, and only then. A set
//! with one GPU that is lost is refused for all of them, after the events that came before.

use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use crate::answer::{NO_INSTANCE, gpu_instance};
use crate::clock;
use crate::driver::{self, code};

/// The event types that this library can watch: ECC, XID, MIG, GPU unavailable, recovery action.
pub(crate) const SUPPORTED: u64 = 0x1 | 0x2 | 0x8 | 0x100 | 0x4000 | 0x8000;

/// An XID event.
pub(crate) const XID: u64 = 0x8;

/// How often a waiting set looks for news.
const LOOK_EVERY: Duration = Duration::from_millis(25);

struct Registered {
    slot: u8,
    types: u64,
    /// How many of the scenario's XIDs this set has seen or missed for this GPU.
    seen: usize,
}

/// One event set. Like the real one it is not to be used by two threads at once.
pub(crate) struct EventSet {
    made: Instant,
    registered: Vec<Registered>,
    /// Which timed XIDs were delivered, by their place in the scenario.
    timed: Vec<usize>,
}

impl EventSet {
    pub(crate) fn new() -> Self {
        Self {
            made: clock::monotonic(),
            registered: Vec::new(),
            timed: Vec::new(),
        }
    }

    pub(crate) fn into_handle(self) -> nvmlEventSet_t {
        Box::into_raw(Box::new(self)).cast()
    }

    pub(crate) fn register(&mut self, slot: u8, types: u64) -> Result<(), u32> {
        if types & !SUPPORTED != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        let seen = driver::scenario().xids.len();
        self.registered.retain(|it| it.slot != slot);
        self.registered.push(Registered { slot, types, seen });
        Ok(())
    }

    /// Waits for the next event.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<nvmlEventData_t, u32> {
        let start = clock::monotonic();
        loop {
            // Asked first: an event that came with the loss is told before it.
            let is_lost = self.registered.iter().any(|it| driver::is_lost(it.slot));
            if let Some(event) = self.next() {
                return Ok(event);
            }
            if is_lost {
                return Err(code::GPU_IS_LOST);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(code::TIMEOUT);
            }
            clock::wait(LOOK_EVERY.min(left));
        }
    }

    fn next(&mut self) -> Option<nvmlEventData_t> {
        let scenario = driver::scenario();
        let made = self.made.elapsed().as_secs_f64();
        for (place, xid) in scenario.xids.iter().enumerate() {
            let Some(registered) = self
                .registered
                .iter_mut()
                .find(|it| it.slot == xid.gpu && it.types & XID != 0)
            else {
                continue;
            };
            let due = match xid.after_s {
                Some(after) => made >= after && !self.timed.contains(&place),
                None => place >= registered.seen,
            };
            if !due {
                continue;
            }
            match xid.after_s {
                Some(_) => self.timed.push(place),
                None => registered.seen = place + 1,
            }
            return Some(nvmlEventData_t {
                device: driver::handle_of(xid.gpu, None),
                eventType: XID,
                eventData: xid.code,
                gpuInstanceId: xid.mig.map_or(NO_INSTANCE, gpu_instance),
                computeInstanceId: xid.mig.map_or(NO_INSTANCE, |_| 0),
            });
        }
        None
    }
}
