//! A fleet for tests: two live clusters with what goes wrong in real ones, a recording of one
//! sample, and a simulated cluster.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::states::Recent;
use gpufleet_telemetry::catalog::{Metric, gpu, node, own};
use gpufleet_telemetry::identity::{
    AgentId, Origin, Part, PartKind, Resource, ResourceKind, attribute,
};
use gpufleet_telemetry::minute::Bitmaps;
use gpufleet_telemetry::sample::{Missing, Reading};
use gpufleet_telemetry::time::Timestamp;

use crate::fleet::live::{Live, LiveValue, Told};
use crate::store::model::ResourceKey;

/// The moment of the picture.
pub(crate) const NOW: Timestamp = Timestamp::from_seconds(1_790_000_050);

/// A name that tries everything.
pub(crate) const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'&\u{0}\u{202e}node";

/// What a made GPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    Work,
    Pause,
    Nothing,
    Unknown,
    Lost,
    Silent,
}

/// One resource on a node.
pub(crate) fn live(
    cluster: &str,
    node: &str,
    kind: ResourceKind,
    id: &str,
    origin: Origin,
) -> Live {
    let resource = Resource::new(kind, id)
        .with(attribute::CLUSTER, cluster)
        .with(attribute::NODE, node)
        .with(attribute::ORIGIN, origin.name())
        .with(attribute::SOURCE, "nvml");
    Live {
        key: ResourceKey {
            cluster: cluster.into(),
            kind,
            id: id.into(),
        },
        resource: Arc::new(resource),
        agent: Some(AgentId(uuid::Uuid::from_u128(7))),
        node: node.into(),
        origin,
        first_seen: NOW.shifted(-86_400_000_000_000),
        last_point: NOW.shifted(-3_000_000_000),
        received: NOW.shifted(-2_000_000_000),
        interval: Duration::from_secs(10),
        values: Vec::new(),
        bits: Bitmaps::default(),
        bits_start: NOW.shifted(-13_000_000_000),
        recent: Recent::default(),
        health: None,
        told: Told::default(),
    }
}

fn put(live: &mut Live, metric: Metric, part: Option<Part>, reading: Reading) {
    live.values.push(LiveValue {
        metric: metric.id,
        part: part.map(Arc::new),
        reading,
        max: None,
        at: live.last_point,
    });
    live.values
        .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
}

/// A GPU of a node.
pub(crate) fn gpu(cluster: &str, node: &str, index: u32, does: Does, origin: Origin) -> Live {
    let id = format!("GPU-{cluster}-{node}-{index:04}");
    let mut it = live(cluster, node, ResourceKind::Gpu, &id, origin);
    let mut resource = Resource::clone(&it.resource)
        .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3")
        .with(attribute::GPU_INDEX, index.to_string())
        .with(attribute::PCI_ADDRESS, format!("00000000:{index:02X}:00.0"))
        .with(attribute::DRIVER_VERSION, "580.95.05");
    if matches!(does, Does::Work | Does::Pause) {
        resource = resource.with(attribute::HOLDER, "pod:research/train-7b-0");
    }
    it.resource = Arc::new(resource);
    let seconds = 0b11_1111_1111_u64;
    it.bits = match does {
        Does::Work => Bitmaps {
            observed: seconds,
            active: seconds,
            stalled: 0,
            held: seconds,
            holder_known: seconds,
        },
        Does::Pause => Bitmaps {
            observed: seconds,
            active: 0,
            stalled: 0,
            held: seconds,
            holder_known: seconds,
        },
        Does::Nothing | Does::Silent => Bitmaps {
            observed: seconds,
            active: 0,
            stalled: 0,
            held: 0,
            holder_known: seconds,
        },
        Does::Unknown => Bitmaps {
            observed: seconds,
            active: seconds,
            ..Bitmaps::default()
        },
        Does::Lost => Bitmaps::default(),
    };
    if does == Does::Silent {
        it.last_point = NOW.shifted(-754_000_000_000);
        it.received = it.last_point;
        it.bits_start = it.last_point.shifted(-10_000_000_000);
    }
    it.recent.tick(it.bits_start, 10, &it.bits, true);
    let value = |value: f64| {
        if does == Does::Lost {
            Err(Missing::GpuLost)
        } else {
            Ok(value)
        }
    };
    let busy = if does == Does::Work { 0.93 } else { 0.0 };
    put(&mut it, gpu::UTILIZATION, None, value(busy));
    put(
        &mut it,
        gpu::TENSOR_ACTIVE,
        None,
        Err(Missing::NotSupported),
    );
    put(&mut it, gpu::MEMORY_TOTAL, None, value(85_520_809_984.0));
    put(
        &mut it,
        gpu::MEMORY_USED,
        None,
        value(if busy > 0.0 { 72e9 } else { 512e6 }),
    );
    put(&mut it, gpu::POWER, None, value(70.0 + busy * 600.0));
    put(&mut it, gpu::POWER_LIMIT, None, value(700.0));
    put(&mut it, gpu::TEMPERATURE, None, value(34.0 + busy * 30.0));
    put(&mut it, gpu::SM_CLOCK, None, value(1.98e9));
    put(&mut it, gpu::THROTTLE_REASONS, None, value(4.0));
    put(
        &mut it,
        gpu::XID,
        Some(Part::new(PartKind::Xid, "31")),
        Ok(2.0),
    );
    it
}

/// The machine itself.
pub(crate) fn machine(cluster: &str, node: &str, origin: Origin) -> Live {
    let mut it = live(cluster, node, ResourceKind::Node, node, origin);
    put(&mut it, node::CPU_BUSY, None, Ok(0.31));
    put(&mut it, node::CPU_COUNT, None, Ok(208.0));
    for (reader, success) in [("nvml", 1.0), ("exporter:dcgm", 0.0)] {
        let part = Some(Part::new(PartKind::Reader, reader));
        put(&mut it, own::READER_SUCCESS, part.clone(), Ok(success));
        put(&mut it, own::READER_DURATION, part.clone(), Ok(0.0042));
        put(
            &mut it,
            own::READER_LAST_SUCCESS,
            part,
            Ok(NOW.seconds() as f64 - 4.0),
        );
    }
    let part = Some(Part::new(PartKind::Stream, "metrics"));
    put(&mut it, own::SPOOL_AGE, part, Ok(11.0));
    it
}

/// A live machine none of whose readers tells anything: they are a test's own to make fail.
pub(crate) fn without_readers(cluster: &str, node: &str) -> Live {
    let mut it = machine(cluster, node, Origin::Live);
    let of_readers = [own::READER_SUCCESS.id, own::READER_LAST_SUCCESS.id];
    it.values.retain(|it| !of_readers.contains(&it.metric));
    it
}

/// The whole fleet.
pub(crate) fn fleet() -> Vec<Live> {
    let mut all = Vec::new();
    for place in 0..9 {
        let node = format!("h100-{place:02}");
        all.push(machine("prod", &node, Origin::Live));
        for index in 0..8 {
            let does = match (place, index) {
                (8, _) => Does::Silent,
                (3, 5) => Does::Lost,
                (4, 0..3) => Does::Unknown,
                (5, _) => Does::Nothing,
                (6, 0..4) => Does::Pause,
                _ => Does::Work,
            };
            all.push(gpu("prod", &node, index, does, Origin::Live));
        }
        if place == 8 {
            for it in all.iter_mut().filter(|it| *it.node == *node) {
                it.last_point = NOW.shifted(-754_000_000_000);
                it.received = it.last_point;
            }
        }
    }
    all.push(gpu("hostile", HOSTILE, 0, Does::Work, Origin::Live));
    let mut recorded = gpu(
        "h200-recorded",
        "captured-node",
        0,
        Does::Work,
        Origin::Recorded,
    );
    recorded.last_point = Timestamp::from_seconds(1_780_000_000);
    recorded.first_seen = recorded.last_point;
    all.push(recorded);
    for place in 0..8 {
        let node = format!("sim-{place}");
        all.push(machine("demo", &node, Origin::Simulated));
        for index in 0..8 {
            let does = if place < 5 { Does::Work } else { Does::Nothing };
            all.push(gpu("demo", &node, index, does, Origin::Simulated));
        }
    }
    all
}
