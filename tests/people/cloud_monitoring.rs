//! Google Cloud Monitoring's metric service over JSON, as its documentation has it, and where it is vague as
//! strict as it can be meant: descriptors before points, one point a series and request, at most 200 of
//! them, points in the order of time and apart, starts that stay.
//!
//! Points that break a rule are refused one by one, and the answer says how many; what can be is taken. It
//! tells rules that were broken ([`CloudMonitoring::broken`]) from points that it has already and that come
//! again with the same value ([`CloudMonitoring::repeats`]), which a writer that had no answer may send.

use std::collections::{BTreeMap, BTreeSet};

use http::HeaderMap;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Reply;

/// Most series of one request.
const SERIES: usize = 200;
/// Oldest and newest end of a point, seconds from now.
const PAST: i64 = 25 * 3_600;
const FUTURE: i64 = 5 * 60;
/// How far points of one series are apart at least, milliseconds.
const APART: i64 = 10_000;
/// How long after one point of a series the next may be written, seconds of the clock.
const PACE: i64 = 5;
/// Most labels of a descriptor, and how long keys and values may be.
const LABELS: usize = 10;
const KEY: usize = 100;
const VALUE: usize = 1_024;
/// Longest type.
const TYPE: usize = 200;
/// Google's numbers of the kinds and types that metrics of one's own may have.
const GAUGE: i64 = 1;
const CUMULATIVE: i64 = 3;
const INT64: i64 = 2;
const DOUBLE: i64 = 3;

/// The types of resources that are known here, with all of their labels.
const RESOURCES: [(&str, &[&str]); 5] = [
    ("k8s_node", &["location", "cluster_name", "node_name"]),
    (
        "k8s_container",
        &[
            "location",
            "cluster_name",
            "namespace_name",
            "pod_name",
            "container_name",
        ],
    ),
    ("gce_instance", &["zone", "instance_id"]),
    ("generic_node", &["location", "namespace", "node_id"]),
    ("generic_task", &["location", "namespace", "job", "task_id"]),
];

/// Google's regions (cloud.google.com/about/locations, 2025).
const REGIONS: [&str; 42] = [
    "africa-south1",
    "asia-east1",
    "asia-east2",
    "asia-northeast1",
    "asia-northeast2",
    "asia-northeast3",
    "asia-south1",
    "asia-south2",
    "asia-southeast1",
    "asia-southeast2",
    "australia-southeast1",
    "australia-southeast2",
    "europe-central2",
    "europe-north1",
    "europe-north2",
    "europe-southwest1",
    "europe-west1",
    "europe-west10",
    "europe-west12",
    "europe-west2",
    "europe-west3",
    "europe-west4",
    "europe-west6",
    "europe-west8",
    "europe-west9",
    "me-central1",
    "me-central2",
    "me-west1",
    "northamerica-northeast1",
    "northamerica-northeast2",
    "northamerica-south1",
    "southamerica-east1",
    "southamerica-west1",
    "us-central1",
    "us-east1",
    "us-east4",
    "us-east5",
    "us-south1",
    "us-west1",
    "us-west2",
    "us-west3",
    "us-west4",
];

/// Units that our metrics have, in UCUM's words.
const UNITS: [&str; 10] = ["W", "J", "Cel", "Hz", "By", "By/s", "s", "h", "%", "1"];

/// A project that is written to.
#[derive(Debug, Clone, Default)]
pub struct CloudMonitoring {
    /// The project.
    pub project: String,
    /// The token that it asks for; none: everyone may write.
    pub token: Option<String>,
    /// A label value whose series another writes: its points are refused.
    pub taken_by_another: Option<String>,
    /// Parts of a series' labels, with how often each of its points fails for now.
    pub fails: BTreeMap<String, u64>,
    /// Kind and value type of each metric, with its labels.
    pub descriptors: BTreeMap<String, Descriptor>,
    /// The points of each series, by all that makes it one.
    pub series: BTreeMap<String, Vec<Point>>,
    /// When each series was last written, Unix seconds.
    pub written: BTreeMap<String, i64>,
    /// What was sent against the rules.
    pub broken: Vec<String>,
    /// Points that were there already.
    pub repeats: u64,
    /// Points that were refused for [`Self::taken_by_another`].
    pub refused: u64,
    /// The most points of one request.
    pub most: usize,
    /// How often each point came, by series and end.
    pub messages: BTreeMap<String, u64>,
}

/// What a metric is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    kind: i64,
    value: i64,
    labels: BTreeSet<String>,
}

/// A point that was taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Its start, Unix milliseconds; that of a gauge is its end.
    pub start: i64,
    /// Its end, Unix milliseconds.
    pub end: i64,
    /// Its value.
    pub value: f64,
}

/// Why a point is not taken.
enum Refused {
    /// A rule is broken.
    Broken(String),
    /// It is there.
    Repeat,
    /// Another writes the series.
    Taken,
    /// It failed, and may be taken when it comes again.
    ForNow,
}

impl CloudMonitoring {
    /// A project without data.
    pub fn new(project: &str) -> Self {
        Self {
            project: project.to_owned(),
            ..Self::default()
        }
    }

    /// Takes one POST.
    pub fn take(&mut self, path: &str, headers: &HeaderMap, body: &[u8], now: i64) -> Reply {
        if let Some(token) = &self.token {
            let said = headers.get("authorization").and_then(|it| it.to_str().ok());
            if said != Some(&format!("Bearer {token}")) {
                return error(401, "UNAUTHENTICATED", "Request had invalid credentials.");
            }
        }
        let Ok(message) = serde_json::from_slice::<Value>(body) else {
            return self.invalid("the body is not JSON".to_owned());
        };
        let place = format!("/v3/projects/{}/", self.project);
        match path.strip_prefix(&place) {
            Some("metricDescriptors") => self.describe(&message),
            Some("timeSeries") => self.write(&message, now),
            _ if path.starts_with("/v3/projects/") => error(
                403,
                "PERMISSION_DENIED",
                "Permission monitoring.timeSeries.create denied (or the resource may not exist).",
            ),
            _ => error(404, "NOT_FOUND", "no such method"),
        }
    }

    /// Refuses a request as a whole.
    fn invalid(&mut self, why: String) -> Reply {
        let reply = error(400, "INVALID_ARGUMENT", &why);
        self.broken.push(why);
        reply
    }

    fn describe(&mut self, message: &Value) -> Reply {
        match descriptor(message) {
            Err(why) => self.invalid(format!("descriptor: {why}")),
            Ok((name, made)) => {
                let known = self.descriptors.entry(name).or_insert_with(|| made.clone());
                if (known.kind, known.value) != (made.kind, made.value) {
                    return self
                        .invalid("descriptor: the kind of a metric cannot change".to_owned());
                }
                known.labels.extend(made.labels);
                (200, message.to_string())
            }
        }
    }

    fn write(&mut self, message: &Value, now: i64) -> Reply {
        let series = message["timeSeries"].as_array();
        let series: &[Value] = series.map_or(&[], Vec::as_slice);
        self.most = self.most.max(series.len());
        if series.is_empty() || series.len() > SERIES {
            return self.invalid(format!("{} series in one request", series.len()));
        }
        let mut names = BTreeSet::new();
        for one in series {
            if one["points"].as_array().map(Vec::len) != Some(1) {
                return self.invalid("a series has other than one point".to_owned());
            }
            if !names.insert(name(one)) {
                return self.invalid(format!("two points of one series: {}", name(one)));
            }
        }
        let (mut lost, mut for_now) = (Vec::new(), 0);
        for (index, one) in series.iter().enumerate() {
            match self.point(one, now) {
                Ok(()) => {}
                Err(Refused::Broken(why)) => {
                    lost.push(format!("{why}: timeSeries[{index}]"));
                    self.broken.push(format!("{why}: {}", name(one)));
                }
                Err(Refused::Repeat) => {
                    lost.push(format!(
                        "Points must be written in order: timeSeries[{index}]"
                    ));
                    self.repeats += 1;
                }
                Err(Refused::Taken) => {
                    lost.push(format!("another writes it: timeSeries[{index}]"));
                    self.refused += 1;
                }
                Err(Refused::ForNow) => {
                    lost.push(format!("Internal error encountered: timeSeries[{index}]"));
                    for_now += 1;
                }
            }
        }
        if lost.is_empty() {
            return (200, "{}".to_owned());
        }
        let said = format!(
            "One or more TimeSeries could not be written: {}",
            lost.join("; ")
        );
        let of = |code: i32, count: usize| {
            let status = json!({"code": code, "message": "see the message"});
            (count > 0).then(|| json!({"status": status, "pointCount": count}))
        };
        let errors = [of(3, lost.len() - for_now), of(13, for_now)];
        let errors: Vec<Value> = errors.into_iter().flatten().collect();
        let details = json!([{
            "@type": "type.googleapis.com/google.monitoring.v3.CreateTimeSeriesSummary",
            "totalPointCount": series.len(),
            "successPointCount": series.len() - lost.len(),
            "errors": errors,
        }]);
        let error = json!({"error": {
            "code": 400, "message": said, "status": "INVALID_ARGUMENT", "details": details,
        }});
        (400, error.to_string())
    }

    fn point(&mut self, one: &Value, now: i64) -> Result<(), Refused> {
        let broken = |why: &str| Refused::Broken(why.to_owned());
        let kind = self.check(one).map_err(Refused::Broken)?;
        let name = name(one);
        if let Some(another) = &self.taken_by_another
            && name.contains(another)
        {
            return Err(Refused::Taken);
        }
        let point = read(&one["points"][0]).map_err(Refused::Broken)?;
        *self
            .messages
            .entry(format!("{name} {}", point.end))
            .or_default() += 1;
        let times = self.messages[&format!("{name} {}", point.end)];
        let fails = self.fails.iter().find(|it| name.contains(it.0));
        if fails.is_some_and(|it| times <= *it.1) {
            return Err(Refused::ForNow);
        }
        let behind = now - point.end.div_euclid(1_000);
        if !(-FUTURE..=PAST).contains(&behind) {
            return Err(Refused::Broken(format!("a point of {behind} s ago")));
        }
        if kind == GAUGE && point.start != point.end {
            return Err(broken("a gauge with a start of its own"));
        }
        if kind == CUMULATIVE && point.start >= point.end {
            return Err(broken("a start that is not before the end"));
        }
        let last_written = self.written.get(&name).copied();
        let known = self.series.entry(name.clone()).or_default();
        if let Some(last) = known.last() {
            if *last == point {
                return Err(Refused::Repeat);
            }
            if point.end <= last.end {
                return Err(broken("an end that is not after the last"));
            }
            if point.end - last.end < APART {
                return Err(broken("a point too soon after the last"));
            }
            if kind == CUMULATIVE && point.start == last.start && point.value < last.value {
                return Err(broken("a counter that falls without a new start"));
            }
            if kind == CUMULATIVE && point.start != last.start && point.start <= last.end {
                return Err(broken("a new start that is not after the last end"));
            }
        }
        if last_written.is_some_and(|it| now - it < PACE) {
            return Err(broken("a series that was written a moment ago"));
        }
        known.push(point);
        self.written.insert(name, now);
        Ok(())
    }

    /// The kind of a series that is what its descriptor says.
    fn check(&self, one: &Value) -> Result<i64, String> {
        let kind_of = |value: &Value| value.as_i64().unwrap_or_default();
        let metric = one["metric"]["type"].as_str().unwrap_or_default();
        let known = self.descriptors.get(metric);
        let known = known.ok_or_else(|| format!("no descriptor of {metric:?}"))?;
        let (kind, value) = (kind_of(&one["metricKind"]), kind_of(&one["valueType"]));
        if (kind, value) != (known.kind, known.value) {
            return Err(format!(
                "{metric}: not the kind {kind}, or not the type {value}"
            ));
        }
        let typed = &one["points"][0]["value"];
        let has = |name: &str| !typed[name].is_null();
        if has("int64Value") != (value == INT64) || has("doubleValue") != (value == DOUBLE) {
            return Err(format!("{metric}: a value of another type: {typed}"));
        }
        let labels = labels(&one["metric"]["labels"])?;
        if let Some(key) = labels.keys().find(|key| !known.labels.contains(**key)) {
            return Err(format!("{metric} has no label {key}"));
        }
        if labels.get("writer").is_none_or(|it| it.is_empty()) {
            return Err(format!("{metric}: nobody knows who writes it"));
        }
        let resource = one["resource"]["type"].as_str().unwrap_or_default();
        let expected = RESOURCES.iter().find(|it| it.0 == resource);
        let expected = expected.ok_or_else(|| format!("a resource {resource:?}"))?;
        let labels = self::labels(&one["resource"]["labels"])?;
        let is_whole = expected
            .1
            .iter()
            .all(|key| labels.get(key).is_some_and(|it| !it.is_empty()));
        if !is_whole || labels.len() != expected.1.len() {
            return Err(format!("{resource} with the labels {labels:?}"));
        }
        match labels.iter().all(|(key, value)| is_place(key, value)) {
            true => Ok(kind),
            false => Err(format!("Unrecognized region or location: {labels:?}")),
        }
    }
}

/// Whether a label that says where something is names a place that there is.
fn is_place(key: &str, value: &str) -> bool {
    let zone = value.rsplit_once('-');
    let is_zone = zone.is_some_and(|(region, zone)| REGIONS.contains(&region) && zone.len() == 1);
    match key {
        "zone" => is_zone,
        "location" => {
            let is_elsewhere = value == "global" || value.starts_with("aws:us-east-1");
            is_zone || is_elsewhere || REGIONS.contains(&value)
        }
        _ => true,
    }
}

fn error(status: u16, code: &str, why: &str) -> Reply {
    let error = json!({"error": {"code": status, "message": why, "status": code}});
    (status, error.to_string())
}

/// Everything that makes a series one.
fn name(one: &Value) -> String {
    // serde_json sorts keys.
    let part = |of: &Value| {
        format!(
            "{}{}",
            of["type"].as_str().unwrap_or_default(),
            of["labels"]
        )
    };
    format!("{} {}", part(&one["metric"]), part(&one["resource"]))
}

fn labels(of: &Value) -> Result<BTreeMap<&str, &str>, String> {
    let all = of.as_object().into_iter().flatten();
    let all = all.map(|(key, value)| {
        let value = value.as_str().filter(|it| it.len() <= VALUE);
        value
            .map(|value| (key.as_str(), value))
            .ok_or_else(|| format!("the value of label {key}"))
    });
    all.collect()
}

fn is_key(key: &str) -> bool {
    let is_inner = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_';
    key.len() <= KEY
        && key.starts_with(|it: char| it.is_ascii_lowercase())
        && key.bytes().all(is_inner)
}

fn descriptor(of: &Value) -> Result<(String, Descriptor), String> {
    let name = of["type"].as_str().unwrap_or_default();
    let own = ["custom.googleapis.com/", "workload.googleapis.com/"];
    let rest = own.iter().find_map(|it| name.strip_prefix(it));
    if !rest.is_some_and(is_key) || name.len() > TYPE {
        return Err(format!("the type {name:?}"));
    }
    let (kind, value) = (of["metricKind"].as_i64(), of["valueType"].as_i64());
    let (Some(kind @ (GAUGE | CUMULATIVE)), Some(value @ (INT64 | DOUBLE))) = (kind, value) else {
        return Err(format!("{name}: kind {kind:?} and type {value:?}"));
    };
    let unit = of["unit"].as_str().unwrap_or_default();
    if !UNITS.contains(&unit) {
        return Err(format!("{name}: the unit {unit:?}"));
    }
    if of["description"].as_str().is_none_or(str::is_empty) {
        return Err(format!("{name}: no description"));
    }
    let all: Vec<&Value> = of["labels"].as_array().into_iter().flatten().collect();
    let keys: BTreeSet<String> = all
        .iter()
        .filter_map(|it| Some(it["key"].as_str().filter(|it| is_key(it))?.to_owned()))
        .collect();
    if keys.len() != all.len() || keys.len() > LABELS {
        return Err(format!("{name}: the labels {}", of["labels"]));
    }
    Ok((
        name.to_owned(),
        Descriptor {
            kind,
            value,
            labels: keys,
        },
    ))
}

fn read(of: &Value) -> Result<Point, String> {
    let at = |time: &Value| -> Result<i64, String> {
        let text = time.as_str().unwrap_or_default();
        let time = OffsetDateTime::parse(text, &Rfc3339);
        let time = time.map_err(|error| format!("the time {text:?}: {error}"))?;
        let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
        i64::try_from(millis).map_err(|_| format!("the time {text:?}"))
    };
    let interval = &of["interval"];
    let end = at(&interval["endTime"])?;
    let start = match &interval["startTime"] {
        Value::Null => end,
        time => at(time)?,
    };
    // A whole number travels as a text.
    let whole = of["value"]["int64Value"].as_str().map(str::parse::<i64>);
    let value = match whole {
        Some(number) => Some(number.map_err(|error| error.to_string())? as f64),
        None => of["value"]["doubleValue"].as_f64(),
    };
    let value = value.filter(|it| it.is_finite());
    let value = value.ok_or_else(|| format!("the value {}", of["value"]))?;
    Ok(Point { start, end, value })
}

#[cfg(test)]
mod tests;
