//! Commands ride in the server's replies: what they may ask, and how they reach the part that acts.
//!
//! One is done at a time, so there is never more than one per GPU in flight; only a profile, which takes as long as
//! some steps of training, is waited for beside the others. Each is done once,
//! however often it is given, and its result goes back as an event with the command's id.
//!
//! Limits: [`WAITING`], [`REMEMBERED`], [`MAX_NVML_ORDERS`], [`crate::read::hooks::profiles::MAX_ORDERS`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::command::{
    ACQUIRE_NVML, ARGUMENT_GPU, ARGUMENT_RANK, CAPTURE_PROFILE, Command, PROBE_NOW, RELEASE_NVML,
    REREAD_CONFIG, profile_steps,
};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::probe::reader::ProbeOrder;
use crate::read::hooks::profiles::{Came, ProfileOrder, Whose};

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

/// The ways to the readers that act.
#[derive(Debug)]
pub struct Orders {
    /// To the driver's.
    pub nvml: mpsc::Sender<NvmlOrder>,
    /// To the one that probes.
    pub probe: mpsc::Sender<ProbeOrder>,
    /// To the one of training processes.
    pub profile: mpsc::Sender<ProfileOrder>,
}

/// Does commands, one after the other.
#[derive(Debug)]
pub struct Commands {
    node: Arc<str>,
    orders: Orders,
    done: VecDeque<(Uuid, Outcome)>,
    /// Profiles on their way; the reader takes [`crate::read::hooks::profiles::MAX_ORDERS`].
    profiles: JoinSet<(Command, Outcome)>,
    /// Their commands.
    under_way: Vec<Uuid>,
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
}

impl Commands {
    /// Commands for this node.
    pub fn new(node: impl Into<Arc<str>>, orders: Orders) -> Self {
        Self {
            node: node.into(),
            orders,
            done: VecDeque::new(),
            profiles: JoinSet::new(),
            under_way: Vec::new(),
        }
    }

    /// Does a command, unless it has been done, and tells what came of it; `None` while that is waited for
    /// ([`Self::finished`]). `reread` reads the config again and says whether it can be used.
    pub async fn obey(
        &mut self,
        command: &Command,
        now: Timestamp,
        reread: impl FnOnce() -> Result<(), String>,
    ) -> Option<Event> {
        let known = self.done.iter().find(|(id, _)| *id == command.id);
        if let Some((_, outcome)) = known {
            return Some(self.event(command, outcome.clone(), now));
        }
        if self.under_way.contains(&command.id) {
            return None;
        }
        let is_in_time = now <= command.expires;
        let outcome = if is_in_time && command.action == CAPTURE_PROFILE {
            self.profile(command).err()?
        } else {
            self.act(command, now, reread).await
        };
        Some(self.over(command, outcome, now))
    }

    /// What came of a command that was waited for; pending while there is none. Dropping it loses nothing.
    pub async fn finished(&mut self, now: impl Fn() -> Timestamp) -> Event {
        loop {
            match self.profiles.join_next().await {
                Some(Ok((command, outcome))) => {
                    self.under_way.retain(|id| *id != command.id);
                    return self.over(&command, outcome, now());
                }
                // It only waits, so it cannot fail.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn over(&mut self, command: &Command, outcome: Outcome, now: Timestamp) -> Event {
        self.done.truncate(REMEMBERED - 1);
        self.done.push_front((command.id, outcome.clone()));
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
            _ => Outcome::new(Verdict::Unknown, "this agent does not know it"),
        }
    }

    async fn order(&self, action: NvmlAction) -> Outcome {
        let (done, answer) = oneshot::channel();
        if self
            .orders
            .nvml
            .try_send(NvmlOrder { action, done })
            .is_err()
        {
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
        match self.orders.probe.try_send(ProbeOrder { gpu, done }) {
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

    /// Hands a request for a profile on, or says why it cannot.
    fn profile(&mut self, command: &Command) -> Result<(), Outcome> {
        let failed = |why: &str| Outcome::new(Verdict::Failed, why);
        let arguments = &command.arguments;
        let steps = profile_steps(arguments).map_err(|why| Outcome::new(Verdict::Failed, why))?;
        let whose = match (arguments.get(ARGUMENT_RANK), arguments.get(ARGUMENT_GPU)) {
            (Some(rank), _) => Whose::Rank(rank.clone()),
            (None, Some(gpu)) => Whose::Gpu(gpu.clone()),
            (None, None) => {
                return Err(failed(
                    "no process is named: arguments.gpu is the id of its GPU, arguments.rank that of its rank",
                ));
            }
        };
        let (done, answer) = oneshot::channel();
        let order = ProfileOrder {
            id: command.id,
            whose,
            steps,
            expires: command.expires,
            done,
        };
        self.orders
            .profile
            .try_send(order)
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => failed("too many profiles wait already"),
                mpsc::error::TrySendError::Closed(_) => {
                    failed("this agent reads no training processes: hooks.enabled is false")
                }
            })?;
        let command = command.clone();
        self.under_way.push(command.id);
        self.profiles.spawn(async move {
            let outcome = match answer.await {
                Ok(Came::Done(what)) => Outcome::new(Verdict::Done, what),
                Ok(Came::Failed(why)) => Outcome::new(Verdict::Failed, why),
                Ok(Came::Expired(why)) => Outcome::new(Verdict::Expired, why),
                Err(_) => Outcome::new(Verdict::Failed, "the reader of processes is gone"),
            };
            (command, outcome)
        });
        Ok(())
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
        }
    }
}

#[cfg(test)]
mod tests;
