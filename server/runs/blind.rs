//! Whether anything that a run tells says who makes its ranks wait; and where nothing does, why, and what would.
//!
//! A rank whose script does not say what of a step is waiting for others has that in the time of its own, and so has
//! every other: all look equally fast, whoever is slow. Then the times of collectives say it
//! ([`crate::detect`]), where somebody measures them; and where nobody does, it is not known.

use gpufleet_analysis::straggler::Silent;
use gpufleet_telemetry::catalog::training;
use gpufleet_telemetry::training::CollectivesFrom;

use super::{Rank, Run};

/// Part of a step's time that ranks spend waiting for one another from which it counts as told: who tells none has it
/// in the time of its own.
const LEAST_WAITS: f64 = 0.005;

/// What comes of it that no step tells waits, with why nothing else says who is slow.
macro_rules! all_alike {
    ($why:literal) => {
        concat!(
            "no step says what of it is waiting for other ranks, so all look equally fast, and ",
            $why
        )
    };
}

/// Why it is not known who makes the others wait, although steps are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blind {
    /// Collectives are timed: of too few ranks, or not for long enough yet.
    Learning,
    /// They are counted and not timed, because nobody asked for times.
    Untimed,
    /// Times were asked for, and NCCL reports none.
    Silent,
    /// NCCL has one place for a plugin, and another one has it.
    OtherPlugin,
    /// Nothing times them.
    Nothing,
}

impl Blind {
    /// Why, and what would mend it: the end of a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Learning => {
                all_alike!("it takes four minutes of collectives that at least half of them time")
            }
            Self::Untimed => {
                all_alike!(
                    "collectives are counted but not timed. GPUFLEET_NCCL_MASK=0x46 in the job's environment times them, run.phase(\"communication\") in its script does without (docs/collectives.md)"
                )
            }
            Self::Silent => {
                all_alike!(
                    "NCCL reports no times of its collectives. run.phase(\"communication\") around what waits would tell (docs/hooks.md)"
                )
            }
            Self::OtherPlugin => {
                all_alike!(
                    "another plugin has NCCL's one place for what would time collectives. run.phase(\"communication\") around what waits would tell (docs/hooks.md)"
                )
            }
            Self::Nothing => {
                all_alike!(
                    "nothing times its collectives. run.phase(\"communication\") around what waits, or our NCCL plugin, would tell (docs/collectives.md)"
                )
            }
        }
    }
}

impl Run {
    /// Whether somebody says what of its steps is waiting for others, or nobody says whether it does.
    pub fn tells_waits(&self) -> bool {
        let told = self.living().filter_map(|(_, it)| it.waits_of());
        let mut told = told.peekable();
        told.peek().is_none() || told.any(|it| it >= LEAST_WAITS)
    }

    /// Whether its steps say who makes the others wait: they name somebody, or ranks are compared that tell what they
    /// wait for others.
    pub fn steps_tell(&self) -> bool {
        let Some(judged) = &self.judged else {
            return false;
        };
        let none = [Silent::NoPeers, Silent::RanksMissing];
        let is_judged = judged.verdict.silent.is_none_or(|it| !none.contains(&it));
        is_judged && (!judged.verdict.stragglers.is_empty() || self.tells_waits())
    }

    /// Why nobody can say who makes the others wait, although its ranks' steps are compared; none where it is known, or
    /// where the verdict itself says why nobody is judged.
    pub fn blind(&self) -> Option<Blind> {
        let silent = self.judged.as_ref()?.verdict.silent;
        let says_why = [Silent::Starting, Silent::NoPeers, Silent::RanksMissing];
        let is_said = silent.is_some_and(|it| says_why.contains(&it));
        if is_said || self.by_collectives.is_some() || self.steps_tell() {
            return None;
        }
        let is_from = |from| {
            let mut told = self.living().map(|(_, it)| it.collectives_from());
            told.any(|it| it == Some(from))
        };
        let known = [
            (CollectivesFrom::Plugin, Blind::Learning),
            (CollectivesFrom::PluginUntimed, Blind::Untimed),
            (CollectivesFrom::Silent, Blind::Silent),
            (CollectivesFrom::Inspector, Blind::OtherPlugin),
            (CollectivesFrom::OtherPlugin, Blind::OtherPlugin),
        ];
        let found = known.into_iter().find(|it| is_from(it.0));
        Some(found.map_or(Blind::Nothing, |it| it.1))
    }
}

impl Rank {
    /// Where what is known of its collectives comes from, or why nothing is; none where nobody says.
    pub fn collectives_from(&self) -> Option<CollectivesFrom> {
        let code = self.facts.reading(training::COLLECTIVES_FROM.id)?;
        CollectivesFrom::from_number(code as u64)
    }

    /// Part of its steps' time that it waited for others; none where it tells no steps.
    pub fn waits_of(&self) -> Option<f64> {
        let waits = self.facts.reading(training::STEP_COMMUNICATION_WAIT.id)?;
        let all = self.facts.reading(training::STEP_WALL.id)?;
        (all > 0.0).then(|| waits / all)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::straggler::Verdict;
    use gpufleet_telemetry::time::Timestamp;

    use super::*;
    use crate::runs::{Judged, words};

    /// What was judged by steps, or by collectives.
    fn judged(silent: Option<Silent>) -> Judged {
        Judged {
            verdict: Verdict {
                silent,
                ..Verdict::default()
            },
            since: std::collections::BTreeMap::new(),
            slower: None,
            before: None,
            step: 500,
            ended_at: Timestamp::default(),
            step_ns: 1_000_000_000,
        }
    }

    /// A run of two ranks whose steps were judged, that wait for each other in this part of a step.
    fn run(waits: f64, from: Option<CollectivesFrom>) -> Run {
        let mut run = Run {
            judged: Some(judged(None)),
            ..Run::default()
        };
        for number in 0..2 {
            let rank = run.ranks.entry(number).or_default();
            rank.facts.readings = vec![
                (training::STEP_WALL.id, 500.0),
                (training::STEP_COMMUNICATION_WAIT.id, 500.0 * waits),
            ];
            let from = from.map(|it| (training::COLLECTIVES_FROM.id, it.number() as f64));
            rank.facts.readings.extend(from);
            rank.facts.readings.sort_by_key(|it| it.0);
        }
        run
    }

    fn said(run: &Run) -> String {
        let judged = run.who_waits().expect("it is judged");
        words::slow(run, &[], judged, "USD").to_string()
    }

    #[test]
    fn a_run_that_tells_no_waits_says_why_nobody_knows_who_is_slow_and_what_would_tell() {
        for (from, blind, mends) in [
            (None, Blind::Nothing, "our NCCL plugin"),
            (
                Some(CollectivesFrom::Ras),
                Blind::Nothing,
                "our NCCL plugin",
            ),
            (
                Some(CollectivesFrom::NotAsked),
                Blind::Nothing,
                "our NCCL plugin",
            ),
            (
                Some(CollectivesFrom::PluginUntimed),
                Blind::Untimed,
                "GPUFLEET_NCCL_MASK",
            ),
            (Some(CollectivesFrom::Silent), Blind::Silent, "run.phase"),
            (
                Some(CollectivesFrom::OtherPlugin),
                Blind::OtherPlugin,
                "run.phase",
            ),
            (
                Some(CollectivesFrom::Plugin),
                Blind::Learning,
                "four minutes",
            ),
        ] {
            let run = run(0.001, from);
            assert_eq!(run.blind(), Some(blind), "{from:?}");
            let said = said(&run);
            assert!(said.starts_with("Who is slow is not known: "), "{said}");
            assert!(said.contains(mends), "{from:?}: {said}");
            let told = words::not_named(&run, &judged(None).verdict);
            assert_eq!(told, Some(blind.words()));
        }
    }

    #[test]
    fn a_run_whose_waits_or_collectives_tell_is_not_blind_and_one_that_is_not_judged_says_why() {
        let sees = run(0.2, None);
        assert_eq!(
            (sees.blind(), &*said(&sees)),
            (None, "No rank is slower than its peers.")
        );
        let timed = Run {
            by_collectives: Some(judged(None)),
            ..run(0.0, Some(CollectivesFrom::Plugin))
        };
        let expected = "No rank is slower than its peers, by the times of its collectives.";
        assert_eq!((timed.blind(), &*said(&timed)), (None, expected));
        for silent in [Silent::Starting, Silent::NoPeers, Silent::RanksMissing] {
            let unjudged = Run {
                judged: Some(judged(Some(silent))),
                ..run(0.0, None)
            };
            assert_eq!(unjudged.blind(), None);
            let why = words::not_judged(silent);
            assert_eq!(
                said(&unjudged),
                format!("Who is slow is not judged: {why}.")
            );
        }
    }
}
