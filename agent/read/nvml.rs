//! NVIDIA GPUs through NVML, in a child process that may be lost without harm.
//!
//! The driver is not trusted: a call can take seconds, never return, or crash. So a child of this
//! process makes the calls ([`child`]) and says on a shared page ([`page`]) which one it is in. This
//! side asks for a round, waits no longer than its deadline, and when a call takes longer than
//! [`NvmlConfig::call_timeout_ms`] it names GPU and function, kills the child without waiting in
//! line ([`yard`]), and goes on in the same turn with a child that leaves that GPU alone. A GPU left
//! alone is tried again every [`RETRY_GPU`] by a child of its own. A wait for XIDs that does not
//! return costs the XIDs for as long, and they are told as missing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_program::section;
use gpufleet_telemetry::sample::Missing;

use super::{Read, ReadFuture, Readers, Turn, Wiring, boxed};
use crate::attribute::users::Users;
use crate::commands::NvmlOrders;
use crate::config::Config;
use fleet::{Fleet, SOURCE};
pub use process::Spawner;
use process::{Limits, Process};
use wire::Failure;
use xid::Actions;
use yard::Yard;

pub mod function;

pub mod page;

pub mod wire;

mod process;

mod yard;

mod heard;

mod recovery;

mod orders;

mod round;

mod fleet;

mod child;

pub(crate) mod library;

mod device;

mod gpm;

pub mod xid;

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
    /// None where nobody gives any.
    orders: Option<NvmlOrders>,
    /// Where it is noted which process is on which GPU.
    users: Arc<Users>,
    fleet: Fleet,
    yard: Yard,
    main: Main,
    /// GPUs that do not answer, and when each is tried again.
    watched: BTreeMap<u32, Watched>,
    probe: Option<(u32, Process)>,
    /// Indices that the present child has told of.
    heard: BTreeSet<u32>,
    /// Until when XIDs are not waited for, because a wait for them hung.
    deaf_until: Option<Duration>,
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

/// The reader, where the config wants it.
///
/// # Errors
/// The user's table of XID actions cannot be used.
pub(super) fn readers(config: &Config, wiring: &mut Wiring) -> anyhow::Result<Readers> {
    if !config.nvml.enabled {
        return Ok(Readers::new());
    }
    let (period, spawner) = (config.sample.period(), Spawner::own());
    let reader = Nvml::new(&config.nvml, period, spawner, wiring)?;
    Ok(boxed([reader]))
}

impl Nvml {
    /// A reader whose child is started in this way.
    ///
    /// # Errors
    /// The user's table of XID actions cannot be used.
    pub fn new(
        config: &NvmlConfig,
        period: Duration,
        spawner: Spawner,
        wiring: &mut Wiring,
    ) -> anyhow::Result<Self> {
        let actions = Actions::load(&config.xid_actions_path)?;
        Ok(Self {
            config: config.clone(),
            period,
            spawner,
            orders: wiring.nvml_orders.take(),
            users: Arc::clone(&wiring.users),
            fleet: Fleet::new(Arc::clone(&wiring.node), actions),
            yard: Yard::default(),
            main: Main::down(Duration::ZERO, None),
            watched: BTreeMap::new(),
            probe: None,
            heard: BTreeSet::new(),
            deaf_until: None,
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

    /// Makes the next try of what does not answer due now, for tests.
    #[doc(hidden)]
    pub fn retry_now(&mut self) {
        for watched in self.watched.values_mut() {
            watched.next_try = Duration::ZERO;
        }
        if let Main::Down { not_before, .. } = &mut self.main {
            *not_before = Duration::ZERO;
        }
        self.deaf_until = self.deaf_until.map(|_| Duration::ZERO);
        self.listed_at = Duration::ZERO;
    }

    fn limits(&self) -> Limits {
        Limits {
            call: Duration::from_millis(self.config.call_timeout_ms),
            slow_call: Duration::from_millis(self.config.open_timeout_ms),
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
        Box::pin(async move {
            let readings = self.round(&turn).await?;
            self.users.note(&readings.resources);
            Ok(readings)
        })
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
