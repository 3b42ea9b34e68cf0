//! A receiver of OTLP over gRPC that keeps what it is sent, as a Collector in the agent's way would
//! see it. It answers success and nothing else: no durable seq, no commands.

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
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        runtime.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(metrics)
                .add_service(logs)
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
