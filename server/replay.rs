//! What would have fired: a stored day or a recording, through the fleet, the runs, the detectors and the book
//! of incidents that live data goes through, with the thresholds and prices of a configuration.
//!
//! The time is the data's: there is no clock in here. [`day`] reads the minutes, events and steps of the store
//! and makes ticks of them again ([`minutes`]); [`recording`] has the agent's own collector make ticks of what
//! its readers returned. [`unable`] says which detectors the data is not enough for, [`told`] writes it all down.
//!
//! Limits: [`MAX_INCIDENTS`] incidents; what a fleet in memory takes. What is beyond is counted and told.
//! Nothing is written to the store, and nobody is told of anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::{Book, Change, Happened, Incident, State};
use gpufleet_telemetry::identity::{AgentId, Epoch};
use gpufleet_telemetry::otlp::{
    DecodedEvent, DecodedEvents, DecodedMetrics, DecodedResource, DecodedSteps,
};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::wire::{Lane, Stream};
use uuid::Uuid;

use crate::config::Config;
use crate::detect::tuned::{self, Tuned};
use crate::detect::{Coverage, Detectors, TickInput};
use crate::fleet::{Body, Fleet, Offer, Outcome};
use crate::inventory::known::Moment;
use crate::inventory::{Inventory, InventoryConfig};
use crate::money::Terms;
use crate::runs::watch::Watch;
use crate::store::StoreError;
use crate::store::model::CursorKey;

pub mod day;

pub mod recording;

mod minutes;

pub mod unable;

pub mod told;

use unable::{Data, Unable};

/// Most incidents that are told of a replay: more nobody reads.
pub const MAX_INCIDENTS: usize = 2_000;

/// A request arrives this long after the end of its tick, nanoseconds …
const ARRIVES_NS: i64 = NANOS_PER_SECOND;

/// … and the detectors look this long after it.
const JUDGED_NS: i64 = 2 * NANOS_PER_SECOND;

/// What a server would have stored is thrown away this often, in ticks.
const DROP_EVERY: u64 = 6;

/// What is replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A day (UTC) of the configured store, as days since the Unix epoch.
    Day(i64),
    /// A recording.
    Recording(PathBuf),
}

/// Why nothing was replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// What is asked for is neither.
    #[error(
        "`{0}` is neither a day like 2026-11-21 nor a file: give a day of the store, or a recording as `gpufleet-agent record` writes it"
    )]
    Neither(String),
    /// The store does not answer, or is not the server's.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The schema is not this program's.
    #[error(
        "the schema of the store is older than this program, and only a server that leads changes it: start one first, or replay with the version that wrote it"
    )]
    OlderSchema,
    /// Nothing of the day is in the store.
    #[error(
        "no minute of {day} is in the store{}: minutes are kept for {kept_h} h (retention.minute_rows_h), and only of what was heard then", .of
    )]
    NotStored {
        /// Which day.
        day: String,
        /// Of which cluster, in words; empty for all.
        of: String,
        /// How long they are kept, hours.
        kept_h: i64,
    },
    /// The recording cannot be read.
    #[error("the recording {0}")]
    Recording(String),
}

/// What came of it.
#[derive(Debug)]
pub struct Replayed {
    /// What was replayed, in words.
    pub what: String,
    /// From when.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// How many ticks, and how long one is, seconds.
    pub ticks: (u64, u32),
    /// How many GPUs and nodes there were at most.
    pub most: Coverage,
    /// What their money is in.
    pub currency: String,
    /// Every incident that would have opened, the first to open first.
    pub incidents: Vec<Incident>,
    /// Incidents that are not told, because there were more than [`MAX_INCIDENTS`].
    pub left_out: u64,
    /// What opened then, if that is known.
    pub then: Option<Then>,
    /// Detectors that the data is not enough for.
    pub unable: Vec<Unable>,
    /// What else is to be known of it, a sentence each.
    pub notes: Vec<String>,
}

/// What the server told when it was live.
#[derive(Debug, Default)]
pub struct Then {
    /// Of each incident of the replay, in its order, whether it opened then as well.
    pub also: Vec<bool>,
    /// What opened then and would not have now.
    pub only: Vec<Incident>,
}

/// What one agent tells in one tick.
#[derive(Debug, Default)]
struct Sent {
    events: DecodedEvents,
    metrics: DecodedMetrics,
}

/// A server without doors, store and clock.
struct Replay {
    fleet: Fleet,
    watch: Watch,
    detectors: Detectors,
    book: Book,
    terms: Arc<Terms>,
    inventory: Inventory,
    /// When nodes were gone, by cluster and name.
    gone: HashMap<(String, String), Timestamp>,
    seqs: HashMap<(AgentId, Stream), u64>,
    ids: u128,
    ticks: u64,
    most: Coverage,
    found: BTreeMap<Uuid, Incident>,
    /// Incidents that there was no room for.
    left_out: BTreeSet<Uuid>,
    refused: u64,
    data: Data,
}

impl What {
    /// A day, or else a file that is there.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, ReplayError> {
        if let Some(day) = day::parse(text) {
            return Ok(Self::Day(day));
        }
        let path = PathBuf::from(text);
        match path.is_file() {
            true => Ok(Self::Recording(path)),
            false => Err(ReplayError::Neither(text.to_owned())),
        }
    }
}

/// Replays; `progress` is told how far it is in the data, from 0 to 1, and at which moment.
///
/// # Errors
/// When there is nothing to be replayed, with why.
pub async fn replay(
    what: &What,
    config: &Config,
    cluster: Option<&str>,
    progress: &mut (dyn FnMut(f64, Timestamp) + Send),
) -> Result<Replayed, ReplayError> {
    match what {
        What::Day(day) => Box::pin(day::replay(*day, config, cluster, progress)).await,
        What::Recording(file) => recording::replay(file, config, progress),
    }
}

impl Sent {
    /// Takes in an event.
    fn event(&mut self, event: DecodedEvent) {
        self.events.events.push(event);
    }

    /// Takes in steps.
    fn steps(&mut self, steps: DecodedSteps) {
        self.events.steps.push(steps);
    }

    /// Takes in a resource with its points.
    fn resource(&mut self, resource: DecodedResource) {
        self.metrics.resources.push(resource);
    }

    fn has_events(&self) -> bool {
        !(self.events.events.is_empty() && self.events.steps.is_empty())
    }
}

impl Replay {
    fn new(config: &Config, terms: Arc<Terms>, data: Data) -> Self {
        let nobody = InventoryConfig {
            source: "off".to_owned(),
            ..InventoryConfig::default()
        };
        let fleet = Fleet::new(config.fleet.clone());
        fleet.runs().judge_by(&Tuned::of(&config.detect));
        let mut book = Book::default();
        book.open_after(tuned::open_after(&config.detect));
        Self {
            fleet,
            watch: Watch::default(),
            detectors: Detectors::new(&config.detect),
            book,
            terms,
            inventory: Inventory::new(&nobody, &config.ingest.default_cluster),
            gone: HashMap::new(),
            seqs: HashMap::new(),
            ids: 0,
            ticks: 0,
            most: Coverage::default(),
            found: BTreeMap::new(),
            left_out: BTreeSet::new(),
            refused: 0,
            data,
        }
    }

    /// A tick that ends at this moment, and what each agent sends of it.
    fn tick(&mut self, end: Timestamp, sent: BTreeMap<AgentId, Sent>) {
        let received = end.shifted(ARRIVES_NS);
        for (agent, sent) in sent {
            for resource in &sent.metrics.resources {
                self.data.note(resource);
            }
            // Events are shipped at once, a tick when it is over.
            if sent.has_events() {
                self.data.note_events(&sent.events);
                self.offer(agent, Stream::Logs, Body::Events(&sent.events), received);
            }
            if !sent.metrics.resources.is_empty() {
                let body = Body::Metrics(&sent.metrics);
                self.offer(agent, Stream::Metrics, body, received);
            }
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(DROP_EVERY) {
            self.throw_away(received);
        }
        self.judge(end.shifted(JUDGED_NS));
    }

    fn judge(&mut self, now: Timestamp) {
        // Why a run ended is no finding of a detector.
        let _ended = self.watch.judge(self.fleet.runs(), now);
        let gone = &self.gone;
        let is_gone = |cluster: &str, node: &str| {
            let at = gone.get(&(cluster.to_owned(), node.to_owned()));
            at.is_some_and(|at| *at <= now)
        };
        let around = TickInput {
            now,
            fleet: &self.fleet,
            terms: Arc::clone(&self.terms),
            inventory: (
                &self.inventory,
                Moment {
                    at: now,
                    monotonic: Duration::ZERO,
                },
            ),
            is_gone: &is_gone,
            own: Vec::new(),
        };
        let (book, ids) = (&mut self.book, &mut self.ids);
        let mut changes = Vec::new();
        let counted = self.detectors.judge(around, |tick| {
            // Numbers and not times of now: the same data gives the same incidents.
            let mut new_id = || {
                *ids += 1;
                Uuid::from_u128(*ids)
            };
            changes = book.tick(tick, &mut new_id);
        });
        self.most.gpus = self.most.gpus.max(counted.gpus);
        self.most.nodes = self.most.nodes.max(counted.nodes);
        for change in changes {
            let (Change::Opened(id) | Change::Updated(id) | Change::Resolved(id)) = change;
            if let Some(incident) = self.book.get(id).cloned() {
                self.keep(incident);
            }
        }
    }

    /// Notes an incident as it is now.
    fn keep(&mut self, incident: Incident) {
        let is_known = self.found.contains_key(&incident.id);
        if is_known || self.found.len() < MAX_INCIDENTS {
            self.found.insert(incident.id, incident);
        } else {
            self.left_out.insert(incident.id);
        }
    }

    fn offer(&mut self, agent: AgentId, stream: Stream, body: Body<'_>, received: Timestamp) {
        let seq = self.seqs.entry((agent, stream)).or_default();
        *seq += 1;
        let offer = Offer {
            key: CursorKey {
                agent,
                epoch: Epoch(Uuid::nil()),
                stream,
            },
            seq: *seq,
            session: 1,
            lane: Lane::Live,
            dropped: None,
            sent_at: received,
            received,
            bound_cluster: None,
            default_cluster: "".into(),
            body,
        };
        let mut answer = self.fleet.offer(&offer);
        if answer.outcome == Outcome::Full {
            self.throw_away(received);
            answer = self.fleet.offer(&offer);
        }
        if !matches!(answer.outcome, Outcome::Folded(_)) {
            self.refused += 1;
        }
    }

    /// Takes from the fleet what a server would store now, and forgets it.
    fn throw_away(&self, now: Timestamp) {
        if let Some(commit) = self.fleet.take_commit(now) {
            self.fleet.committed(commit.number);
        }
    }

    /// What came of it; of incidents those that were not over before `from`.
    fn finish(
        mut self,
        what: String,
        (from, until): (Timestamp, Timestamp),
        tick_s: u32,
    ) -> Replayed {
        let open: Vec<Incident> = self.book.open_ones().cloned().collect();
        for incident in open {
            self.keep(incident);
        }
        let mut incidents: Vec<Incident> = self.found.into_values().collect();
        incidents.retain(|it| {
            let is_over = it.resolved_at.is_some_and(|at| at < from);
            !(is_over || became_another(it))
        });
        incidents.sort_by_key(|it| (it.opened_at, it.id));
        let mut notes = Vec::new();
        let drops = self.fleet.health().drops;
        if self.refused > 0 {
            notes.push(format!(
                "{} pieces of the data were refused, as a server would have refused them.",
                self.refused
            ));
        }
        let dropped = drops.total();
        if dropped > 0 {
            notes.push(format!("{dropped} readings were left out: {drops}."));
        }
        if self.book.left_out() > 0 {
            notes.push(format!(
                "{} incidents had no room beside those that were open.",
                self.book.left_out()
            ));
        }
        Replayed {
            what,
            from,
            until,
            ticks: (self.ticks, tick_s),
            most: self.most,
            currency: self.terms.book.currency.clone(),
            incidents,
            left_out: self.left_out.len() as u64,
            then: None,
            unable: self.data.unable(),
            notes,
        }
    }
}

/// Whether an incident ended because another one explains it.
fn became_another(incident: &Incident) -> bool {
    let last = incident.log.last().map(|it| &it.happened);
    incident.state == State::Resolved && matches!(last, Some(Happened::Explained(_)))
}
