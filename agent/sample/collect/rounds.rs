//! Rounds made by hand and what a tick says of them, for tests.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::catalog::Metric;
use gpufleet_telemetry::identity::Resource;
use gpufleet_telemetry::sample::{Reading, Readings, ResourceSamples, Sample};
use gpufleet_telemetry::tick::{PointValue, ResourceTick};
use gpufleet_telemetry::time::Timestamp;

use super::super::{Round, SampleConfig};
use super::{Collector, KINDS};
use crate::read::NodeFacts;

/// A collector for these readers, by name and period in seconds.
pub(in super::super) fn collector(readers: &[(&str, u64)]) -> Collector {
    let readers = readers
        .iter()
        .map(|(name, seconds)| (Arc::from(*name), Duration::from_secs(*seconds)));
    Collector::new(
        Arc::new(NodeFacts::for_tests()),
        &SampleConfig::default(),
        readers,
    )
}

/// A round of a reader.
pub(super) fn round(reader: usize, second: i64, resources: Vec<ResourceSamples>) -> Round {
    let at = Timestamp::from_seconds(second);
    Round {
        reader,
        at,
        result: Ok(Readings {
            at,
            resources,
            events: Vec::new(),
        }),
        duration: Duration::from_millis(1),
    }
}

/// What a round tells of a resource.
pub(super) fn told(resource: Resource, samples: &[(&Metric, Reading)]) -> ResourceSamples {
    let sample = |(metric, reading): &(&Metric, Reading)| Sample {
        metric: metric.id,
        part: None,
        reading: *reading,
    };
    ResourceSamples {
        resource: Arc::new(resource),
        samples: samples.iter().map(sample).collect(),
    }
}

/// The tick of ten seconds from this one on.
pub(in super::super) fn close(collector: &mut Collector, start: i64) -> Vec<ResourceTick> {
    let moment = Timestamp::from_seconds;
    collector.close_tick(moment(start), moment(start + 10))
}

/// The bits of a tick, bit 0 its first second, in the order of [`KINDS`].
pub(super) fn bits(tick: &ResourceTick) -> [u64; 5] {
    KINDS.map(|kind| {
        let point = tick.points.iter().find(|it| it.metric == kind.id);
        match point.expect("it is there").value {
            PointValue::SecondBits(bits) => bits,
            other => panic!("{other:?}"),
        }
    })
}
