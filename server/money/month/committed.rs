//! Which commitments are paid in the days of a report.
//!
//! A commitment is of the cluster that it names, or of all live ones together. What of the latter nobody used is no
//! cluster's, and what of it one cluster used depends on what ran in the others, so it is in the report of all alone: as
//! budgets are. So the reports of live clusters add up to that of all where each commitment names its cluster. What is
//! simulated or recorded is paid by none.

use gpufleet_analysis::price_book::Commitment;

use super::Days;
use super::read::is_live;

/// Most commitments that are named as left out; the others are counted.
const MAX_NAMED: usize = 5;

/// The commitments of these days that hold in a range of Unix milliseconds; and which are left out and why, in a sentence.
pub(super) fn of(
    days: &Days,
    all: &[Commitment],
    (from_ms, until_ms): (i64, i64),
) -> (Vec<Commitment>, Option<String>) {
    let hold = all.iter();
    let hold = hold.filter(|it| it.from_ms < until_ms && from_ms < it.until_ms);
    let Some(cluster) = &days.cluster else {
        let live = hold.filter(|it| !days.not_live.contains(&it.cluster));
        return (live.cloned().collect(), None);
    };
    if !days.days.iter().all(is_live) {
        return (Vec::new(), None);
    }
    let (of_all, named): (Vec<_>, Vec<_>) = hold.cloned().partition(|it| it.cluster.is_empty());
    let its = named.into_iter().filter(|it| it.cluster == *cluster);
    (its.collect(), left_out(&of_all))
}

/// That these are in no report of one cluster; none where there are none.
fn left_out(of_all: &[Commitment]) -> Option<String> {
    if of_all.is_empty() {
        return None;
    }
    let mut names: Vec<&str> = of_all.iter().map(|it| it.id.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.truncate(MAX_NAMED);
    Some(format!(
        "commitments that name no cluster are of all live clusters together: {}{more} are not in a report of one, in which what they may cover is priced on demand; the column `cluster` of their table says whose they are",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use gpufleet_analysis::chargeback::commitments::Commitments;
    use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY};
    use gpufleet_analysis::inventory::Node;
    use gpufleet_analysis::ledger::{Energy, Reason, State};
    use gpufleet_analysis::money::ratio;
    use gpufleet_analysis::price_book::load;
    use gpufleet_telemetry::identity::{Origin, Resource, attribute};
    use gpufleet_telemetry::time::Timestamp;

    use super::super::fixture::day_of_card;
    use super::super::{Month, charge};
    use super::*;
    use crate::config::Config;
    use crate::fleet::Fleet;
    use crate::inventory::Inventory;
    use crate::inventory::known::Moment;
    use crate::money::covered::SecondPrice;
    use crate::money::terms::Sources;
    use crate::money::{CoveredNow, Machine, Terms};
    use crate::store::model::{DayFacts, DayTime, LedgerDay};
    use crate::view::fixture::{self, Does, NOW};

    const DAY: i64 = 20_000;
    const HOUR: i64 = 3_600_000;
    /// A dollar, in nano-units.
    const DOLLAR: i128 = 1_000_000_000;
    const MACHINE: &str = "a3-highgpu-8g";
    const CARD: &str = "NVIDIA H100 80GB HBM3";

    /// The eight cards of a node of a cluster, there for the first hours of the day.
    fn node(cluster: &str, name: &str, origin: Origin, hours: i64) -> Vec<LedgerDay> {
        let from_ms = DAY * MILLIS_PER_DAY;
        let free = DayTime {
            holder: 0,
            state: State::Unallocated,
            reason: Reason::Unknown,
            millis: hours * HOUR,
            lost_millis: 0,
            energy: Energy::default(),
        };
        let card = |number: i32| {
            let facts = DayFacts {
                node: name.to_owned(),
                machine_type: MACHINE.to_owned(),
                gpu_model: CARD.to_owned(),
                region: "here".to_owned(),
                ..DayFacts::default()
            };
            let span = (from_ms, from_ms + hours * HOUR);
            let id = format!("GPU-{cluster}-{name}-{number}");
            let mut day = day_of_card(&id, facts, (DAY, span), vec![free]);
            let of = Arc::make_mut(&mut day.of);
            of.cluster = cluster.to_owned();
            of.facts.origin = origin;
            day
        };
        (0..8).map(card).collect()
    }

    /// What 80 an hour costs on demand, with commitments at half of it: name, nodes, cluster.
    fn terms(commitments: &[(&str, u32, &str)]) -> Terms {
        let rates = load::RATES.join(",");
        let rates = format!("{rates}\n{MACHINE},here,on_demand,USD,80,,2024-01-01,,list,a\n");
        terms_of(
            commitments,
            Sources {
                files: vec![("rates.csv".to_owned(), Ok(rates))],
                ..Sources::default()
            },
        )
    }

    /// The same where a card costs 5 and nothing says what its machine does.
    fn terms_by_card(commitments: &[(&str, u32, &str)]) -> Terms {
        terms_of(
            commitments,
            Sources {
                gpu_hour_usd: [(CARD.to_owned(), "5".to_owned())].into(),
                ..Sources::default()
            },
        )
    }

    fn terms_of(commitments: &[(&str, u32, &str)], mut sources: Sources) -> Terms {
        let row = |(id, nodes, cluster): &(&str, u32, &str)| {
            format!(
                "{id},{MACHINE},here,{nodes},commitment_3y,USD,40,2024-01-01,2027-01-01,,{cluster}\n"
            )
        };
        let rows: String = commitments.iter().map(row).collect();
        let header = load::COMMITMENTS_OF_CLUSTERS.join(",");
        let committed = format!("{header}\n{rows}");
        let file = ("committed.csv".to_owned(), Ok(committed));
        sources.files.push(file);
        let terms = Terms::of(sources);
        assert_eq!(terms.findings, [""; 0]);
        terms
    }

    fn charged(days: &Days, terms: &Terms) -> Month {
        charge(days, DAY..DAY + 1, terms, Detail::Nodes)
    }

    /// Cost in dollars and unused GPU-hours.
    fn came_to(month: &Month) -> (i128, i64) {
        let made = &month.made;
        assert!(made.balance().is_exact());
        let unused = made.headline().unused.gpu_millis / HOUR;
        (made.total().cost / DOLLAR, unused)
    }

    /// Two nodes of cluster a all day and one of cluster b for half of it.
    fn two_clusters() -> Days {
        let nodes = [
            node("a", "n-0", Origin::Live, 24),
            node("a", "n-1", Origin::Live, 24),
            node("b", "n-0", Origin::Live, 12),
        ];
        Days {
            days: nodes.concat(),
            ..Days::default()
        }
    }

    #[test]
    fn reports_of_clusters_add_up_to_that_of_all_where_commitments_name_their_cluster() {
        let terms = terms(&[("ca", 1, "a"), ("cb", 3, "b"), ("gone", 1, "c")]);
        let days = two_clusters();
        let of = |cluster: &str| charged(&days.of_cluster(cluster), &terms);
        let [a, b, gone] = ["a", "b", "c"].map(of);
        // One of two covered; one of three used for half a day; and one that nobody has a node for.
        assert_eq!(came_to(&a), (24 * 40 + 24 * 80, 0));
        assert_eq!(came_to(&b), (3 * 24 * 40, (72 - 12) * 8));
        assert_eq!(came_to(&gone), (24 * 40, 24 * 8));
        let all = charged(&days, &terms);
        let parts = [&a, &b, &gone].map(|it| it.made.total());
        assert_eq!(
            all.made.total().cost,
            parts.iter().map(|it| it.cost).sum::<i128>()
        );
        assert_eq!(
            all.made.total().gpu_millis,
            parts.iter().map(|it| it.gpu_millis).sum::<i64>()
        );
        assert_eq!(a.findings, all.findings, "nothing is left out");
    }

    #[test]
    fn a_commitment_of_all_clusters_is_in_the_report_of_all_and_behind_those_of_one() {
        let terms = terms(&[("all", 2, ""), ("ca", 1, "a")]);
        let days = two_clusters();
        // A node of a by its own; the other and that of b by the two of all, of which half a day of one is left.
        assert_eq!(came_to(&charged(&days, &terms)), (3 * 24 * 40, 12 * 8));
        let a = charged(&days.of_cluster("a"), &terms);
        assert_eq!(came_to(&a), (24 * 40 + 24 * 80, 0));
        let told = a
            .findings
            .iter()
            .filter(|it| it.contains("together: all are not"));
        assert_eq!(told.count(), 1, "{:?}", a.findings);
    }

    #[test]
    fn of_a_day_that_runs_nothing_is_unused_that_is_still_to_come() {
        let terms = terms(&[("cb", 3, "b")]);
        let half_past_six = Timestamp::from_millis(DAY * MILLIS_PER_DAY + 18 * HOUR + HOUR / 2);
        let days = Days {
            at: Some(half_past_six),
            ..two_clusters()
        };
        let b = charged(&days.of_cluster("b"), &terms);
        assert_eq!(came_to(&b), (3 * 18 * 40, (54 - 12) * 8));
    }

    /// What a second of a GPU of a cluster costs now, where one GPU at least of each of these nodes is told.
    fn live(cluster: &str, nodes: &[(&str, &str)], origin: Origin, terms: &Terms) -> SecondPrice {
        let inventory = Inventory::new(&Config::for_tests().inventory, "a");
        live_beside(&inventory, cluster, nodes, (origin, terms))
    }

    /// The same beside what the cluster lists.
    fn live_beside(
        inventory: &Inventory,
        cluster: &str,
        nodes: &[(&str, &str)],
        (origin, terms): (Origin, &Terms),
    ) -> SecondPrice {
        let config = Config::for_tests();
        let fleet = Fleet::new(config.fleet.clone());
        for (cluster, name) in nodes {
            let mut machine = fixture::machine(cluster, name, origin);
            let told = Resource::clone(&machine.resource);
            let told = told.with(attribute::MACHINE_TYPE, MACHINE);
            machine.resource = Arc::new(told.with(attribute::REGION, "here"));
            fleet.put_for_tests(machine);
            fleet.put_for_tests(fixture::gpu(cluster, name, 0, Does::Work, origin));
        }
        let covered = CoveredNow::of((&fleet, inventory), terms, NOW);
        let machine = Machine {
            cluster,
            machine_type: MACHINE,
            region: "here",
            provisioning: "",
            gpu_model: CARD,
            gpus: 8,
        };
        let second = terms.gpu_second(&machine, &covered, NOW.millis());
        second.expect("it has a price")
    }

    /// What a second of a GPU that was used came to in a month.
    fn booked(month: &Month) -> Option<i64> {
        let (total, unused) = (month.made.total(), month.made.headline().unused);
        let (cost, millis) = (
            total.cost - unused.cost,
            total.gpu_millis - unused.gpu_millis,
        );
        i64::try_from(ratio(cost, 1_000, millis.into())?).ok()
    }

    #[test]
    fn a_gpu_costs_now_what_the_month_books_of_it_however_much_of_its_like_is_covered() {
        let nodes = [("a", "n-0"), ("a", "n-1"), ("b", "n-0")];
        let all = nodes.map(|it| node(it.0, it.1, Origin::Live, 24));
        let days = Days {
            days: all.concat(),
            ..Days::default()
        };
        let second = |hour: i64| ratio(i128::from(hour) * DOLLAR, 1, 8 * 3_600);
        for (commitments, hour, last) in [
            (vec![], 80, 80),
            (vec![("all", 3, "")], 40, 40),
            (vec![("ca", 2, "a"), ("cb", 1, "b")], 40, 40),
            (vec![("ca", 2, "a"), ("all", 4, "")], 40, 40),
            (vec![("all", 1, "")], 80 - 40 / 3, 80),
        ] {
            for terms in [terms(&commitments), terms_by_card(&commitments)] {
                let now = live("a", &nodes, Origin::Live, &terms);
                let month = charged(&days, &terms);
                assert_eq!(Some(now.mean), booked(&month), "{commitments:?}");
                let is_by_card = !terms.sources.gpu_hour_usd.is_empty();
                if is_by_card {
                    continue;
                }
                assert_eq!(second(last), Some(i128::from(now.last)), "{commitments:?}");
                let off = i128::from(now.mean) * 28_800 - i128::from(hour) * DOLLAR;
                assert!(off.abs() < DOLLAR, "{commitments:?}: {off}");
            }
        }
        // Of two of cluster a one is covered.
        let (terms, two) = (terms(&[("ca", 1, "a")]), &nodes[..2]);
        let now = live("a", two, Origin::Live, &terms);
        let month = charged(&days.of_cluster("a"), &terms);
        assert_eq!(Some(now.mean), booked(&month));
        assert_eq!(second(60), Some(i128::from(now.mean)));
        let simulated = live("a", two, Origin::Simulated, &terms);
        assert_eq!(second(80), Some(i128::from(simulated.mean)));
    }

    #[test]
    fn a_node_that_is_heard_counts_whatever_its_cluster_says_of_it() {
        let terms = terms(&[("ca", 1, "a")]);
        let two = &[("a", "n-0"), ("a", "n-1")][..];
        let inventory = Inventory::new(&Config::for_tests().inventory, "a");
        let now = Moment {
            at: NOW,
            monotonic: Duration::ZERO,
        };
        let listed = Node {
            name: "n-0".to_owned(),
            gpus: 8,
            ..Node::default()
        };
        inventory.known().all_nodes(vec![listed], now);
        inventory.known().all_nodes(Vec::new(), now);
        assert!(inventory.is_gone("a", "n-0"));
        let found = live_beside(&inventory, "a", two, (Origin::Live, &terms));
        assert_eq!(found, live("a", two, Origin::Live, &terms));
        let one = live("a", &two[1..], Origin::Live, &terms);
        assert_ne!(found, one, "one alone is covered whole");
    }

    #[test]
    fn a_commitment_covers_nodes_that_are_else_priced_by_their_cards() {
        let days = Days {
            days: [
                node("a", "n-0", Origin::Live, 24),
                node("a", "n-1", Origin::Live, 24),
            ]
            .concat(),
            ..Days::default()
        };
        let both = 2 * 24 * 40;
        for (nodes, cost, unused, coverage) in [
            (0, both, 0, None),
            (1, both, 0, Some(500_000)),
            (2, both, 0, Some(1_000_000)),
            (3, 3 * 24 * 40, 24 * 8, Some(1_000_000)),
        ] {
            let committed = [("ca", nodes, "a")];
            let committed = &committed[..usize::from(nodes > 0)];
            let month = charged(&days, &terms_by_card(committed));
            assert_eq!(came_to(&month), (cost, unused), "{nodes}");
            assert_eq!(month.made.total().unpriced_millis, 0);
            let spent = Commitments::of(&month.made);
            assert_eq!(spent.and_then(|it| it.coverage()), coverage, "{nodes}");
        }
    }

    #[test]
    fn what_is_simulated_is_paid_by_no_commitment() {
        let terms = terms(&[("sim", 1, "sim"), ("all", 1, "")]);
        let mut days = Days {
            days: node("sim", "n-0", Origin::Simulated, 24),
            ..Days::default()
        };
        let sim = charged(&days.of_cluster("sim"), &terms);
        assert_eq!(came_to(&sim), (24 * 80, 0));
        // Nor is what names it in the report of all live ones.
        days.days.clear();
        days.not_live.insert("sim".to_owned());
        assert_eq!(came_to(&charged(&days, &terms)), (24 * 40, 24 * 8));
    }
}
