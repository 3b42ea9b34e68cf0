//! XIDs of a GPU: what each asks for, and what they say together.
//!
//! Method: what one asks for is the name of its action, in the agent's table (`agent/read/nvml/xid_actions.toml`) or in
//! the driver's recovery action (field 230), which wins over the table. A name that is in neither is a user's own, or
//! another sender's: then the code says it as the table does, unless the user takes it for no more than information.
//!
//! Limits: codes without a name that the table does not know ask for no more than a look.

use std::collections::BTreeSet;

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::{Action, Finding, Gpu, Kind, over};
use crate::states::FATAL_XIDS;

/// XIDs that a program causes, unless they come back in another job on the same GPU.
pub const PROGRAM_XIDS: [u32; 2] = [13, 31];
/// How far back they are remembered, and in how many jobs they are the GPU's.
pub const REPEAT_NS: i64 = 7 * 24 * 3_600_000_000_000;
/// See [`REPEAT_NS`].
pub const REPEAT_JOBS: usize = 2;

/// What an XID asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Nothing of the GPU: a program's error, a note, a code that points at another one.
    Nothing,
    /// That somebody looks at it.
    Look,
    /// What goes on until its link, its power or its software is mended, and the GPU works meanwhile.
    Repair,
    /// A reset of the GPU or a restart of its virtual machine: until then it is of no use.
    Reset,
    /// A reboot of the node, because the GPU cannot be reached any more.
    Reboot,
}

/// An XID of the GPU, however often it came to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid<'a> {
    /// When it came first.
    pub first: Timestamp,
    /// When it came last.
    pub at: Timestamp,
    /// How often.
    pub count: u32,
    /// Its number.
    pub code: u32,
    /// What it asks for.
    pub asks: Asks,
    /// The job that held the GPU; empty is unknown, or of a job of which several GPUs raised it.
    pub job: &'a str,
}

impl Asks {
    /// What an XID of this code asks for, by the name of its action, which may be empty.
    pub fn of(code: u32, action: &str, severity: Severity) -> Self {
        match action {
            "application_error" | "observe" | "read_recovery_action" | "unknown" => Self::Nothing,
            "check_uvm" | "drain_peer_to_peer" => Self::Look,
            "nvlink" | "check_power" | "update_software" => Self::Repair,
            "reset_gpu" | "drain_and_reset" | "restart_vm" => Self::Reset,
            "reboot_node" => Self::Reboot,
            _ if severity == Severity::Info => Self::Look,
            _ => Self::of_code(code),
        }
    }

    fn of_code(code: u32) -> Self {
        match code {
            79 => Self::Reboot,
            54 | 74 | 78 | 144..=150 => Self::Repair,
            _ if FATAL_XIDS.contains(&code) => Self::Reset,
            _ => Self::Look,
        }
    }

    /// Whether the GPU is of no use until that is done.
    pub const fn is_broken(self) -> bool {
        matches!(self, Self::Reset | Self::Reboot)
    }
}

/// What is wrong by its XIDs.
pub(super) fn findings(gpu: &Gpu<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let is_open = |xid: &&Xid<'_>| gpu.healed_at.is_none_or(|at| at < xid.at);
    let asks = |xid: &&Xid<'_>| xid.asks != Asks::Nothing;
    for xid in gpu.xids.iter().filter(is_open).filter(asks) {
        let kind = Kind::Xid(xid.code);
        match found.iter_mut().find(|it| it.kind == kind) {
            Some(told) => {
                told.reading += f64::from(xid.count);
                told.since = told.since.min(Some(xid.first));
            }
            None => found.push(Finding {
                since: Some(xid.first),
                ..over(kind, Action::AsTheTableSays, xid.count.into(), 0.0)
            }),
        }
    }
    found.extend(
        PROGRAM_XIDS
            .into_iter()
            .filter_map(|code| repeated(gpu, code)),
    );
    found
}

/// A program's XID that came back in another job.
fn repeated(gpu: &Gpu<'_>, code: u32) -> Option<Finding> {
    let is_open = |xid: &&Xid<'_>| gpu.healed_at.is_none_or(|at| at < xid.at);
    let is_late = |xid: &&Xid<'_>| gpu.now.since(xid.at) <= REPEAT_NS;
    let is_known = |xid: &&Xid<'_>| xid.code == code && !xid.job.is_empty();
    let all = gpu.xids.iter().filter(is_open).filter(is_known);
    let jobs: BTreeSet<&str> = all.filter(is_late).map(|it| it.job).collect();
    let (count, limit) = (jobs.len() as f64, REPEAT_JOBS as f64);
    let told = || over(Kind::RepeatedXid(code), Action::Diagnose, count, limit);
    (jobs.len() >= REPEAT_JOBS).then(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written down of the driver: the agent's tests hold its table against it.
    const FACTS: &str = include_str!("../../telemetry/catalog/driver_facts.txt");

    #[test]
    fn a_code_asks_for_the_same_by_itself_as_by_the_name_that_the_table_gives_it() {
        let rows = FACTS.lines().filter_map(|line| line.strip_prefix("xid "));
        let mut broken = BTreeSet::new();
        for row in rows {
            let (codes, name) = row.trim().rsplit_once(' ').expect("codes and a name");
            for code in codes.split(' ') {
                let (first, last) = code.split_once('-').unwrap_or((code, code));
                let number = |text: &str| text.parse::<u32>().expect("a code");
                for code in number(first)..=number(last) {
                    let named = Asks::of(code, name, Severity::Error);
                    // Without its name nothing says that it is harmless.
                    let expected = match named {
                        Asks::Nothing => Asks::Look,
                        asks => asks,
                    };
                    assert_eq!(Asks::of(code, "", Severity::Error), expected, "{code}");
                    broken.extend(named.is_broken().then_some(code));
                }
            }
        }
        assert_eq!(broken, BTreeSet::from(FATAL_XIDS));
    }

    #[test]
    fn the_name_wins_over_the_code_and_a_users_own_row_that_only_informs_breaks_nothing() {
        for (code, action, severity, expected) in [
            (48, "observe", Severity::Error, Asks::Nothing),
            (43, "reset_gpu", Severity::Error, Asks::Reset),
            (13, "drain_and_reset", Severity::Warning, Asks::Reset),
            (48, "drain_peer_to_peer", Severity::Error, Asks::Look),
            (48, "page_the_night_shift", Severity::Error, Asks::Reset),
            (79, "page_the_night_shift", Severity::Warning, Asks::Reboot),
            (79, "told_by_the_vendor", Severity::Info, Asks::Look),
            (13, "page_the_night_shift", Severity::Error, Asks::Look),
        ] {
            assert_eq!(
                Asks::of(code, action, severity),
                expected,
                "{code} {action}"
            );
        }
    }
}
