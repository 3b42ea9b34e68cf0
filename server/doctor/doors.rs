//! What of others was refused or left out lately.

use std::time::Duration;

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::{Finding, Look, Looked};
use crate::fleet::Drop;
use crate::refusals::{Door, Reason};
use crate::words::text::{self, counted, grouped};

/// What happened longer ago than this is over: senders try again every few seconds.
const LATELY: Duration = Duration::from_secs(15 * 60);

/// Requests that were refused as a whole, by the name of their outcome, and what is the case.
const REFUSED: [(&str, &str, &str); 5] = [
    (
        "quarantined",
        "the sender's clock is off by more than an hour",
        "Set the clock of the node; its data waits in its spool until then.",
    ),
    (
        "conflict",
        "two agents use one id",
        "The state folder was copied to another node: remove the copy, and its agent takes a new id.",
    ),
    (
        "other_cluster",
        "the agent's token is bound to another cluster than before",
        "Give the agent the token of its cluster, or a new state folder.",
    ),
    (
        "too_many_agents",
        "there are as many agents as are taken",
        "Agents that are gone are forgotten after fleet.forget_after_s.",
    ),
    (
        "too_many_streams",
        "an agent has too many epochs that are not durable",
        "Look whether commits succeed, and why the agent starts again and again.",
    ),
];

/// What doors refused lately, and requests that the fleet refused.
pub(super) fn refused(look: &Look<'_>) -> Looked {
    let mut all = Vec::new();
    let refusals = &look.app.refusals;
    for (door, reason, count) in refusals.counts() {
        // On the web port it is people who are asked to sign in.
        let last = refusals.last(door, reason).filter(|it| look.is_lately(*it));
        let (Some(last), true) = (last, door != Door::Web) else {
            continue;
        };
        let severity = match reason {
            Reason::Busy | Reason::Unavailable | Reason::TooSlow => Severity::Info,
            _ => Severity::Error,
        };
        let fix = match reason.advice() {
            Some(advice) => format!("Of whoever sends: {advice}. The log names the address."),
            None => {
                "It is tried again; when it lasts, look at the server's CPU and disk.".to_owned()
            }
        };
        let what = format!(
            "OTLP over {} refused {} since the start: {}, {}",
            door.name(),
            counted(
                usize::try_from(count).unwrap_or(usize::MAX),
                "request",
                "requests"
            ),
            reason.name().replace('_', " "),
            look.last(last)
        );
        let id = format!("refused-{}-{}", door.name(), reason.name());
        let found = Finding::new(severity, id, what)
            .missing("What was in them, until whoever sends is let in")
            .fix(fix)
            .line("journalctl -u gpufleet-server --grep 'is refused'");
        all.push(found);
    }
    for (name, why, fix) in REFUSED {
        let last = look.app.fleet.last_outcome(name);
        let Some(last) = last.filter(|it| look.is_lately(*it)) else {
            continue;
        };
        let what = format!("Requests are refused, because {why}; {}", look.last(last));
        let found = Finding::new(Severity::Error, format!("refused-{name}"), what)
            .missing("What those agents send")
            .fix(fix);
        all.push(found);
    }
    Ok(all)
}

/// What of accepted requests was left out lately.
pub(super) fn left_out(look: &Look<'_>) -> Looked {
    let mut all = Vec::new();
    let drops = look.app.fleet.health().drops;
    let dropped = Drop::ALL.map(|it| {
        let (severity, fix) = of_drop(it);
        let last = look.app.fleet.last_drop(it);
        (it.name(), drops.count(it), last, severity, fix)
    });
    let rejections = &look.app.rejections;
    let rejected = rejections.counts().map(|(reason, count)| {
        let fix = "The reply to the sender names an example; docs/metrics.md has what is known.";
        let last = rejections.last(reason);
        (reason.name(), count, last, Severity::Info, fix)
    });
    for (name, count, last, severity, fix) in dropped.into_iter().chain(rejected) {
        let Some(last) = last.filter(|it| look.is_lately(*it)) else {
            continue;
        };
        let what = format!(
            "{} points left out since the start: {}, {}",
            grouped(count as f64),
            name.replace('_', " "),
            look.last(last)
        );
        let found = Finding::new(severity, format!("left-out-{name}"), what)
            .missing("What they said")
            .fix(fix);
        all.push(found);
    }
    Ok(all)
}

/// How bad it is that something was left out for this reason, and what mends it.
const fn of_drop(reason: Drop) -> (Severity, &'static str) {
    match reason {
        Drop::InFuture => (
            Severity::Warning,
            "Set the clock of whoever sends, or of this server.",
        ),
        Drop::TooOld => (
            Severity::Info,
            "Nothing, when an agent was away for longer than minutes are kept (retention.minute_rows_h).",
        ),
        Drop::BadNumber => (
            Severity::Info,
            "The exporter sends what is no number; update it.",
        ),
        Drop::TooManyResources | Drop::TooManyValues => (
            Severity::Warning,
            "Whoever sends makes more series than a node has: look for a label that changes.",
        ),
        Drop::NotNewer => (
            Severity::Info,
            "Nothing: the sender has sent it twice, as it may.",
        ),
        Drop::ReportedByAgent => (
            Severity::Info,
            "Nothing: an agent reports the same GPU, and goes before others.",
        ),
        Drop::ReportedTwice => (
            Severity::Warning,
            "Stop one of the two agents of the node, for example the systemd unit beside a DaemonSet.",
        ),
        Drop::FleetFull => (
            Severity::Error,
            "This server has as many resources as it takes; give clusters servers of their own.",
        ),
    }
}

impl Look<'_> {
    /// Whether something was lately.
    fn is_lately(&self, at: Timestamp) -> bool {
        self.since_then(at) < LATELY
    }

    fn last(&self, at: Timestamp) -> String {
        format!("the last {}", text::ago(self.at, at))
    }
}
