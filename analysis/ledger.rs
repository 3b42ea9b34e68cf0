//! The words of the ledger: the states that a GPU-second can be in, and an hour of them.
//!
//! Integers only: milliseconds and nano-USD. A state's code and name are for ever, they stand in
//! SQL, on the wire and in reports. A price that is not known is absent, never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Milliseconds in one hour.
pub const MILLIS_PER_HOUR: i64 = 3_600_000;

/// What a GPU, or a share of one, was doing. Every second is in exactly one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Billed, but the node is not ready or the device not allocatable.
    StartingNode,
    /// Fatal XID, device lost, driver hang, node not ready after it was.
    Unhealthy,
    /// No holder, node cordoned or preemption noticed.
    Draining,
    /// No holder.
    Unallocated,
    /// A holder is bound, its container does not run yet.
    StartingPod,
    /// Nothing is known of what it did. Never counted as idle.
    Unobserved,
    /// Held and busy without progress.
    Stalled,
    /// Active at or above the job's target.
    ActiveEfficient,
    /// Active below the job's target.
    ActiveInefficient,
    /// Active; no target to compare with.
    ActiveUnrated,
    /// Held and inactive for less than the pause that parks it.
    Gap,
    /// Held, inactive, with memory in use.
    Parked,
    /// Held, inactive, and empty.
    HeldEmpty,
}

/// Why a second is in its state, as far as it is known.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The state says it all, or the reason behind it is not known.
    #[default]
    Unknown,
    /// Unobserved: no valid sample for more than two ticks.
    NoSample,
    /// Unobserved: it was not known whether or by whom it was held.
    HolderUnknown,
    /// Unobserved: samples came, but none that says whether the engine was active.
    ActivityUnknown,
    /// Unhealthy: an XID after which the GPU must be reset or its node rebooted.
    FatalXid,
    /// Unhealthy: the GPU cannot be reached.
    DeviceLost,
    /// Unhealthy: a call into the driver did not return.
    DriverHang,
    /// Unhealthy: the driver asks for a reset, a drain or a reboot.
    RecoveryAction,
    /// Parked: how much memory was in use is not known, so it may as well be empty.
    MemoryUnknown,
    /// Unhealthy: the node was ready and is not.
    NodeNotReady,
    /// Unallocated: nobody waits for GPUs.
    NoDemand,
    /// Unallocated: who waits needs more than is free in one place.
    Fragmented,
    /// Unallocated: held back for a reservation.
    ReservedHold,
    /// Unallocated: the part of a GPU that none of its shares has.
    Stranded,
    /// Unallocated: paid for and not provisioned.
    ReservedUnused,
    /// Parked or empty by design: a standby of a service.
    WarmStandby,
}

/// What was drawn in a time, and for how much of that time it is known. Without any it is not known, which is
/// not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Energy {
    /// Millijoules.
    pub millijoules: i64,
    /// GPU-milliseconds of which they are told.
    pub metered_millis: i64,
}

/// Time of one hour in one state for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// How long, milliseconds, above 0.
    pub millis: i64,
}

/// One hour of one GPU or share: where its time went.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LedgerHour {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// Sorted by state, then reason; each pair at most once. Their sum is the time that is
    /// accounted for: a whole hour, or less where it was not there for all of it or the hour runs.
    pub entries: Vec<Entry>,
    /// Whether no data that is in time can change it any more.
    pub is_final: bool,
    /// Whether it was changed after it was final; what by, its corrections say.
    pub is_restated: bool,
    /// What the accounted time costs, nano-USD; absent when there is no price.
    pub cost_nano_usd: Option<i64>,
}

impl State {
    /// Every state, in the order of precedence.
    pub const ALL: [Self; 13] = [
        Self::StartingNode,
        Self::Unhealthy,
        Self::Draining,
        Self::Unallocated,
        Self::StartingPod,
        Self::Unobserved,
        Self::Stalled,
        Self::ActiveEfficient,
        Self::ActiveInefficient,
        Self::ActiveUnrated,
        Self::Gap,
        Self::Parked,
        Self::HeldEmpty,
    ];

    /// The name in the API, on the page and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StartingNode => "starting_node",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Unallocated => "unallocated",
            Self::StartingPod => "starting_pod",
            Self::Unobserved => "unobserved",
            Self::Stalled => "stalled",
            Self::ActiveEfficient => "active_efficient",
            Self::ActiveInefficient => "active_inefficient",
            Self::ActiveUnrated => "active_unrated",
            Self::Gap => "gap",
            Self::Parked => "parked",
            Self::HeldEmpty => "held_empty",
        }
    }

    /// The code in SQL, 1 to 13.
    pub const fn code(self) -> i64 {
        self as i64 + 1
    }

    /// The state with this code.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }

    /// The state with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// What it does in one sentence, for the page.
    pub const fn help(self) -> &'static str {
        match self {
            Self::StartingNode => "billed, but the node or the device is not ready yet",
            Self::Unhealthy => "broken: fatal XID, device lost or driver hang",
            Self::Draining => "nobody holds it and its node is being emptied",
            Self::Unallocated => "nobody holds it",
            Self::StartingPod => "held, but the container does not run yet",
            Self::Unobserved => "nothing is known of what it did; never counted as idle",
            Self::Stalled => "held and busy without progress",
            Self::ActiveEfficient => "active at or above its job's target",
            Self::ActiveInefficient => "active below its job's target",
            Self::ActiveUnrated => "active; its job has no target to compare with",
            Self::Gap => "held, a pause of less than 5 minutes",
            Self::Parked => "held and inactive for 5 minutes or more, with memory in use",
            Self::HeldEmpty => "held and inactive for 5 minutes or more, and empty",
        }
    }

    /// Whether it counts as idle in the headline: unallocated, parked, held empty.
    pub const fn is_idle(self) -> bool {
        matches!(self, Self::Unallocated | Self::Parked | Self::HeldEmpty)
    }

    /// Whether it is money for nothing: idle, stalled, broken, starting or being emptied.
    pub const fn is_waste(self) -> bool {
        self.is_idle()
            || matches!(
                self,
                Self::Stalled
                    | Self::Unhealthy
                    | Self::StartingNode
                    | Self::StartingPod
                    | Self::Draining
            )
    }

    /// Whether the engine was active and made progress.
    pub const fn is_active(self) -> bool {
        matches!(
            self,
            Self::ActiveEfficient | Self::ActiveInefficient | Self::ActiveUnrated
        )
    }
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 16] = [
        Self::Unknown,
        Self::NoSample,
        Self::HolderUnknown,
        Self::ActivityUnknown,
        Self::FatalXid,
        Self::DeviceLost,
        Self::DriverHang,
        Self::RecoveryAction,
        Self::MemoryUnknown,
        Self::NodeNotReady,
        Self::NoDemand,
        Self::Fragmented,
        Self::ReservedHold,
        Self::Stranded,
        Self::ReservedUnused,
        Self::WarmStandby,
    ];

    /// The name in the API and on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NoSample => "no_sample",
            Self::HolderUnknown => "holder_unknown",
            Self::ActivityUnknown => "activity_unknown",
            Self::FatalXid => "fatal_xid",
            Self::DeviceLost => "device_lost",
            Self::DriverHang => "driver_hang",
            Self::RecoveryAction => "recovery_action",
            Self::MemoryUnknown => "memory_unknown",
            Self::NodeNotReady => "node_not_ready",
            Self::NoDemand => "no_demand",
            Self::Fragmented => "fragmented",
            Self::ReservedHold => "reserved_hold",
            Self::Stranded => "stranded",
            Self::ReservedUnused => "reserved_unused",
            Self::WarmStandby => "warm_standby",
        }
    }

    /// The code in SQL, 0 to 15.
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The reason with this code.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl Energy {
    /// Adds another.
    pub const fn add(&mut self, other: Self) {
        self.millijoules = self.millijoules.saturating_add(other.millijoules);
        self.metered_millis = self.metered_millis.saturating_add(other.metered_millis);
    }

    /// Millijoules; none where nothing was told.
    pub const fn told(self) -> Option<i64> {
        if self.metered_millis > 0 {
            Some(self.millijoules)
        } else {
            None
        }
    }
}

impl LedgerHour {
    /// An hour from time by state and reason; pairs without time are left out.
    pub fn new(hour: i64, time: BTreeMap<(State, Reason), i64>) -> Self {
        let entries = time
            .into_iter()
            .filter(|(_, millis)| *millis > 0)
            .map(|((state, reason), millis)| Entry {
                state,
                reason,
                millis,
            })
            .collect();
        Self {
            hour,
            entries,
            is_final: false,
            is_restated: false,
            cost_nano_usd: None,
        }
    }

    /// Milliseconds in this state, for whatever reason.
    pub fn millis(&self, state: State) -> i64 {
        let of_state = self.entries.iter().filter(|it| it.state == state);
        of_state.map(|it| it.millis).sum()
    }

    /// Milliseconds accounted for.
    pub fn total_millis(&self) -> i64 {
        self.entries.iter().map(|it| it.millis).sum()
    }

    /// Milliseconds idle: unallocated, parked and held empty.
    pub fn idle_millis(&self) -> i64 {
        let idle = self.entries.iter().filter(|it| it.state.is_idle());
        idle.map(|it| it.millis).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_of_states_and_reasons_are_for_ever_and_read_back() {
        let codes: Vec<i64> = State::ALL.iter().map(|it| it.code()).collect();
        assert_eq!(codes, (1..=13).collect::<Vec<i64>>());
        for state in State::ALL {
            assert_eq!(State::from_code(state.code()), Some(state));
            assert_eq!(State::parse(state.name()), Some(state));
        }
        for (code, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.code(), i64::try_from(code).expect("few"));
            assert_eq!(Reason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(State::from_code(0), None);
        assert_eq!(State::from_code(14), None);
    }

    #[test]
    fn idle_is_unallocated_parked_and_held_empty_and_never_unobserved() {
        let time = State::ALL.map(|state| {
            (
                (state, Reason::Unknown),
                10_i64.pow(state.code() as u32 - 1),
            )
        });
        let hour = LedgerHour::new(7, time.into_iter().collect());
        assert_eq!(hour.idle_millis(), 1_100_000_001_000);
        assert_eq!(hour.millis(State::Unobserved), 100_000);
        assert_eq!(hour.total_millis(), 1_111_111_111_111);
    }
}
