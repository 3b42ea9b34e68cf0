//! Jobs in the order of a figure: the dearest first, the worst MFU first, those on the most GPUs first.
//!
//! First come those of which a look at all runs in memory knows the figure ([`super::worth`]); behind them all others, the
//! last started first as without an order: what is not known is no figure, and of a run that left the memory it would be
//! a question to the store for each. So a page costs sorting what is in memory and questions by name for its own rows.
//! Each job comes once, whatever its figure becomes meanwhile, where the pages of a list are made of one look; who asks
//! for the next one after that is forgotten goes on at the same figure in a newer one.
//!
//! Limits: what is sorted are [`MAX_RUNS`](super::MAX_RUNS) runs at most.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::JobId;

use super::worth::{Worth, Worths};
use super::{KnownRun, RunKey};
use crate::App;
use crate::store::{RunFilter, StoreError};

/// What comes first in a list of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The last started.
    #[default]
    Started,
    /// The one whose last attempt has cost most.
    Cost,
    /// The lowest MFU.
    Mfu,
    /// The one on the most GPUs.
    Gpus,
}

/// Where a page of a list of jobs ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// Without an order: at this start and number in the store.
    Started((i64, i64)),
    /// Among those whose figure is known.
    Ranked {
        /// Of when the look is.
        look: Timestamp,
        /// The figure of its last job, as the order has it, and the run.
        last: (i64, RunKey),
    },
    /// Among the others, in the order in which they started.
    Others {
        /// Of when the look is.
        look: Timestamp,
        /// The start of its last job and its number in the store.
        last: (i64, i64),
    },
}

/// A list of jobs that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// What the store can say: of each job the last attempt.
    pub filter: RunFilter,
    /// How they stand, which only who hears them knows.
    pub state: Option<&'static str>,
    /// What comes first.
    pub order: Order,
    /// Where the page before ended.
    pub after: Option<After>,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 4] = [Self::Started, Self::Cost, Self::Mfu, Self::Gpus];

    /// Its name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Cost => "cost",
            Self::Mfu => "mfu",
            Self::Gpus => "gpus",
        }
    }

    /// What comes first, in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Started => "the last started first",
            Self::Cost => "the dearest attempt first",
            Self::Mfu => "the worst MFU first",
            Self::Gpus => "those on the most GPUs first",
        }
    }

    /// Whether it goes from the least to the most.
    pub const fn is_ascending(self) -> bool {
        matches!(self, Self::Mfu)
    }

    /// The figure of a run as a number of which the least comes first; none where it is not known, and of the order that
    /// has no figure.
    fn rank(self, worth: &Worth) -> Option<i64> {
        match self {
            Self::Started => None,
            Self::Cost => worth.attempt_nano_usd.as_ref().ok().map(|it| -it),
            // Of the peak, so from 0 to 1: in millionths of a millionth.
            Self::Mfu => worth.mfu.as_ref().ok().map(|it| (it.ratio * 1e12) as i64),
            Self::Gpus => i64::try_from(worth.gpus?).ok().map(|it| -it),
        }
    }

    /// The same of a run that is the last attempt of its job in this look.
    fn rank_of(self, looked: &BTreeMap<RunKey, Worth>, key: &RunKey) -> Option<i64> {
        let rank = self.rank(looked.get(key)?)?;
        let next = looked.range::<RunKey, _>((Excluded(key), Unbounded)).next();
        let is_same = |next: &RunKey| next.cluster == key.cluster && next.run.job == key.run.job;
        next.is_none_or(|(next, _)| !is_same(next)).then_some(rank)
    }

    /// The first of those whose figure is known, behind `after`, of those that are asked for.
    fn ranked(
        self,
        looked: &BTreeMap<RunKey, Worth>,
        after: Option<&(i64, RunKey)>,
        is_asked: impl Fn(&RunKey) -> bool,
        most: usize,
    ) -> Vec<(i64, RunKey)> {
        let all = looked.keys();
        let ranked = all.filter_map(|key| Some((self.rank_of(looked, key)?, key)));
        let mut behind: Vec<(i64, &RunKey)> = match after {
            None => ranked.collect(),
            Some((rank, key)) => ranked.filter(|it| *it > (*rank, key)).collect(),
        };
        behind.sort_unstable();
        let asked = behind.into_iter().filter(|(_, key)| is_asked(key));
        let asked = asked.map(|(rank, key)| (rank, key.clone()));
        asked.take(most).collect()
    }
}

impl After {
    /// Of when the look is that the page was made of; none without an order.
    pub const fn look(&self) -> Option<Timestamp> {
        match self {
            Self::Started(_) => None,
            Self::Ranked { look, .. } | Self::Others { look, .. } => Some(*look),
        }
    }
}

impl List {
    /// A page of it, by this look, of `most` jobs at most, and where it ended if there may be more behind it. There may
    /// be fewer, and others among them that do not stand as they should: who shows them leaves those out.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn page(
        &self,
        app: &App,
        worths: &Worths,
        most: usize,
    ) -> Result<(Vec<KnownRun>, Option<After>), StoreError> {
        let store = &app.store;
        if self.order == Order::Started {
            let after = match self.after {
                Some(After::Started(last)) => Some(last),
                _ => None,
            };
            let (found, next) = store.runs(&self.filter, after, most).await?;
            return Ok((found, next.map(After::Started)));
        }
        let (looked, look) = (worths.all(), worths.at);
        let (ranked, behind) = match &self.after {
            Some(After::Others { last, .. }) => (Vec::new(), Some(*last)),
            Some(After::Ranked { last, .. }) => (self.ranked(app, looked, Some(last), most), None),
            Some(After::Started(_)) | None => (self.ranked(app, looked, None, most), None),
        };
        let keys: Vec<RunKey> = ranked.iter().map(|(_, key)| key.clone()).collect();
        let mut found = store.last_attempts(&keys).await?;
        let left = most - ranked.len();
        if let (0, Some(last)) = (left, ranked.into_iter().next_back()) {
            return Ok((found, Some(After::Ranked { look, last })));
        }
        let (others, next) = store.runs(&self.filter, behind, left).await?;
        let is_other = |it: &KnownRun| self.order.rank_of(looked, &it.key).is_none();
        found.extend(others.into_iter().filter(is_other));
        Ok((found, next.map(|last| After::Others { look, last })))
    }

    fn ranked(
        &self,
        app: &App,
        looked: &BTreeMap<RunKey, Worth>,
        after: Option<&(i64, RunKey)>,
        most: usize,
    ) -> Vec<(i64, RunKey)> {
        let (runs, now) = (app.fleet.runs(), app.clock.now());
        // One that has left the memory since the look is told by the store, and left out there.
        let stands = |key: &RunKey, state: &str| {
            let found = runs.look(key, |run| run.state(now).name());
            found.is_none_or(|it| it == state)
        };
        let is_asked = |key: &RunKey| {
            is_named(&self.filter, key) && self.state.is_none_or(|state| stands(key, state))
        };
        self.order.ranked(looked, after, is_asked, most)
    }
}

/// Whether a run is of the cluster, job or name that is asked for, as the store understands it.
fn is_named(filter: &RunFilter, key: &RunKey) -> bool {
    let job = &key.run.job;
    let cluster = filter.cluster.as_deref().filter(|it| !it.is_empty());
    let is_of = |it: &JobId| (&it.namespace, &it.name) == (&job.namespace, &job.name);
    cluster.is_none_or(|it| *it == *key.cluster)
        && filter.job.as_ref().is_none_or(|it| it == job)
        && filter.name_of.as_ref().is_none_or(is_of)
        && filter.called.as_ref().is_none_or(|it| *it == job.name)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::training::RunId;

    use super::*;

    fn key(job: &str, attempt: u32) -> RunKey {
        let job = JobId::parse(job).unwrap();
        RunKey {
            cluster: "prod".into(),
            run: RunId { job, attempt },
        }
    }

    fn unknown<T>() -> Result<T, String> {
        Err("not known".to_owned())
    }

    /// A run on so many GPUs that has cost so much, each where it is known.
    fn worth(gpus: Option<usize>, cost: Option<i64>) -> Worth {
        Worth {
            payer: None,
            gpus,
            mfu: unknown(),
            nano_usd_per_hour: unknown(),
            attempt_nano_usd: cost.map_or_else(unknown, Ok),
        }
    }

    /// The names of the jobs that come first, behind the last of `after`.
    fn names(
        looked: &BTreeMap<RunKey, Worth>,
        order: Order,
        after: Option<&(i64, RunKey)>,
        most: usize,
    ) -> (String, Option<(i64, RunKey)>) {
        let mut ranked = order.ranked(looked, after, |_| true, most);
        let names = ranked.iter().map(|(_, key)| key.run.job.name.as_str());
        (names.collect(), ranked.pop())
    }

    #[test]
    fn what_is_known_comes_in_its_order_and_what_is_not_is_no_figure_of_nothing() {
        let looked = BTreeMap::from([
            (key("team/a/u", 0), worth(Some(8), Some(5))),
            (key("team/b/u", 0), worth(None, Some(7))),
            (key("team/c/u", 0), worth(Some(64), None)),
            (key("team/d/u", 0), worth(Some(8), Some(0))),
            // An attempt before the last is not the job's.
            (key("team/e/u", 0), worth(Some(512), Some(900))),
            (key("team/e/u", 1), worth(Some(16), Some(6))),
        ]);
        for (order, expected) in [
            (Order::Cost, "bead"),
            (Order::Gpus, "cead"),
            (Order::Mfu, ""),
            (Order::Started, ""),
        ] {
            assert_eq!(names(&looked, order, None, 9).0, expected, "{order:?}");
        }
        assert_eq!(Order::Cost.rank_of(&looked, &key("team/c/u", 0)), None);
        assert_eq!(Order::Cost.rank_of(&looked, &key("team/e/u", 0)), None);
    }

    #[test]
    fn pages_of_one_look_hold_each_job_once_also_where_many_have_the_same_figure() {
        let mut looked = BTreeMap::new();
        for number in 0..9 {
            let job = format!("team/{number}/u");
            looked.insert(key(&job, 0), worth(Some(8 + number % 2), None));
        }
        let (mut found, mut after) = (String::new(), None);
        loop {
            let (page, last) = names(&looked, Order::Gpus, after.as_ref(), 2);
            let Some(last) = last else {
                break;
            };
            (found, after) = (found + &page, Some(last));
        }
        assert_eq!(found, "135702468");
    }

    #[test]
    fn a_job_is_asked_for_as_the_store_understands_it() {
        let asked = key("team/llama/u1", 0);
        let id = |it: &str| Some(JobId::parse(it).unwrap());
        let all = RunFilter::default;
        for (filter, expected) in [
            (all(), true),
            (
                RunFilter {
                    cluster: Some("".into()),
                    ..all()
                },
                true,
            ),
            (
                RunFilter {
                    cluster: Some("prod".into()),
                    ..all()
                },
                true,
            ),
            (
                RunFilter {
                    cluster: Some("demo".into()),
                    ..all()
                },
                false,
            ),
            (
                RunFilter {
                    job: id("team/llama/u1"),
                    ..all()
                },
                true,
            ),
            (
                RunFilter {
                    job: id("team/llama/u2"),
                    ..all()
                },
                false,
            ),
            (
                RunFilter {
                    name_of: id("team/llama/"),
                    ..all()
                },
                true,
            ),
            (
                RunFilter {
                    name_of: id("other/llama/"),
                    ..all()
                },
                false,
            ),
            (
                RunFilter {
                    called: Some("llama".to_owned()),
                    ..all()
                },
                true,
            ),
            (
                RunFilter {
                    called: Some("lla".to_owned()),
                    ..all()
                },
                false,
            ),
        ] {
            assert_eq!(is_named(&filter, &asked), expected, "{filter:?}");
        }
    }
}
