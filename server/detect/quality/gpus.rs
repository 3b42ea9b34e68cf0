//! Faults of cards and machines, of jobs that hold them, and of their history.
//!
//! Longer than 500 lines because it is one list, of which each fault is some lines long.

use gpufleet_analysis::incident::Place;
use gpufleet_analysis::inventory::{Node, Ready};
use gpufleet_analysis::ledger::Reason;
use gpufleet_analysis::offender::{Fault as Broke, Level, Machine};
use gpufleet_analysis::price::Basis;
use gpufleet_analysis::states::{Edge, HealthEvent};
use gpufleet_telemetry::catalog::{Metric, gpu, node, own};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::{Part, PartKind, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::Bitmaps;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::world::{At, Happens, Made, NOTHING, Now};
use super::{FEW, Fault, SEEDS};
use crate::fleet::{Live, LiveXid};
use crate::view::fixture::NOW;

/// One node, with as many as there must be to say what is usual, and some more.
const NODE: (u32, u32) = (1, 6);
/// Two of them.
const NODES: (u32, u32) = (2, 8);
const HOUR_S: i64 = 3_600;
/// A job whose GPUs go together, and one whose each has its own load.
const GANG: &str = "jobset:research/train-7b";
const SERVES: &str = "deployment:inference/chat";

/// What started the pod that holds a GPU.
fn held_by(live: &mut Live, workload: &str) {
    let is_new = live.resource.attribute(attribute::WORKLOAD).is_none();
    if live.key.kind == ResourceKind::Gpu && is_new {
        let resource = Resource::clone(&live.resource);
        live.resource = resource.with(attribute::WORKLOAD, workload).into();
    }
}

/// A fault of one GPU, by what it and its machine read.
fn of_gpu(
    finding: &'static str,
    fault: &str,
    says: &'static str,
    (least, within_s): (u32, i64),
    reads: impl Fn(&mut Live, &Now) + 'static,
) -> Fault {
    Fault::of(finding, fault, least, move |seed, server| {
        let of_gang = |live: &mut Live, now: &Now| {
            held_by(live, GANG);
            reads(live, now);
        };
        let happens = Happens {
            reads: &of_gang,
            ..NOTHING
        };
        Made::new(seed, NODE, server).told((says, At::Gpu), within_s, happens)
    })
}

/// A flag or a level that is read at the GPU from the onset on.
fn reading(
    finding: &'static str,
    fault: &str,
    says: &'static str,
    metric: &'static Metric,
    (value, least): (f64, u32),
) -> Fault {
    of_gpu(finding, fault, says, (least, 900), move |live, now| {
        if now.is_gpu(live) {
            now.put(live, metric, value);
        }
    })
}

/// A counter that grows by so much a second.
fn counter(
    finding: &'static str,
    fault: &str,
    says: &'static str,
    metric: &'static Metric,
    (per_second, least): (f64, u32),
) -> Fault {
    of_gpu(finding, fault, says, (least, 900), move |live, now| {
        if now.is_gpu(live) {
            now.grow(live, metric, per_second * now.tick_s as f64);
        }
    })
}

/// An XID, and what it makes of the GPU.
fn xid(code: u32, action: &'static str, breaks: bool, says: &'static str, fault: &str) -> Fault {
    of_gpu(
        "XIDs and what the driver tells",
        fault,
        says,
        (SEEDS, 120),
        move |live, now| {
            if now.is_gpu(live) {
                let holder = "pod:research/train-7b-0";
                let xid = LiveXid::new(now.onset, code, action, Severity::Error, holder);
                live.told.xids = vec![xid];
                if breaks {
                    broken(live, now, Reason::FatalXid);
                }
            }
        },
    )
}

fn broken(live: &mut Live, now: &Now, reason: Reason) {
    live.health = Some(HealthEvent {
        at: now.onset,
        edge: Edge::Broken(reason),
    });
    live.bits = Bitmaps::default();
}

/// A program's XID in two jobs, two days apart: on one GPU, or on all of them.
fn repeated(what: &str, on_all: bool, least: u32) -> Fault {
    let says = "XID 31 in several jobs";
    of_gpu(
        "XIDs and what the driver tells",
        what,
        says,
        (least, 120),
        move |live, now| {
            let is_any = on_all && now.seconds >= 0 && live.key.kind == ResourceKind::Gpu;
            if is_any || now.is_gpu(live) {
                let of = |days: i64, job: &str| {
                    let at = now.onset.shifted(-days * 24 * HOUR_S * NANOS_PER_SECOND);
                    let holder = format!("pod:research/{job}");
                    LiveXid::new(at, 31, "application_error", Severity::Warning, &holder)
                };
                live.told.xids = vec![of(2, "first-0"), of(0, "second-0")];
            }
        },
    )
}

fn probe(verdict: f64, says: &'static str, fault: &str) -> Fault {
    of_gpu(
        "what the probe found",
        fault,
        says,
        (SEEDS, 300),
        move |live, now| {
            let (verdict, at) = match now.is_gpu(live) {
                true => (verdict, now.onset),
                false => (1.0, NOW),
            };
            if live.key.kind == ResourceKind::Gpu {
                now.put(live, &own::PROBE_VERDICT, verdict);
                now.put(live, &own::PROBE_AT, at.seconds() as f64);
            }
        },
    )
}

fn events() -> Vec<Fault> {
    let events = "XIDs and what the driver tells";
    let breaks = |reason: Reason| {
        move |live: &mut Live, now: &Now| {
            if now.is_gpu(live) {
                broken(live, now, reason);
            }
        }
    };
    vec![
        xid(79, "reboot_node", true, "XID 79", "XID 79, off the bus"),
        xid(
            95,
            "reset_gpu",
            true,
            "XID 95",
            "XID 95, a contained error that was not",
        ),
        xid(74, "nvlink", false, "XID 74", "XID 74, of an NVLink"),
        repeated("XID 31 in two jobs within a week", false, SEEDS),
        repeated("XID 31 on every GPU of two jobs", true, 0),
        of_gpu(
            events,
            "a GPU that is lost",
            "lost",
            (SEEDS, 120),
            breaks(Reason::DeviceLost),
        ),
        of_gpu(
            events,
            "a driver call that does not return",
            "a driver call",
            (SEEDS, 120),
            breaks(Reason::DriverHang),
        ),
        probe(3.0, "the probe failed", "a probe that failed"),
        probe(
            2.0,
            "the probe found it slow",
            "a probe that was right and slow",
        ),
        Fault::of(
            "readings of a GPU that stop",
            "a GPU's readings stop",
            SEEDS,
            |seed, server| {
                let happens = Happens {
                    stops: &|live, now| now.is_gpu(live),
                    ..NOTHING
                };
                let says = ("its readings stopped", At::Gpu);
                Made::new(seed, NODE, server).told(says, 120, happens)
            },
        ),
        reading(
            "what the driver asks for",
            "the driver asks for a reset",
            "the driver asks to reset the GPU",
            &gpu::RECOVERY_ACTION,
            (1.0, SEEDS),
        ),
    ]
}

fn memory() -> Vec<Fault> {
    let often = "many corrected memory errors";
    vec![
        of_gpu(
            "memory errors that could not be corrected",
            "one error that could not be corrected",
            "memory errors that could not",
            (SEEDS, 300),
            |live, now| {
                if now.is_gpu(live) {
                    now.put(live, &gpu::ECC_UNCORRECTED_VOLATILE, 1.0);
                }
            },
        ),
        reading(
            "remapping that failed",
            "a memory row that could not be remapped",
            "a memory row could not",
            &gpu::REMAP_FAILURE,
            (1.0, SEEDS),
        ),
        reading(
            "a memory row that waits for a reset",
            "a memory row that waits for a reset",
            "a memory row waits",
            &gpu::REMAP_PENDING,
            (1.0, SEEDS),
        ),
        counter(
            often,
            "22 corrected errors in a quarter of an hour",
            often,
            &gpu::ECC_CORRECTED_VOLATILE,
            (0.025, 0),
        ),
        counter(
            often,
            "90 corrected errors in a quarter of an hour",
            often,
            &gpu::ECC_CORRECTED_VOLATILE,
            (0.1, SEEDS),
        ),
    ]
}

fn slowed() -> Vec<Fault> {
    let (heat, brake) = ("slowed down by heat", "slowed down by the power brake");
    let (cap, again) = (
        "slowed down by its power cap",
        "slowed down by the hardware again and again",
    );
    let (hot, weak) = ("hotter than like GPUs", "draws less power than like GPUs");
    let part = |finding, metric, part: f64, least| {
        let fault = format!("{finding} for {:.0} % of the time", part * 100.0);
        counter(finding, &fault, finding, metric, (part, least))
    };
    let slowdowns = |every_s: i64, least: u32| {
        let fault = format!("the hardware slows it down each {every_s} s");
        of_gpu(again, &fault, again, (least, 900), move |live, now| {
            if now.is_gpu(live) {
                let times = now.seconds / every_s - (now.seconds - now.tick_s).max(0) / every_s;
                now.grow(live, &gpu::HARDWARE_SLOWDOWNS, times as f64);
            }
        })
    };
    let hotter = |by: f64, least| {
        reading(
            hot,
            &format!("{by:.0} °C above like GPUs"),
            hot,
            &gpu::TEMPERATURE,
            (62.0 + by, least),
        )
    };
    let weaker = |by: f64, least| {
        let fault = format!("{:.0} % less power than like GPUs", by * 100.0);
        reading(weak, &fault, weak, &gpu::POWER, (620.0 * (1.0 - by), least))
    };
    // A replica of those that serve, to which half as much is sent.
    let replica = Fault::of(
        weak,
        "a third less power at half the load",
        0,
        move |seed, server| {
            let reads = |live: &mut Live, now: &Now| {
                held_by(live, SERVES);
                if now.is_gpu(live) {
                    now.put(live, &gpu::POWER, 420.0);
                    now.put(live, &gpu::TENSOR_ACTIVE, 0.2);
                }
            };
            let happens = Happens {
                reads: &reads,
                ..NOTHING
            };
            Made::new(seed, NODE, server).told((weak, At::Gpu), 900, happens)
        },
    );
    vec![
        part(heat, &gpu::THROTTLE_THERMAL, 0.03, 0),
        part(heat, &gpu::THROTTLE_THERMAL, 0.1, SEEDS),
        part(heat, &gpu::THROTTLE_THERMAL, 0.5, SEEDS),
        part(brake, &gpu::THROTTLE_BOARD_LIMIT, 0.03, 0),
        part(brake, &gpu::THROTTLE_BOARD_LIMIT, 0.1, SEEDS),
        part(brake, &gpu::THROTTLE_BOARD_LIMIT, 0.5, SEEDS),
        part(cap, &gpu::THROTTLE_POWER, 0.1, 0),
        part(cap, &gpu::THROTTLE_POWER, 0.5, SEEDS),
        slowdowns(300, 0),
        slowdowns(30, SEEDS),
        hotter(6.0, 0),
        hotter(20.0, SEEDS),
        weaker(0.15, 0),
        weaker(0.5, SEEDS),
        replica,
    ]
}

fn links() -> Vec<Fault> {
    let pcie = "PCIe below what it was";
    let nvlinks = |says: &'static str, up: f64| {
        let read = (up, SEEDS);
        reading("NVLinks down", says, says, &gpu::NVLINKS_ACTIVE, read)
    };
    vec![
        reading(
            pcie,
            "PCIe with 8 of 16 lanes",
            "PCIe at 50 % of its usual rate: gen 5 x8 of gen 5 x16",
            &gpu::PCIE_WIDTH,
            (8.0, SEEDS),
        ),
        reading(
            pcie,
            "PCIe of generation 4 and not 5",
            "PCIe at 50 % of its usual rate: gen 4 x16 of gen 5 x16",
            &gpu::PCIE_GENERATION,
            (4.0, SEEDS),
        ),
        nvlinks("1 of 18 NVLinks down", 17.0),
        nvlinks("9 of 18 NVLinks down", 9.0),
    ]
}

/// A job that holds its GPUs and does nothing, or only seems to.
fn unused(finding: &'static str, fault: &str, is_stalled: bool) -> Fault {
    Fault::of(finding, fault, SEEDS, move |seed, server| {
        let reads = move |live: &mut Live, now: &Now| {
            if live.key.kind == ResourceKind::Gpu && now.seconds >= 0 {
                live.bits.active = 0;
                live.bits.stalled = if is_stalled { live.bits.observed } else { 0 };
                let busy = if is_stalled { 1.0 } else { 0.0 };
                now.put(live, &gpu::UTILIZATION, busy);
                now.put(live, &gpu::TENSOR_ACTIVE, 0.0);
            }
        };
        let happens = Happens {
            reads: &reads,
            ..NOTHING
        };
        let says = (finding, At::Any);
        Made::new(seed, (1, 2), server).told(says, 2 * HOUR_S, happens)
    })
}

fn silent() -> Fault {
    let finding = "a node that nothing is heard from";
    Fault::of(finding, "a node falls silent", SEEDS, |seed, server| {
        let happens = Happens {
            stops: &|live, now| now.seconds >= 0 && *live.node == *now.node,
            ..NOTHING
        };
        let says = ("nothing is heard from the node", At::Node);
        Made::new(seed, NODES, server).told(says, 120, happens)
    })
}

fn without_agent() -> Fault {
    let finding = "a node without an agent";
    Fault::of(
        finding,
        "a node with GPUs and no agent joins",
        SEEDS,
        |seed, server| {
            let node = |name: &str| Node {
                name: name.to_owned(),
                gpus: 8,
                allocatable: 8,
                ready: Ready::Yes,
                ready_since: Some(NOW),
                ..Node::default()
            };
            let also = |made: &mut Made, now: &Now| {
                let mut nodes = vec![node("node-1")];
                nodes.extend((now.seconds >= 0).then(|| node("node-2")));
                let moment = made.moment(now.at);
                made.inventory.known().all_nodes(nodes, moment);
            };
            let happens = Happens {
                also: &also,
                ..NOTHING
            };
            let says = ("a node with GPUs and without an agent", At::Any);
            Made::new(seed, (1, 2), server).told(says, HOUR_S, happens)
        },
    )
}

/// A reader that reads nothing more, and says so or only stands.
fn reader(success: f64, fault: &str) -> Fault {
    Fault::of("a reader that fails", fault, SEEDS, move |seed, server| {
        let reads = move |live: &mut Live, now: &Now| {
            if live.key.kind != ResourceKind::Node {
                return;
            }
            let (success, last) = match now.is_node(live) {
                true => (success, now.onset),
                false => (1.0, live.last_point),
            };
            let part = || Part::new(PartKind::Reader, "nvml");
            now.part(live, &own::READER_SUCCESS, part(), Ok(success));
            now.part(
                live,
                &own::READER_LAST_SUCCESS,
                part(),
                Ok(last.seconds() as f64),
            );
        };
        let happens = Happens {
            reads: &reads,
            ..NOTHING
        };
        let says = ("a reader of its agent fails", At::Node);
        Made::new(seed, (2, 1), server).told(says, 900, happens)
    })
}

fn refused(missing: Missing, fault: &str) -> Fault {
    Fault::of(
        "readings that the driver refuses",
        fault,
        SEEDS,
        move |seed, server| {
            let reads = move |live: &mut Live, now: &Now| {
                let is_it = now.is_gpu(live);
                let power = live.values.iter_mut().find(|it| it.metric == gpu::POWER.id);
                if let Some(power) = power.filter(|_| is_it) {
                    power.reading = Err(missing);
                }
            };
            let happens = Happens {
                reads: &reads,
                ..NOTHING
            };
            let says = ("the driver refuses readings", At::Node);
            Made::new(seed, (2, 2), server).told(says, 1_200, happens)
        },
    )
}

/// Memory that grows by so much of the capacity in an hour, looked at each minute.
fn leaks(finding: &'static str, fault: &str, is_gpus: bool, per_hour: f64, least: u32) -> Fault {
    Fault::few(finding, fault, least, move |seed, server| {
        let reads = move |live: &mut Live, now: &Now| {
            let used = 0.3 + per_hour * now.seconds.max(0) as f64 / HOUR_S as f64;
            match live.key.kind {
                ResourceKind::Gpu if is_gpus => now.put(live, &gpu::MEMORY_USED, used * 85.5e9),
                ResourceKind::Node if !is_gpus => {
                    now.put(live, &node::MEMORY_AVAILABLE, (1.0 - used) * 2e12);
                }
                _ => {}
            }
        };
        let happens = Happens {
            reads: &reads,
            ..NOTHING
        };
        let says = match is_gpus {
            true => "device memory grows",
            false => "the machine's memory grows",
        };
        let mut made = Made::new(seed, (1, 1), server).ticking(60, 2);
        made.told((says, At::Any), 8 * HOUR_S, happens)
    })
}

/// A job's GPU whose clock is lower, and nothing else tells of the job.
fn clock(lower: f64, least: u32) -> Fault {
    let finding = "a GPU whose clock makes its job wait";
    let fault = format!("a GPU of 16 with a clock {:.0} % lower", lower * 100.0);
    Fault::of(finding, &fault, least, move |seed, server| {
        let reads = move |live: &mut Live, now: &Now| {
            held_by(live, GANG);
            if now.is_gpu(live) {
                now.put(live, &gpu::SM_CLOCK, 1.98e9 * (1.0 - lower));
            } else if now.seconds >= 0 && live.key.kind == ResourceKind::Gpu {
                // They wait for it, and compute for less of the time.
                now.put(live, &gpu::TENSOR_ACTIVE, 0.4 * (1.0 - lower));
            }
        };
        let happens = Happens {
            reads: &reads,
            ..NOTHING
        };
        let says = ("probably makes the other GPUs", At::Gpu);
        Made::new(seed, NODES, server)
            .ticking(10, 30)
            .told(says, 300, happens)
    })
}

/// Who breaks again and again.
#[derive(Clone, Copy)]
enum Again {
    Card,
    Machine,
    Block,
}

fn offender(who: Again, fault: &str, says: &'static str, count: usize, least: u32) -> Fault {
    let finding = "cards, machines and parts of a cluster that break again and again";
    Fault::of(finding, fault, least, move |seed, server| {
        let also = move |made: &mut Made, now: &Now| {
            if now.seconds == 0 {
                let (faults, machines) = month(who, count, now);
                let place = Place::gpu("prod", &now.node, &now.gpu);
                let places = vec![(now.gpu.clone(), place)];
                made.detectors
                    .offenders
                    .take_made((faults, places), &machines, now.onset);
            }
        };
        let happens = Happens {
            also: &also,
            ..NOTHING
        };
        let at = match who {
            Again::Card => At::Gpu,
            Again::Machine => At::Node,
            Again::Block => At::Any,
        };
        Made::new(seed, (1, 2), server).told((says, at), 60, happens)
    })
    .injected()
}

/// So many faults of the last month, two days apart, and the machines that there are.
fn month(who: Again, count: usize, now: &Now) -> (Vec<Broke>, Vec<Machine>) {
    let day: i64 = 24 * HOUR_S * NANOS_PER_SECOND;
    let fault = |number: usize| {
        let at: Timestamp = now.onset.shifted(-day * 2 * (number as i64 + 1));
        let (node, card) = match who {
            Again::Card => (now.node.clone(), now.gpu.clone()),
            Again::Machine => (now.node.clone(), format!("card-{number}")),
            Again::Block => (format!("n{number}"), format!("card-{number}")),
        };
        Broke {
            cluster: "prod".to_owned(),
            node,
            cards: vec![card],
            at,
        }
    };
    let machine = |number: usize| Machine {
        cluster: "prod".to_owned(),
        node: format!("n{number}"),
        parts: vec![(Level::Block, format!("b{}", number / 16))],
        made: None,
    };
    (
        (0..count).map(fault).collect(),
        (0..256).map(machine).collect(),
    )
}

pub(super) fn faults() -> Vec<Fault> {
    let mut rows = events();
    rows.extend(memory());
    rows.extend(slowed());
    rows.extend(links());
    let (device, machine) = ("GPU memory that grows", "a machine's memory that grows");
    rows.extend([
        unused(
            "held and idle",
            "a job that holds its GPUs and does nothing",
            false,
        ),
        unused("busy without work", "a job that is busy without work", true),
        silent(),
        without_agent(),
        reader(0.0, "a reader that says that it fails"),
        reader(1.0, "a reader that says that it works, and stands"),
        refused(Missing::NoPermission, "a right that the agent lacks"),
        refused(
            Missing::LibraryMismatch,
            "a driver that was replaced under the agent",
        ),
        leaks(device, "a GPU's memory, 10 % an hour", true, 0.1, FEW),
        leaks(machine, "a machine's memory, 5 % an hour", false, 0.05, FEW),
        leaks(
            machine,
            "a machine's memory, 0.1 % an hour",
            false,
            0.001,
            0,
        ),
        clock(0.04, 0),
        clock(0.2, SEEDS).priced(Basis::LowerPace),
        offender(
            Again::Card,
            "a card with 2 faults in a month",
            "it breaks again",
            2,
            0,
        ),
        offender(
            Again::Card,
            "a card with 3 faults in a month",
            "it breaks again",
            3,
            SEEDS,
        ),
        offender(
            Again::Machine,
            "a machine with 3 faults of 3 cards",
            "card after card",
            3,
            0,
        ),
        offender(
            Again::Machine,
            "a machine with 4 faults of 4 cards",
            "card after card",
            4,
            SEEDS,
        ),
        offender(
            Again::Block,
            "8 of 16 machines of a block",
            "machine after machine",
            8,
            SEEDS,
        ),
    ]);
    rows
}
