//! What is learned of collectives without anything of ours in the process, by a thread of its own because it
//! takes seconds: NCCL's RAS service is asked in each network namespace that ranks run in, and the files
//! of NCCL Inspector are read where a process writes some.
//!
//! Limits: [`MAX_NAMESPACES`], [`MAX_COUNTS`], [`MAX_STANDING`].

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_telemetry::training::CollectivesFrom;

use super::process::ProcessId;
use crate::read::nccl_inspector::follow::{Follow, Totals};
use crate::read::nccl_ras::reach::{self, Gathered, ReachError};
use crate::read::nccl_ras::standing::{Standing, standing};
use crate::read::nccl_ras::{Answer, Communicator, Status};

/// Most network namespaces that are asked in: one for each GPU of a node and as many again.
const MAX_NAMESPACES: usize = 32;

/// Most counts of one rank, by communicator and function.
const MAX_COUNTS: usize = super::values::MAX_COLLECTIVES;

/// Most communicators that are told to stand still at once of one namespace.
const MAX_STANDING: usize = 16;

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

/// The thread that asks; it ends soon after this is dropped.
pub(super) struct Outside {
    shared: Arc<Shared>,
    open: Open,
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
    /// Ranks, by the network namespace they run in.
    ranks: BTreeMap<String, Vec<ProcessId>>,
    told: BTreeMap<ProcessId, Told>,
}

impl Outside {
    /// Asks every `period`; enters the namespaces of others only where `enters` says so.
    pub(super) fn start(period: Duration, enters: bool) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("nccl-ras".to_owned());
        let own = reach::namespace("self").unwrap_or_default();
        let open = Open {
            enters,
            own: own.clone(),
        };
        let of_all = open.clone();
        // Not waited for: it may be in a question that takes seconds.
        thread.spawn(move || run(&of_thread, period, &of_all))?;
        Ok(Self { shared, open })
    }

    /// Says which processes are ranks now.
    pub(super) fn ask_for(&self, ranks: impl Iterator<Item = ProcessId>) {
        let mut state = self.shared.lock();
        let known = std::mem::take(&mut state.ranks);
        let known = known
            .iter()
            .flat_map(|(space, ids)| ids.iter().map(move |id| (*id, space)));
        let known: BTreeMap<ProcessId, &String> = known.collect();
        let mut asked: BTreeMap<String, Vec<ProcessId>> = BTreeMap::new();
        for id in ranks {
            let space = match known.get(&id) {
                Some(space) => (*space).clone(),
                None => reach::namespace(&id.pid.to_string()).unwrap_or_default(),
            };
            if asked.len() < MAX_NAMESPACES || asked.contains_key(&space) {
                asked.entry(space).or_default().push(id);
            }
        }
        for (space, ids) in &asked {
            for id in ids.iter().filter(|_| !self.open.is(space)) {
                let nothing = Told::nothing(CollectivesFrom::OtherNamespace);
                state.told.entry(*id).or_insert(nothing);
            }
        }
        state
            .told
            .retain(|id, _| asked.values().flatten().any(|it| it == id));
        state.ranks = asked;
    }

    /// What is known of a process; nothing before it was asked.
    pub(super) fn of(&self, id: ProcessId) -> Option<Told> {
        self.shared.lock().told.get(&id).cloned()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

fn run(shared: &Shared, period: Duration, open: &Open) {
    let mut before: BTreeMap<String, Status> = BTreeMap::new();
    let mut files: BTreeMap<ProcessId, Option<Follow>> = BTreeMap::new();
    loop {
        let state = shared.lock();
        let waited = shared.wake.wait_timeout(state, period);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_over {
            return;
        }
        let asked = state.ranks.clone();
        drop(state);
        before.retain(|space, _| asked.contains_key(space));
        files.retain(|id, _| asked.values().flatten().any(|it| it == id));
        for (space, ids) in asked {
            let mut told = match ids.first().filter(|_| open.is(&space)) {
                Some(first) => ask(&space, &ids, first.pid, &mut before),
                None => {
                    let nothing = Told::nothing(CollectivesFrom::OtherNamespace);
                    ids.iter().map(|id| (*id, nothing.clone())).collect()
                }
            };
            for (id, told) in &mut told {
                let file = files.entry(*id);
                let file = file.or_insert_with(|| Follow::of(id.pid, ns_pid(*id)?, &host()));
                if let Some(Ok(totals)) = file.as_mut().map(Follow::look) {
                    told.from = CollectivesFrom::Inspector;
                    told.counts = counts(totals);
                }
            }
            let mut state = shared.lock();
            let is_asked = |id: &ProcessId| state.ranks.values().flatten().any(|it| it == id);
            told.retain(|(id, _)| is_asked(id));
            state.told.extend(told);
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

/// Asks for the ranks of one namespace, and keeps the answer for the next time.
fn ask(
    space: &str,
    ids: &[ProcessId],
    pid: i32,
    before: &mut BTreeMap<String, Status>,
) -> Vec<(ProcessId, Told)> {
    match reach::gather(pid) {
        Ok(Gathered { answer, own }) => {
            let answer = match answer {
                Answer::Status(status) => Some(status),
                Answer::Summary(_) => None,
            };
            let is_own = |host: &str| own.contains(host);
            let told = tell(ids, ns_pid, answer.as_ref(), before.get(space), is_own);
            before.remove(space);
            before.extend(answer.map(|status| (space.to_owned(), status)));
            told
        }
        Err(error) => {
            before.remove(space);
            let nothing = Told::nothing(reason(&error));
            ids.iter().map(|id| (*id, nothing.clone())).collect()
        }
    }
}

const fn reason(error: &ReachError) -> CollectivesFrom {
    match error {
        ReachError::Process { .. } | ReachError::NotPermitted(_) => CollectivesFrom::OtherNamespace,
        ReachError::Nobody(_) | ReachError::Ras(_) => CollectivesFrom::NoAnswer,
    }
}

/// The id of a process in its own pid namespace, which is what NCCL knows.
fn ns_pid(id: ProcessId) -> Option<i64> {
    let status = fs::read_to_string(format!("/proc/{}/status", id.pid)).ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

/// What an answer says of each of these processes. `is_own` tells the addresses of their namespace.
fn tell(
    ids: &[ProcessId],
    ns_pid: impl Fn(ProcessId) -> Option<i64>,
    answer: Option<&Status>,
    before: Option<&Status>,
    is_own: impl Fn(&str) -> bool,
) -> Vec<(ProcessId, Told)> {
    let Some(answer) = answer else {
        let nothing = Told::nothing(CollectivesFrom::OldNccl);
        return ids.iter().map(|id| (*id, nothing.clone())).collect();
    };
    let mut stuck = before.map_or_else(Vec::new, |before| standing(before, answer));
    stuck.truncate(MAX_STANDING);
    let of = |id: &ProcessId| {
        let pid = ns_pid(*id);
        let of_process = |communicator: &Communicator| {
            let ranks = communicator.ranks.iter();
            let mut ranks = ranks.filter(|it| is_own(&it.place.host));
            ranks.find(|it| Some(it.place.pid) == pid).cloned()
        };
        let mut told = Told::nothing(CollectivesFrom::NotInAnswer);
        for communicator in &answer.communicators {
            let Some(rank) = of_process(communicator) else {
                continue;
            };
            told.from = CollectivesFrom::Ras;
            let counts = rank.collective_counts.into_iter();
            let counts = counts.map(|(function, count)| Count {
                communicator: communicator.hash,
                function,
                count,
                measured: None,
            });
            let room = MAX_COUNTS - told.counts.len();
            told.counts.extend(counts.take(room));
            let is_lowest = |it: &&Standing| {
                it.communicator == communicator.hash && it.lowest == rank.place.rank
            };
            told.standing
                .extend(stuck.iter().filter(is_lowest).cloned());
        }
        (*id, told)
    };
    ids.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::nccl_ras::status;

    const ID: ProcessId = ProcessId {
        pid: 4_001,
        start_ticks: 1,
    };

    /// Two ranks with the same id in their pods, of which the second is behind.
    const ANSWER: &[u8] = br#"{"communicators": [{"hash": "0xa", "size": 2, "ranks": [
        {"rank": 0, "host": "10.0.0.1", "pid": 7, "collective_counts": {"AllReduce": 5}},
        {"rank": 1, "host": "10.0.0.2", "pid": 7, "collective_counts": {"AllReduce": 4}}]}]}"#;

    fn told(pid: i64, host: &str, before: Option<&Status>) -> Told {
        let answer = status(ANSWER).expect("an answer");
        let is_own = |it: &str| it == host;
        let mut told = tell(&[ID], |_| Some(pid), Some(&answer), before, is_own);
        told.pop().expect("what was asked for").1
    }

    #[test]
    fn a_process_is_the_rank_with_its_id_on_its_own_node() {
        for (host, count) in [("10.0.0.1", 5), ("10.0.0.2", 4)] {
            let told = told(7, host, None);
            assert_eq!(told.from, CollectivesFrom::Ras);
            let found: Vec<_> = told
                .counts
                .iter()
                .map(|it| (it.communicator, it.count))
                .collect();
            assert_eq!(found, [(10, count)]);
        }
        for (pid, host) in [(8, "10.0.0.1"), (7, "10.0.0.3")] {
            let told = told(pid, host, None);
            assert_eq!(told, Told::nothing(CollectivesFrom::NotInAnswer));
        }
    }

    #[test]
    fn a_communicator_that_stands_is_told_by_the_node_of_its_lowest_rank_alone() {
        let before = status(ANSWER).expect("an answer");
        let of_first = told(7, "10.0.0.1", Some(&before));
        assert_eq!(of_first.standing.len(), 1);
        assert_eq!(of_first.standing[0].behind.first(), Some(&1));
        assert_eq!(told(7, "10.0.0.2", Some(&before)).standing, []);
    }

    #[test]
    fn a_rank_elsewhere_is_not_asked_for_and_the_reason_is_told() {
        let outside = Outside::start(Duration::from_secs(3_600), false).expect("a thread");
        let own = ProcessId {
            pid: std::process::id().cast_signed(),
            start_ticks: 1,
        };
        outside.ask_for([own, ID].into_iter());
        assert_eq!(outside.of(own), None, "it was not asked yet");
        let told = outside.of(ID).map(|it| it.from);
        assert_eq!(told, Some(CollectivesFrom::OtherNamespace));
        outside.ask_for([own].into_iter());
        assert_eq!(outside.of(ID), None, "it has gone");
    }
}
