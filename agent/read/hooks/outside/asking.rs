//! Asks NCCL's RAS service, in all namespaces at once: each question may take seconds. An answer counts
//! for the ranks of the user whose socket it came from, and for nobody else: on a machine that users share
//! whoever is first has the port.

use std::collections::BTreeMap;
use std::fs;

use gpufleet_telemetry::training::CollectivesFrom;

use super::{Count, MAX_COUNTS, Open, ProcessId, Ranks, Told, Who};
use crate::read::hooks::nccl_ras::reach::{self, Gathered, ReachError, Target};
use crate::read::hooks::nccl_ras::standing::{Standing, standing};
use crate::read::hooks::nccl_ras::{Answer, Communicator, Status};

/// Most communicators that are told to stand still at once of one namespace.
pub(super) const MAX_STANDING: usize = 16;

/// What is kept from one turn to the next.
#[derive(Default)]
pub(super) struct Asking {
    /// The last answer of each namespace.
    before: BTreeMap<String, Status>,
}

impl Asking {
    /// Asks for all ranks whose namespace is open, and hands what was answered to `tell`.
    pub(super) fn turn(
        &mut self,
        ranks: &Ranks,
        open: &Open,
        mut tell: impl FnMut(ProcessId, Told),
    ) {
        self.before.retain(|space, _| ranks.contains_key(space));
        let asked = ranks.iter().filter(|(space, _)| open.is(space));
        let asked: Vec<_> = asked
            .map(|(space, ranks)| (space, ranks, begin(space, ranks, open)))
            .collect();
        for (space, ranks, question) in asked {
            let answer = question.and_then(reach::Question::answer);
            for (id, told) in self.take(space, ranks, answer) {
                tell(id, told);
            }
        }
    }

    /// What an answer says of the ranks of its namespace; it is kept for the next time.
    fn take(
        &mut self,
        space: &str,
        ranks: &[Who],
        answer: Result<Gathered, ReachError>,
    ) -> Vec<(ProcessId, Told)> {
        let before = self.before.remove(space);
        let of_all = |from| {
            let nothing = Told::nothing(from);
            ranks.iter().map(|it| (it.id, nothing.clone())).collect()
        };
        let Gathered { answer, own, uid } = match answer {
            Ok(gathered) => gathered,
            Err(error) => return of_all(reason(&error)),
        };
        let Answer::Status(status) = answer else {
            return of_all(CollectivesFrom::OldNccl);
        };
        let is_own = |host: &str| own.contains(host);
        let told = tell(ranks, uid, ns_pid, &status, before.as_ref(), is_own);
        self.before.insert(space.to_owned(), status);
        told
    }
}

/// Asks where a rank of the namespace runs that is there.
fn begin(space: &str, ranks: &[Who], open: &Open) -> Result<reach::Question, ReachError> {
    let targets = ranks.iter().map(|it| Target {
        pid: it.id.pid,
        start_ticks: it.id.start_ticks,
        namespace: space.to_owned(),
        may_enter: open.enters,
    });
    let mut targets = targets.peekable();
    let first = targets.peek().cloned();
    let there = targets.find(Target::is_there).or(first);
    there.ok_or(ReachError::Moved).and_then(reach::ask_at)
}

const fn reason(error: &ReachError) -> CollectivesFrom {
    match error {
        ReachError::Process { .. } | ReachError::Moved | ReachError::NotPermitted(_) => {
            CollectivesFrom::OtherNamespace
        }
        ReachError::Nobody(_) | ReachError::Owner | ReachError::Ras(_) => CollectivesFrom::NoAnswer,
    }
}

/// The id of a process in its own pid namespace, which is what NCCL knows.
pub(super) fn ns_pid(id: ProcessId) -> Option<i64> {
    let status = fs::read_to_string(format!("/proc/{}/status", id.pid)).ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

/// What the answer of a user's socket says of each of these ranks. `is_own` tells the addresses of their
/// namespace.
fn tell(
    ranks: &[Who],
    uid: u32,
    ns_pid: impl Fn(ProcessId) -> Option<i64>,
    answer: &Status,
    before: Option<&Status>,
    is_own: impl Fn(&str) -> bool,
) -> Vec<(ProcessId, Told)> {
    let mut stuck = before.map_or_else(Vec::new, |before| standing(before, answer));
    stuck.truncate(MAX_STANDING);
    let of = |who: &Who| {
        let mut told = Told::nothing(CollectivesFrom::NotInAnswer);
        if who.uid != uid {
            return (who.id, told);
        }
        let pid = ns_pid(who.id);
        let of_process = |communicator: &Communicator| {
            let ranks = communicator.ranks.iter();
            let mut ranks = ranks.filter(|it| is_own(&it.place.host));
            ranks.find(|it| Some(it.place.pid) == pid).cloned()
        };
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
        (who.id, told)
    };
    ranks.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::hooks::nccl_ras::status;

    const WHO: Who = Who {
        id: ProcessId {
            pid: 4_001,
            start_ticks: 1,
        },
        uid: 1_000,
    };

    /// Two ranks with the same id in their pods, of which the second is behind.
    const ANSWER: &[u8] = br#"{"communicators": [{"hash": "0xa", "size": 2, "ranks": [
        {"rank": 0, "host": "10.0.0.1", "pid": 7, "collective_counts": {"AllReduce": 5}},
        {"rank": 1, "host": "10.0.0.2", "pid": 7, "collective_counts": {"AllReduce": 4}}]}]}"#;

    fn told_by(uid: u32, pid: i64, host: &str, before: Option<&Status>) -> Told {
        let answer = status(ANSWER).expect("an answer");
        let is_own = |it: &str| it == host;
        let mut told = tell(&[WHO], uid, |_| Some(pid), &answer, before, is_own);
        told.pop().expect("what was asked for").1
    }

    fn told(pid: i64, host: &str, before: Option<&Status>) -> Told {
        told_by(WHO.uid, pid, host, before)
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
    fn another_users_service_says_nothing_of_a_rank() {
        let before = status(ANSWER).expect("an answer");
        let told = told_by(1_001, 7, "10.0.0.1", Some(&before));
        assert_eq!(told, Told::nothing(CollectivesFrom::NotInAnswer));
    }

    #[test]
    fn a_namespace_without_an_answer_tells_why_and_forgets_the_one_before() {
        let before = status(ANSWER).expect("an answer");
        let mut asking = Asking {
            before: BTreeMap::from([("net:[1]".to_owned(), before)]),
        };
        let told = asking.take("net:[1]", &[WHO], Err(ReachError::Owner));
        let nothing = Told::nothing(CollectivesFrom::NoAnswer);
        assert_eq!(told, [(WHO.id, nothing)]);
        assert!(asking.before.is_empty());
    }
}
