//! How soon people are told: from the moment at which an incident opens until the first message of its group
//! is on the wire, with everything between that a server has: book, outbox, a commit to SQLite, templates,
//! HTTP; and how many messages ten thousand troubles of one minute make.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Nodes, Place, Remedy, Signal, Tick};
use gpufleet_analysis::price::{Basis, Price};
use gpufleet_program::clock::SystemClock;
use gpufleet_server::App;
use gpufleet_server::auth::{Access, Grant};
use gpufleet_server::config::Config;
use gpufleet_server::lead::Lead;
use gpufleet_server::notify::Channels;
use gpufleet_server::notify::settings::{ChannelConfig, Kind};
use gpufleet_server::store::{Store, StoreConfig};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{Clock, NANOS_PER_SECOND, Timestamp};
use gpufleet_tests::harness::World;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::figures::{Spread, line, told};

/// What must be reached: the 99th percentile of the first message, and the messages of a minute of trouble.
const MAX_FIRST_S: f64 = 1.0;
const MAX_MESSAGES: f64 = 20.0;

/// Receivers, each of which is told of every incident: so many figures of each.
const RECEIVERS: usize = 20;
/// Incidents one after the other, at a pace at which no receiver's limit (15 messages a minute) holds one up.
const INCIDENTS: usize = 30;
const SHORT_INCIDENTS: usize = 6;
const PACE: Duration = Duration::from_secs(7);
/// The minute of trouble: so many at each of six ticks.
const AT_ONCE: usize = 1_667;
const TICKS: usize = 6;
const TICK: Duration = Duration::from_secs(10);
/// How long what is on its way is waited for.
const LAST: Duration = Duration::from_secs(5);
/// How long the right to write is good for: longer than the bench takes.
const LEASE: Duration = Duration::from_secs(3_600);

/// A message: when it had come whole, and what it is about.
struct Message {
    at: Timestamp,
    says: String,
    incidents: Vec<Uuid>,
}

type Messages = Arc<Mutex<Vec<Message>>>;

pub(crate) fn run(short: bool) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let incidents = if short { SHORT_INCIDENTS } else { INCIDENTS };
    runtime
        .expect("a runtime can be made")
        .block_on(async { one_by_one(incidents).await & a_minute_of_trouble().await })
}

/// A server's part that tells people, with a webhook for each receiver.
struct Teller {
    app: App,
    messages: Messages,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
    _world: World,
}

impl Teller {
    async fn new(receivers: usize) -> Self {
        let world = World::new();
        let messages = Messages::default();
        let address = receive(&messages);
        let mut config = Config::for_tests();
        let key = world.file("key", "the-key-of-the-signature");
        config.notify.channels = (0..receivers)
            .map(|number| ChannelConfig {
                urls: vec![format!("http://{address}/{number}")],
                secret_file: key.clone(),
                ..ChannelConfig::new(&format!("hook-{number}"), Kind::Webhook)
            })
            .collect();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let store = Store::open(&StoreConfig::for_tests(&world.path(""))).await;
        let store = store.expect("a new database opens");
        let lease = store.acquire_lease("the bench", clock.now(), LEASE).await;
        let channels = Channels::new(&config.notify, &clock).expect("the channels are ours");
        let channels = Arc::new(channels);
        let app = App {
            lead: Arc::new(Lead::leading()),
            ..App::new(config, store, Access::default(), clock)
        };
        app.incidents.tells(Arc::clone(channels.settings()));
        app.incidents
            .leads(lease.expect("nobody else has it").token);
        let stop = CancellationToken::new();
        let task = gpufleet_server::notify::run(app.clone(), channels, stop.clone());
        Self {
            running: tokio::spawn(task),
            app,
            messages,
            stop,
            _world: world,
        }
    }

    /// What the detectors do at a tick: their word, and a commit.
    async fn tick(&self, places: &[Place]) {
        let now = self.app.clock.now();
        let nodes: Nodes = places
            .iter()
            .filter_map(|it| Some(((it.cluster.clone(), it.node.clone()?), 8)))
            .collect();
        let tick = Tick {
            now,
            signals: places.iter().map(|it| signal(it, now)).collect(),
            is_heard: &|_, _| true,
            in_its_place: &|_, _| None,
            is_forgotten: &|_, _| false,
            quiet_runs: &Default::default(),
            nodes: &nodes,
            runs: &Default::default(),
        };
        self.app.incidents.tick(tick, &mut Uuid::now_v7);
        let written = self.app.incidents.write(&self.app.store).await;
        written.expect("the database takes it");
    }

    /// What came, once all that was on its way is here.
    async fn ends(self) -> (App, Vec<Message>) {
        tokio::time::sleep(LAST).await;
        self.stop.cancel();
        self.running.await.expect("telling people does not panic");
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        (self.app, std::mem::take(&mut messages))
    }
}

fn place(number: usize) -> Place {
    Place {
        // A cluster of its own: nothing makes them one incident, or one message.
        cluster: format!("cluster-{number}"),
        node: Some(format!("node-{number}")),
        gpu: Some(format!("GPU-{number}")),
        run: None,
        rank: None,
    }
}

fn signal(place: &Place, now: Timestamp) -> Signal {
    Signal {
        family: Family::GpuFault,
        place: place.clone(),
        severity: Severity::Error,
        what: "XID 79".to_owned(),
        action: "drain the node and reboot it".to_owned(),
        remedy: Remedy::Reboot,
        cause: Cause::GpuFault,
        since: Some(now),
        readings: Vec::new(),
        price: Price::none(Basis::GoesOn),
        confidence: None,
        booted_at: None,
    }
}

/// Incidents one after the other, each a group of its own at each of the receivers.
async fn one_by_one(incidents: usize) -> bool {
    let teller = Teller::new(RECEIVERS).await;
    let mut opened = BTreeMap::new();
    for number in 0..incidents {
        let places: Vec<Place> = (0..=number).map(place).collect();
        teller.tick(&places).await;
        for it in teller.app.incidents.open(&Grant::default()) {
            opened.insert(it.id, it.opened_at.expect("it is open"));
        }
        tokio::time::sleep(PACE).await;
    }
    let (_, messages) = teller.ends().await;
    let mut delay = Spread::default();
    let first = messages.iter().filter(|it| it.says == "opened");
    for message in first {
        let since = message
            .incidents
            .iter()
            .filter_map(|id| opened.get(id))
            .min();
        let since = since.expect("it is about one of ours");
        delay.add(message.at.since(*since) as f64 / NANOS_PER_SECOND as f64);
    }
    let wanted = incidents * RECEIVERS;
    told(&format!(
        "{wanted} first messages of {incidents} incidents to {RECEIVERS} receivers: {} came",
        delay.count()
    ));
    let p99 = delay.quantile(0.99);
    let figure = format!("{p99:.3}; {}", delay.told());
    line(
        "first message on the wire after the incident opens, p99 s",
        &figure,
        p99,
        MAX_FIRST_S,
    ) && delay.count() == wanted
}

/// Ten thousand cards of as many clusters break within a minute.
async fn a_minute_of_trouble() -> bool {
    let teller = Teller::new(1).await;
    let mut first = None;
    for tick in 1..=TICKS {
        let places: Vec<Place> = (0..tick * AT_ONCE).map(place).collect();
        teller.tick(&places).await;
        let began = teller.app.clock.now();
        first.get_or_insert(began);
        tokio::time::sleep(TICK).await;
    }
    let (app, messages) = teller.ends().await;
    let open = app.incidents.open(&Grant::default()).len();
    told(&format!(
        "{} troubles in a minute: {open} incidents, {} for which the book had no room",
        TICKS * AT_ONCE,
        app.incidents.left_out()
    ));
    let count = messages.len() as f64;
    let soonest = messages.iter().map(|it| it.at).min().zip(first);
    let soonest = soonest.map(|(at, first)| at.since(first) as f64 / NANOS_PER_SECOND as f64);
    let soonest = soonest.unwrap_or(f64::INFINITY);
    let first = format!("{soonest:.3}");
    line(
        "messages of that minute to one receiver",
        &format!("{count}"),
        count,
        MAX_MESSAGES,
    ) & line(
        "the first of them after the first commit, s",
        &first,
        soonest,
        MAX_FIRST_S,
    ) & (count > 0.0)
}

/// Listens for messages, and notes each when it has come whole.
fn receive(messages: &Messages) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one").to_string();
    let messages = Arc::clone(messages);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let messages = Arc::clone(&messages);
            // Whoever sends keeps its connection.
            std::thread::spawn(move || while let Ok(Some(())) = take(&stream, &messages) {});
        }
    });
    address
}

fn take(stream: &TcpStream, messages: &Messages) -> std::io::Result<Option<()>> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut head = String::new();
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        let head = head.trim_end();
        if head.is_empty() {
            break;
        }
        if let Some(bytes) = head.to_lowercase().strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let at = SystemClock::start().now();
    let said: Value = serde_json::from_slice(&body).map_err(std::io::Error::other)?;
    let about = said["incidents"].as_array().into_iter().flatten();
    let ids = about.filter_map(|it| it["id"].as_str()?.parse().ok());
    let message = Message {
        at,
        says: said["says"].as_str().unwrap_or_default().to_owned(),
        incidents: ids.collect(),
    };
    messages
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(message);
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n")?;
    Ok(Some(()))
}
