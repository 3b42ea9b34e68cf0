//! Whether SQLite's file is still where it was opened.
//!
//! A file that was moved, deleted or unmounted goes on taking what is written, and nothing of it is there after the
//! next start. So each transaction that may write looks first, which is one question to the system: what is not
//! durable must not be acknowledged, for agents would drop it. What was there may still be read.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sqlx::{Sqlite, SqlitePool, Transaction};

/// A file, as it was when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Placed {
    path: PathBuf,
    /// Its device and inode.
    is: (u64, u64),
}

impl Placed {
    /// The file at this path; none where there is none, as of a database in memory.
    pub(super) fn at(path: &Path) -> Option<Self> {
        Some(Self {
            path: path.to_owned(),
            is: identity(path).ok()?,
        })
    }

    /// Nothing when it is still there.
    ///
    /// # Errors
    /// When nothing is there, or another file, with what to do.
    pub(super) fn look(&self) -> Result<(), sqlx::Error> {
        let what = match identity(&self.path) {
            Ok(is) if is == self.is => return Ok(()),
            Ok(_) => "is another file than the one that was opened: start this server anew to use it, or put the one that was there back".to_owned(),
            Err(error) => format!("is not there any more ({error}): put it back, or start this server anew without it"),
        };
        let what = format!(
            "{} {what}; nothing is written meanwhile",
            self.path.display()
        );
        Err(sqlx::Error::Io(io::Error::new(
            io::ErrorKind::NotFound,
            what,
        )))
    }
}

/// A transaction that may write, if the file is still where it was opened.
///
/// # Errors
/// When it is not, or SQLite refuses.
pub(super) async fn begin(
    writer: &SqlitePool,
    placed: Option<&Placed>,
) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    placed.map_or(Ok(()), Placed::look)?;
    let begun = writer.begin_with("BEGIN IMMEDIATE").await;
    if begun.as_ref().is_err_and(is_read_only) {
        // A connection that was opened while the disk took nothing takes nothing ever after.
        writer.acquire().await?.close().await?;
    }
    begun
}

fn is_read_only(error: &sqlx::Error) -> bool {
    const SQLITE_READONLY: &str = "8";
    let code = error.as_database_error().and_then(|it| it.code());
    code.is_some_and(|it| it == SQLITE_READONLY)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let about = std::fs::metadata(path)?;
    Ok((about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_went_or_became_another_is_told_apart_and_one_that_came_back_is_well() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("a.db"), folder.path().join("aside"));
        assert_eq!(Placed::at(&path), None);
        std::fs::write(&path, "one").unwrap();
        let placed = Placed::at(&path).unwrap();
        placed.look().unwrap();
        std::fs::rename(&path, &aside).unwrap();
        let said = placed.look().unwrap_err().to_string();
        assert!(said.contains("is not there any more"), "{said}");
        std::fs::write(&path, "two").unwrap();
        let said = placed.look().unwrap_err().to_string();
        assert!(said.contains("is another file"), "{said}");
        std::fs::rename(&aside, &path).unwrap();
        placed.look().unwrap();
    }
}
