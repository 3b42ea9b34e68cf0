//! /proc/stat and /proc/loadavg: what the CPUs did between two rounds.

use gpufleet_telemetry::sample::Missing;

/// The CPUs' time so far, in the kernel's ticks, and how many CPUs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTimes {
    total: u64,
    idle: u64,
    iowait: u64,
    steal: u64,
    /// Logical CPUs online.
    pub count: u32,
}

/// Shares of all CPU time between two rounds, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuShares {
    /// Neither idle nor waiting for I/O.
    pub busy: f64,
    /// Given to others by the hypervisor.
    pub steal: f64,
    /// Idle while I/O was outstanding.
    pub iowait: f64,
}

/// Reads /proc/stat: `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
pub fn parse_stat(text: &str) -> Result<CpuTimes, Missing> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
    let fields: Result<Vec<u64>, _> = line
        .ok_or(Missing::Invalid)?
        .split_ascii_whitespace()
        .map(str::parse)
        .collect();
    let fields = fields.map_err(|_| Missing::Invalid)?;
    if fields.len() < 8 {
        return Err(Missing::Invalid);
    }
    let is_cpu = |line: &&str| {
        let rest = line.strip_prefix("cpu").unwrap_or_default();
        rest.starts_with(|c: char| c.is_ascii_digit())
    };
    Ok(CpuTimes {
        // Guest time stands in user and nice already.
        total: fields[..8].iter().sum(),
        idle: fields[3],
        iowait: fields[4],
        steal: fields[7],
        count: u32::try_from(text.lines().filter(is_cpu).count()).unwrap_or(u32::MAX),
    })
}

impl CpuTimes {
    /// The shares since `before`; not ready when no tick has passed or a counter went back.
    pub fn shares_since(&self, before: &Self) -> Result<CpuShares, Missing> {
        let grown = |now: u64, then: u64| now.checked_sub(then).ok_or(Missing::NotReady);
        let total = grown(self.total, before.total)?;
        if total == 0 {
            return Err(Missing::NotReady);
        }
        // The kernel lets idle and iowait go back by a few ticks now and then.
        let share = |now: u64, then: u64| now.saturating_sub(then) as f64 / total as f64;
        let idle = share(self.idle, before.idle);
        let iowait = share(self.iowait, before.iowait);
        Ok(CpuShares {
            busy: (1.0 - idle - iowait).clamp(0.0, 1.0),
            steal: share(self.steal, before.steal).min(1.0),
            iowait: iowait.min(1.0),
        })
    }
}

/// Reads /proc/loadavg: the average over one minute.
pub fn parse_load(text: &str) -> Result<f64, Missing> {
    let first = text.split_ascii_whitespace().next();
    let load: f64 = first
        .and_then(|word| word.parse().ok())
        .ok_or(Missing::Invalid)?;
    if load.is_finite() {
        Ok(load)
    } else {
        Err(Missing::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_between_two_rounds() {
        let before = parse_stat("cpu  100 0 100 700 50 0 0 50 9 9\ncpu0 1\ncpu1 1\nintr 5\n");
        let after = parse_stat("cpu  130 0 120 730 60 0 0 60 9 9\ncpu0 1\ncpu1 1\nintr 5\n");
        let (before, after) = (before.expect("right"), after.expect("right"));
        assert_eq!(after.count, 2);
        let shares = after.shares_since(&before).expect("shares");
        assert!((shares.busy - 0.6).abs() < 1e-9);
        assert!((shares.steal - 0.1).abs() < 1e-9);
        assert!((shares.iowait - 0.1).abs() < 1e-9);
        assert_eq!(after.shares_since(&after), Err(Missing::NotReady));
        assert_eq!(before.shares_since(&after), Err(Missing::NotReady));
    }

    #[test]
    fn what_is_no_stat_file_is_invalid() {
        for text in [
            "",
            "cpu\n",
            "cpu  1 2 3\n",
            "cpu  a 0 0 0 0 0 0 0\n",
            "cpu0 1 2 3 4 5 6 7 8\n",
        ] {
            assert_eq!(parse_stat(text), Err(Missing::Invalid), "{text}");
        }
        assert_eq!(parse_load("0.52 0.58 0.59 1/389 12345\n"), Ok(0.52));
        assert_eq!(parse_load("nan 1"), Err(Missing::Invalid));
        assert_eq!(parse_load(""), Err(Missing::Invalid));
    }
}
