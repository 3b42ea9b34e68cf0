//! Alertmanager's API v2: the alerts as they are, told again and again; what is not told again is over.
//! It groups, silences and removes what comes twice by itself, by the labels: what changes one of them is another alert
//! to it, and the message that begins that one ends the one of before.
//!
//! Limits: [`BATCH`] alerts a request, [`LABEL`] characters a label, [`ANNOTATION`] an annotation.

use std::time::Duration;

use bytes::Bytes;
use gpufleet_telemetry::time::Timestamp;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{StatusCode, Uri};
use serde_json::{Map, Value, json};

use super::{Answer, Outcome, Post, Speaks, address, failure, json_headers};
use crate::notify::group::later;
use crate::notify::message::{Called, Item, Message, cut};
use crate::notify::secret::Secret;
#[cfg(doc)]
use crate::notify::settings::Way;
use crate::words::text::rfc3339;

/// Alerts of one request.
pub const BATCH: usize = 256;
/// What is not told again within four repetitions is over: with a repetition that had just become due,
/// [`Way::longest_pause`] and an answer that does not come, outages of up to 140 s end nothing.
pub const ENDS_AFTER: Duration = Duration::from_secs(4 * 60);
/// Longest value of a label, characters.
const LABEL: usize = 256;
/// Longest annotation, characters.
const ANNOTATION: usize = 2_000;

/// One Alertmanager.
#[derive(Debug)]
pub struct Alertmanager {
    to: Uri,
    token: Secret,
}

impl Alertmanager {
    /// The one under this address.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(url: &str, token: Secret) -> Result<Self, String> {
        let to = format!("{}/api/v2/alerts", url.trim_end_matches('/'));
        let to = address(&to).map_err(|why| format!("{url}: {why}"))?;
        Ok(Self { to, token })
    }
}

/// What is said of one incident: that it is so, or over, under each name that it may be known by.
fn alerts(item: &Item, at: Timestamp) -> impl Iterator<Item = Value> {
    item.called.iter().map(move |it| alert(item, it, at))
}

fn alert(item: &Item, called: &Called, at: Timestamp) -> Value {
    let (since, until) = item.times;
    let since = at.min(since);
    let until = until.or((!called.is_open).then_some(at));
    let rank = called.rank.map(|it| it.to_string());
    let id = item.id.to_string();
    let severity = match called.severity {
        "error" => "critical",
        other => other,
    };
    // The words of the Prometheus rules, so that one configuration routes both.
    let labels = text(
        [
            ("alertname", Some("GpufleetIncident")),
            ("incident", Some(called.kind)),
            ("incident_id", Some(&id)),
            ("severity", Some(severity)),
            ("owner", Some("server")),
            ("team", Some(&called.owner)),
            ("cluster", Some(&called.cluster)),
            ("node", called.node.as_deref()),
            ("gpu", called.gpu.as_deref()),
            ("run", called.run.as_deref()),
            ("rank", rank.as_deref()),
        ],
        LABEL,
    );
    let evidence = item.evidence.join("\n");
    let because = item.because.map(|it| format!("Because of {it}. "));
    let because = because.unwrap_or_default();
    let annotations = text(
        [
            ("summary", Some(&*format!("{}: {}", item.what, item.place))),
            (
                "description",
                Some(&*format!(
                    "{because}It {}; lost so far {}.\n{evidence}",
                    item.costs, item.lost
                )),
            ),
            ("action", Some(&*item.action)),
            ("runbook_url", Some(&*item.runbook)),
            ("grafana_url", item.grafana.as_deref()),
            ("silence", Some(&*format!("gpufleet silence {id} --for 2h"))),
        ],
        ANNOTATION,
    );
    let ends = match until {
        // Nothing ends later than it is told: our clock may have been set back since, and Alertmanager
        // would wait for that time. One that was over before it began is none to it.
        Some(until) => at.min(until).max(later(since, Duration::from_millis(1))),
        None => later(at, ENDS_AFTER),
    };
    json!({
        "labels": labels,
        "annotations": annotations,
        "startsAt": rfc3339(since),
        "endsAt": rfc3339(ends),
        "generatorURL": item.link,
    })
}

/// Names with texts; one that is empty is left out, because Alertmanager does the same.
fn text<const N: usize>(pairs: [(&str, Option<&str>); N], longest: usize) -> Map<String, Value> {
    let some = pairs
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    some.filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), Value::String(cut(value, longest))))
        .collect()
}

impl Speaks for Alertmanager {
    fn posts(&self, message: &Message) -> Result<Vec<Post>, String> {
        let mut headers = json_headers();
        if let Some(token) = self.token.get() {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| "the token is no text of a header")?;
            value.set_sensitive(true);
            headers.push((AUTHORIZATION, value));
        }
        let alerts: Vec<Value> = message
            .incidents
            .iter()
            .flat_map(|it| alerts(it, message.at))
            .collect();
        let posts = alerts.chunks(BATCH).map(|batch| Post {
            to: self.to.clone(),
            headers: headers.clone(),
            body: Bytes::from(Value::from(batch).to_string()),
        });
        Ok(posts.collect())
    }

    fn to(&self) -> Result<Uri, String> {
        Ok(self.to.clone())
    }

    fn judge(&self, answer: &Answer) -> Outcome {
        match answer.status {
            StatusCode::OK => Outcome::Delivered,
            // Of a batch that it does not take whole it has stored what it can.
            _ => failure(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::example;
    use crate::notify::fixture::{START, after};

    fn times(since: i64, until: Option<i64>) -> (Value, Value) {
        let mut item = example::test(&"am".into(), "USD", START)
            .incidents
            .remove(0);
        item.times = (after(since), until.map(after));
        let alert = alerts(&item, START).next().expect("it has a name");
        (alert["startsAt"].clone(), alert["endsAt"].clone())
    }

    #[test]
    fn nothing_begins_or_ends_later_than_it_is_told() {
        let at = |seconds| Value::from(rfc3339(after(seconds)));
        assert_eq!(times(-100, None), (at(-100), at(240)));
        assert_eq!(times(-100, Some(-10)), (at(-100), at(-10)));
        // Our clock was three hours ahead when it ended, and is set back now.
        assert_eq!(times(-100, Some(10_800)), (at(-100), at(0)));
        assert_eq!(times(10_000, None), (at(0), at(240)));
    }
}
