//! Thresholds that change while the server runs: the config file is looked at before each tick, and what of
//! `[detect]` is a threshold holds from then on, with a row in the audit that says what it was and is.
//!
//! Limits: a file that cannot be used changes nothing and is told in the log. Prices of GPUs
//! (`gpu_hour_usd`) hold until the next start: the hours of the ledger are priced with them too.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use gpufleet_program::config::Sources;
use gpufleet_program::reloaded::{Reloaded, Unusable};
use gpufleet_telemetry::time::Timestamp;
use serde_json::json;

use super::{DetectConfig, Detectors};
use crate::App;
use crate::config::Config;
use crate::store::StoreError;
use crate::store::model::AuditEntry;

/// Who changes it, as far as this server knows.
const WHO: &str = "whoever wrote the config file";

/// The thresholds of the config file.
#[derive(Debug)]
pub struct Thresholds {
    file: PathBuf,
    read: Reloaded<DetectConfig>,
    now: DetectConfig,
}

/// What pages show of the thresholds; nothing before they were first looked at, or without a file.
#[derive(Debug, Default)]
pub struct Told(Mutex<Option<Reread>>);

/// How the file was last read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reread {
    /// Which file.
    pub file: PathBuf,
    /// When it was last looked at.
    pub looked_at: Timestamp,
    /// When a threshold last changed while this server ran.
    pub changed_at: Option<Timestamp>,
    /// Whether the file as it is cannot be used; the log says why.
    pub is_refused: bool,
    /// What holds.
    pub now: DetectConfig,
}

impl Told {
    /// What is known now.
    pub fn get(&self) -> Option<Reread> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn put(&self, told: Reread) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }
}

impl Thresholds {
    /// Those of the file that this server was started with; none where there is no file.
    ///
    /// # Errors
    /// When it cannot be read any more.
    pub fn of(sources: Sources) -> Result<Option<Self>, Unusable> {
        let Some(file) = sources.file.clone() else {
            return Ok(None);
        };
        let make = move || Ok(sources.load::<Config>()?.detect);
        let read = Reloaded::new("the thresholds ([detect])", [file.clone()], make)?;
        let now = (*read.get()).clone();
        Ok(Some(Self { file, read, now }))
    }

    /// Takes in what the file says now, written down first.
    ///
    /// # Errors
    /// When the store does not take the row: then nothing is changed, and it is tried again.
    pub(super) async fn take(
        &mut self,
        app: &App,
        detectors: &mut Detectors,
    ) -> Result<(), StoreError> {
        let wanted = self.read.get();
        self.tell(app, None);
        let thresholds =
            |it: &DetectConfig| json!({"idle_after_s": it.idle_after_s, "limits": it.limits});
        let (before, after) = (thresholds(&self.now), thresholds(&wanted));
        if before == after {
            return Ok(());
        }
        let entry = AuditEntry {
            at: app.clock.now(),
            who: WHO.to_owned(),
            peer: String::new(),
            action: "change thresholds".to_owned(),
            target: self.file.display().to_string(),
            detail: json!({"before": before, "after": after}).to_string(),
        };
        app.store.audit(&entry).await?;
        tracing::info!(%before, %after, "the thresholds of the detectors changed");
        detectors.set(&wanted);
        self.now = (*wanted).clone();
        self.tell(app, Some(entry.at));
        Ok(())
    }

    /// Notes for pages that the file was looked at, and when something changed.
    fn tell(&self, app: &App, changed: Option<Timestamp>) {
        let before = app.thresholds.get().and_then(|it| it.changed_at);
        app.thresholds.put(Reread {
            file: self.file.clone(),
            looked_at: app.clock.now(),
            changed_at: changed.or(before),
            is_refused: self.read.refused().is_some(),
            now: self.now.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::tests::World;

    fn write(world: &World, text: &str) -> PathBuf {
        let file = world.folder.path().join("server.toml");
        std::fs::write(&file, text).expect("it can be written");
        file
    }

    #[tokio::test]
    async fn a_threshold_that_changes_holds_at_the_next_tick_and_stands_in_the_audit() {
        let mut world = World::new().await;
        let sources = Sources {
            file: Some(write(&world, "[detect]\nidle_after_s = 3600\n")),
            ..Sources::default()
        };
        let thresholds = Thresholds::of(sources).expect("it can be read");
        let mut thresholds = thresholds.expect("there is a file");
        let app = world.app.clone();
        let taken = thresholds.take(&app, &mut world.detectors).await;
        taken.expect("nothing changed");
        assert_eq!(app.store.audited(10).await.expect("it answers"), []);
        write(
            &world,
            "[detect]\nidle_after_s = 600\nlimits = { node_cpu_stolen = 0.5 }\n",
        );
        let taken = thresholds.take(&app, &mut world.detectors).await;
        taken.expect("the store takes the row");
        let rows = app.store.audited(10).await.expect("it answers");
        assert_eq!(rows.len(), 1, "{rows:?}");
        let told = app.thresholds.get().expect("it was looked at");
        assert_eq!((told.now.idle_after_s, told.is_refused), (600, false));
        assert_eq!(told.changed_at, Some(rows[0].at));
        assert_eq!(rows[0].action, "change thresholds");
        assert!(
            rows[0].detail.contains("\"idle_after_s\":3600"),
            "{}",
            rows[0].detail
        );
        assert!(
            rows[0].detail.contains("\"node_cpu_stolen\":0.5"),
            "{}",
            rows[0].detail
        );
        world.ticks(75, |live| live.bits.active = 0);
        assert_eq!(world.open().len(), 1, "idle for more than ten minutes");
        // What cannot be used changes nothing.
        write(&world, "[detect]\nlimits = { no_such_limit = 1 }\n");
        let taken = thresholds.take(&app, &mut world.detectors).await;
        taken.expect("nothing changed");
        assert_eq!(app.store.audited(10).await.expect("it answers").len(), 1);
        let told = app.thresholds.get().expect("it was looked at");
        assert_eq!((told.now.idle_after_s, told.is_refused), (600, true));
    }
}
