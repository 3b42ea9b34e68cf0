//! A page of memory that parent and child share: what the child is asking the driver right now.
//!
//! A call that never returns cannot be cancelled, and a child stuck in one cannot speak. So it
//! writes (GPU, function, since) here before each call, and the parent reads it when an answer is
//! late. One lane per thread of the child. Format, in native 64-bit words per lane: call (0: none,
//! else GPU + 1 in the upper half and function + 1 in the lower), since (nanoseconds of
//! CLOCK_MONOTONIC, which is the same in both processes; the parent's own clock is not).
#![expect(
    unsafe_code,
    reason = "memory shared with another process is used through a raw mapping"
)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, SealFlags};

use super::function::Function;

/// One page: two lanes of two words need 32 bytes.
const PAGE_BYTES: usize = 4096;

/// Which thread of the child calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The one that reads.
    Read,
    /// The one that waits for XIDs.
    Wait,
}

/// A call in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// The GPU it is about, by NVML index.
    pub gpu: Option<u32>,
    /// The function.
    pub function: Function,
    /// For how long it has been running.
    pub age: Duration,
}

/// The shared page, on either side.
#[derive(Debug)]
pub struct Page {
    map: MmapRaw,
}

/// The time both processes agree on.
pub fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

impl Page {
    /// The parent's side, and the file to hand to the child.
    ///
    /// # Errors
    /// The kernel gives no memory file.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("gpufleet-nvml", flags)?);
        file.set_len(PAGE_BYTES as u64)?;
        // Sealed, so that whatever happens in the child, the parent's mapping stays valid.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = MmapRaw::map_raw(&file)?;
        Ok((Self { map }, file.into()))
    }

    /// The child's side.
    ///
    /// # Errors
    /// The file is not the parent's page.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        let map = MmapRaw::map_raw(&File::from(file))?;
        if map.len() < PAGE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { map })
    }

    fn lane(&self, lane: Lane) -> &[AtomicU64; 2] {
        let place = match lane {
            Lane::Read => 0,
            Lane::Wait => 1,
        };
        // SAFETY: the mapping is at least PAGE_BYTES long, page-aligned, lives as long as `self`,
        // cannot shrink (sealed), and both processes use it through atomics only.
        unsafe { &*self.map.as_ptr().cast::<[AtomicU64; 2]>().add(place) }
    }

    /// The child is about to make this call.
    pub fn enter(&self, lane: Lane, gpu: Option<u32>, function: Function) {
        let [call, since] = self.lane(lane);
        let gpu = u64::from(gpu.map_or(0, |gpu| gpu.saturating_add(1)));
        call.store(0, Ordering::Release);
        since.store(uptime().as_nanos() as u64, Ordering::Release);
        call.store(gpu << 32 | (function as u64 + 1), Ordering::Release);
    }

    /// The call returned.
    pub fn leave(&self, lane: Lane) {
        self.lane(lane)[0].store(0, Ordering::Release);
    }

    /// The call in progress; none between calls.
    pub fn running(&self, lane: Lane) -> Option<Running> {
        let [call, since] = self.lane(lane);
        let word = call.load(Ordering::Acquire);
        let since = Duration::from_nanos(since.load(Ordering::Acquire));
        // A call that began or ended between the two loads is not one that hangs.
        if word == 0 || call.load(Ordering::Acquire) != word {
            return None;
        }
        let function = Function::from_number((word as u16).checked_sub(1)?)?;
        Some(Running {
            gpu: u32::try_from(word >> 32).ok()?.checked_sub(1),
            function,
            age: uptime().saturating_sub(since),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_sees_which_call_of_which_thread_is_running() {
        let (parent, file) = Page::create().expect("a memory file");
        let child = Page::open(file).expect("the parent's page");
        assert_eq!(parent.running(Lane::Read), None);
        child.enter(Lane::Read, Some(3), Function::Temperature);
        child.enter(Lane::Wait, None, Function::EventSetWait);
        let running = parent.running(Lane::Read).expect("a call in progress");
        assert_eq!(
            (running.gpu, running.function),
            (Some(3), Function::Temperature)
        );
        assert!(running.age < Duration::from_secs(10));
        assert_eq!(parent.running(Lane::Wait).and_then(|it| it.gpu), None);
        child.leave(Lane::Read);
        assert_eq!(parent.running(Lane::Read), None);
        assert!(parent.running(Lane::Wait).is_some());
    }
}
