//! GPUs beside those of their job: whose load is another is not held against them, and what a program raises on all of
//! them is none's.

use gpufleet_telemetry::catalog::{Metric, node};
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Clock;

use super::*;
use crate::detect::tests::{World, is_gpu, set};
use crate::fleet::{Live, LiveXid};
use crate::view::fixture::NOW;

/// Ticks until what is wrong with heat or power is told, and some more.
const TOLD: usize = 6;

/// Says of every GPU what started the pod that holds it.
fn held_by(world: &mut World, workload: &str) {
    let gpus = world.lives.iter_mut();
    for live in gpus.filter(|it| it.key.kind == ResourceKind::Gpu) {
        let resource = Resource::clone(&live.resource);
        live.resource = Arc::new(resource.with(attribute::WORKLOAD, workload));
    }
}

/// One GPU's reading beside what the others read, and how busy its tensor cores are beside 0.4; none is not read.
fn apart(
    metric: &'static Metric,
    (own, like): (f64, f64),
    tensor: Option<f64>,
) -> impl Fn(&mut Live) {
    move |live| {
        if live.key.kind != ResourceKind::Gpu {
            return;
        }
        let is_it = is_gpu(live, "node-2", 3);
        set(live, metric, if is_it { own } else { like });
        if let Some(tensor) = tensor {
            let busy = if is_it { tensor } else { 0.4 };
            set(live, &gpu::TENSOR_ACTIVE, busy);
        }
    }
}

const WEAK: (f64, f64) = (420.0, 600.0);
const HOT: (f64, f64) = (80.0, 60.0);

#[tokio::test]
async fn a_gpu_with_a_load_of_its_own_is_not_held_against_the_others() {
    for (workload, tensor) in [
        ("deployment:inference/chat", Some(0.2)),
        ("deployment:inference/chat", Some(0.4)),
        ("job:research/sweep", Some(0.2)),
        ("job:research/sweep", None),
        ("slurm:77", Some(0.2)),
        ("jobset:research/rollouts", Some(0.2)),
    ] {
        let mut world = World::new().await;
        held_by(&mut world, workload);
        world.ticks(TOLD, apart(&gpu::POWER, WEAK, tensor));
        assert_eq!(world.open(), [], "{workload} {tensor:?}");
        world.ticks(TOLD, apart(&gpu::TEMPERATURE, HOT, tensor));
        assert_eq!(world.open(), [], "{workload} {tensor:?}");
    }
}

#[tokio::test]
async fn a_gpu_apart_from_others_that_do_the_same_is_told() {
    for (workload, tensor) in [
        ("jobset:research/train-7b", None),
        ("jobset:research/train-7b", Some(0.4)),
        ("slurm:77", Some(0.4)),
    ] {
        for (metric, read, family) in [
            (&gpu::POWER, WEAK, Family::Power),
            (&gpu::TEMPERATURE, HOT, Family::Heat),
        ] {
            let mut world = World::new().await;
            held_by(&mut world, workload);
            world.ticks(TOLD, apart(metric, read, tensor));
            let open = world.open();
            assert_eq!(open.len(), 1, "{workload}: {open:#?}");
            assert_eq!(open[0].family, family, "{workload}");
            let gpu = open[0].place.gpu.as_deref();
            assert_eq!(gpu, Some("GPU-prod-node-2-0003"), "{workload}");
        }
    }
}

#[tokio::test]
async fn a_programs_xid_on_several_gpus_of_each_job_accuses_no_gpu() {
    for (on, is_told) in [(1, true), (2, false), (8, false)] {
        let mut world = World::new().await;
        world.ticks(3, |live| {
            if (0..on).any(|index| is_gpu(live, "node-1", index)) {
                let of =
                    |job: &str| LiveXid::new(NOW, 31, "application_error", Severity::Warning, job);
                live.told.xids = vec![of("slurm:77"), of("slurm:78")];
            }
        });
        let what: Vec<String> = world.open().into_iter().map(|it| it.what).collect();
        let expected: &[&str] = if is_told {
            &["XID 31 in several jobs"]
        } else {
            &[]
        };
        assert_eq!(what, expected, "on {on}");
    }
}

#[tokio::test]
async fn an_xid_is_as_bad_as_its_row_of_the_table_says() {
    for (code, action, severity) in [
        (159, "check_uvm", Severity::Warning),
        (74, "nvlink", Severity::Error),
        (14, "our_own", Severity::Info),
    ] {
        let mut world = World::new().await;
        world.ticks(3, |live| {
            if is_gpu(live, "node-1", 2) {
                live.told.xids = vec![LiveXid::new(NOW, code, action, severity, "slurm:77")];
            }
        });
        let open = world.open();
        let told: Vec<_> = open.iter().map(|it| (&*it.what, it.severity)).collect();
        assert_eq!(told, [(&*format!("XID {code}"), severity)]);
    }
}

/// A reset that is owed: what works meanwhile is no less broken, and costs nothing then. Only a reset ends it.
#[tokio::test]
async fn what_asks_for_a_reset_stays_open_while_the_gpu_works_until_it_is_reset() {
    let mut world = World::new().await;
    let raised = NOW;
    let works = |live: &mut Live, energy: f64, uncorrected: f64| {
        if is_gpu(live, "node-1", 2) {
            set(live, &gpu::ENERGY, energy);
            let told = LiveXid::new(raised, 64, "reset_gpu", Severity::Error, "slurm:77");
            live.told.xids = vec![told];
        }
        if is_gpu(live, "node-2", 5) {
            set(live, &gpu::ECC_UNCORRECTED_VOLATILE, uncorrected);
        }
    };
    // Longer than errors of the last hour, and than what only asks for a look.
    world.ticks(400, |live| works(live, 8e9, 1.0));
    let open = world.open();
    let told: Vec<_> = open.iter().map(|it| (&*it.what, it.severity)).collect();
    let uncorrected = "memory errors that could not be corrected";
    assert_eq!(
        told,
        [("XID 64", Severity::Error), (uncorrected, Severity::Error)]
    );
    assert!(open.iter().all(|it| it.losing.milli_gpus == 0), "they work");
    assert!(open.iter().all(crate::handoff::ask::is_to_be_drained));
    world.ticks(3, |live| works(live, 2_000.0, 0.0));
    assert_eq!(world.open(), [], "the counters began anew");
}

#[tokio::test]
async fn links_say_how_many_are_down_and_what_is_left_and_a_rate_its_limit() {
    let mut world = World::new().await;
    let links = |is_ill: bool| {
        move |live: &mut Live| {
            if live.key.kind == ResourceKind::Node {
                set(live, &node::UPTIME, 1e6);
            }
            let ill = |well: f64, ill: f64| if is_ill { ill } else { well };
            if is_gpu(live, "node-1", 3) {
                set(live, &gpu::NVLINKS_ACTIVE, ill(18.0, 17.0));
            }
            if is_gpu(live, "node-2", 1) {
                set(live, &gpu::PCIE_GENERATION, ill(5.0, 4.0));
                set(live, &gpu::PCIE_WIDTH, ill(16.0, 8.0));
            }
            if is_gpu(live, "node-2", 6) {
                set(live, &gpu::ECC_CORRECTED_VOLATILE, ill(0.0, 90.0));
            }
        }
    };
    world.ticks(3, links(false));
    world.ticks(12, links(true));
    let mut said: Vec<String> = world
        .open()
        .iter()
        .flat_map(|it| &it.evidence)
        .map(|it| crate::words::incident::evidence(&it.what, &it.readings))
        .collect();
    said.sort();
    assert_eq!(
        said,
        [
            "1 of 18 NVLinks down, NVLinks up 17 (usual 18)",
            "PCIe at 25 % of its usual rate: gen 4 x8 of gen 5 x16, PCIe lanes 8 (usual 16), PCIe generation 4 (usual 5)",
            "many corrected memory errors, corrected errors an hour 90, limit 60",
        ]
    );
}

#[tokio::test]
async fn a_card_that_came_up_with_fewer_lanes_than_its_like_is_an_incident_and_a_narrow_model_none()
{
    for (usually, told) in [(16.0, 1), (8.0, 0)] {
        let mut world = World::new().await;
        world.ticks(10, move |live| {
            if live.key.kind == ResourceKind::Gpu {
                let is_odd = is_gpu(live, "node-2", 1);
                set(live, &gpu::PCIE_GENERATION, 5.0);
                set(live, &gpu::PCIE_WIDTH, if is_odd { 8.0 } else { usually });
            }
        });
        let open = world.open();
        assert_eq!(open.len(), told, "{open:#?}");
        for it in open {
            assert_eq!((it.family, it.cause), (Family::Link, Cause::Pcie));
            let half = "PCIe at 50 % of its usual rate: gen 5 x8 of gen 5 x16";
            assert_eq!(it.what, half);
        }
    }
}

#[tokio::test]
async fn what_the_driver_asks_for_is_said_and_only_what_breaks_the_gpu_costs_it_and_drains_its_node()
 {
    let gpus = [("node-1", 0), ("node-1", 1), ("node-2", 0), ("node-2", 1)];
    let mut world = World::new().await;
    world.ticks(2, |live| {
        for (code, (node, index)) in (1_u32..).zip(gpus) {
            if is_gpu(live, node, index) {
                set(live, &gpu::RECOVERY_ACTION, code.into());
            }
        }
    });
    let open = world.open();
    for ((node, index), (what, severity)) in gpus.into_iter().zip([
        ("reset the GPU", Severity::Error),
        ("reboot the node", Severity::Error),
        ("drain peer-to-peer traffic", Severity::Warning),
        ("drain the GPU's jobs, then reset it", Severity::Error),
    ]) {
        let id = format!("GPU-prod-{node}-{index:04}");
        let told = open.iter().find(|it| it.place.gpu.as_ref() == Some(&id));
        let told = told.unwrap_or_else(|| panic!("{id}: {open:#?}"));
        assert_eq!(told.what, format!("the driver asks to {what}"));
        let is_bad = severity == Severity::Error;
        assert_eq!((told.severity, told.places), (severity, 1));
        let costs = if is_bad { 1_000 } else { 0 };
        assert_eq!(told.losing.milli_gpus, costs, "{what}");
        let is_drained = crate::handoff::ask::is_to_be_drained(told);
        assert_eq!(is_drained, is_bad, "{what}: {}", told.action);
    }
}

#[tokio::test]
async fn a_card_whose_readings_stop_is_looked_for_before_it_is_diagnosed() {
    let mut world = World::new().await;
    world.ticks(2, |_| {});
    let last = world.hand.now();
    world.ticks(6, |live| {
        if is_gpu(live, "node-1", 5) {
            (live.last_point, live.received) = (last, last);
        }
    });
    let open = world.open();
    let [told] = &open[..] else {
        panic!("{open:#?}");
    };
    assert!(told.action.contains("nvidia-smi -L"), "{}", told.action);
    assert!(!crate::handoff::ask::is_to_be_drained(told));
}

#[tokio::test]
async fn a_card_that_falls_off_the_bus_while_it_is_to_be_diagnosed_asks_for_the_reboot_and_its_node_is_handed_off()
 {
    let mut world = World::new().await;
    let xid = |code, action: &str, job: &str| {
        let severity = if code == 79 {
            Severity::Error
        } else {
            Severity::Warning
        };
        LiveXid::new(NOW, code, action, severity, job)
    };
    let raise = |xids: &[LiveXid]| {
        let xids = xids.to_vec();
        move |live: &mut Live| {
            if is_gpu(live, "node-1", 2) {
                live.told.xids.clone_from(&xids);
            }
        }
    };
    let mut xids = ["slurm:77", "slurm:78"]
        .map(|job| xid(31, "application_error", job))
        .to_vec();
    world.ticks(3, raise(&xids));
    let told = world.open();
    assert_eq!(told[0].what, "XID 31 in several jobs");
    assert!(!crate::handoff::ask::is_to_be_drained(&told[0]));
    xids.push(xid(79, "reboot_node", "slurm:78"));
    world.ticks(3, raise(&xids));
    let now = world.open();
    assert_eq!(now.len(), 1, "{now:#?}");
    assert_eq!((now[0].id, &*now[0].what), (told[0].id, "XID 79"));
    assert!(crate::handoff::ask::is_to_be_drained(&now[0]));
}
