//! A run whose traffic takes the wrong way, in words and with a price.

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::wrong_network::Finding;
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;

use super::Waits;
use crate::detect::gather::Gpus;
use crate::detect::runs::{RunSnapshot, all_of};

/// What is said of a run that goes the wrong way.
pub(super) const WHAT: &str = "its traffic between nodes takes the wrong network";

/// The signal of a finding. Without the ports' speeds or the steps' waits it has no price.
pub(super) fn signal(
    finding: &Finding,
    run: &RunSnapshot,
    gpus: &Gpus<'_>,
    waits: Option<Waits>,
) -> Signal {
    let losing = waits
        .zip(finding.saved_part())
        .map(|(it, part)| all_of(run, gpus).by_step(it.step_ns, it.without(part)));
    let kind = if finding.are_rdma {
        "RDMA ports"
    } else {
        "network ports"
    };
    let busy = format!("{}, each way", finding.busy);
    let idle = format!("{} {kind} together", finding.idle_ports);
    let rate = |name: &str, value| Reading::new(name, value, None, Unit::BytesPerSecond);
    Signal {
        family: Family::Slower,
        place: Place {
            cluster: run.cluster.clone(),
            run: Some(run.name.clone()),
            ..Place::default()
        },
        severity: Severity::Warning,
        what: WHAT.to_owned(),
        action: action(finding, kind),
        remedy: Remedy::Look,
        cause: Cause::Network,
        since: None,
        readings: vec![
            rate(&busy, finding.bytes_per_second),
            rate(&idle, finding.idle_bytes_per_second),
            Reading::new("nodes", finding.nodes as f64, None, Unit::Count),
        ],
        price: Price::measured(losing, Basis::LongerCollectives, Basis::NoSteps),
        confidence: None,
        booted_at: None,
    }
}

fn action(finding: &Finding, kind: &str) -> String {
    let (busy, ports) = (&finding.busy, finding.idle_ports);
    let is_so = format!(
        "{busy} carries it on {} while {ports} {kind} are silent",
        finding.node
    );
    match &finding.setting {
        Some(setting) => format!(
            "{is_so}: {}={} of the run keeps NCCL from them; take it away and start again.",
            setting.key, setting.value
        ),
        None => format!(
            "{is_so}, and no NCCL setting of the run says why: look with NCCL_DEBUG=INFO for the lines NET/ and whether the network's library and plugin are in the container (LD_LIBRARY_PATH, NCCL_NET_PLUGIN)."
        ),
    }
}
