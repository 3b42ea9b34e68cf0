//! Hours of a simulated fleet in seconds, judged: the simulator's nodes in front of the real fleet, runs,
//! detectors and incidents of a server, on a clock that goes on tick by tick.
//!
//! What a server would commit is taken from it and thrown away, or stored where that is asked for. Readings come
//! to the fleet without OTLP, as they are when it was read; a test holds both ways against each other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use gpufleet_analysis::incident::Incident;
use gpufleet_server::App;
use gpufleet_server::auth::{Access, Grant};
use gpufleet_server::config::Config;
use gpufleet_server::detect::Detectors;
use gpufleet_server::fleet::{Body, Offer, Outcome};
use gpufleet_server::lead::Lead;
use gpufleet_server::runs::watch::Watch;
use gpufleet_server::store::model::{CursorKey, FencingToken};
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::identity::{AgentId, Epoch};
use gpufleet_telemetry::otlp::{DecodedMetrics, DecodedResource, Limits, decode_events};
use gpufleet_telemetry::time::{Clock, NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::wire::{Lane, Stream};
use uuid::Uuid;

use crate::simulator::faults::Fault;
use crate::simulator::fleet::SimulatedFleet;
use crate::simulator::node::Plan;
use crate::simulator::noise::Noise;
use crate::simulator::schedule::{Attempt, Schedule, Size};

/// Seconds of a tick, as the agents'.
const TICK_SECONDS: u32 = 10;
/// What the server has not written is taken from it this often, in ticks.
const COMMIT_EVERY: u64 = 6;
/// The right to write, for longer than any of these fleets is simulated.
const LEASE: Duration = Duration::from_secs(7 * 86_400);
/// A day on which prices are known.
const AROUND: Timestamp = Timestamp::from_seconds(1_795_000_000);

/// A clock that goes on when told.
struct Hand(AtomicI64);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).unsigned_abs())
    }
}

/// A fleet and the server that judges it.
pub struct Judged {
    app: App,
    hand: Arc<Hand>,
    fleet: SimulatedFleet,
    detectors: Detectors,
    watch: Watch,
    seqs: HashMap<(AgentId, Stream), u64>,
    ticks: u64,
    seen: BTreeMap<Uuid, Incident>,
    /// The right to write; none where nothing is stored.
    token: Option<FencingToken>,
    /// Holds the database.
    _folder: tempfile::TempDir,
}

/// The first attempt of the large job of this seed that begins on a day on which prices are known. It comes
/// up for two minutes, then steps for 19 minutes at full speed and 20 while a GPU throttles, again and again.
///
/// # Panics
/// When there is none in a day: there are two.
pub fn attempt(seed: u64) -> Attempt {
    let schedule = Schedule::new(Size::Large, Noise::new(seed, 0, 0));
    let minutes = (0..1_440).map(|it| AROUND.shifted(it * 60 * NANOS_PER_SECOND));
    let mut attempts = minutes.filter_map(|at| schedule.attempt(at.minute()));
    let found = attempts.find(|it| it.began >= AROUND);
    found.expect("two begin each day")
}

impl Judged {
    /// A fleet that begins at this moment, a whole tick.
    ///
    /// # Panics
    /// When no database can be made.
    pub async fn new(plan: &Plan, start: Timestamp) -> Self {
        Self::over(plan, start, None).await
    }

    /// The same, whose data and incidents are stored: in the database of this URL, else in a file of its own.
    ///
    /// # Panics
    /// When no database can be made.
    pub async fn stored(plan: &Plan, start: Timestamp, url: Option<&str>) -> Self {
        let mut world = Self::over(plan, start, url).await;
        let store = &world.app.store;
        let lease = store.acquire_lease("server", start, LEASE);
        let token = lease.await.expect("nobody else wants it").token;
        world.app.incidents.leads(token);
        world.token = Some(token);
        world
    }

    async fn over(plan: &Plan, start: Timestamp, url: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let hand = Arc::new(Hand(AtomicI64::new(start.0)));
        let mut config = Config::for_tests();
        config.store = StoreConfig::for_tests(folder.path());
        if let Some(url) = url {
            url.clone_into(&mut config.store.url);
        }
        let store = Store::open(&config.store).await;
        let store = store.expect("a new database opens");
        let clock = Arc::clone(&hand);
        let app = App {
            lead: Arc::new(Lead::leading()),
            ..App::new(config, store, Access::default(), clock)
        };
        Self {
            detectors: Detectors::new(&app.config.detect),
            app,
            hand,
            fleet: SimulatedFleet::new(plan),
            watch: Watch::default(),
            seqs: HashMap::new(),
            ticks: 0,
            seen: BTreeMap::new(),
            token: None,
            _folder: folder,
        }
    }

    /// Writes what is not written yet; the configuration of the server whose store that is.
    ///
    /// # Panics
    /// When the store refuses.
    pub async fn written(&self) -> Config {
        self.commit(self.hand.now()).await;
        self.app.incidents.write_all_open();
        let written = self.app.incidents.write(&self.app.store).await;
        written.expect("it has the right to write");
        Config::clone(&self.app.config)
    }

    /// Lets so many minutes pass.
    pub async fn minutes(&mut self, minutes: u64) {
        for _ in 0..minutes * 60 / u64::from(TICK_SECONDS) {
            self.tick().await;
        }
    }

    /// Breaks or mends something; says what.
    pub fn inject(&self, fault: Fault) -> String {
        let ids = self.fleet.gpu_ids();
        self.fleet.faults.inject(fault, &ids, self.hand.now())
    }

    /// Every incident that people were ever told of, as it is now or was last, the first to open first.
    pub fn incidents(&self) -> Vec<&Incident> {
        let mut all: Vec<&Incident> = self.seen.values().collect();
        all.sort_by_key(|it| it.opened_at);
        all
    }

    async fn tick(&mut self) {
        self.goes_on().await;
        self.judge_runs().await;
        self.judge();
        let open = self.app.incidents.open(&Grant::default());
        let over = self
            .seen
            .keys()
            .filter_map(|id| self.app.incidents.get(*id));
        let news: Vec<Incident> = over.chain(open).collect();
        self.seen.extend(news.into_iter().map(|it| (it.id, it)));
    }

    /// A round over the runs: who is slow, which became slower, why one ended.
    pub async fn judge_runs(&mut self) {
        let (runs, now) = (self.app.fleet.runs(), self.hand.now());
        self.watch.round(runs, &self.app.store, now).await;
    }

    /// A tick of the detectors.
    pub fn judge(&mut self) {
        self.detectors.tick(&self.app);
    }

    /// The fleet's next tick, as the server takes it in.
    pub async fn goes_on(&mut self) {
        let start = self.hand.now();
        let end = start.shifted(i64::from(TICK_SECONDS) * NANOS_PER_SECOND);
        self.hand.0.store(end.0, Ordering::Relaxed);
        for place in 0..self.fleet.nodes.len() {
            let node = &mut self.fleet.nodes[place];
            let ticks = node.tick(start, TICK_SECONDS, &self.fleet.faults);
            let mut told = node.take_told();
            let events = self.fleet.faults.take_events(place);
            told.events.extend(events);
            let agent = node.facts().agent_id;
            for request in told.requests(node.resource()) {
                let decoded = prost::Message::decode(&*request);
                let decoded = decoded.expect("the simulator's own OTLP");
                let events = decode_events(decoded, &Limits::default());
                self.offer(agent, Stream::Logs, Body::Events(&events), end)
                    .await;
            }
            let metrics = DecodedMetrics {
                resources: ticks.into_iter().map(DecodedResource::from).collect(),
                ..DecodedMetrics::default()
            };
            self.offer(agent, Stream::Metrics, Body::Metrics(&metrics), end)
                .await;
        }
        self.ticks += 1;
        if self.ticks.is_multiple_of(COMMIT_EVERY) {
            self.commit(end).await;
        }
    }

    async fn commit(&self, now: Timestamp) {
        if let Some(commit) = self.app.fleet.take_commit(now) {
            if let Some(token) = self.token {
                let stored = self.app.store.commit(&commit, token).await;
                stored.expect("it has the right to write");
            }
            self.app.fleet.committed(commit.number);
        }
    }

    async fn offer(&mut self, agent: AgentId, stream: Stream, body: Body<'_>, now: Timestamp) {
        let seq = self.seqs.entry((agent, stream)).or_default();
        *seq += 1;
        let offer = Offer {
            key: CursorKey {
                agent,
                epoch: Epoch(Uuid::from_u128(1)),
                stream,
            },
            seq: *seq,
            session: 1,
            lane: Lane::Live,
            dropped: None,
            sent_at: now,
            received: now,
            bound_cluster: None,
            default_cluster: Arc::from("default"),
            body,
        };
        let mut answer = self.app.fleet.offer(&offer);
        if matches!(answer.outcome, Outcome::Full) {
            // A large fleet fills what may wait for a commit before the next is due.
            self.commit(now).await;
            answer = self.app.fleet.offer(&offer);
        }
        assert!(matches!(answer.outcome, Outcome::Folded(_)), "{answer:?}");
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::{Resource, attribute};
    use gpufleet_telemetry::otlp::{DecodedPoint, decode_metrics, encode_metrics};

    use super::*;

    #[test]
    fn what_comes_without_otlp_is_what_it_would_be_when_it_was_sent_and_read() {
        let plan = Plan::demo();
        let start = attempt(plan.seed).began.shifted(600 * NANOS_PER_SECOND);
        let mut fleet = SimulatedFleet::new(&plan);
        for node in &mut fleet.nodes {
            for tick in node.tick(start, TICK_SECONDS, &fleet.faults) {
                let sent = encode_metrics(std::slice::from_ref(&tick));
                let decoded = decode_metrics(sent, &Limits::default());
                let [mut there] = <[DecodedResource; 1]>::try_from(decoded.resources)
                    .unwrap_or_else(|other| panic!("{} resources of one", other.len()));
                let mut here = DecodedResource::from(tick);
                // What says its kind is taken off on the way.
                let mut resource = Resource::clone(&here.resource);
                resource.attributes.remove(attribute::KIND);
                here.resource = Arc::new(resource);
                for one in [&mut here, &mut there] {
                    // A request has the points of a metric together.
                    one.points.sort_by(|one, other| {
                        let key = |it: &DecodedPoint| (it.metric.id, it.part.clone());
                        key(one).cmp(&key(other))
                    });
                }
                assert_eq!(here, there);
            }
        }
    }
}
