//! What the reader does with what its child says of GPUs.

use std::time::Duration;

use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::sample::ResourceSamples;

use super::page::uptime;
use super::wire::{Done, GpuAnswer};
use super::{Main, Nvml, RETRY_LOST, Watched, library};
use crate::read::Turn;

impl Nvml {
    /// One GPU was read.
    pub(super) fn heard_gpu(
        &mut self,
        answer: GpuAnswer,
        turn: &Turn,
        to: &mut Vec<ResourceSamples>,
    ) {
        let Main::Up(process) = &mut self.main else {
            return;
        };
        self.heard.insert(answer.index);
        match answer.outcome {
            Ok(()) => {
                // A GPU that came back has a new handle, which nobody waits for XIDs of.
                process.is_stale |= self.watched.remove(&answer.index).is_some();
            }
            Err(missing) if library::ends_library(missing) => process.is_stale = true,
            Err(missing) => {
                // Perhaps it is not there any more.
                if !self.watched.contains_key(&answer.index) {
                    self.listed_at = Duration::ZERO;
                }
                let next_try = uptime() + RETRY_LOST;
                self.watched.entry(answer.index).or_insert(Watched {
                    why: missing,
                    next_try,
                    every: RETRY_LOST,
                });
            }
        }
        // A turn can hear a GPU twice, when it began with the rest of the last round.
        if let Some(id) = self.fleet.id_of(answer.index) {
            to.retain(|it| !is_of(&it.resource, &id));
        }
        self.fleet.answer(answer, turn, to);
    }

    /// The round is over.
    pub(super) fn done(&mut self, done: &Done, turn: &Turn) {
        let Main::Up(process) = &mut self.main else {
            return;
        };
        process.ended_round();
        let count = process.library.as_ref().map(|library| library.count);
        process.is_stale |= done.count.is_some() && done.count != count;
        if process.rounds == 1 {
            let hung = self.watched.keys();
            let listed = self.heard.iter().chain(hung).copied().collect();
            self.fleet.settle(&listed, turn);
        }
        self.fleet.xids(&done.xids, uptime(), turn);
        if done.xids_dropped > 0 {
            let message = format!(
                "{} driver events came faster than they are read",
                done.xids_dropped
            );
            let attributes = [("events_dropped", done.xids_dropped.to_string())];
            self.fleet.tell_node(
                turn,
                EventKind::ReaderFailed,
                Severity::Warning,
                message,
                attributes,
            );
        }
        // A wait for XIDs that hangs makes no reading late, so it is looked at here.
        let limits = self.limits();
        if let Main::Up(process) = &mut self.main
            && let Some(stuck) = process.stuck_again(limits)
        {
            self.hang(stuck, turn);
        }
    }
}

/// Whether this is the GPU with this id, or a share of it.
fn is_of(resource: &Resource, id: &str) -> bool {
    *resource.id == *id || resource.attribute(attribute::PARENT) == Some(id)
}
