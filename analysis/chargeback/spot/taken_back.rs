//! Which machines at Spot were taken back: each once, whatever tells it and however many runs were on it.
//!
//! Method. What tells that a machine was taken back is its provider's notice, or a run that ended `preempted` with it.
//!
//! - Notices of a node within [`AGAIN_MS`] are one: an agent that begins anew in the last seconds hears it again.
//! - A run belongs to the machine of its nodes that went nearest to its end, at most [`WITHIN_MS`] from it; each of its
//!   nodes that went and of which nothing else tells is a machine by itself, which a later run on it joins. What the run
//!   lost is lost once, to the first of its machines.
//! - A machine that the inventory missed, of which neither a notice nor a run tells, was taken back or given back: nobody
//!   says which, so it is counted apart.
//!
//! A machine counts in the time in which it was taken back, and what a run lost in that in which the run ended.
//!
//! Limits. A name that comes back, and whose next machine is taken back without a notice within [`WITHIN_MS`], is taken
//! for the same machine.

use std::collections::BTreeMap;
use std::ops::Range;

/// Notices of a node within this are of one machine, milliseconds: it is gone half a minute after the first.
const AGAIN_MS: i64 = 60_000;

/// A run ends at most so long before or after its machine goes, milliseconds: as far apart as the judgement of endings
/// ([`crate::ending::BEFORE_NS`]) lets them be.
pub const WITHIN_MS: i64 = 900_000;

/// The provider said that it takes a machine back.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// When, Unix milliseconds.
    pub at_ms: i64,
    /// Its cluster.
    pub cluster: String,
    /// Its node.
    pub node: String,
}

/// A machine at Spot as the inventory had it, until it missed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Its cluster.
    pub cluster: String,
    /// What its node is called, by the inventory and by agents.
    pub nodes: Vec<String>,
    /// From when until when it was there, Unix milliseconds.
    pub there_ms: Range<i64>,
}

/// A run that was preempted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preempted {
    /// Its cluster.
    pub cluster: String,
    /// Its nodes that were taken back; where that is not known, the node of the rank that went first, or of another.
    pub nodes: Vec<String>,
    /// When it ended, Unix milliseconds.
    pub ended_ms: i64,
    /// Work done in vain, GPU-milliseconds; none when not known.
    pub lost_gpu_millis: Option<i64>,
    /// What the next attempt took until its first step, GPU-milliseconds; none when not known.
    pub recovery_gpu_millis: Option<i64>,
}

/// A machine that was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its cluster.
    pub cluster: String,
    /// Its node; empty where no run says on which it was.
    pub node: String,
    /// When, Unix milliseconds.
    pub at_ms: i64,
    /// Whether that is in the time that is asked for. Of one that is not, a run is that ended in it.
    pub is_in_time: bool,
    /// Whether a run ended with it.
    pub had_run: bool,
    /// Runs that ended with it, but for those of several machines, which stand at the first.
    pub runs: Vec<Preempted>,
}

/// What was taken back in a time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TakenBack {
    /// The machines.
    pub machines: Vec<Machine>,
    /// Machines at Spot that went, of which nobody says whether they were taken back.
    pub unsaid: u64,
}

impl TakenBack {
    /// From notices of a time and [`WITHIN_MS`] around it, the lives of machines at Spot that ended in it, and the runs
    /// that ended in it. The time is in Unix milliseconds.
    pub fn of(
        time: &Range<i64>,
        notices: &[Notice],
        lives: &[Life],
        mut runs: Vec<Preempted>,
    ) -> Self {
        let mut all = Known::default();
        let mut notices: Vec<&Notice> = notices.iter().collect();
        notices.sort();
        for it in notices {
            let said = (it.cluster.as_str(), it.node.as_str());
            if all.nearest(said, it.at_ms, AGAIN_MS).is_none() {
                all.add(said, it.at_ms);
            }
        }
        runs.sort_by_key(|it| it.ended_ms);
        for run in runs {
            all.run(run);
        }
        let is_said = |life: &Life| {
            let until = life.there_ms.end.saturating_add(WITHIN_MS);
            let mut nodes = life.nodes.iter();
            nodes.any(|node| {
                let there = life.there_ms.start..=until;
                all.of(&life.cluster, node)
                    .any(|it| there.contains(&it.at_ms))
            })
        };
        let in_time = lives.iter().filter(|it| time.contains(&it.there_ms.end));
        let unsaid = in_time.filter(|it| !is_said(it)).count() as u64;
        let mut machines = all.machines;
        for it in &mut machines {
            it.is_in_time = time.contains(&it.at_ms);
        }
        machines.retain(|it| it.is_in_time || !it.runs.is_empty());
        Self { machines, unsaid }
    }
}

/// The machines that are known so far.
#[derive(Default)]
struct Known {
    machines: Vec<Machine>,
    /// Their places by cluster and node.
    places: BTreeMap<(String, String), Vec<usize>>,
}

impl Known {
    fn of(&self, cluster: &str, node: &str) -> impl Iterator<Item = &Machine> {
        let places = self.places.get(&(cluster.to_owned(), node.to_owned()));
        let places = places.into_iter().flatten();
        places.filter_map(move |it| self.machines.get(*it))
    }

    /// The place of the machine of a node that went nearest to a moment.
    fn nearest(&self, (cluster, node): (&str, &str), at_ms: i64, within_ms: i64) -> Option<usize> {
        let places = self.places.get(&(cluster.to_owned(), node.to_owned()))?;
        let apart = |it: &usize| {
            let machine = self.machines.get(*it)?;
            Some(machine.at_ms.saturating_sub(at_ms).saturating_abs())
        };
        let near = places.iter().filter_map(|it| Some((apart(it)?, *it)));
        near.filter(|it| it.0 <= within_ms).min().map(|it| it.1)
    }

    fn add(&mut self, (cluster, node): (&str, &str), at_ms: i64) -> usize {
        let place = self.machines.len();
        self.machines.push(Machine {
            cluster: cluster.to_owned(),
            node: node.to_owned(),
            at_ms,
            is_in_time: false,
            had_run: false,
            runs: Vec::new(),
        });
        let of_node = self.places.entry((cluster.to_owned(), node.to_owned()));
        of_node.or_default().push(place);
        place
    }

    /// Takes a run in, at the first of its machines, and those of its machines of which nothing else tells.
    fn run(&mut self, run: Preempted) {
        let nowhere = [String::new()];
        let nodes: &[String] = match run.nodes.is_empty() {
            true => &nowhere[..],
            false => &run.nodes,
        };
        let mut first = None;
        for node in nodes {
            let said = (run.cluster.as_str(), node.as_str());
            // Of two runs of which nobody knows where they were, nobody knows that they were in one place.
            let known = self.nearest(said, run.ended_ms, WITHIN_MS);
            let known = known.filter(|_| !node.is_empty());
            let place = known.unwrap_or_else(|| self.add(said, run.ended_ms));
            if let Some(machine) = self.machines.get_mut(place) {
                machine.had_run = true;
            }
            first = first.or(Some(place));
        }
        if let Some(machine) = first.and_then(|it| self.machines.get_mut(it)) {
            machine.runs.push(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;
    const MONTH: Range<i64> = 1_000 * MINUTE..2_000 * MINUTE;

    fn notice(node: &str, minute: i64) -> Notice {
        Notice {
            at_ms: minute * MINUTE,
            cluster: "c".to_owned(),
            node: node.to_owned(),
        }
    }

    fn life(node: &str, minutes: Range<i64>) -> Life {
        Life {
            cluster: "c".to_owned(),
            nodes: vec![node.to_owned(), format!("{node}.lab")],
            there_ms: minutes.start * MINUTE..minutes.end * MINUTE,
        }
    }

    fn run(nodes: &[&str], minute: i64) -> Preempted {
        Preempted {
            cluster: "c".to_owned(),
            nodes: nodes.iter().map(|it| (*it).to_owned()).collect(),
            ended_ms: minute * MINUTE,
            lost_gpu_millis: None,
            recovery_gpu_millis: None,
        }
    }

    /// Node, minute and runs of each machine, and how many went unsaid.
    fn check(
        (notices, lives, runs): (&[Notice], &[Life], &[Preempted]),
        expected: (&[(&str, i64, usize)], u64),
    ) {
        let found = TakenBack::of(&MONTH, notices, lives, runs.to_vec());
        let machines = found.machines.iter();
        let machines = machines.map(|it| (it.node.as_str(), it.at_ms / MINUTE, it.runs.len()));
        let machines: Vec<_> = machines.collect();
        assert_eq!((&machines[..], found.unsaid), expected);
        let on_none = found.machines.iter().filter(|it| !it.had_run).count();
        assert_eq!(on_none == machines.len(), runs.is_empty());
    }

    #[test]
    fn a_machine_counts_once_however_it_is_told_and_however_many_runs_were_on_it() {
        let (told, gone) = ([notice("a", 1_100)], [life("a", 500..1_104)]);
        check((&told, &[], &[]), (&[("a", 1_100, 0)], 0));
        check((&told, &gone, &[]), (&[("a", 1_100, 0)], 0));
        let runs = [run(&["a"], 1_101), run(&["a"], 1_102)];
        check((&told, &gone, &runs), (&[("a", 1_100, 2)], 0));
        check((&[], &gone, &runs), (&[("a", 1_101, 2)], 0));
        check((&[], &[], &runs), (&[("a", 1_101, 2)], 0));
        // Its agent began anew and heard it again; the machine in its place is another one.
        let again = [notice("a", 1_100), notice("a", 1_101), notice("a", 1_102)];
        check((&again, &[], &[]), (&[("a", 1_100, 0), ("a", 1_102, 0)], 0));
        let twice = [notice("a", 1_100), notice("a", 1_110)];
        check(
            (&twice, &[], &[run(&["a"], 1_109)]),
            (&[("a", 1_100, 0), ("a", 1_110, 1)], 0),
        );
    }

    #[test]
    fn a_run_of_several_machines_is_one_run_and_they_are_several() {
        let both = [run(&["a", "b"], 1_101)];
        check(
            (&[notice("b", 1_100)], &[], &both),
            (&[("b", 1_100, 0), ("a", 1_101, 1)], 0),
        );
        check((&[], &[], &both), (&[("a", 1_101, 1), ("b", 1_101, 0)], 0));
        let found = TakenBack::of(&MONTH, &[], &[], both.to_vec());
        assert!(found.machines.iter().all(|it| it.had_run));
        // Where they were, nobody knows.
        let nowhere = [run(&[], 1_101), run(&[], 1_101)];
        check((&[], &[], &nowhere), (&[("", 1_101, 1), ("", 1_101, 1)], 0));
    }

    #[test]
    fn a_machine_that_went_and_of_which_nobody_says_why_is_counted_apart() {
        let gone = [life("a", 500..1_104), life("a", 1_200..1_300)];
        check((&[], &gone, &[]), (&[], 2));
        check(
            (&[notice("a.lab", 1_299)], &gone, &[]),
            (&[("a.lab", 1_299, 0)], 1),
        );
        // One that went at another time is none of this one.
        check((&[], &[life("a", 500..2_000)], &[]), (&[], 0));
    }

    #[test]
    fn a_machine_is_of_the_time_in_which_it_was_taken_back_and_a_run_of_that_in_which_it_ended() {
        let before = [notice("a", 999), notice("b", 999)];
        let found = TakenBack::of(&MONTH, &before, &[], vec![run(&["a"], 1_001)]);
        let found: Vec<_> = found.machines.iter().collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].is_in_time, found[0].runs.len()), (false, 1));
    }
}
