//! Keeps the heap small: one for all threads, and what nothing uses goes back to the kernel.
//!
//! A tick is read, encoded and shipped in thousands of small pieces, and each tick puts them elsewhere between
//! those that stay. glibc gives each thread a heap of its own, and returns only what is free at its end, so
//! what the agent holds would creep up for minutes, to twice what it uses.
#![expect(unsafe_code, reason = "mallopt and malloc_trim have no safe wrapper")]

use std::time::Duration;

/// How often: a trim of the agent's few megabytes takes less than a millisecond.
const EVERY: Duration = Duration::from_secs(30);

/// Blocks from this size are mapped each for itself and returned when they are freed. glibc's own limit
/// grows to 32 MiB with what is freed, and a body of a shipment would leave its hole in the heap.
#[cfg(target_env = "gnu")]
const MAPPED_FROM_BYTES: libc::c_int = 128 << 10;

/// One heap for all threads: they are seldom busy at once. For the start, before there is a second thread.
#[cfg(target_env = "gnu")]
pub(crate) fn one_heap() {
    // SAFETY: both only set a number of the allocator's, and there is no other thread yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
    }
}

/// Other allocators keep their own house.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn one_heap() {}

/// Gives back again and again, for as long as the agent runs.
pub(crate) async fn give_back() {
    loop {
        tokio::time::sleep(EVERY).await;
        trim();
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: it takes no pointer, and glibc allows it at any time, on any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators keep their own house.
#[cfg(not(target_env = "gnu"))]
fn trim() {}
