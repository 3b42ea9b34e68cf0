//! Where faults are taken: `POST /fault/NAME`, answered with one sentence that says what broke. And where
//! Prometheus finds what the agents would serve: `GET /metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use gpufleet_agent::prometheus;
use gpufleet_telemetry::time::Clock;
use gpufleet_tests::simulator::faults::{Fault, Faults};
use gpufleet_tests::simulator::served::Served;

/// What a request needs.
#[derive(Clone)]
pub(crate) struct Control {
    pub(crate) faults: Arc<Faults>,
    pub(crate) gpu_ids: Arc<Vec<Vec<String>>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) served: Arc<Served>,
}

/// Listens until the process ends.
pub(crate) async fn serve(address: SocketAddr, control: Control) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} for faults"))?;
    let router = Router::new()
        .route("/fault/{name}", post(inject))
        .route("/metrics", get(metrics))
        .with_state(control);
    axum::serve(listener, router)
        .await
        .context("the listener for faults failed")
}

async fn inject(Path(name): Path<String>, State(control): State<Control>) -> (StatusCode, String) {
    match Fault::parse(&name) {
        Some(fault) => {
            let said = control
                .faults
                .inject(fault, &control.gpu_ids, control.clock.now());
            tracing::info!(fault = fault.name(), "{said}");
            (StatusCode::OK, said)
        }
        None => {
            let known: Vec<_> = Fault::ALL.iter().map(|fault| fault.name()).collect();
            let said = format!("no fault is called {name}; there are: {}", known.join(", "));
            (StatusCode::NOT_FOUND, said)
        }
    }
}

async fn metrics(State(control): State<Control>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, prometheus::CONTENT_TYPE)],
        control.served.text(),
    )
}
