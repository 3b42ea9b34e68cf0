//! What was changed, on the charts of nodes, GPUs, jobs and clusters: when, of what and by whom.

use gpufleet_analysis::inventory::change::Change;
use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::identity::AgentId;

use super::*;
use crate::store::model::{AuditEntry, Commit, StoredEvent};
use crate::view::changed::{self, Of};
use crate::view::{ClusterView, Counts, FleetView, NodeView};
use crate::words::text;

/// A minute ago.
const THEN: Timestamp = fixture::NOW.shifted(-60_000_000_000);

/// A server whose cluster `prod` told this of its nodes, with a lease to write more.
async fn told(changes: &[Change]) -> Fixture {
    let mut config = Config::for_tests();
    config.inventory.cluster = "prod".to_owned();
    let server = server_with(config, fixture::fleet(), false).await;
    let length = Duration::from_secs(15);
    let lease = server.store.acquire_lease("test", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    let written = server.store.write_inventory("prod", (&[], changes), token);
    written.await.unwrap();
    server
}

fn change(node: &str, what: &str) -> Change {
    Change {
        at: THEN,
        node: node.to_owned(),
        what: what.to_owned(),
    }
}

/// The words of the marks on a page, and how many lines there are.
fn marks(page: &str) -> (Vec<String>, usize) {
    let lists = page.split("Changed, at the dashed lines:").skip(1);
    let words = lists.flat_map(|it| {
        let list = it.split_once("</ul>").expect("it is a list").0;
        let items = list.split("<li>").skip(1);
        items.filter_map(|it| Some(it.split_once("</li>")?.0.to_owned()))
    });
    (words.collect(), page.matches("class=\"mark\" x1").count())
}

/// A page as soon as its days are added up: each asking waits for that.
pub(super) async fn added_up(server: &Fixture, address: &str) -> String {
    for again in 0..100 {
        // What is drawn at a moment is kept by its address, and the clock stands.
        let (_, page) = server.get(&format!("{address}?again={again}")).await;
        if !page.contains("is being added up") {
            return page;
        }
    }
    panic!("{address} is never added up");
}

#[tokio::test]
async fn what_was_changed_stands_on_the_charts_of_what_it_was_changed_of() {
    let changes = [
        change("h100-00", "is cordoned"),
        change("h100-01", "has another driver: 570 → 580"),
    ];
    let server = told(&changes).await;
    let action = (crate::handoff::HAND_OFF, "h100-00");
    let entry = AuditEntry::here(THEN, "ada", action, "{}");
    server.store.audit(&entry).await.unwrap();
    let at = text::minute(THEN);
    let cordoned = format!("{at} UTC, h100-00: is cordoned");
    let handed_off = format!("{at} UTC, h100-00: was handed off, by ada");
    let driver = format!("{at} UTC, h100-01: has another driver: 570 → 580");
    let run = format!("/clusters/prod/jobs/{}/0", text::segment(jobs::JOB));
    for address in ["/clusters/prod/nodes/h100-00", &run] {
        let (_, page) = server.get(address).await;
        let (words, lines) = marks(&page);
        let told = format!("{cordoned}; {handed_off}");
        assert!(words.contains(&told), "{address}: {words:?}");
        assert!(lines > 0, "{address}: words without a line");
        assert!(
            !page.contains("another driver"),
            "{address}: another node's"
        );
    }
    let (_, page) = server.get("/clusters/prod/nodes/h100-01").await;
    assert_eq!(marks(&page), (vec![driver.clone()], 1));
    let page = added_up(&server, "/clusters/prod").await;
    let (words, lines) = marks(&page);
    assert_eq!((words.len(), lines), (1, 1), "{words:?}");
    for it in [&cordoned, &handed_off, &driver] {
        assert!(words[0].contains(it), "{it} is not in {words:?}");
    }
    let page = added_up(&server, "/clusters/demo").await;
    assert_eq!(marks(&page), (Vec::new(), 0), "another cluster's");
}

#[tokio::test]
async fn a_roll_out_over_many_nodes_is_one_line_that_says_of_how_many() {
    let of = |it: usize| change(&format!("n-{it:03}"), "has another image: a → b");
    let changes: Vec<Change> = (0..500).map(of).collect();
    let server = told(&changes).await;
    let page = added_up(&server, "/fleet").await;
    let (words, lines) = marks(&page);
    let at = text::minute(THEN);
    let told = format!("{at} UTC, 500 nodes: has another image: a → b");
    assert_eq!((words, lines), (vec![told], 1));
}

#[tokio::test]
async fn what_was_changed_after_the_end_of_a_chart_takes_nothing_of_it_away() {
    const BEFORE: Timestamp = THEN.shifted(-60_000_000_000);
    let cordoned = |at| Change {
        at,
        ..change("h100-00", "is cordoned")
    };
    let server = told(&[cordoned(BEFORE), cordoned(THEN)]).await;
    for at in [BEFORE, THEN] {
        let action = (crate::handoff::HAND_OFF, "h100-00");
        let entry = AuditEntry::here(at, "ada", action, "{}");
        server.store.audit(&entry).await.unwrap();
    }
    let event = |at| StoredEvent {
        cluster: "prod".into(),
        agent: None,
        event: Event {
            at,
            kind: EventKind::DriverChanged,
            severity: Severity::Info,
            resource_kind: ResourceKind::Node,
            resource_id: "h100-00".into(),
            message: "has another driver.".to_owned(),
            attributes: BTreeMap::new(),
        },
    };
    // As many as are read of a kind.
    let later = std::iter::repeat_n(THEN, 500);
    let commit = Commit {
        number: server.store.last_commit().await.unwrap() + 1,
        events: later.chain([BEFORE]).map(event).collect(),
        ..Commit::default()
    };
    let length = Duration::from_secs(15);
    let lease = server.store.acquire_lease("test", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    server.store.commit(&commit, token).await.unwrap();
    let cluster: Arc<str> = "prod".into();
    let of = Of {
        cluster: &cluster,
        ids: None,
    };
    let time = (BEFORE, THEN);
    let found = changed::changed(&server.app, &FleetView::default(), &of, time).await;
    let words: Vec<&str> = found.all.iter().map(|it| it.words.as_str()).collect();
    assert_eq!(
        words,
        ["is cordoned", "has another driver", "was handed off"]
    );
    assert!(!found.is_cut, "nothing of that time was left out");
}

#[tokio::test]
async fn what_the_agent_of_a_place_that_has_ended_was_told_stays_on_its_charts() {
    let server = told(&[]).await;
    let agent = AgentId(uuid::Uuid::from_u128(7));
    let target = format!("agent {agent}");
    let entry = AuditEntry::here(THEN, "ada", ("command probe_now", &target), "");
    server.store.audit(&entry).await.unwrap();
    let ended = NodeView {
        name: "pod-0".into(),
        agent: Some(agent),
        ..NodeView::default()
    };
    let cluster: Arc<str> = "prod".into();
    let part = ClusterView {
        name: Arc::clone(&cluster),
        origin: Origin::Live,
        nodes: Vec::new(),
        ended: vec![ended],
        counts: Counts::default(),
    };
    let view = FleetView {
        clusters: vec![Arc::new(part)],
        ..FleetView::default()
    };
    let of = Of {
        cluster: &cluster,
        ids: None,
    };
    let time = (THEN, fixture::NOW);
    let found = changed::changed(&server.app, &view, &of, time).await;
    let words: Vec<&str> = found.all.iter().map(|it| it.words.as_str()).collect();
    assert_eq!(words, ["its agent was told: probe now"]);
}
