//! What a program says of itself: a log on standard error, and traces where they are asked for.

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracer;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::traces::{TraceConfig, Traces};

/// The variable with what is logged: `info`, `debug`, `warn,gpufleet_agent=debug`.
pub const VARIABLE: &str = "GPUFLEET_LOG";

/// Why the log did not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The variable cannot be used.
    #[error("{VARIABLE}: `{0}` is not like `info` or `warn,gpufleet_agent=debug`")]
    Filter(String),
    /// What is said of the spans that are sent cannot be used.
    #[error("trace.filter: `{0}` is not like `gpufleet=debug`")]
    Spans(String),
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

/// Which spans are sent, and who makes them.
type Spans = (Targets, OpenTelemetryLayer<Registry, SdkTracer>);

/// Starts the log and, where an endpoint is given, the traces of `program`. Needs a runtime.
///
/// # Errors
/// When the variable or the endpoint cannot be used, or a log has been started already.
pub fn start(program: &'static str, config: &TraceConfig) -> Result<Traces, LogError> {
    let filter = filter()?;
    let targets = config.targets()?;
    let provider = targets.as_ref().map(|_| config.provider(program));
    let provider = provider.transpose()?;
    let tracer = provider.as_ref().map(|it| it.tracer(program));
    let spans = tracer.map(|it| tracing_opentelemetry::layer().with_tracer(it));
    tracing_subscriber::registry()
        .with(layers(filter, std::io::stderr, targets.zip(spans)))
        .try_init()?;
    Ok(Traces(provider))
}

/// The log and the traces, each with a filter of its own.
pub(crate) fn layers<W>(
    filter: Targets,
    writer: W,
    spans: Option<Spans>,
) -> Vec<Box<dyn Layer<Registry> + Send + Sync>>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false);
    let mut layers = vec![lines.with_filter(filter).boxed()];
    layers.extend(spans.map(|(targets, layer)| layer.with_filter(targets).boxed()));
    layers
}

/// Whether log and traces could start.
///
/// # Errors
/// As [`start`].
pub fn rehearse(config: &TraceConfig) -> Result<(), LogError> {
    filter()?;
    config.targets().map(|_| ())
}

fn filter() -> Result<Targets, LogError> {
    let filter = std::env::var(VARIABLE).unwrap_or_else(|_| "info".to_owned());
    filter.parse().map_err(|_error| LogError::Filter(filter))
}
