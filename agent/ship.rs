//! Shipping: from the spool to the server, over OTLP/gRPC.
//!
//! What to send and what a reply means is decided in [`state`]; this drives it. The disk is only
//! touched from blocking threads, so that a slow one delays nobody's turn.

pub mod aside;
mod client;
pub mod failures;
pub mod identity;
pub mod state;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_program::reloaded::words;
use gpufleet_program::section;
use gpufleet_program::tls::{ClientFiles, Setting};
use gpufleet_spool::disk::Disk;
use gpufleet_spool::{Dropped, SpoolError};
use gpufleet_telemetry::command::Command;
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Epoch, Resource};
use gpufleet_telemetry::otlp::{encode_events, encode_metrics, encode_steps};
use gpufleet_telemetry::tick::ResourceTick;
use gpufleet_telemetry::time::{Clock, Timestamp};
use gpufleet_telemetry::wire::{Lane, Stream};
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use self::client::{Client, Parts};
use self::state::{Next, Request, Shipper, Verdict};
use crate::sample::own::ShipHealth;
use crate::steps::{Shipment, Spooled};

/// Most points in one request, about 2 MB encoded: far below what the server takes.
const MAX_POINTS: usize = 20_000;

/// Most refused requests that are kept for a person to look at.
const MAX_REFUSED_FILES: usize = 16;

/// A failing server is named in the log at most this often.
const LOG_EVERY: Duration = Duration::from_secs(60);

section! {
    /// Where and how readings are sent.
    pub struct ShipConfig {
        /// The server's OTLP/gRPC address, `http://host:4317` or `https://…`; empty means that nothing
        /// is sent and nothing is spooled: the agent then serves /metrics only.
        pub endpoint: String = "http://127.0.0.1:4317".to_owned(),
        /// A file with the bearer token of role `ingest`; read again when it changes, and one that
        /// cannot be used leaves the token before in use. Empty means none.
        pub token_file: PathBuf = PathBuf::new(),
        /// A file with the certificates (PEM) that the server's must come from; empty means the
        /// system's. This and the two below are read again when they change.
        pub ca_file: PathBuf = PathBuf::new(),
        /// A file with this agent's own certificate (PEM), for mutual TLS; empty means none.
        pub certificate_file: PathBuf = PathBuf::new(),
        /// A file with the key of that certificate (PEM).
        pub key_file: PathBuf = PathBuf::new(),
        /// How requests are compressed: `gzip`, `zstd` or `none`.
        pub compression: Compression = Compression::default(),
        /// Seconds after which an unanswered request counts as failed.
        pub timeout_seconds: u64 = 10,
    }
}

impl ShipConfig {
    /// Builds what shipping needs, and sends nothing.
    ///
    /// # Errors
    /// Names the key or the file that cannot be used.
    pub fn rehearse(&self) -> anyhow::Result<()> {
        if self.endpoint.is_empty() {
            return Ok(());
        }
        Parts::new(self).map(|_| ())
    }

    fn tls_files(&self) -> ClientFiles {
        ClientFiles {
            authorities: Setting::new("ship.ca_file", &self.ca_file),
            certificate: Setting::new("ship.certificate_file", &self.certificate_file),
            key: Setting::new("ship.key_file", &self.key_file),
        }
    }
}

/// How requests are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Every Collector takes it.
    #[default]
    Gzip,
    /// Smaller and cheaper.
    Zstd,
    /// Not at all.
    None,
}

/// A spool on its way to the server. Clones are the same one.
#[derive(Debug)]
pub struct Ship<D: Disk>(Arc<Inner<D>>);

#[derive(Debug)]
struct Inner<D: Disk> {
    shipper: Mutex<Shipper<D>>,
    /// The node of the agent, which tells the events.
    sender: Arc<Resource>,
    /// Where requests that are refused for ever are kept; none keeps no copy.
    refused_folder: Option<PathBuf>,
    health: ShipHealth,
    appended: [Notify; 2],
}

/// Why shipping ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was told to stop.
    Stopped,
    /// Another process sends under this agent's id.
    NewIdentity,
}

impl<D: Disk> Clone for Ship<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D> Ship<D>
where
    D: Disk + 'static,
{
    /// Ships with this shipper; `sender` is the node that its events come from.
    pub fn new(
        shipper: Shipper<D>,
        sender: Arc<Resource>,
        refused_folder: Option<PathBuf>,
        health: ShipHealth,
    ) -> Self {
        health.update(|it| it.streams = shipper.health());
        Self(Arc::new(Inner {
            shipper: Mutex::new(shipper),
            sender,
            refused_folder,
            health,
            appended: [Notify::new(), Notify::new()],
        }))
    }

    /// Where the next request of metrics will lie, when it is spooled at `at`.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub async fn next_place(&self, at: Timestamp) -> Result<(Epoch, u64), SpoolError> {
        let place = move |shipper: &mut Shipper<D>| shipper.next_place(Stream::Metrics, at);
        self.blocking(at, place).await
    }

    /// Spools a tick and sends it as soon as it is safe.
    ///
    /// # Errors
    /// When the spool cannot take it: the tick is then lost and the error says why.
    pub async fn tick(&self, ticks: Vec<ResourceTick>, at: Timestamp) -> Result<(), SpoolError> {
        let mut from = 0;
        while from < ticks.len() {
            let mut points = 0;
            let fit = ticks[from..]
                .iter()
                .take_while(|tick| {
                    points += tick.points.len();
                    points <= MAX_POINTS
                })
                .count()
                .max(1);
            let payload = encode_metrics(&ticks[from..from + fit]).encode_to_vec();
            from += fit;
            self.append(Stream::Metrics, payload, at).await?;
        }
        Ok(())
    }

    /// Spools events and sends them as soon as they are safe.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub async fn events(&self, events: &[Event], at: Timestamp) -> Result<(), SpoolError> {
        let payload = encode_events(events, &self.0.sender).encode_to_vec();
        self.append(Stream::Logs, payload, at).await
    }

    /// Spools steps, notes that they are, and sends them as soon as they are safe.
    ///
    /// # Errors
    /// As [`Self::tick`], and when it cannot be noted: nothing is spooled then.
    pub async fn steps(
        &self,
        shipment: Shipment,
        spooled: Arc<Spooled>,
        at: Timestamp,
    ) -> Result<(), SpoolError> {
        let ranks = shipment.ranks.iter();
        let ranks = ranks.map(|(id, blocks)| (&**id, blocks.as_slice()));
        let payload = encode_steps(ranks, &self.0.sender).encode_to_vec();
        self.blocking(at, move |shipper| {
            let place = shipper.next_place(Stream::Logs, at)?;
            let unwritable = |source| SpoolError::Disk {
                doing: "note how far steps are spooled",
                source,
            };
            spooled.around(place, &shipment.places, unwritable, || {
                shipper.append(Stream::Logs, &payload, at).map(|_| ())
            })
        })
        .await?;
        self.0.appended[0].notify_one();
        Ok(())
    }

    /// Spools an encoded request and sends it as soon as it is safe.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub async fn append(
        &self,
        stream: Stream,
        payload: Vec<u8>,
        at: Timestamp,
    ) -> Result<(), SpoolError> {
        let appended = self
            .blocking(at, move |shipper| {
                shipper.append(stream, &payload, at).map(|_| ())
            })
            .await;
        let spool_error = appended.as_ref().err().map(|error| words(error));
        self.0.health.update(|it| it.spool_error = spool_error);
        appended?;
        self.0.appended[0].notify_one();
        Ok(())
    }

    /// Whether something was spooled that the server has not been sent.
    pub async fn has_unsent(&self, now: Timestamp) -> bool {
        let unsent = self.blocking(now, |shipper| Ok(shipper.has_unsent()));
        unsent.await.unwrap_or(false)
    }

    /// Ships both lanes until `stop` is cancelled or another process has this id. Commands that
    /// ride in the replies go to `commands`.
    ///
    /// # Errors
    /// When the config cannot be used.
    pub async fn run(
        &self,
        config: &ShipConfig,
        clock: Arc<dyn Clock>,
        commands: mpsc::Sender<Command>,
        stop: CancellationToken,
    ) -> anyhow::Result<End> {
        let client = Client::new(Parts::new(config)?);
        let live = self.lane(Lane::Live, client.clone(), &clock, &commands, &stop);
        let backfill = self.lane(Lane::Backfill, client, &clock, &commands, &stop);
        let end = tokio::select! {
            end = live => end,
            end = backfill => end,
        };
        Ok(end)
    }

    async fn lane(
        &self,
        lane: Lane,
        mut client: Client,
        clock: &Arc<dyn Clock>,
        commands: &mpsc::Sender<Command>,
        stop: &CancellationToken,
    ) -> End {
        let mut logged: Option<Duration> = None;
        loop {
            let monotonic = clock.monotonic();
            let next = self
                .blocking(clock.now(), move |shipper| shipper.next(lane, monotonic))
                .await;
            let request = match next {
                Ok(Next::Send(request)) => request,
                Ok(Next::Wait(wait)) => {
                    tokio::select! {
                        () = stop.cancelled() => return End::Stopped,
                        () = tokio::time::sleep(wait) => {}
                        () = self.0.appended[lane as usize].notified() => {}
                    }
                    continue;
                }
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the spool cannot be read"
                    );
                    tokio::select! {
                        () = stop.cancelled() => return End::Stopped,
                        () = tokio::time::sleep(state::BACK_OFF_MOST) => {}
                    }
                    continue;
                }
            };
            let span = tracing::debug_span!(
                "send",
                lane = lane.name(),
                stream = request.stream.name(),
                seq = request.seq
            );
            let answer = tokio::select! {
                () = stop.cancelled() => return End::Stopped,
                answer = client.send(&request, clock.now()).instrument(span) => answer,
            };
            if let Some(command) = answer.command {
                // When it is full the server gives the command again.
                let _ = commands.try_send(command);
            }
            let (now, monotonic) = (clock.now(), clock.monotonic());
            let refused = answer.refused;
            if let Some((reason, message)) = &refused {
                let reason = *reason;
                if logged.is_none_or(|at| monotonic > at + LOG_EVERY) {
                    logged = Some(monotonic);
                    tracing::warn!(
                        lane = lane.name(),
                        stream = request.stream.name(),
                        seq = request.seq,
                        reason = reason.name(),
                        answer = message,
                        "a request was not taken; it stays in the spool"
                    );
                }
                self.0.health.update(|it| it.failed(reason, message));
            } else {
                if logged.take().is_some() {
                    tracing::info!(lane = lane.name(), "the server takes requests again");
                }
                self.0.health.update(|it| it.failing = None);
            }
            let inner = Arc::clone(&self.0);
            let message = refused.map(|(_, message)| message).unwrap_or_default();
            let verdict = self
                .blocking(now, move |shipper| match answer.result {
                    Ok(reply) => shipper
                        .on_reply(&request, reply, now)
                        .map(|()| Verdict::GoOn),
                    Err(failure) => {
                        let verdict = shipper.on_failure(&request, &failure, now, monotonic);
                        if let Ok(Verdict::MovedAside { in_a_row }) = verdict {
                            inner.keep_aside(&request, &message, in_a_row);
                        }
                        verdict
                    }
                })
                .await;
            match verdict {
                Ok(Verdict::NewIdentity) => return End::NewIdentity,
                Ok(Verdict::GoOn | Verdict::MovedAside { .. } | Verdict::ClockIsOff) => {}
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "the spool failed");
                }
            }
            // A new epoch may have begun: the other lane has work then.
            self.0.appended[1].notify_one();
        }
    }

    /// Works on the shipper where it may block, and tells what was given up on the way.
    async fn blocking<T: Send + 'static>(
        &self,
        now: Timestamp,
        work: impl FnOnce(&mut Shipper<D>) -> Result<T, SpoolError> + Send + 'static,
    ) -> Result<T, SpoolError> {
        let inner = Arc::clone(&self.0);
        let span = tracing::Span::current();
        tokio::task::spawn_blocking(move || {
            let _within = span.entered();
            let mut shipper = inner.shipper.lock().unwrap_or_else(PoisonError::into_inner);
            let result = work(&mut shipper);
            let drops = shipper.take_drops();
            if !drops.is_empty() {
                let events: Vec<Event> = drops
                    .iter()
                    .map(|dropped| told(dropped, now, &inner.sender))
                    .collect();
                let payload = encode_events(&events, &inner.sender).encode_to_vec();
                if let Err(error) = shipper.append(Stream::Logs, &payload, now) {
                    tracing::warn!(%error, drops = drops.len(), "requests were given up, and even that could not be spooled");
                }
            }
            let streams = shipper.health();
            inner.health.update(|it| it.streams = streams);
            result
        })
        .await
        .expect("work on the shipper does not panic and is not cancelled")
    }
}

impl<D: Disk> Inner<D> {
    /// Keeps a copy of a request that no server will take, for a person to look at.
    fn keep_aside(&self, request: &Request, message: &str, in_a_row: u32) {
        tracing::warn!(
            stream = request.stream.name(),
            seq = request.seq,
            answer = message,
            in_a_row,
            "a request was refused for ever: it is moved aside; after a few in a row it is sent slowly"
        );
        let Some(folder) = &self.refused_folder else {
            return;
        };
        let name = format!(
            "{}-{}-{}.bin",
            request.epoch,
            request.stream.name(),
            request.seq
        );
        let kept = std::fs::create_dir_all(folder).and_then(|()| {
            if std::fs::read_dir(folder)?.count() < MAX_REFUSED_FILES {
                std::fs::write(folder.join(&name), &request.payload)?;
            }
            Ok(())
        });
        if let Err(error) = kept {
            tracing::warn!(%error, file = name, "the refused request could not be kept");
        }
    }
}

/// The event that tells of requests that were given up.
fn told(dropped: &Dropped, now: Timestamp, sender: &Resource) -> Event {
    let count = dropped.last - dropped.first + 1;
    let attributes = [
        ("stream", dropped.stream.name().to_owned()),
        ("epoch", dropped.epoch.to_string()),
        ("first", dropped.first.to_string()),
        ("last", dropped.last.to_string()),
        ("why", dropped.why.name().to_owned()),
    ];
    Event {
        at: now,
        kind: EventKind::SpoolDropped,
        severity: Severity::Error,
        resource_kind: sender.kind,
        resource_id: Arc::clone(&sender.id),
        message: format!(
            "the spool gave up {count} {} request(s), {}..={}: {}",
            dropped.stream.name(),
            dropped.first,
            dropped.last,
            dropped.why.name()
        ),
        attributes: attributes
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    }
}
