//! What can be broken in a simulated fleet while it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::time::Timestamp;

/// How a GPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    /// As it should be.
    #[default]
    Healthy,
    /// It does not answer.
    Gone {
        /// What reading it returns.
        reason: Missing,
        /// The XID that was logged, if one was.
        xid: Option<u32>,
    },
    /// Its job waits in a collective.
    Stalled,
    /// Its cooling failed.
    Hot,
    /// Its fan is worn: it slows down a little, and with it the rank that computes on it.
    Worn,
    /// Somebody set its clock low: the rank that computes on it is slow, and nothing is hot.
    LowClock,
    /// The job that held it ended, and nobody came after it.
    Abandoned,
    /// The port that its data leaves the node by came up at half its speed.
    SlowPort,
    /// Its job fell back to the host's port.
    WrongNetwork,
}

/// Something to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A GPU falls off the bus (XID 79).
    Xid79,
    /// A GPU is lost without a word.
    Lost,
    /// A driver call of one GPU does not return.
    Hang,
    /// All GPUs of the training job look busy and do nothing.
    Stall,
    /// A node's cooling fails.
    Thermal,
    /// One GPU slows down, and everyone waits for its rank.
    Slow,
    /// Somebody sets the clock of one GPU low, and everyone waits for its rank.
    LowClock,
    /// One RDMA port comes up at half its speed.
    SlowLink,
    /// The training job's traffic goes over the host's port.
    WrongNetwork,
    /// Everything works again.
    Heal,
}

/// What is broken now. Shared by the nodes and whoever breaks them.
#[derive(Debug, Default)]
pub struct Faults(Mutex<State>);

/// How the GPUs are that are not healthy, by node and place.
pub type Conditions = Arc<BTreeMap<(usize, usize), Condition>>;

#[derive(Debug, Default)]
struct State {
    conditions: BTreeMap<(usize, usize), Condition>,
    /// What was answered for the tick that begins then.
    of_tick: (Timestamp, Conditions),
    events: Vec<(usize, Event)>,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 10] = [
        Self::Xid79,
        Self::Lost,
        Self::Hang,
        Self::Stall,
        Self::Thermal,
        Self::Slow,
        Self::LowClock,
        Self::SlowLink,
        Self::WrongNetwork,
        Self::Heal,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xid79 => "xid79",
            Self::Lost => "lost",
            Self::Hang => "hang",
            Self::Stall => "stall",
            Self::Thermal => "thermal",
            Self::Slow => "slow",
            Self::LowClock => "lowclock",
            Self::SlowLink => "slowlink",
            Self::WrongNetwork => "wrongnet",
            Self::Heal => "heal",
        }
    }

    /// The fault with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

impl Faults {
    /// How a GPU is now.
    pub fn condition(&self, node: usize, gpu: usize) -> Condition {
        self.lock()
            .conditions
            .get(&(node, gpu))
            .copied()
            .unwrap_or_default()
    }

    /// What is broken in the tick that begins at `start`: the same answer for every node, also when
    /// something is broken or mended between two of them.
    pub fn conditions(&self, start: Timestamp) -> Conditions {
        let mut state = self.lock();
        if state.of_tick.0 != start {
            state.of_tick = (start, Arc::new(state.conditions.clone()));
        }
        Arc::clone(&state.of_tick.1)
    }

    /// What happened to a node since this was last asked.
    pub fn take_events(&self, node: usize) -> Vec<Event> {
        let mut state = self.lock();
        let (of_node, others) = std::mem::take(&mut state.events)
            .into_iter()
            .partition(|(of, _)| *of == node);
        state.events = others;
        let of_node: Vec<(usize, Event)> = of_node;
        of_node.into_iter().map(|(_, event)| event).collect()
    }

    /// Breaks something: `gpu_ids[node][gpu]` are the ids of the fleet. Returns one sentence that
    /// says what was broken and where.
    pub fn inject(&self, fault: Fault, gpu_ids: &[Vec<String>], at: Timestamp) -> String {
        let target = (1 % gpu_ids.len().max(1), 3);
        let id = gpu_ids
            .get(target.0)
            .and_then(|gpus| gpus.get(target.1))
            .cloned()
            .unwrap_or_default();
        let all = || {
            gpu_ids
                .iter()
                .enumerate()
                .flat_map(|(node, gpus)| (0..gpus.len()).map(move |gpu| (node, gpu)))
        };
        let is_training = |(node, gpu): &(usize, usize)| {
            super::role::job(*node, *gpu).role == super::role::Role::Pretraining
        };
        let mut state = self.lock();
        let node_name = format!("demo-node-{}", target.0 + 1);
        let lost = || {
            let what = "the GPU is listed but cannot be reached";
            event(EventKind::GpuLost, &id, at, what, &[])
        };
        match fault {
            Fault::Xid79 => {
                state.set(target, gone(Missing::GpuLost, Some(79)));
                state.tell(
                    target.0,
                    event(
                        EventKind::Xid,
                        &id,
                        at,
                        "the GPU has fallen off the bus (XID 79)",
                        &[("xid", "79"), ("action", "reboot_node")],
                    ),
                );
                state.tell(target.0, lost());
                format!(
                    "GPU {} of {node_name} ({id}) fell off the bus: XID 79, no readings",
                    target.1
                )
            }
            Fault::Lost => {
                state.set(target, gone(Missing::GpuLost, None));
                state.tell(target.0, lost());
                format!(
                    "GPU {} of {node_name} ({id}) is lost, without an XID",
                    target.1
                )
            }
            Fault::Hang => {
                state.set(target, gone(Missing::DriverHang, None));
                state.tell(
                    target.0,
                    event(
                        EventKind::DriverHang,
                        &id,
                        at,
                        "a driver call did not return",
                        &[("function", "nvmlDeviceGetPowerUsage")],
                    ),
                );
                format!(
                    "a driver call of GPU {} of {node_name} ({id}) hangs; its neighbours report on",
                    target.1
                )
            }
            Fault::Stall => {
                all()
                    .filter(is_training)
                    .for_each(|place| state.set(place, Condition::Stalled));
                "every GPU of llama-70b-pretrain looks busy and does no work".to_owned()
            }
            Fault::Thermal => {
                all()
                    .filter(|(node, _)| *node == target.0)
                    .for_each(|place| state.set(place, Condition::Hot));
                format!("the cooling of {node_name} failed: its GPUs slow down within a tick")
            }
            Fault::Slow => {
                state.set(target, Condition::Worn);
                format!(
                    "GPU {} of {node_name} ({id}) runs hot and slows down: the other ranks wait for its own",
                    target.1
                )
            }
            Fault::LowClock => {
                state.set(target, Condition::LowClock);
                format!(
                    "the clock of GPU {} of {node_name} ({id}) is set low: the other ranks wait for its own",
                    target.1
                )
            }
            Fault::SlowLink => {
                state.set(target, Condition::SlowPort);
                format!(
                    "the port mlx5_{} of {node_name} came up at half its speed: collectives over it take twice as long",
                    target.1
                )
            }
            Fault::WrongNetwork => {
                all()
                    .filter(is_training)
                    .for_each(|place| state.set(place, Condition::WrongNetwork));
                "llama-70b-pretrain fell back to sockets over eth0; the RDMA ports of its nodes are silent"
                    .to_owned()
            }
            Fault::Heal => {
                state.heal(gpu_ids, at);
                "everything works again".to_owned()
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("nobody panics while holding the faults")
    }
}

impl State {
    fn set(&mut self, place: (usize, usize), condition: Condition) {
        self.conditions.insert(place, condition);
    }

    fn tell(&mut self, node: usize, event: Event) {
        self.events.push((node, event));
    }

    fn heal(&mut self, gpu_ids: &[Vec<String>], at: Timestamp) {
        for ((node, gpu), condition) in std::mem::take(&mut self.conditions) {
            let id = gpu_ids.get(node).and_then(|gpus| gpus.get(gpu));
            if let (Condition::Gone { .. }, Some(id)) = (condition, id) {
                let mut recovered = event(
                    EventKind::GpuRecovered,
                    id,
                    at,
                    "the GPU answers again",
                    &[],
                );
                recovered.severity = Severity::Info;
                self.tell(node, recovered);
            }
        }
    }
}

fn gone(reason: Missing, xid: Option<u32>) -> Condition {
    Condition::Gone { reason, xid }
}

fn event(
    kind: EventKind,
    id: &str,
    at: Timestamp,
    message: &str,
    attributes: &[(&str, &str)],
) -> Event {
    Event {
        at,
        kind,
        severity: Severity::Error,
        resource_kind: ResourceKind::Gpu,
        resource_id: id.into(),
        message: message.to_owned(),
        attributes: attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<Vec<String>> {
        (0..8)
            .map(|node| (0..8).map(|gpu| format!("GPU-{node}-{gpu}")).collect())
            .collect()
    }

    #[test]
    fn every_fault_but_the_cure_breaks_something_and_the_cure_mends_it() {
        for fault in Fault::ALL {
            let faults = Faults::default();
            let said = faults.inject(fault, &ids(), Timestamp::default());
            let broken = (0..64)
                .filter(|it| faults.condition(it / 8, it % 8) != Condition::Healthy)
                .count();
            assert_eq!(broken > 0, fault != Fault::Heal, "{fault:?}: {said}");
            faults.inject(Fault::Heal, &ids(), Timestamp::default());
            assert_eq!(faults.condition(1, 3), Condition::Healthy, "{fault:?}");
        }
    }

    #[test]
    fn an_event_is_told_once_and_by_its_own_node() {
        let faults = Faults::default();
        faults.inject(Fault::Xid79, &ids(), Timestamp::default());
        assert_eq!(faults.take_events(0), []);
        let kinds: Vec<_> = faults.take_events(1).iter().map(|it| it.kind).collect();
        assert_eq!(kinds, [EventKind::Xid, EventKind::GpuLost]);
        assert_eq!(faults.take_events(1), []);
    }
}
