//! The collector by rounds made by hand, and the loop with readers that are slow or broken.

use gpufleet_telemetry::catalog::{self, Metric, gpu, own};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{Origin, PartKind, ResourceKind, attribute};
use gpufleet_telemetry::sample::{ResourceSamples, Sample};
use gpufleet_telemetry::tick::PointValue;

use super::collect::rounds::{close, collector};
use super::*;
use crate::read::ReadFuture;
use gpufleet_program::clock::SystemClock;

fn gpu_round(reader: usize, second: i64, source: &str, readings: &[(&Metric, f64)]) -> Round {
    let node = NodeFacts::for_tests();
    let resource = node.resource(ResourceKind::Gpu, "GPU-1", Origin::Live, source);
    let samples = readings
        .iter()
        .map(|(metric, value)| Sample {
            metric: metric.id,
            part: None,
            reading: Ok(*value),
        })
        .collect();
    Round {
        reader,
        at: Timestamp::from_seconds(second),
        result: Ok(Readings {
            at: Timestamp::from_seconds(second),
            resources: vec![ResourceSamples {
                resource: Arc::new(resource),
                samples,
            }],
            events: Vec::new(),
        }),
        duration: Duration::from_millis(3),
    }
}

fn value(tick: &ResourceTick, metric: &Metric) -> Option<PointValue> {
    let point = tick.points.iter().find(|point| point.metric == metric.id)?;
    Some(point.value)
}

#[test]
fn ten_seconds_of_samples_become_one_tick_with_a_bit_a_second() {
    let mut collector = collector(&[("nvml", 1)]);
    for second in 1_000..1_010 {
        let use_of = f64::from(u8::from(second >= 1_004));
        let readings = [(&gpu::UTILIZATION, use_of), (&gpu::PROCESSES, 1.0)];
        if second != 1_002 {
            collector.round(gpu_round(0, second, "nvml", &readings));
        }
    }
    let ticks = close(&mut collector, 1_000);
    let [tick] = &ticks[..] else {
        panic!("one GPU: {ticks:?}")
    };
    let bits = |metric| value(tick, metric);
    assert_eq!(
        bits(&gpu::OBSERVED),
        Some(PointValue::SecondBits(0b11_1111_1011))
    );
    assert_eq!(
        bits(&gpu::ACTIVE),
        Some(PointValue::SecondBits(0b11_1111_0000))
    );
    assert_eq!(bits(&gpu::HELD), bits(&gpu::OBSERVED));
    assert_eq!(
        value(tick, &gpu::UTILIZATION),
        Some(PointValue::Gauge {
            value: 6.0 / 9.0,
            max: Some(1.0)
        })
    );
    assert_eq!(
        close(&mut collector, 1_010),
        [],
        "nothing was read, nothing is said"
    );
}

#[test]
fn slowdowns_by_the_hardware_are_counted_when_they_begin_by_the_reader_that_is_believed() {
    let mut collector = collector(&[("nvml", 1), ("exporter:x", 1)]);
    // Idle, slowed down twice by heat, then by the brake; the power cap is no hardware slowdown.
    let reasons = [0x1, 0x48, 0x40, 0x0, 0x4, 0x80, 0x80, 0x0, 0x0, 0x0];
    for (second, reasons) in (1_000..).zip(reasons) {
        let readings = [(&gpu::THROTTLE_REASONS, f64::from(reasons))];
        collector.round(gpu_round(0, second, "nvml", &readings));
        // What lags behind sees the same at another moment.
        let lags = f64::from(u8::from(second % 2 == 0)) * 8.0;
        let readings = [(&gpu::THROTTLE_REASONS, lags)];
        collector.round(gpu_round(1, second, "exporter:x", &readings));
    }
    let ticks = close(&mut collector, 1_000);
    let total = |tick: &ResourceTick| match value(tick, &gpu::HARDWARE_SLOWDOWNS) {
        Some(PointValue::Counter { value, .. }) => Some(value),
        other => panic!("{other:?}"),
    };
    assert_eq!(total(&ticks[0]), Some(2.0));
    for second in 1_010..1_020 {
        let is_slow = f64::from(u8::from(second >= 1_015)) * 8.0;
        let readings = [(&gpu::THROTTLE_REASONS, is_slow)];
        collector.round(gpu_round(0, second, "nvml", &readings));
    }
    assert_eq!(total(&close(&mut collector, 1_010)[0]), Some(3.0));
}

#[test]
fn one_that_is_slowed_down_when_it_is_first_seen_did_not_begin_to_be() {
    let mut collector = collector(&[("nvml", 1)]);
    for second in 1_000..1_010 {
        let readings = [(&gpu::THROTTLE_REASONS, 8.0)];
        collector.round(gpu_round(0, second, "nvml", &readings));
    }
    let ticks = close(&mut collector, 1_000);
    let told = value(&ticks[0], &gpu::HARDWARE_SLOWDOWNS);
    assert!(
        matches!(told, Some(PointValue::Counter { value: 0.0, .. })),
        "{told:?}"
    );
}

#[test]
fn until_it_was_said_who_holds_a_gpu_it_is_not_known_that_nobody_does() {
    let mut collector = collector(&[("nvml", 1), ("attribute", 5)]);
    for second in 1_000..1_010 {
        collector.round(gpu_round(0, second, "nvml", &[(&gpu::PROCESSES, 0.0)]));
        if second == 1_005 {
            collector.round(gpu_round(1, second, "attribute", &[]));
        }
    }
    let ticks = close(&mut collector, 1_000);
    let bits = |metric| value(&ticks[0], metric);
    let all = PointValue::SecondBits(0b11_1111_1111);
    assert_eq!(bits(&gpu::OBSERVED), Some(all));
    let known = PointValue::SecondBits(0b11_1100_0000);
    assert_eq!(bits(&gpu::HOLDER_KNOWN), Some(known));
}

#[test]
fn without_a_driver_who_knows_who_holds_gpus_says_that_nobody_does_and_beside_one_an_exporter_s_are_unknown()
 {
    let known = |readers: &[(&str, u64)]| {
        let mut collector = collector(readers);
        for second in 1_000..1_010 {
            let busy = [(&gpu::UTILIZATION, 0.5)];
            collector.round(gpu_round(0, second, "exporter:dcgm", &busy));
            if second == 1_005 {
                collector.round(gpu_round(1, second, "attribute", &[]));
            }
        }
        let ticks = close(&mut collector, 1_000);
        value(&ticks[0], &gpu::HOLDER_KNOWN)
    };
    let alone = known(&[("exporter:dcgm", 1), ("attribute", 5)]);
    assert_eq!(alone, Some(PointValue::SecondBits(0b11_1100_0000)));
    let beside = known(&[("exporter:dcgm", 1), ("attribute", 5), ("nvml", 1)]);
    assert_eq!(beside, Some(PointValue::SecondBits(0)));
    let unasked = known(&[("exporter:dcgm", 1), ("host", 5)]);
    assert_eq!(unasked, Some(PointValue::SecondBits(0)));
}

#[test]
fn what_a_probe_found_is_a_reading_and_no_evidence_that_the_gpu_is_seen_now() {
    let mut collector = collector(&[("nvml", 1), ("probe", 5)]);
    collector.round(gpu_round(0, 1_000, "nvml", &[(&gpu::PROCESSES, 0.0)]));
    for second in [1_004, 1_009] {
        let probed = [(&own::PROBE_VERDICT, 1.0)];
        collector.round(gpu_round(1, second, "probe", &probed));
    }
    let ticks = close(&mut collector, 1_000);
    let observed = value(&ticks[0], &gpu::OBSERVED);
    assert_eq!(observed, Some(PointValue::SecondBits(1)));
    let verdict = value(&ticks[0], &own::PROBE_VERDICT);
    assert!(verdict.is_some(), "it is told all the same");
}

#[test]
fn a_reading_every_fifteen_seconds_stands_for_each_of_them_and_no_longer() {
    let mut collector = collector(&[("exporter:dcgm", 15)]);
    let readings = [(&gpu::UTILIZATION, 1.0)];
    collector.round(gpu_round(0, 1_005, "exporter:dcgm", &readings));
    let observed: Vec<_> = [1_000, 1_010, 1_020]
        .into_iter()
        .map(|start| {
            let ticks = close(&mut collector, start);
            ticks.first().and_then(|tick| value(tick, &gpu::OBSERVED))
        })
        .collect();
    let expected = [
        Some(PointValue::SecondBits(0b11_1110_0000)),
        Some(PointValue::SecondBits(0b11_1111_1111)),
        None,
    ];
    assert_eq!(observed, expected);
}

#[test]
fn nvml_is_believed_before_an_exporter_and_both_are_named() {
    let mut collector = collector(&[("exporter:dcgm", 1), ("nvml", 1)]);
    for second in 1_000..1_010 {
        let power = [(&gpu::POWER, 500.0), (&gpu::TENSOR_ACTIVE, 0.5)];
        collector.round(gpu_round(0, second, "exporter:dcgm", &power));
        collector.round(gpu_round(1, second, "nvml", &[(&gpu::POWER, 300.0)]));
    }
    let ticks = close(&mut collector, 1_000);
    assert_eq!(ticks.len(), 1, "one GPU is one resource");
    let source = ticks[0].resource.attribute(attribute::SOURCE);
    assert_eq!(source, Some("nvml,exporter:dcgm"));
    let by_metric = ticks[0].resource.attribute(attribute::METRIC_SOURCES);
    assert_eq!(by_metric, Some("nvml=30;exporter:dcgm=123"));
    let gauge = |value, max| Some(PointValue::Gauge { value, max });
    assert_eq!(value(&ticks[0], &gpu::POWER), gauge(300.0, Some(300.0)));
    assert_eq!(
        value(&ticks[0], &gpu::TENSOR_ACTIVE).map(|value| match value {
            PointValue::Gauge { value, .. } => value,
            other => panic!("{other:?}"),
        }),
        Some(0.5),
        "what only the exporter has comes from it"
    );
}

#[test]
fn a_reader_that_fails_is_told_once_and_told_when_it_works_again() {
    let mut collector = collector(&[("nvml", 1)]);
    let fail = |second| Round {
        result: Err(ReadError::Timeout {
            after: Duration::from_secs(1),
        }),
        ..gpu_round(0, second, "nvml", &[])
    };
    collector.round(fail(1));
    collector.round(fail(2));
    collector.round(gpu_round(0, 3, "nvml", &[(&gpu::POWER, 1.0)]));
    let kinds: Vec<EventKind> = collector.take_events().iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [EventKind::ReaderFailed, EventKind::ReaderRecovered]);
    let latest = collector.latest();
    assert_eq!(latest.readers[0].failures, 2);
    assert_eq!(latest.readers[0].error, None);
}

#[test]
fn a_reader_with_nothing_to_read_neither_fails_nor_works_and_says_why() {
    let mut collector = collector(&[("nvml", 1)]);
    collector.round(Round {
        result: Err(ReadError::Nothing {
            why: "no card".to_owned(),
        }),
        ..gpu_round(0, 1, "nvml", &[])
    });
    assert_eq!(collector.take_events(), []);
    let health = collector.latest().readers[0].clone();
    assert_eq!((health.success, health.failures), (None, 0));
    assert_eq!(health.error.as_deref(), Some("no card"));
}

#[test]
fn what_is_not_read_any_more_leaves_the_newest_readings() {
    let mut collector = collector(&[("nvml", 1)]);
    let both = [(&gpu::POWER, 1.0), (&gpu::PROCESSES, 1.0)];
    collector.round(gpu_round(0, 99, "nvml", &both));
    collector.round(gpu_round(0, 100, "nvml", &both));
    for second in 101..110 {
        collector.round(gpu_round(0, second, "nvml", &[(&gpu::POWER, 2.0)]));
    }
    let latest = collector.latest();
    let metrics: Vec<_> = latest.resources[0]
        .values
        .iter()
        .map(|it| it.metric)
        .collect();
    assert_eq!(metrics, [gpu::POWER.id]);
}

#[test]
fn resources_beyond_the_limit_are_counted_and_left_out() {
    let mut collector = collector(&[("nvml", 1)]);
    for index in 0..collect::MAX_RESOURCES + 3 {
        let mut round = gpu_round(0, 100, "nvml", &[(&gpu::POWER, 1.0)]);
        if let Ok(readings) = &mut round.result {
            let id = format!("GPU-{index}");
            readings.resources[0].resource = Arc::new(Resource::new(ResourceKind::Gpu, id));
        }
        collector.round(round);
    }
    assert_eq!(collector.left_out().resource_limit, 3);
    let at = Timestamp::from_seconds(105);
    let own = Own::default().read(at, &NodeFacts::for_tests());
    collector.own(own, at);
    let ticks = close(&mut collector, 100);
    assert_eq!(ticks.len(), collect::MAX_RESOURCES + 1);
    let node = ticks
        .iter()
        .find(|it| it.resource.kind == ResourceKind::Node);
    let told = node.expect("there is always room for it").points.iter();
    let reason = Part::new(PartKind::Reason, "resource_limit");
    let mut told = told.filter(|it| it.metric == catalog::own::LEFT_OUT.id);
    let told = told.find(|it| it.part.as_ref() == Some(&reason));
    let value = told.map(|it| it.value);
    assert!(
        matches!(value, Some(PointValue::Counter { value: 3.0, .. })),
        "{value:?}"
    );
}

/// A reader that takes its time.
struct Slow {
    name: &'static str,
    takes: Duration,
}

impl Read for Slow {
    fn name(&self) -> &str {
        self.name
    }
    fn deadline(&self) -> Duration {
        Duration::from_millis(300)
    }
    fn period(&self) -> Duration {
        Duration::from_millis(100)
    }
    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(async move {
            tokio::time::sleep(self.takes).await;
            let second = turn.at.seconds();
            gpu_round(0, second, self.name, &[(&gpu::POWER, 1.0)]).result
        })
    }
}

#[tokio::test]
async fn a_reader_that_hangs_delays_nobody_and_its_deadline_is_kept() {
    let (output, mut outputs) = mpsc::channel(OUTPUT_WAITING);
    let latest = Arc::new(LatestCell::default());
    let stop = CancellationToken::new();
    let looping = Loop {
        config: SampleConfig {
            period_ms: 100,
            ship_interval_seconds: 1,
        },
        node: Arc::new(NodeFacts::for_tests()),
        clock: Arc::new(SystemClock::start()),
        latest: Arc::clone(&latest),
        own: Own::default(),
        output,
        keeps_rounds: false,
    };
    let readers: Vec<Box<dyn Read>> = vec![
        Box::new(Slow {
            name: "exporter:hung",
            takes: Duration::from_secs(3_600),
        }),
        Box::new(Slow {
            name: "nvml",
            takes: Duration::ZERO,
        }),
    ];
    let running = tokio::spawn(looping.run(readers, stop.clone()));
    let mut ticks = 0;
    while ticks < 2 {
        let output = tokio::time::timeout(Duration::from_secs(10), outputs.recv());
        let output = output.await.expect("the loop goes on").expect("open");
        ticks += usize::from(matches!(output, Output::Tick(_)));
    }
    stop.cancel();
    while outputs.recv().await.is_some() {}
    running.await.expect("the loop ends when it is told to");
    let readers = &latest.get().readers;
    assert_eq!(
        (readers[0].success, readers[1].success),
        (Some(false), Some(true))
    );
    assert!(readers[0].failures >= 2, "{readers:?}");
    assert!(
        readers[0].duration >= Duration::from_millis(300),
        "{readers:?}"
    );
    assert_eq!(readers[1].failures, 0, "{readers:?}");
}

/// A real clock that can be set.
struct Settable(SystemClock, std::sync::atomic::AtomicI64);

impl Clock for Settable {
    fn now(&self) -> Timestamp {
        let offset = self.1.load(std::sync::atomic::Ordering::Relaxed);
        self.0.now().shifted(offset)
    }
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
}

#[tokio::test]
async fn a_clock_that_goes_back_two_hours_stops_neither_ticks_nor_the_newest_readings() {
    const TWO_HOURS: i64 = 7_200_000_000_000;
    let (output, mut outputs) = mpsc::channel(OUTPUT_WAITING);
    let latest = Arc::new(LatestCell::default());
    let stop = CancellationToken::new();
    let clock = Arc::new(Settable(SystemClock::start(), 0.into()));
    let looping = Loop {
        config: SampleConfig {
            period_ms: 100,
            ship_interval_seconds: 1,
        },
        node: Arc::new(NodeFacts::for_tests()),
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        latest: Arc::clone(&latest),
        own: Own::default(),
        output,
        keeps_rounds: false,
    };
    let reader = Slow {
        name: "nvml",
        takes: Duration::ZERO,
    };
    let running = tokio::spawn(looping.run(vec![Box::new(reader)], stop.clone()));
    let mut next_tick = async || loop {
        let output = tokio::time::timeout(Duration::from_secs(10), outputs.recv());
        match output.await.expect("the loop goes on").expect("open") {
            Output::Tick(ticks) => break ticks[0].start,
            Output::Events(_) | Output::Steps(..) | Output::Round(..) => {}
        }
    };
    let before = next_tick().await;
    clock
        .1
        .store(-TWO_HOURS, std::sync::atomic::Ordering::Relaxed);
    // The tick that ran when the clock was set is closed by its own time, the next is of the new.
    let mut after = next_tick().await;
    if after > before {
        after = next_tick().await;
    }
    assert!(before.since(after) > TWO_HOURS / 2, "{before:?} {after:?}");
    let latest = latest.get();
    assert!(latest.at <= clock.now(), "{latest:?}");
    let gpu = latest
        .resources
        .iter()
        .find(|it| it.resource.kind == ResourceKind::Gpu);
    assert!(gpu.is_some(), "{latest:?}");
    stop.cancel();
    while outputs.recv().await.is_some() {}
    running.await.expect("the loop ends when it is told to");
}
