//! Which GPU Slurm gave to which job, as its prolog writes it: a file `<index>` for each GPU,
//! `<index>.<instance>` for a MIG instance, a job's number a line.
//!
//! A node that went down with jobs on it has their files still when it comes back: what was written before
//! the machine started does not count.
//!
//! Limits: [`MAX_FILES`], [`MAX_FILE_BYTES`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpufleet_telemetry::identity::{ResourceKind, attribute};

use super::users::Card;

/// Most files that are read: one for each instance of 16 GPUs, and as many again.
const MAX_FILES: usize = 256;

/// Most bytes of one of them: a job's number a line.
const MAX_FILE_BYTES: u64 = 4_096;

/// Where the prolog writes.
#[derive(Debug, Clone)]
pub(super) struct Prolog {
    folder: PathBuf,
    proc: PathBuf,
}

impl Prolog {
    /// What it wrote in `folder`; `proc` tells when the machine started.
    pub(super) fn new(folder: &Path, proc: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            proc: proc.to_owned(),
        }
    }

    /// The jobs that hold each GPU or share; none where there is no folder, so no prolog either, or one of
    /// its files may not be read.
    pub(super) fn read(&self, cards: &[Card]) -> Option<BTreeMap<Arc<str>, BTreeSet<u64>>> {
        let files = fs::read_dir(&self.folder).ok()?;
        let (names, started) = (names(cards), self.started());
        let mut found: BTreeMap<Arc<str>, BTreeSet<u64>> = BTreeMap::new();
        for file in files.flatten().take(MAX_FILES) {
            let name = file.file_name();
            let Some(id) = name.to_str().and_then(|it| names.get(it)) else {
                continue;
            };
            match text(&file.path(), started) {
                Ok(text) => found.entry(Arc::clone(id)).or_default().extend(jobs(&text)),
                // The epilog was quicker.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => return None,
            }
        }
        Some(found)
    }

    /// When the machine started.
    fn started(&self) -> Option<SystemTime> {
        let text = fs::read_to_string(self.proc.join("stat")).ok()?;
        let line = text.lines().find_map(|it| it.strip_prefix("btime "))?;
        let seconds = Duration::from_secs(line.trim().parse().ok()?);
        UNIX_EPOCH.checked_add(seconds)
    }
}

/// What stands in one file; nothing in one from before the machine started: no epilog ran for its jobs.
fn text(path: &Path, started: Option<SystemTime>) -> io::Result<String> {
    let file = File::open(path)?;
    let written = file.metadata()?.modified()?;
    let mut text = String::new();
    if started.is_none_or(|it| written >= it) {
        file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// The jobs in a file.
fn jobs(text: &str) -> impl Iterator<Item = u64> {
    text.lines().filter_map(|it| it.trim().parse().ok())
}

/// Whether a job stands in a file with these bytes.
pub fn understands(bytes: &[u8]) -> bool {
    jobs(&String::from_utf8_lossy(bytes)).next().is_some()
}

/// What the prolog calls each GPU and share.
fn names(cards: &[Card]) -> BTreeMap<String, Arc<str>> {
    let indexes = cards
        .iter()
        .filter(|it| it.resource.kind == ResourceKind::Gpu);
    let indexes: BTreeMap<&str, &str> = indexes
        .filter_map(|it| {
            Some((
                it.resource.id.as_ref(),
                it.resource.attribute(attribute::GPU_INDEX)?,
            ))
        })
        .collect();
    let name = |card: &Card| {
        let resource = &card.resource;
        match resource.attribute(attribute::PARENT) {
            None => indexes.get(resource.id.as_ref()).map(|it| (*it).to_owned()),
            Some(parent) => {
                let instance = resource.attribute(attribute::MIG_GPU_INSTANCE)?;
                Some(format!("{}.{instance}", indexes.get(parent)?))
            }
        }
    };
    let named = cards.iter();
    named
        .filter_map(|it| Some((name(it)?, Arc::clone(&it.resource.id))))
        .collect()
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::Resource;

    use super::*;

    #[test]
    fn the_files_of_the_prolog_name_gpus_and_their_instances() {
        let card = |kind, id: &str, attributes: [(&str, &str); 2]| {
            let mut resource = Resource::new(kind, id);
            for (name, value) in attributes {
                resource = resource.with(name, value);
            }
            Card {
                resource: Arc::new(resource),
                processes: None,
            }
        };
        let index = |index| [(attribute::GPU_INDEX, index), (attribute::GPU_MINOR, "5")];
        let instance = [
            (attribute::PARENT, "GPU-b"),
            (attribute::MIG_GPU_INSTANCE, "7"),
        ];
        let cards = [
            card(ResourceKind::Gpu, "GPU-a", index("0")),
            card(ResourceKind::Gpu, "GPU-b", index("1")),
            card(ResourceKind::Share, "MIG-c", instance),
        ];
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [
            ("0", "77\n78\n"),
            ("1.7", "79\n"),
            ("9", "80\n"),
            (".next.1", "81\n"),
        ] {
            fs::write(folder.path().join(name), text).expect("written");
        }
        let proc = tempfile::tempdir().expect("a folder");
        let prolog = Prolog::new(folder.path(), proc.path());
        let both = BTreeMap::from([
            (Arc::from("GPU-a"), BTreeSet::from([77, 78])),
            (Arc::from("MIG-c"), BTreeSet::from([79])),
        ]);
        assert_eq!(prolog.read(&cards), Some(both.clone()));
        let absent = Prolog::new(&folder.path().join("none"), proc.path());
        assert_eq!(absent.read(&cards), None);
        // One of them is of before the machine started.
        fs::write(proc.path().join("stat"), "cpu 1 2\nbtime 1700000000\n").expect("written");
        assert_eq!(prolog.read(&cards), Some(both));
        let old = File::open(folder.path().join("0")).expect("it is there");
        let before = UNIX_EPOCH + Duration::from_secs(1_699_999_999);
        old.set_modified(before).expect("its own file");
        let rest = BTreeMap::from([
            (Arc::from("GPU-a"), BTreeSet::new()),
            (Arc::from("MIG-c"), BTreeSet::from([79])),
        ]);
        assert_eq!(prolog.read(&cards), Some(rest));
        fs::create_dir(folder.path().join("1")).expect("a folder");
        assert_eq!(
            prolog.read(&cards),
            None,
            "what cannot be read may say a job"
        );
    }
}
