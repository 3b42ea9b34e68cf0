//! Profiles that the server asks of training processes: each request goes to one process, again and again until it is
//! begun, and what becomes of it is read from the process' region.
//!
//! A process may lie about its own profile and nothing else: only the one that was asked is looked at, under the
//! request's own number.
//!
//! Limits: [`MAX_ORDERS`], [`LONGEST`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpufleet_hooks_shm::records::Profile;
use gpufleet_hooks_shm::server::ClientId;
use gpufleet_hooks_shm::wire::{ASK_NUMBER_BITS, Ask, MAX_PROFILE_STEPS};
use gpufleet_hooks_shm::words::ProfileState;
use gpufleet_hooks_tell::events::outcome;
use gpufleet_telemetry::command;
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::process::{Process, ProcessId};
use crate::read::Turn;

/// Most that are asked for at once: one a GPU of a large node.
pub const MAX_ORDERS: usize = 16;

/// Longest from its beginning to its file: 300 s of steps, and as much again for the file of a large trace.
const LONGEST: Duration = Duration::from_secs(600);

const _: () = assert!(
    MAX_PROFILE_STEPS == command::MAX_PROFILE_STEPS,
    "what the server lets through the process takes"
);

/// Which process is to capture one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// The one that the driver lists on this GPU or MIG instance.
    Gpu(String),
    /// The rank of this id.
    Rank(String),
}

/// A word of the server's: capture a profile.
#[derive(Debug)]
pub struct ProfileOrder {
    /// The command's id.
    pub id: Uuid,
    /// Of which process.
    pub whose: Whose,
    /// Of how many steps, 1 to [`MAX_PROFILE_STEPS`].
    pub steps: u64,
    /// After this it is not begun any more.
    pub expires: Timestamp,
    /// Where to say what came of it.
    pub done: oneshot::Sender<Came>,
}

/// What came of a request, with the reason in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Came {
    /// There is a profile.
    Done(String),
    /// There is none.
    Failed(String),
    /// Nobody began it in its time.
    Expired(String),
}

/// The requests, and the end of the way that they come.
#[derive(Debug)]
pub(super) struct Profiles {
    orders: mpsc::Receiver<ProfileOrder>,
    waiting: Vec<Waiting>,
}

/// A request on its way.
#[derive(Debug)]
struct Waiting {
    order: ProfileOrder,
    process: ProcessId,
    /// When it was seen to be begun, by the monotonic clock.
    begun: Option<Duration>,
}

impl Profiles {
    pub(super) fn new(orders: mpsc::Receiver<ProfileOrder>) -> Self {
        Self {
            orders,
            waiting: Vec::new(),
        }
    }

    /// One round: takes requests, looks what became of those before. What is to be said to clients.
    pub(super) fn round(
        &mut self,
        processes: &BTreeMap<ProcessId, Process>,
        turn: &Turn,
    ) -> Vec<(ClientId, Ask)> {
        while self.waiting.len() < MAX_ORDERS
            && let Ok(order) = self.orders.try_recv()
        {
            match chosen(&order.whose, processes) {
                Ok(process) => self.waiting.push(Waiting {
                    order,
                    process,
                    begun: None,
                }),
                Err(why) => say(order, Came::Failed(why)),
            }
        }
        let mut asks = Vec::new();
        let mut busy = BTreeSet::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            let process = processes.get(&waiting.process);
            let client = process.and_then(Process::takes_profile);
            let number = waiting.order.number();
            let ask = |steps| client.map(|it| (it, Ask { number, steps }));
            match waiting.look(process, turn) {
                Some(came) => {
                    if let Came::Expired(_) = came {
                        asks.extend(ask(0));
                    }
                    say(waiting.order, came);
                }
                None => {
                    // One at a time of a process: what the next one writes would hide what became of this one.
                    if busy.insert(waiting.process) && waiting.begun.is_none() {
                        asks.extend(ask(waiting.order.steps));
                    }
                    self.waiting.push(waiting);
                }
            }
        }
        asks
    }
}

impl ProfileOrder {
    /// The number that the process knows it by: an agent that begins anew and is given the command again asks
    /// for the same.
    fn number(&self) -> u64 {
        let bits = self.id.as_u128() as u64 & ((1 << ASK_NUMBER_BITS) - 1);
        bits.max(1)
    }
}

impl Waiting {
    /// What came of it; `None` while it is on its way.
    fn look(&mut self, process: Option<&Process>, turn: &Turn) -> Option<Came> {
        let gone = || {
            Some(Came::Failed(
                "the process ended before its profile was written".into(),
            ))
        };
        let Some(process) = process else {
            return gone();
        };
        let number = self.order.number();
        let profile = process.script().and_then(|it| it.profile.as_ref());
        match profile.filter(|it| it.number == number) {
            Some(it) if it.state == ProfileState::Done => return Some(Came::Done(outcome(it))),
            Some(Profile { state, text, .. }) if *state == ProfileState::Failed => {
                return Some(Came::Failed(text.clone()));
            }
            Some(_running) => {
                let begun = *self.begun.get_or_insert(turn.monotonic);
                if turn.monotonic.saturating_sub(begun) > LONGEST {
                    let why = format!("it was begun and not over within {} s", LONGEST.as_secs());
                    return Some(Came::Failed(why));
                }
            }
            None if turn.at > self.order.expires => {
                let why = "no step of the process ended in the command's time";
                return Some(Came::Expired(why.to_owned()));
            }
            None => {}
        }
        match process.lives() {
            true => None,
            false => gone(),
        }
    }
}

/// The process that is asked, or why none is.
fn chosen(whose: &Whose, processes: &BTreeMap<ProcessId, Process>) -> Result<ProcessId, String> {
    let is_meant = |it: &Process| {
        let rank = it.rank.as_ref();
        match whose {
            Whose::Gpu(gpu) => rank.and_then(|it| it.proved_gpu()) == Some(gpu.as_str()),
            Whose::Rank(id) => rank.is_some_and(|it| *it.resource.id == **id),
        }
    };
    let lives = processes.iter().filter(|(_, it)| it.lives());
    let meant: Vec<_> = lives.filter(|(_, it)| is_meant(it)).collect();
    match meant.as_slice() {
        [] => Err(match whose {
            Whose::Gpu(gpu) => format!(
                "no training process that uses the package gpufleet is listed on {gpu} by the driver of this node"
            ),
            Whose::Rank(rank) => format!("rank {rank} is not on this node"),
        }),
        [(id, process)] => match process.takes_profile() {
            Some(_) => Ok(**id),
            None => Err(
                "its process takes no such request: its gpufleet is older, or GPUFLEET_PROFILE switches it off, or \
                 the connection to it is lost"
                    .to_owned(),
            ),
        },
        several => {
            let ids = several.iter().filter_map(|(_, it)| it.resource());
            let ids: Vec<_> = ids.map(|it| &*it.id).collect();
            Err(format!(
                "several ranks compute on it: name one by arguments.rank: {}",
                ids.join(", ")
            ))
        }
    }
}

/// Who asked may have gone: then nobody is to be told.
fn say(order: ProfileOrder, came: Came) {
    let _ = order.done.send(came);
}
