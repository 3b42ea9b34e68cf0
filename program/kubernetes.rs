//! Asks the Kubernetes API, as a pod does: address, authority and token as they lie in a pod. The token
//! is read again when it is rotated. It can list the pods of all nodes, so it is shown over TLS alone, or to
//! this machine. [`follow`] lists and watches for ever; what is written is written by [`Api::patch`] and
//! [`Api::post`].
//!
//! Limits: [`MAX_BODY_BYTES`], [`MAX_LINE_BYTES`], [`ANSWER_WITHIN`]; a watch has its caller's deadline.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use crate::connect::{Connector, Protocol};
use crate::reloaded::{Unusable, words};
use crate::tls::{ClientFiles, Setting};
use crate::token::{self, TokenFile};

pub mod follow;

/// Most bytes of one answer: 500 pods of a node at 20 KB come to 10 MB.
const MAX_BODY_BYTES: usize = 32 << 20;

/// Most bytes of one line of a watch: etcd keeps no object over 1.5 MiB.
const MAX_LINE_BYTES: usize = 4 << 20;

/// How long an answer may take: lists come out of the server's cache in far less.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The most of an error's text that is kept.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// Where pods find the server, set by the kubelet in every container.
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Who asks, and with what.
#[derive(Debug, Clone)]
pub struct Asker {
    /// Program and version, for the server's own log: `gpufleet-agent/0.1.0`.
    pub program: &'static str,
    /// The key of the config that names the address.
    pub url_key: &'static str,
    /// The file with its token; an empty path is none.
    pub token: Setting,
    /// The certificates (PEM) that the server's must come from.
    pub authorities: Setting,
    /// What gives it the rights that it needs, for a person to apply.
    pub rights: &'static str,
}

/// The Kubernetes API.
#[derive(Debug, Clone)]
pub struct Api {
    base: String,
    asker: Asker,
    token: TokenFile,
    connector: Connector,
    client: Client<Connector, Full<Bytes>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nobody answers there.
    #[error("the Kubernetes API at {base} cannot be reached: {why}")]
    Unreachable {
        /// Where.
        base: String,
        /// What the network or TLS said.
        why: String,
    },
    /// It did not answer in time.
    #[error("the Kubernetes API at {base} did not answer within {} s", ANSWER_WITHIN.as_secs())]
    Slow {
        /// Where.
        base: String,
    },
    /// It refused.
    #[error("the Kubernetes API answered {status} to {path}: {message}{way_out}")]
    Status {
        /// What was asked.
        path: String,
        /// The status.
        status: StatusCode,
        /// What it said.
        message: String,
        /// What to do about it; empty where that is not known.
        way_out: String,
    },
    /// The answer is larger than is taken.
    #[error("the Kubernetes API answered {path} with more than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLarge {
        /// What was asked.
        path: String,
    },
    /// What came is no answer.
    #[error("the Kubernetes API answered {path} with something unreadable: {why}")]
    Malformed {
        /// What was asked.
        path: String,
        /// What is wrong with it.
        why: String,
    },
}

/// How who asks was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is known, and has no right to what it asks for.
    NoRight,
    /// Nobody knows its token: it is over, of another cluster, or of an account that is gone.
    UnknownToken,
}

fn way_out(asker: &Asker, status: StatusCode) -> String {
    match status {
        StatusCode::UNAUTHORIZED => format!("; is {} the pod's own token?", asker.token.key),
        StatusCode::FORBIDDEN => format!("; apply {}", asker.rights),
        _ => String::new(),
    }
}

/// The lines of a watch.
#[derive(Debug)]
pub struct Lines {
    path: String,
    body: Incoming,
    waiting: BytesMut,
    /// How much of it has no end of line.
    looked_at: usize,
}

impl Api {
    /// The API at this address.
    ///
    /// # Errors
    /// Names the key or file that cannot be used.
    pub fn new(base: &str, asker: Asker) -> Result<Self, Unusable> {
        let connector = match is_secure(base, asker.url_key)? {
            false => Connector::plain(),
            true => {
                let files = ClientFiles {
                    authorities: asker.authorities.clone(),
                    ..ClientFiles::default()
                };
                Connector::secure("the Kubernetes API's TLS", files, Protocol::Http1)?
            }
        };
        Ok(Self {
            token: token::file(asker.token.key, &asker.token.path)?,
            client: Client::builder(TokioExecutor::new()).build(connector.clone()),
            connector,
            base: base.to_owned(),
            asker,
        })
    }

    /// Where it is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// One answer.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let asked = async {
            let body = Limited::new(self.ask(path).await?.into_body(), MAX_BODY_BYTES);
            let malformed = |why| ApiError::Malformed {
                path: path.to_owned(),
                why,
            };
            let body = body.collect().await;
            let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                true => ApiError::TooLarge {
                    path: path.to_owned(),
                },
                false => malformed(words(error.as_ref())),
            })?;
            serde_json::from_slice(&body.to_bytes()).map_err(|error| malformed(error.to_string()))
        };
        let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
        answer.unwrap_or_else(|_| Err(self.slow()))
    }

    /// The beginning of a watch.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn watch(&self, path: &str) -> Result<Lines, ApiError> {
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.ask(path)).await;
        let answer = answer.unwrap_or_else(|_| Err(self.slow()))?;
        Ok(Lines {
            path: path.to_owned(),
            body: answer.into_body(),
            waiting: BytesMut::new(),
            looked_at: 0,
        })
    }

    /// Changes an object; `kind` says how what is sent is merged into it, `application/merge-patch+json`.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn patch(
        &self,
        path: &str,
        kind: &'static str,
        body: &serde_json::Value,
    ) -> Result<(), ApiError> {
        self.write(Method::PATCH, path, (kind, body)).await
    }

    /// Makes an object.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> Result<(), ApiError> {
        self.write(Method::POST, path, ("application/json", body))
            .await
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        (kind, body): (&'static str, &serde_json::Value),
    ) -> Result<(), ApiError> {
        let sent = Some((kind, Bytes::from(body.to_string())));
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.send(method, path, sent)).await;
        answer.unwrap_or_else(|_| Err(self.slow())).map(|_| ())
    }

    fn slow(&self) -> ApiError {
        ApiError::Slow {
            base: self.base.clone(),
        }
    }

    async fn ask(&self, path: &str) -> Result<Response<Incoming>, ApiError> {
        self.send(Method::GET, path, None).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        sent: Option<(&'static str, Bytes)>,
    ) -> Result<Response<Incoming>, ApiError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, self.asker.program);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.get()));
        }
        let body = sent.map_or_else(Bytes::new, |(kind, body)| {
            let headers = request.headers_mut();
            headers.map(|it| it.insert(CONTENT_TYPE, HeaderValue::from_static(kind)));
            body
        });
        let request = request.body(Full::new(body));
        let request = request.map_err(|error| ApiError::Malformed {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| ApiError::Unreachable {
            base: self.base.clone(),
            why: self.connector.failure().unwrap_or_else(|| words(&error)),
        })?;
        let status = answer.status();
        if status == StatusCode::OK || status == StatusCode::CREATED {
            return Ok(answer);
        }
        let body = Limited::new(answer.into_body(), MAX_MESSAGE_BYTES)
            .collect()
            .await;
        let body = body.map(|it| it.to_bytes()).unwrap_or_default();
        Err(self.refused(path, status, message(&body)))
    }

    /// The error of an answer that refuses.
    fn refused(&self, path: &str, status: StatusCode, message: String) -> ApiError {
        ApiError::Status {
            path: path.to_owned(),
            status,
            message,
            way_out: way_out(&self.asker, status),
        }
    }
}

impl ApiError {
    /// Whether what was asked from is too long ago for the server to know: it is to be listed anew.
    pub fn is_gone(&self) -> bool {
        self.is(StatusCode::GONE)
    }

    /// How who asks was refused, if it was.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Status { status, .. } if *status == StatusCode::FORBIDDEN => {
                Some(Refusal::NoRight)
            }
            Self::Status { status, .. } if *status == StatusCode::UNAUTHORIZED => {
                Some(Refusal::UnknownToken)
            }
            _ => None,
        }
    }

    /// Whether what was asked about is not there: the object, or its whole kind.
    pub fn is_not_found(&self) -> bool {
        self.is(StatusCode::NOT_FOUND)
    }

    fn is(&self, code: StatusCode) -> bool {
        matches!(self, Self::Status { status, .. } if *status == code)
    }
}

impl Lines {
    /// The next line; none when the server ended the watch, as it does after a while.
    ///
    /// # Errors
    /// When the connection breaks or a line is too long. Dropped at any await, nothing is lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let end = self.waiting[self.looked_at..]
                .iter()
                .position(|it| *it == b'\n');
            if let Some(end) = end {
                let line = self.waiting.split_to(self.looked_at + end + 1);
                self.looked_at = 0;
                return Ok(Some(line.freeze()));
            }
            self.looked_at = self.waiting.len();
            if self.waiting.len() > MAX_LINE_BYTES {
                return Err(self.malformed(format!("a line over {MAX_LINE_BYTES} bytes")));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.waiting.extend_from_slice(&data);
                }
                Some(Err(error)) => return Err(self.malformed(words(&error))),
            }
        }
    }

    /// The error of a line that is none.
    pub fn malformed(&self, why: String) -> ApiError {
        ApiError::Malformed {
            path: self.path.clone(),
            why,
        }
    }
}

/// Where the API is: at `named`, or where a pod finds it; none where there is none, or no token for it.
pub fn base(named: &str, token_file: &Path) -> Option<String> {
    let named = named.trim_end_matches('/');
    if !named.is_empty() {
        return Some(named.to_owned());
    }
    // A pod without a token is not to ask.
    let has_token = !matches!(token_file.try_exists(), Ok(false));
    in_pod().filter(|_| has_token)
}

/// Whether TLS is spoken there; `key` of the config names the address.
///
/// # Errors
/// Names the key, when it is no address, or one to which no token may be sent.
pub fn is_secure(base: &str, key: &str) -> Result<bool, Unusable> {
    let uri: Uri = base
        .parse()
        .map_err(|error| format!("{key}: `{base}` is no address: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(_)) => Ok(true),
        (Some("http"), Some(host)) => {
            let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
            let is_here = host == "localhost" || address.is_ok_and(|it| it.is_loopback());
            match is_here {
                true => Ok(false),
                false => Err(format!(
                    "{key}: `{base}` would be sent the token without TLS: use https://"
                )
                .into()),
            }
        }
        _ => Err(
            format!("{key}: `{base}` must begin with https://, or http:// on this machine").into(),
        ),
    }
}

/// A text as part of an address.
pub fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// Where the kubelet says that the API is; none outside of pods.
pub fn in_pod() -> Option<String> {
    let host = std::env::var(HOST).ok().filter(|it| !it.is_empty())?;
    let port = std::env::var(PORT).unwrap_or_else(|_| "443".to_owned());
    Some(match host.contains(':') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    })
}

/// The sentence in an answer that refuses.
fn message(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Status {
        message: String,
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests;
