//! What commitments cover, hour by hour.
//!
//! Method. A commitment covers in every hour (of UTC) as many nodes of its machine type and region as it has, of those that
//! are paid on demand: in proportion to their time where there are more. What of an hour nobody used is lost: it covers
//! nothing of the next one, and is paid for all the same. It is a line of its own, also in hours without any node. Of the
//! hour that runs, and of one that has just ended, nobody knows yet what ran: they cover what is known to have run, and nothing
//! of them is unused.
//!
//! The billed time of nodes that are alike is added up hour by hour; commitments take of that one after the other: first
//! those that cover the nodes of one cluster alone, then the others, each in the order of their tables. What one took in all
//! hours of a period is then divided over the nodes, by what each was billed in these hours. So a day comes to what its hours
//! come to, to the millisecond.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Asked, MILLIS_PER_DAY, NodePeriod, Tariff};
use crate::money::apportion;
use crate::price_book::{Basis, Commitment, Machine};

/// Milliseconds of an hour.
const HOUR: i64 = 3_600_000;

/// So long after its end it is known of an hour what ran in it.
const SETTLES_MS: i64 = 20 * 60_000;

/// Which part of an hour is covered is told in 2^32nds, rounded up: over a month that is less than a millisecond.
const PART_BITS: u32 = 32;

/// A commitment in a period in which it was not used in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unused {
    pub(super) tariff: Tariff,
    pub(super) machine_type: String,
    pub(super) region: String,
    pub(super) owner: String,
    pub(super) from_ms: i64,
    pub(super) node_millis: i64,
    pub(super) gpu_millis: i64,
    pub(super) cost: i128,
}

/// What commitments cover.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Coverage {
    /// By period: the commitment and how long.
    covered: HashMap<usize, Vec<(usize, i64)>>,
    pub(super) unused: Vec<Unused>,
}

/// Nodes that are alike: machine type, region and cluster.
type Alike<'a> = (&'a str, &'a str, &'a str);

/// Nodes that are alike in a period.
#[derive(Default)]
struct Kind {
    /// In the order of the fleet.
    nodes: Vec<Billed>,
    /// For how long they were billed in each hour of the period, milliseconds.
    billed: Vec<i64>,
    /// What of that nothing covers yet.
    left: Vec<i64>,
    /// What the commitment that is looked at covers of it.
    taken: Vec<i64>,
}

/// A node in a period.
struct Billed {
    /// The period.
    index: usize,
    /// What of its time nothing covers yet, milliseconds.
    left: i64,
}

/// Commitments with their places, in the order in which they take: those of one cluster, then the others.
pub(super) fn in_order(commitments: &[Commitment]) -> impl Iterator<Item = (usize, &Commitment)> {
    let numbered = commitments.iter().enumerate();
    let (of_all, of_one): (Vec<_>, Vec<_>) = numbered.partition(|it| it.1.cluster.is_empty());
    of_one.into_iter().chain(of_all)
}

/// What a commitment with so much room in an hour takes of kinds of nodes, of each of which so much is left.
pub(super) fn taken(room: i64, left: &[i64]) -> Vec<i64> {
    let used = left.iter().sum::<i64>().min(room);
    // Nothing is divided where there is nothing.
    let parts = apportion(i128::from(used), left).unwrap_or_default();
    let part = |it: i128| i64::try_from(it).expect("a part is not above its weight");
    parts.into_iter().map(part).collect()
}

impl Coverage {
    pub(super) fn of(asked: &Asked<'_>) -> Self {
        let mut coverage = Self::default();
        let commitments = asked.commitments;
        if commitments.is_empty() {
            return coverage;
        }
        // Periods by their time, so that a commitment meets all nodes of it at once.
        let mut grid: BTreeMap<(i64, i64), Vec<usize>> = BTreeMap::new();
        for (index, period) in asked.periods.iter().enumerate() {
            if asked.from_ms <= period.from_ms && period.until_ms <= asked.until_ms {
                let time = (period.from_ms, period.until_ms);
                grid.entry(time).or_default().push(index);
            }
        }
        for gap in gaps(asked, &grid) {
            grid.insert(gap, Vec::new());
        }
        let coverable = commitments.iter();
        let coverable = coverable.map(|it| (it.machine_type.as_str(), it.region.as_str()));
        let coverable: HashSet<(&str, &str)> = coverable.collect();
        for (time, mut periods) in grid {
            // By node, so that the order in which data came decides nothing.
            periods.sort_by_key(|it| asked.periods[*it].node);
            let mut kinds: BTreeMap<Alike<'_>, Kind> = BTreeMap::new();
            for index in periods {
                let node = &asked.fleet.nodes[asked.periods[index].node];
                let of = (node.machine_type.as_str(), node.region.as_str());
                if node.basis == Basis::OnDemand && coverable.contains(&of) {
                    let kind = kinds.entry((of.0, of.1, node.cluster.as_str()));
                    kind.or_default().add(index, &asked.periods[index]);
                }
            }
            for commitment in in_order(commitments) {
                coverage.cover(asked, commitment, time, &mut kinds);
            }
        }
        coverage
    }

    /// Which commitments cover a period, and how long.
    pub(super) fn of_period(&self, index: usize) -> &[(usize, i64)] {
        let covered = self.covered.get(&index);
        covered.map_or(&[][..], Vec::as_slice)
    }

    /// Lets one commitment cover what it can of a period.
    fn cover(
        &mut self,
        asked: &Asked<'_>,
        (number, commitment): (usize, &Commitment),
        time: (i64, i64),
        kinds: &mut BTreeMap<Alike<'_>, Kind>,
    ) {
        if time.1 <= commitment.from_ms || commitment.until_ms <= time.0 {
            return;
        }
        let fit = kinds.iter_mut().filter(|it| commitment.is_for(*it.0));
        let mut fit: Vec<&mut Kind> = fit.map(|it| it.1).collect();
        let mut unused_millis = 0;
        for (at, (from_ms, until_ms)) in hours(time).enumerate() {
            let held_until_ms = until_ms.min(commitment.until_ms).min(asked.now_ms);
            let held = held_until_ms - from_ms.max(commitment.from_ms);
            let room = held.max(0) * i64::from(commitment.nodes);
            let left: Vec<i64> = fit.iter().map(|it| it.left[at]).collect();
            let taken = taken(room, &left);
            let used: i64 = taken.iter().sum();
            if until_ms + SETTLES_MS <= asked.now_ms {
                unused_millis += room - used;
            }
            for (kind, part) in fit.iter_mut().zip(taken) {
                kind.take(at, part);
            }
        }
        for kind in fit {
            for (index, millis) in kind.divided(asked) {
                let covered = self.covered.entry(index).or_default();
                covered.push((number, millis));
            }
        }
        if unused_millis > 0 {
            let unused = unused(asked, commitment, time.0, unused_millis);
            self.unused.push(unused);
        }
    }
}

impl Kind {
    /// Adds a node.
    fn add(&mut self, index: usize, period: &NodePeriod) {
        if self.nodes.is_empty() {
            let count = hours((period.from_ms, period.until_ms)).count();
            self.billed = vec![0; count];
            self.left = vec![0; count];
            self.taken = vec![0; count];
        }
        let mut left = 0;
        for (at, millis) in billed_hours(period) {
            self.billed[at] += millis;
            self.left[at] += millis;
            left += millis;
        }
        self.nodes.push(Billed { index, left });
    }

    /// Takes so much of an hour.
    fn take(&mut self, at: usize, millis: i64) {
        self.left[at] -= millis;
        self.taken[at] += millis;
    }

    /// What was taken of all hours, over the nodes: the period and how long.
    fn divided(&mut self, asked: &Asked<'_>) -> Vec<(usize, i64)> {
        let whole: i64 = self.taken.iter().sum();
        if whole == 0 {
            return Vec::new();
        }
        let part = |(taken, billed): (&i64, &i64)| {
            let taken = i128::from(*taken) << PART_BITS;
            let billed = i128::from((*billed).max(1));
            (taken + billed - 1) / billed
        };
        let parts: Vec<i128> = self.taken.iter().zip(&self.billed).map(part).collect();
        let weight = |it: &Billed| {
            let hours = billed_hours(&asked.periods[it.index]);
            let time: i128 = hours.map(|(at, it)| parts[at] * i128::from(it)).sum();
            let millis = (time + (1 << PART_BITS) - 1) >> PART_BITS;
            i64::try_from(millis).unwrap_or(i64::MAX).min(it.left)
        };
        let mut weights: Vec<i64> = self.nodes.iter().map(weight).collect();
        // What commitments before this one were rounded up by is missing where all of a node's time is covered.
        let mut missing = whole - weights.iter().sum::<i64>();
        for (weight, node) in weights.iter_mut().zip(&self.nodes) {
            let more = missing.clamp(0, node.left - *weight);
            *weight += more;
            missing -= more;
        }
        self.taken.fill(0);
        let parts = super::spread::take(whole, &weights);
        let mut divided = Vec::new();
        for (node, part) in self.nodes.iter_mut().zip(parts) {
            node.left -= part;
            if part > 0 {
                divided.push((node.index, part));
            }
        }
        divided
    }
}

/// The hours that a time is cut into, from when until when each is in it.
fn hours((from_ms, until_ms): (i64, i64)) -> impl Iterator<Item = (i64, i64)> {
    let first = from_ms.div_euclid(HOUR);
    let end = (until_ms + HOUR - 1).div_euclid(HOUR);
    (first..end).map(move |hour| {
        let from = hour * HOUR;
        (from.max(from_ms), until_ms.min(from + HOUR))
    })
}

/// For how long a node was billed in each hour of its period in which it was, by the hour's place in the period.
fn billed_hours(period: &NodePeriod) -> impl Iterator<Item = (usize, i64)> {
    let first = period.from_ms.div_euclid(HOUR);
    let inside = period.billed.iter().filter_map(move |it| {
        let inside = (it.0.max(period.from_ms), it.1.min(period.until_ms));
        (inside.0 < inside.1).then_some(inside)
    });
    inside.flat_map(hours).map(move |(from, until)| {
        let at = usize::try_from(from.div_euclid(HOUR) - first);
        (at.expect("it is not before the period"), until - from)
    })
}

/// The time asked for in which no node was billed, in days at most: commitments are paid then too.
fn gaps(asked: &Asked<'_>, grid: &BTreeMap<(i64, i64), Vec<usize>>) -> Vec<(i64, i64)> {
    let (mut gaps, mut known_ms) = (Vec::new(), asked.from_ms);
    let end = (asked.until_ms, asked.until_ms);
    for (from_ms, until_ms) in grid.keys().chain([&end]) {
        while known_ms < *from_ms {
            let tomorrow_ms = (known_ms.div_euclid(MILLIS_PER_DAY) + 1) * MILLIS_PER_DAY;
            gaps.push((known_ms, tomorrow_ms.min(*from_ms)));
            known_ms = tomorrow_ms.min(*from_ms);
        }
        known_ms = known_ms.max(*until_ms);
    }
    gaps
}

fn unused(asked: &Asked<'_>, commitment: &Commitment, from_ms: i64, node_millis: i64) -> Unused {
    let machine = asked.book.machine(&commitment.machine_type);
    Unused {
        tariff: Tariff::Unused {
            id: commitment.id.clone(),
            basis: commitment.basis,
        },
        machine_type: commitment.machine_type.clone(),
        region: commitment.region.clone(),
        owner: commitment.owner.clone(),
        from_ms,
        node_millis,
        gpu_millis: node_millis * i64::from(machine.map_or(0, Machine::gpus)),
        cost: super::price::cost(i128::from(commitment.hour) * i128::from(node_millis)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{FIRST_HOUR, book, fleet, october};
    use super::super::{Asked, Chargeback, Detail, NodePeriod, Tariff, chargeback};
    use super::HOUR;
    use crate::owner::Owners;
    use crate::price_book::Basis;

    /// Prices of which a millisecond costs whole nano-units, so that nothing is rounded.
    const RATES: &str = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
        box-8g,here,on_demand,USD,72,,2026-10-01,,list,a\n";
    const DAY: (i64, i64) = (FIRST_HOUR * HOUR, (FIRST_HOUR + 24) * HOUR);

    /// Commitments of this name, at half the price, to so many nodes from a minute of the first day until another.
    fn committed(id: &str, nodes: u32, from_min: i64, until_min: i64) -> String {
        let at = |min: i64| crate::table::moment_text(DAY.0 + min * 60_000);
        let (from, until) = (at(from_min), at(until_min));
        format!("{id},box-8g,here,{nodes},commitment_3y,USD,36,{from},{until},\n")
    }

    /// A node in a time, in which it was billed as far as in these minutes of the first day.
    fn billed(node: usize, (from_ms, until_ms): (i64, i64), minutes: &[(i64, i64)]) -> NodePeriod {
        let at = |min: i64| (DAY.0 + min * 60_000).clamp(from_ms, until_ms);
        let spans = minutes.iter().map(|it| (at(it.0), at(it.1)));
        NodePeriod {
            node,
            from_ms,
            until_ms,
            billed: spans.filter(|it| it.0 < it.1).collect(),
            starting_millis: 0,
            gpus: Vec::new(),
        }
    }

    /// What nodes that were billed in these minutes come to, in periods of so many hours.
    fn made(nodes: &[Vec<(i64, i64)>], commitments: &str, hours: i64) -> Chargeback {
        let periods = (0..24 / hours).flat_map(|it| {
            let from_ms = DAY.0 + it * hours * HOUR;
            let time = (from_ms, from_ms + hours * HOUR);
            let all = nodes.iter().enumerate();
            all.map(move |(node, minutes)| billed(node, time, minutes))
        });
        let periods: Vec<NodePeriod> = periods.collect();
        october(&fleet(nodes.len()), &periods, &book(RATES, commitments))
    }

    /// Node-milliseconds by what they were paid by: a commitment's name, `unused` before it, or on demand.
    fn paid(made: &Chargeback) -> Vec<(String, i64)> {
        let mut paid = std::collections::BTreeMap::new();
        for ((_, _, tariff), sum) in &made.nodes {
            let name = match &made.tariffs[*tariff] {
                Tariff::Committed { id, .. } => id.clone(),
                Tariff::Unused { id, .. } => format!("unused {id}"),
                Tariff::Rate { basis, .. } => basis.name().to_owned(),
                Tariff::Unpriced(why) => why.clone(),
            };
            *paid.entry(name).or_insert(0) += sum.node_millis;
        }
        paid.into_iter().collect()
    }

    fn hours(all: &[(&str, i64)]) -> Vec<(String, i64)> {
        let hours = all.iter();
        hours.map(|it| (it.0.to_owned(), it.1 * HOUR)).collect()
    }

    #[test]
    fn what_nobody_used_of_a_morning_covers_nothing_of_the_afternoon() {
        let nodes = vec![vec![(0, 12 * 60)]; 8];
        let made = made(&nodes, &committed("c", 4, 0, 24 * 60), 24);
        let expected = [("c", 48), ("on_demand", 48), ("unused c", 48)];
        assert_eq!(paid(&made), hours(&expected));
        // Each of the eight was covered for half of its time.
        let basis = |it: usize| match &made.tariffs[it] {
            Tariff::Committed { .. } => "covered",
            _ => "not",
        };
        let of_nodes = made.lines.iter().filter(|it| it.0.node.is_some());
        for (key, sum) in of_nodes {
            assert_eq!(sum.gpu_millis, 6 * HOUR * 8, "{}", basis(key.tariff));
        }
        assert!(made.balance().is_exact());
    }

    #[test]
    fn a_commitment_covers_what_runs_while_it_holds_and_the_next_one_what_is_left_of_the_hour() {
        // Two in the first six hours and one more from then on; one of the commitments begins at six.
        let nodes = [vec![(0, 720)], vec![(0, 360)], vec![(360, 720), (800, 860)]];
        let commitments = [committed("a", 1, 0, 720), committed("b", 2, 360, 1_440)].concat();
        let expected = [
            ("a", 12),
            ("b", 7),
            ("on_demand", 6),
            ("unused b", 6 + 12 * 2 - 1),
        ];
        assert_eq!(paid(&made(&nodes, &commitments, 24)), hours(&expected));
        for basis in [Basis::Spot, Basis::FlexStart] {
            let mut other = fleet(1);
            other.nodes[0].basis = basis;
            let period = billed(0, DAY, &nodes[0]);
            let made = october(&other, &[period], &book(RATES, &committed("a", 1, 0, 720)));
            let unused = paid(&made).into_iter().find(|it| it.0 == "unused a");
            assert_eq!(unused, Some(("unused a".to_owned(), 12 * HOUR)));
        }
    }

    #[test]
    fn what_has_not_happened_yet_is_neither_covered_nor_unused() {
        let at = |minute: i64, nodes: usize, committed_to: u32| {
            // Computed until five minutes ago.
            let known = [(0, minute - 5)];
            let periods: Vec<NodePeriod> = (0..nodes).map(|it| billed(it, DAY, &known)).collect();
            let made = chargeback(&Asked {
                detail: Detail::Nodes,
                from_ms: DAY.0,
                until_ms: DAY.1,
                now_ms: DAY.0 + minute * 60_000,
                fleet: &fleet(nodes),
                periods: &periods,
                book: &book(RATES, ""),
                commitments: book(RATES, &committed("c", committed_to, 0, 1_440)).commitments(),
                owners: &Owners::default(),
            });
            assert!(made.balance().is_exact());
            paid(&made)
        };
        let minutes = |all: &[(&str, i64)]| -> Vec<(String, i64)> {
            let all = all.iter();
            all.map(|it| (it.0.to_owned(), it.1 * 60_000)).collect()
        };
        // At 06:40 all four that are committed to are busy.
        assert_eq!(at(400, 4, 4), minutes(&[("c", 4 * 395)]));
        // Of four committed to two run: what the others were in the six hours that are over.
        let half = [("c", 2 * 395), ("unused c", 2 * 360)];
        assert_eq!(at(400, 2, 4), minutes(&half));
        // At 06:10 the sixth of them may not be all known.
        let half = [("c", 2 * 365), ("unused c", 2 * 300)];
        assert_eq!(at(370, 2, 4), minutes(&half));
        // Of two one is covered, no minute of which is still to come.
        let one = [("c", 400), ("on_demand", 2 * 395 - 400)];
        assert_eq!(at(400, 2, 1), minutes(&one));
        assert_eq!(at(400, 0, 1), minutes(&[("unused c", 360)]));
    }

    fn spans() -> impl Strategy<Value = Vec<(i64, i64)>> {
        prop::collection::vec(0_i64..1_440, 2..=6).prop_map(|mut edges| {
            edges.sort_unstable();
            edges.chunks_exact(2).map(|it| (it[0], it[1])).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_day_comes_to_what_its_hours_come_to(
            nodes in prop::collection::vec(spans(), 1..7),
            held in prop::collection::vec((0_u32..4, 0_i64..1_440, 1_i64..1_440), 1..4),
        ) {
            let rows = held.iter().enumerate();
            let rows = rows.map(|(at, it)| committed(&format!("c{at}"), it.0, it.1, it.1 + it.2));
            let commitments = rows.collect::<String>();
            let (day, hour) = (made(&nodes, &commitments, 24), made(&nodes, &commitments, 1));
            prop_assert_eq!(paid(&day), paid(&hour));
            prop_assert_eq!(day.total().cost, hour.total().cost);
            prop_assert!(day.balance().is_exact());
            prop_assert!(day.lines.values().all(|it| it.gpu_millis >= 0 && it.cost >= 0));
        }
    }
}
