//! What the agent says of itself: a log on standard error, and traces where they are asked for.

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable with what is logged: `info`, `debug`, `warn,gpufleet_agent=debug`.
const VARIABLE: &str = "GPUFLEET_LOG";

/// Where the agent's own traces go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceConfig {
    /// An OTLP/gRPC address for spans of the agent itself; empty means none. For finding out why
    /// the agent is slow, not for running.
    pub endpoint: String,
}

/// Traces under way.
#[derive(Debug)]
pub struct Traces(Option<SdkTracerProvider>);

/// Starts the log and, where an endpoint is given, the traces. Needs a runtime.
///
/// # Errors
/// When the variable or the endpoint cannot be used, or a log has been started already.
pub fn start(config: &TraceConfig) -> anyhow::Result<Traces> {
    let filter = std::env::var(VARIABLE).unwrap_or_else(|_| "info".to_owned());
    let filter: Targets = filter.parse().with_context(|| {
        format!("{VARIABLE}: `{filter}` is not like `info` or `warn,gpufleet_agent=debug`")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let provider = if config.endpoint.is_empty() {
        None
    } else {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&config.endpoint)
            .build()
            .with_context(|| format!("trace.endpoint: `{}` cannot be used", config.endpoint))?;
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        Some(provider.build())
    };
    let spans = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer().with_tracer(provider.tracer("gpufleet-agent"))
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .with(spans)
        .try_init()
        .context("the log has been started already")?;
    Ok(Traces(provider))
}

impl Traces {
    /// Sends what is left.
    pub fn finish(self) {
        if let Some(Err(error)) = self.0.map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}
