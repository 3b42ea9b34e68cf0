//! A disk that is soon full: a memory file system of a few megabytes, mounted for one test.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::World;

/// What is written at a time while the disk is filled; what is left is less than a page.
const PIECE: usize = 4_096;

/// The file that fills it.
const BALLAST: &str = "ballast";

/// A mounted disk; dropping it takes it away.
#[derive(Debug)]
pub struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts one of this size.
    ///
    /// # Panics
    /// When this user may not mount: the tests' set-up needs root or sudo as well.
    pub fn new(world: &World, name: &str, megabytes: u32) -> Self {
        let folder = world.path(name);
        std::fs::create_dir_all(&folder).expect("the test's own folder can be written");
        as_root(
            &[
                "mount",
                "-t",
                "tmpfs",
                "-o",
                &format!("size={megabytes}m,mode=777"),
                "tmpfs",
            ],
            &folder,
        );
        Self { folder }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Writes until nothing fits any more.
    ///
    /// # Panics
    /// When it fails for another reason.
    pub fn fill(&self) {
        let ballast = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(BALLAST));
        let mut ballast = ballast.expect("an empty file needs no room");
        loop {
            match ballast.write_all(&[1; PIECE]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("cannot fill {}: {error}", self.folder.display()),
            }
        }
    }

    /// Takes what fills it away.
    ///
    /// # Panics
    /// When it was not filled.
    pub fn free(&self) {
        std::fs::remove_file(self.folder.join(BALLAST)).expect("it was filled before");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Its files are wanted, and the folder that is kept goes with the machine.
            eprintln!(
                "the small disk stays mounted: umount {}",
                self.folder.display()
            );
            return;
        }
        as_root(&["umount"], &self.folder);
    }
}

fn as_root(words: &[&str], folder: &Path) {
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0);
    let sudo: &[&str] = if is_root { &[] } else { &["sudo", "-n"] };
    let words: Vec<&str> = sudo.iter().chain(words).copied().collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .arg(folder)
        .output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {words:?}: {error}"));
    assert!(
        output.status.success(),
        "{words:?} {}: {}",
        folder.display(),
        String::from_utf8_lossy(&output.stderr)
    );
}
