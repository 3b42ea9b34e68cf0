//! Listeners: plain or TLS, so many connections at most, none of them silent for long.
//!
//! Handshakes run beside each other, each with its own deadline, so that a silent client does not
//! keep the others out. The certificate of a handshake is the one that lies there at that moment.
//!
//! Limits: [`HANDSHAKE_TIMEOUT`], [`MAX_READY`], and the most connections, which the caller gives.

mod idle;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::{TlsAcceptor, TlsStream};

use self::idle::{Idle, PATIENCE, Patience};
use crate::reloaded::Reloaded;
use crate::stream::Stream;

pub use self::idle::Peer;

/// The TLS of a listener; none is none.
pub type Tls = Option<Arc<Reloaded<ServerConfig>>>;

/// Who is told of a peer whose TLS handshake failed.
pub type Refused = Arc<dyn Fn(SocketAddr) + Send + Sync>;

/// Longest time a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one whose handshake failed may take to read why.
const PARTING: Duration = Duration::from_secs(1);

/// What such a one may have sent meanwhile, bytes: more than the first frames of HTTP/2 and a window.
const MAX_UNREAD: u64 = 256 << 10;

/// Connections that are ready and wait to be taken.
const MAX_READY: usize = 64;

/// How long to wait after the system refused a connection, for want of file handles most likely.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// A listener that hands out connections, after their handshake where there is TLS.
pub struct Listener {
    address: SocketAddr,
    ready: mpsc::Receiver<(Connection, SocketAddr)>,
}

/// A connection; it counts against the limit as long as it lives.
pub struct Connection {
    stream: Stream,
    idle: Idle,
    _slot: OwnedSemaphorePermit,
}

impl Listener {
    /// Takes connections from a bound socket, `most` at the same time; more wait in the kernel.
    ///
    /// # Errors
    /// When the socket has no address.
    pub fn new(socket: TcpListener, tls: Tls, most: usize) -> io::Result<Self> {
        Self::telling(socket, tls, most, Arc::new(|_| {}))
    }

    /// The same, which tells of every TLS handshake that failed.
    ///
    /// # Errors
    /// When the socket has no address.
    pub fn telling(
        socket: TcpListener,
        tls: Tls,
        most: usize,
        refused: Refused,
    ) -> io::Result<Self> {
        Self::patient(socket, (tls, refused), most, PATIENCE)
    }

    fn patient(
        socket: TcpListener,
        tls: (Tls, Refused),
        most: usize,
        patience: Patience,
    ) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let (sender, ready) = mpsc::channel(MAX_READY);
        let slots = Arc::new(Semaphore::new(most));
        tokio::spawn(take(socket, tls, slots, patience, sender));
        Ok(Self { address, ready })
    }
}

/// Serves a listener until told to stop, and then ends the connections that are open.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    listener: Listener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = router.layer(from_fn(idle::count));
    axum::serve(
        listener,
        router.into_make_service_with_connect_info::<Peer>(),
    )
    .with_graceful_shutdown(stop)
    .await
}

/// Takes connections until nobody wants them any more.
async fn take(
    socket: TcpListener,
    (tls, refused): (Tls, Refused),
    slots: Arc<Semaphore>,
    patience: Patience,
    ready: mpsc::Sender<(Connection, SocketAddr)>,
) {
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
        let tls = tls.as_ref().map(|tls| TlsAcceptor::from(tls.get()));
        let (ready, refused) = (ready.clone(), Arc::clone(&refused));
        tokio::spawn(async move {
            let stream = match tls {
                None => Stream::Plain(stream),
                Some(tls) => {
                    let accepting = tls.accept(stream).into_fallible();
                    match tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting).await {
                        Ok(Ok(stream)) => Stream::Tls(Box::new(TlsStream::Server(stream))),
                        Ok(Err((error, stream))) => {
                            tracing::debug!(%error, %peer, "TLS handshake");
                            refused(peer);
                            return part(stream).await;
                        }
                        Err(_) => {
                            tracing::debug!(%peer, "TLS handshake took too long");
                            return refused(peer);
                        }
                    }
                }
            };
            let connection = Connection {
                stream,
                idle: Idle::begin(patience),
                _slot: slot,
            };
            // Nobody takes it any more when the server stops.
            let _stopped = ready.send((connection, peer)).await;
        });
    }
}

/// Ends a connection whose handshake failed so that the peer reads why. A client of TLS 1.3 has sent
/// its first request by then: a socket closed over unread bytes is reset, and the alert is lost.
async fn part(mut stream: TcpStream) {
    let unread = async {
        stream.shutdown().await?;
        let mut unread = stream.take(MAX_UNREAD);
        tokio::io::copy(&mut unread, &mut tokio::io::sink()).await
    };
    // Whatever comes of it, the connection is over.
    let _over = tokio::time::timeout(PARTING, unread).await;
}

impl Connection {
    fn requests(&self) -> Arc<idle::Requests> {
        self.idle.requests()
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
        if self.idle.poll_over(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
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

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::tls::tests::files;

    async fn ask(address: SocketAddr) -> String {
        let mut roots = RootCertStore::empty();
        for certificate in files().certificate.certificates().unwrap() {
            roots.add(certificate).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
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
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let listener = Listener::new(socket, files().reloaded("the test").unwrap(), 4).unwrap();
        let routes = axum::Router::new().route("/", axum::routing::get(async || "hello"));
        tokio::spawn(serve(listener, routes, std::future::pending()));
        let _silent = TcpStream::connect(address).await.unwrap();
        let answer = ask(address).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn a_handshake_that_fails_is_told_with_its_peer() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (sender, mut told) = mpsc::unbounded_channel();
        let refused: Refused = Arc::new(move |peer| sender.send(peer).unwrap());
        let tls = files().reloaded("the test").unwrap();
        let _listener = Listener::telling(socket, tls, 4, refused).unwrap();
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert_eq!(told.recv().await, Some(plain.local_addr().unwrap()));
    }

    /// Sends `bytes` and no more; returns what came back when the server closes the connection.
    async fn until_closed(address: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_closed_and_a_working_one_is_not() {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let patience = Patience {
            first_request: Duration::from_millis(100),
            idle: Duration::from_millis(100),
        };
        let listener = Listener::patient(socket, (None, Arc::new(|_| {})), 16, patience).unwrap();
        // This answer is ready only when the silent connections are closed.
        let (done, work) = tokio::sync::watch::channel(false);
        let slow = async move || {
            let mut work = work.clone();
            let _closed = work.wait_for(|is_done| *is_done).await;
            "at last"
        };
        let routes = Router::new()
            .route("/slow", axum::routing::get(slow))
            .route("/", axum::routing::get(async || "hello"));
        tokio::spawn(serve(listener, routes, std::future::pending()));
        let slow = b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let working = tokio::spawn(until_closed(address, slow));
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let (_, _, _, kept_alive) = tokio::join!(
            until_closed(address, b""),
            until_closed(address, b"GET / HTTP/1.1\r\nhost"),
            until_closed(address, preface),
            until_closed(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
        );
        assert!(kept_alive.ends_with("hello"), "{kept_alive}");
        assert!(!working.is_finished());
        done.send(true).unwrap();
        let answer = working.await.unwrap();
        assert!(answer.ends_with("at last"), "{answer}");
    }
}
