//! What broke and was not seen to work since: what a server that starts must know of health.

use std::collections::HashMap;

use gpufleet_analysis::states::{Edge, HEALTH_KINDS, HealthEvent, Policy, edge};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::Store;
use super::error::StoreError;
use super::events::MAX_EVENTS;
use super::model::{EventFilter, ResourceKey};

/// Most pages of events of one kind that are read, the newest first: 10,000 events. What happened
/// before so many others is a day old or drowned in a broken node's noise.
const MAX_PAGES: usize = 10;

/// Most resources whose minutes are looked at for work since they broke; the rest stay broken until
/// they work. So many broken at once are a broken cluster.
const MAX_LOOKED_AT: usize = 256;

impl Store {
    /// The newest event of health of every resource for which it is one that breaks and that was not
    /// seen to work since, as the ledger judges it. Events before `since` are over.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn broken(
        &self,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<(ResourceKey, HealthEvent)>, StoreError> {
        let mut newest: HashMap<ResourceKey, HealthEvent> = HashMap::new();
        for kind in HEALTH_KINDS {
            let filter = EventFilter {
                kind: Some(kind),
                from: Some(since),
                ..EventFilter::default()
            };
            let mut before = None;
            for _ in 0..MAX_PAGES {
                let page = self.events(&filter, before, MAX_EVENTS).await?;
                for stored in &page.events {
                    let Some(health) = edge(&stored.event) else {
                        continue;
                    };
                    let key = ResourceKey {
                        cluster: stored.cluster.clone(),
                        kind: stored.event.resource_kind,
                        id: stored.event.resource_id.clone(),
                    };
                    let known = newest.entry(key).or_insert(health);
                    // Of two in one moment the breaking one is the safe reading.
                    let rank = |it: &HealthEvent| (it.at, matches!(it.edge, Edge::Broken(_)));
                    if rank(&health) > rank(known) {
                        *known = health;
                    }
                }
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
        }
        newest.retain(|_, it| matches!(it.edge, Edge::Broken(_)));
        let mut broken = Vec::new();
        for (place, (key, health)) in newest.into_iter().enumerate() {
            if place >= MAX_LOOKED_AT || !self.works_since(&key, health.at, now).await? {
                broken.push((key, health));
            }
        }
        Ok(broken)
    }

    /// Whether a second of work is known that is so long after the event that it ends it.
    async fn works_since(
        &self,
        key: &ResourceKey,
        at: Timestamp,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let healed_s = at.seconds() + i64::from(Policy::default().healed_after_s);
        let range = Timestamp::from_seconds(healed_s).minute()..Minute(now.minute().0 + 1);
        let minutes = self.minutes(key, range).await?;
        let works = |(minute, row): (&Minute, &MinuteRow)| {
            let bits = row.bitmaps.active & row.bitmaps.observed;
            let too_early = (healed_s - minute.start().seconds()).clamp(0, 60) as u32;
            bits >> too_early != 0
        };
        Ok(minutes.rows.iter().any(works))
    }
}
