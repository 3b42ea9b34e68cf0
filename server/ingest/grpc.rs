//! OTLP over gRPC.

use axum::Router;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use tonic::codec::CompressionEncoding::{Gzip, Zstd};
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Extensions, Response, Status};

use super::MAX_MESSAGE_BYTES;
use super::accept::{Accepted, Ingest, Request};
use super::guard;
use crate::auth::Grant;

pub(super) fn router(ingest: &Ingest) -> Router {
    let metrics = MetricsServiceServer::new(ingest.clone())
        .accept_compressed(Gzip)
        .accept_compressed(Zstd)
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let logs = LogsServiceServer::new(ingest.clone())
        .accept_compressed(Gzip)
        .accept_compressed(Zstd)
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let services = Routes::new(metrics).add_service(logs).into_axum_router();
    guard::guarded(services, ingest, guard::Protocol::Grpc)
}

#[tonic::async_trait]
impl MetricsService for Ingest {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let (metadata, extensions, body) = request.into_parts();
        let accepted = self
            .grpc(metadata, &extensions, Request::Metrics(body))
            .await?;
        let partial = (accepted.rejected > 0 || !accepted.message.is_empty()).then_some(
            ExportMetricsPartialSuccess {
                rejected_data_points: accepted.rejected,
                error_message: accepted.message,
            },
        );
        let body = ExportMetricsServiceResponse {
            partial_success: partial,
        };
        Ok(reply(body, accepted.headers))
    }
}

#[tonic::async_trait]
impl LogsService for Ingest {
    async fn export(
        &self,
        request: tonic::Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let (metadata, extensions, body) = request.into_parts();
        let accepted = self
            .grpc(metadata, &extensions, Request::Logs(body))
            .await?;
        let partial = (accepted.rejected > 0 || !accepted.message.is_empty()).then_some(
            ExportLogsPartialSuccess {
                rejected_log_records: accepted.rejected,
                error_message: accepted.message,
            },
        );
        let body = ExportLogsServiceResponse {
            partial_success: partial,
        };
        Ok(reply(body, accepted.headers))
    }
}

impl Ingest {
    async fn grpc(
        &self,
        metadata: MetadataMap,
        extensions: &Extensions,
        request: Request,
    ) -> Result<Accepted, Status> {
        let grant = extensions.get::<Grant>().cloned().unwrap_or_default();
        self.accept(&metadata.into_headers(), grant, request)
            .await
            .map_err(|refused| refused.status())
    }
}

fn reply<T>(body: T, headers: http::HeaderMap) -> Response<T> {
    Response::from_parts(
        MetadataMap::from_headers(headers),
        body,
        Extensions::default(),
    )
}
