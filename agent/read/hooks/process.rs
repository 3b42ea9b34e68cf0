//! One training process: its regions, and what they said last.

use std::sync::Arc;

use gpufleet_hooks_shm::process::began_at;
use gpufleet_hooks_shm::reader::{ReadError, Reader, Snapshot};
use gpufleet_hooks_shm::records::Probe;
use gpufleet_hooks_shm::server::{ClientId, Leaving, Peer};
use gpufleet_hooks_shm::words::WriterKind;
use gpufleet_hooks_tell::events::{Exit, Told};
use gpufleet_hooks_tell::rank::rank_id;
use gpufleet_hooks_tell::readings::Kept;
use gpufleet_telemetry::identity::Resource;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use uuid::Uuid;

use super::exit::Watch;
use super::kills::Cgroups;
use super::listen::Gone;
use super::ranks::Rank;
use super::steps::{self, Steps};
use super::together::{self, Longest};
use super::{MAX_REGIONS, Refused};

/// How long a process takes to go, nanoseconds: the driver frees what it held on GPUs after its first connection is
/// closed and before the kernel calls it ended.
const GOING: i64 = 5 * NANOS_PER_SECOND;

/// How long a process may take to say which rank it is, nanoseconds: models are loaded before its first batch.
const RANK_WITHIN: i64 = 300 * NANOS_PER_SECOND;

/// A process of this machine, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProcessId {
    pub(super) pid: i32,
    pub(super) start_ticks: u64,
}

/// A region and what it said last.
struct Region {
    reader: Reader,
    /// The connection that it came by.
    client: ClientId,
    kind: Option<WriterKind>,
    last: Option<Snapshot>,
    /// Its random number; none of what is no region.
    session: Option<Uuid>,
    /// The last step record that was read before the last snapshot.
    before: u64,
}

/// A training process.
pub(super) struct Process {
    watch: Watch,
    peer: Peer,
    regions: Vec<Region>,
    /// When its first connection of those that left together did; none while it is heard.
    left_at: Option<Timestamp>,
    /// When it ended; none while it lives.
    ended_at: Option<Timestamp>,
    /// Which rank it is, once it has said so and that was taken.
    pub(super) rank: Option<Rank>,
    /// What was told of it.
    pub(super) told: Told,
    /// What is kept of its readings from round to round.
    pub(super) kept: Kept,
    /// Its steps on their way to the spool.
    pub(super) steps: Steps,
    /// Its longest collectives.
    pub(super) longest: Longest,
    /// When the last of its probes that was handed on was over; 0 none.
    pub(super) probe_told: i64,
}

impl ProcessId {
    pub(super) fn of(peer: &Peer) -> Self {
        Self {
            pid: peer.pid,
            start_ticks: peer.start_ticks,
        }
    }
}

impl Process {
    pub(super) fn new(peer: Peer, cgroups: &mut Cgroups) -> Self {
        Self {
            watch: Watch::new(&peer, cgroups),
            peer,
            regions: Vec::new(),
            left_at: None,
            ended_at: None,
            rank: None,
            told: Told::default(),
            kept: Kept::default(),
            steps: Steps::default(),
            longest: Longest::new(),
            probe_told: 0,
        }
    }

    /// What it found with the probe inside it and was not handed on, and on which GPU: one that the driver
    /// lists it on, for it may claim any.
    pub(super) fn probed(&self) -> Option<(String, Probe)> {
        let gpu = self.rank.as_ref()?.proved_gpu()?;
        let probe = self.script()?.probe.as_ref()?;
        (probe.at != self.probe_told).then(|| (gpu.to_owned(), probe.clone()))
    }

    /// Takes a region of it; the oldest goes when there are too many. One that came before is read on
    /// from where it was; `spooled` says where the agent before this one was.
    pub(super) fn take(
        &mut self,
        client: ClientId,
        mut reader: Reader,
        spooled: impl FnOnce(Uuid) -> Option<u64>,
    ) {
        self.left_at = None;
        let header = reader.header(i64::MAX);
        let session = header.ok().map(|it| Uuid::from_u128(it.session));
        let is_same = |it: &Region| it.session.is_some() && it.session == session;
        if let Some(same) = self.regions.iter().position(is_same) {
            reader.go_on_from(self.regions.remove(same).reader.place());
        } else if let Some(record) = session.and_then(spooled) {
            reader.go_on_from((record, 0));
        }
        if self.regions.len() >= MAX_REGIONS {
            self.regions.remove(0);
        }
        self.regions.push(Region {
            reader,
            client,
            kind: None,
            last: None,
            session,
            before: 0,
        });
    }

    /// A connection of it is over. One that dies lets go of them one after the other, and of its devices in between.
    pub(super) fn left(&mut self, gone: &Gone) {
        if gone.reason == Leaving::Replaced {
            return;
        }
        let together = |first: &Timestamp| gone.at.since(*first) <= GOING;
        let first = self.left_at.filter(together).unwrap_or(gone.at);
        self.left_at = Some(first);
        if gone.reason == Leaving::Ended {
            self.ended(gone.at);
        }
    }

    /// The process is no more, as was seen now: what its regions say is the last that they will. It ended when it let go
    /// of its connections, where that was just before.
    pub(super) fn ended(&mut self, now: Timestamp) {
        let just_before = |at: &Timestamp| now.since(*at) <= GOING;
        let at = self.left_at.filter(just_before).unwrap_or(now);
        self.ended_at.get_or_insert(at);
    }

    /// Whether the kernel says that it is no more.
    pub(super) fn is_no_more(&self) -> bool {
        self.watch.has_ended()
    }

    /// Whether nothing will come of it any more.
    pub(super) fn is_gone(&self) -> bool {
        !self.lives() || self.regions.is_empty()
    }

    /// Whether it lives.
    pub(super) fn lives(&self) -> bool {
        self.ended_at.is_none()
    }

    /// How it ended; nothing while it lives.
    pub(super) fn exit(&self) -> Exit {
        match self.ended_at {
            Some(at) => Exit {
                at: Some(at),
                ..self.watch.exit()
            },
            None => Exit::default(),
        }
    }

    /// The connection by which its script takes a request for a profile, where it does.
    pub(super) fn takes_profile(&self) -> Option<ClientId> {
        let region = self
            .regions
            .iter()
            .find(|it| it.kind != Some(WriterKind::Nccl))?;
        let takes = region.last.as_ref()?.header.takes_profile;
        takes.then_some(region.client)
    }

    /// When it began, as the kernel says.
    pub(super) fn began(&self) -> Timestamp {
        Timestamp(began_at(self.peer.start_ticks))
    }

    /// Its container.
    pub(super) fn group(&self) -> &str {
        &self.peer.group
    }

    /// What the kernel says of it.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The resource of its rank.
    pub(super) fn resource(&self) -> Option<&Arc<Resource>> {
        self.rank.as_ref().map(|rank| &rank.resource)
    }

    /// Whether its script has not said for long which rank it is, and so is on nobody's page; NCCL's plugin alone never
    /// says it.
    pub(super) fn is_of_unknown_rank(&self, now: Timestamp) -> bool {
        let Some(first) = self.snapshots().next() else {
            return false;
        };
        let since = first.header.created_at.unwrap_or(now.0);
        let script = self.script().and_then(|it| it.identity.as_ref());
        let says = script.and_then(rank_id).is_some();
        !says && now.0 - since > RANK_WITHIN
    }

    /// Copies what its regions say. A region that is none any more is let go, and counted.
    pub(super) fn look(&mut self, now: Timestamp, refused: &mut Refused) {
        self.regions.retain_mut(|region| {
            region.before = region.reader.place().0;
            let error = match region.reader.snapshot(now.0) {
                Ok(snapshot) => {
                    for ((_, reason), count) in &snapshot.refused {
                        *refused.entry(reason.text()).or_default() += count;
                    }
                    region.kind = snapshot.header.writer;
                    if region.kind == Some(WriterKind::Nccl) {
                        together::measure(&snapshot, &mut self.longest);
                    }
                    region.last = Some(snapshot);
                    return true;
                }
                Err(error) => error,
            };
            *refused.entry(reason(&error)).or_default() += 1;
            false
        });
        // A newer region of the same writer replaces the older one: the process began it anew.
        let kinds: Vec<_> = self.regions.iter().map(|it| it.kind).collect();
        let mut place = 0;
        self.regions.retain(|region| {
            place += 1;
            !kinds.iter().skip(place).any(|later| *later == region.kind)
        });
    }

    /// Takes the script's steps out of what was copied, once: as far as there is a way for them and it
    /// is known whose they are. Else they stay in the ring.
    pub(super) fn gather(&mut self, is_shipped: bool) {
        let is_taken = self.rank.is_some() && (!self.lives() || !self.steps.is_full());
        let of_script = |it: &&mut Region| it.kind != Some(WriterKind::Nccl);
        let Some(region) = self.regions.iter_mut().find(of_script) else {
            return;
        };
        let Some(snapshot) = &mut region.last else {
            return;
        };
        if is_shipped {
            let (reader, before) = (&mut region.reader, region.before);
            steps::gather(&mut self.steps, reader, snapshot, before, is_taken);
        }
    }

    /// What the training script says of itself.
    pub(super) fn script(&self) -> Option<&Snapshot> {
        let of_script = |it: &&Region| it.kind != Some(WriterKind::Nccl);
        self.regions.iter().find(of_script)?.last.as_ref()
    }

    /// What its regions say, the script's first.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        let of_nccl = |it: &&Region| it.kind == Some(WriterKind::Nccl);
        let nccl = self.regions.iter().filter(of_nccl);
        let nccl = nccl.filter_map(|it| it.last.as_ref());
        self.script().into_iter().chain(nccl)
    }
}

fn reason(error: &ReadError) -> &'static str {
    match error {
        ReadError::Magic => "magic",
        ReadError::Version(_) => "version",
        ReadError::Size(_) => "size",
        ReadError::Session => "session",
        ReadError::WentBack { .. } => "went_back",
        ReadError::Count(_) => "count",
    }
}
