//! Whose word is evidence of the seconds of a GPU.
//!
//! That it is there and held one reader says: the best one that is heard. Whether it works that one says where it reads
//! it; else the readings of others that stand do, the same that the tick has.

use gpufleet_telemetry::catalog::{Metric, own};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::sample::Sample;
use gpufleet_telemetry::tick::{Point, PointValue};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::super::evidence::{self, KINDS};
use super::super::series::Series;
use super::{Entry, Reader, nanos};

impl Entry {
    /// Takes the evidence of a round, if this reader is the one to say or the other is silent.
    pub(super) fn witness(
        &mut self,
        readers: &[Reader],
        reader: usize,
        at: Timestamp,
        samples: &[Sample],
    ) {
        let is_card = matches!(self.resource.kind, ResourceKind::Gpu | ResourceKind::Share);
        // Who only says what it is has measured nothing, and what a probe found is of then.
        let is_of_now = samples.iter().any(|it| !own::is_probed(it.metric));
        if !is_card || !is_of_now {
            return;
        }
        let (mine, other) = (&readers[reader], &readers[self.witness]);
        let silent = at.since(self.witnessed) > nanos(other.period * 3);
        if reader != self.witness && mine.rank >= other.rank && !silent {
            return;
        }
        // Its own readings of the round before stand as well, and say nothing beside what it reads now.
        let others = |metric: &Metric| {
            let standing = self.standing(metric, at);
            standing.filter(|it| it.producer != reader)?.last.ok()
        };
        let found = evidence::judge(&self.resource, samples, &others, self.free(mine));
        if !found.observed && reader != self.witness {
            return;
        }
        self.witness = reader;
        self.witnessed = at;
        // A round stands until the reader's next one.
        let first = at.seconds();
        let seconds = i64::try_from(mine.period.as_secs()).unwrap_or(1).max(1);
        self.seconds
            .push((first, first + seconds, evidence::flags(found)));
    }

    /// The series of a metric of the resource itself, where a valid reading of it stands at this moment.
    pub(super) fn standing(&self, metric: &Metric, at: Timestamp) -> Option<&Series> {
        let series = &self.series[*self.places.get(&(metric.id, None))?];
        (series.last.is_ok() && series.is_fresh(at)).then_some(series)
    }

    /// The evidence of the tick from `start` to `end`, as points.
    pub(super) fn close_evidence(
        &mut self,
        start: Timestamp,
        end: Timestamp,
        points: &mut Vec<Point>,
    ) {
        if self.seconds.is_empty() {
            return;
        }
        let (first, last) = (start.seconds(), end.0.div_euclid(NANOS_PER_SECOND));
        let mut bits = [0_u64; KINDS.len()];
        for (from, to, flags) in &self.seconds {
            // A round that came after its own tick had been closed is evidence of this one's start.
            for second in (*from).max(first)..(*to).min(last) {
                for (bits, set) in bits.iter_mut().zip(flags) {
                    *bits |= u64::from(*set) << (second - first);
                }
            }
        }
        self.seconds.retain(|(_, to, _)| *to > last);
        points.extend(KINDS.iter().zip(bits).map(|(metric, bits)| Point {
            metric: metric.id,
            part: None,
            value: PointValue::SecondBits(bits),
        }));
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;
    use gpufleet_telemetry::identity::{Resource, attribute};
    use gpufleet_telemetry::sample::{Missing, Reading};

    use super::super::Collector;
    use super::super::rounds::{bits, close, collector, round, told};
    use super::*;

    const ALL: u64 = 0b11_1111_1111;

    const NVML: usize = 0;
    const EXPORTER: usize = 1;

    /// A MIG instance of an A100: NVML knows its UUID and reads its memory and processes, an exporter knows its number and
    /// reads its engine.
    fn hears(
        collector: &mut Collector,
        reader: usize,
        second: i64,
        samples: &[(&Metric, Reading)],
    ) {
        let (id, source) = match reader {
            NVML => ("MIG-1", "nvml"),
            _ => ("GPU-1::gi3", "exporter:dcgm"),
        };
        let share = Resource::new(ResourceKind::Share, id)
            .with(attribute::PARENT, "GPU-1")
            .with(attribute::MIG_GPU_INSTANCE, "3")
            .with(attribute::SOURCE, source);
        collector.round(round(reader, second, vec![told(share, samples)]));
    }

    /// Ten seconds of NVML from `start` on; the exporter's round, where there is one, comes a moment after the first.
    fn ten_seconds(collector: &mut Collector, start: i64, exported: Option<f64>) -> [u64; 5] {
        let held = [
            (&gpu::MEMORY_USED, Ok(1e9)),
            (&gpu::PROCESSES, Ok(1.0)),
            (&gpu::GRAPHICS_ACTIVE, Err(Missing::NotSupported)),
        ];
        for second in start..start + 10 {
            hears(collector, NVML, second, &held);
            if let Some(engine) = exported.filter(|_| second == start) {
                let engine = [(&gpu::GRAPHICS_ACTIVE, Ok(engine))];
                hears(collector, EXPORTER, second, &engine);
            }
        }
        let ticks = close(collector, start);
        assert_eq!(ticks.len(), 1, "one share is one resource: {ticks:?}");
        bits(&ticks[0])
    }

    #[test]
    fn an_instance_whose_activity_only_an_exporter_reads_is_active_when_that_says_so() {
        let mut collector = collector(&[("nvml", 1), ("exporter:dcgm", 10)]);
        let late = ALL - 1;
        let first = ten_seconds(&mut collector, 1_000, Some(0.95));
        assert_eq!(first, [ALL, late, 0, ALL, ALL]);
        let works_on = ten_seconds(&mut collector, 1_010, Some(0.95));
        assert_eq!(works_on, [ALL, ALL, 0, ALL, ALL]);
        let rests = ten_seconds(&mut collector, 1_020, Some(0.0));
        assert_eq!(rests, [ALL, 1, 0, ALL, ALL], "until the exporter says so");
        ten_seconds(&mut collector, 1_030, Some(0.95));
        // It says nothing any more: its word stands for three of its rounds, as everywhere.
        for start in [1_040, 1_050] {
            let stands = ten_seconds(&mut collector, start, None);
            assert_eq!(stands, [ALL, ALL, 0, ALL, ALL], "{start}");
        }
        let last = ten_seconds(&mut collector, 1_060, None);
        assert_eq!(last, [ALL, 1, 0, ALL, ALL]);
        let unknown = ten_seconds(&mut collector, 1_070, None);
        assert_eq!(unknown, [ALL, 0, 0, ALL, ALL]);
    }

    #[test]
    fn what_a_reader_said_a_second_ago_is_no_word_of_another() {
        let mut collector = collector(&[("nvml", 1), ("exporter:dcgm", 10)]);
        for second in 1_000..1_010 {
            let engine = match second < 1_005 {
                true => Ok(0.9),
                false => Err(Missing::HeldByOther),
            };
            let read = [(&gpu::GRAPHICS_ACTIVE, engine), (&gpu::PROCESSES, Ok(1.0))];
            hears(&mut collector, NVML, second, &read);
        }
        let ticks = close(&mut collector, 1_000);
        let early = 0b00_0001_1111;
        assert_eq!(bits(&ticks[0]), [ALL, early, 0, ALL, ALL]);
    }
}
