//! What is learned of collectives without anything of ours in the process: NCCL's RAS service is asked in
//! each network namespace that ranks run in ([`asking`]), and the files of NCCL Inspector are read where a
//! process writes some ([`files`]). Each has a thread of its own: an answer takes seconds, and a folder on
//! a file server that is gone never comes back. What neither has said again for a while is not known any
//! more.
//!
//! Limits: [`MAX_NAMESPACES`], [`MAX_COUNTS`], [`KEPT_PERIODS`], [`asking::MAX_STANDING`].

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_hooks_shm::process::monotonic_ns;
use gpufleet_telemetry::training::CollectivesFrom;

use super::nccl_ras::reach;
use super::nccl_ras::standing::Standing;
use super::process::ProcessId;

mod asking;

mod files;

use asking::Asking;
use files::Files;

/// Most network namespaces that are asked in: one for each GPU of a node and as many again.
const MAX_NAMESPACES: usize = 32;

/// Most counts of one rank, by communicator and function.
const MAX_COUNTS: usize = gpufleet_hooks_tell::readings::MAX_COLLECTIVES;

/// How many periods what was told counts: one that is late and one that failed are no reason to forget.
const KEPT_PERIODS: u64 = 3;

/// A rank: its process and the user it runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) id: ProcessId,
    pub(super) uid: u32,
}

/// Ranks, by the network namespace they run in.
type Ranks = BTreeMap<String, Vec<Who>>;

/// What is known of one process.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    /// Where from, or why nothing is.
    pub(super) from: CollectivesFrom,
    /// Its collectives, by communicator and function.
    pub(super) counts: Vec<Count>,
    /// Communicators that stand still, of which it is the lowest rank that answers.
    pub(super) standing: Vec<Standing>,
}

/// Collectives of one function on one communicator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) communicator: u64,
    pub(super) function: String,
    pub(super) count: u64,
    /// Their bytes and how long they took, nanoseconds; RAS does not know.
    pub(super) measured: Option<(u64, u64)>,
}

/// The threads that ask and read; they end soon after this is dropped.
pub(super) struct Outside {
    shared: Arc<Shared>,
    open: Open,
    kept_ns: u64,
}

/// Which network namespaces are asked in.
#[derive(Debug, Clone)]
struct Open {
    enters: bool,
    own: String,
}

impl Open {
    fn is(&self, space: &str) -> bool {
        self.enters || space == self.own
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    is_over: bool,
    ranks: Ranks,
    /// What NCCL's service said, and when, by the monotonic clock.
    told: BTreeMap<ProcessId, (u64, Told)>,
    /// What the files say, and when they were read.
    counted: BTreeMap<ProcessId, (u64, Vec<Count>)>,
}

impl Outside {
    /// Asks every `period`; enters the namespaces of others only where `enters` says so.
    pub(super) fn start(period: Duration, enters: bool) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let open = Open {
            enters,
            own: reach::namespace("self").unwrap_or_default(),
        };
        let (of_ras, of_files) = (Arc::clone(&shared), Arc::clone(&shared));
        let of_thread = open.clone();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        // Not waited for: they may be in something that takes seconds, or for ever.
        thread("nccl-ras").spawn(move || {
            let mut asking = Asking::default();
            of_ras.turns(period, |ranks| {
                asking.turn(ranks, &of_thread, |id, told| of_ras.lock().tell(id, told));
            });
        })?;
        thread("nccl-inspector").spawn(move || {
            let mut files = Files::default();
            of_files.turns(period, |ranks| {
                files.turn(ranks, |id, counts| of_files.lock().count(id, counts));
            });
        })?;
        let kept = period.as_nanos() as u64;
        Ok(Self {
            shared,
            open,
            kept_ns: kept.saturating_mul(KEPT_PERIODS),
        })
    }

    /// Says which processes are ranks now.
    pub(super) fn ask_for(&self, ranks: impl Iterator<Item = Who>) {
        let mut state = self.shared.lock();
        let known = std::mem::take(&mut state.ranks);
        let known = known
            .iter()
            .flat_map(|(space, ranks)| ranks.iter().map(move |it| (it.id, space)));
        let known: BTreeMap<ProcessId, &String> = known.collect();
        let mut asked = Ranks::new();
        for who in ranks {
            let space = match known.get(&who.id) {
                Some(space) => (*space).clone(),
                None => reach::namespace(&who.id.pid.to_string()).unwrap_or_default(),
            };
            if asked.len() < MAX_NAMESPACES || asked.contains_key(&space) {
                asked.entry(space).or_default().push(who);
            }
        }
        state.ranks = asked;
        state.forget();
        let closed = state.ranks.iter().filter(|(it, _)| !self.open.is(it));
        let closed: Vec<_> = closed.flat_map(|(_, ranks)| ranks.clone()).collect();
        for who in closed {
            state.tell(who.id, Told::nothing(CollectivesFrom::OtherNamespace));
        }
    }

    /// What is known of a process; nothing before it was asked.
    pub(super) fn of(&self, id: ProcessId) -> Option<Told> {
        let state = self.shared.lock();
        state.known(id, monotonic_ns(), self.kept_ns)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `turn` once a period with the ranks of then, until it is over.
    fn turns(&self, period: Duration, mut turn: impl FnMut(&Ranks)) {
        loop {
            let goes_on = |state: &mut State| !state.is_over;
            let waited = self.wake.wait_timeout_while(self.lock(), period, goes_on);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            let ranks = state.ranks.clone();
            drop(state);
            turn(&ranks);
        }
    }
}

impl State {
    fn is_asked(&self, id: ProcessId) -> bool {
        self.ranks.values().flatten().any(|it| it.id == id)
    }

    /// Forgets who is no rank any more.
    fn forget(&mut self) {
        let ranks = self.ranks.values().flatten();
        let ranks: std::collections::BTreeSet<_> = ranks.map(|it| it.id).collect();
        self.told.retain(|id, _| ranks.contains(id));
        self.counted.retain(|id, _| ranks.contains(id));
    }

    fn tell(&mut self, id: ProcessId, told: Told) {
        if self.is_asked(id) {
            self.told.insert(id, (monotonic_ns(), told));
        }
    }

    fn count(&mut self, id: ProcessId, counts: Vec<Count>) {
        if self.is_asked(id) {
            self.counted.insert(id, (monotonic_ns(), counts));
        }
    }

    /// What is known now: nothing of what was told longer ago than `kept_ns`.
    fn known(&self, id: ProcessId, now_ns: u64, kept_ns: u64) -> Option<Told> {
        let is_kept = |at: u64| now_ns.saturating_sub(at) <= kept_ns;
        let told = self.told.get(&id).map(|(at, told)| match is_kept(*at) {
            true => told.clone(),
            false => Told::nothing(CollectivesFrom::NoAnswer),
        });
        let counted = self.counted.get(&id).filter(|(at, _)| is_kept(*at));
        let Some((_, counts)) = counted else {
            return told;
        };
        Some(Told {
            from: CollectivesFrom::Inspector,
            counts: counts.clone(),
            standing: told.map(|it| it.standing).unwrap_or_default(),
        })
    }
}

impl Told {
    const fn nothing(from: CollectivesFrom) -> Self {
        Self {
            from,
            counts: Vec::new(),
            standing: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ProcessId = ProcessId {
        pid: 4_001,
        start_ticks: 1,
    };

    /// A state in which this process is a rank of a namespace.
    fn state() -> State {
        let who = Who { id: ID, uid: 0 };
        State {
            ranks: Ranks::from([("net:[1]".to_owned(), vec![who])]),
            ..State::default()
        }
    }

    fn count(count: u64) -> Count {
        Count {
            communicator: 1,
            function: "AllReduce".to_owned(),
            count,
            measured: None,
        }
    }

    #[test]
    fn a_rank_elsewhere_is_not_asked_for_and_the_reason_is_told() {
        let outside = Outside::start(Duration::from_secs(3_600), false).expect("a thread");
        let own = ProcessId {
            pid: std::process::id().cast_signed(),
            start_ticks: 1,
        };
        let ranks = |ids: &[ProcessId]| ids.iter().map(|id| Who { id: *id, uid: 0 }).collect();
        let ask_for = |ranks: Vec<Who>| outside.ask_for(ranks.into_iter());
        ask_for(ranks(&[own, ID]));
        assert_eq!(outside.of(own), None, "it was not asked yet");
        let told = outside.of(ID).map(|it| it.from);
        assert_eq!(told, Some(CollectivesFrom::OtherNamespace));
        ask_for(ranks(&[own]));
        assert_eq!(outside.of(ID), None, "it has gone");
    }

    #[test]
    fn what_was_told_is_not_known_any_more_once_nobody_says_it_again() {
        let mut state = state();
        let mut told = Told::nothing(CollectivesFrom::Ras);
        told.counts.push(count(5));
        state.tell(ID, told.clone());
        let at = state.told[&ID].0;
        assert_eq!(state.known(ID, at + 100, 100), Some(told));
        let late = state.known(ID, at + 101, 100);
        assert_eq!(late, Some(Told::nothing(CollectivesFrom::NoAnswer)));
    }

    #[test]
    fn files_go_before_the_service_while_they_are_read() {
        let mut state = state();
        state.tell(ID, Told::nothing(CollectivesFrom::NotInAnswer));
        state.count(ID, vec![count(7)]);
        let at = state.counted[&ID].0.max(state.told[&ID].0);
        let told = state.known(ID, at, 100).expect("it is known");
        assert_eq!(told.from, CollectivesFrom::Inspector);
        assert_eq!(told.counts, [count(7)]);
        // The file server hangs, the service goes on.
        state.counted.get_mut(&ID).expect("it was counted").0 = at - 1;
        let told = state.known(ID, at, 0).map(|it| it.from);
        assert_ne!(told, Some(CollectivesFrom::Inspector));
    }

    #[test]
    fn nothing_is_kept_of_who_has_gone() {
        let mut state = state();
        state.ranks.clear();
        state.tell(ID, Told::nothing(CollectivesFrom::Ras));
        state.count(ID, Vec::new());
        assert!(state.told.is_empty() && state.counted.is_empty());
    }
}
