//! The disks that the server writes to: how much room they have, and how much its own spool takes.
//!
//! A disk that does not answer must not keep /metrics waiting: it is asked on a thread of its own and
//! given up after [`WITHIN`].

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a disk may take to answer.
const WITHIN: Duration = Duration::from_secs(2);

/// Folders below a spool's: its root and one for each epoch.
const DEPTH: usize = 2;

/// What the disks say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Disks {
    /// Bytes of all files of the server's own spool.
    pub spool_bytes: Option<u64>,
    /// Bytes that may still be written, by what lies there: `spool`, `database`.
    pub free: Vec<(&'static str, u64)>,
}

/// What says how many bytes may still be written into a folder; none when that is not known.
pub type Room = fn(&Path) -> Option<u64>;

/// Asks the disks of the spool's folder and, where it is a file, of the database for their room.
pub async fn look(spool: PathBuf, database: Option<PathBuf>, room: Room) -> Disks {
    let asked = tokio::task::spawn_blocking(move || {
        let folders = [
            ("spool", Some(spool.clone())),
            (
                "database",
                database.and_then(|it| Some(it.parent()?.into())),
            ),
        ];
        let free = folders
            .into_iter()
            .filter_map(|(name, folder)| Some((name, room(&folder?)?)))
            .collect();
        Disks {
            spool_bytes: bytes(&spool, DEPTH),
            free,
        }
    });
    match tokio::time::timeout(WITHIN, asked).await {
        Ok(Ok(disks)) => disks,
        Ok(Err(_)) | Err(_) => {
            tracing::warn!("a disk did not say how full it is");
            Disks::default()
        }
    }
}

/// Bytes that we may still write there, as the system says.
pub fn free(folder: &Path) -> Option<u64> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Bytes of all files in a folder and in those below it.
fn bytes(folder: &Path, depth: usize) -> Option<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder).ok()? {
        let entry = entry.ok()?;
        let about = entry.metadata().ok()?;
        if about.is_file() {
            total += about.len();
        } else if about.is_dir() && depth > 1 {
            // A folder that went while we looked has nothing.
            total += bytes(&entry.path(), depth - 1).unwrap_or(0);
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_spools_files_are_added_up_and_both_disks_are_asked_for_room() {
        let folder = tempfile::tempdir().unwrap();
        let epoch = folder.path().join("1-epoch");
        std::fs::create_dir(&epoch).unwrap();
        std::fs::write(folder.path().join("lock"), "12345").unwrap();
        std::fs::write(epoch.join("segment"), [0; 1_000]).unwrap();
        let database = folder.path().join("gpufleet.db");
        let disks = look(folder.path().into(), Some(database), free).await;
        assert_eq!(disks.spool_bytes, Some(1_005));
        let names: Vec<_> = disks.free.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["spool", "database"]);
        let gone = look("/nowhere".into(), None, free).await;
        assert_eq!(gone, Disks::default(), "not known is not 0");
    }
}
