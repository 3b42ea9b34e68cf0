//! What the job page needs of the store and of the live view. What fails is left out and said.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

use futures::FutureExt as _;
use gpufleet_analysis::ending::Reliability;
use gpufleet_analysis::scaling::Efficiency;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};

use super::goodputs::AddedUp;
use super::loss;
use super::maps::Map;
use crate::fleet::Live;
use crate::pages::events::{self, Entry};
use crate::runs::attempts::Attempts;
use crate::runs::cost::{self, Cost};
use crate::runs::{Run, RunKey, energy, reliability, scaling};
use crate::store::model::EventFilter;
use crate::store::{Store, StoreError};
use crate::view::FleetView;
use crate::view::changed::{self, Changed, Of};
use crate::web::Web;
use crate::words::Said;

/// Ranks whose collectives are added up.
const LIVE_RANKS: usize = 64;

/// Events are looked for until so long after the run's end, nanoseconds.
const AFTERWARDS: i64 = 600 * NANOS_PER_SECOND;

/// Why there is no figure.
const UNREAD: &str = "not known: the store does not answer";

/// Everything that is not in the run itself.
pub(super) struct Past {
    pub(super) attempts: Arc<Attempts>,
    pub(super) map: Arc<Map>,
    pub(super) goodput: AddedUp,
    pub(super) loss: BTreeMap<Minute, MinuteRow>,
    pub(super) events: Vec<Entry>,
    /// Its first ranks as they are live, for their collectives.
    pub(super) lives: Vec<Live>,
    /// What was changed about its nodes and GPUs.
    pub(super) changed: Changed,
    pub(super) cost: Cost,
    /// For how long its job held its GPUs in the hours of this attempt, milliseconds, and what these drew; or why
    /// that is not known.
    pub(super) energy: Result<energy::Drawn, Said>,
    pub(super) scaling: Efficiency,
    /// None where the store does not answer.
    pub(super) reliability: Option<Reliability>,
    pub(super) failed: bool,
}

/// All of it. The store is asked at once for what does not rest on another answer: each question waits for its turn.
pub(super) async fn past(
    web: &Web,
    (key, run): (&RunKey, &Arc<Run>),
    (minutes, range): (i64, &Range<Timestamp>),
    now: Timestamp,
) -> Past {
    let (app, store) = (&web.app, &web.app.store);
    let shared = (key, run);
    let run: &Run = run;
    let (of_job, map, scaling, loss, events, energy) = tokio::join!(
        web.goodputs.of_job(app, shared, now).boxed(),
        web.maps.get(web, shared, (minutes, range)).boxed(),
        scaling::of(store, (key, run)),
        loss_of(store, (key, run), range),
        events_of(store, (key, run)),
        web.energies.get((store, &app.clock), (key, run), now),
    );
    let mut failed = false;
    let own = cost::Attempt::of(app, (key, run), now);
    let (attempts, goodput, cost, reliability) = match told(of_job, &mut failed) {
        Some((attempts, goodput)) => {
            let cost = cost::of(&attempts, key, own);
            let reliability = reliability::of(&attempts);
            (attempts, goodput, cost, Some(reliability))
        }
        None => {
            let cost = Cost {
                held_gpu_ns: Err(UNREAD.to_owned()),
                nano_usd_per_gpu_hour: own.nano_usd_per_gpu_hour,
            };
            let unread = AddedUp {
                until: now,
                goodput: Err(UNREAD),
            };
            (Arc::default(), unread, cost, None)
        }
    };
    let map = told(map, &mut failed);
    let ranks = run.members().take(LIVE_RANKS);
    let lives = ranks.filter_map(|(rank, _)| app.fleet.get(&key.rank(*rank)));
    Past {
        attempts,
        map: map.unwrap_or_else(|| Arc::new(Map::empty(run, range.clone()))),
        goodput,
        loss: told(loss, &mut failed).unwrap_or_default(),
        events: told(events, &mut failed).unwrap_or_default(),
        lives: lives.collect(),
        changed: Changed::default(),
        cost,
        energy,
        scaling: told(scaling, &mut failed).unwrap_or(Efficiency::Unknown),
        reliability,
        failed,
    }
}

/// What the store told; what it did not is left out of the page, which says so.
fn told<T, E: Display>(found: Result<T, E>, failed: &mut bool) -> Option<T> {
    if let Err(error) = &found {
        tracing::error!(%error, "the past of a run cannot be read");
        *failed = true;
    }
    found.ok()
}

/// What was changed about the nodes and GPUs of its ranks in the time of its charts, whose last columns may end a little
/// later.
pub(super) async fn changed(
    web: &Web,
    view: &FleetView,
    (key, run): (&RunKey, &Run),
    range: &Range<Timestamp>,
) -> Changed {
    let places = run.members().map(|(_, it)| [&it.facts.node, &it.facts.gpu]);
    let ids = places.flatten().filter(|it| !it.is_empty());
    let of = Of {
        cluster: &key.cluster,
        ids: Some(ids.map(Arc::clone).collect()),
    };
    let time = (range.start, range.end.shifted(AFTERWARDS));
    changed::changed(&web.app, view, &of, time).await
}

/// The minutes of the rank that speaks for the run, for its loss.
async fn loss_of(
    store: &Store,
    (key, run): (&RunKey, &Run),
    range: &Range<Timestamp>,
) -> Result<BTreeMap<Minute, MinuteRow>, StoreError> {
    let Some((speaker, _)) = run.speaker() else {
        return Ok(BTreeMap::new());
    };
    let minutes = loss::minutes(range);
    Ok(store.minutes(&key.rank(speaker), minutes).await?.rows)
}

async fn events_of(store: &Store, (key, run): (&RunKey, &Run)) -> Result<Vec<Entry>, StoreError> {
    let filter = EventFilter {
        cluster: Some(Arc::clone(&key.cluster)),
        resource_kind: Some(ResourceKind::Rank),
        id_prefix: Some(format!("{}/", key.run).into()),
        from: run.facts.started,
        until: Some(run.facts.heard.shifted(AFTERWARDS)),
        ..EventFilter::default()
    };
    let found = store.events(&filter, None, events::READ_OF_JOB).await?;
    Ok(events::entries(&found.events, (ResourceKind::Rank, "")))
}
