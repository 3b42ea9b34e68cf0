//! A node's billed time over what its GPUs and shares did: integers that add up to GPUs × time.

use super::{GpuPeriod, Node, NodePeriod, Part};
use crate::ledger::{Energy, Reason, State};
use crate::money::apportion;

/// What one GPU or share did for one holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) gpu: Option<usize>,
    pub(super) share: Option<usize>,
    pub(super) holder: Option<usize>,
    pub(super) state: State,
    pub(super) reason: Reason,
    pub(super) gpu_millis: i64,
    pub(super) lost_millis: i64,
    pub(super) energy: Energy,
}

/// A node's time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Spread {
    /// GPUs that are paid for.
    pub(super) gpus: i64,
    /// Their time: adds up to GPUs × billed time.
    pub(super) pieces: Vec<Piece>,
}

/// A piece before it is an integer: milliseconds × a common multiple of what GPUs are divided by.
type Raw = (Piece, i64);

/// Spreads a node's billed time; what did not fit together is noted.
pub(super) fn spread(node: &Node, period: &NodePeriod, notes: &mut Vec<String>) -> Spread {
    let billed: i64 = period.billed.iter().map(|(from, until)| until - from).sum();
    let seen = i64::try_from(period.gpus.len()).unwrap_or(i64::MAX);
    let known = if node.gpus > 0 {
        i64::from(node.gpus)
    } else {
        seen
    };
    // A node is paid for whether a GPU of it is known or not.
    let gpus = known.max(1);
    let mut spread = Spread {
        gpus,
        pieces: Vec::new(),
    };
    if billed == 0 {
        if period
            .gpus
            .iter()
            .any(|it| it.parts.iter().any(|it| it.millis > 0))
        {
            notes.push("its GPUs were seen in a time for which it was not billed".to_owned());
        }
        return spread;
    }
    let starting = period.starting_millis.clamp(0, billed);
    if seen > gpus {
        // A GPU was exchanged: what each was there for is all that is known of it.
        notes.push(format!("{seen} GPUs were seen, it has {gpus}"));
        let unit = period.gpus.iter().fold(1, multiple);
        let all = period.gpus.iter().flat_map(|it| raw(it, unit));
        let all: Vec<Raw> = all.collect();
        let whole = (billed * gpus, starting * gpus);
        spread.pieces = fitted(all, None, whole, unit, notes);
        return spread;
    }
    for gpu in &period.gpus {
        let unit = multiple(1, gpu);
        let mut all = raw(gpu, unit);
        let is_shared = gpu.parts.iter().any(|it| it.of > 1);
        if is_shared {
            let present = gpu.present_millis.clamp(0, billed) * unit;
            let stranded = present - all.iter().map(|it| it.1).sum::<i64>();
            all.push((Piece::free(Some(gpu.gpu)), stranded.max(0)));
        }
        let pieces = fitted(all, Some(gpu.gpu), (billed, starting), unit, notes);
        spread.pieces.extend(pieces);
    }
    for _ in seen..gpus {
        let pieces = fitted(Vec::new(), None, (billed, starting), 1, notes);
        spread.pieces.extend(pieces);
    }
    spread
}

/// Divides time over pieces in proportion to what is left of them; none gets more than it has.
pub(super) fn take(whole: i64, left: &[i64]) -> Vec<i64> {
    let parts = apportion(i128::from(whole), left);
    let parts = parts.unwrap_or_else(|| vec![0; left.len()]);
    let narrow = |it: i128| i64::try_from(it).expect("a part is not more than the whole");
    parts.into_iter().map(narrow).collect()
}

impl Piece {
    fn unseen(gpu: Option<usize>) -> Self {
        Self {
            gpu,
            share: None,
            holder: None,
            state: State::Unobserved,
            reason: Reason::NoSample,
            gpu_millis: 0,
            lost_millis: 0,
            energy: Energy::default(),
        }
    }

    fn starting(gpu: Option<usize>) -> Self {
        Self {
            state: State::StartingNode,
            reason: Reason::Unknown,
            ..Self::unseen(gpu)
        }
    }

    fn free(gpu: Option<usize>) -> Self {
        Self {
            state: State::Unallocated,
            reason: Reason::Stranded,
            ..Self::unseen(gpu)
        }
    }
}

/// The least common multiple of `unit` and what a GPU is divided by.
fn multiple(unit: i64, gpu: &GpuPeriod) -> i64 {
    let whole = |it: &Part| i64::from(it.of.max(1));
    gpu.parts
        .iter()
        .map(whole)
        .fold(unit, |a, b| a / divisor(a, b) * b)
}

fn divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn raw(gpu: &GpuPeriod, unit: i64) -> Vec<Raw> {
    let parts = gpu.parts.iter().filter(|it| it.millis > 0 && it.slices > 0);
    parts
        .map(|it| {
            let piece = Piece {
                gpu: Some(gpu.gpu),
                share: it.share,
                holder: it.holder,
                state: it.state,
                reason: it.reason,
                gpu_millis: 0,
                lost_millis: it.lost_millis * i64::from(it.slices) / i64::from(it.of.max(1)),
                // A share's own counter counts the share.
                energy: Energy {
                    metered_millis: it.energy.metered_millis * i64::from(it.slices)
                        / i64::from(it.of.max(1)),
                    ..it.energy
                },
            };
            (
                piece,
                it.millis * i64::from(it.slices) * (unit / i64::from(it.of.max(1))),
            )
        })
        .collect()
}

/// Pieces of exactly `millis`: what is missing belongs to the node's start for as long as that took and is
/// unobserved beyond, what is too much is scaled.
fn fitted(
    mut all: Vec<Raw>,
    gpu: Option<usize>,
    (millis, starting): (i64, i64),
    unit: i64,
    notes: &mut Vec<String>,
) -> Vec<Piece> {
    let accounted: i64 = all.iter().map(|it| it.1).sum();
    let missing = millis * unit - accounted;
    if missing < 0 {
        notes.push("more time was accounted than billed: scaled to what was billed".to_owned());
    } else {
        let starting = missing.min(starting * unit);
        all.push((Piece::starting(gpu), starting));
        all.push((Piece::unseen(gpu), missing - starting));
    }
    let weights: Vec<i64> = all.iter().map(|it| it.1).collect();
    let whole = take(millis, &weights);
    let pieces = all.into_iter().zip(whole).filter(|(_, millis)| *millis > 0);
    pieces
        .map(|((piece, _), gpu_millis)| Piece {
            gpu_millis,
            lost_millis: piece.lost_millis.min(gpu_millis),
            energy: Energy {
                // Told of all of it is told of what it was scaled to.
                metered_millis: piece.energy.metered_millis.min(gpu_millis),
                ..piece.energy
            },
            ..piece
        })
        .collect()
}
