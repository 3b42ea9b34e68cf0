//! Shares of cards (MIG instances, replicas of what is time-sliced): which card each is of and what part of it, who holds
//! it and what it does.
//!
//! What a share does is its own: of a card that is cut the driver tells no use. One whose use nobody tells is unobserved,
//! and never idle. What breaks or slows down is the card.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::states::Status;
use gpufleet_telemetry::identity::{Resource, attribute};

use super::Gpus;
use super::alike::{Alike, Groups};
use crate::fleet::Live;
use crate::ledger::days;

/// One share as the detectors see it.
#[derive(Debug, Clone)]
pub(in crate::detect) struct ShareSnapshot {
    /// A number of its own among GPUs and shares, for as long as it is remembered.
    pub(in crate::detect) number: u32,
    pub(in crate::detect) cluster: Arc<str>,
    pub(in crate::detect) node: Arc<str>,
    pub(in crate::detect) id: Arc<str>,
    /// The GPU that it is a part of.
    pub(in crate::detect) card: Arc<str>,
    /// Its card's model and the job that holds the share.
    pub(in crate::detect) alike: Arc<Alike>,
    pub(in crate::detect) status: Status,
    /// Whether it was active in its newest tick, whoever holds it.
    pub(in crate::detect) is_active: bool,
    /// So many slices of so many, where it tells.
    told_part: Option<(u32, u32)>,
    /// How many shares its card has.
    siblings: u32,
}

/// What is kept of one.
pub(super) struct Kept {
    number: u32,
    /// As it was told last: most say the same at each tick, and are not read again.
    told: Option<Told>,
}

struct Told {
    resource: Arc<Resource>,
    card: Arc<str>,
    alike: Arc<Alike>,
    part: Option<(u32, u32)>,
}

impl Kept {
    /// Of one that is met for the first time.
    pub(super) const fn new(number: u32) -> Self {
        Self { number, told: None }
    }

    /// It as it is now; none of one that does not say which card it is of.
    pub(super) fn read(
        &mut self,
        live: &Live,
        status: Status,
        groups: &mut Groups,
    ) -> Option<ShareSnapshot> {
        let known = self.told.take();
        let known = known.filter(|it| Arc::ptr_eq(&it.resource, &live.resource));
        let told = match known {
            Some(known) => known,
            None => Told::of(live, groups)?,
        };
        let seen = ShareSnapshot {
            number: self.number,
            cluster: Arc::clone(&live.key.cluster),
            node: Arc::clone(&live.node),
            id: Arc::clone(&live.key.id),
            card: Arc::clone(&told.card),
            alike: Arc::clone(&told.alike),
            status,
            is_active: live.bits.active != 0,
            told_part: told.part,
            siblings: 1,
        };
        self.told = Some(told);
        Some(seen)
    }
}

impl Told {
    fn of(live: &Live, groups: &mut Groups) -> Option<Self> {
        let card = live.resource.attribute(attribute::PARENT)?;
        Some(Self {
            resource: Arc::clone(&live.resource),
            card: card.into(),
            alike: groups.of(Alike::told_by(live)),
            part: days::told_part(&live.resource),
        })
    }
}

impl ShareSnapshot {
    /// Its part of its card, so many slices of so many; one of as many as there are where it tells none.
    pub(in crate::detect) fn part(&self) -> (u32, u32) {
        self.told_part.unwrap_or((1, self.siblings))
    }

    /// What is lost with all of it. It has its part of its card's price, and none where nobody tells of the card.
    pub(in crate::detect) fn losing(&self, gpus: &Gpus<'_>) -> Losing {
        let card = gpus.get(&(&*self.cluster, &*self.card));
        part_of(self.part(), card.and_then(|it| it.price))
    }
}

/// So many slices of so many of a GPU that costs this a second, nano-USD.
pub(in crate::detect) fn part_of((slices, of): (u32, u32), price: Option<i64>) -> Losing {
    Losing::part(1, f64::from(slices) / f64::from(of), price)
}

/// Counts the shares of each card of a node, where one of them does not tell its part.
pub(super) fn count(shares: &mut [ShareSnapshot]) {
    if shares.iter().all(|it| it.told_part.is_some()) {
        return;
    }
    let mut of_cards: HashMap<Arc<str>, u32> = HashMap::new();
    for share in shares.iter() {
        *of_cards.entry(Arc::clone(&share.card)).or_default() += 1;
    }
    for share in shares {
        share.siblings = of_cards.get(&share.card).copied().unwrap_or(1);
    }
}
