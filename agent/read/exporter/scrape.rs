//! One GET of one endpoint: HTTP with TLS or without, gzip, with a size cap before and while the body
//! arrives. Token and certificates are read again when their files change.
//!
//! Limits: [`MAX_BODY_BYTES`]. The deadline is the reader's; a dropped future closes the connection.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use gpufleet_program::connect::{Connector, Protocol};
use gpufleet_program::reloaded::words;
use gpufleet_program::tls::ClientFiles;
use gpufleet_program::token::TokenFile;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, USER_AGENT};
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// Most bytes of one body, on the wire and decompressed. Eight GPUs with pod labels are 200 KB, the
/// largest model server known to us 2 MB.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// Why a scrape brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// Nobody listens there.
    #[error("{url} cannot be reached: {}", words(.source))]
    Unreachable {
        /// The endpoint.
        url: String,
        /// What the network said.
        source: hyper_util::client::legacy::Error,
    },
    /// TLS with it fails.
    #[error("{url} cannot be trusted: {why}")]
    Tls {
        /// The endpoint.
        url: String,
        /// Why, with the file that it is about.
        why: String,
    },
    /// The endpoint answered with another status than 200.
    #[error("{url} answered {status}")]
    Status {
        /// The endpoint.
        url: String,
        /// The status.
        status: http::StatusCode,
    },
    /// The body is longer than [`MAX_BODY_BYTES`].
    #[error("{url} sent more than {MAX_BODY_BYTES} bytes")]
    TooLarge {
        /// The endpoint.
        url: String,
    },
    /// The body broke off or is no gzip, or no UTF-8.
    #[error("the body of {url} cannot be read: {why}")]
    Body {
        /// The endpoint.
        url: String,
        /// Why.
        why: String,
    },
}

/// An endpoint and the connection to it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    uri: Uri,
    token: TokenFile,
    connector: Connector,
    client: Client<Connector, Empty<Bytes>>,
}

impl Endpoint {
    /// An endpoint by its address; `token` goes into the Authorization header, `files` are for TLS.
    ///
    /// # Errors
    /// When the address is none, or neither `http://` nor `https://`, or a file cannot be used.
    pub fn new(url: &str, token: TokenFile, files: ClientFiles) -> Result<Self, String> {
        let uri: Uri = url
            .parse()
            .map_err(|error| format!("`{url}` is not an address: {error}"))?;
        let connector = match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(_)) => match files.first_set() {
                Some(file) => return Err(format!("{} needs https://", file.key)),
                None => Connector::plain(),
            },
            (Some("https"), Some(_)) => {
                Connector::secure("a target of exporter.targets", files, Protocol::Http1)
                    .map_err(|error| error.to_string())?
            }
            _ => return Err(format!("`{url}` must begin with http:// or https://")),
        };
        Ok(Self {
            uri,
            token,
            client: Client::builder(TokioExecutor::new()).build(connector.clone()),
            connector,
        })
    }

    /// Host and port, `127.0.0.1:9400`.
    pub fn authority(&self) -> &str {
        self.uri.authority().map_or("", |it| it.as_str())
    }

    /// The body of one GET as text.
    ///
    /// # Errors
    /// See [`ScrapeError`].
    pub async fn get(&self) -> Result<String, ScrapeError> {
        let url = || self.uri.to_string();
        let mut request = Request::get(self.uri.clone())
            .header(ACCEPT, "text/plain;version=0.0.4;q=1,*/*;q=0.1")
            .header(ACCEPT_ENCODING, "gzip")
            .header(
                USER_AGENT,
                concat!("gpufleet-agent/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.get()));
        }
        let request = request
            .body(Empty::new())
            .expect("address and token were checked when they were read");
        let response = self.client.request(request).await;
        let response = response.map_err(|source| match self.connector.failure() {
            Some(why) => ScrapeError::Tls { url: url(), why },
            None => ScrapeError::Unreachable { url: url(), source },
        })?;
        if response.status() != http::StatusCode::OK {
            let status = response.status();
            return Err(ScrapeError::Status { url: url(), status });
        }
        let announced = hyper::body::Body::size_hint(response.body()).lower();
        if announced > MAX_BODY_BYTES as u64 {
            return Err(ScrapeError::TooLarge { url: url() });
        }
        let encoding = response.headers().get(CONTENT_ENCODING).cloned();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES);
        let body = body.collect().await.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                ScrapeError::TooLarge { url: url() }
            } else {
                let why = error.to_string();
                ScrapeError::Body { url: url(), why }
            }
        })?;
        let bytes = body.to_bytes();
        let bytes = match encoding.as_ref().map(HeaderValue::as_bytes) {
            None | Some(b"identity") => bytes.to_vec(),
            Some(b"gzip") => self.gunzip(&bytes)?,
            Some(other) => {
                let why = format!("unknown encoding `{}`", String::from_utf8_lossy(other));
                return Err(ScrapeError::Body { url: url(), why });
            }
        };
        String::from_utf8(bytes).map_err(|_| ScrapeError::Body {
            url: url(),
            why: "it is not UTF-8".to_owned(),
        })
    }

    fn gunzip(&self, bytes: &[u8]) -> Result<Vec<u8>, ScrapeError> {
        let mut plain = Vec::new();
        let limit = MAX_BODY_BYTES as u64 + 1;
        MultiGzDecoder::new(bytes)
            .take(limit)
            .read_to_end(&mut plain)
            .map_err(|error| ScrapeError::Body {
                url: self.uri.to_string(),
                why: error.to_string(),
            })?;
        if plain.len() > MAX_BODY_BYTES {
            let url = self.uri.to_string();
            return Err(ScrapeError::TooLarge { url });
        }
        Ok(plain)
    }
}
