//! PagerDuty's Events API v2: one event, whose key stays from the trigger to the resolve.
//!
//! Limits are PagerDuty's: [`SUMMARY`] characters of summary, [`EVENT_BYTES`] an event; over that the
//! details go, with a note.

use bytes::Bytes;
use http::{StatusCode, Uri};
use serde_json::{Value, json};

use super::{Answer, Fault, Outcome, Post, Speaks, address, failure, json_headers};
use crate::notify::group::Says;
use crate::notify::message::{Message, cut};
use crate::notify::secret::Secret;

/// Where events go.
pub const ADDRESS: &str = "https://events.pagerduty.com/v2/enqueue";
/// Longest summary, characters.
pub const SUMMARY: usize = 1_024;
/// Longest event.
pub const EVENT_BYTES: usize = 512 * 1024;
/// Longest text of the details, characters.
const DETAILS: usize = 100_000;
/// What stands in the answer to a routing key that is not known, or whose integration is gone, as in
/// `{"status":"invalid event","message":"Event object is invalid","errors":["Invalid routing key"]}`, or to one that
/// cannot be any: `"'routing_key' is missing or blank"`.
const KEY_REFUSED: [&str; 2] = ["routing key", "routing_key"];
/// Longest key.
pub const KEY: usize = 255;

/// A service of PagerDuty.
#[derive(Debug)]
pub struct Pagerduty {
    to: Uri,
    key: Secret,
}

impl Pagerduty {
    /// The service with this routing key.
    ///
    /// # Errors
    /// When the address is none.
    pub fn new(to: &str, key: Secret) -> Result<Self, String> {
        Ok(Self {
            to: address(to)?,
            key,
        })
    }

    fn trigger(&self, message: &Message, key: &str) -> Value {
        let first = message.incidents.first();
        let source = first.map_or("gpufleet", |it| it.node.as_deref().unwrap_or(&it.cluster));
        let mut links = vec![json!({"href": message.link, "text": "gpufleet"})];
        if let Some(first) = first {
            links.push(json!({"href": first.runbook, "text": "Runbook"}));
            links.extend(
                first
                    .grafana
                    .iter()
                    .map(|it| json!({"href": it, "text": "Grafana"})),
            );
        }
        json!({
            "routing_key": key,
            "event_action": "trigger",
            "dedup_key": message.key,
            "payload": {
                "summary": cut(&message.title, SUMMARY),
                "source": cut(source, SUMMARY),
                "severity": severity(message.severity),
                "timestamp": message.since,
                "component": cut(first.and_then(|it| it.gpu.as_deref()).unwrap_or_default(), SUMMARY),
                "group": cut(&message.common, SUMMARY),
                "class": first.map_or("", |it| it.kind),
                "custom_details": {
                    "text": cut(&message.text, DETAILS),
                    "message": message.message_key,
                    "open": message.open,
                    "incidents": message.incidents,
                },
            },
            "client": "gpufleet",
            "client_url": message.link,
            "links": links,
        })
    }

    fn post(&self, mut event: Value) -> Post {
        let mut body = event.to_string();
        if body.len() > EVENT_BYTES {
            event["payload"]["custom_details"] = json!({
                "note": "The details were more than PagerDuty takes: our page has them."
            });
            body = event.to_string();
        }
        Post {
            to: self.to.clone(),
            headers: json_headers(),
            body: Bytes::from(body),
        }
    }
}

/// Our word in PagerDuty's.
fn severity(ours: &str) -> &'static str {
    match ours {
        "error" => "critical",
        "warning" => "warning",
        _ => "info",
    }
}

impl Speaks for Pagerduty {
    fn posts(&self, message: &Message) -> Result<Vec<Post>, String> {
        let key = self.key.get().ok_or("there is no routing key")?;
        let mut posts = Vec::new();
        // What was over before anybody could be told of it is triggered and ended.
        if message.says != Says::Resolved || message.is_first {
            posts.push(self.post(self.trigger(message, &key)));
        }
        if message.says == Says::Resolved {
            posts.push(self.post(json!({
                "routing_key": key,
                "event_action": "resolve",
                "dedup_key": message.key,
            })));
        }
        Ok(posts)
    }

    fn to(&self) -> Result<Uri, String> {
        Ok(self.to.clone())
    }

    fn judge(&self, answer: &Answer) -> Outcome {
        match (answer.status, failure(answer)) {
            (StatusCode::ACCEPTED, _) => Outcome::Delivered,
            // PagerDuty calls a key that it does not know a bad request; it is not the message.
            (_, Outcome::Refused { why, .. })
                if KEY_REFUSED.iter().any(|it| answer.body.contains(it)) =>
            {
                let fault = Fault::Way;
                Outcome::Refused { why, fault }
            }
            (_, outcome) => outcome,
        }
    }
}
