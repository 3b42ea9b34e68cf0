//! The operations of one communicator: a ring of the last ones, and which of them is the oldest that
//! has not ended.
//!
//! NCCL runs the operations of a communicator in their order, so in a hang everything waits for the
//! oldest: that one is shown in flight, in the region, and the next one when it ends. Ends are not
//! always reported (a channel that NCCL missed, a release that reports none): an operation that
//! others have overtaken is given up after a while, and one whose place in the ring comes round again
//! at once. What is given up counts, without a duration.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use gpufleet_hooks_shm::records::CommunicatorIndex;
use gpufleet_hooks_shm::words::Collecting;
use gpufleet_hooks_shm::writer::{InFlight, Writer};

use crate::operation::{Begin, Duration, Progress, Slot};

/// Operations kept: a GPU's queue holds about a thousand launches, so the program is never more ahead.
pub(crate) const RING: usize = 2048;

/// How long an operation that a later one has overtaken may still be reported: NCCL's thread goes
/// round its channels in microseconds.
const OVERTAKEN_NS: i64 = 5_000_000_000;

/// How long one may take of which a channel has ended, and how long NCCL may take to report the first
/// channel of a communicator. Ten times as long as any operation that works.
const QUIET_NS: i64 = 60_000_000_000;

/// Operations that one callback looks at when it looks for the oldest: the next callback goes on.
const MOST_LOOKS: usize = 64;

/// Operations that one callback gives up: more than it begins, so that the stale come to an end.
const MOST_GIVEN_UP: usize = 2;

/// Bits of `shown` that hold the place in the region, plus one.
const PLACE_BITS: u32 = 8;

/// The operations of one communicator.
pub(crate) struct Operations {
    is_open: AtomicBool,
    /// A kernel was reported at least once.
    is_heard: AtomicBool,
    /// Kernels should be reported and never were: operations end when they are enqueued.
    is_silent: AtomicBool,
    ranks: AtomicU64,
    /// The newest operation begun. They count from 1.
    newest: AtomicU64,
    /// The newest operation that ended.
    newest_ended: AtomicU64,
    /// All before this one have ended.
    ended_before: AtomicU64,
    /// The one shown in flight and its place; 0 none.
    shown: AtomicU64,
    /// Threads that want it shown anew.
    showing: AtomicU32,
    ring: [Slot; RING],
}

impl Operations {
    /// None.
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "copied, never used in place"
    )]
    pub(crate) const NONE: Self = Self {
        is_open: AtomicBool::new(false),
        is_heard: AtomicBool::new(false),
        is_silent: AtomicBool::new(false),
        ranks: AtomicU64::new(0),
        newest: AtomicU64::new(0),
        newest_ended: AtomicU64::new(0),
        ended_before: AtomicU64::new(0),
        shown: AtomicU64::new(0),
        showing: AtomicU32::new(0),
        ring: [const { Slot::EMPTY }; RING],
    };

    /// The communicator is made.
    pub(crate) fn open(&self, ranks: u64) {
        self.ring.iter().for_each(Slot::touch);
        self.ranks.store(ranks, Ordering::Relaxed);
        self.ended_before.store(1, Ordering::Relaxed);
        self.is_open.store(true, Ordering::Release);
    }

    /// Whether it was made and is not gone.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Ranks in it.
    pub(crate) fn ranks(&self) -> u64 {
        self.ranks.load(Ordering::Relaxed)
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        self.ring.get(number as usize & (RING - 1))
    }

    /// The slot of an operation that was begun and has not ended.
    pub(crate) fn begun(&self, number: u64) -> Option<&Slot> {
        let slot = self.slot(number)?;
        (slot.progress(number) == Progress::Begun).then_some(slot)
    }

    fn oldest(&self) -> u64 {
        self.ended_before.load(Ordering::Acquire)
    }
}

/// The operations of one communicator and where they are told of.
#[derive(Clone, Copy)]
pub(crate) struct Communicator {
    /// Its number in the region.
    pub(crate) index: CommunicatorIndex,
    /// Its operations.
    pub(crate) operations: &'static Operations,
    /// The region.
    pub(crate) writer: Writer,
}

impl Communicator {
    /// An operation begins; its number.
    pub(crate) fn begin(self, begin: &Begin) -> u64 {
        let operations = self.operations;
        let number = operations
            .newest
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        if let Some(slot) = operations.slot(number) {
            if slot.take(number).is_some() {
                self.give_up(slot);
            }
            slot.begin(number, begin);
        }
        self.give_up_stale(begin.started_at);
        // Either we see that all before us have ended, or who ends the last of them sees us.
        fence(Ordering::SeqCst);
        if operations.oldest() >= number {
            self.show();
        }
        number
    }

    /// An operation was enqueued: all that is ever said of it, where kernels are not reported.
    pub(crate) fn enqueued(self, number: u64, is_timed: bool) {
        if !is_timed || self.operations.is_silent.load(Ordering::Relaxed) {
            self.end(number);
        }
    }

    /// A channel of an operation's kernel starts. `false`: the operation is not known any more.
    pub(crate) fn channel_started(self, number: u64, timer: u64) -> bool {
        let heard = &self.operations.is_heard;
        if !heard.load(Ordering::Relaxed) {
            heard.store(true, Ordering::Relaxed);
        }
        let slot = self.operations.begun(number);
        if let Some(slot) = slot {
            slot.channel_started(timer);
        }
        slot.is_some()
    }

    /// An operation's last channel stopped, or there will be no word of it.
    pub(crate) fn end(self, number: u64) {
        if let Some(slot) = self.operations.slot(number)
            && slot.end(number)
        {
            self.tell(slot);
            self.ended(number);
        }
    }

    /// The communicator is gone. What it had begun is given up.
    pub(crate) fn close(self) {
        let operations = self.operations;
        operations.is_open.store(false, Ordering::Release);
        let newest = operations.newest.load(Ordering::Acquire);
        for number in operations.oldest()..=newest {
            if let Some(slot) = operations.slot(number)
                && slot.end(number)
            {
                self.give_up(slot);
            }
        }
        operations
            .ended_before
            .fetch_max(newest.wrapping_add(1), Ordering::AcqRel);
        self.show();
    }

    /// Gives up operations of whose end there will be no word. `now` is Unix nanoseconds.
    pub(crate) fn give_up_stale(self, now: i64) {
        let operations = self.operations;
        for _ in 0..MOST_GIVEN_UP {
            let oldest = operations.oldest();
            let Some(slot) = operations.begun(oldest) else {
                return;
            };
            let age = now.saturating_sub(slot.started_at());
            if age < OVERTAKEN_NS {
                return;
            }
            let is_overtaken = operations.newest_ended.load(Ordering::Relaxed) > oldest;
            let is_quiet = age >= QUIET_NS && slot.has_stopped_channels();
            if age >= QUIET_NS
                && operations.newest.load(Ordering::Relaxed) > oldest
                && !operations.is_heard.load(Ordering::Relaxed)
            {
                self.silent();
            }
            if !is_overtaken && !is_quiet && !operations.is_silent.load(Ordering::Relaxed) {
                return;
            }
            if slot.end(oldest) {
                self.give_up(slot);
                self.ended(oldest);
            }
        }
    }

    fn silent(self) {
        self.operations.is_silent.store(true, Ordering::Relaxed);
        self.writer.collecting(Collecting::Silent);
    }

    /// Tells of an operation that nobody else can end any more.
    fn give_up(self, slot: &Slot) {
        self.writer.collective_given_up();
        self.tell(slot);
    }

    fn tell(self, slot: &Slot) {
        let mut collective = slot.collective(self.index);
        match slot.duration() {
            Duration::Known(duration_ns) => collective.duration_ns = duration_ns,
            Duration::Unknown => {}
            Duration::Impossible => self.writer.duration_refused(),
        }
        self.writer.collective_ended(&collective);
    }

    /// After an end: which is the oldest now.
    fn ended(self, number: u64) {
        let operations = self.operations;
        operations.newest_ended.fetch_max(number, Ordering::Relaxed);
        for _ in 0..MOST_LOOKS {
            let oldest = operations.oldest();
            let Some(slot) = operations.slot(oldest) else {
                break;
            };
            if slot.progress(oldest) != Progress::Ended {
                break;
            }
            // Whoever was faster has done the same.
            let _moved = operations.ended_before.compare_exchange(
                oldest,
                oldest.wrapping_add(1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
        fence(Ordering::SeqCst);
        self.show();
    }

    /// Shows the oldest in flight. Nobody waits: who comes while another thread is at it leaves the
    /// word that it has to look again.
    fn show(self) {
        let showing = &self.operations.showing;
        if showing.fetch_add(1, Ordering::AcqRel) != 0 {
            return;
        }
        let mut asked = 1;
        // Ends: it goes round again only for a thread that came meanwhile and went its way.
        loop {
            self.show_once();
            match showing.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => asked = now,
            }
        }
    }

    fn show_once(self) {
        let operations = self.operations;
        fence(Ordering::SeqCst);
        let oldest = operations.oldest();
        let slot = operations.begun(oldest);
        let shown = operations.shown.load(Ordering::Relaxed);
        if slot.is_some() && shown >> PLACE_BITS == oldest {
            return;
        }
        if let Some(place) = (shown as u8).checked_sub(1) {
            self.writer.collective_left(InFlight::at(place));
        }
        let begun =
            slot.and_then(|slot| self.writer.collective_begun(&slot.collective(self.index)));
        let now = begun.map_or(0, |it| {
            oldest << PLACE_BITS | u64::from(it.place()).wrapping_add(1)
        });
        operations.shown.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_hooks_shm::process::unix_ns;
    use gpufleet_hooks_shm::reader::{Reader, Together};
    use gpufleet_hooks_shm::records;
    use gpufleet_hooks_shm::words::{DataType, Function, WriterKind};

    use super::*;

    /// A communicator that begins its operations at times of the test's choice.
    struct Run {
        communicator: Communicator,
        reader: Reader,
        start: i64,
    }

    impl Run {
        fn new() -> Self {
            let writer = Writer::create(WriterKind::Nccl).expect("a region");
            let shape = records::Communicator {
                ranks: 2,
                ..Default::default()
            };
            let index = writer.communicator(&shape).expect("a place");
            let operations: &'static Operations = Box::leak(Box::new(Operations::NONE));
            operations.open(2);
            Self {
                communicator: Communicator {
                    index,
                    operations,
                    writer,
                },
                reader: Reader::new(writer.file().expect("its file")).expect("a region"),
                start: unix_ns() - 1000 * QUIET_NS,
            }
        }

        fn begin(&self, seconds: i64) -> u64 {
            self.communicator.begin(&Begin {
                sequence: seconds as u64,
                function: Function::AllReduce,
                data_type: DataType::Float32,
                channels: 2,
                bytes: 4,
                peer: -1,
                started_at: self.start + seconds * 1_000_000_000,
            })
        }

        fn channel(&self, number: u64, channel: u8) {
            assert!(self.communicator.channel_started(number, 100));
            let slot = self.communicator.operations.begun(number).expect("begun");
            slot.channel_done(200);
            if slot.channel_stopped(channel) {
                self.communicator.end(number);
            }
        }

        fn together(&mut self) -> Together {
            self.reader.snapshot(unix_ns()).expect("a region").together
        }
    }

    #[test]
    fn what_others_have_overtaken_is_given_up_after_a_while_with_the_time_that_is_known() {
        let mut run = Run::new();
        let lost = run.begin(0);
        run.channel(lost, 0);
        let next = run.begin(1);
        run.channel(next, 0);
        run.channel(next, 1);
        run.begin(4);
        let together = run.together();
        assert_eq!((together.given_up, together.in_flight[0].number), (0, 0));
        run.begin(5);
        let together = run.together();
        assert_eq!((together.given_up, together.in_flight[0].number), (1, 4));
        let ended: Vec<_> = together.recent.iter().map(|it| it.duration_ns).collect();
        assert_eq!(ended, [100], "the second of them came before");
    }

    #[test]
    fn a_hang_stays_in_flight_as_long_as_it_hangs() {
        let mut run = Run::new();
        let well = run.begin(0);
        run.channel(well, 0);
        run.channel(well, 1);
        run.begin(1);
        for seconds in 2..1000 {
            run.begin(seconds);
        }
        let together = run.together();
        assert_eq!((together.given_up, together.in_flight[0].number), (0, 1));
    }

    #[test]
    fn one_of_which_a_channel_ended_is_given_up_after_a_minute() {
        let mut run = Run::new();
        let partly = run.begin(0);
        run.channel(partly, 1);
        let communicator = run.communicator;
        let after = |seconds: i64| communicator.give_up_stale(run.start + seconds * 1_000_000_000);
        after(59);
        assert!(communicator.operations.begun(partly).is_some());
        after(60);
        assert!(communicator.operations.begun(partly).is_none());
        let together = run.together();
        assert_eq!((together.given_up, together.in_flight.len()), (1, 0));
    }

    #[test]
    fn a_communicator_whose_kernels_are_never_reported_counts_what_is_enqueued() {
        let mut run = Run::new();
        for seconds in 0..60 {
            let number = run.begin(seconds);
            run.communicator.enqueued(number, true);
        }
        let together = run.together();
        assert_eq!((together.recent.len(), together.in_flight.len()), (0, 1));
        for seconds in 60..200 {
            let number = run.begin(seconds);
            run.communicator.enqueued(number, true);
        }
        let together = run.together();
        assert_eq!(together.collecting, Some(Collecting::Silent));
        assert!(together.in_flight.is_empty(), "{:?}", together.in_flight);
        let total = together.communicators[0].functions[0];
        assert_eq!((total.count, total.timed), (200, 0));
    }
}
