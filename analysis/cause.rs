//! Why a rank is slow or stands: the likeliest cause with the readings that say so, or unknown.
//!
//! Method. What is to be explained is the excess: by how much longer the rank takes for its own part
//! of a step than its peers do (1 = as long again; infinite for a rank that stands). Each cause that
//! shows in a reading explains an amount of it by arithmetic:
//!
//! - *Clock*: like clock ÷ own clock − 1 is the time a compute-bound step gains. Of that: heat, the
//!   board's brake and the power cap by the parts of the window that each slowed it down beyond what
//!   its peers were slowed down by; none of them: clocks that somebody or something set. Where it is not known what
//!   slowed it down, it is heat when it is [`HOTTER`] above its peers.
//! - *Waiting for data*: own − usual waiting, as a part of the peers' step. The host's pressure says
//!   what of: I/O → storage, CPU or steal → host CPU, memory → host memory, else the input pipeline.
//! - *Host*: steal and pressure slow down what the host does between kernels too: own − usual, where
//!   it is more than what waiting for data has taken of it.
//! - *Marks*: a fatal XID, a GPU lost or hung, errors that cannot be corrected, slowed down beyond its
//!   peers where the clock is not known, rows that are to be remapped, NVLinks down, PCIe below what it was, an XID of
//!   an NVLink, a network device that is down or has errors, many corrected errors. How much they cost
//!   cannot be read, so they explain what is left, the first of them in this order, and only where
//!   [`MARK_LEAST`] of the excess is left.
//!
//! A cause that explains [`NAMED`] of the excess is named, the greatest first; of the others those with
//! [`ALSO`]. Beside any verdict stand its temperature and what it waits in collectives
//! ([`Rank::beside`]): who makes others wait waits less than they do itself. Nothing that large: unknown. What both the rank and its peers show explains nothing.
//! One look reads what was so for seconds: what is told over minutes is what most looks name ([`Looks`]).
//!
//! Measured (the test): of 20 seeded faults of each of 13 causes, among decoys and with readings
//! missing, 17 to 20 are named, none wrongly, the rest is unknown; of 100 pairs 98 are named, none
//! wrongly, both of them in 68.
//!
//! Limits: a step bound by memory bandwidth gains less from the clock than is reckoned; peers that
//! are all slow for the same cause explain nothing; a missing reading never names a cause, nor does a
//! peer's missing one.

use gpufleet_telemetry::catalog::Unit;
use serde::{Deserialize, Serialize};

use crate::health::Pcie;

pub mod before;
mod looks;
mod mark;

#[cfg(test)]
mod tests;

pub use looks::{LOOKS, Looks};
use mark::mark;
pub use mark::{NVLINKS_UP, PCIE_GENERATION, PCIE_LANES, of_links, pcie_readings};

/// Part of the excess that a named cause explains at least.
pub const NAMED: f64 = 0.35;
/// Part that one named beside it explains at least.
pub const ALSO: f64 = 0.2;
/// Part that has to be left over for a mark.
pub const MARK_LEAST: f64 = 0.4;
/// A clock below the peers' by less than this is noise.
const CLOCK_NOISE: f64 = 0.015;
/// A part of the window more than this beyond the peers' is no noise.
const PART_NOISE: f64 = 0.05;
/// °C above its peers from which heat slows a GPU down, where it is not known what does: inlet and slot alone make 8.
const HOTTER: f64 = 10.0;
/// Pressure of the host from which it says what a wait for data is of.
const PRESSURE: f64 = 0.1;
/// … and it has to be this many times the peers'.
const PRESSURE_TIMES: f64 = 2.0;

/// Why.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nothing that was read explains it.
    #[default]
    Unknown,
    /// The GPU is broken.
    GpuFault,
    /// Its memory makes errors.
    GpuMemory,
    /// Heat.
    Heat,
    /// The board's or the power supply's brake.
    PowerBrake,
    /// The power cap.
    PowerCap,
    /// A clock that is low for no reason that the GPU gives: set by somebody.
    Clocks,
    /// PCIe below what it was.
    Pcie,
    /// An NVLink down or with errors.
    Nvlink,
    /// A network device with errors, or down.
    Network,
    /// The host's CPU: steal, or too many who want it.
    HostCpu,
    /// The host's memory.
    HostMemory,
    /// The disk or network storage that data comes from.
    Storage,
    /// The input pipeline.
    Data,
    /// What the run itself does: its program or its numbers.
    Program,
    /// Nobody gives it work.
    NoWork,
    /// The agent or the way to it.
    Connection,
    /// What an agent that is heard reads from: the driver, an exporter, the kubelet.
    Reader,
    /// What a team spends.
    Spending,
}

/// A reading behind a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// What was read, in words.
    pub name: String,
    /// The value.
    pub value: f64,
    /// What is usual, or the limit it is over; none where the value says it all.
    pub usual: Option<f64>,
    /// The suffix of its unit in the catalog's words: `celsius`, `ratio`; empty for plain counts.
    pub unit: String,
}

/// A reading of the rank over the window, and the median of its peers'.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pair {
    /// The rank's.
    pub own: Option<f64>,
    /// Its peers'.
    pub like: Option<f64>,
}

/// What is known of a rank, its GPU and its node over the window. None is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rank {
    /// Its own part of a step ÷ its peers' (1.2 is a fifth longer); infinite for one that stands.
    pub slowness: f64,
    /// Clock of the SMs, hertz.
    pub sm_clock: Pair,
    /// Parts of the window slowed down by heat, by the brake, by the power cap.
    pub heat_part: Pair,
    /// See `heat_part`.
    pub brake_part: Pair,
    /// See `heat_part`.
    pub cap_part: Pair,
    /// Temperature of its GPU, °C.
    pub temperature: Pair,
    /// Part of a step that it waits in collectives for others.
    pub collective_wait: Pair,
    /// Time it waited for data in a step ÷ the peers' time for a step.
    pub data_wait: Pair,
    /// Part of the CPU time that the hypervisor took.
    pub steal: Pair,
    /// Pressure stall information, as the parts of the window in which some task waited.
    pub cpu_pressure: Pair,
    /// See `cpu_pressure`.
    pub memory_pressure: Pair,
    /// See `cpu_pressure`.
    pub io_pressure: Pair,
    /// Whether it had a fatal XID, was lost, or its driver hung.
    pub is_broken: Option<bool>,
    /// Errors of its memory that could not be corrected.
    pub ecc_uncorrectable: Option<u64>,
    /// Corrected ones an hour.
    pub ecc_corrected_per_hour: Option<f64>,
    /// Whether rows wait for a remapping or could not be remapped.
    pub has_remap_trouble: Option<bool>,
    /// Its PCIe link now and at best.
    pub pcie: Option<Pcie>,
    /// NVLinks that are up; beside them not its peers', but those that should be.
    pub nvlinks_up: Pair,
    /// The XID that broke its GPU, or else the newest that one of its NVLinks raised lately.
    pub xid: Option<u32>,
    /// Errors of its network devices a second.
    pub nic_errors: Pair,
    /// Network devices that are down.
    pub nics_down: Option<u32>,
}

/// A cause with how much of the excess it explains.
#[derive(Debug, Clone, PartialEq)]
pub struct Explains {
    /// The cause.
    pub cause: Cause,
    /// Part of the excess, at most 1.
    pub part: f64,
    /// The readings that say so.
    pub readings: Vec<Reading>,
}

/// The verdict: the likeliest cause first; empty is unknown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Verdict(pub Vec<Explains>);

impl Cause {
    /// The name in the API, on the page and in SQL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::GpuFault => "gpu_fault",
            Self::GpuMemory => "gpu_memory",
            Self::Heat => "heat",
            Self::PowerBrake => "power_brake",
            Self::PowerCap => "power_cap",
            Self::Clocks => "clocks",
            Self::Pcie => "pcie",
            Self::Nvlink => "nvlink",
            Self::Network => "network",
            Self::HostCpu => "host_cpu",
            Self::HostMemory => "host_memory",
            Self::Storage => "storage",
            Self::Data => "data",
            Self::Program => "program",
            Self::NoWork => "no_work",
            Self::Connection => "connection",
            Self::Reader => "reader",
            Self::Spending => "spending",
        }
    }

    /// In words, behind "because of".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Unknown => "an unknown cause",
            Self::GpuFault => "a broken GPU",
            Self::GpuMemory => "errors of the GPU's memory",
            Self::Heat => "heat",
            Self::PowerBrake => "the power supply's brake",
            Self::PowerCap => "the power cap",
            Self::Clocks => "clocks that are set low",
            Self::Pcie => "a PCIe link below what it was",
            Self::Nvlink => "an NVLink that is down or has errors",
            Self::Network => "the network",
            Self::HostCpu => "the host's CPU",
            Self::HostMemory => "the host's memory",
            Self::Storage => "storage",
            Self::Data => "the input pipeline",
            Self::Program => "the run itself",
            Self::NoWork => "nobody giving it work",
            Self::Connection => "the agent or the way to it",
            Self::Reader => "what the agent reads from",
            Self::Spending => "what the team spends",
        }
    }

    /// Whether it is one.
    pub const fn is_known(self) -> bool {
        !matches!(self, Self::Unknown)
    }
}

impl Reading {
    /// A reading beside what is usual.
    pub fn new(name: &str, value: f64, usual: Option<f64>, unit: Unit) -> Self {
        Self {
            name: name.to_owned(),
            value,
            usual,
            unit: unit.suffix().unwrap_or_default().to_owned(),
        }
    }
}

impl Pair {
    /// Both readings.
    pub const fn new(own: f64, like: f64) -> Self {
        Self {
            own: Some(own),
            like: Some(like),
        }
    }

    /// By how much the own one is above the peers'; none without either.
    fn beyond(self) -> Option<f64> {
        let difference = self.own? - self.like?;
        difference.is_finite().then_some(difference)
    }

    /// Whether it is at least `least` and so many times the peers'.
    fn is_apart(self, least: f64, times: f64) -> bool {
        let apart = |own: f64, like: f64| own >= least && own >= times * like;
        self.own
            .zip(self.like)
            .is_some_and(|(own, like)| apart(own, like))
    }

    fn reading(self, name: &str, unit: Unit) -> Option<Reading> {
        Some(Reading::new(name, self.own?, self.like, unit))
    }
}

impl Rank {
    /// What is shown beside every verdict, also where the cause is unknown.
    pub fn beside(&self) -> Vec<Reading> {
        let waits = self
            .collective_wait
            .reading("waiting in collectives, of a step", Unit::Ratio);
        let celsius = self.temperature.reading("temperature", Unit::Celsius);
        celsius.into_iter().chain(waits).collect()
    }
}

impl Verdict {
    /// The likeliest cause.
    pub fn cause(&self) -> Cause {
        self.0.first().map_or(Cause::Unknown, |it| it.cause)
    }
}

/// Names what explains the excess.
pub fn judge(rank: &Rank) -> Verdict {
    let excess = rank.slowness - 1.0;
    if excess.is_nan() || excess <= 0.0 {
        return Verdict::default();
    }
    let mut found = of_clock(rank);
    found.extend(of_host(rank));
    let explained: f64 = found.iter().map(|it| it.part).sum();
    for it in &mut found {
        it.part = (it.part / excess).min(1.0);
    }
    let left = if excess.is_finite() {
        1.0 - explained / excess
    } else {
        1.0
    };
    if left >= MARK_LEAST
        && let Some((cause, readings)) = mark(rank)
    {
        found.push(Explains {
            cause,
            part: left,
            readings,
        });
    }
    named(found)
}

/// Those that explain enough, the greatest first; none where the greatest is too small.
fn named(mut found: Vec<Explains>) -> Verdict {
    found.retain(|it| it.part >= ALSO);
    found.sort_by(|one, other| other.part.total_cmp(&one.part));
    if found.first().is_none_or(|it| it.part < NAMED) {
        found.clear();
    }
    Verdict(found)
}

/// What a lower clock explains, shared out among what holds it down.
fn of_clock(rank: &Rank) -> Vec<Explains> {
    let (Some(own), Some(like)) = (rank.sm_clock.own, rank.sm_clock.like) else {
        return Vec::new();
    };
    let slower = like / own - 1.0;
    if !slower.is_finite() || slower < CLOCK_NOISE {
        return Vec::new();
    }
    let beyond = held_down(rank);
    let clock = || rank.sm_clock.reading("clock of the SMs", Unit::Hertz);
    let all: f64 = beyond.iter().map(|it| it.1).sum();
    if beyond.is_empty() {
        // That nothing holds it down has to be known, and not only not be told.
        let reasons = [rank.heat_part, rank.brake_part, rank.cap_part];
        let is_known = reasons.iter().all(|it| it.beyond().is_some());
        // Heat that is read and slows nothing down is not why.
        let is_hotter = rank.temperature.beyond().is_some_and(|it| it >= HOTTER);
        let is_hot = is_hotter && rank.heat_part.beyond().is_none();
        let clocks = (is_known || is_hot).then(|| Explains {
            cause: if is_known { Cause::Clocks } else { Cause::Heat },
            part: slower,
            readings: clock().into_iter().collect(),
        });
        return clocks.into_iter().collect();
    }
    let share = |(cause, part, reading): (Cause, f64, Option<Reading>)| Explains {
        cause,
        part: slower * part / all,
        readings: reading.into_iter().chain(clock()).collect(),
    };
    beyond.into_iter().map(share).collect()
}

/// What held the clock down for more of the window than it did the peers'.
fn held_down(rank: &Rank) -> Vec<(Cause, f64, Option<Reading>)> {
    let reasons = [
        (Cause::Heat, rank.heat_part, "slowed down by heat"),
        (
            Cause::PowerBrake,
            rank.brake_part,
            "slowed down by the brake",
        ),
        (
            Cause::PowerCap,
            rank.cap_part,
            "slowed down by the power cap",
        ),
    ];
    let beyond = |(cause, part, name): (Cause, Pair, &str)| {
        let beyond = part.beyond().filter(|it| *it > PART_NOISE)?;
        Some((cause, beyond, part.reading(name, Unit::Ratio)))
    };
    reasons.into_iter().filter_map(beyond).collect()
}

/// What waiting for data and a pressed host explain.
fn of_host(rank: &Rank) -> Vec<Explains> {
    let waits = rank.data_wait.beyond().filter(|it| *it > 0.01);
    let hosts = [
        (Cause::HostCpu, rank.steal, "CPU time stolen"),
        (Cause::HostCpu, rank.cpu_pressure, "waiting for a CPU"),
        (
            Cause::HostMemory,
            rank.memory_pressure,
            "waiting for memory",
        ),
        (Cause::Storage, rank.io_pressure, "waiting for I/O"),
    ];
    let pressed: Vec<(Cause, f64, Option<Reading>)> = hosts
        .into_iter()
        .filter(|(_, part, _)| part.is_apart(PRESSURE, PRESSURE_TIMES))
        .filter_map(|(cause, part, name)| {
            Some((cause, part.beyond()?, part.reading(name, Unit::Ratio)))
        })
        .collect();
    let wait = || rank.data_wait.reading("waiting for data", Unit::Ratio);
    let most = pressed
        .iter()
        .max_by(|one, other| one.1.total_cmp(&other.1));
    match (waits, most) {
        (Some(waits), Some((cause, beyond, reading))) => {
            // I/O that waits does so while the loader waits for it; a pressed CPU slows the rest too.
            let part = if *cause == Cause::Storage {
                waits
            } else {
                waits.max(*beyond)
            };
            vec![Explains {
                cause: *cause,
                part,
                readings: reading.iter().cloned().chain(wait()).collect(),
            }]
        }
        (Some(waits), None) => {
            // Without these readings of the host it is not known what the loader waits for.
            let needed = [rank.io_pressure, rank.cpu_pressure];
            let is_known = needed.iter().all(|it| it.beyond().is_some());
            let data = is_known.then(|| Explains {
                cause: Cause::Data,
                part: waits,
                readings: wait().into_iter().collect(),
            });
            data.into_iter().collect()
        }
        (None, Some((cause, beyond, reading))) if *cause != Cause::Storage => vec![Explains {
            cause: *cause,
            part: *beyond,
            readings: reading.iter().cloned().collect(),
        }],
        (None, _) => Vec::new(),
    }
}
