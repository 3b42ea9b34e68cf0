//! The XIDs that the kernel's log has: what the driver said before and while the agent ran.
//!
//! ```text
//! 3,1480,84201337,-;NVRM: Xid (PCI:0000:53:00): 79, pid=4711, name=python3, GPU has fallen off the bus.
//! ```
//!
//! Limits: [`MAX_BYTES`] of the log, [`MAX_LINES`] lines, the newest. Times are reckoned from how long the machine is
//! up, and are some seconds off where its clock was set since. The log is a ring: where its first record is not the first
//! that the kernel wrote, older ones are gone, and it says from when on it is one.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The kernel's log, and for how long it is up.
const LOG: &str = "dev/kmsg";
const UPTIME: &str = "proc/uptime";

/// What an XID's line begins with.
const XID: &str = "NVRM: Xid (";

/// Most bytes that are read: the kernel keeps less.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of one read: a record has at most 8 KiB, and one that does not fit is refused.
const READ_BYTES: usize = 16 * 1024;

/// Most lines that are kept.
const MAX_LINES: usize = 10_000;

/// What the log says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Xids {
    /// These lines, each with its time.
    Lines {
        /// The newest [`MAX_LINES`].
        lines: Vec<String>,
        /// Why they may not be all since the machine came up, as sentences; empty where they are.
        lacks: String,
    },
    /// Nothing, because it cannot be read.
    Unread(String),
}

impl Xids {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Lines { lines, .. } => lines.len(),
            Self::Unread(_) => 0,
        }
    }

    /// As a file.
    pub(super) fn text(&self) -> Vec<u8> {
        let text = match self {
            Self::Lines { lines, lacks } if lines.is_empty() => match lacks.as_str() {
                "" => "The kernel's log has no XID since this machine came up.\n".to_owned(),
                lacks => format!("The kernel's log has no XID. {lacks}\n"),
            },
            Self::Lines { lines, lacks } => {
                let lacks = Some(lacks).filter(|it| !it.is_empty());
                let all = lacks.into_iter().chain(lines);
                all.map(|it| format!("{it}\n")).collect()
            }
            Self::Unread(why) => format!(
                "The kernel's log cannot be read ({why}). Run this as root, or add what `dmesg -T | grep Xid` prints.\n"
            ),
        };
        text.into_bytes()
    }
}

/// The XIDs of the machine under `root`.
pub(super) fn xids(root: &Path, now: Timestamp) -> Xids {
    match read(&root.join(LOG)) {
        Ok(bytes) => {
            let up = std::fs::read_to_string(root.join(UPTIME)).unwrap_or_default();
            told(&String::from_utf8_lossy(&bytes), came_up(&up, now))
        }
        Err(error) => Xids::Unread(error.to_string()),
    }
}

/// All that the log has now. The kernel gives a record a read, and says when there are no more.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let mut log = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let (mut all, mut piece) = (Vec::new(), vec![0; READ_BYTES]);
    while all.len() < MAX_BYTES {
        match log.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // A record was written over before it was read, or a signal came.
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// When the machine came up, by what /proc/uptime says.
fn came_up(uptime: &str, now: Timestamp) -> Option<Timestamp> {
    let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Some(now.shifted(-((seconds * NANOS_PER_SECOND as f64) as i64)))
}

/// What is said of a record before its text, and the text; none of a continuation, which begins with a blank.
fn record(line: &str) -> Option<(&str, &str)> {
    line.split_once(';').filter(|_| !line.starts_with(' '))
}

/// When a record was written; none where it is not known when the machine came up.
fn written(about: &str, came_up: Option<Timestamp>) -> Option<String> {
    let micros: i64 = about.split(',').nth(2)?.parse().ok()?;
    Some(moment(came_up?.shifted(micros.saturating_mul(1_000))))
}

/// The lines about XIDs, the newest [`MAX_LINES`], and what there may have been besides; without times where it is not
/// known when the machine came up.
fn told(log: &str, came_up: Option<Timestamp>) -> Xids {
    let xids = log.lines().filter_map(|line| {
        let (about, said) = record(line)?;
        let said = said.trim_end();
        said.starts_with(XID).then_some(())?;
        let at = written(about, came_up);
        let at = at.unwrap_or_else(|| "time not known".to_owned());
        Some(format!("{at} {said}"))
    });
    let mut lines: Vec<String> = xids.collect();
    let older = lines.len().saturating_sub(MAX_LINES);
    lines.drain(..older);
    let mut lacks = Vec::new();
    let first = log.lines().find_map(record).map(|it| it.0);
    let is_first = |about: &str| about.split(',').nth(1) == Some("0");
    match first.filter(|it| !is_first(it)) {
        Some(about) => lacks.push(match written(about, came_up) {
            Some(at) => {
                format!("The log begins at {at}: what was written before is not in it any more.")
            }
            None => "The beginning of the log was written over.".to_owned(),
        }),
        None if first.is_none() => lacks.push("The log is empty.".to_owned()),
        None => {}
    }
    if older > 0 {
        lacks.push(format!("{older} older XIDs are left out."));
    }
    Xids::Lines {
        lines,
        lacks: lacks.join(" "),
    }
}

fn moment(at: Timestamp) -> String {
    let at = OffsetDateTime::from_unix_timestamp(at.seconds()).ok();
    at.and_then(|it| it.format(&Rfc3339).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_are_told_with_their_times_and_nothing_else_is() {
        let log = "6,0,100,-;Linux version 6.1\n\
            4,1480,84201337,-;NVRM: Xid (PCI:0000:53:00): 79, pid=4711, GPU has fallen off the bus.\n \
            DEVICE=+pci:0000:53:00.0\n\
            4,1481,90000000,-;NVRM: GPU at PCI:0000:53:00: GPU-5f2c\n\
            4,1482,3600000000,-;NVRM: Xid (PCI:0000:54:00): 48, DBE\n";
        let now = Timestamp::from_seconds(1_795_000_000);
        let up = came_up("7200.50 100.00\n", now);
        assert_eq!(up, Some(now.shifted(-7_200_500_000_000)));
        assert_eq!(
            text(log, up),
            "2026-11-18T09:08:03Z NVRM: Xid (PCI:0000:53:00): 79, pid=4711, GPU has fallen off the bus.\n\
             2026-11-18T10:06:39Z NVRM: Xid (PCI:0000:54:00): 48, DBE\n"
        );
        assert!(text(log, None).starts_with("time not known NVRM: Xid"));
        assert_eq!(
            text("", up),
            "The kernel's log has no XID. The log is empty.\n"
        );
    }

    /// What is told of this log.
    fn text(log: &str, up: Option<Timestamp>) -> String {
        String::from_utf8(told(log, up).text()).expect("it is text")
    }

    #[test]
    fn of_a_log_whose_beginning_was_written_over_it_is_said_from_when_on_it_is_one() {
        let up = Some(Timestamp::from_seconds(1_795_000_000));
        let other = "6,900,3600000000,-;eth0: link is up\n";
        let begins = "The log begins at 2026-11-18T12:06:40Z: what was written before is not in it any more.";
        assert_eq!(
            text(other, up),
            format!("The kernel's log has no XID. {begins}\n")
        );
        let xid = "4,901,3600000000,-;NVRM: Xid (PCI:0000:53:00): 79, lost\n";
        let told = text(&format!("{other}{xid}"), up);
        let expected =
            format!("{begins}\n2026-11-18T12:06:40Z NVRM: Xid (PCI:0000:53:00): 79, lost\n");
        assert_eq!(told, expected);
        let many = text(&xid.repeat(MAX_LINES + 2), up);
        assert!(many.contains("any more. 2 older XIDs are left out.\n"));
        let untimed = text(other, None);
        assert!(untimed.contains("was written over"), "{untimed}");
    }

    #[test]
    fn a_log_that_cannot_be_read_says_so_and_what_to_do() {
        let root = tempfile::tempdir().expect("a folder");
        let now = Timestamp::from_seconds(1_795_000_000);
        let unread = String::from_utf8(xids(root.path(), now).text()).expect("it is text");
        assert!(unread.contains("cannot be read"), "{unread}");
        assert!(unread.contains("dmesg"), "{unread}");
        std::fs::create_dir(root.path().join("dev")).expect("a folder");
        std::fs::write(root.path().join(LOG), "6,0,100,-;Linux\n").expect("a file");
        let none = xids(root.path(), now);
        assert_eq!(none.count(), 0);
        let none = String::from_utf8(none.text()).expect("it is text");
        assert_eq!(
            none,
            "The kernel's log has no XID since this machine came up.\n"
        );
    }
}
