//! Requests through the whole way: guard, decoding, fleet, own spool, reply. No network.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::otlp::{Reject, encode_metrics};
use gpufleet_telemetry::tick::{Point, PointValue, ResourceTick};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::metrics::v1::ScopeMetrics;
use prost::Message;
use tonic::codec::CompressionEncoding;
use tower::ServiceExt;

use super::{Ingest, MAX_COMPRESSED_BYTES, MAX_MESSAGE_BYTES, foreign::Foreign};
use crate::App;
use crate::auth::{Access, AuthConfig, Role, TokenFile};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::hand::Hand;
use crate::refusals::{Door, Reason};
use crate::store::model::ResourceKey;

const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);
const AGENT: &str = "00000000-0000-4000-8000-000000000001";
const EPOCH: &str = "00000000-0000-4000-8000-000000000002";
const TOKEN: &str = "a-token-for-the-tests";

/// A server without a network, with its own spool in a folder that goes away with it.
struct Server {
    app: App,
    ingest: Ingest,
    folder: tempfile::TempDir,
}

fn server(access: Access) -> Server {
    let folder = tempfile::tempdir().unwrap();
    server_in(access, folder)
}

fn server_in(access: Access, folder: tempfile::TempDir) -> Server {
    let store = crate::store::Store::unopened();
    let clock = Arc::new(Hand::at(NOW));
    let app = App {
        lead: Arc::new(crate::lead::Lead::leading()),
        ..App::new(Config::for_tests(), store, access, clock)
    };
    let fleet = Arc::clone(&app.fleet);
    let path = folder.path().join("spool");
    let path = path.to_str().unwrap();
    let spool = Foreign::lock_folder(path).unwrap();
    let spool = Foreign::open(spool, app.clock.as_ref()).unwrap();
    let foreign = spool.start(fleet, Arc::clone(&app.clock), "default");
    let ingest = Ingest::new(app.clone());
    ingest.begin(foreign.unwrap());
    Server {
        ingest,
        app,
        folder,
    }
}

/// A tick of one GPU with one power reading, as an agent sends it.
fn tick(end: Timestamp, watts: f64) -> ExportMetricsServiceRequest {
    let resource = Resource::new(ResourceKind::Gpu, "GPU-1")
        .with(attribute::CLUSTER, "told")
        .with(attribute::NODE, "n1");
    let point = |metric, value| Point {
        metric,
        part: None,
        value,
    };
    encode_metrics(&[ResourceTick {
        resource: Arc::new(resource),
        start: end.shifted(-10_000_000_000),
        end,
        points: vec![
            point(gpu::OBSERVED.id, PointValue::SecondBits(0x3ff)),
            point(
                gpu::POWER.id,
                PointValue::Gauge {
                    value: watts,
                    max: None,
                },
            ),
        ],
    }])
}

fn place(seq: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (wire::AGENT, AGENT.to_owned()),
        (wire::EPOCH, EPOCH.to_owned()),
        (wire::SEQ, seq.to_string()),
        (wire::SESSION, "1".to_owned()),
        (wire::SENT_AT, NOW.0.to_string()),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    headers
}

fn key(cluster: &str) -> ResourceKey {
    ResourceKey {
        cluster: cluster.into(),
        kind: ResourceKind::Gpu,
        id: "GPU-1".into(),
    }
}

impl Server {
    /// What was refused, by door and reason.
    fn refused(&self) -> Vec<(Door, Reason, u64)> {
        let counts = self.app.refusals.counts();
        counts.filter(|(_, _, count)| *count > 0).collect()
    }

    async fn grpc(
        &self,
        headers: HeaderMap,
        body: ExportMetricsServiceRequest,
        compress: Option<CompressionEncoding>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        let mut client = MetricsServiceClient::new(super::grpc_router(&self.ingest));
        if let Some(encoding) = compress {
            client = client.send_compressed(encoding);
        }
        let metadata = tonic::metadata::MetadataMap::from_headers(headers);
        let extensions = tonic::Extensions::default();
        client
            .export(tonic::Request::from_parts(metadata, extensions, body))
            .await
    }

    async fn http(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = http::Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        let router = super::http_router(&self.ingest);
        let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, body.to_vec())
    }
}

const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");

#[tokio::test]
async fn an_agents_request_is_folded_once_and_a_gap_is_refused_with_the_wanted_seq() {
    let server = server(Access::default());
    for encoding in [
        None,
        Some(CompressionEncoding::Gzip),
        Some(CompressionEncoding::Zstd),
    ] {
        let reply = server
            .grpc(place(1), tick(NOW, 300.0), encoding)
            .await
            .unwrap();
        assert_eq!(reply.metadata().get(wire::DURABLE_SEQ).unwrap(), "0");
        assert_eq!(reply.metadata().get(wire::FOLDED_SEQ).unwrap(), "1");
        assert_eq!(reply.into_inner().partial_success, None);
    }
    let refused = server
        .grpc(place(3), tick(NOW, 300.0), None)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert_eq!(refused.metadata().get(wire::WANTED_SEQ).unwrap(), "2");
    assert_eq!(refused.metadata().get(wire::REFUSAL).unwrap(), "wrong_seq");
    let commit = server.app.fleet.take_commit(NOW).unwrap();
    assert_eq!(commit.minutes[0].row.metrics[&gpu::POWER.id].count, 1);
    server.app.fleet.committed(commit.number);
    let reply = server.grpc(place(1), tick(NOW, 300.0), None).await.unwrap();
    assert_eq!(reply.metadata().get(wire::DURABLE_SEQ).unwrap(), "1");
    assert_eq!(server.app.fleet.get(&key("told")).unwrap().values.len(), 1);
}

#[tokio::test]
async fn a_token_opens_its_cluster_and_a_wrong_one_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let access = Access::load(&AuthConfig {
        tokens: vec![TokenFile {
            role: Role::Ingest,
            file: file.display().to_string(),
            cluster: Some("bound".to_owned()),
        }],
        ..AuthConfig::default()
    });
    let server = server(access.unwrap());
    let refused = server
        .grpc(place(1), tick(NOW, 1.0), None)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    let (status, headers, _) = server.http("/v1/metrics", &[PROTOBUF], "").await;
    assert_eq!(
        (status, &headers["www-authenticate"]),
        (StatusCode::UNAUTHORIZED, &"Bearer".parse().unwrap())
    );
    let wrong = ("authorization", "Bearer another-long-token");
    let (status, ..) = server.http("/v1/metrics", &[PROTOBUF, wrong], "").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let right = format!("Bearer {TOKEN}");
    let mut headers = place(1);
    headers.insert("authorization", right.parse().unwrap());
    server.grpc(headers, tick(NOW, 1.0), None).await.unwrap();
    assert!(server.app.fleet.get(&key("bound")).is_some());
    let body = tick(NOW.shifted(10_000_000_000), 2.0).encode_to_vec();
    let right = ("authorization", right.as_str());
    let (status, _, reply) = server.http("/v1/metrics", &[PROTOBUF, right], body).await;
    assert_eq!(status, StatusCode::OK);
    let reply = ExportMetricsServiceResponse::decode(&reply[..]).unwrap();
    let message = reply.partial_success.unwrap().error_message;
    assert!(
        message.contains("reported_by_agent"),
        "an agent knows better: {message}"
    );
    let expected = [
        (Door::Grpc, Reason::NoToken, 1),
        (Door::Http, Reason::NoToken, 1),
        (Door::Http, Reason::Forbidden, 1),
    ];
    assert_eq!(server.refused(), expected);
}

#[tokio::test]
async fn a_foreign_request_is_on_disk_before_its_reply_and_comes_back_after_a_crash() {
    let server = server(Access::default());
    let body = tick(NOW, 250.0);
    let json = serde_json::to_vec(&body).unwrap();
    let json_type = ("content-type", "application/json");
    let (status, headers, reply) = server.http("/v1/metrics", &[json_type], json).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(
        String::from_utf8(reply).unwrap(),
        "{\"partialSuccess\":null}"
    );
    // Sent twice: the copy is dropped and counted.
    let reply = server.grpc(HeaderMap::new(), body, None).await.unwrap();
    let partial = reply.into_inner().partial_success.unwrap();
    assert_eq!(partial.rejected_data_points, 2);
    assert!(partial.error_message.contains("2 not_newer"), "{partial:?}");
    // The server dies before any commit; the next one finds the request in the spool as it was on
    // disk at that moment.
    let disk = tempfile::tempdir().unwrap();
    let (from, to) = (server.folder.path(), disk.path());
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(from.join("spool"))
        .arg(to)
        .status();
    assert!(copied.unwrap().success());
    let server = server_in(Access::default(), disk);
    let live = server.app.fleet.get(&key("told")).unwrap();
    assert_eq!(live.value(gpu::POWER.id).unwrap().reading, Ok(250.0));
    let commit = server.app.fleet.take_commit(NOW).unwrap();
    assert_eq!(commit.minutes[0].row.metrics[&gpu::POWER.id].count, 1);
    assert_eq!(commit.cursors[0].seq, 2);
}

#[tokio::test]
async fn bombs_are_refused_by_both_protocols_with_the_cap() {
    let server = server(Access::default());
    let zeros = vec![0_u8; MAX_MESSAGE_BYTES + 1];
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&zeros).unwrap();
    let bomb = encoder.finish().unwrap();
    let gzip = ("content-encoding", "gzip");
    let (status, _, body) = server.http("/v1/metrics", &[PROTOBUF, gzip], bomb).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(String::from_utf8_lossy(&body).contains(&MAX_MESSAGE_BYTES.to_string()));
    let long = vec![0_u8; MAX_COMPRESSED_BYTES + 1];
    let (status, _, body) = server.http("/v1/metrics", &[PROTOBUF], long).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(String::from_utf8_lossy(&body).contains(&MAX_COMPRESSED_BYTES.to_string()));
    let mut request = tick(NOW, 1.0);
    request.resource_metrics[0].schema_url = "x".repeat(MAX_MESSAGE_BYTES);
    for (encoding, cap) in [
        (None, MAX_COMPRESSED_BYTES),
        (Some(CompressionEncoding::Gzip), MAX_MESSAGE_BYTES),
        (Some(CompressionEncoding::Zstd), MAX_MESSAGE_BYTES),
    ] {
        let refused = server
            .grpc(place(1), request.clone(), encoding)
            .await
            .unwrap_err();
        assert_eq!(
            refused.code(),
            tonic::Code::ResourceExhausted,
            "{encoding:?}"
        );
        assert!(refused.message().contains(&cap.to_string()), "{refused:?}");
    }
    let (status, ..) = server
        .http("/v1/metrics", &[("content-type", "text/plain")], "")
        .await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let expected = [
        (Door::Grpc, Reason::TooLarge, 3),
        (Door::Http, Reason::TooLarge, 2),
        (Door::Http, Reason::ContentType, 1),
    ];
    assert_eq!(server.refused(), expected);
}

#[tokio::test]
async fn a_request_that_would_fill_the_memory_once_parsed_is_refused_by_both_doors() {
    let server = server(Access::default());
    let mut request = tick(NOW, 1.0);
    request.resource_metrics = vec![request.resource_metrics[0].clone(); 2];
    request.resource_metrics[1].scope_metrics = vec![ScopeMetrics::default(); 1 << 20];
    let refused = server
        .grpc(place(1), request.clone(), Some(CompressionEncoding::Zstd))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(refused.message().contains("scopes"), "{refused:?}");
    let body = request.encode_to_vec();
    let (status, _, reply) = server.http("/v1/metrics", &[PROTOBUF], body).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(String::from_utf8_lossy(&reply).contains("scopes"));
    let folded = server.app.fleet.get(&key("told"));
    assert!(folded.is_none(), "nothing of it was folded");
}

#[tokio::test]
async fn senders_that_never_finish_keep_no_slot_from_the_others() {
    let server = server(Access::default());
    let slots = server.app.config.ingest.max_concurrent_requests;
    let router = super::http_router(&server.ingest);
    let mut slow = tokio::task::JoinSet::new();
    for _ in 0..2 * slots {
        let never = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        let request = http::Request::post("/v1/metrics")
            .header(PROTOBUF.0, PROTOBUF.1)
            .body(Body::from_stream(never))
            .unwrap();
        slow.spawn(router.clone().oneshot(request));
    }
    tokio::task::yield_now().await;
    let body = tick(NOW, 1.0).encode_to_vec();
    let good = server.http("/v1/metrics", &[PROTOBUF], body);
    let (status, ..) = tokio::time::timeout(Duration::from_secs(5), good)
        .await
        .expect("the slots are free");
    assert_eq!(status, StatusCode::OK);
    assert_eq!(slow.len(), 2 * slots, "they are still being read");
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said_and_the_next_one_goes_on() {
    let server = server(Access::default());
    let mut headers = place(1);
    headers.insert(wire::SEQ, "one".parse().unwrap());
    let refused = server
        .grpc(headers, tick(NOW, 1.0), None)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains(wire::SEQ), "{refused:?}");
    let word = refused.metadata().get(wire::REFUSAL);
    assert_eq!(word, None, "the data may be good: they are kept");
    let mut headers = place(1);
    let hours_ago = NOW.shifted(-3 * 3_600_000_000_000);
    headers.insert(wire::SENT_AT, hours_ago.0.to_string().parse().unwrap());
    let refused = server
        .grpc(headers, tick(hours_ago, 1.0), None)
        .await
        .unwrap_err();
    assert_eq!(
        refused.metadata().get(wire::REFUSAL).unwrap(),
        "clock_quarantine"
    );
    assert!(refused.message().contains("10800 s off"), "{refused:?}");
    let reply = server
        .grpc(place(1), tick(NOW, f64::NAN), None)
        .await
        .unwrap();
    let partial = reply.into_inner().partial_success.unwrap();
    assert_eq!(partial.rejected_data_points, 1);
    assert!(
        partial.error_message.contains("not_a_number"),
        "{partial:?}"
    );
    let counts = server.app.rejections.counts();
    let counted: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [&(Reject::NotANumber, 1)]);
    assert!(
        server.app.fleet.get(&key("told")).is_some(),
        "the rest was folded"
    );
    let (status, ..) = server.http("/v1/traces", &[PROTOBUF], "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let mut traces = TraceServiceClient::new(super::grpc_router(&server.ingest));
    let refused = traces
        .export(ExportTraceServiceRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
}

#[tokio::test]
async fn a_full_server_says_when_to_come_again() {
    let mut server = server(Access::default());
    let config = crate::fleet::FleetConfig {
        live_bytes: 1,
        ..crate::fleet::FleetConfig::default()
    };
    server.app.fleet = Arc::new(Fleet::new(config));
    server.ingest.app = server.app.clone();
    server.grpc(place(1), tick(NOW, 1.0), None).await.unwrap();
    let refused = server
        .grpc(place(2), tick(NOW, 1.0), None)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(refused.metadata().get(wire::REFUSAL).unwrap(), "full");
    let details = tonic_types::StatusExt::get_details_retry_info(&refused).unwrap();
    assert_eq!(details.retry_delay, Some(Duration::from_secs(5)));
}
