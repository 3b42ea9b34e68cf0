//! The region as memory: made by the writer, checked and mapped by the reader.
//!
//! The file is an anonymous memory file sealed against every change of its size: whatever a writer
//! does, the reader's mapping stays whole, so that no access of it can end in SIGBUS.
#![expect(
    unsafe_code,
    reason = "memory shared with another process is used through a raw mapping"
)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::layout::{Region, SIZE_BYTES};

/// What keeps a file's size as it is, for ever.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A region that belongs to nobody: where a process writes that has none, or whose parent has one.
/// It takes no memory until something is written.
pub(crate) static NOBODY: Region = {
    // SAFETY: a region is words and nothing else, and zero is a word.
    unsafe { MaybeUninit::zeroed().assume_init() }
};

/// Why a file is not taken as a region.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The file can still change its size, or is no memory file at all.
    #[error("the file is not sealed against changes of its size")]
    Unsealed,
    /// Not the size of a region.
    #[error("the file has {0} bytes, a region has {SIZE_BYTES}")]
    Size(u64),
    /// The kernel does not map it.
    #[error("the file cannot be mapped")]
    Map(#[source] io::Error),
}

/// A sealed memory file of a region's size, all zero.
///
/// # Errors
/// The kernel gives no memory file.
pub fn create() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag; some later ones give no file without it.
    let file = match rustix::fs::memfd_create("gpufleet-hooks", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("gpufleet-hooks", flags),
        other => other,
    }?;
    let file = File::from(file);
    file.set_len(SIZE_BYTES as u64)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Maps the writer's own file for good: the mapping is never taken away, so that no thread can
/// find it gone. Forked children do not have it.
pub(crate) fn map_writable(file: &OwnedFd) -> Result<&'static Region, MapError> {
    // Populated at once: the hot path must not wait for the kernel to find a page.
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    let start = map(file, ProtFlags::READ | ProtFlags::WRITE, flags)?;
    // SAFETY: the range is the mapping just made.
    let advised = unsafe { madvise(start.as_ptr(), SIZE_BYTES, Advice::LinuxDontFork) };
    if let Err(error) = advised {
        // SAFETY: the range is the mapping just made, and nothing points into it.
        let _gone = unsafe { munmap(start.as_ptr(), SIZE_BYTES) };
        return Err(MapError::Map(error.into()));
    }
    // SAFETY: the mapping is SIZE_BYTES of readable and writable memory aligned to a page, it is
    // never unmapped, cannot shrink (sealed), and both sides use it through atomics only.
    Ok(unsafe { start.cast::<Region>().as_ref() })
}

/// A client's region in the reader's memory, read only.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<Region>,
}

// SAFETY: the mapping belongs to this value, and it is read through atomics only.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Checks a file that a client sent, and maps it.
    ///
    /// # Errors
    /// The file is not one whose size is fixed, or has the wrong one.
    pub fn new(file: impl AsFd) -> Result<Self, MapError> {
        // Only memory files know about seals: a file on a disk or in a client's own file system,
        // which could stop answering, is refused here.
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_no_seals| MapError::Unsealed)?;
        if !seals.contains(SEALS) {
            return Err(MapError::Unsealed);
        }
        let status = rustix::fs::fstat(&file).map_err(|error| MapError::Map(error.into()))?;
        let size = u64::try_from(status.st_size).unwrap_or_default();
        if size != SIZE_BYTES as u64 {
            return Err(MapError::Size(size));
        }
        let start = map(&file, ProtFlags::READ, MapFlags::SHARED)?;
        Ok(Self {
            start: start.cast(),
        })
    }

    /// The region.
    pub(crate) fn region(&self) -> &Region {
        // SAFETY: the mapping is SIZE_BYTES of readable memory aligned to a page, lives as long as
        // `self`, cannot shrink (its seals were checked), and is read through atomics only.
        unsafe { self.start.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of this value, to which no reference is left.
        let _gone = unsafe { munmap(self.start.as_ptr().cast(), SIZE_BYTES) };
    }
}

fn map(
    file: impl AsFd,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<NonNull<std::ffi::c_void>, MapError> {
    // SAFETY: a new mapping at a place of the kernel's choice touches no memory in use.
    let start = unsafe { mmap(null_mut(), SIZE_BYTES, protection, flags, file, 0) };
    let start = start.map_err(|error| MapError::Map(error.into()))?;
    NonNull::new(start).ok_or_else(|| MapError::Map(io::ErrorKind::InvalidData.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell;

    #[test]
    fn what_the_writer_writes_the_reader_sees() {
        let file = create().expect("a memory file");
        let written = map_writable(&file).expect("a mapping");
        let read = Mapped::new(&file).expect("a region");
        cell::set(&written.totals.tokens, 7);
        assert_eq!(cell::get(&read.region().totals.tokens), 7);
    }

    #[test]
    fn a_region_cannot_be_truncated_under_its_reader() {
        let file = File::from(create().expect("a memory file"));
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(SIZE_BYTES as u64 * 2).is_err());
    }

    #[test]
    fn a_file_that_can_still_change_or_has_another_size_is_refused() {
        let memory = |bytes: usize, seals: SealFlags| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = File::from(rustix::fs::memfd_create("t", flags).expect("a memory file"));
            file.set_len(bytes as u64).expect("a length");
            rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
            Mapped::new(&file)
        };
        assert!(memory(SIZE_BYTES, SEALS).is_ok());
        for missing in SEALS.iter() {
            let refused = memory(SIZE_BYTES, SEALS.difference(missing));
            assert!(matches!(refused, Err(MapError::Unsealed)), "{missing:?}");
        }
        for size in [0, 4096, SIZE_BYTES - 1, SIZE_BYTES + 4096] {
            let refused = memory(size, SEALS);
            assert!(matches!(refused, Err(MapError::Size(it)) if it == size as u64));
        }
    }

    #[test]
    fn a_file_on_a_disk_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(SIZE_BYTES as u64).expect("a length");
        assert!(matches!(Mapped::new(&file), Err(MapError::Unsealed)));
    }
}
