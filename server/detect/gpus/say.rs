//! What is wrong with a GPU in the words of incidents, and what is to be done.

use gpufleet_analysis::cause::{Cause, NVLINKS_UP, Reading, pcie_readings};
use gpufleet_analysis::health::{self, Asks, Finding, Kind, Pcie};
use gpufleet_analysis::incident::{Family, Remedy};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;

use super::{GpuSnapshot, Like};
use crate::fleet::LiveXid;
use crate::words::{recovery_action, xid};

/// The name of a reading by which it is judged on after a start of the server.
pub(in crate::detect) const AN_HOUR: &str = "corrected errors an hour";

/// What is said of a GPU beside like ones, which nothing says where it is not known who holds it.
pub(super) const BESIDE: [&str; 3] = [HOTTER, CAPPED, WEAKER];
/// Its temperature.
pub(super) const HOTTER: &str = "hotter than like GPUs";
/// What part of the time it is at its power cap.
pub(super) const CAPPED: &str = "slowed down by its power cap";
/// Its power.
pub(super) const WEAKER: &str = "draws less power than like GPUs";

/// The newest XID of this code.
pub(super) fn newest(seen: &GpuSnapshot, code: u32) -> Option<&LiveXid> {
    let of_code = seen.xids.iter().filter(|it| it.code == code);
    of_code.max_by_key(|it| it.at)
}

/// Which kind of trouble it is, and why.
pub(super) fn words(kind: Kind) -> (Family, Cause) {
    use health::Cause as Slowed;
    match kind {
        Kind::Xid(_)
        | Kind::RepeatedXid(_)
        | Kind::EccUncorrectable
        | Kind::RemapFailed
        | Kind::Lost
        | Kind::DriverHung
        | Kind::Vanished
        | Kind::ProbeFailed(_)
        | Kind::ProbeSlow => (Family::GpuFault, Cause::GpuFault),
        Kind::EccRate | Kind::RemapPending => (Family::Memory, Cause::GpuMemory),
        Kind::Throttled(Slowed::Heat) | Kind::Hot => (Family::Heat, Cause::Heat),
        Kind::Throttled(Slowed::HardwareBrake) => (Family::Power, Cause::PowerBrake),
        Kind::Throttled(Slowed::PowerCap) => (Family::Power, Cause::PowerCap),
        Kind::Throttled(Slowed::Hardware) | Kind::Underpowered => (Family::Power, Cause::Unknown),
        Kind::PcieDegraded => (Family::Link, Cause::Pcie),
        Kind::NvlinkDown => (Family::Link, Cause::Nvlink),
    }
}

pub(super) fn what(seen: &GpuSnapshot, finding: &Finding) -> String {
    use health::Cause as Slowed;
    match finding.kind {
        Kind::PcieDegraded => return pcie(seen, finding),
        Kind::NvlinkDown => {
            let (up, all) = (finding.reading, finding.limit);
            return format!("{} of {all} NVLinks down", all - up);
        }
        Kind::Xid(code) => return format!("XID {code}"),
        Kind::RepeatedXid(code) => return format!("XID {code} in several jobs"),
        Kind::ProbeFailed(Some(sm)) => return format!("the probe found SM {sm} wrong"),
        Kind::ProbeFailed(None) => "the probe failed",
        Kind::ProbeSlow => "the probe found it slow",
        Kind::EccUncorrectable => "memory errors that could not be corrected",
        Kind::EccRate => "many corrected memory errors",
        Kind::RemapFailed => "a memory row could not be remapped",
        Kind::RemapPending => "a memory row waits for a reset",
        Kind::Throttled(Slowed::Heat) => "slowed down by heat",
        Kind::Throttled(Slowed::HardwareBrake) => "slowed down by the power brake",
        Kind::Throttled(Slowed::PowerCap) => CAPPED,
        Kind::Throttled(Slowed::Hardware) => "slowed down by the hardware again and again",
        Kind::Hot => HOTTER,
        Kind::Underpowered => WEAKER,
        Kind::Lost => "lost",
        Kind::DriverHung => "a driver call does not return",
        Kind::Vanished => "its readings stopped",
    }
    .to_owned()
}

/// `PCIe at 25 % of its usual rate: gen 4 x8 of gen 5 x16`.
fn pcie(seen: &GpuSnapshot, finding: &Finding) -> String {
    let newest = seen.links.pcie().as_ref().map(Pcie::words);
    let percent = finding.reading * 100.0;
    let of_what = newest.map_or_else(String::new, |it| format!(": {it}"));
    format!("PCIe at {percent:.0} % of its usual rate{of_what}")
}

/// What to do where no more is known than that a GPU is broken.
pub(super) const BROKEN: (&str, Remedy) = (
    "Drain the node; reset the GPU or reboot the node.",
    Remedy::Reboot,
);

/// What the driver asks for (field 230), and what to do about it, in words and as a value.
pub(super) fn recovery(code: u64) -> (String, (String, Remedy)) {
    let asked = recovery_action(code);
    let name = match code {
        1 => "reset_gpu",
        2 => "reboot_node",
        3 => "drain_peer_to_peer",
        4 => "drain_and_reset",
        _ => {
            let (action, remedy) = BROKEN;
            let what = format!("the driver asks for {asked}");
            return (what, (action.to_owned(), remedy));
        }
    };
    // Its name says it all: it is no XID of any code.
    let remedy = Asks::of(0, name, Severity::Error).into();
    let what = format!("the driver asks to {asked}");
    (what, (xid::asks(name), remedy))
}

/// What to do about a finding, in words and as a value.
pub(super) fn action(seen: &GpuSnapshot, finding: &Finding) -> (String, Remedy) {
    if let Kind::Xid(code) = finding.kind {
        let told = newest(seen, code).map(|it| (xid::asks(&it.action), it.asks().into()));
        return told.unwrap_or((String::new(), Remedy::Look));
    }
    // The driver may not list it any more: then there is nothing to diagnose.
    if finding.kind == Kind::Vanished {
        let look = "See on its node whether nvidia-smi -L lists it, and what dmesg says of it.";
        return (look.to_owned(), Remedy::Look);
    }
    let (action, remedy) = match finding.action {
        health::Action::Watch => ("Keep an eye on it.", Remedy::Look),
        health::Action::CheckCoolingOrPower => ("Look at cooling and power.", Remedy::Look),
        health::Action::DrainAndReset => ("Drain its jobs and reset the GPU.", Remedy::Reset),
        health::Action::DrainAndReboot => ("Drain the node and reboot it.", Remedy::Reboot),
        health::Action::Replace => ("Have the card replaced.", Remedy::Replace),
        health::Action::Diagnose => ("Run a diagnosis.", Remedy::Diagnose),
        health::Action::AsTheTableSays => ("", Remedy::Look),
    };
    (action.to_owned(), remedy)
}

/// What was read, beside what it is held against; nothing where its words say it all.
pub(super) fn readings(seen: &GpuSnapshot, like: &Like, finding: &Finding) -> Vec<Reading> {
    use health::Cause as Slowed;
    let (value, limit) = (finding.reading, finding.limit);
    let beside = |name: &str, unit| vec![Reading::new(name, value, Some(limit), unit)];
    let alone = |name: &str, unit| vec![Reading::new(name, value, None, unit)];
    let mut readings = match finding.kind {
        Kind::Hot => beside("temperature", Unit::Celsius),
        Kind::Underpowered => beside("power", Unit::Watts),
        Kind::Throttled(Slowed::Hardware) => beside("a minute", Unit::Count),
        Kind::Throttled(_) => beside("part of the last minutes", Unit::Ratio),
        Kind::Lost | Kind::DriverHung | Kind::Vanished => alone("for", Unit::Seconds),
        // Once is what the words say.
        Kind::Xid(_) if value <= 1.0 => Vec::new(),
        Kind::Xid(_) | Kind::EccUncorrectable => alone("count", Unit::Count),
        Kind::RepeatedXid(_) => alone("jobs", Unit::Count),
        // A limit is not what is usual.
        Kind::EccRate => {
            let limit = Reading::new("limit", limit, None, Unit::Count);
            [alone(AN_HOUR, Unit::Count), vec![limit]].concat()
        }
        Kind::PcieDegraded => seen.links.pcie().iter().flat_map(pcie_readings).collect(),
        Kind::NvlinkDown => beside(NVLINKS_UP, Unit::Count),
        Kind::RemapFailed | Kind::RemapPending | Kind::ProbeFailed(_) | Kind::ProbeSlow => {
            Vec::new()
        }
    };
    let is_slowed = matches!(words(finding.kind).0, Family::Heat | Family::Power);
    let clock = seen.clock.filter(|_| is_slowed);
    readings.extend(clock.map(|it| Reading::new("clock", it, like.clock, Unit::Hertz)));
    readings
}
