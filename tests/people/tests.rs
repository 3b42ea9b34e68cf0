//! What is over every limit is sent cut, with a note, and taken; and the stand-ins refuse what the real
//! services refuse.

use gpufleet_server::notify::channel::{Channel, Post, Speaks as _};
use gpufleet_server::notify::example;
use gpufleet_server::notify::message::Message;
use gpufleet_server::notify::secret::Secret;
use gpufleet_server::notify::settings::{ChannelConfig, Kind};
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use super::*;

const ROUTING_KEY: &str = "0123456789abcdef0123456789abcdef";
const SIGNING_KEY: &str = "signing-key";
const PAGERDUTY: &str = "/v2/enqueue";
const ALERTMANAGER: &str = "/api/v2/alerts";
const SLACK: &str = "/services/T0/B0/x";
/// What stands where something was cut.
const NOTE: &str = "(cut: our page has all of it)";

/// Something to spoil in a message.
type Spoil = fn(&mut Value);

fn pagerduty() -> (Channel, Service) {
    let service = Service::Pagerduty(pagerduty::Pagerduty::new(ROUTING_KEY));
    (channel(Kind::Pagerduty, ROUTING_KEY), service)
}

fn slack() -> (Channel, Service) {
    let address = format!("https://hooks.slack.example.org{SLACK}");
    let service = Service::Slack(slack::Slack::default());
    (channel(Kind::Slack, &address), service)
}

fn hook() -> (Channel, Service) {
    let service = Service::Webhook(webhook::Webhook::new(SIGNING_KEY));
    (channel(Kind::Webhook, SIGNING_KEY), service)
}

fn am() -> (Channel, Service) {
    let service = Service::Alertmanager(alertmanager::Alertmanager::default());
    (channel(Kind::Alertmanager, "a-token"), service)
}

fn channel(kind: Kind, secret: &str) -> Channel {
    let mut config = ChannelConfig::new("one", kind);
    if matches!(kind, Kind::Webhook | Kind::Alertmanager) {
        config.urls = vec!["http://hook.example.org".to_owned()];
    }
    let channels = Channel::all(&config, &Secret::given(secret));
    channels.expect("it can be made").remove(0)
}

/// What is sent of a message, and what the service says to each.
fn sent(channel: &Channel, service: &mut Service, message: &Message) -> Vec<(String, Reply)> {
    let posts = channel.posts(message).expect("it can be said");
    let take = |post: Post| {
        let headers: HeaderMap = post.headers.into_iter().collect();
        let reply = service.take(post.to.path(), &headers, &post.body, message.at.seconds());
        (String::from_utf8_lossy(&post.body).into_owned(), reply)
    };
    posts.into_iter().map(take).collect()
}

/// What a service says to a body that we do not send.
fn reply(service: &Service, path: &str, body: &Value) -> Reply {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    let body = body.to_string();
    service.clone().take(path, &headers, body.as_bytes(), 0)
}

/// A message in which everything is longer than any receiver takes, of characters that are escaped.
fn over_every_limit() -> Message {
    let mut messages = example::messages();
    let mut message = messages.remove(0);
    let long = "<a&b> \u{2620} ".repeat(1_000);
    message.title.clone_from(&long);
    message.common.clone_from(&long);
    message.text = format!("{long}\n").repeat(100);
    for item in &mut message.incidents {
        item.node = Some(long.clone());
        item.gpu = Some(long.clone());
        item.called[0].node = Some(long.clone());
        item.evidence = vec![long.clone(); 100];
    }
    message
}

#[test]
fn what_is_over_every_limit_is_cut_with_a_note_and_taken() {
    let message = over_every_limit();
    let (channel, mut service) = pagerduty();
    for (body, said) in sent(&channel, &mut service, &message) {
        assert_eq!(said.0, 202, "{}", said.1);
        assert!(body.len() <= 512 * 1024, "{} bytes", body.len());
        assert!(body.contains(NOTE) && body.contains("more than PagerDuty takes"));
    }
    let (channel, mut service) = slack();
    for (body, said) in sent(&channel, &mut service, &message) {
        assert_eq!(said, (200, "ok".to_owned()));
        assert!(body.contains(NOTE));
    }
    let (channel, mut service) = hook();
    for (_, said) in sent(&channel, &mut service, &message) {
        assert_eq!(said.0, 204, "{}", said.1);
    }
    let (channel, mut service) = am();
    for (body, said) in sent(&channel, &mut service, &message) {
        assert_eq!(said.0, 200, "{}", said.1);
        assert!(body.contains(NOTE));
    }
}

/// What is sent of an ordinary message, to be spoilt.
fn good(channel: &Channel, service: &mut Service, path: &str) -> Value {
    let mut message = example::messages().remove(0);
    (message.title, message.text) = ("XID 79".to_owned(), "Drain & reboot".to_owned());
    let sent = sent(channel, service, &message);
    let body: Value = serde_json::from_str(&sent[0].0).expect("it is JSON");
    assert!(reply(service, path, &body).0 < 300, "{body}");
    body
}

#[test]
fn pagerduty_refuses_what_breaks_its_rules() {
    let (channel, mut service) = pagerduty();
    let good = good(&channel, &mut service, PAGERDUTY);
    let spoils: [(&str, Spoil); 13] = [
        ("a strange key", |it| it["routing_key"] = "x".into()),
        ("a strange field", |it| it["colour"] = "red".into()),
        ("a strange action", |it| it["event_action"] = "open".into()),
        ("no key", |it| it["dedup_key"] = Value::Null),
        ("a long key", |it| it["dedup_key"] = "x".repeat(256).into()),
        ("no payload", |it| it["payload"] = Value::Null),
        ("no summary", |it| it["payload"]["summary"] = "".into()),
        ("a long summary", |it| {
            it["payload"]["summary"] = "x".repeat(1_025).into();
        }),
        ("no source", |it| it["payload"]["source"] = Value::Null),
        ("a strange severity", |it| {
            it["payload"]["severity"] = "loud".into();
        }),
        ("no time", |it| it["payload"]["timestamp"] = "today".into()),
        ("a link to nowhere", |it| {
            it["links"][0]["href"] = "nowhere".into();
        }),
        ("too much", |it| {
            it["payload"]["custom_details"]["text"] = "x".repeat(512 * 1024).into();
        }),
    ];
    for (what, spoil) in spoils {
        let mut body = good.clone();
        spoil(&mut body);
        let said = reply(&service, PAGERDUTY, &body);
        assert_eq!(said.0, 400, "{what}: {}", said.1);
    }
    assert_eq!(reply(&service, "/v1/enqueue", &good).0, 404);
    let resolve = |key: Value| {
        let mut body = serde_json::json!({"routing_key": ROUTING_KEY, "event_action": "resolve"});
        body["dedup_key"] = key;
        reply(&service, PAGERDUTY, &body).0
    };
    assert_eq!(resolve(good["dedup_key"].clone()), 202);
    assert_eq!(resolve(Value::Null), 400, "an end of nothing");
}

#[test]
fn slack_refuses_what_breaks_its_rules() {
    let (channel, mut service) = slack();
    let good = good(&channel, &mut service, SLACK);
    let spoils: [(&str, Spoil); 9] = [
        ("no text", |it| it["text"] = Value::Null),
        ("no blocks", |it| it["blocks"] = Value::Null),
        ("too many blocks", |it| {
            it["blocks"] = vec![it["blocks"][1].clone(); 51].into();
        }),
        ("a strange block", |it| {
            it["blocks"][0]["type"] = "poem".into()
        }),
        ("a long header", |it| {
            it["blocks"][0]["text"]["text"] = "x".repeat(151).into();
        }),
        ("a header with marks", |it| {
            it["blocks"][0]["text"]["type"] = "mrkdwn".into();
        }),
        ("a long section", |it| {
            it["blocks"][1]["text"]["text"] = "x".repeat(3_001).into();
        }),
        ("what would call everybody", |it| {
            it["blocks"][1]["text"]["text"] = "<!channel>".into();
        }),
        ("too much", |it| {
            it["blocks"][1]["text"]["text"] = "x".repeat(2_999).into();
            let (header, section) = (it["blocks"][0].clone(), it["blocks"][1].clone());
            let mut blocks = vec![section; 5];
            blocks.insert(0, header);
            blocks.push(it["blocks"][2].clone());
            it["blocks"] = blocks.into();
        }),
    ];
    for (what, spoil) in spoils {
        let mut body = good.clone();
        spoil(&mut body);
        let said = reply(&service, SLACK, &body);
        assert_eq!(said.0, 400, "{what}: {}", said.1);
    }
    assert_eq!(reply(&service, "/services/T0", &good).0, 404);
}

#[test]
fn alertmanager_refuses_what_breaks_its_rules_and_takes_the_others_of_a_batch() {
    let (channel, mut service) = am();
    let good = good(&channel, &mut service, ALERTMANAGER);
    let spoils: [(&str, Spoil); 9] = [
        ("no labels", |it| it["labels"] = Value::Null),
        ("only empty labels", |it| {
            it["labels"] = serde_json::json!({"node": ""});
        }),
        ("a label of no name", |it| it["labels"]["a b"] = "x".into()),
        ("a label that is no text", |it| {
            it["labels"]["rank"] = 5.into()
        }),
        ("a strange field", |it| it["status"] = "firing".into()),
        ("no beginning", |it| it["startsAt"] = Value::Null),
        ("no moment", |it| it["endsAt"] = "soon".into()),
        ("an end before the beginning", |it| {
            it["endsAt"] = it["startsAt"].clone();
        }),
        ("an address of nothing", |it| it["generatorURL"] = "".into()),
    ];
    for (what, spoil) in spoils {
        let mut body = good.clone();
        spoil(&mut body[0]);
        let said = reply(&service, ALERTMANAGER, &body);
        assert_eq!(said.0, 400, "{what}: {}", said.1);
    }
    assert_eq!(reply(&service, "/api/v1/alerts", &good).0, 404);
    assert_eq!(reply(&service, ALERTMANAGER, &good[0]).0, 400, "no list");
    let mut batch = vec![good[0].clone(), good[0].clone()];
    batch[0]["labels"]["incident_id"] = "another".into();
    batch[1]["startsAt"] = Value::Null;
    let batch = Value::from(batch).to_string();
    let Service::Alertmanager(am) = &mut service else {
        panic!("another service")
    };
    let before = am.alerts.len();
    assert_eq!(am.take(batch.as_bytes()).0, 400);
    assert_eq!(am.alerts.len(), before + 1, "the one that was good");
}

#[test]
fn an_alert_is_one_however_often_it_is_told_and_over_when_it_is_not_told_again() {
    let (channel, mut service) = am();
    let mut message = example::messages().remove(0);
    let incidents = message.incidents.len();
    let began = message.at;
    for minute in 0..5 {
        message.at = began.shifted(minute * 60 * 1_000_000_000);
        for (_, said) in sent(&channel, &mut service, &message) {
            assert_eq!(said.0, 200, "{}", said.1);
        }
    }
    let Service::Alertmanager(am) = &service else {
        panic!("another service")
    };
    assert_eq!(am.alerts.len(), incidents);
    assert!(am.alerts.values().all(|it| it.told == 5));
    let last = message.at.seconds();
    assert_eq!(am.active(last).count(), message.open);
    assert_eq!(am.active(last + 241).count(), 0);
}
