//! What the server told when the day was live, beside what its replay tells.

use std::sync::Arc;

use gpufleet_analysis::incident::{Family, Incident};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::super::{ReplayError, Then, became_another};
use crate::notify::own;
use crate::store::model::IncidentFilter;
use crate::store::{self, Store};

/// Most incidents of then that are compared.
const MAX_THEN: usize = 10_000;

/// What of then began or was over so long before or after is the same trouble, nanoseconds: detectors open when
/// they have seen enough, and not at the same tick.
const ABOUT_NS: i64 = 600 * NANOS_PER_SECOND;

/// The incidents that people were told of in a range of time.
pub(super) async fn read(
    store: &Store,
    (from, until): (Timestamp, Timestamp),
    cluster: Option<&str>,
) -> Result<Vec<Incident>, ReplayError> {
    let filter = IncidentFilter {
        cluster: cluster.map(Arc::from),
        ..IncidentFilter::default()
    };
    let (mut found, mut place) = (Vec::new(), None);
    loop {
        let page = store.incidents(&filter, place, store::MAX_INCIDENTS);
        let (page, next) = page.await?;
        place = next;
        let is_then = |it: &Incident| {
            let began = it.since < until && it.opened_at.is_some();
            let is_over = it.resolved_at.is_some_and(|at| at < from);
            let is_replayed = !own::is_own(&it.place) && it.family != Family::Budget;
            began && !is_over && is_replayed && !became_another(it)
        };
        found.extend(page.into_iter().filter(is_then));
        if place.is_none() || found.len() >= MAX_THEN {
            return Ok(found);
        }
    }
}

/// What of it opened then as well, and what only then.
pub(super) fn compare(now: &[Incident], then: Vec<Incident>) -> Then {
    let is_same = |one: &Incident, other: &Incident| {
        let over = |it: &Incident| it.resolved_at.unwrap_or(Timestamp(i64::MAX));
        one.family == other.family
            && one.place.overlaps(&other.place)
            && one.since <= over(other).shifted(ABOUT_NS)
            && other.since <= over(one).shifted(ABOUT_NS)
    };
    let also = now.iter().map(|it| then.iter().any(|old| is_same(it, old)));
    let also = also.collect();
    let mut only = then;
    only.retain(|old| !now.iter().any(|it| is_same(it, old)));
    only.sort_by_key(|it| (it.opened_at, it.id));
    Then { also, only }
}
