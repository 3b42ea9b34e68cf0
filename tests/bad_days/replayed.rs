//! A day of the demo that was stored, replayed: the incident that the live server opened opens again, of the same
//! place, cause and price, about when it did; stricter thresholds find more, and nothing is written.

use gpufleet_analysis::incident::{Family, Incident};
use gpufleet_server::config::Config;
use gpufleet_server::replay::{Replayed, What, replay, told};
use gpufleet_server::store::Store;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_tests::harness::postgres;
use gpufleet_tests::simulation::judged::{Judged, attempt};
use gpufleet_tests::simulator::faults::Fault;
use gpufleet_tests::simulator::node::Plan;

use super::judged::{BROKEN, MENDED, SEED, UNTIL_IT_GOES, plan, shown};

const DAY_NS: i64 = 86_400 * NANOS_PER_SECOND;
/// Minutes smooth what ticks show, so that it opens and ends somewhat earlier or later, nanoseconds.
const ABOUT_NS: i64 = 90 * NANOS_PER_SECOND;

/// The day that a moment is of.
fn day(at: Timestamp) -> What {
    What::Day(at.0.div_euclid(DAY_NS))
}

async fn replayed(config: &Config, at: Timestamp) -> Replayed {
    let replayed = replay(&day(at), config, None, &mut |_, _| {}).await;
    replayed.unwrap_or_else(|error| panic!("it cannot be replayed: {error}"))
}

fn is_near(one: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.since(other).abs() <= ABOUT_NS,
        (one, other) => one == other,
    }
}

#[tokio::test]
async fn what_a_live_server_told_of_a_fault_a_replay_of_its_store_tells_too() {
    for fault in [
        Fault::Xid79,
        Fault::Lost,
        Fault::Stall,
        Fault::Thermal,
        Fault::Slow,
    ] {
        is_told_again(fault, None).await;
    }
}

#[tokio::test]
async fn a_record_in_postgresql_is_replayed_as_one_in_sqlite_is() {
    // One that shows in events, one that shows in steps.
    for fault in [Fault::Xid79, Fault::Slow] {
        let database = postgres::Database::new();
        is_told_again(fault, Some(&database.url())).await;
    }
}

/// Breaks something in a fleet that is stored, mends it, and holds the replay against what was told live.
async fn is_told_again(fault: Fault, url: Option<&str>) {
    let began = attempt(SEED).began;
    let mut world = Judged::stored(&plan(), began, url).await;
    world.minutes(UNTIL_IT_GOES).await;
    world.inject(fault);
    world.minutes(BROKEN).await;
    world.inject(Fault::Heal);
    world.minutes(MENDED).await;
    let config = world.written().await;
    let live: Vec<Incident> = world.incidents().into_iter().cloned().collect();
    let [live] = live.as_slice() else {
        panic!("{} incidents live", live.len());
    };
    let replayed = replayed(&config, began).await;
    let found: Vec<&Incident> = replayed.incidents.iter().collect();
    let all = format!(
        "{}: live\n{}\nreplayed\n{}\n{}",
        fault.name(),
        shown(&[live]),
        shown(&found),
        told::text(&replayed)
    );
    let [one] = found.as_slice() else {
        panic!("{} incidents in {all}", found.len());
    };
    assert_eq!((one.family, one.cause), (live.family, live.cause), "{all}");
    let (place, live_place) = (one.place_and_run(), live.place_and_run());
    assert_eq!(place, live_place, "{all}");
    assert!(is_near(one.opened_at, live.opened_at), "{all}");
    assert!(is_near(one.resolved_at, live.resolved_at), "{all}");
    let lost = one.lost.gpu_seconds() / live.lost.gpu_seconds();
    assert!(
        (0.6..=1.6).contains(&lost),
        "{lost} of what was lost: {all}"
    );
    assert!(one.lost.nano_usd() > Some(0), "{all}");
    let then = replayed
        .then
        .as_ref()
        .expect("the store knows what opened then");
    assert_eq!(
        (then.also.as_slice(), then.only.len()),
        (&[true][..], 0),
        "{all}"
    );
    assert_eq!(replayed.most.gpus, 32, "{all}");
}

#[tokio::test]
async fn with_a_stricter_threshold_more_fires_than_then_and_with_a_laxer_one_less() {
    let began = attempt(SEED).began;
    let plan = Plan {
        seed: SEED,
        ..Plan::demo()
    };
    let mut world = Judged::stored(&plan, began, None).await;
    world.minutes(15).await;
    let mut config = world.written().await;
    let idle = |replayed: &Replayed| {
        let of_kind = replayed.incidents.iter();
        of_kind.filter(|it| it.family == Family::Idle).count()
    };
    let as_it_was = replayed(&config, began).await;
    assert_eq!(idle(&as_it_was), 0, "{}", told::text(&as_it_was));
    config.detect.idle_after_s = 300;
    let strict = replayed(&config, began).await;
    let text = told::text(&strict);
    assert!(idle(&strict) > 0, "{text}");
    assert!(text.contains("it did not open then"), "{text}");
    assert!(told::json(&strict).contains("\"also_then\": false"));
}

#[tokio::test]
async fn a_day_that_is_not_stored_is_told_so_and_a_replay_writes_nothing() {
    let began = attempt(SEED).began;
    let world = Judged::stored(&plan(), began, None).await;
    let config = world.written().await;
    let never = replay(&day(began), &config, None, &mut |_, _| {}).await;
    let error = never.expect_err("nothing is stored").to_string();
    assert!(
        error.contains("no minute of 2026-") && error.contains("48 h"),
        "{error}"
    );
    let store = Store::open_to_read(&config.store).await;
    let store = store.expect("a server uses it");
    let refused = store.keep_export_cursor("way", began.minute()).await;
    let refused = refused.expect_err("it is only read").to_string();
    assert!(refused.contains("opened to be read"), "{refused}");
    store.close().await;
}
