//! What no single GPU shows: jobs that hold GPUs without work, and nodes that nobody hears.

use std::collections::BTreeMap;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::lost::Losing;
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::gather::Seen;
use super::seconds_since;
use crate::view::FleetView;

/// Jobs whose GPUs are stalled, or were idle for so long: one signal a job, however many its GPUs.
pub(super) fn idle(all: &[Seen], now: Timestamp, idle_after_nanos: i64) -> Vec<Signal> {
    let mut jobs: BTreeMap<(Family, &str, &str), Vec<&Seen>> = BTreeMap::new();
    for gpu in all {
        let family = match gpu.status.state {
            State::Stalled => Family::Stalled,
            State::Parked | State::HeldEmpty => Family::Idle,
            _ => continue,
        };
        let since = gpu.status.since.unwrap_or(now);
        if family == Family::Idle && now.since(since) < idle_after_nanos {
            continue;
        }
        let job = gpu.job.as_deref().unwrap_or_default();
        jobs.entry((family, &gpu.cluster, job))
            .or_default()
            .push(gpu);
    }
    jobs.into_iter()
        .map(|((family, cluster, job), gpus)| of_job(family, cluster, job, &gpus, now))
        .collect()
}

fn of_job(family: Family, cluster: &str, job: &str, gpus: &[&Seen], now: Timestamp) -> Signal {
    let first = gpus[0];
    let is_one_node = gpus.iter().all(|it| it.node == first.node);
    let losing = gpus
        .iter()
        .map(|it| Losing::gpus(1, it.price))
        .fold(Losing::default(), |all, it| all.and(&it));
    let since = gpus.iter().filter_map(|it| it.status.since).min();
    let lasted = seconds_since(now, since.unwrap_or(now));
    let (what, action, cause) = match family {
        Family::Stalled => (
            "busy without work",
            "Look what the job waits for: a collective that never ends reads as full utilisation.",
            Cause::Unknown,
        ),
        _ => (
            "held and idle",
            "Ask the job's owner whether it still needs the GPUs.",
            Cause::NoWork,
        ),
    };
    Signal {
        family,
        place: Place {
            cluster: cluster.to_owned(),
            node: is_one_node.then(|| first.node.to_string()),
            gpu: (gpus.len() == 1).then(|| first.id.to_string()),
            run: (!job.is_empty()).then(|| job.to_owned()),
            rank: None,
        },
        severity: Severity::Warning,
        what: what.to_owned(),
        action: action.to_owned(),
        cause,
        since,
        readings: vec![
            Reading::new("GPUs", gpus.len() as f64, None, Unit::Count),
            Reading::new("for", lasted, None, Unit::Seconds),
        ],
        losing,
        booted_at: None,
    }
}

/// Nodes that nothing is heard from.
pub(super) fn silent(picture: &FleetView) -> Vec<Signal> {
    let judged = picture
        .clusters
        .iter()
        .filter(|it| it.origin != Origin::Recorded);
    let nodes = judged.flat_map(|cluster| cluster.nodes.iter().map(move |node| (cluster, node)));
    nodes
        .filter_map(|(cluster, node)| {
            let since = node.silent_since?;
            Some(Signal {
                family: Family::Blind,
                place: Place::node(&cluster.name, &node.name),
                severity: Severity::Warning,
                what: "nothing is heard from the node".to_owned(),
                action: "Look whether the node and its agent run: gpufleet-agent doctor on the node says what stands in the way.".to_owned(),
                cause: Cause::Connection,
                since: Some(since),
                readings: vec![Reading::new("GPUs on it", node.gpus.len() as f64, None, Unit::Count)],
                losing: Losing::default(),
                booted_at: None,
            })
        })
        .collect()
}
