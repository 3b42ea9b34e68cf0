//! The parts of a GPU on its page: NVLink links and the processes that have a context on it.
//!
//! Limits: [`PROCESSES`] processes are listed, the ones with most memory first; the count is whole.

use gpufleet_telemetry::catalog::gpu;

use super::reading::Cell;
use crate::fleet::live::{Live, LiveValue};
use crate::words::text;

/// Processes listed: a shared card has tens, a page of them helps nobody.
const PROCESSES: usize = 20;

/// What a GPU consists of and who uses it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// Links in all; 0 when the card reports none.
    pub links: usize,
    /// Links that are up.
    pub links_up: usize,
    /// Numbers of links that are down.
    pub links_down: String,
    /// Processes with a context.
    pub processes: Vec<ProcessLine>,
    /// Processes not listed.
    pub more_processes: usize,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLine {
    /// Its pid on the host.
    pub pid: String,
    /// Its device memory.
    pub memory: Cell,
    /// Share of time with kernels running.
    pub utilization: Cell,
}

/// The parts that a GPU reports.
pub fn of(live: &Live) -> Parts {
    let name = |value: &LiveValue| {
        let id = value.part.as_ref().map_or("", |part| &part.id);
        text::harmless(id, 24)
    };
    let links: Vec<&LiveValue> = live.parts(gpu::NVLINK_UP.id).collect();
    let down: Vec<String> = links
        .iter()
        .filter(|value| value.reading == Ok(0.0))
        .map(|value| name(value))
        .collect();
    let mut processes: Vec<&LiveValue> = live.parts(gpu::PROCESS_MEMORY.id).collect();
    processes.sort_by(|one, other| {
        let bytes = |value: &LiveValue| value.reading.unwrap_or(0.0);
        bytes(other).total_cmp(&bytes(one))
    });
    let more_processes = processes.len().saturating_sub(PROCESSES);
    Parts {
        links: links.len(),
        links_up: links
            .iter()
            .filter(|value| value.reading == Ok(1.0))
            .count(),
        links_down: down.join(", "),
        processes: processes
            .into_iter()
            .take(PROCESSES)
            .map(|value| ProcessLine {
                pid: name(value),
                memory: Cell::of(gpu::PROCESS_MEMORY.unit, Some(value.reading)),
                utilization: Cell::of(
                    gpu::PROCESS_SM_UTILIZATION.unit,
                    live.parts(gpu::PROCESS_SM_UTILIZATION.id)
                        .find(|it| it.part == value.part)
                        .map(|it| it.reading),
                ),
            })
            .collect(),
        more_processes,
    }
}
