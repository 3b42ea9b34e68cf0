//! Commands ride in the server's replies: what they may ask, and how they reach the part that acts.
//!
//! One is done at a time, so there is never more than one per GPU in flight. Each is done once,
//! however often it is given, and its result goes back as an event with the command's id.
//!
//! Limits: [`WAITING`], [`REMEMBERED`], [`MAX_NVML_ORDERS`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::command::{
    ACQUIRE_NVML, ARGUMENT_GPU, CAPTURE_PROFILE, Command, PROBE_NOW, RELEASE_NVML, REREAD_CONFIG,
};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::probe::reader::ProbeOrder;

/// Commands that may wait for the one before them; the server gives those again that do not fit.
pub const WAITING: usize = 4;

/// Commands whose result is remembered, because the server gives one until it hears its result.
pub const REMEMBERED: usize = 64;

/// Most orders waiting for the NVML reader: one command per GPU is in flight at most, and a release
/// is about the whole library.
pub const MAX_NVML_ORDERS: usize = 4;

/// How long the NVML reader may take: it looks for orders once a round, and closing the library
/// can wait for a slow driver.
const NVML_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a probe that was asked for may take: its deadline, and those that wait before it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(150);

/// What the NVML reader may be told between two rounds.
#[derive(Debug)]
pub struct NvmlOrder {
    /// What to do.
    pub action: NvmlAction,
    /// Where to say that it is done, or why not.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// What to do with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvmlAction {
    /// Let go of NVML, so that a driver reload or a GPU reset can go ahead; samples then read
    /// [`gpufleet_telemetry::sample::Missing::Released`].
    Release,
    /// Take it again.
    Acquire,
}

/// The NVML reader's end; it looks here at the start of each round.
pub type NvmlOrders = mpsc::Receiver<NvmlOrder>;

/// Does commands, one after the other.
#[derive(Debug)]
pub struct Commands {
    node: Arc<str>,
    nvml: mpsc::Sender<NvmlOrder>,
    probe: mpsc::Sender<ProbeOrder>,
    done: VecDeque<(Uuid, Outcome)>,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    verdict: Verdict,
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Done,
    Failed,
    Expired,
    Unknown,
    NotBuiltIn,
}

impl Commands {
    /// Commands for this node.
    pub fn new(
        node: impl Into<Arc<str>>,
        nvml: mpsc::Sender<NvmlOrder>,
        probe: mpsc::Sender<ProbeOrder>,
    ) -> Self {
        Self {
            node: node.into(),
            nvml,
            probe,
            done: VecDeque::new(),
        }
    }

    /// Does a command, unless it has been done, and tells what came of it. `reread` reads the
    /// config again and says whether it can be used.
    pub async fn obey(
        &mut self,
        command: &Command,
        now: Timestamp,
        reread: impl FnOnce() -> Result<(), String>,
    ) -> Event {
        let known = self.done.iter().find(|(id, _)| *id == command.id);
        let outcome = match known {
            Some((_, outcome)) => outcome.clone(),
            None => {
                let outcome = self.act(command, now, reread).await;
                self.done.truncate(REMEMBERED - 1);
                self.done.push_front((command.id, outcome.clone()));
                outcome
            }
        };
        self.event(command, outcome, now)
    }

    async fn act(
        &self,
        command: &Command,
        now: Timestamp,
        reread: impl FnOnce() -> Result<(), String>,
    ) -> Outcome {
        if now > command.expires {
            return Outcome::new(Verdict::Expired, "it came after its time");
        }
        match command.action.as_str() {
            RELEASE_NVML => self.order(NvmlAction::Release).await,
            ACQUIRE_NVML => self.order(NvmlAction::Acquire).await,
            REREAD_CONFIG => match reread() {
                Ok(()) => Outcome::new(Verdict::Done, "the config is in use"),
                Err(why) => Outcome::new(Verdict::Failed, why),
            },
            PROBE_NOW => self.probe(command.arguments.get(ARGUMENT_GPU)).await,
            CAPTURE_PROFILE => Outcome::new(
                Verdict::NotBuiltIn,
                "the part that does it is not built into this agent: nothing was done",
            ),
            _ => Outcome::new(Verdict::Unknown, "this agent does not know it"),
        }
    }

    async fn order(&self, action: NvmlAction) -> Outcome {
        let (done, answer) = oneshot::channel();
        if self.nvml.try_send(NvmlOrder { action, done }).is_err() {
            return Outcome::new(
                Verdict::Failed,
                "NVML is not read by this agent, or an order waits already",
            );
        }
        match tokio::time::timeout(NVML_TIMEOUT, answer).await {
            Ok(Ok(Ok(()))) => Outcome::new(Verdict::Done, "the NVML reader has done it"),
            Ok(Ok(Err(why))) => Outcome::new(Verdict::Failed, why),
            Ok(Err(_)) => Outcome::new(Verdict::Failed, "the NVML reader is gone"),
            Err(_) => Outcome::new(Verdict::Failed, "the NVML reader did not answer in time"),
        }
    }

    async fn probe(&self, gpu: Option<&String>) -> Outcome {
        let Some(gpu) = gpu.cloned() else {
            let why = "no GPU is named: arguments.gpu is its id";
            return Outcome::new(Verdict::Failed, why);
        };
        let (done, answer) = oneshot::channel();
        match self.probe.try_send(ProbeOrder { gpu, done }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Outcome::new(Verdict::Failed, "too many probes wait already");
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                let why = "this agent does not probe: probe.enabled or nvml.enabled is false";
                return Outcome::new(Verdict::Failed, why);
            }
        }
        match tokio::time::timeout(PROBE_TIMEOUT, answer).await {
            Ok(Ok(Ok(probed))) => {
                let words = probed.verdict.name().replace('_', " ");
                Outcome::new(Verdict::Done, format!("{words}: {}", probed.reason))
            }
            Ok(Ok(Err(why))) => Outcome::new(Verdict::Failed, why),
            Ok(Err(_)) => Outcome::new(Verdict::Failed, "the probe ended without a word"),
            Err(_) => Outcome::new(Verdict::Failed, "the probe did not end in time"),
        }
    }

    fn event(&self, command: &Command, outcome: Outcome, now: Timestamp) -> Event {
        let gpu = command.arguments.get(ARGUMENT_GPU);
        let (resource_kind, resource_id) = match gpu {
            Some(gpu) => (ResourceKind::Gpu, Arc::from(gpu.as_str())),
            None => (ResourceKind::Node, Arc::clone(&self.node)),
        };
        let verdict = outcome.verdict.name();
        let attributes = BTreeMap::from([
            ("command".to_owned(), command.id.to_string()),
            ("action".to_owned(), command.action.clone()),
            ("verdict".to_owned(), verdict.to_owned()),
            ("reason".to_owned(), outcome.reason.clone()),
        ]);
        Event {
            at: now,
            kind: EventKind::CommandResult,
            severity: match outcome.verdict {
                Verdict::Done => Severity::Info,
                _ => Severity::Warning,
            },
            resource_kind,
            resource_id,
            message: format!("command {}: {verdict}: {}", command.action, outcome.reason),
            attributes,
        }
    }
}

impl Outcome {
    fn new(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self {
            verdict,
            reason: reason.into(),
        }
    }
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Unknown => "unknown",
            Self::NotBuiltIn => "not_built_in",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(id: u128, action: &str) -> Command {
        Command {
            id: Uuid::from_u128(id),
            expires: Timestamp(100),
            action: action.to_owned(),
            arguments: BTreeMap::new(),
        }
    }

    async fn verdict(commands: &mut Commands, command: &Command, now: i64) -> String {
        let refuse = || Err("sample.period_ms = 0".to_owned());
        let event = commands.obey(command, Timestamp(now), refuse).await;
        assert_eq!(event.attributes["command"], command.id.to_string());
        event.attributes["verdict"].clone()
    }

    #[tokio::test]
    async fn each_command_is_answered_with_what_came_of_it() {
        let (nvml, mut orders) = mpsc::channel(MAX_NVML_ORDERS);
        let mut commands = Commands::new("node-1", nvml, mpsc::channel(1).0);
        tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                let answer = match order.action {
                    NvmlAction::Release => Ok(()),
                    NvmlAction::Acquire => Err("the driver is not loaded".to_owned()),
                };
                let _ = order.done.send(answer);
            }
        });
        for (id, action, now, expected) in [
            (1, RELEASE_NVML, 5, "done"),
            (2, ACQUIRE_NVML, 5, "failed"),
            (3, REREAD_CONFIG, 5, "failed"),
            (4, "dance", 5, "unknown"),
            (5, RELEASE_NVML, 101, "expired"),
            (6, PROBE_NOW, 5, "failed"),
            (7, CAPTURE_PROFILE, 5, "not_built_in"),
        ] {
            let verdict = verdict(&mut commands, &command(id, action), now).await;
            assert_eq!(verdict, expected, "{action}");
        }
    }

    #[tokio::test]
    async fn a_command_that_comes_twice_is_done_once_and_answered_twice() {
        let (nvml, _orders) = mpsc::channel(MAX_NVML_ORDERS);
        let mut commands = Commands::new("node-1", nvml, mpsc::channel(1).0);
        let mut times = 0;
        for _ in 0..2 {
            let reread = command(1, REREAD_CONFIG);
            let count = || {
                times += 1;
                Ok(())
            };
            let event = commands.obey(&reread, Timestamp(5), count).await;
            assert_eq!(event.attributes["verdict"], "done");
        }
        assert_eq!(times, 1);
    }

    #[tokio::test]
    async fn a_probe_is_answered_with_its_verdict_and_one_of_no_gpu_with_what_is_missing() {
        use crate::probe::verdict::{Judgement, Verdict};

        let (nvml, _orders) = mpsc::channel(MAX_NVML_ORDERS);
        let (probe, mut probes) = mpsc::channel::<ProbeOrder>(1);
        let mut commands = Commands::new("node-1", nvml, probe);
        tokio::spawn(async move {
            while let Some(order) = probes.recv().await {
                let judgement = Judgement {
                    verdict: Verdict::Fail,
                    reason: format!("{} is wrong", order.gpu),
                    sm: None,
                };
                let _ = order.done.send(Ok(judgement));
            }
        });
        let mut asked = command(1, PROBE_NOW);
        let refuse = || Err(String::new());
        let event = commands.obey(&asked, Timestamp(5), refuse).await;
        assert_eq!(event.attributes["verdict"], "failed");
        assert!(event.attributes["reason"].contains("arguments.gpu"));
        asked.id = Uuid::from_u128(2);
        asked
            .arguments
            .insert(ARGUMENT_GPU.to_owned(), "GPU-7".to_owned());
        let event = commands.obey(&asked, Timestamp(5), refuse).await;
        assert_eq!(event.attributes["verdict"], "done");
        assert_eq!(event.attributes["reason"], "fail: GPU-7 is wrong");
    }
}
