//! Silences by pattern, applied to the book: at each tick to what is open then, before anybody is told of it.

use std::sync::Arc;

use gpufleet_analysis::incident::{Happened, Incident};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::{Held, Incidents};
use crate::auth::Grant;
use crate::notify::silence::{self, MAX_SILENCES, Silence};
use crate::store::{CommitError, Store};

/// Why there is no silence by pattern, or why one holds on.
#[derive(Debug, thiserror::Error)]
pub enum SilenceError {
    /// It makes no sense.
    #[error(transparent)]
    Refused(#[from] silence::Refused),
    /// It could not be written.
    #[error(transparent)]
    Store(#[from] CommitError),
    /// This server may write nothing yet.
    #[error("this server does not lead yet")]
    NotYet,
}

/// Who ends the silence of what its pattern does not name any more, for the incident's log.
const HAS_GROWN: &str = "gpufleet: it is more than the pattern of its silence names";

/// Whether it is silent by this silence, and not because a person silenced it alone.
fn is_by(incident: &Incident, silence: &Silence) -> bool {
    if incident.silenced_until != Some(silence.until) {
        return false;
    }
    let is_silenced = |it: &Happened| matches!(it, Happened::Silenced(_));
    let mut lines = incident.log.iter().rev();
    let last = lines.find(|it| is_silenced(&it.happened));
    last.and_then(|it| it.who.as_deref()) == Some(silence.signature().trim())
}

impl Held {
    /// Silences what is open and matches a silence by pattern, and ends the silence of what matches no more; says
    /// which have changed.
    pub(super) fn silence(&mut self, now: Timestamp) -> Vec<Uuid> {
        self.silences.retain(|it| it.until > now);
        let mut changed = self.wake_what_has_grown(now);
        let due: Vec<(Uuid, String, Timestamp)> = self
            .book
            .open_ones()
            .filter_map(|it| {
                let silence = self.pattern_of(it)?;
                let is_new = it.silenced_until.is_none_or(|until| until < silence.until);
                is_new.then(|| (it.id, silence.signature(), silence.until))
            })
            .collect();
        let silenced = due.into_iter().filter_map(|(id, who, until)| {
            let done = self.book.silence_with_others(id, &who, until, now);
            done.is_ok().then_some(id)
        });
        changed.extend(silenced);
        changed
    }

    /// The silence by pattern that is about an incident and ends last, which may be over; of two that end together
    /// the first made.
    pub(super) fn pattern_of(&self, incident: &Incident) -> Option<&Silence> {
        let team = self.outbox.settings().owner(incident);
        let about = self.silences.iter();
        let about = about.filter(|it| it.is_about(incident, team));
        about.reduce(|one, other| if other.until > one.until { other } else { one })
    }

    /// The same of the incident with this id.
    pub(super) fn pattern_of_id(&self, id: Uuid) -> Option<&Silence> {
        self.book.get(id).and_then(|it| self.pattern_of(it))
    }

    /// Ends the silence of what has grown beyond the pattern by which it is silent; says which.
    fn wake_what_has_grown(&mut self, now: Timestamp) -> Vec<Uuid> {
        let settings = Arc::clone(self.outbox.settings());
        let has_grown = |it: &&Incident| {
            let mut by_it = self.silences.iter().filter(|silence| is_by(it, silence));
            let silence = by_it.next();
            silence.is_some_and(|silence| !silence.is_about(it, settings.owner(it)))
        };
        let open = self.book.open_ones();
        let grown: Vec<Uuid> = open.filter(has_grown).map(|it| it.id).collect();
        let ended = grown.into_iter().filter(|id| {
            let done = self.book.end_silence(*id, HAS_GROWN, now);
            done.is_ok()
        });
        ended.collect()
    }

    /// Has the outbox and the next write take in incidents as they are now.
    pub(super) fn note(&mut self, ids: impl IntoIterator<Item = Uuid>, now: Timestamp) {
        for id in ids {
            if let Some(incident) = self.book.get(id).cloned() {
                self.outbox.note(&incident, now);
                self.unwritten.insert(id, incident);
            }
        }
    }
}

impl Incidents {
    /// Silences by pattern, the first made first, of those that a reader may see.
    pub fn silences(&self, grant: &Grant, now: Timestamp) -> Vec<Silence> {
        let held = self.lock();
        let may = |it: &&Silence| {
            let cluster = it.pattern.cluster.as_deref();
            grant
                .cluster
                .as_deref()
                .is_none_or(|bound| cluster == Some(bound))
        };
        let mut all: Vec<Silence> = held.silences.iter().filter(may).cloned().collect();
        all.retain(|it| it.until > now);
        all.sort_by_key(|it| (it.since, it.id));
        all
    }

    /// How many of these a silence is about.
    pub fn about(&self, silence: &Silence, incidents: &[Incident]) -> usize {
        let settings = Arc::clone(self.lock().outbox.settings());
        let is_about = |it: &&Incident| silence.is_about(it, settings.owner(it));
        incidents.iter().filter(is_about).count()
    }

    /// From now on nobody is told of what matches; written first.
    ///
    /// # Errors
    /// When it makes no sense, there are too many, or the store refuses.
    pub async fn keep_silence(
        &self,
        store: &Store,
        silence: Silence,
        now: Timestamp,
    ) -> Result<(), SilenceError> {
        silence.check()?;
        let _one = self.writing.lock().await;
        let token = {
            let mut held = self.lock();
            held.silences.retain(|it| it.until > now);
            if held.silences.len() >= MAX_SILENCES {
                return Err(silence::Refused::TooMany.into());
            }
            held.token.ok_or(SilenceError::NotYet)?
        };
        store.keep_silence(&silence, now, token).await?;
        let mut held = self.lock();
        held.silences.push(silence);
        let silenced = held.silence(now);
        held.note(silenced, now);
        drop(held);
        self.to_say.notify_one();
        Ok(())
    }

    /// Ends a silence before its time: people are told of what it kept silent and is still so.
    ///
    /// # Errors
    /// When there is none that may be seen, nobody says so, or the store refuses.
    pub async fn end_silence(
        &self,
        (store, grant): (&Store, &Grant),
        id: Uuid,
        who: &str,
        now: Timestamp,
    ) -> Result<Silence, SilenceError> {
        if !silence::is_person(who) {
            return Err(silence::Refused::Person.into());
        }
        let seen = self.silences(grant, now).into_iter().find(|it| it.id == id);
        let silence = seen.ok_or(silence::Refused::Unknown(id))?;
        let _one = self.writing.lock().await;
        let token = self.lock().token.ok_or(SilenceError::NotYet)?;
        store.forget_silence(id, token).await?;
        let mut held = self.lock();
        held.silences.retain(|it| it.id != id);
        let by_it = |it: &&Incident| is_by(it, &silence);
        let silenced: Vec<Uuid> = held
            .book
            .open_ones()
            .filter(by_it)
            .map(|it| it.id)
            .collect();
        for id in &silenced {
            if let Err(error) = held.book.end_silence(*id, who, now) {
                tracing::warn!(%error, %id, "an incident stays silent");
            }
        }
        // Another silence may be about it too.
        let again = held.silence(now);
        held.note(silenced.into_iter().chain(again), now);
        drop(held);
        self.to_say.notify_one();
        Ok(silence)
    }
}
