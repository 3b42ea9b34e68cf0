//! Days of GPUs and shares put together by node, with what the inventory knows of each.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use gpufleet_analysis::chargeback::{
    Asked, Chargeback, Detail, Fleet, MILLIS_PER_DAY, NodePeriod, Part, chargeback,
};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::price_book::Commitment;
use gpufleet_analysis::report;
use gpufleet_telemetry::time::Timestamp;

use super::super::Terms;
use super::lives::NextCards;
use super::nodes::Nodes;
use super::spans::{Span, Spans};
use super::{Days, committed, lives, once};
use crate::store::MAX_LIVES;
use crate::store::model::{DayFacts, DayOf, DayTime, LedgerDay};

/// Days as the chargeback takes them.
pub(super) struct Gathered {
    pub(super) fleet: Fleet,
    pub(super) periods: Vec<NodePeriod>,
    /// What is committed to for them.
    pub(super) commitments: Vec<Commitment>,
    /// When they were asked for; none where all of them are over.
    at: Option<Timestamp>,
    /// What was wrong, one sentence each.
    pub(super) findings: Vec<String>,
}

impl Gathered {
    /// Charges some of the periods, those of a range of days.
    pub(super) fn charged(
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
            now_ms: self.at.map_or(i64::MAX, |it| it.millis()),
            fleet: &self.fleet,
            periods,
            book: &terms.book,
            commitments: &self.commitments,
            owners: &terms.owners,
        })
    }
}

/// Gathers the days of a range.
pub(super) fn gathered(days: &Days, range: &Range<i64>, terms: &Terms) -> Gathered {
    let time = Span::days(range);
    let mut gathering = Gathering::new(&days.holders);
    let same_gpu = |one: &LedgerDay, other: &LedgerDay| Arc::ptr_eq(&one.of, &other.of);
    for of_gpu in days.days.chunk_by(same_gpu) {
        let in_range = of_gpu.iter().filter(|it| range.contains(&it.day));
        let mut in_range = in_range.peekable();
        if in_range.peek().is_some() {
            gathering.add(&of_gpu[0].of, in_range);
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
    once::bill_once(&mut gathering.nodes);
    let next = next_cards(days, range.end, &gathering.gpu_of);
    let doubts = lives::add(&mut gathering.nodes, lives, &next, time);
    findings.extend(doubts);
    let (fleet, periods, unwatched) = gathering.finish(terms, time);
    for (cluster, millis) in unwatched {
        findings.push(format!(
            "{cluster}: of what is unobserved, {} GPU-hours at most are of nodes that went while the server did not see the cluster: each counts until it was missed",
            report::hours(millis)
        ));
    }
    let (commitments, left_out) = committed::of(days, terms.book.commitments(), time.into());
    findings.extend(left_out);
    Gathered {
        fleet,
        periods,
        commitments,
        at: days.at,
        findings,
    }
}

/// The cards of each node on a day after those that are gathered, as far as it was read, by their numbers.
fn next_cards<'a>(days: &'a Days, day: i64, gpu_of: &HashMap<String, usize>) -> NextCards<'a> {
    let mut next = NextCards::new();
    let read = days.days.iter().chain(&days.next_day);
    for it in read.filter(|it| it.day == day && !it.of.is_share) {
        let node = (it.of.cluster.as_str(), it.of.facts.node.as_str());
        let cards: &mut Vec<Option<usize>> = next.entry(node).or_default();
        cards.push(gpu_of.get(&it.of.id).copied());
    }
    next
}

/// A node as its days tell of it: one that came back as another machine is another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeKey {
    pub(super) cluster: String,
    pub(super) node: String,
    pub(super) machine_type: String,
    pub(super) region: String,
    pub(super) provisioning: String,
}

/// What is known of a node day by day.
pub(super) type NodesByDay = BTreeMap<NodeKey, (Seen, BTreeMap<i64, NodeDay>)>;

/// A node's day while its GPUs are gathered.
#[derive(Clone, Default)]
pub(super) struct NodeDay {
    pub(super) spans: Spans,
    pub(super) gpus: BTreeMap<usize, GpuDay>,
    /// When the inventory had it, beside what was accounted.
    pub(super) there: Spans,
    /// When in that time it was not ready yet.
    pub(super) starting: Spans,
    /// When the inventory had it no more: what is unobserved then was not there.
    pub(super) gone: Spans,
    /// When in the time that the inventory had it nobody looked before it was missed.
    pub(super) unwatched: Spans,
    /// GPUs that it has by the inventory; 0 where that does not say.
    pub(super) count: u32,
}

/// A GPU's day.
#[derive(Clone, Default)]
pub(super) struct GpuDay {
    /// The card's name; empty where nobody tells it.
    pub(super) model: Arc<str>,
    pub(super) spans: Spans,
    pub(super) parts: Vec<Part>,
}

/// What was told of a node besides its name.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Who provides it, as told; empty where nobody does.
    pub(super) provider: String,
    pub(super) zone: String,
    pub(super) account: String,
    pub(super) instance: String,
    /// The name of one of its cards.
    pub(super) gpu_model: String,
    /// The node pool, which the inventory tells; empty where nobody does.
    pub(super) pool: String,
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
        let model: Arc<str> = facts.gpu_model.as_str().into();
        for day in days {
            let of_day = node.entry(day.day).or_default();
            let spans = day.spans.iter().copied().map(Span::from);
            of_day.spans.extend(spans.clone());
            let of_gpu = of_day.gpus.entry(gpu).or_default();
            if of_gpu.model.is_empty() {
                of_gpu.model = Arc::clone(&model);
            }
            of_gpu.spans.extend(spans);
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
    fn finish(self, terms: &Terms, range: Span) -> (Fleet, Vec<NodePeriod>, BTreeMap<String, i64>) {
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
pub(super) const fn is_held(state: State) -> bool {
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
