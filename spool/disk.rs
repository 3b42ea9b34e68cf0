//! What the spool needs of a disk: a root with folders one deep, files that only grow at their end.
//!
//! Two implementations: [`RealDisk`] here, and a simulated one (`sim.rs`) that crashes at any call,
//! loses what was not synced, tears writes, runs full and flips bits.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A disk. Names are plain: no separators, no dots.
pub trait Disk: Send {
    /// A file open for appending.
    type File: Send;

    /// The folders under the root, in no particular order.
    ///
    /// # Errors
    /// Whatever the disk says; so for every call.
    fn folders(&self) -> io::Result<Vec<String>>;

    /// Makes a folder; it is there after a crash once this returned.
    #[allow(missing_docs, clippy::missing_errors_doc, reason = "see `folders`")]
    fn create_folder(&self, folder: &str) -> io::Result<()>;

    /// Removes an empty folder.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn remove_folder(&self, folder: &str) -> io::Result<()>;

    /// The files in a folder, in no particular order.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn files(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes a file that is not there yet; it is there after a crash once the folder was synced.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn create(&self, folder: &str, file: &str) -> io::Result<Self::File>;

    /// Adds bytes at the end. On an error any part of them may have been added.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn append(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;

    /// What was appended is there after a crash once this returned.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn sync(&self, file: &mut Self::File) -> io::Result<()>;

    /// Cuts a file to a length and syncs it.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn truncate(&self, folder: &str, file: &str, length: u64) -> io::Result<()>;

    /// What was created and removed in the folder stays so after a crash once this returned.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Up to `length` bytes from `offset`; fewer only at the end of the file.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn read(&self, folder: &str, file: &str, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// A file's length.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn length(&self, folder: &str, file: &str) -> io::Result<u64>;

    /// Removes a file.
    #[allow(clippy::missing_errors_doc, reason = "see `folders`")]
    fn remove(&self, folder: &str, file: &str) -> io::Result<()>;
}

/// A folder of the machine, locked against a second process for as long as this lives.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    _lock: File,
}

/// The name of the lock file in the root.
const LOCK_FILE: &str = "lock";

impl RealDisk {
    /// Opens the folder, making it if need be, and locks it.
    ///
    /// # Errors
    /// When it cannot be made, or another process holds it ([`io::ErrorKind::WouldBlock`]).
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        fs::create_dir_all(&root)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(root.join(LOCK_FILE))?;
        lock.try_lock().map_err(io::Error::from)?;
        Ok(Self { root, _lock: lock })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, folder: &str, file: &str) -> PathBuf {
        self.root.join(folder).join(file)
    }
}

impl Disk for RealDisk {
    type File = File;

    fn folders(&self) -> io::Result<Vec<String>> {
        names(&self.root, true)
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        fs::create_dir(self.root.join(folder))?;
        File::open(&self.root)?.sync_all()
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        fs::remove_dir(self.root.join(folder))
    }

    fn files(&self, folder: &str) -> io::Result<Vec<String>> {
        names(&self.root.join(folder), false)
    }

    fn create(&self, folder: &str, file: &str) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(self.path(folder, file))
    }

    fn append(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &mut File) -> io::Result<()> {
        file.sync_data()
    }

    fn truncate(&self, folder: &str, file: &str, length: u64) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .open(self.path(folder, file))?;
        file.set_len(length)?;
        file.sync_all()
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        File::open(self.root.join(folder))?.sync_all()
    }

    fn read(&self, folder: &str, file: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = File::open(self.path(folder, file))?;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn length(&self, folder: &str, file: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path(folder, file))?.len())
    }

    fn remove(&self, folder: &str, file: &str) -> io::Result<()> {
        fs::remove_file(self.path(folder, file))
    }
}

/// The names of the folders, or of the files, in a folder. Names that are not UTF-8 are not ours.
fn names(folder: &Path, folders: bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() == folders
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_on_the_same_folder_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let first = RealDisk::open(folder.path()).expect("the first one");
        let second = RealDisk::open(folder.path());
        assert_eq!(
            second.expect_err("a second one").kind(),
            io::ErrorKind::WouldBlock
        );
        drop(first);
        RealDisk::open(folder.path()).expect("the folder is free again");
    }

    #[test]
    fn a_read_past_the_end_is_short_and_not_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let disk = RealDisk::open(folder.path()).expect("a disk");
        disk.create_folder("a").expect("a folder");
        let mut file = disk.create("a", "b").expect("a file");
        disk.append(&mut file, b"hello").expect("room");
        assert_eq!(disk.read("a", "b", 3, 10).expect("readable"), b"lo");
        assert_eq!(disk.read("a", "b", 9, 10).expect("readable"), b"");
    }
}
