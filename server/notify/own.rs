//! gpufleet's own blindness as incidents: data that is made durable late or not at all, detectors that
//! stand, channels that fail, more incidents than can be listed. They have a place of their own, so that they never are a cluster's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Incident, Place, Remedy, Signal};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::group::later;
use crate::words::text::grouped;
use crate::{App, health};

/// The cluster of what is wrong with gpufleet itself. A name with a blank is nobody's cluster.
pub const CLUSTER: &str = "gpufleet itself";

/// Fresh samples that are older than this when they are durable are late: a commit is due every 20 s.
const LATE: Duration = Duration::from_secs(60);

/// A channel that has failed for this long is told by another.
const FAILS_FOR: Duration = Duration::from_secs(60);

const CHANNEL: &str = "channel ";
const INCIDENTS: &str = "incidents";
const INGEST: &str = "ingest";

/// Where a trouble of gpufleet itself is.
pub fn place(what: &str) -> Place {
    Place::node(CLUSTER, what)
}

/// Whether a place is gpufleet's own: it is always heard from.
pub fn is_own(place: &Place) -> bool {
    place.cluster == CLUSTER
}

/// The name of the trouble with a channel.
pub fn channel_fails(channel: &str) -> String {
    format!("{CHANNEL}{channel}")
}

/// The channel that an incident is about, if it is about one that fails.
pub fn failing_channel(incident: &Incident) -> Option<&str> {
    let node = incident.place.node.as_deref()?;
    node.strip_prefix(CHANNEL)
        .filter(|_| is_own(&incident.place))
}

/// The page that helps, by what is wrong.
pub fn runbook(place: &Place) -> &'static str {
    match place.node.as_deref() {
        Some(INGEST) => "server-slow",
        Some(INCIDENTS) => "too-many-incidents",
        _ => "notifications",
    }
}

/// Everything that is wrong with gpufleet itself.
pub fn signals(app: &App, now: Timestamp) -> Vec<Signal> {
    let mut signals: Vec<Signal> = late(app).into_iter().chain(beyond(app)).collect();
    for failing in app.incidents.failing_channels(later_back(now)) {
        signals.push(signal(
            &channel_fails(&failing.channel),
            "messages to people do not get through",
            format!("{}: {}", failing.channel, failing.why),
            Some(failing.since),
            vec![Reading::new(
                "failures",
                f64::from(failing.failures),
                None,
                Unit::Count,
            )],
        ));
    }
    signals
}

/// The moment before which a failure is old enough to be told.
fn later_back(now: Timestamp) -> Timestamp {
    now.shifted(-later(Timestamp(0), FAILS_FOR).0)
}

/// More is wrong than the book of incidents holds: that is told instead of each.
fn beyond(app: &App) -> Option<Signal> {
    let beyond = app.incidents.beyond();
    let reading = Reading::new("incidents", beyond as f64, Some(0.0), Unit::Count);
    let action = format!(
        "{} incidents more than are listed: look for the one cause that so many have, and at the fleet's pages; each opens as soon as there is room.",
        grouped(beyond as f64)
    );
    let what = "more is wrong than can be listed";
    (beyond > 0).then(|| signal(INCIDENTS, what, action, None, vec![reading]))
}

fn late(app: &App) -> Option<Signal> {
    if let Some(why) = health::commits(app) {
        let what = "what comes in is not made durable";
        return Some(signal(INGEST, what, why, None, Vec::new()));
    }
    let age = app.commits.sample_age_ms.load(Ordering::Relaxed);
    let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
    if age <= LATE || app.commits.commits.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let reading = Reading::new(
        "age",
        age.as_secs_f64(),
        Some(LATE.as_secs_f64()),
        Unit::Seconds,
    );
    let what = "what comes in is made durable late";
    let action = "Look at the server's CPU, its disk and the database.".to_owned();
    Some(signal(INGEST, what, action, None, vec![reading]))
}

fn signal(
    name: &str,
    what: &str,
    action: String,
    since: Option<Timestamp>,
    readings: Vec<Reading>,
) -> Signal {
    Signal {
        family: Family::Blind,
        place: place(name),
        severity: Severity::Error,
        what: what.to_owned(),
        action,
        remedy: Remedy::Look,
        cause: Cause::Connection,
        since,
        readings,
        price: Price::none(Basis::OwnTrouble),
        confidence: None,
        booted_at: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use gpufleet_analysis::incident::{MAX_INCIDENTS, Tick};
    use uuid::Uuid;

    use super::*;
    use crate::auth::Access;
    use crate::config::Config;
    use crate::hand::Hand;
    use crate::lead::Lead;
    use crate::notify::fixture::{START, after, settings, trouble};
    use crate::notify::lane::Outcome;
    use crate::notify::settings::Kind;
    use crate::store::{Store, StoreConfig};

    /// The whole way from signals to messages: what has no room in the book is told in number.
    #[tokio::test]
    async fn of_ten_thousand_troubles_in_a_minute_each_is_told_or_counted_in_twenty_messages() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let app = App {
            lead: Arc::new(Lead::leading()),
            ..App::new(
                Config::for_tests(),
                store.unwrap(),
                Access::default(),
                Arc::new(Hand::at(START)),
            )
        };
        app.incidents
            .tells(settings(&[("chat", Kind::Slack)]).into());
        let (quiet_runs, nodes, mut ids) = (BTreeSet::new(), BTreeMap::new(), 0);
        let (mut sent, mut members, mut said) = (0, BTreeSet::new(), 0.0);
        // Nothing is written here: after 30 s people are told all the same.
        for second in 0..120 {
            let now = after(second);
            if second % 10 == 0 {
                let count = [0, 100, 2_000, 4_000, 6_000, 8_000][(second as usize / 10).min(5)];
                let count = if second >= 60 { 10_000 } else { count };
                let mut signals: Vec<Signal> = (0..count).map(trouble).collect();
                signals.extend(super::signals(&app, now));
                let tick = Tick {
                    now,
                    signals,
                    is_heard: &|_, _| true,
                    in_its_place: &|_, _| None,
                    is_forgotten: &|_, _| false,
                    quiet_runs: &quiet_runs,
                    nodes: &nodes,
                    runs: &Default::default(),
                };
                app.incidents.tick(tick, &mut || {
                    ids += 1;
                    Uuid::from_u128(ids)
                });
            }
            for sending in app.incidents.next_messages(now) {
                sent += usize::from(second < 60);
                for id in sending.group.members.keys() {
                    let told = app.incidents.get(*id).unwrap();
                    let more = told.evidence.iter().filter(|_| is_own(&told.place));
                    let more = more.flat_map(|it| &it.readings).map(|it| it.value);
                    said = more.fold(said, f64::max);
                    if !is_own(&told.place) {
                        members.insert(*id);
                    }
                }
                app.incidents.sent(&sending, Outcome::Delivered, now, 0.5);
            }
        }
        assert!(sent <= 20, "{sent} messages");
        assert_eq!(members.len(), MAX_INCIDENTS - 50);
        assert_eq!(app.incidents.beyond(), 10_000 - members.len());
        assert!(said > 0.0, "that there are more is told");
    }
}
