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

use gpufleet_program::section;
use gpufleet_telemetry::sample::{Missing, Readings, ResourceSamples};

use super::xid::Actions;
use super::{NodeFacts, Read, ReadError, ReadFuture, Turn};
use crate::commands::NvmlOrders;
use fleet::{Fleet, SOURCE};
use page::uptime;
pub use process::Spawner;
use process::{Limits, Process};
use wire::{Failure, FromChild, Start};
use yard::Yard;

pub mod function;

pub mod page;

pub mod wire;

mod process;

mod yard;

mod heard;

mod recovery;

mod orders;

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

/// Share of the deadline that a round uses; the rest is for what is done with it.
const OF_DEADLINE: f64 = 0.95;

/// Longest deadline of a round, however long the sampling period is.
const LONGEST_DEADLINE: Duration = Duration::from_secs(5);

section! {
    /// How NVIDIA GPUs are read.
    pub struct NvmlConfig {
        /// Whether NVML is read at all. Where no driver is installed the reader says so and waits for
        /// one.
        pub enabled: bool = true,
        /// The library to load; empty means libnvidia-ml.so.1 from where the loader looks.
        pub library_path: PathBuf = PathBuf::new(),
        /// Milliseconds that a driver call may take before its GPU is left alone; default 1200.
        pub call_timeout_ms: u64 = 1_200,
        /// Milliseconds for loading the library and for a GPU's first handle, which powers it up where
        /// persistence mode is off; default 10000.
        pub open_timeout_ms: u64 = 10_000,
        /// The folder in which the kernel driver lists its GPUs; empty means that it is not looked at.
        pub kernel_list_path: PathBuf = PathBuf::from("/proc/driver/nvidia/gpus"),
        /// A table of what to do about which XID, over the shipped one; empty means the shipped one.
        pub xid_actions_path: PathBuf = PathBuf::new(),
    }
}

/// Arguments of the child process; it takes none, because its parent tells it all over a socket.
#[derive(Debug, Clone, clap::Args)]
pub struct ChildArguments {}

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
        resources.push(self.fleet.own(self.restarts));
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
        self.fleet.fill(turn.monotonic, &mut resources, |index| {
            match watched.get(&index) {
                Some(watched) if watched.why == Missing::DriverHang => Missing::DriverHang,
                _ => opening,
            }
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
                Ok(Ok(FromChild::Known(index, facts))) => {
                    self.fleet.identify(index, &facts, turn);
                }
                Ok(Ok(FromChild::Gpu(answer))) => self.heard_gpu(*answer, turn, to),
                Ok(Ok(FromChild::Done(done))) => {
                    self.done(&done, turn);
                    return Ended::Done;
                }
            }
        }
    }

    fn bury_main(&mut self, next: Main) {
        if let Main::Up(process) = std::mem::replace(&mut self.main, next) {
            self.restarts += 1;
            self.yard.bury(process.into_child());
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

fn error_of(failure: &Failure) -> ReadError {
    match failure.missing {
        _ if failure.why == library::NO_GPU => ReadError::Nothing {
            why: failure.why.clone(),
        },
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
