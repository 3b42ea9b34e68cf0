//! A run that is heard again after it left the memory: what the store knows of it comes back.
//!
//! A run is made without asking the store, so that what comes of it never waits for the database. Until
//! it was asked, the store merges what it is told ([`super::KnownRun::is_part`]) by the same rules.

use gpufleet_telemetry::training::Trust;

use super::{Known, KnownRun, MAX_RANKS, Rank, RankFacts, RunFacts, RunKey, Runs};
use crate::store::{Store, StoreError};

/// Runs that are asked for at a time.
const AT_A_TIME: usize = 64;

/// Asks the store for what it knows of the runs that were made since the last time.
///
/// # Errors
/// When the database refuses.
pub async fn recall(runs: &Runs, store: &Store) -> Result<(), StoreError> {
    let keys = runs.not_recalled();
    for keys in keys.chunks(AT_A_TIME) {
        let known = store.with_ranks(keys).await?;
        runs.recall(keys, known);
    }
    Ok(())
}

impl Runs {
    /// The runs of which it is not known what the store knows.
    fn not_recalled(&self) -> Vec<RunKey> {
        let known = self.lock();
        let all = known.runs.iter().chain(&known.leaving);
        let all = all.filter(|(_, run)| !run.is_recalled);
        all.map(|(key, _)| key.clone()).collect()
    }

    /// Takes in what the store knows of these runs, which may be nothing.
    fn recall(&self, keys: &[RunKey], stored: Vec<KnownRun>) {
        let known = &mut *self.lock();
        for stored in stored {
            known.bring_back(stored);
        }
        for key in keys {
            let run = known.runs.get_mut(key);
            if let Some(run) = run.or_else(|| known.leaving.get_mut(key)) {
                run.is_recalled = true;
            }
        }
    }
}

impl Known {
    fn bring_back(&mut self, stored: KnownRun) {
        let (run, is_here) = match self.runs.get_mut(&stored.key) {
            Some(run) => (run, true),
            None => match self.leaving.get_mut(&stored.key) {
                Some(run) => (run, false),
                None => return,
            },
        };
        run.facts.recall(stored.facts);
        run.changed = true;
        for (number, facts) in stored.ranks {
            match run.ranks.get_mut(&number) {
                Some(rank) => rank.facts.recall(facts),
                // The store keeps what there is no room for.
                None if is_here && self.ranks < MAX_RANKS => {
                    self.ranks += 1;
                    let rank = Rank {
                        told: facts.heard,
                        facts,
                        ..Rank::default()
                    };
                    run.ranks.insert(number, rank);
                }
                None => {}
            }
        }
    }
}

impl RunFacts {
    /// Puts what was stored before under what was heard since. Where one of the two rests on a better
    /// trust its word counts alone.
    pub fn recall(&mut self, stored: Self) {
        let of = |trust: Option<Trust>| trust.unwrap_or(Trust::Claimed);
        let (mine, theirs) = (of(self.trust), of(stored.trust));
        let heard = self.heard.max(stored.heard);
        if mine > theirs {
            *self = stored;
        } else if mine == theirs {
            self.fill(stored);
        }
        self.heard = heard;
    }

    fn fill(&mut self, stored: Self) {
        self.trust = self.trust.or(stored.trust);
        if let Some(started) = stored.started
            && self.started.is_none_or(|it| started < it)
        {
            (self.started, self.started_rank) = (Some(started), stored.started_rank);
        }
        self.ended = self.ended.or(stored.ended);
        self.ending = self.ending.take().or(stored.ending);
        if self.world == 0 {
            (self.world, self.described_by) = (stored.world, stored.described_by);
        }
        if self.fingerprint.is_empty() || self.fingerprint_at < stored.fingerprint_at {
            self.fingerprint = stored.fingerprint;
            self.fingerprint_at = stored.fingerprint_at;
            self.fingerprint_rank = stored.fingerprint_rank;
        }
        if self.tags_by.is_none() {
            (self.tags, self.tags_by) = (stored.tags, stored.tags_by);
            self.tags_left_out = stored.tags_left_out;
        }
        for (known, before) in [
            (&mut self.framework, stored.framework),
            (&mut self.launcher, stored.launcher),
            (&mut self.data_type, stored.data_type),
            (&mut self.flops_source, stored.flops_source),
        ] {
            if known.is_empty() {
                *known = before;
            }
        }
        self.checkpoint = self.checkpoint.max(stored.checkpoint);
        self.restored = self.restored.max(stored.restored);
    }
}

impl RankFacts {
    /// The same of a rank: what its process said before, unless it came up again after it.
    pub fn recall(&mut self, stored: Self) {
        let begun = self.started;
        let is_over = |at| begun.is_some_and(|begun| at < begun);
        self.started = [begun, stored.started].into_iter().flatten().min();
        self.began = [self.began, stored.began].into_iter().flatten().min();
        self.began_last = self.began_last.max(stored.began_last);
        self.heard = self.heard.max(stored.heard);
        let end = stored.end.filter(|it| !is_over(it.at));
        self.end = self.end.take().or(end);
        let exception = stored.exception.filter(|it| !is_over(it.at));
        self.exception = self.exception.take().or(exception);
        if self.trust.is_none() && self.node.is_empty() {
            (self.node, self.gpu) = (stored.node, stored.gpu);
            (self.local_rank, self.trust) = (stored.local_rank, stored.trust);
            (self.mesh, self.mesh_source) = (stored.mesh, stored.mesh_source);
        }
        if self.readings.is_empty() {
            self.readings = stored.readings;
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::Timestamp;
    use gpufleet_telemetry::training::Ended;

    use super::*;
    use crate::runs::facts::{Occasion, RankEnd};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + seconds)
    }

    fn stored() -> RunFacts {
        RunFacts {
            started: Some(at(0)),
            heard: at(100),
            world: 8,
            fingerprint: [("torch".to_owned(), "2.9".to_owned())].into(),
            fingerprint_at: at(0),
            checkpoint: Some(Occasion {
                at: at(90),
                step: 90,
                rank: Some(0),
            }),
            ..RunFacts::default()
        }
    }

    #[test]
    fn what_was_stored_comes_back_under_what_was_heard_since() {
        let mut facts = RunFacts {
            heard: at(90_000),
            tags_by: Some(0),
            tags: [("a".to_owned(), "b".to_owned())].into(),
            ..RunFacts::default()
        };
        facts.recall(stored());
        let expected = RunFacts {
            heard: at(90_000),
            tags_by: Some(0),
            tags: [("a".to_owned(), "b".to_owned())].into(),
            ..stored()
        };
        assert_eq!(facts, expected);
    }

    #[test]
    fn who_only_claims_changes_nothing_of_what_is_stored_of_a_proved_run_but_that_it_was_heard() {
        let proved = RunFacts {
            trust: Some(Trust::Proved),
            ..stored()
        };
        let mut facts = RunFacts {
            heard: at(90_000),
            world: 2,
            trust: Some(Trust::Claimed),
            ..RunFacts::default()
        };
        facts.recall(proved.clone());
        let heard = at(90_000);
        assert_eq!(facts, RunFacts { heard, ..proved });
    }

    #[test]
    fn a_ranks_end_comes_back_unless_it_came_up_again_after_it() {
        let end = RankEnd {
            at: at(50),
            ended: Ended::Vanished,
            exit_status: None,
            signal: Some(9),
            oom_kills: None,
            step: None,
            checkpoint_step: None,
            phase: None,
        };
        let stored = RankFacts {
            began: Some(at(-5)),
            began_last: Some(at(-5)),
            started: Some(at(0)),
            end: Some(end),
            ..RankFacts::default()
        };
        for (begun, has_ended) in [(None, true), (Some(at(40)), true), (Some(at(60)), false)] {
            let mut facts = RankFacts {
                began: begun,
                began_last: begun,
                started: begun,
                ..RankFacts::default()
            };
            facts.recall(stored.clone());
            assert_eq!(facts.end.is_some(), has_ended, "{begun:?}");
            assert_eq!((facts.began, facts.started), (Some(at(-5)), Some(at(0))));
            assert_eq!(facts.came_up_again(), begun.is_some(), "{begun:?}");
        }
    }
}
