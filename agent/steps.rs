//! Steps on their way into the spool, and how far those of each training process are in it.
//!
//! An agent that begins anew goes on behind the last step that the one before it has spooled: so a
//! step is spooled once, whatever moment the agent was killed at. That place is noted around each
//! append: before it what is about to be spooled and under which seq, after it that it was. Who finds
//! the first note alone asks the spool whether it has that seq. The second is written before anything
//! is sent, so that a seq which the spool no longer knows was never given out.
//!
//! Nothing is synced: a machine that loses its power has lost the training processes as well. What is not
//! whole after that is set aside, and counts as no note.
//!
//! Limits: [`MAX_PROCESSES`].

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use gpufleet_hooks_shm::process::start_ticks;
use gpufleet_telemetry::identity::Epoch;
use gpufleet_telemetry::steps::StepBlock;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::sample::Output;

/// The file in the state folder.
const FILE: &str = "steps.json";

/// The version this code writes, and the newest it reads.
const VERSION: u32 = 1;

/// Processes beyond which those that have ended are forgotten: four times the ranks read at once.
const MAX_PROCESSES: usize = 512;

/// Where a process' steps are spooled up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The process.
    pub pid: i32,
    /// When it started: with the pid it names one process of a boot.
    pub start_ticks: u64,
    /// The random number of the region that its steps are in.
    pub session: Uuid,
    /// The number of its last record that is spooled.
    pub record: u64,
}

/// Blocks of ranks, by id, and the places behind them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shipment {
    /// The blocks; a rank may come again.
    pub ranks: Vec<(Arc<str>, Vec<StepBlock>)>,
    /// Where each of their processes is once they are spooled.
    pub places: Vec<Place>,
}

/// The way of steps from their reader to the spool.
#[derive(Debug, Clone)]
pub struct Way {
    /// How far they are spooled.
    pub spooled: Arc<Spooled>,
    /// Where they go.
    pub output: mpsc::Sender<Output>,
    /// How often.
    pub interval: Duration,
}

/// How far the steps of each process are spooled.
#[derive(Debug)]
pub struct Spooled {
    path: PathBuf,
    boot_id: String,
    places: Mutex<Places>,
}

type Places = BTreeMap<(i32, u64), Place>;

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    version: u32,
    boot_id: String,
    places: Vec<Place>,
    intended: Option<Intended>,
}

/// What every version of the file says.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// What was about to be spooled.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Intended {
    epoch: Uuid,
    seq: u64,
    places: Vec<Place>,
}

impl Spooled {
    /// What is noted in the state folder. `next_seq` tells of an epoch of the spool the seq that the
    /// next log record will get, 1 for one that the spool does not have.
    ///
    /// # Errors
    /// When the file cannot be read, or was written by a newer agent.
    pub fn open(
        state_folder: &Path,
        boot_id: &str,
        next_seq: impl FnOnce(Epoch) -> u64,
    ) -> anyhow::Result<Self> {
        let path = state_folder.join(FILE);
        let mut places = Places::new();
        if let Some(noted) = read(&path)?.filter(|it| it.boot_id == boot_id) {
            note(&mut places, &noted.places);
            if let Some(intended) = noted.intended
                && next_seq(Epoch(intended.epoch)) > intended.seq
            {
                note(&mut places, &intended.places);
            }
            places.retain(|_, place| lives(place));
        }
        Ok(Self {
            path,
            boot_id: boot_id.to_owned(),
            places: Mutex::new(places),
        })
    }

    /// The last record that is spooled of a region of a process; none where nothing is.
    pub fn record(&self, pid: i32, start_ticks: u64, session: Uuid) -> Option<u64> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.get(&(pid, start_ticks))?;
        (place.session == session).then_some(place.record)
    }

    /// Appends to the spool with `append`, which will do so under this epoch and seq, and notes that
    /// the steps up to `new` are in it.
    ///
    /// # Errors
    /// Those of `append`, and `unwritable` made of that of the file: then nothing is appended.
    pub(crate) fn around<E>(
        &self,
        (epoch, seq): (Epoch, u64),
        new: &[Place],
        unwritable: impl FnOnce(io::Error) -> E,
        append: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let intended = Intended {
            epoch: epoch.0,
            seq,
            places: new.to_vec(),
        };
        self.write(&places, Some(intended)).map_err(unwritable)?;
        append()?;
        note(&mut places, new);
        if places.len() > MAX_PROCESSES {
            places.retain(|_, place| lives(place));
        }
        if let Err(error) = self.write(&places, None) {
            // The note from before the append says the same as long as the spool has the record.
            let (error, path): (&dyn std::error::Error, _) = (&error, self.path.display());
            tracing::warn!(error, %path, "how far steps are spooled could not be noted");
        }
        Ok(())
    }

    fn write(&self, places: &Places, intended: Option<Intended>) -> io::Result<()> {
        let noted = Noted {
            version: VERSION,
            boot_id: self.boot_id.clone(),
            places: places.values().copied().collect(),
            intended,
        };
        let next = self.path.with_extension("json.new");
        fs::write(&next, serde_json::to_vec(&noted).map_err(io::Error::other)?)?;
        fs::rename(&next, &self.path)
    }
}

fn note(places: &mut Places, new: &[Place]) {
    places.extend(new.iter().map(|it| ((it.pid, it.start_ticks), *it)));
}

/// Whether its process lives.
fn lives(place: &Place) -> bool {
    start_ticks(&place.pid.to_string()) == Some(place.start_ticks)
}

fn read(path: &Path) -> anyhow::Result<Option<Noted>> {
    let shown = path.display();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    if let Ok(Versioned { version }) = serde_json::from_slice(&bytes) {
        anyhow::ensure!(
            version <= VERSION,
            "{shown} has version {version}, this agent reads up to {VERSION}: run a newer one, or \
             remove it, and steps that are spooled already are spooled again"
        );
    }
    match serde_json::from_slice(&bytes) {
        Ok(noted) => Ok(Some(noted)),
        Err(error) => {
            set_aside(path, &error);
            Ok(None)
        }
    }
}

/// Moves away a file that is not what an agent writes: a machine lost its power, or somebody wrote there.
/// Where it cannot be moved the next note replaces it.
fn set_aside(path: &Path, error: &(dyn std::error::Error + 'static)) {
    let aside = path.with_extension("json.unreadable");
    let is_kept = fs::rename(path, &aside).is_ok();
    let (path, aside) = (path.display(), aside.display());
    tracing::warn!(error, %path, %aside, is_kept, "how far steps were spooled is not known any more");
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "boot-1";

    /// A place of this process, which lives.
    fn place(record: u64) -> Place {
        let ticks = start_ticks("self").expect("this process is in /proc");
        Place {
            pid: std::process::id().cast_signed(),
            start_ticks: ticks,
            session: Uuid::from_u128(7),
            record,
        }
    }

    /// What is found after a process that spooled up to record 10 as seq 3, and was killed around the
    /// append of those up to 20 as seq 4; `appended` says whether that got into the spool.
    fn found_after_a_kill(is_appended: bool) -> Option<u64> {
        let folder = tempfile::tempdir().expect("a folder");
        let epoch = Epoch(Uuid::from_u128(1));
        let open = |next| {
            let next_seq = move |asked| match asked == epoch {
                true => next,
                false => 1,
            };
            Spooled::open(folder.path(), BOOT, next_seq).expect("a note")
        };
        let spooled = open(1);
        let ok: Result<(), io::Error> =
            spooled.around((epoch, 3), &[place(10)], |error| error, || Ok(()));
        ok.expect("it was noted");
        let (file, mut between) = (folder.path().join(FILE), Vec::new());
        let ok: Result<(), io::Error> = spooled.around(
            (epoch, 4),
            &[place(20)],
            |error| error,
            || {
                between = fs::read(&file)?;
                Ok(())
            },
        );
        ok.expect("it was noted");
        fs::write(&file, between).expect("back to where the kill was");
        let next = if is_appended { 5 } else { 4 };
        let at = place(0);
        open(next).record(at.pid, at.start_ticks, at.session)
    }

    #[test]
    fn a_kill_around_an_append_leaves_the_place_that_the_spool_has() {
        assert_eq!(found_after_a_kill(false), Some(10));
        assert_eq!(found_after_a_kill(true), Some(20));
    }

    #[test]
    fn a_place_is_of_one_region_of_one_living_process_of_one_boot() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |boot| Spooled::open(folder.path(), boot, |_| 1).expect("a note");
        let here = place(10);
        let dead = Place {
            pid: 5_000_000,
            ..here
        };
        let epoch = Epoch(Uuid::from_u128(1));
        let ok: Result<(), io::Error> =
            open(BOOT).around((epoch, 1), &[here, dead], |error| error, || Ok(()));
        ok.expect("it was noted");
        let record = |boot, it: Place, session| open(boot).record(it.pid, it.start_ticks, session);
        assert_eq!(record(BOOT, here, here.session), Some(10));
        assert_eq!(record(BOOT, here, Uuid::from_u128(8)), None);
        assert_eq!(record(BOOT, dead, dead.session), None, "it has ended");
        assert_eq!(record("boot-2", here, here.session), None);
    }

    #[test]
    fn what_was_not_spooled_is_not_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let spooled = Spooled::open(folder.path(), BOOT, |_| 1).expect("a note");
        let here = place(10);
        let epoch = Epoch(Uuid::from_u128(1));
        let full = || Err(io::ErrorKind::StorageFull.into());
        let error = spooled.around((epoch, 1), &[here], |error| error, full);
        assert!(error.is_err());
        let record = spooled.record(here.pid, here.start_ticks, here.session);
        assert_eq!(record, None);
    }

    #[test]
    fn a_note_of_a_newer_agent_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let newer = [
            r#"{"version":2,"boot_id":"boot-1","places":[],"intended":null}"#,
            r#"{"version":2,"anything":"else"}"#,
        ];
        for text in newer {
            fs::write(folder.path().join(FILE), text).expect("a file");
            let error = Spooled::open(folder.path(), BOOT, |_| 1).expect_err("refused");
            let error = format!("{error:#}");
            assert!(error.contains("remove it"), "{error}");
        }
    }

    #[test]
    fn a_note_that_a_power_loss_left_empty_or_half_is_set_aside_and_the_agent_starts() {
        let folder = tempfile::tempdir().expect("a folder");
        for text in [
            "",
            "\0\0\0",
            "garbage",
            r#"{"version":1,"boot_id":"boot-1","pla"#,
        ] {
            fs::write(folder.path().join(FILE), text).expect("a file");
            let spooled = Spooled::open(folder.path(), BOOT, |_| 1).expect("it begins anew");
            let here = place(10);
            let record = spooled.record(here.pid, here.start_ticks, here.session);
            assert_eq!(record, None);
            let aside = folder.path().join("steps.json.unreadable");
            let kept = fs::read_to_string(aside).expect("it was set aside");
            assert_eq!(kept, text);
            let ok: Result<(), io::Error> =
                spooled.around((Epoch(Uuid::nil()), 1), &[here], |error| error, || Ok(()));
            ok.expect("it is written again");
        }
    }
}
