//! One GET or POST of the server's API: plain HTTP or TLS, a token, an answer in JSON or why there is
//! none. A list of ten thousand GPUs is many questions: they take one connection, and answers come packed. A report is
//! written out as it comes (`pieces`).
//!
//! Limits: [`MAX_BODY_BYTES`] of what is kept, [`DEADLINE`]. A connection is not kept while time passes: networks
//! forget such and tell nobody, and the server may be another one by then.

use std::cell::Cell;
use std::io::{self, Read as _, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use flate2::bufread::GzDecoder;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::waiting::Waiting;
use crate::words;

mod pieces;

use pieces::Cut;

/// Most bytes of one answer that is kept as a whole, packed or not: a page of 1,000 GPUs is 1 MB, a job of 20,000 ranks
/// some 20 MB.
const MAX_BODY_BYTES: usize = 64 << 20;
/// How long one answer may take, and a report until it begins: the server gives up on a report after two minutes.
const DEADLINE: Duration = Duration::from_secs(130);
/// The header in which the server says what is missing in a report that is rows alone.
const FINDINGS: &str = "gpufleet-findings";

/// A connection to the server, for one question after another.
type Connection = SendRequest<Full<Bytes>>;

/// Why there is no answer. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Nobody listens there.
    #[error(
        "nobody answers at {server} ({why}): is the server running there? Name another with --server or GPUFLEET_SERVER"
    )]
    NoServer { server: String, why: String },
    /// It wants to know who asks.
    #[error(
        "{server} does not let you ({detail}): name a file with a token of role read, or operate for what changes something, with --token-file or GPUFLEET_TOKEN_FILE"
    )]
    NoRight { server: String, detail: String },
    /// It refused, and says why.
    #[error("{detail}")]
    Refused { status: StatusCode, detail: String },
    /// It answered something else than the API does.
    #[error(
        "what answers at {server} is no gpufleet server ({why}): its pages and API are on one port, by default 8080"
    )]
    Other { server: String, why: String },
    /// It says more than is taken.
    #[error(
        "what {server} answers is longer than {limit} bytes, which is the most that is taken: ask for a part of it, such as one cluster or one node"
    )]
    TooLong { server: String, limit: usize },
    /// Only a part of the answer came.
    #[error("the answer of {server} is not whole ({why}): ask again")]
    BrokenOff { server: String, why: String },
    /// It came, and whoever should have it does not take it.
    #[error("the answer cannot be written: {0}")]
    Unwritten(io::Error),
}

/// A server.
pub(crate) struct Client {
    server: Uri,
    token: Option<String>,
    tls: Option<tokio_rustls::TlsConnector>,
    runtime: tokio::runtime::Runtime,
    /// The connection of the last answer, for the next question.
    kept: Cell<Option<Connection>>,
    /// What a person sees meanwhile.
    waiting: Waiting,
}

impl Client {
    /// The server at this address.
    pub(crate) fn new(
        server: &str,
        token_file: Option<&Path>,
        ca_file: Option<&Path>,
        waiting: Waiting,
    ) -> anyhow::Result<Self> {
        let uri: Uri = server
            .trim_end_matches('/')
            .parse()
            .with_context(|| format!("--server {server} is no address, http://host:port is one"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => anyhow::bail!("--server {server} must begin with http:// or https://"),
        };
        let token = token_file.map(token).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        Ok(Self {
            server: uri,
            token,
            tls: is_tls.then(|| tls(ca_file)).transpose()?,
            runtime,
            kept: Cell::new(None),
            waiting,
        })
    }

    /// The server's address.
    pub(crate) fn server(&self) -> String {
        self.server.to_string().trim_end_matches('/').to_owned()
    }

    /// The answer to a GET of `/api/v1` + `path`, which is a path with its query.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Refusal> {
        self.answer(path, None)
    }

    /// The answer to a POST of JSON there.
    pub(crate) fn post(&self, path: &str, said: &Value) -> Result<Value, Refusal> {
        self.answer(path, Some(said.to_string().into()))
    }

    /// Lets time pass before the next question: what was waited for is there.
    pub(crate) fn pause(&self, time: Duration) {
        self.waiting.is_over();
        self.kept.take();
        // A timer is made inside the runtime, or not at all.
        self.runtime
            .block_on(async { tokio::time::sleep(time).await });
    }

    /// Lets time pass before the same question: what is waited for is not there yet.
    pub(crate) fn wait(&self, time: Duration) {
        self.kept.take();
        self.runtime
            .block_on(async { self.waiting.until(tokio::time::sleep(time)).await });
    }

    /// What a person sees while it is waited.
    pub(crate) const fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    fn answer(&self, path: &str, said: Option<Bytes>) -> Result<Value, Refusal> {
        let (status, body) = self.send(path, said)?;
        let json = serde_json::from_slice::<Value>(&body);
        // A silence that is made is answered 201; the health check says 503 with its whole answer when a
        // check fails.
        let is_answer = status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE;
        match json {
            Ok(json) if is_answer && json.get("detail").is_none() => Ok(json),
            _ => Err(self.refused(status, &body)),
        }
    }

    /// The answer to a GET there, or to a POST of what is sent, as it is; and its header [`FINDINGS`].
    pub(crate) fn text(
        &self,
        path: &str,
        sent: Option<Bytes>,
    ) -> Result<(String, Option<String>), Refusal> {
        let exchange = async {
            let (connection, answer) = self.asked(path, sent).await?;
            let findings = findings(&answer);
            let whole = self.whole(connection, answer).await;
            whole.map(|whole| (whole, findings))
        };
        match self.runtime.block_on(self.in_time(exchange))? {
            ((StatusCode::OK, body), findings) => {
                Ok((String::from_utf8_lossy(&body).into_owned(), findings))
            }
            ((status, body), _) => Err(self.refused(status, &body)),
        }
    }

    /// Writes the answer to a GET there as it is and as it comes: a report is no JSON, and may be of any length. Where it
    /// breaks off, what came of it is written. Its header [`FINDINGS`], where it has one.
    pub(crate) fn copy(&self, path: &str, out: &mut dyn Write) -> Result<Option<String>, Refusal> {
        self.runtime.block_on(async {
            let (connection, answer) = self.in_time(self.asked(path, None)).await?;
            if answer.status() != StatusCode::OK {
                let (status, body) = self.in_time(self.whole(connection, answer)).await?;
                return Err(self.refused(status, &body));
            }
            self.waiting.is_over();
            let (is_packed, findings) = (is_packed(&answer), findings(&answer));
            let copied = pieces::copy(answer.into_body(), is_packed, out).await;
            copied.map(|()| findings).map_err(|cut| match cut {
                Cut::Came(why) => self.broken_off(why),
                Cut::Written(error) => Refusal::Unwritten(error),
            })
        })
    }

    /// What an answer says that is none.
    fn refused(&self, status: StatusCode, body: &[u8]) -> Refusal {
        let Ok(json) = serde_json::from_slice::<Value>(body) else {
            return Refusal::Other {
                server: self.server(),
                why: format!("it says {status} without JSON"),
            };
        };
        let detail = words::plain(json["detail"].as_str().unwrap_or(status.as_str()));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Refusal::NoRight {
                server: self.server(),
                detail,
            },
            _ => Refusal::Refused { status, detail },
        }
    }

    fn no_server(&self, why: String) -> Refusal {
        Refusal::NoServer {
            server: self.server(),
            why,
        }
    }

    fn too_long(&self) -> Refusal {
        Refusal::TooLong {
            server: self.server(),
            limit: MAX_BODY_BYTES,
        }
    }

    fn broken_off(&self, why: String) -> Refusal {
        Refusal::BrokenOff {
            server: self.server(),
            why,
        }
    }

    fn send(&self, path: &str, said: Option<Bytes>) -> Result<(StatusCode, Bytes), Refusal> {
        let exchange = async {
            let (connection, answer) = self.asked(path, said).await?;
            self.whole(connection, answer).await
        };
        self.runtime.block_on(self.in_time(exchange))
    }

    /// What comes of it before [`DEADLINE`]; a person sees that it is waited for.
    async fn in_time<T>(
        &self,
        what: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let what = tokio::time::timeout(DEADLINE, what);
        self.waiting.until(what).await.unwrap_or_else(|_| {
            let seconds = DEADLINE.as_secs();
            Err(self.no_server(format!("no answer within {seconds} s")))
        })
    }

    /// The head of an answer, and the connection that the rest of it comes by.
    async fn asked(
        &self,
        path: &str,
        said: Option<Bytes>,
    ) -> Result<(Connection, Response<Incoming>), Refusal> {
        let exchange = self.exchange(path, said).await;
        exchange.map_err(|error| self.no_server(format!("{error:#}")))
    }

    async fn exchange(
        &self,
        path: &str,
        said: Option<Bytes>,
    ) -> anyhow::Result<(Connection, Response<Incoming>)> {
        // A server may end a connection that is quiet just when it is used again. What only asks is then asked once
        // more; of what changes something nobody would know whether it was taken.
        if let Some(mut kept) = self.kept.take().filter(|_| said.is_none())
            && kept.ready().await.is_ok()
            && let Ok(answer) = kept.send_request(self.request(path, None)?).await
        {
            return Ok((kept, answer));
        }
        let mut connection = self.connect().await?;
        let answer = connection.send_request(self.request(path, said)?).await?;
        Ok((connection, answer))
    }

    /// All of an answer; the connection that it came by is kept.
    async fn whole(
        &self,
        connection: Connection,
        answer: Response<Incoming>,
    ) -> Result<(StatusCode, Bytes), Refusal> {
        let status = answer.status();
        let is_packed = is_packed(&answer);
        let body = Limited::new(answer.into_body(), MAX_BODY_BYTES);
        let body = body
            .collect()
            .await
            .map_err(|error| match error.is::<LengthLimitError>() {
                true => self.too_long(),
                false => self.broken_off(error.to_string()),
            })?;
        self.kept.set(Some(connection));
        let body = body.to_bytes();
        if !is_packed {
            return Ok((status, body));
        }
        match unpacked(&body, MAX_BODY_BYTES) {
            Ok(Some(body)) => Ok((status, body)),
            Ok(None) => Err(self.too_long()),
            Err(error) => Err(self.broken_off(format!("it is not packed as it says: {error}"))),
        }
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let host = self.server.host().context("the address has no host")?;
        let port = match self.server.port_u16() {
            Some(port) => port,
            None if self.tls.is_some() => 443,
            None => 80,
        };
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((name, port)).await?;
        match &self.tls {
            None => opened(stream).await,
            Some(tls) => {
                let name = ServerName::try_from(name.to_owned())?;
                opened(tls.connect(name, stream).await?).await
            }
        }
    }

    fn request(&self, path: &str, said: Option<Bytes>) -> anyhow::Result<Request<Full<Bytes>>> {
        let before = self.server.path().trim_end_matches('/');
        let host = self.server.authority().map_or("", |it| it.as_str());
        let mut request = Request::builder()
            .uri(format!("{before}/api/v1{path}"))
            .method(if said.is_some() {
                Method::POST
            } else {
                Method::GET
            })
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .header(header::ACCEPT_ENCODING, "gzip")
            .header(
                header::USER_AGENT,
                concat!("gpufleet/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if said.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        Ok(request.body(Full::new(said.unwrap_or_default()))?)
    }
}

async fn opened(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> anyhow::Result<Connection> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // It ends with the runtime at the latest.
    tokio::spawn(connection);
    Ok(sender)
}

fn findings(answer: &Response<Incoming>) -> Option<String> {
    let said = answer.headers().get(FINDINGS)?.to_str().ok();
    said.map(str::to_owned)
}

fn is_packed(answer: &Response<Incoming>) -> bool {
    let packed = answer.headers().get(header::CONTENT_ENCODING);
    packed.is_some_and(|it| it == "gzip")
}

/// What was sent packed; none where it is longer than `limit` bytes.
fn unpacked(packed: &[u8], limit: usize) -> io::Result<Option<Bytes>> {
    let mut body = Vec::new();
    // One byte more than is taken says that there is more.
    let mut bytes = GzDecoder::new(packed).take(limit as u64 + 1);
    bytes.read_to_end(&mut body)?;
    Ok((body.len() <= limit).then(|| body.into()))
}

fn token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("the token file {} cannot be read", file.display()))?;
    let token = text.lines().next().unwrap_or_default().trim().to_owned();
    anyhow::ensure!(
        !token.is_empty(),
        "the first line of the token file {} is empty: the token stands there",
        file.display()
    );
    Ok(token)
}

fn tls(ca_file: Option<&Path>) -> anyhow::Result<tokio_rustls::TlsConnector> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => {
            let what = || format!("the certificates in {} cannot be read", file.display());
            for certificate in CertificateDer::pem_file_iter(file).with_context(what)? {
                roots.add(certificate.with_context(what)?)?;
            }
            anyhow::ensure!(!roots.is_empty(), "{} has no certificate", file.display());
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            anyhow::ensure!(
                !roots.is_empty(),
                "this system has no certificates to trust: name a file with --ca-file"
            );
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tokio_rustls::TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests;
