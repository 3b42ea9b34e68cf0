//! What events said of GPUs that may still stand: XIDs, and what made cards whole; and which were taken out. A server that
//! starts must know of it, because a reset is owed until somebody does it, some XIDs are the GPU's fault only when they
//! come again in another job, and what was taken out is not lost.
//!
//! Limits: of the last days [`MAX_PAGES`] pages of XIDs, and as many of GPUs taken out, the newest first: of a fleet that
//! tells more than that the oldest are not known again. From before, only of GPUs that an open incident is about, [`MAX_BEFORE`] each.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpufleet_analysis::health::{Asks, PROGRAM_XIDS};
use gpufleet_analysis::incident::{Incident, State};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::error::StoreError;
use super::events::{MAX_AT_ONCE, MAX_EVENTS};
use super::model::{EventFilter, StoredEvent};

/// Most pages that are read: 20,000 XIDs, one a day and card of 2,800 sick ones.
const MAX_PAGES: usize = 20;

/// Most XIDs of a GPU from before: the newest of what a reset is owed for.
const MAX_BEFORE: usize = 64;

/// What ends an XID, or brings back what was taken out.
const MENDS: [EventKind; 4] = [
    EventKind::GpuReset,
    EventKind::GpuAdded,
    EventKind::GpuRecovered,
    EventKind::RecoveryAction,
];

/// Cluster and id.
type Gpu = (Arc<str>, Arc<str>);

impl Store {
    /// The XIDs of GPUs since this moment that ask for something or may be the GPU's fault, and what last made these
    /// GPUs whole; the oldest first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn told(&self, since: Timestamp) -> Result<Vec<StoredEvent>, StoreError> {
        let mut found = self.since(EventKind::Xid, since).await?;
        found.retain(stands);
        self.with_mends(found).await
    }

    /// When GPUs were taken out since this moment, and what last brought these GPUs back; the oldest first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn removed(&self, since: Timestamp) -> Result<Vec<StoredEvent>, StoreError> {
        let found = self.since(EventKind::GpuRemoved, since).await?;
        self.with_mends(found).await
    }

    /// The same from before this moment, of the GPUs that these incidents are about while they are open.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn told_before(
        &self,
        until: Timestamp,
        standing: &[Incident],
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let open = standing.iter().filter(|it| it.state == State::Open);
        let places = open.flat_map(|it| it.evidence.iter().map(|it| &it.place));
        let gpus = places.filter_map(|it| {
            let id = it.gpu.as_deref()?;
            Some((it.cluster.as_str().into(), id.into()))
        });
        let gpus: BTreeSet<Gpu> = gpus.collect();
        let filter = EventFilter {
            kind: Some(EventKind::Xid),
            until: Some(until),
            ..EventFilter::default()
        };
        let mut found = self.of_each(&gpus, &[filter], MAX_BEFORE).await?;
        found.retain(stands);
        self.with_mends(found).await
    }

    /// The newest events of this kind about GPUs since this moment.
    async fn since(
        &self,
        kind: EventKind,
        since: Timestamp,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let filter = EventFilter {
            resource_kind: Some(ResourceKind::Gpu),
            kind: Some(kind),
            from: Some(since),
            ..EventFilter::default()
        };
        let (mut found, mut before) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let page = self.events(&filter, before, MAX_EVENTS).await?;
            found.extend(page.events);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// These, and what last made the GPUs whole that they are about.
    async fn with_mends(&self, events: Vec<StoredEvent>) -> Result<Vec<StoredEvent>, StoreError> {
        let of = |it: &StoredEvent| (Arc::clone(&it.cluster), Arc::clone(&it.event.resource_id));
        let gpus: BTreeSet<Gpu> = events.iter().map(of).collect();
        let filters = MENDS.map(|kind| EventFilter {
            kind: Some(kind),
            ..EventFilter::default()
        });
        let mut found = self.of_each(&gpus, &filters, 1).await?;
        found.extend(events);
        found.sort_by_key(|it| it.event.at);
        Ok(found)
    }

    /// Of each of these GPUs the newest events of each filter.
    async fn of_each(
        &self,
        gpus: &BTreeSet<Gpu>,
        filters: &[EventFilter],
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let of_gpu = |(cluster, id): &Gpu| {
            let filters = filters.iter().map(|filter| EventFilter {
                cluster: Some(Arc::clone(cluster)),
                resource_kind: Some(ResourceKind::Gpu),
                resource_id: Some(Arc::clone(id)),
                ..filter.clone()
            });
            filters.collect::<Vec<_>>()
        };
        let wanted: Vec<EventFilter> = gpus.iter().flat_map(of_gpu).collect();
        let mut found = Vec::new();
        for wanted in wanted.chunks(MAX_AT_ONCE) {
            found.extend(self.events_of_each(wanted, limit).await?);
        }
        Ok(found)
    }
}

/// Whether an XID may still mean something for its GPU.
fn stands(stored: &StoredEvent) -> bool {
    let text = |name: &str| stored.event.attributes.get(name).map(String::as_str);
    let Some(code) = text("xid").and_then(|it| it.parse::<u32>().ok()) else {
        return false;
    };
    let action = text("action").unwrap_or_default();
    let asks = Asks::of(code, action, stored.event.severity);
    asks != Asks::Nothing || PROGRAM_XIDS.contains(&code)
}
