//! Listeners: plain or TLS, so many connections at most.
//!
//! Handshakes run beside each other, each with its own deadline, so that a silent client does not
//! keep the others out.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::MAX_CONNECTIONS;
use crate::auth::AuthConfig;

/// Longest time a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that are ready and wait to be taken.
const MAX_READY: usize = 64;

/// How long to wait after the system refused a connection, for want of file handles most likely.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be used.
    #[error("{file}: {why}")]
    File {
        /// Which file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not fit, or the authorities cannot be used.
    #[error("the TLS files do not fit together: {0}")]
    Unfit(String),
}

/// A listener that hands out connections, after their handshake where there is TLS.
pub struct Listener {
    address: SocketAddr,
    ready: mpsc::Receiver<(Connection, SocketAddr)>,
}

/// A connection; it counts against the limit as long as it lives.
pub struct Connection {
    stream: Stream,
    _slot: OwnedSemaphorePermit,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Reads the TLS files, if there are any. `protocols` are offered to the client, the best first.
///
/// # Errors
/// When a file cannot be read or the files do not fit together.
pub fn tls(config: &AuthConfig) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    if config.tls_certificate_file.is_empty() || config.tls_key_file.is_empty() {
        return Ok(None);
    }
    let unfit = |error: &dyn std::fmt::Display| TlsError::Unfit(error.to_string());
    let certificates = certificates(&config.tls_certificate_file)?;
    let key = PrivateKeyDer::from_pem_file(Path::new(&config.tls_key_file))
        .map_err(|error| file_error(&config.tls_key_file, &error))?;
    let builder = ServerConfig::builder();
    let builder = if config.tls_client_ca_file.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for certificate in self::certificates(&config.tls_client_ca_file)? {
            roots.add(certificate).map_err(|error| unfit(&error))?;
        }
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
        builder.with_client_cert_verifier(verifier.map_err(|error| unfit(&error))?)
    };
    let mut tls = builder
        .with_single_cert(certificates, key)
        .map_err(|error| unfit(&error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(tls)))
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(Path::new(file))
        .and_then(Iterator::collect)
        .map_err(|error| file_error(file, &error))?;
    if certificates.is_empty() {
        let why = "no certificate in it".to_owned();
        let file = file.to_owned();
        return Err(TlsError::File { file, why });
    }
    Ok(certificates)
}

fn file_error(file: &str, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::File {
        file: file.to_owned(),
        why: error.to_string(),
    }
}

impl Listener {
    /// Takes connections from a bound socket.
    ///
    /// # Errors
    /// When the socket has no address.
    pub fn new(socket: TcpListener, tls: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let (sender, ready) = mpsc::channel(MAX_READY);
        tokio::spawn(take(socket, tls.map(TlsAcceptor::from), sender));
        Ok(Self { address, ready })
    }
}

/// Takes connections until nobody wants them any more.
async fn take(
    socket: TcpListener,
    tls: Option<TlsAcceptor>,
    ready: mpsc::Sender<(Connection, SocketAddr)>,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await;
        let slot = slot.expect("the semaphore is never closed");
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = ready.closed() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        // Replies are small and must not wait for more; it only fails on a closed socket.
        let _closed = stream.set_nodelay(true);
        let (tls, ready) = (tls.clone(), ready.clone());
        tokio::spawn(async move {
            let stream = match tls {
                None => Stream::Plain(stream),
                Some(tls) => {
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        Ok(Ok(stream)) => Stream::Tls(Box::new(stream)),
                        Ok(Err(error)) => return tracing::debug!(%error, %peer, "TLS handshake"),
                        Err(_) => return tracing::debug!(%peer, "TLS handshake took too long"),
                    }
                }
            };
            let connection = Connection {
                stream,
                _slot: slot,
            };
            // Nobody takes it any more when the server stops.
            let _stopped = ready.send((connection, peer)).await;
        });
    }
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        match self.ready.recv().await {
            Some(ready) => ready,
            // The task that fills the channel ends after this listener, so this does not happen.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::ClientConfig;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;

    use super::*;

    /// A certificate for localhost and its key, made for these tests and good for nothing else.
    fn config() -> AuthConfig {
        let file = |name: &str| format!("{}/ingest/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
        AuthConfig {
            tls_certificate_file: file("certificate.pem"),
            tls_key_file: file("key.pem"),
            ..AuthConfig::default()
        }
    }

    async fn ask(address: SocketAddr) -> String {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&config().tls_certificate_file).unwrap() {
            roots.add(certificate).unwrap();
        }
        let client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let mut stream = connector.connect(name, stream).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        // A server may close without a TLS goodbye after its answer.
        let _closed = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn a_silent_client_does_not_keep_others_from_their_tls_handshake() {
        // Another test of this process may have chosen the provider already.
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let listener = Listener::new(socket, tls(&config()).unwrap()).unwrap();
        let routes = axum::Router::new().route("/", axum::routing::get(async || "hello"));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let _silent = TcpStream::connect(address).await.unwrap();
        let answer = ask(address).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
            "{answer}"
        );
    }

    #[test]
    fn a_tls_file_that_cannot_be_used_is_named() {
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let good = config();
        for (certificate, key) in [
            ("/nowhere.pem", good.tls_key_file.as_str()),
            (good.tls_certificate_file.as_str(), "/nowhere.pem"),
            (good.tls_key_file.as_str(), good.tls_key_file.as_str()),
        ] {
            let bad = AuthConfig {
                tls_certificate_file: certificate.to_owned(),
                tls_key_file: key.to_owned(),
                ..AuthConfig::default()
            };
            let error = tls(&bad).expect_err("unusable").to_string();
            assert!(error.contains(".pem"), "{error}");
        }
        assert!(tls(&AuthConfig::default()).unwrap().is_none());
    }
}
