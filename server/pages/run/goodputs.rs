//! The goodput of runs as it was last added up, so that all who look at a run within seconds share one: of each attempt
//! all steps that are kept are read, which of a week are 600,000.
//!
//! Limits: one is added up at most once in [`FRESH_FOR`], and nobody waits for that while the last one is younger than
//! [`STANDS_FOR`]; the newest [`KEPT`] are kept, a hundred bytes each, and [`AT_ONCE`] are added up at once.

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

/// How old one may be that is given while the next one is added up; it says until when it goes.
const STANDS_FOR: Duration = Duration::from_secs(30);

/// Most that are kept.
const KEPT: usize = 64;

/// How many are added up at once, 14 MB each at most.
const AT_ONCE: usize = 4;

/// By run. Of which cluster a run is, is in its key: who asks may see it.
pub struct Goodputs(Answers<RunKey, AddedUp, Arc<StoreError>>);

/// The time of a job up to an attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddedUp {
    /// Until when, where it goes on.
    pub until: Timestamp,
    /// Its partition, or why there is none.
    pub goodput: Result<Goodput, &'static str>,
}

impl AddedUp {
    /// The partition, or why there is none.
    pub(super) fn told(&self) -> Result<&Goodput, &'static str> {
        self.goodput.as_ref().map_err(|why| *why)
    }
}

impl Default for Goodputs {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, AT_ONCE))
    }
}

impl Goodputs {
    /// The attempts of the job that a run is an attempt of, and the partition of its time up to this one.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn of_job(
        &self,
        app: &App,
        of: (&RunKey, &Arc<Run>),
        now: Timestamp,
    ) -> Result<(Arc<Attempts>, AddedUp), Arc<StoreError>> {
        let attempts = Attempts::of(&app.store, of.0).await.map_err(Arc::new)?;
        let attempts = Arc::new(attempts);
        let goodput = self.added_up(app, of, &attempts, now).await?;
        Ok((attempts, goodput))
    }

    /// The partition of the time of a job up to this attempt, of these attempts.
    ///
    /// # Errors
    /// When the database refuses, and none stands.
    pub async fn added_up(
        &self,
        app: &App,
        (key, run): (&RunKey, &Arc<Run>),
        attempts: &Arc<Attempts>,
        now: Timestamp,
    ) -> Result<AddedUp, Arc<StoreError>> {
        let (store, from) = (app.store.clone(), (lookup::kept_from(app, now), now));
        let (of, own, all) = (key.clone(), Arc::clone(run), Arc::clone(attempts));
        let making = async move {
            let made = goodput::of(&store, (&of, &own), &all, from).await;
            let goodput = made.map_err(Arc::new)?;
            Ok(AddedUp {
                until: now,
                goodput,
            })
        };
        let (goodputs, asked) = (&self.0, key.clone());
        let made = goodputs.get_standing(asked, &app.clock, STANDS_FOR, making);
        Ok(*made.await?)
    }
}
