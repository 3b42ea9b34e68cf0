//! XIDs of a GPU: what each asks for, and what they say together.
//!
//! Method: what one asks for is the name of its action, in the agent's table (`agent/read/nvml/xid_actions.toml`) or in
//! the driver's recovery action (field 230), which wins over the table. A name that is in neither is a user's own, or
//! another sender's: then the code says it as the table does, unless the user takes it for no more than information.
//!
//! What asks for a reset, a reboot or a repair is open until the GPU was reset, its driver loaded anew or its node
//! booted, however well it works meanwhile; a GPU that could not be reached, also until it answers again. What asks for
//! a look is over [`TOLD_NS`] after it last came: it was not seen again, and nobody knows that it was mended.
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
/// What asks for no more than a look is told for this long after it last came, nanoseconds: nothing ends it.
pub const TOLD_NS: i64 = 600 * 1_000_000_000;

/// What an XID asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Nothing of the GPU: a program's error, a note, a code that points at another one.
    Nothing,
    /// That somebody looks at it.
    Look,
    /// What goes on until its link, its power or its software is mended, and the GPU works meanwhile.
    Repair,
    /// A reset of the GPU: until then it is of no use.
    Reset,
    /// A restart of its virtual machine: likewise.
    RestartVm,
    /// A reboot of the node, because the GPU cannot be reached any more.
    Reboot,
}

/// Whether an XID of this code is an NVLink's.
pub const fn is_of_nvlink(code: u32) -> bool {
    matches!(code, 74 | 144..=150)
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
            "reset_gpu" | "drain_and_reset" => Self::Reset,
            "restart_vm" => Self::RestartVm,
            "reboot_node" => Self::Reboot,
            _ if severity == Severity::Info => Self::Look,
            _ => Self::of_code(code),
        }
    }

    fn of_code(code: u32) -> Self {
        match code {
            79 => Self::Reboot,
            151 => Self::RestartVm,
            54 | 78 => Self::Repair,
            _ if is_of_nvlink(code) => Self::Repair,
            _ if FATAL_XIDS.contains(&code) => Self::Reset,
            _ => Self::Look,
        }
    }

    /// Whether the GPU is of no use until that is done.
    pub const fn is_broken(self) -> bool {
        matches!(self, Self::Reset | Self::RestartVm | Self::Reboot)
    }

    /// Whether it stands until that is done, and not only until it did not come again.
    pub const fn is_owed(self) -> bool {
        matches!(self, Self::Repair) || self.is_broken()
    }

    /// When what it asks for was done last: of when the GPU was mended, its node came up, and it answered again.
    pub fn done_at(
        self,
        healed: Option<Timestamp>,
        booted: Option<Timestamp>,
        back: Option<Timestamp>,
    ) -> Option<Timestamp> {
        match self {
            Self::Nothing | Self::Look => healed.max(back),
            Self::Repair | Self::Reset | Self::RestartVm => healed.max(booted),
            Self::Reboot => healed.max(booted).max(back),
        }
    }
}

impl Xid<'_> {
    /// When it was mended last, whether before it came or after.
    fn mended_at(&self, gpu: &Gpu<'_>) -> Option<Timestamp> {
        self.asks.done_at(gpu.healed_at, gpu.booted_at, gpu.back_at)
    }

    fn is_open(&self, gpu: &Gpu<'_>) -> bool {
        let is_so = match self.asks {
            Asks::Nothing => false,
            Asks::Look => gpu.now.since(self.at) < TOLD_NS,
            Asks::Repair | Asks::Reset | Asks::RestartVm | Asks::Reboot => true,
        };
        is_so && !self.is_mended(gpu)
    }

    fn is_mended(&self, gpu: &Gpu<'_>) -> bool {
        self.mended_at(gpu).is_some_and(|at| at >= self.at)
    }

    /// Since when it comes, and how often it did at least, since it was mended.
    fn came(&self, gpu: &Gpu<'_>) -> (Timestamp, f64) {
        match self.mended_at(gpu) {
            Some(at) if at >= self.first => (self.at, 1.0),
            _ => (self.first, self.count.into()),
        }
    }
}

/// What is wrong by its XIDs.
pub(super) fn findings(gpu: &Gpu<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for xid in gpu.xids.iter().filter(|it| it.is_open(gpu)) {
        let kind = Kind::Xid(xid.code);
        let (since, count) = xid.came(gpu);
        match found.iter_mut().find(|it| it.kind == kind) {
            Some(told) => {
                told.reading += count;
                told.since = told.since.min(Some(since));
            }
            None => found.push(Finding {
                since: Some(since),
                ..over(kind, Action::AsTheTableSays, count, 0.0)
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
    let is_open = |xid: &&Xid<'_>| {
        let mended = gpu.healed_at.max(gpu.back_at);
        mended.is_none_or(|at| at < xid.at)
    };
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
    use crate::health::findings;
    use crate::health::tests::{ago, kinds, unknown};

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

    fn xid<'a>(minutes: i64, code: u32, action: &'a str, job: &'a str) -> Xid<'a> {
        let at = ago(minutes);
        Xid {
            first: at,
            at,
            count: 1,
            code,
            asks: Asks::of(code, action, Severity::Error),
            job,
        }
    }

    #[test]
    fn an_xid_that_asks_for_more_than_a_restart_is_told_until_it_is_healed() {
        let xids = [
            xid(30, 119, "reset_gpu", "a"),
            xid(20, 119, "reset_gpu", "a"),
            xid(10, 43, "observe", "a"),
            xid(10, 31, "application_error", "a"),
        ];
        let gpu = Gpu {
            xids: &xids,
            ..unknown()
        };
        let found = findings(&gpu);
        assert_eq!(kinds(&gpu), [Kind::Xid(119)]);
        assert_eq!((found[0].since, found[0].reading), (Some(ago(30)), 2.0));
        let storm = [Xid {
            first: ago(40),
            count: 500,
            ..xids[0]
        }];
        let told = findings(&Gpu {
            xids: &storm,
            ..gpu
        });
        assert_eq!((told[0].since, told[0].reading), (Some(ago(40)), 500.0));
        assert_eq!(
            kinds(&Gpu {
                healed_at: Some(ago(25)),
                ..gpu
            }),
            [Kind::Xid(119)]
        );
        assert_eq!(
            kinds(&Gpu {
                healed_at: Some(ago(5)),
                ..gpu
            }),
            []
        );
    }

    #[test]
    fn what_asks_for_a_reset_is_open_until_there_was_one_and_what_asks_for_a_look_until_it_did_not_come_again()
     {
        type Mend = fn(&mut Gpu<'_>);
        let reset: Mend = |it| it.healed_at = Some(ago(3));
        let boot: Mend = |it| it.booted_at = Some(ago(3));
        let back: Mend = |it| it.back_at = Some(ago(3));
        let before: Mend = |it| (it.healed_at, it.booted_at) = (Some(ago(2_000)), Some(ago(3_000)));
        for (code, action, mends) in [
            (48, "reset_gpu", [true, true, false]),
            (119, "drain_and_reset", [true, true, false]),
            (151, "restart_vm", [true, true, false]),
            (79, "reboot_node", [true, true, true]),
            (74, "nvlink", [true, true, false]),
            (54, "check_power", [true, true, false]),
            (78, "update_software", [true, true, false]),
        ] {
            let xids = [xid(1_440, code, action, "a")];
            let told = |mend: Option<Mend>| {
                let mut gpu = Gpu {
                    xids: &xids,
                    ..unknown()
                };
                before(&mut gpu);
                if let Some(mend) = mend {
                    mend(&mut gpu);
                }
                kinds(&gpu)
            };
            assert_eq!(told(None), [Kind::Xid(code)], "a day later: {action}");
            for (mend, is_over) in [reset, boot, back].into_iter().zip(mends) {
                assert_eq!(told(Some(mend)).is_empty(), is_over, "{action}");
            }
        }
        for (minutes, is_told) in [(9, true), (10, false)] {
            let xids = [xid(minutes, 159, "check_uvm", "a")];
            let gpu = Gpu {
                xids: &xids,
                ..unknown()
            };
            assert_eq!(!kinds(&gpu).is_empty(), is_told, "{minutes} minutes ago");
        }
    }

    #[test]
    fn an_xid_that_came_before_a_reset_and_after_it_counts_since_then() {
        let xids = [Xid {
            first: ago(90),
            count: 7,
            ..xid(10, 95, "reset_gpu", "a")
        }];
        let told = |healed_minutes: i64| {
            let found = findings(&Gpu {
                xids: &xids,
                healed_at: Some(ago(healed_minutes)),
                ..unknown()
            });
            (found[0].since, found[0].reading)
        };
        assert_eq!(told(100), (Some(ago(90)), 7.0));
        assert_eq!(told(50), (Some(ago(10)), 1.0));
    }

    #[test]
    fn a_programs_xid_in_two_jobs_within_a_week_is_the_gpu() {
        let of = |jobs: [&'static str; 2], minutes: i64| {
            let xids = jobs.map(|job| xid(minutes, 31, "application_error", job));
            kinds(&Gpu {
                xids: &xids,
                ..unknown()
            })
        };
        assert_eq!(of(["a", "b"], 10), [Kind::RepeatedXid(31)]);
        assert_eq!(of(["a", "a"], 10), []);
        assert_eq!(of(["a", ""], 10), [], "an unknown job is no second one");
        assert_eq!(of(["a", "b"], 8 * 24 * 60), [], "more than 7 days ago");
    }

    #[test]
    fn a_programs_xids_before_a_gpu_was_healed_say_nothing_of_it() {
        let of = |healed_minutes: i64| {
            let program = "application_error";
            let xids = [xid(30, 13, program, "a"), xid(20, 13, program, "b")];
            kinds(&Gpu {
                xids: &xids,
                healed_at: Some(ago(healed_minutes)),
                ..unknown()
            })
        };
        assert_eq!(of(40), [Kind::RepeatedXid(13)]);
        assert_eq!(of(25), [], "one job since");
        assert_eq!(of(10), [], "none since");
    }
}
