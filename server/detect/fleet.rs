//! What no single GPU shows: jobs that hold GPUs without work, and nodes that nobody hears.
//!
//! Of a card that is cut, what is held and rests are its shares, each as its part of the card; where none of them tells what
//! it does, the card.
//!
//! A server that starts sees a GPU idle since then. One that rests at its start, and whose job was told to be idle, is
//! idle since that began, until it does something else.
//!
//! While a rank saves, restores, evaluates or starts, the others wait in a collective and seem to work: a run is stalled
//! only once it goes on so for as long after that as any stall has to.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::incident::{Family, Place, Remedy, Signal};
use gpufleet_analysis::inventory::Node;
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::lost::{Losing, WHOLE_GPU};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_analysis::states::{Policy, Status};
use gpufleet_analysis::unused::unused;
use gpufleet_telemetry::catalog::{Unit, gpu};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::before::Said;
use super::detector::Need::{self, Reading as Read};
use super::detector::{Detector, Findings, Finds, TickSnapshot};
use super::gather::{GpuSnapshot, Gpus, ShareSnapshot};
use super::prices::Prices;
use super::runs::{self, Holders};
use super::seconds_since;
use crate::money::Machine;

mod told;

use told::Told;

/// GPUs that are held and do no work.
#[derive(Default)]
pub(super) struct Idle {
    /// For so long, where they do not even seem to work, seconds.
    pub(super) after_s: i64,
    /// The numbers of those that have done something since the start.
    moved: HashSet<u32>,
    quiet: QuietRuns,
    told: Told,
}

/// When runs last saved, restored, evaluated or started, by cluster and run, of those that did so lately.
#[derive(Default)]
struct QuietRuns(BTreeMap<(String, String), Timestamp>);

/// A stall is told after five minutes, and so again after a start, seconds.
const STALL_LEARNS_S: i64 = 360;

/// What is said of GPUs that are held and do nothing.
const IDLE: &str = "held and idle";

/// What is said of a node of which nothing comes.
const NOT_HEARD: &str = "nothing is heard from the node";

/// Nodes that nothing is heard from. Of one that was not heard since the start it is known only once it had the time to
/// come back, unless it was said before.
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
            Finds::of("busy without work", Family::Stalled, stalled, unused)
                .learns(&["busy without work"], STALL_LEARNS_S),
            Finds::of(IDLE, Family::Idle, idle, unused),
        ]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        self.quiet.note(&found.quiet, tick.now);
        let known = self.told.look(tick);
        let mut since = self.since_before(tick);
        since.extend(known.since);
        let waiting = waiting(all(tick), tick.now, self.after_s, &since);
        let names = waiting.iter().map(|it| it.1.name());
        let holders = runs::holders(tick.runs(), names, tick.now);
        self.told.keep(&waiting, &holders, &since);
        let said = idle(&waiting, &holders, &self.quiet, tick.now);
        found.signals.extend(said);
        found.unread.extend(known.unread);
    }
}

impl Idle {
    /// Since when GPUs are idle that were when the server started, by their numbers: as long as that says more than what
    /// was seen since.
    fn since_before(&mut self, tick: &TickSnapshot<'_>) -> HashMap<u32, Timestamp> {
        let is_over = seconds_since(tick.now, tick.before.started()) > self.after_s as f64;
        let mut told: HashMap<(&str, &str), Vec<&Said>> = HashMap::new();
        for said in tick.before.said(IDLE).filter(|_| !is_over) {
            let job = said.place.run.as_deref().unwrap_or_default();
            let of_job = told.entry((&said.place.cluster, job)).or_default();
            of_job.push(said);
        }
        if told.is_empty() {
            self.moved.clear();
            return HashMap::new();
        }
        let mut rest = Vec::new();
        for held in all(tick) {
            match held.status.state {
                // A pause is what the first minutes of idleness look like.
                State::Parked | State::HeldEmpty | State::Gap => rest.push(held),
                // Nothing is heard of it yet.
                State::Unobserved => {}
                _ => _ = self.moved.insert(held.number),
            }
        }
        rest.retain(|it| !self.moved.contains(&it.number));
        let names = rest.iter().map(Held::name);
        let holders = runs::holders(tick.runs(), names, tick.now);
        let since = |held: &Held<'_>| {
            let said = told.get(&(held.cluster, job_of(held, &holders)))?;
            let of_place = said.iter().filter(|it| {
                let (node, gpu) = (it.place.node.as_deref(), it.place.gpu.as_deref());
                let is_node = node.is_none_or(|it| it == &**held.node);
                is_node && gpu.is_none_or(|it| it == held.card)
            });
            of_place.map(|it| it.since).min()
        };
        let known = rest.iter().filter_map(|it| Some((it.number, since(it)?)));
        known.collect()
    }
}

impl QuietRuns {
    /// Takes in which runs do so now. What did is forgotten once it has delayed whatever it may.
    fn note(&mut self, quiet: &BTreeSet<(String, String)>, now: Timestamp) {
        self.0.extend(quiet.iter().map(|it| (it.clone(), now)));
        let kept = 0..=2 * least_stall_ns();
        self.0.retain(|_, at| kept.contains(&now.since(*at)));
    }

    /// When this run last did.
    fn last(&self, cluster: &str, run: &str) -> Option<Timestamp> {
        let key = (cluster.to_owned(), run.to_owned());
        self.0.get(&key).copied()
    }
}

/// How long a GPU is busy without work until it is stalled, nanoseconds.
fn least_stall_ns() -> i64 {
    i64::from(Policy::default().stalled_after_s) * NANOS_PER_SECOND
}

impl Detector for Silent {
    fn finds(&self) -> Vec<Finds> {
        let what = "a node that nothing is heard from";
        let reads = &[Read(&gpu::OBSERVED)];
        vec![Finds::of(what, Family::Blind, reads, &[Basis::NotObserved])]
    }

    fn judge(&mut self, tick: &TickSnapshot<'_>, found: &mut Findings) {
        let silent = tick.nodes.iter().filter(|(_, it)| it.is_silent(tick.now));
        // A process ends with its job, and a run has a state of its own.
        let silent = silent.filter(|(_, it)| it.contact.is_of_machine());
        let (before, now) = (tick.before, tick.now);
        let silent = silent.filter(|((cluster, name), it)| {
            let is_awaited = it.contact.is_awaited(before.started(), now);
            !is_awaited || before.is_said_of(cluster, name, NOT_HEARD)
        });
        let silent = silent.filter(|((cluster, name), _)| !(tick.is_gone)(cluster, name));
        found.signals.extend(silent.map(|((cluster, name), node)| {
            let action = "Look whether the node and its agent run: gpufleet-agent doctor on the node says what stands in the way.";
            let place = Place::node(cluster, name);
            let gpus = Losing::gpus(u64::from(node.gpus), node.gpu_price());
            blind(place, (NOT_HEARD, action), Some(node.contact.heard), gpus)
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
        found.signals.extend(nodes.iter().map(|(it, price)| {
            let action = "Look why the agent's pod is not on it: a selector, a taint that it does not tolerate, an image that cannot be pulled; or install the agent.";
            let place = Place::node(cluster, &it.node.name);
            let since = it.ready_at.map(|at| at.min(tick.now));
            let gpus = Losing::gpus(u64::from(it.node.gpus), *price);
            blind(place, (WITHOUT_AGENT, action), since, gpus)
        }));
    }
}

/// What a second of one GPU of a node costs of which the cluster alone tells, nano-USD; of shares it does not tell what
/// part of a GPU each is.
pub(super) fn listed_price(cluster: &str, node: &Node, prices: &mut Prices) -> Option<i64> {
    let is_whole = !node.is_shared;
    prices
        .of_machine(&Machine::listed(cluster, node))
        .filter(|_| is_whole)
}

/// A GPU or share that somebody may hold.
#[derive(Clone, Copy)]
struct Held<'a> {
    number: u32,
    cluster: &'a str,
    node: &'a Arc<str>,
    id: &'a str,
    /// The GPU that it is, or is a part of.
    card: &'a str,
    job: Option<&'a str>,
    status: Status,
    /// Whether it was active in its newest tick, whoever holds it.
    is_active: bool,
    /// What is lost while it does nothing.
    losing: Losing,
}

impl<'a> Held<'a> {
    fn of_gpu(seen: &'a GpuSnapshot) -> Self {
        Self {
            number: seen.number,
            cluster: &seen.cluster,
            node: &seen.node,
            id: &seen.id,
            card: &seen.id,
            job: seen.alike.job.as_deref(),
            status: seen.status,
            is_active: seen.is_active,
            losing: Losing::gpus(1, seen.price),
        }
    }

    fn of_share(seen: &'a ShareSnapshot, gpus: &Gpus<'_>) -> Self {
        Self {
            number: seen.number,
            cluster: &seen.cluster,
            node: &seen.node,
            id: &seen.id,
            card: &seen.card,
            job: seen.alike.job.as_deref(),
            status: seen.status,
            is_active: seen.is_active,
            losing: seen.losing(gpus),
        }
    }

    /// Its cluster and its id.
    const fn name(&self) -> (&'a str, &'a str) {
        (self.cluster, self.id)
    }
}

/// All of them: GPUs that are whole, and shares.
fn all<'a>(tick: &'a TickSnapshot<'_>) -> impl Iterator<Item = Held<'a>> {
    let whole = tick.seen.iter().filter(|it| !it.is_cut);
    let (shares, gpus) = (tick.shares.values(), tick.gpus);
    let shares = shares.map(move |it| Held::of_share(it, gpus));
    whole.map(Held::of_gpu).chain(shares)
}

/// Those that are stalled, or were idle for so long; of some it is known since when they are before they were seen.
fn waiting<'a>(
    all: impl Iterator<Item = Held<'a>>,
    now: Timestamp,
    idle_after_s: i64,
    since: &HashMap<u32, Timestamp>,
) -> Vec<(Family, Held<'a>)> {
    let of = |held: &Held<'_>| {
        let status = since.get(&held.number).map(|at| Status {
            state: match held.status.state {
                State::Gap => State::Parked,
                state => state,
            },
            since: Some(*at),
            ..held.status
        });
        unused(&status.unwrap_or(held.status), idle_after_s, now)
    };
    all.filter_map(|it| Some((of(&it)?, it))).collect()
}

/// The training run that holds a GPU or share, by the run's own name, else its job; empty where neither is known.
fn job_of<'a>(held: &Held<'a>, runs: &'a Holders<'_>) -> &'a str {
    let run = runs.get(&held.name()).map(String::as_str);
    run.or(held.job).unwrap_or_default()
}

/// One signal a job, however many of its GPUs wait: of a training run by the run's own name, so that
/// what stops it explains that its GPUs wait.
fn idle(
    waiting: &[(Family, Held<'_>)],
    runs: &Holders<'_>,
    quiet: &QuietRuns,
    now: Timestamp,
) -> Vec<Signal> {
    let mut jobs: BTreeMap<(Family, &str, &str), Vec<&Held<'_>>> = BTreeMap::new();
    for (family, held) in waiting {
        let key = (*family, held.cluster, job_of(held, runs));
        jobs.entry(key).or_default().push(held);
    }
    jobs.into_iter()
        .filter_map(|((family, cluster, job), gpus)| {
            let stalls = family == Family::Stalled;
            let after = quiet.last(cluster, job).filter(|_| stalls);
            let is_told = after.is_none_or(|at| now.since(at) >= least_stall_ns());
            is_told.then(|| of_job((family, after), cluster, job, &gpus, now))
        })
        .collect()
}

/// Of the GPUs of one job, whose trouble began after this moment.
fn of_job(
    (family, after): (Family, Option<Timestamp>),
    cluster: &str,
    job: &str,
    gpus: &[&Held<'_>],
    now: Timestamp,
) -> Signal {
    let first = gpus[0];
    let is_one_node = gpus.iter().all(|it| it.node == first.node);
    let is_one_card = gpus.iter().all(|it| it.card == first.card);
    let are_whole = gpus.iter().all(|it| it.card == it.id);
    let losing = gpus
        .iter()
        .fold(Losing::default(), |all, it| all.and(&it.losing));
    let since = gpus.iter().filter_map(|it| it.status.since).min();
    let since = since.max(after);
    let lasted = seconds_since(now, since.unwrap_or(now));
    let (what, action, cause) = match family {
        Family::Stalled => (
            "busy without work",
            "Look what the job waits for: a collective that never ends reads as full utilisation.",
            Cause::Unknown,
        ),
        _ => (
            IDLE,
            "Ask the job's owner whether it still needs the GPUs.",
            Cause::NoWork,
        ),
    };
    let counted = match are_whole {
        true => "GPUs",
        false => "GPUs and shares of some",
    };
    Signal {
        family,
        place: Place {
            cluster: cluster.to_owned(),
            node: is_one_node.then(|| first.node.to_string()),
            gpu: is_one_card.then(|| first.card.to_owned()),
            run: (!job.is_empty()).then(|| job.to_owned()),
            rank: None,
        },
        severity: Severity::Warning,
        what: what.to_owned(),
        action: action.to_owned(),
        remedy: Remedy::Look,
        cause,
        since,
        readings: vec![
            Reading::new(counted, gpus.len() as f64, None, Unit::Count),
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
        remedy: Remedy::Look,
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
