//! What is kept of the resources from tick to tick, in the order in which they are met.
//!
//! The fleet hands out its resources in the same order until one of them comes or goes. So the one after the last is
//! tried first, by the address of its name; only what is not there is looked up by the name itself, and put there
//! for the next tick. To look a hundred thousand up each tick costs more than to judge them.
//!
//! Limits: a resource that was not met for [`FORGET_NS`] is forgotten.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use crate::store::model::ResourceKey;

/// A resource that was not met for this long is forgotten, nanoseconds.
const FORGET_NS: i64 = 3_600 * NANOS_PER_SECOND;

/// What is kept of every resource.
pub(super) struct Table<T> {
    rows: Vec<Row<T>>,
    places: HashMap<ResourceKey, usize>,
    /// How many were met at this tick: those before it.
    met: usize,
}

struct Row<T> {
    key: ResourceKey,
    seen: Timestamp,
    kept: T,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            places: HashMap::new(),
            met: 0,
        }
    }
}

impl<T> Table<T> {
    /// A new tick.
    pub(super) const fn begin(&mut self) {
        self.met = 0;
    }

    /// What is kept of a resource that is met now; `new` where nothing is.
    pub(super) fn meet(
        &mut self,
        key: &ResourceKey,
        now: Timestamp,
        new: impl FnOnce() -> T,
    ) -> &mut T {
        let next = self.rows.get(self.met);
        let place = match next.is_some_and(|it| is_at_same_address(&it.key, key)) {
            true => self.met,
            false => self.found(key, new),
        };
        // One that is met a second time in a tick stays where it is.
        if place == self.met {
            self.met += 1;
        }
        let row = &mut self.rows[place];
        row.seen = now;
        &mut row.kept
    }

    /// Where a resource is that is not where it was, after it was put there.
    fn found(&mut self, key: &ResourceKey, new: impl FnOnce() -> T) -> usize {
        let place = match self.places.get(key) {
            Some(place) => *place,
            None => {
                self.rows.push(Row {
                    key: key.clone(),
                    seen: Timestamp::default(),
                    kept: new(),
                });
                self.places.insert(key.clone(), self.rows.len() - 1);
                self.rows.len() - 1
            }
        };
        if place < self.met {
            return place;
        }
        // Told anew after it had gone, its name may be at another address.
        self.rows[place].key = key.clone();
        if place != self.met {
            self.rows.swap(place, self.met);
            for at in [place, self.met] {
                if let Some(place) = self.places.get_mut(&self.rows[at].key) {
                    *place = at;
                }
            }
        }
        self.met
    }

    /// Forgets what was not met for long. Only what was not met at this tick is looked at.
    pub(super) fn forget(&mut self, now: Timestamp) {
        let mut at = self.met;
        while let Some(row) = self.rows.get(at) {
            if now.since(row.seen) < FORGET_NS {
                at += 1;
                continue;
            }
            let gone = self.rows.swap_remove(at);
            self.places.remove(&gone.key);
            let moved = self.rows.get(at).map(|it| &it.key);
            if let Some(place) = moved.and_then(|it| self.places.get_mut(it)) {
                *place = at;
            }
        }
    }
}

/// Whether two names are one, as far as their addresses say: where both are held, the same address is the same name.
fn is_at_same_address(one: &ResourceKey, other: &ResourceKey) -> bool {
    one.kind == other.kind
        && Arc::ptr_eq(&one.id, &other.id)
        && Arc::ptr_eq(&one.cluster, &other.cluster)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;

    fn key(id: &str) -> ResourceKey {
        ResourceKey {
            cluster: "prod".into(),
            kind: ResourceKind::Gpu,
            id: id.into(),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_795_000_000 + seconds)
    }

    /// What is kept of each, as told when it was first met.
    fn tick(table: &mut Table<String>, keys: &[ResourceKey], now: Timestamp) -> Vec<String> {
        table.begin();
        let mut met = |key: &ResourceKey| {
            let new = || {
                format!(
                    "{} first met at {}",
                    key.id,
                    now.seconds() - at(0).seconds()
                )
            };
            table.meet(key, now, new).clone()
        };
        let kept = keys.iter().map(&mut met).collect();
        table.forget(now);
        kept
    }

    #[test]
    fn what_is_kept_stays_with_its_resource_whatever_the_order_they_come_in() {
        let mut table = Table::default();
        let mut keys: Vec<ResourceKey> = (0..9).map(|it| key(&it.to_string())).collect();
        for round in 0..200_usize {
            let expected: Vec<String> = keys
                .iter()
                .map(|it| format!("{} first met at 0", it.id))
                .collect();
            assert_eq!(tick(&mut table, &keys, at(round as i64)), expected);
            // Another order, one of them by a name of its own at another address.
            keys.rotate_left(round % 4);
            keys.swap(round % 9, (round * 7) % 9);
            keys[round % 9] = key(&keys[round % 9].id.clone());
        }
        assert_eq!((table.rows.len(), table.places.len()), (9, 9));
        for (place, row) in table.rows.iter().enumerate() {
            assert_eq!(table.places[&row.key], place);
        }
    }

    #[test]
    fn one_that_is_met_twice_in_a_tick_is_one() {
        let mut table = Table::default();
        let (one, other) = (key("a"), key("b"));
        let keys = [one.clone(), other.clone(), one, other];
        for seconds in 0..3 {
            let kept = tick(&mut table, &keys, at(seconds));
            assert_eq!((&kept[0], &kept[1]), (&kept[2], &kept[3]));
            assert!(kept[0].starts_with("a first") && kept[1].starts_with("b first"));
        }
        assert_eq!(table.rows.len(), 2);
    }

    #[test]
    fn what_is_away_for_a_while_is_known_again_and_after_an_hour_it_is_new() {
        let mut table = Table::default();
        let keys: Vec<ResourceKey> = (0..5).map(|it| key(&it.to_string())).collect();
        tick(&mut table, &keys, at(0));
        tick(&mut table, &keys[3..], at(1_800));
        let again = tick(&mut table, &keys[1..], at(3_500));
        assert_eq!(again[0], "1 first met at 0");
        tick(&mut table, &keys[1..], at(3_600));
        assert_eq!(
            (table.rows.len(), table.places.len()),
            (4, 4),
            "0 is forgotten"
        );
        let all = tick(&mut table, &keys, at(3_610));
        assert_eq!(all[0], "0 first met at 3610");
        assert_eq!(all[4], "4 first met at 0");
    }
}
