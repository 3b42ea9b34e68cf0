//! PagerDuty's Events API v2 as its documentation has it: required fields, their lengths and words; alarms
//! by their key, triggered, told again and resolved.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Reply;

/// Longest key.
const KEY: usize = 255;
/// Longest summary, characters.
const SUMMARY: usize = 1_024;
/// Longest event.
const EVENT_BYTES: usize = 512 * 1024;

/// A service with a routing key.
#[derive(Debug, Clone)]
pub struct Pagerduty {
    routing_key: String,
    /// Alarms by their key: whether each is open.
    pub alarms: BTreeMap<String, bool>,
    /// How often each message came.
    pub messages: BTreeMap<String, u64>,
    /// What was triggered last of each key.
    pub summaries: BTreeMap<String, String>,
    /// Resolves of keys that no trigger came of.
    pub strange: u64,
}

impl Pagerduty {
    /// A service that takes this key.
    pub fn new(routing_key: &str) -> Self {
        Self {
            routing_key: routing_key.to_owned(),
            alarms: BTreeMap::new(),
            messages: BTreeMap::new(),
            summaries: BTreeMap::new(),
            strange: 0,
        }
    }

    /// Takes one event.
    pub fn take(&mut self, body: &[u8]) -> Reply {
        match self.check(body) {
            Ok(key) => (
                202,
                json!({"status": "success", "message": "Event processed", "dedup_key": key})
                    .to_string(),
            ),
            Err(why) => (
                400,
                json!({"status": "invalid event", "message": "Event object is invalid", "errors": [why]})
                    .to_string(),
            ),
        }
    }

    fn check(&mut self, body: &[u8]) -> Result<String, String> {
        if body.len() > EVENT_BYTES {
            return Err(format!("{} bytes are more than 512 KB", body.len()));
        }
        let event: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        only(
            &event,
            &[
                "routing_key",
                "event_action",
                "dedup_key",
                "payload",
                "client",
                "client_url",
                "links",
                "images",
            ],
        )?;
        if event["routing_key"] != *self.routing_key {
            return Err("'routing_key' is invalid".to_owned());
        }
        let key = text(&event, "dedup_key", 1, KEY)?;
        match event["event_action"].as_str() {
            Some("trigger") => {}
            Some("resolve" | "acknowledge") => {
                match self.alarms.get_mut(&key) {
                    Some(open) => *open = false,
                    None => self.strange += 1,
                }
                return Ok(key);
            }
            other => return Err(format!("'event_action' is {other:?}")),
        }
        let payload = &event["payload"];
        only(
            payload,
            &[
                "summary",
                "source",
                "severity",
                "timestamp",
                "component",
                "group",
                "class",
                "custom_details",
            ],
        )?;
        let summary = text(payload, "summary", 1, SUMMARY)?;
        text(payload, "source", 1, SUMMARY)?;
        for name in ["component", "group", "class"] {
            text(payload, name, 0, SUMMARY)?;
        }
        let severity = payload["severity"].as_str().unwrap_or_default();
        if !["critical", "error", "warning", "info"].contains(&severity) {
            return Err(format!("'severity' is {severity:?}"));
        }
        moment(&text(payload, "timestamp", 1, 64)?)?;
        for link in event["links"].as_array().into_iter().flatten() {
            let address = text(link, "href", 1, 2_048)?;
            if !address.starts_with("http") {
                return Err(format!("'href' is {address:?}"));
            }
        }
        if let Some(message) = payload["custom_details"]["message"].as_str() {
            *self.messages.entry(message.to_owned()).or_default() += 1;
        }
        self.alarms.insert(key.clone(), true);
        self.summaries.insert(key.clone(), summary);
        Ok(key)
    }
}

/// Refuses what the service does not know.
fn only(value: &Value, known: &[&str]) -> Result<(), String> {
    let object = value.as_object().ok_or("it is no object")?;
    match object.keys().find(|it| !known.contains(&it.as_str())) {
        Some(name) => Err(format!("'{name}' is not known")),
        None => Ok(()),
    }
}

fn text(value: &Value, name: &str, least: usize, most: usize) -> Result<String, String> {
    let text = value[name].as_str().ok_or(format!("'{name}' is missing"))?;
    let characters = text.chars().count();
    match (least..=most).contains(&characters) {
        true => Ok(text.to_owned()),
        false => Err(format!("'{name}' has {characters} characters")),
    }
}

/// `2026-01-02T03:04:05Z`, with or without parts of a second.
fn moment(text: &str) -> Result<(), String> {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let is = |at: usize, what: u8| text.as_bytes().get(at) == Some(&what);
    let digits = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18];
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let is_so = digits.into_iter().all(is_digit)
        && marks.into_iter().all(|(at, what)| is(at, what))
        && text.ends_with('Z');
    match is_so {
        true => Ok(()),
        false => Err(format!("'timestamp' is {text:?}")),
    }
}
