//! What a receiver calls an incident that knows it by its labels (Alertmanager): an incident whose severity, place or
//! owner changes is another alert to it, and the old one has to end with the message that begins the new one.
//!
//! Limit: [`MAX_BEFORE`] names that may still be believed.

use gpufleet_analysis::incident::{Family, Incident, Place};
use gpufleet_telemetry::event::Severity;
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Member;

/// Names of before that a receiver may believe. Each that is told and gets through ends all of them, and a receiver
/// that is not reached for four minutes has forgotten them.
const MAX_BEFORE: usize = 8;

/// Everything of an incident that is a label and may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of trouble.
    pub family: Family,
    /// Where.
    pub place: Place,
    /// Whose it is, as it is shown.
    pub owner: String,
}

impl Name {
    /// The name of an incident as it is now.
    pub fn of(incident: &Incident, owner: &str) -> Self {
        Self {
            severity: incident.severity,
            family: incident.family,
            place: incident.place.clone(),
            owner: owner.to_owned(),
        }
    }
}

/// The names of an incident, for a receiver that knows it by them; none for others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Names {
    /// The one that it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<Name>,
    /// Whether the receiver may know it by that: a message went out, whatever became of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_be_told: bool,
    /// Whether it does: one got through.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_told: bool,
    /// Others that the receiver may believe in, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<Name>,
}

impl Names {
    /// It is called so from now on. What the receiver may know it by is kept until that is over.
    pub(super) fn become_now(mut self, now: Option<Name>) -> Self {
        if self.now == now {
            return self;
        }
        let was = std::mem::replace(&mut self.now, now).filter(|_| self.may_be_told);
        self.before.extend(was);
        let known = self.before.len();
        self.before.retain(|it| Some(it) != self.now.as_ref());
        self.may_be_told = self.before.len() < known;
        self.is_told = false;
        if self.before.len() > MAX_BEFORE {
            self.before.remove(0);
        }
        self
    }

    /// A message with its name goes out, or may have gone out.
    pub(super) fn go_out(&mut self) {
        self.may_be_told = self.now.is_some();
    }

    /// The name that it goes by in a message where it is so: of what people are not to be told of, the one that the
    /// receiver knows.
    pub fn open(&self, is_loud: bool) -> Option<&Name> {
        let known = self.before.last().filter(|_| !is_loud && !self.may_be_told);
        known.or(self.now.as_ref())
    }

    /// All that the receiver may believe in; the name that it has where that is none.
    pub fn all(&self) -> impl Iterator<Item = &Name> {
        let is_said = self.may_be_told || self.before.is_empty();
        self.before
            .iter()
            .chain(self.now.iter().filter(move |_| is_said))
    }

    /// A message got through that had these names: what it ended is over.
    pub(super) fn are_told(&mut self, sent: &Self, is_loud: bool) {
        let stands = sent.open(is_loud);
        let is_over = |it: &Name| Some(it) != stands && sent.before.contains(it);
        self.before.retain(|it| !is_over(it));
        self.is_told |= stands == self.now.as_ref();
    }

    /// Whether it has none: its receiver needs none.
    pub(super) fn is_none(&self) -> bool {
        self.now.is_none()
    }

    /// Whether the receiver knows it by another name only.
    pub(super) fn is_news(&self) -> bool {
        self.now.is_some() && !self.is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::fixture::incident;

    fn name(severity: Severity) -> Option<Name> {
        let mut one = incident(1);
        one.severity = severity;
        Some(Name::of(&one, "research"))
    }

    const ALL: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Error];

    #[test]
    fn a_name_that_nobody_heard_is_forgotten_and_one_that_was_told_ends_with_the_next() {
        let [info, warning, error] = ALL.map(name);
        let mut names = Names::default().become_now(info);
        names = names.become_now(warning.clone());
        assert_eq!((names.before.len(), names.may_be_told), (0, false));
        names.go_out();
        names = names.become_now(error.clone());
        assert!(names.is_news());
        assert_eq!(names.open(true), error.as_ref());
        assert_eq!(
            names.open(false),
            warning.as_ref(),
            "nobody hears the new one"
        );
        assert_eq!(names.all().collect::<Vec<_>>(), [warning.as_ref().unwrap()]);
        names.go_out();
        let sent = names.clone();
        assert_eq!(
            names.all().count(),
            2,
            "an answer that is lost may have been a yes"
        );
        names.are_told(&sent, true);
        assert_eq!(names.all().collect::<Vec<_>>(), [error.as_ref().unwrap()]);
        assert!(!names.is_news());
    }

    #[test]
    fn what_goes_back_to_a_name_that_may_be_believed_does_not_end_it() {
        let [info, warning, _] = ALL.map(name);
        let mut names = Names::default().become_now(info.clone());
        names.go_out();
        names = names.become_now(warning).become_now(info);
        assert_eq!((names.before.len(), names.may_be_told), (0, true));
        assert!(names.is_news(), "its end may have been told meanwhile");
    }

    #[test]
    fn what_changes_while_a_message_is_on_its_way_ends_with_the_next() {
        let [info, warning, error] = ALL.map(name);
        let mut names = Names::default().become_now(info);
        names.go_out();
        names = names.become_now(warning.clone());
        names.go_out();
        let sent = names.clone();
        names = names.become_now(error);
        names.are_told(&sent, true);
        assert_eq!(names.all().collect::<Vec<_>>(), [warning.as_ref().unwrap()]);
        assert!(names.is_news());
    }

    #[test]
    fn no_more_names_are_kept_than_a_message_has_room_for() {
        let mut names = Names::default();
        for rank in 0..20 {
            let mut one = incident(1);
            one.place.rank = Some(rank);
            names = names.become_now(Some(Name::of(&one, "research")));
            names.go_out();
        }
        assert_eq!(names.before.len(), MAX_BEFORE);
        assert_eq!(names.before[0].place.rank, Some(19 - MAX_BEFORE as u32));
    }
}
