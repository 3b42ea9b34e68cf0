//! Connects to a server: over TLS where it is asked for, with the files as they are at that moment.
//!
//! TLS that fails is told in words that name the file and its key. A server that refuses a client's
//! certificate says so only after the handshake, and what lies between here and the request loses the
//! reason: [`Connector::failure`] keeps it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, Error};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsConnector, TlsStream};
use tower::Service;

use crate::reloaded::{Reloaded, Unusable, words};
use crate::stream::Stream;
use crate::tls::{ClientFiles, Setting};

/// How long the reason of a broken connection is waited for, and how often is looked.
const ALERT_WITHIN: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// What is spoken over the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC.
    Http2,
    /// What exporters speak.
    Http1,
}

/// Makes connections. Clones share their TLS and its last failure.
#[derive(Debug, Clone)]
pub struct Connector {
    http: HttpConnector,
    tls: Option<Arc<Tls>>,
}

#[derive(Debug)]
struct Tls {
    config: Reloaded<ClientConfig>,
    files: ClientFiles,
    /// Why TLS of the newest connection failed.
    failure: Mutex<Option<String>>,
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    tls: Option<(Arc<Tls>, String)>,
}

/// No connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers there.
    #[error("{0}")]
    Unreachable(String),
    /// TLS fails: why, and the file that it is about.
    #[error("{0}")]
    Tls(String),
    /// The server's certificate cannot be accepted: why, and who could sign it. Another attempt ends as this one, which
    /// is not so of one that is too old or not yet good: its owner renews it.
    #[error("{0}")]
    Certificate(String),
}

impl Connector {
    /// Connects without TLS.
    pub fn plain() -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        Self { http, tls: None }
    }

    /// Connects with TLS; `what` names it in the log when its files are read again.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn secure(
        what: &'static str,
        files: ClientFiles,
        protocol: Protocol,
    ) -> Result<Self, Unusable> {
        let read = files.clone();
        let make = move || {
            let mut config = read.read()?;
            config.alpn_protocols = match protocol {
                Protocol::Http2 => vec![b"h2".to_vec()],
                Protocol::Http1 => vec![b"http/1.1".to_vec()],
            };
            Ok(config)
        };
        let tls = Tls {
            config: Reloaded::new(what, files.paths(), make)?,
            files,
            failure: Mutex::new(None),
        };
        Ok(Self {
            tls: Some(Arc::new(tls)),
            ..Self::plain()
        })
    }

    /// Why TLS of the newest connection failed; none when it did not.
    pub fn failure(&self) -> Option<String> {
        self.tls.as_ref()?.failure().clone()
    }

    /// The same, a little later where there is none yet: a request is told that its connection broke
    /// before the connection itself has read the alert.
    pub async fn failure_soon(&self) -> Option<String> {
        self.tls.as_ref()?;
        let looks = ALERT_WITHIN.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..looks {
            if let Some(why) = self.failure() {
                return Some(why);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.failure()
    }

    /// The TLS files as they are in use; another one once they have changed and were read again. None without TLS.
    pub fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.tls.as_ref().map(|it| it.config.get())
    }

    /// Why the TLS files as they are cannot be used, while those before are.
    pub fn refused_files(&self) -> Option<String> {
        self.tls.as_ref()?.config.refused()
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Link>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Link>, ConnectError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        let ready = self.http.poll_ready(context);
        ready.map_err(|error| ConnectError::Unreachable(words(&error)))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.http.call(uri.clone());
        let tls = self.tls.clone();
        Box::pin(async move {
            let stream = connecting.await;
            let stream = stream.map_err(|error| ConnectError::Unreachable(words(&error)))?;
            let stream = stream.into_inner();
            let link = match tls {
                None => Link {
                    stream: Stream::Plain(stream),
                    tls: None,
                },
                Some(tls) => tls.over(stream, &uri).await?,
            };
            Ok(TokioIo::new(link))
        })
    }
}

impl Tls {
    async fn over(
        self: Arc<Self>,
        stream: tokio::net::TcpStream,
        uri: &Uri,
    ) -> Result<Link, ConnectError> {
        *self.failure() = None;
        let host = uri.host().unwrap_or_default();
        // An address of version 6 stands in brackets.
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| ConnectError::Tls(format!("`{host}`: {error}")))?;
        let connector = TlsConnector::from(self.config.get());
        let peer = uri
            .authority()
            .map_or_else(String::new, ToString::to_string);
        match connector.connect(name, stream).await {
            Ok(stream) => Ok(Link {
                stream: Stream::Tls(Box::new(TlsStream::Client(stream))),
                tls: Some((self, peer)),
            }),
            Err(error) => {
                let reason = reason(&error);
                let why = match reason {
                    Some(reason) => explain(reason, &self.files, &peer),
                    None => format!("{peer} broke the TLS handshake off: {error}"),
                };
                *self.failure() = Some(why.clone());
                Err(match reason {
                    Some(Error::InvalidCertificate(reason)) if !mends_itself(reason) => {
                        ConnectError::Certificate(why)
                    }
                    _ => ConnectError::Tls(why),
                })
            }
        }
    }

    fn failure(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a certificate is one of another time: its owner renews it, or a clock is set, and nothing changes here.
fn mends_itself(reason: &CertificateError) -> bool {
    matches!(
        reason,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    )
}

/// What TLS says of an error.
fn reason(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// The same for a person: what is wrong, and which file it is about.
fn explain(error: &Error, files: &ClientFiles, peer: &str) -> String {
    let named = |it: &Setting| format!("{} ({})", it.key, it.path.display());
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            let trusted = match files.authorities.is_set() {
                true => named(&files.authorities),
                false => format!("the system's list; set {}", files.authorities.key),
            };
            format!("the certificate of {peer} is not signed by anyone in {trusted}: {error}")
        }
        Error::InvalidCertificate(_) => {
            format!("the certificate of {peer} cannot be accepted: {error}")
        }
        Error::AlertReceived(_) if files.certificate.is_set() => {
            format!("{peer} refuses {}: {error}", named(&files.certificate))
        }
        Error::AlertReceived(_) => format!(
            "{peer} refuses the connection: {error}; if it wants a certificate, set {}",
            files.certificate.key
        ),
        other => format!("TLS with {peer} fails: {other}; does it speak TLS there?"),
    }
}

impl Connection for Link {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let (Poll::Ready(Err(error)), Some((tls, peer))) = (&read, &self.tls)
            && let Some(reason) = reason(error)
        {
            *tls.failure() = Some(explain(reason, &tls.files, peer));
        }
        read
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
