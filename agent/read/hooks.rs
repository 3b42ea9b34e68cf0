//! Training processes: what each writes into the memory that it shares with the agent.
//!
//! A thread listens for them ([`listen`]), so that a flood of connections never delays a round. Once
//! a period every region is copied and checked; what comes out are readings of a rank and events.
//! The regions of one process (Python's and NCCL's) are joined by its pid and start time, as the
//! kernel says them. Nothing that a process writes is believed: job and rank are `claimed` unless its
//! cgroup confirms them, its GPU unless the driver lists it there. Its steps go to the spool by a way of their own ([`steps`]), which
//! is exact over restarts of the agent. What a process found with the probe inside it goes to who tells of
//! a GPU's probes.
//!
//! Limits: [`MAX_RANKS`], [`ranks::MAX_NEW_OF_GROUP`], [`ranks::MAX_NEW`], [`MAX_REGIONS`],
//! [`gpufleet_hooks_tell::readings::MAX_COLLECTIVES`], and those of [`gpufleet_hooks_shm::server::Limits`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_hooks_shm::server::{Client, ClientId, Limits};
use gpufleet_program::section;
use gpufleet_telemetry::catalog::{Metric, own};
use gpufleet_telemetry::identity::{Origin, Part, PartKind, ResourceKind};
use gpufleet_telemetry::sample::{Readings, ResourceSamples, Sample};
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::mpsc;

use super::{NodeFacts, Read, ReadError, ReadFuture, Readers, Turn, Wiring, boxed};
use crate::attribute::users::Users;
use crate::config::Config;
use crate::probe::inside::{Found, Inside};
use crate::steps::Way;

mod events;

mod exit;

mod kills;

mod listen;

pub mod nccl_ras;

pub mod nccl_inspector;

mod outside;

mod process;

pub mod profiles;

mod ranks;

mod steps;

mod together;

mod values;

use kills::Cgroups;
use listen::Listening;
use outside::{Outside, Who};
use process::{Process, ProcessId};
use profiles::{ProfileOrder, Profiles};
use ranks::Ranks;
use steps::Outgoing;
use together::Stuck;

section! {
    /// How training processes are read.
    pub struct HooksConfig {
        /// Whether training processes are listened for. Nothing happens where the socket's folder
        /// is not there.
        pub enabled: bool = true,
        /// The socket they connect to; its folder is what a training pod mounts.
        pub socket_path: PathBuf = PathBuf::from(gpufleet_hooks_shm::wire::SOCKET),
        /// Most connections at once.
        pub max_clients: usize = 256,
        /// Most connections at once of one container.
        pub max_clients_per_container: usize = 32,
        /// Seconds between two questions to NCCL's RAS service, 10 at least: which collectives each
        /// rank has begun, of jobs without our plugin. 0 asks nobody.
        pub ras_period_seconds: u64 = 60,
        /// Whether jobs in other network namespaces, which those of pods are, are asked as well. It
        /// takes the right CAP_SYS_ADMIN.
        pub ras_in_pods: bool = false,
    }
}

/// Most ranks that are read at once: twice the 64 processes of a node, for a run that is replaced.
/// At 130 series each they leave room for the GPUs'.
const MAX_RANKS: usize = 128;

/// Shortest time between two questions to NCCL's RAS service, seconds: an answer takes up to five.
const MIN_RAS_SECONDS: u64 = 10;

/// Most regions kept of one process: two writers, and one of each that is being replaced.
const MAX_REGIONS: usize = 4;

/// Longest a round may take: 128 regions at some 50 µs come to 7 ms.
const DEADLINE: Duration = Duration::from_secs(1);

/// What was refused since the start, by reason.
type Refused = BTreeMap<&'static str, u64>;

/// The reader of training processes.
pub struct Hooks {
    socket: PathBuf,
    limits: Limits,
    period: Duration,
    listening: Option<Listening>,
    processes: BTreeMap<ProcessId, Process>,
    clients: BTreeMap<ClientId, ProcessId>,
    ranks: Ranks,
    cgroups: Cgroups,
    /// None where nothing is shipped.
    way: Option<Way>,
    outgoing: Outgoing,
    /// None where nobody is asked.
    outside: Option<Outside>,
    asks: Asks,
    stuck: Stuck,
    /// Where it goes what processes found with the probe.
    probed: Arc<Inside>,
    /// None where nobody asks for them.
    profiles: Option<Profiles>,
    refused: Refused,
}

/// Whether and how NCCL's RAS service is asked.
#[derive(Debug, Clone, Copy)]
struct Asks {
    period: Option<Duration>,
    enters: bool,
}

/// The reader, where the config wants it.
pub(super) fn readers(config: &Config, wiring: &mut Wiring) -> anyhow::Result<Readers> {
    let users = Arc::clone(&wiring.users);
    let reader = Hooks::new(
        &config.hooks,
        config.sample.period(),
        users,
        wiring.steps.take(),
    );
    let probed = Arc::clone(&wiring.inside);
    let profiles = wiring.profile_orders.take();
    Ok(boxed(reader.map(|it| {
        it.with_probes(config.probe.enabled, probed)
            .with_profiles(profiles)
            .with_sys(&config.host.sys_folder)
    })))
}

impl Hooks {
    /// A reader, where the config wants one. Steps go the way that there is.
    pub fn new(
        config: &HooksConfig,
        period: Duration,
        users: Arc<Users>,
        way: Option<Way>,
    ) -> Option<Self> {
        config.enabled.then(|| Self {
            socket: config.socket_path.clone(),
            limits: Limits {
                clients: config.max_clients,
                per_group: config.max_clients_per_container,
                ..Limits::default()
            },
            period,
            listening: None,
            processes: BTreeMap::new(),
            clients: BTreeMap::new(),
            ranks: Ranks::new(users),
            cgroups: Cgroups::below(Path::new("/sys")),
            way,
            outgoing: Outgoing::default(),
            outside: None,
            asks: Asks {
                period: (config.ras_period_seconds > 0)
                    .then(|| Duration::from_secs(config.ras_period_seconds.max(MIN_RAS_SECONDS))),
                enters: config.ras_in_pods,
            },
            stuck: Stuck::default(),
            probed: Arc::default(),
            profiles: None,
            refused: Refused::new(),
        })
    }

    /// The same with probes inside processes allowed or not, and what they find handed on.
    #[must_use]
    pub fn with_probes(mut self, are_allowed: bool, probed: Arc<Inside>) -> Self {
        self.limits.is_probe_off = !are_allowed;
        self.probed = probed;
        self
    }

    /// The same with requests for profiles coming this way.
    #[must_use]
    pub fn with_profiles(mut self, orders: Option<mpsc::Receiver<ProfileOrder>>) -> Self {
        self.profiles = orders.map(Profiles::new);
        self
    }

    /// The same with the host's `/sys` here, whose cgroups count what the kernel killed.
    #[must_use]
    pub fn with_sys(mut self, sys: &Path) -> Self {
        self.cgroups = Cgroups::below(sys);
        self
    }

    fn round(&mut self, turn: &Turn) -> Result<Readings, ReadError> {
        let listens = self.listens();
        if !matches!(listens, Ok(true)) {
            // Who asks for a profile is answered nevertheless.
            self.ask_for_profiles(turn);
        }
        if !listens? {
            return Ok(Readings {
                at: turn.at,
                ..Readings::default()
            });
        }
        self.take_news(turn.at);
        let mut readings = Readings {
            at: turn.at,
            ..Readings::default()
        };
        for (id, process) in &mut self.processes {
            process.look(turn.at, &mut self.refused);
            self.ranks
                .place(*id, process, &turn.node, turn.at, &mut self.refused);
            process.gather(self.way.is_some());
            if let Some(way) = &self.way {
                self.outgoing.take(*id, process, turn.at, way);
            }
            if let Some((gpu, probe)) = process.probed()
                && let Some(resource) = process.resource()
            {
                self.probed.note(&gpu, Found::of(&resource.id, &probe));
                process.probe_told = probe.at;
            }
            readings.events.extend(events::of(process, turn.at));
            let outside = self.outside.as_ref().and_then(|it| it.of(*id));
            if let (Some(resource), Some(told)) = (process.resource(), &outside) {
                let standing = told.standing.iter().filter(|it| self.stuck.is_new(it));
                let standing = standing.map(|it| together::standing(resource, it, turn.at));
                readings.events.extend(standing);
            }
            let outside = outside.as_ref();
            let from = together::from(process, outside, self.asks.period.is_some());
            let told = values::of(process, from, outside, turn.at);
            readings.resources.extend(told);
        }
        let processes = self.processes.values();
        readings.events.extend(self.stuck.of(processes, turn.at));
        self.ask_outside();
        self.ask_for_profiles(turn);
        if let Some(way) = &self.way {
            self.outgoing.send(way);
        }
        self.processes.retain(|_, process| !process.is_gone());
        let processes = &self.processes;
        self.clients.retain(|_, id| processes.contains_key(id));
        self.ranks.keep(|id| processes.contains_key(id));
        readings.resources.push(self.own(&turn.node, turn.at));
        Ok(readings)
    }

    /// Whether training processes are listened for; begins to where the folder has come.
    fn listens(&mut self) -> Result<bool, ReadError> {
        if self.listening.as_ref().is_some_and(Listening::has_ended) {
            self.listening = None;
        }
        let folder = self.socket.parent().unwrap_or(&self.socket);
        if self.listening.is_none() && folder.is_dir() {
            self.listening = Some(Listening::start(&self.socket, self.limits)?);
        }
        Ok(self.listening.is_some())
    }

    /// Says whom NCCL is to be asked about; nobody is asked before there is a rank.
    fn ask_outside(&mut self) {
        let Some(period) = self.asks.period else {
            return;
        };
        let mut ranks = self.processes.iter().filter(|(_, it)| it.rank.is_some());
        if self.outside.is_none() && ranks.clone().next().is_some() {
            self.outside = Outside::start(period, self.asks.enters)
                .inspect_err(|error| {
                    let error: &dyn std::error::Error = error;
                    tracing::warn!(error, "NCCL's RAS service is not asked: no thread");
                })
                .ok();
        }
        if let Some(outside) = &self.outside {
            let who = |(id, process): (&ProcessId, &Process)| Who {
                id: *id,
                uid: process.peer().uid,
            };
            outside.ask_for(ranks.by_ref().map(who));
        }
    }

    /// Says to processes which profiles are asked for.
    fn ask_for_profiles(&mut self, turn: &Turn) {
        let Some(profiles) = &mut self.profiles else {
            return;
        };
        let asks = profiles.round(&self.processes, turn);
        if let Some(listening) = &self.listening {
            listening.ask(asks);
        }
    }

    /// Takes in who came and who left since the last round. Who left did so at the moment that the listening thread
    /// saw it: all that left since the last round would have one moment else, and nobody knew who was first.
    fn take_news(&mut self, now: Timestamp) {
        let Some(listening) = &self.listening else {
            return;
        };
        let news = listening.take();
        for (reason, count) in news.refused {
            *self.refused.entry(reason.text()).or_default() += count;
        }
        for client in news.joined {
            self.join(client);
        }
        for gone in news.left {
            let process = self.clients.remove(&gone.id);
            if let Some(process) = process.and_then(|id| self.processes.get_mut(&id)) {
                process.left(&gone);
            }
        }
        for (id, process) in &mut self.processes {
            // Who closed its connection and lives is not heard of any more: it is looked for.
            let is_heard = self.clients.values().any(|it| it == id);
            if !is_heard && process.is_no_more() {
                process.ended(now);
            }
        }
    }

    fn join(&mut self, client: Client) {
        let id = ProcessId::of(&client.peer);
        let of_group = self.processes.values();
        let of_group = of_group
            .filter(|it| it.group() == client.peer.group)
            .count();
        let is_new = !self.processes.contains_key(&id);
        if is_new && (self.processes.len() >= MAX_RANKS || of_group >= self.limits.per_group) {
            *self.refused.entry("processes").or_default() += 1;
            return;
        }
        self.clients.insert(client.id, id);
        let way = self.way.as_ref();
        let spooled = |session| way?.spooled.record(id.pid, id.start_ticks, session);
        self.processes
            .entry(id)
            .or_insert_with(|| Process::new(client.peer, &mut self.cgroups))
            .take(client.id, client.reader, spooled);
    }

    /// The reader's own numbers.
    fn own(&self, node: &NodeFacts, now: Timestamp) -> ResourceSamples {
        let resource = node.resource(
            ResourceKind::Node,
            node.node.as_str(),
            Origin::Live,
            "hooks",
        );
        let count = |metric: &Metric, part, value: f64| Sample {
            metric: metric.id,
            part,
            reading: Ok(value),
        };
        let processes = self.processes.len() as f64;
        let unknown = self.processes.values();
        let unknown = unknown.filter(|it| it.is_of_unknown_rank(now)).count();
        let mut samples = vec![
            count(&own::HOOKS_PROCESSES, None, processes),
            count(&own::HOOKS_RANK_UNKNOWN, None, unknown as f64),
        ];
        samples.extend(self.refused.iter().map(|(reason, times)| {
            let part = Some(Part::new(PartKind::Reason, *reason));
            count(&own::HOOKS_REFUSED, part, *times as f64)
        }));
        ResourceSamples {
            resource: Arc::new(resource),
            samples,
        }
    }
}

impl Read for Hooks {
    fn name(&self) -> &str {
        "hooks"
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn period(&self) -> Duration {
        self.period
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(async move { self.round(&turn) })
    }
}

#[cfg(test)]
#[path = "hooks/tests.rs"]
mod tests;
