//! Shipping without I/O of its own but the spool's: what to send next, and what a reply means.
//!
//! Driven over gRPC by [`super::Ship`], and by the simulator in `tests/` with a network of its own.
//! Two lanes: `Live` is the live epoch, events before metrics; `Backfill` drains older epochs,
//! newest first. In each lane one request is under way at a time.
//!
//! Limits: [`BEHIND`], [`CONFIRM_AFTER`], [`BACK_OFF_FIRST`] to [`BACK_OFF_MOST`].
//!
//! Longer than 500 lines because both lanes are one state, and what a reply means needs all of it.

use std::time::Duration;

use gpufleet_spool::disk::Disk;
use gpufleet_spool::{Dropped, Spool, SpoolError};
use gpufleet_telemetry::identity::{AgentId, Epoch};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::{Lane, Refusal, Stream};
use uuid::Uuid;

use crate::sample::nanos;
use crate::sample::own::StreamHealth;

/// When the next unsent record is older than this, live data get an epoch of their own, so that
/// they do not wait behind it.
pub const BEHIND: Duration = Duration::from_secs(60);

/// When nothing new is to be sent but something is not durable yet, its first request is sent again
/// after this long, as a question: the server commits every 20 s, so one that has not may have died. The
/// reply says how far it has folded, and what lies behind that is sent again.
pub const CONFIRM_AFTER: Duration = Duration::from_secs(25);

/// The first wait after a failure.
pub const BACK_OFF_FIRST: Duration = Duration::from_millis(500);

/// The longest wait after a failure: a server that comes back has its fleet within half a minute.
pub const BACK_OFF_MOST: Duration = Duration::from_secs(30);

/// The longest wait that a server may ask for; more would look like a dead agent.
const RETRY_INFO_MOST: Duration = Duration::from_secs(300);

/// Rewinds in a row without progress after which a lane backs off: server and spool disagree.
const REWINDS: u32 = 3;

/// Requests refused for ever in a row after which each one more waits: then it is not the requests
/// that are wrong, and the spool must not be emptied as fast as the network goes.
const REFUSALS: u32 = 3;

/// A process that appended nothing for so long stood still: two and a half of the longest ticks.
pub const STOOD_STILL: Duration = Duration::from_secs(150);

/// Epochs in the spool beyond which a new process goes on in the last one: a process that dies again
/// and again while the server is away must not push old data out of the spool's table of 64.
const MOST_EPOCHS_TO_BEGIN: usize = 32;

/// One request to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who sends; fixed for a shipper.
    pub agent: AgentId,
    /// Which process of it.
    pub session: u64,
    /// In which lane.
    pub lane: Lane,
    /// From which epoch.
    pub epoch: Epoch,
    /// From which stream.
    pub stream: Stream,
    /// Its place there.
    pub seq: u64,
    /// Seqs before it that will never be sent, both ends included.
    pub dropped: Option<(u64, u64)>,
    /// An encoded OTLP request.
    pub payload: Vec<u8>,
}

/// What to do in a lane.
#[derive(Debug)]
pub enum Next {
    /// Send this, and say what came of it.
    Send(Request),
    /// Ask again after this long, or when something was appended.
    Wait(Duration),
}

/// What the server answered to a request that it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reply {
    /// The highest seq of the stream on its disk; none from a receiver that does not know of
    /// epochs (a Collector), whose success is all there is.
    pub durable_seq: Option<u64>,
    /// The highest seq that it has folded; none from a receiver that does not say it.
    pub folded_seq: Option<u64>,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// The refusal, where it is one that an agent can act on.
    pub refusal: Option<Refusal>,
    /// The seq that the server wants.
    pub wanted_seq: Option<u64>,
    /// The highest seq on its disk.
    pub durable_seq: Option<u64>,
    /// How long it wants to be left alone.
    pub retry_after: Option<Duration>,
}

/// What a reply asks of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    GoOn,
    /// This request was refused for ever: it is out of the spool, keep a copy if you can.
    MovedAside {
        /// How many in this lane since one was taken; from the third on the lane waits.
        in_a_row: u32,
    },
    /// Another process sends under this agent id: take a new identity.
    NewIdentity,
    /// The server says that the clock is off; the data are kept until it is right.
    ClockIsOff,
}

/// What is known of one stream of one epoch.
#[derive(Debug)]
struct Track {
    epoch: Epoch,
    stream: Stream,
    /// The next seq to be sent.
    next: u64,
    /// The first seq that no server has taken yet. `next` goes back behind it when a server has forgotten
    /// what it took.
    untaken: u64,
    /// Whether `next` is what the server expects, or only the first record that is left.
    agreed: bool,
    sent: Duration,
    rewinds: u32,
}

/// When a lane may send again.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
    /// Requests refused for ever since one was taken.
    refusals: u32,
    not_before: Duration,
}

/// Ships one spool.
pub struct Shipper<D: Disk> {
    agent: AgentId,
    session: u64,
    spool: Spool<D>,
    /// When this process last appended something.
    appended: Option<Timestamp>,
    tracks: Vec<Track>,
    live: Patience,
    backfill: Patience,
    counts: [(u64, u64); 2],
    /// When the server last said of something, by stream, that it is durable now.
    durable_at: [Option<Timestamp>; 2],
    random: Box<dyn FnMut() -> Uuid + Send>,
}

impl<D: Disk> Shipper<D> {
    /// Ships this spool under this id. `random` is where epochs, the session and jitter come from.
    pub fn new(
        agent: AgentId,
        spool: Spool<D>,
        mut random: Box<dyn FnMut() -> Uuid + Send>,
    ) -> Self {
        Self {
            agent,
            session: random().as_u64_pair().1,
            spool,
            appended: None,
            tracks: Vec::new(),
            live: Patience::default(),
            backfill: Patience::default(),
            counts: [(0, 0); 2],
            durable_at: [None; 2],
            random,
        }
    }

    /// Adds a request and makes it safe. The first one of a process begins an epoch, and so does the first
    /// one after it stood still, unless the spool's newest is unused: the machine may have been set back
    /// to a snapshot of its disk, or of its disk and memory, so that the server has other requests under
    /// the seqs that come next.
    ///
    /// # Errors
    /// As [`Spool::append`] and [`Spool::sync`].
    pub fn append(
        &mut self,
        stream: Stream,
        payload: &[u8],
        at: Timestamp,
    ) -> Result<u64, SpoolError> {
        let bytes = payload.len();
        let _span = tracing::debug_span!("append", stream = stream.name(), bytes).entered();
        self.begin(at)?;
        let seq = self.spool.append(stream, payload, at)?;
        self.spool.sync()?;
        Ok(seq)
    }

    /// The epoch and the seq that the next request of a stream gets, when it is appended at `at`.
    ///
    /// # Errors
    /// When a new epoch cannot begin.
    pub fn next_place(
        &mut self,
        stream: Stream,
        at: Timestamp,
    ) -> Result<(Epoch, u64), SpoolError> {
        self.begin(at)?;
        let epoch = self.spool.epoch();
        Ok((epoch, self.spool.next_seq(epoch, stream)))
    }

    /// Begins an epoch where [`Self::append`] says so.
    fn begin(&mut self, at: Timestamp) -> Result<(), SpoolError> {
        let last = self.appended.replace(at);
        if last.is_none_or(|last| at.since(last) > nanos(STOOD_STILL)) {
            let epoch = self.spool.epoch();
            let mut streams = Stream::ALL.into_iter();
            let is_used = streams.any(|stream| self.spool.next_seq(epoch, stream) > 1);
            if is_used && self.spool.epochs().count() < MOST_EPOCHS_TO_BEGIN {
                self.start_epoch(at)?;
            }
        }
        Ok(())
    }

    /// The spool.
    pub fn spool(&mut self) -> &mut Spool<D> {
        &mut self.spool
    }

    /// The agent's id.
    pub fn agent(&self) -> AgentId {
        self.agent
    }

    /// What was given up since the last call.
    pub fn take_drops(&mut self) -> Vec<Dropped> {
        self.spool.take_drops()
    }

    /// How shipping is doing, by stream.
    pub fn health(&self) -> [StreamHealth; 2] {
        Stream::ALL.map(|stream| {
            let waiting = self.spool.waiting(stream);
            let (shipped, failures) = self.counts[stream as usize];
            StreamHealth {
                waiting_bytes: waiting.bytes,
                oldest: waiting.oldest,
                dropped: waiting.dropped,
                shipped,
                failures,
                durable_at: self.durable_at[stream as usize],
            }
        })
    }

    /// What to do next in a lane. `monotonic` never goes back; deadlines are counted by it.
    ///
    /// # Errors
    /// When the spool cannot be read.
    pub fn next(&mut self, lane: Lane, monotonic: Duration) -> Result<Next, SpoolError> {
        let patience = self.patience(lane);
        if patience.not_before > monotonic {
            return Ok(Next::Wait(patience.not_before - monotonic));
        }
        let live = self.spool.epoch();
        let epochs: Vec<Epoch> = self.spool.epochs().collect();
        self.tracks.retain(|track| epochs.contains(&track.epoch));
        for epoch in epochs {
            if (epoch == live) != (lane == Lane::Live) {
                continue;
            }
            for stream in [Stream::Logs, Stream::Metrics] {
                if let Some(request) = self.from(lane, epoch, stream, monotonic)? {
                    return Ok(Next::Send(request));
                }
            }
        }
        Ok(Next::Wait(CONFIRM_AFTER))
    }

    /// The next request of one stream: a new one, or an old one that may be durable by now.
    fn from(
        &mut self,
        lane: Lane,
        epoch: Epoch,
        stream: Stream,
        monotonic: Duration,
    ) -> Result<Option<Request>, SpoolError> {
        let track = self.track(epoch, stream);
        let (next, agreed, sent) = (track.next, track.agreed, track.sent);
        let mut record = self.spool.get(epoch, stream, next)?;
        let mut dropped = None;
        if let Some(record) = &record {
            if agreed && record.seq > next {
                dropped = Some((next, record.seq - 1));
            }
        } else if monotonic >= sent + CONFIRM_AFTER {
            record = self.spool.get(epoch, stream, 1)?;
        }
        let Some(record) = record else {
            return Ok(None);
        };
        self.track(epoch, stream).sent = monotonic;
        Ok(Some(Request {
            agent: self.agent,
            session: self.session,
            lane,
            epoch,
            stream,
            seq: record.seq,
            dropped,
            payload: record.payload,
        }))
    }

    /// The server has taken a request.
    ///
    /// # Errors
    /// When the spool's disk fails.
    pub fn on_reply(
        &mut self,
        request: &Request,
        reply: Reply,
        now: Timestamp,
    ) -> Result<(), SpoolError> {
        *self.patience(request.lane) = Patience::default();
        let durable = reply.durable_seq.unwrap_or(request.seq);
        // A server that does not say how far it has folded has this one, and perhaps no other.
        let folded = reply.folded_seq.unwrap_or(request.seq);
        let track = self.track(request.epoch, request.stream);
        let is_first_time = request.seq >= track.untaken;
        track.untaken = track.untaken.max(request.seq + 1);
        track.next = folded + 1;
        track.agreed = true;
        track.rewinds = 0;
        self.counts[request.stream as usize].0 += u64::from(is_first_time);
        self.known(request, durable, folded, now)?;
        if request.epoch == self.spool.epoch() && self.is_behind(now) {
            self.start_epoch(now)?;
        }
        Ok(())
    }

    /// A request was not taken.
    ///
    /// # Errors
    /// When the spool's disk fails.
    pub fn on_failure(
        &mut self,
        request: &Request,
        failure: &Failure,
        now: Timestamp,
        monotonic: Duration,
    ) -> Result<Verdict, SpoolError> {
        self.counts[request.stream as usize].1 += 1;
        if let Some(durable) = failure.durable_seq {
            self.known(request, durable, durable, now)?;
        }
        match (failure.refusal, failure.wanted_seq) {
            (Some(Refusal::WrongSeq), Some(wanted)) => {
                let track = self.track(request.epoch, request.stream);
                track.next = wanted;
                track.agreed = true;
                track.rewinds += 1;
                if track.rewinds > REWINDS {
                    self.back_off(request.lane, failure.retry_after, monotonic);
                }
                Ok(Verdict::GoOn)
            }
            (Some(Refusal::Invalid), _) => {
                self.spool
                    .refuse(request.epoch, request.stream, request.seq);
                let patience = self.patience(request.lane);
                patience.refusals += 1;
                let refusals = patience.refusals;
                if refusals >= REFUSALS {
                    self.back_off(request.lane, failure.retry_after, monotonic);
                } else {
                    patience.failures = 0;
                }
                Ok(Verdict::MovedAside { in_a_row: refusals })
            }
            (Some(Refusal::AgentIdConflict), _) => Ok(Verdict::NewIdentity),
            (Some(Refusal::ClockQuarantine), _) => {
                self.back_off(request.lane, Some(BACK_OFF_MOST), monotonic);
                Ok(Verdict::ClockIsOff)
            }
            _ => {
                self.back_off(request.lane, failure.retry_after, monotonic);
                Ok(Verdict::GoOn)
            }
        }
    }

    /// Takes what is durable out of the spool.
    fn known(
        &mut self,
        request: &Request,
        durable: u64,
        folded: u64,
        now: Timestamp,
    ) -> Result<(), SpoolError> {
        let next = self.spool.next_seq(request.epoch, request.stream);
        if durable.max(folded) >= next && request.epoch == self.spool.epoch() {
            // The server has seqs that this spool never gave out: its newest part was lost, so what
            // comes next must not be taken for what the server has already.
            return self.start_epoch(now);
        }
        // After a restart the server may have what is still in the spool: that leaves it now, and
        // must not be told as a gap.
        let track = self.track(request.epoch, request.stream);
        track.next = track.next.max(durable + 1);
        track.untaken = track.untaken.max(durable + 1);
        let before = self.spool.waiting(request.stream).bytes;
        self.spool.trim(request.epoch, request.stream, durable)?;
        if self.spool.waiting(request.stream).bytes < before {
            self.durable_at[request.stream as usize] = Some(now);
        }
        Ok(())
    }

    fn start_epoch(&mut self, now: Timestamp) -> Result<(), SpoolError> {
        let epoch = Epoch((self.random)());
        self.spool.start_epoch(epoch, now)
    }

    /// Whether the oldest record of the live epoch that no server has taken is too old for live data to
    /// wait for. What is sent again does not count: it is one commit's worth and soon done.
    fn is_behind(&mut self, now: Timestamp) -> bool {
        let oldest = Stream::ALL.map(|stream| self.oldest_untaken(stream));
        let mut oldest = oldest.into_iter().flatten();
        oldest.any(|at| now.since(at) > nanos(BEHIND))
    }

    /// Whether the live epoch has a record that no server has taken yet.
    pub fn has_unsent(&mut self) -> bool {
        let mut streams = Stream::ALL.into_iter();
        streams.any(|stream| self.oldest_untaken(stream).is_some())
    }

    fn oldest_untaken(&mut self, stream: Stream) -> Option<Timestamp> {
        let epoch = self.spool.epoch();
        let untaken = self.track(epoch, stream).untaken;
        let (_, at) = self.spool.peek(epoch, stream, untaken)?;
        Some(at)
    }

    fn track(&mut self, epoch: Epoch, stream: Stream) -> &mut Track {
        let found = self
            .tracks
            .iter()
            .position(|track| (track.epoch, track.stream) == (epoch, stream));
        let position = found.unwrap_or_else(|| {
            self.tracks.push(Track {
                epoch,
                stream,
                next: 1,
                untaken: 1,
                agreed: false,
                sent: Duration::ZERO,
                rewinds: 0,
            });
            self.tracks.len() - 1
        });
        &mut self.tracks[position]
    }

    fn patience(&mut self, lane: Lane) -> &mut Patience {
        match lane {
            Lane::Live => &mut self.live,
            Lane::Backfill => &mut self.backfill,
        }
    }

    /// Waits twice as long after each failure, by chance up to the whole of it, so that a fleet
    /// does not come back in one moment; at least as long as the server asks.
    fn back_off(&mut self, lane: Lane, asked: Option<Duration>, monotonic: Duration) {
        let chance = (self.random)().as_u64_pair().1 % 1_000;
        let patience = self.patience(lane);
        let most = BACK_OFF_FIRST
            .saturating_mul(1 << patience.failures.min(16))
            .min(BACK_OFF_MOST);
        let wait = most / 2 + most.mul_f64(chance as f64 / 2_000.0);
        patience.failures += 1;
        let asked = asked.unwrap_or_default().min(RETRY_INFO_MOST);
        patience.not_before = monotonic + wait.max(asked);
    }
}

impl<D: Disk> std::fmt::Debug for Shipper<D> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Shipper")
            .field("agent", &self.agent)
            .field("session", &self.session)
            .field("tracks", &self.tracks)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
