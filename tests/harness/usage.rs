//! What a program and its children use, as the kernel counts it.

use std::fs;

/// Clock ticks of /proc/PID/stat in a second: fixed at 100 for user space on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process group uses.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// CPU time since each process began, seconds. Falls when a child ends: measure over a span in
    /// which none does.
    pub cpu_seconds: f64,
    /// Proportional memory (PSS), bytes: shared pages are divided among those who share them.
    pub pss_bytes: f64,
    /// Of it what no file is behind, bytes: the heap and the stacks, which no other process shares.
    pub anonymous_bytes: f64,
    /// Resident memory, bytes.
    pub rss_bytes: f64,
}

/// What the process group of this leader uses now.
pub fn of_group(leader: u32) -> Usage {
    let mut usage = Usage::default();
    let Ok(processes) = fs::read_dir("/proc") else {
        return usage;
    };
    for entry in processes.flatten() {
        let folder = entry.path();
        let Some(cpu) = cpu_in_group(&folder, leader) else {
            continue;
        };
        usage.cpu_seconds += cpu;
        let rollup = fs::read_to_string(folder.join("smaps_rollup")).unwrap_or_default();
        usage.pss_bytes += kib(&rollup, "Pss:") * 1024.0;
        usage.anonymous_bytes += kib(&rollup, "Pss_Anon:") * 1024.0;
        usage.rss_bytes += kib(&rollup, "Rss:") * 1024.0;
    }
    usage
}

/// The CPU seconds of a process, if it belongs to the group.
fn cpu_in_group(folder: &std::path::Path, leader: u32) -> Option<f64> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    // "pid (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime"
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    if fields.get(2)?.parse() != Ok(leader) {
        return None;
    }
    let time = |index: usize| fields.get(index).and_then(|it| it.parse::<f64>().ok());
    Some((time(11)? + time(12)?) / TICKS_PER_SECOND)
}

fn kib(text: &str, name: &str) -> f64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_uses_memory() {
        let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
        let own: u32 = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok())
            .expect("the kernel tells the group");
        let usage = of_group(own);
        assert!(usage.anonymous_bytes > 10_000.0, "{usage:?}");
        assert!(usage.pss_bytes > usage.anonymous_bytes, "{usage:?}");
        assert_eq!(of_group(u32::MAX), Usage::default());
    }
}
