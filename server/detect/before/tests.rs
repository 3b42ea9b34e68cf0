//! What is handed on of incidents that are open at a start, to whom, and what is waited for.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Book, Nodes, Remedy, Tick};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use uuid::Uuid;

use super::*;

const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);
const RUN: &str = "research/train-7b/u/0";

fn later(seconds: i64) -> Timestamp {
    NOW.shifted(seconds * NANOS_PER_SECOND)
}

fn signal(family: Family, place: Place, what: &str) -> Signal {
    Signal {
        family,
        place,
        severity: Severity::Warning,
        what: what.to_owned(),
        action: String::new(),
        remedy: Remedy::Look,
        cause: Cause::Unknown,
        since: Some(later(-60)),
        readings: vec![Reading::new("count", 1.0, Some(18.0), Unit::Count)],
        price: Price::none(Basis::NoRunWaits),
        confidence: None,
        booted_at: None,
    }
}

/// The incidents that these signals open.
fn open(signals: &[Signal]) -> Vec<Incident> {
    let mut book = Book::default();
    let nodes = Nodes::from([(("prod".to_owned(), "node-1".to_owned()), 8)]);
    let mut ids = 0;
    for _ in 0..5 {
        let tick = Tick {
            now: NOW,
            signals: signals.to_vec(),
            is_heard: &|_, _| true,
            in_its_place: &|_, _| None,
            is_forgotten: &|_, _| false,
            quiet_runs: &BTreeSet::new(),
            nodes: &nodes,
            runs: &BTreeMap::new(),
        };
        book.tick(tick, &mut || {
            ids += 1;
            Uuid::from_u128(ids)
        });
    }
    book.open_ones().cloned().collect()
}

fn key(kind: ResourceKind, id: &str) -> ResourceKey {
    ResourceKey {
        cluster: "prod".into(),
        kind,
        id: id.into(),
    }
}

#[test]
fn what_was_said_is_handed_to_the_resource_that_it_is_about_when_that_is_met_soon() {
    let of_rank = |rank: Option<u32>| Place {
        run: Some(RUN.to_owned()),
        rank,
        ..Place::node("prod", "node-2")
    };
    let all = [
        signal(Family::Memory, Place::gpu("prod", "node-1", "GPU-1"), "a"),
        signal(Family::Link, Place::node("prod", "node-1"), "b"),
        signal(Family::Training, of_rank(Some(3)), "c"),
        signal(Family::Slower, of_rank(None), "d"),
    ];
    let before = Before::of(&open(&all), &[], NOW);
    let told = |kind, id: &str, seconds| -> Vec<&str> {
        let about = before.about(&key(kind, id), later(seconds));
        about.into_iter().map(|it| &*it.what).collect()
    };
    assert_eq!(told(ResourceKind::Gpu, "GPU-1", 10), ["a"]);
    assert_eq!(told(ResourceKind::Node, "node-1", 10), ["b"]);
    assert_eq!(told(ResourceKind::Node, "node-9", 10), [""; 0]);
    let mut of_three = told(ResourceKind::Rank, &format!("{RUN}/3"), 10);
    of_three.sort_unstable();
    assert_eq!(of_three, ["c", "d"]);
    assert_eq!(told(ResourceKind::Rank, &format!("{RUN}/4"), 10), ["d"]);
    assert_eq!(told(ResourceKind::Gpu, "GPU-1", 601), [""; 0], "it is new");
    let mut elsewhere = key(ResourceKind::Gpu, "GPU-1");
    elsewhere.cluster = "other".into();
    assert_eq!(before.about(&elsewhere, NOW), Vec::<&Said>::new());
    let said = before.said("a").next().expect("it was said");
    assert_eq!((said.since, said.seen_at), (later(-60), NOW));
    let usual = said.reading("count").and_then(|it| it.usual);
    assert_eq!((usual, said.reading("other")), (Some(18.0), None));
}

#[test]
fn what_takes_long_to_be_found_is_waited_for_until_it_is_told_or_the_time_is_over() {
    let at = |gpu: &str| Place::gpu("prod", "node-1", gpu);
    let finds = [
        Finds::of("memory", Family::Leak, &[], &[]).learns(&["memory grows"], 100),
        Finds::of("at once", Family::Heat, &[], &[]),
    ];
    let grows = |gpu: &str| signal(Family::Leak, at(gpu), "memory grows until it is full");
    let all = [
        grows("GPU-1"),
        grows("GPU-2"),
        signal(Family::Leak, at("GPU-3"), "a process was killed"),
        signal(
            Family::Heat,
            at("GPU-1"),
            "memory grows, says something else",
        ),
    ];
    let mut before = Before::of(&open(&all), &finds, NOW);
    let waits = |before: &Before, family, gpu: &str, seconds| {
        before.awaits(family, &at(gpu), later(seconds))
    };
    assert!(waits(&before, Family::Leak, "GPU-1", 99));
    assert!(
        !waits(&before, Family::Leak, "GPU-1", 100),
        "as long as that"
    );
    assert!(!waits(&before, Family::Leak, "GPU-3", 1), "other words");
    assert!(!waits(&before, Family::Heat, "GPU-1", 1), "found at once");
    let awaited = before.awaited(&[grows("GPU-2")], later(10));
    before.keep(awaited, later(10));
    assert!(waits(&before, Family::Leak, "GPU-1", 11));
    assert!(!waits(&before, Family::Leak, "GPU-2", 11), "it is told of");
    before.keep(Vec::new(), later(90_000));
    assert_eq!(
        before.said("a process was killed").count(),
        0,
        "a day later"
    );
}

#[test]
fn of_runs_that_stand_it_is_known_since_when_and_whether_they_computed_without_a_step() {
    let of = |run: &str| Place {
        cluster: "prod".to_owned(),
        run: Some(run.to_owned()),
        ..Place::default()
    };
    let all = [
        signal(
            Family::Hang,
            of(RUN),
            "the run stands still and computes nothing",
        ),
        signal(
            Family::Slower,
            of("research/other/u/0"),
            "its steps take longer",
        ),
        signal(
            Family::Hang,
            of("research/untold/u/0"),
            "the run computed without telling a step and stands still and computes nothing",
        ),
    ];
    let before = Before::of(&open(&all), &[], NOW);
    let stood = |run: &str| {
        let id = format!("{run}/0");
        let id = gpufleet_telemetry::training::RankId::parse(&id).expect("an id");
        before.stood(&RunKey::of(&"prod".into(), &id))
    };
    assert_eq!(stood(RUN), Some((later(-60), false)));
    assert_eq!(stood("research/other/u/0"), None);
    assert_eq!(stood("research/untold/u/0"), Some((later(-60), true)));
}
