//! What was silent for longer than the fleet knows it: links to it lead to its past.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::minute::{ALL_SECONDS, Aggregate, MinuteRow};
use gpufleet_telemetry::time::NANOS_PER_SECOND;

use super::*;
use crate::auth::Grant;
use crate::store::model::{Commit, KnownResource, MinuteDelta, StoredEvent};
use crate::view::{FleetView, forgotten};

/// When it was last heard: two days before the picture.
const LAST: Timestamp = fixture::NOW.shifted(-2 * 86_400 * NANOS_PER_SECOND);

const GONE: &str = "GPU-prod-h100-99-0004";

/// A node with a GPU, of which nothing was heard for two days, as the store knows them.
async fn with_a_forgotten_node() -> Fixture {
    let server = server().await;
    let machine = fixture::machine("prod", "h100-99", Origin::Live);
    let card = fixture::gpu("prod", "h100-99", 4, Does::Work, Origin::Live);
    assert_eq!(&*card.key.id, GONE);
    let mut row = MinuteRow::default();
    row.bitmaps.set(gpu::OBSERVED.id, ALL_SECONDS);
    let power = Aggregate::of_gauge(431.0, None).expect("finite");
    row.add(gpu::POWER.id, power);
    let event = Event {
        at: LAST,
        kind: EventKind::Xid,
        severity: Severity::Error,
        resource_kind: card.key.kind,
        resource_id: Arc::clone(&card.key.id),
        message: "XID 79: fell off the bus.".to_owned(),
        attributes: BTreeMap::new(),
    };
    let known = |it: &Live| KnownResource {
        key: it.key.clone(),
        resource: Arc::clone(&it.resource),
        agent: it.agent,
        first_seen: LAST.shifted(-30 * 86_400 * NANOS_PER_SECOND),
        last_seen: LAST,
    };
    let commit = Commit {
        number: server.store.last_commit().await.unwrap() + 1,
        resources: vec![known(&machine), known(&card)],
        minutes: vec![MinuteDelta {
            key: card.key.clone(),
            minute: LAST.minute(),
            row,
        }],
        events: vec![StoredEvent {
            cluster: "prod".into(),
            agent: None,
            event,
        }],
        ..Commit::default()
    };
    let length = Duration::from_secs(15);
    let lease = server.store.acquire_lease("test", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    server.store.commit(&commit, token).await.unwrap();
    server
}

#[tokio::test]
async fn a_gpu_and_a_node_that_the_fleet_has_forgotten_have_their_past_and_are_in_no_list() {
    let server = with_a_forgotten_node().await;
    let card = format!("/clusters/prod/gpus/{GONE}");
    let node = "/clusters/prod/nodes/h100-99";
    for (address, says) in [
        (&*card, "GPU 4 of h100-99"),
        (
            &*card,
            "Last sample <time>2026-09-19 14:14:10</time> UTC, 2 d ago",
        ),
        (node, &*format!("href=\"{card}\"")),
        (node, "Silent since 2026-09-19 14:14:10 UTC"),
    ] {
        let (status, page) = server.get(address).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        for says in [
            says,
            "fleet.forget_after_s",
            "The 24 hours up to when it was last heard",
            "XID 79: fell off the bus.",
        ] {
            assert!(page.contains(says), "{address}: {says}: {page}");
        }
    }
    let (_, page) = server.get(&card).await;
    // The curves end where it did, with its last minute in them.
    assert!(page.contains("mean 431 W"), "{page}");
    assert!(!page.contains("All readings"), "it has none");

    let minutes = format!(
        "/api/v1/gpus/prod/{GONE}/minutes?from=2026-09-19T14:00:00Z&to=2026-09-19T15:00:00Z"
    );
    let minutes = server.json(&minutes).await;
    assert_eq!(minutes["minutes"].as_array().unwrap().len(), 1, "{minutes}");
    let hours = server
        .json(&format!("/api/v1/gpus/prod/{GONE}/hours"))
        .await;
    assert_eq!(hours["id"], GONE);
    let detail = server.json(&format!("/api/v1/gpus/prod/{GONE}")).await;
    assert_eq!(
        (&detail["node"], &detail["all_readings"]),
        (&"h100-99".into(), &serde_json::json!([]))
    );
    let detail = server.json("/api/v1/nodes/prod/h100-99").await;
    assert_eq!(detail["gpus"][0]["id"], GONE, "{detail}");

    for list in ["/api/v1/gpus?limit=1000", "/api/v1/nodes?limit=1000"] {
        let list = server.json(list).await.to_string();
        assert!(!list.contains("h100-99"), "{list}");
    }
    // Another cluster's token is told nothing of it.
    let bound = Grant {
        cluster: Some("demo".into()),
    };
    let found = forgotten::gpu(&server.app, &bound, "prod", GONE)
        .await
        .unwrap();
    assert!(found.is_none());
    let view = Arc::new(FleetView::default());
    let names = ("prod", "h100-99");
    let found = forgotten::with_node(&server.app, view, &bound, names).await;
    assert!(found.unwrap().view.node("prod", "h100-99").is_none());
}

#[tokio::test]
async fn what_only_the_store_may_know_is_not_called_unknown_where_it_does_not_answer() {
    let server = server().await;
    server.store.close().await;
    for address in [
        "/clusters/prod/gpus/GPU-none",
        "/clusters/prod/nodes/nobody",
        "/api/v1/gpus/prod/GPU-none/hours",
        "/api/v1/nodes/prod/nobody",
    ] {
        let (status, _) = server.get(address).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{address}");
    }
    let (status, _) = server.get(&format!("/clusters/prod/gpus/{GPU}")).await;
    assert_eq!(status, StatusCode::OK, "what is live is known");
}

#[tokio::test]
async fn a_fleet_at_zero_for_longer_than_a_day_has_its_money_and_is_not_taken_for_one_that_never_was()
 {
    let mut server = super::today::priced(fixture::fleet()).await;
    super::filled::fill(&server).await;
    let later_s = 86_460;
    let later = fixture::NOW.shifted(later_s * NANOS_PER_SECOND);
    server.fleet.take_commit(later);
    server.pass(later_s.unsigned_abs());
    let money = [
        "<td data-label=\"Team\">unowned</td>",
        "<dt>Total</dt>",
        "The whole report",
        "Idle now: 0 GPUs are idle",
    ];
    let (_, page) = server.get("/cost").await;
    for words in [&money[..], &["<h2>Live clusters: this month</h2>"]].concat() {
        assert!(page.contains(words), "{words}: {page}");
    }
    for address in ["/", "/fleet"] {
        let (_, page) = server.get(address).await;
        assert!(page.contains("Nothing has reported for longer"), "{page}");
        for never in ["No agent has reported yet", "Connect the first node"] {
            assert!(!page.contains(never), "{address}: {never}: {page}");
        }
    }
    let (status, page) = server.get("/clusters/prod").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(page.contains("Nothing has reported from it"), "{page}");

    // Who is bound to a cluster is told the same of that one alone.
    let folder = tempfile::tempdir().unwrap();
    let tokens = ["prod", "other"].map(|cluster| {
        let file = folder.path().join(cluster);
        std::fs::write(&file, format!("{TOKEN}-{cluster}")).unwrap();
        TokenFile {
            role: Role::Read,
            file: file.display().to_string(),
            cluster: Some(cluster.to_owned()),
        }
    });
    let auth = AuthConfig {
        tokens: tokens.into(),
        ..AuthConfig::default()
    };
    server.router = super::super::router(App {
        access: Arc::new(Access::load(&auth).unwrap()),
        ..server.app.clone()
    });
    let ask = async |cluster: &str, address: &str| {
        let token = format!("Bearer {TOKEN}-{cluster}");
        let request = Request::get(address).header(header::AUTHORIZATION, token);
        let answer = server.ask(request.body(Body::empty()).unwrap()).await;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8_lossy(&body).into_owned()
    };
    let page = ask("prod", "/cost").await;
    for words in [&money[..], &["<h2>prod: this month</h2>", "cluster=prod\""]].concat() {
        assert!(page.contains(words), "{words}: {page}");
    }
    let page = ask("other", "/cost").await;
    assert!(page.contains("No GPU has reported yet"), "{page}");
    let page = ask("other", "/clusters/prod").await;
    assert!(!page.contains("Nothing has reported from it"), "{page}");
    for (cluster, never) in [("prod", false), ("other", true)] {
        let page = ask(cluster, "/").await;
        assert_eq!(page.contains("No agent has reported yet"), never, "{page}");
    }
}
