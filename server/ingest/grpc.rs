//! OTLP over gRPC: tonic takes the frame and the compression off, and what is in them goes the same
//! way as over HTTP. tonic's own services would parse it before anyone could see what it holds.

use axum::Router;
use axum::routing::any;
use bytes::{Buf, BufMut, Bytes};
use gpufleet_telemetry::otlp::Encoding;
use gpufleet_telemetry::wire::Stream;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server;
use tonic::codec::CompressionEncoding::{Gzip, Zstd};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Response, Status};
use tower::service_fn;

use super::accept::{Ingest, Request};
use super::refuse::Refused;
use super::{MAX_MESSAGE_BYTES, guard, reply};
use crate::auth::Grant;

pub(super) fn router(ingest: &Ingest) -> Router {
    let mut routes = Router::new();
    for (service, stream) in [
        (metrics_service_server::SERVICE_NAME, Stream::Metrics),
        (logs_service_server::SERVICE_NAME, Stream::Logs),
    ] {
        let ingest = ingest.clone();
        let export = move |request| export(ingest.clone(), stream, request);
        routes = routes.route(&format!("/{service}/Export"), any(export));
    }
    let others = async || Status::unimplemented("").into_http::<axum::body::Body>();
    guard::guarded(routes.fallback(others), ingest, guard::Protocol::Grpc)
}

async fn export(
    ingest: Ingest,
    stream: Stream,
    request: axum::extract::Request,
) -> http::Response<tonic::body::Body> {
    let service = service_fn(|request: tonic::Request<Bytes>| {
        let ingest = ingest.clone();
        async move {
            let taken = take(&ingest, stream, request).await;
            taken.map_err(|refused| refused.status())
        }
    });
    tonic::server::Grpc::new(Raw)
        .accept_compressed(Gzip)
        .accept_compressed(Zstd)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .unary(service, request)
        .await
}

async fn take(
    ingest: &Ingest,
    stream: Stream,
    request: tonic::Request<Bytes>,
) -> Result<Response<Vec<u8>>, Refused> {
    let (metadata, mut extensions, sent) = request.into_parts();
    let grant = extensions.remove::<Grant>();
    let grant = grant.expect("the guard before every route puts it there");
    let request = Request::parse(stream, Encoding::Protobuf, &sent)?;
    drop(sent);
    let accepted = ingest
        .accept(&metadata.into_headers(), grant, request)
        .await?;
    let body = reply::encode(&accepted, stream, Encoding::Protobuf);
    let metadata = MetadataMap::from_headers(accepted.headers);
    Ok(Response::from_parts(metadata, body, Extensions::default()))
}

/// Hands messages on as the bytes they are.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
