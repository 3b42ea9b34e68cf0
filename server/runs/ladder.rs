//! A ladder: runs of one cluster that a person tagged as steps of one improvement, in their order.
//!
//! A run is a rung where it has the tag [`TAG`] with the ladder's name; the tag [`RUNG`] says what was
//! changed. A job counts with its last attempt. Each rung is held against the one before it and against
//! the first. Limits: [`MAX_RUNGS`] rungs, the last ones; the last [`MAX_LOOKED_AT`] jobs are looked at. Others who
//! read steps come between any two rungs.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::RunKey;
use super::compare::{self, Against, Compared};
use crate::App;
use crate::store::{MAX_RUNS_READ, RunFilter, StoreError};

/// The tag whose text is the ladder's name.
pub const TAG: &str = "ladder";

/// The tag that says what was changed.
pub const RUNG: &str = "rung";

/// Most rungs: what a person compares.
pub const MAX_RUNGS: usize = 16;

/// Most jobs that are looked at for the tag.
const MAX_LOOKED_AT: usize = 5 * MAX_RUNS_READ;

/// A run on a ladder.
#[derive(Debug)]
pub struct Rung {
    /// Which, and what is compared of it.
    pub compared: Compared,
    /// Against the rung before it; none of the first.
    pub step: Option<Against>,
    /// Against the first; none of the first.
    pub whole: Option<Against>,
}

/// A ladder.
#[derive(Debug, Default)]
pub struct Ladder {
    /// The first started first.
    pub rungs: Vec<Rung>,
    /// How many earlier ones are left out.
    pub left_out: usize,
}

/// Where runs of a ladder's name are.
#[derive(Debug, Default)]
pub struct Places {
    /// The clusters with such a run.
    pub clusters: BTreeSet<Arc<str>>,
    /// Whether every job was looked at: else earlier ones in other clusters may have the tag too.
    pub are_all: bool,
}

/// In which clusters runs have the tag: in all of them, or at most in this one. It waits for one of the `views`.
///
/// # Errors
/// When the database refuses.
pub async fn places(
    app: &App,
    views: &Semaphore,
    (cluster, name): (Option<&Arc<str>>, &str),
) -> Result<Places, StoreError> {
    let _permit = views.acquire().await;
    let (keys, are_all) = tagged(app, cluster, name).await?;
    Ok(Places {
        clusters: keys.into_iter().map(|it| it.cluster).collect(),
        are_all,
    })
}

/// The ladder of a cluster's name. For each rung it waits for one of the `views` anew.
///
/// # Errors
/// When the database refuses.
pub async fn read(
    app: &App,
    views: &Semaphore,
    (cluster, name): (&Arc<str>, &str),
) -> Result<Ladder, StoreError> {
    let mut keys = {
        let _permit = views.acquire().await;
        tagged(app, Some(cluster), name).await?.0
    };
    // Newest first until here.
    let left_out = keys.len().saturating_sub(MAX_RUNGS);
    keys.truncate(MAX_RUNGS);
    keys.reverse();
    let mut rungs: Vec<Rung> = Vec::new();
    for key in keys {
        let compared = {
            let _permit = views.acquire().await;
            compare::one(app, key).await?
        };
        let Some(compared) = compared else {
            continue;
        };
        let here = (&compared.facts, &compared.side);
        let held = |it: &Rung| compare::against((&it.compared.facts, &it.compared.side), here);
        let (step, whole) = (rungs.last().map(held), rungs.first().map(held));
        rungs.push(Rung {
            compared,
            step,
            whole,
        });
    }
    Ok(Ladder { rungs, left_out })
}

/// The runs with the tag, of this cluster or of all, the last started first; and whether every job was looked at.
async fn tagged(
    app: &App,
    cluster: Option<&Arc<str>>,
    name: &str,
) -> Result<(Vec<RunKey>, bool), StoreError> {
    let filter = RunFilter {
        cluster: cluster.cloned(),
        only_last: true,
        ..RunFilter::default()
    };
    let of_ladder =
        |it: &crate::runs::KnownRun| it.facts.tags.get(TAG).is_some_and(|it| it == name);
    let keys = app.store.run_keys(&filter, None, MAX_LOOKED_AT, of_ladder);
    keys.await
}
