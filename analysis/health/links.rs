//! Links of a GPU: PCIe below what it had, NVLinks down. Links that go and come are counted by the driver, and a limit
//! of their own says when they do so too often.
//!
//! Limits: one bad reading is no fault; a PCIe generation counts only while the GPU works, because an
//! idle link saves power by a lower one; a card without NVLink has none down.

use super::{Action, Finding, Gpu, Kind, over};

/// PCIe readings in a row that are below.
pub const PCIE_READINGS: usize = 3;
/// NVLink readings in a row that are below.
pub const NVLINK_READINGS: usize = 5;
/// For this long after a boot NVLinks train, nanoseconds.
pub const TRAINING_NS: i64 = 600_000_000_000;

/// One reading of the PCIe link. The best is what this GPU was seen with; of lanes what like GPUs in machines
/// of the same kind were, where that is more: what the card itself could do says nothing of its slot (a real T4 that is
/// well has 8 of 16 lanes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pcie {
    /// Lanes now and at best.
    pub width: u32,
    /// See `width`.
    pub best_width: u32,
    /// Generation now and at best.
    pub generation: u32,
    /// See `generation`.
    pub best_generation: u32,
    /// Whether the GPU worked.
    pub is_active: bool,
}

impl Pcie {
    /// The generation that counts: an idle link saves power by a lower one.
    pub const fn counts(&self) -> u32 {
        match self.is_active {
            true => self.generation,
            false => self.best_generation,
        }
    }

    /// Whether it has fewer lanes than at best, or a lower generation while it counts.
    pub const fn is_below(&self) -> bool {
        self.width < self.best_width || self.counts() < self.best_generation
    }

    /// What part of its best rate it has: each generation doubles that of a lane.
    pub fn part(&self) -> f64 {
        let generations = f64::from(self.counts()) - f64::from(self.best_generation);
        let lanes = f64::from(self.width) / f64::from(self.best_width.max(1));
        lanes * generations.exp2()
    }

    /// What it is and could be, as it is written everywhere: `gen 4 x8 of gen 5 x16`.
    pub fn words(&self) -> String {
        let Self {
            width,
            best_width,
            best_generation,
            ..
        } = self;
        let generation = self.counts();
        format!("gen {generation} x{width} of gen {best_generation} x{best_width}")
    }
}

/// Links over a window, oldest reading first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Links<'a> {
    /// PCIe.
    pub pcie: &'a [Pcie],
    /// NVLinks that were up at each reading.
    pub nvlinks_up: &'a [u32],
    /// NVLinks that should be up: that the model has, where its board connects them, or that were up; 0 none, or unknown.
    pub nvlinks: u32,
}

/// What is wrong with the links.
pub(super) fn findings(gpu: &Gpu<'_>) -> Vec<Finding> {
    let links = &gpu.links;
    let lately = &links.pcie[links.pcie.len().saturating_sub(PCIE_READINGS)..];
    let is_slow = lately.len() == PCIE_READINGS && lately.iter().all(Pcie::is_below);
    let pcie = lately.last().filter(|_| is_slow);
    let pcie = pcie.map(|it| over(Kind::PcieDegraded, Action::Diagnose, it.part(), 1.0));
    let up = &links.nvlinks_up[links.nvlinks_up.len().saturating_sub(NVLINK_READINGS)..];
    let is_settled = gpu
        .booted_at
        .is_some_and(|at| gpu.now.0.saturating_sub(at.0) > TRAINING_NS);
    let is_down = up.len() == NVLINK_READINGS && up.iter().all(|it| *it < links.nvlinks);
    let nvlink = up.last().filter(|_| is_down && is_settled).map(|it| {
        over(
            Kind::NvlinkDown,
            Action::DrainAndReset,
            f64::from(*it),
            f64::from(links.nvlinks),
        )
    });
    pcie.into_iter().chain(nvlink).collect()
}
