//! The one plugin of a process: its region, what it asks NCCL for, its communicators.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gpufleet_hooks_shm::client::{Client, Options};
use gpufleet_hooks_shm::layout::COMMUNICATORS;
use gpufleet_hooks_shm::records::{self, CommunicatorIndex};
use gpufleet_hooks_shm::words::{Collecting, WriterKind};
use gpufleet_hooks_shm::writer::Writer;

use crate::abi::event;
use crate::communicator::{Communicator, Operations};
use crate::version::{self, MASK_VARIABLE};

/// What a process has once NCCL made its first communicator. It stays: NCCL may never say that it is
/// done, and its threads report after it did.
pub(crate) struct Plugin {
    client: Client,
    mask: u64,
    /// A communicator of several ranks was made.
    has_peers: AtomicBool,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// As many as the region has, by its numbers of them. Pages of communicators that are never made are
/// never touched.
static OPERATIONS: [Operations; COMMUNICATORS] = [const { Operations::NONE }; COMMUNICATORS];

/// A communicator as NCCL describes it.
pub(crate) struct Described {
    /// Equal on all ranks.
    pub(crate) hash: u64,
    /// Its name; may be null.
    pub(crate) name: *const c_char,
    /// Nodes.
    pub(crate) nodes: i32,
    /// Ranks.
    pub(crate) ranks: i32,
    /// Our rank.
    pub(crate) rank: i32,
}

impl Plugin {
    /// The plugin, made by the first call. `log` is the address of a function of NCCL, `interface` the version of the
    /// table it took.
    pub(crate) fn start(interface: u64, log: usize) -> &'static Self {
        PLUGIN.get_or_init(|| {
            let version = version::of_library_with(log);
            let asked = std::env::var(MASK_VARIABLE).ok();
            let client = Client::start(Options::new(WriterKind::Nccl));
            let mask = version::mask(interface, version, asked.as_deref());
            let writer = client.writer();
            writer.nccl(version.unwrap_or_default(), interface);
            writer.collecting(match mask {
                0 => Collecting::SwitchedOff,
                _ => Collecting::OneRank,
            });
            Self {
                client,
                mask,
                has_peers: AtomicBool::new(false),
            }
        })
    }

    /// The plugin, once it was started.
    #[inline]
    pub(crate) fn get() -> Option<&'static Self> {
        PLUGIN.get()
    }

    /// The events to ask NCCL for: bits of `event`.
    pub(crate) const fn mask(&self) -> u64 {
        self.mask
    }

    /// Whether NCCL was asked when kernels begin and end.
    pub(crate) const fn is_timed(&self) -> bool {
        self.mask & event::KERNEL_CHANNEL != 0
    }

    /// Where to write.
    pub(crate) fn writer(&self) -> Writer {
        self.client.writer()
    }

    /// A communicator is made. `None` where nothing can be counted of it: its ranks are impossible,
    /// the plugin is switched off, the region has no room (and says so).
    ///
    /// # Safety
    /// The name is null or a C string.
    pub(crate) unsafe fn make(&self, described: &Described) -> Option<u8> {
        let ranks = u64::try_from(described.ranks).ok()?;
        let rank = u64::try_from(described.rank).ok()?;
        if self.mask == 0 || rank >= ranks {
            return None;
        }
        let mut name = String::new();
        if !described.name.is_null() {
            // SAFETY: it is not null, so the caller promises a C string.
            name = unsafe { CStr::from_ptr(described.name) }
                .to_string_lossy()
                .into_owned();
        }
        let communicator = records::Communicator {
            hash: described.hash,
            ranks,
            rank,
            nodes: u64::try_from(described.nodes).unwrap_or_default(),
            name,
        };
        let CommunicatorIndex(index) = self.writer().communicator(&communicator)?;
        OPERATIONS.get(usize::from(index))?.open(ranks);
        if ranks > 1 && !self.has_peers.swap(true, Ordering::Relaxed) {
            self.writer().collecting(match self.is_timed() {
                true => Collecting::Timed,
                false => Collecting::Untimed,
            });
        }
        Some(index)
    }

    /// A communicator that is open.
    #[inline]
    pub(crate) fn communicator(&self, index: u8) -> Option<Communicator> {
        let operations = OPERATIONS.get(usize::from(index))?;
        operations.is_open().then(|| Communicator {
            index: CommunicatorIndex(index),
            operations,
            writer: self.writer(),
        })
    }

    /// Looks at another communicator, in turn: one that begins nothing any more has its stale
    /// operations given up all the same.
    #[inline]
    pub(crate) fn look_after_another(&self, turn: u64, now: i64) {
        let index = (turn & (COMMUNICATORS as u64).wrapping_sub(1)) as u8;
        if let Some(communicator) = self.communicator(index) {
            communicator.give_up_stale(now);
        }
    }
}
