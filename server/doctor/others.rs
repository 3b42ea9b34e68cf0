//! Others that the server speaks with: the cluster that it asks, and whether what it passes on arrives, messages
//! to people and minutes that are pushed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpufleet_program::kubernetes::Refusal;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::{Finding, Look, Looked};
use crate::export::Pushed;
use crate::export::cloud_monitoring::Told;
use crate::export::cloud_monitoring::target::Reason;
use crate::incidents::Channel;
use crate::inventory::look::Sight;
use crate::inventory::{self, Source};
use crate::notify::lane::Goes;
use crate::words::text::{self, counted, grouped};

/// Minutes that are pushed so much later than they are due are behind.
const PUSHED_WITHIN: Duration = Duration::from_secs(5 * 60);

/// Heartbeats that may be missed before it is told.
const HEARTBEATS: u64 = 3;

/// How the cluster's nodes are seen.
///
/// # Errors
/// Why that cannot be said: nobody is asked, or they are read for the first time.
pub(super) fn nodes(look: &Look<'_>) -> Result<Sight, String> {
    let inventory = &look.app.inventory;
    if *inventory.source() == Source::Off {
        return Err("nobody is asked about the cluster's nodes (inventory.source)".to_owned());
    }
    match inventory.known().nodes.sight(inventory::now(look.app)) {
        Sight::Starting => Err("it is being read".to_owned()),
        seen => Ok(seen),
    }
}

/// Whether the cluster is seen.
pub(super) fn cluster(look: &Look<'_>) -> Looked {
    let nodes = nodes(look)?;
    let now = inventory::now(look.app);
    let claims = look.app.inventory.known().claims.sight(now);
    let parts = [
        (
            "nodes",
            nodes,
            "Nodes without an agent, what a silent node costs, and how long each was billed",
        ),
        (
            "claims",
            claims,
            "Who waits for GPUs and why, and what is free",
        ),
    ];
    let found = parts.into_iter().filter_map(|(what, sight, missing)| {
        // What no source of this kind tells is nothing to mend here.
        let told = sight
            .told(what, now.at)
            .filter(|_| matches!(sight, Sight::Stale { .. } | Sight::Never { .. }))?;
        let since = match sight {
            Sight::Stale { since, .. } => Some(since),
            _ => None,
        };
        let found = Finding::new(Severity::Error, format!("cluster-{what}"), told.what)
            .missing(missing)
            .fix(told.fix)
            .since(since);
        Some(match sight.refusal() {
            Some(Refusal::NoRight) => found.line("kubectl apply -f deploy/base/accounts.yaml"),
            Some(Refusal::UnknownToken) => {
                found.line("kubectl create token gpufleet-server -n gpufleet")
            }
            None => found,
        })
    });
    Ok(found.collect())
}

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
    } else if let Some(why) = look.app.config.dead_links() {
        let found = Finding::new(Severity::Warning, "channels-page-url", why)
            .missing("Nothing here; but whoever gets a message cannot open the page that it names")
            .fix("Name the address under which people open these pages, and try it: gpufleet notify test pager.")
            .line("[notify]\npage_url = \"https://gpufleet.example.com\"");
        all.push(found);
    }
    let heartbeat = &look.app.incidents.heartbeat;
    if heartbeat.is_wanted.load(Ordering::Relaxed) {
        let sent = Timestamp::from_millis(heartbeat.sent_ms.load(Ordering::Relaxed));
        let every = look.app.config.notify.heartbeat_every_s;
        // Before the first one it counts from when it fails.
        let failing = look.app.jobs.of("the heartbeat").failing_ms();
        let since = match sent.millis() {
            0 => failing.map(Timestamp::from_millis),
            _ => Some(sent),
        };
        let is_missed = |it: Timestamp| {
            look.since_then(it) > Duration::from_secs(every.saturating_mul(HEARTBEATS))
        };
        if since.is_some_and(is_missed) {
            let found = Finding::new(Severity::Error, "heartbeat", "The heartbeat does not get through")
                .missing("Whether this server lives, for the service outside: it raises the alarm")
                .fix("The log says why: the server does not do its work, or the address does not answer.")
                .since((sent.millis() > 0).then_some(sent));
            all.push(found);
        }
    }
    Ok(all)
}

/// Whether routes ask for teams that there are.
pub(super) fn routes(look: &Look<'_>) -> Looked {
    let incidents = &look.app.incidents;
    let strangers = incidents.strangers(&look.app.money.terms().owners, look.at);
    let found = strangers.iter().map(|it| {
        let severity = match it.is_perhaps {
            true => Severity::Info,
            false => Severity::Warning,
        };
        let of = if it.is_of_digest { "digest" } else { "route" };
        Finding::new(severity, format!("{of}-{}-{}", it.route, it.team), it.words())
            .missing(match it.is_of_digest {
                true => "That team's week is sent to nobody by it",
                false => "What is wrong with that team's GPUs is not told by this route",
            })
            .fix("Write the team as notify.teams, the owner rules or the label have it, or take it out of the route.")
            .line("gpufleet routes explain INCIDENT")
    });
    Ok(found.collect())
}

fn failing(channel: &Channel) -> Option<Finding> {
    let name = &channel.way.name;
    let lane = &channel.lane;
    let why = lane.failed.as_ref().map_or("", |it| it.1.as_str());
    let what = match (lane.failing_since, channel.refused) {
        (Some(_), _) if lane.goes() == Goes::Broken => format!(
            "Channel {name} is broken, {}; nothing is tried again before that is mended",
            counted(channel.waiting, "message waits", "messages wait")
        ),
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
        .line(format!("gpufleet notify test {}", channel.way.channel))
        .since(lane.failing_since);
    Some(found)
}

/// A way on which minutes are pushed to others.
struct Way<'a> {
    /// Its section of the configuration.
    name: &'static str,
    pushed: &'a Pushed,
    /// How long after its end a minute is pushed.
    delay: Duration,
    /// How far apart those minutes are, where not all are pushed.
    every: Duration,
}

/// Whether what is pushed arrives.
pub(super) fn exports(look: &Look<'_>) -> Looked {
    let (app, config) = (look.app, &look.app.config);
    let (write, cloud) = (&config.remote_write, &config.cloud_monitoring);
    let every = Duration::from_secs(cloud.every_minutes.saturating_mul(60));
    let ways = [
        (!write.url.is_empty()).then(|| Way {
            name: "remote_write",
            pushed: &app.pushed,
            delay: Duration::from_secs(write.delay_s),
            every: Duration::ZERO,
        }),
        (!cloud.project.is_empty()).then(|| Way {
            name: "cloud_monitoring",
            pushed: &app.cloud_monitoring.pushed,
            delay: Duration::from_secs(cloud.delay_s),
            every,
        }),
    ];
    let ways: Vec<Way<'_>> = ways.into_iter().flatten().collect();
    if ways.is_empty() {
        return Err("nothing is pushed to others (remote_write, cloud_monitoring)".to_owned());
    }
    if !ways.iter().any(Way::was_due) {
        return Err("no minute was due yet since this server started".to_owned());
    }
    let due = ways.iter().filter(|it| it.was_due());
    let mut found: Vec<Finding> = due.flat_map(|it| it.findings(look)).collect();
    found.extend(left_out(&app.cloud_monitoring));
    match ways.iter().find(|it| !it.was_due()) {
        Some(way) if found.is_empty() => Err(format!(
            "no minute of {} was due yet since this server started",
            way.name
        )),
        _ => Ok(found),
    }
}

/// What is chosen for Cloud Monitoring and is not written there.
fn left_out(told: &Told) -> impl Iterator<Item = Finding> {
    let all = [
        (
            Reason::Kind,
            "their metric is not one of such a resource",
            "Whoever sends them says a metric of what it is not about; docs/metrics.md has what each is about.",
        ),
        (
            Reason::TooMany,
            "more counters are chosen than are followed",
            "Choose fewer metrics whose names end with _total (cloud_monitoring.metrics).",
        ),
    ];
    all.into_iter().filter_map(|(reason, why, fix)| {
        let count = told.left_out_because(reason);
        let points = counted(
            usize::try_from(count).unwrap_or(usize::MAX),
            "point",
            "points",
        );
        let what = format!(
            "{points} for cloud_monitoring left out since this server started, because {why}"
        );
        let id = format!("exports-cloud_monitoring-{}", reason.name());
        let found = Finding::new(Severity::Info, id, what)
            .missing("Those, on the other side, for good; the record here has them")
            .fix(fix);
        (count > 0).then_some(found)
    })
}

impl Way<'_> {
    fn was_due(&self) -> bool {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        self.newest() > 0 || count(&self.pushed.failed) > 0
    }

    /// The newest minute that was pushed; 0 before the first.
    fn newest(&self) -> i64 {
        self.pushed.newest.load(Ordering::Relaxed)
    }

    fn findings(&self, look: &Look<'_>) -> Vec<Finding> {
        let (name, delay) = (self.name, self.delay.as_secs());
        let mut all: Vec<Finding> = self.behind(look).into_iter().collect();
        for (count, id, what, fix) in [
            (
                &self.pushed.refused,
                "refused",
                "points were refused by the target",
                "The log has the target's words; most targets name a limit of theirs.".to_owned(),
            ),
            (
                &self.pushed.long_names,
                "left-out",
                "times a resource was left out of a minute, because a name is too long for a label",
                "Shorten the name of the node, the job or the endpoint.".to_owned(),
            ),
            (
                &self.pushed.skipped,
                "skipped",
                "minutes were too old to be pushed",
                format!("The target was away for longer than {name}.max_age_h."),
            ),
            (
                &self.pushed.late,
                "late",
                "times something came of a minute that was pushed already",
                format!(
                    "Nothing, where agents or this server were away; where it goes on, raise {name}.delay_s ({delay})."
                ),
            ),
        ] {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let count = grouped(count as f64);
                let what = format!("{count} {what} of {name} since this server started");
                let found = Finding::new(Severity::Info, format!("exports-{name}-{id}"), what)
                    .missing("Those, on the other side, for good; the record here has them")
                    .fix(fix);
                all.push(found);
            }
        }
        all
    }

    fn behind(&self, look: &Look<'_>) -> Option<Finding> {
        let (name, newest) = (self.name, self.newest());
        let end = (newest > 0).then(|| Minute(newest + 1).start());
        let behind = end.map_or(Duration::MAX, |end| look.since_then(end));
        if behind <= self.delay + self.every + PUSHED_WITHIN {
            return None;
        }
        if self.pushed.waits.load(Ordering::Relaxed) {
            let what = format!(
                "What is pushed by {name} waits for what agents still have of the time when this server was away"
            );
            let found = Finding::new(Severity::Info, format!("exports-{name}-waits"), what)
                .missing(
                    "The minutes since then, on the other side, for a quarter of an hour at most",
                )
                .fix("Nothing: agents ship it by themselves.")
                .since(end);
            return Some(found);
        }
        let what = match end {
            Some(end) => format!(
                "What is pushed by {name} is behind by {}",
                text::span(look.at.millis() - end.millis())
            ),
            None => format!("Nothing that is pushed by {name} arrives"),
        };
        let found = Finding::new(Severity::Warning, format!("exports-{name}-behind"), what)
            .missing(format!("The minutes since then, on the other side; they are sent when it answers, up to {name}.max_age_h"))
            .fix("The log says what the target answers; look at its address, its certificate and what lets this server write.")
            .line("journalctl -u gpufleet-server --since -1h")
            .since(end);
        Some(found)
    }
}
