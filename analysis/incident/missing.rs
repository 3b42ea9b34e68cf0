//! GPUs that are broken and of which nothing is told any more: what was silent for a day is forgotten, and the fault of a
//! card that nobody mended is not over for that.
//!
//! Method: an incident of broken GPUs of which one is not known any more counts as not heard, until as many others of its
//! node were seen first after that one broke as GPUs of the node are missing: then they were replaced. One that is known
//! again is judged as any other is, and nobody misses those of a node that is gone.
//!
//! Limits: of an incident of many GPUs those that its evidence names. A card that was taken out for good while its agent
//! did not run, so that no event says so, is missed as long as its node is there.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::book::Book;
use super::{Family, Incident, Place, State};

/// GPUs that are seen first within this time of when one broke were there with it, nanoseconds: an agent that starts
/// tells of all within some ticks, and to put in a card takes longer.
const THERE_NS: i64 = 60 * 1_000_000_000;

impl Book {
    /// The incidents in which a broken GPU is missing, and nothing has come in its place.
    pub(super) fn missing(
        &self,
        in_its_place: &dyn Fn(&Place, Timestamp) -> Option<usize>,
    ) -> BTreeSet<Uuid> {
        let all = self.incidents.iter();
        let faults = all.filter(|it| it.family == Family::GpuFault && it.state == State::Open);
        let gone = faults.flat_map(|fault| {
            let from = fault.since.shifted(THERE_NS);
            let gpus = fault.broken_gpus();
            gpus.filter_map(move |gpu| Some((fault.id, gpu, in_its_place(gpu, from)?)))
        });
        let gone: Vec<(Uuid, &Place, usize)> = gone.collect();
        let mut of_node: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (_, gpu, _) in &gone {
            let node = (&gpu.cluster, &gpu.node);
            of_node.entry(node).or_default().insert(&gpu.gpu);
        }
        let is_missed = |(_, gpu, others): &&(Uuid, &Place, usize)| {
            let missing = of_node.get(&(&gpu.cluster, &gpu.node));
            missing.is_some_and(|it| it.len() > *others)
        };
        gone.iter().filter(is_missed).map(|it| it.0).collect()
    }
}

impl Incident {
    /// The GPUs that are broken, as far as they are named.
    fn broken_gpus(&self) -> impl Iterator<Item = &Place> {
        let evidence = self.evidence.iter();
        let own = evidence.filter(|it| it.cause == self.cause);
        let all = std::iter::once(&self.place).chain(own.map(|it| &it.place));
        all.filter(|it| it.node.is_some() && it.gpu.is_some())
    }
}
