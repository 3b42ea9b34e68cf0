//! /proc/diskstats: bytes and busy time of whole physical disks.
//!
//! A disk is physical where /sys/block/<name> has a `device`: that leaves out partitions, loop, RAM,
//! device-mapper and RAID devices, whose bytes are those of the disks under them. Hidden paths of a
//! multipath NVMe drive are left out for the same reason.

use std::path::Path;

use gpufleet_telemetry::sample::Missing;

use super::files;

/// Most disks that are read, in the order of names. Storage nodes with more carry no GPUs.
pub const MAX_DISKS: usize = 64;

/// What /proc/diskstats counts in, whatever the disk's own sector size.
const SECTOR_BYTES: f64 = 512.0;

/// One disk's totals.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskTotals {
    /// Its name, `nvme0n1`.
    pub name: String,
    /// Bytes read.
    pub read_bytes: f64,
    /// Bytes written.
    pub written_bytes: f64,
    /// Seconds with requests outstanding.
    pub busy_seconds: f64,
}

/// Whether the disk is one of its own.
pub fn is_physical(sys: &Path, name: &str) -> bool {
    let folder = sys.join("block").join(name);
    let hidden = files::number(&folder.join("hidden")) == Ok(1.0);
    folder.join("device").exists() && !hidden
}

/// Reads /proc/diskstats: `major minor name reads merged sectors ms writes merged sectors ms
/// in-flight ms-busy …`. Lines that are none are left out.
pub fn parse(text: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<DiskTotals>, Missing> {
    let mut disks: Vec<DiskTotals> = text.lines().filter_map(parse_line).collect();
    if disks.is_empty() && !text.trim().is_empty() {
        return Err(Missing::Invalid);
    }
    disks.retain(|disk| wanted(&disk.name));
    disks.sort_by(|left, right| left.name.cmp(&right.name));
    disks.truncate(MAX_DISKS);
    Ok(disks)
}

fn parse_line(line: &str) -> Option<DiskTotals> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |at: usize| -> Option<f64> {
        let number: u64 = words.get(at)?.parse().ok()?;
        Some(number as f64)
    };
    Some(DiskTotals {
        name: (*words.get(2)?).to_owned(),
        read_bytes: number(5)? * SECTOR_BYTES,
        written_bytes: number(9)? * SECTOR_BYTES,
        busy_seconds: number(12)? / 1000.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_bytes_and_seconds() {
        let text = " 259 0 nvme0n1 100 0 2048 5 50 0 4096 6 0 1500 11 0 0 0 0\n   7 0 loop0 1 0 1 0 0 0 0 0 0 1 0\n";
        let disks = parse(text, |name| name.starts_with("nvme")).expect("disks");
        let expected = DiskTotals {
            name: "nvme0n1".to_owned(),
            read_bytes: 1_048_576.0,
            written_bytes: 2_097_152.0,
            busy_seconds: 1.5,
        };
        assert_eq!(disks, [expected]);
    }

    #[test]
    fn no_disks_are_no_error_but_nonsense_is() {
        assert_eq!(parse("", |_| true), Ok(Vec::new()));
        assert_eq!(parse("what is this\n", |_| true), Err(Missing::Invalid));
    }

    #[test]
    fn disks_beyond_the_limit_are_left_out() {
        let text: String = (0..MAX_DISKS + 3)
            .map(|n| format!("8 {n} sd{n} 1 0 1 0 0 0 0 0 0 1 0\n"))
            .collect();
        assert_eq!(parse(&text, |_| true).expect("disks").len(), MAX_DISKS);
    }
}
