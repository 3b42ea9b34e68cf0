//! What the store knows of a GPU or a node, for one page or one answer of the API.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::ledger::LedgerHour;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::GpuView;
use crate::App;
use crate::store::StoreError;
use crate::store::model::{EventFilter, ResourceKey, StoredEvent};

/// GPUs of a node whose events are read for its page: no machine has more.
const GPUS_WITH_EVENTS: usize = 16;

/// The past of one resource. Where the store does not answer it is empty and says so.
#[derive(Debug, Default)]
pub struct Past {
    /// Minute rows.
    pub minutes: BTreeMap<Minute, MinuteRow>,
    /// Ledger hours.
    pub hours: Vec<LedgerHour>,
    /// Events, the newest first.
    pub events: Vec<StoredEvent>,
    /// Whether the store failed: then what is missing here says nothing of the resource.
    pub failed: bool,
}

/// The past of a GPU, asked for at once: each question waits for its turn.
pub async fn of_gpu(
    app: &App,
    key: &ResourceKey,
    minutes: Range<Minute>,
    hours: Range<i64>,
    events: usize,
) -> Past {
    let read = async {
        let (found, hours, events) = tokio::try_join!(
            app.store.minutes(key, minutes),
            app.store.hours(key, hours),
            events_of(app, key, events),
        )?;
        for sentence in &found.corrupt {
            tracing::error!("a page leaves out what cannot be read: {sentence}");
        }
        Ok::<_, StoreError>(Past {
            minutes: found.rows,
            hours,
            events,
            failed: false,
        })
    };
    or_failed(read.await)
}

/// The events of a node and of the GPUs on it.
pub async fn of_node(app: &App, key: &ResourceKey, gpus: &[GpuView], events: usize) -> Past {
    let read = async {
        let gpus = gpus.iter().map(|it| &it.key).take(GPUS_WITH_EVENTS);
        let filters: Vec<EventFilter> = [key].into_iter().chain(gpus).map(about).collect();
        let mut all = app.store.events_of_each(&filters, events).await?;
        all.sort_by_key(|stored| std::cmp::Reverse(stored.event.at));
        all.truncate(events);
        Ok::<_, StoreError>(Past {
            events: all,
            ..Past::default()
        })
    };
    or_failed(read.await)
}

async fn events_of(
    app: &App,
    key: &ResourceKey,
    limit: usize,
) -> Result<Vec<StoredEvent>, StoreError> {
    Ok(app.store.events(&about(key), None, limit).await?.events)
}

/// Events of a resource.
fn about(key: &ResourceKey) -> EventFilter {
    EventFilter {
        cluster: Some(key.cluster.clone()),
        resource_kind: Some(key.kind),
        resource_id: Some(key.id.clone()),
        ..EventFilter::default()
    }
}

fn or_failed(read: Result<Past, StoreError>) -> Past {
    read.unwrap_or_else(|error| {
        tracing::error!(%error, "a page could not read the store");
        Past {
            failed: true,
            ..Past::default()
        }
    })
}

impl Past {
    /// What a reader's newest failure said.
    pub fn reader_error(&self, reader: &str) -> Option<String> {
        let newest = self.events.iter().map(|it| &it.event).find(|event| {
            event.kind == EventKind::ReaderFailed
                && event.resource_kind == ResourceKind::Node
                && event
                    .attributes
                    .get("reader")
                    .is_some_and(|it| it == reader)
        })?;
        Some(newest.message.clone())
    }
}
