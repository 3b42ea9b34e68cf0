//! Peers in two parts: more than a quarter of a stage's ranks is slow alike, so that their spread hides who is slow.
//!
//! All ranks of a stage have the same work, and its fastest quarter shows what that takes. Between that and the
//! slowest quarter the ranks are cut at the widest gap between their medians of the last [`LEAST_STEPS`] steps; σ is
//! each rank's spread about its own median, and the slow part is slow by the same thresholds as one rank is. It is
//! named where it is whole machines that hold two or more of its ranks and none of the fast part. Any other part is
//! the split of the work, sequences or experts, and is blamed on nobody ([`Parted`](crate::straggler::Parted)).
//!
//! Limits: fewer than [`FEW`] peers are not cut; where more than three quarters of a stage are slow, the stage looks
//! as if it had more work; sequences that are cut unevenly over machines look like slow machines, so that the
//! confidence is low.

use std::collections::{BTreeMap, BTreeSet};

use super::{Evidence, FEW, Last, MANY_PART, is_often_slow, sigma, value};
use crate::robust::MEDIAN_ERROR;
use crate::straggler::{LEAST_STEPS, Run, SLOW_SHARE, Thresholds};

/// The slow part of a stage's ranks.
pub(super) struct SlowPart {
    /// What is held against each of them.
    pub(super) ranks: BTreeMap<u32, Evidence>,
    /// Whether they are whole machines.
    pub(super) is_machines: bool,
    /// Their busy time ÷ that of the others.
    pub(super) ratio: f64,
}

/// A rank's median x, with its steps.
type Middle<'a> = (f64, Last<'a>);

impl Run {
    /// The part of these ranks that is slow alike; none where they are not in two parts.
    pub(super) fn slow_part(&self, peers: &[u32], by: &Thresholds) -> Option<SlowPart> {
        let last = peers.iter().filter_map(|it| self.last(*it, LEAST_STEPS));
        let last: Vec<Last<'_>> = last.collect();
        if last.len() < FEW || !are_far_apart(&last, by) {
            return None;
        }
        let mut sorted: Vec<Middle<'_>> = last.iter().map(|it| (it.slowness(0.0), *it)).collect();
        sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
        let gap = |at: usize| sorted[at].0 - sorted[at - 1].0;
        let ranks = sorted.len();
        let cuts = ranks.div_ceil(MANY_PART)..ranks - ranks / MANY_PART;
        let cut = cuts.max_by(|one, other| gap(*one).total_cmp(&gap(*other)))?;
        if gap(cut) < by.ratio.ln() {
            return None;
        }
        let (fast, slow) = sorted.split_at(cut);
        // An x is told beside the median of the others, which is one of the larger part.
        let apart = match slow.len() <= fast.len() {
            true => middle(slow),
            false => -middle(fast),
        };
        let moved = apart - middle(slow);
        let error = MEDIAN_ERROR * sigma(&last, 0.0, true) / (LEAST_STEPS as f64).sqrt();
        let against = |(slowness, it): &Middle<'_>| {
            let slowness = slowness + moved;
            let z = slowness / error;
            let is_slow = z >= by.z
                && slowness >= by.ratio.ln()
                && is_often_slow(it.x(0.0).map(|x| x + moved), by);
            is_slow.then_some((
                it.rank,
                Evidence {
                    window: LEAST_STEPS,
                    z,
                    slowness,
                },
            ))
        };
        let ranks: BTreeMap<u32, Evidence> = slow.iter().filter_map(against).collect();
        (!ranks.is_empty()).then(|| SlowPart {
            ranks,
            is_machines: self.are_machines(slow, fast),
            ratio: apart.exp(),
        })
    }

    /// Whether the slow ranks are on machines of which each holds two or more of them, and none of the fast ones.
    fn are_machines(&self, slow: &[Middle<'_>], fast: &[Middle<'_>]) -> bool {
        let hosts = |part: &[Middle<'_>]| -> BTreeSet<Option<u32>> {
            let each = part.iter().map(|it| self.ranks[&it.1.rank].seat.host);
            each.collect()
        };
        let (of_slow, of_fast) = (hosts(slow), hosts(fast));
        let are_known = !of_slow.contains(&None) && !of_fast.contains(&None);
        are_known && of_slow.is_disjoint(&of_fast) && of_slow.len() * 2 <= slow.len()
    }
}

/// Whether so many steps are far from the median of the others as two parts make. Counting is cheap, and of nearly all
/// stages it says enough.
fn are_far_apart(peers: &[Last<'_>], by: &Thresholds) -> bool {
    let steps = peers.iter().flat_map(|it| it.own);
    let far = steps.filter(|it| value(**it).abs() > by.slow_step());
    let least = SLOW_SHARE * (peers.len() * LEAST_STEPS) as f64 / MANY_PART as f64;
    far.count() as f64 >= least
}

/// The middle one of a part, which is in order and not empty.
fn middle(part: &[Middle<'_>]) -> f64 {
    part[part.len() / 2].0
}
