//! What training processes found with the probe inside them, on its way from who reads their memory to who
//! tells of a GPU's last probe: a process says it once, and one reader tells of all probes of a GPU.
//!
//! Limit: [`MAX_GPUS`], of each the newest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use gpufleet_hooks_shm::records::Probe;
use gpufleet_hooks_shm::words::ProbeVerdict;
use gpufleet_probe::inside::MOST_LENT;
use gpufleet_telemetry::time::Timestamp;

use super::measured::Measured;
use super::verdict::{Judgement, Verdict};
use super::wrong::{Reach, Works};

/// Most GPUs and shares of a node: 16 cards, each cut into seven.
const MAX_GPUS: usize = 128;

/// What was found and not told yet.
#[derive(Debug, Default)]
pub struct Inside(Mutex<BTreeMap<Arc<str>, Found>>);

/// What one process found on the GPU that it computes on.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// When.
    pub at: Timestamp,
    /// The rank that the process is.
    pub rank: Arc<str>,
    /// What it means.
    pub judgement: Judgement,
    /// What was read.
    pub measured: Measured,
    /// How far it went. Of a package that does not say it goes nowhere: its pass undoes nothing.
    pub reach: Reach,
}

impl Inside {
    /// A process found this on a GPU. Only of one that the driver lists it on: whoever claims another's says
    /// nothing of it.
    pub fn note(&self, gpu: &str, found: Found) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_newer = noted.get(gpu).is_none_or(|it| it.at < found.at);
        if is_newer && (noted.len() < MAX_GPUS || noted.contains_key(gpu)) {
            noted.insert(gpu.into(), found);
        }
    }

    /// Takes what was noted, by GPU.
    pub fn take(&self) -> BTreeMap<Arc<str>, Found> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Found {
    /// What a rank's memory says.
    pub fn of(rank: &Arc<str>, probe: &Probe) -> Self {
        let verdict = match probe.verdict {
            ProbeVerdict::Passed => Verdict::Pass,
            ProbeVerdict::Failed => Verdict::Fail,
            ProbeVerdict::CouldNotRun => Verdict::CouldNotMeasure,
        };
        Self {
            at: Timestamp(probe.at),
            rank: Arc::clone(rank),
            judgement: Judgement {
                verdict,
                reason: probe.reason.clone(),
                sm: probe.sm,
            },
            measured: Measured {
                sms: u32::try_from(probe.sms).unwrap_or(0),
                checked_bytes: probe.checked_bytes,
                gpu_seconds: probe.gpu_ns as f64 / 1e9,
                ..Measured::default()
            },
            reach: Reach {
                right: Works::from_bits(probe.right),
                wrong: Works::from_bits(probe.wrong),
                // More than is lent is a wrong number, and the agent's own runs could never reach it.
                checked_bytes: probe.checked_bytes.min(MOST_LENT as u64),
                is_alone: false,
                link: None,
            },
        }
    }
}
