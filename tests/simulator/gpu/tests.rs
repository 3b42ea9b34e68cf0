//! What a simulated GPU says of itself.

use super::*;

const NOON: Timestamp = Timestamp::from_seconds(1_800_000_100);

fn points(node: usize, index: usize, condition: Condition) -> Vec<Point> {
    let mut gpu = SimulatedGpu::new(1, node, index, &NodeFacts::for_tests());
    gpu.tick(Noise::new(1, 0, 0), NOON, 10, condition)
}

fn value(points: &[Point], metric: &Metric) -> PointValue {
    points
        .iter()
        .find(|point| point.metric == metric.id)
        .expect("the metric is simulated")
        .value
}

#[test]
fn a_gpu_has_at_least_the_sixty_metrics_of_the_benchmark_each_once() {
    let points = points(0, 0, Condition::Healthy);
    let mut ids: Vec<_> = points.iter().map(|point| point.metric).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), points.len());
    assert!(ids.len() >= 60, "{}", ids.len());
}

#[test]
fn every_second_of_a_tick_has_its_evidence() {
    for (node, index, active, stalled, held) in [
        (7, 0, 0x3ff, 0x3ff, 0x3ff),
        (6, 0, 0, 0, 0x3ff),
        (6, 7, 0, 0, 0),
    ] {
        let points = points(node, index, Condition::Healthy);
        for (metric, bits) in [
            (&gpu::OBSERVED, 0x3ff),
            (&gpu::ACTIVE, active),
            (&gpu::STALLED, stalled),
            (&gpu::HELD, held),
        ] {
            let expected = PointValue::SecondBits(bits);
            assert_eq!(
                value(&points, metric),
                expected,
                "{node}/{index} {}",
                metric.name
            );
        }
    }
}

#[test]
fn a_gpu_off_the_bus_has_reasons_and_no_values_but_the_xid_it_went_with() {
    let condition = Condition::Gone {
        reason: Missing::GpuLost,
        xid: Some(79),
    };
    for point in points(0, 0, condition) {
        let is_reason = point.value == PointValue::Missing(Missing::GpuLost);
        assert!(
            is_reason
                || point.value == PointValue::SecondBits(0)
                || [gpu::XID.id, gpu::LAST_XID.id].contains(&point.metric),
            "{point:?}"
        );
    }
}

#[test]
fn heat_takes_clock_and_is_told() {
    let hot = points(0, 0, Condition::Hot);
    let PointValue::Gauge { value: reasons, .. } = value(&hot, &gpu::THROTTLE_REASONS) else {
        panic!("a code");
    };
    let PointValue::Gauge { value: clock, .. } = value(&hot, &gpu::SM_CLOCK) else {
        panic!("a gauge");
    };
    assert_eq!(reasons, f64::from(0x60));
    assert!(clock < 1.3e9, "{clock}");
}
