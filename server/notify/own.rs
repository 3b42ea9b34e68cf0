//! gpufleet's own blindness as incidents: data that is made durable late or not at all, detectors that
//! stand, channels that fail. They have a place of their own, so that they never are a cluster's.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Incident, Place, Signal};
use gpufleet_analysis::lost::Losing;
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::group::later;
use crate::{App, health};

/// The cluster of what is wrong with gpufleet itself. A name with a blank is nobody's cluster.
pub const CLUSTER: &str = "gpufleet itself";

/// Fresh samples that are older than this when they are durable are late: a commit is due every 20 s.
const LATE: Duration = Duration::from_secs(60);

/// A channel that has failed for this long is told by another.
const FAILS_FOR: Duration = Duration::from_secs(60);

const CHANNEL: &str = "channel ";
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
        _ => "notifications",
    }
}

/// Everything that is wrong with gpufleet itself.
pub fn signals(app: &App, now: Timestamp) -> Vec<Signal> {
    let mut signals: Vec<Signal> = late(app).into_iter().collect();
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
        cause: Cause::Connection,
        since,
        readings,
        losing: Losing::default(),
        booted_at: None,
    }
}
