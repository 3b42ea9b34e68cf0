//! Keeps the heap small: one for all threads, and what nothing uses goes back to the kernel.
//!
//! A tick is read, encoded and shipped in thousands of small pieces, and each tick puts them elsewhere between
//! those that stay. glibc gives each thread a heap of its own, and returns only what is free at its end, so
//! what the agent holds would creep up for minutes, to twice what it uses.
#![expect(unsafe_code, reason = "mallopt and malloc_trim have no safe wrapper")]

use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::time::{Clock, NANOS_PER_SECOND, Timestamp};

/// How often, as often as is shipped unless told otherwise: a trim of the agent's few megabytes takes less than
/// a millisecond.
const EVERY_NS: i64 = 10 * NANOS_PER_SECOND;

/// How long after a tick ends: it is shipped then, and what that needed is free.
const AFTER_NS: i64 = 2 * NANOS_PER_SECOND;

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

/// Gives back again and again, for as long as the agent runs: in step with the ticks, so that what each needs for
/// a moment is held for a moment.
pub(crate) async fn give_back(clock: Arc<impl Clock>) {
    loop {
        tokio::time::sleep(until_shipped(clock.now())).await;
        trim();
    }
}

/// How long it is until the next tick will be shipped; never nothing.
fn until_shipped(now: Timestamp) -> Duration {
    let since = (now.0 - AFTER_NS).rem_euclid(EVERY_NS);
    Duration::from_nanos((EVERY_NS - since).unsigned_abs())
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: it takes no pointer, and glibc allows it at any time, on any thread.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators keep their own house.
#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_two_seconds_after_each_ten_and_never_now() {
        let check = |now_ms: i64, expected_ms: u64| {
            let wait = until_shipped(Timestamp(now_ms * 1_000_000));
            assert_eq!(wait, Duration::from_millis(expected_ms), "{now_ms}");
        };
        check(1_800_000_000_000, 2_000);
        check(1_800_000_001_999, 1);
        check(1_800_000_002_000, 10_000);
        check(1_800_000_009_000, 3_000);
        check(-1_000, 3_000);
    }
}
