//! How the agent is doing, as /healthz and /readyz tell it.

use std::time::Duration;

use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use serde::Serialize;

use crate::sample::own::Shipping;
use crate::sample::{Latest, nanos};

/// For so long the server may have acknowledged nothing that waits for it. It commits every 20 s; the
/// longest tick is 60 s, and after a failure it is asked again within 30 s.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(180);

/// How many sampling periods may pass without a sample before the loop counts as stalled.
const STALLED_AFTER_PERIODS: u32 = 5;

/// But never less than this: a machine under load skips seconds.
const STALLED_AFTER_AT_LEAST: Duration = Duration::from_secs(10);

/// How the agent is doing, as /healthz tells it.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Health {
    /// `ok`, `degraded` (what is read gets lost or stays here), `no_reader_works`, `starting` or
    /// `stalled`.
    pub(super) status: &'static str,
    /// Seconds since the newest sample; none before the first.
    pub(super) sample_age_seconds: Option<f64>,
    pub(super) readers: Vec<Reader>,
    /// GPUs that answer nothing or not as they should: a hang, a loss, a wanted reset.
    pub(super) troubled: Vec<Troubled>,
    /// How what was read gets away; none where nothing is sent.
    pub(super) shipping: Option<Sending>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Sending {
    /// `ok`, `spool_fails` (the disk takes nothing: what is read is lost) or `not_acknowledged` (the
    /// server has taken nothing for long: what is read waits here).
    pub(super) status: &'static str,
    /// Why the spool takes nothing.
    pub(super) spool_error: Option<String>,
    /// What the newest attempt came to, while attempts fail.
    pub(super) error: Option<String>,
    /// Seconds since the server said that something is durable; none before the first.
    pub(super) acknowledged_age_seconds: Option<f64>,
    /// The age of what has waited here for longest.
    pub(super) waiting_seconds: f64,
    pub(super) waiting_bytes: u64,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Troubled {
    pub(super) id: String,
    /// `driver_hang`, `gpu_lost`, `reset_required`, …
    pub(super) reason: &'static str,
    /// How many of its readings are missing for that reason.
    pub(super) readings: usize,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Reader {
    pub(super) name: String,
    /// Whether its last round succeeded; none before its first.
    pub(super) success: Option<bool>,
    pub(super) error: Option<String>,
    /// Unix seconds; none while it never has.
    pub(super) last_success_seconds: Option<f64>,
    pub(super) duration_seconds: f64,
    pub(super) failures: u64,
}

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / NANOS_PER_SECOND as f64
}

/// How shipping is doing, in an agent that began at `started`.
pub(super) fn sending(shipping: &Shipping, started: Timestamp, now: Timestamp) -> Sending {
    let streams = &shipping.streams;
    let durable_at = streams.iter().filter_map(|it| it.durable_at).max();
    let oldest = streams.iter().filter_map(|it| it.oldest).min();
    // A backlog is old and all the same well on its way; what was made just now cannot be durable yet.
    let stuck_since = oldest.map(|oldest| oldest.max(durable_at.unwrap_or(started)));
    let is_stuck = stuck_since.is_some_and(|since| now.since(since) > nanos(ACKNOWLEDGED_WITHIN));
    Sending {
        status: match (&shipping.spool_error, is_stuck) {
            (Some(_), _) => "spool_fails",
            (None, true) => "not_acknowledged",
            (None, false) => "ok",
        },
        spool_error: shipping.spool_error.clone(),
        error: shipping.failing.clone(),
        acknowledged_age_seconds: durable_at.map(|at| seconds(now.since(at))),
        waiting_seconds: oldest.map_or(0.0, |oldest| seconds(now.since(oldest).max(0))),
        waiting_bytes: streams.iter().map(|it| it.waiting_bytes).sum(),
    }
}

/// Whether the agent does what an agent can do here, and the whole of how it is doing.
pub(super) fn judge(
    latest: &Latest,
    shipping: Option<Sending>,
    now: Timestamp,
    period: Duration,
) -> (bool, Health) {
    let started = latest.at != Timestamp::default();
    let age = now.since(latest.at);
    let stalled_after = STALLED_AFTER_AT_LEAST.max(period * STALLED_AFTER_PERIODS);
    // A sample of a time to come: the clock went back and none was taken since.
    let stalled = age > nanos(stalled_after) || age < -nanos(period);
    let works = latest.readers.iter().any(|it| it.success == Some(true));
    let ships = shipping.as_ref().is_none_or(|it| it.status == "ok");
    let explained = latest
        .readers
        .iter()
        .all(|it| it.success == Some(true) || it.error.is_some());
    let (healthy, status) = match (started, stalled) {
        (false, _) => (false, "starting"),
        (true, true) => (false, "stalled"),
        // No restart would mend a disk or a server.
        (true, false) if works && !ships => (true, "degraded"),
        (true, false) if works => (true, "ok"),
        (true, false) => (explained, "no_reader_works"),
    };
    let readers = latest.readers.iter().map(|it| Reader {
        name: it.name.to_string(),
        success: it.success,
        error: it.error.clone(),
        last_success_seconds: it.last_success.map(|at| seconds(at.0)),
        duration_seconds: it.duration.as_secs_f64(),
        failures: it.failures,
    });
    let health = Health {
        status,
        sample_age_seconds: started.then(|| seconds(age)),
        readers: readers.collect(),
        troubled: troubled(latest),
        shipping,
    };
    (healthy, health)
}

/// A reading that a card does not have is no trouble; these are.
fn troubled(latest: &Latest) -> Vec<Troubled> {
    const TROUBLES: [Missing; 6] = [
        Missing::DriverHang,
        Missing::GpuLost,
        Missing::ResetRequired,
        Missing::LibraryMismatch,
        Missing::DriverNotLoaded,
        Missing::Released,
    ];
    let mut troubled = Vec::new();
    for it in &latest.resources {
        for trouble in TROUBLES {
            let missing = it.values.iter().filter(|it| it.reading == Err(trouble));
            let readings = missing.count();
            if readings > 0 {
                troubled.push(Troubled {
                    id: it.resource.id.to_string(),
                    reason: trouble.name(),
                    readings,
                });
            }
        }
    }
    troubled
}
