//! What the checks look at of the live fleet: one walk over what is heard now.
//!
//! Limits: names that agents choose (readers, reasons, models) are told apart up to [`MAX_NAMES`] of a
//! kind; what comes beyond is counted under [`OTHERS`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_telemetry::catalog::{Metric, MetricId, own};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::holder::Unknown;
use gpufleet_telemetry::identity::{Origin, ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::fleet::Live;
use crate::view::FleetView;
use crate::view::gather::{heard, is_silent};

/// Names of one kind that are told apart.
const MAX_NAMES: usize = 64;

/// The name of all that come beyond.
const OTHERS: &str = "others";

/// A spool that holds data older than this is behind, seconds: the line between live and backfill.
const BEHIND_SECONDS: f64 = 60.0;

/// A cluster and a node in it.
pub(super) type NodeName = (Arc<str>, Arc<str>);

/// Nodes, how many of their GPUs it is about, and since when at least.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) nodes: BTreeMap<NodeName, usize>,
    pub(super) since: Option<Timestamp>,
}

/// Places by a name.
pub(super) type Named = BTreeMap<Arc<str>, Places>;

/// Readings that are missing for one reason.
#[derive(Debug, Default)]
pub(super) struct OfReason {
    pub(super) places: Places,
    pub(super) metrics: BTreeSet<MetricId>,
}

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Live nodes that are heard, with how many GPUs each has.
    pub(super) heard: BTreeMap<NodeName, usize>,
    /// How many of them have an agent that tells its own health.
    pub(super) agents: usize,
    /// How many live GPUs are heard.
    pub(super) gpus: usize,
    pub(super) missing: BTreeMap<Missing, OfReason>,
    pub(super) readers: Named,
    /// Who knows of holders and does not answer.
    pub(super) holders: Named,
    /// Why a holder is not known.
    pub(super) holder_unknown: Named,
    pub(super) unwritable: Places,
    pub(super) behind: Places,
    /// What was given up, and how much.
    pub(super) given_up: (Places, f64),
    /// What agents leave out, and how much.
    pub(super) left_out: BTreeMap<Arc<str>, (Places, f64)>,
    pub(super) hooks_refused: BTreeMap<Arc<str>, (Places, f64)>,
    /// Where training processes do not say which rank they are, and how many.
    pub(super) rank_unknown: (Places, f64),
    pub(super) strange_devices: Places,
    pub(super) pods_left_out: Places,
    pub(super) unknown_models: Named,
    pub(super) nameless: Places,
    pub(super) twice: Places,
    pub(super) foreign: Places,
}

impl Places {
    /// One node more, or more of its GPUs.
    pub(super) fn add(&mut self, node: &NodeName, gpus: usize, since: Option<Timestamp>) {
        *self.nodes.entry(node.clone()).or_default() += gpus;
        self.since = match (self.since, since) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// How many GPUs it is about.
    pub(super) fn gpus(&self) -> usize {
        self.nodes.values().sum()
    }

    /// Whether it is nowhere.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// Walks over everything that is live, that the view shows, and that is heard.
pub(super) fn gather(app: &App, view: &FleetView, specs: &Specs) -> Gathered {
    let mut found = Gathered::default();
    for cluster in view.of(Origin::Live) {
        let heard = cluster.nodes.iter().filter(|it| it.silent_since.is_none());
        for node in heard {
            let name = (Arc::clone(&cluster.name), Arc::clone(&node.name));
            found.heard.insert(name, node.gpus.len());
        }
    }
    let mut reported = Vec::new();
    app.fleet.visit(|live| {
        let node = (Arc::clone(&live.key.cluster), Arc::clone(&live.node));
        if live.origin != Origin::Live || !found.heard.contains_key(&node) {
            return;
        }
        match live.key.kind {
            ResourceKind::Node => found.node(&node, live),
            ResourceKind::Gpu | ResourceKind::Share => {
                if is_silent(live.interval, heard(live), view.at) {
                    return;
                }
                found.gpu(&node, live, specs);
                if live.key.kind == ResourceKind::Gpu {
                    reported.push((node, live.key.clone()));
                }
            }
            ResourceKind::Endpoint | ResourceKind::Rank => {}
        }
    });
    // Not while the fleet is walked over: it has locks of its own.
    for (node, key) in reported {
        let second = app.fleet.second(&key);
        if second.is_some_and(|it| !is_silent(std::time::Duration::ZERO, it.last, view.at)) {
            found.twice.add(&node, 1, None);
        }
    }
    found
}

impl Gathered {
    fn gpu(&mut self, node: &NodeName, live: &Live, specs: &Specs) {
        if live.key.kind == ResourceKind::Gpu {
            self.gpus += 1;
            let text = |name| live.resource.attribute(name);
            match text(attribute::GPU_MODEL).filter(|it| !it.is_empty()) {
                None => self.nameless.add(node, 1, None),
                Some(model) if specs.lookup(model).is_none() => {
                    named(&mut self.unknown_models, model).add(node, 1, None);
                }
                Some(_) => {}
            }
            if live.agent.is_none() {
                self.foreign.add(node, 1, None);
            }
        }
        let told = live.resource.attribute(attribute::HOLDER_UNKNOWN);
        if let Some((reason, _)) = told.and_then(Unknown::parse) {
            named(&mut self.holder_unknown, reason.name()).add(node, 1, None);
        }
        let mut reasons = BTreeSet::new();
        for value in live.values.iter().filter(|it| it.part.is_none()) {
            if let Err(reason) = value.reading {
                let of = self.missing.entry(reason).or_default();
                of.metrics.insert(value.metric);
                if reasons.insert(reason) {
                    of.places.add(node, 1, None);
                }
            }
        }
    }

    /// What an agent tells of itself.
    fn node(&mut self, node: &NodeName, live: &Live) {
        let gpus = self.heard.get(node).copied().unwrap_or(0);
        let of = |metric: Metric| {
            let told = live.parts(metric.id);
            told.filter_map(|it| Some((Arc::clone(&it.part.as_ref()?.id), it.reading.ok()?)))
        };
        let whole = |metric: Metric| live.value(metric.id)?.reading.ok();
        let ago = |seconds: f64| live.last_point.shifted(-((seconds * 1e9) as i64));
        self.agents += usize::from(of(own::READER_SUCCESS).next().is_some());
        for (reader, _) in of(own::READER_SUCCESS).filter(|it| it.1 == 0.0) {
            let last = of(own::READER_LAST_SUCCESS).find(|it| it.0 == reader);
            let since = last.filter(|it| it.1 > 0.0).map(|it| it.1);
            let since = since.map(|it| Timestamp::from_millis((it * 1e3) as i64));
            named(&mut self.readers, &reader).add(node, gpus, since);
        }
        for (source, _) in of(own::HOLDERS_ANSWER).filter(|it| it.1 == 0.0) {
            let age = of(own::HOLDERS_AGE).find(|it| it.0 == source);
            let since = age.map(|it| ago(it.1));
            named(&mut self.holders, &source).add(node, gpus, since);
        }
        if whole(own::SPOOL_WRITABLE) == Some(0.0) {
            self.unwritable.add(node, gpus, None);
        }
        let age = of(own::SPOOL_AGE).map(|it| it.1).fold(0.0, f64::max);
        if age > BEHIND_SECONDS {
            self.behind.add(node, gpus, Some(ago(age)));
        }
        for (_, count) in of(own::SPOOL_DROPPED).filter(|it| it.1 > 0.0) {
            self.given_up.0.add(node, 0, None);
            self.given_up.1 += count;
        }
        for (metric, all) in [
            (own::LEFT_OUT, &mut self.left_out),
            (own::HOOKS_REFUSED, &mut self.hooks_refused),
        ] {
            for (reason, count) in of(metric).filter(|it| it.1 > 0.0) {
                let known = all.len() < MAX_NAMES || all.contains_key(&reason);
                let reason = if known { reason } else { OTHERS.into() };
                let (places, sum) = all.entry(reason).or_default();
                places.add(node, gpus, None);
                *sum += count;
            }
        }
        let unknown = whole(own::HOOKS_RANK_UNKNOWN).filter(|it| *it > 0.0);
        if let Some(count) = unknown {
            self.rank_unknown.0.add(node, gpus, None);
            self.rank_unknown.1 += count;
        }
        if whole(own::HOLDERS_STRANGE_DEVICES).is_some_and(|it| it > 0.0) {
            self.strange_devices.add(node, gpus, None);
        }
        if whole(own::HOLDERS_PODS_LEFT_OUT).is_some_and(|it| it > 0.0) {
            self.pods_left_out.add(node, gpus, None);
        }
    }
}

/// The places of a name; of all others where there are too many.
fn named<'a>(all: &'a mut Named, name: &str) -> &'a mut Places {
    let is_known = all.len() < MAX_NAMES || all.contains_key(name);
    let name = if is_known { name } else { OTHERS };
    all.entry(name.into()).or_default()
}
