//! When two troubles are the same one: of the same family, at places of which one lies in the other, and with causes
//! that may be one. Whatever asks whether a signal or a group is an incident's asks here.
//!
//! - Two known causes are two troubles: a cable and a GPU's own link are mended by different people. A cause that is not
//!   known may be any: one that is found later is the same trouble's.
//! - A signal that an incident was told before stays its when its detector thinks of another cause.
//! - Of a run the cause is what is thought of it: it stands, or makes itself wait, once. Runs have each their own trouble,
//!   and many with one cause another one. One that stands does so once, whomever it is thought to wait for: that is found
//!   later, or told by others while some are not heard.
//! - What is a whole cluster's is not what one of its nodes has, but where that node is one of those that have one cause.
//! - A reader that fails is another trouble than a node that is silent, although it blinds too.
//!
//! What is of another family is never the same, but may be explained (`explained`).

use super::group::Group;
use super::{Evidence, Family, Incident, Place, Signal};
use crate::cause::Cause;

/// What is wrong, where, and why as far as that tells it from other trouble.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trouble<'a> {
    family: Family,
    place: &'a Place,
    cause: Cause,
}

impl<'a> Trouble<'a> {
    /// Trouble of this kind at this place, for which this is thought to be the cause.
    pub(super) fn of(family: Family, place: &'a Place, cause: Cause) -> Self {
        let cause = match is_a_runs(family, place) {
            true => Cause::Unknown,
            false => cause,
        };
        Self {
            family,
            place,
            cause,
        }
    }

    /// The cause that tells it from other trouble, unknown where none does.
    pub(super) const fn cause(self) -> Cause {
        self.cause
    }

    /// Whether the two are one.
    pub(super) fn is_same(self, other: Trouble<'_>) -> bool {
        self.is_there(other) && self.may_have_cause_of(other)
    }

    /// Whether they may have one cause.
    pub(super) fn may_have_cause_of(self, other: Trouble<'_>) -> bool {
        let are_known = self.cause.is_known() && other.cause.is_known();
        let are_readers = [self.cause, other.cause].map(|it| it == Cause::Reader);
        are_readers[0] == are_readers[1] && (!are_known || self.cause == other.cause)
    }

    /// Whether they are of one family, and one lies in the other; of a run that stands whether it is the same.
    fn is_there(self, other: Trouble<'_>) -> bool {
        let is_one_run = !self.family.is_of_run() || self.place.run == other.place.run;
        let are_alike = self.place.is_cluster() == other.place.is_cluster();
        let is_in = match stands(self.family, self.place) {
            true => self.place.cluster == other.place.cluster,
            false => self.place.overlaps(other.place),
        };
        self.family == other.family && is_one_run && are_alike && is_in
    }
}

impl Signal {
    pub(super) fn trouble(&self) -> Trouble<'_> {
        Trouble::of(self.family, &self.place, self.cause)
    }
}

impl Group {
    pub(super) fn trouble(&self) -> Trouble<'_> {
        let mut causes = self.signals.iter().map(|it| it.trouble().cause);
        let known = causes.find(|it| it.is_known());
        Trouble::of(self.family, &self.place, known.unwrap_or_default())
    }
}

impl Incident {
    pub(super) fn trouble(&self) -> Trouble<'_> {
        Trouble::of(self.family, &self.place, self.cause)
    }

    /// Whether a signal is of its trouble.
    pub(super) fn is_of(&self, signal: &Signal) -> bool {
        let (own, its) = (self.trouble(), signal.trouble());
        own.is_there(its) && (own.may_have_cause_of(its) || self.was_told(signal))
    }

    /// Whether a group of signals is about the same as this.
    pub(super) fn is_about(&self, group: &Group) -> bool {
        let (own, its) = (self.trouble(), group.trouble());
        let was_told = || group.signals.iter().any(|it| self.was_told(it));
        own.is_there(its) && (own.may_have_cause_of(its) || was_told())
            || self.is_of_a_node_in(group)
    }

    /// Whether it is of one of the nodes that have one cause in this group.
    fn is_of_a_node_in(&self, group: &Group) -> bool {
        let is_wide = self.family == group.family && group.place.is_cluster();
        if !is_wide || group.is_of_runs() || is_a_runs(self.family, &self.place) {
            return false;
        }
        let is_its = |it: &Signal| it.place.node.is_some() && it.place.overlaps(&self.place);
        self.trouble().may_have_cause_of(group.trouble()) && group.signals.iter().any(is_its)
    }

    /// Whether it was told this before, for its own cause.
    fn was_told(&self, signal: &Signal) -> bool {
        let is_it = |it: &Evidence| {
            let is_own = !it.cause.is_known() || it.cause == self.cause;
            is_own && it.what == signal.what && it.place == signal.place
        };
        self.evidence.iter().any(is_it)
    }
}

impl Place {
    /// Whether it is a whole cluster.
    pub(super) const fn is_cluster(&self) -> bool {
        self.node.is_none() && self.gpu.is_none() && self.run.is_none()
    }
}

/// Whether it is about one run that stands.
pub(super) fn stands(family: Family, place: &Place) -> bool {
    family == Family::Hang && place.run.is_some()
}

/// Whether it is about a run: these have each their own trouble, unless many have it at once (`breaker`).
pub(super) fn is_a_runs(family: Family, place: &Place) -> bool {
    family.is_of_run() && place.run.is_some()
}
