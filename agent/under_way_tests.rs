//! The tick under way, on disks that lose power and folders that cannot be read.

use gpufleet_spool::sim::SimDisk;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Part, PartKind, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Missing, ResourceSamples, Sample};
use gpufleet_telemetry::tick::PointValue;

use super::*;

const TEN_SECONDS: Duration = Duration::from_secs(10);
/// A multiple of ten.
const BEGIN: i64 = 1_700_000_000;

fn second(second: i64) -> Timestamp {
    Timestamp::from_seconds(BEGIN + second)
}

/// The record of a round in which the GPU draws so many watts.
fn round(at: i64, watts: f64) -> Vec<u8> {
    round_of(&NodeFacts::for_tests().node, at, watts)
}

fn round_of(node: &str, at: i64, watts: f64) -> Vec<u8> {
    let resource = Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::ORIGIN, "live");
    let sample = |metric: &gpufleet_telemetry::catalog::Metric, value| Sample {
        metric: metric.id,
        part: None,
        reading: Ok(value),
    };
    let readings = Readings {
        at: second(at),
        resources: vec![ResourceSamples {
            resource: Arc::new(resource),
            samples: vec![sample(&gpu::POWER, watts), sample(&gpu::UTILIZATION, 0.5)],
        }],
        events: Vec::new(),
    };
    let round = Round {
        reader: 0,
        at: second(at),
        result: Ok(readings),
        duration: Duration::ZERO,
    };
    record(node, "nvml", Duration::from_secs(1), TEN_SECONDS, &round).expect("it worked")
}

fn open(disk: &SimDisk) -> UnderWay<SimDisk> {
    UnderWay::on(disk.clone(), second(0)).expect("a disk")
}

fn recovered(disk: &SimDisk, next_seq: u64) -> Vec<Vec<ResourceTick>> {
    let node = Arc::new(NodeFacts::for_tests());
    open(disk).recover(&node, &|_| next_seq).expect("a disk")
}

/// Start of the tick, mean power, and the seconds observed.
fn told(ticks: &[Vec<ResourceTick>]) -> Vec<(i64, f64, u64)> {
    let of = |tick: &ResourceTick| {
        let value = |metric: &gpufleet_telemetry::catalog::Metric| {
            let found = tick.points.iter().find(|it| it.metric == metric.id);
            found.map(|it| it.value)
        };
        let Some(PointValue::Gauge { value: mean, .. }) = value(&gpu::POWER) else {
            panic!("{tick:?}");
        };
        let Some(PointValue::SecondBits(bits)) = value(&gpu::OBSERVED) else {
            panic!("{tick:?}");
        };
        (tick.start.seconds() - BEGIN, mean, bits)
    };
    ticks.iter().map(|tick| of(&tick[0])).collect()
}

#[test]
fn what_was_read_before_the_power_went_becomes_the_tick_it_would_have_been() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let mut under_way = open(&disk);
        for at in 0..4 {
            under_way
                .note(&round(at, 100.0 * at as f64), second(at))
                .expect("room");
        }
        under_way.sync().expect("a disk");
        disk.crash();
        assert_eq!(
            told(&recovered(&disk, 1)),
            [(0, 150.0, 0b1111)],
            "seed {seed}"
        );
    }
}

#[test]
fn a_kill_loses_nothing_even_of_what_was_not_made_safe() {
    let disk = SimDisk::new(1);
    let mut under_way = open(&disk);
    for at in 0..3 {
        under_way.note(&round(at, 7.0), second(at)).expect("room");
    }
    disk.kill();
    assert_eq!(told(&recovered(&disk, 1)), [(0, 7.0, 0b111)]);
    // The one that recovers it may be killed as well before it is spooled.
    disk.kill();
    let mut next = open(&disk);
    let node = Arc::new(NodeFacts::for_tests());
    let ticks = next.recover(&node, &|_| 1).expect("a disk");
    assert_eq!(told(&ticks), [(0, 7.0, 0b111)]);
    next.closed(second(10), second(20)).expect("room");
    disk.kill();
    assert_eq!(told(&recovered(&disk, 1)), [], "and never twice");
}

#[test]
fn a_tick_that_is_spooled_is_not_made_again() {
    let place = (Epoch(Uuid::from_u128(9)), 5);
    // Whether the power goes before the spool took it, after that, or after that was noted.
    for (next_seq, noted, expected) in [
        (5, false, vec![(0, 1.0, 0b1), (10, 2.0, 0b1)]),
        (6, false, vec![(10, 2.0, 0b1)]),
        (5, true, vec![(10, 2.0, 0b1)]),
    ] {
        let disk = SimDisk::new(3);
        let mut under_way = open(&disk);
        under_way.note(&round(0, 1.0), second(0)).expect("room");
        // A round of the next tick comes before this one is closed.
        under_way.note(&round(10, 2.0), second(10)).expect("room");
        under_way
            .closing(second(10), place, second(10))
            .expect("room");
        if noted {
            under_way.closed(second(10), second(10)).expect("room");
            under_way.sync().expect("a disk");
        }
        disk.crash();
        let ticks = recovered(&disk, next_seq);
        assert_eq!(told(&ticks), expected, "next seq {next_seq}, noted {noted}");
    }
}

#[test]
fn what_another_node_had_read_is_not_taken_from_a_copied_folder() {
    let disk = SimDisk::new(5);
    let mut under_way = open(&disk);
    let other = round_of("another", 0, 1.0);
    under_way.note(&other, second(0)).expect("room");
    under_way.note(&round(1, 2.0), second(1)).expect("room");
    disk.kill();
    assert_eq!(told(&recovered(&disk, 1)), [(0, 2.0, 0b10)]);
}

#[test]
fn hours_of_ticks_leave_no_more_than_a_segment_behind() {
    let disk = SimDisk::new(4);
    let mut under_way = open(&disk);
    let place = (Epoch(Uuid::from_u128(9)), 5);
    for tick in 0..400 {
        let ends = second(tick * 10 + 10);
        for at in 0..10 {
            let at = tick * 10 + at;
            under_way.note(&round(at, 1.0), second(at)).expect("room");
        }
        under_way.closing(ends, place, ends).expect("room");
        under_way.closed(ends, ends).expect("room");
    }
    assert!(disk.used() < 2 * SEGMENT_BYTES, "{} bytes", disk.used());
    assert!(under_way.waiting.is_empty());
}

#[test]
fn what_cannot_be_read_is_set_aside_and_the_agent_begins_all_the_same() {
    let state = tempfile::tempdir().expect("a folder");
    let folder = state.path().join(FOLDER);
    let node = Arc::new(NodeFacts::for_tests());
    let begin = || UnderWay::begin(state.path(), &node, |_| 1, second(0));
    let note = |watts| {
        let (mut under_way, ticks) = begin().expect("a folder of our own");
        under_way.note(&round(0, watts), second(0)).expect("room");
        under_way.sync().expect("a disk");
        told(&ticks)
    };
    assert_eq!(note(1.0), []);
    assert_eq!(note(2.0), [(0, 1.0, 0b1)]);
    // Sectors that cannot be read: whoever reads a folder gets an error as well.
    let spoil = || {
        let epochs = fs::read_dir(&folder).expect("it is there").flatten();
        let epoch = epochs.map(|it| it.path()).find(|it| it.is_dir());
        let files = fs::read_dir(epoch.expect("it has an epoch")).expect("it is there");
        for file in files.flatten() {
            fs::remove_file(file.path()).expect("ours");
            std::os::unix::fs::symlink("/", file.path()).expect("ours");
        }
    };
    for _ in 0..2 {
        spoil();
        assert_eq!(note(3.0), [], "nothing of it is taken");
        assert!(state.path().join(ASIDE).is_dir());
    }
    assert_eq!(note(4.0), [(0, 3.0, 0b1)], "and then it is as ever");
}

#[test]
fn a_record_of_another_version_is_passed_over() {
    let disk = SimDisk::new(6);
    let mut under_way = open(&disk);
    let mut other = round(0, 1.0);
    other[0] = VERSION + 1;
    under_way.note(&other, second(0)).expect("room");
    under_way.note(&[], second(0)).expect("room");
    under_way.note(&round(1, 2.0), second(1)).expect("room");
    disk.kill();
    assert_eq!(told(&recovered(&disk, 1)), [(0, 2.0, 0b10)]);
}

#[test]
fn the_shape_of_a_record_is_that_of_its_version() {
    let resource = Resource::new(ResourceKind::Gpu, "GPU-1").with(attribute::ORIGIN, "live");
    let sample = |metric, part, reading| Sample {
        metric,
        part,
        reading,
    };
    let part = Some(Part::new(PartKind::Reason, "7"));
    let readings = Readings {
        at: second(1),
        resources: vec![ResourceSamples {
            resource: Arc::new(resource),
            samples: vec![
                sample(gpu::POWER.id, None, Ok(2.0)),
                sample(gpu::UTILIZATION.id, part, Err(Missing::Released)),
            ],
        }],
        events: Vec::new(),
    };
    let round = Round {
        reader: 0,
        at: second(1),
        result: Ok(readings),
        duration: Duration::ZERO,
    };
    let second = Duration::from_secs(1);
    let record = record("node-1", "nvml", second, TEN_SECONDS, &round).expect("it worked");
    let bytes: String = record.iter().map(|it| format!("{it:02x}")).collect();
    // Where this fails on purpose, `VERSION` has to go up with it.
    let head = "0100066e6f64652d31046e766d6c01000a0080a8a69ccebfce972f80a8a69ccebfce972f";
    let resource = "0101054750552d31010f677075666c6565742e6f726967696e046c697665";
    let samples = "021e000000000000000000400a01080137010d";
    assert_eq!(bytes, format!("{head}{resource}{samples}00"));
}
