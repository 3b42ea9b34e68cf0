//! The incidents of this server: the book in memory, and what of it still has to be written.
//!
//! The book is the truth while the server runs; the store follows it. What could not be written is
//! kept and tried again, as it is by then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use gpufleet_analysis::incident::{Book, Change, Incident, Refused, Tick};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use crate::auth::Grant;
use crate::store::model::FencingToken;
use crate::store::{CommitError, Store};

/// What every part of the server shares of incidents.
#[derive(Debug, Default)]
pub struct Incidents {
    held: Mutex<Held>,
    /// Only one writes at a time, so that an older state never overtakes a newer one.
    writing: tokio::sync::Mutex<()>,
    /// How the detectors go.
    pub health: DetectHealth,
}

#[derive(Debug, Default)]
struct Held {
    book: Book,
    /// The right to write; none before the server leads.
    token: Option<FencingToken>,
    unwritten: BTreeMap<Uuid, Incident>,
}

/// How the detectors go, for the server's own metrics.
#[derive(Debug, Default)]
pub struct DetectHealth {
    /// When the last tick was, Unix milliseconds; 0 before the first.
    pub last_ms: AtomicI64,
    /// How long it took, microseconds.
    pub duration_us: AtomicU64,
    /// GPUs that it judged.
    pub gpus: AtomicU64,
}

impl Incidents {
    /// This server has the right to write.
    pub fn leads(&self, token: FencingToken) {
        self.lock().token = Some(token);
    }

    /// Takes in what the store knows.
    pub fn restore(&self, incidents: Vec<Incident>, now: Timestamp) {
        self.lock().book = Book::restored(incidents, now);
    }

    /// Moves the book on; what changed waits to be written.
    pub fn tick(&self, tick: Tick<'_>, new_id: &mut dyn FnMut() -> Uuid) {
        let mut held = self.lock();
        for change in held.book.tick(tick, new_id) {
            let (word, id) = match change {
                Change::Opened(id) => ("opened", id),
                Change::Updated(id) => ("changed", id),
                Change::Resolved(id) => ("resolved", id),
            };
            if let Some(incident) = held.book.get(id).cloned() {
                let (what, place) = (&incident.what, &incident.place);
                tracing::info!(%id, what, ?place, "an incident {word}");
                held.unwritten.insert(id, incident);
            }
        }
    }

    /// What a person does to one incident.
    ///
    /// # Errors
    /// When the book refuses.
    pub fn change(
        &self,
        id: Uuid,
        change: impl FnOnce(&mut Book) -> Result<(), Refused>,
    ) -> Result<Incident, Refused> {
        let mut held = self.lock();
        change(&mut held.book)?;
        let incident = held.book.get(id).cloned().ok_or(Refused::Unknown(id))?;
        held.unwritten.insert(id, incident.clone());
        Ok(incident)
    }

    /// Open incidents that a reader may see, in the order in which they began.
    pub fn open(&self, grant: &Grant) -> Vec<Incident> {
        let held = self.lock();
        let may = |it: &&Incident| grant.may_see(&it.place.cluster);
        held.book.open_ones().filter(may).cloned().collect()
    }

    /// An incident that is open or was over lately.
    pub fn get(&self, id: Uuid) -> Option<Incident> {
        self.lock().book.get(id).cloned()
    }

    /// Incidents that there was no room for since the start.
    pub fn left_out(&self) -> u64 {
        self.lock().book.left_out()
    }

    /// Has every open incident written again, for what it lost meanwhile.
    pub fn write_all_open(&self) {
        let mut held = self.lock();
        let open: Vec<Incident> = held.book.open_ones().cloned().collect();
        held.unwritten
            .extend(open.into_iter().map(|it| (it.id, it)));
    }

    /// Writes what waits to be written.
    ///
    /// # Errors
    /// When the store refuses; then it waits on.
    pub async fn write(&self, store: &Store) -> Result<(), CommitError> {
        let _one = self.writing.lock().await;
        let (waiting, token) = {
            let held = self.lock();
            let Some(token) = held.token else {
                return Ok(());
            };
            // They wait on until they are written: who asked may go away in the middle.
            let waiting: Vec<Incident> = held.unwritten.values().cloned().collect();
            (waiting, token)
        };
        store.write_incidents(&waiting, token).await?;
        let mut held = self.lock();
        for incident in waiting {
            if held.unwritten.get(&incident.id) == Some(&incident) {
                held.unwritten.remove(&incident.id);
            }
        }
        Ok(())
    }

    /// Notes how a tick of the detectors went.
    pub fn note(&self, now: Timestamp, took: Duration, gpus: usize) {
        let store = Ordering::Relaxed;
        self.health.last_ms.store(now.millis(), store);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.health.duration_us.store(micros, store);
        self.health.gpus.store(gpus as u64, store);
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held
            .lock()
            .expect("nothing panics while it holds the book")
    }
}
