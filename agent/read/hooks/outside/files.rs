//! Reads on in the files that NCCL Inspector writes, in the processes' own mounts.

use std::collections::BTreeMap;

use super::asking::ns_pid;
use super::{Count, MAX_COUNTS, ProcessId, Ranks};
use crate::read::hooks::nccl_inspector::follow::{Follow, Totals};

/// The files of each process; none where it writes none.
#[derive(Default)]
pub(super) struct Files(BTreeMap<ProcessId, Option<Follow>>);

impl Files {
    /// Hands what the files of each rank add up to to `count`, one by one: the next may hang.
    pub(super) fn turn(&mut self, ranks: &Ranks, mut count: impl FnMut(ProcessId, Vec<Count>)) {
        let ids: Vec<_> = ranks.values().flatten().map(|it| it.id).collect();
        self.0.retain(|id, _| ids.contains(id));
        for id in ids {
            let file = self.0.entry(id);
            let file = file.or_insert_with(|| Follow::of(id.pid, ns_pid(id)?, &host()));
            if let Some(Ok(totals)) = file.as_mut().map(Follow::look) {
                count(id, counts(totals));
            }
        }
    }
}

/// The name of this machine.
fn host() -> String {
    let host = rustix::system::uname();
    host.nodename().to_string_lossy().into_owned()
}

fn counts(totals: &Totals) -> Vec<Count> {
    let counts = totals
        .iter()
        .map(|((communicator, function), total)| Count {
            communicator: *communicator,
            function: function.clone(),
            count: total.count,
            measured: Some((total.bytes, total.duration_ns)),
        });
    counts.take(MAX_COUNTS).collect()
}
