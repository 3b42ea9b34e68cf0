//! Thresholds that change while the server runs: the config file is looked at before each tick, and what it
//! says of [`keys`] holds from then on, with a row in the audit that says what it was and is. So it is where a server that
//! begins to lead has others than were in force before: those of the last such row, or the defaults where there is none.
//!
//! Limits: a file that cannot be used changes nothing and is told in the log. Prices of GPUs
//! (`gpu_hour_usd`) hold until the next start: the hours of the ledger are priced with them too. Of a server without a
//! file nothing is written down.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gpufleet_program::config::Sources;
use gpufleet_program::reloaded::{Reloaded, Unusable};
use gpufleet_telemetry::time::Timestamp;
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use super::Detectors;
use super::tuned::{THRESHOLDS, Tuned, open_after};
use crate::App;
use crate::config::Config;
use crate::store::StoreError;
use crate::store::model::AuditEntry;

/// The keys that are no numbers of one detector, each with its section.
const OTHERS: [(&str, &str); 4] = [
    ("detect", "idle_after_s"),
    ("detect", "limits"),
    ("detect", "open_after_ticks"),
    ("inventory", "agent_within_s"),
];

/// The keys that are thresholds, each with its section. What else the file says holds from the next start.
pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_detectors = THRESHOLDS.iter().map(|it| ("detect", it.key));
    OTHERS.into_iter().chain(of_detectors)
}

/// What it is called in the audit.
pub(crate) const ACTION: &str = "change thresholds";

/// Who changes it, as far as this server knows.
const WHO: &str = "whoever wrote the config file";

/// The thresholds of the config file.
#[derive(Debug)]
pub struct Thresholds {
    file: PathBuf,
    read: Reloaded<Config>,
    now: Arc<Config>,
    /// Whether it was looked at which were in force before this server led.
    is_begun: bool,
}

/// What pages show of the thresholds; nothing before they were first looked at, or without a file.
#[derive(Debug, Default)]
pub struct ThresholdHealth(Mutex<Option<Reread>>);

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
    /// The file whose thresholds hold.
    pub now: Arc<Config>,
}

impl ThresholdHealth {
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
        let make = move || Ok(sources.load::<Config>()?);
        let read = Reloaded::new("the thresholds", [file.clone()], make)?;
        let now = read.get();
        Ok(Some(Self {
            file,
            read,
            now,
            is_begun: false,
        }))
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
        let (held, after) = (thresholds(&self.now), thresholds(&wanted));
        let is_new = held != after;
        if self.is_begun && !is_new {
            return Ok(());
        }
        let after = json!(after);
        let before = match self.is_begun {
            true => json!(held),
            false => in_force(app.store.last_audited(ACTION).await?.as_ref()),
        };
        let at = app.clock.now();
        if before != after {
            let target = self.file.display().to_string();
            let detail = json!({"before": before, "after": after}).to_string();
            let entry = AuditEntry::here(at, WHO, (ACTION, &target), detail);
            app.store.audit(&entry).await?;
        }
        self.is_begun = true;
        if !is_new {
            return Ok(());
        }
        tracing::info!(%before, %after, "the thresholds of the detectors changed");
        detectors.set(&wanted.detect);
        app.fleet.runs().judge_by(&Tuned::of(&wanted.detect));
        app.incidents.open_after(open_after(&wanted.detect));
        app.inventory.set_within(&wanted.inventory);
        self.now = wanted;
        self.tell(app, Some(at));
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
            now: Arc::clone(&self.now),
        });
    }
}

/// The thresholds that were in force last, by this row of the audit. What it does not have was not known then, and was as
/// it is by default.
fn in_force(last: Option<&AuditEntry>) -> Json {
    let mut found = json!(thresholds(&Config::default()));
    let detail: Option<Json> = last.and_then(|it| serde_json::from_str(&it.detail).ok());
    let after = detail.as_ref().map(|it| &it["after"]);
    for (section, key) in keys() {
        if let Some(told) = after.map(|it| &it[section][key]).filter(|it| !it.is_null()) {
            found[section][key] = told.clone();
        }
    }
    found
}

/// What a configuration says of the thresholds, by section.
fn thresholds(config: &Config) -> Table {
    let all = Table::try_from(config).expect("a config is plain TOML");
    let mut found = Table::new();
    for (section, key) in keys() {
        let value = all.get(section).and_then(|it| it.get(key)).cloned();
        let of_section = found.entry(section).or_insert(Value::Table(Table::new()));
        if let (Value::Table(of_section), Some(value)) = (of_section, value) {
            of_section.insert(key.to_owned(), value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::incident::Family;
    use gpufleet_analysis::inventory::{Node, Ready};
    use gpufleet_telemetry::time::NANOS_PER_SECOND;

    use super::*;
    use crate::detect::runs::tests::{Training, slow};
    use crate::detect::tests::World;
    use crate::inventory::known::Moment;

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
        assert_eq!(
            (told.now.detect.idle_after_s, told.is_refused),
            (600, false)
        );
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
        assert_eq!((told.now.detect.idle_after_s, told.is_refused), (600, true));
        let settings = crate::settings::of(&app);
        let shown = settings.sections.iter().flat_map(|it| &it.keys);
        let shown = shown.filter(|it| it.name == "idle_after_s");
        assert_eq!(shown.map(|it| &it.value).collect::<Vec<_>>(), ["600"]);
    }

    #[tokio::test]
    async fn a_slow_rank_is_judged_by_what_the_file_says_now() {
        let mut training = Training::new().await;
        let sources = Sources {
            file: Some(write(&training.world, "")),
            ..Sources::default()
        };
        let thresholds = Thresholds::of(sources).expect("it can be read");
        let mut thresholds = thresholds.expect("there is a file");
        let app = training.world.app.clone();
        // It is a third slower.
        for (says, is_told) in [
            ("straggler_ratio = 1.9", false),
            ("open_after_ticks = { straggler = 30 }", false),
            ("", true),
        ] {
            write(&training.world, &format!("[detect]\n{says}\n"));
            let detectors = &mut training.world.detectors;
            let taken = thresholds.take(&app, detectors).await;
            taken.expect("the store takes the row");
            training.ticks(8, slow(5), |_| {}).await;
            let told: Vec<Family> = training.world.open().iter().map(|it| it.family).collect();
            let expected: &[Family] = if is_told { &[Family::Straggler] } else { &[] };
            assert_eq!(told, expected, "{says}");
        }
        let rows = app.store.audited(10).await.expect("it answers");
        let all: String = rows.iter().map(|it| it.detail.as_str()).collect();
        for said in [
            "\"straggler_ratio\":1.9",
            "\"open_after_ticks\":{\"straggler\":30}",
        ] {
            assert!(all.contains(said), "{said} not in {all}");
        }
    }

    #[tokio::test]
    async fn a_server_that_begins_with_another_file_says_in_the_audit_what_it_changes_and_once() {
        let mut world = World::new().await;
        let app = world.app.clone();
        let ratio = |value: f64| format!("[detect]\nstraggler_ratio = {value}\n");
        let from_default = ("straggler_ratio\":1.05", "straggler_ratio\":1.9");
        for (says, rows, changed) in [
            (String::new(), 0, None),
            (ratio(1.9), 1, Some(from_default)),
            (ratio(1.9), 1, None),
            (
                ratio(1.5),
                2,
                Some((from_default.1, "straggler_ratio\":1.5")),
            ),
        ] {
            let sources = Sources {
                file: Some(write(&world, &says)),
                ..Sources::default()
            };
            let thresholds = Thresholds::of(sources).expect("it can be read");
            let mut thresholds = thresholds.expect("there is a file");
            for _ in 0..2 {
                let taken = thresholds.take(&app, &mut world.detectors).await;
                taken.expect("the store takes the row");
            }
            let all = app.store.audited(10).await.expect("it answers");
            assert_eq!(all.len(), rows, "{says}: {all:?}");
            if let Some((before, after)) = changed {
                let detail: Json = serde_json::from_str(&all[0].detail).expect("it is JSON");
                let said = |it: &str| detail[it].to_string();
                assert!(said("before").contains(before), "{detail}");
                assert!(said("after").contains(after), "{detail}");
            }
        }
    }

    #[test]
    fn every_threshold_is_a_key_of_the_config_and_stands_in_the_audit() {
        let found = thresholds(&Config::default());
        for (section, key) in keys() {
            assert!(found[section].get(key).is_some(), "{section}.{key}");
        }
    }

    #[tokio::test]
    async fn how_long_a_node_may_be_without_an_agent_changes_while_the_server_runs() {
        let mut world = World::new().await;
        let file = |within: i64| format!("[inventory]\nagent_within_s = {within}\n");
        let sources = Sources {
            file: Some(write(&world, &file(600))),
            ..Sources::default()
        };
        let thresholds = Thresholds::of(sources).expect("it can be read");
        let mut thresholds = thresholds.expect("there is a file");
        let app = world.app.clone();
        let node = Node {
            name: "node-1".to_owned(),
            gpus: 8,
            allocatable: 8,
            ready: Ready::Yes,
            ..Node::default()
        };
        let now = crate::inventory::now(&app);
        app.inventory.known().all_nodes(vec![node], now);
        let later = Moment {
            at: now.at.shifted(60 * NANOS_PER_SECOND),
            ..now
        };
        let nobody = app.inventory.told(std::iter::empty());
        let blind = || app.inventory.without_agent(&nobody, later).len();
        assert_eq!(blind(), 0);
        write(&world, &file(60));
        let taken = thresholds.take(&app, &mut world.detectors).await;
        taken.expect("the store takes the row");
        assert_eq!(blind(), 1);
        let rows = app.store.audited(10).await.expect("it answers");
        assert!(rows[0].detail.contains("\"agent_within_s\":60"), "{rows:?}");
    }
}
