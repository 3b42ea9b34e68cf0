//! What each detector reads: by it a replay says which of them cannot run on data that has less than live data.
//!
//! A detector has a line here when it is added; limits of readings have theirs in [`super::limits`].

use gpufleet_analysis::incident::Family;
use gpufleet_telemetry::catalog::{Metric, gpu, node, own, training};

use super::limits;
use super::watch::GAP_S;

/// Readings further apart than this say nothing together, seconds.
pub(crate) const MOST_SPACING_S: f64 = GAP_S;

/// One detector.
#[derive(Debug, Clone)]
pub(crate) struct Detector {
    /// What it finds, in few words; of a limit its kind in `alerts/kinds.toml`.
    pub(crate) name: &'static str,
    /// What its findings are.
    pub(crate) family: Family,
    /// What it cannot do without.
    pub(crate) needs: Vec<Need>,
}

/// One thing that it needs.
#[derive(Debug, Clone)]
pub(crate) enum Need {
    /// One of these metrics.
    Reading(Vec<&'static Metric>),
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
}

use Need::{Cluster, Events, Holders, Length, Past, Reading, Steps};

/// The steps of two windows that a leak needs, seconds: it says nothing before.
const LEAK_S: i64 = 12_000;

/// All of them.
pub(crate) fn all() -> Vec<Detector> {
    let one = |metric: &'static Metric| Reading(vec![metric]);
    let of = |name, family, needs| Detector {
        name,
        family,
        needs,
    };
    use Family::{
        Blind, GpuFault, Hang, Heat, Idle, Leak, Link, Memory, Offender, Power, Slower, Stalled,
        Straggler, Training,
    };
    let mut all = vec![
        of("XIDs and what the driver tells", GpuFault, vec![Events]),
        of(
            "readings of a GPU that stop",
            GpuFault,
            vec![one(&gpu::OBSERVED)],
        ),
        of(
            "what the driver asks for",
            GpuFault,
            vec![one(&gpu::RECOVERY_ACTION)],
        ),
        of(
            "memory errors that could not be corrected",
            GpuFault,
            vec![one(&gpu::ECC_UNCORRECTED_VOLATILE)],
        ),
        of(
            "remapping that failed",
            GpuFault,
            vec![one(&gpu::REMAP_FAILURE)],
        ),
        of(
            "what the probe found",
            GpuFault,
            vec![one(&own::PROBE_VERDICT), one(&own::PROBE_AT)],
        ),
        of(
            "many corrected memory errors",
            Memory,
            vec![one(&gpu::ECC_CORRECTED_VOLATILE)],
        ),
        of(
            "a memory row that waits for a reset",
            Memory,
            vec![one(&gpu::REMAP_PENDING)],
        ),
        of(
            "slowed down by heat",
            Heat,
            vec![one(&gpu::THROTTLE_THERMAL)],
        ),
        of(
            "hotter than like GPUs",
            Heat,
            vec![one(&gpu::TEMPERATURE), Holders],
        ),
        of(
            "slowed down by the power brake",
            Power,
            vec![one(&gpu::THROTTLE_BOARD_LIMIT)],
        ),
        of(
            "slowed down by its power cap",
            Power,
            vec![one(&gpu::THROTTLE_POWER), Holders],
        ),
        of(
            "draws less power than like GPUs",
            Power,
            vec![one(&gpu::POWER), Holders],
        ),
        of(
            "PCIe below what it was",
            Link,
            vec![one(&gpu::PCIE_WIDTH), one(&gpu::PCIE_GENERATION)],
        ),
        of("NVLinks down", Link, vec![one(&gpu::NVLINKS_ACTIVE)]),
        of(
            "a link slower than its like",
            Link,
            vec![
                one(&training::COLLECTIVE_BUS_BANDWIDTH),
                one(&training::COLLECTIVE_TRAFFIC),
                one(&training::COLLECTIVE_CALLS),
            ],
        ),
        of(
            "a port that came up slower than its like",
            Link,
            vec![one(&node::NIC_SPEED)],
        ),
        of("a rank that makes the others wait", Straggler, vec![Steps]),
        of("a run that became slower", Slower, vec![Steps]),
        of(
            "a run on the wrong network",
            Slower,
            vec![
                one(&node::NIC_SENT),
                one(&node::NIC_RECEIVED),
                one(&node::NIC_UP),
            ],
        ),
        of("a run that stands still", Hang, vec![Steps]),
        of(
            "numbers of training that go wrong",
            Training,
            vec![
                Reading(vec![&training::LOSS, &training::NON_FINITE_LOSSES]),
                one(&training::LAST_STEP),
            ],
        ),
        of(
            "GPU memory that grows",
            Leak,
            vec![
                one(&gpu::MEMORY_USED),
                one(&gpu::MEMORY_TOTAL),
                Holders,
                Length(LEAK_S),
            ],
        ),
        of(
            "a machine's memory that grows",
            Leak,
            vec![
                one(&node::MEMORY_AVAILABLE),
                one(&node::MEMORY_TOTAL),
                Length(LEAK_S),
            ],
        ),
        of(
            "busy without work",
            Stalled,
            vec![one(&gpu::STALLED), one(&gpu::OBSERVED)],
        ),
        of(
            "held and idle",
            Idle,
            vec![one(&gpu::ACTIVE), one(&gpu::HELD)],
        ),
        of(
            "a node that nothing is heard from",
            Blind,
            vec![one(&gpu::OBSERVED)],
        ),
        of("a node without an agent", Blind, vec![Cluster]),
        of(
            "a reader that fails",
            Blind,
            vec![one(&own::READER_SUCCESS)],
        ),
        of(
            "readings that the driver refuses",
            Blind,
            vec![one(&gpu::OBSERVED)],
        ),
        of(
            "cards, machines and parts of a cluster that break again and again",
            Offender,
            vec![Past],
        ),
    ];
    let of_limit = |(name, family, metrics): (&'static str, Family, Vec<&'static Metric>)| {
        let needs = metrics.into_iter().map(one).collect();
        of(name, family, needs)
    };
    all.extend(limits::needs().map(of_limit));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_trouble_has_a_detector_here_and_each_is_named_once() {
        let all = all();
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
        let own = |name: &&str| !limits::needs().any(|it| it.0 == *name);
        assert_eq!(twice.into_iter().filter(own).collect::<Vec<_>>(), [""; 0]);
    }
}
