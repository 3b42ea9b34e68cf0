//! The agent's spool: where it lies and when it is full.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use gpufleet_spool::disk::RealDisk;
use gpufleet_spool::{Limits, Opened, Spool};
use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// When the spool is full; then it drops its oldest requests, counted and told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpoolConfig {
    /// Megabytes (2^20 bytes) on disk, at least 16.
    pub limit_mib: u64,
    /// Hours that a request waits for a server at most.
    pub limit_hours: u64,
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self {
            limit_mib: 1_024,
            limit_hours: 24,
        }
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
