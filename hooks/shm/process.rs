//! What a process knows of itself and the kernel of it: time, start, random numbers.
#![expect(
    unsafe_code,
    reason = "getrandom and clock_gettime are called where std has nothing of the kind"
)]

use std::fs;

/// Field 22 of /proc/<pid>/stat, counted from the field after the closing parenthesis.
const START_FIELD: usize = 19;

/// Clock ticks in which /proc counts, nanoseconds: 100 a second on every Linux.
const CLOCK_TICK_NS: u64 = 10_000_000;

/// Unix nanoseconds now. No system call: the kernel answers from a page it shares with the process.
pub fn unix_ns() -> i64 {
    now(libc::CLOCK_REALTIME)
}

/// Unix nanoseconds at the kernel's last tick, some milliseconds ago at most: a quarter of the cost,
/// and no system call even where the machine's clock is one that only the kernel can read.
pub fn unix_ns_coarse() -> i64 {
    now(libc::CLOCK_REALTIME_COARSE)
}

/// Nanoseconds of the monotonic clock, for durations. No system call either.
pub fn monotonic_ns() -> u64 {
    now(libc::CLOCK_MONOTONIC) as u64
}

/// A clock by the C library. rustix looks for the kernel's page by itself, which ends a process under
/// valgrind, and asserts that it succeeds, which would be a way to panic in NCCL's callbacks.
fn now(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: what is written is ours. It cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec)
}

/// Start of a process in clock ticks since boot; with the pid it names one process for ever. `None`
/// when the process is gone or /proc is not there.
pub fn start_ticks(pid: &str) -> Option<u64> {
    start_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The same of what /proc/<pid>/stat says.
pub fn start_of(stat: &str) -> Option<u64> {
    // The program's name is in parentheses and may hold anything, parentheses too.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(START_FIELD)?.parse().ok()
}

/// When a process began, Unix nanoseconds, by its clock ticks since boot. It is as right as the clock is now, whatever it
/// was then.
pub fn began_at(start_ticks: u64) -> i64 {
    let since_boot = start_ticks.saturating_mul(CLOCK_TICK_NS);
    let since_boot = i64::try_from(since_boot).unwrap_or(i64::MAX);
    let age = now(libc::CLOCK_BOOTTIME).saturating_sub(since_boot);
    unix_ns().saturating_sub(age)
}

/// 128 random bits.
pub(crate) fn random() -> [u64; 2] {
    let mut numbers = [0_u64; 2];
    // SAFETY: the buffer is as long as said, and any bytes make a valid `u64`.
    let got = unsafe {
        libc::getrandom(
            numbers.as_mut_ptr().cast(),
            size_of_val(&numbers),
            libc::GRND_NONBLOCK,
        )
    };
    if got != size_of_val(&numbers) as isize {
        // Only before the kernel has gathered entropy at boot: then time and pid have to do.
        return [monotonic_ns(), u64::from(std::process::id())];
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_started_after_boot_and_before_now() {
        let ticks = start_ticks("self").expect("this process is in /proc");
        assert_eq!(
            Some(ticks),
            start_ticks(&std::process::id().to_string()),
            "by pid as by self"
        );
        // 100 ticks a second on every Linux.
        assert!(ticks > 0 && ticks * 10_000_000 <= monotonic_ns() + 1_000_000_000);
        assert_eq!(start_ticks("0"), None);
    }

    #[test]
    fn the_coarse_clock_is_at_most_a_few_ticks_behind() {
        let (coarse, now) = (unix_ns_coarse(), unix_ns());
        // A tick is 10 ms on the slowest kernel; a busy machine may stop us between the two looks.
        assert!((-20_000_000..10_000_000_000).contains(&(now - coarse)));
    }

    #[test]
    fn a_process_began_between_the_boot_and_now() {
        let ticks = start_ticks("self").expect("we live");
        let (began, now) = (began_at(ticks), unix_ns());
        // A test lives for less than an hour; ticks are cut, so that it may have begun up to one earlier.
        assert!((0..3_600_000_000_000).contains(&(now - began)), "{began}");
        let second_later = began_at(ticks + 100) - began;
        assert!(
            (0..10_000_000_000).contains(&(second_later - 900_000_000)),
            "{second_later}"
        );
        assert!(began_at(u64::MAX) > now, "no process, and no panic");
    }

    #[test]
    fn random_numbers_differ() {
        assert_ne!(random(), random());
    }
}
