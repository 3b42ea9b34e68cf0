//! Requests that a door refused: counted by door and reason, and told once per peer and minute.
//!
//! They are read off the answers, at the outermost place of each door, so that none is missed, whoever
//! refused it. Limit: [`MAX_PEERS`] peers of one minute are told apart; of more, only the count goes on.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use gpufleet_program::listen::Peer;
use gpufleet_telemetry::time::{Minute, Timestamp};
use gpufleet_telemetry::wire::{self, Refusal};
use http::StatusCode;

use crate::App;

/// Most peers that are told apart in one minute: more are an attack, or a fleet with one wrong token.
const MAX_PEERS: usize = 1_024;

/// Where a request comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Door {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP.
    Http,
    /// Pages, API and /metrics.
    Web,
}

/// Why it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No token where one is needed.
    NoToken,
    /// A token that is not known, or not good for this.
    Forbidden,
    /// Larger than a cap.
    TooLarge,
    /// Of a content type that is not taken.
    ContentType,
    /// It cannot be understood.
    Invalid,
    /// No room at the moment.
    Busy,
    /// The server cannot take it at the moment: it starts, ends or is a standby.
    Unavailable,
    /// It took too long.
    TooSlow,
    /// The TLS handshake failed.
    Tls,
}

impl Door {
    /// Every door.
    pub const ALL: [Self; 3] = [Self::Grpc, Self::Http, Self::Web];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
            Self::Web => "web",
        }
    }
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::NoToken,
        Self::Forbidden,
        Self::TooLarge,
        Self::ContentType,
        Self::Invalid,
        Self::Busy,
        Self::Unavailable,
        Self::TooSlow,
        Self::Tls,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::Forbidden => "forbidden",
            Self::TooLarge => "too_large",
            Self::ContentType => "content_type",
            Self::Invalid => "invalid",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::TooSlow => "too_slow",
            Self::Tls => "tls",
        }
    }

    /// What a person who reads the log is to do; none for what goes by itself.
    pub const fn advice(self) -> Option<&'static str> {
        Some(match self {
            Self::NoToken => "it shows no token: give it one of auth.tokens",
            Self::Forbidden => "its token is not known, of another role or of another cluster",
            Self::TooLarge => "it is larger than is taken",
            Self::ContentType => "its content type is none that is taken",
            Self::Invalid => "it cannot be understood; the answer says why",
            Self::Tls => "the TLS handshake failed: look at the certificates of both sides",
            Self::Busy | Self::Unavailable | Self::TooSlow => return None,
        })
    }

    /// Why an answer over HTTP refuses; none when it does not, or as the protocol has it.
    fn of_http(status: StatusCode) -> Option<Self> {
        Some(match status {
            StatusCode::UNAUTHORIZED => Self::NoToken,
            StatusCode::FORBIDDEN => Self::Forbidden,
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::ContentType,
            StatusCode::BAD_REQUEST => Self::Invalid,
            StatusCode::TOO_MANY_REQUESTS => Self::Busy,
            StatusCode::SERVICE_UNAVAILABLE => Self::Unavailable,
            StatusCode::GATEWAY_TIMEOUT => Self::TooSlow,
            _ => return None,
        })
    }

    /// The same of gRPC, whose answers are all 200.
    fn of_grpc(response: &Response) -> Option<Self> {
        let header = |name| response.headers().get(name)?.to_str().ok();
        let code: i32 = header("grpc-status")?.parse().ok()?;
        let is_full = header(wire::REFUSAL) == Some(Refusal::Full.name());
        Some(match tonic::Code::from_i32(code) {
            tonic::Code::Unauthenticated => Self::NoToken,
            tonic::Code::PermissionDenied => Self::Forbidden,
            tonic::Code::ResourceExhausted if is_full => Self::Busy,
            tonic::Code::ResourceExhausted => Self::TooLarge,
            tonic::Code::InvalidArgument => Self::Invalid,
            tonic::Code::Unavailable => Self::Unavailable,
            tonic::Code::DeadlineExceeded => Self::TooSlow,
            _ => return None,
        })
    }
}

/// Whom a refusal was told of, where and why.
type Told = (Option<IpAddr>, Door, Reason);

/// What was refused since the start.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: [[AtomicU64; Reason::ALL.len()]; Door::ALL.len()],
    /// When the last one was, Unix milliseconds; 0 before the first.
    last_ms: [[AtomicI64; Reason::ALL.len()]; Door::ALL.len()],
    /// Whom it was told of lately.
    told: Mutex<HashMap<Told, Minute>>,
}

impl Refusals {
    /// Counts a refusal and tells it, unless it was told of this peer in this minute.
    pub fn note(&self, door: Door, reason: Reason, peer: Option<IpAddr>, now: Timestamp) {
        self.counts[door as usize][reason as usize].fetch_add(1, Ordering::Relaxed);
        self.last_ms[door as usize][reason as usize].store(now.millis(), Ordering::Relaxed);
        let Some(advice) = reason
            .advice()
            .filter(|_| self.is_news(door, reason, peer, now))
        else {
            return;
        };
        let peer = peer.map_or_else(|| "an unknown peer".to_owned(), |it| it.to_string());
        let (door, reason) = (door.name(), reason.name());
        tracing::warn!(door, reason, "a request of {peer} is refused: {advice}");
    }

    fn is_news(&self, door: Door, reason: Reason, peer: Option<IpAddr>, now: Timestamp) -> bool {
        let minute = now.minute();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MAX_PEERS {
            told.retain(|_, at| *at == minute);
        }
        if told.len() >= MAX_PEERS && !told.contains_key(&(peer, door, reason)) {
            return false;
        }
        told.insert((peer, door, reason), minute) != Some(minute)
    }

    /// When a door last refused something for this reason; none when it never did.
    pub fn last(&self, door: Door, reason: Reason) -> Option<Timestamp> {
        let last = self.last_ms[door as usize][reason as usize].load(Ordering::Relaxed);
        (last > 0).then(|| Timestamp::from_millis(last))
    }

    /// Every door and reason with its count.
    pub fn counts(&self) -> impl Iterator<Item = (Door, Reason, u64)> {
        Door::ALL.into_iter().flat_map(move |door| {
            Reason::ALL.into_iter().map(move |reason| {
                let count = &self.counts[door as usize][reason as usize];
                (door, reason, count.load(Ordering::Relaxed))
            })
        })
    }
}

/// Looks at every answer of a door.
pub async fn watch(
    State((app, door)): State<(App, Door)>,
    request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    let peer = peer.map(|it| it.0.address.ip());
    let response = next.run(request).await;
    let reason = match (door, response.status()) {
        (Door::Grpc, StatusCode::OK) => Reason::of_grpc(&response),
        (_, status) => Reason::of_http(status),
    };
    if let Some(reason) = reason {
        app.refusals.note(door, reason, peer, app.clock.now());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_told_once_a_minute_for_each_reason_and_counted_each_time() {
        let refusals = Refusals::default();
        let peer = |last| Some(IpAddr::from([10, 0, 0, last]));
        let at = |minute: i64| Minute(minute).start();
        let news =
            |reason, last, minute| refusals.is_news(Door::Grpc, reason, peer(last), at(minute));
        assert!(news(Reason::NoToken, 1, 5));
        assert!(!news(Reason::NoToken, 1, 5));
        assert!(news(Reason::Forbidden, 1, 5), "another reason");
        assert!(news(Reason::NoToken, 2, 5), "another peer");
        assert!(news(Reason::NoToken, 1, 6), "a minute later");
        for _ in 0..3 {
            refusals.note(Door::Web, Reason::TooLarge, None, at(7));
        }
        let counted: Vec<_> = refusals.counts().filter(|it| it.2 > 0).collect();
        assert_eq!(counted, [(Door::Web, Reason::TooLarge, 3)]);
        assert_eq!(refusals.last(Door::Web, Reason::TooLarge), Some(at(7)));
        assert_eq!(refusals.last(Door::Http, Reason::TooLarge), None);
    }

    #[test]
    fn many_peers_in_one_minute_are_told_up_to_a_limit_and_anew_in_the_next() {
        let refusals = Refusals::default();
        let news = |number: u32, minute: i64| {
            let peer = Some(IpAddr::from(number.to_be_bytes()));
            refusals.is_news(Door::Http, Reason::NoToken, peer, Minute(minute).start())
        };
        let told = (0..2_000).filter(|number| news(*number, 1)).count();
        assert_eq!(told, MAX_PEERS);
        assert!(news(1_999, 2));
    }
}
