//! What people do to an incident: acknowledge, silence, annotate, and take the first two back; always with a name.

use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::book::Book;
use super::{Happened, Incident, Line, State};

/// Longest note: a screen of text; more belongs into a document that the note names.
pub const MAX_NOTE_BYTES: usize = 4_096;
/// Longest name of a person.
pub const MAX_PERSON_BYTES: usize = 128;
/// Longest silence, nanoseconds: 7 days; what is to be silent for ever is to be mended or turned off.
pub const MAX_SILENCE_NS: i64 = 7 * 86_400 * 1_000_000_000;
/// What the log says when nobody has an incident in hand any more: a note, which every older server reads.
const RELEASED: &str = "released: nobody works on it now";

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such incident in the book.
    #[error("there is no incident {0} that is open or was lately; older ones are history")]
    Unknown(Uuid),
    /// It is over.
    #[error("the incident is over: there is nothing to {0}")]
    Over(&'static str),
    /// No name, or no name that can be kept.
    #[error("who says so: a name of 1 to {MAX_PERSON_BYTES} bytes")]
    Person,
    /// No text, or too long a one.
    #[error("a note has 1 to {MAX_NOTE_BYTES} bytes, this one has {0}")]
    Note(usize),
    /// A silence that is over before it begins, or too long.
    #[error("a silence ends after now and within 7 days")]
    Silence,
    /// Nobody works on it.
    #[error("nobody works on it: there is nothing to release")]
    Free,
    /// Nothing keeps it silent.
    #[error("it is not silent: there is nothing to end")]
    Loud,
}

impl Book {
    /// Somebody works on it.
    ///
    /// # Errors
    /// When it is not known or over.
    pub fn acknowledge(&mut self, id: Uuid, who: &str, now: Timestamp) -> Result<(), Refused> {
        let who = person(who)?;
        let incident = self.open(id, "acknowledge")?;
        incident.acknowledged_by = Some(who.clone());
        incident.tell(now, Some(who), Happened::Acknowledged);
        Ok(())
    }

    /// Nobody works on it any more.
    ///
    /// # Errors
    /// When it is not known or over, or nobody did.
    pub fn release(&mut self, id: Uuid, who: &str, now: Timestamp) -> Result<(), Refused> {
        let who = person(who)?;
        let incident = self.open(id, "release")?;
        if incident.acknowledged_by.is_none() {
            return Err(Refused::Free);
        }
        incident.acknowledged_by = None;
        incident.tell(now, Some(who), Happened::Note(RELEASED.to_owned()));
        Ok(())
    }

    /// Nobody is to be told of it before `until`.
    ///
    /// # Errors
    /// When it is not known or over, or the moment makes no sense.
    pub fn silence(
        &mut self,
        id: Uuid,
        who: &str,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let incident = self.silenced(id, who, until, now)?;
        incident.silenced_alone_until = Some(until);
        Ok(())
    }

    /// The same by a silence of everything that is like it, which may end early.
    ///
    /// # Errors
    /// As [`Self::silence`].
    pub fn silence_with_others(
        &mut self,
        id: Uuid,
        who: &str,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), Refused> {
        self.silenced(id, who, until, now).map(|_| ())
    }

    fn silenced(
        &mut self,
        id: Uuid,
        who: &str,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<&mut Incident, Refused> {
        let who = person(who)?;
        if !(1..=MAX_SILENCE_NS).contains(&until.since(now)) {
            return Err(Refused::Silence);
        }
        let incident = self.open(id, "silence")?;
        incident.silenced_until = Some(until);
        incident.tell(now, Some(who), Happened::Silenced(until));
        Ok(incident)
    }

    /// The silence of everything that is like it ends: whoever is to be told of it is told, unless a person has
    /// silenced it alone for longer.
    ///
    /// # Errors
    /// When it is not known or over.
    pub fn end_silence(&mut self, id: Uuid, who: &str, now: Timestamp) -> Result<(), Refused> {
        let who = person(who)?;
        let incident = self.open(id, "silence")?;
        let alone = incident.silenced_alone_until.filter(|until| *until > now);
        incident.silenced_until = alone;
        incident.tell(now, Some(who), Happened::Silenced(alone.unwrap_or(now)));
        Ok(())
    }

    /// Every silence of it ends: whoever is to be told of it is told. What is silent by a pattern is the caller's to
    /// know.
    ///
    /// # Errors
    /// When it is not known or over, or is not silent.
    pub fn unsilence(&mut self, id: Uuid, who: &str, now: Timestamp) -> Result<(), Refused> {
        let who = person(who)?;
        let incident = self.open(id, "unsilence")?;
        if incident.is_loud(now) {
            return Err(Refused::Loud);
        }
        (incident.silenced_until, incident.silenced_alone_until) = (None, None);
        incident.tell(now, Some(who), Happened::Silenced(now));
        Ok(())
    }

    /// A note, also to one that is over: what it was is often known later.
    ///
    /// # Errors
    /// When it is not known, or the note is empty or too long.
    pub fn annotate(
        &mut self,
        id: Uuid,
        who: &str,
        note: &str,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let who = person(who)?;
        let note = note.trim();
        if note.is_empty() || note.len() > MAX_NOTE_BYTES {
            return Err(Refused::Note(note.len()));
        }
        let incident = self.told(id).ok_or(Refused::Unknown(id))?;
        incident.tell(now, Some(who), Happened::Note(note.to_owned()));
        Ok(())
    }

    fn open(&mut self, id: Uuid, what: &'static str) -> Result<&mut Incident, Refused> {
        let incident = self.told(id).ok_or(Refused::Unknown(id))?;
        match incident.state {
            State::Open => Ok(incident),
            State::Resolved | State::Pending => Err(Refused::Over(what)),
        }
    }
}

impl Line {
    /// Whether it is the end of a silence: one that lasts until then.
    pub fn ends_silence(&self) -> bool {
        matches!(self.happened, Happened::Silenced(until) if until <= self.at)
    }
}

impl Incident {
    /// Until when nobody is told of it; none where no silence holds at this moment: nothing clears one whose time is
    /// over.
    pub fn silent_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.silenced_until.filter(|until| *until > now)
    }

    /// Until when a person has silenced it alone, and the line of its log that says who, if that is still there; none
    /// where nobody has, or the time is over.
    pub fn silenced_alone(&self, now: Timestamp) -> Option<(Timestamp, Option<&Line>)> {
        let until = self.silenced_alone_until.filter(|it| *it > now)?;
        // The first: whoever ends a longer silence by pattern later leaves the same moment in the log.
        let says = |it: &&Line| it.happened == Happened::Silenced(until);
        Some((until, self.log.iter().find(says)))
    }
}

fn person(who: &str) -> Result<String, Refused> {
    let who = who.trim();
    let is_name =
        !who.is_empty() && who.len() <= MAX_PERSON_BYTES && !who.chars().any(char::is_control);
    is_name.then(|| who.to_owned()).ok_or(Refused::Person)
}
