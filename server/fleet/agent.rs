//! One agent: its session, how far its streams are folded, and the commands that wait for it.
//!
//! Per (agent, epoch, stream) only seq = folded + 1 is folded. A lower one has been folded already,
//! a higher one is refused with the wanted seq, and a gap passes only when the agent says which
//! seqs it dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::identity::{AgentId, Epoch, Origin};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::commands::Commands;
use super::introduce::Introduced;
use super::live::LiveAgent;
use super::sender_clock::{Clocks, QUARANTINED, TOLERATED};
use super::server_clock::Vote;
use crate::store::model::{Cursor, CursorKey, Gap};

/// Most streams remembered of one agent: two per epoch, and an agent opens a new epoch at most once
/// a minute while it is cut off. The one that was silent for longest is forgotten first; the store
/// keeps it.
pub const MAX_STREAMS: usize = 4_096;

/// Sessions that were replaced and are refused from then on.
const MAX_RETIRED: usize = 16;

/// An event about one agent's identity or clock is told at most this often, nanoseconds.
const TOLD_AGAIN: i64 = 600 * NANOS_PER_SECOND;

/// What one stream's request is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The next one, after these dropped seqs, if any.
    Next { gap: Option<(u64, u64)> },
    /// Folded before.
    Already,
    /// Too early.
    Wrong { wanted: u64 },
}

/// Which process speaks for the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Session {
    /// The one that spoke last, or the first.
    Current,
    /// One that a newer has replaced.
    Retired,
    /// One that sent this before the current one sent its last, or its first if it was heard before: most
    /// likely a request of a dead process, or of before the config was read again, that took long. It is
    /// not worth a conflict.
    Late,
}

/// For so long a request of a dead process may still arrive, nanoseconds.
const LATE: i64 = 60 * NANOS_PER_SECOND;

/// The process that speaks for an agent.
#[derive(Debug, Clone, Copy)]
struct Speaker {
    session: u64,
    /// The newest time of sending and the time of its arrival.
    sent_at: Timestamp,
    received: Timestamp,
}

/// One stream of one epoch.
#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) cursor: Cursor,
    /// The highest seq that is on the server's disk.
    pub(super) durable: u64,
    /// Whether the cursor has moved since the last commit took it.
    pub(super) dirty: bool,
}

/// One agent.
#[derive(Debug)]
pub(super) struct AgentState {
    pub(super) live: LiveAgent,
    pub(super) streams: Vec<StreamState>,
    /// Resources that are counted against the agent's limit.
    pub(super) resources: usize,
    /// The cluster it was first heard in; none before its first data under a token of any cluster.
    /// A token that is bound to another cluster does not speak for it.
    pub(super) home: Option<Arc<str>>,
    /// How much what `live` says of node, cluster and version is to be trusted.
    pub(super) introduced: Introduced,
    /// Whether its live data calls its cluster or node otherwise than before, and what it told of by the former name is
    /// still shown.
    pub(super) is_renamed: bool,
    /// The cluster name it sent last, and what it became.
    pub(super) cluster: Option<(Origin, Box<str>, Arc<str>)>,
    speaker: Option<Speaker>,
    /// With when the process that replaced each first sent something.
    retired: VecDeque<(u64, Timestamp)>,
    pub(super) commands: Commands,
    conflict_told: Option<Timestamp>,
    clock_told: Option<Timestamp>,
    pub(super) clocks: Clocks,
}

impl StreamState {
    pub(super) fn new(key: CursorKey, clock_offset_nanos: i64, seen: Timestamp) -> Self {
        Self {
            cursor: Cursor {
                key,
                seq: 0,
                clock_offset_nanos,
                seen,
            },
            durable: 0,
            dirty: false,
        }
    }

    /// Where a request with this seq, after these dropped ones, stands.
    pub(super) fn place(&self, seq: u64, dropped: Option<(u64, u64)>) -> Place {
        let wanted = self.cursor.seq + 1;
        if seq < wanted {
            return Place::Already;
        }
        if seq == wanted {
            return Place::Next { gap: None };
        }
        match dropped {
            Some((first, last)) if first <= wanted && last.checked_add(1) == Some(seq) => {
                Place::Next {
                    gap: Some((wanted, last)),
                }
            }
            _ => Place::Wrong { wanted },
        }
    }

    /// Moves the cursor to a seq that has just been folded.
    pub(super) fn advance(&mut self, seq: u64, seen: Timestamp) {
        self.cursor.seq = seq;
        self.cursor.seen = self.cursor.seen.max(seen);
        self.dirty = true;
    }

    pub(super) fn gap(&self, (first, last): (u64, u64), seen: Timestamp) -> Gap {
        Gap {
            key: self.cursor.key,
            first,
            last,
            seen,
        }
    }
}

impl AgentState {
    pub(super) fn new(agent: AgentId, cluster: Arc<str>, heard: Timestamp) -> Self {
        Self {
            live: LiveAgent {
                agent,
                cluster,
                node: "".into(),
                version: "".into(),
                heard,
                clock_offset_nanos: 0,
                interval: Duration::ZERO,
                lag: Duration::ZERO,
                backfilling: false,
            },
            streams: Vec::new(),
            resources: 0,
            home: None,
            introduced: Introduced::Never,
            is_renamed: false,
            cluster: None,
            speaker: None,
            retired: VecDeque::new(),
            commands: Commands::default(),
            conflict_told: None,
            clock_told: None,
            clocks: Clocks::default(),
        }
    }

    /// Which of the agent's processes this is; a newer one retires the one before it.
    pub(super) fn session(
        &mut self,
        session: u64,
        sent_at: Timestamp,
        received: Timestamp,
    ) -> Session {
        if let Some((_, replaced)) = self.retired.iter().find(|it| it.0 == session) {
            // What it sent before it was replaced was only long on its way.
            return if sent_at <= *replaced {
                Session::Late
            } else {
                Session::Retired
            };
        }
        let fresh = Speaker {
            session,
            sent_at,
            received,
        };
        match &mut self.speaker {
            Some(known) if known.session == session => {
                known.sent_at = known.sent_at.max(sent_at);
                known.received = received;
            }
            // Heard later than now, it was under a clock of ours that was set back: so may theirs be.
            Some(known)
                if sent_at < known.sent_at
                    && (0..LATE).contains(&received.since(known.received)) =>
            {
                return Session::Late;
            }
            Some(known) => {
                self.retired.truncate(MAX_RETIRED - 1);
                self.retired.push_front((known.session, sent_at));
                *known = fresh;
            }
            None => self.speaker = Some(fresh),
        }
        Session::Current
    }

    /// The clock offset that the epoch has, if one of its streams has been folded. One that is beyond what
    /// is corrected says under what clock its data was refused.
    pub(super) fn offset(&self, epoch: Epoch) -> Option<i64> {
        let mut of_epoch = self.streams.iter();
        let found = of_epoch.find(|it| it.cursor.key.epoch == epoch)?;
        let offset = found.cursor.clock_offset_nanos;
        (offset.saturating_abs() <= QUARANTINED).then_some(offset)
    }

    /// Remembers, also in the store, that an epoch's data was refused for a clock that is this far off.
    pub(super) fn quarantine(&mut self, key: CursorKey, off_nanos: i64, received: Timestamp) {
        self.clocks.quarantine(key.epoch, off_nanos);
        if let Some(stream) = self.stream(key, 0, received)
            && stream.cursor.clock_offset_nanos.abs_diff(off_nanos) > TOLERATED.unsigned_abs()
        {
            stream.dirty = true;
            self.set_offset(key.epoch, off_nanos);
        }
    }

    /// Gives the streams of an epoch a new offset.
    pub(super) fn set_offset(&mut self, epoch: Epoch, offset: i64) {
        for stream in &mut self.streams {
            if stream.cursor.key.epoch == epoch {
                stream.cursor.clock_offset_nanos = offset;
            }
        }
    }

    /// The stream with this key, made if it is new; none when there are too many that are not durable.
    pub(super) fn stream(
        &mut self,
        key: CursorKey,
        offset: i64,
        seen: Timestamp,
    ) -> Option<&mut StreamState> {
        let place = match self.streams.iter().position(|it| it.cursor.key == key) {
            Some(place) => place,
            None => {
                if self.streams.len() >= MAX_STREAMS {
                    self.forget_one_stream();
                }
                if self.streams.len() >= MAX_STREAMS {
                    return None;
                }
                self.streams.push(StreamState::new(key, offset, seen));
                self.streams.len() - 1
            }
        };
        Some(&mut self.streams[place])
    }

    /// Forgets the stream that was silent for longest, among those that are wholly committed.
    fn forget_one_stream(&mut self) {
        let silent = self
            .streams
            .iter()
            .enumerate()
            .filter(|(_, it)| !it.dirty && it.durable == it.cursor.seq)
            .min_by_key(|(_, it)| it.cursor.seen);
        if let Some((place, _)) = silent {
            self.streams.swap_remove(place);
        }
    }

    /// Whether it is time to tell again that two processes use this id.
    pub(super) fn tell_conflict(&mut self, now: Timestamp) -> bool {
        tell(&mut self.conflict_told, now)
    }

    /// Whether it is time to tell again that this agent's clock is wrong.
    pub(super) fn tell_clock(&mut self, now: Timestamp) -> bool {
        tell(&mut self.clock_told, now)
    }

    /// What it says of our clock, if it was heard lately.
    pub(super) fn vote(&self, now: Timestamp) -> Option<Vote> {
        Some(Vote {
            difference: self.clocks.difference(now)?,
            cluster: Arc::clone(&self.live.cluster),
        })
    }
}

fn tell(told: &mut Option<Timestamp>, now: Timestamp) -> bool {
    if told.is_some_and(|told| (0..TOLD_AGAIN).contains(&now.since(told))) {
        return false;
    }
    *told = Some(now);
    true
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::wire::Stream;

    use uuid::Uuid;

    use super::*;

    fn key() -> CursorKey {
        CursorKey {
            agent: AgentId(Uuid::from_u128(1)),
            epoch: Epoch(Uuid::from_u128(2)),
            stream: Stream::Metrics,
        }
    }

    #[test]
    fn only_the_next_seq_is_folded_and_a_gap_passes_only_when_it_is_declared() {
        let mut stream = StreamState::new(key(), 0, Timestamp::default());
        stream.advance(4, Timestamp::default());
        for (seq, dropped, expected) in [
            (4, None, Place::Already),
            (1, None, Place::Already),
            (0, None, Place::Already),
            (5, None, Place::Next { gap: None }),
            (6, None, Place::Wrong { wanted: 5 }),
            (8, Some((5, 7)), Place::Next { gap: Some((5, 7)) }),
            (8, Some((3, 7)), Place::Next { gap: Some((5, 7)) }),
            (8, Some((6, 7)), Place::Wrong { wanted: 5 }),
            (8, Some((5, 6)), Place::Wrong { wanted: 5 }),
            (8, Some((5, 9)), Place::Wrong { wanted: 5 }),
            (5, Some((2, 4)), Place::Next { gap: None }),
            (u64::MAX, Some((5, u64::MAX)), Place::Wrong { wanted: 5 }),
        ] {
            assert_eq!(stream.place(seq, dropped), expected, "{seq} {dropped:?}");
        }
    }

    fn agent() -> AgentState {
        AgentState::new(key().agent, "c".into(), Timestamp::default())
    }

    #[test]
    fn a_newer_session_retires_the_older_for_good() {
        let mut agent = agent();
        let mut heard = |session, sent, received| {
            let at = Timestamp::from_seconds;
            agent.session(session, at(sent), at(received))
        };
        assert_eq!(heard(1, 10, 10), Session::Current);
        assert_eq!(heard(2, 20, 20), Session::Current);
        assert_eq!(heard(1, 19, 21), Session::Late, "it took long");
        assert_eq!(heard(1, 30, 30), Session::Retired);
        assert_eq!(heard(2, 31, 31), Session::Current);
        assert_eq!(
            heard(3, 15, 32),
            Session::Late,
            "sent by a process that is gone"
        );
        assert_eq!(
            heard(2, 33, 33),
            Session::Current,
            "and the other one goes on"
        );
        assert_eq!(heard(3, 15, 94), Session::Current, "its clock went back");
    }

    #[test]
    fn a_stream_that_is_not_committed_is_never_forgotten() {
        let mut agent = agent();
        for number in 0..MAX_STREAMS as u128 {
            let key = CursorKey {
                epoch: Epoch(Uuid::from_u128(number)),
                ..key()
            };
            let stream = agent.stream(key, 0, Timestamp(number as i64)).unwrap();
            stream.advance(1, Timestamp(number as i64));
            if number != 0 {
                (stream.dirty, stream.durable) = (false, 1);
            }
        }
        let another = CursorKey {
            epoch: Epoch(Uuid::from_u128(u128::MAX)),
            ..key()
        };
        assert!(agent.stream(another, 0, Timestamp(i64::MAX)).is_some());
        let has = |number| agent.offset(Epoch(Uuid::from_u128(number))).is_some();
        assert_eq!([has(0), has(1), has(2)], [true, false, true]);
        assert_eq!(agent.streams.len(), MAX_STREAMS);
        agent.streams.iter_mut().for_each(|it| it.dirty = true);
        let one_too_many = CursorKey {
            epoch: Epoch(Uuid::from_u128(u128::MAX - 1)),
            ..key()
        };
        assert!(agent.stream(one_too_many, 0, Timestamp(i64::MAX)).is_none());
    }
}
