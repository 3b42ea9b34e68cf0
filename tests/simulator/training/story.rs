//! What happens to the ranks of a simulated job, as their agents tell it.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{Ended, RankId, RunId, attribute, fingerprint_attributes};

use super::Run;
use super::cast::{Cast, Seat};
use crate::simulator::gpu::XID_GPU;
use crate::simulator::schedule::{Attempt, ENDING_XID, Size};
use crate::simulator::trouble::RankGpu;

const SECOND: i64 = 1_000_000_000;
/// So long after the first rank the others give up waiting for it.
const ECHO_AFTER: i64 = 60 * SECOND;
/// The same of an attempt that a fault ends: within its tick.
const FAULT_ECHO_AFTER: i64 = 5 * SECOND;
/// How long a checkpoint takes to save, and to go back to.
const SAVE_SECONDS: u32 = 48;
const RESTORE_SECONDS: u32 = 60;

/// How far a rank came.
#[derive(Debug, Clone, Copy)]
struct Last {
    step: u64,
    /// The step of the last checkpoint, where any are saved.
    checkpoint: Option<u64>,
}

impl Last {
    fn of(cast: &Cast, step: u64) -> Self {
        let cycle = cast.checkpoint_steps();
        Self {
            step,
            checkpoint: cycle.map(|cycle| step - step % cycle).filter(|it| *it > 0),
        }
    }
}

/// How a rank died.
struct Death<'a> {
    exception: &'a str,
    message: &'a str,
    phase: &'a str,
}

/// A rank came up.
pub(super) fn started(cast: &Cast, rank: &Resource, at: Timestamp, attempt: u32) -> Event {
    let nccl = if attempt.is_multiple_of(2) {
        "2.27.5"
    } else {
        "2.28.3"
    };
    let made_of = [
        ("python", "3.12.11"),
        ("kernel", "6.8.0-1031-gke"),
        ("torch", "2.9.1"),
        ("cuda", "12.8"),
        ("nccl", nccl),
        ("driver", "570.133.20"),
        ("gpu", "NVIDIA H100 80GB HBM3"),
        ("matmul_precision", "high"),
        (
            "parallel",
            if cast.size() == Size::Large {
                "tp4 pp2 dp4"
            } else {
                "dp8"
            },
        ),
    ];
    let made_of = made_of.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let (attributes, _) = fingerprint_attributes(&BTreeMap::from(made_of));
    Event {
        at,
        kind: EventKind::RunStarted,
        severity: Severity::Info,
        resource_kind: ResourceKind::Rank,
        resource_id: Arc::clone(&rank.id),
        message: "a rank of a training run came up".to_owned(),
        attributes: attributes.into_iter().collect(),
    }
}

/// A checkpoint was saved or gone back to.
pub(super) fn checkpoint(rank: &Arc<Resource>, at: Timestamp, step: u64, is_saved: bool) -> Event {
    let (kind, verb, seconds) = match is_saved {
        true => (EventKind::CheckpointSaved, "saved", SAVE_SECONDS),
        false => (
            EventKind::CheckpointRestored,
            "went back to",
            RESTORE_SECONDS,
        ),
    };
    event(
        kind,
        Severity::Info,
        (ResourceKind::Rank, &rank.id),
        at,
        format!("{verb} the checkpoint of step {step}"),
        &[
            (attribute::STEP, &step.to_string()),
            (attribute::SECONDS, &seconds.to_string()),
        ],
    )
}

/// What this node's agent tells of the end that the schedule has for the attempt.
pub(super) fn ending(cast: &Cast, attempt: &Attempt, run: &RunId, step: u64) -> Vec<Event> {
    let last = Last::of(cast, step);
    let at = attempt.ends;
    let seats = || cast.seats();
    if cast.size() == Size::Small {
        return seats()
            .map(|seat| {
                rank_ended(
                    run,
                    seat,
                    at,
                    Ended::Finished,
                    last,
                    &[(attribute::EXIT_STATUS, "0")],
                )
            })
            .collect();
    }
    let mut events = Vec::new();
    if !attempt.ends_by_xid() {
        let first = cast.exception_rank();
        let death = Death {
            exception: "torch.OutOfMemoryError",
            message: "CUDA out of memory. Tried to allocate 3.91 GiB. GPU 6 has a total capacity of 79.11 GiB of which 1.02 GiB is free.",
            phase: "backward",
        };
        for seat in seats() {
            if seat.rank == first {
                events.extend(died(run, seat, at, last, &death));
            } else {
                // torchrun's way: the launcher tells the others to stop.
                let told = [(attribute::SIGNAL, "15")];
                let at = at.shifted(5 * SECOND);
                events.push(rank_ended(run, seat, at, Ended::Stopped, last, &told));
            }
        }
        return events;
    }
    let first = cast.rank_on(XID_GPU);
    let death = Death {
        exception: "torch.AcceleratorError",
        message: "CUDA error: uncorrectable ECC error encountered",
        phase: "backward",
    };
    for seat in seats() {
        if seat.rank == first {
            events.push(event(
                EventKind::Xid,
                Severity::Error,
                (ResourceKind::Gpu, cast.gpu_id(seat.gpu)),
                at,
                "an uncorrectable memory error was contained (XID 94)".to_owned(),
                &[
                    ("xid", &ENDING_XID.to_string()),
                    ("action", "restart the application"),
                ],
            ));
            events.extend(died(run, seat, at.shifted(2 * SECOND), last, &death));
        } else {
            events.extend(gave_up(run, seat, at.shifted(ECHO_AFTER), last));
        }
    }
    events
}

/// What this node's agent tells when a fault ends the attempt.
pub(super) fn broken(
    cast: &Cast,
    run: &Run,
    fault: RankGpu,
    at: Timestamp,
    step: u64,
) -> Vec<Event> {
    let last = Last::of(cast, step);
    let culprit = run
        .ranks
        .iter()
        .find(|(seat, ..)| (seat.node, seat.gpu) == (fault.node, fault.gpu));
    let death = Death {
        exception: "torch.AcceleratorError",
        message: "CUDA error: unspecified launch failure",
        phase: "backward",
    };
    let mut events = Vec::new();
    for seat in cast.seats() {
        if culprit.is_some_and(|(it, ..)| *it == seat) {
            events.extend(died(&run.id, seat, at.shifted(2 * SECOND), last, &death));
        } else {
            events.extend(gave_up(&run.id, seat, at.shifted(FAULT_ECHO_AFTER), last));
        }
    }
    events
}

/// A rank that waited for one that did not come any more.
fn gave_up(run: &RunId, seat: Seat, at: Timestamp, last: Last) -> [Event; 2] {
    let death = Death {
        exception: "torch.distributed.DistBackendError",
        message: "NCCL communicator was aborted: remote process exited or there was a network error",
        phase: "communication",
    };
    died(run, seat, at, last, &death)
}

/// An exception that nobody caught, and the end of its rank.
fn died(run: &RunId, seat: Seat, at: Timestamp, last: Last, death: &Death<'_>) -> [Event; 2] {
    let id = rank_id(run, seat);
    let step = last.step.to_string();
    let traceback = format!(
        "  File \"train.py\", line 212, in step\n    loss.backward()\n{}: {}",
        death.exception, death.message
    );
    let exception = event(
        EventKind::RankException,
        Severity::Error,
        (ResourceKind::Rank, &id),
        at,
        format!("died of {}: {}", death.exception, death.message),
        &[
            (attribute::EXCEPTION, death.exception),
            (attribute::EXCEPTION_MESSAGE, death.message),
            (attribute::TRACEBACK, &traceback),
            (attribute::STEP, &step),
        ],
    );
    let about = [
        (attribute::EXCEPTION, death.exception),
        (attribute::PHASE, death.phase),
        (attribute::EXIT_STATUS, "1"),
    ];
    let end = at.shifted(SECOND);
    [
        exception,
        rank_ended(run, seat, end, Ended::Exception, last, &about),
    ]
}

fn rank_ended(
    run: &RunId,
    seat: Seat,
    at: Timestamp,
    ended: Ended,
    last: Last,
    more: &[(&str, &str)],
) -> Event {
    let severity = match ended {
        Ended::Finished | Ended::Stopped => Severity::Info,
        Ended::Exception | Ended::Vanished => Severity::Error,
    };
    let step = last.step.to_string();
    let about = [(attribute::ENDED, ended.name()), (attribute::STEP, &step)];
    let checkpoint = last.checkpoint.map(|it| it.to_string());
    let checkpoint = checkpoint.as_deref();
    let checkpoint = checkpoint.map(|it| (attribute::CHECKPOINT_STEP, it));
    let all = about.iter().chain(more).copied().chain(checkpoint);
    let all: Vec<(&str, &str)> = all.collect();
    event(
        EventKind::RunEnded,
        severity,
        (ResourceKind::Rank, &rank_id(run, seat)),
        at,
        format!("a rank ended ({}) after step {step}", ended.name()),
        &all,
    )
}

fn rank_id(run: &RunId, seat: Seat) -> String {
    let id = RankId {
        job: run.job.clone(),
        attempt: run.attempt,
        rank: seat.rank,
    };
    id.to_string()
}

fn event(
    kind: EventKind,
    severity: Severity,
    (resource_kind, id): (ResourceKind, &str),
    at: Timestamp,
    message: String,
    attributes: &[(&str, &str)],
) -> Event {
    let attributes = attributes.iter();
    Event {
        at,
        kind,
        severity,
        resource_kind,
        resource_id: id.into(),
        message,
        attributes: attributes
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}
