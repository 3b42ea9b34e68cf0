//! A made fleet that the detectors look at as they do at a live one: what each resource reads at each tick, with the noise
//! of real cards, the slow readings once a minute, and the ranks of a run where one trains on it.
//!
//! Limits: without a store. What a detector says is seen at the tick at which it says it; incidents are kept only where
//! the server is to start anew.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::incident::{Book, Incident, Place, Signal};
use gpufleet_analysis::price::Basis;
use gpufleet_analysis::states::Recent;
use gpufleet_telemetry::catalog::{Cadence, Metric, by_id, gpu, node};
use gpufleet_telemetry::identity::{Origin, Part, ResourceKind};
use gpufleet_telemetry::sample::Reading;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

use crate::config::Config;
use crate::detect::runs::tests::{Does, tell};
use crate::detect::tests::set;
use crate::detect::{Detectors, TickInput};
use crate::fleet::{Fleet, Live, LiveValue};
use crate::inventory::known::Moment;
use crate::inventory::{Inventory, InventoryConfig};
use crate::money::Terms;
use crate::money::terms::Sources;
use crate::runs::watch::Watch;
use crate::view::fixture::{self, NOW};

/// Ticks before something is wrong: two minutes.
const BEFORE: i64 = 12;
/// Slow readings come once in so many ticks.
const SLOW_TICKS: i64 = 6;
/// An incident opens within so many ticks in which it is told.
const OPENS_TICKS: usize = 10;
/// For so long an incident is looked at after the server has started anew, seconds: none goes on for longer without a
/// signal.
const GOES_ON_S: i64 = 500;

/// The server that looks at a world.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Server {
    /// The place of the detector that is left out.
    pub(super) off: Option<usize>,
    /// Whether it starts anew once it has told of what is wrong, which counts only if the incident goes on.
    pub(super) restarts: bool,
}

/// A moment of a made world.
#[derive(Clone)]
pub(super) struct Now {
    /// Since when something is wrong, seconds; before it less than 0.
    pub(super) seconds: i64,
    /// When it is.
    pub(super) at: Timestamp,
    /// How long a tick is.
    pub(super) tick_s: i64,
    /// When it is, or was, that something became wrong.
    pub(super) onset: Timestamp,
    /// Whether slow readings are read.
    is_minute: bool,
    /// The node and the GPU with which something is wrong.
    pub(super) node: String,
    pub(super) gpu: String,
}

impl Now {
    /// Whether something is wrong with this GPU.
    pub(super) fn is_gpu(&self, live: &Live) -> bool {
        self.seconds >= 0 && *live.key.id == *self.gpu
    }

    /// Whether something is wrong with the machine itself.
    pub(super) fn is_node(&self, live: &Live) -> bool {
        self.seconds >= 0 && *live.key.id == *self.node
    }

    /// A reading; of a slow one the last stands until its minute is over.
    pub(super) fn put(&self, live: &mut Live, metric: &'static Metric, value: f64) {
        let is_known = live.value(metric.id).is_some();
        if self.is_minute || metric.cadence != Cadence::Slow || !is_known {
            set(live, metric, value);
        }
    }

    /// A reading of a part.
    pub(super) fn part(
        &self,
        live: &mut Live,
        metric: &'static Metric,
        part: Part,
        value: Reading,
    ) {
        let is_it = |it: &LiveValue| it.metric == metric.id && it.part.as_deref() == Some(&part);
        let is_known = live.values.iter().any(is_it);
        if is_known && !self.is_minute && metric.cadence == Cadence::Slow {
            return;
        }
        live.values.retain(|it| !is_it(it));
        live.values.push(LiveValue {
            metric: metric.id,
            part: Some(Arc::new(part)),
            reading: value,
            max: None,
            at: live.last_point,
        });
        live.values
            .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
    }

    /// A counter that grew by so much in this tick.
    pub(super) fn grow(&self, live: &mut Live, metric: &'static Metric, by: f64) {
        let before = live.value(metric.id).and_then(|it| it.reading.ok());
        set(live, metric, before.unwrap_or(0.0) + by);
    }
}

/// A reading that stands as it is once there is one.
fn first(now: &Now, live: &mut Live, metric: &'static Metric, value: f64) {
    let known = live.value(metric.id).and_then(|it| it.reading.ok());
    now.put(live, metric, known.unwrap_or(value));
}

/// What is done to everything that reports.
pub(super) type Reads<'a> = &'a dyn Fn(&mut Live, &Now);
/// What a rank does.
pub(super) type Ranks<'a> = &'a dyn Fn(u32, &Now) -> Does;
/// What a rank says beside its steps.
pub(super) type Says<'a> = &'a dyn Fn(u32, &mut Live, &Now);

/// What happens in a world at each tick.
#[derive(Clone, Copy)]
pub(super) struct Happens<'a> {
    /// What machines and GPUs read.
    pub(super) reads: Reads<'a>,
    /// Of which resources nothing comes.
    pub(super) stops: &'a dyn Fn(&Live, &Now) -> bool,
    /// What the ranks of a run do, where one trains.
    pub(super) ranks: Option<Ranks<'a>>,
    /// What they say.
    pub(super) says: Option<Says<'a>>,
    /// What else changes, before the detectors look.
    pub(super) also: &'a dyn Fn(&mut Made, &Now),
}

/// A fleet in which nothing happens.
pub(super) const NOTHING: Happens<'static> = Happens {
    reads: &|_, _| {},
    stops: &|_, _| false,
    ranks: None,
    says: None,
    also: &|_, _| {},
};

/// Of which place a signal is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// The GPU's.
    Gpu,
    /// The node's.
    Node,
    /// The rank of the GPU's place.
    Rank,
    /// Any: it names nobody.
    Any,
}

/// How a fault is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said {
    /// After how many seconds; of what is told before it is there none or less.
    pub(super) after_s: i64,
    /// What its price is reckoned by, or why it has none.
    pub(super) basis: Basis,
    /// Thousandths of GPUs that it costs.
    pub(super) milli_gpus: u64,
}

impl Said {
    /// Whether there was a fault to tell.
    pub(super) const fn is_of_fault(&self) -> bool {
        self.after_s > 0
    }
}

/// A made world.
pub(super) struct Made {
    pub(super) fleet: Fleet,
    pub(super) detectors: Detectors,
    pub(super) inventory: Inventory,
    pub(super) lives: Vec<Live>,
    pub(super) rank: u32,
    watch: Watch,
    terms: Arc<Terms>,
    random: ChaCha8Rng,
    now: Now,
    ticks: i64,
    before: i64,
    step: u64,
    phase: i64,
    restarts: bool,
    book: Book,
    ids: u128,
}

impl Made {
    /// So many nodes with so many GPUs at work for one job, and who looks at them.
    pub(super) fn new(seed: u64, (nodes, gpus): (u32, u32), server: Server) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (node, index) = (random.random_range(0..nodes), random.random_range(0..gpus));
        let config = Config::for_tests();
        let inventory = InventoryConfig {
            source: "static".to_owned(),
            cluster: "prod".to_owned(),
            ..InventoryConfig::default()
        };
        let mut detectors = Detectors::new(&config.detect);
        detectors.off = server.off;
        let mut lives = Vec::new();
        for number in 1..=nodes {
            let name = format!("node-{number}");
            lives.push(fixture::without_readers("prod", &name));
            let work = fixture::Does::Work;
            let of_node = 0..gpus;
            lives.extend(of_node.map(|it| fixture::gpu("prod", &name, it, work, Origin::Live)));
        }
        for live in &mut lives {
            live.told = crate::fleet::live::Told::default();
        }
        let name = format!("node-{}", node + 1);
        Self {
            fleet: Fleet::new(config.fleet.clone()),
            detectors,
            inventory: Inventory::new(&inventory, "prod"),
            lives,
            rank: node * gpus + index,
            watch: Watch::default(),
            terms: Arc::new(Terms::of(Sources::of(&config))),
            now: Now {
                seconds: 0,
                at: NOW,
                tick_s: 10,
                onset: NOW,
                is_minute: true,
                gpu: format!("GPU-prod-{name}-{index:04}"),
                node: name,
            },
            ticks: 0,
            before: BEFORE,
            step: 100,
            phase: random.random_range(0..SLOW_TICKS),
            random,
            restarts: server.restarts,
            book: Book::default(),
            ids: 0,
        }
    }

    /// With ticks of this length, and so many of them before something is wrong.
    pub(super) fn ticking(mut self, tick_s: i64, before: i64) -> Self {
        (self.now.tick_s, self.before) = (tick_s, before);
        self
    }

    /// The moment by both clocks: nobody's view of the inventory grows old.
    pub(super) fn moment(&self, at: Timestamp) -> Moment {
        Moment {
            at,
            monotonic: Duration::ZERO,
        }
    }

    /// Nearly normal, mean 0, σ 1.
    fn noise(&mut self) -> f64 {
        (0..12).map(|_| self.random.random::<f64>()).sum::<f64>() - 6.0
    }

    /// What machines and cards read that are well.
    fn well(&mut self, live: &mut Live) {
        let at = self.now.clone();
        if live.key.kind == ResourceKind::Node {
            first(&at, live, &node::MEMORY_TOTAL, 2e12);
            first(&at, live, &node::UPTIME, 1e6);
            let left = 1e12 * (1.0 + 0.02 * self.noise());
            set(live, &node::MEMORY_AVAILABLE, left);
        }
        if live.key.kind != ResourceKind::Gpu {
            return;
        }
        for counter in [
            &gpu::THROTTLE_THERMAL,
            &gpu::THROTTLE_BOARD_LIMIT,
            &gpu::THROTTLE_POWER,
            &gpu::HARDWARE_SLOWDOWNS,
            &gpu::ECC_CORRECTED_VOLATILE,
            &gpu::ECC_UNCORRECTED_VOLATILE,
        ] {
            first(&at, live, counter, 0.0);
        }
        for (metric, value) in [
            (&gpu::REMAP_FAILURE, 0.0),
            (&gpu::REMAP_PENDING, 0.0),
            (&gpu::RECOVERY_ACTION, 0.0),
            (&gpu::PCIE_WIDTH, 16.0),
            (&gpu::PCIE_GENERATION, 5.0),
            (&gpu::NVLINKS_ACTIVE, 18.0),
        ] {
            at.put(live, metric, value);
        }
        set(live, &gpu::TEMPERATURE, 62.0 + self.noise());
        set(live, &gpu::POWER, 620.0 * (1.0 + 0.02 * self.noise()));
        set(live, &gpu::SM_CLOCK, 1.98e9 * (1.0 + 0.004 * self.noise()));
        set(live, &gpu::TENSOR_ACTIVE, 0.4);
        set(live, &gpu::MEMORY_USED, 60e9 * (1.0 + 0.01 * self.noise()));
    }

    /// A tick in which this happens, and what is said of it.
    pub(super) fn tick(&mut self, happens: Happens<'_>) -> Vec<Signal> {
        self.ticks += 1;
        let tick_s = self.now.tick_s;
        let now = NOW.shifted(self.ticks * tick_s * NANOS_PER_SECOND);
        self.now.at = now;
        self.now.seconds = (self.ticks - self.before - 1) * tick_s;
        self.now.is_minute = tick_s >= 60 || (self.ticks + self.phase) % SLOW_TICKS == 0;
        if self.now.seconds <= 0 {
            self.now.onset = now;
        }
        let mut lives = std::mem::take(&mut self.lives);
        for live in &mut lives {
            if !(happens.stops)(live, &self.now) {
                self.report(live, now);
                (happens.reads)(live, &self.now);
                let (start, bits) = (live.bits_start, live.bits);
                let seconds = u32::try_from(tick_s).unwrap_or(10);
                live.recent.tick(start, seconds, &bits, true);
                self.fleet.put_for_tests(live.clone());
            }
        }
        self.lives = lives;
        if let Some(ranks) = happens.ranks {
            self.step += 10;
            for rank in 0..crate::detect::runs::tests::RANKS {
                let says = happens.says.map(|says| {
                    let at = self.now.clone();
                    move |rank: u32, live: &mut Live| says(rank, live, &at)
                });
                let says = says.as_ref().map(|it| it as &dyn Fn(u32, &mut Live));
                let does = ranks(rank, &self.now);
                tell(&self.fleet, (self.step, rank), does, says, now);
            }
            self.watch.judge(self.fleet.runs(), now);
        }
        let at = self.now.clone();
        (happens.also)(self, &at);
        self.judge(now)
    }

    /// A resource tells of the tick that is over.
    fn report(&mut self, live: &mut Live, now: Timestamp) {
        let tick_s = self.now.tick_s;
        live.last_point = now.shifted(-3 * NANOS_PER_SECOND);
        live.received = now.shifted(-2 * NANOS_PER_SECOND);
        live.bits_start = now.shifted(-(3 + tick_s) * NANOS_PER_SECOND);
        live.interval = Duration::from_secs(tick_s.unsigned_abs());
        let (at, is_minute) = (live.last_point, self.now.is_minute);
        let is_read = |it: &LiveValue| {
            is_minute || by_id(it.metric).is_none_or(|it| it.cadence != Cadence::Slow)
        };
        for value in live.values.iter_mut().filter(|it| is_read(it)) {
            value.at = at;
        }
        self.well(live);
    }

    fn judge(&mut self, now: Timestamp) -> Vec<Signal> {
        let mut said = Vec::new();
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
            is_gone: &|_, _| false,
            own: Vec::new(),
        };
        self.detectors.judge(around, |tick| {
            said.clone_from(&tick.signals);
            if self.restarts {
                let ids = &mut self.ids;
                let mut new_id = || {
                    *ids += 1;
                    Uuid::from_u128(*ids)
                };
                self.book.tick(tick, &mut new_id);
            }
        });
        said
    }

    /// The open incident of which this is said.
    pub(super) fn open(&self, says: &str) -> Option<Uuid> {
        let is_it = |it: &&Incident| {
            let mut said = it.evidence.iter().map(|it| &it.what).chain([&it.what]);
            said.any(|it| it.starts_with(says))
        };
        self.book.open_ones().find(is_it).map(|it| it.id)
    }

    /// The server starts anew: of what it knew it has its open incidents, and of runs their last steps.
    fn restart(&mut self) {
        let open: Vec<Incident> = self.book.open_ones().cloned().collect();
        let now = self.now.at;
        self.detectors = Detectors::new(&Config::for_tests().detect);
        self.detectors.resume(&open, now);
        self.watch = Watch::default();
        self.watch.resume(&open);
        self.book = Book::restored(open, now);
        for live in &mut self.lives {
            live.recent = Recent::default();
        }
    }

    /// Whether the incident of which this is said goes on when the server starts anew.
    fn goes_on(&mut self, says: &str, happens: Happens<'_>) -> bool {
        for _ in 0..OPENS_TICKS {
            if self.open(says).is_none() {
                self.tick(happens);
            }
        }
        let known = self.open(says);
        self.restart();
        let mut ticks = 0..GOES_ON_S / self.now.tick_s;
        known.is_some()
            && ticks.all(|_| {
                self.tick(happens);
                self.open(says) == known
            })
    }

    /// Whether a place is the one with which something is wrong.
    fn is_at(&self, place: &Place, at: At) -> bool {
        match at {
            At::Gpu => place.gpu.as_deref() == Some(&self.now.gpu),
            At::Node => place.node.as_deref() == Some(&self.now.node) && place.gpu.is_none(),
            At::Rank => place.rank == Some(self.rank),
            At::Any => true,
        }
    }

    /// How this is told of that place first, within so many seconds; none where it is not.
    pub(super) fn told(
        &mut self,
        (says, at): (&str, At),
        within_s: i64,
        happens: Happens<'_>,
    ) -> Option<Said> {
        loop {
            let said = self.tick(happens);
            let seconds = self.now.seconds;
            let is_it = |it: &&Signal| it.what.starts_with(says) && self.is_at(&it.place, at);
            if let Some(signal) = said.iter().find(is_it) {
                let told = Said {
                    after_s: seconds + self.now.tick_s,
                    basis: signal.price.basis,
                    milli_gpus: signal.price.losing.milli_gpus,
                };
                let goes_on = !self.restarts || self.goes_on(says, happens);
                return goes_on.then_some(told);
            }
            if seconds >= within_s {
                return None;
            }
        }
    }
}
