//! Machines at Spot that were taken back in a range of days: what their providers and the inventory say of them, beside the
//! runs that ended with them.
//!
//! Asked for are the nodes that were paid at Spot in these days, each by itself, so that the question goes by the index of
//! resources. Which node of the inventory is the one that agents tell of, its name says ([`Names`]).
//!
//! Limits: [`MAX_EVENTS`] notices of a node, the newest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use gpufleet_analysis::chargeback::spot::{Life, Notice, TakenBack, WITHIN_MS};
use gpufleet_analysis::price_book::Basis;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::Days;
use crate::inventory::names::Names;
use crate::store::model::{EventFilter, NodeLife};
use crate::store::{MAX_AT_ONCE, MAX_EVENTS, Store, StoreError};

/// What providers said of the nodes at Spot of these days, in that time and a while around it.
///
/// # Errors
/// When the store does not answer.
pub(super) async fn notices(
    store: &Store,
    days: &Days,
    time: &Range<Timestamp>,
) -> Result<Vec<Notice>, StoreError> {
    let around = WITHIN_MS / 1_000 * NANOS_PER_SECOND;
    let filter = |(cluster, node): &(Arc<str>, Arc<str>)| EventFilter {
        cluster: Some(Arc::clone(cluster)),
        resource_kind: Some(ResourceKind::Node),
        resource_id: Some(Arc::clone(node)),
        kind: Some(EventKind::PreemptionNoticed),
        from: Some(time.start.shifted(-around)),
        until: Some(time.end.shifted(around)),
        ..EventFilter::default()
    };
    let filters: Vec<EventFilter> = at_spot(days).iter().map(filter).collect();
    let mut found = Vec::new();
    for filters in filters.chunks(MAX_AT_ONCE) {
        let events = store.events_of_each(filters, MAX_EVENTS).await?;
        found.extend(events.into_iter().map(|it| Notice {
            at_ms: it.event.at.millis(),
            cluster: it.cluster.to_string(),
            node: it.event.resource_id.to_string(),
        }));
    }
    Ok(found)
}

/// The nodes that were paid at Spot, as agents and the inventory call them.
fn at_spot(days: &Days) -> BTreeSet<(Arc<str>, Arc<str>)> {
    let mut nodes = BTreeSet::new();
    for one in days
        .days
        .chunk_by(|one, other| Arc::ptr_eq(&one.of, &other.of))
    {
        let of = &one[0].of;
        if of.facts.provisioning == Basis::Spot.name() && !of.facts.node.is_empty() {
            nodes.insert((of.cluster.as_str().into(), of.facts.node.as_str().into()));
        }
    }
    for life in days.lives.iter().filter(|it| is_spot(it)) {
        nodes.insert((
            life.cluster.as_str().into(),
            life.record.node.name.as_str().into(),
        ));
    }
    nodes
}

fn is_spot(life: &NodeLife) -> bool {
    life.record.node.provisioning == Basis::Spot.name()
}

/// What was taken back in that time, Unix milliseconds.
pub(super) fn of(days: &Days, time: &Range<i64>) -> TakenBack {
    let mut names: BTreeMap<&str, Names> = BTreeMap::new();
    for it in &days.notices {
        names.entry(&it.cluster).or_default().tell(&it.node);
    }
    for it in &days.preempted {
        let of_cluster = names.entry(&it.cluster).or_default();
        it.nodes.iter().for_each(|node| of_cluster.tell(node));
    }
    for life in &days.lives {
        let of_cluster = names.entry(&life.cluster).or_default();
        of_cluster.list(&life.record.node.name);
    }
    let went = days.lives.iter().filter(|it| it.is_gone && is_spot(it));
    let went = went.map(|it| {
        let name = &it.record.node.name;
        let told = names.get(it.cluster.as_str());
        let mut nodes = vec![name.clone()];
        nodes.extend(
            told.into_iter()
                .flat_map(|told| told.told_of(name))
                .map(str::to_owned),
        );
        Life {
            cluster: it.cluster.clone(),
            nodes,
            there_ms: it.from_ms..it.until_ms,
        }
    });
    let went: Vec<Life> = went.collect();
    let ended = days
        .preempted
        .iter()
        .filter(|it| time.contains(&it.ended_ms));
    TakenBack::of(time, &days.notices, &went, ended.cloned().collect())
}
