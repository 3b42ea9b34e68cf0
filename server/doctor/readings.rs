//! What of live GPUs is not known: readings that are missing for a reason that can be mended, what they
//! do, and who holds them.

use std::sync::Arc;

use gpufleet_analysis::ledger::Reason;
use gpufleet_telemetry::catalog::{self, MetricId};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::sample::Missing;

use super::gather::{OfReason, Places};
use super::{Finding, Look, Looked};
use crate::view::GpuView;
use crate::words::text::{self, counted};
use crate::words::{self, Why, plain_name};

/// Readings that a finding names.
const NAMED: usize = 5;

/// Reasons of a state that are about the monitor.
const OF_STATES: [Reason; 4] = [
    Reason::NoSample,
    Reason::HolderUnknown,
    Reason::ActivityUnknown,
    Reason::MemoryUnknown,
];

/// Readings that are missing for a reason that can be mended.
pub(super) fn missing(look: &Look<'_>) -> Looked {
    let told = look.seen.missing.iter();
    let told = told.filter_map(|(reason, of)| Some(finding(*reason, severity(*reason)?, of)));
    Ok(told.collect())
}

fn finding(reason: Missing, severity: Severity, of: &OfReason) -> Finding {
    let why = words::missing(reason);
    let what = format!(
        "Readings of {} are missing: {}",
        counted(of.places.gpus(), "GPU", "GPUs"),
        why.short
    );
    let found = Finding::new(severity, why.anchor, what)
        .missing(names(&of.metrics.iter().copied().collect::<Vec<_>>()))
        .fix(format!("{} {}", why.sentence, why.fix))
        .on(&of.places);
    match line(reason) {
        Some(line) => found.line(line),
        None => found,
    }
}

/// The readings in words, the first few.
fn names(metrics: &[MetricId]) -> String {
    let known = metrics.iter().filter_map(|it| catalog::by_id(*it));
    let named: Vec<String> = known.map(plain_name).collect();
    let shown = named.len().min(NAMED);
    let more = named.len() - shown;
    let named = named[..shown].join(", ");
    match more {
        0 => named,
        _ => format!(
            "{named} and {}",
            counted(more, "more reading", "more readings")
        ),
    }
}

/// How bad it is; none of what nobody can or has to mend.
const fn severity(reason: Missing) -> Option<Severity> {
    Some(match reason {
        // The card is like that, and the first rate comes with the second reading.
        Missing::NotSupported | Missing::NotReady => return None,
        Missing::Released => Severity::Info,
        Missing::DriverHang | Missing::GpuLost | Missing::DriverNotLoaded => Severity::Error,
        Missing::NoPermission
        | Missing::FunctionNotFound
        | Missing::LibraryMismatch
        | Missing::ResetRequired
        | Missing::Timeout
        | Missing::HeldByOther
        | Missing::Unreachable
        | Missing::Invalid
        | Missing::Unknown => Severity::Warning,
    })
}

/// The line that mends it, or says more.
const fn line(reason: Missing) -> Option<&'static str> {
    Some(match reason {
        Missing::NoPermission => {
            "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-profiling.conf"
        }
        Missing::DriverNotLoaded => "modprobe nvidia",
        Missing::LibraryMismatch => "cat /proc/driver/nvidia/version; nvidia-smi",
        Missing::ResetRequired => "nvidia-smi --gpu-reset -i INDEX",
        Missing::Timeout | Missing::Unreachable | Missing::Unknown => "gpufleet-agent doctor",
        _ => return None,
    })
}

/// GPUs that are measured, of which it is not known whether they work.
pub(super) fn activity(look: &Look<'_>) -> Looked {
    let activity = of_state(look, Reason::ActivityUnknown);
    let memory = of_state(look, Reason::MemoryUnknown);
    let mut all = Vec::new();
    for (reason, places, missing) in [
        (
            Reason::ActivityUnknown,
            activity,
            "Whether they work; their time is not measured, and not called idle",
        ),
        (
            Reason::MemoryUnknown,
            memory,
            "Whether they are parked or held and empty",
        ),
    ] {
        all.extend(by_reason(reason, &places).map(|it| it.missing(missing)));
    }
    Ok(all)
}

/// GPUs of which it is not known who holds them, and those who do not say it.
pub(super) fn holders(look: &Look<'_>) -> Looked {
    let mut all = Vec::new();
    let places = of_state(look, Reason::HolderUnknown);
    if let Some(mut found) = by_reason(Reason::HolderUnknown, &places) {
        let reasons = look.seen.holder_unknown.iter();
        let reasons = reasons.map(|(reason, of)| {
            let reason = reason.replace('_', " ");
            format!("{reason}: {}", of.gpus())
        });
        let reasons: Vec<String> = reasons.collect();
        if !reasons.is_empty() {
            found.what = format!("{} ({})", found.what, reasons.join(", "));
        }
        all.push(found.missing("Who uses them and who pays; whether they are idle"));
    }
    for (source, places) in &look.seen.holders {
        let name = text::harmless(source, text::SHOWN_CHARACTERS);
        let what = format!(
            "{name} does not answer on {}",
            counted(places.nodes.len(), "node", "nodes")
        );
        let missing = match source.as_ref() {
            "kubernetes_claims" => {
                "Which pods there only look at GPUs (admin access of resource claims): they count as holding them"
            }
            "slurm_gpus" => {
                "Which jobs hold the GPUs there that have no processes; after 90 s it is not known"
            }
            _ => "Which pods and jobs hold the GPUs there; after 30 s nobody is named any more",
        };
        let found = Finding::new(Severity::Warning, format!("holders-{source}"), what)
            .missing(missing)
            .fix("The doctor on the node says what it lacks: the socket, a right of the service account, the program.")
            .line("gpufleet-agent doctor")
            .on(places);
        all.push(found);
    }
    let strange = &look.seen.strange_devices;
    if !strange.is_empty() {
        let what = format!(
            "On {} pods hold devices that are no GPU the agent sees",
            counted(strange.nodes.len(), "node", "nodes")
        );
        let found = Finding::new(Severity::Warning, "strange-devices", what)
            .missing("Which GPUs those pods hold")
            .fix("A device plugin names its devices in a way that this agent does not know; its doctor lists them.")
            .line("gpufleet-agent doctor")
            .on(strange);
        all.push(found);
    }
    let pods = &look.seen.pods_left_out;
    if !pods.is_empty() {
        let what = format!(
            "{} more pods than the agent has room for",
            counted(pods.nodes.len(), "node has", "nodes have")
        );
        let found = Finding::new(Severity::Info, "pods-left-out", what)
            .missing("Labels, owner and queue of the pods beyond; their names are known")
            .fix("Nothing to set: the limit is of the agent.")
            .on(pods);
        all.push(found);
    }
    Ok(all)
}

/// Live GPUs in a state for this reason.
fn of_state(look: &Look<'_>, reason: Reason) -> Places {
    let mut places = Places::default();
    let is_so = |gpu: &&GpuView| gpu.reason == reason;
    for cluster in look.view.of(Origin::Live) {
        for node in &cluster.nodes {
            let gpus = node.gpus.iter().filter(is_so).count();
            if gpus > 0 {
                let name = (Arc::clone(&cluster.name), Arc::clone(&node.name));
                places.add(&name, gpus, None);
            }
        }
    }
    places
}

fn by_reason(reason: Reason, places: &Places) -> Option<Finding> {
    let why = words::reason(reason).filter(|_| !places.is_empty())?;
    let what = format!("{}: {}", counted(places.gpus(), "GPU", "GPUs"), why.short);
    let found = Finding::new(Severity::Warning, why.anchor, what)
        .fix(format!("{} {}", why.sentence, why.fix))
        .on(places);
    Some(found)
}

/// Every reason for which a reading or a state is not known: pages lead to each.
pub(super) fn reasons() -> Vec<Why> {
    let of_states = OF_STATES.into_iter().filter_map(words::reason);
    let of_readings = Missing::ALL.map(words::missing).into_iter();
    let never = std::iter::once(words::NEVER_SENT);
    of_readings.chain(never).chain(of_states).collect()
}
