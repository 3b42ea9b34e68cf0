//! Messages that are made up: what a template has to cope with, and the test message of a channel.

use std::sync::Arc;

use gpufleet_analysis::price::Basis;
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::group::Says;
use super::message::{Called, Item, Message};
use crate::words::text::money;

/// What the money of those is in that a template is tried with.
const USD: &str = "USD";

/// What the GPU costs an hour that is broken, nano-units …
const HOUR: i64 = 11_060_000_000;

/// … and what it has cost.
const LOST: i64 = 2_770_000_000;

fn item(number: u128, currency: &str) -> Item {
    Item {
        id: Uuid::from_u128(number),
        state: "open",
        kind: "gpu_fault",
        severity: "error",
        what: "XID 79, the GPU fell off the bus".to_owned(),
        place: "GPU 3 of node-7".to_owned(),
        cluster: "prod".to_owned(),
        node: Some("node-7".to_owned()),
        gpu: Some("GPU-00000000-0000-0000-0000-000000000003".to_owned()),
        run: None,
        rank: None,
        cause: "a broken GPU",
        because: None,
        since: "2026-01-02T03:04:05Z".to_owned(),
        until: None,
        evidence: vec!["GPU 3 of node-7: XID 79".to_owned()],
        action: "Drain the node and reboot it.".to_owned(),
        costs: format!("costs {}/h", money(currency, HOUR)),
        lost: format!("0.25 GPU-hours, {}", money(currency, LOST)),
        reckoned: Basis::BrokenGpu.words(),
        owner: "research".to_owned(),
        runbook: "https://gpufleet.example.org/runbooks/gpu-lost.md".to_owned(),
        link: format!(
            "https://gpufleet.example.org/incidents/{}",
            Uuid::from_u128(number)
        ),
        grafana: Some("https://grafana.example.org/d/gpu?node=node-7".to_owned()),
        acknowledged_by: None,
        times: (Timestamp::from_seconds(1_767_323_045), None),
        called: vec![Called {
            kind: "gpu_fault",
            severity: "error",
            owner: "research".to_owned(),
            cluster: "prod".to_owned(),
            node: Some("node-7".to_owned()),
            gpu: Some("GPU-00000000-0000-0000-0000-000000000003".to_owned()),
            run: None,
            rank: None,
            is_open: true,
        }],
    }
}

fn message(says: Says, incidents: Vec<Item>) -> Message {
    let open = incidents.iter().filter(|it| it.state == "open").count();
    Message {
        key: format!("gpufleet/{}", Uuid::from_u128(1)),
        message_key: format!("gpufleet/{}/1", Uuid::from_u128(1)),
        says,
        is_first: says == Says::Opened,
        title: String::new(),
        text: String::new(),
        severity: "error",
        common: "cluster prod, kind gpu_fault".to_owned(),
        open,
        over: incidents.len() - open,
        left_out: 0,
        since: "2026-01-02T03:04:05Z".to_owned(),
        costs: Some(format!("{}/h", money(USD, HOUR))),
        link: "https://gpufleet.example.org/incidents".to_owned(),
        silence: format!("gpufleet silence {} --for 2h", Uuid::from_u128(1)),
        incidents,
        digest: None,
        at: Timestamp::from_seconds(1_767_323_060),
        way: Arc::from("example"),
    }
}

/// One of each shape: one incident, several with one over, all over, more than are shown, one of which
/// little is known, and none that can be read.
pub fn messages() -> Vec<Message> {
    let mut over = item(2, USD);
    (over.state, over.until) = ("resolved", Some("2026-01-02T04:04:05Z".to_owned()));
    over.called[0].is_open = false;
    let mut bare = item(3, USD);
    (bare.node, bare.gpu, bare.grafana) = (None, None, None);
    bare.evidence.clear();
    bare.action.clear();
    let mut many = message(Says::Updated, vec![item(1, USD), item(2, USD)]);
    many.left_out = 998;
    let mut unread = message(Says::Resolved, Vec::new());
    unread.left_out = 1;
    let mut unpriced = message(Says::Opened, vec![bare]);
    unpriced.costs = None;
    vec![
        message(Says::Opened, vec![item(1, USD)]),
        message(Says::Updated, vec![item(1, USD), over.clone()]),
        message(Says::Resolved, vec![over.clone(), over]),
        many,
        unpriced,
        unread,
    ]
}

/// A message that says that it is a test, with a price in this currency; a receiver may throw it away.
pub fn test(way: &Arc<str>, currency: &str, now: Timestamp) -> Message {
    let mut one = item(Uuid::now_v7().as_u128(), currency);
    (one.severity, one.kind) = ("info", "test");
    (one.called[0].severity, one.called[0].kind) = ("info", "test");
    one.what = "This is a test of gpufleet's notifications, nothing is wrong".to_owned();
    one.cause = "somebody testing the channel";
    one.action = String::new();
    one.since = crate::words::text::rfc3339(now);
    one.times = (now, None);
    let mut message = message(Says::Resolved, vec![one]);
    message.is_first = true;
    message.severity = "info";
    message.costs = None;
    message.since.clone_from(&message.incidents[0].since);
    message.at = now;
    message.key = format!("gpufleet/test/{}", message.incidents[0].id);
    message.message_key = format!("{}/1", message.key);
    message.way = Arc::clone(way);
    message
}
