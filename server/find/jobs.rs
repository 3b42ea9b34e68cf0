//! Training jobs by a part of their name.
//!
//! Names alone are looked at, as they were read last for all who ask; what else is known is read of those that are told.
//! Limits: [`MAX_JOBS`] names, read one time after the other and of a reader's clusters at most once in [`FRESH_FOR`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::time::Timestamp;

use super::{Asked, Few, MAX_TOLD, Match};
use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::runs::{RunFacts, RunKey, State};
use crate::store::RunFilter;
use crate::words::address;

/// Most jobs that are looked at, those that started last.
pub const MAX_JOBS: usize = 5_000;

/// How long names are kept: short beside the 20 s after which the store learns of a new job.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// Most readers with rights of their own for whom names are kept: one for each cluster that a token is bound to, and
/// one for all.
const KEPT: usize = 16;

/// The jobs that started last, each by its last attempt, and whether these are all that are kept.
type Newest = (Vec<RunKey>, bool);

/// Jobs as they were last read, by the cluster that a reader is bound to.
pub struct Names(Answers<Option<Arc<str>>, Newest, Arc<str>>);

impl Default for Names {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, 1))
    }
}

impl Names {
    async fn newest(&self, app: &App, grant: &Grant) -> Result<Arc<Newest>, Arc<str>> {
        let filter = RunFilter {
            cluster: grant.cluster.clone(),
            only_last: true,
            ..RunFilter::default()
        };
        let store = app.store.clone();
        let reading = async move {
            let names = store.run_names(&filter, MAX_JOBS).await;
            names.map_err(|error| Arc::from(error.to_string()))
        };
        let cluster = grant.cluster.clone();
        self.0.get(cluster, &app.clock, reading).await
    }
}

/// A job that has in its name what was asked for.
struct Meant<'a> {
    last: &'a RunKey,
    /// The attempt that was named.
    attempt: Option<u32>,
    is_exact: bool,
}

impl<'a> Meant<'a> {
    fn of(last: &'a RunKey, asked: &Asked) -> Option<Self> {
        let job = &last.run.job;
        let (id, full) = (job.to_string(), format!("{}/{}", job.namespace, job.name));
        let attempt = asked.attempt_of(last);
        let is_exact = match attempt {
            Some(_) => true,
            None => asked.is_all_of([&id, &full, &job.name])?,
        };
        Some(Self {
            last,
            attempt,
            is_exact,
        })
    }

    fn told(&self, facts: &RunFacts, now: Timestamp) -> Match {
        let mut key = self.last.clone();
        let state = match self.attempt {
            Some(attempt) if attempt != key.run.attempt => {
                format!("the last is {}", key.run.attempt)
            }
            _ => State::of_facts(facts, now).name().to_owned(),
        };
        key.run.attempt = self.attempt.unwrap_or(key.run.attempt);
        let namespace = Some(key.run.job.namespace.as_str()).filter(|it| !it.is_empty());
        let namespace = namespace.map(|it| format!("{it}, ")).unwrap_or_default();
        Match {
            origin: facts.origin,
            name: key.run.job.name.clone(),
            about: format!("{namespace}attempt {}, {state}", key.run.attempt),
            address: address::run(&key),
            cluster: key.cluster,
        }
    }
}

/// Jobs by their last attempt or the one that was named, the last started first, and whether all that are kept were
/// looked at.
///
/// # Errors
/// When the store does not answer, with its words.
pub(super) async fn jobs(
    app: &App,
    names: &Names,
    grant: &Grant,
    asked: &Asked,
) -> Result<(Few, bool), Arc<str>> {
    let newest = names.newest(app, grant).await?;
    let (newest, are_all) = &*newest;
    let meant = newest.iter().filter_map(|it| Meant::of(it, asked));
    let mut meant: Vec<Meant<'_>> = meant.collect();
    meant.sort_by_key(|it| !it.is_exact);
    let others = meant.split_off(meant.len().min(MAX_TOLD));
    let keys: Vec<RunKey> = meant.iter().map(|it| it.last.clone()).collect();
    // None of their ranks.
    let known = app.store.with_first_ranks(&keys, 0).await;
    let known = known.map_err(|error| Arc::<str>::from(error.to_string()))?;
    let known = known.into_iter().map(|it| (it.key, it.facts));
    let known: HashMap<RunKey, RunFacts> = known.collect();
    // Not one that was deleted since its name was read.
    meant.retain(|it| known.contains_key(it.last));
    let now = app.clock.now();
    let told = meant.iter().map(|it| it.told(&known[it.last], now));
    let exact = meant.iter().chain(&others).filter(|it| it.is_exact);
    let few = Few {
        told: told.collect(),
        exact: exact.count(),
        all: meant.len() + others.len(),
    };
    Ok((few, *are_all))
}
