//! Which GPU Slurm gave to which job, as its prolog writes it: a file `<number>` for each GPU,
//! `<number>.<instance>` for a MIG instance, or one with the UUID of either, a job's number a line.
//!
//! Slurm's number of a GPU (`SLURM_JOB_GPUS`) is that of its device file, /dev/nvidia`<number>`, which on many machines is
//! not NVML's index. A job that stands in files named by UUID is taken from these alone.
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

use gpufleet_telemetry::identity::attribute;

use super::given::numbers;
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

/// What the prolog wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wrote {
    /// The jobs by GPU or share; none of one whose file names none.
    pub(super) of: BTreeMap<Arc<str>, BTreeSet<u64>>,
    /// The jobs that stand in files named by numbers, and in no other.
    pub(super) numbered: BTreeSet<u64>,
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
    pub(super) fn read(&self, cards: &[Card]) -> Option<Wrote> {
        let files = fs::read_dir(&self.folder).ok()?;
        let (names, started) = (names(cards), self.started());
        let mut found: BTreeMap<Arc<str>, BTreeSet<u64>> = BTreeMap::new();
        let mut by_number = found.clone();
        for file in files.flatten().take(MAX_FILES) {
            let name = file.file_name();
            let Some((name, id)) = name.to_str().and_then(|it| names.get_key_value(it)) else {
                continue;
            };
            let text = match text(&file.path(), started) {
                Ok(text) => text,
                // The epilog was quicker.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => return None,
            };
            let of = match **name == **id {
                true => &mut found,
                false => &mut by_number,
            };
            of.entry(Arc::clone(id)).or_default().extend(jobs(&text));
        }
        let count = |of: &BTreeMap<Arc<str>, BTreeSet<u64>>, job: u64| {
            of.values().filter(|it| it.contains(&job)).count()
        };
        // Of a GPU that had not begun yet the prolog knew no UUID: then the numbers of its job are more.
        let named = found.values().flatten().copied();
        let named: BTreeSet<u64> = named
            .filter(|it| count(&found, *it) >= count(&by_number, *it))
            .collect();
        let mut numbered = BTreeSet::new();
        for (id, mut jobs) in by_number {
            jobs.retain(|it| !named.contains(it));
            numbered.extend(jobs.iter().copied());
            found.entry(id).or_default().extend(jobs);
        }
        Some(Wrote {
            of: found,
            numbered,
        })
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

/// What a prolog may call each GPU and share: by the number of the card's device file, where it is not known of each card
/// by NVML's index, and by its id.
fn names(cards: &[Card]) -> BTreeMap<String, Arc<str>> {
    let by_minor = numbers(cards, attribute::GPU_MINOR);
    let known = by_minor.or_else(|| numbers(cards, attribute::GPU_INDEX));
    let known = known.unwrap_or_default().into_iter();
    let numbers: BTreeMap<&str, u32> = known.map(|(number, id)| (&**id, number)).collect();
    let name = |card: &Card| {
        let resource = &card.resource;
        match resource.attribute(attribute::PARENT) {
            None => Some(numbers.get(resource.id.as_ref())?.to_string()),
            Some(parent) => {
                let instance = resource.attribute(attribute::MIG_GPU_INSTANCE)?;
                Some(format!("{}.{instance}", numbers.get(parent)?))
            }
        }
    };
    let mut named = BTreeMap::new();
    for card in cards {
        let id = &card.resource.id;
        named.insert(id.to_string(), Arc::clone(id));
        named.extend(name(card).map(|it| (it, Arc::clone(id))));
    }
    named
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::{Resource, ResourceKind};

    use super::*;

    fn card(kind: ResourceKind, id: &str, attributes: &[(&str, &str)]) -> Card {
        let mut resource = Resource::new(kind, id);
        for (name, value) in attributes {
            resource = resource.with(name, *value);
        }
        Card {
            resource: Arc::new(resource),
            processes: None,
        }
    }

    /// A GPU by NVML's index and the number of its device file.
    fn gpu(id: &str, index: &str, minor: &str) -> Card {
        let numbers = [(attribute::GPU_INDEX, index), (attribute::GPU_MINOR, minor)];
        card(ResourceKind::Gpu, id, &numbers)
    }

    fn instance() -> Card {
        let place = [
            (attribute::PARENT, "GPU-b"),
            (attribute::MIG_GPU_INSTANCE, "7"),
        ];
        card(ResourceKind::Share, "MIG-c", &place)
    }

    fn wrote(of: &[(&str, &[u64])], numbered: &[u64]) -> Option<Wrote> {
        let of = of.iter();
        let of = of.map(|(id, jobs)| (Arc::from(*id), jobs.iter().copied().collect()));
        Some(Wrote {
            of: of.collect(),
            numbered: numbered.iter().copied().collect(),
        })
    }

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("written");
        }
    }

    #[test]
    fn the_files_of_the_prolog_name_gpus_and_their_instances() {
        let cards = [gpu("GPU-a", "0", "0"), gpu("GPU-b", "1", "1"), instance()];
        let folder = tempfile::tempdir().expect("a folder");
        let files = [
            ("0", "77\n78\n"),
            ("1.7", "79\n"),
            ("9", "80\n"),
            (".next.1", "81\n"),
        ];
        write(folder.path(), &files);
        let proc = tempfile::tempdir().expect("a folder");
        let prolog = Prolog::new(folder.path(), proc.path());
        let both = wrote(&[("GPU-a", &[77, 78]), ("MIG-c", &[79])], &[77, 78, 79]);
        assert_eq!(prolog.read(&cards), both);
        let absent = Prolog::new(&folder.path().join("none"), proc.path());
        assert_eq!(absent.read(&cards), None);
        // One of them is of before the machine started.
        fs::write(proc.path().join("stat"), "cpu 1 2\nbtime 1700000000\n").expect("written");
        assert_eq!(prolog.read(&cards), both);
        let old = File::open(folder.path().join("0")).expect("it is there");
        let before = UNIX_EPOCH + Duration::from_secs(1_699_999_999);
        old.set_modified(before).expect("its own file");
        let rest = wrote(&[("GPU-a", &[]), ("MIG-c", &[79])], &[79]);
        assert_eq!(prolog.read(&cards), rest);
        fs::create_dir(folder.path().join("1")).expect("a folder");
        assert_eq!(
            prolog.read(&cards),
            None,
            "what cannot be read may say a job"
        );
    }

    #[test]
    fn a_number_is_that_of_the_device_file_and_the_index_only_where_that_is_not_known() {
        let folder = tempfile::tempdir().expect("a folder");
        write(
            folder.path(),
            &[("4", "77\n"), ("5.7", "79\n"), ("0", "80\n")],
        );
        let prolog = Prolog::new(folder.path(), folder.path());
        let cards = [gpu("GPU-a", "0", "5"), gpu("GPU-b", "1", "4"), instance()];
        let expected = wrote(&[("GPU-b", &[77])], &[77]);
        assert_eq!(prolog.read(&cards), expected, "no GPU has device file 0");
        let cards = [gpu("GPU-a", "4", "5"), gpu("GPU-b", "5", ""), instance()];
        let expected = wrote(&[("GPU-a", &[77]), ("MIG-c", &[79])], &[77, 79]);
        assert_eq!(prolog.read(&cards), expected);
    }

    #[test]
    fn a_job_in_a_file_named_by_uuid_is_on_that_gpu_and_on_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = [("0", "77\n78\n"), ("GPU-a", "77\n"), ("MIG-c", "79\n")];
        write(folder.path(), &files);
        let prolog = Prolog::new(folder.path(), folder.path());
        let cards = [gpu("GPU-a", "0", "1"), gpu("GPU-b", "1", "0"), instance()];
        // 78 began before the prolog wrote such files.
        let of: &[(&str, &[u64])] = &[("GPU-a", &[77]), ("GPU-b", &[78]), ("MIG-c", &[79])];
        assert_eq!(prolog.read(&cards), wrote(of, &[78]));
        // GPU-a had not begun yet, so that the prolog knew only the other's.
        let folder = tempfile::tempdir().expect("a folder");
        write(
            folder.path(),
            &[("0", "77\n"), ("1", "77\n"), ("GPU-b", "77\n")],
        );
        let prolog = Prolog::new(folder.path(), folder.path());
        let of: &[(&str, &[u64])] = &[("GPU-a", &[77]), ("GPU-b", &[77])];
        assert_eq!(prolog.read(&cards[..2]), wrote(of, &[77]));
    }
}
