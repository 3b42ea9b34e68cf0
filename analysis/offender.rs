//! Cards that break again and again, and machines in which one card after the other does.
//!
//! Method: hardware incidents of the last [`WINDOW_NS`] are counted by card (its serial number, else its
//! id: the same wherever it is put) and by machine. Incidents of one card that began within
//! [`APART_NS`] of each other are one: what comes and goes for an hour is one fault. A card with
//! [`CARD_FAULTS`] is to be replaced; of a machine with [`NODE_FAULTS`] of [`NODE_CARDS`] different cards
//! it is not the cards: board, riser, power or cooling. These cards are then not told one by one.
//!
//! Limits: incidents that were taken into others, or explained by them, count once, with these.

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
}

/// Who is to be looked at, by the faults of the window that ends now.
pub fn judge(faults: &[Fault], now: Timestamp) -> Vec<Offender> {
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
    nodes.retain(|_, (faults, cards)| *faults >= NODE_FAULTS && cards.len() >= NODE_CARDS);
    let is_the_nodes = |fault: &&Fault| nodes.contains_key(&(&*fault.cluster, &*fault.node));
    let of_cards = cards.iter().filter_map(|((cluster, card), faults)| {
        let own = faults.iter().filter(|it| !is_the_nodes(it)).count();
        let told = Offender::Card((*cluster).to_owned(), (*card).to_owned(), own);
        (own >= CARD_FAULTS).then_some(told)
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
        assert_eq!(judge(&faults, NOW), [card(3)]);
        assert_eq!(judge(&faults[..2], NOW), []);
        let old = [&faults[..2], &[fault("a", "1", 721)]].concat();
        assert_eq!(judge(&old, NOW), [], "that is more than a month ago");
    }

    #[test]
    fn what_comes_and_goes_within_an_hour_is_one_fault() {
        let at = |minutes: i64| Fault {
            at: NOW.shifted(-minutes * HOUR_NS / 60),
            ..fault("a", "1", 0)
        };
        let faults: Vec<Fault> = (0..20).map(|it| at(10 + it * 2)).collect();
        assert_eq!(judge(&faults, NOW), []);
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
        assert_eq!(judge(&faults, NOW), [node]);
        let two = Offender::Card("prod".to_owned(), "1".to_owned(), 3);
        assert_eq!(judge(&faults[..4], NOW), [two], "two cards are cards");
    }

    #[test]
    fn nobody_is_told_without_faults_or_for_those_to_come() {
        assert_eq!(judge(&[], NOW), []);
        let coming: Vec<Fault> = (1..9).map(|it| fault("a", "1", -24 * it)).collect();
        assert_eq!(judge(&coming, NOW), []);
    }
}
