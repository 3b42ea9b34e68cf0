//! A receiver of OTLP over gRPC that keeps what it is sent, as a Collector in the agent's way would
//! see it. It answers success and nothing else: no durable seq, no commands. Spans that are none by the
//! specification it refuses, and says so to the test.

use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use crate::harness::free_port;

/// A running receiver; it stops when it is dropped.
#[derive(Debug)]
pub struct Receiver {
    port: u16,
    kept: Kept,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Debug, Clone, Default)]
struct Kept {
    metrics: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
    logs: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    /// Starts one on a free port of loopback.
    ///
    /// # Panics
    /// When the port was taken meanwhile.
    pub fn start() -> Self {
        let port = free_port();
        let kept = Kept::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a test may start a thread");
        let metrics = MetricsServiceServer::new(kept.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        let logs = LogsServiceServer::new(kept.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        let traces =
            TraceServiceServer::new(kept.clone()).accept_compressed(CompressionEncoding::Gzip);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        runtime.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(metrics)
                .add_service(logs)
                .add_service(traces)
                .serve(address)
                .await
                .expect("the port is free and the runtime lives as long as the receiver");
        });
        Self {
            port,
            kept,
            _runtime: runtime,
        }
    }

    /// Where to ship to.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Every metrics request so far.
    pub fn metrics(&self) -> Vec<ExportMetricsServiceRequest> {
        self.kept
            .metrics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Every span so far, with the name of the service whose it is.
    ///
    /// # Panics
    /// When something was sent that is no span.
    pub fn spans(&self) -> Vec<(String, Span)> {
        let refused = self.kept.refused.lock();
        let refused = refused.unwrap_or_else(PoisonError::into_inner).clone();
        assert!(refused.is_empty(), "no spans: {refused:?}");
        let spans = self.kept.spans.lock();
        spans.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every logs request so far.
    pub fn logs(&self) -> Vec<ExportLogsServiceRequest> {
        self.kept
            .logs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[tonic::async_trait]
impl MetricsService for Kept {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.metrics
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Kept {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.logs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request.into_inner());
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_resource in request.into_inner().resource_spans {
            match spans(of_resource) {
                Ok(found) => {
                    let kept = self.spans.lock();
                    kept.unwrap_or_else(PoisonError::into_inner).extend(found);
                }
                Err(why) => {
                    let refused = self.refused.lock();
                    let mut refused = refused.unwrap_or_else(PoisonError::into_inner);
                    refused.push(why.clone());
                    return Err(Status::invalid_argument(why));
                }
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// The spans of a resource with its name, held against what the specification asks of both.
fn spans(of_resource: ResourceSpans) -> Result<Vec<(String, Span)>, String> {
    let attributes = of_resource.resource.unwrap_or_default().attributes;
    let service = attributes.into_iter().find(|it| it.key == "service.name");
    let service = service.and_then(|it| it.value?.value);
    let Some(Value::StringValue(service)) = service else {
        return Err("a resource without service.name".to_owned());
    };
    let mut found = Vec::new();
    for span in of_resource.scope_spans.into_iter().flat_map(|it| it.spans) {
        let is_id = |id: &[u8], bytes: usize| id.len() == bytes && id.iter().any(|it| *it != 0);
        let has_parent = !span.parent_span_id.is_empty();
        let wrong = [
            (!is_id(&span.trace_id, 16), "trace_id is no id"),
            (!is_id(&span.span_id, 8), "span_id is no id"),
            (
                has_parent && !is_id(&span.parent_span_id, 8),
                "parent_span_id is no id",
            ),
            (span.name.is_empty(), "no name"),
            (span.start_time_unix_nano == 0, "no start"),
            (
                span.end_time_unix_nano < span.start_time_unix_nano,
                "ends before it begins",
            ),
        ];
        if let Some((_, why)) = wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
            return Err(format!("{service}: {why}: {span:?}"));
        }
        found.push((service.clone(), span));
    }
    Ok(found)
}
