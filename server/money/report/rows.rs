//! The rows of a FOCUS file, made by more than one thread and taken in their order.
//!
//! Limits: of the text there are [`THREADS`] × ([`MAX_WAITING`] + 1) parts at a time, and the one that is taken: some 20 MB.

use std::sync::mpsc::sync_channel;

use gpufleet_analysis::report::focus::{Known, Rows};

/// How many threads make parts: a second halves the time, and a server has two cores or more.
const THREADS: usize = 2;

/// Parts of a thread that wait to be taken: one, so that it makes the next meanwhile.
const MAX_WAITING: usize = 1;

/// Takes the header and all rows.
pub(super) fn write(rows: &Rows<'_>, take: &mut dyn FnMut(&str)) {
    take(rows.header());
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(THREADS);
        for thread in 0..THREADS {
            let (to, parts) = sync_channel(MAX_WAITING);
            scope.spawn(move || {
                let mut known = Known::default();
                let mut own = (0..rows.parts()).skip(thread).step_by(THREADS);
                // Where nobody takes them any more, whoever did has failed.
                own.all(|it| to.send(rows.part(it, &mut known)).is_ok())
            });
            threads.push(parts);
        }
        // Each makes every so many-th part: taken from one after the other they come in their order.
        for parts in threads.iter().cycle() {
            let Ok(part) = parts.recv() else { break };
            take(&part);
        }
    });
}
