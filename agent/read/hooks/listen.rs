//! The thread that listens for training processes and keeps the news until the reader's next round.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gpufleet_hooks_shm::server::{self, Client, ClientId, Event, Leaving, Limits, Listener};
use gpufleet_hooks_shm::wire::{Ask, Refusal};
use gpufleet_telemetry::time::Timestamp;

use crate::read::ReadError;

/// Longest wait of one turn: so long does the end of the agent wait for the thread.
const TURN: Duration = Duration::from_millis(200);

/// Most clients whose news wait for a round: four rounds of a flood. Beyond it regions are let go.
const MAX_WAITING: usize = 2_048;

/// What happened since the last round.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) joined: Vec<Client>,
    pub(super) left: Vec<Gone>,
    pub(super) refused: BTreeMap<Refusal, u64>,
}

/// A connection that is over.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) id: ClientId,
    pub(super) reason: Leaving,
    /// When that was seen.
    pub(super) at: Timestamp,
}

/// The thread; it ends when this is dropped.
pub(super) struct Listening {
    news: Arc<Mutex<News>>,
    asks: Arc<Mutex<Asks>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What is to be said to clients after the turn.
type Asks = Vec<(ClientId, Ask)>;

impl Listening {
    /// Binds the socket and starts the thread.
    pub(super) fn start(socket: &Path, limits: Limits) -> Result<Self, ReadError> {
        let listener = Listener::bind(socket, limits, Box::new(server::cgroup))
            .map_err(|error| refusal(socket, &error))?;
        let news: Arc<Mutex<News>> = Arc::default();
        let is_over: Arc<AtomicBool> = Arc::default();
        let asks: Arc<Mutex<Asks>> = Arc::default();
        let (of_thread, over) = (Arc::clone(&news), Arc::clone(&is_over));
        let to_say = Arc::clone(&asks);
        let thread = std::thread::Builder::new()
            .name("hooks".to_owned())
            .spawn(move || run(listener, &of_thread, &to_say, &over))
            .map_err(|error| refusal(socket, &error))?;
        Ok(Self {
            news,
            asks,
            is_over,
            thread: Some(thread),
        })
    }

    /// Whether the thread gave up: the kernel takes no connection any more.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What happened since the last call.
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is to be said to clients, at the end of the turn, in this order. What a round says again is said once.
    pub(super) fn ask(&self, asks: Asks) {
        let mut waiting = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|it| !asks.contains(it));
        waiting.extend(asks);
        waiting.truncate(MAX_WAITING);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has let go of the socket as well.
            let _ = thread.join();
        }
    }
}

fn run(mut listener: Listener, news: &Mutex<News>, asks: &Mutex<Asks>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        match listener.turn(TURN) {
            Ok(events) => {
                let mut news = news.lock().unwrap_or_else(PoisonError::into_inner);
                events.into_iter().for_each(|event| news.note(event));
                drop(news);
                let asks =
                    std::mem::take(&mut *asks.lock().unwrap_or_else(PoisonError::into_inner));
                asks.into_iter().for_each(|(id, ask)| listener.ask(id, ask));
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "training processes are not heard; it is tried again");
                return;
            }
        }
    }
}

impl News {
    fn note(&mut self, event: Event) {
        match event {
            Event::Joined(client) if self.joined.len() < MAX_WAITING => self.joined.push(*client),
            Event::Joined(_) => *self.refused.entry(Refusal::Clients).or_default() += 1,
            // What is not noted here is found out by looking for the process.
            Event::Left { id, reason, at } if self.left.len() < MAX_WAITING => {
                let at = Timestamp(at);
                self.left.push(Gone { id, reason, at });
            }
            Event::Left { .. } => {}
            Event::Refused { reason, .. } => *self.refused.entry(reason).or_default() += 1,
        }
    }
}

fn refusal(socket: &Path, error: &io::Error) -> ReadError {
    let path = socket.display();
    match error.kind() {
        io::ErrorKind::AddrInUse => ReadError::Unavailable {
            why: format!("another agent listens at {path}: stop it, or set hooks.socket_path"),
        },
        io::ErrorKind::PermissionDenied => ReadError::NotPermitted {
            what: format!("a socket at {path}"),
            fix: "give the folder to the agent's user".to_owned(),
        },
        _ => ReadError::Unavailable {
            why: format!("cannot listen at {path}: {error}"),
        },
    }
}
