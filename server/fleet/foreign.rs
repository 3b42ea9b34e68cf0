//! Foreign OTLP comes at least once: a point that is not newer than the newest of its series is
//! taken for a second copy, dropped and counted.

use std::collections::HashMap;

use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::identity::Part;
use gpufleet_telemetry::time::Timestamp;

use super::MAX_FOREIGN_SERIES;
use super::drops::Drop;
use crate::store::model::{ForeignMark, ResourceKey};

/// How far foreign series have been seen.
#[derive(Debug, Default)]
pub(super) struct Marks {
    newest: HashMap<[u8; 16], Timestamp>,
    touched: Vec<[u8; 16]>,
}

impl Marks {
    /// Takes a point's time as its series' newest, or says why not.
    pub(super) fn advance(
        &mut self,
        key: &ResourceKey,
        metric: MetricId,
        part: Option<&Part>,
        at: Timestamp,
    ) -> Result<(), Drop> {
        let series = series(key, metric, part);
        if self.newest.len() >= MAX_FOREIGN_SERIES && !self.newest.contains_key(&series) {
            return Err(Drop::TooManySeries);
        }
        let newest = self.newest.entry(series).or_insert(Timestamp(i64::MIN));
        if at <= *newest {
            return Err(Drop::NotNewer);
        }
        *newest = at;
        self.touched.push(series);
        Ok(())
    }

    /// Remembers what the store knows.
    pub(super) fn restore(&mut self, mark: ForeignMark) {
        self.newest.insert(mark.series, mark.newest);
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

/// A series' name as 128 bits of FNV-1a, the same on every machine and in every version.
fn series(key: &ResourceKey, metric: MetricId, part: Option<&Part>) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut hash = OFFSET;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0xff]) {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    };
    feed(key.cluster.as_bytes());
    feed(key.kind.name().as_bytes());
    feed(key.id.as_bytes());
    feed(&metric.0.to_le_bytes());
    if let Some(part) = part {
        feed(part.kind.attribute().as_bytes());
        feed(part.id.as_bytes());
    }
    hash.to_be_bytes()
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
        let mut advance =
            |part: Option<&Part>, at| marks.advance(&key, MetricId(10), part, Timestamp(at));
        assert_eq!(advance(None, 5), Ok(()));
        assert_eq!(advance(None, 5), Err(Drop::NotNewer));
        assert_eq!(advance(None, 4), Err(Drop::NotNewer));
        assert_eq!(advance(Some(&part), 4), Ok(()), "another series");
        assert_eq!(advance(None, 6), Ok(()));
        let known = marks.drain();
        assert_eq!(known.len(), 2, "each series once");
        let mut restored = Marks::default();
        known.into_iter().for_each(|mark| restored.restore(mark));
        let again = restored.advance(&key, MetricId(10), None, Timestamp(6));
        assert_eq!(again, Err(Drop::NotNewer));
        assert!(restored.drain().is_empty());
    }
}
