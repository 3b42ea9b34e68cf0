//! Which days of a cluster have a record: a month half of which is missing says so.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::report::day_text;
use gpufleet_telemetry::time::Timestamp;

use crate::words::text::counted;

/// Most stretches of days that are named of a cluster.
const MAX_NAMED: usize = 5;

/// Days of which something is recorded, or on which a server saw that a cluster had no nodes, by cluster. One of which
/// there is nothing at all is not among them: there is nothing to be taken for all of it.
#[derive(Debug, Default)]
pub struct Recorded(BTreeMap<String, BTreeSet<i64>>);

impl Recorded {
    /// Clusters with days of which something is recorded, and with those on which a server looked.
    pub(super) fn of<'a>(
        recorded: impl Iterator<Item = (&'a str, i64)>,
        looked: &BTreeSet<(String, i64)>,
    ) -> Self {
        let mut found: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
        for (cluster, day) in recorded {
            found.entry(cluster.to_owned()).or_default().insert(day);
        }
        for (cluster, day) in looked {
            if let Some(days) = found.get_mut(cluster) {
                days.insert(*day);
            }
        }
        Self(found)
    }

    /// What is known of several stretches of days.
    pub(in crate::money) fn together<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut found: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
        for (cluster, days) in all.flat_map(|it| &it.0) {
            found.entry(cluster.clone()).or_default().extend(days);
        }
        Self(found)
    }

    /// Days of a range that some cluster lacks, and the clusters that do; none of these where all lack all of them. Days
    /// before a cluster was first recorded are among them: who compares two stretches must not take its beginning for more use.
    pub(in crate::money) fn lacking(&self, range: &Range<i64>) -> (Vec<i64>, Vec<String>) {
        let is_known = |day: &i64| self.0.values().any(|it| it.contains(day));
        let lacks = |day: &i64| self.0.values().any(|it| !it.contains(day)) || !is_known(day);
        let days: Vec<i64> = range.clone().filter(lacks).collect();
        let lacks_any = |it: &(&String, &BTreeSet<i64>)| days.iter().any(|day| !it.1.contains(day));
        let clusters = match days.iter().any(is_known) {
            true => self.0.iter().filter(lacks_any).map(|it| it.0.clone()),
            false => return (days, Vec::new()),
        };
        let clusters = clusters.collect();
        (days, clusters)
    }

    /// That nothing is recorded of days of a range, one sentence for each cluster. The day that runs may not have begun
    /// for the ledger.
    pub fn missing(&self, range: &Range<i64>, now: Timestamp) -> Vec<String> {
        let today = now.millis().div_euclid(MILLIS_PER_DAY);
        let of = self.0.iter().filter_map(|(cluster, days)| {
            let told = not_recorded(days, range, today)?;
            Some(format!("{cluster}: {told}"))
        });
        of.collect()
    }
}

/// A cluster may have begun or ended in the range: days at either end are told as that, and holes between as holes.
fn not_recorded(recorded: &BTreeSet<i64>, range: &Range<i64>, today: i64) -> Option<String> {
    let mut there = recorded.iter().copied().filter(|it| range.contains(it));
    let first = there.next()?;
    let last = there.next_back().unwrap_or(first);
    let (before, after) = (first - range.start, range.end.min(today) - last - 1);
    let end = |count: i64, which: &str, day: i64, side: &str| {
        let count = usize::try_from(count).ok().filter(|it| *it > 0)?;
        let days = counted(count, "day", "days");
        Some(format!(
            "{which} recorded in this time on {}, nothing of {days} {side}",
            day_text(day)
        ))
    };
    let told = [
        end(before, "first", first, "before"),
        holes(recorded, first..last),
        end(after, "last", last, "after"),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn holes(recorded: &BTreeSet<i64>, between: Range<i64>) -> Option<String> {
    let missing: Vec<i64> = between.filter(|it| !recorded.contains(it)).collect();
    if missing.is_empty() {
        return None;
    }
    let stretches = missing.chunk_by(|one, other| one + 1 == *other);
    let stretches: Vec<&[i64]> = stretches.collect();
    let named = stretches.iter().take(MAX_NAMED).map(|days| {
        let (first, last) = (days[0], days[days.len() - 1]);
        match first == last {
            true => day_text(first),
            false => format!("{} to {}", day_text(first), day_text(last)),
        }
    });
    let named: Vec<String> = named.collect();
    let more = match stretches.len() > MAX_NAMED {
        true => " and others",
        false => "",
    };
    Some(format!(
        "nothing is recorded of {}, which are in no figure: {}{more}",
        counted(missing.len(), "day", "days"),
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::table;

    use super::*;

    /// A day of October 2026.
    fn day(number: i64) -> i64 {
        let first = table::moment("2026-10-01").expect("a date") / MILLIS_PER_DAY;
        first + number - 1
    }

    /// The middle of such a day.
    fn noon(number: i64) -> Timestamp {
        Timestamp::from_millis(day(number) * MILLIS_PER_DAY + MILLIS_PER_DAY / 2)
    }

    #[test]
    fn days_without_a_record_are_named_and_a_day_that_has_just_begun_is_none() {
        let of = |recorded: &[i64], days: Range<i64>, today: i64| {
            let recorded = recorded.iter().map(|it| day(*it)).collect();
            let all = Recorded(BTreeMap::from([("lab".to_owned(), recorded)]));
            all.missing(&(day(days.start)..day(days.end)), noon(today))
        };
        let all: Vec<i64> = (1..=31).collect();
        assert_eq!(of(&all, 1..32, 40), [""; 0]);
        assert_eq!(
            of(&all[9..], 1..32, 40),
            ["lab: first recorded in this time on 2026-10-10, nothing of 9 days before"]
        );
        // It began today, and nothing of the day that runs is missing.
        assert_eq!(
            of(&[20], 1..32, 20),
            ["lab: first recorded in this time on 2026-10-20, nothing of 19 days before"]
        );
        assert_eq!(
            of(&[3, 4, 6], 1..32, 40),
            [
                "lab: first recorded in this time on 2026-10-03, nothing of 2 days before; \
                 nothing is recorded of 1 day, which are in no figure: 2026-10-05; \
                 last recorded in this time on 2026-10-06, nothing of 25 days after"
            ]
        );
        let holes = [&all[..4], &all[5..20], &all[22..]].concat();
        assert_eq!(
            of(&holes, 1..32, 40),
            [
                "lab: nothing is recorded of 3 days, which are in no figure: 2026-10-05, 2026-10-21 to 2026-10-22"
            ]
        );
        let odd: Vec<i64> = (1..=31).step_by(2).collect();
        let told = of(&odd, 1..32, 40).concat();
        assert!(told.ends_with("2026-10-10 and others"), "{told}");
        // The tenth runs, and then the last of the month.
        assert_eq!(of(&all[..9], 1..11, 10), [""; 0]);
        assert_eq!(of(&all[..30], 1..32, 31), [""; 0]);
        assert_eq!(of(&all[..30], 1..32, 32).len(), 1, "it is over");
    }

    #[test]
    fn a_day_that_one_of_two_clusters_lacks_is_not_whole_and_one_without_nodes_is() {
        let of = |recorded: &[(&'static str, i64)], looked: &[(&str, i64)]| {
            let recorded = recorded.iter().map(|it| (it.0, day(it.1)));
            let looked = looked.iter().map(|it| (it.0.to_owned(), day(it.1)));
            let one = Recorded::of(recorded, &looked.collect());
            Recorded::together([one, Recorded::default()].iter()).lacking(&(day(1)..day(4)))
        };
        let lab = [("lab", 1), ("lab", 2), ("lab", 3)];
        assert_eq!(of(&lab, &[]), (vec![], vec![]));
        let both = [&lab[..], &[("prod", 1)]].concat();
        let lacking = (vec![day(2), day(3)], vec!["prod".to_owned()]);
        assert_eq!(of(&both, &[]), lacking);
        // It had no nodes then.
        assert_eq!(of(&both, &[("prod", 2), ("prod", 3)]), (vec![], vec![]));
        assert_eq!(of(&lab[..2], &[]), (vec![day(3)], vec![]), "of none");
        assert_eq!(of(&[], &[]).0.len(), 3);
    }

    #[test]
    fn each_cluster_is_told_of_by_itself_and_one_that_had_no_nodes_lacks_nothing() {
        let recorded = [("lab", 1), ("lab", 3), ("prod", 1), ("prod", 3)];
        let recorded = recorded.into_iter().map(|it| (it.0, day(it.1)));
        // A server looked at one of them on the second, and at a third, which never had a node.
        let looked = [("lab", 2), ("empty", 1)];
        let looked = looked.map(|(cluster, number)| (cluster.to_owned(), day(number)));
        let recorded = Recorded::of(recorded, &BTreeSet::from(looked));
        assert_eq!(
            recorded.missing(&(day(1)..day(4)), noon(20)),
            ["prod: nothing is recorded of 1 day, which are in no figure: 2026-10-02"]
        );
    }
}
