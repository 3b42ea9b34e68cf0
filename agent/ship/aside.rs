//! The spool of an identity that was given up: kept beside the new one, and told of.
//!
//! A cloned disk brings the original's spool along, and an id that two processes use belongs to one
//! of them only: under a new id the old records would count twice. They are not deleted either.
//!
//! Limits: [`KEPT`].

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;

use crate::read::NodeFacts;
use crate::spool::SpoolConfig;
use crate::under_way;

/// The spool in the state folder.
pub const SPOOL: &str = "spool";

/// Most spools that are kept, each as large as a spool may be.
const KEPT: usize = 2;

/// What the name of one that was set aside begins with; the time follows.
const PREFIX: &str = "spool.conflict-";

/// The file in it that says that it was told of.
const TOLD: &str = "told";

/// Moves the spool aside, if there is one, and forgets those beyond [`KEPT`].
///
/// # Errors
/// When the state folder cannot be written.
pub(super) fn set_aside(state_folder: &Path, now: Timestamp) -> anyhow::Result<()> {
    // The tick under way is the other's: that one has it too.
    match std::fs::remove_dir_all(state_folder.join(under_way::FOLDER)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).context("cannot remove what was kept of another id's tick");
        }
        _ => {}
    }
    let spool = state_folder.join(SPOOL);
    let aside = state_folder.join(format!("{PREFIX}{}", now.0));
    match std::fs::rename(&spool, &aside) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        moved => moved.with_context(|| {
            format!(
                "cannot move the spool {} of another id aside",
                spool.display()
            )
        })?,
    }
    for old in folders(state_folder)?.iter().rev().skip(KEPT) {
        std::fs::remove_dir_all(old)
            .with_context(|| format!("cannot remove the old spool {}", old.display()))?;
    }
    Ok(())
}

/// One event for each spool that was set aside and not told of yet.
///
/// # Errors
/// When the state folder cannot be read or written.
pub fn tell(
    state_folder: &Path,
    config: &SpoolConfig,
    node: &NodeFacts,
    now: Timestamp,
) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    for folder in folders(state_folder)? {
        if folder.join(TOLD).exists() {
            continue;
        }
        let records = match config.open(&folder, now) {
            Ok((_, opened)) => opened.records.to_string(),
            Err(error) => {
                tracing::warn!(%error, "the spool that was set aside cannot be counted");
                "unknown".to_owned()
            }
        };
        std::fs::write(folder.join(TOLD), "")
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        let message = format!(
            "a new agent id: the old one's spool was set aside as {} with its requests not known to be stored: {records}",
            folder.display()
        );
        tracing::error!(records, folder = %folder.display(), "the spool of the old id was set aside");
        let attributes = [("why", "identity".to_owned()), ("records", records)];
        events.push(Event {
            at: now,
            kind: EventKind::SpoolDropped,
            severity: Severity::Error,
            resource_kind: ResourceKind::Node,
            resource_id: node.node.as_str().into(),
            message,
            attributes: BTreeMap::from(attributes.map(|(name, value)| (name.to_owned(), value))),
        });
    }
    Ok(events)
}

/// What was set aside, oldest first.
fn folders(state_folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let listed = std::fs::read_dir(state_folder).and_then(|entries| {
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                found.push(entry.path());
            }
        }
        Ok(())
    });
    listed.with_context(|| format!("cannot list {}", state_folder.display()))?;
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::wire::Stream;

    use super::*;

    #[test]
    fn the_spool_of_an_old_id_is_kept_counted_and_told_of_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = SpoolConfig::default();
        let node = NodeFacts::for_tests();
        let mut told = Vec::new();
        for second in 1..=4 {
            let now = Timestamp::from_seconds(second);
            let (mut spool, _) = config
                .open(&folder.path().join(SPOOL), now)
                .expect("it opens");
            for _ in 0..second {
                spool.append(Stream::Logs, b"x", now).expect("room");
            }
            spool.sync().expect("the disk works");
            drop(spool);
            set_aside(folder.path(), now).expect("it can be moved");
            let events = tell(folder.path(), &config, &node, now).expect("it can be told");
            told.extend(
                events
                    .into_iter()
                    .map(|it| it.attributes["records"].clone()),
            );
        }
        assert_eq!(told, ["1", "2", "3", "4"]);
        assert!(!folder.path().join(SPOOL).exists());
        let kept = folders(folder.path()).expect("it can be listed");
        assert_eq!(kept.len(), KEPT);
        assert!(kept[1].ends_with("spool.conflict-4000000000"), "{kept:?}");
    }
}
