//! Which rank makes the others wait: by busy time among peers, never by the step's wall time.
//!
//! Synchronisation gives every rank the same wall time, so what is compared is the time a rank
//! computed or waited for its own data (hooks), did not wait in collectives ([`collectives`]), or needs at its clock
//! ([`busy_of_clock`], GPU telemetry alone, [`clocks`]). Peers are the ranks of the same pipeline stage.
//!
//! Method. Per step x = ln(busy / median of the other peers). Over the last 10, 20 and 40 steps
//! σ = max(1.4826·MAD of x over the peers, 0.003) and t = median(x) / (1.2533·σ/√steps). Few steps of few peers tell σ
//! badly, and ranks of one replica (same dp) compute the same sequences and are one peer then: z is the normal deviate
//! that is as improbable as t with a σ from steps × (replicas − 1) values ([`crate::robust::normal_of`]). A rank is
//! blamed when in one window z ≥ 5, median(x) ≥ ln 1.05 and 70 % of its steps are above 0.025, and
//! until its last 10 and 20 steps have a median below ln 1.025. The 5 and the 1.05 are [`Thresholds`] that can be
//! set; what is half of 5 % follows. Where a tick of 10 s stands for a step, six slow ones on end with z ≥ 6 blame a rank
//! too ([`IN_A_ROW`]): seven of ten would take longer than a minute. A second look takes away the load
//! that the other stages of the same column (same dp, tp, cp, ep) share, because they compute the
//! same micro-batches: long sequences make all of a column slow, a sick GPU one stage of it. What is
//! shared is x − β·(median x of the column's other stages), β by least squares over the peers.
//!
//! Where more than a quarter of a stage is slow alike, the spread of all hides it: then the slow part is told from the
//! fast one, and named where it is whole machines (`judge/parted.rs`).
//!
//! Blamed on nobody: a stage whose fastest quarter needs 1.2 × what the others' does ([`StageImbalance`]); a part of
//! a stage that is slow and not surely whole machines ([`Parted`]), or that holds the same part of each sequence
//! (`judge/context.rs`); a slowest rank that keeps changing ([`Moving`]);
//! without a known stage, more ranks at once than 1 in 16, which are then rather a stage than stragglers.
//!
//! Measured on real jobs (ByteDance AR and SE, 44 and 43 steps; the replay in the tests): AR's one
//! culprit and no one else, nobody in SE; another rank slowed by 6, 10, 20, 30 % was found in 31 of
//! 31 at each size, nobody wrongly (without the second look: +10 % in 2 of SE's 32).
//!
//! Limits: a slow rank of a tensor-parallel group whose collectives are inside of its busy time
//! makes its whole group slow; a column that is slow as a whole (a node that holds it) is found by
//! the first look only; two peers are judged with low confidence, one rank not at all. At most
//! [`MAX_RANKS`] ranks, [`RANK_BYTES`] each; steps of which less than half the ranks are known are left
//! out and counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub mod clocks;
pub mod collectives;
mod judge;
mod observe;

#[cfg(test)]
pub(crate) mod tests;

pub use judge::Verdict;
pub use observe::Observed;

/// Windows, steps.
pub const WINDOWS: [usize; 3] = [10, 20, LONGEST];
/// The longest window, and what is kept of a rank.
const LONGEST: usize = 40;
/// Ticks on end, all of them slow, by which a rank is blamed too where a tick of 10 s stands for a step: seven of the
/// shortest window take 70 s, and who makes the others wait is to be named within 60.
///
/// False alarms stay nearly as rare. A z of 6 or more comes by chance with 9.9e-10, and six ticks are 10 ÷ 6 times as many looks as
/// ten: that adds 0.6 % to the 2.9e-7 by which a window comes to 5. Where ticks are slow one by one, by what comes and goes,
/// six on end are rarer than seven of ten if one tick in a hundred or more is slow: of one in twenty 1.6e-8 and 8.2e-8.
/// What holds a rank up for all of a minute and then goes is named; nothing told it from what stays.
pub const IN_A_ROW: usize = 6;
/// By how much more than [`Thresholds::z`] their z has to be.
const IN_A_ROW_Z: f64 = 1.0;
/// Least z: below it the noise of 20,000 ranks would name one by chance.
pub const FIRE_Z: f64 = 5.0;
/// Least slowness that is worth a person's time: ×1.05.
pub const FIRE_RATIO: f64 = 1.05;
/// A step counts as slow above this x, where a rank is blamed from [`FIRE_RATIO`].
const SLOW_STEP: f64 = (FIRE_RATIO - 1.0) / 2.0;
/// This share of the window has to be slow.
const SLOW_SHARE: f64 = 0.7;
/// Least σ: clocks and counters are not better than that.
const SIGMA_FLOOR: f64 = 0.003;
/// First steps of an attempt that say nothing: compilation, autotuning, cold caches.
pub const WARM_UP_STEPS: u32 = 5;
/// Steps a rank must have before it is judged: two of the shortest windows.
const LEAST_STEPS: usize = 20;
/// A stage is imbalanced from this ratio to the median of the others.
pub const STAGE_RATIO: f64 = 1.2;
/// Steps a rank may be away and still be judged.
const ABSENT_STEPS: u64 = 10;
/// Steps after which an absent rank is forgotten.
const FORGOTTEN_STEPS: u64 = 1_000;
/// Steps in order below the last one that mean a restart and not old reports.
const RESTART_STEPS: u32 = 10;
/// Most ranks of a run: the largest fleet that is designed for, doubled nearly.
pub const MAX_RANKS: usize = 131_072;
/// x is kept in ten-thousandths: a ratio up to 26 fits 16 bits.
const SCALE: f64 = 10_000.0;

/// From when a rank is slow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Least busy time ÷ its peers'.
    pub ratio: f64,
    /// Least z.
    pub z: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            ratio: FIRE_RATIO,
            z: FIRE_Z,
        }
    }
}

impl Thresholds {
    /// A step counts as slow above this x: half of what a rank is blamed for, as an x, because half of a large
    /// ratio is nearly all of its x.
    fn slow_step(&self) -> f64 {
        SLOW_STEP * (self.ratio.ln() / FIRE_RATIO.ln())
    }

    /// The x below which a blamed rank is cleared: half of what is above 1, so that it does not flap.
    fn clear(&self) -> f64 {
        ((self.ratio - 1.0) / 2.0).ln_1p()
    }
}

/// Where busy times come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Measured in the training process.
    Hooks,
    /// Wall time without waits in collectives.
    Collectives,
    /// Clocks of the GPUs alone.
    Telemetry,
}

/// How sure a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// A hint.
    Low,
    /// Likely.
    Medium,
    /// As sure as this method is.
    High,
}

/// Where in the mesh a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Seat {
    /// Pipeline stage; none is unknown, and then all such ranks are peers.
    pub stage: Option<u32>,
    /// One number for its dp, tp, cp and ep together; none is unknown.
    pub column: Option<u32>,
    /// A number for its machine, almost surely no other's of the run; none is unknown.
    pub host: Option<u32>,
    /// One number for what shares its data: the place along dp; none is unknown.
    pub replica: Option<u32>,
    /// Which part of each sequence it holds: the place along cp; none is unknown, or all of it.
    pub context: Option<u32>,
}

/// What one rank did in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Its global rank.
    pub rank: u32,
    /// Where it is.
    pub seat: Seat,
    /// How long it computed, nanoseconds; 0 is unknown.
    pub busy_ns: u64,
}

/// One step of a run, with the ranks that reported it.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The run's number of it.
    pub step: u64,
    /// How long it took, nanoseconds; 0 is unknown, and then nothing is priced.
    pub wall_ns: u64,
    /// The ranks, in any order; of a doubled one the first counts.
    pub readings: &'a [Reading],
}

/// A rank that makes the others wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Straggler {
    /// The rank.
    pub rank: u32,
    /// The first slow step of the window in which it was found.
    pub since_step: u64,
    /// Its busy time ÷ that of its peers, over the deciding window.
    pub ratio: f64,
    /// How far above noise that is.
    pub z: f64,
    /// The deciding window, steps.
    pub window: usize,
    /// How sure it is.
    pub confidence: Confidence,
    /// What it costs; none where wall times are unknown.
    pub price: Option<Price>,
}

/// What a straggler costs. An estimate: what was computed alone is taken off the step one to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// A step now, median, nanoseconds.
    pub step_ns: u64,
    /// What it would take without this rank's excess over the slowest that is not blamed; of more than a quarter of
    /// a stage, or half of a machine, without that of all on its machine.
    pub without_ns: u64,
}

/// A stage with more work than the others: a matter of the split, of no rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageImbalance {
    /// The stage.
    pub stage: u32,
    /// Its busy time ÷ the median of the other stages.
    pub ratio: f64,
}

/// Ranks of one stage that are slow alike, of which none can be named.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parted {
    /// The stage.
    pub stage: u32,
    /// How many ranks are slow.
    pub slow: usize,
    /// Of how many.
    pub of: usize,
    /// Their busy time ÷ that of the stage's others.
    pub ratio: f64,
    /// Why none is named.
    pub unnamed: Unnamed,
}

/// Why none of many ranks is named that are slow alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unnamed {
    /// The other stages of their columns are slow too: the data, or machines that hold whole columns.
    SameData,
    /// It is not known which machines they are on.
    HostsUnknown,
    /// Fast ranks of the stage are on their machines: the split of the work.
    BesideFast,
    /// A machine has one of them alone: slow machines or the split of the work.
    Alone,
    /// They hold the same part of each sequence, and nearly all that hold it are slow: how sequences are cut.
    SamePart,
}

/// The slowest rank keeps changing: data or sequence lengths, of no rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moving {
    /// Median of the slowest rank's busy time ÷ its peers'.
    pub ratio: f64,
    /// How many ranks took turns in the window.
    pub ranks: usize,
}

/// Why nobody is judged or blamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silent {
    /// Too few steps since the start.
    Starting,
    /// Nobody to compare with.
    NoPeers,
    /// Most of the last steps lacked half the ranks.
    RanksMissing,
    /// Several look slow, and it is not known who is on which stage.
    MeshUnknown,
}

/// What is kept of one attempt of a run. Bounded: see the limits above.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    source: Source,
    last_step: Option<u64>,
    behind: u32,
    behind_step: u64,
    seen: u32,
    /// Of the last 64 steps, which lacked half the ranks.
    incomplete: u64,
    ranks: BTreeMap<u32, Rank>,
    stages: BTreeMap<u32, Vec<u64>>,
    recent: Vec<Recent>,
}

/// What is kept of a rank.
#[derive(Debug, Clone, PartialEq)]
struct Rank {
    seat: Seat,
    last_step: u64,
    /// ln of the ratio to its peers, in [`SCALE`], newest last.
    slow: Vec<i16>,
    /// The same of the other stages of its column.
    column: Vec<i16>,
    blamed_since: Option<u64>,
}

/// Most bytes that are kept of a rank, with its number.
pub const RANK_BYTES: usize = 276;
const _: () =
    assert!(size_of::<u32>() + size_of::<Rank>() + 2 * LONGEST * size_of::<i16>() <= RANK_BYTES);

/// What is kept of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Recent {
    step: u64,
    wall_ns: u64,
    /// The rank that computed longest, and how much longer than the next that is not blamed.
    longest: u32,
    excess_ns: u64,
    /// The rank slowest among its peers, and its x.
    slowest: u32,
    x: i16,
}

impl Confidence {
    /// The name in the API and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A time inversely proportional to the SM clock, for [`Source::Telemetry`]: what a fixed amount of
/// work takes. None for a clock of 0. Only of GPUs that work: an idle GPU's clock says nothing.
pub fn busy_of_clock(sm_clock_hertz: f64) -> Option<u64> {
    const WORK: f64 = 1e18;
    (sm_clock_hertz > 0.0 && sm_clock_hertz.is_finite()).then(|| (WORK / sm_clock_hertz) as u64)
}

impl Run {
    /// Nothing known yet.
    pub const fn new(source: Source) -> Self {
        Self {
            source,
            last_step: None,
            behind: 0,
            behind_step: 0,
            seen: 0,
            incomplete: 0,
            ranks: BTreeMap::new(),
            stages: BTreeMap::new(),
            recent: Vec::new(),
        }
    }

    /// Bytes that it takes, and how many ranks that is for.
    pub fn bytes(&self) -> (usize, usize) {
        let node = size_of::<u32>() + size_of::<Rank>();
        let rings = |rank: &Rank| 2 * (rank.slow.capacity() + rank.column.capacity());
        let ranks: usize = self.ranks.values().map(|rank| node + rings(rank)).sum();
        (ranks, self.ranks.len())
    }
}

/// Puts a value behind the others and keeps the last `most`.
fn keep<T>(values: &mut Vec<T>, value: T, most: usize) {
    if values.len() >= most {
        values.remove(0);
    }
    if values.capacity() == values.len() && values.len() < most {
        values.reserve_exact(most - values.len());
    }
    values.push(value);
}
