//! Which communicators stand still, from two answers of NCCL's RAS service: nobody began a collective
//! between them, and either some ranks began fewer than others or some do not answer.

use std::collections::{BTreeMap, BTreeSet};

use super::{Communicator, Status};

/// Functions that not every rank of a communicator calls.
const OF_SOME: [&str; 2] = ["Send", "Recv"];

/// A communicator that stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// NCCL's hash of it.
    pub communicator: u64,
    /// Ranks in it.
    pub size: u64,
    /// The function whose count differs; empty where only ranks are missing.
    pub function: String,
    /// How many of it the foremost ranks began: the number of the collective that they wait in.
    pub number: u64,
    /// The lowest rank that answered.
    pub lowest: u64,
    /// Ranks that began fewer: those that the others wait for.
    pub behind: BTreeSet<u64>,
    /// Ranks that do not answer.
    pub missing: BTreeSet<u64>,
}

/// The communicators that stood still between two answers.
pub fn standing(before: &Status, now: &Status) -> Vec<Standing> {
    let earlier: BTreeMap<_, _> = before
        .communicators
        .iter()
        .map(|it| (it.hash, it))
        .collect();
    let both = now.communicators.iter();
    let both = both.filter_map(|it| Some((*earlier.get(&it.hash)?, it)));
    both.filter_map(|(before, now)| stands(before, now))
        .collect()
}

/// What each rank began, by rank and function.
fn counts(of: &Communicator) -> BTreeMap<u64, BTreeMap<&str, u64>> {
    let counts = of.ranks.iter().map(|rank| {
        let each = rank.collective_counts.iter();
        let each = each.filter(|(function, _)| !OF_SOME.contains(&function.as_str()));
        let each = each.map(|(function, count)| (function.as_str(), *count));
        (rank.place.rank, each.collect())
    });
    counts.collect()
}

fn stands(before: &Communicator, now: &Communicator) -> Option<Standing> {
    let (earlier, counts) = (counts(before), counts(now));
    let is_over = now.ranks.iter().any(|it| it.status.finalize_called);
    if earlier != counts || is_over {
        return None;
    }
    let of = |ranks: &Communicator| -> BTreeSet<u64> {
        ranks.missing_ranks.iter().map(|it| it.place.rank).collect()
    };
    let missing: BTreeSet<u64> = of(before).intersection(&of(now)).copied().collect();
    let functions: BTreeSet<&str> = counts.values().flat_map(|it| it.keys().copied()).collect();
    let mut standing = Standing {
        communicator: now.hash,
        size: now.size,
        function: String::new(),
        number: 0,
        lowest: *counts.keys().next()?,
        behind: BTreeSet::new(),
        missing,
    };
    for function in functions {
        let count = |rank: &BTreeMap<&str, u64>| rank.get(function).copied().unwrap_or(0);
        let most = counts.values().map(count).max().unwrap_or(0);
        let behind = counts.iter().filter(|(_, rank)| count(rank) < most);
        let behind: BTreeSet<u64> = behind.map(|(rank, _)| *rank).collect();
        if !behind.is_empty() {
            let function = function.to_owned();
            standing = Standing {
                function,
                number: most,
                behind,
                ..standing
            };
            return Some(standing);
        }
    }
    let has_begun = counts
        .values()
        .any(|it| it.values().any(|count| *count > 0));
    (has_begun && !standing.missing.is_empty()).then_some(standing)
}

#[cfg(test)]
mod tests {
    use super::super::{MissingRank, Place, Rank};
    use super::*;

    fn place(rank: u64) -> Place {
        Place {
            rank,
            host: "10.0.0.1".to_owned(),
            pid: 1,
            cuda_dev: 0,
            nvml_dev: 0,
        }
    }

    /// A communicator of four whose ranks began so many all-reduces; none: it does not answer.
    fn status(counts: [Option<u64>; 4]) -> Status {
        let mut communicator = Communicator {
            hash: 7,
            size: 4,
            ranks: Vec::new(),
            missing_ranks: Vec::new(),
        };
        for (rank, count) in (0..).zip(counts) {
            match count {
                Some(count) => communicator.ranks.push(Rank {
                    place: place(rank),
                    status: super::super::RankStatus::default(),
                    collective_counts: BTreeMap::from([
                        ("AllReduce".to_owned(), count),
                        ("Send".to_owned(), rank),
                    ]),
                }),
                None => communicator.missing_ranks.push(MissingRank {
                    place: place(rank),
                    status: super::super::MissingStatus::default(),
                }),
            }
        }
        Status {
            nccl_version: String::new(),
            communicators: vec![communicator],
            ras: super::super::Gathering::default(),
        }
    }

    fn found(before: [Option<u64>; 4], now: [Option<u64>; 4]) -> Option<(u64, Vec<u64>, Vec<u64>)> {
        let mut found = standing(&status(before), &status(now));
        let standing = found.pop()?;
        let behind = standing.behind.into_iter().collect();
        Some((
            standing.number,
            behind,
            standing.missing.into_iter().collect(),
        ))
    }

    #[test]
    fn the_rank_behind_is_named_when_nobody_moves() {
        let stuck = [Some(10), Some(10), Some(9), Some(10)];
        assert_eq!(found(stuck, stuck), Some((10, vec![2], vec![])));
    }

    #[test]
    fn who_moves_or_waits_for_work_does_not_stand() {
        let before = [Some(10), Some(10), Some(9), Some(10)];
        let now = [Some(11), Some(11), Some(10), Some(11)];
        assert_eq!(found(before, now), None, "it goes on");
        let idle = [Some(10); 4];
        assert_eq!(found(idle, idle), None, "all have begun the same");
    }

    #[test]
    fn a_rank_that_does_not_answer_twice_is_missing() {
        let all = [Some(10); 4];
        let without = [Some(10), None, Some(10), Some(10)];
        assert_eq!(found(without, without), Some((0, vec![], vec![1])));
        assert_eq!(found(all, without), None, "it answered before");
        let none = [Some(0), None, Some(0), Some(0)];
        assert_eq!(found(none, none), None, "nothing has begun");
    }
}
