//! The way to one receiver: one message at a time, so many a minute, and pauses after failures.
//!
//! Failures are the receiver's and not the message's, so the pause is for all messages to it. A refusal makes no
//! pause: what is refused is not sent again, and what is new may be taken.
//!
//! A way that refuses everything is broken, and looked at every [`LOOKS_EVERY`].
//!
//! Limits: [`MAX_PER_MINUTE`] attempts a minute, of which [`MAX_UPDATES_PER_MINUTE`] may say what is not
//! new, and [`MAX_NOTICES_PER_MINUTE`] what is about no incident; pauses of [`FIRST_PAUSE`] doubled up to [`MAX_PAUSE`], with jitter; of what a receiver asks
//! for at most [`MAX_ASKED`]. A receiver that forgets has shorter ones ([`Way::longest_pause`]).

use std::collections::VecDeque;
use std::time::Duration;

use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::group::{Says, later};
use super::settings::Way;

/// Attempts in any minute. A flood of incidents stays below twenty messages with it.
pub const MAX_PER_MINUTE: usize = 15;
/// Attempts in any minute after which only what is new goes out.
pub const MAX_UPDATES_PER_MINUTE: usize = 10;
/// Attempts in any minute after which only what is wrong goes out: notices leave room for all of that.
pub const MAX_NOTICES_PER_MINUTE: usize = 5;
/// The pause after the first failure; each further one doubles it.
pub const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause that we make ourselves.
pub const MAX_PAUSE: Duration = Duration::from_secs(300);
/// A broken way is looked at this often, with one message: the receiver may have been mended where nobody sees it here.
pub const LOOKS_EVERY: Duration = Duration::from_secs(3_600);
/// The longest pause that a receiver may ask for: one that says a year is not believed.
pub const MAX_ASKED: Duration = Duration::from_secs(3_600);

const MINUTE: Duration = Duration::from_secs(60);

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has it.
    Delivered,
    /// Not now: why, and how long the receiver asks to be left alone.
    Later {
        /// Why.
        why: String,
        /// How long.
        after: Option<Duration>,
    },
    /// Never: another attempt would be refused as this one was.
    Refused {
        /// Why.
        why: String,
        /// What is wrong.
        fault: Fault,
    },
}

/// What a receiver refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// This message; others it may take.
    Message,
    /// Whatever comes by this way: the key, the address or the receiver's certificate is no good, and somebody has
    /// to mend it.
    Way,
}

/// How a way goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goes {
    /// The last message got through, or none went out yet.
    Well,
    /// The last one did not, and is tried again.
    Fails,
    /// The receiver takes nothing by this way until somebody mends it.
    Broken,
}

impl Goes {
    /// The name in the API and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Fails => "failing",
            Self::Broken => "broken",
        }
    }
}

/// The way to one receiver. All of it is forgotten by a restart.
#[derive(Debug, Clone, Default)]
pub struct Lane {
    attempts: VecDeque<Timestamp>,
    /// Since when and for how long it is left alone.
    paused: Option<(Timestamp, Duration)>,
    /// Whether a message is on its way.
    pub is_busy: bool,
    /// Whether somebody mended something while that message was on its way: what is said of it is of before.
    pub was_mended_meanwhile: bool,
    /// Failures since the last message that got through.
    pub failures: u32,
    /// Since when it fails.
    pub failing_since: Option<Timestamp>,
    /// Since when the receiver takes nothing by this way, for a reason that only a person mends.
    pub broken_since: Option<Timestamp>,
    /// When a message last got through.
    pub succeeded_at: Option<Timestamp>,
    /// When an attempt last failed, and why.
    pub failed: Option<(Timestamp, String)>,
    /// Messages that got through.
    pub delivered: u64,
    /// Attempts that are made again.
    pub retried: u64,
    /// Messages that the receiver will not take.
    pub refused: u64,
    /// Incidents that went into the flood's message, because there were too many groups.
    pub folded: u64,
    /// How long the last first message took, from the opening of its incident.
    pub delay: Option<Duration>,
}

impl Lane {
    /// From when on a message may go.
    pub fn free_at(&self, says: Says, spacing: Duration, now: Timestamp) -> Option<Timestamp> {
        if self.is_busy {
            return None;
        }
        let most = match says {
            Says::Opened => MAX_PER_MINUTE,
            Says::Updated | Says::Resolved => MAX_UPDATES_PER_MINUTE,
            Says::Notice => MAX_NOTICES_PER_MINUTE,
        };
        let window = self.attempts.len().checked_sub(most);
        let window = window.and_then(|place| self.attempts.get(place));
        let spaced = self.attempts.back().map(|last| later(*last, spacing));
        let free = [
            Some(now),
            self.paused.map(|(since, pause)| later(since, pause)),
            window.map(|at| later(*at, MINUTE)),
            spaced,
        ];
        free.into_iter().flatten().max()
    }

    /// A message goes out.
    pub fn begins(&mut self, now: Timestamp) {
        (self.is_busy, self.was_mended_meanwhile) = (true, false);
        self.attempts.push_back(now);
        if self.attempts.len() > MAX_PER_MINUTE {
            self.attempts.pop_front();
        }
    }

    /// The clock may have been set back since: nothing waits for a time that was wrong.
    pub fn turned_back(&mut self, now: Timestamp) {
        self.attempts.retain(|at| *at <= now);
        let moments = [
            self.paused.as_mut().map(|(since, _)| since),
            self.failing_since.as_mut(),
            self.broken_since.as_mut(),
            self.succeeded_at.as_mut(),
            self.failed.as_mut().map(|(at, _)| at),
        ];
        for at in moments.into_iter().flatten() {
            *at = now.min(*at);
        }
    }

    /// What became of it; `dice` is from 0 to 1.
    pub fn ended(&mut self, way: &Way, outcome: &Outcome, now: Timestamp, dice: f64) {
        self.is_busy = false;
        match outcome {
            Outcome::Delivered => {
                self.delivered += 1;
                self.works(now);
            }
            Outcome::Later { why, after } => {
                self.retried += 1;
                self.broken_since = None;
                self.fails(why, now);
                let asked = after.unwrap_or_default().min(MAX_ASKED);
                let pause = pause(self.failures, dice).max(asked);
                self.paused = Some((now, pause.min(way.longest_pause())));
            }
            Outcome::Refused { why, fault } => {
                self.refused += 1;
                self.fails(why, now);
                match fault {
                    Fault::Way => _ = self.broken_since.get_or_insert(now),
                    // It was read, so the way to it is good.
                    Fault::Message => self.broken_since = None,
                }
            }
        }
    }

    /// Whether it is broken, and nothing has gone out for so long that one message may look whether it still is.
    pub fn may_look(&self, now: Timestamp) -> bool {
        let last = self.attempts.back();
        let is_due = last.is_none_or(|last| later(*last, LOOKS_EVERY) <= now);
        self.broken_since.is_some() && !self.is_busy && is_due
    }

    /// How it goes.
    pub fn goes(&self) -> Goes {
        match (self.broken_since, self.failing_since) {
            (Some(_), _) => Goes::Broken,
            (None, Some(_)) => Goes::Fails,
            (None, None) => Goes::Well,
        }
    }

    /// The receiver takes messages, as a test has shown.
    pub fn works(&mut self, now: Timestamp) {
        self.succeeded_at = Some(now);
        (self.failures, self.failing_since, self.paused) = (0, None, None);
        self.broken_since = None;
    }

    fn fails(&mut self, why: &str, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.failing_since.get_or_insert(now);
        self.failed = Some((now, why.to_owned()));
    }
}

/// The pause after so many failures: between half of it and all of it, so that servers that failed
/// together do not come back together.
fn pause(failures: u32, dice: f64) -> Duration {
    let doubled = failures.saturating_sub(1).min(16);
    let whole = FIRST_PAUSE.saturating_mul(1 << doubled).min(MAX_PAUSE);
    whole.mul_f64(0.5 + dice.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::fixture::{START, after, settings};
    use crate::notify::settings::Kind;

    fn way() -> Way {
        settings(&[("it", Kind::Pagerduty)]).ways.remove(0)
    }

    fn later_with(after: Option<u64>) -> Outcome {
        Outcome::Later {
            why: "busy".to_owned(),
            after: after.map(Duration::from_secs),
        }
    }

    #[test]
    fn a_pause_doubles_with_jitter_and_a_receiver_may_ask_for_a_longer_one() {
        let mut lane = Lane::default();
        for (failures, least, most) in [(1, 1, 2), (2, 2, 4), (3, 4, 8), (30, 150, 300)] {
            assert_eq!(pause(failures, 0.0).as_secs(), least);
            assert_eq!(pause(failures, 1.0).as_secs(), most);
        }
        lane.ended(&way(), &later_with(Some(40)), START, 1.0);
        let free = |lane: &Lane| lane.free_at(Says::Opened, Duration::ZERO, START);
        assert_eq!(free(&lane), Some(after(40)));
        lane.ended(&way(), &later_with(Some(86_400 * 365)), START, 1.0);
        assert_eq!(free(&lane), Some(after(3_600)), "a year is not believed");
        lane.ended(&way(), &Outcome::Delivered, START, 1.0);
        assert_eq!(free(&lane), Some(START));
        assert_eq!((lane.failures, lane.retried, lane.delivered), (0, 2, 1));
    }

    #[test]
    fn no_more_than_so_many_a_minute_and_the_last_of_them_only_for_what_is_new() {
        let mut lane = Lane::default();
        let mut sent = 0;
        while lane.free_at(Says::Updated, Duration::ZERO, START) == Some(START) {
            lane.begins(START);
            lane.ended(&way(), &Outcome::Delivered, START, 0.0);
            sent += 1;
        }
        assert_eq!(sent, MAX_UPDATES_PER_MINUTE);
        while lane.free_at(Says::Opened, Duration::ZERO, START) == Some(START) {
            lane.begins(START);
            lane.ended(&way(), &Outcome::Delivered, START, 0.0);
            sent += 1;
        }
        assert_eq!(sent, MAX_PER_MINUTE);
        let free = lane.free_at(Says::Opened, Duration::ZERO, after(1));
        assert_eq!(free, Some(after(60)));
    }

    #[test]
    fn one_message_at_a_time_and_as_far_apart_as_the_receiver_needs() {
        let mut lane = Lane::default();
        lane.begins(START);
        assert_eq!(lane.free_at(Says::Opened, Duration::ZERO, after(5)), None);
        lane.ended(&way(), &Outcome::Delivered, START, 0.0);
        let spaced = lane.free_at(Says::Opened, Duration::from_secs(1), START);
        assert_eq!(spaced, Some(after(1)));
    }

    #[test]
    fn a_refusal_is_counted_and_makes_no_pause_and_one_of_the_way_breaks_it_until_it_takes_something()
     {
        let mut lane = Lane::default();
        let refused = |fault| Outcome::Refused {
            why: "404".to_owned(),
            fault,
        };
        lane.ended(&way(), &refused(Fault::Message), START, 1.0);
        assert_eq!(lane.goes(), Goes::Fails);
        assert_eq!((lane.refused, lane.failures), (1, 1));
        for seconds in [5, 9] {
            lane.ended(&way(), &refused(Fault::Way), after(seconds), 1.0);
            assert_eq!(
                (lane.goes(), lane.broken_since),
                (Goes::Broken, Some(after(5)))
            );
        }
        for other in [
            Outcome::Delivered,
            later_with(None),
            refused(Fault::Message),
        ] {
            let mut mended = lane.clone();
            mended.ended(&way(), &other, after(10), 1.0);
            assert_eq!(mended.broken_since, None, "{other:?}");
        }
        let mut lane = Lane::default();
        lane.ended(&way(), &refused(Fault::Way), START, 1.0);
        assert_eq!(
            lane.free_at(Says::Opened, Duration::ZERO, START),
            Some(START)
        );
        assert_eq!((lane.refused, lane.failures), (1, 1));
        assert_eq!(lane.failing_since, Some(START));
    }

    #[test]
    fn a_clock_that_is_set_back_holds_nothing_up() {
        let mut lane = Lane::default();
        for _ in 0..MAX_PER_MINUTE {
            lane.begins(after(10_800));
            lane.ended(&way(), &Outcome::Delivered, after(10_800), 0.0);
        }
        lane.turned_back(START);
        let spacing = Duration::from_secs(1);
        assert_eq!(lane.free_at(Says::Opened, spacing, START), Some(START));
        assert_eq!(lane.succeeded_at, Some(START));
        lane.begins(after(10_800));
        lane.ended(&way(), &later_with(Some(40)), after(10_800), 1.0);
        lane.turned_back(START);
        let free = lane.free_at(Says::Opened, spacing, START);
        assert_eq!(free, Some(after(40)), "what was asked for is kept to");
        assert_eq!(lane.failing_since, Some(START));
    }
}
