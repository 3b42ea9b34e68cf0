//! OTLP from others than agents: written to the server's own spool and synced before the reply,
//! then folded from it with a cursor of its own.
//!
//! One thread owns the spool. It takes what waits as one batch, so that many senders share a sync.
//! When the server begins to lead it folds what the spool still holds; until then nobody else can: the
//! spool lies on this machine. When the spool is full it refuses, because it
//! has promised to keep what it holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use gpufleet_spool::disk::{Disk, RealDisk};
use gpufleet_spool::{Limits as SpoolLimits, Record, Spool, SpoolError, WhenFull};
use gpufleet_telemetry::identity::{Epoch, attribute};
use gpufleet_telemetry::otlp::{self, Rejected};
use gpufleet_telemetry::time::Clock;
use gpufleet_telemetry::wire::{Lane, Stream};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::accept::{Request, limits};
use super::claimed;
use super::refuse::{Kind, Refused};
use crate::auth::Grant;
use crate::fleet::{Body, Drops, FOREIGN_AGENT, Fleet, Offer, Outcome};
use crate::store::model::{Cursor, CursorKey};

/// Requests that wait for the thread; more are refused. With the caps on requests it is bounded by
/// the requests at the same time, too.
const MAX_QUEUE: usize = 256;

/// Most requests that share one sync.
const MAX_BATCH: usize = 64;

/// How often the thread trims what has become durable, and tries again what met a full fleet.
const IDLE: Duration = Duration::from_secs(1);

/// When a sender that met a full queue or spool is to come again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What was left out of a request.
type LeftOut = (Rejected, Drops);

/// The way to the thread. Cheap to clone; the thread ends when the last one is gone.
#[derive(Clone)]
pub struct Foreign {
    queue: SyncSender<Waiting>,
}

struct Waiting {
    stream: Stream,
    payload: Vec<u8>,
    reply: oneshot::Sender<Result<LeftOut, Refused>>,
}

/// Why the server's own spool could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be used.
    #[error("cannot use the folder {folder} (ingest.spool_dir): {source}")]
    Folder {
        /// Which folder.
        folder: String,
        /// Why.
        source: std::io::Error,
    },
    /// What is in it cannot be read.
    #[error("cannot open the server's own spool: {0}")]
    Spool(#[from] SpoolError),
    /// The system gives no thread.
    #[error("cannot start the spool's thread: {0}")]
    Thread(std::io::Error),
}

impl Foreign {
    /// Takes the spool's folder for this process alone.
    ///
    /// # Errors
    /// When it cannot be used, or another server has it.
    pub fn lock_folder(folder: &str) -> Result<RealDisk, OpenError> {
        RealDisk::open(folder).map_err(|source| OpenError::Folder {
            folder: folder.to_owned(),
            source,
        })
    }

    /// Opens the spool in the folder.
    ///
    /// # Errors
    /// When what is on it cannot be used.
    pub fn open<D: Disk>(disk: D, clock: &dyn Clock) -> Result<Kept<D>, OpenError> {
        let limits = SpoolLimits {
            when_full: WhenFull::Refuse,
            ..SpoolLimits::default()
        };
        let (spool, opened) = Spool::open(disk, limits, Epoch(Uuid::new_v4()), clock.now())?;
        if opened.records > 0 || opened.bad_bytes > 0 {
            tracing::info!(
                records = opened.records,
                bad_bytes = opened.bad_bytes,
                "the server's own spool holds requests of others that are folded when it leads"
            );
        }
        Ok(Kept { spool })
    }

    /// Makes a request durable, folds it, and says what was left out of it.
    pub(super) async fn take(&self, request: Request, grant: Grant) -> Result<LeftOut, Refused> {
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            stream: request.stream(),
            payload: payload(request, &grant),
            reply,
        };
        self.queue.try_send(waiting).map_err(|error| match error {
            TrySendError::Full(_) => full("too many requests of others wait for the disk"),
            TrySendError::Disconnected(_) => gone(),
        })?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The spool of a server that does not lead yet.
pub struct Kept<D: Disk> {
    spool: Spool<D>,
}

impl<D: Disk + 'static> Kept<D>
where
    D::File: Send,
{
    /// How many requests it holds that nobody has made durable in the store, whose cursors these are.
    pub fn requests(&self, cursors: &[Cursor]) -> u64 {
        let mut requests = 0;
        for epoch in self.spool.epochs() {
            for stream in Stream::ALL {
                let key = CursorKey {
                    agent: FOREIGN_AGENT,
                    epoch,
                    stream,
                };
                let durable = cursors.iter().find(|it| it.key == key);
                let first = durable.map_or(0, |it| it.seq) + 1;
                requests += self.spool.next_seq(epoch, stream).saturating_sub(first);
            }
        }
        requests
    }

    /// Folds what it still holds, and starts the thread that owns it from now on.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        self,
        fleet: Arc<Fleet>,
        clock: Arc<dyn Clock>,
        default_cluster: &str,
    ) -> Result<Foreign, OpenError> {
        let mut keeper = Keeper {
            spool: self.spool,
            fleet,
            clock,
            default_cluster: default_cluster.into(),
        };
        keeper.drain(&mut HashMap::new());
        let (queue, waiting) = sync_channel(MAX_QUEUE);
        std::thread::Builder::new()
            .name("foreign-spool".to_owned())
            .spawn(move || keeper.run(&waiting))
            .map_err(OpenError::Thread)?;
        Ok(Foreign { queue })
    }
}

fn gone() -> Refused {
    Refused::new(Kind::Unavailable, "the server is stopping")
}

fn full(why: &str) -> Refused {
    let mut refused = Refused::new(Kind::Full, format!("{why}: try again"));
    refused.retry_after = Some(RETRY_AFTER);
    refused
}

/// The request as it is kept: with the cluster of its token written into every resource, because
/// the token is not known any more when the spool is read again, and what it says of ranks as claimed.
fn payload(request: Request, grant: &Grant) -> Vec<u8> {
    let bind = |resource: &mut Option<Resource>| {
        resource.iter_mut().for_each(claimed::mark);
        let Some(cluster) = &grant.cluster else {
            return;
        };
        let attributes = &mut resource.get_or_insert_default().attributes;
        attributes.retain(|it| it.key != attribute::CLUSTER);
        attributes.insert(0, claimed::text(attribute::CLUSTER, cluster));
    };
    match request {
        Request::Metrics(mut request) => {
            request
                .resource_metrics
                .iter_mut()
                .for_each(|it| bind(&mut it.resource));
            request.encode_to_vec()
        }
        Request::Logs(mut request) => {
            request
                .resource_logs
                .iter_mut()
                .for_each(|it| bind(&mut it.resource));
            request.encode_to_vec()
        }
    }
}

/// Who owns the spool.
struct Keeper<D: Disk> {
    spool: Spool<D>,
    fleet: Arc<Fleet>,
    clock: Arc<dyn Clock>,
    default_cluster: Arc<str>,
}

/// What was left out of the requests that were folded, by place.
type Folded = HashMap<(Stream, u64), LeftOut>;

impl<D: Disk> Keeper<D> {
    fn run(mut self, queue: &Receiver<Waiting>) {
        loop {
            let mut batch = Vec::new();
            match queue.recv_timeout(IDLE) {
                Ok(first) => batch.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            batch.extend(queue.try_iter().take(MAX_BATCH - 1));
            self.take(batch);
            self.trim();
        }
    }

    /// Makes a batch durable with one sync, folds it and answers.
    fn take(&mut self, batch: Vec<Waiting>) {
        let now = self.clock.now();
        let mut kept = Vec::new();
        for waiting in batch {
            match self.spool.append(waiting.stream, &waiting.payload, now) {
                Ok(seq) => kept.push((waiting.stream, seq, waiting.reply)),
                Err(error) => answer(waiting.reply, Err(refused(&error))),
            }
        }
        if let Err(error) = self.spool.sync() {
            for (_, _, reply) in kept {
                answer(reply, Err(refused(&error)));
            }
            return;
        }
        let mut folded = Folded::new();
        self.drain(&mut folded);
        for (stream, seq, reply) in kept {
            // What a full fleet did not take yet is on disk all the same, and is folded later.
            let left_out = folded.remove(&(stream, seq)).unwrap_or_default();
            answer(reply, Ok(left_out));
        }
    }

    /// Folds what the spool holds and the fleet has not folded.
    fn drain(&mut self, folded: &mut Folded) {
        let epochs: Vec<Epoch> = self.spool.epochs().collect();
        for epoch in epochs.into_iter().rev() {
            for stream in Stream::ALL {
                self.drain_stream(epoch, stream, folded);
            }
        }
    }

    fn drain_stream(&mut self, epoch: Epoch, stream: Stream, folded: &mut Folded) {
        let key = CursorKey {
            agent: FOREIGN_AGENT,
            epoch,
            stream,
        };
        loop {
            let wanted = self.fleet.folded_seq(&key) + 1;
            let record = match self.spool.get(epoch, stream, wanted) {
                Ok(Some(record)) => record,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot read the server's own spool");
                    return;
                }
            };
            let (seq, outcome, rejected) = self.fold(key, wanted, &record);
            match outcome {
                Outcome::Folded(drops) => {
                    folded.insert((stream, seq), (rejected, drops));
                }
                Outcome::Full => return,
                other => {
                    tracing::error!(
                        ?other,
                        seq,
                        "the fleet does not take the server's own spool"
                    );
                    return;
                }
            }
        }
    }

    fn fold(&self, key: CursorKey, wanted: u64, record: &Record) -> (u64, Outcome, Rejected) {
        let now = self.clock.now();
        let limits = limits(now);
        let offer = |body| {
            let offer = Offer {
                key,
                seq: record.seq,
                session: 0,
                lane: Lane::Live,
                dropped: (record.seq > wanted).then(|| (wanted, record.seq - 1)),
                sent_at: now,
                received: now,
                bound_cluster: None,
                default_cluster: Arc::clone(&self.default_cluster),
                body,
            };
            self.fleet.offer(&offer).outcome
        };
        // What was kept was decoded before, and the spool checks its sums: one that cannot be read is
        // a fault of ours. It counts as empty, so that what is behind it is still folded.
        let payload = &record.payload[..];
        let unreadable = |error: prost::DecodeError| {
            tracing::error!(seq = record.seq, %error, "a request of the server's own spool cannot be read; its points are lost");
        };
        let (outcome, rejected) = match key.stream {
            Stream::Metrics => {
                let request = ExportMetricsServiceRequest::decode(payload)
                    .map_err(unreadable)
                    .unwrap_or_default();
                let decoded = otlp::decode_metrics(request, &limits);
                (offer(Body::Metrics(&decoded)), decoded.rejected)
            }
            Stream::Logs => {
                let request = ExportLogsServiceRequest::decode(payload)
                    .map_err(unreadable)
                    .unwrap_or_default();
                let decoded = otlp::decode_events(request, &limits);
                (offer(Body::Events(&decoded)), decoded.rejected)
            }
        };
        (record.seq, outcome, rejected)
    }

    /// Takes away what a commit has made durable in the store.
    fn trim(&mut self) {
        let epochs: Vec<Epoch> = self.spool.epochs().collect();
        for epoch in epochs {
            for stream in Stream::ALL {
                let key = CursorKey {
                    agent: FOREIGN_AGENT,
                    epoch,
                    stream,
                };
                let durable = self.fleet.durable_seq(&key);
                if let Err(error) = self.spool.trim(epoch, stream, durable) {
                    tracing::warn!(%error, "cannot trim the server's own spool");
                }
            }
        }
    }
}

fn answer(reply: oneshot::Sender<Result<LeftOut, Refused>>, result: Result<LeftOut, Refused>) {
    // A sender that has hung up needs no answer; what it sent is kept all the same.
    let _hung_up = reply.send(result);
}

fn refused(error: &SpoolError) -> Refused {
    match error {
        SpoolError::TooLarge { .. } => Refused::new(Kind::TooLarge, error.to_string()),
        SpoolError::Full => full(&error.to_string()),
        SpoolError::Disk { .. } | SpoolError::Newer { .. } => {
            tracing::error!(%error, "the server's own spool");
            Refused::new(Kind::Unavailable, "the server's disk failed: try again")
        }
    }
}
