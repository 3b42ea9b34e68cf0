//! What a fold leaves out, counted by reason.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use gpufleet_telemetry::time::Timestamp;

/// Why a point or event of an accepted request was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Drop {
    /// Its time is later than the server's clock by more than is believed.
    InFuture,
    /// Its time is so long ago that its minute is no longer kept.
    TooOld,
    /// Its number cannot go into a minute row: not finite, or a negative counter.
    BadNumber,
    /// The agent reports more resources than one agent may have.
    TooManyResources,
    /// The resource has more readings than are kept live.
    TooManyValues,
    /// Foreign: not newer than the newest point of its series, so it has probably come twice.
    NotNewer,
    /// Foreign: an agent reports this resource, and knows better.
    ReportedByAgent,
    /// Another agent reports this resource, or did at that time.
    ReportedTwice,
    /// The server has as many resources as it takes, of all agents together.
    FleetFull,
}

/// Counts by reason, of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops([u64; Drop::ALL.len()]);

/// Counts by reason since the server started, and when the last was, Unix milliseconds.
#[derive(Debug, Default)]
pub(super) struct DropTotals {
    counts: [AtomicU64; Drop::ALL.len()],
    last_ms: [AtomicI64; Drop::ALL.len()],
}

impl Drop {
    /// Every reason, in the order of the declaration.
    pub const ALL: [Self; 9] = [
        Self::InFuture,
        Self::TooOld,
        Self::BadNumber,
        Self::TooManyResources,
        Self::TooManyValues,
        Self::NotNewer,
        Self::ReportedByAgent,
        Self::ReportedTwice,
        Self::FleetFull,
    ];

    /// The name in metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InFuture => "in_future",
            Self::TooOld => "too_old",
            Self::BadNumber => "bad_number",
            Self::TooManyResources => "too_many_resources",
            Self::TooManyValues => "too_many_values",
            Self::NotNewer => "not_newer",
            Self::ReportedByAgent => "reported_by_agent",
            Self::ReportedTwice => "reported_twice",
            Self::FleetFull => "fleet_full",
        }
    }
}

impl Drops {
    /// Counts `count` more.
    pub fn add(&mut self, reason: Drop, count: u64) {
        self.0[reason as usize] += count;
    }

    /// Counts one more, if there is a reason.
    pub fn add_one(&mut self, reason: Option<Drop>) {
        if let Some(reason) = reason {
            self.add(reason, 1);
        }
    }

    /// How many for this reason.
    pub fn count(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }

    /// Every reason that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL
            .into_iter()
            .map(|reason| (reason, self.count(reason)))
            .filter(|(_, count)| *count > 0)
    }

    /// How many for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl DropTotals {
    pub(super) fn add(&self, drops: &Drops, now: Timestamp) {
        for (reason, count) in drops.iter() {
            self.counts[reason as usize].fetch_add(count, Ordering::Relaxed);
            self.last_ms[reason as usize].store(now.millis(), Ordering::Relaxed);
        }
    }

    /// When something was last left out for this reason; none when nothing was.
    pub(super) fn last(&self, reason: Drop) -> Option<Timestamp> {
        let last = self.last_ms[reason as usize].load(Ordering::Relaxed);
        (last > 0).then(|| Timestamp::from_millis(last))
    }

    pub(super) fn read(&self) -> Drops {
        let mut drops = Drops::default();
        for reason in Drop::ALL {
            drops.add(reason, self.counts[reason as usize].load(Ordering::Relaxed));
        }
        drops
    }
}

impl fmt::Display for Drops {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (reason, count)) in self.iter().enumerate() {
            let separator = if place > 0 { "; " } else { "" };
            write!(formatter, "{separator}{count} {}", reason.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_each_in_its_own_place() {
        for (place, reason) in Drop::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{}", reason.name());
        }
        let totals = DropTotals::default();
        let mut drops = Drops::default();
        drops.add(Drop::NotNewer, 2);
        drops.add(Drop::InFuture, 1);
        totals.add(&drops, Timestamp::from_seconds(7));
        totals.add(&drops, Timestamp::from_seconds(9));
        assert_eq!(totals.read().to_string(), "2 in_future; 4 not_newer");
        assert_eq!(totals.read().total(), 6);
        let last = |reason| totals.last(reason);
        assert_eq!(last(Drop::NotNewer), Some(Timestamp::from_seconds(9)));
        assert_eq!(last(Drop::TooOld), None);
    }
}
