//! Gives the kernel back what the allocator keeps though nothing uses it.
//!
//! A tick is read, encoded and shipped in thousands of small pieces, and each tick puts them elsewhere between
//! those that stay. glibc returns only what is free at the end of its heap, so what the agent holds would
//! creep up for minutes, to twice what it uses.
#![expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]

use std::time::Duration;

/// How often: a trim of the agent's few megabytes takes less than a millisecond.
const EVERY: Duration = Duration::from_secs(30);

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
