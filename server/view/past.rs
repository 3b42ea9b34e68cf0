//! What the store knows of a GPU or a node, for one page.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::ledger::LedgerHour;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use crate::App;
use crate::store::model::{ResourceKey, StoredEvent};
use crate::view::GpuView;

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

/// The past of a GPU.
pub async fn of_gpu(
    _app: &App,
    _key: &ResourceKey,
    _minutes: Range<Minute>,
    _hours: Range<i64>,
    _events: usize,
) -> Past {
    Past::default()
}

/// The events of a node and of the GPUs on it.
pub async fn of_node(_app: &App, _key: &ResourceKey, _gpus: &[GpuView], _events: usize) -> Past {
    Past::default()
}

impl Past {
    /// What a reader's newest failure said.
    pub fn reader_error(&self, reader: &str) -> Option<String> {
        let newest = self.events.iter().map(|it| &it.event).find(|event| {
            event.kind == EventKind::ReaderFailed
                && event
                    .attributes
                    .get("reader")
                    .is_some_and(|it| it == reader)
        })?;
        Some(newest.message.clone())
    }
}
