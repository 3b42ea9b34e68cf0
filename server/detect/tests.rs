//! The detectors over a fleet that was made: what fires, what does not, and what ends it.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Incident, Place, State};
use gpufleet_analysis::states::{Edge, HealthEvent};
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::identity::{Origin, Resource, attribute};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Clock;

use super::*;
use crate::auth::{Access, Grant};
use crate::config::Config;
use crate::fleet::{Live, LiveValue, LiveXid};
use crate::hand::Hand;
use crate::store::model::FencingToken;
use crate::store::{Store, StoreConfig};
use crate::view::fixture::{self, Does, NOW};

mod absence;
mod committed;
mod holders;
mod inventory;
mod owner;
mod probe;
mod restart;
pub(super) mod shares;

const NODES: [&str; 2] = ["node-1", "node-2"];
/// Dollars an hour of an H100, and nano-USD of a second.
const PRICE: &str = "36";
const PER_SECOND: i64 = 10_000_000;

/// Two nodes of 8 working GPUs of one job, and what is done to them.
pub(super) struct World {
    pub(super) app: App,
    pub(super) hand: Arc<Hand>,
    pub(super) detectors: Detectors,
    pub(super) lives: Vec<Live>,
    pub(super) folder: tempfile::TempDir,
    ticks: i64,
}

async fn app(folder: &tempfile::TempDir, hand: &Arc<Hand>) -> App {
    let mut config = Config::for_tests();
    let price = ("NVIDIA H100 80GB HBM3".to_owned(), PRICE.to_owned());
    config.detect.gpu_hour_usd.extend([price]);
    (config.inventory.source, config.inventory.cluster) = ("static".into(), "prod".into());
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let lease = store.as_ref().expect("a new database opens").acquire_lease(
        "server",
        hand.now(),
        Duration::from_secs(15),
    );
    let token: FencingToken = lease.await.expect("it is ours").token;
    let (store, clock) = (store.expect("a new database opens"), Arc::clone(hand));
    let app = App {
        lead: Arc::new(crate::lead::Lead::leading()),
        ..App::new(config, store, Access::default(), clock)
    };
    app.incidents.leads(token);
    app
}

impl World {
    pub(super) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let hand = Arc::new(Hand::at(NOW));
        let app = app(&folder, &hand).await;
        let mut lives = Vec::new();
        for node in NODES {
            lives.push(fixture::without_readers("prod", node));
            for index in 0..8 {
                lives.push(fixture::gpu("prod", node, index, Does::Work, Origin::Live));
            }
        }
        for live in &mut lives {
            live.told = crate::fleet::live::Told::default();
        }
        Self {
            detectors: Detectors::new(&app.config.detect),
            app,
            hand,
            lives,
            folder,
            ticks: 0,
        }
    }

    /// So many ticks, before each of which `change` is done to everything that reports.
    pub(super) fn ticks(&mut self, count: usize, change: impl Fn(&mut Live)) {
        for _ in 0..count {
            self.ticks += 1;
            let now = NOW.shifted(self.ticks * 10 * NANOS_PER_SECOND);
            self.hand.put(now);
            for live in &mut self.lives {
                let before = live.clone();
                live.last_point = now.shifted(-3 * NANOS_PER_SECOND);
                live.received = now.shifted(-2 * NANOS_PER_SECOND);
                live.bits_start = now.shifted(-13 * NANOS_PER_SECOND);
                let at = live.last_point;
                live.values.iter_mut().for_each(|it| it.at = at);
                change(live);
                if live.node.is_empty() {
                    *live = before;
                }
                let bits = live.bits;
                live.recent.tick(live.bits_start, 10, &bits, true);
                self.app.fleet.put_for_tests(live.clone());
            }
            self.detectors.tick(&self.app);
        }
    }

    pub(super) fn open(&self) -> Vec<Incident> {
        self.app.incidents.open(&Grant::default())
    }
}

/// The GPU of this node and index, by the name that the fixture gives it.
pub(super) fn is_gpu(live: &Live, node: &str, index: u32) -> bool {
    *live.key.id == *format!("GPU-prod-{node}-{index:04}")
}

pub(super) fn set(live: &mut Live, metric: &Metric, value: f64) {
    let at = live.last_point;
    match live
        .values
        .iter_mut()
        .find(|it| it.metric == metric.id && it.part.is_none())
    {
        Some(known) => known.reading = Ok(value),
        None => {
            live.values.push(LiveValue {
                metric: metric.id,
                part: None,
                reading: Ok(value),
                max: None,
                at,
            });
            live.values
                .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
        }
    }
}

/// What a GPU that fell off the bus shows, since `at`.
fn falls_off(live: &mut Live, at: Timestamp) {
    live.health = Some(HealthEvent {
        at,
        edge: Edge::Broken(gpufleet_analysis::ledger::Reason::FatalXid),
    });
    let holder = "pod:research/train-7b-0";
    let is_bad = gpufleet_telemetry::event::Severity::Error;
    live.told.xids = vec![LiveXid::new(at, 79, "reboot_node", is_bad, holder)];
    live.bits = gpufleet_telemetry::minute::Bitmaps::default();
    for value in &mut live.values {
        value.reading = Err(Missing::GpuLost);
    }
}

/// A GPU falls off the bus at `at`.
pub(super) fn breaks(node: &str, index: u32, at: Timestamp) -> impl Fn(&mut Live) {
    move |live| {
        if is_gpu(live, node, index) {
            falls_off(live, at);
        }
    }
}

/// A GPU works again from `at` on.
fn works_again(node: &str, index: u32, at: Timestamp) -> impl Fn(&mut Live) {
    move |live| {
        if is_gpu(live, node, index) {
            live.health = Some(HealthEvent {
                at,
                edge: Edge::Whole,
            });
        }
    }
}

#[tokio::test]
async fn a_gpu_that_the_hardware_slows_down_again_and_again_is_an_incident_and_once_is_none() {
    for (every_s, is_told) in [(30, true), (600, false)] {
        let mut world = World::new().await;
        world.ticks(40, move |live| {
            if is_gpu(live, "node-1", 3) {
                let seconds = live.last_point.since(NOW) / NANOS_PER_SECOND;
                let count = (seconds / every_s) as f64;
                set(live, &gpu::HARDWARE_SLOWDOWNS, count);
            }
        });
        let open = world.open();
        assert_eq!(!open.is_empty(), is_told, "each {every_s} s: {open:#?}");
        if let [told] = &open[..] {
            assert_eq!(told.family, Family::Power);
            assert!(told.what.contains("again and again"), "{}", told.what);
            let read = &told.evidence[0].readings[0];
            assert_eq!((&*read.name, read.usual), ("a minute", Some(0.6)));
            assert!(read.value > 0.6, "{}", read.value);
        }
    }
}

#[tokio::test]
async fn a_gpu_that_fell_off_the_bus_is_one_incident_with_cause_and_price_until_it_is_back() {
    let mut world = World::new().await;
    world.ticks(6, |_| {});
    assert_eq!(world.open(), [], "a fleet that is well has no incident");
    let whole = world.lives.clone();
    let at = world.hand.now();
    world.ticks(1, breaks("node-2", 3, at));
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    let incident = &open[0];
    assert_eq!(
        (incident.family, incident.cause),
        (Family::GpuFault, Cause::GpuFault)
    );
    assert_eq!(incident.what, "XID 79");
    assert_eq!(incident.action, crate::words::xid::asks("reboot_node"));
    assert_eq!(
        incident.place,
        Place::gpu("prod", "node-2", "GPU-prod-node-2-0003")
    );
    assert_eq!(incident.losing.nano_usd_per_hour(), Some(36_000_000_000));
    assert_eq!(
        incident.lost.nano_usd(),
        Some(10 * PER_SECOND),
        "since the XID"
    );
    world.ticks(30, breaks("node-2", 3, at));
    assert_eq!(world.open().len(), 1);
    assert_eq!(world.open()[0].lost.nano_usd(), Some(310 * PER_SECOND));
    let id = world.open()[0].id;
    let back = world.hand.now();
    world.lives = whole;
    world.ticks(3, works_again("node-2", 3, back));
    assert_eq!(world.open(), []);
    let over = world.app.incidents.get(id).expect("it was lately");
    assert_eq!(
        (over.state, over.lost.nano_usd()),
        (State::Resolved, Some(310 * PER_SECOND))
    );
}

#[tokio::test]
async fn a_node_whose_cooling_failed_is_one_incident_that_costs_what_its_clocks_lose() {
    let mut world = World::new().await;
    let heat = |factor: f64| {
        move |live: &mut Live| {
            if &*live.node == "node-1" && live.key.id.starts_with("GPU") {
                let before = live
                    .value(gpu::THROTTLE_THERMAL.id)
                    .and_then(|it| it.reading.ok());
                set(
                    live,
                    &gpu::THROTTLE_THERMAL,
                    before.unwrap_or(0.0) + factor * 10.0,
                );
                set(live, &gpu::SM_CLOCK, 1.98e9 * (1.0 - factor / 2.0));
            }
        }
    };
    world.ticks(10, heat(0.0));
    world.ticks(1, heat(1.0));
    assert_eq!(world.open(), [], "one tick of heat is no incident");
    world.ticks(5, heat(1.0));
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!((open[0].family, open[0].cause), (Family::Heat, Cause::Heat));
    assert_eq!(open[0].place, Place::node("prod", "node-1"));
    assert_eq!(open[0].places, 8);
    let clock = open[0].evidence[0]
        .readings
        .iter()
        .find(|it| it.name == "clock");
    assert_eq!(clock.map(|it| it.value), Some(0.99e9));
    world.ticks(14, heat(0.0));
    assert_eq!(world.open(), [], "it ended, it does not fade");
}

#[tokio::test]
async fn a_silent_node_is_blind_and_nothing_else_and_resolves_nothing() {
    let mut world = World::new().await;
    let at = NOW;
    world.ticks(2, breaks("node-1", 0, at));
    assert_eq!(world.open().len(), 1);
    let silent = |live: &mut Live| {
        if &*live.node == "node-1" {
            live.node = "".into();
        }
    };
    world.ticks(10, silent);
    let families: Vec<_> = world.open().iter().map(|it| it.family).collect();
    assert_eq!(families, [Family::GpuFault, Family::Blind]);
    assert_eq!(world.open()[1].losing.milli_gpus, 0);
    world.ticks(5, |_| {});
    let families: Vec<_> = world.open().iter().map(|it| it.family).collect();
    assert_eq!(families, [Family::GpuFault], "it is heard again");
}

#[tokio::test]
async fn a_gpu_whose_readings_stop_while_its_agent_goes_on_has_vanished_unless_it_was_taken_out() {
    for is_removed in [false, true] {
        let mut world = World::new().await;
        world.ticks(2, |_| {});
        let last = world.hand.now();
        world.ticks(6, |live| {
            if is_gpu(live, "node-1", 5) {
                live.last_point = last;
                live.received = last;
                live.told.removed_at = is_removed.then_some(last);
            }
        });
        let what: Vec<_> = world.open().into_iter().map(|it| it.what).collect();
        let expected: &[&str] = if is_removed {
            &[]
        } else {
            &["its readings stopped"]
        };
        assert_eq!(what, expected);
    }
}

#[tokio::test]
async fn what_an_agent_sends_that_catches_up_is_late_and_not_gone() {
    let mut world = World::new().await;
    world.ticks(20, |live| {
        live.last_point = live.last_point.shifted(-50 * NANOS_PER_SECOND);
    });
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn gpus_held_and_idle_for_an_hour_are_one_incident_of_their_job() {
    let mut world = World::new().await;
    let idle = |live: &mut Live| live.bits.active = 0;
    world.ticks(359, idle);
    assert_eq!(world.open(), [], "not yet an hour");
    world.ticks(3, idle);
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(
        (open[0].family, open[0].cause),
        (Family::Idle, Cause::NoWork)
    );
    assert_eq!(open[0].place.run.as_deref(), Some("pod:research/train-7b"));
    assert_eq!(open[0].losing.milli_gpus, 16_000);
    let hours = open[0].lost.gpu_seconds() / 16.0;
    assert!(hours >= 3_600.0, "since it is idle: {hours}");
    world.ticks(3, |live| live.bits.active = live.bits.observed);
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn what_is_recorded_is_not_judged() {
    let mut world = World::new().await;
    for live in &mut world.lives {
        live.origin = Origin::Recorded;
    }
    let at = NOW;
    world.ticks(5, breaks("node-1", 0, at));
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn heat_whose_readings_are_gone_is_not_over() {
    let mut world = World::new().await;
    let heat = |live: &mut Live| {
        if is_gpu(live, "node-1", 4) {
            let before = live.value(gpu::THROTTLE_THERMAL.id);
            let before = before.and_then(|it| it.reading.ok()).unwrap_or(0.0);
            set(live, &gpu::THROTTLE_THERMAL, before + 10.0);
        }
    };
    world.ticks(8, heat);
    assert_eq!(world.open().len(), 1);
    let gone = |live: &mut Live| {
        if is_gpu(live, "node-1", 4) {
            for value in &mut live.values {
                if value.metric == gpu::THROTTLE_THERMAL.id {
                    value.reading = Err(Missing::NotSupported);
                }
            }
        }
    };
    world.ticks(40, gone);
    let open = world.open();
    assert_eq!(open.len(), 1, "nobody knows whether it is over");
    assert!(open[0].unheard_since.is_some());
    world.ticks(10, |live| {
        if is_gpu(live, "node-1", 4) {
            set(live, &gpu::THROTTLE_THERMAL, 500.0);
        }
    });
    assert_eq!(world.open(), [], "it is read again, and at rest");
}

#[tokio::test]
async fn a_pcie_link_that_lost_half_its_lanes_is_an_incident_and_one_reading_is_none() {
    let mut world = World::new().await;
    let lanes = |count: f64| {
        move |live: &mut Live| {
            if is_gpu(live, "node-2", 1) {
                set(live, &gpu::PCIE_GENERATION, 5.0);
                set(live, &gpu::PCIE_WIDTH, count);
            }
        }
    };
    world.ticks(3, lanes(16.0));
    world.ticks(1, lanes(8.0));
    world.ticks(3, lanes(16.0));
    assert_eq!(world.open(), []);
    world.ticks(8, lanes(8.0));
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!((open[0].family, open[0].cause), (Family::Link, Cause::Pcie));
    world.ticks(34, lanes(16.0));
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn a_card_and_a_machine_that_broke_three_times_in_a_month_are_told_when_they_work_again() {
    let mut world = World::new().await;
    world.detectors.offenders.by.node_faults = 3.0;
    for live in world.lives.iter_mut().filter(|it| is_gpu(it, "node-1", 0)) {
        let resource = Resource::clone(&live.resource);
        live.resource = resource.with(attribute::SERIAL, "1650923012345").into();
    }
    // One card, and all of the other machine at once.
    let is_ill = |live: &Live| {
        let is_of_two = &*live.node == "node-2" && live.key.id.starts_with("GPU");
        is_gpu(live, "node-1", 0) || is_of_two
    };
    let whole = world.lives.clone();
    for _ in 0..3 {
        let at = world.hand.now();
        world.ticks(2, |live| {
            if is_ill(live) {
                falls_off(live, at);
            }
        });
        let back = world.hand.now();
        world.lives = whole.clone();
        world.ticks(370, |live| {
            if is_ill(live) {
                let edge = Edge::Whole;
                live.health = Some(HealthEvent { at: back, edge });
            }
        });
        let written = world.app.incidents.write(&world.app.store).await;
        written.expect("it is written");
    }
    assert_eq!(world.open(), [], "each is over");
    let looked = world.detectors.offenders.look(&world.app).await;
    looked.expect("the store answers");
    world.ticks(1, |_| {});
    let open = world.open();
    assert_eq!(open.len(), 2, "{open:?}");
    for (place, what, name) in [
        (
            Place::gpu("prod", "node-1", "GPU-prod-node-1-0000"),
            "it breaks again and again",
            "faults in 30 days, serial number 1650923012345",
        ),
        (
            Place::node("prod", "node-2"),
            "it breaks again and again, and no single card of it",
            "faults in 30 days",
        ),
    ] {
        let told = open.iter().find(|it| it.place == place);
        let told = told.unwrap_or_else(|| panic!("{place:?}: {open:?}"));
        assert_eq!(
            (told.family, told.cause, &*told.what),
            (Family::Offender, Cause::GpuFault, what)
        );
        let read = &told.evidence[0].readings[0];
        assert_eq!((&*read.name, read.value), (name, 3.0));
    }
}
