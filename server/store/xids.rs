//! XIDs of the last days: what a server that starts must know of them, because some are the GPU's fault only when they
//! come again in another job.
//!
//! Limits: [`MAX_PAGES`] pages, the newest first; of a fleet that tells more than that in a week the oldest are not
//! known again.

use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::error::StoreError;
use super::events::MAX_EVENTS;
use super::model::{EventFilter, StoredEvent};

/// Most pages that are read: 20,000 XIDs, one a day and card of 2,800 sick ones.
const MAX_PAGES: usize = 20;

impl Store {
    /// The XIDs of GPUs since this moment that have one of these numbers, the oldest first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn xids(
        &self,
        since: Timestamp,
        numbers: &[u32],
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let filter = EventFilter {
            resource_kind: Some(ResourceKind::Gpu),
            kind: Some(EventKind::Xid),
            from: Some(since),
            ..EventFilter::default()
        };
        let is_asked = |it: &StoredEvent| {
            let number = it.event.attributes.get("xid");
            number.is_some_and(|it| it.parse().is_ok_and(|it| numbers.contains(&it)))
        };
        let (mut found, mut before) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let page = self.events(&filter, before, MAX_EVENTS).await?;
            found.extend(page.events.into_iter().filter(is_asked));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }
}
