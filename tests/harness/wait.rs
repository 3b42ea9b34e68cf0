//! Waiting for a thing itself, with a limit, never for a time.

use std::time::Duration;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Waits until `look` returns something.
///
/// # Panics
/// When it has not after `limit`; says `what` did not happen.
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = now();
    loop {
        if let Some(found) = look() {
            // A test that fails later on shows what it had waited for, and how long.
            eprintln!("after {:.1} s: {what}", (now() - begin).as_secs_f64());
            return found;
        }
        assert!(
            now() - begin < limit,
            "within {} s it did not happen: {what}",
            limit.as_secs()
        );
        pause(LOOK_EVERY);
    }
}

/// Time since the process began to look at it, never going back.
#[expect(
    clippy::disallowed_methods,
    reason = "a harness has no clock to be handed"
)]
pub fn now() -> Duration {
    static BEGIN: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    BEGIN.elapsed()
}

/// Unix time in seconds.
#[expect(
    clippy::disallowed_methods,
    reason = "a harness has no clock to be handed"
)]
pub fn unix_seconds() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs().cast_signed())
}

/// Lets time pass, where the passing of time is what is tested.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where a test sleeps"
)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
