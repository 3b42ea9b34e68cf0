//! Ranks × time: how long each rank computed or waited for its data, compared with its peers at the same time.
//!
//! Peers are the ranks of the same pipeline stage, as the straggler detector has them. What is shown
//! is the mean of a rank's own time of a step in a column, ÷ the median of its peers there. Limits:
//! [`COLUMNS`] columns, [`ROWS`] rows; of a larger run neighbours share a row, which shows the
//! slowest of them. Costs ranks × log(ranks) a column, and 1 KiB a rank.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::Timestamp;

use super::Run;
use super::complete::seat;

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
    /// Whether any step of them is known.
    pub has_steps: bool,
}

/// What is known of a stretch of time.
#[derive(Debug)]
pub struct Map {
    range: Range<Timestamp>,
    /// By rank and column; the last column is the whole range.
    sums: BTreeMap<u32, [Sum; COLUMNS + 1]>,
}

/// The pipeline stage of each rank of a run; none where it has no stages.
pub type Stages = Vec<(u32, Option<u32>)>;

/// A rank's own time, and steps.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    own_ns: u64,
    steps: u64,
}

impl Sum {
    fn mean(self) -> Option<f64> {
        (self.steps > 0).then(|| self.own_ns as f64 / self.steps as f64)
    }
}

/// The stages of the ranks that speak for a run.
pub fn stages(run: &Run) -> Stages {
    let stage = |rank: &super::Rank| seat(&rank.facts, run.facts.world).stage;
    let members = run.members();
    members.map(|(number, it)| (*number, stage(it))).collect()
}

impl Map {
    /// Of this range; nothing is known yet.
    pub const fn new(range: Range<Timestamp>) -> Self {
        Self {
            range,
            sums: BTreeMap::new(),
        }
    }

    /// Takes in a block of a rank.
    pub fn add(&mut self, rank: u32, block: &StepBlock) {
        let width = (self.range.end.since(self.range.start) / COLUMNS as i64).max(1);
        let sums = self
            .sums
            .entry(rank)
            .or_insert_with(|| [Sum::default(); COLUMNS + 1]);
        let per_entry = block.steps_per_entry();
        for (times, at) in block.times.iter().zip(block.ends()) {
            let column = at.shifted(-1).since(self.range.start).div_euclid(width);
            let Some(column) = usize::try_from(column).ok().filter(|it| *it < COLUMNS) else {
                continue;
            };
            for place in [column, COLUMNS] {
                sums[place].own_ns = sums[place].own_ns.saturating_add(times.own_ns());
                sums[place].steps = sums[place].steps.saturating_add(per_entry);
            }
        }
    }

    /// The map, by rank.
    pub fn rows(&self, ranks: &Stages) -> Vec<Row> {
        let per_row = ranks.len().div_ceil(ROWS).max(1);
        let mut rows: Vec<Row> = ranks.chunks(per_row).map(Row::empty).collect();
        let mut stages: BTreeMap<Option<u32>, Vec<(usize, u32)>> = BTreeMap::new();
        for (index, (rank, stage)) in ranks.iter().enumerate() {
            if self.sums.contains_key(rank) {
                rows[index / per_row].has_steps = true;
                stages
                    .entry(*stage)
                    .or_default()
                    .push((index / per_row, *rank));
            }
        }
        for peers in stages.values() {
            for column in 0..=COLUMNS {
                let means = peers.iter().map(|(_, rank)| self.sums[rank][column].mean());
                let means: Vec<Option<f64>> = means.collect();
                let sorted = sorted(&means);
                for ((row, rank), mean) in peers.iter().zip(&means) {
                    if let Some(ratio) = mean.and_then(|it| ratio(it, &sorted)) {
                        rows[*row].take(column, *rank, ratio);
                    }
                }
            }
        }
        rows
    }
}

impl Row {
    fn empty(ranks: &[(u32, Option<u32>)]) -> Self {
        Self {
            ranks: (ranks[0].0, ranks[ranks.len() - 1].0),
            cells: vec![None; COLUMNS],
            slowest: None,
            has_steps: false,
        }
    }

    fn take(&mut self, column: usize, rank: u32, ratio: f64) {
        match self.cells.get_mut(column) {
            Some(cell) => *cell = Some(cell.map_or(ratio, |it| it.max(ratio))),
            None if self.slowest.is_none_or(|it| it.1 <= ratio) => {
                self.slowest = Some((rank, ratio))
            }
            None => {}
        }
    }
}

/// What ranks took of their own in a column, those that did at all.
fn sorted(means: &[Option<f64>]) -> Vec<f64> {
    let known = means.iter().filter_map(|it| *it);
    let mut known: Vec<f64> = known.filter(|it| *it > 0.0).collect();
    known.sort_unstable_by(f64::total_cmp);
    known
}

/// One's own time ÷ the median of the others'; none where the others are not known.
fn ratio(mine: f64, sorted: &[f64]) -> Option<f64> {
    let own = match mine > 0.0 {
        true => sorted.partition_point(|it| *it < mine),
        // It is not among them.
        false => sorted.len(),
    };
    let others = sorted.len() - usize::from(own < sorted.len());
    let middle = others / 2;
    let middle = sorted.get(middle + usize::from(middle >= own))?;
    Some(mine / middle)
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::steps::StepTimes;

    use super::*;

    /// The plain way: all others, sorted, for each.
    fn plain(means: &[Option<f64>], own: usize) -> Option<f64> {
        let others = means.iter().enumerate().filter(|(index, _)| *index != own);
        let others = others.filter_map(|(_, it)| *it).filter(|it| *it > 0.0);
        let mut others: Vec<f64> = others.collect();
        others.sort_unstable_by(f64::total_cmp);
        Some(means[own]? / others.get(others.len() / 2)?)
    }

    #[test]
    fn the_ratio_is_to_the_median_of_the_others_and_never_of_oneself() {
        let zero = Some(0.0);
        for means in [
            vec![Some(1.0)],
            vec![Some(1.0), Some(2.0)],
            vec![Some(1.0), Some(2.0), Some(4.0)],
            vec![Some(4.0), None, Some(1.0), Some(2.0), Some(2.0)],
            vec![zero, Some(3.0), Some(5.0)],
            vec![zero, zero],
            vec![Some(7.0), zero, Some(7.0), Some(7.0), Some(9.0), Some(1.0)],
        ] {
            let sorted = sorted(&means);
            for (own, mean) in means.iter().enumerate() {
                let found = mean.and_then(|it| ratio(it, &sorted));
                assert_eq!(found, plain(&means, own), "{own} of {means:?}");
            }
        }
    }

    #[test]
    fn ranks_that_share_a_row_show_the_slowest_by_all_of_its_own_and_stages_are_not_mixed() {
        let at = |seconds: i64| Timestamp::from_seconds(1_790_000_000 + seconds);
        let mut map = Map::new(at(0)..at(60));
        for rank in 0..128_u32 {
            // The second stage has twice the work; rank 77 waits for its data for half as long again.
            let busy = if rank < 64 { 100 } else { 200 };
            let data = if rank == 77 { 100 } else { 0 };
            let times = StepTimes {
                wall_ns: 1_000_000_000,
                busy_ns: busy * 1_000_000,
                data_wait_ns: data * 1_000_000,
                ..StepTimes::default()
            };
            let block = StepBlock {
                first_step: 0,
                steps_log2: 0,
                started_at: at(0),
                ended_at: at(10),
                tokens: 0,
                samples: 0,
                times: vec![times; 10],
            };
            map.add(rank, &block);
        }
        let stages: Stages = (0..128).map(|rank| (rank, Some(rank / 64))).collect();
        let rows = map.rows(&stages);
        assert_eq!((rows.len(), rows[38].ranks), (ROWS, (76, 77)));
        assert_eq!(rows[38].slowest, Some((77, 1.5)));
        assert_eq!((rows[38].cells[3], rows[38].cells[30]), (Some(1.5), None));
        let others = rows.iter().filter(|it| it.ranks.0 != 76);
        assert!(
            others
                .clone()
                .all(|it| it.slowest.is_some_and(|it| it.1 == 1.0))
        );
    }
}
