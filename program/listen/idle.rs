//! Connections that nobody uses are closed: a silent one keeps a file handle and a place.
//!
//! A connection has so long until its first request, and then so long without one. What counts is
//! requests whose head was read whole, so that one byte now and then does not keep it open.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Extension, Request};
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::IncomingStream;
use tokio::time::Sleep;

use super::Listener;

/// How long a connection may stand without a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Until the head of its first request.
    pub(super) first_request: Duration,
    /// After that; it may take twice as long.
    pub(super) idle: Duration,
}

/// Agents send every 10 s, OpenTelemetry's exporters every 60 s.
pub(super) const PATIENCE: Patience = Patience {
    first_request: Duration::from_secs(10),
    idle: Duration::from_secs(300),
};

/// Who is at the other end of a connection, for its requests.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address and port.
    pub address: SocketAddr,
    requests: Arc<Requests>,
}

/// The requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Requests {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// Says when a connection has been idle for too long.
pub(super) struct Idle {
    requests: Arc<Requests>,
    seen: usize,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    pub(super) fn begin(patience: Patience) -> Self {
        Self {
            requests: Arc::default(),
            seen: 0,
            timeout: patience.idle,
            timer: Box::pin(tokio::time::sleep(patience.first_request)),
        }
    }

    pub(super) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }

    /// Ready when the connection is to be closed.
    pub(super) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.timer.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => {
                    let begun = self.requests.begun.load(Ordering::Acquire);
                    let is_busy = begun != self.requests.ended.load(Ordering::Acquire);
                    if begun == self.seen && !is_busy {
                        return Poll::Ready(());
                    }
                    self.seen = begun;
                    self.timer = Box::pin(tokio::time::sleep(self.timeout));
                }
            }
        }
    }
}

impl Connected<IncomingStream<'_, Listener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        Self {
            address: *stream.remote_addr(),
            requests: stream.io().requests(),
        }
    }
}

/// Counts a request as one of its connection while it is worked on.
pub(super) async fn count(
    Extension(ConnectInfo(peer)): Extension<ConnectInfo<Peer>>,
    request: Request,
    next: Next,
) -> Response {
    /// Counts also when the request is given up half-way.
    struct Ending(Arc<Requests>);
    impl Drop for Ending {
        fn drop(&mut self) {
            self.0.ended.fetch_add(1, Ordering::Release);
        }
    }
    peer.requests.begun.fetch_add(1, Ordering::Release);
    let _ending = Ending(peer.requests);
    next.run(request).await
}
