//! The words for people, on pages and in messages alike: here what every reason and kind is called, and what
//! to do about it, one table each; in [`text`] names, numbers and times; in [`incident`] what is wrong; in
//! [`xid`] what the driver's errors ask for; in [`address`] where the page of a thing is; in [`digest`] a payer's week;
//! in [`Said`] which of them leave something open.
//!
//! The API says the same things by their names on the wire.

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_telemetry::catalog::Metric;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::training::CollectivesFrom;

pub mod numbers;

pub mod text;

pub mod address;

pub mod incident;

pub mod xid;

pub mod digest;

mod said;

pub use said::{Piece, Said};

/// What a reason for a missing value means, and what fixes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Why {
    /// The line of the page Health that mends it; empty where the monitor is not what is to be mended.
    pub anchor: &'static str,
    /// A few words for a table's cell.
    pub short: &'static str,
    /// One sentence that says what is the case.
    pub sentence: &'static str,
    /// One sentence that says what fixes it, or that nothing has to be done.
    pub fix: &'static str,
}

const fn why(
    anchor: &'static str,
    short: &'static str,
    sentence: &'static str,
    fix: &'static str,
) -> Why {
    Why {
        anchor,
        short,
        sentence,
        fix,
    }
}

/// The anchor of what is no trouble of the monitor.
const NOT_OURS: &str = "";

/// Why a value is missing, in words.
pub const fn missing(reason: Missing) -> Why {
    match reason {
        Missing::NotSupported => why(
            "missing-not_supported",
            "not supported by this card",
            "The driver says that this card, or the mode it is in, does not have this reading.",
            "Nothing to fix; under MIG look at the instances instead of the whole card.",
        ),
        Missing::NoPermission => why(
            "missing-no_permission",
            "no permission",
            "The agent may not read it.",
            "Run the agent as root, or allow profiling to all users with the driver option NVreg_RestrictProfilingToAdminUsers=0.",
        ),
        Missing::FunctionNotFound => why(
            "missing-function_not_found",
            "driver too old",
            "The installed driver does not know this reading yet.",
            "Update the NVIDIA driver on this node.",
        ),
        Missing::DriverNotLoaded => why(
            "missing-driver_not_loaded",
            "driver not loaded",
            "The NVIDIA driver is not loaded on this node.",
            "Load it (modprobe nvidia) or install it; on GKE wait for the driver installer to finish.",
        ),
        Missing::LibraryMismatch => why(
            "missing-library_mismatch",
            "driver updated, library old",
            "The loaded NVML library and the driver have different versions since a driver update.",
            "Restart the workloads that hold the old driver, or reboot the node.",
        ),
        Missing::GpuLost => why(
            "missing-gpu_lost",
            "GPU lost",
            "The GPU fell off the bus or no longer answers.",
            "Drain the node and reboot it; if the card is lost again, have it replaced.",
        ),
        Missing::ResetRequired => why(
            "missing-reset_required",
            "reset required",
            "The GPU needs a reset before it can be read.",
            "Drain the GPU's jobs, then run nvidia-smi --gpu-reset on this GPU.",
        ),
        Missing::DriverHang => why(
            "missing-driver_hang",
            "driver hangs",
            "A driver call did not return, so what it reads is left out while the rest goes on.",
            "Drain the node and reboot it; the hang is in the driver, not in the agent.",
        ),
        Missing::Timeout => why(
            "missing-timeout",
            "no answer in time",
            "The source did not answer before its deadline.",
            "If it stays, look at the node's load and at the reader's line on the node's page.",
        ),
        Missing::NotReady => why(
            "missing-not_ready",
            "no data yet",
            "The source has no data yet; a rate needs two readings.",
            "Wait for the next sample.",
        ),
        Missing::HeldByOther => why(
            "missing-held_by_other",
            "counters held by another tool",
            "Another client holds the profiling counters exclusively, as cards before Hopper demand.",
            "Stop that tool, or let the agent scrape its exporter.",
        ),
        Missing::Unreachable => why(
            "missing-unreachable",
            "source not reachable",
            "The source could not be reached: no socket, connection refused or file absent.",
            "Run gpufleet-agent doctor on the node; it names the address and what stands in the way.",
        ),
        Missing::Invalid => why(
            "missing-invalid",
            "not a valid value",
            "The source answered with something that cannot be a value of this reading.",
            "Update the driver or the exporter; the reader's events show what it sent.",
        ),
        Missing::Released => why(
            "missing-released",
            "released on request",
            "NVML was released on request, so that a driver reload or a GPU reset can go ahead.",
            "Send the agent the command to take it again when the work is done.",
        ),
        Missing::Unknown => why(
            "missing-unknown",
            "failed, reason unknown",
            "The source answered with an error that names no reason.",
            "Look at the agent's log on the node; run gpufleet-agent doctor there.",
        ),
    }
}

/// What a page says of a value that no point was ever received for.
pub const NEVER_SENT: Why = why(
    "missing-never_sent",
    "not reported",
    "No reader on this node reports it.",
    "Run gpufleet-agent doctor on the node; it says which readers are on and what each lacks.",
);

/// What sentences and cells say of what is not known, in whichever file they are made.
pub const OPEN: [&str; 6] = [
    "not known",
    "not told",
    "not said",
    "not measured",
    "no price",
    "without a price",
];

/// Whether words leave open what they are about: pages lead from there to the line of Health that mends it. Of words of
/// ours alone: a name of others may sound like that.
pub fn leaves_open(words: impl AsRef<str>) -> bool {
    let words = words.as_ref();
    words == "–" || OPEN.iter().any(|it| words.contains(it))
}

/// `graphics engine active` of `gpufleet_gpu_graphics_engine_active_ratio`.
pub fn plain_name(metric: &Metric) -> String {
    let name = metric.name;
    let name = name.split_once('_').map_or(name, |(_, rest)| rest);
    let name = name.split_once('_').map_or(name, |(_, rest)| rest);
    let name = name.strip_suffix("_total").unwrap_or(name);
    let unit = metric.unit.suffix().unwrap_or_default();
    let bare = name.strip_suffix(unit).unwrap_or(name);
    bare.trim_end_matches('_').replace('_', " ")
}

/// Why nothing is known of collectives, by what an agent says of the rank that stands for a run.
pub(crate) const fn no_collectives(from: Option<CollectivesFrom>) -> &'static str {
    match from {
        Some(CollectivesFrom::OneRank) => "One rank alone has no collectives.",
        Some(CollectivesFrom::SwitchedOff) => "The NCCL plugin is switched off.",
        Some(CollectivesFrom::NotLoaded) => {
            "The NCCL plugin is set and not loaded: NCCL loads it with its first communicator."
        }
        Some(CollectivesFrom::OtherPlugin) => {
            "Another plugin has NCCL's one place for a plugin, and its RAS service is of no help."
        }
        Some(CollectivesFrom::NotAsked) => {
            "No NCCL plugin is set in the run's environment, and NCCL's RAS service is not asked; docs/collectives.md says how to do either."
        }
        Some(CollectivesFrom::NotYet) => "NCCL's RAS service will be asked within a minute.",
        Some(CollectivesFrom::OtherNamespace) => {
            "NCCL's RAS service listens in the pod's network, which the agent may not enter."
        }
        Some(CollectivesFrom::NoAnswer) => {
            "Nobody answers for NCCL's RAS service: NCCL before 2.24, or it is switched off."
        }
        Some(CollectivesFrom::OldNccl) => "NCCL before 2.28.7 tells no counts by its RAS service.",
        Some(CollectivesFrom::NotInAnswer) => "NCCL answers and does not know this process.",
        Some(_) => "They are watched, and none was counted yet.",
        None => "No agent says where they are known from, or why not.",
    }
}

/// Where data comes from, in a word.
pub const fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Live => "Live",
        Origin::Recorded => "Recorded",
        Origin::Simulated => "Simulated",
    }
}

/// The word of the watermark; none for live data.
pub const fn watermark(origin: Origin) -> Option<&'static str> {
    match origin {
        Origin::Live => None,
        Origin::Recorded => Some("RECORDED"),
        Origin::Simulated => Some("SIMULATED"),
    }
}

/// What the watermark means.
pub const fn watermark_sentence(origin: Origin) -> &'static str {
    match origin {
        Origin::Live => "Read from hardware now.",
        Origin::Recorded => {
            "Played back from a recording of real hardware. Not running now, and in no live total."
        }
        Origin::Simulated => {
            "Made by the simulator. No such hardware exists, and it is in no live total."
        }
    }
}

/// How a state looks and what it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The letter on the tile: it says the state without the colour.
    pub letter: char,
    /// The class of the tile's colour in the style sheet, the part after `s-` and `f-`.
    pub class: char,
    /// A word or two.
    pub name: &'static str,
}

/// The order in which states are listed and stacked.
pub const ORDER: [State; 13] = gpufleet_analysis::report::STACK;

/// How a state looks. The three kinds of active share a look: the split needs a job's target.
pub const fn look(state: State) -> Look {
    let (letter, class, name) = match state {
        State::ActiveEfficient | State::ActiveInefficient | State::ActiveUnrated => {
            ('A', 'a', "active")
        }
        State::Gap => ('G', 'g', "gap"),
        State::Parked => ('P', 'p', "parked"),
        State::HeldEmpty => ('E', 'h', "held, empty"),
        State::Unallocated => ('F', 'f', "free"),
        State::Stalled => ('S', 's', "stalled"),
        State::Unhealthy => ('!', 'x', "unhealthy"),
        State::StartingNode => ('N', 'n', "node starting"),
        State::StartingPod => ('N', 'n', "pod starting"),
        State::Draining => ('D', 'd', "draining"),
        State::Unobserved => ('?', 'u', "not measured"),
    };
    Look {
        letter,
        class,
        name,
    }
}

/// What the letter on a tile means, in words.
pub const fn meaning(state: State) -> &'static str {
    match state {
        // They share a letter.
        State::ActiveEfficient | State::ActiveInefficient | State::ActiveUnrated => {
            "held, and its engine works"
        }
        other => other.help(),
    }
}

/// Why a GPU is in its state, in words, and what to do; none where the state says it all.
pub const fn reason(reason: Reason) -> Option<Why> {
    Some(match reason {
        Reason::Unknown => return None,
        Reason::NoSample => why(
            "state-no_sample",
            "no sample",
            "Nothing has come from it for more than two ticks.",
            "Look whether the agent on its node runs: systemctl status gpufleet-agent, or the pod of the DaemonSet.",
        ),
        Reason::HolderUnknown => why(
            "state-holder_unknown",
            "holder unknown",
            "It is measured, but nobody can say who holds it, or it works though nobody is known to: its time is called neither idle nor somebody's.",
            "Look whose processes are on it (nvidia-smi on the node); run the agent with the host's process namespace (hostPID) so that it sees them, or where it reads an exporter alone, have that name the pods: gpufleet-agent doctor says whether it does.",
        ),
        Reason::ActivityUnknown => why(
            "state-activity_unknown",
            "activity unknown",
            "Its source reports neither engine activity nor utilisation.",
            "Add DCGM_FI_PROF_GR_ENGINE_ACTIVE or DCGM_FI_DEV_GPU_UTIL to the exporter, or run the agent with NVML on the node.",
        ),
        Reason::FatalXid => why(
            NOT_OURS,
            "fatal XID",
            "An XID came after which the GPU must be reset or its node rebooted.",
            "See the XID's action in the events below.",
        ),
        Reason::DeviceLost => missing(Missing::GpuLost),
        Reason::DriverHang => missing(Missing::DriverHang),
        Reason::RecoveryAction => why(
            NOT_OURS,
            "driver asks for action",
            "The driver asks for a reset, a drain or a reboot.",
            "See the recovery action among the readings.",
        ),
        Reason::MemoryUnknown => why(
            "state-memory_unknown",
            "memory unknown",
            "How much of its memory is in use is not known, so it may as well be empty.",
            "Nothing to fix where the card does not report it; else run gpufleet-agent doctor on the node.",
        ),
        Reason::NodeNotReady => why(
            NOT_OURS,
            "node not ready",
            "Its node was ready and is not any more.",
            "See the node's conditions and its kubelet's log.",
        ),
        Reason::NoDemand => why(
            NOT_OURS,
            "no demand",
            "Nobody waits for GPUs.",
            "Scale the pool down, or give the capacity back.",
        ),
        Reason::Fragmented => why(
            NOT_OURS,
            "fragmented",
            "Who waits needs more GPUs than are free in one place.",
            "Pack small jobs onto fewer nodes, or move them away.",
        ),
        Reason::ReservedHold => why(
            NOT_OURS,
            "held back",
            "It is kept free for a reservation.",
            "Ask the reservation's owner whether it is still needed.",
        ),
        Reason::Stranded => why(
            NOT_OURS,
            "stranded part",
            "None of its shares has this part of the GPU.",
            "Choose shares that fill the GPU.",
        ),
        Reason::ReservedUnused => why(
            NOT_OURS,
            "reserved, unused",
            "It is paid for and was never provisioned.",
            "Use it, sell it on, or let the commitment end.",
        ),
        Reason::WarmStandby => why(
            NOT_OURS,
            "standby",
            "It is inactive by design, as a standby of a service.",
            "Nothing, as long as the service needs the standby.",
        ),
    })
}

/// What happened, in a few words.
pub const fn event(kind: EventKind) -> &'static str {
    match kind {
        EventKind::AgentStarted => "agent started",
        EventKind::AgentIdConflict => "two agents with one id",
        EventKind::GpuAdded => "GPU added",
        EventKind::GpuRemoved => "GPU removed",
        EventKind::GpuLost => "GPU lost",
        EventKind::GpuRecovered => "GPU back",
        EventKind::GpuReset => "GPU reset",
        EventKind::MigChanged => "MIG layout changed",
        EventKind::DriverChanged => "driver changed",
        EventKind::DriverHang => "driver hangs",
        EventKind::DriverRecovered => "driver answers again",
        EventKind::Xid => "XID",
        EventKind::RecoveryAction => "driver asks for action",
        EventKind::ReaderFailed => "reader fails",
        EventKind::ReaderRecovered => "reader works again",
        EventKind::SpoolDropped => "data given up",
        EventKind::CommandResult => "command answered",
        EventKind::GpuReportedTwice => "reported by two agents",
        EventKind::ClockOffset => "clock is off",
        EventKind::RunStarted => "rank started",
        EventKind::RunEnded => "rank ended",
        EventKind::RankException => "exception in a rank",
        EventKind::CheckpointSaved => "checkpoint saved",
        EventKind::CheckpointRestored => "checkpoint restored",
        EventKind::FingerprintChanged => "run's make-up changed",
        EventKind::CollectiveStuck => "collective is stuck",
        EventKind::Probed => "probed",
        EventKind::Profiled => "profiled",
        EventKind::StepsMissed => "steps not read",
        EventKind::PreemptionNoticed => "Spot machine is taken back",
    }
}

/// NVML's throttle bits in words, the idle bit left out: an idle card is not slowed down.
pub fn throttle(bits: u64) -> String {
    const BITS: [(u64, &str); 8] = [
        (0x2, "application clocks"),
        (0x4, "power cap"),
        (0x8, "hardware slowdown"),
        (0x10, "sync boost"),
        (0x20, "heat (software)"),
        (0x40, "heat (hardware)"),
        (0x80, "power brake"),
        (0x100, "display clocks"),
    ];
    let named: Vec<&str> = BITS
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    match (named.is_empty(), bits & !0x1ff) {
        (true, 0) => "none".to_owned(),
        (false, 0) => named.join(", "),
        (_, rest) => [named, vec![&format!("bits {rest:#x}")]]
            .concat()
            .join(", "),
    }
}

/// What the driver asks for (NVML field 230), in words.
pub const fn recovery_action(code: u64) -> &'static str {
    match code {
        0 => "nothing",
        1 => "reset the GPU",
        2 => "reboot the node",
        3 => "drain peer-to-peer traffic",
        4 => "drain the GPU's jobs, then reset it",
        _ => "something this version does not know",
    }
}

/// The verdict of the probe.
pub const fn probe_verdict(code: u64) -> &'static str {
    match code {
        1 => "pass",
        2 => "right, and slow",
        3 => "wrong results",
        4 => "could not measure",
        _ => "something this version does not know",
    }
}

#[cfg(test)]
mod tests;
