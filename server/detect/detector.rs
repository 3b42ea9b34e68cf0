//! What a detector is: of a tick it says what is wrong, and of what that cannot be said; and it says what each of
//! its findings reads, by which a replay knows which of them data that has less than live data cannot show.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::price::Basis;
use gpufleet_telemetry::catalog::Metric;
use gpufleet_telemetry::time::Timestamp;

use super::before::Before;
use super::gather::{GpuSnapshot, Gpus, NodeSnapshots, Shares};
use super::tuned::Tuned;
use super::watch::GAP_S;
use crate::fleet::Fleet;
use crate::runs::{RunKey, Runs};

/// Readings further apart than this say nothing together, seconds.
pub(crate) const MOST_SPACING_S: f64 = GAP_S;

/// One detector: what it keeps from tick to tick, and how it judges.
pub(crate) trait Detector {
    /// What it finds.
    fn finds(&self) -> Vec<Finds>;

    /// Says what is wrong at this tick, and of what that cannot be said.
    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings);
}

/// One kind of finding of a detector.
#[derive(Debug, Clone)]
pub(crate) struct Finds {
    /// What it is, in few words; of a limit its kind in `alerts/kinds.toml`.
    pub(crate) name: &'static str,
    /// Of which family.
    pub(crate) family: Family,
    /// What it cannot be found without.
    pub(crate) needs: Vec<Need>,
    /// What its price may be reckoned by, and why it may have none: every word that a finding says of it.
    pub(crate) prices: Vec<Basis>,
    /// What has these words in it is found again only so long after a start, seconds.
    learns: Option<(&'static [&'static str], i64)>,
}

/// One thing that a finding needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    /// This metric.
    Reading(&'static Metric),
    /// One of these metrics.
    OneOf(&'static [&'static Metric]),
    /// The steps of ranks.
    Steps,
    /// What events tell.
    Events,
    /// Who holds GPUs: which of them are alike.
    Holders,
    /// For so long, seconds.
    Length(i64),
    /// What the cluster itself tells: its nodes.
    Cluster,
    /// The incidents of the last month.
    Past,
    /// The runs of the same name before this one.
    RunsBefore,
    /// What teams spent in a month, and their budgets.
    Money,
}

/// What is live at a tick.
pub(crate) struct TickSnapshot<'a> {
    pub(super) now: Timestamp,
    /// What is judged by.
    pub(super) by: &'a Tuned,
    /// Every GPU that is judged.
    pub(super) seen: &'a [GpuSnapshot],
    /// The same by cluster and id.
    pub(super) gpus: &'a Gpus<'a>,
    /// The shares of those.
    pub(super) shares: &'a Shares<'a>,
    pub(super) nodes: &'a NodeSnapshots,
    /// What is live, for what is seldom asked of one resource.
    pub(super) fleet: &'a Fleet,
    /// Whether a node of a cluster was there and is gone.
    pub(super) is_gone: &'a dyn Fn(&str, &str) -> bool,
    /// Whether the cluster has a node, or any where none is named, as far as that is told.
    pub(super) is_listed: &'a dyn Fn(&str, Option<&str>) -> bool,
    /// Whether an agent tells of a node of this name, whatever it calls the cluster: two names for one are no
    /// reason to call all nodes blind.
    pub(super) is_told: &'a dyn Fn(&str) -> bool,
    /// The cluster of the inventory, and its nodes with GPUs of which no agent tells, each with what a second of one of
    /// them costs, nano-USD.
    pub(super) blind: (&'a str, &'a [(Record, Option<i64>)]),
    /// What was wrong when the server took over.
    pub(super) before: &'a Before,
}

/// What the detectors say of a tick.
#[derive(Default)]
pub(crate) struct Findings {
    /// What is wrong.
    pub(super) signals: Vec<Signal>,
    /// Where trouble of a family was that cannot be read any more: nobody knows whether it is over.
    pub(super) unread: Vec<(Family, Place)>,
    /// Families of which nothing is known at any place.
    pub(super) unknown: BTreeSet<Family>,
    /// Of which runs nothing is known that would show trouble of a family: with cluster and run.
    pub(super) unjudged: BTreeSet<(Family, String, String)>,
    /// By cluster and job the models of those of its GPUs of which nothing is known that would show whether one of
    /// them makes the job wait.
    pub(super) unjudged_models: BTreeMap<(String, String), BTreeSet<String>>,
    /// Runs that start, evaluate, save or restore: cluster and run.
    pub(super) quiet: BTreeSet<(String, String)>,
    /// Runs of which it is judged by the times of their collectives who makes the others wait.
    pub(super) by_collectives: BTreeSet<RunKey>,
    /// The slow link of a run, by cluster and run: why it became slower, if it did.
    pub(super) slow_links: BTreeMap<(String, String), Place>,
}

impl<'a> TickSnapshot<'a> {
    /// The runs of training jobs.
    pub(super) const fn runs(&self) -> &'a Runs {
        self.fleet.runs()
    }

    /// The GPU that has this id, or of which a share has it.
    pub(super) fn card(&self, cluster: &str, id: &str) -> Option<&'a GpuSnapshot> {
        let of_share = || {
            let share = self.shares.get(&(cluster, id))?;
            self.gpus.get(&(cluster, &*share.card))
        };
        self.gpus.get(&(cluster, id)).or_else(of_share).copied()
    }
}

impl Finds {
    /// Of this name and family, with what it needs and what it says of its price.
    pub(super) fn of(name: &'static str, family: Family, needs: &[Need], prices: &[Basis]) -> Self {
        Self {
            name,
            family,
            needs: needs.to_vec(),
            prices: prices.to_vec(),
            learns: None,
        }
    }

    /// Where its words have one of these in them, it takes so long after a start, seconds, until it is found again: longer
    /// than an incident goes on without a signal.
    pub(super) fn learns(mut self, says: &'static [&'static str], seconds: i64) -> Self {
        self.learns = Some((says, seconds));
        self
    }

    /// How long after a start one of these may not be found again, seconds; none of what is found at once.
    pub(super) fn learns_s(&self, said: &[&str]) -> Option<i64> {
        let (says, seconds) = self.learns?;
        let is_its = |said: &&str| says.iter().any(|it| said.contains(it));
        said.iter().any(is_its).then_some(seconds)
    }

    /// Whether a signal may be one of these, by what it says of its price.
    pub(super) fn may_be(&self, signal: &Signal) -> bool {
        self.family == signal.family && self.prices.contains(&signal.price.basis)
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::price::Figure;

    use super::*;
    use crate::detect::{Detectors, limits};

    /// Every finding has a word on its price: figures where it can be measured, and a reason where it can not. No word
    /// is said by nobody, and a family that has figures says what of.
    #[test]
    fn every_finding_says_what_its_price_is_reckoned_by_or_why_it_has_none() {
        let all = Detectors::default().finds();
        for it in &all {
            assert!(!it.prices.is_empty(), "{}: no word on its price", it.name);
            assert!(!it.prices.contains(&Basis::NotRecorded), "{}", it.name);
        }
        let others = [Basis::NotRecorded, Basis::OwnTrouble];
        for basis in Basis::ALL.iter().filter(|it| !others.contains(it)) {
            let is_said = all.iter().any(|it| it.prices.contains(basis));
            assert!(is_said, "{basis:?} is said by no finding");
        }
        let has = |family: Family, figure: Figure| {
            let mut own = all.iter().filter(|it| it.family == family);
            own.any(|it| it.prices.iter().any(|basis| basis.figure() == figure))
        };
        for family in Family::ALL {
            let figure = match family {
                Family::Blind => Figure::Unobserved,
                Family::Leak => Figure::AtStake,
                Family::Offender => Figure::Repeated,
                // Before a card fails nobody knows what it will take with it; and what is spent is not lost.
                Family::Memory | Family::Budget => Figure::None,
                _ => Figure::Lost,
            };
            assert!(has(family, figure), "{family:?} has no {figure:?}");
        }
    }

    #[test]
    fn every_kind_of_trouble_has_a_detector_and_each_finding_is_named_once() {
        let all = Detectors::default().finds();
        for family in Family::ALL {
            assert!(all.iter().any(|it| it.family == family), "{family:?}");
        }
        let mut names: Vec<&str> = all.iter().map(|it| it.name).collect();
        names.sort_unstable();
        // One kind may look at several readings.
        let twice: Vec<&str> = names
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
            .collect();
        let limits = limits::Limits::default().finds();
        let own = |name: &&str| !limits.iter().any(|it| it.name == *name);
        assert_eq!(twice.into_iter().filter(own).collect::<Vec<_>>(), [""; 0]);
    }
}
