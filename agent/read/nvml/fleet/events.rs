//! What happened to GPUs, told as events: by comparing what is known with what was just read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::sample::{Missing, Sample};

use super::{Fleet, value_of};
use crate::read::Turn;
use crate::read::nvml::wire::XidSeen;
use crate::read::nvml::xid::recovery_action;

/// Events of one round; beyond it they are dropped and counted in the last one. A node of 16 GPUs
/// that all fail at once tells some dozens.
const MAX_EVENTS: usize = 512;

/// Energy below the last by more than this is a counter that began anew.
const ENERGY_SLACK_JOULES: f64 = 1.0;

impl Fleet {
    /// A GPU that could not be reached.
    pub(crate) fn lose(&mut self, id: &Arc<str>, missing: Missing, turn: &Turn) {
        let Some(known) = self.gpus.get_mut(id) else {
            return;
        };
        let before = known.lost.replace(missing);
        // A hang is told with its call; a library that is gone is not about this GPU.
        let about_gpu = matches!(
            missing,
            Missing::GpuLost | Missing::ResetRequired | Missing::Unknown | Missing::NoPermission
        );
        if before.is_none() && about_gpu {
            let message = format!("GPU {} does not answer ({missing})", known.index);
            let attributes = [("reason", missing.to_string())];
            self.tell(
                id,
                turn,
                EventKind::GpuLost,
                Severity::Error,
                message,
                attributes,
            );
        }
    }

    pub(super) fn recover(&mut self, id: &Arc<str>, turn: &Turn) {
        let Some(known) = self.gpus.get_mut(id) else {
            return;
        };
        let (kind, what) = match known.lost.take() {
            None => return,
            Some(Missing::DriverHang) => (EventKind::DriverRecovered, "the driver answers again"),
            Some(
                Missing::GpuLost
                | Missing::ResetRequired
                | Missing::Unknown
                | Missing::NoPermission,
            ) => (EventKind::GpuRecovered, "it answers again"),
            Some(_) => return,
        };
        let message = format!("GPU {}: {what}", known.index);
        self.tell(id, turn, kind, Severity::Info, message, []);
    }

    pub(super) fn notice_reset(&mut self, id: &Arc<str>, samples: &[Sample], turn: &Turn) {
        let Some(now) = value_of(samples, &gpu::ENERGY) else {
            return;
        };
        let Some(known) = self.gpus.get_mut(id) else {
            return;
        };
        let before = known.energy.replace(now);
        if before.is_some_and(|before| now < before - ENERGY_SLACK_JOULES) {
            known.xids.begin_anew();
            let message = format!(
                "GPU {} was reset: its energy counter began anew",
                known.index
            );
            self.tell(
                id,
                turn,
                EventKind::GpuReset,
                Severity::Warning,
                message,
                [],
            );
        }
    }

    pub(super) fn notice_recovery_action(
        &mut self,
        id: &Arc<str>,
        samples: &[Sample],
        turn: &Turn,
    ) {
        let Some(now) = value_of(samples, &gpu::RECOVERY_ACTION) else {
            return;
        };
        let Some(known) = self.gpus.get_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut known.recovery, now);
        if now == before || now == 0.0 {
            return;
        }
        let action = recovery_action(now as u64).map_or_else(|| now.to_string(), str::to_owned);
        let message = format!("GPU {}: the driver asks for {action}", known.index);
        let attributes = [("action", action)];
        self.tell(
            id,
            turn,
            EventKind::RecoveryAction,
            Severity::Error,
            message,
            attributes,
        );
    }

    /// XIDs that a child heard of. `now` is the time on the clock it marked them with.
    pub(crate) fn xids(&mut self, xids: &[XidSeen], now: Duration, turn: &Turn) {
        for xid in xids {
            let Some(id) = self.by_index.get(&xid.index).cloned() else {
                continue;
            };
            let Some(known) = self.gpus.get_mut(&id) else {
                continue;
            };
            known.xids.add(xid.code, turn.monotonic);
            let action = self.actions.of(xid.code).clone();
            let asked = recovery_action(known.recovery as u64);
            let mut attributes = vec![
                ("xid", xid.code.to_string()),
                ("action", asked.unwrap_or(action.name.as_ref()).to_owned()),
                (
                    "action_from",
                    if asked.is_some() { "driver" } else { "table" }.to_owned(),
                ),
            ];
            if let Some(instance) = xid.gpu_instance {
                attributes.push(("gpu_instance", instance.to_string()));
            }
            // NVML does not say whose it is; with one process there, it is that one's.
            if let [(_, pid)] = in_instance(&known.processes, xid.gpu_instance).as_slice() {
                attributes.push(("pid", pid.to_string()));
                attributes.push(("pid_from", "only process on the GPU".to_owned()));
            }
            let message = format!("GPU {}: XID {} ({})", known.index, xid.code, action.name);
            let age = now.saturating_sub(Duration::from_nanos(xid.seen_ns));
            self.tell(
                &id,
                turn,
                EventKind::Xid,
                action.severity,
                message,
                attributes,
            );
            if let Some(event) = self.events.last_mut() {
                event.at = turn.at.shifted(-i64::try_from(age.as_nanos()).unwrap_or(0));
            }
        }
    }

    /// Something happened to a GPU.
    pub(crate) fn tell(
        &mut self,
        id: &Arc<str>,
        turn: &Turn,
        kind: EventKind,
        severity: Severity,
        message: String,
        attributes: impl IntoIterator<Item = (&'static str, String)>,
    ) {
        let known = self.gpus.get(id);
        let place = known.and_then(|gpu| gpu.resource.attribute(attribute::PCI_ADDRESS));
        let place = [
            ("gpu", known.map(|gpu| gpu.index.to_string())),
            ("pci_address", place.map(str::to_owned)),
        ];
        let place = place
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        self.push(Event {
            at: turn.at,
            kind,
            severity,
            resource_kind: ResourceKind::Gpu,
            resource_id: Arc::clone(id),
            message,
            attributes: owned(place.chain(attributes)),
        });
    }

    /// Something happened to the node's driver.
    pub(crate) fn tell_node(
        &mut self,
        turn: &Turn,
        kind: EventKind,
        severity: Severity,
        message: String,
        attributes: impl IntoIterator<Item = (&'static str, String)>,
    ) {
        self.push(Event {
            at: turn.at,
            kind,
            severity,
            resource_kind: ResourceKind::Node,
            resource_id: self.node.node.as_str().into(),
            message,
            attributes: owned(attributes),
        });
    }

    fn push(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        } else if let Some(last) = self.events.last_mut() {
            let dropped = last
                .attributes
                .entry("events_dropped".to_owned())
                .or_default();
            *dropped = (dropped.parse().unwrap_or(0) + 1_u64).to_string();
        }
    }
}

fn in_instance(
    processes: &[(Option<u32>, Arc<str>)],
    instance: Option<u32>,
) -> Vec<(Option<u32>, Arc<str>)> {
    processes
        .iter()
        .filter(|(of, _)| instance.is_none() || *of == instance)
        .cloned()
        .collect()
}

/// Attributes as an event has them.
fn owned(attributes: impl IntoIterator<Item = (&'static str, String)>) -> BTreeMap<String, String> {
    let attributes = attributes.into_iter();
    attributes
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
