//! One operation of a communicator in one line of cache, and who may change it when.
//!
//! The word `state` says which operation the slot is of and how far it is, in one: so whoever ends an
//! operation does it with one compare-and-swap, which fails when another thread was first or the slot
//! has another operation by now. Threads of the program begin operations, a thread of NCCL reports
//! their channels, both at once.

use std::sync::atomic::{AtomicU64, Ordering};

use gpufleet_hooks_shm::records::{Collective, CommunicatorIndex};
use gpufleet_hooks_shm::words::{DataType, Function};

/// No longer duration is believed: a watchdog has ended the program by then.
const LONGEST_NS: u64 = 60_000_000_000;

/// Bits of `state` below the operation's number.
const PHASE_BITS: u32 = 2;

/// Being written: the words are of the operation before, or of none.
const WRITING: u64 = 0;
/// Begun.
const BEGUN: u64 = 1;
/// Ended.
const ENDED: u64 = 2;

const fn state(number: u64, phase: u64) -> u64 {
    number << PHASE_BITS | phase
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is being written.
    Writing,
    /// It was begun and has not ended.
    Begun,
    /// It has ended, or its slot has a later operation.
    Ended,
}

/// What is known of an operation when it begins.
#[derive(Debug, Clone, Copy)]
pub struct Begin {
    /// NCCL's number of it.
    pub sequence: u64,
    /// What it does.
    pub function: Function,
    /// Type of its elements.
    pub data_type: DataType,
    /// Channels.
    pub channels: u8,
    /// Bytes.
    pub bytes: u64,
    /// Peer or root; -1 none.
    pub peer: i32,
    /// When, Unix nanoseconds.
    pub started_at: i64,
}

/// How long an operation took on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duration {
    /// Nobody reported it.
    Unknown,
    /// From the first channel's start to the last one's end.
    Known(u64),
    /// It ends before it starts, or takes longer than anything does.
    Impossible,
}

/// The slot of an operation.
#[repr(C, align(64))]
pub struct Slot {
    state: AtomicU64,
    sequence: AtomicU64,
    what: AtomicU64,
    bytes: AtomicU64,
    started_at: AtomicU64,
    first_start: AtomicU64,
    last_stop: AtomicU64,
    /// A bit for each channel that stopped.
    stopped: AtomicU64,
}

impl Slot {
    /// Of no operation.
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "copied, never used in place"
    )]
    pub const EMPTY: Self = Self {
        state: AtomicU64::new(0),
        sequence: AtomicU64::new(0),
        what: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        started_at: AtomicU64::new(0),
        first_start: AtomicU64::new(0),
        last_stop: AtomicU64::new(0),
        stopped: AtomicU64::new(0),
    };

    /// Brings the slot's page into memory, so that no callback has to.
    pub fn touch(&self) {
        self.stopped.store(0, Ordering::Relaxed);
    }

    /// Takes the slot for operation `number`. The operation that had it and never ended is the
    /// caller's to give up; its words are there until [`Slot::begin`].
    pub fn take(&self, number: u64) -> Option<u64> {
        let before = self.state.swap(state(number, WRITING), Ordering::AcqRel);
        (before == state(before >> PHASE_BITS, BEGUN)).then_some(before >> PHASE_BITS)
    }

    /// Writes operation `number` into the slot taken for it.
    pub fn begin(&self, number: u64, begin: &Begin) {
        let what = begin.function.number()
            | begin.data_type.number() << 8
            | u64::from(begin.channels) << 16
            | u64::from(begin.peer as u32) << 32;
        for (word, value) in [
            (&self.sequence, begin.sequence),
            (&self.what, what),
            (&self.bytes, begin.bytes),
            (&self.started_at, begin.started_at as u64),
            (&self.first_start, u64::MAX),
            (&self.last_stop, 0),
            (&self.stopped, 0),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        self.state.store(state(number, BEGUN), Ordering::Release);
    }

    /// How far operation `number` is.
    pub fn progress(&self, number: u64) -> Progress {
        let now = self.state.load(Ordering::Acquire);
        if now == state(number, BEGUN) {
            Progress::Begun
        } else if now <= state(number, WRITING) {
            Progress::Writing
        } else {
            Progress::Ended
        }
    }

    /// Ends operation `number`. `true` for the one caller who did.
    pub fn end(&self, number: u64) -> bool {
        let (begun, ended) = (state(number, BEGUN), state(number, ENDED));
        self.state
            .compare_exchange(begun, ended, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// A channel starts at `timer`. A report that comes while the slot goes to a later operation may
    /// count for that one: it is thousands of operations late, and what comes of it is refused.
    pub fn channel_started(&self, timer: u64) {
        if timer != 0 && timer < self.first_start.load(Ordering::Relaxed) {
            self.first_start.fetch_min(timer, Ordering::Relaxed);
        }
    }

    /// Its kernel was done at `timer`.
    pub fn channel_done(&self, timer: u64) {
        if timer > self.last_stop.load(Ordering::Relaxed) {
            self.last_stop.fetch_max(timer, Ordering::Relaxed);
        }
    }

    /// NCCL has nothing more to say of a channel. `true` when that was the last one.
    pub fn channel_stopped(&self, channel: u8) -> bool {
        let bit = 1_u64.wrapping_shl(u32::from(channel));
        let stopped = self.stopped.fetch_or(bit, Ordering::AcqRel) | bit;
        let channels = self.what.load(Ordering::Relaxed) >> 16 & 0xff;
        u64::from(stopped.count_ones()) >= channels
    }

    /// Whether any channel stopped.
    pub fn has_stopped_channels(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) != 0
    }

    /// When it was begun.
    pub fn started_at(&self) -> i64 {
        self.started_at.load(Ordering::Relaxed) as i64
    }

    /// How long it took.
    pub fn duration(&self) -> Duration {
        let first = self.first_start.load(Ordering::Relaxed);
        let last = self.last_stop.load(Ordering::Relaxed);
        if first == u64::MAX || last == 0 {
            return Duration::Unknown;
        }
        match last.checked_sub(first) {
            // Nothing takes no time, and 0 stands for unknown: less than the timer's step.
            Some(0) => Duration::Known(1),
            Some(duration @ ..=LONGEST_NS) => Duration::Known(duration),
            _ => Duration::Impossible,
        }
    }

    /// The operation as the agent is told of it, without its duration.
    pub fn collective(&self, communicator: CommunicatorIndex) -> Collective {
        let what = self.what.load(Ordering::Relaxed);
        Collective {
            communicator,
            number: self.sequence.load(Ordering::Relaxed),
            function: Function::from_number(what & 0xff).unwrap_or(Function::Other),
            data_type: DataType::from_number(what >> 8 & 0xff).unwrap_or(DataType::Unknown),
            channels: (what >> 16 & 0xff) as u8,
            bytes: self.bytes.load(Ordering::Relaxed),
            started_at: self.started_at(),
            peer: i64::from((what >> 32) as u32 as i32),
            duration_ns: 0,
            wait_ns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(number: u64) -> Slot {
        let slot = Slot::EMPTY;
        assert_eq!(slot.take(number), None);
        slot.begin(number, &begin());
        slot
    }

    fn begin() -> Begin {
        Begin {
            sequence: 41,
            function: Function::AllReduce,
            data_type: DataType::Bfloat16,
            channels: 2,
            bytes: 1 << 20,
            peer: -1,
            started_at: 1,
        }
    }

    #[test]
    fn an_operation_ends_once_and_only_as_itself() {
        let slot = begun(7);
        assert_eq!(slot.progress(7), Progress::Begun);
        assert_eq!(slot.progress(8), Progress::Writing);
        assert!(!slot.end(6), "an older one");
        assert!(!slot.end(8), "a later one");
        assert!(slot.end(7));
        assert!(!slot.end(7), "twice");
        assert_eq!(slot.progress(7), Progress::Ended);
    }

    #[test]
    fn a_slot_that_is_taken_again_gives_the_one_that_never_ended_to_the_taker() {
        let slot = begun(7);
        assert_eq!(slot.take(2055), Some(7));
        assert!(!slot.end(7), "it is the taker's");
        assert_eq!(slot.progress(7), Progress::Ended);
        assert_eq!(slot.progress(2055), Progress::Writing);
        slot.begin(2055, &begin());
        assert!(slot.end(2055));
        assert_eq!(slot.take(4103), None, "it has ended");
    }

    #[test]
    fn the_duration_is_from_the_first_start_to_the_last_end() {
        let check = |starts: &[u64], ends: &[u64], expected| {
            let slot = begun(1);
            starts.iter().for_each(|it| slot.channel_started(*it));
            ends.iter().for_each(|it| slot.channel_done(*it));
            assert_eq!(slot.duration(), expected, "{starts:?} {ends:?}");
        };
        check(&[500, 100, 300], &[900, 700], Duration::Known(800));
        check(&[100], &[100], Duration::Known(1));
        check(&[100], &[99], Duration::Impossible);
        check(&[1], &[LONGEST_NS + 1], Duration::Known(LONGEST_NS));
        check(&[1], &[LONGEST_NS + 2], Duration::Impossible);
        check(&[], &[900], Duration::Unknown);
        check(&[100], &[], Duration::Unknown);
        check(&[0], &[0], Duration::Unknown);
    }

    #[test]
    fn every_channel_counts_once() {
        let slot = begun(1);
        assert!(!slot.channel_stopped(63));
        assert!(!slot.channel_stopped(63), "the same again");
        assert!(slot.channel_stopped(0));
        assert!(slot.channel_stopped(200), "a channel that cannot be");
    }
}
