//! /proc/meminfo and /proc/vmstat: memory, and who was killed for want of it.

use gpufleet_telemetry::sample::{Missing, Reading};

/// A line of /proc/meminfo in bytes: `MemAvailable:   12345 kB`.
pub fn parse_meminfo(text: &str, name: &str) -> Reading {
    let line = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then_some(value)
    });
    let mut words = line.ok_or(Missing::NotSupported)?.split_ascii_whitespace();
    let number: u64 = words
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or(Missing::Invalid)?;
    match words.next() {
        Some("kB") => Ok(number as f64 * 1024.0),
        _ => Err(Missing::Invalid),
    }
}

/// A line of /proc/vmstat: `oom_kill 3`. Kernels before 4.13 do not have it.
pub fn parse_vmstat(text: &str, name: &str) -> Reading {
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then_some(value)
    });
    let number: Result<u64, _> = value.ok_or(Missing::NotSupported)?.trim().parse();
    number
        .map(|number| number as f64)
        .map_err(|_| Missing::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bytes_and_a_line_that_is_not_there_has_its_reason() {
        let text = "MemTotal:       2097152 kB\nMemAvailable:   x kB\nHugePages_Total:  3\n";
        assert_eq!(parse_meminfo(text, "MemTotal"), Ok(2_147_483_648.0));
        assert_eq!(parse_meminfo(text, "MemAvailable"), Err(Missing::Invalid));
        assert_eq!(
            parse_meminfo(text, "HugePages_Total"),
            Err(Missing::Invalid)
        );
        assert_eq!(parse_meminfo(text, "Mem"), Err(Missing::NotSupported));
    }

    #[test]
    fn oom_kills_are_a_count() {
        assert_eq!(parse_vmstat("pgfault 9\noom_kill 3\n", "oom_kill"), Ok(3.0));
        assert_eq!(
            parse_vmstat("oom_kill_x 3\n", "oom_kill"),
            Err(Missing::NotSupported)
        );
        assert_eq!(
            parse_vmstat("oom_kill -3\n", "oom_kill"),
            Err(Missing::Invalid)
        );
    }
}
