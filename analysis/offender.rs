//! Cards that break again and again, machines in which one card after the other does, and parts of the
//! cluster in which one machine after the other does.
//!
//! Method: hardware incidents of the last [`WINDOW_NS`] are counted by card (its serial number, else its
//! id: the same wherever it is put) and by machine. Incidents of one card that began within
//! [`APART_NS`] of each other are one: what comes and goes for an hour is one fault. A card with
//! [`CARD_FAULTS`] is to be replaced; of a machine with [`NODE_FAULTS`] of [`NODE_CARDS`] different cards
//! it is not the cards: board, riser, power or cooling. These cards are then not told one by one. What breaks several
//! cards of a machine at once, or none of them, as a network port, is no card's: it is the machine's own fault, one
//! however many cards, and counts beside a different card.
//!
//! A part is what its machines have in common and others do not: NVLink domain, sub-block, block or rack, zone.
//! Counted are its machines with a fault, not their faults, so that one bad machine is no bad rack. It is told
//! when [`PART_MACHINES`] of them had one, their share is [`PART_TIMES`] that of the machines elsewhere in the
//! cluster, and so many or more would come by chance less than [`PART_CHANCE`] times in all parts that are looked
//! at (binomial, with the share elsewhere as (faulty + 1) ÷ (machines + 2), so that none is not never). It then
//! explains its machines and cards. The narrowest part that is wrong is told, unless a wider one is wrong without
//! the machines of the narrower ones too: then that is, and explains them.
//!
//! Limits: a machine that was there before under the same name is another one only where it is told when the one of
//! now was made; a part that is the whole cluster, or has fewer than [`PART_MACHINES`] elsewhere, is held against nothing
//! and never told; machines that tell no topology are in no part and are elsewhere; a cluster in which models are laid
//! out by part shows models as parts. Incidents that were taken into others, or explained by them, count once, with
//! these.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::time::Timestamp;

const HOUR_NS: i64 = 3_600 * 1_000_000_000;

/// How far back is looked: a month, in which a card that is well breaks hardly once (Llama 3: 0.6 % of
/// cards in 54 days).
pub const WINDOW_NS: i64 = 30 * 24 * HOUR_NS;
/// Incidents of a card closer than this are one.
pub const APART_NS: i64 = HOUR_NS;
/// Faults of one card that are too many.
pub const CARD_FAULTS: usize = 3;
/// Faults in one machine that are too many …
pub const NODE_FAULTS: usize = 4;
/// … when they are of so many different cards.
pub const NODE_CARDS: usize = 3;

/// Machines of one part with a fault that are too many.
pub const PART_MACHINES: usize = 3;
/// … when their share is so many times that of the machines elsewhere …
pub const PART_TIMES: f64 = 3.0;
/// … and chance would do it in less than one of so many looks at all parts: looks are hourly, faults last a
/// month, so it would be wrong once in some years.
pub const PART_CHANCE: f64 = 1e-3;

/// From when a card, a machine or a part is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Faults of one card.
    pub card_faults: f64,
    /// Faults in one machine.
    pub node_faults: f64,
    /// A part's share of machines with a fault ÷ that of the machines elsewhere.
    pub part_times: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            card_faults: CARD_FAULTS as f64,
            node_faults: NODE_FAULTS as f64,
            part_times: PART_TIMES,
        }
    }
}

/// What a part is, the narrowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Machines whose GPUs reach each other by NVLink.
    Domain,
    /// The provider's sub-block: usually one rack.
    SubBlock,
    /// The provider's block, or a rack.
    Block,
    /// A zone.
    Zone,
}

/// A machine and the parts that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The cluster.
    pub cluster: String,
    /// The machine.
    pub node: String,
    /// Its parts: of each level at most one.
    pub parts: Vec<(Level, String)>,
    /// When it was made; none where nobody says.
    pub made: Option<Timestamp>,
}

/// One hardware incident that is over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The cluster.
    pub cluster: String,
    /// The machine.
    pub node: String,
    /// The cards that broke: their serial numbers, else ids. One is that card's fault; else it is the machine's.
    pub cards: Vec<String>,
    /// When it began.
    pub at: Timestamp,
}

/// Who does it again and again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offender {
    /// One card: in which cluster, which, how often.
    Card(String, String, usize),
    /// A machine: in which cluster, which, how often, how many cards that broke alone.
    Node(String, String, usize, usize),
    /// A part of a cluster.
    Part(Part),
}

/// A part in which more machines break than elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// In which cluster.
    pub cluster: String,
    /// What it is.
    pub level: Level,
    /// Its name.
    pub name: String,
    /// Its machines that had a fault.
    pub faulty: BTreeSet<String>,
    /// Its machines.
    pub machines: usize,
    /// Machines elsewhere in the cluster that had one.
    pub faulty_elsewhere: usize,
    /// Machines elsewhere.
    pub elsewhere: usize,
}

impl Level {
    /// What it is called.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Domain => "NVLink domain",
            Self::SubBlock => "sub-block",
            Self::Block => "block",
            Self::Zone => "zone",
        }
    }
}

/// Who is to be looked at, by the faults of the window that ends now: parts by the machines that there are, then
/// machines and cards that no part explains.
pub fn judge(faults: &[Fault], machines: &[Machine], now: Timestamp) -> Vec<Offender> {
    judge_by(faults, machines, &Thresholds::default(), now)
}

/// The same by these thresholds.
pub fn judge_by(
    faults: &[Fault],
    machines: &[Machine],
    by: &Thresholds,
    now: Timestamp,
) -> Vec<Offender> {
    let made: BTreeMap<(&str, &str), Timestamp> = machines
        .iter()
        .filter_map(|it| Some(((&*it.cluster, &*it.node), it.made?)))
        .collect();
    let is_its_own = |it: &Fault| {
        let made = made.get(&(&*it.cluster, &*it.node));
        made.is_none_or(|made| *made <= it.at)
    };
    let lately = |it: &&Fault| (0..WINDOW_NS).contains(&now.0.saturating_sub(it.at.0));
    let troubled: BTreeSet<(&str, &str)> = faults
        .iter()
        .filter(|it| lately(it) && is_its_own(it))
        .map(|it| (&*it.cluster, &*it.node))
        .collect();
    let parts = parts(&troubled, machines, by);
    let is_explained = |cluster: &str, node: &str| {
        let explains = |it: &Part| it.cluster == cluster && it.faulty.contains(node);
        parts.iter().any(explains)
    };
    let mut others: Vec<&Fault> = faults.iter().filter(lately).collect();
    others.retain(|it| !(is_its_own(it) && is_explained(&it.cluster, &it.node)));
    others.sort_by_key(|it| it.at);
    let own = cards_and_nodes(&others, by, &is_its_own);
    parts.into_iter().map(Offender::Part).chain(own).collect()
}

/// The parts in which more machines had a fault than chance and the rest of their cluster would have.
fn parts(troubled: &BTreeSet<(&str, &str)>, machines: &[Machine], by: &Thresholds) -> Vec<Part> {
    let mut clusters: BTreeMap<&str, BTreeMap<&str, bool>> = BTreeMap::new();
    let mut all: BTreeMap<(&str, Level, &str), BTreeSet<&str>> = BTreeMap::new();
    for machine in machines {
        let is_troubled = troubled.contains(&(&*machine.cluster, &*machine.node));
        let of_cluster = clusters.entry(&machine.cluster).or_default();
        of_cluster.insert(&machine.node, is_troubled);
        for (level, name) in machine.parts.iter().filter(|it| !it.1.is_empty()) {
            let part = all.entry((&machine.cluster, *level, name)).or_default();
            part.insert(&machine.node);
        }
    }
    let looked_at = all.len();
    let mut found: Vec<(Part, BTreeSet<&str>)> = Vec::new();
    for ((cluster, level, name), nodes) in all {
        let whole = &clusters[cluster];
        let mut faulty: BTreeSet<String> = BTreeSet::new();
        for node in &nodes {
            if whole.get(node).is_some_and(|it| *it) {
                faulty.insert((*node).to_owned());
            }
        }
        let part = Part {
            cluster: cluster.to_owned(),
            level,
            name: name.to_owned(),
            machines: nodes.len(),
            faulty_elsewhere: whole.values().filter(|it| **it).count() - faulty.len(),
            elsewhere: whole.len() - nodes.len(),
            faulty,
        };
        if part.is_wrong(looked_at, by) {
            found.push((part, nodes));
        }
    }
    found.sort_by_key(|it| it.0.level);
    let mut told: Vec<(Part, BTreeSet<&str>)> = Vec::new();
    for (part, nodes) in found {
        let is_inner =
            |it: &Part| it.cluster == part.cluster && !it.faulty.is_disjoint(&part.faulty);
        // Parts need not lie in one another: an NVLink domain may reach over two sub-blocks.
        let mut left = nodes.clone();
        for (_, of_inner) in told.iter().filter(|it| is_inner(&it.0)) {
            left.retain(|it| !of_inner.contains(it));
        }
        let mut rest = part.clone();
        rest.faulty.retain(|it| left.contains(it.as_str()));
        rest.machines = left.len();
        if rest.is_wrong(looked_at, by) {
            told.retain(|it| !is_inner(&it.0));
            told.push((part, nodes));
        }
    }
    told.into_iter().map(|it| it.0).collect()
}

impl Part {
    /// Whether it is more than what happens elsewhere, and than chance in so many parts.
    fn is_wrong(&self, looked_at: usize, by: &Thresholds) -> bool {
        let faulty = self.faulty.len();
        if faulty < PART_MACHINES || self.elsewhere < PART_MACHINES {
            return false;
        }
        let usual = (self.faulty_elsewhere + 1) as f64 / (self.elsewhere + 2) as f64;
        let share = faulty as f64 / self.machines as f64;
        let chance = at_least(faulty, self.machines, usual) * looked_at as f64;
        share >= by.part_times * usual && chance < PART_CHANCE
    }
}

/// The chance of so many or more of `all`, each with chance `part`.
fn at_least(count: usize, all: usize, part: f64) -> f64 {
    // The terms one from the other, beginning where they are greatest in what is asked for.
    let odds = part / (1.0 - part);
    let first = (1..=count).fold(all as f64 * (1.0 - part).ln(), |sum, it| {
        sum + ((all - it + 1) as f64 / it as f64).ln() + odds.ln()
    });
    let mut term = first.exp();
    let mut sum = term;
    for it in count + 1..=all {
        term *= (all - it + 1) as f64 / it as f64 * odds;
        sum += term;
    }
    sum.min(1.0)
}

/// What a machine had.
#[derive(Default)]
struct OfNode<'a> {
    /// Faults of its own.
    own: usize,
    /// Faults of one card each, and these cards.
    of_cards: usize,
    cards: BTreeSet<&'a str>,
}

impl OfNode<'_> {
    fn faults(&self) -> usize {
        self.own + self.of_cards
    }

    /// Whether it is the machine, and not one or two cards of it.
    fn is_wrong(&self, by: &Thresholds) -> bool {
        self.faults() as f64 >= by.node_faults && self.own + self.cards.len() >= NODE_CARDS
    }
}

/// Puts a fault to those of the same, unless it is one with the last of them.
fn put<'a>(known: &mut Vec<&'a Fault>, fault: &'a Fault) {
    let is_one = |last: &&&Fault| fault.at.0.saturating_sub(last.at.0) < APART_NS;
    if known.last().filter(is_one).is_none() {
        known.push(fault);
    }
}

/// Of faults in the order of their times; some are of a machine that was there before under the same name.
fn cards_and_nodes(
    faults: &[&Fault],
    by: &Thresholds,
    is_its_own: &dyn Fn(&Fault) -> bool,
) -> Vec<Offender> {
    let mut cards: BTreeMap<(&str, &str), Vec<&Fault>> = BTreeMap::new();
    let mut machines: BTreeMap<(&str, &str), Vec<&Fault>> = BTreeMap::new();
    for fault in faults {
        match &fault.cards[..] {
            [card] => put(cards.entry((&fault.cluster, card)).or_default(), fault),
            _ if is_its_own(fault) => {
                let of_machine = machines.entry((&fault.cluster, &fault.node));
                put(of_machine.or_default(), fault);
            }
            _ => {}
        }
    }
    let mut nodes: BTreeMap<(&str, &str), OfNode<'_>> = BTreeMap::new();
    for (name, faults) in &machines {
        nodes.entry(*name).or_default().own = faults.len();
    }
    for ((cluster, card), faults) in &cards {
        for fault in faults.iter().filter(|it| is_its_own(it)) {
            let of_node = nodes.entry((cluster, &fault.node)).or_default();
            of_node.of_cards += 1;
            of_node.cards.insert(card);
        }
    }
    nodes.retain(|_, it| it.is_wrong(by));
    let is_the_nodes = |fault: &&&Fault| {
        let node = nodes.get(&(&*fault.cluster, &*fault.node));
        node.is_some() && is_its_own(fault)
    };
    let of_cards = cards.iter().filter_map(|((cluster, card), faults)| {
        let own = faults.iter().filter(|it| !is_the_nodes(it)).count();
        let told = Offender::Card((*cluster).to_owned(), (*card).to_owned(), own);
        (own as f64 >= by.card_faults).then_some(told)
    });
    let of_nodes = nodes.iter().map(|((cluster, node), it)| {
        Offender::Node(
            (*cluster).to_owned(),
            (*node).to_owned(),
            it.faults(),
            it.cards.len(),
        )
    });
    of_nodes.chain(of_cards).collect()
}

#[cfg(test)]
mod tests;
