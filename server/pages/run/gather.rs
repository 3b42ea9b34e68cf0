//! What the job page needs of the store and of the live view. What fails is left out and said.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use gpufleet_analysis::ending::Reliability;
use gpufleet_analysis::goodput::Goodput;
use gpufleet_analysis::scaling::Efficiency;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};

use super::loss;
use crate::fleet::Live;
use crate::pages::events::{self, Entry};
use crate::runs::cost::{self, Cost};
use crate::runs::heat;
use crate::runs::history::{self, Cut};
use crate::runs::{Run, RunKey, energy, goodput, lookup, reliability, scaling};
use crate::store::model::EventFilter;
use crate::store::{RunFilter, StoreError};
use crate::view::FleetView;
use crate::view::changed::{self, Changed, Of};
use crate::web::Web;

/// Ranks whose collectives are added up.
const LIVE_RANKS: usize = 64;

/// Events are looked for until so long after the run's end, nanoseconds.
const AFTERWARDS: i64 = 600 * NANOS_PER_SECOND;

/// Everything that is not in the run itself.
pub(super) struct Past {
    pub(super) attempts: Vec<RunKey>,
    pub(super) heat: Vec<heat::Row>,
    pub(super) cut: Option<Cut>,
    pub(super) goodput: Result<Goodput, &'static str>,
    pub(super) loss: BTreeMap<Minute, MinuteRow>,
    pub(super) events: Vec<Entry>,
    /// Its first ranks as they are live, for their collectives.
    pub(super) lives: Vec<Live>,
    /// What was changed about its nodes and GPUs.
    pub(super) changed: Changed,
    pub(super) cost: Cost,
    /// For how long its job held its GPUs in the hours of this attempt, milliseconds, and what these drew; or why
    /// that is not known.
    pub(super) energy: Result<energy::Drawn, String>,
    pub(super) scaling: Efficiency,
    /// None where the store does not answer.
    pub(super) reliability: Option<Reliability>,
    pub(super) failed: bool,
}

pub(super) async fn past(
    web: &Web,
    key: &RunKey,
    run: &Run,
    range: &Range<Timestamp>,
    now: Timestamp,
) -> Past {
    let ranks = run.members().take(LIVE_RANKS);
    let lives = ranks
        .filter_map(|(rank, _)| web.app.fleet.get(&key.rank(*rank)))
        .collect();
    let mut past = Past {
        attempts: Vec::new(),
        heat: Vec::new(),
        cut: None,
        goodput: Err("not known: the store does not answer"),
        loss: BTreeMap::new(),
        events: Vec::new(),
        lives,
        changed: Changed::default(),
        cost: Cost {
            held_gpu_ns: Err("not known: the store does not answer".to_owned()),
            nano_usd_per_gpu_hour: cost::price(&web.app, (key, run)),
        },
        energy: Err("not known: the store does not answer".to_owned()),
        scaling: Efficiency::Unknown,
        reliability: None,
        failed: false,
    };
    if let Err(error) = read(web, key, run, range, now, &mut past).await {
        tracing::error!(%error, "the past of a run cannot be read");
        past.failed = true;
    }
    past
}

/// What was changed about the nodes and GPUs of its ranks.
pub(super) async fn changed(
    web: &Web,
    view: &FleetView,
    (key, run): (&RunKey, &Run),
    since: Timestamp,
) -> Changed {
    let places = run.members().map(|(_, it)| [&it.facts.node, &it.facts.gpu]);
    let ids = places.flatten().filter(|it| !it.is_empty());
    let of = Of {
        cluster: &key.cluster,
        ids: Some(ids.map(|it| it.as_str().into()).collect()),
    };
    changed::changed(&web.app, view, &of, since).await
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
    (past.heat, past.cut) = heat(web, (key, run), range).await?;
    past.goodput = goodput::of(store, (key, run), lookup::kept_from(&web.app, now), now).await?;
    past.cost = cost::of(&web.app, (key, run), now).await?;
    let from = (store, &web.app.clock);
    past.energy = web.energies.get(from, (key, run), now).await;
    past.scaling = scaling::of(store, (key, run)).await?;
    past.reliability = Some(reliability::of(store, key).await?);
    if let Some((speaker, _)) = run.speaker() {
        past.loss = store
            .minutes(&key.rank(speaker), loss::minutes(range))
            .await?
            .rows;
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
        id_prefix: Some(format!("{}/", key.run).into()),
        from: run.facts.started,
        until: Some(run.facts.heard.shifted(AFTERWARDS)),
        ..EventFilter::default()
    };
    let found = store
        .events(&filter, None, events::READ_OF_JOB)
        .await?
        .events;
    past.events = events::entries(&found, (ResourceKind::Rank, ""));
    Ok(())
}

/// The map of ranks and time, and what of it is left out. Worked out beside the threads that serve
/// requests: of a large run it takes a while.
async fn heat(
    web: &Web,
    (key, run): (&RunKey, &Run),
    range: &Range<Timestamp>,
) -> Result<(Vec<heat::Row>, Option<Cut>), StoreError> {
    let permit = web.step_views.acquire().await;
    let mut map = heat::Map::new(range.clone());
    let add = |rank, block: StepBlock| {
        map.add(rank, &block);
        ControlFlow::Continue(())
    };
    let cut = history::each(&web.app.store, (key, run), None, range, add).await?;
    let stages = heat::stages(run);
    let rows = tokio::task::spawn_blocking(move || map.rows(&stages)).await;
    drop(permit);
    Ok((rows.expect("it does not panic and is not aborted"), cut))
}
