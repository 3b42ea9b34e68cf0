//! What no single GPU shows: jobs that hold GPUs without work, and nodes that nobody hears.

use std::collections::BTreeMap;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Signal};
use gpufleet_analysis::lost::{Losing, WHOLE_GPU};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::unused::unused;
use gpufleet_telemetry::catalog::{Unit, gpu};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::detector::Need::{self, Reading as Read};
use super::detector::{Detector, Findings, Finds, TickSnapshot};
use super::gather::GpuSnapshot;
use super::runs::{self, Holders};
use super::seconds_since;

/// GPUs that are held and do no work.
#[derive(Default)]
pub(super) struct Idle {
    /// For so long, where they do not even seem to work, seconds.
    pub(super) after_s: i64,
}

/// Nodes that nothing is heard from.
#[derive(Default)]
pub(super) struct Silent;

/// Nodes with GPUs that the cluster has and of which nothing was ever heard.
#[derive(Default)]
pub(super) struct WithoutAgent;

impl Detector for Idle {
    fn finds(&self) -> Vec<Finds> {
        let stalled = &[Read(&gpu::STALLED), Read(&gpu::OBSERVED)];
        let idle = &[Read(&gpu::ACTIVE), Read(&gpu::HELD)];
        let unused = &[Basis::HeldUnused];
        vec![
            Finds::of("busy without work", Family::Stalled, stalled, unused),
            Finds::of("held and idle", Family::Idle, idle, unused),
        ]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let waiting = waiting(tick.seen, tick.now, self.after_s);
        let holders = runs::holders(tick.runs(), &waiting, tick.now);
        found.signals.extend(idle(&waiting, &holders, tick.now));
    }
}

impl Detector for Silent {
    fn finds(&self) -> Vec<Finds> {
        let what = "a node that nothing is heard from";
        let reads = &[Read(&gpu::OBSERVED)];
        vec![Finds::of(what, Family::Blind, reads, &[Basis::NotObserved])]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let silent = tick.nodes.iter().filter(|(_, it)| it.is_silent(tick.now));
        let silent = silent.filter(|((cluster, name), _)| !(tick.is_gone)(cluster, name));
        found.signals.extend(silent.map(|((cluster, name), node)| {
            let what = "nothing is heard from the node";
            let action = "Look whether the node and its agent run: gpufleet-agent doctor on the node says what stands in the way.";
            let place = Place::node(cluster, name);
            let gpus = Losing::gpus(u64::from(node.gpus), node.gpu_price());
            blind(place, (what, action), Some(node.heard), gpus)
        }));
    }
}

impl Detector for WithoutAgent {
    fn finds(&self) -> Vec<Finds> {
        vec![Finds::of(
            "a node without an agent",
            Family::Blind,
            &[Need::Cluster],
            &[Basis::NotObserved],
        )]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let (cluster, nodes) = tick.blind;
        found.signals.extend(nodes.iter().map(|it| {
            let action = "Look why the agent's pod is not on it: a selector, a taint that it does not tolerate, an image that cannot be pulled; or install the agent.";
            let place = Place::node(cluster, &it.node.name);
            let since = it.ready_at.map(|at| at.min(tick.now));
            // Its machine is known to the cluster alone, and has no price here.
            let gpus = Losing::gpus(u64::from(it.node.gpus), None);
            blind(place, (WITHOUT_AGENT, action), since, gpus)
        }));
    }
}

/// GPUs that are stalled, or were idle for so long.
fn waiting(all: &[GpuSnapshot], now: Timestamp, idle_after_s: i64) -> Vec<(Family, &GpuSnapshot)> {
    let of = |gpu: &GpuSnapshot| unused(&gpu.status, idle_after_s, now);
    all.iter().filter_map(|it| Some((of(it)?, it))).collect()
}

/// One signal a job, however many of its GPUs wait: of a training run by the run's own name, so that
/// what stops it explains that its GPUs wait.
fn idle(waiting: &[(Family, &GpuSnapshot)], runs: &Holders<'_>, now: Timestamp) -> Vec<Signal> {
    let mut jobs: BTreeMap<(Family, &str, &str), Vec<&GpuSnapshot>> = BTreeMap::new();
    for (family, gpu) in waiting {
        let run = runs.get(&(&*gpu.cluster, &*gpu.id)).map(String::as_str);
        let job = run.or(gpu.alike.job.as_deref()).unwrap_or_default();
        jobs.entry((*family, &gpu.cluster, job))
            .or_default()
            .push(gpu);
    }
    jobs.into_iter()
        .map(|((family, cluster, job), gpus)| of_job(family, cluster, job, &gpus, now))
        .collect()
}

fn of_job(
    family: Family,
    cluster: &str,
    job: &str,
    gpus: &[&GpuSnapshot],
    now: Timestamp,
) -> Signal {
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
        price: Price::of(Basis::HeldUnused, losing),
        confidence: None,
        booted_at: None,
    }
}

/// What is said of a node with GPUs of which no agent tells.
pub(super) const WITHOUT_AGENT: &str = "a node with GPUs and without an agent";

/// A node of which nothing is known, with what is known of it.
fn blind(
    place: Place,
    (what, action): (&str, &str),
    since: Option<Timestamp>,
    gpus: Losing,
) -> Signal {
    Signal {
        family: Family::Blind,
        place,
        severity: Severity::Warning,
        what: what.to_owned(),
        action: action.to_owned(),
        cause: Cause::Connection,
        since,
        readings: vec![Reading::new(
            "GPUs on it",
            gpus.milli_gpus as f64 / WHOLE_GPU as f64,
            None,
            Unit::Count,
        )],
        price: Price::of(Basis::NotObserved, gpus),
        confidence: None,
        booted_at: None,
    }
}
