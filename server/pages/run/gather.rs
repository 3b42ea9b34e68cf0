//! What the job page needs of the store and of the live view. What fails is left out and said.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use gpufleet_analysis::goodput::Goodput;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};

use crate::fleet::Live;
use crate::pages::events::{self, Entry};
use crate::runs::history::{self, Steps};
use crate::runs::{Run, RunKey, goodput, lookup};
use crate::store::model::EventFilter;
use crate::store::{MAX_EVENTS, RunFilter, StoreError};
use crate::web::Web;

/// Ranks whose collectives are added up.
const LIVE_RANKS: usize = 64;

/// Events are looked for until so long after the run's end, nanoseconds.
const AFTERWARDS: i64 = 600 * NANOS_PER_SECOND;

/// Everything that is not in the run itself.
pub(super) struct Past {
    pub(super) attempts: Vec<RunKey>,
    pub(super) steps: Steps,
    pub(super) goodput: Result<Goodput, &'static str>,
    pub(super) loss: BTreeMap<Minute, MinuteRow>,
    pub(super) events: Vec<Entry>,
    /// Its first ranks as they are live, for their collectives.
    pub(super) lives: Vec<Live>,
    pub(super) failed: bool,
}

pub(super) async fn past(
    web: &Web,
    key: &RunKey,
    run: &Run,
    range: &Range<Timestamp>,
    now: Timestamp,
) -> Past {
    let ranks = run.ranks.keys().take(LIVE_RANKS);
    let lives = ranks
        .filter_map(|rank| web.app.fleet.get(&key.rank(*rank)))
        .collect();
    let mut past = Past {
        attempts: Vec::new(),
        steps: Steps::new(),
        goodput: Err("not known: the store does not answer"),
        loss: BTreeMap::new(),
        events: Vec::new(),
        lives,
        failed: false,
    };
    if let Err(error) = read(web, key, run, range, now, &mut past).await {
        tracing::error!(%error, "the past of a run cannot be read");
        past.failed = true;
    }
    past
}

async fn read(
    web: &Web,
    key: &RunKey,
    run: &Run,
    range: &Range<Timestamp>,
    now: Timestamp,
    past: &mut Past,
) -> Result<(), StoreError> {
    let store = &web.app.store;
    past.steps = history::steps(store, (key, run), None, range).await?;
    past.goodput = goodput::of(store, (key, run), lookup::kept_from(&web.app, now), now).await?;
    if let Some((speaker, _)) = run.speaker() {
        let minutes = range.start.minute()..Minute(range.end.minute().0 + 1);
        past.loss = store.minutes(&key.rank(speaker), minutes).await?.rows;
    }
    let filter = RunFilter {
        cluster: Some(Arc::clone(&key.cluster)),
        job: Some(key.run.job.clone()),
        ..RunFilter::default()
    };
    let (attempts, _) = store.runs(&filter, None, super::ATTEMPTS).await?;
    past.attempts = attempts.into_iter().map(|it| it.key).collect();
    let filter = EventFilter {
        cluster: Some(Arc::clone(&key.cluster)),
        resource_kind: Some(ResourceKind::Rank),
        from: run.facts.started,
        until: Some(run.facts.heard.shifted(AFTERWARDS)),
        ..EventFilter::default()
    };
    let mut found = store.events(&filter, None, MAX_EVENTS).await?.events;
    let of_run = format!("{}/", key.run);
    found.retain(|it| it.event.resource_id.starts_with(&of_run));
    found.truncate(events::SHOWN);
    past.events = events::entries(&found, (ResourceKind::Rank, ""));
    Ok(())
}
