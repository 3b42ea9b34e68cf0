//! Where the time of a day went.

use gpufleet_analysis::ledger::{Energy, Reason, State};

/// Time of a day in one state in one holder's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayTime {
    /// The holder's number; 0 of nobody, or nobody known.
    pub holder: i64,
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// How long.
    pub millis: i64,
    /// What was drawn in it.
    pub energy: Energy,
    /// Of time below a target: what was missing to it, milliseconds.
    pub lost_millis: i64,
}
