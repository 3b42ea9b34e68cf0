//! What agents say of collectives that a run's ranks do not come out of: events, not readings, because what they
//! name stays as it is.
//!
//! Limits: the newest [`MAX_STUCK`] of a run; a server that begins anew knows of none before the next.

use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::attribute;

/// Most of a run: one of each function on each communicator of a large mesh.
pub const MAX_STUCK: usize = 32;

/// Longest name of a function that is kept.
const MAX_FUNCTION: usize = 24;

/// A collective that somebody is in for much longer than it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// When that was told.
    pub at: Timestamp,
    /// Its communicator.
    pub communicator: u64,
    /// Its function; may be empty.
    pub function: String,
}

impl Stuck {
    /// What an event tells; none of another kind, or that names no communicator.
    pub fn of(event: &Event) -> Option<Self> {
        if event.kind != EventKind::CollectiveStuck {
            return None;
        }
        let communicator = event.attributes.get(attribute::COMMUNICATOR)?;
        let function = event.attributes.get(attribute::FUNCTION);
        let function = function.map_or("", String::as_str);
        Some(Self {
            at: event.at,
            communicator: u64::from_str_radix(communicator, 16).ok()?,
            function: function.chars().take(MAX_FUNCTION).collect(),
        })
    }

    /// Keeps what an event tells behind the others, once for each time.
    pub(super) fn learn(all: &mut Vec<Self>, event: &Event) {
        let new = Self::of(event).filter(|it| !all.contains(it));
        if let Some(new) = new {
            if all.len() >= MAX_STUCK {
                all.remove(0);
            }
            all.push(new);
        }
    }
}
