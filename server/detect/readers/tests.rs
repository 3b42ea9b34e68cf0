//! Who is told of a reader that fails, when, and until when.

use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::sample;
use gpufleet_telemetry::time::Clock as _;

use super::*;
use crate::detect::Detectors;
use crate::detect::tests::{World, is_gpu};
use crate::notify::runbook;
use crate::view::fixture::NOW;

/// What the reader `nvml` of node-1 tells.
fn told(success: sample::Reading, last: Option<f64>) -> impl Fn(&mut Live) {
    move |live| {
        if live.key.kind != ResourceKind::Node || &*live.node != "node-1" {
            return;
        }
        put(live, &own::READER_SUCCESS, success);
        let last = last.ok_or(Missing::NotReady);
        put(live, &own::READER_LAST_SUCCESS, last);
    }
}

fn put(live: &mut Live, metric: &Metric, reading: sample::Reading) {
    let part = Some(Arc::new(Part::new(PartKind::Reader, "nvml")));
    let at = live.last_point;
    live.values
        .retain(|it| it.metric != metric.id || it.part != part);
    live.values.push(LiveValue {
        metric: metric.id,
        part,
        reading,
        max: None,
        at,
    });
    live.values
        .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
}

fn one(world: &World) -> Incident {
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:#?}");
    open[0].clone()
}

#[tokio::test]
async fn a_reader_that_has_read_nothing_for_five_minutes_is_told_until_it_reads_again() {
    for (success, last) in [
        (0.0, None),
        (0.0, Some(NOW.seconds() as f64)),
        // It says that it works, and stands.
        (1.0, Some(NOW.seconds() as f64)),
    ] {
        let mut world = World::new().await;
        world.ticks(29, told(Ok(success), last));
        assert_eq!(world.open(), [], "not yet five minutes: {success} {last:?}");
        world.ticks(5, told(Ok(success), last));
        let is = one(&world);
        assert_eq!((is.family, is.cause), (Family::Blind, Cause::Reader));
        assert_eq!(is.place, Place::node("prod", "node-1"));
        assert_eq!(is.what, "a reader of its agent fails");
        assert_eq!(runbook::of(&is), "reader-fails");
        let reading = &is.evidence[0].readings[0];
        assert_eq!(reading.name, "without a reading, nvml");
        let later = world.hand.now().seconds() as f64;
        world.ticks(3, told(Ok(1.0), Some(later)));
        assert_eq!(world.open(), [], "it reads again");
    }
}

#[tokio::test]
async fn where_there_is_nothing_to_read_nobody_is_told_and_what_is_turned_off_is_over() {
    let mut world = World::new().await;
    world.ticks(90, told(Err(Missing::NotReady), None));
    assert_eq!(world.open(), [], "a machine without a card");
    world.ticks(34, told(Ok(0.0), None));
    one(&world);
    world.ticks(3, |live| {
        let is_it = |it: &LiveValue| it.part.as_ref().is_some_and(|it| &*it.id == "nvml");
        live.values.retain(|it| !is_it(it));
    });
    assert_eq!(world.open(), [], "turned off");
}

#[tokio::test]
async fn a_server_that_begins_anew_does_not_take_a_reader_that_still_fails_for_mended() {
    let mut world = World::new().await;
    world.ticks(34, told(Ok(0.0), None));
    let before = one(&world);
    world.detectors = Detectors::new(&world.app.config.detect);
    world.ticks(60, told(Ok(0.0), None));
    let after = one(&world);
    assert_eq!((after.id, after.resolved_at), (before.id, None));
    assert_eq!(after.log, before.log, "nobody was told that it was over");
}

#[tokio::test]
async fn a_node_that_falls_silent_is_told_beside_its_reader() {
    let mut world = World::new().await;
    world.ticks(34, told(Ok(0.0), None));
    let reader = one(&world);
    world.ticks(10, |live| {
        if &*live.node == "node-1" {
            live.node = "".into();
        }
    });
    let open = world.open();
    let said: Vec<_> = open.iter().map(|it| it.cause).collect();
    assert_eq!(said, [Cause::Reader, Cause::Connection]);
    world.ticks(6, told(Ok(0.0), None));
    assert_eq!(one(&world).id, reader.id, "it is heard again, and as blind");
}

#[tokio::test]
async fn readings_that_the_driver_refuses_are_told_after_ten_minutes() {
    for missing in [
        Missing::NoPermission,
        Missing::LibraryMismatch,
        Missing::DriverNotLoaded,
    ] {
        let mut world = World::new().await;
        let refused = |live: &mut Live| {
            let is_it = is_gpu(live, "node-1", 5);
            let power = live.values.iter_mut().find(|it| it.metric == gpu::POWER.id);
            if let Some(power) = power.filter(|_| is_it) {
                power.reading = Err(missing);
            }
        };
        world.ticks(60, refused);
        assert_eq!(world.open(), [], "not yet ten minutes");
        world.ticks(4, refused);
        let is = one(&world);
        assert_eq!((is.family, is.cause), (Family::Blind, Cause::Reader));
        assert_eq!(is.what, "the driver refuses readings");
        assert_eq!(runbook::of(&is), "reader-fails");
        world.ticks(3, |live| {
            let power = live.values.iter_mut().find(|it| it.metric == gpu::POWER.id);
            if let Some(power) = power.filter(|it| it.reading.is_err()) {
                power.reading = Ok(500.0);
            }
        });
        assert_eq!(world.open(), [], "they are read again");
    }
}
