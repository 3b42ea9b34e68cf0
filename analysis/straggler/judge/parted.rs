//! Peers in two parts: more than a quarter of a stage's ranks is slow alike, so that their spread hides who is slow.
//!
//! All ranks of a stage have the same work, and its fastest quarter shows what that takes. Between that and the
//! slowest quarter the ranks are cut at the widest gap between their medians of the last [`LEAST_STEPS`] steps; σ is
//! each rank's spread about its own median, and the slow part is slow by the same thresholds as one rank is. It is
//! named where it is whole machines that hold two or more of its ranks each and none of the fast part, and until the
//! gap is below what clears one rank. Nobody of any other part is named ([`Unnamed`]), nor where the other stages of
//! its columns are slow by half as much or more: they compute the same data.
//!
//! Limits: fewer than [`FEW`] peers are not cut; where more than three quarters of a stage are slow, the stage looks
//! as if it had more work; sequences that are cut unevenly over machines (context parallelism) look like slow
//! machines where there is no other stage and cp is not told, so that the confidence is low; machines that hold all stages of their
//! columns are not told from long sequences.

use std::collections::BTreeMap;

use super::{Evidence, FEW, Last, MANY_PART, is_often_slow, sigma, value};
use crate::robust::{MEDIAN_ERROR, median};
use crate::straggler::{LEAST_STEPS, Run, SLOW_SHARE, Thresholds, Unnamed};

/// The slow part of a stage's ranks.
pub(super) struct SlowPart {
    /// What is held against each of them.
    pub(super) ranks: BTreeMap<u32, Evidence>,
    /// Why they are not named; none where they are whole machines.
    pub(super) unnamed: Option<Unnamed>,
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
        let (fast, slow) = sorted.split_at(cut);
        let is_named = |it: &Middle<'_>| self.ranks[&it.1.rank].blamed_since.is_some();
        let least = match slow.iter().all(is_named) {
            true => by.clear(),
            false => by.ratio.ln(),
        };
        if gap(cut) < least {
            return None;
        }
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
            let x = it.x(0.0).map(|x| x + moved);
            let is_slow = z >= by.z && slowness >= least && is_often_slow(x, by, SLOW_SHARE);
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
            unnamed: self.unnamed(slow, fast, apart),
            ratio: apart.exp(),
        })
    }

    /// Why these slow ranks are not named; none where they are whole machines.
    fn unnamed(&self, slow: &[Middle<'_>], fast: &[Middle<'_>], apart: f64) -> Option<Unnamed> {
        if 2.0 * (of_columns(slow) - of_columns(fast)) >= apart {
            return Some(Unnamed::SameData);
        }
        let hosts = |part: &[Middle<'_>]| -> Option<BTreeMap<u32, usize>> {
            let mut ranks: BTreeMap<u32, usize> = BTreeMap::new();
            for (_, it) in part {
                *ranks.entry(self.ranks[&it.rank].seat.host?).or_default() += 1;
            }
            Some(ranks)
        };
        let Some((of_slow, of_fast)) = hosts(slow).zip(hosts(fast)) else {
            return Some(Unnamed::HostsUnknown);
        };
        if of_slow.keys().any(|it| of_fast.contains_key(it)) {
            return Some(Unnamed::BesideFast);
        }
        let is_alone = of_slow.values().any(|ranks| *ranks < 2);
        is_alone.then_some(Unnamed::Alone)
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

/// What the other stages of a part's columns show.
fn of_columns(part: &[Middle<'_>]) -> f64 {
    let each = part.iter().map(|(_, it)| it.of_column());
    median(&mut each.collect::<Vec<_>>()).unwrap_or(0.0)
}
