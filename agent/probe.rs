//! The probe from outside: a short-lived process of its own that computes on a GPU what has a known
//! answer, goes through memory and measures rates; what it found is judged here and told as readings,
//! events and exit codes. See docs/probe.md.
//!
//! Kernels, answers and verdicts are the crate `probe/`'s. Read here in this order: `device`, `look`,
//! `work` and `between` in the child; [`child`], [`process`]; [`command`]; [`inside`], what training processes found, and
//! [`reader`].

use std::sync::Arc;

use gpufleet_probe::{expected, launch};
pub use gpufleet_probe::{measured, ptx, report, verdict, wrong};
use gpufleet_program::section;

use crate::config::Config;
use crate::read::{Readers, Wiring, boxed};

mod device;

mod look;

mod work;

mod between;

pub mod child;

pub mod process;

pub mod command;

pub mod inside;

pub mod reader;

section! {
    /// The probe: whether GPUs compute right, and as fast as they should.
    pub struct ProbeConfig {
        /// Whether idle GPUs are probed, the server may ask for it, and training processes of the node may
        /// probe from inside. Off, nothing of it runs.
        pub enabled: bool = true,
        /// Minutes between two probes of an idle GPU, 1 to 1440; each waits up to a fifth more, so
        /// that not all of a fleet's are at it at once.
        pub every_minutes: u64 = 10,
        /// Most memory of a GPU that is gone through, MiB, 64 to 4096; at most a quarter of what is
        /// free. The context takes hundreds of MiB beside it while it runs.
        pub region_mib: u64 = 512,
        /// Seconds after which a probe that does not end is killed, 2 to 120.
        pub deadline_seconds: u64 = 10,
    }
}

/// The reader, where the config wants it and somebody may order. Who is idle, and which GPUs there are,
/// only NVML knows.
pub(crate) fn readers(config: &Config, wiring: &mut Wiring) -> anyhow::Result<Readers> {
    let orders = wiring.probe_orders.take();
    let orders = orders.filter(|_| config.probe.enabled && config.nvml.enabled);
    Ok(boxed(orders.map(|orders| {
        let library = config.nvml.library_path.display().to_string();
        let (users, inside) = (Arc::clone(&wiring.users), Arc::clone(&wiring.inside));
        reader::Probing::new(&config.probe, library, users, inside, orders)
    })))
}

impl ProbeConfig {
    /// Whether these can work.
    ///
    /// # Errors
    /// Names the key and says what it may be.
    pub fn check(&self) -> anyhow::Result<()> {
        for (key, value, least, most) in [
            ("every_minutes", self.every_minutes, 1, 1_440),
            ("region_mib", self.region_mib, 64, 4_096),
            ("deadline_seconds", self.deadline_seconds, 2, 120),
        ] {
            anyhow::ensure!(
                (least..=most).contains(&value),
                "probe.{key} = {value}: it must be {least} to {most}"
            );
        }
        Ok(())
    }
}
