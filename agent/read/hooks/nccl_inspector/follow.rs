//! Follows the files that NCCL Inspector writes for one training process, in the folder that the process'
//! own environment names. The folder is looked for in the process' own root and cannot lead out of it,
//! and whatever lies there besides plain files is left alone.
//!
//! Limits: [`MAX_ENVIRONMENT`], [`MAX_FILES`], [`MAX_BYTES`], [`MAX_TOTALS`].

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2};

use super::{Record, record};

/// The variable with the folder.
const FOLDER: &str = "NCCL_INSPECTOR_DUMP_DIR";

/// The variable with the name that a container has as a machine.
const HOST: &str = "HOSTNAME";

/// Most bytes of an environment: twice what most kernels take in all.
const MAX_ENVIRONMENT: u64 = 4 << 20;

/// Most files of one folder: one a rank of a large job.
const MAX_FILES: usize = 4_096;

/// Most bytes read of one process at once: 30,000 collectives. What is beyond waits for the next look.
const MAX_BYTES: u64 = 16 << 20;

/// Most totals of one process, by communicator and function.
const MAX_TOTALS: usize = 256;

/// What the lines of one function on one communicator add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Total {
    /// Collectives.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long they took, nanoseconds.
    pub duration_ns: u64,
}

/// Totals by communicator and function.
pub type Totals = BTreeMap<(u64, String), Total>;

/// The files of one process.
#[derive(Debug)]
pub struct Follow {
    root: PathBuf,
    folder: PathBuf,
    pid: i64,
    host: String,
    /// How far each file was read; none before the first look.
    read: Option<BTreeMap<CString, u64>>,
    totals: Totals,
}

impl Follow {
    /// Follows what a process writes; none where its environment names no folder or cannot be read.
    /// `ns_pid` is its id as it sees it itself, `host` the name of this machine.
    pub fn of(pid: i32, ns_pid: i64, host: &str) -> Option<Self> {
        let file = File::open(format!("/proc/{pid}/environ")).ok()?;
        let mut environment = Vec::new();
        let read = file.take(MAX_ENVIRONMENT).read_to_end(&mut environment);
        read.ok()?;
        let folder = variable(&environment, FOLDER)?;
        let host = variable(&environment, HOST).unwrap_or_else(|| host.to_owned());
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        Some(Self::in_folder(root, PathBuf::from(folder), ns_pid, host))
    }

    fn in_folder(root: PathBuf, folder: PathBuf, pid: i64, host: String) -> Self {
        Self {
            root,
            folder,
            pid,
            host,
            read: None,
            totals: Totals::new(),
        }
    }

    /// Reads on. What was written before the first look is not counted, what is written later is.
    ///
    /// # Errors
    /// The folder is not there (yet), or may not be looked into.
    pub fn look(&mut self) -> io::Result<&Totals> {
        let folder = open_in(&self.root, &self.folder)?;
        let mut left = MAX_BYTES;
        let before = self.read.take();
        let mut read = BTreeMap::new();
        for name in names(&folder)? {
            let Some(file) = plain(&folder, &name) else {
                continue;
            };
            let size = file.metadata()?.len();
            let from = match &before {
                None => size,
                // A file that became shorter was begun anew.
                Some(before) => before
                    .get(&name)
                    .copied()
                    .filter(|it| *it <= size)
                    .unwrap_or(0),
            };
            let upto = self.take(file, from, size, &mut left)?;
            read.insert(name, upto);
        }
        self.read = Some(read);
        Ok(&self.totals)
    }

    /// Takes the whole lines of a file from a place on; returns the place behind them.
    fn take(&mut self, mut file: File, from: u64, size: u64, left: &mut u64) -> io::Result<u64> {
        let room = (size - from).min(*left);
        if room == 0 {
            return Ok(from);
        }
        *left -= room;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(room).read_to_end(&mut bytes)?;
        let whole = bytes
            .iter()
            .rposition(|it| *it == b'\n')
            .map_or(0, |it| it + 1);
        if whole == 0 && room < size - from {
            // No line is that long.
            return Ok(size);
        }
        for line in bytes
            .get(..whole)
            .unwrap_or_default()
            .split(|it| *it == b'\n')
        {
            let record = std::str::from_utf8(line).ok().map(record);
            if let Some(Ok(record)) = record {
                self.add(&record);
            }
        }
        Ok(from + whole as u64)
    }

    fn add(&mut self, record: &Record) {
        let is_its = record.metadata.pid == self.pid && record.metadata.hostname == self.host;
        let digits = record.header.id.trim_start_matches("0x");
        let Ok(hash) = u64::from_str_radix(digits, 16) else {
            return;
        };
        let key = (hash, record.performance.coll.clone());
        if !is_its || (self.totals.len() >= MAX_TOTALS && !self.totals.contains_key(&key)) {
            return;
        }
        let done = &record.performance;
        let total = self.totals.entry(key).or_default();
        total.count += 1;
        total.bytes = total.bytes.saturating_add(done.coll_msg_size_bytes);
        let took_ns = done.coll_exec_time_us.saturating_mul(1_000);
        total.duration_ns = total.duration_ns.saturating_add(took_ns);
    }
}

/// The value of a variable in a process' environment; none where it is empty.
fn variable(environment: &[u8], name: &str) -> Option<String> {
    let mut all = environment.split(|it| *it == 0);
    let value = all.find_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    let value = String::from_utf8(value.to_vec()).ok()?;
    (!value.is_empty()).then_some(value)
}

/// Opens a folder within a root that it cannot lead out of.
fn open_in(root: &Path, folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(root, OFlags::PATH | flags, Mode::empty())?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        &root,
        folder,
        OFlags::RDONLY | flags,
        Mode::empty(),
        within,
    )?)
}

fn names(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    let entries = Dir::read_from(folder)?;
    let entries = entries.take(MAX_FILES).filter_map(Result::ok);
    let names = entries.map(|it| it.file_name().to_owned());
    Ok(names
        .filter(|it| !it.as_bytes().starts_with(b"."))
        .collect())
}

/// A plain file of a folder. It is looked at before it is opened: the folder is the process' choice,
/// and a device does things by being opened alone.
fn plain(folder: &OwnedFd, name: &CString) -> Option<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat(folder, name, flags, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(fstat(&place).ok()?.st_mode);
    if kind != FileType::RegularFile {
        return None;
    }
    // The very file that was looked at, whatever its name stands for by now.
    let same = format!("/proc/self/fd/{}", place.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(same.as_str(), flags, Mode::empty())
        .ok()
        .map(File::from)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    /// A line of a process, as the plugin writes it.
    fn line(pid: i64, host: &str) -> String {
        format!(
            r#"{{"header":{{"id":"0xab","rank":0,"n_ranks":2}},"metadata":{{"hostname":"{host}","pid":{pid}}},"coll_perf":{{"coll":"AllReduce","coll_sn":1,"coll_msg_size_bytes":100,"coll_exec_time_us":7}}}}"#
        ) + "\n"
    }

    fn append(path: &Path, text: &str) {
        let file = File::options().create(true).append(true).open(path);
        let mut file = file.expect("a file");
        file.write_all(text.as_bytes()).expect("written");
    }

    /// A root with the folder `/dumps`, and who follows what process 7 of `node-1` writes there.
    fn followed() -> (tempfile::TempDir, PathBuf, Follow) {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("dumps");
        fs::create_dir(&folder).expect("a folder");
        let path = PathBuf::from("/dumps");
        let follow = Follow::in_folder(root.path().to_owned(), path, 7, "node-1".to_owned());
        (root, folder, follow)
    }

    fn count(follow: &mut Follow) -> u64 {
        let totals = follow.look().expect("the folder is there");
        totals.values().map(|it| it.count).sum()
    }

    #[test]
    fn lines_are_added_up_from_the_first_look_on_each_once() {
        let (_root, folder, mut follow) = followed();
        append(&folder.join("old"), &line(7, "node-1"));
        assert_eq!(count(&mut follow), 0, "it was there before");
        append(&folder.join("old"), &line(7, "node-1"));
        append(&folder.join("new"), &line(7, "node-1").repeat(2));
        assert_eq!(count(&mut follow), 3);
        assert_eq!(count(&mut follow), 3, "nothing came");
        let half = line(7, "node-1");
        let (start, end) = half.split_at(40);
        append(&folder.join("new"), start);
        assert_eq!(count(&mut follow), 3, "half a line");
        append(&folder.join("new"), end);
        let totals = follow.look().expect("the folder is there");
        let total = totals[&(0xab, "AllReduce".to_owned())];
        assert_eq!(
            (total.count, total.bytes, total.duration_ns),
            (4, 400, 28_000)
        );
    }

    #[test]
    fn what_other_processes_wrote_and_what_is_no_line_is_left_out() {
        let (_root, folder, mut follow) = followed();
        count(&mut follow);
        let text = line(8, "node-1") + &line(7, "node-2") + "garbage\n\u{0}\n" + &line(7, "node-1");
        append(&folder.join("shared"), &text);
        assert_eq!(count(&mut follow), 1);
    }

    #[test]
    fn a_folder_does_not_lead_out_of_the_root_and_no_file_makes_it_wait() {
        let (root, folder, mut follow) = followed();
        let outside = tempfile::tempdir().expect("a folder");
        append(&outside.path().join("file"), "");
        let link = |to: &Path, from: &Path| std::os::unix::fs::symlink(to, from).expect("a link");
        link(&outside.path().join("file"), &folder.join("link"));
        let pipe = folder.join("pipe");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        );
        made.expect("a pipe");
        count(&mut follow);
        append(&outside.path().join("file"), &line(7, "node-1"));
        assert_eq!(count(&mut follow), 0, "a link is no plain file");
        link(outside.path(), &root.path().join("away"));
        follow.folder = PathBuf::from("/away");
        assert!(
            follow.look().is_err(),
            "there is no such folder in the root"
        );
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"XNCCL=1\0NCCL=/a\0NCCL_X=2\0EMPTY=\0";
        assert_eq!(variable(environment, "NCCL").as_deref(), Some("/a"));
        assert_eq!(variable(environment, "EMPTY"), None);
        assert_eq!(variable(environment, "NC"), None);
    }
}
