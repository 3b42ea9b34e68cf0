//! What a GPU does now, from what the server holds live: no store, no history but the present run.

use std::time::Duration;

use gpufleet_telemetry::minute::Bitmaps;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::second::Class;
use super::unheld::Work;
use super::{NotReady, Policy, idle_state};
use crate::ledger::{Reason, State};

/// Ticks that may be missing before a GPU reads unobserved.
const SILENT_TICKS: u32 = 2;

/// How long a tick may take to arrive and still be in time: sending and folding.
const GRACE: Duration = Duration::from_secs(5);

/// A container that does not come up in this time is no start any more, seconds: images of tens of gigabytes are there
/// by then, and its GPUs are held and paid for.
const STARTS_WITHIN_S: u32 = 900;

/// The run that a GPU is in, kept beside its live values and moved on with every tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recent {
    class: Class,
    /// When the run began; of a GPU that the server only just met, when it was first seen.
    since: Timestamp,
    /// Since when it has been held and measured inactive, whether its container runs or not: one that fails and is
    /// begun anew does both in turn.
    still_since: Option<Timestamp>,
    /// The end of the newest tick that was taken in.
    end: Timestamp,
    /// The work that it is at while nobody is known to hold it.
    unheld: Option<Work>,
    /// Whether the container of its holder is said not to run yet.
    is_starting: bool,
}

/// What is known live of one GPU or share.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The time on the server.
    pub now: Timestamp,
    /// The time of its newest point.
    pub last_point: Timestamp,
    /// The length of its ticks; zero when not known.
    pub interval: Duration,
    /// The run it is in.
    pub recent: Recent,
    /// Why its readings are missing, if they are.
    pub missing: Option<Missing>,
    /// Memory in use, bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Why it is unhealthy, if an event says so.
    pub unhealthy: Option<Reason>,
    /// What is said of its node.
    pub at_node: AtNode,
}

/// What is said of a node now, each since when; none where it is not so, or nobody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtNode {
    /// It was ready before and is not.
    pub lost_since: Option<Timestamp>,
    /// It is cordoned or about to be taken away.
    pub draining_since: Option<Timestamp>,
}

/// What it does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// The state.
    pub state: State,
    /// Why, as far as it is known.
    pub reason: Reason,
    /// Since when at least; none when not known.
    pub since: Option<Timestamp>,
    /// Whether it is in this state, or its node is not ready, and nothing came from it for more than two ticks.
    pub is_silent: bool,
}

impl Recent {
    /// Takes in whether the container of its holder is said not to run, from the next tick on.
    pub const fn starts(&mut self, is_starting: bool) {
        self.is_starting = is_starting;
    }

    /// Takes in a tick's evidence: bit 0 is the second that begins at `start`. Ticks that are not
    /// newer than the last one are left out. `activity_known`: whether the tick has a valid engine
    /// activity or utilisation.
    pub fn tick(&mut self, start: Timestamp, seconds: u32, bits: &Bitmaps, activity_known: bool) {
        if start < self.end {
            return;
        }
        for second in 0..seconds.min(gpufleet_telemetry::tick::MAX_TICK_SECONDS) {
            let at = start.shifted(i64::from(second) * NANOS_PER_SECOND);
            self.end = at.shifted(NANOS_PER_SECOND);
            let Some(class) = Class::of(bits, second, activity_known) else {
                continue;
            };
            let is_still = class == Class::Inactive;
            self.still_since = is_still.then(|| self.still_since.unwrap_or(at));
            let class = class.starting(self.is_starting);
            let before = self.unheld;
            self.unheld = Work::next(before, at.seconds(), class);
            let class = match class {
                Class::Unclaimed => Class::NotHeld,
                told => told,
            };
            if class != self.class {
                (self.class, self.since) = (class, at);
            } else if let Some(over) = before.filter(|it| it.is_long())
                && over.ends_before(self.unheld)
            {
                // It is free since then, and not since before.
                self.since = over.ended();
            }
        }
    }
}

impl Recent {
    /// Whether its newest second is one of work, at least so long after this moment.
    pub fn works_after(&self, at: Timestamp, seconds: u32) -> bool {
        self.class == Class::Active
            && self.end.since(at) >= i64::from(seconds).saturating_mul(NANOS_PER_SECOND)
    }
}

/// The state a GPU is in now. Same order and numbers as [`super::hour`], except that a pause is
/// known only as far back as the server has watched it, and that what does not come up in
/// `STARTS_WITHIN_S` is idle: somebody has to be told, while the hours keep that it was starting.
pub fn now(known: &Now, policy: &Policy) -> Status {
    let status = |state, reason, since| Status {
        state,
        reason,
        since,
        is_silent: false,
    };
    let recent = &known.recent;
    let since = (recent.class != Class::Gone).then_some(recent.since);
    let patience = known.interval.max(Duration::from_secs(10)) * SILENT_TICKS + GRACE;
    let is_late = |at: Timestamp| {
        u128::try_from(known.now.since(at)).is_ok_and(|age| age > patience.as_nanos())
    };
    let class = if recent.class == Class::Gone || is_late(recent.end) {
        Class::Silent
    } else {
        recent.class
    };
    let is_silent = class == Class::Silent;
    if let Some(begun) = known.at_node.lost_since
        && let Some((state, reason)) = NotReady::Lost.state(class)
    {
        // What worked until nothing more was heard of it was active until then.
        let from = match is_silent && recent.class == Class::Active {
            true => recent.end,
            false => recent.since,
        };
        return Status {
            is_silent,
            ..status(state, reason, Some(begun.max(from)))
        };
    }
    let missing = match known.missing {
        Some(Missing::GpuLost | Missing::ResetRequired) => Some(Reason::DeviceLost),
        Some(Missing::DriverHang) => Some(Reason::DriverHang),
        _ => None,
    };
    let missing = missing.filter(|_| !is_late(known.last_point));
    if let Some(reason) = known.unhealthy.or(missing) {
        return status(State::Unhealthy, reason, None);
    }
    let lasted_s = u32::try_from(recent.end.since(recent.since) / NANOS_PER_SECOND).unwrap_or(0);
    let start_s = i64::from(STARTS_WITHIN_S.max(policy.parked_after_s));
    let is_long = |since: &Timestamp| recent.end.since(*since) / NANOS_PER_SECOND >= start_s;
    let stuck_since = recent.still_since.filter(is_long);
    match class {
        Class::Gone | Class::Silent => {
            let last = (recent.end > Timestamp::default()).then_some(recent.end);
            Status {
                is_silent,
                ..status(State::Unobserved, Reason::NoSample, last)
            }
        }
        Class::HolderUnknown => status(State::Unobserved, Reason::HolderUnknown, since),
        Class::ActivityUnknown => status(State::Unobserved, Reason::ActivityUnknown, since),
        Class::NotHeld | Class::Unclaimed => match recent.unheld.filter(|it| it.is_long()) {
            Some(work) => status(State::Unobserved, Reason::HolderUnknown, Some(work.began())),
            None => match known.at_node.draining_since {
                Some(begun) => status(State::Draining, Reason::Unknown, since.max(Some(begun))),
                None => status(State::Unallocated, Reason::Unknown, since),
            },
        },
        Class::Starting | Class::Inactive if stuck_since.is_some() => {
            let (state, reason) = idle_state(known.memory_bytes, policy);
            status(state, reason, stuck_since)
        }
        Class::Starting => status(State::StartingPod, Reason::Unknown, since),
        Class::Stalled if lasted_s > policy.stalled_after_s => {
            status(State::Stalled, Reason::Unknown, since)
        }
        Class::Stalled | Class::Active => status(State::ActiveUnrated, Reason::Unknown, since),
        Class::Inactive if lasted_s < policy.parked_after_s => {
            status(State::Gap, Reason::Unknown, since)
        }
        Class::Inactive => {
            let (state, reason) = idle_state(known.memory_bytes, policy);
            status(state, reason, since)
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::gpu;

    use super::*;

    const START: Timestamp = Timestamp::from_seconds(1_790_000_000);

    fn at(seconds: i64) -> Timestamp {
        START.shifted(seconds * NANOS_PER_SECOND)
    }

    fn bits(held: bool, active: bool) -> Bitmaps {
        let mut bits = Bitmaps::default();
        bits.set(gpu::OBSERVED.id, 0x3ff);
        bits.set(gpu::HOLDER_KNOWN.id, 0x3ff);
        bits.set(gpu::HELD.id, if held { 0x3ff } else { 0 });
        bits.set(gpu::ACTIVE.id, if active { 0x3ff } else { 0 });
        bits
    }

    /// Ticks of ten seconds, one after the other.
    fn watched(ticks: &[Bitmaps]) -> Recent {
        let mut recent = Recent::default();
        for (number, bits) in (0..).zip(ticks) {
            recent.tick(at(number * 10), 10, bits, true);
        }
        recent
    }

    fn known(recent: Recent, now_s: i64) -> Now {
        Now {
            now: at(now_s),
            last_point: recent.end,
            interval: Duration::from_secs(10),
            recent,
            missing: None,
            memory_bytes: Some(8_000_000_000),
            unhealthy: None,
            at_node: AtNode::default(),
        }
    }

    #[test]
    fn on_a_node_that_is_emptied_what_nobody_holds_drains_and_all_else_stays_what_it_is() {
        let (works, free) = (bits(true, true), bits(false, false));
        let mut unknown = Bitmaps::default();
        unknown.set(gpu::OBSERVED.id, 0x3ff);
        for (ticks, state, since) in [
            (vec![works, free], State::Draining, 15),
            (vec![works, works, free], State::Draining, 20),
            (vec![works], State::ActiveUnrated, 0),
            (vec![bits(true, false); 30], State::Parked, 0),
            (vec![unknown], State::Unobserved, 0),
        ] {
            let seconds = ticks.len() as i64 * 10;
            let mut known = known(watched(&ticks), seconds);
            known.at_node.draining_since = Some(at(15));
            let status = now(&known, &Policy::default());
            assert_eq!((status.state, status.since), (state, Some(at(since))));
        }
    }

    #[test]
    fn on_a_node_that_is_not_ready_only_what_works_is_not_unhealthy_as_in_the_ledger() {
        let (works, idle, free) = (bits(true, true), bits(true, false), bits(false, false));
        let mut unknown = Bitmaps::default();
        unknown.set(gpu::OBSERVED.id, 0x3ff);
        for (ticks, is_lost, since) in [
            (vec![works, works], false, 0),
            (vec![works, free], true, 15),
            (vec![works, works, free], true, 20),
            (vec![idle; 30], true, 15),
            (vec![unknown; 2], true, 15),
        ] {
            let seconds = ticks.len() as i64 * 10;
            let mut known = known(watched(&ticks), seconds);
            known.at_node = AtNode {
                lost_since: Some(at(15)),
                draining_since: Some(at(15)),
            };
            // The node says more than an event of the GPU.
            known.unhealthy = is_lost.then_some(Reason::FatalXid);
            let status = now(&known, &Policy::default());
            let expected = match is_lost {
                true => (State::Unhealthy, Reason::NodeNotReady),
                false => (State::ActiveUnrated, Reason::Unknown),
            };
            assert_eq!((status.state, status.reason), expected, "{since}");
            assert_eq!((status.since, status.is_silent), (Some(at(since)), false));
        }
        // It went silent while it worked.
        let mut known = known(watched(&[works, works]), 100);
        known.at_node.lost_since = Some(at(15));
        let status = now(&known, &Policy::default());
        assert_eq!(status.reason, Reason::NodeNotReady);
        assert_eq!((status.since, status.is_silent), (Some(at(20)), true));
    }

    #[test]
    fn the_state_is_that_of_the_newest_second_since_it_began() {
        let idle = vec![bits(true, false); 30];
        let mut stalled = bits(true, true);
        stalled.set(gpu::STALLED.id, 0x3ff);
        let mut unknown = Bitmaps::default();
        unknown.set(gpu::OBSERVED.id, 0x3ff);
        for (ticks, state, reason, since) in [
            (
                vec![bits(true, true)],
                State::ActiveUnrated,
                Reason::Unknown,
                0,
            ),
            (
                vec![bits(true, true), bits(false, false)],
                State::Unallocated,
                Reason::Unknown,
                10,
            ),
            (idle[..29].to_vec(), State::Gap, Reason::Unknown, 0),
            (idle, State::Parked, Reason::Unknown, 0),
            (vec![stalled; 30], State::ActiveUnrated, Reason::Unknown, 0),
            (vec![stalled; 31], State::Stalled, Reason::Unknown, 0),
            (vec![unknown], State::Unobserved, Reason::HolderUnknown, 0),
        ] {
            let seconds = ticks.len() as i64 * 10;
            let status = now(&known(watched(&ticks), seconds), &Policy::default());
            let since = Some(at(since));
            assert_eq!(
                status,
                Status {
                    state,
                    reason,
                    since,
                    is_silent: false,
                }
            );
        }
    }

    #[test]
    fn it_starts_while_its_container_does_not_run_and_nothing_works_on_it() {
        let (held, works, free) = (bits(true, false), bits(true, true), bits(false, false));
        let mut recent = Recent::default();
        let mut at_s = 0;
        let mut state = |is_starting, bits: &Bitmaps, ticks: usize| {
            for _ in 0..ticks {
                recent.starts(is_starting);
                recent.tick(at(at_s), 10, bits, true);
                at_s += 10;
            }
            now(&known(recent, at_s), &Policy::default()).state
        };
        assert_eq!(state(true, &held, 60), State::StartingPod);
        // A pause begins when it runs.
        assert_eq!(state(false, &held, 20), State::Gap);
        assert_eq!(state(false, &held, 20), State::Parked);
        assert_eq!(state(true, &works, 1), State::ActiveUnrated);
        assert_eq!(state(true, &free, 1), State::Unallocated);
    }

    #[test]
    fn what_does_not_come_up_is_idle_after_its_time_also_where_it_is_begun_anew_again_and_again() {
        let (held, works) = (bits(true, false), bits(true, true));
        // One that waits all the time, and one that runs for ten seconds in five minutes.
        for runs_every in [usize::MAX, 30] {
            let mut recent = Recent::default();
            for tick in 1..=90_usize {
                recent.starts(!tick.is_multiple_of(runs_every));
                recent.tick(at(tick as i64 * 10), 10, &held, true);
                let status = now(&known(recent, tick as i64 * 10 + 10), &Policy::default());
                match tick {
                    90 => assert_eq!(
                        (status.state, status.since),
                        (State::Parked, Some(at(10))),
                        "{runs_every}"
                    ),
                    _ => assert!(!status.state.is_idle(), "{runs_every} {tick}"),
                }
            }
            recent.tick(at(910), 10, &works, true);
            recent.starts(true);
            recent.tick(at(920), 10, &held, true);
            let status = now(&known(recent, 930), &Policy::default());
            assert_eq!(status.state, State::StartingPod, "it worked in between");
        }
    }

    #[test]
    fn silence_of_more_than_two_ticks_is_unobserved_since_the_last_second() {
        let recent = watched(&[bits(true, true)]);
        let status = |now_s| now(&known(recent, now_s), &Policy::default());
        assert_eq!(status(35).state, State::ActiveUnrated);
        assert_eq!(status(36).state, State::Unobserved);
        assert_eq!(
            (status(36).reason, status(36).since),
            (Reason::NoSample, Some(at(10)))
        );
        assert!(status(36).is_silent && !status(35).is_silent);
    }

    #[test]
    fn a_gpu_that_was_never_sampled_is_unobserved_and_not_idle() {
        let status = now(&known(Recent::default(), 5), &Policy::default());
        assert_eq!(status.state, State::Unobserved);
        assert_eq!(status.since, None);
    }

    #[test]
    fn a_reading_that_says_lost_is_unhealthy_while_it_is_fresh_and_an_event_as_long_as_it_holds() {
        let mut lost = known(watched(&[bits(true, true)]), 12);
        lost.missing = Some(Missing::GpuLost);
        let status = now(&lost, &Policy::default());
        assert_eq!(
            (status.state, status.reason),
            (State::Unhealthy, Reason::DeviceLost)
        );
        lost.now = at(100);
        assert_eq!(now(&lost, &Policy::default()).state, State::Unobserved);
        lost.unhealthy = Some(Reason::FatalXid);
        let status = now(&lost, &Policy::default());
        assert_eq!(
            (status.state, status.reason),
            (State::Unhealthy, Reason::FatalXid)
        );
    }

    #[test]
    fn a_tick_that_comes_again_or_late_changes_nothing() {
        let mut recent = watched(&[bits(true, true), bits(false, false)]);
        let before = recent;
        recent.tick(at(0), 10, &bits(true, true), true);
        recent.tick(at(10), 10, &bits(true, true), true);
        assert_eq!(recent, before);
    }
}
