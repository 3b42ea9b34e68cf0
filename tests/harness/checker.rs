//! Reads a stopped server's database and compares it with what was made.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use gpufleet_server::runs::RunKey;
use gpufleet_server::store::model::{EventFilter, ResourceKey};
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::steps::StepTimes;
use gpufleet_telemetry::time::Minute;
use gpufleet_telemetry::training::RankId;

use crate::simulator::fleet::SimulatedFleet;
use crate::simulator::journal::Expected;
use crate::simulator::node::Plan;

/// Minutes looked at before the first and after the last that was made: nothing may be there.
const MARGIN: i64 = 60;

/// Events read at a time.
const PAGE: usize = 1_000;

/// Everything that differs, one line each; empty when nothing was lost and nothing counts twice.
///
/// # Panics
/// When the database cannot be read.
pub fn differences(database: &str, cluster: &str, expected: &Expected) -> Vec<String> {
    with_store(database, async |store| {
        let mut wrong = Vec::new();
        for (kind, id) in expected.resources() {
            let found = minutes(store, cluster, kind, &id, expected.span(MARGIN)).await;
            wrong.extend(expected.differences(kind, &id, &found));
        }
        wrong
    })
}

/// Every step that is lost, there twice, wrong or of nobody, one line each.
///
/// # Panics
/// When the database cannot be read.
pub fn step_differences(database: &str, cluster: &str, expected: &Expected) -> Vec<String> {
    let made = || expected.steps.keys().chain(expected.either_steps.keys());
    let ranks: BTreeSet<&String> = made().map(|(rank, _)| rank).collect();
    let span = expected.span(MARGIN);
    let buckets = span.start.0.div_euclid(10)..span.end.0.div_euclid(10) + 1;
    let mut found: BTreeMap<(String, u64), Vec<StepTimes>> = BTreeMap::new();
    with_store(database, async |store| {
        for name in ranks {
            let id = RankId::parse(name).expect("the simulator names ranks");
            let key = RunKey::of(&cluster.into(), &id);
            let stored = store.steps(&key, Some(&[id.rank]), buckets.clone()).await;
            let stored = stored.expect("the database can be read");
            for block in stored.into_iter().flat_map(|it| it.blocks) {
                assert_eq!(block.steps_log2, 0, "the simulator's steps are slow");
                for (step, times) in (block.first_step..).zip(block.times) {
                    let place = (name.clone(), step);
                    found.entry(place).or_default().push(times);
                }
            }
        }
    });
    let mut wrong = Vec::new();
    for (place, record) in &expected.steps {
        match found.get(place).map(Vec::as_slice) {
            None => wrong.push(format!("step {place:?}: lost")),
            Some([times]) if are_alike(times, &record.times) => {}
            Some([times]) => {
                wrong.push(format!("step {place:?}: {times:?} for {:?}", record.times))
            }
            Some(several) => wrong.push(format!("step {place:?}: {} times", several.len())),
        }
    }
    for (place, times) in &found {
        let maybe = expected.either_steps.get(place);
        if expected.steps.contains_key(place) {
            continue;
        }
        match (times.as_slice(), maybe) {
            ([times], Some(record)) if are_alike(times, &record.times) => {}
            _ => wrong.push(format!(
                "step {place:?}: {times:?}, and {maybe:?} may be there"
            )),
        }
    }
    wrong
}

/// Whether times are the same but for what packing rounds: a microsecond, or a millionth of the longest
/// step beside it, which is shorter than a minute.
fn are_alike(found: &StepTimes, made: &StepTimes) -> bool {
    const ROUNDED_NS: u64 = 200_000;
    let all = |it: &StepTimes| [it.wall_ns, it.busy_ns, it.data_wait_ns, it.comm_wait_ns];
    std::iter::zip(all(found), all(made)).all(|(a, b)| a.abs_diff(b) <= ROUNDED_NS)
}

/// The minute rows of a resource.
///
/// # Panics
/// When the database cannot be read.
pub fn rows(
    database: &str,
    cluster: &str,
    kind: ResourceKind,
    id: &str,
    range: Range<Minute>,
) -> BTreeMap<Minute, MinuteRow> {
    with_store(database, async |store| {
        minutes(store, cluster, kind, id, range).await
    })
}

/// The events of a cluster that are there more or less often than they were told, one line each.
///
/// # Panics
/// When the database cannot be read.
pub fn event_differences(database: &str, cluster: &str, told: &[Event]) -> Vec<String> {
    // What the store keeps of an event's time are milliseconds.
    let name = |it: &Event| format!("{} {:?} {}", it.at.millis(), it.kind, it.message);
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for event in told {
        *counts.entry(name(event)).or_default() += 1;
    }
    for event in events(database, cluster) {
        *counts.entry(name(&event)).or_default() -= 1;
    }
    let differ = counts.into_iter().filter(|(_, count)| *count != 0);
    differ
        .map(|(name, count)| match count {
            1.. => format!("event lost ({count}): {name}"),
            _ => format!("event too often ({}): {name}", -count),
        })
        .collect()
}

/// The events of a cluster.
///
/// # Panics
/// When the database cannot be read.
pub fn events(database: &str, cluster: &str) -> Vec<Event> {
    let filter = EventFilter {
        cluster: Some(cluster.into()),
        ..EventFilter::default()
    };
    with_store(database, async |store| {
        let (mut found, mut place) = (Vec::new(), None);
        loop {
            let page = store.events(&filter, place, PAGE).await;
            let page = page.expect("the database can be read");
            found.extend(page.events.into_iter().map(|it| it.event));
            place = page.next;
            if place.is_none() {
                return found;
            }
        }
    })
}

/// Everything that is not complete in these minutes, one line each: a simulated fleet without faults
/// has six ticks of 10 s in each minute, no second without evidence, and no reading missing.
///
/// # Panics
/// When the database cannot be read.
pub fn incomplete(database: &str, plan: &Plan, range: Range<Minute>) -> Vec<String> {
    const TICKS: u32 = 6;
    const ALL_SECONDS: u64 = (1 << 60) - 1;
    let mut resources = Vec::new();
    for node in SimulatedFleet::new(plan).nodes {
        resources.push((ResourceKind::Node, node.facts().node.clone()));
        let gpus = node.gpu_ids().into_iter();
        resources.extend(gpus.map(|id| (ResourceKind::Gpu, id)));
    }
    with_store(database, async |store| {
        let mut wrong = Vec::new();
        for (kind, id) in resources {
            let found = minutes(store, &plan.cluster, kind, &id, range.clone()).await;
            for minute in (range.start.0..range.end.0).map(Minute) {
                let why = match found.get(&minute) {
                    None => "lost",
                    Some(row) if row.metrics.is_empty() => "without any metric",
                    Some(row) if row.metrics.values().any(|it| it.count != TICKS) => {
                        "with more or fewer ticks than were made"
                    }
                    Some(row)
                        if kind == ResourceKind::Gpu && row.bitmaps.observed != ALL_SECONDS =>
                    {
                        "with seconds that are not observed"
                    }
                    Some(_) => continue,
                };
                wrong.push(format!("{} {id} minute {}: {why}", kind.name(), minute.0));
            }
        }
        wrong
    })
}

/// Does something with the store of a server that does not run.
///
/// # Panics
/// When it cannot be opened.
pub fn with_store<T>(database: &str, work: impl AsyncFnOnce(&Store) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a test may start a runtime");
    runtime.block_on(async {
        let config = StoreConfig {
            url: database.to_owned(),
            ..StoreConfig::default()
        };
        let store = Store::open(&config)
            .await
            .expect("the database can be read");
        let found = work(&store).await;
        store.close().await;
        found
    })
}

async fn minutes(
    store: &Store,
    cluster: &str,
    kind: ResourceKind,
    id: &str,
    range: Range<Minute>,
) -> BTreeMap<Minute, MinuteRow> {
    let key = ResourceKey {
        cluster: cluster.into(),
        kind,
        id: id.into(),
    };
    let minutes = store
        .minutes(&key, range)
        .await
        .expect("the database can be read");
    assert_eq!(minutes.corrupt, Vec::<String>::new());
    minutes.rows
}
