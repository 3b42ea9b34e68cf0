//! One request over gRPC: bytes that are encoded already, the headers of `wire`, and the answer.
//!
//! The payload is not decoded here: it goes out of the spool as it went in. Token and TLS files are read
//! again when they change: the token for the next request, certificates for the next connection.

use std::time::Duration;

use anyhow::Context;
use bytes::{Buf, BufMut, Bytes};
use gpufleet_program::connect::{Connector, Protocol};
use gpufleet_program::reloaded::words;
use gpufleet_program::token::{self, TokenFile};
use gpufleet_program::traces;
use gpufleet_telemetry::command::Command;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::{self, Refusal, Stream};
use http::Uri;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

use super::failures::Reason;
use super::state::{Failure, Reply, Request};
use super::{Compression, ShipConfig};

/// Largest reply: a partial success with its sentence, far below this.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a silent connection is asked whether it still lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A connection to the server; made when it is first needed, and again when it is lost.
#[derive(Debug, Clone)]
pub(super) struct Client {
    grpc: Grpc<Channel>,
    parts: Parts,
}

/// What a client is made of, without a connection.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    address: String,
    endpoint: Endpoint,
    connector: Connector,
    token: TokenFile,
    compression: Compression,
}

/// What came of an attempt.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) result: Result<Reply, Failure>,
    pub(super) command: Option<Command>,
    /// What the server said when it did not take the request, and what that amounts to.
    pub(super) refused: Option<(Reason, String)>,
}

impl Parts {
    /// Reads every file and looks at every key that shipping needs.
    ///
    /// # Errors
    /// Names the key or the file.
    pub(super) fn new(config: &ShipConfig) -> anyhow::Result<Self> {
        let address = &config.endpoint;
        let wrong = || format!("ship.endpoint: `{address}` is no address like http://host:4317");
        // Logs, the doctor and the bundle name the address, and what stands before the @ may be a password.
        if address.contains('@') {
            anyhow::bail!(
                "ship.endpoint: an address names nobody before its host; write http://host:4317 and put a token into ship.token_file"
            );
        }
        let uri: Uri = address.parse().with_context(wrong)?;
        let host = uri.host().with_context(wrong)?;
        let connector = match uri.scheme_str() {
            Some("http") => {
                if let Some(file) = config.tls_files().first_set() {
                    anyhow::bail!(
                        "{} is set, and ship.endpoint `{address}` is without TLS: make it https://",
                        file.key
                    );
                }
                Connector::plain()
            }
            Some("https") => {
                let files = config.tls_files();
                Connector::secure("shipping's TLS", files, Protocol::Http2)
                    .map_err(anyhow::Error::from_boxed)?
            }
            _ => anyhow::bail!(wrong()),
        };
        // The TLS is the connector's: what drives it must not want to add its own.
        let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
            Some("https") => 443,
            _ => 80,
        });
        let endpoint = Endpoint::from_shared(format!("http://{host}:{port}"))
            .with_context(wrong)?
            .origin(uri.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(Duration::from_secs(config.timeout_seconds.max(1)))
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("gpufleet-agent/", env!("CARGO_PKG_VERSION")))?;
        let token = token::file("ship.token_file", &config.token_file);
        Ok(Self {
            address: address.clone(),
            endpoint,
            connector,
            token: token.map_err(anyhow::Error::from_boxed)?,
            compression: config.compression,
        })
    }
}

impl Client {
    /// Needs a runtime; nothing is sent yet.
    pub(super) fn new(parts: Parts) -> Self {
        let channel = parts
            .endpoint
            .connect_with_connector_lazy(parts.connector.clone());
        let grpc = Grpc::new(channel).max_decoding_message_size(MAX_REPLY_BYTES);
        let grpc = match parts.compression {
            Compression::Gzip => grpc.send_compressed(CompressionEncoding::Gzip),
            Compression::Zstd => grpc.send_compressed(CompressionEncoding::Zstd),
            Compression::None => grpc,
        };
        Self { grpc, parts }
    }

    /// Sends one request and waits for its answer.
    pub(super) async fn send(&mut self, request: &Request, sent_at: Timestamp) -> Answer {
        let mut message = tonic::Request::new(Bytes::from(request.payload.clone()));
        self.headers(message.metadata_mut(), request, sent_at);
        let path = PathAndQuery::from_static(match request.stream {
            Stream::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Stream::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        });
        if let Err(error) = self.grpc.ready().await {
            return self.failed(&Status::unavailable(words(&error))).await;
        }
        match self.grpc.unary(message, path, RawCodec).await {
            Ok(reply) => Answer {
                result: Ok(Reply {
                    durable_seq: number(reply.metadata(), wire::DURABLE_SEQ),
                    folded_seq: number(reply.metadata(), wire::FOLDED_SEQ),
                }),
                command: command(reply.metadata()),
                refused: None,
            },
            Err(status) => self.failed(&status).await,
        }
    }

    async fn failed(&self, status: &Status) -> Answer {
        let failure = failure(status);
        let of_tls = match failure.refusal {
            None => self.parts.connector.failure_soon().await,
            Some(_) => None,
        };
        let refused = match of_tls {
            Some(why) => (Reason::Tls, why),
            None => {
                let reason = Reason::of(failure.refusal, status.code(), status.message());
                let (address, code) = (&self.parts.address, status.code());
                (reason, format!("{address}: {code}: {}", status.message()))
            }
        };
        Answer {
            result: Err(failure),
            command: None,
            refused: Some(refused),
        }
    }

    fn headers(&self, metadata: &mut MetadataMap, request: &Request, sent_at: Timestamp) {
        let mut set = |name: &'static str, value: String| {
            let value = MetadataValue::try_from(value);
            let value = value.expect("ids, numbers and checked tokens may stand in a header");
            metadata.insert(MetadataKey::from_static(name), value);
        };
        set(wire::AGENT, request.agent.to_string());
        set(wire::EPOCH, request.epoch.to_string());
        set(wire::STREAM, request.stream.name().to_owned());
        set(wire::SEQ, request.seq.to_string());
        set(wire::SENT_AT, sent_at.0.to_string());
        set(wire::SESSION, request.session.to_string());
        set(wire::LANE, request.lane.name().to_owned());
        if let Some((first, last)) = request.dropped {
            set(wire::DROPPED, format!("{first}..{last}"));
        }
        if let Some(span) = traces::here() {
            set(traces::HEADER, span);
        }
        if let Some(token) = &self.parts.token {
            set("authorization", format!("Bearer {}", token.get()));
        }
    }
}

fn number(metadata: &MetadataMap, name: &str) -> Option<u64> {
    metadata.get(name)?.to_str().ok()?.parse().ok()
}

fn command(metadata: &MetadataMap) -> Option<Command> {
    let text = metadata.get(wire::COMMAND)?.to_str().ok()?;
    serde_json::from_str(text)
        .inspect_err(|error| tracing::warn!(%error, "the server sent a command that is not one"))
        .ok()
}

/// What a refusal means, by its header alone. A code does not make it one for ever: a proxy on the
/// way that loses a header would empty the spool.
fn failure(status: &Status) -> Failure {
    let metadata = status.metadata();
    let told = metadata
        .get(wire::REFUSAL)
        .and_then(|value| value.to_str().ok())
        .and_then(Refusal::parse);
    Failure {
        refusal: told,
        wanted_seq: number(metadata, wire::WANTED_SEQ),
        durable_seq: number(metadata, wire::DURABLE_SEQ),
        retry_after: status
            .get_details_retry_info()
            .and_then(|info| info.retry_delay),
    }
}

/// Sends bytes as they are and keeps nothing of the reply's body.
#[derive(Debug, Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        buffer.advance(buffer.remaining());
        Ok(Some(()))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn a_refusal_is_read_from_its_header_and_never_from_its_code() {
        let mut status = Status::failed_precondition("not the next one");
        let headers = status.metadata_mut();
        headers.insert(wire::REFUSAL, MetadataValue::from_static("wrong_seq"));
        headers.insert(wire::WANTED_SEQ, MetadataValue::from_static("7"));
        let told = failure(&status);
        assert_eq!(
            (told.refusal, told.wanted_seq),
            (Some(Refusal::WrongSeq), Some(7))
        );
        for code in [Code::InvalidArgument, Code::OutOfRange] {
            assert_eq!(failure(&Status::new(code, "malformed")), Failure::default());
        }
        let down = failure(&Status::unavailable("no route"));
        assert_eq!(down, Failure::default());
    }

    #[test]
    fn a_command_is_read_from_its_header_and_what_is_none_is_left_out() {
        let read = |text: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert(wire::COMMAND, MetadataValue::from_static(text));
            command(&metadata)
        };
        let given = read(
            r#"{"id":"67e55044-10b1-426f-9247-bb680e5fe0c8","expires":5,"action":"probe_now","arguments":{"gpu":"GPU-\u00e9"}}"#,
        )
        .expect("a command");
        assert_eq!(
            (given.action.as_str(), given.expires),
            ("probe_now", Timestamp(5))
        );
        assert_eq!(given.arguments["gpu"], "GPU-é");
        assert_eq!(read("not a command"), None);
        assert_eq!(read(r#"{"action":"probe_now"}"#), None);
        assert_eq!(
            command(&MetadataMap::new()),
            None,
            "most replies carry none"
        );
    }

    #[test]
    fn the_delay_that_a_server_asks_for_is_read() {
        let mut details = ErrorDetails::new();
        details.set_retry_info(Some(Duration::from_secs(12)));
        let status = Status::with_error_details(Code::ResourceExhausted, "full", details);
        assert_eq!(failure(&status).retry_after, Some(Duration::from_secs(12)));
    }
}
