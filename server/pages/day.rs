//! The last day of a node or a cluster, hour by hour, by state: its GPUs' ledgers added up.
//!
//! A share of a divided card counts as a GPU. Limits: the ledger of a cluster is added up at most once in
//! [`FRESH_FOR`], for all who ask, and only of the first [`MAX_DRAWN`] of a page. While that is done anew the last one
//! stands, for [`STANDS_FOR`] at most; a page that has none waits [`WAITS`] for it and then says so.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use gpufleet_analysis::ledger::LedgerHour;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::marks;
use super::strip::{self, Strip, Until};
use crate::App;
use crate::answers::Answers;
use crate::view::changed::{self, Changed, Of};
use crate::view::{ClusterView, FleetView, GpuView, NodeView};
use crate::web::Web;

/// How long the ledger of a cluster is kept: hours that run are computed every five minutes.
const FRESH_FOR: Duration = Duration::from_secs(60);

/// How far behind its page a day may be while the next one is added up: the ledger is as far behind itself.
const STANDS_FOR: i64 = 300 * NANOS_PER_SECOND;

/// Most clusters whose ledgers are kept.
const KEPT: usize = 16;

/// Most clusters whose days are on one page; the others have theirs on their own.
const MAX_DRAWN: usize = 4;

/// How long a page waits: of 10,000 GPUs it takes seconds, and the page about now is not to wait for the past.
const WAITS: Duration = Duration::from_millis(300);

/// What a chart that is not there says.
const ADDED_UP: &str = "The day is being added up; look again in some seconds.";

/// The same where the store does not answer.
const UNKNOWN: &str =
    "Not known at the moment: the store does not answer. The server's log says why.";

/// Pasts of clusters as they were last added up.
pub struct Days(Answers<(Origin, Arc<str>), Past, Arc<str>>);

/// What a day is drawn from.
struct Past {
    /// Until when it goes.
    end: Timestamp,
    hours: Vec<LedgerHour>,
    changed: Changed,
}

impl Default for Days {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, 1))
    }
}

/// A day ready for the template.
#[derive(Debug, Clone, Default)]
pub struct Day {
    /// It drawn; without columns where it is not known.
    pub strip: Strip,
    /// Why it is not known.
    pub why: Option<&'static str>,
    /// Where it ends.
    pub until: Until,
}

/// What of a GPU has a ledger: its shares where it is divided, else itself.
fn accounted(gpu: &GpuView) -> impl Iterator<Item = &GpuView> {
    let own = gpu.shares.is_empty().then_some(gpu);
    own.into_iter().chain(&gpu.shares)
}

/// The same of all GPUs of nodes.
fn all_accounted<'a>(
    nodes: impl IntoIterator<Item = &'a NodeView>,
) -> impl Iterator<Item = &'a GpuView> {
    let gpus = nodes.into_iter().flat_map(|it| &it.gpus);
    gpus.flat_map(accounted)
}

/// When each GPU of a cluster was there: those of nodes that went are in its ledger too, until they were last heard.
fn of_all(part: &ClusterView) -> Vec<Range<Timestamp>> {
    let there = all_accounted(&part.nodes).map(|it| strip::since(it.first_seen));
    let gone = all_accounted(part.gone()).map(|it| it.first_seen..it.last_point);
    there.chain(gone).collect()
}

/// Where the day of nodes ends, and when that is.
fn end(origin: Origin, nodes: &[NodeView], now: Timestamp) -> (Until, Timestamp) {
    let last = nodes.iter().map(|it| it.last_point).max();
    Until::of(origin, last.unwrap_or(now), now)
}

fn drawn(past: &Past, gpus: &[Range<Timestamp>], until: Until) -> Day {
    let mut strip = strip::strip(&past.hours, gpus, past.end);
    strip.marks = marks::marks(&past.changed, strip::span(past.end), strip.width);
    Day {
        strip,
        why: None,
        until,
    }
}

/// A day that is not drawn, and why.
fn not_known(why: &'static str, until: Until) -> Day {
    Day {
        strip: Strip::default(),
        why: Some(why),
        until,
    }
}

/// The day of a node.
pub(super) async fn of_node(
    app: &App,
    view: &FleetView,
    (part, node): (&ClusterView, &NodeView),
    now: Timestamp,
) -> Day {
    let (until, end) = end(part.origin, std::slice::from_ref(node), now);
    let gpus: Vec<_> = node
        .gpus
        .iter()
        .flat_map(accounted)
        .map(|it| &it.key)
        .collect();
    let with_shares = node.gpus.iter().flat_map(GpuView::with_shares);
    let ids = with_shares.map(|it| Arc::clone(&it.key.id));
    let of = Of {
        cluster: &part.name,
        ids: Some(ids.chain([Arc::clone(&node.name)]).collect()),
    };
    let (hours, changed) = tokio::join!(
        app.store.hours_of(&gpus, strip::range(end)),
        changed::changed(app, view, &of, strip::span(end)),
    );
    let hours = match hours {
        Ok(hours) => hours,
        Err(error) => {
            tracing::error!(%error, "a page could not read the ledger of a node");
            return not_known(UNKNOWN, until);
        }
    };
    let past = Past {
        end,
        hours,
        changed,
    };
    let gpus = all_accounted([node]).map(|it| strip::since(it.first_seen));
    drawn(&past, &gpus.collect::<Vec<_>>(), until)
}

/// The days of the first clusters of a view, as far as they are drawn.
pub(super) async fn of_clusters(web: &Web, view: &Arc<FleetView>) -> Vec<Day> {
    let parts = view.clusters.iter().take(MAX_DRAWN);
    join_all(parts.map(|part| of_cluster(web, view, part))).await
}

async fn of_cluster(web: &Web, view: &Arc<FleetView>, part: &ClusterView) -> Day {
    let (until, end) = end(part.origin, &part.nodes, view.at);
    let asked = (part.origin, Arc::clone(&part.name));
    let last = web.days.0.last(&asked);
    let last = last.filter(|it| end.since(it.end) < STANDS_FOR);
    let (app, view, cluster) = (web.app.clone(), Arc::clone(view), Arc::clone(&part.name));
    let making = async move {
        let read = app.store.cluster_hours(&cluster, strip::range(end)).await;
        let hours = read.map_err(|error| Arc::<str>::from(error.to_string()))?;
        let of = Of {
            cluster: &cluster,
            ids: None,
        };
        let changed = changed::changed(&app, &view, &of, strip::span(end)).await;
        Ok(Past {
            end,
            hours,
            changed,
        })
    };
    let answer = Box::pin(web.days.0.get(asked, &web.app.clock, making));
    let answer = match &last {
        Some(_) => answer.now_or_never(),
        None => tokio::time::timeout(WAITS, answer).await.ok(),
    };
    let why = match (answer, last) {
        (Some(Ok(past)), _) | (None, Some(past)) => {
            return drawn(&past, &of_all(part), until);
        }
        (Some(Err(error)), _) => {
            tracing::error!(%error, "a page could not read the ledger of a cluster");
            UNKNOWN
        }
        (None, None) => ADDED_UP,
    };
    not_known(why, until)
}
