//! The goodput of runs as it was last added up, so that all who look at a run within seconds share one: of each attempt
//! all steps that are kept are read, which of a week are 600,000.
//!
//! Limits: one stands for [`FRESH_FOR`]; the newest [`KEPT`] are kept, a hundred bytes each, and [`AT_ONCE`] are added up
//! at once.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::goodput::Goodput;
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::answers::Answers;
use crate::runs::attempts::Attempts;
use crate::runs::{Run, RunKey, goodput, lookup};
use crate::store::StoreError;

/// How old one may be: agents ship every 10 s, so more often would show little that is new.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// Most that are kept.
const KEPT: usize = 64;

/// How many are added up at once, 14 MB each at most.
const AT_ONCE: usize = 4;

/// By run, or why there is none. Of which cluster a run is, is in its key: who asks may see it.
pub struct Goodputs(Answers<RunKey, Result<Goodput, &'static str>, Arc<StoreError>>);

impl Default for Goodputs {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, AT_ONCE))
    }
}

impl Goodputs {
    /// The partition of the time of a job up to this attempt, or why there is none.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn get(
        &self,
        app: &App,
        (key, run): (&RunKey, &Arc<Run>),
        attempts: &Arc<Attempts>,
        now: Timestamp,
    ) -> Result<Result<Goodput, &'static str>, Arc<StoreError>> {
        let (store, from) = (app.store.clone(), (lookup::kept_from(app, now), now));
        let (of, own, all) = (key.clone(), Arc::clone(run), Arc::clone(attempts));
        let making = async move {
            let made = goodput::of(&store, (&of, &own), &all, from).await;
            made.map_err(Arc::new)
        };
        let made = self.0.get(key.clone(), &app.clock, making).await?;
        Ok(*made)
    }
}
