//! What happened to a rank, from what its regions say now and said before.
//!
//! The moment of an event is the one the process wrote, so that whoever begins anew and finds the same
//! region tells of it with the same moment, and not of a second one.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_hooks_shm::reader::Snapshot;
use gpufleet_hooks_shm::records::{End, Exception, Pairs, Profile};
use gpufleet_hooks_shm::words::{EndKind, ProbeVerdict, ProfileState};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{Ended, MAX_START_UP_NS, attribute, fingerprint_attributes};

/// How long the start of a rank waits for what the run is made of, which is written a moment later.
const FINGERPRINT_WITHIN: i64 = 10 * NANOS_PER_SECOND;

/// The end that a process wrote waits so long for the process to be gone: only then does the kernel say what it returned,
/// and how many were killed beside it.
const GONE_WITHIN: i64 = 10 * NANOS_PER_SECOND;

/// What was told of a process.
#[derive(Debug, Default)]
pub struct Told {
    started: bool,
    ended: bool,
    exception_at: i64,
    fingerprint: u64,
    saved: u64,
    restored: u64,
    probed: Option<ProbeVerdict>,
    profile: u64,
}

/// How a process ended; nothing where the kernel does not say (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// When that was seen; none: only now.
    pub at: Option<Timestamp>,
    /// What it returned.
    pub status: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// Processes that the kernel killed for want of memory in its container, pod or job since it was met.
    pub oom_kills: Option<u64>,
}

/// So many steps were written over before they were read.
pub fn missed(resource: &Resource, count: u64, now: Timestamp) -> Event {
    let about = attributes([(attribute::STEPS, count.to_string())]);
    let message = match count {
        1 => "1 step is in the totals only: it was written over unread".to_owned(),
        _ => format!("{count} steps are in the totals only: they were written over unread"),
    };
    let kind = EventKind::StepsMissed;
    event(resource, now.0, kind, Severity::Warning, message, about)
}

/// An event of this rank.
fn event(
    resource: &Resource,
    at: i64,
    kind: EventKind,
    severity: Severity,
    message: String,
    attributes: BTreeMap<String, String>,
) -> Event {
    Event {
        at: Timestamp(at),
        kind,
        severity,
        resource_kind: ResourceKind::Rank,
        resource_id: Arc::clone(&resource.id),
        message,
        attributes,
    }
}

/// What happened since the last call. `began` is when the process did, and `exit` says how it ended, once it has.
pub fn happened(
    resource: &Resource,
    snapshot: &Snapshot,
    began: Timestamp,
    exit: Option<Exit>,
    now: Timestamp,
    told: &mut Told,
) -> Vec<Event> {
    let mut events = Vec::new();
    let created = snapshot.header.created_at.unwrap_or(now.0);
    let fingerprint = snapshot.fingerprint.as_ref();
    let lives = exit.is_none();
    let is_late = now.0 - created > FINGERPRINT_WITHIN || !lives;
    if !told.started && (fingerprint.is_some() || is_late) {
        told.started = true;
        told.fingerprint = fingerprint.map_or(0, |it| it.generation);
        let kind = EventKind::RunStarted;
        let message = "a rank of a training run came up".to_owned();
        let mut about = fingerprint.map(made_of).unwrap_or_default();
        if (0..=MAX_START_UP_NS).contains(&Timestamp(created).since(began)) {
            about.insert(attribute::BEGAN.to_owned(), began.0.to_string());
        }
        events.push(event(
            resource,
            created,
            kind,
            Severity::Info,
            message,
            about,
        ));
    }
    if let Some(pairs) = fingerprint
        && told.started
        && pairs.generation != told.fingerprint
    {
        told.fingerprint = pairs.generation;
        let kind = EventKind::FingerprintChanged;
        let message = "what the run is made of changed".to_owned();
        let about = made_of(pairs);
        events.push(event(
            resource,
            now.0,
            kind,
            Severity::Warning,
            message,
            about,
        ));
    }
    events.extend(checkpoints(resource, snapshot, told));
    events.extend(profiled(resource, snapshot, told));
    if let Some(exception) = &snapshot.exception
        && exception.at != told.exception_at
    {
        told.exception_at = exception.at;
        events.push(died(resource, exception));
    }
    let is_over = |end: &End| now.0.saturating_sub(end.at) >= GONE_WITHIN;
    if !told.ended && (!lives || snapshot.end.as_ref().is_some_and(is_over)) {
        told.ended = true;
        events.push(ending(resource, snapshot, exit.unwrap_or_default(), now));
    }
    events
}

/// Checkpoints that were saved or gone back to since the last round; of several the last.
fn checkpoints(resource: &Resource, snapshot: &Snapshot, told: &mut Told) -> Vec<Event> {
    let mut events = Vec::new();
    let (saved, restored) = (EventKind::CheckpointSaved, EventKind::CheckpointRestored);
    let occasions = [
        (&snapshot.checkpoint_saved, &mut told.saved, saved, "saved"),
        (
            &snapshot.checkpoint_restored,
            &mut told.restored,
            restored,
            "went back to",
        ),
    ];
    for (occasion, count, kind, verb) in occasions {
        let Some(occasion) = occasion else { continue };
        if occasion.count == *count {
            continue;
        }
        *count = occasion.count;
        let (at, step) = (occasion.last_at, occasion.last_step);
        let seconds = occasion.last_ns as f64 / NANOS_PER_SECOND as f64;
        let about = attributes([
            (attribute::STEP, step.to_string()),
            (attribute::SECONDS, seconds.to_string()),
        ]);
        let message = format!("{verb} the checkpoint of step {step}");
        events.push(event(resource, at, kind, Severity::Info, message, about));
    }
    events
}

/// What a probe inside the process found, where it is the first, a failure or the end of one: for where no
/// agent tells of the GPU. A failure stands in the region until what failed was measured again and is right.
pub fn probed(resource: &Resource, snapshot: &Snapshot, told: &mut Told) -> Option<Event> {
    let probe = snapshot.probe.as_ref()?;
    let (before, now) = (told.probed.replace(probe.verdict), probe.verdict);
    let is_fail = |it| it == ProbeVerdict::Failed;
    if before == Some(now) || before.is_some_and(|it| !is_fail(it) && !is_fail(now)) {
        return None;
    }
    let (severity, verdict) = match probe.verdict {
        ProbeVerdict::Passed => (Severity::Info, "pass"),
        ProbeVerdict::Failed => (Severity::Error, "fail"),
        ProbeVerdict::CouldNotRun => (Severity::Warning, "could_not_measure"),
    };
    let mut about = attributes([
        ("verdict", verdict.to_owned()),
        ("reason", probe.reason.clone()),
    ]);
    about.extend(probe.sm.map(|it| ("sm".to_owned(), it.to_string())));
    let (words, reason) = (verdict.replace('_', " "), &probe.reason);
    let message = format!("inside a training process, probe: {words}: {reason}");
    let kind = EventKind::Probed;
    Some(event(resource, probe.at, kind, severity, message, about))
}

/// What became of a profile that was asked for.
fn profiled(resource: &Resource, snapshot: &Snapshot, told: &mut Told) -> Option<Event> {
    let profile = snapshot.profile.as_ref()?;
    if profile.state == ProfileState::Running || profile.number == told.profile {
        return None;
    }
    told.profile = profile.number;
    let mut about = attributes([(attribute::STEP, profile.step.to_string())]);
    let severity = match profile.state {
        ProfileState::Done => {
            about.extend(attributes([
                (attribute::STEPS, profile.steps.to_string()),
                (attribute::PATH, profile.text.clone()),
                (attribute::BYTES, profile.bytes.to_string()),
            ]));
            Severity::Info
        }
        ProfileState::Running | ProfileState::Failed => {
            about.extend(attributes([(attribute::REASON, profile.text.clone())]));
            Severity::Warning
        }
    };
    let (at, kind) = (profile.at, EventKind::Profiled);
    let message = outcome(profile);
    Some(event(resource, at, kind, severity, message, about))
}

/// What became of a profile, in words.
pub fn outcome(profile: &Profile) -> String {
    let Profile {
        step, steps, text, ..
    } = profile;
    match profile.state {
        ProfileState::Running => format!("a profile of the steps after step {step} is being taken"),
        ProfileState::Failed => format!("no profile of the steps after step {step}: {text}"),
        ProfileState::Done => {
            let megabytes = profile.bytes as f64 / 1e6;
            let plural = if *steps == 1 { "" } else { "s" };
            format!(
                "a profile of {steps} step{plural} after step {step}: {text} ({megabytes:.1} MB)"
            )
        }
    }
}

fn died(resource: &Resource, exception: &Exception) -> Event {
    let about = attributes([
        (attribute::EXCEPTION, exception.kind.clone()),
        (attribute::EXCEPTION_MESSAGE, exception.message.clone()),
        (attribute::TRACEBACK, exception.traceback.clone()),
        (attribute::STEP, exception.step.to_string()),
    ]);
    let message = format!("died of {}: {}", exception.kind, exception.message);
    let (at, kind) = (exception.at, EventKind::RankException);
    event(resource, at, kind, Severity::Error, message, about)
}

/// How and when it ended: as it said, else as it was found. Who did not know what it would return and ended well by its
/// own word did not where the kernel knows better: `raise SystemExit(3)` passes by all that a script can be asked.
fn ended(snapshot: &Snapshot, exit: Exit, now: Timestamp) -> (i64, Ended) {
    let Some(end) = snapshot.end else {
        return (exit.at.unwrap_or(now).0, Ended::Vanished);
    };
    let how = match end.kind {
        EndKind::Finished if end.exit_status < 0 && exit.status.is_some_and(|it| it != 0) => {
            Ended::Stopped
        }
        EndKind::Finished => Ended::Finished,
        EndKind::Stopped => Ended::Stopped,
        EndKind::Exception => Ended::Exception,
    };
    (end.at, how)
}

fn ending(resource: &Resource, snapshot: &Snapshot, exit: Exit, now: Timestamp) -> Event {
    let (at, ended) = ended(snapshot, exit, now);
    let severity = match ended {
        Ended::Finished | Ended::Stopped => Severity::Info,
        Ended::Exception | Ended::Vanished => Severity::Error,
    };
    let step = snapshot.totals.last_step;
    let mut about = attributes([
        (attribute::ENDED, ended.name().to_owned()),
        (attribute::STEP, step.to_string()),
    ]);
    let said = snapshot.end.map(|it| it.exit_status);
    let said = said.filter(|it| *it >= 0);
    let status = exit.status.map(i64::from).or(said);
    let status = status.map(|it| it.to_string());
    let saved = snapshot.checkpoint_saved.filter(|it| it.count > 0);
    let phase = snapshot.now.map(|it| it.phase.text().to_owned());
    let exception = snapshot.exception.as_ref().map(|it| it.kind.clone());
    let known = [
        (attribute::EXIT_STATUS, status),
        (attribute::SIGNAL, exit.signal.map(|it| it.to_string())),
        (
            attribute::OOM_KILLS,
            exit.oom_kills.filter(|it| *it > 0).map(|it| it.to_string()),
        ),
        (
            attribute::CHECKPOINT_STEP,
            saved.map(|it| it.last_step.to_string()),
        ),
        (attribute::PHASE, phase),
        (attribute::EXCEPTION, exception),
    ];
    for (name, value) in known {
        about.extend(value.map(|value| (name.to_owned(), value)));
    }
    let message = format!("a rank ended ({}) after step {step}", ended.name());
    event(resource, at, EventKind::RunEnded, severity, message, about)
}

fn made_of(pairs: &Pairs) -> BTreeMap<String, String> {
    let by_key = pairs.pairs.iter().cloned().collect();
    let (attributes, _left_out) = fingerprint_attributes(&by_key);
    attributes.into_iter().collect()
}

fn attributes<const COUNT: usize>(
    pairs: [(&'static str, String); COUNT],
) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
