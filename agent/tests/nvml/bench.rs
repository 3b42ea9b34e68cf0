//! What the tests of the NVML reader share: a scenario, the stand-in library, the real agent binary
//! as the child, and turns of one second.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::attribute::users::Users;
use gpufleet_agent::commands::{MAX_NVML_ORDERS, NvmlAction, NvmlOrder};
use gpufleet_agent::read::nvml::{Nvml, NvmlConfig, Spawner};
use gpufleet_agent::read::{NodeFacts, Read, ReadError, Turn, Wiring};
use gpufleet_standin_nvml::models::{self, Model};
use gpufleet_standin_nvml::{CallTable, Gpu, SCENARIO_VARIABLE, Scenario, load};
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::sample::{Missing, Reading, Readings, ResourceSamples};
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

/// Turns in which a busy machine can start a child twice and wait for what does not open: their
/// deadline is the longest there is, and a turn ends as soon as the child is done.
const UNHURRIED: Duration = Duration::from_secs(10);

/// The stand-in, which cargo builds beside the agent because the tests depend on it.
pub(crate) fn library_path() -> PathBuf {
    let agent = Path::new(env!("CARGO_BIN_EXE_gpufleet-agent"));
    let path = agent
        .parent()
        .expect("the binary lies in a folder")
        .join("deps/libgpufleet_standin_nvml.so");
    assert!(path.exists(), "cargo did not build {}", path.display());
    path
}

/// A reader over a scenario that the test can change.
pub(crate) struct Bench {
    pub(crate) scenario: Scenario,
    pub(crate) reader: Nvml,
    pub(crate) folder: tempfile::TempDir,
    /// Which process is on which GPU, as the reader notes it for others.
    pub(crate) users: Arc<Users>,
    orders: mpsc::Sender<NvmlOrder>,
    turns: i64,
}

impl Bench {
    /// Over this scenario, with the reader's own limits and time enough in a turn to start a child.
    pub(crate) fn new(scenario: Scenario) -> Self {
        Self::with(scenario, |_| {})
    }

    /// The same with another config.
    pub(crate) fn with(scenario: Scenario, change: impl FnOnce(&mut NvmlConfig)) -> Self {
        Self::every(UNHURRIED, scenario, change)
    }

    /// The same with turns of another length: nine tenths of it, and 5 s at most, are a round's deadline.
    pub(crate) fn every(
        period: Duration,
        mut scenario: Scenario,
        change: impl FnOnce(&mut NvmlConfig),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        scenario.calls_path = Some(folder.path().join("calls"));
        let path = folder.path().join("scenario.toml");
        scenario.write(&path).expect("a scenario file");
        let kernel_list = folder.path().join("gpus");
        std::fs::create_dir(&kernel_list).expect("a folder");
        let mut config = NvmlConfig {
            library_path: library_path(),
            kernel_list_path: kernel_list,
            ..NvmlConfig::default()
        };
        change(&mut config);
        let spawner = Spawner {
            program: env!("CARGO_BIN_EXE_gpufleet-agent").into(),
            environment: vec![(SCENARIO_VARIABLE.into(), path.into())],
        };
        let (orders, receiver) = mpsc::channel(MAX_NVML_ORDERS);
        let mut wiring = Wiring::to_look(Arc::new(NodeFacts::for_tests()));
        wiring.nvml_orders = Some(receiver);
        let reader =
            Nvml::new(&config, period, spawner, &mut wiring).expect("a config that can be used");
        let bench = Self {
            scenario,
            reader,
            folder,
            users: wiring.users,
            orders,
            turns: 0,
        };
        bench.list_kernel_gpus();
        bench
    }

    /// Changes the scenario while the child runs, and waits until the library has seen it.
    pub(crate) async fn change(&mut self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.scenario);
        let path = self.folder.path().join("scenario.toml");
        self.scenario.write(&path).expect("a scenario file");
        self.list_kernel_gpus();
        // The library looks at the file every 20 ms.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }

    /// What the kernel driver would show under /proc.
    fn list_kernel_gpus(&self) {
        let list = self.folder.path().join("gpus");
        for entry in std::fs::read_dir(&list).expect("the list") {
            std::fs::remove_dir(entry.expect("an entry").path()).expect("an empty folder");
        }
        for slot in self.scenario.present() {
            std::fs::create_dir(list.join(format!("{slot}"))).expect("a folder");
        }
    }

    /// One turn, as the sample loop would give it: no longer than the deadline.
    pub(crate) async fn turn(&mut self) -> Result<Readings, ReadError> {
        self.turns += 1;
        let turn = Turn {
            at: Timestamp::from_seconds(1_000_000 + self.turns),
            monotonic: Duration::from_secs(self.turns as u64),
            node: Arc::new(NodeFacts::for_tests()),
        };
        let deadline = self.reader.deadline();
        tokio::time::timeout(deadline, self.reader.read(turn))
            .await
            .expect("a round ends before its deadline")
    }

    /// Lets time pass on the agent's clocks, for what it remembers.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.turns += time.as_secs() as i64;
    }

    /// A turn that must succeed.
    pub(crate) async fn read(&mut self) -> Round {
        Round(self.turn().await.expect("a round"))
    }

    /// Turns until the child has opened its GPUs, where turns are too short to be sure of it.
    pub(crate) async fn opened(&mut self) -> Round {
        for _ in 0..200 {
            let round = self.read().await;
            let there = self.scenario.present().len();
            let answers = |index| round.of(index, &gpu::TEMPERATURE) != Err(Missing::NotReady);
            if round.gpus().len() == there && round.gpus().into_keys().all(answers) {
                return round;
            }
        }
        panic!("the child never answers");
    }

    /// Turns until everything was read that is read at all, GPM's second sample and that no XID came
    /// included.
    pub(crate) async fn settled(&mut self) -> Round {
        let mut all = self.read().await;
        self.listens().await;
        tokio::time::sleep(Duration::from_millis(120)).await;
        all.add(self.read().await);
        all
    }

    /// Tells the reader to let go of the driver or to take it again, as a command does.
    pub(crate) async fn order(
        &mut self,
        action: NvmlAction,
    ) -> oneshot::Receiver<Result<(), String>> {
        let (done, told) = oneshot::channel();
        let order = NvmlOrder { action, done };
        self.orders.send(order).await.expect("the reader lives");
        told
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> CallTable {
        let path = self.scenario.calls_path.as_ref().expect("set by the bench");
        CallTable::open(path).expect("the call table")
    }

    /// Waits until the child waits for XIDs of every GPU: those before are not told.
    pub(crate) async fn listens(&self) {
        let calls = self.calls();
        for _ in 0..1_000 {
            if calls.of(None, "nvmlEventSetWait_v2") > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the child never waits for XIDs");
    }

    /// What the stand-in says of a GPU at the scenario's fixed time.
    pub(crate) fn says(&self, slot: u8) -> (load::Values, &Gpu, &'static Model) {
        let gpu = self.scenario.slot(usize::from(slot)).expect("a slot");
        let model = models::by_name(&gpu.model);
        let time_s = self.scenario.time_s.expect("a fixed time");
        (load::values(gpu, model, slot, time_s), gpu, model)
    }
}

/// What one turn returned, by GPU index.
pub(crate) struct Round(pub(crate) Readings);

impl Round {
    /// The same with what a later turn told.
    pub(crate) fn add(&mut self, later: Self) {
        for new in later.0.resources {
            match self
                .0
                .resources
                .iter_mut()
                .find(|it| it.resource.id == new.resource.id)
            {
                Some(old) => {
                    let told = |it: &gpufleet_telemetry::sample::Sample| {
                        new.samples
                            .iter()
                            .any(|new| (new.metric, &new.part) == (it.metric, &it.part))
                    };
                    old.samples.retain(|it| !told(it));
                    old.samples.extend(new.samples);
                    old.resource = new.resource;
                }
                None => self.0.resources.push(new),
            }
        }
        self.0.events.extend(later.0.events);
    }

    /// The GPUs by index.
    pub(crate) fn gpus(&self) -> BTreeMap<u32, &ResourceSamples> {
        let of_kind = |it: &&ResourceSamples| it.resource.kind == ResourceKind::Gpu;
        self.0
            .resources
            .iter()
            .filter(of_kind)
            .map(|it| (index(&it.resource), it))
            .collect()
    }

    /// The GPU with this index.
    pub(crate) fn gpu(&self, index: u32) -> &ResourceSamples {
        self.gpus()
            .get(&index)
            .copied()
            .unwrap_or_else(|| panic!("GPU {index} was not told of"))
    }

    /// One reading of a GPU.
    pub(crate) fn of(&self, index: u32, metric: &Metric) -> Reading {
        reading(self.gpu(index), metric, None)
    }

    /// The kinds of the events, in order.
    pub(crate) fn kinds(&self) -> Vec<EventKind> {
        self.0.events.iter().map(|event| event.kind).collect()
    }

    /// The one event of a kind.
    pub(crate) fn event(&self, kind: EventKind) -> &Event {
        let events: Vec<_> = self.0.events.iter().filter(|it| it.kind == kind).collect();
        assert_eq!(events.len(), 1, "events {:?}", self.0.events);
        events[0]
    }
}

/// The index attribute of a GPU or share.
pub(crate) fn index(resource: &Resource) -> u32 {
    resource
        .attribute("gpufleet.gpu.index")
        .and_then(|index| index.parse().ok())
        .expect("every GPU has an index")
}

/// One reading of a resource or of a part of it.
pub(crate) fn reading(of: &ResourceSamples, metric: &Metric, part: Option<&str>) -> Reading {
    let found: Vec<_> = of
        .samples
        .iter()
        .filter(|it| it.metric == metric.id && it.part.as_ref().map(|it| &*it.id) == part)
        .collect();
    match found.as_slice() {
        [one] => one.reading,
        [] => panic!(
            "{} {part:?} was not told of {}",
            metric.name, of.resource.id
        ),
        _ => panic!(
            "{} {part:?} was told twice of {}",
            metric.name, of.resource.id
        ),
    }
}

/// Whether a reading is the value, to the rounding of its unit.
pub(crate) fn assert_close(read: Reading, expected: f64, what: &str) {
    let value = read.unwrap_or_else(|missing: Missing| panic!("{what}: {missing}"));
    let tolerance = expected.abs() * 1e-9 + 1e-9;
    assert!(
        (value - expected).abs() <= tolerance,
        "{what}: {value}, expected {expected}"
    );
}
