//! What a person does to one incident: written first with what it makes of the outbox, so that what the store did not
//! take changes nothing here.

use gpufleet_analysis::incident::{Book, Incident, Refused, State};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::{Held, Incidents};
use crate::notify::outbox::Outbox;
use crate::notify::silence::Silence;
use crate::store::{CommitError, Store};

/// Why something that a person did to an incident was not done.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The book refuses it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It is silent by the pattern with this id, and by nothing else.
    #[error(
        "it is silent by a pattern, as is all that is like it: gpufleet silences --end {0} ends that"
    )]
    Pattern(Uuid),
    /// It could not be written.
    #[error(transparent)]
    Store(#[from] CommitError),
}

/// Whether it is silent, and no longer than this pattern has it so, and nobody has silenced it alone.
fn is_by_pattern_alone(incident: &Incident, pattern: &Silence, now: Timestamp) -> bool {
    let until = incident.silent_until(now);
    let is_silent = until.is_some_and(|until| until <= pattern.until);
    incident.state == State::Open && is_silent && incident.silenced_alone(now).is_none()
}

impl Incidents {
    /// Does what a person wants with one incident.
    ///
    /// # Errors
    /// When the book or the store refuses.
    pub async fn change(
        &self,
        store: &Store,
        id: Uuid,
        change: impl Fn(&mut Book) -> Result<(), Refused>,
    ) -> Result<Incident, ChangeError> {
        let change = move |book: &mut Book, _: Option<&Silence>| -> Result<(), ChangeError> {
            change(book)?;
            Ok(())
        };
        self.change_by(store, id, change).await
    }

    /// Ends what a person has silenced alone. Where a pattern keeps it silent too it stays so without a moment
    /// between, in which a message could go out; where that alone does, it is for the pattern to be ended.
    ///
    /// # Errors
    /// When it is silent by a pattern alone or not at all, or the book or the store refuses.
    pub async fn unsilence(
        &self,
        store: &Store,
        id: Uuid,
        who: &str,
        now: Timestamp,
    ) -> Result<Incident, ChangeError> {
        let change = |book: &mut Book, pattern: Option<&Silence>| -> Result<(), ChangeError> {
            let pattern = pattern.filter(|it| it.until > now);
            let incident = book.get(id);
            if let (Some(pattern), Some(incident)) = (pattern, incident)
                && is_by_pattern_alone(incident, pattern, now)
            {
                return Err(ChangeError::Pattern(pattern.id));
            }
            book.unsilence(id, who, now)?;
            if let Some(pattern) = pattern {
                book.silence_with_others(id, &pattern.signature(), pattern.until, now)?;
            }
            Ok(())
        };
        self.change_by(store, id, change).await
    }

    /// The same of a change that is told which silence by pattern is about the incident and ends last.
    async fn change_by(
        &self,
        store: &Store,
        id: Uuid,
        change: impl Fn(&mut Book, Option<&Silence>) -> Result<(), ChangeError>,
    ) -> Result<Incident, ChangeError> {
        let _one = self.writing.lock().await;
        let changed = |book: &mut Book, outbox: &mut Outbox, pattern: Option<&Silence>| {
            change(book, pattern)?;
            let is = book.get(id).cloned().ok_or(Refused::Unknown(id))?;
            // The book has just put a line of it into the log.
            outbox.note(&is, is.log.last().map_or(is.seen_at, |it| it.at));
            Ok::<_, ChangeError>(is)
        };
        let (waiting, groups, token) = {
            let held = self.lock();
            let token = held.token.ok_or(Refused::Unknown(id))?;
            let (mut book, mut outbox) = (held.book.clone(), held.outbox.clone());
            let will_be = changed(&mut book, &mut outbox, held.pattern_of_id(id))?;
            // With it all that waits: no group is to be written before its incidents.
            let others = held.unwritten.values().filter(|it| it.id != id).cloned();
            let waiting: Vec<Incident> = others.chain([will_be]).collect();
            (waiting, outbox.unwritten(), token)
        };
        store.write_incidents(&waiting, &groups, token).await?;
        let mut held = self.lock();
        let pattern = held.pattern_of_id(id).cloned();
        let Held { book, outbox, .. } = &mut *held;
        let is = changed(book, outbox, pattern.as_ref())?;
        held.outbox.written(&groups);
        // Once more with the next: an older state of it may wait to be written.
        held.unwritten.insert(id, is.clone());
        drop(held);
        self.to_say.notify_one();
        Ok(is)
    }
}
