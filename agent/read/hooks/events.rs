//! What happened to a rank since the last round.

use std::sync::Arc;

use gpufleet_hooks_tell::events::{happened, missed};
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::time::Timestamp;

use super::process::Process;

/// What happened since the last round; nothing while nobody knows which rank the process is.
pub(super) fn of(process: &mut Process, now: Timestamp) -> Vec<Event> {
    let mut told = std::mem::take(&mut process.told);
    let mut events = match (process.resource(), process.script()) {
        (Some(resource), Some(snapshot)) => {
            let exit = (!process.lives()).then(|| process.exit());
            happened(resource, snapshot, process.began(), exit, now, &mut told)
        }
        _ => Vec::new(),
    };
    process.told = told;
    let has_ended = !process.lives();
    if let Some(resource) = process.resource().map(Arc::clone)
        && let Some(count) = process.steps.missed(now, has_ended)
    {
        events.push(missed(&resource, count, now));
    }
    events
}
