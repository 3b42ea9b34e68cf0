//! Whether a GPU that somebody holds goes unused: busy without work, or idle for long.
//!
//! Method: the state that a GPU is in now ([`crate::states::now`]) says which; a stall is trouble as soon as it is one,
//! idleness after the time that the caller gives. A pause shorter than that (an evaluation on another node, a
//! checkpoint, somebody who reads a result in a notebook) is nobody's trouble.
//!
//! A warm standby is idle by design, and never unused for being idle.
//!
//! Limits: what is unknown (no sample, no holder, no activity) is never unused; idleness from before the server met
//! the GPU counts from there, where no open incident tells of it.

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use crate::incident::Family;
use crate::ledger::{Reason, State};
use crate::states::Status;

/// Held and idle for this long is trouble, seconds: an hour is more than any pause of a job that goes on.
pub const IDLE_AFTER_S: i64 = 3_600;

/// What is wrong with how it is used, if anything is; `idle_after_s` in seconds.
pub fn unused(status: &Status, idle_after_s: i64, now: Timestamp) -> Option<Family> {
    match status.state {
        State::Stalled => Some(Family::Stalled),
        // It is idle by design.
        State::Parked | State::HeldEmpty if status.reason == Reason::WarmStandby => None,
        State::Parked | State::HeldEmpty => {
            let since = status.since.unwrap_or(now);
            let after = idle_after_s.saturating_mul(NANOS_PER_SECOND);
            (now.since(since) >= after).then_some(Family::Idle)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_told_at_once_idleness_after_its_time_and_what_is_unknown_never() {
        let now = Timestamp::from_seconds(1_790_000_000);
        let told = |state: State, for_s: Option<i64>| {
            let status = Status {
                state,
                reason: Reason::Unknown,
                since: for_s.map(|it| now.shifted(-it * NANOS_PER_SECOND)),
                is_silent: false,
            };
            unused(&status, IDLE_AFTER_S, now)
        };
        assert_eq!(told(State::Stalled, Some(1)), Some(Family::Stalled));
        for state in [State::Parked, State::HeldEmpty] {
            assert_eq!(told(state, Some(3_599)), None);
            assert_eq!(told(state, Some(3_600)), Some(Family::Idle));
            assert_eq!(told(state, None), None, "nobody knows since when");
        }
        let standby = Status {
            state: State::Parked,
            reason: Reason::WarmStandby,
            since: Some(now.shifted(-90_000 * NANOS_PER_SECOND)),
            is_silent: false,
        };
        assert_eq!(unused(&standby, IDLE_AFTER_S, now), None);
        for state in [State::Unobserved, State::Unallocated, State::Gap] {
            assert_eq!(told(state, Some(90_000)), None, "{state:?}");
        }
    }
}
