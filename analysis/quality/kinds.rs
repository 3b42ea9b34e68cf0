//! Every kind of thing that a detector says, and the row of the report that shows it.
//!
//! Each list is a match over all variants: one that is added does not compile until it has a row here, and a row that
//! is not in the report, or promises nothing, fails the report.

use super::Faults;
use crate::hang::Evidence;
use crate::health::{Cause, Kind};
use crate::limit::Test;
use crate::loss::Trouble;
use crate::offender::Level;
use crate::port::Sign;
use crate::regression::Direction;
use crate::regression::between;
use crate::slow_link::Suspect;
use crate::straggler::Unnamed;
use crate::{ending, offender};

/// A detector, and how its rows begin.
type Begins = (&'static str, &'static str);

/// A match over all kinds of a type, and the same as a list.
macro_rules! kinds {
    ($name:ident: $kind:ty, $detector:literal, $($is:pat => $row:literal,)+) => {
        const fn $name() -> &'static [Begins] {
            // Only so that each variant is named.
            const fn _all(it: &$kind) -> &'static str {
                match it { $($is => $row,)+ }
            }
            &[$(($detector, $row),)+]
        }
    };
}

kinds! { of_gpus: Kind, "health",
    Kind::Xid(_) => "XID 79",
    Kind::RepeatedXid(_) => "XID 13 in",
    Kind::EccUncorrectable => "one error that was not corrected",
    Kind::EccRate => "80 corrected errors",
    Kind::RemapFailed => "a memory row that could not be remapped",
    Kind::RemapPending => "a memory row that waits for a reset",
    Kind::Throttled(Cause::Heat) => "slowed down by heat",
    Kind::Throttled(Cause::HardwareBrake) => "slowed down by the power brake",
    Kind::Throttled(Cause::PowerCap) => "the power cap alone",
    Kind::Throttled(Cause::Hardware) => "slowed down by the hardware",
    Kind::Hot => "25 °C above like GPUs",
    Kind::Underpowered => "a third less power",
    Kind::PcieDegraded => "PCIe with half its lanes",
    Kind::NvlinkDown => "1 of 18 NVLinks down",
    Kind::Lost => "a GPU that is lost",
    Kind::DriverHung => "a driver call that does not return",
    Kind::Vanished => "readings that stop",
    Kind::ProbeFailed(Some(_)) => "a probe that is wrong on one SM",
    Kind::ProbeFailed(None) => "a probe that broke",
    Kind::ProbeSlow => "a probe that is right and slow",
}

kinds! { of_numbers: Trouble, "loss",
    Trouble::NotFinite => "a loss that is not finite",
    Trouble::Diverged => "a loss 60 % above",
    Trouble::LossBurst => "a loss held 60 %",
    Trouble::GradientBurst => "gradients 4 times",
    Trouble::Skipping => "one step in eight skipped",
    Trouble::Stuck => "a loss that is the same",
}

kinds! { of_hangs: Evidence, "hang",
    Evidence::SequencesDiffer => "one rank of 16 that does not come",
    Evidence::CollectiveStands => "a collective that all of 16 ranks are in",
    Evidence::NothingComputes => "a step each 1 s",
}

kinds! { of_parts: Unnamed, "straggler",
    Unnamed::SameData => "half the columns are",
    Unnamed::HostsUnknown => "half of a stage is, machines unknown",
    Unnamed::BesideFast => "every other rank of a stage",
    Unnamed::Alone => "half of a stage is, one rank a machine",
    Unnamed::SamePart => "of a stage all that hold the last quarter",
}

kinds! { of_links: Suspect, "slow link",
    Suspect::Gpu(..) => "a GPU's port",
    Suspect::Node(_) => "all ports of a node",
    Suspect::Pair(..) => "the way between two nodes",
    Suspect::Among(_) => "the way between two of four nodes",
}

kinds! { of_signs: Sign, "port",
    Sign::Down => "of the ports of a slow link one that is down",
    Sign::Slow(..) => "of the ports of a slow link one that came up slower",
    Sign::Errors(..) => "of the ports of a slow link one that makes errors",
    Sign::Repeats(..) => "of the ports of a slow link one that repeats",
}

kinds! { of_offenders: offender::Offender, "offender",
    offender::Offender::Card(..) => "a card",
    offender::Offender::Node(..) => "a machine of 8 cards",
    offender::Offender::Part(_) => "a block",
}

kinds! { of_levels: Level, "offender",
    Level::Domain => "an NVLink domain",
    Level::SubBlock => "a sub-block",
    Level::Block => "a block",
    Level::Zone => "a zone",
}

kinds! { of_limits: Test, "limit",
    Test::Above(_) => "a level above",
    Test::Below(_) => "a level below",
    Test::Grew(_) => "errors, where there must be none",
    Test::Rate(_) => "errors at 3 times the rate",
    Test::Down => "a link that was up and is down",
    Test::Flaps => "a link that goes and comes",
    Test::Still => "what has to grow and stands",
}

kinds! { of_paces: Direction, "regression",
    Direction::Slower => "steps longer by 2 %",
    // What became faster is good news.
    Direction::Faster => "steps longer by 2 %",
}

kinds! { of_repeats: between::Verdict, "regression between runs",
    between::Verdict::Slower => "a run 3 %",
    between::Verdict::Faster | between::Verdict::Alike | between::Verdict::TooFewRuns => "a run 3 %",
}

kinds! { of_ends: ending::Cause, "ending",
    ending::Cause::StoppedByUser => "stopped by user",
    ending::Cause::Exception => "exception",
    ending::Cause::CudaOutOfMemory => "cuda out of memory",
    ending::Cause::HostOutOfMemory => "host out of memory",
    ending::Cause::CollectiveTimeout => "collective timeout",
    ending::Cause::Preempted => "preempted",
    ending::Cause::Evicted => "evicted",
    ending::Cause::NodeLost => "node lost",
    // It finished, or nobody knows: no fault, and the world that is well beside it.
    ending::Cause::GpuFault | ending::Cause::Finished | ending::Cause::Unknown => "gpu fault",
}

/// What has no kinds of its own.
const OTHERS: [Begins; 15] = [
    ("straggler", "one rank of 32"),
    ("straggler", "a stage of 4 with 25 % more work"),
    ("straggler", "another rank slower by 20 %"),
    ("straggler", "two of the four machines of a stage"),
    ("slow link", "a GPU's way to the others of its node"),
    ("hang", "no first step"),
    ("regression A/B", "3 runs 3 %"),
    ("straggler by collectives", "one rank of 32"),
    ("straggler by clocks", "one GPU of 32"),
    ("leak", "1 % an hour"),
    ("wrong network", "0.1 GB/s"),
    ("port", "a port of 128"),
    ("idle", "a job that works"),
    ("idle", "a job that is busy"),
    ("blind", "a node with ticks"),
];

/// Every kind, by the row that shows it.
pub(super) fn all() -> impl Iterator<Item = Begins> {
    let lists = [
        of_gpus(),
        of_numbers(),
        of_hangs(),
        of_parts(),
        of_links(),
        of_signs(),
        of_offenders(),
        of_levels(),
        of_limits(),
        of_paces(),
        of_repeats(),
        of_ends(),
    ];
    lists.into_iter().flatten().copied().chain(OTHERS)
}

/// Whether a row is one of a kind's.
pub(super) fn is_of(row: &Faults, (detector, begins): Begins) -> bool {
    row.detector == detector && row.fault.starts_with(begins)
}

/// Kinds of which no row of the report promises anything.
pub(super) fn missing(faults: &[Faults]) -> Vec<String> {
    let promises = |kind: &Begins| faults.iter().any(|it| it.least > 0 && is_of(it, *kind));
    let missing = all().filter(|it| !promises(it));
    missing
        .map(|(detector, begins)| format!("{detector} {begins} …: no row of this kind"))
        .collect()
}
