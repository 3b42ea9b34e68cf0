//! Discrete facts: what happened, to what, when. They travel as OTLP log records, flushed at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::identity::ResourceKind;
use crate::time::Timestamp;

/// Most attributes one event may carry; more are refused by the decoder.
pub const MAX_ATTRIBUTES: usize = 32;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The agent started; attributes: version, epoch, why a new epoch.
    AgentStarted,
    /// Another process sends under the same agent id: a cloned disk or a second agent.
    AgentIdConflict,
    /// A GPU appeared.
    GpuAdded,
    /// A GPU is no longer listed by the driver.
    GpuRemoved,
    /// A GPU is listed but cannot be reached.
    GpuLost,
    /// A lost or reset GPU answers again.
    GpuRecovered,
    /// A GPU was reset (its boot-time counters went back, or the driver said so).
    GpuReset,
    /// The MIG layout changed.
    MigChanged,
    /// The driver or library version changed while the agent ran.
    DriverChanged,
    /// A driver call did not return; attributes: gpu, function, since.
    DriverHang,
    /// The driver answers again after a hang.
    DriverRecovered,
    /// An XID; attributes: xid, action, and the process where the driver gives it; the server adds the holder.
    Xid,
    /// The driver recommends an action (NVML field 230); attribute: action.
    RecoveryAction,
    /// A reader went from working to failing; attribute: error.
    ReaderFailed,
    /// A reader works again.
    ReaderRecovered,
    /// The spool was full, corrupt or unwritable; attributes: stream, first, last, why.
    SpoolDropped,
    /// The result of a command; attributes: command id, verdict, reason.
    CommandResult,
    /// Two agents report one GPU: the points of one are left out; attributes: owner, owner_node,
    /// second, second_node.
    GpuReportedTwice,
    /// The wall clock of the node is off by more than is corrected; attribute: offset.
    ClockOffset,
    /// A rank of a training run came up; attributes: its fingerprint.
    RunStarted,
    /// A rank of a training run ended; attributes: how, its last step and last checkpoint.
    RunEnded,
    /// A rank died of an exception that nobody caught; attributes: type, first line, traceback, step.
    RankException,
    /// A rank saved a checkpoint; attributes: step, seconds.
    CheckpointSaved,
    /// A rank went back to a checkpoint; attributes: step, seconds.
    CheckpointRestored,
    /// What a run is made of changed while it ran; attributes: the new fingerprint.
    FingerprintChanged,
    /// A collective has been in flight for longer than it ever took; attributes: communicator,
    /// function, sequence number, since.
    CollectiveStuck,
    /// The probe computed on a GPU and its verdict changed, or somebody had asked; attributes: verdict,
    /// reason, and the SM that is to blame.
    Probed,
    /// A rank's process captured a profile that was asked for, or could not; attributes: path, bytes, step, steps,
    /// or the reason.
    Profiled,
    /// Steps of a rank are in its totals and not in its blocks: the process had written over them when
    /// the agent came to read; attribute: steps.
    StepsMissed,
    /// The provider said that it takes this Spot machine back, within seconds.
    PreemptionNoticed,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth a line in the history.
    Info,
    /// Worth a look.
    Warning,
    /// Something is broken.
    Error,
}

/// One discrete fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened, or was first seen.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
    /// How bad it is.
    pub severity: Severity,
    /// The kind of the resource it is about.
    pub resource_kind: ResourceKind,
    /// The id of the resource it is about.
    pub resource_id: Arc<str>,
    /// One sentence a person can read.
    pub message: String,
    /// The readings behind it, by name.
    pub attributes: BTreeMap<String, String>,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 30] = [
        Self::AgentStarted,
        Self::AgentIdConflict,
        Self::GpuAdded,
        Self::GpuRemoved,
        Self::GpuLost,
        Self::GpuRecovered,
        Self::GpuReset,
        Self::MigChanged,
        Self::DriverChanged,
        Self::DriverHang,
        Self::DriverRecovered,
        Self::Xid,
        Self::RecoveryAction,
        Self::ReaderFailed,
        Self::ReaderRecovered,
        Self::SpoolDropped,
        Self::CommandResult,
        Self::GpuReportedTwice,
        Self::ClockOffset,
        Self::RunStarted,
        Self::RunEnded,
        Self::RankException,
        Self::CheckpointSaved,
        Self::CheckpointRestored,
        Self::FingerprintChanged,
        Self::CollectiveStuck,
        Self::Probed,
        Self::Profiled,
        Self::StepsMissed,
        Self::PreemptionNoticed,
    ];

    /// The name on the wire (`gpufleet.<name>`), in SQL and on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AgentStarted => "agent_started",
            Self::AgentIdConflict => "agent_id_conflict",
            Self::GpuAdded => "gpu_added",
            Self::GpuRemoved => "gpu_removed",
            Self::GpuLost => "gpu_lost",
            Self::GpuRecovered => "gpu_recovered",
            Self::GpuReset => "gpu_reset",
            Self::MigChanged => "mig_changed",
            Self::DriverChanged => "driver_changed",
            Self::DriverHang => "driver_hang",
            Self::DriverRecovered => "driver_recovered",
            Self::Xid => "xid",
            Self::RecoveryAction => "recovery_action",
            Self::ReaderFailed => "reader_failed",
            Self::ReaderRecovered => "reader_recovered",
            Self::SpoolDropped => "spool_dropped",
            Self::CommandResult => "command_result",
            Self::GpuReportedTwice => "gpu_reported_twice",
            Self::ClockOffset => "clock_offset",
            Self::RunStarted => "run_started",
            Self::RunEnded => "run_ended",
            Self::RankException => "rank_exception",
            Self::CheckpointSaved => "checkpoint_saved",
            Self::CheckpointRestored => "checkpoint_restored",
            Self::FingerprintChanged => "fingerprint_changed",
            Self::CollectiveStuck => "collective_stuck",
            Self::Probed => "probed",
            Self::Profiled => "profiled",
            Self::StepsMissed => "steps_missed",
            Self::PreemptionNoticed => "preemption_noticed",
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl Severity {
    /// Every severity, the least first.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Error];

    /// The name in SQL and on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// The severity with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}
