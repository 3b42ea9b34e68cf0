//! The server's own health, through the `prometheus` crate: what the fleet counts, requests by
//! route, memory and CPU of the process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use gpufleet_analysis::silent::DEFAULT_TICK;
use gpufleet_telemetry::catalog::{Metric, server};
use gpufleet_telemetry::time::{Minute, Timestamp};
use prometheus::core::Collector as _;
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, IntCounterVec, Opts, TextEncoder};
use tracing::Instrument as _;

use crate::App;
use crate::auth::Grant;
use crate::commit::CommitHealth;
use crate::disk::{self, Disks};
use crate::export::Pushed;
use crate::fleet::{Drop, LiveAgent, ServerClock};
use crate::incidents::{Channel, Incidents};
use crate::jobs::Jobs;
use crate::refusals::Refusals;
use crate::web::Web;

/// An agent that was not heard for this many ticks counts as silent.
const SILENT_TICKS: u32 = 3;

/// What the web port counts itself.
pub struct Counted {
    requests: IntCounterVec,
}

impl Default for Counted {
    fn default() -> Self {
        let metric = server::HTTP_REQUESTS;
        Self {
            requests: IntCounterVec::new(Opts::new(metric.name, metric.help), &["route", "status"])
                .expect("the catalog's names are valid"),
        }
    }
}

/// Counts a request by the route it matched, never by its address: that would be a series for each
/// GPU, or for whatever a stranger asks for.
pub async fn count(State(web): State<Arc<Web>>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or_else(|| "none".to_owned(), |it| it.as_str().to_owned());
    let span = tracing::debug_span!("page", route);
    let response = next.run(request).instrument(span).await;
    let class = match response.status().as_u16() {
        100..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    web.counted
        .requests
        .with_label_values(&[route.as_str(), class])
        .inc();
    response
}

/// The text of everything about the server itself.
pub async fn text(web: &Web, at: Timestamp) -> String {
    let spool = web.app.config.ingest.spool_dir.as_str().into();
    let disks = disk::look(spool, web.app.store.file(), web.app.room).await;
    let mut families = health(web, at);
    families.extend(jobs(&web.app.jobs));
    let is_refused = f64::from(u8::from(!web.app.access.refused().is_empty()));
    families.extend(gauges(&server::FILES_REFUSED, "", [("", is_refused)]));
    let ahead = match web.app.fleet.server_clock() {
        ServerClock::Unknown => None,
        ServerClock::Right => Some(0.0),
        ServerClock::Wrong { ahead_nanos, .. } => Some(ahead_nanos as f64 / 1e9),
    };
    families.extend(gauges(&server::CLOCK_AHEAD, "", ahead.map(|it| ("", it))));
    families.extend(disk_room(&disks));
    families.extend(refused(&web.app.refusals));
    let leads = f64::from(u8::from(web.app.lead.waits().is_none()));
    families.extend(gauges(&server::LEADS, "", [("", leads)]));
    families.extend(commits(&web.app.commits));
    families.extend(incidents(&web.app.incidents));
    families.extend(pushed(&web.app.pushed, at));
    families.extend(to_cloud(&web.app, at));
    families.extend(notifications(&web.app.incidents, at));
    let unreadable = web.app.store.unreadable_rows().by_table();
    let unreadable = unreadable.map(|(table, rows)| (table, rows as f64));
    families.extend(counters(&server::UNREADABLE_ROWS, "table", unreadable));
    families.extend(web.counted.requests.collect());
    let streams = web.streams.count() as f64;
    families.extend(gauges(&server::LIVE_STREAMS, "", [("", streams)]));
    families.extend(process());
    // The encoder refuses a family without series: a counter that nothing has counted yet.
    families.retain(|family| !family.get_metric().is_empty());
    let mut text = String::new();
    if let Err(error) = TextEncoder::new().encode_utf8(&families, &mut text) {
        tracing::error!(%error, "the server's own metrics could not be written");
    }
    text
}

fn health(web: &Web, at: Timestamp) -> Vec<MetricFamily> {
    let health = web.app.fleet.health();
    let drops = Drop::ALL.map(|reason| (reason.name(), health.drops.count(reason) as f64));
    let rejected = web.app.rejections.counts();
    let rejected = rejected.map(|(reason, count)| (reason.name(), count as f64));
    let outcomes = health
        .outcomes
        .iter()
        .map(|(name, count)| (*name, *count as f64));
    let bytes = [
        ("live", health.live_bytes as f64),
        ("backfill", health.backfill_bytes as f64),
    ];
    let fleet = &web.app.config.fleet;
    let limits = [
        ("live", fleet.live_bytes as f64),
        ("backfill", fleet.backfill_bytes as f64),
    ];
    let agents = web.app.fleet.agents();
    let silent = agents.iter().filter(|agent| is_silent(agent, at)).count();
    let states = [
        ("live", (agents.len() - silent) as f64),
        ("silent", silent as f64),
    ];
    [
        counters(&server::POINTS_REJECTED, "reason", rejected),
        counters(&server::POINTS_DROPPED, "reason", drops),
        counters(&server::REQUESTS, "outcome", outcomes),
        counters(&server::POINTS, "", [("", health.points as f64)]),
        gauges(&server::UNCOMMITTED_BYTES, "lane", bytes),
        gauges(&server::UNCOMMITTED_LIMIT, "lane", limits),
        gauges(&server::AGENTS, "state", states),
        gauges(&server::RESOURCES, "", [("", health.resources as f64)]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether an agent was not heard for longer than its own tick explains.
fn is_silent(agent: &LiveAgent, at: Timestamp) -> bool {
    let tick = agent.interval.max(DEFAULT_TICK);
    let unheard = Duration::from_nanos(at.since(agent.heard).max(0).unsigned_abs());
    unheard > tick * SILENT_TICKS
}

/// How commits go; nothing of the last one before there was one.
fn commits(health: &CommitHealth) -> Vec<MetricFamily> {
    let done = health.commits.load(Ordering::Relaxed);
    let failed = health.failures.load(Ordering::Relaxed);
    let outcomes = [("success", done as f64), ("failure", failed as f64)];
    let mut families = counters(&server::COMMITS, "outcome", outcomes);
    let too_late = health.minutes_too_late.load(Ordering::Relaxed) as f64;
    let left_out = [("too_late", too_late)];
    families.extend(counters(&server::ROWS_LEFT_OUT, "reason", left_out));
    let read = |it: &std::sync::atomic::AtomicU64| it.load(Ordering::Relaxed) as f64;
    let left_out = [
        ("run_unknown", read(&health.steps_of_nobody)),
        ("too_many", read(&health.steps_too_many)),
    ];
    families.extend(counters(&server::STEPS_LEFT_OUT, "reason", left_out));
    let round = health.round_ms.load(Ordering::Relaxed);
    if round > 0 {
        families.extend(gauges(&server::HEARTBEAT, "", [("", round as f64 / 1e3)]));
    }
    if done > 0 {
        let last = health.last_done_ms.load(Ordering::Relaxed) as f64 / 1e3;
        let took = health.last_duration_us.load(Ordering::Relaxed) as f64 / 1e6;
        let age = health.sample_age_ms.load(Ordering::Relaxed) as f64 / 1e3;
        families.extend(gauges(&server::LAST_COMMIT, "", [("", last)]));
        families.extend(gauges(&server::COMMIT_DURATION, "", [("", took)]));
        families.extend(gauges(&server::SAMPLE_AGE_AT_COMMIT, "", [("", age)]));
    }
    families
}

/// How far the newest minute that was pushed lies behind; none while it is not known.
fn behind(pushed: &Pushed, at: Timestamp) -> Option<(&'static str, f64)> {
    let newest = pushed.newest.load(Ordering::Relaxed);
    let end = Minute(newest + 1).start();
    (newest > 0).then(|| ("", at.since(end) as f64 / 1e9))
}

/// How pushing by remote write goes.
fn pushed(pushed: &Pushed, at: Timestamp) -> Vec<MetricFamily> {
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed) as f64;
    let outcomes = [
        ("taken", count(&pushed.taken)),
        ("refused", count(&pushed.refused)),
    ];
    let mut families = counters(&server::REMOTE_WRITE_SAMPLES, "outcome", outcomes);
    for (metric, of) in [
        (&server::REMOTE_WRITE_FAILURES, &pushed.failed),
        (&server::REMOTE_WRITE_SKIPPED, &pushed.skipped),
        (&server::REMOTE_WRITE_LEFT_OUT, &pushed.long_names),
    ] {
        families.extend(counters(metric, "", [("", count(of))]));
    }
    families.extend(gauges(&server::REMOTE_WRITE_BEHIND, "", behind(pushed, at)));
    families
}

/// How pushing to Cloud Monitoring goes; nothing where it is not configured.
fn to_cloud(app: &App, at: Timestamp) -> Vec<MetricFamily> {
    let config = &app.config.cloud_monitoring;
    if config.project.is_empty() {
        return Vec::new();
    }
    let (told, pushed) = (&app.cloud_monitoring, &app.cloud_monitoring.pushed);
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed) as f64;
    let taken = [("taken", count(&pushed.taken))];
    let outcomes = taken.into_iter().chain(told.left_out());
    let mut families = counters(&server::CLOUD_MONITORING_SAMPLES, "outcome", outcomes);
    for (metric, of) in [
        (&server::CLOUD_MONITORING_FAILURES, &pushed.failed),
        (&server::CLOUD_MONITORING_SKIPPED, &pushed.skipped),
        (&server::CLOUD_MONITORING_LEFT_OUT, &pushed.long_names),
    ] {
        families.extend(counters(metric, "", [("", count(of))]));
    }
    let month = told.month(config);
    let value = |it: Option<f64>| it.map(|it| ("", it));
    for (metric, value) in [
        (&server::CLOUD_MONITORING_BEHIND, behind(pushed, at)),
        (
            &server::CLOUD_MONITORING_SERIES,
            value(month.map(|it| it.series as f64)),
        ),
        (
            &server::CLOUD_MONITORING_MONTH,
            value(month.map(|it| it.bytes)),
        ),
        (
            &server::CLOUD_MONITORING_COST,
            value(month.and_then(|it| it.usd)),
        ),
    ] {
        families.extend(gauges(metric, "", value));
    }
    families
}

/// How the background jobs go; nothing of the last success before there was one.
fn jobs(jobs: &Jobs) -> Vec<MetricFamily> {
    let jobs = jobs.all();
    let succeeded = jobs.iter().filter_map(|job| {
        let millis = job.succeeded_ms()?;
        Some((job.name(), millis as f64 / 1e3))
    });
    let failures = jobs.iter().map(|job| (job.name(), job.failures() as f64));
    let mut families = gauges(&server::JOB_LAST_SUCCESS, "job", succeeded);
    families.extend(counters(&server::JOB_FAILURES, "job", failures));
    families
}

/// What the doors refused, where anything was.
fn refused(refusals: &Refusals) -> Vec<MetricFamily> {
    let metric = server::REFUSED;
    let counters = CounterVec::new(Opts::new(metric.name, metric.help), &["door", "reason"])
        .expect("the catalog's names are valid");
    for (door, reason, count) in refusals.counts().filter(|(_, _, count)| *count > 0) {
        let labels = [door.name(), reason.name()];
        counters.with_label_values(&labels).inc_by(count as f64);
    }
    counters.collect()
}

fn disk_room(disks: &Disks) -> Vec<MetricFamily> {
    let spool = disks.spool_bytes.map(|bytes| ("", bytes as f64));
    let free = disks
        .free
        .iter()
        .map(|(name, bytes)| (*name, *bytes as f64));
    let mut families = gauges(&server::SPOOL_BYTES, "", spool);
    families.extend(gauges(&server::DISK_FREE, "disk", free));
    families
}

/// Open incidents by family, each with how many; how the detectors go once they have judged.
fn incidents(incidents: &Incidents) -> Vec<MetricFamily> {
    let metric = server::INCIDENTS;
    let open = GaugeVec::new(
        Opts::new(metric.name, metric.help),
        &["family", "acknowledged"],
    )
    .expect("the catalog's names are valid");
    for incident in incidents.open(&Grant::default()) {
        let told = incident.acknowledged_by.is_some().to_string();
        open.with_label_values(&[incident.family.name(), &told])
            .inc();
    }
    let mut families = open.collect();
    let left_out = [("", incidents.left_out() as f64)];
    families.extend(counters(&server::INCIDENTS_LEFT_OUT, "", left_out));
    if let Some(last) = incidents.health.last() {
        let took = incidents.health.duration_us.load(Ordering::Relaxed) as f64 / 1e6;
        let gpus = incidents.health.gpus.load(Ordering::Relaxed) as f64;
        families.extend(gauges(
            &server::DETECT_LAST,
            "",
            [("", last.millis() as f64 / 1e3)],
        ));
        families.extend(gauges(&server::DETECT_DURATION, "", [("", took)]));
        families.extend(gauges(&server::DETECT_GPUS, "", [("", gpus)]));
    }
    families
}

/// How every channel goes, and the heartbeat.
fn notifications(incidents: &Incidents, at: Timestamp) -> Vec<MetricFamily> {
    let metric = server::NOTIFICATIONS;
    let attempts = CounterVec::new(Opts::new(metric.name, metric.help), &["channel", "outcome"])
        .expect("the catalog's names are valid");
    let channels = incidents.channels(at);
    for it in &channels {
        for (outcome, count) in [
            ("delivered", it.lane.delivered),
            ("retried", it.lane.retried),
            ("refused", it.lane.refused),
        ] {
            let labels = [&*it.way.name, outcome];
            attempts.with_label_values(&labels).inc_by(count as f64);
        }
    }
    let of = |of: fn(&Channel, Timestamp) -> Option<f64>| {
        let one = move |it: &'_ Channel| Some((it.way.name.to_string(), of(it, at)?));
        channels.iter().filter_map(one).collect::<Vec<_>>()
    };
    let seconds = |at: Timestamp| at.0 as f64 / 1e9;
    let mut families = attempts.collect();
    let all: [(&Metric, Vec<(String, f64)>); 6] = [
        (&server::NOTIFY_WAITING, of(|it, _| Some(it.waiting as f64))),
        (
            &server::NOTIFY_OLDEST,
            of(|it, at| {
                Some(
                    it.waits_since
                        .map_or(0.0, |since| at.since(since) as f64 / 1e9),
                )
            }),
        ),
        (
            &server::NOTIFY_LAST_SUCCESS,
            of(|it, _| it.lane.succeeded_at.map(|at| at.0 as f64 / 1e9)),
        ),
        (
            &server::NOTIFY_FAILURES,
            of(|it, _| Some(f64::from(it.lane.failures))),
        ),
        (&server::NOTIFY_REFUSED, of(|it, _| Some(it.refused as f64))),
        (
            &server::NOTIFY_DELAY,
            of(|it, _| it.lane.delay.map(|it| it.as_secs_f64())),
        ),
    ];
    for (metric, values) in &all {
        let values = values.iter().map(|(name, value)| (name.as_str(), *value));
        families.extend(gauges(metric, "channel", values));
    }
    let folded = channels
        .iter()
        .map(|it| (&*it.way.name, it.lane.folded as f64));
    families.extend(counters(&server::NOTIFY_FOLDED, "channel", folded));
    if incidents.heartbeat.is_wanted.load(Ordering::Relaxed) {
        let sent = incidents.heartbeat.sent_ms.load(Ordering::Relaxed);
        let sent = seconds(Timestamp::from_millis(sent));
        families.extend(gauges(&server::NOTIFY_HEARTBEAT, "", [("", sent)]));
    }
    families
}

/// Memory and CPU, under our names too, so that one dashboard serves agent and server.
fn process() -> Vec<MetricFamily> {
    let families = prometheus::gather();
    let known: HashMap<&str, f64> = families
        .iter()
        .filter_map(|family| {
            let metric = family.get_metric().first()?;
            let value = metric.get_gauge().get_value() + metric.get_counter().get_value();
            Some((family.name(), value))
        })
        .collect();
    let mut ours = Vec::new();
    if let Some(bytes) = known.get("process_resident_memory_bytes") {
        ours.extend(gauges(&server::MEMORY, "", [("", *bytes)]));
    }
    if let Some(seconds) = known.get("process_cpu_seconds_total") {
        ours.extend(counters(&server::CPU, "", [("", *seconds)]));
    }
    ours.extend(families);
    ours
}

/// One gauge by one label; without a label when its name is empty.
fn gauges<'a>(
    metric: &Metric,
    label: &str,
    values: impl IntoIterator<Item = (&'a str, f64)>,
) -> Vec<MetricFamily> {
    let labels: &[&str] = if label.is_empty() { &[] } else { &[label] };
    let gauges = GaugeVec::new(Opts::new(metric.name, metric.help), labels)
        .expect("the catalog's names are valid");
    for (name, value) in values {
        let names: &[&str] = if label.is_empty() { &[] } else { &[name] };
        gauges.with_label_values(names).set(value);
    }
    gauges.collect()
}

/// The same for a counter whose total is kept elsewhere.
fn counters<'a>(
    metric: &Metric,
    label: &str,
    values: impl IntoIterator<Item = (&'a str, f64)>,
) -> Vec<MetricFamily> {
    let labels: &[&str] = if label.is_empty() { &[] } else { &[label] };
    let counters = CounterVec::new(Opts::new(metric.name, metric.help), labels)
        .expect("the catalog's names are valid");
    for (name, value) in values {
        let names: &[&str] = if label.is_empty() { &[] } else { &[name] };
        counters.with_label_values(names).inc_by(value);
    }
    counters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_silent_by_its_own_tick_and_not_by_the_usual_one() {
        let now = Timestamp::from_seconds(1_000);
        for (tick, ago, expected) in [
            (0, 29, false),
            (0, 31, true),
            (60, 179, false),
            (60, 181, true),
        ] {
            let agent = LiveAgent {
                agent: gpufleet_telemetry::identity::AgentId(uuid::Uuid::nil()),
                cluster: "c".into(),
                node: "n".into(),
                version: "".into(),
                heard: Timestamp::from_seconds(1_000 - ago),
                clock_offset_nanos: 0,
                interval: Duration::from_secs(tick),
                lag: Duration::ZERO,
                backfilling: false,
            };
            assert_eq!(is_silent(&agent, now), expected, "{tick} s, {ago} s ago");
        }
    }

    #[test]
    fn commits_are_told_and_nothing_of_the_last_one_before_there_was_one() {
        let health = CommitHealth::default();
        let names = |health: &CommitHealth| -> Vec<String> {
            let families = commits(health);
            families.iter().map(|it| it.name().to_owned()).collect()
        };
        let always = [
            server::COMMITS.name,
            server::ROWS_LEFT_OUT.name,
            server::STEPS_LEFT_OUT.name,
        ];
        assert_eq!(names(&health), always);
        health.commits.store(2, Ordering::Relaxed);
        health.last_duration_us.store(1_500_000, Ordering::Relaxed);
        let families = commits(&health);
        let took = families
            .iter()
            .find(|it| it.name() == server::COMMIT_DURATION.name)
            .expect("a commit is done");
        assert_eq!(took.get_metric()[0].get_gauge().get_value(), 1.5);
        assert_eq!(names(&health).len(), 6);
    }
}
