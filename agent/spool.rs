//! The agent's spool: where it lies, when it is full, and how what is sampled gets into it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gpufleet_program::section;
use gpufleet_spool::disk::RealDisk;
use gpufleet_spool::{Limits, Opened, Spool, SpoolError};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Epoch, ResourceKind};
use gpufleet_telemetry::time::{Clock, Timestamp};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::read::NodeFacts;
use crate::sample::Output;
use crate::ship::Ship;

section! {
    /// When the spool is full; then it drops its oldest requests, counted and told.
    pub struct SpoolConfig {
        /// Megabytes (2^20 bytes) on disk, at least 16.
        pub limit_mib: u64 = 1_024,
        /// Hours that a request waits for a server at most.
        pub limit_hours: u64 = 24,
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
        Ok(())
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

/// Brings what is sampled into the spool, until the sample loop ends. What a full or failing disk
/// did not take is told once it takes something again.
pub async fn fill(
    ship: Option<Ship<RealDisk>>,
    mut outputs: mpsc::Receiver<Output>,
    node: Arc<NodeFacts>,
    clock: Arc<dyn Clock>,
) {
    let mut lost = Lost::default();
    while let Some(output) = outputs.recv().await {
        let Some(ship) = &ship else { continue };
        let now = clock.now();
        let spooled = match output {
            Output::Tick(ticks) if ticks.is_empty() => continue,
            Output::Tick(ticks) => ship.tick(ticks, now).await,
            Output::Events(events) => ship.events(&events, now).await,
            Output::Steps(shipment, spooled) => ship.steps(shipment, spooled, now).await,
        };
        match spooled {
            Err(error) => lost.note(&error, now),
            Ok(()) if lost.count > 0 => {
                let told = ship.events(&[lost.event(&node, now)], now).await;
                if told.is_ok() {
                    lost = Lost::default();
                }
            }
            Ok(()) => {}
        }
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
