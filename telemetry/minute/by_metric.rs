//! What is kept of several metrics, sorted by their numbers in one piece of memory.
//!
//! A map of nodes takes a third more for the same, and a commit has a row of each resource of the fleet in memory at once.
//! Rows have a few dozen metrics: finding one looks at five of them, and one that comes in order is put at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;
use std::slice;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::catalog::MetricId;

/// How many more there is room for once it is full: doubling would leave nearly half of it empty in every row of a fleet.
const GROWS_BY: usize = 4;

/// A map from metrics, as [`BTreeMap`] is one.
#[derive(Clone, PartialEq)]
pub struct ByMetric<T>(Vec<(MetricId, T)>);

/// Its entries in the order of the metrics' numbers.
type Entries<'a, T> =
    std::iter::Map<slice::Iter<'a, (MetricId, T)>, fn(&'a (MetricId, T)) -> (&'a MetricId, &'a T)>;

impl<T> ByMetric<T> {
    /// Nothing yet, with room for so many.
    pub fn with_capacity(many: usize) -> Self {
        Self(Vec::with_capacity(many))
    }

    /// How many metrics it has something of.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What it has of a metric.
    pub fn get(&self, metric: &MetricId) -> Option<&T> {
        let place = self.place(*metric).ok()?;
        Some(&self.0[place].1)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, metric: &MetricId) -> Option<&mut T> {
        let place = self.place(*metric).ok()?;
        Some(&mut self.0[place].1)
    }

    /// Whether it has something of a metric.
    pub fn contains_key(&self, metric: &MetricId) -> bool {
        self.place(*metric).is_ok()
    }

    /// Puts something of a metric in, and hands out what it had of it.
    pub fn insert(&mut self, metric: MetricId, value: T) -> Option<T> {
        match self.place(metric) {
            Ok(place) => Some(std::mem::replace(&mut self.0[place].1, value)),
            Err(place) => {
                if self.0.len() == self.0.capacity() {
                    self.0.reserve_exact(GROWS_BY);
                }
                self.0.insert(place, (metric, value));
                None
            }
        }
    }

    /// Takes out what it has of a metric.
    pub fn remove(&mut self, metric: &MetricId) -> Option<T> {
        let place = self.place(*metric).ok()?;
        Some(self.0.remove(place).1)
    }

    /// Keeps those for which this holds.
    pub fn retain(&mut self, mut keeps: impl FnMut(&MetricId, &mut T) -> bool) {
        self.0.retain_mut(|it| keeps(&it.0, &mut it.1));
    }

    /// All of it, in the order of the metrics' numbers.
    pub fn iter(&self) -> Entries<'_, T> {
        let entry: fn(_) -> _ = entry;
        self.0.iter().map(entry)
    }

    /// The metrics, in the order of their numbers.
    pub fn keys(&self) -> impl Iterator<Item = &MetricId> {
        self.0.iter().map(|it| &it.0)
    }

    /// What it has, in the order of the metrics' numbers.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|it| &it.1)
    }

    /// Where a metric stands, or would. What comes in order belongs at the end.
    fn place(&self, metric: MetricId) -> Result<usize, usize> {
        match self.0.last() {
            Some((last, _)) if *last < metric => Err(self.0.len()),
            _ => self.0.binary_search_by_key(&metric, |it| it.0),
        }
    }
}

fn entry<T>(it: &(MetricId, T)) -> (&MetricId, &T) {
    (&it.0, &it.1)
}

impl<T> Default for ByMetric<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: fmt::Debug> fmt::Debug for ByMetric<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<T> Index<&MetricId> for ByMetric<T> {
    type Output = T;

    fn index(&self, metric: &MetricId) -> &T {
        self.get(metric).expect("it has something of the metric")
    }
}

impl<'a, T> IntoIterator for &'a ByMetric<T> {
    type Item = (&'a MetricId, &'a T);
    type IntoIter = Entries<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T> Extend<(MetricId, T)> for ByMetric<T> {
    fn extend<I: IntoIterator<Item = (MetricId, T)>>(&mut self, more: I) {
        for (metric, value) in more {
            self.insert(metric, value);
        }
    }
}

impl<T> FromIterator<(MetricId, T)> for ByMetric<T> {
    fn from_iter<I: IntoIterator<Item = (MetricId, T)>>(all: I) -> Self {
        let mut by_metric = Self::default();
        by_metric.extend(all);
        by_metric
    }
}

impl<T: Serialize> Serialize for ByMetric<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByMetric<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = BTreeMap::<MetricId, T>::deserialize(deserializer)?;
        Ok(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::minute::{Aggregate, Counter, MinuteRow};

    proptest! {
        #[test]
        fn it_is_the_map_that_it_stands_for(
            put in proptest::collection::vec((0_u16..40, any::<u8>()), 0..60),
            taken in proptest::collection::vec(0_u16..40, 0..20),
        ) {
            let put = || put.iter().map(|(id, it)| (MetricId(*id), *it));
            let mut map: BTreeMap<MetricId, u8> = BTreeMap::new();
            let mut flat = ByMetric::default();
            for (id, it) in put() {
                prop_assert_eq!(flat.insert(id, it), map.insert(id, it));
            }
            for id in taken.iter().map(|it| MetricId(*it)) {
                prop_assert_eq!(flat.contains_key(&id), map.contains_key(&id));
                prop_assert_eq!(flat.remove(&id), map.remove(&id));
            }
            flat.retain(|id, it| id.0 != 7 && *it != 7);
            map.retain(|id, it| id.0 != 7 && *it != 7);
            for id in (0..40).map(MetricId) {
                prop_assert_eq!(flat.get(&id), map.get(&id));
                prop_assert_eq!(flat.get_mut(&id), map.get_mut(&id));
            }
            prop_assert!(flat.iter().eq(&map) && flat.keys().eq(map.keys()));
            prop_assert!(flat.values().eq(map.values()));
            prop_assert_eq!((flat.len(), flat.is_empty()), (map.len(), map.is_empty()));
            prop_assert_eq!(format!("{flat:?}"), format!("{map:?}"));
            let json = serde_json::to_string(&flat).expect("a map is JSON");
            prop_assert_eq!(&json, &serde_json::to_string(&map).expect("a map is JSON"));
            let read: ByMetric<u8> = serde_json::from_str(&json).expect("it was written so");
            prop_assert_eq!(read, flat);
        }
    }

    #[test]
    fn a_row_of_a_fleet_takes_forty_bytes_a_metric_and_hardly_more_room_than_that() {
        assert!(size_of::<(MetricId, Aggregate)>() <= 40);
        assert!(size_of::<(MetricId, Counter)>() <= 40);
        assert!(size_of::<MinuteRow>() <= 112);
        let mut room = ByMetric::with_capacity(18);
        let room_before = room.0.capacity();
        room.extend((0..18).map(|it| (MetricId(it), it)));
        assert_eq!(room.0.capacity(), room_before);
        let mut grown = ByMetric::default();
        for id in (0..33).rev().map(MetricId) {
            grown.insert(id, id.0);
            assert!(grown.0.capacity() < grown.len() + GROWS_BY);
        }
    }
}
