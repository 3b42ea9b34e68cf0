//! When two troubles are the same one: of the same family, at places of which one lies in the other. Whatever asks
//! whether a signal or a group is an incident's asks here.
//!
//! - Runs have each their own, and many with one cause another one.
//! - A reader that fails is another trouble than a node that is silent, although it blinds too.

use super::group::Group;
use super::{Family, Incident, Place, Signal};

/// What is wrong, and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trouble<'a> {
    family: Family,
    place: &'a Place,
    is_of_readers: bool,
}

impl Trouble<'_> {
    /// Whether the two are one.
    pub(super) fn is_same(self, other: Trouble<'_>) -> bool {
        let is_one_run = !self.family.is_of_run() || self.place.run == other.place.run;
        self.family == other.family
            && self.is_of_readers == other.is_of_readers
            && is_one_run
            && self.place.overlaps(other.place)
    }
}

impl Signal {
    fn trouble(&self) -> Trouble<'_> {
        Trouble {
            family: self.family,
            place: &self.place,
            is_of_readers: self.is_of_a_reader(),
        }
    }
}

impl Group {
    pub(super) fn trouble(&self) -> Trouble<'_> {
        Trouble {
            family: self.family,
            place: &self.place,
            is_of_readers: self.is_of_readers(),
        }
    }
}

impl Incident {
    fn trouble(&self) -> Trouble<'_> {
        Trouble {
            family: self.family,
            place: &self.place,
            is_of_readers: self.is_of_readers(),
        }
    }

    /// Whether a signal is of its trouble.
    pub(super) fn is_of(&self, signal: &Signal) -> bool {
        self.trouble().is_same(signal.trouble())
    }

    /// Whether a group of signals is about the same as this.
    pub(super) fn is_about(&self, group: &Group) -> bool {
        self.trouble().is_same(group.trouble())
    }
}
