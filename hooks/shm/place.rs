//! Where a process' regions are, and what becomes of them in a forked child.
//!
//! A DataLoader worker is a fork of the training process: it inherits every handle, and must not
//! write with them. Its memory does not have the mapping (MADV_DONTFORK), so a handler that runs in
//! the child before fork returns there points each handle at [`NOBODY`], private memory that nobody
//! reads, and closes the files. The hot path pays one load for it.
#![expect(
    unsafe_code,
    reason = "fork handlers are registered with the C library, files are closed by number"
)]

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::{from_ref, null_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::layout::Region;
use crate::memory::NOBODY;

/// No file.
const NONE: RawFd = -1;

/// One region of this process. Lives as long as the process.
pub(crate) struct Place {
    region: AtomicPtr<Region>,
    memory: AtomicI32,
    socket: AtomicI32,
    next: AtomicPtr<Self>,
}

/// The newest place, from which `next` leads to the others.
static NEWEST: AtomicPtr<Place> = AtomicPtr::new(null_mut());

/// The place of a process that could not get memory: everything goes to nobody.
static NOWHERE: Place = Place {
    region: AtomicPtr::new(from_ref(&NOBODY).cast_mut()),
    memory: AtomicI32::new(NONE),
    socket: AtomicI32::new(NONE),
    next: AtomicPtr::new(null_mut()),
};

impl Place {
    /// Where nobody reads.
    pub(crate) fn nowhere() -> &'static Self {
        &NOWHERE
    }

    /// A place for a mapped region and its file, known to the fork handler.
    pub(crate) fn new(region: &'static Region, memory: OwnedFd) -> &'static Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler does what a child of a process with threads may do: atomics and
            // close(2). A failure (no memory) leaves the mapping out of children all the same.
            let _registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let place: &'static Self = Box::leak(Box::new(Self {
            region: AtomicPtr::new(from_ref(region).cast_mut()),
            memory: AtomicI32::new(memory.into_raw_fd()),
            socket: AtomicI32::new(NONE),
            next: AtomicPtr::new(null_mut()),
        }));
        let this = from_ref(place).cast_mut();
        let mut newest = NEWEST.load(Ordering::Acquire);
        loop {
            place.next.store(newest, Ordering::Relaxed);
            match NEWEST.compare_exchange(newest, this, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return place,
                Err(other) => newest = other,
            }
        }
    }

    /// The region, or [`NOBODY`] in a forked child.
    #[inline]
    pub(crate) fn region(&self) -> &'static Region {
        // SAFETY: it points at a mapping that is never unmapped or at a static, never at null; in a
        // child, where the mapping is not, the handler has replaced it before any code could look.
        unsafe { &*self.region.load(Ordering::Relaxed) }
    }

    /// The file of the region; none in a forked child.
    pub(crate) fn memory(&self) -> Option<BorrowedFd<'_>> {
        let number = self.memory.load(Ordering::Relaxed);
        // SAFETY: the number is of a file that only the fork handler closes, after which it is none.
        (number != NONE).then(|| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Tells the fork handler which socket to close in a child.
    pub(crate) fn connected(&self, socket: &OwnedFd) {
        self.socket.store(socket.as_raw_fd(), Ordering::Relaxed);
    }

    /// The socket is about to be closed.
    pub(crate) fn disconnected(&self) {
        self.socket.store(NONE, Ordering::Relaxed);
    }
}

/// Runs in a forked child, before fork returns there.
extern "C" fn in_child() {
    let mut next = NEWEST.load(Ordering::Acquire);
    // SAFETY: places are never freed, and the list has an end.
    while let Some(place) = unsafe { next.as_ref() } {
        let nobody = from_ref(&NOBODY).cast_mut();
        place.region.store(nobody, Ordering::Relaxed);
        for file in [&place.memory, &place.socket] {
            let number = file.swap(NONE, Ordering::Relaxed);
            if number != NONE {
                // SAFETY: the number is the child's copy of a file that no value in the child owns:
                // the thread that owned it does not exist there.
                unsafe { libc::close(number) };
            }
        }
        next = place.next.load(Ordering::Relaxed);
    }
}
