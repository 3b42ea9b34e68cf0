//! A service on a port of loopback, that answers as it should until it is told to do otherwise.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::time::Clock as _;

use super::Service;

/// How long a receiver that hangs does: longer than any patience.
const HANGS: Duration = Duration::from_secs(600);
/// What a receiver sends that does not stop: 100 MB in pieces.
const PIECE: usize = 1 << 20;
const PIECES: usize = 100;

/// What the service does next, instead of what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mood {
    /// What it should.
    Well,
    /// Answers this status with this body.
    Says(u16, String),
    /// Answers 429 and asks for so many seconds.
    Busy(u64),
    /// Takes the message and does not answer.
    Hangs,
    /// Answers its status and 100 MB.
    Endless(u16),
    /// Takes the message and says that it failed.
    TakesAndFails,
}

/// A running service; it stops when it is dropped.
#[derive(Debug)]
pub struct Running {
    /// `127.0.0.1:1234`.
    pub address: String,
    held: Held,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Debug, Clone)]
struct Held(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    service: Service,
    mood: Mood,
    /// A request, by its number, with which the mood changes.
    turns: Option<(u64, Mood)>,
    /// Every answer that it gave, in order.
    answers: Vec<u16>,
    requests: u64,
}

impl Running {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start(service: Service) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be started");
        let held = Held(Arc::new(Mutex::new(Inner {
            service,
            mood: Mood::Well,
            turns: None,
            answers: Vec::new(),
            requests: 0,
        })));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let router = Router::new().fallback(take).with_state(held.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            address,
            held,
            _runtime: runtime,
        }
    }

    /// Changes what it does.
    pub fn mood(&self, mood: Mood) {
        self.lock().mood = mood;
    }

    /// Changes what it does now, and once more with the request that is the `count`th from now.
    pub fn mood_until(&self, mood: Mood, count: u64, then: Mood) {
        let mut inner = self.lock();
        inner.mood = mood;
        inner.turns = Some((inner.requests + count, then));
    }

    /// The service as it is now.
    pub fn service(&self) -> Service {
        self.lock().service.clone()
    }

    /// Every answer of the service itself, in order.
    pub fn answers(&self) -> Vec<u16> {
        self.lock().answers.clone()
    }

    /// Requests that came.
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.held.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn take(State(held): State<Held>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let (mood, (status, said)) = {
        let mut inner = held.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.requests += 1;
        let requests = inner.requests;
        if let Some((_, then)) = inner.turns.take_if(|it| it.0 <= requests) {
            inner.mood = then;
        }
        let mood = inner.mood.clone();
        let takes = matches!(
            mood,
            Mood::Well | Mood::Hangs | Mood::Endless(_) | Mood::TakesAndFails
        );
        let reply = match takes {
            true => {
                let now = SystemClock::start().now().seconds();
                let reply = inner.service.take(uri.path(), &headers, &body, now);
                inner.answers.push(reply.0);
                reply
            }
            false => (500, String::new()),
        };
        (mood, reply)
    };
    let answer = |status: u16, said: String| {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT);
        (status, said).into_response()
    };
    match mood {
        Mood::Well => answer(status, said),
        Mood::Says(status, said) => answer(status, said),
        Mood::TakesAndFails => answer(503, "try again".to_owned()),
        Mood::Busy(seconds) => {
            let mut busy = answer(429, "slow down".to_owned());
            let value = HeaderValue::from(seconds);
            busy.headers_mut()
                .insert(HeaderName::from_static("retry-after"), value);
            busy
        }
        Mood::Hangs => {
            tokio::time::sleep(HANGS).await;
            answer(status, said)
        }
        Mood::Endless(status) => {
            let piece = Bytes::from(vec![b'x'; PIECE]);
            let pieces = futures::stream::iter(0..PIECES)
                .map(move |_| Ok::<_, std::io::Error>(piece.clone()));
            let mut endless = answer(status, String::new());
            *endless.body_mut() = Body::from_stream(pieces);
            endless
        }
    }
}
