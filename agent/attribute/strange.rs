//! Says once in the log what does not fit together.

use std::collections::BTreeSet;
use std::mem;

use gpufleet_telemetry::holder::Unknown;

use super::held::Found;

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Strange {
    /// Devices that cannot be placed.
    devices: BTreeSet<String>,
    /// How many devices two pods have.
    twice: usize,
}

impl Strange {
    pub(super) fn tell(&mut self, found: &Found) {
        let twice = found.unknown.get(Unknown::ClaimedTwice.name());
        let now = Self {
            devices: found.strangers.clone(),
            twice: twice.copied().unwrap_or(0),
        };
        let before = mem::replace(self, now);
        if self.devices != before.devices && !self.devices.is_empty() {
            let devices: Vec<&str> = self.devices.iter().map(String::as_str).collect();
            let devices = devices.join(", ");
            tracing::warn!(
                devices,
                "the kubelet gave devices to pods that are no GPU of this node"
            );
        }
        if self.twice > before.twice {
            let gpus = self.twice;
            tracing::warn!(
                gpus,
                "two pods hold the whole of one GPU, as the kubelet or an exporter says"
            );
        }
    }
}
