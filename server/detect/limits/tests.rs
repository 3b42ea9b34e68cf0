//! Each limit fires over it, is quiet below it, and says nothing of what is not read.

use gpufleet_analysis::incident::{Family, Incident};
use gpufleet_telemetry::catalog::{gpu, node, serving, training};
use gpufleet_telemetry::identity::{Origin, Part, PartKind, Resource};
use gpufleet_telemetry::sample::Missing;

use super::*;
use crate::detect::tests::{World, is_gpu, set};
use crate::fleet::LiveValue;
use crate::view::fixture;

const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

/// A resource with readings of one moment.
fn live(kind: ResourceKind, readings: &[(&'static Metric, f64)], seconds: i64) -> Live {
    let mut live = fixture::live("prod", "node-1", kind, "it/0", Origin::Live);
    live.resource = Arc::new(Resource::new(kind, "it/0"));
    let (held, at) = (1 << 9, NOW.shifted(seconds * NANOS_PER_SECOND));
    (live.bits.held, live.bits.active) = (held, held);
    let value = |(metric, value): &(&'static Metric, f64)| LiveValue {
        metric: metric.id,
        part: metric.part.map(|kind| Arc::new(Part::new(kind, "0"))),
        reading: Ok(*value),
        max: None,
        at,
    };
    live.values = readings.iter().map(value).collect();
    live.values.sort_by_key(|it| it.metric);
    live
}

/// The readings that are as they should be, and those that are not, at second `it`.
fn readings(limit: &Limit, is_bad: bool, seconds: i64) -> Vec<(&'static Metric, f64)> {
    let seconds = seconds as f64;
    let bad_value = |bad: f64, well: f64| if is_bad { bad } else { well };
    let value = match limit.test {
        Test::Above(at) => bad_value(at * 1.5, at * 0.5),
        Test::Below(at) => bad_value(at * 0.5, at * 1.5),
        Test::Grew(_) => bad_value(7.0 + seconds, 7.0),
        Test::Rate(at) => bad_value(20.0 * at * seconds, 7.0),
        Test::Still => bad_value(7.0, seconds),
        Test::Down => bad_value(if seconds > 60.0 { 0.0 } else { 1.0 }, 1.0),
        Test::Flaps => bad_value(
            if (seconds / 60.0) as i64 % 2 == 1 {
                0.0
            } else {
                1.0
            },
            1.0,
        ),
    };
    match limit.read {
        Read::Plain(metric) | Read::Held(metric) => vec![(metric, value)],
        Read::Share(part, whole) => vec![(part, value * 8.0), (whole, 8.0)],
        Read::Margin(own, up_to) => vec![(own, 90.0 - value), (up_to, 90.0)],
        Read::Fabric(metric) => vec![(metric, if is_bad { 1.0 } else { 2.0 })],
        Read::Behind(then, now) => vec![(then, 1_000.0), (now, 1_000.0 + value)],
        Read::Stuck(done, waiting) => vec![(done, value), (waiting, 3.0)],
    }
}

/// What is found of a limit over two hours of such readings.
fn found(limit: &'static Limit, is_bad: bool) -> Vec<&'static str> {
    let (mut limits, mut kept) = (Limits::default(), Kept::default());
    let mut found = Vec::new();
    for seconds in (0..7_200).step_by(10) {
        let live = live(limit.read.of(), &readings(limit, is_bad, seconds), seconds);
        limits.begin();
        limits.look(&live, &mut kept, live.values[0].at);
        found.extend(limits.found.iter().map(|it| it.limit.what));
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn every_limit_fires_beyond_it_is_quiet_within_it_and_says_nothing_without_readings() {
    for limit in &LIMITS {
        let what = limit.what;
        assert!(found(limit, true).contains(&what), "{what} does not fire");
        assert_eq!(found(limit, false), [""; 0], "{what}");
        let (mut limits, mut kept) = (Limits::default(), Kept::default());
        for seconds in (0..7_200).step_by(10) {
            let mut live = live(limit.read.of(), &readings(limit, true, seconds), seconds);
            for value in &mut live.values {
                value.reading = Err(Missing::NotSupported);
            }
            limits.look(&live, &mut kept, live.values[0].at);
        }
        assert!(limits.found.is_empty(), "{what} without readings");
    }
}

#[test]
fn a_reading_that_is_no_longer_there_is_not_over() {
    let limit = LIMITS.iter().find(|it| it.kind == "node_memory_short");
    let limit = limit.expect("it is a limit");
    let (mut limits, mut kept) = (Limits::default(), Kept::default());
    for seconds in (0..600).step_by(10) {
        let live = live(ResourceKind::Node, &readings(limit, true, seconds), seconds);
        limits.begin();
        limits.look(&live, &mut kept, live.values[0].at);
    }
    assert_eq!(limits.found.len(), 1);
    let unread = [(Family::Leak, Place::node("prod", "node-1"))];
    assert_eq!(limits.unread, []);
    let later = live(ResourceKind::Node, &[], 0);
    limits.begin();
    limits.look(&later, &mut kept, NOW.shifted(1_000 * NANOS_PER_SECOND));
    assert!(limits.found.is_empty());
    assert_eq!(limits.unread, unread);
}

/// Kinds that the server pages for and that other detectors find than these limits.
const ELSEWHERE: [&str; 38] = [
    "gpu_lost",
    "gpu_vanished",
    "driver_hangs",
    "recovery_action",
    "xid_reboot_node",
    "xid_restart_vm",
    "xid_reset_gpu",
    "xid_nvlink",
    "xid_check_power",
    "xid_update_software",
    "xid_repeated",
    "ecc_uncorrected",
    "row_remap_failed",
    "row_remap_pending",
    "ecc_corrected_often",
    "throttled_by_heat",
    "hardware_slowdown",
    "pcie_degraded",
    "nvlink_down",
    "stalled",
    "held_idle",
    "training_stands_still",
    "training_not_finite",
    "training_scaler_skips",
    "node_without_agent",
    "reader_fails",
    "readings_refused",
    "incidents_beyond",
    "straggler",
    "regression",
    "gpu_memory_leak",
    "loss_burst",
    "outlier",
    "slow_link",
    "nic_slow",
    "wrong_network",
    "repeat_offender",
    "budget_over",
];

#[test]
fn every_kind_that_the_server_pages_for_is_found_by_it_as_the_table_says() {
    let table: toml::Table = include_str!("../../../alerts/kinds.toml")
        .parse()
        .expect("it is TOML");
    let kinds = table["kind"].as_array().expect("a list");
    let text = |row: &toml::Value, key: &str| row[key].as_str().expect("a text").to_owned();
    for limit in &LIMITS {
        let row = kinds.iter().find(|it| text(it, "name") == limit.kind);
        let row = row.unwrap_or_else(|| panic!("{} is no kind", limit.kind));
        assert_eq!(text(row, "incident"), limit.family.name(), "{}", limit.kind);
        assert_eq!(text(row, "owner"), "server", "{}", limit.kind);
        let loud = text(row, "severity").replace("critical", "error");
        assert_eq!(loud, limit.severity.name(), "{}", limit.kind);
    }
    let owned = kinds.iter().filter(|it| text(it, "owner") == "server");
    let mut owned: Vec<String> = owned.map(|it| text(it, "name")).collect();
    owned.retain(|name| !LIMITS.iter().any(|it| it.kind == *name));
    assert_eq!(owned, ELSEWHERE, "else nobody pages for it");
    assert!(LIMITS.len() <= 32, "one bit each");
}

fn one(world: &World) -> Incident {
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:#?}");
    open[0].clone()
}

#[tokio::test]
async fn a_machine_without_memory_is_one_incident_until_it_has_some_again() {
    let mut world = World::new().await;
    let memory = |part: f64| {
        move |live: &mut Live| {
            if live.key.kind == ResourceKind::Node && &*live.node == "node-1" {
                set(live, &node::MEMORY_TOTAL, 1e12);
                set(live, &node::MEMORY_AVAILABLE, part * 1e12);
            }
        }
    };
    world.ticks(60, memory(0.3));
    world.ticks(29, memory(0.03));
    assert_eq!(world.open(), [], "not yet five minutes");
    world.ticks(4, memory(0.03));
    let told = one(&world);
    assert_eq!(
        (told.family, &*told.what),
        (Family::Leak, "nearly out of memory")
    );
    assert_eq!(told.place, Place::node("prod", "node-1"));
    world.ticks(33, memory(0.3));
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn a_gpu_that_is_held_and_hardly_used_costs_what_it_does_not_use() {
    let mut world = World::new().await;
    let used = |live: &mut Live| {
        if live.key.kind == ResourceKind::Gpu {
            set(
                live,
                &gpu::UTILIZATION,
                if is_gpu(live, "node-1", 2) { 0.05 } else { 0.9 },
            );
        }
    };
    world.ticks(365, used);
    let told = one(&world);
    assert_eq!(
        (told.family, &*told.what),
        (Family::Idle, "held and hardly used")
    );
    assert_eq!(told.losing.milli_gpus, 950);
    assert!(told.losing.nano_usd_per_hour().is_some());
}

#[test]
fn the_ranks_of_a_run_are_one_signal() {
    let mut limits = Limits::default();
    let mut kept: [Kept; 8] = Default::default();
    for seconds in [0, 10] {
        limits.begin();
        for (rank, kept) in kept.iter_mut().enumerate() {
            let grew = if rank > 4 { seconds as f64 } else { 0.0 };
            let mut live = live(
                ResourceKind::Rank,
                &[(&training::OUT_OF_MEMORY, grew)],
                seconds,
            );
            live.key.id = format!("ns/job/uid/0/{rank}").into();
            limits.look(&live, kept, live.values[0].at);
        }
    }
    let signals = limits.signals(&NodeSnapshots::new(), &Gpus::new());
    assert_eq!(signals.len(), 1, "{signals:?}");
    let place = &signals[0].place;
    assert_eq!(
        (place.run.as_deref(), place.rank),
        (Some("ns/job/uid/0"), None)
    );
}

#[test]
fn a_model_server_that_nobody_asks_is_not_stuck() {
    let (mut limits, mut kept) = (Limits::default(), Kept::default());
    for seconds in (0..3_600).step_by(10) {
        let readings = [(&serving::REQUESTS, 5.0), (&serving::QUEUED, 0.0)];
        let live = live(ResourceKind::Endpoint, &readings, seconds);
        limits.look(&live, &mut kept, live.values[0].at);
    }
    assert!(limits.found.is_empty());
    assert!(kept.states.is_empty());
}

#[test]
fn a_link_that_was_never_up_is_no_news_and_one_of_many_is_named() {
    let (mut limits, mut kept) = (Limits::default(), Kept::default());
    let nics = |first: f64, seconds: i64| {
        let mut live = live(ResourceKind::Node, &[(&node::NIC_UP, first)], seconds);
        let mut other = live.values[0].clone();
        other.part = Some(Arc::new(Part::new(PartKind::Nic, "mlx5_1")));
        other.reading = Ok(0.0);
        live.values.push(other);
        live
    };
    for seconds in (0..600).step_by(10) {
        limits.begin();
        let live = nics(if seconds < 300 { 1.0 } else { 0.0 }, seconds);
        limits.look(&live, &mut kept, live.values[0].at);
    }
    let found: Vec<_> = limits
        .found
        .iter()
        .filter_map(|it| it.part.as_ref())
        .collect();
    assert_eq!(found.iter().map(|it| &*it.id).collect::<Vec<_>>(), ["0"]);
}

#[test]
fn a_limit_of_the_config_holds_and_one_that_is_none_is_refused_by_its_name() {
    let own = |kind: &str, limit: f64| BTreeMap::from([(kind.to_owned(), limit)]);
    let stolen = |limits: &BTreeMap<String, f64>| {
        let (mut all, mut kept) = (Limits::default(), Kept::default());
        all.set(limits);
        for seconds in (0..3_600).step_by(10) {
            all.begin();
            let live = live(ResourceKind::Node, &[(&node::CPU_STEAL, 0.2)], seconds);
            all.look(&live, &mut kept, live.values[0].at);
        }
        all.found.len()
    };
    assert_eq!(stolen(&BTreeMap::new()), 1);
    assert_eq!(stolen(&own("node_cpu_stolen", 0.3)), 0);
    assert_eq!(check(&own("node_cpu_stolen", 0.3)), Ok(()));
    for (kind, limit) in [
        ("no_such", 1.0),
        ("nic_down", 1.0),
        ("too_hot", f64::NAN),
        ("too_hot", -1.0),
    ] {
        let error = check(&own(kind, limit)).expect_err(kind);
        assert!(error.to_string().contains(kind), "{error}");
    }
}
