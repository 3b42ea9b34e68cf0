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

use gpufleet_analysis::chargeback::{
    Asked, Chargeback, Fleet, MILLIS_PER_DAY, NodePeriod, Part, chargeback,
};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::Terms;
use crate::ledger::days::put_together;
use crate::store::model::{DayTime, LedgerDay, NodeLife};
use crate::store::{MAX_DIRTY_DAYS, MAX_LIVES, Store, StoreError};

mod lives;

mod nodes;

use nodes::Nodes;

/// Most days of one report: a month, and the day that runs of a month that is asked for as such.
pub const MAX_DAYS: i64 = 31;

/// Days of the ledger and who held GPUs in them.
#[derive(Debug, Default)]
pub struct Days {
    /// The days.
    pub days: Vec<LedgerDay>,
    /// The holders of these days by their numbers.
    pub holders: HashMap<i64, Holder>,
    /// Days that cannot be read.
    pub unreadable: usize,
    /// Nodes that the inventory had in that time, by cluster, name and when they began.
    pub lives: Vec<NodeLife>,
}

/// A stretch of days as money.
#[derive(Debug)]
pub struct Month {
    /// What the lines point into.
    pub fleet: Fleet,
    /// The lines.
    pub made: Chargeback,
    /// What was wrong, one sentence each.
    pub findings: Vec<String>,
}

/// Reads the days of one cluster, or of all live ones.
///
/// # Errors
/// When the store does not answer.
pub async fn read(
    store: &Store,
    days: Range<i64>,
    cluster: Option<&str>,
) -> Result<Days, StoreError> {
    // The marks first: a day that is put together meanwhile is then read twice, and never not at all.
    let dirty = store.dirty_days_of(days.clone()).await?;
    let moment = |day: i64| Timestamp::from_millis(day.saturating_mul(MILLIS_PER_DAY));
    let time = (moment(days.start), moment(days.end));
    // Before the days: what is seen of a node later than these is not missed in them.
    let lives = store.inventory_lives(time, cluster).await?;
    let (mut found, unreadable) = store.ledger_days(days, cluster).await?;
    for dirty in dirty.chunks(MAX_DIRTY_DAYS) {
        for input in store.day_inputs(dirty).await? {
            let key = (input.day, input.subject);
            let is_asked = cluster.is_none_or(|it| it == &*input.resource.key.cluster);
            match put_together(&input) {
                day if is_asked && !day.times.is_empty() => _ = found.insert(key, day),
                _ => _ = found.remove(&key),
            }
        }
    }
    let is_asked = |it: &LedgerDay| cluster.is_some() || it.facts.origin == Origin::Live;
    let days: Vec<LedgerDay> = found.into_values().filter(is_asked).collect();
    let times = days.iter().flat_map(|it| &it.times);
    let held_by: BTreeSet<i64> = times.map(|it| it.holder).filter(|it| *it != 0).collect();
    let holders = store.holders(&held_by).await?;
    Ok(Days {
        days,
        holders,
        unreadable,
        lives,
    })
}

/// Charges the days of a range (days since the Unix epoch).
pub fn charge(days: &Days, range: Range<i64>, terms: &Terms) -> Month {
    let (from_ms, until_ms) = (range.start * MILLIS_PER_DAY, range.end * MILLIS_PER_DAY);
    let mut gathering = Gathering::default();
    let in_range = days.days.iter().filter(|it| range.contains(&it.day));
    for day in in_range {
        gathering.add(day, &days.holders);
    }
    let mut findings = terms.findings.clone();
    if days.unreadable > 0 {
        findings.push(format!(
            "{} days of GPUs cannot be read and are left out: the server's log names them",
            days.unreadable
        ));
    }
    let lives = &days.lives[..days.lives.len().min(MAX_LIVES)];
    if lives.len() < days.lives.len() {
        findings.push(format!(
            "the inventory had more than {MAX_LIVES} nodes in that time: of the others only what agents told is in the report"
        ));
    }
    lives::add(&mut gathering.nodes, lives, (from_ms, until_ms));
    let (fleet, periods) = gathering.finish(terms, (from_ms, until_ms));
    let made = chargeback(&Asked {
        from_ms,
        until_ms,
        fleet: &fleet,
        periods: &periods,
        book: &terms.book,
        owners: &terms.owners,
    });
    Month {
        fleet,
        made,
        findings,
    }
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

/// Spans in Unix milliseconds.
type Spans = Vec<(i64, i64)>;

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
    /// GPUs that it has by the inventory; 0 where that does not say.
    count: u32,
}

#[derive(Default)]
struct GpuDay {
    spans: Vec<(i64, i64)>,
    parts: Vec<Part>,
}

/// What was told of a node besides its name.
struct Seen {
    zone: String,
    account: String,
    instance: String,
    gpu_model: String,
}

#[derive(Default)]
struct Gathering {
    fleet: Fleet,
    nodes: NodesByDay,
    gpu_of: HashMap<String, usize>,
    share_of: HashMap<String, usize>,
    holder_of: HashMap<i64, usize>,
}

impl Gathering {
    fn add(&mut self, day: &LedgerDay, holders: &HashMap<i64, Holder>) {
        let facts = &day.facts;
        let is_card = !day.is_share || facts.parent.is_empty();
        let card = if is_card { &day.id } else { &facts.parent };
        let gpu = index_of(card, &mut self.gpu_of, &mut self.fleet.gpus);
        let share =
            (!is_card).then(|| index_of(&day.id, &mut self.share_of, &mut self.fleet.shares));
        let (slices, of) = if is_card {
            (1, 1)
        } else {
            (facts.slices, facts.of)
        };
        let mut parts = Vec::with_capacity(day.times.len());
        for time in &day.times {
            parts.push(Part {
                share,
                slices,
                of,
                holder: self.holder(time, holders),
                state: time.state,
                reason: time.reason,
                millis: time.millis,
                lost_millis: 0,
            });
        }
        let key = NodeKey {
            cluster: day.cluster.clone(),
            // A GPU whose sender names no node is one by itself.
            node: if facts.node.is_empty() {
                card.clone()
            } else {
                facts.node.clone()
            },
            machine_type: facts.machine_type.clone(),
            region: facts.region.clone(),
            provisioning: facts.provisioning.clone(),
        };
        let (_, days) = self.nodes.entry(key).or_insert_with(|| {
            let seen = Seen {
                zone: facts.zone.clone(),
                account: facts.account.clone(),
                instance: facts.instance.clone(),
                gpu_model: facts.gpu_model.clone(),
            };
            (seen, BTreeMap::new())
        });
        let of_day = days.entry(day.day).or_default();
        of_day.spans.extend(&day.spans);
        let of_gpu = of_day.gpus.entry(gpu).or_default();
        of_gpu.spans.extend(&day.spans);
        of_gpu.parts.append(&mut parts);
    }

    /// The place of a holder in the list of those that were met, which it joins.
    fn holder(&mut self, time: &DayTime, holders: &HashMap<i64, Holder>) -> Option<usize> {
        if time.holder == 0 && !is_held(time.state) {
            return None;
        }
        let fleet = &mut self.fleet.holders;
        let place = self.holder_of.entry(time.holder).or_insert_with(|| {
            fleet.push(holders.get(&time.holder).cloned().unwrap_or_default());
            fleet.len() - 1
        });
        Some(*place)
    }

    fn finish(self, terms: &Terms, range: (i64, i64)) -> (Fleet, Vec<NodePeriod>) {
        let mut fleet = self.fleet;
        let mut periods = Vec::new();
        for (key, (seen, days)) in self.nodes {
            let mut nodes = Nodes::new(terms, &key, seen, range);
            for (day, of_day) in days {
                nodes.add(day, of_day, &mut fleet, &mut periods);
            }
        }
        (fleet, periods)
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

/// Spans one after the other, those that overlap or touch as one.
fn joined(mut spans: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    spans.sort_unstable();
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (from, until) in spans {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = until.max(last.1),
            _ => joined.push((from, until)),
        }
    }
    joined
}

/// What of these spans, joined, lies in one.
fn within(spans: &[(i64, i64)], (from, until): (i64, i64)) -> Vec<(i64, i64)> {
    let cut = spans.iter().map(|it| (it.0.max(from), it.1.min(until)));
    cut.filter(|it| it.0 < it.1).collect()
}

/// A time without what others have of it.
fn without((from, until): (i64, i64), others: Spans) -> Spans {
    let (mut left, mut at) = (Spans::new(), from);
    for other in within(&joined(others), (from, until)) {
        left.push((at, other.0));
        at = at.max(other.1);
    }
    left.push((at, until));
    left.retain(|it| it.0 < it.1);
    left
}

/// How long spans are, that do not overlap.
fn length(spans: &[(i64, i64)]) -> i64 {
    spans.iter().map(|it| it.1 - it.0).sum()
}

fn index_of(name: &str, known: &mut HashMap<String, usize>, all: &mut Vec<String>) -> usize {
    if let Some(index) = known.get(name) {
        return *index;
    }
    all.push(name.to_owned());
    known.insert(name.to_owned(), all.len() - 1);
    all.len() - 1
}
