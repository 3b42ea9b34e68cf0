//! A ledger that is not empty, under the pages: two hours of every GPU of the fixture, and of a model server.

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::catalog::{gpu, serving};
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::minute::{ALL_SECONDS, Counter, MinuteRow};
use gpufleet_telemetry::time::Minute;

use super::*;
use crate::ledger::{self, Rules};
use crate::store::model::{Commit, KnownHolder, KnownResource, MinuteDelta, ResourceKey};

/// Minutes that are known, all of them before the hour of the fixture's moment.
const MINUTES: i64 = 120;

/// Puts the minutes into the store and has the ledger compute its hours and days.
pub(super) async fn fill(server: &Fixture) {
    let mut all = Vec::new();
    server.fleet.visit(|live| {
        if live.key.kind == ResourceKind::Gpu {
            all.push((live.key.clone(), Arc::clone(&live.resource)));
        }
    });
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all.push(model_server("llama", ""));
    let holder = Holder {
        name: "train-0".to_owned(),
        namespace: "research".to_owned(),
        job: "train".to_owned(),
        ..Holder::default()
    };
    let holder = KnownHolder {
        number: holder.number(),
        holder,
        met: fixture::NOW,
    };
    let first = Minute(fixture::NOW.minute().0.div_euclid(60) * 60 - MINUTES);
    let mut commit = Commit {
        number: 5_000,
        ..Commit::default()
    };
    for (place, (key, resource)) in all.into_iter().enumerate() {
        let minutes = (0..MINUTES).map(|it| MinuteDelta {
            key: key.clone(),
            minute: Minute(first.0 + it),
            row: row(key.kind, place, it, holder.number),
        });
        commit.minutes.extend(minutes);
        commit.resources.push(KnownResource {
            key,
            resource,
            agent: None,
            first_seen: first.start(),
            last_seen: fixture::NOW,
        });
    }
    // One that tells no tokens.
    let (key, resource) = model_server("mute", "deployment:ml/mute");
    commit.resources.push(KnownResource {
        key,
        resource,
        agent: None,
        first_seen: first.start(),
        last_seen: fixture::NOW,
    });
    commit.holders = vec![holder];
    let (store, length) = (&server.store, Duration::from_secs(60));
    let lease = store.acquire_lease("tests", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    store.commit(&commit, token).await.unwrap();
    let (terms, config) = (server.app.money.terms(), &server.app.config.ledger);
    let rules = Rules {
        targets: &terms.targets,
        standby: &terms.standby,
    };
    let round = async || {
        let hours = ledger::round(store, config, rules, fixture::NOW).await;
        let days = ledger::days::replace(store, fixture::NOW).await;
        hours.unwrap() + days.unwrap().0
    };
    while round().await > 0 {}
    store.release_lease(token).await.unwrap();
}

/// A model server on the first node; of no workload where that is empty.
fn model_server(model: &str, workload: &str) -> (ResourceKey, Arc<Resource>) {
    let key = ResourceKey {
        cluster: "prod".into(),
        kind: ResourceKind::Endpoint,
        id: format!("127.0.0.1:8000/{model}").into(),
    };
    let resource = Resource::new(ResourceKind::Endpoint, &*key.id)
        .with(attribute::NODE, "h100-00")
        .with(attribute::WORKLOAD, workload)
        .with(attribute::MODEL_NAME, model);
    (key, Arc::new(resource))
}

/// A minute: of four GPUs one works, one is held and quiet, one is free, and of one it is not known who holds it.
fn row(kind: ResourceKind, place: usize, minute: i64, holder: i64) -> MinuteRow {
    let mut row = MinuteRow::default();
    if kind == ResourceKind::Endpoint {
        for metric in [serving::PROMPT_TOKENS, serving::GENERATED_TOKENS] {
            let tokens = Counter::point(1e6 + 1_000.0 * minute as f64, 0, 60_000);
            row.add_counter(metric.id, &tokens.unwrap());
        }
        return row;
    }
    let mut set = |metric: gpufleet_telemetry::catalog::Metric| {
        row.bitmaps.set(metric.id, ALL_SECONDS);
    };
    set(gpu::OBSERVED);
    if place % 4 < 3 {
        set(gpu::HOLDER_KNOWN);
    }
    if place.is_multiple_of(4) {
        set(gpu::ACTIVE);
    }
    if place % 4 < 2 {
        set(gpu::HELD);
        row.hold(holder, ALL_SECONDS);
    }
    row
}

#[tokio::test]
async fn the_page_of_a_month_with_hours_has_states_teams_and_a_model_server() {
    let server = server().await;
    // A month without hours does not stand for a moment longer.
    let (_, page) = server.get("/cost").await;
    assert!(page.contains("The ledger has no hours of this month yet"));
    fill(&server).await;
    let (_, page) = server.get("/cost").await;
    for words in [
        "<h3>States, and why</h3>",
        "<h3>Serving</h3>",
        "<td>llama</td>",
        "<td>mute</td>",
        "<a class=\"missing\" href=\"/health#readers\">not told</a>",
        "<td data-label=\"Team\">unowned</td>",
        "GPU-hours",
        // Its hours are of today alone.
        "<p>Not compared with August 2026: the first 20 days of September 2026 were not recorded.</p>",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    assert!(
        !page.contains("The ledger has no hours of this month yet"),
        "{page}"
    );
}
