//! Work on a GPU that nobody is known to hold: then it is not known who holds it, and it is not idle.
//!
//! Method. A stretch of such work goes on over pauses of up to [`PAUSE_S`] (20 s, two ticks, as samples
//! that are missing do). Once it is longer than [`LONG_S`] (60 s) the holder of all of it is unknown; what is
//! shorter is of a GPU that is free. So the agent's own probe, which works on free GPUs for a second or two
//! and for 10 s at most as it is shipped, takes none of them away.
//!
//! Limits. Work that comes in pieces under a minute, further apart than the pause, stays that of a free GPU.

use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::second::Class;

/// A pause of work up to this is part of it, seconds.
const PAUSE_S: i64 = 20;

/// Work for longer than this has a holder whom nobody knows, seconds. With the pause it is less than what an
/// hour sees of the one after it ([`super::LOOKAHEAD_MINUTES`]).
const LONG_S: i64 = 60;

/// A stretch of work on a GPU that nobody is known to hold, seconds of Unix time, half open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Work {
    /// Its first second.
    from_s: i64,
    /// The second after its last in which it worked.
    until_s: i64,
}

impl Work {
    /// The stretch that a second is part of, after the one that the second before it was part of; none
    /// where somebody holds it, nobody knows, or it has not worked for longer than the pause.
    pub(super) fn next(before: Option<Self>, second_s: i64, class: Class) -> Option<Self> {
        let end_s = second_s + i64::from(class == Class::NotHeld);
        let before = before.filter(|it| end_s - it.until_s <= PAUSE_S);
        match class {
            Class::Unclaimed => Some(Self {
                from_s: before.map_or(second_s, |it| it.from_s),
                until_s: second_s + 1,
            }),
            Class::NotHeld => before,
            _ => None,
        }
    }

    /// Whether somebody whom nobody knows must hold it.
    pub(super) fn is_long(self) -> bool {
        self.until_s - self.from_s > LONG_S
    }

    /// Whether this stretch is over when it is followed by that one.
    pub(super) fn ends_before(self, next: Option<Self>) -> bool {
        next.is_none_or(|it| it.from_s != self.from_s)
    }

    /// When it began.
    pub(super) fn began(self) -> Timestamp {
        Timestamp::from_seconds(self.from_s)
    }

    /// When it last worked.
    pub(super) fn ended(self) -> Timestamp {
        Timestamp::from_seconds(self.until_s)
    }

    /// The class that a second had by itself, from the class it was given and the stretch it is part of: what
    /// a sample that is missing after it is bridged by.
    pub(super) fn undone(work: Option<Self>, class: Class, second_s: i64) -> Class {
        match work {
            None => class,
            Some(it) if it.until_s > second_s => Class::Unclaimed,
            Some(_) => Class::NotHeld,
        }
    }

    /// Says of each second of such work whose it is, in seconds from `start_s` on of which each has the class
    /// that it has by itself. Returns the stretch that the second `last` is part of.
    pub(super) fn settle(
        classes: &mut [Class],
        start_s: i64,
        last: usize,
        before: Option<Self>,
    ) -> Option<Self> {
        let (mut work, mut at_last) = (before, None);
        for (at, second_s) in (0..classes.len()).zip(start_s..) {
            let next = Self::next(work, second_s, classes[at]);
            if let Some(over) = work.filter(|it| it.ends_before(next)) {
                over.write(classes, start_s);
            }
            if at == last {
                at_last = next;
            }
            work = next;
        }
        if let Some(work) = work {
            work.write(classes, start_s);
        }
        at_last
    }

    /// Whose the seconds of this stretch are.
    fn write(self, classes: &mut [Class], start_s: i64) {
        let place = |second_s: i64| {
            let at = (second_s - start_s).max(0);
            usize::try_from(at).map_or(classes.len(), |it| it.min(classes.len()))
        };
        let (first, end) = (place(self.from_s), place(self.until_s));
        classes[first..end].fill(match self.is_long() {
            true => Class::HolderUnknown,
            false => Class::NotHeld,
        });
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;
    use gpufleet_telemetry::minute::{Bitmaps, MinuteRow};
    use gpufleet_telemetry::time::NANOS_PER_SECOND;
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::super::tests::Piece::{Inactive, NotHeld, Unclaimed, Unseen};
    use super::super::tests::{HOUR, Piece, rows};
    use super::super::{
        Around, AtNode, Carry, Hour, Now, Policy, Recent, Span, Status, account, now,
    };
    use super::*;
    use crate::ledger::{Reason, State};
    use gpufleet_telemetry::time::Minute;

    const START_S: i64 = HOUR * 3_600;

    /// Seconds that are free and seconds whose holder is unknown, hour by hour.
    fn free_and_unknown(
        minutes: &BTreeMap<Minute, MinuteRow>,
        around: &Around,
        hours: i64,
    ) -> Vec<(i64, i64)> {
        let mut carry = Carry::default();
        let hour = |number| {
            let asked = Hour {
                hour: number,
                minutes,
                health: &[],
                carry,
                until: Timestamp::from_seconds(START_S + hours * 3_600),
                around,
            };
            let found = account(&asked, &Policy::default());
            carry = found.carry;
            let of = |state, reason| {
                let entries = found.ledger.entries.iter();
                let its = entries.filter(|it| (it.state, it.reason) == (state, reason));
                its.map(|it| it.millis / 1_000).sum()
            };
            (
                of(State::Unallocated, Reason::Unknown),
                of(State::Unobserved, Reason::HolderUnknown),
            )
        };
        (HOUR..HOUR + hours).map(hour).collect()
    }

    fn check(line: &[(Piece, u32)], expected: (i64, i64)) {
        let minutes = rows(0, line, None);
        let found = free_and_unknown(&minutes, &Around::default(), 1);
        assert_eq!(found, [expected], "{line:?}");
    }

    #[test]
    fn a_minute_of_work_leaves_a_gpu_free_and_of_longer_work_all_is_unobserved() {
        check(
            &[(NotHeld, 1_000), (Unclaimed, 60), (NotHeld, 2_540)],
            (3_600, 0),
        );
        check(
            &[(NotHeld, 1_000), (Unclaimed, 61), (NotHeld, 2_539)],
            (3_539, 61),
        );
        check(&[(Unclaimed, 3_600)], (0, 3_600));
    }

    #[test]
    fn the_agent_s_own_probe_takes_no_gpu_away_however_often_it_comes() {
        // As long as its shipped deadline lets it work, at the shortest period that there is.
        let every_minute = [(Unclaimed, 10), (NotHeld, 50)].repeat(60);
        check(&every_minute, (3_600, 0));
    }

    #[test]
    fn a_pause_of_two_ticks_is_part_of_the_work_and_a_longer_one_is_not() {
        let pause = |seconds| {
            let rest = (NotHeld, 3_600 - 80 - seconds);
            [(Unclaimed, 40), (NotHeld, seconds), (Unclaimed, 40), rest]
        };
        check(&pause(20), (3_500, 100));
        check(&pause(21), (3_600, 0));
        // A sample that is missing in between is work, as what was before it.
        let unseen = [
            (Unclaimed, 30),
            (Unseen, 10),
            (Unclaimed, 30),
            (NotHeld, 3_530),
        ];
        check(&unseen, (3_530, 70));
        // In somebody's hands it is not the same stretch.
        let held = [
            (Unclaimed, 40),
            (Inactive, 5),
            (Unclaimed, 40),
            (NotHeld, 3_515),
        ];
        check(&held, (3_595, 0));
    }

    #[test]
    fn work_across_the_hour_is_judged_as_a_whole_on_both_sides() {
        let across = |before: u32, after: u32| {
            let line = [
                (NotHeld, 3_600 - before),
                (Unclaimed, before + after),
                (NotHeld, 3_600 - after),
            ];
            free_and_unknown(&rows(0, &line, None), &Around::default(), 2)
        };
        assert_eq!(across(1, 60), [(3_599, 1), (3_540, 60)]);
        assert_eq!(across(60, 1), [(3_540, 60), (3_599, 1)]);
        assert_eq!(across(30, 30), [(3_600, 0), (3_600, 0)]);
        // The pause lies across the hour, and so does a sample that is missing after work.
        let line = |piece| {
            let edge = [(Unclaimed, 50), (piece, 20), (Unclaimed, 50)];
            let line = [&[(NotHeld, 3_540)][..], &edge, &[(NotHeld, 3_540)]].concat();
            free_and_unknown(&rows(0, &line, None), &Around::default(), 2)
        };
        assert_eq!(line(NotHeld), [(3_540, 60), (3_540, 60)]);
        assert_eq!(line(Unseen), [(3_540, 60), (3_540, 60)]);
    }

    #[test]
    fn it_precedes_draining_as_the_holder_that_is_not_known_does() {
        let around = Around {
            draining: vec![Span {
                from_s: START_S,
                until_s: START_S + 3_600,
            }],
            ..Around::default()
        };
        let minutes = rows(0, &[(Unclaimed, 600), (NotHeld, 3_000)], None);
        assert_eq!(free_and_unknown(&minutes, &around, 1), [(0, 600)]);
    }

    #[test]
    fn a_short_work_changes_nothing_of_since_when_it_is_free() {
        let since = |seconds| {
            let line = [(NotHeld, 1_000), (Unclaimed, seconds), (NotHeld, 2_000)];
            let minutes = rows(0, &line, None);
            let asked = Hour {
                hour: HOUR,
                minutes: &minutes,
                health: &[],
                carry: Carry::default(),
                until: Timestamp::from_seconds(START_S + 1_000 + i64::from(seconds) + 2_000),
                around: &Around::default(),
            };
            let carry = account(&asked, &Policy::default()).carry;
            carry.idle_since_s.map(|it| it - START_S)
        };
        assert_eq!(since(2), Some(0));
        assert_eq!(since(61), Some(1_061));
    }

    /// What it is live, so many seconds after it was first seen free, after stretches of work or rest.
    fn live(stretches: &[(bool, i64)]) -> Status {
        let mut recent = Recent::default();
        let works = stretches.iter();
        let works = works.flat_map(|(works, seconds)| (0..*seconds).map(move |_| *works));
        for (second, works) in (0..).zip(works) {
            let mut bits = Bitmaps::default();
            bits.set(gpu::OBSERVED.id, 1);
            bits.set(gpu::HOLDER_KNOWN.id, 1);
            bits.set(gpu::ACTIVE.id, u64::from(works));
            recent.tick(Timestamp::from_seconds(START_S + second), 1, &bits, true);
        }
        let length: i64 = stretches.iter().map(|it| it.1).sum();
        let at = Timestamp::from_seconds(START_S + length);
        let known = Now {
            now: at,
            last_point: at,
            interval: Duration::from_secs(10),
            recent,
            missing: None,
            memory_bytes: None,
            unhealthy: None,
            at_node: AtNode::default(),
        };
        now(&known, &Policy::default())
    }

    #[test]
    fn live_it_is_free_for_a_minute_of_work_then_its_holder_is_unknown_and_then_it_is_free_anew() {
        let free = |since| (State::Unallocated, Reason::Unknown, since);
        let unknown = |since| (State::Unobserved, Reason::HolderUnknown, since);
        for (stretches, expected) in [
            (&[(false, 30), (true, 60)][..], free(0)),
            (&[(false, 30), (true, 61)], unknown(30)),
            (&[(false, 30), (true, 61), (false, 20)], unknown(30)),
            (&[(false, 30), (true, 61), (false, 21)], free(91)),
            // The agent's own probe.
            (&[(false, 30), (true, 3), (false, 100)], free(0)),
            (
                &[(true, 70), (false, 25), (true, 3), (false, 100)],
                free(70),
            ),
        ] {
            let status = live(stretches);
            let since = status.since.map(|it| it.0 / NANOS_PER_SECOND - START_S);
            let found = (status.state, status.reason, since.unwrap_or(-1));
            assert_eq!(found, expected, "{stretches:?}");
        }
    }
}
