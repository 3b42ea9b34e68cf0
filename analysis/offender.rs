//! Cards that break again and again, machines in which one card after the other does, and parts of the
//! cluster in which one machine after the other does.
//!
//! Method: hardware incidents of the last [`WINDOW_NS`] are counted by card (its serial number, else its
//! id: the same wherever it is put) and by machine. Incidents of one card that began within
//! [`APART_NS`] of each other are one: what comes and goes for an hour is one fault. A card with
//! [`CARD_FAULTS`] is to be replaced; of a machine with [`NODE_FAULTS`] of [`NODE_CARDS`] different cards
//! it is not the cards: board, riser, power or cooling. These cards are then not told one by one.
//!
//! A part is what its machines have in common and others do not: NVLink domain, sub-block, block or rack, zone.
//! Counted are its machines with a fault, not their faults, so that one bad machine is no bad rack. It is told
//! when [`PART_MACHINES`] of them had one, their share is [`PART_TIMES`] that of the machines elsewhere in the
//! cluster, and so many or more would come by chance less than [`PART_CHANCE`] times in all parts that are looked
//! at (binomial, with the share elsewhere as (faulty + 1) ÷ (machines + 2), so that none is not never). It then
//! explains its machines and cards. The narrowest part that is wrong is told, unless a wider one is wrong without
//! the machines of the narrower ones too: then that is, and explains them.
//!
//! Limits: a part that is the whole cluster, or has fewer than [`PART_MACHINES`] elsewhere, is held against
//! nothing and never told; machines that tell no topology are in no part and are elsewhere; a cluster in which
//! models are laid out by part shows models as parts. Incidents that were taken into others, or explained by them, count once, with these.

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
}

/// One hardware incident that is over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The cluster.
    pub cluster: String,
    /// The machine.
    pub node: String,
    /// The card: its serial number, else its id.
    pub card: String,
    /// When it began.
    pub at: Timestamp,
}

/// Who does it again and again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Offender {
    /// One card: in which cluster, which, how often.
    Card(String, String, usize),
    /// A machine: in which cluster, which, how often, how many cards.
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
    let lately = |it: &&Fault| (0..WINDOW_NS).contains(&now.0.saturating_sub(it.at.0));
    let troubled: BTreeSet<(&str, &str)> = faults
        .iter()
        .filter(lately)
        .map(|it| (&*it.cluster, &*it.node))
        .collect();
    let parts = parts(&troubled, machines, by);
    let is_explained = |cluster: &str, node: &str| {
        let explains = |it: &Part| it.cluster == cluster && it.faulty.contains(node);
        parts.iter().any(explains)
    };
    let mut others: Vec<Fault> = faults.to_vec();
    others.retain(|it| !is_explained(&it.cluster, &it.node));
    let own = cards_and_nodes(&others, by, now);
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

fn cards_and_nodes(faults: &[Fault], by: &Thresholds, now: Timestamp) -> Vec<Offender> {
    let mut lately: Vec<&Fault> = faults
        .iter()
        .filter(|it| (0..WINDOW_NS).contains(&now.0.saturating_sub(it.at.0)))
        .collect();
    lately.sort_by_key(|it| it.at);
    let mut cards: BTreeMap<(&str, &str), Vec<&Fault>> = BTreeMap::new();
    for fault in lately {
        let of_card = cards.entry((&fault.cluster, &fault.card)).or_default();
        let is_new = |last: &&&Fault| fault.at.0.saturating_sub(last.at.0) >= APART_NS;
        if of_card.is_empty() || of_card.last().filter(is_new).is_some() {
            of_card.push(fault);
        }
    }
    let mut nodes: BTreeMap<(&str, &str), (usize, BTreeSet<&str>)> = BTreeMap::new();
    for ((cluster, card), faults) in &cards {
        for fault in faults {
            let of_node = nodes.entry((cluster, &fault.node)).or_default();
            of_node.0 += 1;
            of_node.1.insert(card);
        }
    }
    nodes
        .retain(|_, (faults, cards)| *faults as f64 >= by.node_faults && cards.len() >= NODE_CARDS);
    let is_the_nodes = |fault: &&Fault| nodes.contains_key(&(&*fault.cluster, &*fault.node));
    let of_cards = cards.iter().filter_map(|((cluster, card), faults)| {
        let own = faults.iter().filter(|it| !is_the_nodes(it)).count();
        let told = Offender::Card((*cluster).to_owned(), (*card).to_owned(), own);
        (own as f64 >= by.card_faults).then_some(told)
    });
    let of_nodes = nodes.iter().map(|((cluster, node), (faults, cards))| {
        Offender::Node(
            (*cluster).to_owned(),
            (*node).to_owned(),
            *faults,
            cards.len(),
        )
    });
    of_nodes.chain(of_cards).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_790_000_000);

    fn fault(node: &str, card: &str, hours_ago: i64) -> Fault {
        Fault {
            cluster: "prod".to_owned(),
            node: node.to_owned(),
            card: card.to_owned(),
            at: NOW.shifted(-hours_ago * HOUR_NS),
        }
    }

    #[test]
    fn a_card_that_breaks_three_times_in_a_month_is_told_wherever_it_was_put() {
        let faults = [
            fault("a", "1", 600),
            fault("b", "1", 300),
            fault("b", "1", 2),
        ];
        let card = |count| Offender::Card("prod".to_owned(), "1".to_owned(), count);
        assert_eq!(judge(&faults, &[], NOW), [card(3)]);
        assert_eq!(judge(&faults[..2], &[], NOW), []);
        let by = |card_faults| Thresholds {
            card_faults,
            ..Thresholds::default()
        };
        assert_eq!(judge_by(&faults, &[], &by(4.0), NOW), []);
        assert_eq!(judge_by(&faults[..2], &[], &by(2.0), NOW), [card(2)]);
        let old = [&faults[..2], &[fault("a", "1", 721)]].concat();
        assert_eq!(judge(&old, &[], NOW), [], "that is more than a month ago");
    }

    #[test]
    fn what_comes_and_goes_within_an_hour_is_one_fault() {
        let at = |minutes: i64| Fault {
            at: NOW.shifted(-minutes * HOUR_NS / 60),
            ..fault("a", "1", 0)
        };
        let faults: Vec<Fault> = (0..20).map(|it| at(10 + it * 2)).collect();
        assert_eq!(judge(&faults, &[], NOW), []);
    }

    #[test]
    fn a_machine_in_which_card_after_card_breaks_is_told_and_not_its_cards() {
        let faults = [
            fault("a", "1", 2),
            fault("a", "1", 90),
            fault("a", "1", 300),
            fault("a", "2", 30),
            fault("a", "3", 60),
            fault("b", "4", 60),
        ];
        let node = Offender::Node("prod".to_owned(), "a".to_owned(), 5, 3);
        assert_eq!(judge(&faults, &[], NOW), [node]);
        let two = Offender::Card("prod".to_owned(), "1".to_owned(), 3);
        assert_eq!(judge(&faults[..4], &[], NOW), [two], "two cards are cards");
    }

    #[test]
    fn nobody_is_told_without_faults_or_for_those_to_come() {
        assert_eq!(judge(&[], &[], NOW), []);
        let coming: Vec<Fault> = (1..9).map(|it| fault("a", "1", -24 * it)).collect();
        assert_eq!(judge(&coming, &[], NOW), []);
    }

    /// A cluster of so many blocks of 16 machines, each of two sub-blocks.
    fn machines(blocks: usize) -> Vec<Machine> {
        let machine = |number: usize| Machine {
            cluster: "prod".to_owned(),
            node: format!("n{number}"),
            parts: vec![
                (Level::Zone, "z".to_owned()),
                (Level::Block, format!("b{}", number / 16)),
                (Level::SubBlock, format!("s{}", number / 8)),
            ],
        };
        (0..blocks * 16).map(machine).collect()
    }

    /// A fault on each of these machines, each of another card.
    fn on(nodes: &[usize]) -> Vec<Fault> {
        let of = |node: &usize| fault(&format!("n{node}"), &format!("card{node}"), 24);
        nodes.iter().map(of).collect()
    }

    fn told(nodes: &[usize], blocks: usize) -> Vec<(Level, String, usize)> {
        let found = judge(&on(nodes), &machines(blocks), NOW).into_iter();
        let part = |it| match it {
            Offender::Part(part) => (part.level, part.name, part.faulty.len()),
            other => panic!("{other:?}"),
        };
        found.map(part).collect()
    }

    #[test]
    fn a_block_in_which_machine_after_machine_breaks_is_told_once_and_explains_its_parts() {
        let block = [0, 2, 5, 9, 12, 14, 40, 70];
        assert_eq!(told(&block, 8), [(Level::Block, "b0".to_owned(), 6)]);
        let sub_block = [8, 9, 11, 13, 15, 40, 70];
        assert_eq!(
            told(&sub_block, 8),
            [(Level::SubBlock, "s1".to_owned(), 5)],
            "the narrower"
        );
        // Two racks of a block, one of which is wrong by itself: the block is.
        let both = [0, 1, 2, 4, 5, 6, 8, 10, 11, 13, 15, 70];
        assert_eq!(told(&both, 8), [(Level::Block, "b0".to_owned(), 11)]);
        // One of its cards breaks three times: it is one of the block's.
        let mut again = on(&block);
        again.extend([100, 200, 300].map(|it| fault("n2", "card2", it)));
        let found = judge(&again, &machines(8), NOW);
        assert!(matches!(&found[..], [Offender::Part(_)]), "{found:?}");
        // The same card elsewhere is nobody's but its own.
        again.extend([100, 200, 300].map(|it| fault("n100", "card100", it)));
        let found = judge(&again, &machines(8), NOW);
        assert!(
            matches!(&found[..], [Offender::Part(_), Offender::Card(..)]),
            "{found:?}"
        );
    }

    #[test]
    fn one_bad_machine_is_no_bad_block_and_nor_are_faults_everywhere() {
        let mut one = Vec::new();
        one.extend((0..9).map(|it| fault("n3", &format!("card{it}"), 24 * it)));
        let found = judge(&one, &machines(8), NOW);
        assert!(matches!(&found[..], [Offender::Node(..)]), "{found:?}");
        assert_eq!(told(&[0, 20, 41, 63, 77, 90, 101, 120], 8), []);
        assert_eq!(
            told(&(0..128).step_by(3).collect::<Vec<_>>(), 8),
            [],
            "a third of all"
        );
        assert_eq!(told(&[0, 5, 60, 100], 8), [], "two of a block are two");
    }

    #[test]
    fn a_part_that_is_held_against_nothing_and_machines_without_topology_are_not_told() {
        assert_eq!(
            told(&[0, 2, 5, 9, 12, 14], 1),
            [],
            "the block is the cluster"
        );
        let mut bare = machines(8);
        bare.iter_mut().for_each(|it| it.parts.clear());
        assert_eq!(judge(&on(&[0, 2, 5, 9, 12, 14]), &bare, NOW), []);
        let mut unnamed = machines(8);
        unnamed
            .iter_mut()
            .for_each(|it| it.parts = vec![(Level::Block, String::new())]);
        assert_eq!(judge(&on(&[0, 2, 5, 9, 12, 14]), &unnamed, NOW), []);
        assert_eq!(judge(&on(&[0, 2, 5, 9, 12, 14]), &[], NOW), []);
    }

    #[test]
    fn chances_are_those_of_the_tables() {
        for (count, all, part, chance) in [
            (0, 10, 0.3, 1.0),
            (1, 10, 0.1, 0.651_322),
            (5, 10, 0.5, 0.623_047),
            (3, 16, 0.02, 0.003_685),
        ] {
            let own = at_least(count, all, part);
            assert!((own - chance).abs() < 2e-5, "{count} of {all}: {own}");
        }
    }
}
