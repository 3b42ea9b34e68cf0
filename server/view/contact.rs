//! When a node was last heard, by who knows its machine best.
//!
//! An agent tells of its machine with whatever it tells. Where there is none, who tells of the machine or its GPUs does
//! all the same, such as a Collector in front of an exporter. Who tells of a process alone says nothing of a machine: a
//! rank or a model server without an agent ends with its job, and what it calls its node may be the name of its pod.

use std::time::Duration;

use gpufleet_analysis::silent::is_silent;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::gather::heard;
use crate::fleet::Live;

/// By then after a start whoever tells of machines is heard again, nanoseconds: an agent tries again after 30 s at most,
/// and one that came before the server was ready waits as long once more.
const BACK_NS: i64 = 60 * NANOS_PER_SECOND;

/// Who tells of a node, the best last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Teller {
    #[default]
    Process,
    Other,
    Agent,
}

/// What all resources of a node that its best teller tells of say of when it was heard.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contact {
    teller: Teller,
    /// When anything last arrived; 1970 of nothing.
    pub heard: Timestamp,
    /// The newest point.
    pub point: Timestamp,
    /// The longest tick.
    tick: Duration,
    /// Whether any of it arrived since the server started.
    has_arrived: bool,
}

impl Teller {
    const fn of(live: &Live) -> Self {
        match (live.agent, live.key.kind) {
            (Some(_), _) => Self::Agent,
            (None, ResourceKind::Rank | ResourceKind::Endpoint) => Self::Process,
            (None, ResourceKind::Node | ResourceKind::Gpu | ResourceKind::Share) => Self::Other,
        }
    }
}

impl Contact {
    /// Takes in a resource of the node.
    pub fn note(&mut self, live: &Live) {
        let teller = Teller::of(live);
        if teller > self.teller {
            *self = Self {
                teller,
                ..Self::default()
            };
        }
        if teller == self.teller {
            self.heard = self.heard.max(heard(live));
            self.point = self.point.max(live.last_point);
            self.tick = self.tick.max(live.interval);
            self.has_arrived |= live.received != Timestamp::default();
        }
    }

    /// Whether nothing is heard by now.
    pub fn is_silent(&self, now: Timestamp) -> bool {
        is_silent(self.tick, self.heard, now)
    }

    /// Whether a server that started then may still hear of it for the first time.
    pub fn is_awaited(&self, started: Timestamp, now: Timestamp) -> bool {
        let back = started.shifted(BACK_NS);
        // A start that has not come was under a clock that was set back since.
        !self.has_arrived && started <= now && !is_silent(self.tick, back, now)
    }

    /// Whether silence says something of the machine.
    pub const fn is_of_machine(&self) -> bool {
        !matches!(self.teller, Teller::Process)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::Origin;

    use super::*;
    use crate::view::fixture::{self, NOW};

    #[test]
    fn a_node_is_silent_by_who_knows_its_machine_best_whoever_else_goes_on() {
        use ResourceKind::{Endpoint, Gpu, Node, Rank};
        const LONG_AGO_S: i64 = 300;
        // Each of a kind, whether an agent tells of it, and how long ago, seconds.
        for (told, expected) in [
            (&[(Node, true, 1), (Gpu, true, 1)][..], (false, true)),
            (&[(Node, true, LONG_AGO_S), (Rank, false, 1)], (true, true)),
            (&[(Rank, false, 1), (Node, true, LONG_AGO_S)], (true, true)),
            (&[(Node, true, LONG_AGO_S), (Gpu, false, 1)], (true, true)),
            (&[(Node, true, LONG_AGO_S), (Rank, true, 1)], (false, true)),
            (&[(Gpu, false, LONG_AGO_S), (Rank, false, 1)], (true, true)),
            (&[(Gpu, false, 1), (Rank, false, LONG_AGO_S)], (false, true)),
            (&[(Rank, false, LONG_AGO_S)], (true, false)),
            (&[(Endpoint, false, LONG_AGO_S)], (true, false)),
            (&[(Rank, false, 1)], (false, false)),
        ] {
            let mut contact = Contact::default();
            for (kind, has_agent, ago_s) in told {
                let mut live = fixture::live("prod", "node-1", *kind, "id", Origin::Live);
                live.agent = live.agent.filter(|_| *has_agent);
                live.last_point = NOW.shifted(-ago_s * NANOS_PER_SECOND);
                live.received = live.last_point;
                contact.note(&live);
            }
            let found = (contact.is_silent(NOW), contact.is_of_machine());
            assert_eq!(found, expected, "{told:?}");
        }
    }

    #[test]
    fn of_what_only_the_store_tells_nothing_is_missed_before_it_had_the_time_to_come_back() {
        let mut stored = fixture::live("prod", "node-1", ResourceKind::Node, "id", Origin::Live);
        stored.received = Timestamp::default();
        let mut come = stored.clone();
        come.received = NOW;
        for (live, after_s, expected) in [
            (&stored, 0, true),
            (&stored, 85, true),
            (&stored, 86, false),
            (&stored, -3_600, false),
            (&come, 0, false),
        ] {
            let mut contact = Contact::default();
            contact.note(live);
            let now = NOW.shifted(after_s * NANOS_PER_SECOND);
            assert_eq!(contact.is_awaited(NOW, now), expected, "{after_s} s");
        }
    }
}
