//! Days of the ledger as money: nodes with what they were billed and what their GPUs did, priced and
//! charged by analysis.
//!
//! A node was billed while any GPU of it was accounted, and from when the inventory had it to when it was
//! gone ([`lives`]): so one whose agent is silent is paid for as well. Time in
//! somebody's hands whose holder nobody told is that of a holder who is not known, so that it reads
//! unowned and not free. Days that changed since they were put together are put together here.
//!
//! Limits: [`MAX_DAYS`] a report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use gpufleet_analysis::chargeback::spot::{Notice, Preempted, Spot};
use gpufleet_analysis::chargeback::{
    Asked, Chargeback, Detail, Fleet, MILLIS_PER_DAY, NodePeriod, Part, chargeback,
};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::price_book::Commitment;
use gpufleet_analysis::report;
use gpufleet_analysis::report::efficiency::{Advised, Demand, RunTime, Serving};
use gpufleet_telemetry::time::Timestamp;

use super::Terms;
use crate::store::model::{DayFacts, DayOf, DayTime, LedgerDay, NodeLife, UnreadDay};
use crate::store::{MAX_LIVES, MAX_SERVED_DAYS, ServedDays};

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

use nodes::Nodes;
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

/// Days as the chargeback takes them.
struct Gathered {
    fleet: Fleet,
    periods: Vec<NodePeriod>,
    /// What is committed to for them.
    commitments: Vec<Commitment>,
    /// What was wrong, one sentence each.
    findings: Vec<String>,
}

impl Gathered {
    /// Charges some of the periods, those of a range of days.
    fn charged(
        &self,
        periods: &[NodePeriod],
        range: &Range<i64>,
        terms: &Terms,
        detail: Detail,
    ) -> Chargeback {
        chargeback(&Asked {
            detail,
            from_ms: range.start * MILLIS_PER_DAY,
            until_ms: range.end * MILLIS_PER_DAY,
            fleet: &self.fleet,
            periods,
            book: &terms.book,
            commitments: &self.commitments,
            owners: &terms.owners,
        })
    }
}

fn gathered(days: &Days, range: &Range<i64>, terms: &Terms) -> Gathered {
    let (from_ms, until_ms) = (range.start * MILLIS_PER_DAY, range.end * MILLIS_PER_DAY);
    let mut gathering = Gathering::new(&days.holders);
    let of_one = |one: &LedgerDay, other: &LedgerDay| Arc::ptr_eq(&one.of, &other.of);
    for of_one in days.days.chunk_by(of_one) {
        let mut in_range = of_one
            .iter()
            .filter(|it| range.contains(&it.day))
            .peekable();
        if in_range.peek().is_some() {
            gathering.add(&of_one[0].of, in_range);
        }
    }
    let mut findings = terms.findings.clone();
    findings.extend(days.not_read(range));
    let lives = &days.lives[..days.lives.len().min(MAX_LIVES)];
    if lives.len() < days.lives.len() {
        findings.push(format!(
            "the inventory had more than {MAX_LIVES} nodes in that time: of the others only what agents told is in the report"
        ));
    }
    let doubts = lives::add(&mut gathering.nodes, lives, (from_ms, until_ms));
    findings.extend(doubts);
    let (fleet, periods, unwatched) = gathering.finish(terms, (from_ms, until_ms));
    for (cluster, millis) in unwatched {
        findings.push(format!(
            "{cluster}: of what is unobserved, {} GPU-hours at most are of nodes that went while the server did not see the cluster: each counts until it was missed",
            report::hours(millis)
        ));
    }
    let (commitments, left_out) =
        committed::of(days, terms.book.commitments(), (from_ms, until_ms));
    findings.extend(left_out);
    Gathered {
        fleet,
        periods,
        commitments,
        findings,
    }
}

/// Charges the days of a range (days since the Unix epoch), the lines as far apart as is asked for.
pub fn charge(days: &Days, range: Range<i64>, terms: &Terms, detail: Detail) -> Month {
    let gathered = gathered(days, &range, terms);
    let made = gathered.charged(&gathered.periods, &range, terms, detail);
    month(days, &range, terms, gathered, made)
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

/// A node as its days tell of it: one that came back as another machine is another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct NodeKey {
    cluster: String,
    node: String,
    machine_type: String,
    region: String,
    provisioning: String,
}

/// What is known of a node day by day.
type NodesByDay = BTreeMap<NodeKey, (Seen, BTreeMap<i64, NodeDay>)>;

/// A node's day while its GPUs are gathered.
#[derive(Default)]
struct NodeDay {
    spans: Vec<(i64, i64)>,
    gpus: BTreeMap<usize, GpuDay>,
    /// When the inventory had it, beside what was accounted.
    there: Vec<(i64, i64)>,
    /// When in that time it was not ready yet.
    starting: Vec<(i64, i64)>,
    /// When the inventory had it no more: what is unobserved then was not there.
    gone: Vec<(i64, i64)>,
    /// When in the time that the inventory had it nobody looked before it was missed.
    unwatched: Vec<(i64, i64)>,
    /// GPUs that it has by the inventory; 0 where that does not say.
    count: u32,
}

#[derive(Default)]
struct GpuDay {
    spans: Vec<(i64, i64)>,
    parts: Vec<Part>,
}

/// What was told of a node besides its name.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// Who provides it, as told; empty where nobody does.
    provider: String,
    zone: String,
    account: String,
    instance: String,
    gpu_model: String,
    /// The node pool, which the inventory tells; empty where nobody does.
    pool: String,
}

struct Gathering<'a> {
    fleet: Fleet,
    nodes: NodesByDay,
    gpu_of: HashMap<String, usize>,
    share_of: HashMap<String, usize>,
    holders: Holders<'a>,
}

/// Holders in the order in which they were met.
struct Holders<'a> {
    known: &'a HashMap<i64, Holder>,
    met: Vec<Holder>,
    place_of: HashMap<i64, usize>,
}

impl<'a> Gathering<'a> {
    fn new(holders: &'a HashMap<i64, Holder>) -> Self {
        Self {
            fleet: Fleet::default(),
            nodes: BTreeMap::new(),
            gpu_of: HashMap::new(),
            share_of: HashMap::new(),
            holders: Holders {
                known: holders,
                met: Vec::new(),
                place_of: HashMap::new(),
            },
        }
    }

    /// Adds days of one GPU or share.
    fn add<'b>(&mut self, of: &DayOf, days: impl Iterator<Item = &'b LedgerDay>) {
        let facts = &of.facts;
        let is_card = !of.is_share || facts.parent.is_empty();
        let card = if is_card { &of.id } else { &facts.parent };
        let gpu = index_of(card, &mut self.gpu_of, &mut self.fleet.gpus);
        let share =
            (!is_card).then(|| index_of(&of.id, &mut self.share_of, &mut self.fleet.shares));
        let (slices, whole) = if is_card {
            (1, 1)
        } else {
            (facts.slices, facts.of)
        };
        let (seen, node) = self
            .nodes
            .entry(key_of(of, card))
            .or_insert_with(|| (seen_of(facts), BTreeMap::new()));
        if seen.provider.is_empty() {
            // Days of before did not tell it.
            seen.provider.clone_from(&facts.provider);
        }
        for day in days {
            let of_day = node.entry(day.day).or_default();
            of_day.spans.extend(&day.spans);
            let of_gpu = of_day.gpus.entry(gpu).or_default();
            of_gpu.spans.extend(&day.spans);
            of_gpu.parts.extend(day.times.iter().map(|time| Part {
                share,
                slices,
                of: whole,
                holder: self.holders.place(time),
                state: time.state,
                reason: time.reason,
                millis: time.millis,
                lost_millis: time.lost_millis,
                energy: time.energy,
            }));
        }
    }

    /// Nodes and their periods; and by cluster for how long GPUs are billed that may have been gone by then,
    /// milliseconds.
    fn finish(
        self,
        terms: &Terms,
        range: (i64, i64),
    ) -> (Fleet, Vec<NodePeriod>, BTreeMap<String, i64>) {
        let mut fleet = Fleet {
            holders: self.holders.met,
            ..self.fleet
        };
        let (mut periods, mut unwatched) = (Vec::new(), BTreeMap::new());
        for (key, (seen, days)) in self.nodes {
            let mut nodes = Nodes::new(terms, &key, seen, range);
            for (day, of_day) in days {
                nodes.add(day, of_day, &mut fleet, &mut periods);
            }
            if nodes.unwatched_millis > 0 {
                *unwatched.entry(key.cluster.clone()).or_default() += nodes.unwatched_millis;
            }
        }
        (fleet, periods, unwatched)
    }
}

impl Holders<'_> {
    /// The place of a holder in the list of those that were met, which it joins.
    fn place(&mut self, time: &DayTime) -> Option<usize> {
        if time.holder == 0 && !is_held(time.state) {
            return None;
        }
        let place = self.place_of.entry(time.holder).or_insert_with(|| {
            let known = self.known.get(&time.holder);
            self.met.push(known.cloned().unwrap_or_default());
            self.met.len() - 1
        });
        Some(*place)
    }
}

/// The node that a GPU is on.
fn key_of(of: &DayOf, card: &str) -> NodeKey {
    let facts = &of.facts;
    NodeKey {
        cluster: of.cluster.clone(),
        // A GPU whose sender names no node is one by itself.
        node: match facts.node.as_str() {
            "" => card.to_owned(),
            node => node.to_owned(),
        },
        machine_type: facts.machine_type.clone(),
        region: facts.region.clone(),
        provisioning: facts.provisioning.clone(),
    }
}

fn seen_of(facts: &DayFacts) -> Seen {
    Seen {
        provider: facts.provider.clone(),
        zone: facts.zone.clone(),
        account: facts.account.clone(),
        instance: facts.instance.clone(),
        gpu_model: facts.gpu_model.clone(),
        pool: String::new(),
    }
}

/// Whether somebody holds a GPU in this state.
const fn is_held(state: State) -> bool {
    matches!(
        state,
        State::StartingPod
            | State::Stalled
            | State::ActiveEfficient
            | State::ActiveInefficient
            | State::ActiveUnrated
            | State::Gap
            | State::Parked
            | State::HeldEmpty
    )
}

fn index_of(name: &str, known: &mut HashMap<String, usize>, all: &mut Vec<String>) -> usize {
    if let Some(index) = known.get(name) {
        return *index;
    }
    all.push(name.to_owned());
    known.insert(name.to_owned(), all.len() - 1);
    all.len() - 1
}
