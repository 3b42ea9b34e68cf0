//! A map that lies sorted in one piece of memory: what is known of each resource of a fleet is in such.
//!
//! A map of nodes takes from a third more to twice of it for a few dozen entries. Finding one looks at five of them, and one
//! that comes in order is put at the end.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;
use std::{slice, vec};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many more there is room for once it is full: doubling would leave nearly half of it empty.
const GROWS_BY: usize = 4;

/// A map as [`BTreeMap`] is one, for a few dozen entries: putting one in between moves those behind it.
#[derive(Clone, PartialEq, Eq)]
pub struct Sorted<K, V>(Vec<(K, V)>);

/// Its entries in the order of their keys.
type Entries<'a, K, V> = std::iter::Map<slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;

impl<K: Ord, V> Sorted<K, V> {
    /// Nothing yet, with room for so many.
    pub fn with_capacity(many: usize) -> Self {
        Self(Vec::with_capacity(many))
    }

    /// How many it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What it has under a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        Some(&self.0[place].1)
    }

    /// The same, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        Some(&mut self.0[place].1)
    }

    /// Whether it has something under a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_ok()
    }

    /// Puts something in, and hands out what it had under the key.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(place) => Some(std::mem::replace(&mut self.0[place].1, value)),
            Err(place) => {
                self.put(place, key, value);
                None
            }
        }
    }

    /// Puts something in where it has nothing under the key.
    pub fn insert_new(&mut self, key: K, value: V) {
        if let Err(place) = self.place(&key) {
            self.put(place, key, value);
        }
    }

    /// Merges something into what it has under the key, or puts it in; returns whether it was put in.
    pub fn add(&mut self, key: K, value: V, merge: impl FnOnce(&mut V, &V)) -> bool {
        match self.place(&key) {
            Ok(place) => {
                merge(&mut self.0[place].1, &value);
                false
            }
            Err(place) => {
                self.put(place, key, value);
                true
            }
        }
    }

    /// Takes over what another has under keys under which it has nothing.
    pub fn fill(&mut self, other: &Self)
    where
        K: Clone,
        V: Clone,
    {
        for (key, value) in other {
            if let Err(place) = self.place(key) {
                self.put(place, key.clone(), value.clone());
            }
        }
    }

    fn put(&mut self, place: usize, key: K, value: V) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(GROWS_BY);
        }
        self.0.insert(place, (key, value));
    }

    /// Takes out what it has under a key.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        Some(self.0.remove(place).1)
    }

    /// Keeps those for which this holds.
    pub fn retain(&mut self, mut keeps: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|it| keeps(&it.0, &mut it.1));
    }

    /// All of it, in the order of the keys.
    pub fn iter(&self) -> Entries<'_, K, V> {
        self.into_iter()
    }

    /// The keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|it| &it.0)
    }

    /// What it has, in the order of the keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|it| &it.1)
    }

    /// Where a key stands, or would. What comes in order belongs at the end.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        let of = |it: &(K, V)| Borrow::<Q>::borrow(&it.0).cmp(key);
        match self.0.last() {
            Some(last) if of(last).is_lt() => Err(self.0.len()),
            _ => self.0.binary_search_by(of),
        }
    }
}

fn entry<K, V>(it: &(K, V)) -> (&K, &V) {
    (&it.0, &it.1)
}

impl<K, V> Default for Sorted<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Sorted<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for Sorted<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("it has something under the key")
    }
}

impl<'a, K, V> IntoIterator for &'a Sorted<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Entries<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        let entry: fn(&'a (K, V)) -> (&'a K, &'a V) = entry;
        self.0.iter().map(entry)
    }
}

impl<K, V> IntoIterator for Sorted<K, V> {
    type Item = (K, V);
    type IntoIter = vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K: Ord, V> Extend<(K, V)> for Sorted<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, more: I) {
        for (key, value) in more {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Sorted<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut sorted = Self::default();
        sorted.extend(all);
        sorted
    }
}

impl<K: Serialize, V: Serialize> Serialize for Sorted<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K: Ord + Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Sorted<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = BTreeMap::<K, V>::deserialize(deserializer)?;
        Ok(Self(all.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::MetricId;
    use crate::minute::{Aggregate, Counter, MinuteRow};

    proptest! {
        #[test]
        fn it_is_the_map_that_it_stands_for(
            put in proptest::collection::vec((0_u16..40, any::<u8>()), 0..60),
            taken in proptest::collection::vec(0_u16..40, 0..20),
        ) {
            let mut map: BTreeMap<String, u8> = BTreeMap::new();
            let mut flat: Sorted<String, u8> = Sorted::default();
            for (number, value) in put {
                let key = number.to_string();
                match value % 4 {
                    0 => {
                        flat.insert_new(key.clone(), value);
                        map.entry(key).or_insert(value);
                    }
                    1 => {
                        let is_new = !map.contains_key(&key);
                        let added = flat.add(key.clone(), value, |known, it| *known ^= it);
                        prop_assert_eq!(added, is_new);
                        map.entry(key).and_modify(|it| *it ^= value).or_insert(value);
                    }
                    2 => {
                        flat.fill(&[(key.clone(), value), ("x".to_owned(), 1)].into_iter().collect());
                        map.entry(key).or_insert(value);
                        map.entry("x".to_owned()).or_insert(1);
                    }
                    _ => prop_assert_eq!(flat.insert(key.clone(), value), map.insert(key, value)),
                }
            }
            for key in taken.iter().map(u16::to_string) {
                prop_assert_eq!(flat.contains_key(&key), map.contains_key(&key));
                prop_assert_eq!(flat.remove(key.as_str()), map.remove(key.as_str()));
            }
            flat.retain(|key, it| key != "7" && *it != 7);
            map.retain(|key, it| key != "7" && *it != 7);
            for key in (0..40).map(|it| it.to_string()) {
                prop_assert_eq!(flat.get(&key), map.get(&key));
                prop_assert_eq!(flat.get_mut(key.as_str()), map.get_mut(key.as_str()));
            }
            prop_assert!(flat.iter().eq(&map) && flat.keys().eq(map.keys()));
            prop_assert!(flat.values().eq(map.values()));
            prop_assert_eq!((flat.len(), flat.is_empty()), (map.len(), map.is_empty()));
            prop_assert_eq!(format!("{flat:?}"), format!("{map:?}"));
            let json = serde_json::to_string(&flat).expect("a map is JSON");
            prop_assert_eq!(&json, &serde_json::to_string(&map).expect("a map is JSON"));
            let read: Sorted<String, u8> = serde_json::from_str(&json).expect("it was written so");
            prop_assert_eq!(&read, &flat);
            prop_assert!(flat.into_iter().eq(map));
        }
    }

    #[test]
    fn a_row_of_a_fleet_takes_forty_bytes_a_metric_and_hardly_more_room_than_that() {
        assert!(size_of::<(MetricId, Aggregate)>() <= 40);
        assert!(size_of::<(MetricId, Counter)>() <= 40);
        assert!(size_of::<MinuteRow>() <= 112);
        let mut room = Sorted::with_capacity(18);
        room.extend((0..18_u16).map(|it| (MetricId(it), it)));
        assert_eq!(room.0.capacity(), 18);
        let mut grown = Sorted::default();
        for number in (0..33_u16).rev() {
            grown.insert(number, number);
            assert!(grown.0.capacity() < grown.len() + GROWS_BY);
        }
        assert!(grown.clone().0.capacity() < grown.len() + GROWS_BY);
    }
}
