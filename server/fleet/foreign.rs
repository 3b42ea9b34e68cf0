//! Foreign OTLP comes at least once: a point that is not newer than the newest of its series is
//! taken for a second copy, dropped and counted.
//!
//! At most [`MAX_FOREIGN_SERIES`] series are remembered. Beyond that those whose newest point is oldest
//! are forgotten: a second copy of such a point would be taken for a new one.

use std::collections::{HashMap, HashSet};

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::time::Timestamp;

use super::MAX_FOREIGN_SERIES;
use super::drops::Drop;
use crate::fnv;
use crate::store::model::{ForeignMark, ResourceKey};

/// One in so many series is forgotten at a time, so that the search for the oldest is rare.
const FORGOTTEN_AT_ONCE: usize = 16;

/// How far foreign series have been seen.
#[derive(Debug, Default)]
pub(super) struct Marks {
    newest: HashMap<[u8; 16], Timestamp>,
    touched: Vec<[u8; 16]>,
}

impl Marks {
    /// Takes a point's time as its series' newest and says which was the newest before, or why not. A
    /// newest one for which `is_ahead` holds came under clocks that were set back since, and holds
    /// nothing up.
    pub(super) fn advance(
        &mut self,
        (key, metric, part): (&ResourceKey, MetricId, Option<&Part>),
        at: Timestamp,
        is_ahead: impl Fn(Timestamp) -> bool,
    ) -> Result<Option<Timestamp>, Drop> {
        let series = series(key, metric, part);
        let before = self.newest.get(&series).copied();
        let before = before.filter(|before| !is_ahead(*before));
        if before.is_some_and(|before| at <= before) {
            return Err(Drop::NotNewer);
        }
        if before.is_none() && !self.newest.contains_key(&series) {
            self.make_room();
        }
        self.newest.insert(series, at);
        self.touched.push(series);
        Ok(before)
    }

    /// Remembers what the store knows.
    pub(super) fn restore(&mut self, mark: ForeignMark) {
        self.make_room();
        self.newest.insert(mark.series, mark.newest);
    }

    /// Forgets the oldest when there are as many as are remembered; not those that the store does not
    /// know yet.
    fn make_room(&mut self) {
        if self.newest.len() < MAX_FOREIGN_SERIES {
            return;
        }
        let touched: HashSet<_> = self.touched.iter().collect();
        let known = self.newest.iter().filter(|it| !touched.contains(it.0));
        let mut by_age: Vec<(Timestamp, [u8; 16])> = known.map(|(key, at)| (*at, *key)).collect();
        let many = (MAX_FOREIGN_SERIES / FORGOTTEN_AT_ONCE).min(by_age.len());
        if many > 0 {
            by_age.select_nth_unstable(many - 1);
        }
        for (_, series) in &by_age[..many] {
            self.newest.remove(series);
        }
    }

    /// Hands out what has moved since the last time, each series once.
    pub(super) fn drain(&mut self) -> Vec<ForeignMark> {
        self.touched.sort_unstable();
        self.touched.dedup();
        let newest = &self.newest;
        let marks = self.touched.drain(..).filter_map(|series| {
            let newest = *newest.get(&series)?;
            Some(ForeignMark { series, newest })
        });
        marks.collect()
    }
}

/// A series' name as 128 bits, which are stored.
fn series(key: &ResourceKey, metric: MetricId, part: Option<&Part>) -> [u8; 16] {
    let number = metric.0.to_le_bytes();
    let whose = [
        key.cluster.as_bytes(),
        key.kind.name().as_bytes(),
        key.id.as_bytes(),
        &number,
    ];
    let part = part.map(|it| [it.kind.attribute().as_bytes(), it.id.as_bytes()]);
    let all = whose.into_iter().chain(part.into_iter().flatten());
    let bytes = all.flat_map(|it| it.iter().copied().chain([0xff]));
    fnv::of_128_bits(bytes).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::{PartKind, ResourceKind};

    use super::*;

    #[test]
    fn only_a_newer_point_of_a_series_passes() {
        let key = ResourceKey {
            cluster: "c".into(),
            kind: ResourceKind::Gpu,
            id: "GPU-1".into(),
        };
        let part = Part::new(PartKind::NvLink, "0");
        let mut marks = Marks::default();
        let mut advance = |part: Option<&Part>, at| {
            let ahead = |it: Timestamp| it > Timestamp(100);
            marks.advance((&key, MetricId(10), part), Timestamp(at), ahead)
        };
        assert_eq!(advance(None, 5), Ok(None));
        assert_eq!(advance(None, 5), Err(Drop::NotNewer));
        assert_eq!(advance(None, 4), Err(Drop::NotNewer));
        assert_eq!(advance(Some(&part), 4), Ok(None), "another series");
        assert_eq!(advance(None, 900), Ok(Some(Timestamp(5))));
        assert_eq!(advance(None, 6), Ok(None), "that time has not come");
        let known = marks.drain();
        assert_eq!(known.len(), 2, "each series once");
        let mut restored = Marks::default();
        known.into_iter().for_each(|mark| restored.restore(mark));
        let again = restored.advance((&key, MetricId(10), None), Timestamp(6), |_| false);
        assert_eq!(again, Err(Drop::NotNewer));
        assert!(restored.drain().is_empty());
    }

    #[test]
    fn the_oldest_series_are_forgotten_when_there_are_too_many() {
        let mark = |number: u64| ForeignMark {
            series: u128::from(number).to_be_bytes(),
            newest: Timestamp(i64::try_from(number).expect("small")),
        };
        let mut marks = Marks::default();
        for number in 0..=MAX_FOREIGN_SERIES as u64 {
            marks.restore(mark(number));
        }
        let forgotten = MAX_FOREIGN_SERIES / FORGOTTEN_AT_ONCE;
        assert_eq!(marks.newest.len(), MAX_FOREIGN_SERIES + 1 - forgotten);
        let first = forgotten as u64;
        assert!(!marks.newest.contains_key(&mark(first - 1).series));
        assert!(marks.newest.contains_key(&mark(first).series));
    }
}
