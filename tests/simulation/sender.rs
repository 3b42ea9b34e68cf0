//! One agent's way out: the real spool on a simulated disk, the real shipping state machine, and
//! beside them the truth of what was made.

use std::time::Duration;

use gpufleet_agent::ship::state::{Failure, Next, Reply, Request, Shipper, Verdict};
use gpufleet_spool::sim::{Random, SimDisk};
use gpufleet_spool::{Limits, Spool};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Epoch, ResourceKind};
use gpufleet_telemetry::otlp::{encode_events, encode_metrics};
use gpufleet_telemetry::tick::ResourceTick;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::{Lane, Stream};
use prost::Message as _;
use uuid::Uuid;

use crate::simulator::faults::Faults;
use crate::simulator::node::{Plan, SimulatedNode};
use crate::simulator::record::Record;

/// Points of a GPU's tick: evidence and a few gauges and counters; more would only take
/// longer.
pub const POINTS: usize = 14;
/// How long an unanswered request waits, as the agent's default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What an agent has made and what must have come of it.
#[derive(Debug, Default)]
pub struct Truth {
    /// Ticks that the spool has synced.
    pub sure: Record,
    /// Ticks cut short by a crash: there once or not at all.
    pub unsure: Vec<ResourceTick>,
    /// How many of each.
    pub ticks: (u64, u64),
    /// Messages of events that were synced; those cut short are in the second list.
    pub events: (Vec<String>, Vec<String>),
    /// Metrics requests that the spool says it gave up.
    pub told_dropped: u64,
}

/// An agent process and its disk.
pub struct Sender {
    /// Which node of the fleet it is.
    pub index: usize,
    /// The truth.
    pub truth: Truth,
    /// The disk, which outlives the process.
    pub disk: SimDisk,
    plan: Plan,
    node: SimulatedNode,
    shipper: Option<Shipper<SimDisk>>,
    under_way: [Option<(Request, Duration)>; 2],
    wait_until: [Duration; 2],
    starts: u64,
    made: u64,
}

const LANES: [Lane; 2] = [Lane::Live, Lane::Backfill];

impl Sender {
    /// An agent whose process does not run yet.
    pub fn new(plan: &Plan, index: usize, seed: u64) -> Self {
        Self {
            index,
            truth: Truth::default(),
            disk: SimDisk::new(seed),
            plan: plan.clone(),
            node: SimulatedNode::new(plan, index),
            shipper: None,
            under_way: [None, None],
            wait_until: [Duration::ZERO; 2],
            starts: 0,
            made: 0,
        }
    }

    /// Its id.
    pub fn agent(&self) -> AgentId {
        self.node.facts().agent_id
    }

    /// Whether its process runs.
    pub fn runs(&self) -> bool {
        self.shipper.is_some()
    }

    /// Starts the process on what the disk has.
    ///
    /// # Panics
    /// When the spool cannot be opened on a disk that works.
    pub fn start(&mut self, now: Timestamp, random: &mut Random) {
        let uuids = random.next();
        self.starts += 1;
        // Running totals and readings begin anew with a process.
        self.node = SimulatedNode::new(&self.plan, self.index);
        let mut source = Random::new(uuids);
        let mut next_uuid = move || Uuid::from_u64_pair(source.next(), source.next());
        let limits = Limits {
            segment_bytes: 64 << 10,
            ..Limits::default()
        };
        let (spool, _) = Spool::open(self.disk.clone(), limits, Epoch(next_uuid()), now)
            .expect("a disk that works can be read after any crash");
        self.shipper = Some(Shipper::new(self.agent(), spool, Box::new(next_uuid)));
        self.under_way = [None, None];
        self.wait_until = [Duration::ZERO; 2];
    }

    /// The process is gone: killed, or with the machine's power.
    pub fn die(&mut self, power_loss: bool) {
        self.take_drops();
        self.shipper = None;
        self.under_way = [None, None];
        if power_loss {
            self.disk.crash();
        } else {
            self.disk.kill();
        }
    }

    /// Makes a tick; false when the disk failed under it, which ends the process.
    pub fn tick(&mut self, start: Timestamp, now: Timestamp, faults: &Faults) -> bool {
        let Some(shipper) = &mut self.shipper else {
            return true;
        };
        let ticks = self.node.tick(start, 10, faults);
        self.made += 1;
        let payload = encode_metrics(&ticks).encode_to_vec();
        let is_safe = shipper.append(Stream::Metrics, &payload, now).is_ok();
        if is_safe {
            ticks.iter().for_each(|tick| self.truth.sure.add(tick));
            self.truth.ticks.0 += 1;
        } else {
            self.truth.unsure.extend(ticks);
            self.truth.ticks.1 += 1;
        }
        is_safe && (!self.made.is_multiple_of(7) || self.tell(now))
    }

    /// Makes an event; false when the disk failed under it.
    fn tell(&mut self, now: Timestamp) -> bool {
        let Some(shipper) = &mut self.shipper else {
            return true;
        };
        let facts = self.node.facts();
        let message = format!("{} {} {}", facts.node, self.starts, self.made);
        let event = Event {
            at: now,
            kind: EventKind::ReaderRecovered,
            severity: Severity::Info,
            resource_kind: ResourceKind::Node,
            resource_id: facts.node.as_str().into(),
            message: message.clone(),
            attributes: [].into(),
        };
        let sender = self.node.resource();
        let payload = encode_events(&[event], sender).encode_to_vec();
        let is_safe = shipper.append(Stream::Logs, &payload, now).is_ok();
        let list = if is_safe {
            &mut self.truth.events.0
        } else {
            &mut self.truth.events.1
        };
        list.push(message);
        is_safe
    }

    /// The requests to be sent now; false when the disk failed.
    pub fn poll(&mut self, now: Timestamp, monotonic: Duration, out: &mut Vec<Request>) -> bool {
        for (place, lane) in LANES.into_iter().enumerate() {
            let Some(shipper) = &mut self.shipper else {
                return true;
            };
            if let Some((request, deadline)) = &self.under_way[place] {
                if *deadline > monotonic {
                    continue;
                }
                let request = request.clone();
                self.under_way[place] = None;
                let failed = shipper.on_failure(&request, &Failure::default(), now, monotonic);
                if failed.is_err() {
                    return false;
                }
                self.wait_until[place] = Duration::ZERO;
            }
            if self.wait_until[place] > monotonic {
                continue;
            }
            match shipper.next(lane, monotonic) {
                Ok(Next::Send(request)) => {
                    self.under_way[place] = Some((request.clone(), monotonic + TIMEOUT));
                    out.push(request);
                }
                // Asked again each second: a wait ends early when something was appended.
                Ok(Next::Wait(_)) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// An answer has come; false when the disk failed.
    pub fn answered(
        &mut self,
        request: &Request,
        answer: &Result<Reply, Failure>,
        now: Timestamp,
        monotonic: Duration,
    ) -> bool {
        let place = usize::from(request.lane == Lane::Backfill);
        let is_awaited = self.under_way[place].as_ref().is_some_and(|(sent, _)| {
            (sent.session, sent.epoch, sent.stream, sent.seq)
                == (request.session, request.epoch, request.stream, request.seq)
        });
        let Some(shipper) = self.shipper.as_mut().filter(|_| is_awaited) else {
            return true;
        };
        self.under_way[place] = None;
        match answer {
            Ok(reply) => shipper.on_reply(request, *reply, now).is_ok(),
            Err(failure) => match shipper.on_failure(request, failure, now, monotonic) {
                Ok(Verdict::GoOn | Verdict::ClockIsOff) => true,
                Ok(verdict) => panic!("nothing here earns {verdict:?}: {request:?}"),
                Err(_) => false,
            },
        }
    }

    /// Whether everything it has made is durable on the server.
    pub fn is_drained(&mut self) -> bool {
        self.shipper.as_mut().is_some_and(|shipper| {
            let spool = shipper.spool();
            Stream::ALL
                .into_iter()
                .all(|stream| spool.waiting(stream).bytes == 0)
        })
    }

    /// The time of the oldest record that is not known to be durable on the server.
    pub fn oldest_spooled(&self) -> Option<Timestamp> {
        let health = self.shipper.as_ref()?.health();
        health.iter().filter_map(|stream| stream.oldest).min()
    }

    /// Bytes on its disk.
    pub fn spooled_bytes(&self) -> u64 {
        self.disk.used()
    }

    /// Counts what the spool gave up.
    pub fn take_drops(&mut self) {
        if let Some(shipper) = &mut self.shipper {
            self.truth.told_dropped += shipper
                .take_drops()
                .iter()
                .filter(|drop| drop.stream == Stream::Metrics)
                .map(|drop| drop.last - drop.first + 1)
                .sum::<u64>();
        }
    }
}
