//! What the agent answers over HTTP on its node: /metrics, /healthz, /readyz.
//!
//! /healthz says 200 only while the sampling loop ticks and every reader that fails says why; a
//! restart would not mend the rest: a full disk, a server that is away. /readyz says 200 once a reader
//! works, while the spool takes what is read and the server acknowledges it. Both are open, because
//! the kubelet has no token, and name readers, reasons and files, never a secret. /metrics wants the token
//! where one is set.
//!
//! What is told is judged in [`health`]. Limits: [`MAX_CONCURRENT_REQUESTS`], [`MAX_CONNECTIONS`]; a
//! request's body is never read.

mod health;

use std::io::ErrorKind;
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
use gpufleet_program::listen::{self, Listener, Tls};
use gpufleet_program::section;
use gpufleet_program::tls::{ServerFiles, Setting};
use gpufleet_program::token::{self, TokenFile};
use gpufleet_telemetry::time::{Clock, Timestamp};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::health::Health;
use crate::config::Config;
use crate::prometheus::{self, PrometheusConfig};
use crate::sample::LatestCell;
use crate::sample::own::ShipHealth;

/// Most requests in work at once; one answer is about 300 KB and costs about a millisecond. Two
/// Prometheus servers and a person need three.
pub const MAX_CONCURRENT_REQUESTS: usize = 8;

/// Most connections at once: Prometheus servers, the kubelet and people keep one each.
pub const MAX_CONNECTIONS: usize = 64;

section! {
    /// Where the agent listens.
    pub struct ListenConfig {
        /// Address and port of /metrics, /healthz and /readyz. Beyond loopback it needs TLS and a token,
        /// or `allow_insecure`.
        pub address: String = "127.0.0.1:9410".to_owned(),
        /// Whether it may listen beyond loopback without TLS and token.
        pub allow_insecure: bool = false,
        /// A file with the token that a scraper must show for /metrics; empty means none. This and the
        /// files below are read again when they change; one that cannot be used leaves the one before.
        pub token_file: PathBuf = PathBuf::new(),
        /// PEM file with the listener's certificate chain; empty means no TLS.
        pub certificate_file: PathBuf = PathBuf::new(),
        /// PEM file with the key of that certificate.
        pub key_file: PathBuf = PathBuf::new(),
        /// PEM file with the authorities of client certificates; set, every client must show one, the
        /// kubelet's probes included.
        pub client_ca_file: PathBuf = PathBuf::new(),
    }
}

impl ListenConfig {
    /// The address, if the agent may listen there.
    ///
    /// # Errors
    /// When it is no address, or beyond loopback without TLS and token and without `allow_insecure`.
    pub fn checked_address(&self) -> anyhow::Result<SocketAddr> {
        let address: SocketAddr = self.address.parse().with_context(|| {
            format!(
                "listen.address: `{}` is no address with a port, like 127.0.0.1:9410",
                self.address
            )
        })?;
        let has_tls = self.tls_files().certificate.is_set();
        let asks = !self.token_file.as_os_str().is_empty();
        let is_safe = address.ip().is_loopback() || has_tls && asks;
        if !is_safe && !self.allow_insecure {
            anyhow::bail!(
                "listen.address: {address} can be reached from other machines, without TLS and token. Listen on 127.0.0.1, \
                 or set listen.certificate_file, listen.key_file and listen.token_file, or listen.allow_insecure = true if the network is trusted"
            );
        }
        Ok(address)
    }

    /// Reads the files, and sees that the address can be listened on where it is not listened on
    /// already: by the agent that asks, which listens on `running`, or by one that must not be disturbed.
    ///
    /// # Errors
    /// Names the key or the file.
    pub fn rehearse(&self, running: Option<&str>) -> anyhow::Result<()> {
        self.guards()?;
        let address = self.checked_address()?;
        if running == Some(self.address.as_str()) {
            return Ok(());
        }
        match std::net::TcpListener::bind(address) {
            Err(error) if error.kind() != ErrorKind::AddrInUse || running.is_some() => {
                Err(error).with_context(|| format!("listen.address: cannot listen on {address}"))
            }
            _ => Ok(()),
        }
    }

    /// Who may come in: the TLS and the token, each read again when its files change.
    fn guards(&self) -> anyhow::Result<(Tls, TokenFile)> {
        let tls = self.tls_files().reloaded("the listener's TLS");
        let tls = tls.map_err(anyhow::Error::from_boxed)?;
        let token = token::file("listen.token_file", &self.token_file);
        Ok((tls, token.map_err(anyhow::Error::from_boxed)?))
    }

    fn tls_files(&self) -> ServerFiles {
        ServerFiles {
            certificate: Setting::new("listen.certificate_file", &self.certificate_file),
            key: Setting::new("listen.key_file", &self.key_file),
            client_authorities: Setting::new("listen.client_ca_file", &self.client_ca_file),
        }
    }
}

/// What the agent tells of itself.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// What was read last.
    pub latest: Arc<LatestCell>,
    /// How shipping is doing; none where nothing is sent.
    pub shipping: Option<ShipHealth>,
}

/// What the handlers share.
struct Shared {
    shown: Shown,
    clock: Arc<dyn Clock>,
    prometheus: PrometheusConfig,
    token: TokenFile,
    period: Duration,
    started: Timestamp,
    places: Semaphore,
}

/// Serves until `stop` is cancelled.
///
/// # Errors
/// When the address cannot be listened on or may not be, or the token cannot be read.
pub async fn serve(
    config: &Config,
    shown: Shown,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let address = config.listen.checked_address()?;
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.with_context(|| {
        format!("listen.address: cannot listen on {address}; is another agent running?")
    })?;
    serve_on(listener, config, shown, clock, stop).await
}

/// The same on a listener that is there already.
///
/// # Errors
/// When the token cannot be read.
pub async fn serve_on(
    listener: tokio::net::TcpListener,
    config: &Config,
    shown: Shown,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (tls, token) = config.listen.guards()?;
    let router = router(config, token, shown, clock);
    let listener = Listener::new(listener, tls, MAX_CONNECTIONS)?;
    listen::serve(listener, router, stop.cancelled_owned())
        .await
        .context("the listener broke off")
}

/// The routes.
fn router(config: &Config, token: TokenFile, shown: Shown, clock: Arc<dyn Clock>) -> Router {
    let period = Duration::from_millis(config.sample.period_ms);
    let shared = Arc::new(Shared {
        shown,
        started: clock.now(),
        clock,
        prometheus: config.prometheus.clone(),
        token,
        period,
        places: Semaphore::new(MAX_CONCURRENT_REQUESTS),
    });
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route(
            "/",
            get(|| async { "gpufleet-agent: /metrics /healthz /readyz\n" }),
        )
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), limit))
        .with_state(shared)
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
        && !shown.is_some_and(|it| token::equals(secret.get().as_bytes(), it))
    {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "a token is wanted\n").into_response();
    }
    let text = prometheus::encode(&shared.shown.latest.get(), &shared.prometheus);
    ([(header::CONTENT_TYPE, prometheus::CONTENT_TYPE)], text).into_response()
}

async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    let (healthy, health) = shared.health();
    answer(healthy, &health)
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    let (_, health) = shared.health();
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

impl Shared {
    fn health(&self) -> (bool, Health) {
        let now = self.clock.now();
        let shipping = self.shown.shipping.as_ref();
        let sending = shipping.map(|it| health::sending(&it.get(), self.started, now));
        health::judge(&self.shown.latest.get(), sending, now, self.period)
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
