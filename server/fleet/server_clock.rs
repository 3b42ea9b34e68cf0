//! Whether it is the server's own clock that is wrong: when most agents differ from it by the same,
//! not they are to be blamed.
//!
//! A wrong clock of the server is told once, as an event of the server, and the events that would blame
//! the nodes for the same difference are left out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::sender_clock::{QUARANTINED, STEPPED, TOLERATED};
use crate::store::model::StoredEvent;

/// Fewest agents that can outvote the server: of two, one is as likely to be wrong.
const MIN_AGENTS: usize = 3;

/// It is told again this often while it lasts, nanoseconds.
const TELL_EVERY: i64 = 3_600 * NANOS_PER_SECOND;

/// The id under which the server's own events stand.
const SERVER_ID: &str = "gpufleet-server";

/// The attribute of an event of a clock that says how far it is off, seconds.
pub(super) const OFFSET: &str = "offset";

/// What an agent says of the server's clock.
#[derive(Debug, Clone)]
pub(super) struct Vote {
    /// The server's time of arrival minus the agent's time of sending, nanoseconds.
    pub(super) difference: i64,
    /// The agent's cluster.
    pub(super) cluster: Arc<str>,
}

/// How the server's clock compares with those of the agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerClock {
    /// Too few agents to say, or they do not agree with one another.
    #[default]
    Unknown,
    /// As those of most agents.
    Right,
    /// Off.
    Wrong {
        /// How far it is ahead of theirs, nanoseconds; behind is below 0.
        ahead_nanos: i64,
        /// How many agents say so.
        agents: usize,
        /// Of how many.
        of: usize,
    },
}

/// What is known of it, and when it was told last.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) clock: ServerClock,
    told: Option<Timestamp>,
    /// What the wall clock says more than the monotonic one.
    beside: Option<i64>,
    /// By how much it was set and when, until that is told.
    set: Option<(i64, Timestamp)>,
}

impl ServerClock {
    /// Judges by what agents say.
    fn of(votes: &mut [Vote]) -> (Self, Option<Arc<str>>) {
        let of = votes.len();
        if of < MIN_AGENTS {
            return (Self::Unknown, None);
        }
        let (_, middle, _) = votes.select_nth_unstable_by_key(of / 2, |it| it.difference);
        let (median, cluster) = (middle.difference, Arc::clone(&middle.cluster));
        let agrees = |it: &&Vote| it.difference.abs_diff(median) <= TOLERATED.unsigned_abs();
        let agents = votes.iter().filter(agrees).count();
        if agents * 3 < of * 2 {
            return (Self::Unknown, None);
        }
        if median.saturating_abs() <= TOLERATED {
            return (Self::Right, None);
        }
        let wrong = Self::Wrong {
            ahead_nanos: median,
            agents,
            of,
        };
        (wrong, Some(cluster))
    }

    /// What is wrong with it, as a sentence; none when it is right or not known.
    pub fn sentence(&self) -> Option<String> {
        let Self::Wrong {
            ahead_nanos,
            agents,
            of,
        } = *self
        else {
            return None;
        };
        let seconds = ahead_nanos.saturating_abs() as f64 / 1e9;
        let side = if ahead_nanos > 0 {
            "ahead of"
        } else {
            "behind"
        };
        let effect = if ahead_nanos.saturating_abs() > QUARANTINED {
            "nothing of them is taken and it waits in their spools"
        } else {
            "times are shifted to it"
        };
        Some(format!(
            "This server's clock is {seconds:.0} s {side} those of {agents} of {of} agents, so {effect}: check NTP on the server."
        ))
    }

    /// Whether an event that blames a node's clock only says what is wrong with the server's.
    fn explains(&self, stored: &StoredEvent) -> bool {
        let Self::Wrong { ahead_nanos, .. } = *self else {
            return false;
        };
        let told = stored.event.attributes.get(OFFSET);
        let seconds = told.and_then(|it| it.parse::<f64>().ok());
        stored.event.kind == EventKind::ClockOffset
            && seconds.is_some_and(|it| {
                let difference = it * 1e9 - ahead_nanos as f64;
                difference.abs() <= TOLERATED as f64
            })
    }
}

impl Known {
    /// Looks whether the clock was set since the last look: agents whose clocks were set with it say
    /// nothing of that. It is told with the next commit after an agent was heard.
    pub(super) fn look(&mut self, now: Timestamp, monotonic: Duration) {
        let monotonic = i64::try_from(monotonic.as_nanos()).unwrap_or(i64::MAX);
        let beside = now.0.saturating_sub(monotonic);
        let before = self.beside.replace(beside).unwrap_or(beside);
        let set_by = beside.saturating_sub(before);
        if set_by.saturating_abs() > STEPPED {
            let message = set_sentence(set_by);
            tracing::warn!("{message}");
            self.set = Some((set_by, now));
        }
    }

    /// Takes in what agents say now, and puts the blame in what is to be told where it belongs.
    pub(super) fn judge(
        &mut self,
        votes: &mut [Vote],
        events: &mut Vec<StoredEvent>,
        now: Timestamp,
    ) {
        if let Some(vote) = votes.first()
            && let Some((set_by, at)) = self.set.take()
        {
            events.push(told(
                Arc::clone(&vote.cluster),
                set_by,
                set_sentence(set_by),
                at,
            ));
        }
        let (clock, cluster) = ServerClock::of(votes);
        self.clock = clock;
        let (Some(message), Some(cluster)) = (clock.sentence(), cluster) else {
            return;
        };
        events.retain(|it| !clock.explains(it));
        if (self.told).is_some_and(|told| (0..TELL_EVERY).contains(&now.since(told))) {
            return;
        }
        self.told = Some(now);
        let ServerClock::Wrong { ahead_nanos, .. } = clock else {
            return;
        };
        events.push(told(cluster, ahead_nanos, message, now));
    }
}

fn set_sentence(set_by: i64) -> String {
    let seconds = set_by.saturating_abs() as f64 / 1e9;
    let side = if set_by > 0 { "forward" } else { "back" };
    format!(
        "This server's clock was set {side} by {seconds:.0} s, or its machine stood still: what was taken before keeps the times of then."
    )
}

/// An event of the server's own clock.
fn told(cluster: Arc<str>, off_nanos: i64, message: String, now: Timestamp) -> StoredEvent {
    let offset = format!("{:.3}", off_nanos as f64 / 1e9);
    StoredEvent {
        cluster,
        agent: None,
        event: Event {
            at: now,
            kind: EventKind::ClockOffset,
            severity: Severity::Error,
            resource_kind: ResourceKind::Node,
            resource_id: SERVER_ID.into(),
            message,
            attributes: BTreeMap::from([(OFFSET.to_owned(), offset)]),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seconds: &[i64]) -> ServerClock {
        let vote = |it: &i64| Vote {
            difference: it * NANOS_PER_SECOND,
            cluster: "c".into(),
        };
        ServerClock::of(&mut seconds.iter().map(vote).collect::<Vec<_>>()).0
    }

    #[test]
    fn the_server_is_wrong_when_two_thirds_of_three_or_more_agents_say_the_same() {
        let wrong = |seconds: i64, agents, of| ServerClock::Wrong {
            ahead_nanos: seconds * NANOS_PER_SECOND,
            agents,
            of,
        };
        for (seconds, expected) in [
            (&[7_200, 7_200][..], ServerClock::Unknown),
            (&[0, 1, -2], ServerClock::Right),
            (&[0, 0, 7_200], ServerClock::Right),
            (&[-7_200, -7_201, -7_199], wrong(-7_200, 3, 3)),
            (&[90, 91, 0], wrong(90, 2, 3)),
            (&[7_200, 7_200, 0, 0], ServerClock::Unknown),
            (&[100, 3_000, -900], ServerClock::Unknown),
        ] {
            assert_eq!(of(seconds), expected, "{seconds:?}");
        }
        let sentence = of(&[-7_200, -7_200, -7_200]).sentence().expect("wrong");
        assert!(
            sentence.contains("7200 s behind those of 3 of 3 agents"),
            "{sentence}"
        );
        assert!(sentence.contains("waits in their spools"), "{sentence}");
        assert_eq!(of(&[0, 0, 0]).sentence(), None);
    }

    #[test]
    fn a_clock_that_was_set_is_told_once_when_somebody_was_heard_since() {
        let mut known = Known::default();
        let mut look = |wall: i64, monotonic: u64, votes: usize| {
            let now = Timestamp::from_seconds(wall);
            known.look(now, Duration::from_secs(monotonic));
            let vote = Vote {
                difference: 0,
                cluster: "c".into(),
            };
            let mut events = Vec::new();
            known.judge(&mut vec![vote; votes], &mut events, now);
            events
                .into_iter()
                .map(|it| it.event.message)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            look(1_000_000, 5, 1),
            Vec::<String>::new(),
            "the first look"
        );
        assert_eq!(look(1_000_061, 7, 1), Vec::<String>::new(), "a second more");
        assert_eq!(look(989_263, 9, 0), Vec::<String>::new(), "nobody is heard");
        let told = look(989_264, 10, 1);
        let [sentence] = &told[..] else {
            panic!("{told:?}");
        };
        assert!(sentence.contains("set back by 10800 s"), "{sentence}");
        assert_eq!(look(989_265, 11, 1), Vec::<String>::new(), "once");
    }
}
