//! /proc/pressure: how long tasks waited, from the `total=` counters, not the kernel's averages,
//! so that no second is counted twice and none is lost.

use std::time::Duration;

use gpufleet_telemetry::sample::{Missing, Reading};

/// Microseconds of waiting so far, of a line of a pressure file:
/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`.
pub fn parse_total(text: &str, line: &str) -> Result<u64, Missing> {
    let line = text.lines().find_map(|it| {
        let (name, rest) = it.split_once(' ')?;
        (name == line).then_some(rest)
    });
    // `full` of the CPU is missing before Linux 5.13.
    let mut words = line.ok_or(Missing::NotSupported)?.split_ascii_whitespace();
    let total = words.find_map(|word| word.strip_prefix("total="));
    total
        .and_then(|total| total.parse().ok())
        .ok_or(Missing::Invalid)
}

/// The share of `elapsed` that was waited, from two totals.
pub fn share(now: u64, before: u64, elapsed: Duration) -> Reading {
    let elapsed = elapsed.as_micros() as f64;
    let waited = now.checked_sub(before).ok_or(Missing::NotReady)? as f64;
    if elapsed <= 0.0 {
        return Err(Missing::NotReady);
    }
    // The kernel brings the totals up to date every two seconds, so a share can pass 1.
    Ok((waited / elapsed).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "some avg10=1.00 avg60=0.50 avg300=0.10 total=2000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";

    #[test]
    fn the_total_of_the_asked_line_is_read() {
        assert_eq!(parse_total(TEXT, "some"), Ok(2_000_000));
        assert_eq!(parse_total(TEXT, "full"), Ok(7));
        assert_eq!(
            parse_total("some total=1", "full"),
            Err(Missing::NotSupported)
        );
        assert_eq!(parse_total("some avg10=0", "some"), Err(Missing::Invalid));
    }

    #[test]
    fn the_share_is_of_the_time_that_passed() {
        let second = Duration::from_secs(1);
        assert_eq!(share(1_250_000, 1_000_000, second), Ok(0.25));
        assert_eq!(share(4_000_000, 1_000_000, second), Ok(1.0));
        assert_eq!(share(1, 2, second), Err(Missing::NotReady));
        assert_eq!(share(2, 1, Duration::ZERO), Err(Missing::NotReady));
    }
}
