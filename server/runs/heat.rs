//! Ranks × time: how long each rank computed, compared with its peers at the same time.
//!
//! Peers are the ranks of the same pipeline stage, as the straggler detector has them. What is shown
//! is the mean of a rank's busy time a step in a column, ÷ the median of its peers there. Limits:
//! [`COLUMNS`] columns, [`ROWS`] rows; of a larger run neighbours share a row, which shows the
//! slowest of them.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_telemetry::time::Timestamp;

use super::Run;
use super::complete::seat;
use super::history::Steps;

/// Columns.
pub const COLUMNS: usize = 60;

/// Most rows: what a person can look at.
pub const ROWS: usize = 64;

/// A row: one rank, or neighbours.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The first and the last of its ranks.
    pub ranks: (u32, u32),
    /// By column; none where no step ended.
    pub cells: Vec<Option<f64>>,
    /// The greatest ratio over the whole range among its ranks, and whose it is; none without peers.
    pub slowest: Option<(u32, f64)>,
}

/// Busy time and steps.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    busy_ns: u128,
    steps: u64,
}

impl Sum {
    fn mean(self) -> Option<f64> {
        (self.steps > 0).then(|| self.busy_ns as f64 / self.steps as f64)
    }
}

/// The map of a stretch of time, by rank.
pub fn rows(run: &Run, steps: &Steps, range: &Range<Timestamp>) -> Vec<Row> {
    let sums: BTreeMap<u32, Vec<Sum>> = steps
        .keys()
        .map(|rank| (*rank, columns(steps, *rank, range)))
        .collect();
    let mut stages: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
    for (number, rank) in &run.ranks {
        let stage = seat(&rank.facts.mesh, run.facts.world).stage;
        stages.entry(stage).or_default().push(*number);
    }
    // The last column is the whole range.
    let mut ratios: BTreeMap<u32, Vec<Option<f64>>> = BTreeMap::new();
    for peers in stages.values() {
        let known = |rank: &&u32| sums.contains_key(*rank);
        let peers: Vec<u32> = peers.iter().filter(known).copied().collect();
        let by_column = (0..=COLUMNS).map(|column| {
            let means = peers.iter().map(|it| sums[it][column].mean());
            means.collect::<Vec<_>>()
        });
        for means in by_column {
            for (index, rank) in peers.iter().enumerate() {
                let ratio = ratio(&means, index);
                ratios.entry(*rank).or_default().push(ratio);
            }
        }
    }
    let all: Vec<u32> = run.ranks.keys().copied().collect();
    let per_row = all.len().div_ceil(ROWS).max(1);
    all.chunks(per_row)
        .map(|ranks| row(ranks, &ratios))
        .collect()
}

fn row(ranks: &[u32], ratios: &BTreeMap<u32, Vec<Option<f64>>>) -> Row {
    let of = |rank: &u32, column: usize| ratios.get(rank)?.get(column).copied().flatten();
    let greatest = |column: usize| {
        let known = ranks
            .iter()
            .filter_map(|rank| Some((*rank, of(rank, column)?)));
        known.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    Row {
        ranks: (ranks[0], ranks[ranks.len() - 1]),
        cells: (0..COLUMNS).map(|it| greatest(it).map(|it| it.1)).collect(),
        slowest: greatest(COLUMNS),
    }
}

/// A rank's busy time by column, and of all behind them.
fn columns(steps: &Steps, rank: u32, range: &Range<Timestamp>) -> Vec<Sum> {
    let mut sums = vec![Sum::default(); COLUMNS + 1];
    let width = (range.end.since(range.start) / COLUMNS as i64).max(1);
    for block in &steps[&rank] {
        let per_entry = block.steps_per_entry();
        for (times, at) in block.times.iter().zip(block.ends()) {
            let column = at.shifted(-1).since(range.start).div_euclid(width);
            let Some(column) = usize::try_from(column).ok().filter(|it| *it < COLUMNS) else {
                continue;
            };
            for place in [column, COLUMNS] {
                sums[place].busy_ns += u128::from(times.busy_ns);
                sums[place].steps += per_entry;
            }
        }
    }
    sums
}

/// One's busy time ÷ the median of the others'; none where it or the others are not known.
fn ratio(means: &[Option<f64>], own: usize) -> Option<f64> {
    let mine = means[own]?;
    let others = means.iter().enumerate().filter(|(index, _)| *index != own);
    let mut others: Vec<f64> = others
        .filter_map(|(_, it)| *it)
        .filter(|it| *it > 0.0)
        .collect();
    others.sort_unstable_by(f64::total_cmp);
    let middle = others.get(others.len() / 2)?;
    Some(mine / middle)
}
