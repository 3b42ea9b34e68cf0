//! How a run stands: it runs, it ended, or nobody knows because nothing is heard of it.

use gpufleet_analysis::ending::{self, Attempt, GpuFault, NodeLost};
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::Ended;

use super::facts::{Exception, RankEnd};
use super::{Rank, Run, RunFacts};

/// A rank of which nothing was heard for so long is silent, nanoseconds: six shipments.
pub const SILENT_AFTER: i64 = 60 * NANOS_PER_SECOND;

/// A run without a new step for so long stands, whatever its ranks say else, nanoseconds: a rank that
/// is silent holds the others' steps back for a minute, and shipping adds ten seconds.
const STANDS_AFTER: i64 = 120 * NANOS_PER_SECOND;
/// And for so many of its own steps, where they are long.
const STANDS_AFTER_STEPS: i64 = 10;

/// An exception of a rank that did not say that it died of one may have ended it when it came so shortly before its
/// end, nanoseconds: one of a thread is survived, and what was hours ago says nothing of why it ended.
const MAY_END_NS: i64 = 60 * NANOS_PER_SECOND;

/// What is known of a run's end beside what its ranks left behind.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Faults of its GPUs.
    pub gpu_faults: Vec<GpuFault>,
    /// Nodes of it that went.
    pub nodes_lost: Vec<NodeLost>,
    /// Whether it would be known that nodes went.
    pub nodes_were_watched: bool,
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// At least one of its ranks was heard and has not ended.
    Running,
    /// Nothing is heard of it, and no rank said that it ended.
    Silent {
        /// When something was last heard.
        since: Timestamp,
    },
    /// Every rank that is heard said that it ended, or the machines that the silent ones were on went.
    Ended {
        /// When the last one did.
        at: Timestamp,
    },
}

impl State {
    /// The name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Silent { .. } => "silent",
            Self::Ended { .. } => "ended",
        }
    }

    /// Up to when a run goes that stands so: until now, or until it was heard last or ended.
    pub const fn until(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Running => now,
            Self::Silent { since } => since,
            Self::Ended { at } => at,
        }
    }

    /// What the stored facts alone say of a run.
    pub fn of_facts(facts: &RunFacts, now: Timestamp) -> Self {
        match facts.ended {
            Some(at) => Self::Ended { at },
            // The store is told when a run was heard every five minutes.
            None if now.since(facts.heard) >= SILENT_AFTER + super::TOLD_EVERY => {
                Self::Silent { since: facts.heard }
            }
            None => Self::Running,
        }
    }
}

impl Run {
    /// A run as the store knows it.
    pub fn of_store(known: super::KnownRun) -> Self {
        let rank = |facts| super::Rank {
            facts,
            ..super::Rank::default()
        };
        Self {
            facts: known.facts,
            ranks: known
                .ranks
                .into_iter()
                .map(|(number, it)| (number, rank(it)))
                .collect(),
            is_recalled: true,
            ..Self::default()
        }
    }

    /// How it stands.
    pub fn state(&self, now: Timestamp) -> State {
        let ranks = || self.members().map(|(_, it)| &it.facts);
        let lives = |heard: Timestamp| now.since(heard) < SILENT_AFTER;
        if ranks().any(|it| it.end.is_none() && lives(it.heard)) {
            return State::Running;
        }
        match ranks().filter_map(|it| Some(it.end.as_ref()?.at)).max() {
            Some(at) => State::Ended { at },
            None => {
                let since = self.facts.heard;
                // A list is read without the ranks of its runs: what was judged of them stands.
                let is_as_judged = |at: Timestamp| self.ranks.is_empty() || at == since;
                match self.facts.ended.filter(|at| is_as_judged(*at)) {
                    Some(at) if self.facts.ending.is_some() => State::Ended { at },
                    _ => State::Silent { since },
                }
            }
        }
    }

    /// When its last complete step ended, where none came for much longer than one takes; none for a
    /// run that steps, does not run or was never judged.
    pub fn stands_since(&self, now: Timestamp) -> Option<Timestamp> {
        let judged = self.judged.as_ref()?;
        let step = i64::try_from(judged.step_ns).unwrap_or(i64::MAX);
        let most = STANDS_AFTER.max(step.saturating_mul(STANDS_AFTER_STEPS));
        let stands = self.state(now) == State::Running && now.since(judged.ended_at) > most;
        stands.then_some(judged.ended_at)
    }

    /// Whether all of its ranks have made the steps that it planned, and no more: what its processes do from then on is
    /// no training. Steps are counted by the number of the last, or by how many this process made, where numbers begin
    /// at 0. A plan that was overrun says nothing.
    pub fn has_made_its_steps(&self) -> bool {
        let steps = |rank: &Rank, metric: Metric| {
            let told = rank.facts.reading(metric.id).map(|it| it as u64);
            told.filter(|it| *it > 0)
        };
        let living = || self.living().map(|(_, it)| it);
        let plans = living().filter_map(|it| steps(it, training::PLANNED_STEPS));
        let Some(planned) = plans.max() else {
            return false;
        };
        living().all(|it| {
            let last = steps(it, training::LAST_STEP);
            last == Some(planned) || steps(it, training::STEPS) == Some(planned)
        })
    }

    /// Since when all of its ranks that are known are up, where they say that they have made no step; none where one of
    /// them has, or nobody says.
    pub fn up_without_step(&self, now: Timestamp) -> Option<Timestamp> {
        if self.last_step().is_some() {
            return None;
        }
        let (mut says, mut up_since) = (false, self.facts.started);
        for (_, rank) in self.members() {
            match rank.facts.reading(training::STEPS.id) {
                Some(steps) if steps > 0.0 => return None,
                told => says |= told.is_some() && rank.facts.end.is_none(),
            }
            up_since = up_since.max(rank.facts.started);
        }
        says.then(|| up_since.map_or(now, |it| it.min(now)))
    }

    /// Why it ended, from what its ranks left behind and what else is known.
    pub fn ending(&self, ended: Timestamp, known: Known) -> ending::Ending {
        let ranks = self.members().map(|(number, rank)| {
            let end = rank.facts.end.as_ref();
            let exception = rank.facts.exception.as_ref();
            // One that was survived did not end it.
            let may_end = |it: &&Exception| end.is_some_and(|end| end.may_be_of(it));
            let exception = exception.filter(may_end);
            ending::RankEnd {
                rank: *number,
                place: ending::Place {
                    node: rank.facts.node.to_string(),
                    gpu_id: rank.facts.gpu.to_string(),
                    pod: String::new(),
                },
                at: exception.map(|it| it.at).or(end.map(|it| it.at)),
                ended: end.map(|it| it.ended),
                exception: exception.map(|it| (it.kind.clone(), it.message.clone())),
                exit_status: end.and_then(|it| it.exit_status),
                signal: end.and_then(|it| it.signal),
                oom_kills: end.and_then(|it| it.oom_kills).unwrap_or(0),
                stuck: None,
            }
        });
        let ranks_of = || self.members().map(|(_, it)| &it.facts);
        let ends = || ranks_of().filter_map(|it| it.end.as_ref());
        let gpus = ranks_of().filter(|it| !it.gpu.is_empty());
        ending::ending(&Attempt {
            ended_at: Some(ended),
            ranks: ranks.collect(),
            gpus: u32::try_from(gpus.clone().count()).unwrap_or(u32::MAX),
            gpus_were_read: gpus.count() > 0,
            gpu_faults: known.gpu_faults,
            nodes_lost: known.nodes_lost,
            nodes_were_watched: known.nodes_were_watched,
            hooks_were_read: true,
            // Where no checkpoint was told, nobody knows whether there was one.
            first_step: self
                .facts
                .checkpoint
                .map(|_| self.facts.restored.map_or(0, |it| it.step)),
            last_step: ends().filter_map(|it| it.step).max().or(self.last_step()),
            checkpoint_step: self.facts.checkpoint.map(|it| it.step),
            ..Attempt::default()
        })
    }
}

impl RankEnd {
    /// Whether this exception may be why it ended.
    fn may_be_of(&self, exception: &Exception) -> bool {
        self.ended == Ended::Exception || self.at.since(exception.at) <= MAY_END_NS
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ending::Cause;
    use gpufleet_telemetry::event::{Event, EventKind, Severity};
    use gpufleet_telemetry::identity::ResourceKind;
    use gpufleet_telemetry::training::attribute;

    use super::*;
    use crate::runs::facts::EndingFacts;

    #[test]
    fn an_attempt_that_was_read_without_its_ranks_ended_as_it_was_judged() {
        let at = |seconds: i64| Timestamp::from_seconds(1_790_000_000 + seconds);
        let mut run = Run::default();
        // Its last rank was heard after it had ended: what it said last came then.
        (run.facts.ended, run.facts.heard) = (Some(at(20)), at(21));
        let silent = State::Silent { since: at(21) };
        assert_eq!(run.state(at(100_000)), silent, "nobody judged it");
        run.facts.ending = Some(EndingFacts::default());
        assert_eq!(run.state(at(100_000)), State::Ended { at: at(20) });
        // One that does not say that it ended was heard since.
        run.ranks.insert(0, Rank::default());
        assert_eq!(run.state(at(100_000)), silent);
    }

    #[test]
    fn what_the_kernel_says_of_the_end_of_a_rank_is_evidence_of_why_its_run_ended() {
        let at = Timestamp::from_seconds(1_790_000_000);
        let (signal, kills) = ((attribute::SIGNAL, "9"), (attribute::OOM_KILLS, "1"));
        let status = (attribute::EXIT_STATUS, "1");
        for (said, expected) in [
            (vec![signal, kills], Cause::HostOutOfMemory),
            (vec![kills], Cause::HostOutOfMemory),
            (vec![signal], Cause::Unknown),
            (vec![status, kills], Cause::Unknown),
        ] {
            let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let mut rank = Rank::default();
            rank.facts.learn(&Event {
                at,
                kind: EventKind::RunEnded,
                severity: Severity::Error,
                resource_kind: ResourceKind::Rank,
                resource_id: "team/llama/u1/0/0".into(),
                message: String::new(),
                attributes: said.iter().map(text).collect(),
            });
            let mut run = Run::default();
            run.ranks.insert(0, rank);
            let ending = run.ending(at, Known::default());
            assert_eq!(ending.cause, expected, "{said:?}: {}", ending.sentence);
        }
    }

    #[test]
    fn an_exception_that_a_rank_survived_for_hours_did_not_end_it_unless_it_says_so() {
        let raised_at = Timestamp::from_seconds(1_790_000_000);
        for (ended, seconds, expected) in [
            (Ended::Vanished, 64_800, Cause::Unknown),
            (Ended::Stopped, 64_800, Cause::StoppedByUser),
            (Ended::Vanished, 30, Cause::Exception),
            (Ended::Exception, 64_800, Cause::Exception),
        ] {
            let ended_at = raised_at.shifted(seconds * NANOS_PER_SECOND);
            let mut rank = Rank::default();
            rank.facts.exception = Some(Exception {
                at: raised_at,
                kind: "ValueError".to_owned(),
                message: "of a thread".to_owned(),
                traceback: String::new(),
                step: None,
            });
            rank.facts.end = Some(RankEnd {
                at: ended_at,
                ended,
                exit_status: None,
                signal: (ended != Ended::Exception).then_some(15),
                oom_kills: None,
                step: None,
                checkpoint_step: None,
                phase: None,
            });
            let mut run = Run::default();
            run.ranks.insert(0, rank);
            let ending = run.ending(ended_at, Known::default());
            assert_eq!(ending.cause, expected, "{}", ending.sentence);
            let at = match expected {
                Cause::Exception => raised_at,
                _ => ended_at,
            };
            assert_eq!(ending.at, Some(at), "{ended:?} {seconds}");
        }
    }
}
