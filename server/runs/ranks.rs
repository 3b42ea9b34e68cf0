//! The ranks of a run by number, each shared by all copies of the run until it changes.
//!
//! So a copy of a run costs no copy of what is known of its ranks, and what comes in of one while a page looks at the run
//! costs a copy of that rank alone.

use std::collections::{BTreeMap, btree_map};
use std::ops::Index;
use std::sync::Arc;

use super::Rank;

/// Ranks by number.
#[derive(Debug, Clone, Default)]
pub struct Ranks(BTreeMap<u32, Arc<Rank>>);

/// The place of a rank among them.
pub(crate) struct Entry<'a>(btree_map::Entry<'a, u32, Arc<Rank>>);

impl Ranks {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is one of this number.
    pub fn contains_key(&self, number: &u32) -> bool {
        self.0.contains_key(number)
    }

    /// The one of this number.
    pub fn get(&self, number: &u32) -> Option<&Rank> {
        self.0.get(number).map(|it| &**it)
    }

    /// Their numbers, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &u32> {
        self.0.keys()
    }

    /// All of them, by number.
    pub fn values(&self) -> impl Iterator<Item = &Rank> {
        self.0.values().map(|it| &**it)
    }

    /// All of them with their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&u32, &Rank)> + Clone {
        self.0.iter().map(|(number, it)| (number, &**it))
    }

    pub(crate) fn entry(&mut self, number: u32) -> Entry<'_> {
        Entry(self.0.entry(number))
    }

    pub(crate) fn get_mut(&mut self, number: &u32) -> Option<&mut Rank> {
        self.0.get_mut(number).map(Arc::make_mut)
    }

    pub(crate) fn insert(&mut self, number: u32, rank: Rank) {
        self.0.insert(number, Arc::new(rank));
    }

    /// Those of which this holds, to be changed.
    pub(crate) fn changing(
        &mut self,
        changes: impl Fn(&Rank) -> bool,
    ) -> impl Iterator<Item = (&u32, &mut Rank)> {
        let ranks = self.0.iter_mut().filter(move |it| changes(it.1));
        ranks.map(|(number, it)| (number, Arc::make_mut(it)))
    }
}

impl<'a> Entry<'a> {
    /// The rank, to be changed; a new one where there is none.
    pub(crate) fn or_default(self) -> &'a mut Rank {
        Arc::make_mut(self.0.or_default())
    }
}

impl Index<&u32> for Ranks {
    type Output = Rank;

    fn index(&self, number: &u32) -> &Rank {
        &self.0[number]
    }
}

impl FromIterator<(u32, Rank)> for Ranks {
    fn from_iter<T: IntoIterator<Item = (u32, Rank)>>(ranks: T) -> Self {
        let ranks = ranks.into_iter();
        Self(ranks.map(|(number, it)| (number, Arc::new(it))).collect())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::Timestamp;

    use super::*;

    #[test]
    fn a_copy_shares_all_ranks_but_those_that_changed_since() {
        let mut ranks: Ranks = (0..4).map(|it| (it, Rank::default())).collect();
        let copy = ranks.clone();
        ranks.entry(1).or_default().facts.heard = Timestamp(7);
        let heard = |it: &Rank| it.facts.heard == Timestamp(7);
        for (_, rank) in ranks.changing(heard) {
            rank.changed = true;
        }
        ranks.get_mut(&3).expect("it is there").changed = true;
        let shared = (0..4).map(|it| std::ptr::eq(&ranks[&it], &copy[&it]));
        assert_eq!(shared.collect::<Vec<_>>(), [true, false, true, false]);
        let changed = |it: &Ranks| it.values().filter(|it| it.changed).count();
        assert_eq!((changed(&ranks), changed(&copy)), (2, 0));
        assert_eq!(copy[&1].facts.heard, Timestamp::default());
    }
}
