//! The incidents of this server: the book and the outbox in memory, and what of them still has to be
//! written.
//!
//! Both are the truth while the server runs; the store follows them. What could not be written is
//! kept and tried again, as it is by then. An incident and what it makes of the outbox are written in
//! one transaction, so that none is kept of which nobody would be told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpufleet_analysis::digest::Week;
use gpufleet_analysis::incident::{Book, Change, Family, Incident, Place, Tick};
use gpufleet_analysis::owner::Owners;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use crate::auth::Grant;
use crate::notify::group::Group;
use crate::notify::heartbeat::Heartbeat;
use crate::notify::lane::{Lane, Outcome};
use crate::notify::outbox::{Outbox, Sending, Unread};
use crate::notify::route::{RouteVerdict, Stranger};
use crate::notify::settings::{Settings, Way};
use crate::notify::silence::Silence;
use crate::runs::RunKey;
use crate::store::model::FencingToken;
use crate::store::{CommitError, Store, StoreError};

mod change;

mod silent;

pub use change::ChangeError;
pub use silent::SilenceError;

/// What every part of the server shares of incidents.
#[derive(Debug, Default)]
pub struct Incidents {
    held: Mutex<Held>,
    /// Only one writes at a time, so that an older state never overtakes a newer one.
    writing: tokio::sync::Mutex<()>,
    /// How the detectors go.
    pub health: DetectHealth,
    /// How the dead-man's switch goes.
    pub heartbeat: Heartbeat,
    /// Whether what the store knows was taken in.
    restored: tokio::sync::watch::Sender<bool>,
    /// Told when there may be something to say.
    to_say: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Held {
    book: Book,
    /// The right to write; none before the server leads.
    token: Option<FencingToken>,
    unwritten: BTreeMap<Uuid, Incident>,
    outbox: Outbox,
    /// Silences by pattern. They are applied at each tick, to what is open then.
    silences: Vec<Silence>,
}

/// A channel that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// Its name.
    pub channel: String,
    /// Since when.
    pub since: Timestamp,
    /// Failures in a row.
    pub failures: u32,
    /// Why.
    pub why: String,
}

/// How a receiver goes.
#[derive(Debug, Clone)]
pub struct Channel {
    /// Which one.
    pub way: Way,
    /// How it went.
    pub lane: Lane,
    /// Messages that could go and have not.
    pub waiting: usize,
    /// Since when the oldest of them waits.
    pub waits_since: Option<Timestamp>,
    /// Groups of something that is so which the receiver will not take.
    pub refused: usize,
}

/// How the detectors go, for the server's own metrics.
#[derive(Debug, Default)]
pub struct DetectHealth {
    /// When the last tick was, Unix milliseconds; 0 before the first.
    last_ms: AtomicI64,
    /// How long it took, microseconds.
    pub duration_us: AtomicU64,
    /// GPUs that it judged.
    pub gpus: AtomicU64,
    /// When the last tick ended, or before the first when this server began to lead; by the monotonic clock, which
    /// nobody sets back.
    waits_from: Mutex<Duration>,
}

impl DetectHealth {
    /// When the last tick was; none before the first.
    pub fn last(&self) -> Option<Timestamp> {
        let last = self.last_ms.load(Ordering::Relaxed);
        (last > 0).then(|| Timestamp::from_millis(last))
    }

    /// For how long nobody has judged, at a moment of the monotonic clock: since the last tick, or before the first
    /// since this server began to lead.
    pub fn silent(&self, now: Duration) -> Duration {
        let from = self.waits_from.lock();
        now.saturating_sub(*from.unwrap_or_else(PoisonError::into_inner))
    }

    /// From this moment of the monotonic clock on a tick is waited for.
    pub fn waits(&self, from: Duration) {
        *self
            .waits_from
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = from;
    }

    /// Notes a tick that ended at these moments of both clocks.
    pub fn note(&self, (now, ended): (Timestamp, Duration), took: Duration, gpus: usize) {
        let store = Ordering::Relaxed;
        self.last_ms.store(now.millis(), store);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.duration_us.store(micros, store);
        self.gpus.store(gpus as u64, store);
        self.waits(ended);
    }
}

impl Incidents {
    /// This server has the right to write.
    pub fn leads(&self, token: FencingToken) {
        self.lock().token = Some(token);
    }

    /// Says who is told of incidents.
    pub fn tells(&self, settings: Arc<Settings>) {
        self.lock().outbox = Outbox::new(settings);
    }

    /// Takes in what the store knows. Channels that are new are told of what is open.
    pub fn restore(
        &self,
        (incidents, unread): (Vec<Incident>, &Unread),
        groups: Vec<Group>,
        silences: Vec<Silence>,
        now: Timestamp,
    ) {
        let mut held = self.lock();
        let held = &mut *held;
        held.book = Book::restored(incidents, now);
        let open = |id| held.book.open_ones().any(|it| it.id == id);
        held.outbox.restore(groups, &open, unread, now);
        held.silences = silences;
        for id in held.silence(now) {
            held.unwritten
                .extend(held.book.get(id).map(|it| (id, it.clone())));
        }
        for incident in held.book.open_ones() {
            held.outbox.note(incident, now);
        }
        self.restored.send_replace(true);
        self.to_say.notify_one();
    }

    /// Waits until what the store knows was taken in: what is taken in before it would be taken in twice.
    pub async fn restored(&self) {
        let mut is_so = self.restored.subscribe();
        // It fails where nobody can say so any more, and this is kept where it is said.
        let _always = is_so.wait_for(|it| *it).await;
    }

    /// From now on so many ticks in a row open an incident of these families.
    pub fn open_after(&self, ticks: BTreeMap<Family, u32>) {
        self.lock().book.open_after(ticks);
    }

    /// Moves the book on; what changed waits to be written. Nobody knows whose it is.
    pub fn tick(&self, tick: Tick<'_>, new_id: &mut dyn FnMut() -> Uuid) {
        self.tick_owned(tick, new_id, &|_| None);
    }

    /// The same, where it is known whose an incident is.
    pub fn tick_owned(
        &self,
        tick: Tick<'_>,
        new_id: &mut dyn FnMut() -> Uuid,
        owner_of: &dyn Fn(&Incident) -> Option<String>,
    ) {
        let now = tick.now;
        let (changes, changed) = {
            let mut held = self.lock();
            let changes = held.book.tick(tick, new_id);
            let ids = changes.iter().filter_map(|it| match it {
                Change::Opened(id) | Change::Updated(id) => Some(*id),
                Change::Resolved(_) => None,
            });
            let changed: Vec<Incident> = ids.filter_map(|id| held.book.get(id).cloned()).collect();
            (changes, changed)
        };
        // Not under the lock: who looks at runs may ask for incidents. Whose one was, it stays: only of those that
        // nobody owns it is looked for, which may be a walk over every GPU.
        let looked_for = |it: &Incident| match it.owner {
            Some(_) => None,
            None => owner_of(it),
        };
        let owners = changed.iter().map(|it| (it.id, looked_for(it)));
        let owners: Vec<(Uuid, Option<String>)> = owners.collect();
        let mut held = self.lock();
        for (id, owner) in owners {
            held.book.give(id, owner);
        }
        // Before anybody is told of what has just opened.
        let silenced = held.silence(now);
        for change in changes {
            let (word, id) = match change {
                Change::Opened(id) => ("opened", id),
                Change::Updated(id) => ("changed", id),
                Change::Resolved(id) => ("resolved", id),
            };
            if let Some(incident) = held.book.get(id) {
                let (what, place) = (&incident.what, &incident.place);
                tracing::info!(%id, what, ?place, "an incident {word}");
            }
            held.note([id], now);
        }
        held.note(silenced, now);
        // What groups had no room for may not have changed since.
        let with_room = held.outbox.find_room();
        held.note(with_room, now);
    }

    /// Open incidents that a reader may see, in the order in which they began.
    pub fn open(&self, grant: &Grant) -> Vec<Incident> {
        let held = self.lock();
        let may = |it: &&Incident| grant.may_see(&it.place.cluster);
        held.book.open_ones().filter(may).cloned().collect()
    }

    /// Open incidents of a run, and those that explain what is wrong with it, in the order in which they began.
    pub fn of_run(&self, key: &RunKey) -> Vec<Incident> {
        let run = key.run.to_string();
        let held = self.lock();
        let is_of_it = |it: &&Incident| {
            let is_here = *it.place.cluster == *key.cluster;
            is_here && it.places().any(|place| place.run.as_ref() == Some(&run))
        };
        let mut found: Vec<Incident> = held.book.open_ones().filter(is_of_it).cloned().collect();
        // What is evidence of another run says nothing of this one's ranks.
        let is_its = |place: &Place| place.run.as_ref().is_none_or(|it| *it == run);
        for incident in &mut found {
            incident.evidence.retain(|it| is_its(&it.place));
        }
        found
    }

    /// An incident that is open or was over lately.
    pub fn get(&self, id: Uuid) -> Option<Incident> {
        self.lock().book.get(id).cloned()
    }

    /// Incidents that there was no room for since the start.
    pub fn left_out(&self) -> u64 {
        self.lock().book.left_out()
    }

    /// How many more there would be now if there were room.
    pub fn beyond(&self) -> usize {
        self.lock().book.beyond()
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
        let (waiting, groups, token) = {
            let held = self.lock();
            let Some(token) = held.token else {
                return Ok(());
            };
            // They wait on until they are written: who asked may go away in the middle.
            let waiting: Vec<Incident> = held.unwritten.values().cloned().collect();
            (waiting, held.outbox.unwritten(), token)
        };
        store.write_incidents(&waiting, &groups, token).await?;
        let mut held = self.lock();
        held.outbox.written(&groups);
        for incident in waiting {
            if held.unwritten.get(&incident.id) == Some(&incident) {
                held.unwritten.remove(&incident.id);
            }
        }
        if !groups.is_empty() {
            self.to_say.notify_one();
        }
        Ok(())
    }

    /// Notices of a week: durable together with the note that the week was made, and only then to be sent.
    ///
    /// # Errors
    /// When the store refuses; then it may be written all the same ([`Self::take_notices`]).
    pub async fn announce(
        &self,
        store: &Store,
        week: Week,
        notices: Vec<Group>,
        now: Timestamp,
    ) -> Result<(), CommitError> {
        let _one = self.writing.lock().await;
        let Some(token) = self.lock().token else {
            return Ok(());
        };
        store.write_digest(week, &notices, now, token).await?;
        self.lock().outbox.announce(notices);
        self.to_say.notify_one();
        Ok(())
    }

    /// Takes in the notices that are written and still to be sent, for a write of which nobody knew what became.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn take_notices(&self, store: &Store) -> Result<(), StoreError> {
        // What is sent is forgotten once that is written: nothing is to be between reading and taking in.
        let _one = self.writing.lock().await;
        let standing = store.standing_groups().await?;
        self.lock().outbox.announce(standing);
        self.to_say.notify_one();
        Ok(())
    }

    /// Waits until there may be something to say.
    pub async fn something_to_say(&self) {
        self.to_say.notified().await;
    }

    /// The messages that may go now.
    pub fn next_messages(&self, now: Timestamp) -> Vec<Sending> {
        self.lock().outbox.next(now)
    }

    /// Whether the outbox has changed since it was written.
    pub fn has_unwritten_messages(&self) -> bool {
        self.lock().outbox.has_unwritten()
    }

    /// What became of a message.
    pub fn sent(&self, sending: &Sending, outcome: Outcome, now: Timestamp, dice: f64) {
        self.lock().outbox.done(sending, outcome, now, dice);
        self.to_say.notify_one();
    }

    /// Somebody may have mended what a receiver refuses: what it refused goes out once more.
    pub fn try_again(&self, way: &str) {
        self.lock().outbox.try_again(way);
        self.to_say.notify_one();
    }

    /// The same, where a test has shown that the receiver takes messages.
    pub fn way_works(&self, way: &str, now: Timestamp) {
        self.lock().outbox.works(way, now);
        self.to_say.notify_one();
    }

    /// How every receiver goes.
    pub fn channels(&self, now: Timestamp) -> Vec<Channel> {
        let held = self.lock();
        let outbox = &held.outbox;
        let channel = |(way, lane): (&Way, &Lane)| {
            let (waiting, waits_since) = outbox.waiting(way, now);
            let refused = |it: &&Group| it.way == way.name && it.is_refused();
            Channel {
                way: way.clone(),
                lane: lane.clone(),
                waiting,
                waits_since,
                refused: outbox.groups().filter(refused).count(),
            }
        };
        outbox.lanes().map(channel).collect()
    }

    /// Channels that fail since before this moment, or whose receiver refuses what it should know: that does not
    /// mend itself, and is not waited for.
    pub fn failing_channels(&self, before: Timestamp) -> Vec<Failing> {
        let held = self.lock();
        let fails = held.outbox.lanes().filter_map(|(way, lane)| {
            let own = held.outbox.groups().filter(|it| it.way == way.name);
            let refused = own.filter(|it| it.is_refused());
            let refused = refused.min_by_key(|it| it.tried_at);
            let fails_long = lane.failing_since.filter(|since| *since <= before);
            let since = match (lane.broken_since.or(fails_long), refused) {
                (Some(since), _) => since,
                (None, Some(group)) => group.tried_at?,
                (None, None) => return None,
            };
            let of_lane = lane.failing_since.and(lane.failed.as_ref());
            let why = of_lane.map(|(_, why)| why.clone());
            Some(Failing {
                channel: way.channel.to_string(),
                since,
                failures: lane.failures.max(refused.map_or(0, |it| it.refusals)),
                why: why.or_else(|| refused?.error.clone()).unwrap_or_default(),
            })
        });
        fails.collect()
    }

    /// The groups that an incident is in, of those that are not over.
    pub fn messages_of(&self, id: Uuid) -> Vec<Group> {
        let held = self.lock();
        let own = held
            .outbox
            .groups()
            .filter(|it| it.members.contains_key(&id));
        own.cloned().collect()
    }

    /// Whose an incident is, as every page and message says it.
    pub fn owner_of(&self, incident: &Incident) -> String {
        let held = self.lock();
        held.outbox.settings().owner_words(incident).to_owned()
    }

    /// What each route says to an incident.
    pub fn routes_of(&self, incident: &Incident) -> Vec<RouteVerdict> {
        self.lock().outbox.settings().explain(incident)
    }

    /// The teams of routes that nobody is known to be.
    pub fn strangers(&self, owners: &Owners, now: Timestamp) -> Vec<Stranger> {
        self.lock().outbox.settings().strangers(owners, now)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held
            .lock()
            .expect("nothing panics while it holds the book")
    }
}

#[cfg(test)]
mod tests;
