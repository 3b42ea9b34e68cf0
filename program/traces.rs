//! Spans of the program itself, sent by OTLP to where the configuration says, and the way they go on in
//! the program that is asked.
//!
//! Spans are at level `debug`: without an address nothing asks for them and each costs one comparison.
//! What is sent has a filter of its own, so that neither the log grows nor what sending does makes spans.
//! The exporter keeps at most 2,048 spans that wait and leaves out what comes beyond.

use std::collections::HashMap;

use opentelemetry::KeyValue;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;

use crate::log::LogError;
use crate::section;

section! {
    /// Where the program's own traces go.
    pub struct TraceConfig {
        /// An OTLP/gRPC address for spans of the program itself; empty means none. For finding out
        /// why it is slow, not for running.
        pub endpoint: String = String::new(),
        /// Which spans are sent: `gpufleet=debug` is all of the program's own, `gpufleet_agent::ship=debug`
        /// those of one part.
        pub filter: String = "gpufleet=debug".to_owned(),
    }
}

/// The header that says in which span a request was made (W3C Trace Context).
pub const HEADER: &str = "traceparent";

impl TraceConfig {
    /// Which spans are sent; none without an address.
    pub(crate) fn targets(&self) -> Result<Option<Targets>, LogError> {
        let refused = |_| LogError::Spans(self.filter.clone());
        let targets: Targets = self.filter.parse().map_err(refused)?;
        if self.endpoint.is_empty() {
            return Ok(None);
        }
        let uri = self.endpoint.parse::<http::Uri>();
        let is_address = uri.is_ok_and(|it| it.authority().is_some() && it.scheme().is_some());
        match is_address {
            true => Ok(Some(targets)),
            false => Err(LogError::Address(self.endpoint.clone())),
        }
    }

    /// Who sends the spans of `program`. Needs a runtime.
    pub(crate) fn provider(&self, program: &'static str) -> Result<SdkTracerProvider, LogError> {
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&self.endpoint)
            .build()
            .map_err(|source| LogError::Endpoint {
                endpoint: self.endpoint.clone(),
                source,
            })?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder()
            .with_service_name(program)
            .with_attribute(version);
        Ok(SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build())
    }
}

/// The value of [`HEADER`] for a request that is made in the present span; none while nobody traces.
pub fn here() -> Option<String> {
    let span = Span::current();
    if span.is_none() {
        return None;
    }
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut headers);
    headers.remove(HEADER)
}

/// Makes a span that was not entered yet part of the one in which its request was made, as the value of
/// [`HEADER`] says it. One that cannot be read says nothing.
pub fn follow(span: &Span, header: Option<&str>) {
    let Some(header) = header.filter(|_| !span.is_none()) else {
        return;
    };
    let headers = HashMap::from([(HEADER.to_owned(), header.to_owned())]);
    // Nothing to follow where nobody sends spans.
    let _nobody_traces = span.set_parent(TraceContextPropagator::new().extract(&headers));
}

/// Traces under way.
#[derive(Debug)]
pub struct Traces(pub(crate) Option<SdkTracerProvider>);

impl Traces {
    /// Sends what is left, while the runtime goes on: it carries the connection.
    pub async fn finish(self) {
        let Some(provider) = self.0 else { return };
        let sent = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        let sent = sent.expect("the provider does not panic and is not cancelled");
        if let Err(error) = sent {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SpanData, SpanExporter};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Names of spans, and whether their parent is of another program.
    #[derive(Debug, Clone, Default)]
    struct Kept(Arc<Mutex<Vec<(String, bool)>>>);

    impl SpanExporter for Kept {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            let spans = batch.into_iter();
            let spans = spans.map(|it| (it.name.into_owned(), it.parent_span_is_remote));
            self.0.lock().expect("no panic").extend(spans);
            Ok(())
        }
    }

    /// Runs `work` under a log at `info`, and spans as the configuration has them; the spans' names.
    fn traced(config: &TraceConfig, work: impl FnOnce()) -> Vec<(String, bool)> {
        let exporter = Kept::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let spans = config.targets().expect("a filter").map(|targets| {
            let tracer = provider.tracer("test");
            (targets, tracing_opentelemetry::layer().with_tracer(tracer))
        });
        let log = "info".parse().expect("a filter");
        let layers = crate::log::layers(log, std::io::sink, spans);
        let subscriber = tracing_subscriber::registry().with(layers);
        tracing::subscriber::with_default(subscriber, work);
        let mut spans = exporter.0.lock().expect("no panic").clone();
        spans.sort();
        spans
    }

    fn to(endpoint: &str) -> TraceConfig {
        TraceConfig {
            endpoint: endpoint.to_owned(),
            ..TraceConfig::default()
        }
    }

    #[test]
    fn the_programs_own_spans_are_sent_and_those_of_what_sends_them_are_not() {
        let work = || {
            tracing::debug_span!(target: "gpufleet_agent::ship", "ours").in_scope(|| {
                tracing::debug_span!(target: "h2::codec", "of another crate").in_scope(|| {});
            });
        };
        let sent = traced(&to("http://127.0.0.1:4317"), work);
        assert_eq!(sent, [("ours".to_owned(), false)]);
    }

    #[test]
    fn without_an_address_nothing_asks_for_spans() {
        let mut is_asked_for = true;
        let sent = traced(&to(""), || {
            is_asked_for = tracing::enabled!(target: "gpufleet_agent", tracing::Level::DEBUG);
            assert!(tracing::debug_span!(target: "gpufleet_agent", "x").is_disabled());
            assert_eq!(here(), None);
        });
        assert!(!is_asked_for && sent.is_empty());
    }

    #[test]
    fn a_span_follows_the_one_of_the_program_that_asks() {
        let sent = traced(&to("http://127.0.0.1:4317"), || {
            let asks = tracing::debug_span!(target: "gpufleet_agent", "asks");
            let header = asks.in_scope(here).expect("a span is under way");
            for told in [Some(header.as_str()), Some("spoilt"), None] {
                let asked = tracing::debug_span!(target: "gpufleet_server", "asked");
                follow(&asked, told);
                asked.in_scope(|| {});
            }
        });
        let remote = sent
            .iter()
            .filter(|(name, is_remote)| name == "asked" && *is_remote);
        assert_eq!((remote.count(), sent.len()), (1, 4), "{sent:?}");
    }

    #[test]
    fn an_address_or_a_filter_that_is_none_is_refused_by_its_key() {
        let filter = TraceConfig {
            filter: "gpufleet=loud".to_owned(),
            ..TraceConfig::default()
        };
        for (config, key) in [(to("nonsense"), "trace.endpoint"), (filter, "trace.filter")] {
            let error = config.targets().expect_err("refused").to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
