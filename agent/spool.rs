//! The agent's spool: where it lies, when it is full, and how what is sampled gets into it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use gpufleet_program::section;
use gpufleet_spool::disk::RealDisk;
use gpufleet_spool::{Limits, Opened, Spool, SpoolError};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Epoch, ResourceKind};
use gpufleet_telemetry::tick::ResourceTick;
use gpufleet_telemetry::time::{Clock, Timestamp};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::read::NodeFacts;
use crate::sample::Output;
use crate::ship::Ship;
use crate::under_way::UnderWay;

section! {
    /// When the spool is full; then it drops its oldest requests, counted and told. And how much of the tick
    /// under way a loss of power may cost.
    pub struct SpoolConfig {
        /// Megabytes (2^20 bytes) on disk, at least 16.
        pub limit_mib: u64 = 1_024,
        /// Hours that a request waits for a server at most.
        pub limit_hours: u64 = 24,
        /// Seconds after which what was read is safe from a loss of power, 0 to 60. 0: when its tick ends.
        /// Each time is an fsync, and on ext4 it waits for what others have written to the same disk.
        pub sync_seconds: u64 = 1,
    }
}

impl SpoolConfig {
    /// Whether it can be used.
    ///
    /// # Errors
    /// Names the key and says what it may be.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            (16..=1 << 20).contains(&self.limit_mib),
            "spool.limit_mib = {}: it must be 16 to 1048576",
            self.limit_mib
        );
        anyhow::ensure!(
            (1..=24 * 31).contains(&self.limit_hours),
            "spool.limit_hours = {}: it must be 1 to 744",
            self.limit_hours
        );
        anyhow::ensure!(
            self.sync_seconds <= 60,
            "spool.sync_seconds = {}: it must be 0 to 60",
            self.sync_seconds
        );
        Ok(())
    }

    /// How often the tick under way is made safe; none where that is not before its end.
    pub fn sync_every(&self) -> Option<Duration> {
        (self.sync_seconds > 0).then(|| Duration::from_secs(self.sync_seconds))
    }

    /// Opens the spool in `folder`.
    ///
    /// # Errors
    /// When the folder cannot be used, another agent uses it, or a newer one wrote it.
    pub fn open(&self, folder: &Path, now: Timestamp) -> anyhow::Result<(Spool<RealDisk>, Opened)> {
        let disk = RealDisk::open(folder).map_err(|error| {
            let path = folder.display();
            let why = if error.kind() == std::io::ErrorKind::WouldBlock {
                format!("another agent uses the spool {path}: stop it, or set node.state_folder")
            } else {
                format!("cannot use the spool {path}: set node.state_folder to a folder that this user may write")
            };
            anyhow::Error::new(error).context(why)
        })?;
        let limits = Limits {
            bytes: self.limit_mib << 20,
            age: Duration::from_secs(self.limit_hours * 3_600),
            ..Limits::default()
        };
        Spool::open(disk, limits, Epoch(Uuid::new_v4()), now).context("cannot open the spool")
    }
}

/// What could not be spooled since something last could.
#[derive(Debug, Default)]
struct Lost {
    count: u64,
    since: Timestamp,
    why: String,
}

/// The way into the spool.
pub struct Filling {
    /// What ships it.
    pub ship: Ship<RealDisk>,
    /// What is kept of the tick under way.
    pub under_way: UnderWay<RealDisk>,
    /// How often that is made safe; none: when the tick ends.
    pub sync_every: Option<Duration>,
    /// The ticks that an agent before this one could not spool.
    pub recovered: Vec<Vec<ResourceTick>>,
}

/// The same while it runs.
struct Way {
    ship: Ship<RealDisk>,
    under_way: Arc<Mutex<UnderWay<RealDisk>>>,
    /// Whether something of the tick under way is not safe yet.
    is_dirty: bool,
    /// Whether its disk failed last time, which is told once.
    fails: bool,
}

/// Brings what is sampled into the spool, until the sample loop ends. What a full or failing disk
/// did not take is told once it takes something again.
pub async fn fill(
    filling: Option<Filling>,
    mut outputs: mpsc::Receiver<Output>,
    node: Arc<NodeFacts>,
    clock: Arc<dyn Clock>,
) {
    let Some(filling) = filling else {
        while outputs.recv().await.is_some() {}
        return;
    };
    let mut way = Way {
        ship: filling.ship,
        under_way: Arc::new(Mutex::new(filling.under_way)),
        is_dirty: false,
        fails: false,
    };
    let mut lost = Lost::default();
    for ticks in filling.recovered {
        let now = clock.now();
        if let Err(error) = way.tick(ticks, now).await {
            lost.note(&error, now);
        }
    }
    let syncs = filling.sync_every.is_some();
    let mut sync = tokio::time::interval(filling.sync_every.unwrap_or(Duration::from_secs(1)));
    sync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let output = tokio::select! {
            output = outputs.recv() => output,
            _ = sync.tick(), if syncs && way.is_dirty => {
                way.is_dirty = false;
                way.keep(UnderWay::sync).await;
                continue;
            }
        };
        let Some(output) = output else { break };
        let now = clock.now();
        let spooling = async {
            match output {
                Output::Round(record, at) => {
                    way.is_dirty = true;
                    way.keep(move |it| it.note(&record, at)).await;
                    None
                }
                Output::Tick(ticks) if ticks.is_empty() => None,
                Output::Tick(ticks) => Some(way.tick(ticks, now).await),
                Output::Events(events) => Some(way.ship.events(&events, now).await),
                Output::Steps(shipment, spooled) => {
                    Some(way.ship.steps(shipment, spooled, now).await)
                }
            }
        };
        let spooled = spooling.instrument(tracing::debug_span!("spool")).await;
        let Some(spooled) = spooled else { continue };
        match spooled {
            Err(error) => lost.note(&error, now),
            Ok(()) if lost.count > 0 => {
                let told = way.ship.events(&[lost.event(&node, now)], now).await;
                if told.is_ok() {
                    lost = Lost::default();
                }
            }
            Ok(()) => {}
        }
    }
}

impl Way {
    /// Spools a tick; what was kept of it is forgotten then.
    async fn tick(&mut self, ticks: Vec<ResourceTick>, now: Timestamp) -> Result<(), SpoolError> {
        let Some(end) = ticks.first().map(|it| it.end) else {
            return Ok(());
        };
        let place = self.ship.next_place(now).await?;
        self.keep(move |it| it.closing(end, place, now)).await;
        let spooled = self.ship.tick(ticks, now).await;
        self.keep(move |it| it.closed(end, now)).await;
        self.is_dirty = true;
        spooled
    }

    /// Works on what is kept of the tick under way, where it may block. Without it the agent goes on: a
    /// kill would then cost the tick.
    async fn keep<Work>(&mut self, work: Work)
    where
        Work: FnOnce(&mut UnderWay<RealDisk>) -> Result<(), SpoolError> + Send + 'static,
    {
        let under_way = Arc::clone(&self.under_way);
        let worked = tokio::task::spawn_blocking(move || {
            work(&mut under_way.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let worked = worked
            .await
            .expect("it does not panic and is not cancelled");
        if let (Err(error), false) = (&worked, self.fails) {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "the tick under way cannot be kept on disk: a kill or a loss of power would cost it; make room on the disk of node.state_folder"
            );
        }
        self.fails = worked.is_err();
    }
}

impl Lost {
    fn note(&mut self, error: &SpoolError, now: Timestamp) {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "a tick could not be spooled and is lost: make room on the disk of node.state_folder"
        );
        if self.count == 0 {
            self.since = now;
        }
        self.count += 1;
        self.why = std::error::Error::source(error)
            .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    }

    /// The event that tells of it.
    fn event(&self, node: &NodeFacts, now: Timestamp) -> Event {
        let (count, seconds) = (self.count, now.since(self.since) / 1_000_000_000);
        let attributes = [
            ("why", "disk".to_owned()),
            ("records", count.to_string()),
            ("error", self.why.clone()),
        ];
        Event {
            at: now,
            kind: EventKind::SpoolDropped,
            severity: Severity::Error,
            resource_kind: ResourceKind::Node,
            resource_id: node.node.as_str().into(),
            message: format!(
                "{count} requests of the last {seconds} s could not be spooled and are lost: {}",
                self.why
            ),
            attributes: BTreeMap::from(attributes.map(|(name, value)| (name.to_owned(), value))),
        }
    }
}
