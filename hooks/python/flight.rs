//! Collectives that do not end, as torch's flight recorder has them (`_flight.py`): they go where those of
//! NCCL's plugin go, so that the agent tells of them in the same way.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use gpufleet_hooks_shm::records::{Collective, Communicator, CommunicatorIndex};
use gpufleet_hooks_shm::words::{DataType, Function};
use gpufleet_hooks_shm::writer::InFlight;
use pyo3::prelude::*;

use crate::recorder::{Recorder, count};

/// Most process groups: as many as the table has room for; the mesh of a large job has ten.
const MAX_GROUPS: usize = 64;

/// What was written of torch's process groups.
#[derive(Default)]
pub(crate) struct Flight {
    groups: BTreeMap<u64, Option<CommunicatorIndex>>,
    in_flight: Vec<InFlight>,
}

/// A process group, and the collective of it that this rank is in, if it is in one.
#[derive(FromPyObject)]
pub(crate) struct Group {
    #[pyo3(item)]
    hash: u64,
    #[pyo3(item)]
    name: String,
    #[pyo3(item)]
    ranks: i64,
    #[pyo3(item)]
    rank: i64,
    #[pyo3(item)]
    collective: Option<(String, i64, i64)>,
}

#[pymethods]
impl Recorder {
    /// The process groups of this rank as they are now: function, number and beginning of the collective
    /// that each waits in. What was said before is no longer so.
    fn in_flight(&self, groups: Vec<Group>) {
        let mut flight = self.flight.lock().unwrap_or_else(PoisonError::into_inner);
        for before in std::mem::take(&mut flight.in_flight) {
            self.writer.collective_left(before);
        }
        for group in groups.into_iter().take(MAX_GROUPS) {
            let known = flight.groups.len() < MAX_GROUPS || flight.groups.contains_key(&group.hash);
            let index = known.then(|| {
                *flight.groups.entry(group.hash).or_insert_with(|| {
                    self.writer.communicator(&Communicator {
                        hash: group.hash,
                        ranks: count(group.ranks),
                        rank: count(group.rank),
                        nodes: 0,
                        name: group.name.clone(),
                    })
                })
            });
            if let (Some(communicator), Some((function, number, started_at))) =
                (index.flatten(), group.collective)
            {
                let begun = self.writer.collective_begun(&Collective {
                    communicator,
                    number: count(number),
                    function: Function::from_text(&function).unwrap_or(Function::Other),
                    data_type: DataType::Unknown,
                    channels: 0,
                    bytes: 0,
                    started_at,
                    peer: -1,
                    duration_ns: 0,
                    wait_ns: 0,
                });
                flight.in_flight.extend(begun);
            }
        }
    }
}
