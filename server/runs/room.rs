//! Room for runs in memory: who has to leave when there is none.
//!
//! A run that is over leaves before a new one is refused: the one that ended longest ago, else the one
//! that is silent for longest. The store has it, and it comes back as it is heard ([`super::recall`]).
//! One that goes on stays. Limits: [`MAX_RUNS`], of which one agent opens [`MAX_RUNS_OF_AGENT`] and
//! then its own leave; [`MAX_RANKS`]; [`MAX_LEAVING`].

use gpufleet_telemetry::time::Timestamp;

use super::state::SILENT_AFTER;
use super::{Full, Heard, Known, MAX_RANKS, MAX_RUNS, RUN_KEPT, Run, RunKey, STEPS_KEPT};

/// Most runs that one agent opened: an eighth, so that one node's processes, whatever they call
/// themselves, close the door for nobody else. It is four a minute for an hour.
const MAX_RUNS_OF_AGENT: usize = MAX_RUNS / 8;

/// Most runs that have left and are still to be told to the store: it is told every 20 s.
const MAX_LEAVING: usize = MAX_RUNS;

impl Known {
    /// A run with this rank in it; both are made if they are new.
    pub(super) fn run(&mut self, key: &RunKey, rank: u32, heard: Heard) -> Result<&mut Run, Full> {
        let known = self.runs.get(key);
        let is_new = known.is_none_or(|it| !it.ranks.contains_key(&rank));
        if known.is_none() {
            let of_agent = |run: &Run| run.opened_by == Some(heard.agent);
            let opened = self.runs.values().filter(|it| of_agent(it)).count();
            if opened >= MAX_RUNS_OF_AGENT {
                self.let_leave(heard.received, |_, run| of_agent(run))?;
            } else if self.runs.len() >= MAX_RUNS {
                self.let_leave(heard.received, |_, _| true)?;
            }
        }
        if is_new && self.ranks >= MAX_RANKS {
            self.let_leave(heard.received, |other, _| other != key)?;
        }
        let run = self.seat(key, rank)?;
        run.opened_by.get_or_insert(heard.agent);
        Ok(run)
    }

    /// The same where nobody has to leave for it.
    pub(super) fn seat(&mut self, key: &RunKey, rank: u32) -> Result<&mut Run, Full> {
        let is_known = self.runs.contains_key(key);
        if !is_known && self.runs.len() >= MAX_RUNS {
            return Err(Full);
        }
        if !is_known {
            let run = self.leaving.remove(key).unwrap_or_default();
            self.ranks += run.ranks.len();
            self.runs.insert(key.clone(), run);
        }
        let run = self.runs.get_mut(key).ok_or(Full)?;
        if !run.ranks.contains_key(&rank) {
            if self.ranks >= MAX_RANKS {
                return Err(Full);
            }
            self.ranks += 1;
            run.changed = true;
            run.ranks.entry(rank).or_default().changed = true;
        }
        Ok(run)
    }

    /// Takes the run that is over for longest out of memory, of those that may go.
    fn let_leave(
        &mut self,
        now: Timestamp,
        may_go: impl Fn(&RunKey, &Run) -> bool,
    ) -> Result<(), Full> {
        let over = self.runs.iter().filter(|(key, run)| may_go(key, run));
        let over = over.filter_map(|(key, run)| Some((over_since(run, now)?, key)));
        let longest = over.min_by_key(|it| it.0).map(|(_, key)| key.clone());
        let key = longest.filter(|_| self.leaving.len() < MAX_LEAVING);
        let (key, mut run) = self.runs.remove_entry(&key.ok_or(Full)?).ok_or(Full)?;
        self.ranks -= run.ranks.len();
        self.step_bytes -= drop_steps(&mut run);
        run.changed = true;
        self.leaving.insert(key, run);
        Ok(())
    }

    /// Forgets what was silent for long.
    pub(super) fn forget(&mut self, now: Timestamp) {
        let Self {
            runs,
            ranks,
            step_bytes,
            ..
        } = self;
        runs.retain(|_, run| {
            let silent = now.since(run.facts.heard);
            if silent >= STEPS_KEPT {
                *step_bytes -= drop_steps(run);
            }
            // One that is not recalled may have facts that only a part of is told.
            let goes = silent >= RUN_KEPT && run.is_recalled;
            if goes {
                *ranks -= run.ranks.len();
            }
            !goes
        });
    }
}

/// Since when a run is over, what ended before what is only silent; none while it goes on.
fn over_since(run: &Run, now: Timestamp) -> Option<(bool, Timestamp)> {
    let heard = run.facts.heard;
    match run.facts.ended {
        Some(at) => Some((false, at)),
        None => (now.since(heard) >= SILENT_AFTER).then_some((true, heard)),
    }
}

/// Lets go of the steps of all ranks; returns how many bytes they took.
fn drop_steps(run: &mut Run) -> usize {
    let with_steps = run.ranks.changing(|it| !it.ring.is_empty());
    let steps = with_steps.map(|(_, it)| std::mem::take(&mut it.ring));
    steps.map(|it| it.bytes()).sum()
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::AgentId;
    use gpufleet_telemetry::training::RankId;
    use gpufleet_telemetry::wire::Lane;
    use uuid::Uuid;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + seconds)
    }

    fn key(job: usize) -> RunKey {
        let id = RankId::parse(&format!("team/j{job}/u/0/0")).expect("an id");
        RunKey::of(&"c".into(), &id)
    }

    fn heard(agent: u128, seconds: i64) -> Heard {
        Heard {
            agent: AgentId(Uuid::from_u128(agent)),
            lane: Lane::Live,
            received: at(seconds),
        }
    }

    fn open(known: &mut Known, job: usize, agent: u128, seconds: i64) -> Result<(), Full> {
        let run = known.run(&key(job), 0, heard(agent, seconds))?;
        run.facts.heard = at(seconds);
        Ok(())
    }

    /// As many runs as there may be, each of an agent of its own, heard one second after another.
    fn full() -> Known {
        let mut known = Known::default();
        for job in 0..MAX_RUNS {
            let seconds = i64::try_from(job).expect("small");
            open(&mut known, job, job as u128, seconds).expect("there is room");
        }
        known
    }

    const LAST: i64 = MAX_RUNS as i64 - 1;

    #[test]
    fn the_run_that_ended_longest_ago_makes_room_then_the_longest_silent_and_none_that_goes_on() {
        let mut known = full();
        for (job, ended) in [(7, 900), (9, 800)] {
            known
                .runs
                .get_mut(&key(job))
                .expect("it is there")
                .facts
                .ended = Some(at(ended));
        }
        for (new, gone) in [(10_000, 9), (10_001, 7), (10_002, 0)] {
            open(&mut known, new, 1 << 64, LAST + 60).expect("one is over");
            assert!(!known.runs.contains_key(&key(gone)), "{gone}");
            assert!(
                known.leaving.contains_key(&key(gone)),
                "{gone} is still to be told"
            );
            assert_eq!((known.runs.len(), known.ranks), (MAX_RUNS, MAX_RUNS));
        }
        for run in known.runs.values_mut() {
            (run.facts.heard, run.facts.ended) = (at(LAST + 60), None);
        }
        assert_eq!(
            open(&mut known, 10_003, 1 << 64, LAST + 60),
            Err(Full),
            "all go on"
        );
    }

    #[test]
    fn an_agent_that_opens_many_runs_pushes_out_its_own_and_is_refused_before_others_are() {
        let mut known = Known::default();
        open(&mut known, 0, 1, 0).expect("there is room");
        for job in 1..=MAX_RUNS_OF_AGENT {
            open(&mut known, job, 2, 100).expect("there is room");
        }
        assert_eq!(
            open(&mut known, 10_000, 2, 100),
            Err(Full),
            "all of its own go on"
        );
        open(&mut known, 10_000, 2, 160).expect("one of its own is silent");
        assert!(
            known.runs.contains_key(&key(0)),
            "another's, and silent for longer"
        );
        open(&mut known, 10_001, 3, 160).expect("there is room for others");
    }

    #[test]
    fn a_run_that_is_heard_again_before_it_was_told_comes_back_as_it_was() {
        let mut known = full();
        known
            .runs
            .get_mut(&key(3))
            .expect("it is there")
            .facts
            .world = 8;
        known
            .runs
            .get_mut(&key(3))
            .expect("it is there")
            .facts
            .ended = Some(at(3));
        open(&mut known, 10_000, 1 << 64, LAST).expect("one is over");
        assert!(!known.runs.contains_key(&key(3)));
        open(&mut known, 3, 3, LAST + 100).expect("another is silent");
        assert_eq!(known.runs[&key(3)].facts.world, 8);
        assert!(!known.leaving.contains_key(&key(3)));
    }
}
