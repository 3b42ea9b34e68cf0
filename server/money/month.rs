//! Days of the ledger as money: nodes with what they were billed and what their GPUs did, priced and
//! charged by analysis.
//!
//! A node was billed while any GPU of it was accounted, and from when the inventory had it to when it was
//! gone ([`lives`]): so one whose agent is silent is paid for as well. Time in
//! somebody's hands whose holder nobody told is that of a holder who is not known, so that it reads
//! unowned and not free. Days that changed since they were put together are put together here.
//!
//! Limits: [`MAX_DAYS`] a report.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use gpufleet_analysis::chargeback::spot::{Notice, Preempted, Spot};
use gpufleet_analysis::chargeback::{Chargeback, Detail, Fleet, MILLIS_PER_DAY};
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::report::efficiency::{Advised, Demand, RunTime, Serving};
use gpufleet_telemetry::time::Timestamp;

use super::Terms;
use crate::store::model::{LedgerDay, NodeLife, UnreadDay};
use crate::store::{MAX_SERVED_DAYS, ServedDays};

mod gather;

mod once;

mod committed;

mod lives;

mod nodes;

pub(super) mod seller;

mod preempted;

mod read;

mod recorded;

mod serving;

pub mod training;

mod spans;

mod taken_back;

#[cfg(test)]
mod fixture;

use gather::{Gathered, gathered};
pub(super) use read::{ledger, of_any_origin, train};
pub use read::{read, serve};
pub use recorded::Recorded;

/// Most days of one report: a month, and the day that runs of a month that is asked for as such.
pub const MAX_DAYS: i64 = 31;

/// Days of the ledger and who held GPUs in them.
#[derive(Debug, Default)]
pub struct Days {
    /// The cluster that they are of; none: all live ones together.
    pub cluster: Option<String>,
    /// When they were asked for: what is later has not happened yet. None where all of them are over.
    pub at: Option<Timestamp>,
    /// Clusters that are not live, of which days were left out for that.
    pub not_live: BTreeSet<String>,
    /// The days, those of a resource one after the other.
    pub days: Vec<LedgerDay>,
    /// The holders of these days by their numbers.
    pub holders: HashMap<i64, Holder>,
    /// Days that cannot be read.
    pub unreadable: Vec<UnreadDay>,
    /// Nodes that the inventory had in that time, by cluster, name and when they began.
    pub lives: Vec<NodeLife>,
    /// Of those that began on the last day the day after it, as far as it is there: by its cards is seen that a node was
    /// renamed.
    pub next_day: Vec<LedgerDay>,
    /// Clusters at which a server looked, with the days on which it did.
    pub looked: BTreeSet<(String, i64)>,
    /// Runs that were preempted in that time.
    pub preempted: Vec<Preempted>,
    /// What providers said of machines at Spot in that time and a while around it.
    pub notices: Vec<Notice>,
    /// What was advised in that time, where it was asked for.
    pub advised: Advised,
    /// What was waited for in that time, where it was asked for.
    pub demand: Vec<Demand>,
    /// Training runs of that time, where they were asked for.
    pub trained: Vec<training::Trained>,
    /// What model servers of that time served, where it was asked for.
    pub served: Vec<ServedDays>,
    /// Whether there were more of them than are read.
    pub served_left_out: bool,
    /// Why what stands above of what was preempted may not be all of it; none where it is.
    pub preempted_untold: Option<String>,
    /// Why what stands above of training runs may not be all of them; none where it is.
    pub trained_untold: Option<String>,
}

impl Days {
    /// That days of a range cannot be read, in one sentence; none where all can.
    pub fn not_read(&self, range: &Range<i64>) -> Option<String> {
        let unreadable = self.unreadable.iter();
        let count = unreadable.filter(|it| range.contains(&it.day)).count();
        (count > 0).then(|| {
            format!(
                "{count} days of GPUs cannot be read and are left out: the server's log names them"
            )
        })
    }
}

/// A stretch of days as money.
#[derive(Debug)]
pub struct Month {
    /// What the lines point into.
    pub fleet: Fleet,
    /// The lines.
    pub made: Chargeback,
    /// What Spot came to.
    pub spot: Spot,
    /// Training runs, where they were read.
    pub runs: Vec<RunTime>,
    /// What serves, where it was read.
    pub serving: Vec<Serving>,
    /// Of which days there is a record.
    pub recorded: Recorded,
    /// What was wrong, one sentence each.
    pub findings: Vec<String>,
}

/// From when until when these days go.
pub(super) fn time_of(days: &Range<i64>) -> Range<Timestamp> {
    let moment = |day: i64| Timestamp::from_millis(day.saturating_mul(MILLIS_PER_DAY));
    moment(days.start)..moment(days.end)
}

/// Charges the days of a range (days since the Unix epoch), the lines as far apart as is asked for.
pub fn charge(days: &Days, range: Range<i64>, terms: &Terms, detail: Detail) -> Month {
    let gathered = gathered(days, &range, terms);
    let made = gathered.charged(&gathered.periods, &range, terms, detail);
    month(days, &range, terms, gathered, made)
}

/// The money of a range alone, node by node.
pub(super) fn charged(days: &Days, range: &Range<i64>, terms: &Terms) -> Chargeback {
    let gathered = gathered(days, range, terms);
    gathered.charged(&gathered.periods, range, terms, Detail::Nodes)
}

/// What was charged, with all that is told beside it.
fn month(
    days: &Days,
    range: &Range<i64>,
    terms: &Terms,
    gathered: Gathered,
    made: Chargeback,
) -> Month {
    let Gathered {
        fleet,
        periods,
        mut findings,
        ..
    } = gathered;
    let serving = serving::serving(days, range, &fleet, &made);
    let untold = days.preempted_untold.as_deref();
    let time = range.start * MILLIS_PER_DAY..range.end * MILLIS_PER_DAY;
    let spot = Spot::of(&made, &fleet, &taken_back::of(days, &time), untold);
    if let Some(why) = untold.filter(|_| !spot.is_empty()) {
        findings.push(format!(
            "how often Spot was preempted, and what that lost, is not known: {why}"
        ));
    }
    if days.served_left_out {
        findings.push(format!(
            "model servers have more than {MAX_SERVED_DAYS} days in that time: what others served is not in what a token cost"
        ));
    }
    if let Some(why) = &days.trained_untold {
        findings.push(format!("goodput and MFU are not of all training: {why}"));
    }
    let recorded = periods.iter().map(|it| {
        let cluster = fleet.nodes[it.node].cluster.as_str();
        (cluster, it.from_ms.div_euclid(MILLIS_PER_DAY))
    });
    Month {
        recorded: Recorded::of(recorded, &days.looked),
        fleet,
        made,
        spot,
        runs: training::times(days, range, terms),
        serving,
        findings,
    }
}

/// Charges a range node by node, and each of its days by itself: what the lines of all days add up to is what is charged
/// of the range, to the nano-unit, because a node is priced day by day and every period is of one day.
pub(super) fn charge_with_days(
    days: &Days,
    range: Range<i64>,
    terms: &Terms,
) -> (Month, Vec<(i64, Chargeback)>) {
    let mut gathered = gathered(days, &range, terms);
    let made = gathered.charged(&gathered.periods, &range, terms, Detail::Nodes);
    gathered.periods.sort_by_key(|it| it.from_ms);
    let of_day = |day: i64| {
        let before = |day: i64| {
            let periods = &gathered.periods;
            periods.partition_point(|it| it.from_ms < day * MILLIS_PER_DAY)
        };
        let periods = &gathered.periods[before(day)..before(day + 1)];
        let made = gathered.charged(periods, &(day..day + 1), terms, Detail::Nodes);
        (day, made)
    };
    let by_day = range.clone().map(of_day).collect();
    (month(days, &range, terms, gathered, made), by_day)
}
