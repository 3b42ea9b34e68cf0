//! What an incident costs: its detector's word of each tick, added up; and what of it is known.
//!
//! A loss and GPU time that nobody observed are added up from tick to tick; what is at stake or repeated is as the
//! last tick has it. What is no longer measured keeps what was counted, and says nothing of now.

use gpufleet_telemetry::time::Timestamp;

use super::Incident;
use crate::lost::{Losing, Lost};
use crate::price::{Figure, Price, Stake};

impl Incident {
    /// What was lost to it so far; none where that was not measured, which is not nothing.
    pub fn lost_known(&self) -> Option<&Lost> {
        let is_known = self.basis.figure() == Figure::Lost || self.lost.gpu_micros > 0;
        is_known.then_some(&self.lost)
    }

    /// What it loses now; none where that is not measured.
    pub fn losing_known(&self) -> Option<&Losing> {
        let is_known = self.basis.figure() == Figure::Lost || self.losing.milli_gpus > 0;
        is_known.then_some(&self.losing)
    }

    /// What is at stake, unobserved or repeated, and which of them; none of what loses, or has no figure.
    pub fn stake_known(&self) -> Option<(Figure, &Stake)> {
        let figure = self.basis.figure();
        let is_stake = !matches!(figure, Figure::None | Figure::Lost);
        is_stake.then_some((figure, &self.stake))
    }

    /// Counts what was lost, or not observed, up to now.
    pub(super) fn count(&mut self, now: Timestamp) {
        self.lost.add(self.counted_to, now, &self.losing);
        if self.basis.figure() == Figure::Unobserved {
            let losing = self.stake.losing;
            self.stake.so_far.add(self.counted_to, now, &losing);
        }
        self.counted_to = now;
    }

    /// From now on it costs this.
    pub(super) fn costs(&mut self, price: &Price) {
        let (before, figure) = (self.basis.figure(), price.basis.figure());
        self.losing = price.lost();
        (self.basis, self.is_least) = (price.basis, price.is_least);
        match figure {
            Figure::None | Figure::Lost => self.stake.losing = Losing::default(),
            // Counted from tick to tick.
            Figure::Unobserved => {
                self.stake.losing = price.losing;
                if before != figure {
                    self.stake.so_far = Lost::default();
                }
            }
            Figure::AtStake | Figure::Repeated => {
                self.stake = Stake {
                    losing: price.losing,
                    so_far: price.so_far,
                };
            }
        }
    }

    /// Gives away what nobody observed while it was told, to the incident that it turned out to be.
    pub(super) fn unobserved(&mut self) -> Lost {
        match self.basis.figure() {
            Figure::Unobserved => std::mem::take(&mut self.stake.so_far),
            _ => Lost::default(),
        }
    }

    /// Takes that in.
    pub(super) fn join_unobserved(&mut self, other: &Lost) {
        if self.basis.figure() == Figure::Unobserved {
            self.stake.so_far.join(other);
        }
    }
}
