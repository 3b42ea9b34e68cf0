//! NVIDIA GPUs through NVML, in a child process that may be lost without harm.
//!
//! The driver is not trusted: a call can take seconds, never return, or crash. So a child of this
//! process makes the calls ([`child`]) and says on a shared page ([`page`]) which one it is in. This
//! side asks for a round, waits no longer than its deadline, and when a call takes longer than
//! [`NvmlConfig::call_timeout_ms`] it names GPU and function, kills the child without waiting in
//! line ([`yard`]), and goes on in the same turn with a child that leaves that GPU alone. A GPU left
//! alone is tried again every [`RETRY_GPU`] by a child of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::sample::{Missing, Readings, ResourceSamples};
use serde::{Deserialize, Serialize};

use super::xid::Actions;
use super::{NodeFacts, Read, ReadError, ReadFuture, Turn};
use crate::commands::{NvmlAction, NvmlOrder, NvmlOrders};
use fleet::{Fleet, SOURCE};
use page::{Lane, Running, uptime};
pub use process::Spawner;
use process::{Limits, Process, Stuck};
use wire::{Done, Failure, FromChild, GpuAnswer, Start};
use yard::Yard;

pub mod function;

pub mod page;

pub mod wire;

mod process;

mod yard;

mod fleet;

mod child;

pub(crate) mod library;

mod device;

mod facts;

mod turns;

pub(crate) mod values;

pub(crate) mod fields;

mod shares;

pub(crate) mod processes;

/// How long after a library that cannot be used it is tried again.
const RETRY_LIBRARY: Duration = Duration::from_secs(30);

/// How long after a child that ended by itself a new one is made, so that a library that crashes at
/// once does not burn CPU.
const RETRY_CHILD: Duration = Duration::from_secs(5);

/// How long after a hang a GPU is tried again.
pub const RETRY_GPU: Duration = Duration::from_secs(300);

/// How long after it was lost a GPU is looked for with a library of its own: a handle stays dead
/// for the process that saw it die.
const RETRY_LOST: Duration = Duration::from_secs(60);

/// How often the kernel's list of GPUs is compared with the library's, which is fixed when it is
/// loaded.
const LIST_EVERY: Duration = Duration::from_secs(10);

/// How often a busy child is looked at for a call that does not return.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a released child may take to end before it counts as stuck.
const RELEASE_PATIENCE: Duration = Duration::from_millis(300);

/// Share of the deadline that a round uses; the rest is for what is done with it.
const OF_DEADLINE: f64 = 0.95;

/// Longest deadline of a round, however long the sampling period is.
const LONGEST_DEADLINE: Duration = Duration::from_secs(5);

/// How NVIDIA GPUs are read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NvmlConfig {
    /// Whether NVML is read at all. Where no driver is installed the reader says so and waits for
    /// one.
    pub enabled: bool,
    /// The library to load; empty means libnvidia-ml.so.1 from where the loader looks.
    pub library_path: PathBuf,
    /// Milliseconds that a driver call may take before its GPU is left alone; default 1200.
    pub call_timeout_ms: u64,
    /// Milliseconds for loading the library and for a GPU's first handle, which powers it up where
    /// persistence mode is off; default 10000.
    pub open_timeout_ms: u64,
    /// The folder in which the kernel driver lists its GPUs; empty means that it is not looked at.
    pub kernel_list_path: PathBuf,
    /// A table of what to do about which XID, over the shipped one; empty means the shipped one.
    pub xid_actions_path: PathBuf,
}

/// Arguments of the child process; it takes none, because its parent tells it all over a socket.
#[derive(Debug, Clone, clap::Args)]
pub struct ChildArguments {}

impl Default for NvmlConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            library_path: PathBuf::new(),
            call_timeout_ms: 1_200,
            open_timeout_ms: 10_000,
            kernel_list_path: PathBuf::from("/proc/driver/nvidia/gpus"),
            xid_actions_path: PathBuf::new(),
        }
    }
}

/// What the child process does until its parent is gone.
///
/// # Errors
/// When it was not started by an agent.
pub fn child(_arguments: &ChildArguments) -> anyhow::Result<()> {
    child::run()
}

/// The reader.
pub struct Nvml {
    config: NvmlConfig,
    period: Duration,
    spawner: Spawner,
    orders: NvmlOrders,
    fleet: Fleet,
    yard: Yard,
    main: Main,
    /// GPUs that do not answer, and when each is tried again.
    watched: BTreeMap<u32, Watched>,
    probe: Option<(u32, Process)>,
    /// Indices that the present child has told of.
    heard: BTreeSet<u32>,
    /// When the thread that waits for XIDs may be used again.
    deaf_until: Duration,
    listed_at: Duration,
    listed: Option<usize>,
    restarts: u64,
    /// Whether it was told that the library cannot be used.
    failing: bool,
}

/// The child that reads.
enum Main {
    /// None, and not before this time.
    Down {
        not_before: Duration,
        failure: Option<Failure>,
    },
    /// None, because it was told to let go.
    Released,
    /// Here it is.
    Up(Box<Process>),
}

/// A GPU that does not answer.
struct Watched {
    why: Missing,
    next_try: Duration,
    every: Duration,
}

/// Whether the child is busy with a round of this turn.
#[derive(PartialEq)]
enum Begun {
    /// It was asked now.
    Asked,
    /// It was still busy with an earlier one.
    Busy,
}

/// How a wait for the child ended.
enum Ended {
    /// The round is over.
    Done,
    /// Time is up, or there is no child to wait for.
    Over,
    /// The child was replaced: ask the new one.
    Again,
}

impl Nvml {
    /// A reader with its own program as the child.
    ///
    /// # Errors
    /// The user's table of XID actions cannot be used.
    pub fn new(
        config: &NvmlConfig,
        period: Duration,
        node: Arc<NodeFacts>,
        orders: NvmlOrders,
    ) -> anyhow::Result<Self> {
        Self::with_spawner(config, period, node, orders, Spawner::own())
    }

    /// The same with another way to start children, for tests.
    ///
    /// # Errors
    /// The user's table of XID actions cannot be used.
    pub fn with_spawner(
        config: &NvmlConfig,
        period: Duration,
        node: Arc<NodeFacts>,
        orders: NvmlOrders,
        spawner: Spawner,
    ) -> anyhow::Result<Self> {
        let actions = Actions::load(&config.xid_actions_path)?;
        Ok(Self {
            config: config.clone(),
            period,
            spawner,
            orders,
            fleet: Fleet::new(node, actions),
            yard: Yard::default(),
            main: Main::down(Duration::ZERO, None),
            watched: BTreeMap::new(),
            probe: None,
            heard: BTreeSet::new(),
            deaf_until: Duration::ZERO,
            listed_at: Duration::ZERO,
            listed: None,
            restarts: 0,
            failing: false,
        })
    }

    /// The process id of the child that reads, while there is one.
    pub fn child_id(&self) -> Option<u32> {
        match &self.main {
            Main::Up(process) => Some(process.id()),
            Main::Down { .. } | Main::Released => None,
        }
    }

    /// How often the child was replaced.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Makes the next try of a GPU that does not answer due now, for tests.
    #[doc(hidden)]
    pub fn retry_now(&mut self) {
        for watched in self.watched.values_mut() {
            watched.next_try = Duration::ZERO;
        }
        if let Main::Down { not_before, .. } = &mut self.main {
            *not_before = Duration::ZERO;
        }
        self.listed_at = Duration::ZERO;
    }

    fn limits(&self) -> Limits {
        Limits {
            call: Duration::from_millis(self.config.call_timeout_ms),
            slow_call: Duration::from_millis(self.config.open_timeout_ms),
        }
    }

    async fn round(&mut self, turn: &Turn) -> Result<Readings, ReadError> {
        let end = uptime() + self.deadline().mul_f64(OF_DEADLINE);
        self.yard.reap();
        self.obey(turn).await;
        self.compare_lists();
        self.probe(turn);
        let mut resources = Vec::new();
        // A turn may begin with the rest of a round that was late; then it asks for one of its own.
        let mut asked = false;
        while let Some(begun) = self.begin(turn) {
            asked |= begun == Begun::Asked;
            match self.collect(turn, end, &mut resources).await {
                Ended::Done if !asked => {}
                Ended::Done | Ended::Over => break,
                Ended::Again => asked = false,
            }
        }
        let opening = match &self.main {
            Main::Up(process) if process.rounds == 0 => Missing::NotReady,
            Main::Up(_) => Missing::Timeout,
            Main::Released => Missing::Released,
            Main::Down {
                failure: Some(failure),
                ..
            } => failure.missing,
            Main::Down { failure: None, .. } => Missing::DriverHang,
        };
        let watched = &self.watched;
        self.fleet
            .fill(&mut resources, |index| match watched.get(&index) {
                Some(watched) if watched.why == Missing::DriverHang => Missing::DriverHang,
                _ => opening,
            });
        match &self.main {
            Main::Down {
                failure: Some(failure),
                ..
            } if self.fleet.is_empty() => Err(error_of(failure)),
            _ => Ok(Readings {
                at: turn.at,
                resources,
                events: self.fleet.take_events(),
            }),
        }
    }

    /// Does what it was told to do between two rounds.
    async fn obey(&mut self, turn: &Turn) {
        while let Ok(NvmlOrder { action, done }) = self.orders.try_recv() {
            let result = match action {
                NvmlAction::Release => self.release().await,
                NvmlAction::Acquire => {
                    if matches!(self.main, Main::Released) {
                        self.main = Main::down(Duration::ZERO, None);
                    }
                    Ok(())
                }
            };
            tracing::info!(?action, ?result, at = turn.at.0, "NVML order");
            // Whoever asked may have gone; the order is done all the same.
            let _ = done.send(result);
        }
    }

    /// Lets go of the driver: no process of this agent has it open afterwards.
    async fn release(&mut self) -> Result<(), String> {
        self.bury_main(Main::Released);
        if let Some((_, probe)) = self.probe.take() {
            self.yard.bury(probe.into_child());
        }
        // A killed process that was in no call is gone within moments.
        let patience = uptime() + RELEASE_PATIENCE;
        while self.yard.unreaped() > 0 && uptime() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.yard.reap();
        }
        match self.yard.unreaped() {
            0 => Ok(()),
            stuck => Err(format!(
                "{stuck} of the agent's processes hang in a driver call and cannot end"
            )),
        }
    }

    /// Makes sure that there is a child and that it is busy with a round; none when there can be
    /// no child now.
    fn begin(&mut self, turn: &Turn) -> Option<Begun> {
        if let Main::Up(process) = &self.main
            && process.is_stale
            && !process.is_busy()
        {
            self.bury_main(Main::down(Duration::ZERO, None));
        }
        if let Main::Down { not_before, .. } = &self.main {
            if uptime() < *not_before || self.yard.is_full() {
                return None;
            }
            if let Err(error) = self.spawn() {
                let why = format!("the NVML process cannot be started: {error}");
                self.fail(
                    Failure {
                        missing: Missing::Unknown,
                        why,
                    },
                    RETRY_LIBRARY,
                    turn,
                );
                return None;
            }
        }
        let Main::Up(process) = &mut self.main else {
            return None;
        };
        if process.is_busy() {
            return Some(Begun::Busy);
        }
        match process.ask() {
            Ok(()) => Some(Begun::Asked),
            Err(error) => {
                self.ended(&error, turn);
                None
            }
        }
    }

    fn spawn(&mut self) -> std::io::Result<()> {
        let hung = |(index, watched): (&u32, &Watched)| {
            (watched.why == Missing::DriverHang).then_some(*index)
        };
        let process = self.spawner.spawn(&Start {
            library_path: self.config.library_path.to_string_lossy().into_owned(),
            only: None,
            without: self.watched.iter().filter_map(hung).collect(),
            xids: uptime() >= self.deaf_until,
        })?;
        self.heard.clear();
        self.main = Main::Up(Box::new(process));
        Ok(())
    }

    /// Hears the child out until its round is over, it is stuck, or time is up.
    async fn collect(
        &mut self,
        turn: &Turn,
        end: Duration,
        to: &mut Vec<ResourceSamples>,
    ) -> Ended {
        loop {
            let limits = self.limits();
            let Main::Up(process) = &mut self.main else {
                return Ended::Over;
            };
            let left = end.saturating_sub(uptime());
            if left.is_zero() {
                return Ended::Over;
            }
            let message = tokio::time::timeout(left.min(LOOK_EVERY), process.next()).await;
            match message {
                Err(_) => match process.stuck(limits) {
                    Some(stuck) => return self.hang(stuck, turn),
                    None => continue,
                },
                Ok(Err(error)) => {
                    self.ended(&error, turn);
                    return Ended::Again;
                }
                Ok(Ok(FromChild::Ready(facts))) => {
                    process.library = Some(facts.clone());
                    let moved = self.fleet.count_changed(facts.count);
                    self.fleet.loaded(facts, turn);
                    self.works_again(turn);
                    if moved && !self.watched.is_empty() {
                        // Indices have moved, and this child leaves some alone by their old ones:
                        // who hangs is found out anew.
                        self.watched.clear();
                        self.bury_main(Main::down(Duration::ZERO, None));
                        return Ended::Again;
                    }
                }
                Ok(Ok(FromChild::Failed(failure))) => {
                    self.fail(failure, RETRY_LIBRARY, turn);
                    return Ended::Over;
                }
                Ok(Ok(FromChild::Gpu(answer))) => self.heard_gpu(*answer, turn, to),
                Ok(Ok(FromChild::Done(done))) => {
                    self.done(&done, turn);
                    return Ended::Done;
                }
            }
        }
    }

    fn heard_gpu(&mut self, answer: GpuAnswer, turn: &Turn, to: &mut Vec<ResourceSamples>) {
        let Main::Up(process) = &mut self.main else {
            return;
        };
        self.heard.insert(answer.index);
        match answer.outcome {
            Ok(()) => {
                // A GPU that came back has a new handle, which nobody waits for XIDs of.
                process.is_stale |= self.watched.remove(&answer.index).is_some();
            }
            Err(missing) if library::ends_library(missing) => process.is_stale = true,
            Err(missing) => {
                // Perhaps it is not there any more.
                if !self.watched.contains_key(&answer.index) {
                    self.listed_at = Duration::ZERO;
                }
                let next_try = uptime() + RETRY_LOST;
                self.watched.entry(answer.index).or_insert(Watched {
                    why: missing,
                    next_try,
                    every: RETRY_LOST,
                });
            }
        }
        // A turn can hear a GPU twice, when it began with the rest of the last round.
        if let Some(id) = self.fleet.id_of(answer.index) {
            to.retain(|it| !is_of(&it.resource, &id));
        }
        self.fleet.answer(answer, turn, to);
    }

    fn done(&mut self, done: &Done, turn: &Turn) {
        let Main::Up(process) = &mut self.main else {
            return;
        };
        process.ended_round();
        let count = process.library.as_ref().map(|library| library.count);
        process.is_stale |= done.count.is_some() && done.count != count;
        if process.rounds == 1 {
            let hung = self.watched.keys();
            let listed = self.heard.iter().chain(hung).copied().collect();
            self.fleet.settle(&listed, turn);
        }
        self.fleet.hears(done.xids_missing);
        self.fleet.xids(&done.xids, uptime(), turn);
        if done.xids_dropped > 0 {
            let message = format!(
                "{} driver events came faster than they are read",
                done.xids_dropped
            );
            let attributes = [("events_dropped", done.xids_dropped.to_string())];
            self.fleet.tell_node(
                turn,
                EventKind::ReaderFailed,
                Severity::Warning,
                message,
                attributes,
            );
        }
    }

    /// The child is in a call that does not return.
    fn hang(&mut self, stuck: Stuck, turn: &Turn) -> Ended {
        let (lane, running) = match stuck {
            Stuck::Call(lane, running) => (lane, running),
            Stuck::Itself => {
                let error = std::io::Error::other("it is busy with something else than the driver");
                self.ended(&error, turn);
                return Ended::Over;
            }
        };
        self.tell_hang(running, turn);
        self.bury_main(Main::down(Duration::ZERO, None));
        match (running.gpu, lane) {
            (Some(gpu), _) => {
                if let Some(id) = self.fleet.id_of(gpu) {
                    self.fleet.lose(&id, Missing::DriverHang, turn);
                }
                self.watch_hung(gpu);
            }
            (None, Lane::Wait) => self.deaf_until = uptime() + RETRY_GPU,
            (None, Lane::Read) => {
                self.main = Main::down(uptime() + RETRY_LIBRARY, None);
                return Ended::Over;
            }
        }
        if self.yard.is_full() {
            let message = format!(
                "{} processes hang in the driver and cannot be killed: no new one is started until \
                 one of them ends; the node needs a reboot if none does",
                self.yard.unreaped()
            );
            self.fleet
                .tell_node(turn, EventKind::ReaderFailed, Severity::Error, message, []);
            return Ended::Over;
        }
        Ended::Again
    }

    fn watch_hung(&mut self, gpu: u32) {
        let watched = Watched {
            why: Missing::DriverHang,
            next_try: uptime() + RETRY_GPU,
            every: RETRY_GPU,
        };
        self.watched.insert(gpu, watched);
    }

    fn tell_hang(&mut self, running: Running, turn: &Turn) {
        let began = turn.at.shifted(-(running.age.as_nanos() as i64));
        let function = running.function.name();
        let seconds = running.age.as_secs_f64();
        let attributes = [
            ("function", function.to_owned()),
            ("since", began.0.to_string()),
            ("for_seconds", format!("{seconds:.1}")),
        ];
        let id = running.gpu.and_then(|gpu| self.fleet.id_of(gpu));
        match (id, running.gpu) {
            (Some(id), Some(gpu)) => {
                let message = format!("GPU {gpu}: {function} has not returned for {seconds:.1} s");
                self.fleet.tell(
                    &id,
                    turn,
                    EventKind::DriverHang,
                    Severity::Error,
                    message,
                    attributes,
                );
            }
            (_, gpu) => {
                let message = format!("{function} has not returned for {seconds:.1} s");
                let gpu = gpu.map(|gpu| ("gpu", gpu.to_string()));
                let attributes = attributes.into_iter().chain(gpu);
                self.fleet.tell_node(
                    turn,
                    EventKind::DriverHang,
                    Severity::Error,
                    message,
                    attributes,
                );
            }
        }
    }

    /// The child ended by itself, or its socket failed.
    fn ended(&mut self, error: &std::io::Error, turn: &Turn) {
        let Main::Up(process) = &self.main else {
            return;
        };
        let running = process.running();
        let mut attributes = vec![("error", error.to_string())];
        let mut message = format!("the process that talks to the driver ended ({error})");
        if let Some(running) = running {
            message = format!("{message} in {}", running.function.name());
            attributes.push(("function", running.function.name().to_owned()));
            if let Some(gpu) = running.gpu {
                // A call that crashes is left alone like one that hangs.
                message = format!("{message} of GPU {gpu}");
                attributes.push(("gpu", gpu.to_string()));
                self.watch_hung(gpu);
            }
        }
        self.fleet.tell_node(
            turn,
            EventKind::ReaderFailed,
            Severity::Error,
            message.clone(),
            attributes,
        );
        self.failing = true;
        let failure = Failure {
            missing: Missing::Unknown,
            why: format!(
                "{message}; a new one is started in {} s",
                RETRY_CHILD.as_secs()
            ),
        };
        self.bury_main(Main::down(uptime() + RETRY_CHILD, Some(failure)));
    }

    /// The library cannot be used.
    fn fail(&mut self, failure: Failure, retry: Duration, turn: &Turn) {
        // Without GPUs the whole round fails, and the sample loop tells of that.
        if !self.fleet.is_empty() && !std::mem::replace(&mut self.failing, true) {
            let message = format!("NVML cannot be used: {}", failure.why);
            let attributes = [("error", failure.why.clone())];
            self.fleet.tell_node(
                turn,
                EventKind::ReaderFailed,
                Severity::Error,
                message,
                attributes,
            );
        }
        self.bury_main(Main::down(uptime() + retry, Some(failure)));
    }

    fn works_again(&mut self, turn: &Turn) {
        if std::mem::take(&mut self.failing) {
            let message = "NVML can be used again".to_owned();
            self.fleet.tell_node(
                turn,
                EventKind::ReaderRecovered,
                Severity::Info,
                message,
                [],
            );
        }
    }

    fn bury_main(&mut self, next: Main) {
        if let Main::Up(process) = std::mem::replace(&mut self.main, next) {
            self.restarts += 1;
            self.yard.bury(process.into_child());
        }
    }

    /// Compares the kernel's list of GPUs with the one the library has had since it was loaded.
    fn compare_lists(&mut self) {
        let Main::Up(process) = &mut self.main else {
            return;
        };
        let (Some(library), now) = (&process.library, uptime()) else {
            return;
        };
        if self.config.kernel_list_path.as_os_str().is_empty()
            || now.saturating_sub(self.listed_at) < LIST_EVERY.min(self.period * 10)
        {
            return;
        }
        self.listed_at = now;
        let listed = std::fs::read_dir(&self.config.kernel_list_path)
            .map(Iterator::count)
            .ok();
        // Acted on once per change: a container may be shown fewer GPUs than the kernel has.
        if listed.is_some() && listed != self.listed {
            let known_before = self.listed.is_some();
            self.listed = listed;
            process.is_stale |= known_before && listed != Some(library.count as usize);
        }
    }

    /// Tries one GPU that does not answer, with a child that touches no other. Never waits.
    fn probe(&mut self, turn: &Turn) {
        if matches!(self.main, Main::Released) {
            return;
        }
        if self.probe.is_none() {
            self.start_probe();
        }
        let limits = self.limits();
        let Some((gpu, mut probe)) = self.probe.take() else {
            return;
        };
        loop {
            match probe.try_next() {
                Ok(Some(FromChild::Gpu(answer))) if answer.outcome.is_ok() => {
                    // It answers: the next child of the main line reads it like the others.
                    self.watched.remove(&gpu);
                    if let Main::Up(process) = &mut self.main {
                        process.is_stale = true;
                    }
                    tracing::info!(gpu, at = turn.at.0, "a GPU that did not answer does again");
                    return self.yard.bury(probe.into_child());
                }
                Ok(Some(FromChild::Ready(_))) => {}
                Ok(Some(_)) | Err(_) => return self.yard.bury(probe.into_child()),
                Ok(None) => break,
            }
        }
        match probe.stuck(limits) {
            Some(_) => self.yard.bury(probe.into_child()),
            None => self.probe = Some((gpu, probe)),
        }
    }

    fn start_probe(&mut self) {
        let now = uptime();
        // A killed child that still hangs is the answer: the driver has not come back.
        if self.yard.unreaped() > 0 {
            return;
        }
        let Some((gpu, watched)) = self.watched.iter_mut().find(|(_, it)| now >= it.next_try)
        else {
            return;
        };
        watched.next_try = now + watched.every;
        let gpu = *gpu;
        let started = self.spawner.spawn(&Start {
            library_path: self.config.library_path.to_string_lossy().into_owned(),
            only: Some(gpu),
            without: Vec::new(),
            xids: false,
        });
        match started.and_then(|mut probe| probe.ask().map(|()| probe)) {
            Ok(probe) => self.probe = Some((gpu, probe)),
            Err(error) => tracing::warn!(gpu, %error, "cannot start a process to try a GPU again"),
        }
    }
}

impl Main {
    fn down(not_before: Duration, failure: Option<Failure>) -> Self {
        Self::Down {
            not_before,
            failure,
        }
    }
}

/// Whether this is the GPU with this id, or a share of it.
fn is_of(resource: &Resource, id: &str) -> bool {
    *resource.id == *id || resource.attribute(attribute::PARENT) == Some(id)
}

fn error_of(failure: &Failure) -> ReadError {
    match failure.missing {
        Missing::NoPermission => ReadError::NotPermitted {
            what: "talking to the NVIDIA driver".to_owned(),
            fix: failure.why.clone(),
        },
        _ => ReadError::Unavailable {
            why: failure.why.clone(),
        },
    }
}

impl Read for Nvml {
    fn name(&self) -> &str {
        SOURCE
    }

    fn deadline(&self) -> Duration {
        self.period.mul_f64(0.9).min(LONGEST_DEADLINE)
    }

    fn period(&self) -> Duration {
        self.period
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(async move { self.round(&turn).await })
    }
}

impl Drop for Nvml {
    /// No child outlives its reader. One that hangs is left to the kernel.
    fn drop(&mut self) {
        self.bury_main(Main::Released);
        if let Some((_, probe)) = self.probe.take() {
            self.yard.bury(probe.into_child());
        }
    }
}
