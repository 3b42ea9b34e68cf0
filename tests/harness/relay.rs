//! A relay between agents and the server that keeps what passes: what the agents of a test have
//! sent, seq by seq, and so what the database must hold when everything is durable.
//!
//! It hands on every request and every reply as they are, and makes none of its own. A request is
//! kept before it is handed on, so that nothing reaches the server that the relay does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::otlp::{Limits, decode_events, decode_metrics};
use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::wire::{self, Stream};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message as _;
use tonic::codec::CompressionEncoding;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::free_port;
use crate::simulator::journal::Expected;
use crate::simulator::record::Record;

/// What our own headers begin with.
const OURS: &str = "gpufleet-";

/// One stream of one spool: agent, epoch, stream.
pub type Line = (String, String, &'static str);

/// A running relay; it stops when it is dropped.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    passed: Passed,
    _runtime: tokio::runtime::Runtime,
}

/// What has passed.
#[derive(Debug, Clone, Default)]
struct Passed(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    requests: BTreeMap<(Line, u64), Vec<u8>>,
    wrong: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct Onward {
    passed: Passed,
    metrics: MetricsServiceClient<Channel>,
    logs: LogsServiceClient<Channel>,
}

impl Relay {
    /// Starts one on a free port of loopback that hands on to `endpoint` (`http://host:port`);
    /// nobody need listen there yet.
    ///
    /// # Panics
    /// When the port was taken meanwhile.
    pub fn start(endpoint: &str) -> Self {
        let port = free_port();
        let passed = Passed::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a test may start a thread");
        let channel = {
            let _inside = runtime.enter();
            Channel::from_shared(endpoint.to_owned())
                .expect("the address of a test's server")
                .connect_lazy()
        };
        let onward = Onward {
            passed: passed.clone(),
            metrics: MetricsServiceClient::new(channel.clone()),
            logs: LogsServiceClient::new(channel),
        };
        let metrics =
            MetricsServiceServer::new(onward.clone()).accept_compressed(CompressionEncoding::Gzip);
        let logs = LogsServiceServer::new(onward).accept_compressed(CompressionEncoding::Gzip);
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        runtime.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(metrics)
                .add_service(logs)
                .serve(address)
                .await
                .expect("the port is free and the runtime lives as long as the relay");
        });
        Self {
            port,
            passed,
            _runtime: runtime,
        }
    }

    /// Where agents ship to.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The highest seq of every stream of every spool that passed.
    pub fn ends(&self) -> BTreeMap<Line, u64> {
        let kept = self.passed.lock();
        let seqs = kept.requests.keys();
        // In the order of the seqs, so that the last one stays.
        seqs.map(|(line, seq)| (line.clone(), *seq)).collect()
    }

    /// What no correct agent does: a seq with two contents, seqs given up, a seq left out.
    pub fn wrong(&self) -> Vec<String> {
        let kept = self.passed.lock();
        let mut wrong: Vec<String> = kept.wrong.iter().cloned().collect();
        let mut counts: BTreeMap<&Line, (u64, u64)> = BTreeMap::new();
        for (line, seq) in kept.requests.keys() {
            let (count, last) = counts.entry(line).or_default();
            (*count, *last) = (*count + 1, *seq);
        }
        let gaps = counts.iter().filter(|(_, (count, last))| count != last);
        wrong.extend(gaps.map(|(line, (count, last))| {
            format!("{line:?}: {count} requests passed, the last one is seq {last}")
        }));
        wrong
    }

    /// The steps that passed, by rank: every request once, in the order of the seqs.
    pub fn steps(&self) -> BTreeMap<String, Vec<StepBlock>> {
        let kept = self.passed.lock();
        let mut steps: BTreeMap<String, Vec<StepBlock>> = BTreeMap::new();
        let logs = kept.requests.iter();
        for (_, bytes) in logs.filter(|(((_, _, stream), _), _)| *stream == Stream::Logs.name()) {
            let request =
                ExportLogsServiceRequest::decode(bytes.as_slice()).expect("it was encoded here");
            for decoded in decode_events(request, &Limits::default()).steps {
                let of_rank = steps.entry(decoded.rank.to_string()).or_default();
                of_rank.extend(decoded.blocks);
            }
        }
        steps
    }

    /// What the database must hold: every request that passed, once.
    pub fn expected(&self) -> (Expected, Vec<Event>) {
        let kept = self.passed.lock();
        let limits = Limits::default();
        let (mut record, mut events) = (Record::default(), Vec::new());
        for (((_, _, stream), _), bytes) in &kept.requests {
            if *stream == Stream::Metrics.name() {
                let request = ExportMetricsServiceRequest::decode(bytes.as_slice())
                    .expect("it was encoded here");
                for decoded in &decode_metrics(request, &limits).resources {
                    record.add_sent(decoded);
                }
            } else {
                let request = ExportLogsServiceRequest::decode(bytes.as_slice())
                    .expect("it was encoded here");
                let decoded = decode_events(request, &limits).events;
                events.extend(decoded.into_iter().map(|it| it.event));
            }
        }
        let sure = Expected {
            sure: record,
            ..Expected::default()
        };
        (sure, events)
    }
}

impl Passed {
    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, headers: &MetadataMap, stream: Stream, bytes: Vec<u8>) {
        let text = |name| {
            let value = headers.get(name).and_then(|it| it.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let line = (text(wire::AGENT), text(wire::EPOCH), stream.name());
        let mut kept = self.lock();
        if let Some(dropped) = headers.get(wire::DROPPED) {
            kept.wrong
                .insert(format!("{line:?} gave up the seqs {dropped:?}"));
        }
        let Ok(seq) = text(wire::SEQ).parse() else {
            kept.wrong.insert(format!("{line:?} sent no seq"));
            return;
        };
        if let Some(before) = kept.requests.get(&(line.clone(), seq))
            && *before != bytes
        {
            kept.wrong
                .insert(format!("{line:?} seq {seq} came with two contents"));
        }
        kept.requests.insert((line, seq), bytes);
    }
}

/// Of these headers the ones that are ours: the others belong to one connection.
fn ours(headers: &MetadataMap) -> MetadataMap {
    let mut kept = MetadataMap::new();
    for header in headers.iter() {
        if let KeyAndValueRef::Ascii(name, value) = header
            && name.as_str().starts_with(OURS)
        {
            kept.insert(name.clone(), value.clone());
        }
    }
    kept
}

fn request<T>(passing: Request<T>) -> Request<T> {
    let headers = ours(passing.metadata());
    let mut request = Request::new(passing.into_inner());
    *request.metadata_mut() = headers;
    request
}

fn answer<T>(passing: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
    match passing {
        Ok(passing) => {
            let headers = ours(passing.metadata());
            let mut response = Response::new(passing.into_inner());
            *response.metadata_mut() = headers;
            Ok(response)
        }
        Err(status) => {
            // A server that is not there is told as such: an agent tries again.
            let code = match status.code() {
                Code::Unknown | Code::Cancelled => Code::Unavailable,
                code => code,
            };
            Err(Status::with_details_and_metadata(
                code,
                status.message(),
                status.details().to_vec().into(),
                ours(status.metadata()),
            ))
        }
    }
}

#[tonic::async_trait]
impl MetricsService for Onward {
    async fn export(
        &self,
        passing: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let bytes = passing.get_ref().encode_to_vec();
        self.passed.keep(passing.metadata(), Stream::Metrics, bytes);
        answer(self.metrics.clone().export(request(passing)).await)
    }
}

#[tonic::async_trait]
impl LogsService for Onward {
    async fn export(
        &self,
        passing: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let bytes = passing.get_ref().encode_to_vec();
        self.passed.keep(passing.metadata(), Stream::Logs, bytes);
        answer(self.logs.clone().export(request(passing)).await)
    }
}
