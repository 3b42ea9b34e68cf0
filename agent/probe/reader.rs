//! Probes idle GPUs by themselves every so often, one after the other, and at the server's word; tells
//! what came of it as readings of the GPU, and as an event when that changed or somebody asked.
//!
//! A reader as any other: what it returns once a minute is the last result of each GPU and each MIG instance,
//! with the time it is of: its own, or that of a training process which probed from inside
//! ([`super::inside`]). Nothing is probed that has a process on it, that is split by MIG (its instances are), or
//! of which nobody knows.
//!
//! Limits: [`MAX_ORDERS`], [`KEPT_RUNS`]; one GPU at a time, whose idle neighbours take part in its copies, and none
//! while a child could not be killed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::catalog::{Metric, own};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::gpu_specs;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Readings, ResourceSamples, Sample};
use gpufleet_telemetry::time::Timestamp;
use rand::Rng;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::ProbeConfig;
use super::inside::{Found, Inside};
use super::measured::{Ended, Measured};
use super::process::{Order, Ran, Spawner, after};
use super::verdict::{Judgement, Rates, Usual, Verdict, judge};
use super::wrong::{Reach, Wrong};
use crate::attribute::users::{Card, Users};
use crate::read::{Read, ReadFuture, Turn};

/// Most orders waiting: the server gives one a GPU and again what did not fit.
pub const MAX_ORDERS: usize = 4;

/// Runs of a GPU that are remembered to hold the next against.
const KEPT_RUNS: usize = 16;

/// How often it is looked who is idle.
const PERIOD: Duration = Duration::from_secs(5);

/// What stays the same is told so often; the server takes a reading for gone after two minutes.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// A round only looks; the probe itself runs beside.
const DEADLINE: Duration = Duration::from_secs(2);

/// A word of the server's: probe this GPU.
#[derive(Debug)]
pub struct ProbeOrder {
    /// Its id.
    pub gpu: String,
    /// Where to say what came of it, or why nothing did.
    pub done: oneshot::Sender<Result<Judgement, String>>,
}

/// The reader.
#[derive(Debug)]
pub struct Probing {
    config: ProbeConfig,
    nvml_library: String,
    spawner: Spawner,
    users: Arc<Users>,
    inside: Arc<Inside>,
    orders: mpsc::Receiver<ProbeOrder>,
    waiting: VecDeque<ProbeOrder>,
    known: BTreeMap<Arc<str>, Known>,
    running: Option<Running>,
    /// A child that could not be killed.
    stuck: Option<Child>,
    /// When the results were told last, by the monotonic clock; none: they are to be told.
    told: Option<Duration>,
}

/// What is known of one GPU.
#[derive(Debug)]
struct Known {
    /// When it is due, by the monotonic clock.
    due: Duration,
    runs: VecDeque<Rates>,
    last: Option<Last>,
    /// What no run since found to be right.
    wrong: Wrong,
}

/// Its last run.
#[derive(Debug)]
struct Last {
    at: Timestamp,
    judgement: Judgement,
    measured: Option<Measured>,
}

/// The run under way.
#[derive(Debug)]
struct Running {
    gpu: Arc<str>,
    task: JoinHandle<Ran>,
    asked: Option<oneshot::Sender<Result<Judgement, String>>>,
}

impl Probing {
    /// The reader; `users` knows the GPUs and who is on them, `inside` what those found.
    pub fn new(
        config: &ProbeConfig,
        nvml_library: String,
        users: Arc<Users>,
        inside: Arc<Inside>,
        orders: mpsc::Receiver<ProbeOrder>,
    ) -> Self {
        Self {
            config: config.clone(),
            nvml_library,
            spawner: Spawner::default(),
            users,
            inside,
            orders,
            waiting: VecDeque::new(),
            known: BTreeMap::new(),
            running: None,
            stuck: None,
            told: None,
        }
    }

    /// The same with children of this kind.
    #[must_use]
    pub fn with_spawner(mut self, spawner: Spawner) -> Self {
        self.spawner = spawner;
        self
    }

    async fn round(&mut self, turn: &Turn) -> Readings {
        let cards = self.users.cards();
        let mut events = Vec::new();
        if self
            .running
            .as_ref()
            .is_some_and(|it| it.task.is_finished())
            && let Some(running) = self.running.take()
        {
            events.extend(self.ended(running, &cards, turn).await);
        }
        self.know(&cards, turn);
        for (gpu, found) in self.inside.take() {
            events.extend(self.found_inside(&gpu, found, turn));
        }
        while self.waiting.len() < MAX_ORDERS
            && let Ok(order) = self.orders.try_recv()
        {
            self.waiting.push_back(order);
        }
        if let Some(child) = &mut self.stuck
            && !matches!(child.try_wait(), Ok(None))
        {
            self.stuck = None;
        }
        self.next(&cards, turn);
        let is_due = |told: Duration| turn.monotonic.saturating_sub(told) >= TOLD_EVERY;
        let mut resources = Vec::new();
        if self.told.is_none_or(is_due) {
            self.told = Some(turn.monotonic);
            resources.extend(self.known.iter().filter_map(|it| of_gpu(it, &cards)));
        }
        Readings {
            at: turn.at,
            resources,
            events,
        }
    }

    /// GPUs that came get their first date, those that went are forgotten.
    fn know(&mut self, cards: &[Card], turn: &Turn) {
        let is_here = |id: &Arc<str>| cards.iter().any(|it| it.resource.id == *id);
        let running = self.running.as_ref().map(|it| Arc::clone(&it.gpu));
        self.known
            .retain(|id, _| is_here(id) || running.as_ref() == Some(id));
        let period = self.every();
        for gpu in cards.iter().filter(|it| can_be_probed(it)) {
            let gpu = &gpu.resource;
            self.known
                .entry(Arc::clone(&gpu.id))
                .or_insert_with(|| Known {
                    // Somewhere within the first period: after a fleet's update not all at once.
                    due: turn.monotonic + period.mul_f64(rand::rng().random()),
                    runs: VecDeque::new(),
                    last: None,
                    wrong: Wrong::default(),
                });
        }
    }

    fn every(&self) -> Duration {
        Duration::from_secs(self.config.every_minutes * 60)
    }

    /// Begins the next run, if there is one and nothing is in its way.
    fn next(&mut self, cards: &[Card], turn: &Turn) {
        if self.running.is_some() {
            return;
        }
        if let Some(order) = self.waiting.pop_front() {
            return self.obey(order, cards);
        }
        let is_due = |id: &Arc<str>| {
            self.known
                .get(id)
                .is_some_and(|it| it.due <= turn.monotonic)
        };
        let mut due = cards
            .iter()
            .filter(|it| is_idle(it, cards) && is_due(&it.resource.id));
        if self.stuck.is_none()
            && let Some(card) = due.next()
        {
            self.start(Arc::clone(&card.resource.id), None, cards);
        }
    }

    fn obey(&mut self, order: ProbeOrder, cards: &[Card]) {
        let card = cards.iter().find(|it| *it.resource.id == *order.gpu);
        let refused = match card {
            None => Some("no such GPU is on this node, or NVML does not show it"),
            Some(card) if !can_be_probed(card) => {
                Some("what it is a share of is probed: name the GPU, or a MIG instance")
            }
            Some(_) if self.stuck.is_some() => {
                Some("a probe hangs in the driver and cannot be killed: reset the GPU first")
            }
            Some(_) => None,
        };
        match (refused, card) {
            (None, Some(card)) => {
                self.start(Arc::clone(&card.resource.id), Some(order.done), cards);
            }
            (why, _) => {
                // Who asked may have gone: then nobody is to be told.
                let _ = order.done.send(Err(why.unwrap_or_default().to_owned()));
            }
        }
    }

    fn start(
        &mut self,
        gpu: Arc<str>,
        asked: Option<oneshot::Sender<Result<Judgement, String>>>,
        cards: &[Card],
    ) {
        let whole = cards
            .iter()
            .filter(|it| it.resource.kind == ResourceKind::Gpu && is_idle(it, cards));
        let free: Vec<String> = whole.map(|it| it.resource.id.to_string()).collect();
        let order = Order {
            gpu: gpu.to_string(),
            peers: after(&gpu, &free),
            nvml_library: self.nvml_library.clone(),
            region_mib: self.config.region_mib,
            deadline: Duration::from_secs(self.config.deadline_seconds),
            spoil: None,
        };
        let spawner = self.spawner.clone();
        let task = tokio::spawn(async move { spawner.run(&order).await });
        self.running = Some(Running { gpu, task, asked });
    }

    /// Takes in what a run came to.
    async fn ended(&mut self, running: Running, cards: &[Card], turn: &Turn) -> Option<Event> {
        let Ok(ran) = running.task.await else {
            return None;
        };
        if ran.stuck.is_some() {
            self.stuck = ran.stuck;
        }
        let like = self.like(&running.gpu, cards);
        let period = self.every();
        let known_bad: Vec<Arc<str>> = self.known_bad();
        let known = self.known.get_mut(&running.gpu)?;
        let measured = match &ran.ended {
            Ended::Measured(measured) => Some(measured.as_ref().clone()),
            Ended::Stopped(_) => None,
        };
        let spec = measured.as_ref().and_then(|it| gpu_specs::lookup(&it.card));
        let usual = Usual {
            own: known.runs.make_contiguous(),
            like: &like,
            known_bad: &known_bad,
        };
        let judgement = judge(&ran.ended, spec, usual);
        // What a broken GPU did is no measure.
        if let Some(measured) = measured
            .as_ref()
            .filter(|_| judgement.verdict <= Verdict::Degraded)
        {
            known.runs.truncate(KEPT_RUNS - 1);
            known.runs.push_front(Rates::of(measured));
        }
        let late = period.mul_f64(rand::rng().random_range(0.0..0.2));
        known.due = turn.monotonic + period + late;
        let reach = measured.as_ref().map(|it| Reach::of(it, true));
        let last = Last {
            at: turn.at,
            judgement: judgement.clone(),
            measured,
        };
        let is_new = known.take(last, &reach.unwrap_or_default());
        self.told = None;
        let is_asked = running.asked.is_some();
        let told = (is_new || is_asked).then(|| event(&running.gpu, &judgement, turn.at));
        if let Some(asked) = running.asked {
            // Who asked may have gone: the event says it all the same.
            let _ = asked.send(Ok(judgement));
        }
        told
    }

    /// Takes in what a training process found on the GPU that it computes on. A failure and its end are
    /// events; whether there was memory to probe with changes every half minute, and is not.
    fn found_inside(&mut self, gpu: &Arc<str>, found: Found, turn: &Turn) -> Option<Event> {
        let known = self.known.get_mut(gpu)?;
        if known.last.as_ref().is_some_and(|it| it.at >= found.at) {
            return None;
        }
        let before = known.last.as_ref().map(|it| it.judgement.verdict);
        let failed = before == Some(Verdict::Fail);
        let fails = found.judgement.verdict == Verdict::Fail;
        // Nobody judges speed inside a process.
        if before == Some(Verdict::Degraded) && !fails {
            return None;
        }
        if fails {
            // Once nobody is on it any more, a probe that has it for itself says whether that is so.
            known.due = turn.monotonic;
        }
        let mut told = event(gpu, &found.judgement, found.at);
        told.message = format!("inside a training process, {}", told.message);
        let rank = found.rank.to_string();
        told.attributes.insert("rank".to_owned(), rank);
        let last = Last {
            at: found.at,
            judgement: found.judgement,
            measured: Some(found.measured),
        };
        let is_new = known.take(last, &found.reach);
        if fails || known.wrong.is_nothing() {
            self.told = None;
        }
        (is_new && (fails || failed)).then_some(told)
    }

    /// GPUs that their own last probe found slow or broken.
    fn known_bad(&self) -> Vec<Arc<str>> {
        let is_bad = |it: &Last| [Verdict::Degraded, Verdict::Fail].contains(&it.judgement.verdict);
        let known = self.known.iter();
        let bad = known.filter(|(_, it)| it.last.as_ref().is_some_and(is_bad));
        bad.map(|(id, _)| Arc::clone(id)).collect()
    }

    /// The last rates of the other GPUs of its model; none of an instance, which are cut in many ways.
    fn like(&self, gpu: &Arc<str>, cards: &[Card]) -> Vec<Rates> {
        let model = |id: &Arc<str>| {
            let mut whole = cards
                .iter()
                .filter(|it| it.resource.kind == ResourceKind::Gpu);
            let card = whole.find(|it| it.resource.id == *id)?;
            card.resource
                .attribute(attribute::GPU_MODEL)
                .map(str::to_owned)
        };
        let own = model(gpu);
        let others = self
            .known
            .iter()
            .filter(|(id, _)| *id != gpu && own.is_some() && model(id) == own);
        others
            .filter_map(|(_, it)| it.runs.front().copied())
            .collect()
    }
}

impl Known {
    /// Takes in a result; whether it says something else than the one before. A failure stands until what
    /// failed was measured again and is right.
    fn take(&mut self, last: Last, reach: &Reach) -> bool {
        let before = self.last.as_ref().map(|it| it.judgement.verdict);
        let now = last.judgement.verdict;
        self.wrong.take(reach, now);
        if now != Verdict::Fail && !self.wrong.is_nothing() {
            return false;
        }
        self.last = Some(last);
        before != Some(now)
    }
}

/// Whether it is a GPU, or an instance of one that CUDA knows by its id.
fn can_be_probed(card: &Card) -> bool {
    card.resource.kind == ResourceKind::Gpu || card.resource.id.starts_with("MIG-")
}

/// Whether nobody is on it, and that is known, and it is not split further.
fn is_idle(card: &Card, cards: &[Card]) -> bool {
    let is_split = cards
        .iter()
        .any(|it| it.resource.attribute(attribute::PARENT) == Some(&card.resource.id));
    can_be_probed(card) && !is_split && card.processes.as_ref().is_some_and(Vec::is_empty)
}

/// What is told of one GPU at each turn.
fn of_gpu((id, known): (&Arc<str>, &Known), cards: &[Card]) -> Option<ResourceSamples> {
    let last = known.last.as_ref()?;
    let card = cards.iter().find(|it| it.resource.id == *id)?;
    // Where it is, as NVML said it: the result stands when NVML is silent. Whose reading it is, is not
    // NVML's.
    let mut resource = Resource::clone(&card.resource);
    resource.attributes.remove(attribute::SOURCE);
    let mut samples = Vec::new();
    let mut push = |metric: &Metric, value: f64| {
        samples.push(Sample {
            metric: metric.id,
            part: None,
            reading: Ok(value),
        });
    };
    push(
        &own::PROBE_VERDICT,
        f64::from(last.judgement.verdict.number()),
    );
    push(&own::PROBE_AT, last.at.0 as f64 / 1e9);
    if let Some(sm) = last.judgement.sm {
        push(&own::PROBE_SM, f64::from(sm));
    }
    if let Some(measured) = &last.measured {
        let rates = Rates::of(measured);
        for (metric, value) in [
            (&own::PROBE_MEMORY_RATE, rates.memory),
            (&own::PROBE_TENSOR_RATE, rates.tensor),
            (&own::PROBE_PEERS_RATE, rates.peers.map(|it| it.1)),
            (&own::PROBE_TO_GPU, measured.to_gpu),
            (&own::PROBE_FROM_GPU, measured.from_gpu),
            (
                &own::PROBE_CONTEXT,
                measured.context_bytes.map(|it| it as f64),
            ),
            (&own::PROBE_SLOWEST_SM, measured.slowest.map(|it| it.1)),
            (&own::PROBE_GPU_TIME, Some(measured.gpu_seconds)),
        ] {
            if let Some(value) = value {
                push(metric, value);
            }
        }
    }
    Some(ResourceSamples {
        resource: Arc::new(resource),
        samples,
    })
}

fn event(gpu: &Arc<str>, judgement: &Judgement, at: Timestamp) -> Event {
    let verdict = judgement.verdict.name();
    let mut attributes = BTreeMap::from([
        ("verdict".to_owned(), verdict.to_owned()),
        ("reason".to_owned(), judgement.reason.clone()),
    ]);
    attributes.extend(judgement.sm.map(|it| ("sm".to_owned(), it.to_string())));
    Event {
        at,
        kind: EventKind::Probed,
        severity: match judgement.verdict {
            Verdict::Pass => Severity::Info,
            Verdict::Degraded | Verdict::CouldNotMeasure => Severity::Warning,
            Verdict::Fail => Severity::Error,
        },
        resource_kind: ResourceKind::Gpu,
        resource_id: Arc::clone(gpu),
        message: format!("probe: {}: {}", verdict.replace('_', " "), judgement.reason),
        attributes,
    }
}

impl Read for Probing {
    fn name(&self) -> &str {
        "probe"
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(async move { Ok(self.round(&turn).await) })
    }
}
