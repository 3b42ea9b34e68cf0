//! Whether what the server passes on arrives: messages to people, and minutes that are pushed to others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::{Finding, Look, Looked};
use crate::incidents::Channel;
use crate::pages::text::{self, counted, grouped};

/// Minutes that are pushed so much later than they are due are behind.
const PUSHED_WITHIN: Duration = Duration::from_secs(5 * 60);

/// Heartbeats that may be missed before it is told.
const HEARTBEATS: u64 = 3;

/// Whether people are told.
pub(super) fn channels(look: &Look<'_>) -> Looked {
    let channels = look.app.incidents.channels(look.at);
    let mut all: Vec<Finding> = channels.iter().filter_map(failing).collect();
    if channels.is_empty() {
        let found = Finding::new(Severity::Info, "channels-none", "No channel is configured")
            .missing("Nothing on the pages; but nobody is told of incidents")
            .fix("Name a way to people, and try it: gpufleet-server notify test pager. docs/notify.md has all.")
            .line("[notify]\nchannels = [{ name = \"pager\", kind = \"pagerduty\", secret_file = \"/etc/gpufleet/pagerduty-key\" }]");
        all.push(found);
    }
    let heartbeat = &look.app.incidents.heartbeat;
    if heartbeat.is_wanted.load(Ordering::Relaxed) {
        let sent = Timestamp::from_millis(heartbeat.sent_ms.load(Ordering::Relaxed));
        let every = look.app.config.notify.heartbeat_every_s;
        if look.since_then(sent) > Duration::from_secs(every.saturating_mul(HEARTBEATS)) {
            let found = Finding::new(Severity::Error, "heartbeat", "The heartbeat does not get through")
                .missing("Whether this server lives, for the service outside: it raises the alarm")
                .fix("The log says why: the server does not do its work, or the address does not answer.")
                .since((sent.millis() > 0).then_some(sent));
            all.push(found);
        }
    }
    Ok(all)
}

fn failing(channel: &Channel) -> Option<Finding> {
    let name = &channel.way.name;
    let lane = &channel.lane;
    let why = lane.failed.as_ref().map_or("", |it| it.1.as_str());
    let what = match (lane.failing_since, channel.refused) {
        (Some(_), _) => format!(
            "Channel {name} fails, {}",
            counted(channel.waiting, "message waits", "messages wait")
        ),
        (None, 0) => return None,
        (None, refused) => format!(
            "Channel {name} does not take {}",
            counted(refused, "message", "messages")
        ),
    };
    let fix = match why.is_empty() {
        true => "The log says why.".to_owned(),
        false => text::harmless(why, text::TITLE_CHARACTERS),
    };
    let found = Finding::new(Severity::Error, format!("channel-{name}"), what)
        .missing("Whoever is told by it alone does not know what is wrong")
        .fix(fix)
        .line(format!(
            "gpufleet-server notify test {}",
            channel.way.channel
        ))
        .since(lane.failing_since);
    Some(found)
}

/// Whether what is pushed arrives.
pub(super) fn exports(look: &Look<'_>) -> Looked {
    let config = &look.app.config.remote_write;
    if config.url.is_empty() {
        return Err("nothing is pushed to others (remote_write.url is empty)".to_owned());
    }
    let pushed = &look.app.pushed;
    let newest = pushed.newest.load(Ordering::Relaxed);
    let failed = pushed.failed.load(Ordering::Relaxed);
    if newest == 0 && failed == 0 {
        return Err("no minute was due yet since this server started".to_owned());
    }
    let mut all = Vec::new();
    let end = (newest > 0).then(|| Minute(newest + 1).start());
    let behind = end.map_or(Duration::MAX, |end| look.since_then(end));
    let allowed = Duration::from_secs(config.delay_s) + PUSHED_WITHIN;
    if behind > allowed {
        let what = match end {
            Some(end) => format!(
                "What is pushed is behind by {}",
                text::span(look.at.millis() - end.millis())
            ),
            None => "Nothing that is pushed arrives".to_owned(),
        };
        let found = Finding::new(Severity::Warning, "exports-behind", what)
            .missing("The minutes since then, on the other side; they are sent when it answers, up to remote_write.max_age_h")
            .fix("The log says what the target answers; look at its address, its certificate and the token.")
            .line("journalctl -u gpufleet-server --grep 'remote write' --since -1h")
            .since(end);
        all.push(found);
    }
    for (count, id, what, fix) in [
        (
            pushed.refused.load(Ordering::Relaxed),
            "exports-refused",
            "points were refused by the target of remote write since this server started",
            "The log has the target's words; most targets name a limit of theirs.",
        ),
        (
            pushed.skipped.load(Ordering::Relaxed),
            "exports-skipped",
            "minutes were too old to be pushed since this server started",
            "The target was away for longer than remote_write.max_age_h.",
        ),
    ] {
        if count > 0 {
            let what = format!("{} {what}", grouped(count as f64));
            let found = Finding::new(Severity::Info, id, what)
                .missing("Those, on the other side, for good; the record here has them")
                .fix(fix);
            all.push(found);
        }
    }
    Ok(all)
}
