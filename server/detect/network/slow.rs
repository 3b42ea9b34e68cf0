//! A slow link with what its readings say of it: which end, why, and what the run loses to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpufleet_analysis::cause::{self, Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::port::{self, Port, Sign};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::slow_link::{Finding, MAX_ENDS, Suspect};
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;

use super::Waits;
use crate::detect::gather::{GpuSnapshot, Gpus, NodeSnapshots};
use crate::detect::runs::slow::read_of_gpu;
use crate::detect::runs::{RunSnapshot, all_of};

/// What is known of the run beside the finding.
pub(super) struct LinkContext<'a> {
    pub(super) run: &'a RunSnapshot,
    pub(super) cluster: &'a Arc<str>,
    pub(super) nodes: &'a NodeSnapshots,
    pub(super) gpus: &'a Gpus<'a>,
    pub(super) by: &'a port::Thresholds,
    /// What its steps wait in collectives, where they tell.
    pub(super) waits: Option<Waits>,
}

/// What the readings of a suspect say.
#[derive(Default)]
struct LinkEvidence {
    place: Option<Place>,
    cause: Option<Cause>,
    readings: Vec<Reading>,
}

/// The signal of a finding. Where it is among more than two nodes and no port of theirs shows anything it is the run's.
pub(super) fn signal(finding: &Finding, around: &LinkContext<'_>) -> Signal {
    let ends = ends(&finding.suspect);
    let told = match finding.is_across {
        true => of_ports(&ends, around),
        false => of_gpus(&ends, around),
    };
    let usual = finding.usual_bytes_per_second;
    let bandwidth = Reading::new(
        "bandwidth of the collectives over it",
        finding.bytes_per_second,
        Some(usual),
        Unit::BytesPerSecond,
    );
    let like = Reading::new("like communicators", finding.like as f64, None, Unit::Count);
    let ratio = finding.bytes_per_second / usual;
    let all = all_of(around.run, around.gpus);
    let losing = around
        .waits
        .map(|it| all.by_step(it.step_ns, it.without(1.0 - ratio)));
    let cluster = &**around.cluster;
    let (place, what) = match (told.place, &finding.suspect) {
        (Some(place), _) => (place, of_one(finding.is_across)),
        (None, Suspect::Gpu(node, gpu)) => {
            (Place::gpu(cluster, node, gpu), of_one(finding.is_across))
        }
        (None, Suspect::Node(node)) => (Place::node(cluster, node), of_one(finding.is_across)),
        (None, Suspect::Pair(one, other)) => {
            let place = Place {
                node: Some(one.to_string()),
                ..of_run(around)
            };
            (
                place,
                format!("the way between {one} and {other} is slower than its like"),
            )
        }
        (None, Suspect::Among(nodes)) => match &nodes[..] {
            [node] => (Place::node(cluster, node), of_one(finding.is_across)),
            nodes => (of_run(around), among(nodes)),
        },
    };
    let mut readings = vec![bandwidth, like];
    readings.extend(told.readings);
    let (action, remedy) = action(finding);
    Signal {
        family: Family::Link,
        place,
        severity: Severity::Warning,
        what,
        action: action.to_owned(),
        remedy,
        cause: told.cause.unwrap_or(match finding.is_across {
            true => Cause::Network,
            false => Cause::Unknown,
        }),
        since: None,
        readings,
        price: Price::measured(losing, Basis::LongerCollectives, Basis::NoSteps),
        confidence: None,
        booted_at: None,
    }
}

fn of_run(around: &LinkContext<'_>) -> Place {
    Place {
        cluster: around.cluster.to_string(),
        run: Some(around.run.name.clone()),
        ..Place::default()
    }
}

/// What is said of several nodes, of which a few are named.
fn among(nodes: &[Arc<str>]) -> String {
    let named = match nodes.len() <= MAX_ENDS {
        true => nodes.join(", "),
        false => format!("{} nodes", nodes.len()),
    };
    format!("one of the ways among {named} is slower than its like")
}

fn of_one(is_across: bool) -> String {
    match is_across {
        true => "its way to other nodes is slower than its like",
        false => "its links within the node are slower than their like",
    }
    .to_owned()
}

/// What to do about it, in words and as a value.
const fn action(finding: &Finding) -> (&'static str, Remedy) {
    let action = match (finding.is_across, &finding.suspect) {
        (true, Suspect::Pair(..)) => {
            "Look at the ports of both nodes, their cables and the switches between them; measure the pair with nccl-tests or ib_write_bw."
        }
        (true, Suspect::Among(_)) => {
            "Look at the ports of these nodes, their cables and the switches between them; measure them pair by pair with nccl-tests or ib_write_bw."
        }
        (true, _) => {
            "Look at the port, its cable, its optic and the switch's port; have the scheduler avoid the node meanwhile."
        }
        (false, _) => {
            let action = "Look at nvidia-smi nvlink -s and nvidia-smi topo -m, and at PCIe's width; drain the node and run a diagnosis.";
            return (action, Remedy::Drain);
        }
    };
    (action, Remedy::Look)
}

/// The nodes of a suspect, with the GPU where it is one.
fn ends(suspect: &Suspect) -> Vec<(&Arc<str>, Option<&Arc<str>>)> {
    match suspect {
        Suspect::Gpu(node, gpu) => vec![(node, Some(gpu))],
        Suspect::Node(node) => vec![(node, None)],
        Suspect::Pair(one, other) => vec![(one, None), (other, None)],
        Suspect::Among(nodes) if nodes.len() <= MAX_ENDS => {
            nodes.iter().map(|it| (it, None)).collect()
        }
        Suspect::Among(_) => Vec::new(),
    }
}

/// Which of the ends has a port that shows something beside the ports of the run's other nodes.
fn of_ports(ends: &[(&Arc<str>, Option<&Arc<str>>)], around: &LinkContext<'_>) -> LinkEvidence {
    let ports = |node: &str| -> Option<&[Port]> {
        let key = (Arc::clone(around.cluster), Arc::from(node));
        around.nodes.get(&key).map(|it| it.ports.as_slice())
    };
    let named: BTreeSet<&str> = ends.iter().map(|it| &**it.0).collect();
    let nodes: BTreeSet<&str> = around.run.ranks.iter().map(|it| &*it.node).collect();
    let mut told: Vec<(&str, (&Port, Sign))> = Vec::new();
    for node in named {
        let others = nodes.iter().filter(|it| **it != node);
        let others: Vec<&[Port]> = others.filter_map(|it| ports(it)).collect();
        let sign = ports(node).and_then(|own| port::sign_by(own, &others, around.by));
        told.extend(sign.map(|it| (node, it)));
    }
    let [(node, (port, sign))] = told[..] else {
        // Nothing shows on any, or something on both: then they are named together.
        return LinkEvidence::default();
    };
    let gpu = ends.iter().find(|it| &**it.0 == node).and_then(|it| it.1);
    let cluster = &**around.cluster;
    let place = match gpu {
        Some(gpu) => Place::gpu(cluster, node, gpu),
        None => Place::node(cluster, node),
    };
    LinkEvidence {
        place: Some(place),
        cause: Some(Cause::Network),
        readings: vec![reading(port, sign)],
    }
}

fn reading(port: &Port, sign: Sign) -> Reading {
    let named = |what: &str| format!("{what}, {}", port.name);
    match sign {
        Sign::Down => Reading::new(&named("up"), 0.0, Some(1.0), Unit::Flag),
        Sign::Slow(own, usual) => {
            Reading::new(&named("speed"), own, Some(usual), Unit::BytesPerSecond)
        }
        Sign::Errors(own, usual) => {
            Reading::new(&named("errors a second"), own, Some(usual), Unit::Count)
        }
        Sign::Repeats(own, usual) => {
            let name = named("packets repeated a second");
            Reading::new(&name, own, Some(usual), Unit::Count)
        }
    }
}

/// Which GPU of the ends has a PCIe or NVLink that is below what it was, or had an error of an NVLink lately.
fn of_gpus(ends: &[(&Arc<str>, Option<&Arc<str>>)], around: &LinkContext<'_>) -> LinkEvidence {
    let is_at_end = |seen: &GpuSnapshot| {
        let is_end = |it: &(&Arc<str>, Option<&Arc<str>>)| {
            **it.0 == *seen.node && it.1.is_none_or(|gpu| **gpu == *seen.id)
        };
        ends.iter().any(is_end)
    };
    let of_run = around.run.ranks.iter();
    let of_run = of_run.filter_map(|it| around.gpus.get(&(&**around.cluster, &**it.card())));
    let told: Vec<_> = of_run.filter(|it| is_at_end(it)).collect();
    let shown = |is_down: bool| {
        let of = |seen: &&&GpuSnapshot| {
            let read = read_of_gpu(seen, &[]);
            let xid = read.xid.filter(|_| !is_down);
            cause::of_links(&cause::Rank { xid, ..read })
        };
        let all = told.iter().filter_map(|it| Some((*it, of(it)?)));
        all.collect::<Vec<_>>()
    };
    // The neighbour of a link that is down has its error too.
    let down = shown(true);
    let all = if down.is_empty() { shown(false) } else { down };
    let [(seen, (cause, readings))] = &all[..] else {
        return LinkEvidence::default();
    };
    LinkEvidence {
        place: Some(Place::gpu(around.cluster, &seen.node, &seen.id)),
        cause: Some(*cause),
        readings: readings.clone(),
    }
}
