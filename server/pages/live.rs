//! `GET /live`: tells open pages, by server-sent events, when what they show may have changed.
//!
//! An event carries nothing but that: the page then asks for its own address as a fragment, as it does every ten
//! seconds while it is not told (assets/live.js). So there is one way to make a page and one to say who may see
//! it, and a stream costs next to nothing. There is news when the detectors have judged, every ten seconds, and
//! when a person has said something. A page that came by HTTP/1.1 and got no answer in time while it had a stream gives
//! that up and asks by itself for ten minutes: browsers have six such connections to a host, and six streams take them all.
//!
//! Limits: [`MOST`] streams, [`MOST_OF_A_TOKEN`] with one token, each for [`LASTS`] at most and told once in
//! [`LEAST_BETWEEN`].
//!
//! ```text
//! retry: 2000
//! : gpufleet
//!
//! data: changed
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::header::{CACHE_CONTROL, HeaderName, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::sync::watch;

use crate::auth::{Grant, Role};
use crate::web::{self, Web};

/// Most streams: each keeps a connection, and each event brings one request from every page.
pub const MOST: usize = 256;

/// Most streams with one token, so that whoever opens many leaves some to the others.
pub const MOST_OF_A_TOKEN: usize = 128;

/// How long a stream lasts; the page opens the next. A connection on which nobody asked for anything in 300 s is
/// closed, and who has gone without a word is to leave the place to others.
const LASTS: Duration = Duration::from_secs(240);

/// The least time between two events: what comes within it is told once.
const LEAST_BETWEEN: Duration = Duration::from_secs(1);

/// A line without meaning comes so often, because proxies close what says nothing for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// When a page comes back after a stream has ended.
const RETRY: Duration = Duration::from_secs(2);

/// When one that was refused may come back, seconds: live.js does, and asks by itself meanwhile.
const RETRY_REFUSED_S: u16 = 60;

/// Asks nginx, and what is like it, to pass on each event as it comes.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// How many streams are open, by whose token.
#[derive(Debug, Default)]
pub struct Streams {
    hashes: RandomState,
    open: Mutex<HashMap<Option<u64>, usize>>,
}

/// The place of one stream, free again when it is dropped.
#[derive(Debug)]
struct Slot {
    streams: Arc<Streams>,
    of: Option<u64>,
}

/// There is no place for another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    /// Of the server.
    Server,
    /// Of this token.
    Token,
}

/// An open page, as its stream knows it.
struct Follower {
    web: Arc<Web>,
    headers: HeaderMap,
    grant: Grant,
    news: watch::Receiver<()>,
    _slot: Slot,
}

/// `GET /live`.
pub async fn follow(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    headers: HeaderMap,
) -> Response {
    let slot = match web.streams.take(web::shown(&headers).as_deref()) {
        Ok(slot) => slot,
        Err(full) => return full.into_response(),
    };
    let stop = web.app.stop.clone();
    let over = async move {
        // Either way it is over.
        let _over = tokio::time::timeout(LASTS, stop.cancelled()).await;
    };
    let follower = Follower {
        news: web.app.news.subscribe(),
        web,
        headers,
        grant,
        _slot: slot,
    };
    let events = follower.events().take_until(Box::pin(over));
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let headers = [(ACCEL_BUFFERING, "no"), (CACHE_CONTROL, "no-store")];
    (headers, Sse::new(events).keep_alive(keep_alive)).into_response()
}

impl Follower {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        let first = Event::default().retry(RETRY).comment("gpufleet");
        let news = stream::unfold(self, async |mut follower: Self| {
            tokio::time::sleep(LEAST_BETWEEN).await;
            follower.news.changed().await.ok()?;
            let is_welcome = follower.is_welcome();
            is_welcome.then(|| (Event::default().data("changed"), follower))
        });
        stream::iter([first]).chain(news).map(Ok)
    }

    /// Whether its token is still good for what it was.
    fn is_welcome(&self) -> bool {
        let may = web::may(&self.web, &self.headers, Role::Read);
        may.as_ref() == Ok(&self.grant)
    }
}

impl Streams {
    /// A place for a stream with this token, or without any.
    fn take(self: &Arc<Self>, token: Option<&[u8]>) -> Result<Slot, Full> {
        let of = token.map(|it| self.hashes.hash_one(it));
        let mut open = self.lock();
        if open.values().sum::<usize>() >= MOST {
            return Err(Full::Server);
        }
        let own = open.entry(of).or_default();
        if of.is_some() && *own >= MOST_OF_A_TOKEN {
            return Err(Full::Token);
        }
        *own += 1;
        drop(open);
        Ok(Slot {
            streams: Arc::clone(self),
            of,
        })
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<u64>, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        if let Some(own) = open.get_mut(&self.of) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.of);
            }
        }
    }
}

impl IntoResponse for Full {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::Server => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{MOST} streams are open, the most of this server"),
            ),
            Self::Token => (
                StatusCode::TOO_MANY_REQUESTS,
                format!("{MOST_OF_A_TOKEN} streams are open with this token, the most of one"),
            ),
        };
        let body = format!("{why}; pages ask every 10 s instead\n");
        (status, [(RETRY_AFTER, RETRY_REFUSED_S)], body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_its_share_of_the_places_and_gives_each_back() {
        let streams = Arc::new(Streams::default());
        let take = |token: &[u8]| streams.take(Some(token));
        let mut first: Vec<_> = (0..MOST_OF_A_TOKEN).map(|_| take(b"a").unwrap()).collect();
        assert_eq!(take(b"a").unwrap_err(), Full::Token);
        let second: Vec<_> = (MOST_OF_A_TOKEN..MOST)
            .map(|_| take(b"b").unwrap())
            .collect();
        assert_eq!(take(b"c").unwrap_err(), Full::Server);
        assert_eq!(streams.take(None).unwrap_err(), Full::Server);
        first.pop();
        drop(take(b"c").unwrap());
        first.push(take(b"a").unwrap());
        drop((first, second));
        assert!(streams.lock().is_empty(), "nothing is kept of who has gone");
        let open: Vec<_> = (0..MOST).map(|_| streams.take(None).unwrap()).collect();
        assert_eq!(
            open.len(),
            MOST,
            "where no token is asked for, all may have all"
        );
    }

    #[test]
    fn all_open_pages_together_ask_no_more_often_than_the_server_answers_beside_its_tick() {
        let script = include_str!("assets/live.js");
        let of = |name: &str| -> usize {
            let (_, rest) = script
                .split_once(&format!("const {name} = "))
                .expect("it is named");
            let (number, _) = rest.split_once(';').expect("it ends");
            number.replace('_', "").parse().expect("a number")
        };
        let spread = of("SPREAD_MS");
        let a_second = MOST * 1_000 / spread;
        assert!(a_second <= 64, "{a_second} requests a second");
        assert!(
            2 * spread < of("PERIOD_MS"),
            "what is told is shown before the next"
        );
    }
}
