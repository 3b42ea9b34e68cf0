//! Alertmanager's API v2 as its specification has it: alerts by all of their labels, however often they are told;
//! one that is not told again is over at the moment that it was told last. Of a batch with one that is wrong the
//! others are taken, and the answer is 400.

use std::collections::BTreeMap;

use gpufleet_telemetry::time::Timestamp;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Reply;

/// What people call an alert by: every label of it.
pub type Labels = BTreeMap<String, String>;

/// An alert as it was told last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Since when, Unix nanoseconds: the earliest that was told.
    pub starts: i128,
    /// When it is over, Unix nanoseconds.
    pub ends: i128,
    /// How often it was told.
    pub told: u64,
}

/// An Alertmanager.
#[derive(Debug, Clone, Default)]
pub struct Alertmanager {
    /// Every alert that it was told of, by its labels: what comes twice is one.
    pub alerts: BTreeMap<Labels, Alert>,
    /// It knows no keys of messages: empty.
    pub messages: BTreeMap<String, u64>,
}

impl Alertmanager {
    /// Takes one batch.
    pub fn take(&mut self, body: &[u8]) -> Reply {
        let batch: Vec<Value> = match serde_json::from_slice(body) {
            Ok(batch) => batch,
            Err(error) => return (400, format!("parsing alerts body failed: {error}")),
        };
        let mut wrong = Vec::new();
        for alert in &batch {
            match read(alert) {
                Ok((labels, starts, ends)) => self.keep(labels, starts, ends),
                Err(why) => wrong.push(why),
            }
        }
        match wrong.is_empty() {
            true => (200, String::new()),
            false => (400, wrong.join("; ")),
        }
    }

    fn keep(&mut self, labels: Labels, starts: i128, ends: i128) {
        let known = self.alerts.entry(labels).or_insert(Alert {
            starts,
            ends,
            told: 0,
        });
        // What overlaps is one alert since its first beginning; what comes after its end is another one.
        known.starts = match starts <= known.ends {
            true => starts.min(known.starts),
            false => starts,
        };
        known.ends = ends;
        known.told += 1;
    }

    /// The alerts that it takes for active at a moment, Unix seconds.
    pub fn active(&self, now_seconds: i64) -> impl Iterator<Item = &Labels> {
        self.active_at(Timestamp::from_seconds(now_seconds))
    }

    /// The same, to the nanosecond.
    pub fn active_at(&self, now: Timestamp) -> impl Iterator<Item = &Labels> {
        let is_active = move |it: &(&Labels, &Alert)| it.1.ends > i128::from(now.0);
        self.alerts.iter().filter(is_active).map(|it| it.0)
    }

    /// The same of one incident of ours.
    pub fn active_of(&self, incident: &str, now_seconds: i64) -> usize {
        let is_its = |it: &&Labels| it.get("incident_id").is_some_and(|it| it == incident);
        self.active(now_seconds).filter(is_its).count()
    }
}

/// Labels, beginning and end of one alert.
fn read(alert: &Value) -> Result<(Labels, i128, i128), String> {
    let alert = alert.as_object().ok_or("it is no object")?;
    let known = [
        "labels",
        "annotations",
        "startsAt",
        "endsAt",
        "generatorURL",
    ];
    if let Some(name) = alert.keys().find(|it| !known.contains(&it.as_str())) {
        return Err(format!("{name} is not known"));
    }
    let mut labels = texts(alert, "labels")?;
    texts(alert, "annotations")?;
    labels.retain(|_, value| !value.is_empty());
    if labels.is_empty() {
        return Err("at least one label pair required".to_owned());
    }
    let (starts, ends) = (moment(alert, "startsAt")?, moment(alert, "endsAt")?);
    if starts >= ends {
        return Err("start time must be before end time".to_owned());
    }
    let url = alert.get("generatorURL").and_then(Value::as_str);
    if !url.is_some_and(|it| it.parse::<http::Uri>().is_ok_and(|it| it.host().is_some())) {
        return Err(format!("generatorURL in body must be of type uri: {url:?}"));
    }
    Ok((labels, starts, ends))
}

fn texts(alert: &Map<String, Value>, name: &str) -> Result<Labels, String> {
    let pairs = alert.get(name).and_then(Value::as_object);
    let pairs = pairs.ok_or_else(|| format!("{name} in body is required"))?;
    let pair = |(label, value): (&String, &Value)| {
        let is_name = |(at, it): (usize, char)| {
            it.is_ascii_alphabetic() || it == '_' || at > 0 && it.is_ascii_digit()
        };
        if label.is_empty() || !label.chars().enumerate().all(is_name) {
            return Err(format!("invalid label name {label:?}"));
        }
        let value = value
            .as_str()
            .ok_or_else(|| format!("{label} is no text"))?;
        Ok((label.clone(), value.to_owned()))
    };
    pairs.iter().map(pair).collect()
}

fn moment(alert: &Map<String, Value>, name: &str) -> Result<i128, String> {
    let text = alert.get(name).and_then(Value::as_str).unwrap_or_default();
    let moment = OffsetDateTime::parse(text, &Rfc3339);
    let moment = moment.map_err(|error| format!("{name} in body must be a date-time: {error}"))?;
    Ok(moment.unix_timestamp_nanos())
}
