//! What a page or an answer needs to know of a run beside the run itself.

use std::sync::Arc;

use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::{Run, RunKey};
use crate::App;
use crate::fleet::Fleet;
use crate::store::StoreError;
use crate::store::model::ResourceKey;

/// A run from memory, else from the store; none when neither knows it.
///
/// # Errors
/// When the database refuses.
pub async fn find(app: &App, key: &RunKey) -> Result<Option<Run>, StoreError> {
    match app.fleet.runs().get(key) {
        Some(run) => Ok(Some(run)),
        None => Ok(app.store.run(key).await?.map(Run::of_store)),
    }
}

/// Since when steps are kept.
pub fn kept_from(app: &App, now: Timestamp) -> Timestamp {
    let days = app.config.retention.steps_d;
    now.shifted(
        days.saturating_mul(86_400)
            .saturating_mul(-NANOS_PER_SECOND),
    )
}

/// The card of a GPU or share that a rank names; none where the GPU is not reported.
pub fn card(fleet: &Fleet, cluster: &Arc<str>, gpu: &str) -> Option<String> {
    let key = |kind| ResourceKey {
        cluster: Arc::clone(cluster),
        kind,
        id: gpu.into(),
    };
    let found = [ResourceKind::Gpu, ResourceKind::Share].into_iter();
    let live = found.filter_map(|kind| fleet.get(&key(kind))).next()?;
    live.resource
        .attribute(attribute::GPU_MODEL)
        .map(str::to_owned)
}
