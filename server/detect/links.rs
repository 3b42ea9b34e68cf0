//! The links of one GPU over its last readings: PCIe lanes and generation, NVLinks that are up.
//!
//! What a link is held against is the best that this GPU was seen with since the server started, or was held against by
//! an incident that was open then: what the card could do says nothing of its slot. A card that had fewer PCIe lanes than
//! like ones from the first day on is held against theirs (`gather/lanes.rs`). An idle card lowers its PCIe
//! generation to save power, so a reading counts with whether the GPU worked at the time.
//!
//! NVLinks are held against those that the model has ([`gpu_specs::nvlinks`]) where the card tells of so many, up or
//! down, and another of its model on the node has all of them up: then the board connects them. A virtual machine with
//! one or some of a board's GPUs, a board without switches and a bridge leave links unconnected that are down for ever.
//!
//! Limits: 40 bytes a GPU. A link that was down before the server started, of which no incident tells and which neither
//! lacks lanes that like ones have nor is an NVLink of such a card, is not seen.

use std::collections::HashSet;

use gpufleet_analysis::cause::{NVLINKS_UP, PCIE_GENERATION, PCIE_LANES, Pair};
use gpufleet_analysis::health::links::{NVLINK_READINGS, PCIE_READINGS};
use gpufleet_analysis::health::{Links, Pcie};
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::gpu_specs;
use gpufleet_telemetry::time::Timestamp;

use super::before::Said;
use super::gather::NodeName;
use super::seconds_since;
use crate::fleet::Live;

/// Links are read each minute; what is older than three of them is gone, seconds.
const FRESH_S: f64 = 180.0;

/// What is kept of one GPU's links.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkWatch {
    readings: LinkReadings,
    pcie_at: Timestamp,
    nvlinks_at: Timestamp,
}

/// One reading of PCIe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lanes {
    width: u8,
    generation: u8,
    is_active: bool,
}

/// The last readings, the newest last; the best beside them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LinkReadings {
    pcie: [Lanes; PCIE_READINGS],
    pcie_count: u8,
    best: Lanes,
    nvlinks: [u8; NVLINK_READINGS],
    nvlinks_count: u8,
    most_nvlinks: u8,
    /// NVLinks of which the card tells, up or down.
    told_nvlinks: u8,
}

const _: () = assert!(size_of::<LinkWatch>() <= 40);

/// Nodes on which a GPU was seen with all NVLinks of its model up beside one that never had: their boards connect all.
#[derive(Debug, Default)]
pub(super) struct Boards(HashSet<NodeName>);

impl Boards {
    /// Holds the NVLinks of a GPU against all that its model has, where its board connects them; so many are up now on
    /// one of its node at most.
    pub(super) fn hold(
        &mut self,
        node: &NodeName,
        most_up: u8,
        model: &str,
        own: &mut LinkReadings,
    ) {
        // Most have all of theirs, and need not be looked up.
        if own.told_nvlinks <= own.most_nvlinks {
            return;
        }
        let all = gpu_specs::nvlinks(model).and_then(|it| u8::try_from(it).ok());
        let Some(all) = all.filter(|it| *it <= own.told_nvlinks) else {
            return;
        };
        if most_up == all {
            self.0.insert(node.clone());
        }
        if self.0.contains(node) {
            own.most_nvlinks = all;
        }
    }

    /// Forgets nodes that are there no more.
    pub(super) fn forget(&mut self, is_there: impl Fn(&NodeName) -> bool) {
        self.0.retain(is_there);
    }
}

/// They in the words of the judgement.
pub(super) struct LinkFacts {
    pcie: [Pcie; PCIE_READINGS],
    nvlinks: [u32; NVLINK_READINGS],
    readings: LinkReadings,
}

impl LinkWatch {
    /// Of a GPU of which this was said before the server started.
    pub(super) fn resumed(said: &[&Said]) -> Self {
        let mut watch = Self::default();
        let usual = |name: &str| {
            // Findings of earlier builds have the names without PCIe.
            let old = name.strip_prefix("PCIe ").unwrap_or(name);
            let read = said
                .iter()
                .filter_map(|it| it.reading(name).or(it.reading(old))?.usual);
            let most = read
                .filter(|it| (0.0..=255.0).contains(it))
                .fold(0.0, f64::max);
            most as u8
        };
        watch.readings.best.width = usual(PCIE_LANES);
        watch.readings.best.generation = usual(PCIE_GENERATION);
        watch.readings.most_nvlinks = usual(NVLINKS_UP);
        watch
    }

    /// Takes in what is live.
    pub(super) fn read(&mut self, live: &Live, is_active: bool, now: Timestamp) -> LinkReadings {
        let reading = |metric: &Metric| {
            let known = live.value(metric.id)?;
            let value = known.reading.ok().filter(|it| (0.0..=255.0).contains(it))?;
            (seconds_since(now, known.at) <= FRESH_S).then_some((value as u8, known.at))
        };
        match (reading(&gpu::PCIE_WIDTH), reading(&gpu::PCIE_GENERATION)) {
            (Some((width, at)), Some((generation, _))) => {
                if at > self.pcie_at {
                    self.pcie_at = at;
                    self.readings.take_pcie(Lanes {
                        width,
                        generation,
                        is_active,
                    });
                }
            }
            _ => self.readings.pcie_count = 0,
        }
        match reading(&gpu::NVLINKS_ACTIVE) {
            Some((up, at)) => {
                if at > self.nvlinks_at {
                    self.nvlinks_at = at;
                    self.readings.take_nvlinks(up);
                    let told = live.parts(gpu::NVLINK_UP.id);
                    let told = told.filter(|it| it.reading.is_ok()).count();
                    self.readings.told_nvlinks = u8::try_from(told).unwrap_or(u8::MAX);
                }
            }
            None => self.readings.nvlinks_count = 0,
        }
        self.readings
    }
}

impl LinkReadings {
    pub(super) const fn has_pcie(&self) -> bool {
        self.pcie_count > 0
    }

    pub(super) const fn has_nvlinks(&self) -> bool {
        self.nvlinks_count > 0
    }

    /// The lanes that were read of it lately, at best; none where PCIe is not read now. What it was held against before
    /// the server started is not among them.
    pub(super) fn best_lanes(&self) -> Option<u8> {
        let best = self.pcie.iter().map(|it| it.width).max()?;
        Some(best).filter(|it| self.has_pcie() && *it > 0)
    }

    /// Holds it against so many lanes.
    pub(super) fn hold_lanes(&mut self, usual: u8) {
        self.best.width = self.best.width.max(usual);
    }

    fn take_pcie(&mut self, lanes: Lanes) {
        self.pcie.rotate_left(1);
        self.pcie[PCIE_READINGS - 1] = lanes;
        self.pcie_count = (self.pcie_count + 1).min(PCIE_READINGS as u8);
        self.best.width = self.best.width.max(lanes.width);
        self.best.generation = self.best.generation.max(lanes.generation);
    }

    fn take_nvlinks(&mut self, up: u8) {
        self.nvlinks.rotate_left(1);
        self.nvlinks[NVLINK_READINGS - 1] = up;
        self.nvlinks_count = (self.nvlinks_count + 1).min(NVLINK_READINGS as u8);
        self.most_nvlinks = self.most_nvlinks.max(up);
    }

    /// NVLinks that are up now; 0 where that is not known.
    pub(super) const fn nvlinks_up(&self) -> u8 {
        match self.has_nvlinks() {
            true => self.nvlinks[NVLINK_READINGS - 1],
            false => 0,
        }
    }

    pub(super) fn as_facts(&self) -> LinkFacts {
        LinkFacts {
            pcie: self.pcie.map(|it| self.beside_best(it)),
            nvlinks: self.nvlinks.map(u32::from),
            readings: *self,
        }
    }

    fn beside_best(&self, it: Lanes) -> Pcie {
        Pcie {
            width: it.width.into(),
            best_width: self.best.width.into(),
            generation: it.generation.into(),
            best_generation: self.best.generation.into(),
            is_active: it.is_active,
        }
    }

    /// The newest reading of PCIe beside the best; none where it is not known.
    pub(super) fn pcie(&self) -> Option<Pcie> {
        let newest = self.pcie[PCIE_READINGS - 1];
        self.has_pcie().then(|| self.beside_best(newest))
    }

    /// NVLinks that are up now beside those that should be; none where it is not known.
    pub(super) fn nvlinks(&self) -> Pair {
        match self.has_nvlinks() {
            true => Pair::new(self.nvlinks_up().into(), self.most_nvlinks.into()),
            false => Pair::default(),
        }
    }
}

impl LinkFacts {
    pub(super) fn as_health(&self) -> Links<'_> {
        let readings = &self.readings;
        Links {
            pcie: &self.pcie[PCIE_READINGS - usize::from(readings.pcie_count)..],
            nvlinks_up: &self.nvlinks[NVLINK_READINGS - usize::from(readings.nvlinks_count)..],
            nvlinks: readings.most_nvlinks.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_analysis::cause::Reading;
    use gpufleet_analysis::incident::Place;
    use gpufleet_telemetry::catalog::Unit;
    use gpufleet_telemetry::identity::{Origin, Part, PartKind};
    use gpufleet_telemetry::time::NANOS_PER_SECOND;

    use super::*;
    use crate::fleet::LiveValue;
    use crate::view::fixture::{self, Does, NOW};

    /// A GPU whose links were read in this minute.
    fn live(minute: i64, width: f64, generation: f64, nvlinks: f64) -> Live {
        let mut live = fixture::gpu("prod", "node-1", 0, Does::Work, Origin::Live);
        let value = |metric: &Metric, value: f64| LiveValue {
            metric: metric.id,
            part: None,
            reading: Ok(value),
            max: None,
            at: NOW.shifted(minute * 60 * NANOS_PER_SECOND),
        };
        live.values = vec![
            value(&gpu::PCIE_GENERATION, generation),
            value(&gpu::PCIE_WIDTH, width),
            value(&gpu::NVLINKS_ACTIVE, nvlinks),
        ];
        live
    }

    #[test]
    fn a_link_is_held_against_the_best_it_was_seen_with_and_a_reading_counts_once() {
        let mut watch = LinkWatch::default();
        let at = |minute: i64| NOW.shifted(minute * 60 * NANOS_PER_SECOND);
        for minute in 0..3 {
            watch.read(&live(minute, 16.0, 5.0, 18.0), true, at(minute));
        }
        let mut last = LinkReadings::default();
        for _ in 0..6 {
            last = watch.read(&live(3, 8.0, 5.0, 17.0), true, at(3));
        }
        assert_eq!(
            (last.pcie().map(|it| it.part()), last.nvlinks()),
            (Some(0.5), Pair::new(17.0, 18.0))
        );
        let facts = last.as_facts();
        let told = facts.as_health();
        let widths: Vec<u32> = told.pcie.iter().map(|it| it.width).collect();
        assert_eq!(widths, [16, 16, 8], "six looks at one reading are one");
        assert_eq!(told.nvlinks_up, [18, 18, 18, 17]);
    }

    /// GPUs of one node, each with so many NVLinks up of those that it tells of: how many are down by what is held
    /// against each, after a tick at which so many are, and after one at which all have as few as the first.
    fn down(model: &str, gpus: &[(f64, usize)]) -> [Vec<Option<f64>>; 2] {
        let mut boards = Boards::default();
        let node: NodeName = ("prod".into(), "node-1".into());
        let mut watches = vec![LinkWatch::default(); gpus.len()];
        [0, 1].map(|minute| {
            let read = |(watch, (up, told)): (&mut LinkWatch, &(f64, usize))| {
                let up = if minute == 0 { *up } else { gpus[0].0 };
                let mut live = live(minute, 16.0, 5.0, up);
                let at = live.values[0].at;
                live.values.extend((0..*told).map(|link| LiveValue {
                    metric: gpu::NVLINK_UP.id,
                    part: Some(Arc::new(Part::new(PartKind::NvLink, link.to_string()))),
                    reading: Ok(f64::from(u8::from((link as f64) < up))),
                    max: None,
                    at,
                }));
                watch.read(&live, true, at)
            };
            let read = watches.iter_mut().zip(gpus).map(read);
            let mut read: Vec<LinkReadings> = read.collect();
            let most = read.iter().map(LinkReadings::nvlinks_up).max();
            for own in &mut read {
                boards.hold(&node, most.unwrap_or(0), model, own);
            }
            boards.forget(|_| true);
            let down = |it: &LinkReadings| {
                let read = it.nvlinks();
                Some(read.like? - read.own?)
            };
            read.iter().map(down).collect()
        })
    }

    #[test]
    fn nvlinks_that_never_were_up_are_down_where_the_model_has_them_and_the_board_connects_them() {
        let h100 = "NVIDIA H100 80GB HBM3";
        let none = |count: usize| vec![Some(0.0); count];
        let [first, then] = down(h100, &[(17.0, 18), (18.0, 18)]);
        assert_eq!(first, [Some(1.0), Some(0.0)]);
        assert_eq!(then, [Some(1.0), Some(1.0)], "its board is known by now");
        for (why, model, gpus) in [
            (
                "only how many are up is told",
                h100,
                &[(17.0, 0), (18.0, 0)],
            ),
            (
                "half of a board without switches",
                h100,
                &[(6.0, 18), (6.0, 18)],
            ),
            (
                "a machine with one GPU of a board",
                h100,
                &[(0.0, 18), (0.0, 18)],
            ),
            ("a bridge", "NVIDIA H100 PCIe", &[(0.0, 18), (12.0, 18)]),
            ("not known", "NVIDIA X100", &[(17.0, 18), (18.0, 18)]),
        ] {
            let [first, _] = down(model, gpus);
            assert_eq!(first, none(2), "{why}");
        }
    }

    #[test]
    fn a_link_of_an_open_incident_is_held_against_what_that_says_by_the_names_of_its_time() {
        for (lanes, generation) in [(PCIE_LANES, PCIE_GENERATION), ("lanes", "generation")] {
            let reading = |name: &str, now: f64, usual: f64| {
                Reading::new(name, now, Some(usual), Unit::Count)
            };
            let said = Said {
                place: Place::gpu("prod", "node-1", "GPU-prod-node-1-0000"),
                what: "PCIe at 25 % of its usual rate".to_owned(),
                since: NOW,
                seen_at: NOW,
                readings: vec![reading(lanes, 8.0, 16.0), reading(generation, 4.0, 5.0)],
            };
            let mut watch = LinkWatch::resumed(&[&said]);
            let last = watch.read(&live(0, 8.0, 4.0, 18.0), true, NOW);
            assert_eq!(last.pcie().map(|it| it.part()), Some(0.25), "{lanes}");
        }
    }

    #[test]
    fn what_is_no_longer_read_is_not_known() {
        let mut watch = LinkWatch::default();
        watch.read(&live(0, 16.0, 5.0, 18.0), true, NOW);
        let later = NOW.shifted(200 * NANOS_PER_SECOND);
        let last = watch.read(&live(0, 16.0, 5.0, 18.0), true, later);
        assert_eq!((last.pcie(), last.nvlinks()), (None, Pair::default()));
        assert!(!last.has_pcie() && !last.has_nvlinks());
    }
}
