//! What commitments cover of nodes that stand as they are now, and what an hour of one of them costs with that.
//!
//! Method. The hour is one in which each of these nodes is billed from its beginning to its end, and commitments take of
//! it as they do of any other ([`cover`](super::cover)): those of one cluster first, each in proportion to what is left. So
//! nodes that are alike cost the same, which is their mean: what commitments cover at their rates, the rest at its own.
//! That is what the ledger books of such an hour, but for rounding; what nobody uses of a commitment is a line of its own
//! there, and in no price here.
//!
//! Numbers. Node-milliseconds (i64) of that hour; nano-units an hour.

use std::collections::BTreeMap;

use super::cover::{in_order, taken};
use crate::money::ratio;
use crate::price_book::Commitment;

/// Milliseconds of an hour.
const HOUR: i64 = 3_600_000;

/// Nodes that are alike, live ones that are paid on demand.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alike {
    /// Their machine type.
    pub machine_type: String,
    /// Their region.
    pub region: String,
    /// Their cluster.
    pub cluster: String,
}

/// What commitments cover of nodes that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Covered {
    /// The time of all of them.
    billed: i64,
    /// What of it nothing covers.
    left: i64,
    /// What the rest costs, nano-units × milliseconds of an hour.
    paid: i128,
}

impl Covered {
    /// Whether nothing is left that is paid on demand.
    pub const fn is_whole(&self) -> bool {
        self.left == 0
    }

    /// What an hour of one of them costs, nano-units, where one that nothing covers costs `uncovered`; none where that
    /// does not fit.
    pub fn hour(&self, uncovered: i64) -> Option<i64> {
        let left = i128::from(uncovered).checked_mul(self.left.into())?;
        let mean = ratio(self.paid.checked_add(left)?, 1, self.billed.into())?;
        i64::try_from(mean).ok()
    }
}

impl Commitment {
    /// Whether it may cover nodes like these at a moment.
    pub fn may_cover(&self, nodes: &Alike, at_ms: i64) -> bool {
        let alike = (&*nodes.machine_type, &*nodes.region, &*nodes.cluster);
        (self.from_ms..self.until_ms).contains(&at_ms) && self.is_for(alike)
    }
}

/// What commitments cover of so many nodes of each kind at a moment; of kinds that none covers nothing is said.
pub fn standing(
    commitments: &[Commitment],
    nodes: &BTreeMap<Alike, u32>,
    at_ms: i64,
) -> BTreeMap<Alike, Covered> {
    let there = nodes.iter().filter(|it| *it.1 > 0);
    let all = there.map(|(alike, count)| {
        let billed = i64::from(*count) * HOUR;
        let nothing = Covered {
            billed,
            left: billed,
            paid: 0,
        };
        (alike.clone(), nothing)
    });
    let mut all: BTreeMap<Alike, Covered> = all.collect();
    for (_, commitment) in in_order(commitments) {
        let fit = all.iter_mut();
        let fit = fit.filter(|it| commitment.may_cover(it.0, at_ms));
        let mut fit: Vec<&mut Covered> = fit.map(|it| it.1).collect();
        let left: Vec<i64> = fit.iter().map(|it| it.left).collect();
        let room = i64::from(commitment.nodes) * HOUR;
        for (covered, part) in fit.iter_mut().zip(taken(room, &left)) {
            covered.left -= part;
            covered.paid += i128::from(commitment.hour) * i128::from(part);
        }
    }
    all.retain(|_, it| it.left < it.billed);
    all
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{FIRST_HOUR, RATES, book, fleet, october, part, period};
    use super::super::{Fleet, Tariff};
    use super::*;
    use crate::ledger::State;

    const USD: i64 = 1_000_000_000;

    fn alike(cluster: &str) -> Alike {
        Alike {
            machine_type: "box-8g".to_owned(),
            region: "here".to_owned(),
            cluster: cluster.to_owned(),
        }
    }

    fn committed(id: &str, nodes: u32, hour: u32) -> String {
        format!("{id},box-8g,here,{nodes},commitment_3y,USD,{hour},2026-10-01,2026-11-01,\n")
    }

    /// What an hour of `nodes` boxes costs each by the standing price, and all of them by the ledger.
    fn both(nodes: usize, commitments: &str) -> (i64, i128) {
        let book = book(RATES, commitments);
        let count = u32::try_from(nodes).expect("few");
        let at_ms = FIRST_HOUR * HOUR;
        let all = BTreeMap::from([(alike("c"), count)]);
        let now = standing(book.commitments(), &all, at_ms);
        let now = now
            .get(&alike("c"))
            .map_or(Some(80 * USD), |it| it.hour(80 * USD));
        let fleet: Fleet = fleet(nodes);
        let parts = [part(Some(0), State::ActiveUnrated, HOUR)];
        let periods: Vec<_> = (0..nodes).map(|it| period(it, 0, &parts)).collect();
        let made = october(&fleet, &periods, &book);
        assert!(made.balance().is_exact());
        let used = made.lines.iter();
        let used = used.filter(|it| !matches!(made.tariffs[it.0.tariff], Tariff::Unused { .. }));
        (now.expect("it fits"), used.map(|it| it.1.cost).sum())
    }

    #[test]
    fn what_a_node_costs_now_is_what_the_ledger_books_of_its_hour() {
        for (nodes, commitments, hour) in [
            (4, String::new(), 80),
            (4, committed("a", 4, 32), 32),
            (4, committed("a", 9, 32), 32),
            (4, committed("a", 1, 32), 68),
            (
                4,
                [committed("a", 1, 32), committed("b", 2, 40)].concat(),
                48,
            ),
            (
                4,
                [committed("a", 3, 32), committed("b", 2, 40)].concat(),
                34,
            ),
        ] {
            let (now, booked) = both(nodes, &commitments);
            assert_eq!(now, hour * USD, "{nodes} {commitments}");
            assert_eq!(booked, i128::from(now) * nodes as i128, "{commitments}");
        }
    }

    #[test]
    fn what_does_not_divide_is_some_nano_units_off() {
        let (now, booked) = both(7, &committed("a", 3, 37));
        let off = booked - i128::from(now) * 7;
        assert!(off.abs() <= 14, "{off}");
    }

    #[test]
    fn those_of_a_cluster_take_first_and_what_is_of_all_is_shared_by_what_is_left() {
        let rows = [committed("all", 2, 40), committed("own", 1, 32)].concat();
        let mut committed = book(RATES, &rows).commitments().to_vec();
        committed[1].cluster = "a".to_owned();
        let nodes = [(alike("a"), 3), (alike("b"), 2)].into();
        let now = standing(&committed, &nodes, FIRST_HOUR * HOUR);
        // One of a's three by its own; of four that are left two, each for half of its time.
        let hours = ["a", "b"].map(|it| now[&alike(it)].hour(80 * USD));
        assert_eq!(hours, [Some((32 + 2 * 60) * USD / 3 + 1), Some(60 * USD)]);
        let later = standing(&committed, &nodes, (FIRST_HOUR + 744) * HOUR);
        assert!(later.is_empty(), "they have ended");
        assert!(!now[&alike("a")].is_whole());
    }
}
