//! What the agent answers over HTTP on its node: /metrics, /healthz, /readyz.
//!
//! /healthz says 200 only while the sampling loop ticks and every reader that fails says why; a
//! restart would not mend the rest. /readyz says 200 once a reader works. Both are open, because
//! the kubelet has no token, and name readers and reasons, nothing else. /metrics wants the token
//! where one is set.
//!
//! Limits: [`MAX_CONCURRENT_REQUESTS`]; a request's body is never read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use gpufleet_program::{section, token};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::{Clock, NANOS_PER_SECOND, Timestamp};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::prometheus::{self, PrometheusConfig};
use crate::sample::{Latest, LatestCell, nanos};

/// Most requests in work at once; one answer is about 300 KB and costs about a millisecond. Two
/// Prometheus servers and a person need three.
pub const MAX_CONCURRENT_REQUESTS: usize = 8;

/// How many sampling periods may pass without a sample before the loop counts as stalled.
const STALLED_AFTER_PERIODS: u32 = 5;

/// But never less than this: a machine under load skips seconds.
const STALLED_AFTER_AT_LEAST: Duration = Duration::from_secs(10);

section! {
    /// Where the agent listens.
    pub struct ListenConfig {
        /// Address and port of /metrics, /healthz and /readyz. The agent speaks plain HTTP, so beyond
        /// loopback it needs `allow_insecure`.
        pub address: String = "127.0.0.1:9410".to_owned(),
        /// Whether it may listen beyond loopback without TLS.
        pub allow_insecure: bool = false,
        /// A file with the token that a scraper must show for /metrics; empty means none.
        pub token_file: PathBuf = PathBuf::new(),
    }
}

impl ListenConfig {
    /// The address, if the agent may listen there.
    ///
    /// # Errors
    /// When it is no address, or beyond loopback without `allow_insecure`.
    pub fn checked_address(&self) -> anyhow::Result<SocketAddr> {
        let address: SocketAddr = self.address.parse().with_context(|| {
            format!(
                "listen.address: `{}` is no address with a port, like 127.0.0.1:9410",
                self.address
            )
        })?;
        if !address.ip().is_loopback() && !self.allow_insecure {
            anyhow::bail!(
                "listen.address: {address} can be reached from other machines, and the agent speaks plain HTTP. \
                 Listen on 127.0.0.1, or set listen.allow_insecure = true (and listen.token_file) if the network is trusted"
            );
        }
        Ok(address)
    }

    fn token(&self) -> anyhow::Result<Option<String>> {
        if self.token_file.as_os_str().is_empty() {
            return Ok(None);
        }
        let path = self.token_file.display();
        let text = std::fs::read_to_string(&self.token_file)
            .with_context(|| format!("listen.token_file: cannot read {path}"))?;
        let token = text.trim();
        if token.is_empty() {
            anyhow::bail!("listen.token_file: {path} is empty");
        }
        Ok(Some(token.to_owned()))
    }
}

/// What the handlers share.
struct Shared {
    latest: Arc<LatestCell>,
    clock: Arc<dyn Clock>,
    prometheus: PrometheusConfig,
    token: Option<String>,
    period: Duration,
    places: Semaphore,
}

/// How the agent is doing, as /healthz tells it.
#[derive(Debug, PartialEq, Serialize)]
struct Health {
    /// `ok`, `no_reader_works`, `starting` or `stalled`.
    status: &'static str,
    /// Seconds since the newest sample; none before the first.
    sample_age_seconds: Option<f64>,
    readers: Vec<Reader>,
    /// GPUs that answer nothing or not as they should: a hang, a loss, a wanted reset.
    troubled: Vec<Troubled>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Troubled {
    id: String,
    /// `driver_hang`, `gpu_lost`, `reset_required`, …
    reason: &'static str,
    /// How many of its readings are missing for that reason.
    readings: usize,
}

#[derive(Debug, PartialEq, Serialize)]
struct Reader {
    name: String,
    /// Whether its last round succeeded; none before its first.
    success: Option<bool>,
    error: Option<String>,
    /// Unix seconds; none while it never has.
    last_success_seconds: Option<f64>,
    duration_seconds: f64,
    failures: u64,
}

/// Serves until `stop` is cancelled.
///
/// # Errors
/// When the address cannot be listened on or may not be, or the token cannot be read.
pub async fn serve(
    config: &Config,
    latest: Arc<LatestCell>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let address = config.listen.checked_address()?;
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.with_context(|| {
        format!("listen.address: cannot listen on {address}; is another agent running?")
    })?;
    serve_on(listener, config, latest, clock, stop).await
}

/// The same on a listener that is there already.
///
/// # Errors
/// When the token cannot be read.
pub async fn serve_on(
    listener: tokio::net::TcpListener,
    config: &Config,
    latest: Arc<LatestCell>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let router = router(config, latest, clock)?;
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
        .context("the listener broke off")
}

/// The routes.
///
/// # Errors
/// When the token cannot be read.
pub fn router(
    config: &Config,
    latest: Arc<LatestCell>,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Router> {
    let period = Duration::from_millis(config.sample.period_ms);
    let shared = Arc::new(Shared {
        latest,
        clock,
        prometheus: config.prometheus.clone(),
        token: config.listen.token()?,
        period,
        places: Semaphore::new(MAX_CONCURRENT_REQUESTS),
    });
    Ok(Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route(
            "/",
            get(|| async { "gpufleet-agent: /metrics /healthz /readyz\n" }),
        )
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), limit))
        .with_state(shared))
}

/// Refuses what comes when every place is taken, instead of letting it wait.
async fn limit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match shared.places.try_acquire() {
        Ok(_place) => next.run(request).await,
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests at once\n",
        )
            .into_response(),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let shown = headers.get(header::AUTHORIZATION);
    let shown = shown.and_then(|it| token::shown(it.as_bytes()));
    if let Some(secret) = &shared.token
        && !shown.is_some_and(|it| token::equals(secret.as_bytes(), it))
    {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "a token is wanted\n").into_response();
    }
    let text = prometheus::encode(&shared.latest.get(), &shared.prometheus);
    ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response()
}

async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    let latest = shared.latest.get();
    let (healthy, health) = health(&latest, shared.clock.now(), shared.period);
    answer(healthy, &health)
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let latest = shared.latest.get();
    let (_, health) = health(&latest, shared.clock.now(), shared.period);
    answer(health.status == "ok", &health)
}

fn answer(good: bool, health: &Health) -> Response {
    let status = if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, axum::Json(health)).into_response()
}

/// Whether the agent does what an agent can do here, and the whole of how it is doing.
fn health(latest: &Latest, now: Timestamp, period: Duration) -> (bool, Health) {
    let seconds = |nanos: i64| nanos as f64 / NANOS_PER_SECOND as f64;
    let started = latest.at != Timestamp::default();
    let age = now.since(latest.at);
    let stalled_after = STALLED_AFTER_AT_LEAST.max(period * STALLED_AFTER_PERIODS);
    // A sample of a time to come: the clock went back and none was taken since.
    let stalled = age > nanos(stalled_after) || age < -nanos(period);
    let works = latest.readers.iter().any(|it| it.success == Some(true));
    let explained = latest
        .readers
        .iter()
        .all(|it| it.success == Some(true) || it.error.is_some());
    let (healthy, status) = match (started, stalled) {
        (false, _) => (false, "starting"),
        (true, true) => (false, "stalled"),
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

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
