//! What is wrong with a GPU in the words of incidents, and what is to be done.

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::health::{self, Finding, Kind};
use gpufleet_analysis::incident::Family;
use gpufleet_telemetry::catalog::Unit;

use super::{GpuSnapshot, Like};
use crate::fleet::LiveXid;
use crate::words::xid;

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

pub(super) fn what(kind: Kind) -> String {
    use health::Cause as Slowed;
    match kind {
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
        Kind::Throttled(Slowed::PowerCap) => "slowed down by its power cap",
        Kind::Throttled(Slowed::Hardware) => "slowed down by the hardware again and again",
        Kind::Hot => "hotter than like GPUs",
        Kind::Underpowered => "draws less power than like GPUs",
        Kind::PcieDegraded => "PCIe below what it was",
        Kind::NvlinkDown => "NVLinks down",
        Kind::Lost => "lost",
        Kind::DriverHung => "a driver call does not return",
        Kind::Vanished => "its readings stopped",
    }
    .to_owned()
}

pub(super) fn action(seen: &GpuSnapshot, finding: &Finding) -> String {
    if let Kind::Xid(code) = finding.kind {
        return newest(seen, code).map_or_else(String::new, |it| xid::asks(code, &it.action));
    }
    match finding.action {
        health::Action::Watch => "Keep an eye on it.",
        health::Action::CheckCoolingOrPower => "Look at cooling and power.",
        health::Action::DrainAndReset => "Drain its jobs and reset the GPU.",
        health::Action::DrainAndReboot => "Drain the node and reboot it.",
        health::Action::Replace => "Have the card replaced.",
        health::Action::Diagnose => "Run a diagnosis.",
        health::Action::AsTheTableSays => "",
    }
    .to_owned()
}

/// What was read, beside what it is held against.
pub(super) fn readings(seen: &GpuSnapshot, like: &Like, finding: &Finding) -> Vec<Reading> {
    let usual = (finding.limit != 0.0).then_some(finding.limit);
    let unit = match finding.kind {
        Kind::Hot => Unit::Celsius,
        Kind::Underpowered => Unit::Watts,
        Kind::Throttled(health::Cause::Hardware) => Unit::Count,
        Kind::Throttled(_) | Kind::PcieDegraded => Unit::Ratio,
        Kind::Lost | Kind::DriverHung | Kind::Vanished => Unit::Seconds,
        _ => Unit::Count,
    };
    let name = match finding.kind {
        Kind::Hot => "temperature",
        Kind::Underpowered => "power",
        Kind::Throttled(health::Cause::Hardware) => "a minute",
        Kind::Throttled(_) => "part of the last minutes",
        Kind::Lost | Kind::DriverHung | Kind::Vanished => "for",
        _ => "count",
    };
    let mut readings = vec![Reading::new(name, finding.reading, usual, unit)];
    if matches!(words(finding.kind).0, Family::Heat | Family::Power)
        && let Some(clock) = seen.clock
    {
        readings.push(Reading::new("clock", clock, like.clock, Unit::Hertz));
    }
    readings
}
