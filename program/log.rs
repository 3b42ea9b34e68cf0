//! What a program says of itself: a log on standard error, and traces where they are asked for.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::section;

/// The variable with what is logged: `info`, `debug`, `warn,gpufleet_agent=debug`.
pub const VARIABLE: &str = "GPUFLEET_LOG";

section! {
    /// Where the program's own traces go.
    pub struct TraceConfig {
        /// An OTLP/gRPC address for spans of the program itself; empty means none. For finding out
        /// why it is slow, not for running.
        pub endpoint: String = String::new(),
    }
}

/// Why the log did not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The variable cannot be used.
    #[error("{VARIABLE}: `{0}` is not like `info` or `warn,gpufleet_agent=debug`")]
    Filter(String),
    /// The address for traces is none.
    #[error("trace.endpoint: `{0}` is no address like http://host:4317")]
    Address(String),
    /// The address for traces cannot be used.
    #[error("trace.endpoint: `{endpoint}` cannot be used")]
    Endpoint {
        /// The address.
        endpoint: String,
        /// Why.
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// There is one log in a process.
    #[error("the log has been started already")]
    Started(#[from] tracing_subscriber::util::TryInitError),
}

/// Traces under way.
#[derive(Debug)]
pub struct Traces(Option<SdkTracerProvider>);

/// Starts the log and, where an endpoint is given, the traces of `program`. Needs a runtime.
///
/// # Errors
/// When the variable or the endpoint cannot be used, or a log has been started already.
pub fn start(program: &'static str, config: &TraceConfig) -> Result<Traces, LogError> {
    let filter = filter()?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    rehearse(config)?;
    let provider = if config.endpoint.is_empty() {
        None
    } else {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&config.endpoint)
            .build()
            .map_err(|source| LogError::Endpoint {
                endpoint: config.endpoint.clone(),
                source,
            })?;
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        Some(provider.build())
    };
    let spans = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer(program)));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .with(spans)
        .try_init()?;
    Ok(Traces(provider))
}

/// Whether log and traces could start.
///
/// # Errors
/// As [`start`].
pub fn rehearse(config: &TraceConfig) -> Result<(), LogError> {
    filter()?;
    let endpoint = &config.endpoint;
    let uri = endpoint.parse::<http::Uri>();
    let is_address = uri.is_ok_and(|it| it.authority().is_some() && it.scheme().is_some());
    if !endpoint.is_empty() && !is_address {
        return Err(LogError::Address(endpoint.clone()));
    }
    Ok(())
}

fn filter() -> Result<Targets, LogError> {
    let filter = std::env::var(VARIABLE).unwrap_or_else(|_| "info".to_owned());
    filter.parse().map_err(|_error| LogError::Filter(filter))
}

impl Traces {
    /// Sends what is left.
    pub fn finish(self) {
        if let Some(Err(error)) = self.0.map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}
