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

/// A piece before it is an integer of milliseconds: parts of them, as [`unit_of`] says how many.
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
        let whole = billed.saturating_mul(gpus);
        let unit = unit_of(&period.gpus, whole);
        let all = period.gpus.iter().flat_map(|it| raw(it, billed, unit));
        let times = (whole, starting.saturating_mul(gpus));
        spread.pieces = fitted(all.collect(), None, times, unit, notes);
        return spread;
    }
    for gpu in &period.gpus {
        let unit = unit_of(std::slice::from_ref(gpu), billed);
        let all = raw(gpu, billed, unit);
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

/// How many parts of a millisecond are counted, so that the time of every share is a whole number of them: the least
/// common multiple of what the GPUs are divided by. Where that is so large that sums of time would not fit (no driver
/// divides cards so, but whoever sends data may say it), as many as fit, and a share loses less than one of them.
fn unit_of(gpus: &[GpuPeriod], whole: i64) -> i64 {
    let parts = || gpus.iter().flat_map(|it| &it.parts);
    let accounted = parts().map(|it| it.millis);
    // What shares leave of their cards, and what is missing to the whole, have their place beside what is accounted.
    let present = gpus.iter().map(|it| it.present_millis);
    let all = accounted.chain(present).map(|it| it.max(0));
    let all = all.fold(whole, i64::saturating_add);
    let most = (i64::MAX / all.max(1)).max(1);
    let multiple = parts().try_fold(1_i64, |unit, it| {
        let of = i64::from(it.of.max(1));
        let next = (unit / divisor(unit, of)).checked_mul(of)?;
        (next <= most).then_some(next)
    });
    multiple.unwrap_or(most)
}

fn divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// What a GPU did, and of one with shares what they leave of the time for which the card was there.
fn raw(gpu: &GpuPeriod, billed: i64, unit: i64) -> Vec<Raw> {
    let parts = gpu.parts.iter().filter(|it| it.millis > 0 && it.slices > 0);
    let mut all: Vec<Raw> = parts.map(|it| of_part(gpu.gpu, it, unit)).collect();
    if gpu.parts.iter().any(|it| it.of > 1) {
        let present = gpu.present_millis.clamp(0, billed) * unit;
        let stranded = present - all.iter().map(|it| it.1).sum::<i64>();
        all.push((Piece::free(Some(gpu.gpu)), stranded.max(0)));
    }
    all
}

/// What a share did, or a whole GPU.
fn of_part(gpu: usize, part: &Part, unit: i64) -> Raw {
    let of = part.of.max(1);
    // No share is more than its card.
    let (slices, of) = (i128::from(part.slices.min(of)), i128::from(of));
    let of_card = |whole: i128| {
        let part = whole * slices / of;
        i64::try_from(part).expect("a part is not more than the whole, which fits")
    };
    let piece = Piece {
        gpu: Some(gpu),
        share: part.share,
        holder: part.holder,
        state: part.state,
        reason: part.reason,
        gpu_millis: 0,
        lost_millis: of_card(part.lost_millis.into()),
        // A share's own counter counts the share.
        energy: Energy {
            metered_millis: of_card(part.energy.metered_millis.into()),
            ..part.energy
        },
    };
    (piece, of_card(i128::from(part.millis) * i128::from(unit)))
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
