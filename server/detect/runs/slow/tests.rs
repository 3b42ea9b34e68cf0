//! How surely the ranks of a node are told, what is known of ranks without a GPU, and what the links of a rank's GPU say.

use std::sync::Arc;

use gpufleet_analysis::ledger::State as GpuState;
use gpufleet_analysis::straggler::Verdict;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::*;
use crate::config::Config;
use crate::detect::before::Before;
use crate::detect::gather::{Watches, gather};
use crate::detect::prices::Prices;
use crate::detect::runs::snapshot::Machine;
use crate::detect::runs::tests::{Training, WELL, slow as slow_rank};
use crate::detect::tests::{is_gpu, set};
use crate::fleet::{Fleet, Live};
use crate::money::Terms;
use crate::money::terms::Sources;
use crate::view::fixture::{self, NOW};

#[test]
fn the_ranks_of_a_node_are_told_as_surely_as_the_surest_of_them() {
    let rank = |rank| RankSnapshot {
        rank,
        node: if rank < 2 { "node-1" } else { "node-2" }.into(),
        ..RankSnapshot::default()
    };
    let run = RunSnapshot {
        ranks: (0..4).map(rank).collect(),
        ..RunSnapshot::default()
    };
    for (other, expected) in [
        (
            Confidence::Low,
            "the ranks of this node probably make the others wait",
        ),
        (
            Confidence::High,
            "the ranks of this node make the others wait",
        ),
    ] {
        let slow = |(rank, confidence)| Straggler {
            rank,
            since_step: 1,
            ratio: 1.5,
            z: 9.0,
            window: 10,
            confidence,
            price: None,
        };
        let stragglers = [(0, Confidence::Low), (1, other)].map(slow).to_vec();
        let judged = Judged {
            verdict: Verdict {
                stragglers,
                ..Verdict::default()
            },
            since: BTreeMap::new(),
            slower: None,
            before: None,
            step: 100,
            ended_at: Timestamp::default(),
            step_ns: 0,
        };
        let around = Around {
            run: &run,
            judged: &judged,
            history: &History::default(),
            gpus: &Gpus::new(),
        };
        let told = signals(&around, &mut Causes::default());
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].what, expected);
        assert_eq!(told[0].confidence, Some(other), "of the surest");
    }
}

/// A run of four ranks without a GPU on these nodes; the last waits half of a step for its data.
fn waits_for_data(nodes: [&str; 4], machine: Option<Machine>) -> RunSnapshot {
    let rank = |(rank, node): (u32, &str)| RankSnapshot {
        rank,
        node: node.into(),
        means: Some(Means {
            data: if rank == 3 { 1e9 } else { 0.0 },
            own: if rank == 3 { 2e9 } else { 1e9 },
            collectives: 0.0,
        }),
        machine,
        ..RankSnapshot::default()
    };
    RunSnapshot {
        ranks: (0..).zip(nodes).map(rank).collect(),
        ..RunSnapshot::default()
    }
}

#[test]
fn a_rank_without_a_gpu_waits_for_its_data_where_its_machine_is_known_not_to_be_why() {
    let calm = Machine {
        host: Host {
            cpu_pressure: Some(0.02),
            io_pressure: Some(0.01),
            ..Host::default()
        },
        price: None,
    };
    let (one, two) = (["a"; 4], ["a", "a", "b", "b"]);
    for (nodes, machine, expected) in [
        (one, Some(calm), Cause::Data),
        (two, Some(calm), Cause::Data),
        // Nothing is read of the machine that all are on: it presses all of them.
        (one, None, Cause::Data),
        (two, None, Cause::Unknown),
        ([""; 4], None, Cause::Unknown),
    ] {
        let run = waits_for_data(nodes, machine);
        let is_blamed = |it: &RankSnapshot| it.rank == 3;
        let read = read(&run, &is_blamed, &run.ranks[3], 2.0, &Gpus::new());
        assert_eq!(cause::judge(&read).cause(), expected, "{nodes:?}");
    }
}

#[test]
fn a_run_without_gpus_costs_what_a_rank_on_its_machines_does() {
    let machine = |price| Machine {
        price,
        ..Machine::default()
    };
    let price = |machine| {
        let run = waits_for_data(["a"; 4], machine);
        all_of(&run, &Gpus::new()).nano_usd_per_gpu_second
    };
    assert_eq!(price(Some(machine(Some(14_000)))), Some(14_000));
    assert_eq!(price(Some(machine(None))), None);
    assert_eq!(price(None), None);
}

fn nvlinks(live: &mut Live, is_wrong: bool) {
    set(
        live,
        &gpu::NVLINKS_ACTIVE,
        if is_wrong { 16.0 } else { 18.0 },
    );
}

fn pcie(live: &mut Live, is_wrong: bool) {
    set(live, &gpu::PCIE_WIDTH, 16.0);
    set(
        live,
        &gpu::PCIE_GENERATION,
        if is_wrong { 3.0 } else { 5.0 },
    );
}

fn xid(live: &mut Live, is_wrong: bool) {
    let told = || LiveXid::new(NOW, 74, "nvlink", Severity::Error, "");
    live.told.xids = is_wrong.then(told).into_iter().collect();
}

/// A GPU as the detectors see it.
fn seen() -> GpuSnapshot {
    let config = Config::for_tests();
    let fleet = Fleet::new(config.fleet.clone());
    let works = fixture::Does::Work;
    fleet.put_for_tests(fixture::gpu("prod", "node-1", 5, works, Origin::Live));
    let terms = Terms::of(Sources::of(&config));
    let mut prices = Prices::at(Arc::new(terms), Arc::default(), NOW);
    let mut watches = Watches::default();
    let kept = (&mut watches, &Before::default());
    let (mut all, _) = gather(&fleet, kept, &mut prices, NOW);
    all.pop().expect("it is there")
}

#[test]
fn the_xid_of_a_gpu_is_the_one_that_broke_it_or_else_an_nvlinks_where_it_was_not_mended_since() {
    let at = |seconds: i64| NOW.shifted(seconds * NANOS_PER_SECOND);
    let xid = |seconds: i64, code: u32, action: &str| {
        LiveXid::new(at(seconds), code, action, Severity::Error, "")
    };
    let (fell, reset, link) = (
        xid(-60, 79, "reboot_node"),
        xid(-60, 119, "reset_gpu"),
        xid(-50, 74, "nvlink"),
    );
    let old = xid(-3_000, 48, "reset_gpu");
    let (fatal, lost) = (Reason::FatalXid, Reason::DeviceLost);
    let hung = Reason::DriverHang;
    let back = Some(at(-55));
    for (xids, broken, back_at, expected) in [
        (vec![&old, &fell, &link], Some((fatal, -60)), None, Some(79)),
        (vec![&old, &fell], Some((fatal, -60)), back, None),
        (vec![&old, &reset], Some((fatal, -60)), back, Some(119)),
        // One of before is not what broke it, and nor is any where something else did.
        (vec![&old, &link], Some((fatal, -60)), None, None),
        (vec![&old, &fell], Some((lost, -40)), None, Some(79)),
        (vec![&old, &reset], Some((lost, -40)), None, None),
        (vec![&old, &fell, &link], Some((hung, -3_600)), None, None),
        (vec![&old, &fell, &link], None, back, Some(74)),
        (vec![&old, &fell], None, None, None),
    ] {
        let codes: Vec<u32> = xids.iter().map(|it| it.code).collect();
        let mut own = seen();
        own.status.state = match broken {
            Some(_) => GpuState::Unhealthy,
            None => GpuState::ActiveUnrated,
        };
        own.broken = broken.map(|(reason, since)| (reason, at(since)));
        own.xids = xids.into_iter().cloned().collect();
        (own.healed_at, own.booted_at, own.back_at) = (None, Some(at(-86_400)), back_at);
        assert_eq!(xid_of(&own), expected, "{codes:?} {broken:?} {back_at:?}");
    }
}

/// Has a GPU read well, or as it is where something is wrong.
type Read = fn(&mut Live, bool);

#[tokio::test]
async fn a_slow_rank_whose_gpu_has_a_bad_link_is_told_with_what_was_read_of_it() {
    let rows: [(Read, Cause, _); 3] = [
        (nvlinks, Cause::Nvlink, ("NVLinks up", 16.0, Some(18.0))),
        (pcie, Cause::Pcie, ("PCIe generation", 3.0, Some(5.0))),
        (xid, Cause::Nvlink, ("XID", 74.0, None)),
    ];
    for (read, cause, expected) in rows {
        let mut training = Training::new().await;
        let reads = |is_wrong: bool| {
            move |live: &mut Live| {
                if is_gpu(live, "node-1", 5) {
                    read(live, is_wrong);
                }
            }
        };
        training.ticks(3, |_| WELL, reads(false)).await;
        training.ticks(5, slow_rank(5), reads(true)).await;
        let open = training.world.open();
        let mut told = open.iter().flat_map(|it| &it.evidence);
        let of_rank = told.find(|it| it.place.rank == Some(5));
        let of_rank = of_rank.expect("it makes the others wait");
        assert_eq!(of_rank.cause, cause, "{expected:?}");
        let mut shown = of_rank.readings.iter();
        let is_shown = shown.any(|it| (&*it.name, it.value, it.usual) == expected);
        assert!(is_shown, "{expected:?}: {:?}", of_rank.readings);
    }
}
