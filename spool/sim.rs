//! A simulated disk: everything in memory, every misbehaviour a named, seeded probability.
//!
//! What was not synced may be lost in a crash, wholly, in part or in holes; a name may be lost when
//! its folder was not synced, and a removed file may come back. One seed replays everything.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::Disk;

/// What a crash may do to data in one piece: sectors of this size are written or not.
const SECTOR_BYTES: usize = 512;

/// A small seeded generator (splitmix64), so that the simulation needs no other crate.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

/// A file of a [`SimDisk`] open for appending.
#[derive(Debug)]
pub struct SimFile {
    folder: String,
    name: String,
}

#[derive(Debug)]
struct State {
    folders: BTreeMap<String, Folder>,
    random: Random,
    /// Calls until the power goes.
    crash_after: Option<u64>,
    dead: bool,
    capacity: u64,
    failing_syncs: u32,
}

#[derive(Debug, Clone, Default)]
struct Folder {
    files: BTreeMap<String, Contents>,
    /// Removed, but the folder was not synced since.
    removed: BTreeMap<String, Contents>,
}

#[derive(Debug, Clone, Default)]
struct Contents {
    bytes: Vec<u8>,
    synced: usize,
    name_synced: bool,
}

impl Random {
    /// From a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `count` times.
    pub const fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            folders: BTreeMap::new(),
            random: Random::new(seed),
            crash_after: None,
            dead: false,
            capacity: u64::MAX,
            failing_syncs: 0,
        })))
    }

    /// The power goes after this many more calls.
    pub fn crash_after(&self, calls: u64) {
        self.state().crash_after = Some(calls);
    }

    /// How many bytes fit; more is refused as a full disk.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// The next syncs of files fail.
    pub fn fail_syncs(&self, count: u32) {
        self.state().failing_syncs = count;
    }

    /// The power goes now and comes back: what was not synced is lost, or not, or in part.
    pub fn crash(&self) {
        let state = &mut *self.state();
        state.dead = false;
        state.crash_after = None;
        state.failing_syncs = 0;
        for folder in state.folders.values_mut() {
            let removed = std::mem::take(&mut folder.removed);
            for (name, contents) in removed {
                if state.random.one_in(2) {
                    folder.files.entry(name).or_insert(contents);
                }
            }
            let random = &mut state.random;
            folder
                .files
                .retain(|_, contents| contents.name_synced || random.one_in(2));
            for contents in folder.files.values_mut() {
                contents.lose_unsynced(random);
            }
        }
    }

    /// The process dies and the machine lives: every write stays.
    pub fn kill(&self) {
        let state = &mut *self.state();
        state.dead = false;
        state.crash_after = None;
        state.failing_syncs = 0;
    }

    /// Flips one bit somewhere; false when there is none to flip.
    pub fn flip_bit(&self) -> bool {
        let state = &mut *self.state();
        let total: u64 = state.used();
        if total == 0 {
            return false;
        }
        let mut at = state.random.below(total);
        let bit = state.random.below(8);
        for contents in state
            .folders
            .values_mut()
            .flat_map(|folder| folder.files.values_mut())
        {
            let length = contents.bytes.len() as u64;
            if at < length {
                contents.bytes[usize::try_from(at).expect("files fit in memory")] ^= 1 << bit;
                return true;
            }
            at -= length;
        }
        false
    }

    /// Bytes in files.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call: counts towards the crash.
    fn call(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if let Some(left) = &mut state.crash_after {
            if *left == 0 {
                state.dead = true;
            } else {
                *left -= 1;
            }
        }
        if state.dead {
            return Err(io::Error::other("the power is off"));
        }
        Ok(state)
    }
}

impl Contents {
    fn lose_unsynced(&mut self, random: &mut Random) {
        let loose = self.bytes.len() - self.synced;
        if loose > 0 {
            let kept = usize::try_from(random.below(loose as u64 + 1)).expect("it fits in memory");
            self.bytes.truncate(self.synced + kept);
            if random.one_in(3) {
                // Sectors reach the disk in any order: one of them did not.
                let from = self.synced + kept / 2;
                let end = (from + SECTOR_BYTES).min(self.bytes.len());
                self.bytes[from..end].fill(0);
            }
        }
        self.synced = self.bytes.len();
        self.name_synced = true;
    }
}

impl State {
    fn used(&self) -> u64 {
        self.folders
            .values()
            .flat_map(|folder| folder.files.values())
            .map(|contents| contents.bytes.len() as u64)
            .sum()
    }

    fn folder(&mut self, folder: &str) -> io::Result<&mut Folder> {
        self.folders
            .get_mut(folder)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn file(&mut self, folder: &str, file: &str) -> io::Result<&mut Contents> {
        self.folder(folder)?
            .files
            .get_mut(file)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn folders(&self) -> io::Result<Vec<String>> {
        Ok(self.call()?.folders.keys().cloned().collect())
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = self.call()?;
        if state.folders.contains_key(folder) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.folders.insert(folder.to_owned(), Folder::default());
        Ok(())
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = self.call()?;
        if !state.folder(folder)?.files.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.folders.remove(folder);
        Ok(())
    }

    fn files(&self, folder: &str) -> io::Result<Vec<String>> {
        Ok(self.call()?.folder(folder)?.files.keys().cloned().collect())
    }

    fn create(&self, folder: &str, file: &str) -> io::Result<SimFile> {
        let mut state = self.call()?;
        let files = &mut state.folder(folder)?.files;
        if files.contains_key(file) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        files.insert(file.to_owned(), Contents::default());
        Ok(SimFile {
            folder: folder.to_owned(),
            name: file.to_owned(),
        })
    }

    fn append(&self, file: &mut SimFile, bytes: &[u8]) -> io::Result<()> {
        let refused = match self.call() {
            Ok(mut state) => {
                let room = state.capacity.saturating_sub(state.used());
                let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
                let contents = state.file(&file.folder, &file.name)?;
                contents.bytes.extend_from_slice(&bytes[..fits]);
                (fits < bytes.len()).then(|| io::ErrorKind::StorageFull.into())
            }
            Err(error) => {
                // The power went during the write: part of it may be in the file.
                let mut state = self.state();
                let part = state.random.below(bytes.len() as u64 + 1);
                let part = usize::try_from(part).expect("it fits in memory");
                if state.crash_after.take().is_some()
                    && let Ok(contents) = state.file(&file.folder, &file.name)
                {
                    contents.bytes.extend_from_slice(&bytes[..part]);
                }
                Some(error)
            }
        };
        refused.map_or(Ok(()), Err)
    }

    fn sync(&self, file: &mut SimFile) -> io::Result<()> {
        let mut state = self.call()?;
        if state.failing_syncs > 0 {
            state.failing_syncs -= 1;
            return Err(io::Error::other("the disk failed to sync"));
        }
        let contents = state.file(&file.folder, &file.name)?;
        contents.synced = contents.bytes.len();
        Ok(())
    }

    fn truncate(&self, folder: &str, file: &str, length: u64) -> io::Result<()> {
        let mut state = self.call()?;
        let contents = state.file(folder, file)?;
        contents
            .bytes
            .truncate(usize::try_from(length).expect("files fit in memory"));
        contents.synced = contents.bytes.len();
        Ok(())
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let mut state = self.call()?;
        let folder = state.folder(folder)?;
        folder.removed.clear();
        for contents in folder.files.values_mut() {
            contents.name_synced = true;
        }
        Ok(())
    }

    fn read(&self, folder: &str, file: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut state = self.call()?;
        let bytes = &state.file(folder, file)?.bytes;
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let end = from.saturating_add(length).min(bytes.len());
        Ok(bytes[from..end].to_vec())
    }

    fn length(&self, folder: &str, file: &str) -> io::Result<u64> {
        Ok(self.call()?.file(folder, file)?.bytes.len() as u64)
    }

    fn remove(&self, folder: &str, file: &str) -> io::Result<()> {
        let mut state = self.call()?;
        let folder = state.folder(folder)?;
        let contents = folder
            .files
            .remove(file)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        if contents.name_synced {
            folder.removed.insert(file.to_owned(), contents);
        }
        Ok(())
    }
}
