//! Reads the files that say who holds what, of processes and of Slurm's prolog, on a thread of their own:
//! the kernel makes whoever reads the command line of a process that hangs in it wait as well.
//!
//! Limit: [`LOOK_WITHIN`].

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::processes::{Looked, Processes};
use super::prolog::{Prolog, Wrote};
use super::users::Card;

/// How long a look at processes may take. It is some hundred small files.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// What the files of the machine say, read on a thread of their own.
pub(super) struct Look {
    /// As before the first look, for the one after a look that broke off.
    blank: Processes,
    /// None while a look runs that has not ended.
    processes: Option<Processes>,
    running: Option<JoinHandle<(Processes, Seen)>>,
    pub(super) seen: Seen,
}

/// What a look saw.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) looked: Looked,
    /// What Slurm's prolog wrote; none where it has no folder.
    pub(super) prolog: Option<Wrote>,
}

impl Look {
    pub(super) fn new(processes: Processes) -> Self {
        Self {
            blank: processes.clone(),
            processes: Some(processes),
            running: None,
            seen: Seen::default(),
        }
    }

    /// Looks at the processes on the cards and at the prolog's files; what a look that hangs saw before
    /// stays.
    pub(super) async fn again(&mut self, cards: &[Card], prolog: &Prolog) {
        if let Some(mut processes) = self.processes.take() {
            let ids = cards.iter().filter_map(|it| it.processes.as_ref());
            let ids: BTreeSet<i32> = ids.flatten().copied().collect();
            let (cards, prolog) = (cards.to_vec(), prolog.clone());
            self.running = Some(tokio::task::spawn_blocking(move || {
                let seen = Seen {
                    looked: processes.look(&ids),
                    prolog: prolog.read(&cards),
                };
                (processes, seen)
            }));
        }
        let Some(running) = &mut self.running else {
            return;
        };
        // It goes on, and is waited for in the next round.
        let Ok(looked) = tokio::time::timeout(LOOK_WITHIN, running).await else {
            return;
        };
        self.running = None;
        match looked {
            Ok((processes, seen)) => {
                self.processes = Some(processes);
                self.seen = seen;
            }
            Err(error) => {
                tracing::error!(%error, "the look at the processes on GPUs broke off");
                self.processes = Some(self.blank.clone());
            }
        }
    }
}
