//! Who is probed by itself and when, and what is told.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_agent::attribute::users::Users;
use gpufleet_agent::probe::ProbeConfig;
use gpufleet_agent::probe::inside::{Found, Inside};
use gpufleet_agent::probe::measured::Measured;
use gpufleet_agent::probe::process::Spawner;
use gpufleet_agent::probe::ptx::Work;
use gpufleet_agent::probe::reader::{MAX_ORDERS, ProbeOrder, Probing};
use gpufleet_agent::probe::verdict::{Judgement, Verdict};
use gpufleet_agent::probe::wrong::{Reach, Works};
use gpufleet_agent::read::{NodeFacts, Read, Turn};
use gpufleet_standin_cuda::Fault;
use gpufleet_telemetry::catalog::{Metric, gpu, own};
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::{Part, PartKind, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Readings, ResourceSamples, Sample};
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::bench::{AGENT, Bench, GPU};

/// A reader over a machine.
struct Probed {
    users: Arc<Users>,
    reader: Probing,
    orders: mpsc::Sender<ProbeOrder>,
    inside: Arc<Inside>,
    /// The machine's files live as long.
    _bench: Bench,
}

fn over(bench: Bench) -> Probed {
    let users: Arc<Users> = Arc::default();
    let (orders, given) = mpsc::channel(MAX_ORDERS);
    let config = ProbeConfig {
        region_mib: 64,
        deadline_seconds: 100,
        ..ProbeConfig::default()
    };
    let library = bench.order.nvml_library.clone();
    let inside: Arc<Inside> = Arc::default();
    let of_reader = Arc::clone(&inside);
    let reader = Probing::new(&config, library, Arc::clone(&users), of_reader, given);
    let reader = reader.with_spawner(Spawner {
        program: AGENT.into(),
        environment: bench.environment(),
    });
    Probed {
        users,
        reader,
        orders,
        inside,
        _bench: bench,
    }
}

/// What NVML tells of a GPU with these processes; none: it does not say.
fn card(id: &str, processes: Option<&[&str]>) -> ResourceSamples {
    let mut samples: Vec<Sample> = processes
        .iter()
        .flat_map(|it| it.iter())
        .map(|pid| Sample {
            metric: gpu::PROCESS_MEMORY.id,
            part: Some(Part::new(PartKind::Process, *pid)),
            reading: Ok(1.0),
        })
        .collect();
    samples.extend(processes.map(|it| Sample {
        metric: gpu::PROCESSES.id,
        part: None,
        reading: Ok(it.len() as f64),
    }));
    ResourceSamples {
        resource: Arc::new(Resource::new(ResourceKind::Gpu, id)),
        samples,
    }
}

/// The same of a share of one.
fn share(id: &str, parent: &str, processes: &[&str]) -> ResourceSamples {
    let mut told = card(id, Some(processes));
    let resource = Resource::new(ResourceKind::Share, id).with(attribute::PARENT, parent);
    told.resource = Arc::new(resource);
    told
}

impl Probed {
    async fn turn(&mut self, minutes: u64) -> Readings {
        let turn = Turn {
            at: Timestamp::from_seconds(1_000_000 + minutes as i64 * 60),
            monotonic: Duration::from_secs(minutes * 60),
            node: Arc::new(NodeFacts::for_tests()),
        };
        self.reader
            .read(turn)
            .await
            .expect("it never fails as a whole")
    }

    /// Turns until something is told of a GPU, or the run has had time to end.
    async fn told(&mut self, minutes: u64) -> Readings {
        for _ in 0..2_000 {
            let readings = self.turn(minutes).await;
            if !readings.events.is_empty() {
                return readings;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("nothing was told");
    }

    fn ask(
        &self,
        gpu: &str,
    ) -> oneshot::Receiver<Result<gpufleet_agent::probe::verdict::Judgement, String>> {
        let (done, answer) = oneshot::channel();
        let order = ProbeOrder {
            gpu: gpu.to_owned(),
            done,
        };
        self.orders.try_send(order).expect("there is room");
        answer
    }
}

fn value(readings: &Readings, metric: &Metric) -> Option<f64> {
    let samples = readings.resources.iter().flat_map(|it| &it.samples);
    let sample = samples.into_iter().find(|it| it.metric == metric.id)?;
    sample.reading.ok()
}

#[tokio::test]
async fn an_idle_gpu_is_probed_when_it_is_due_and_its_last_result_is_told_every_minute() {
    let mut probed = over(Bench::new());
    probed.users.note(&[card(GPU, Some(&[]))]);
    assert!(
        probed.turn(0).await.resources.is_empty(),
        "nothing is known yet"
    );
    // The first is due within ten minutes.
    let readings = probed.told(11).await;
    assert_eq!(readings.events[0].kind, EventKind::Probed);
    assert_eq!(readings.events[0].attributes["verdict"], "pass");
    assert_eq!(value(&readings, &own::PROBE_VERDICT), Some(1.0));
    assert!(value(&readings, &own::PROBE_MEMORY_RATE).is_some_and(|it| it > 1e12));
    let later = probed.turn(12).await;
    assert_eq!(value(&later, &own::PROBE_VERDICT), Some(1.0));
    assert!(later.events.is_empty(), "it is told once");
    probed.users.note(&[]);
    assert!(
        probed.turn(12).await.resources.is_empty(),
        "the GPU has gone"
    );
}

#[tokio::test]
async fn an_idle_neighbour_is_copied_to_and_one_that_is_used_is_not() {
    for (processes, expected) in [(&[][..], Some(370e9)), (&["77"], None)] {
        let mut probed = over(Bench::new());
        let other = card("GPU-other", Some(processes));
        probed.users.note(&[card(GPU, Some(&[])), other]);
        let answer = probed.ask(GPU);
        let readings = probed.told(0).await;
        let judgement = answer.await.expect("an answer").expect("it was probed");
        assert_eq!(judgement.verdict, Verdict::Pass, "{}", judgement.reason);
        let rate = value(&readings, &own::PROBE_PEERS_RATE);
        assert_eq!(rate.map(|it| (it / 1e9).round() * 1e9), expected);
    }
}

#[tokio::test]
async fn a_gpu_that_is_used_or_split_or_not_known_is_left_alone() {
    let mut probed = over(Bench::new());
    probed.users.note(&[
        card("GPU-used", Some(&["77"])),
        card("GPU-unknown", None),
        card("GPU-split", Some(&[])),
        share("MIG-1", "GPU-split", &["78"]),
        share("GPU-shared::1", "GPU-shared", &[]),
    ]);
    for minutes in [0, 30, 60] {
        probed.turn(minutes).await;
        // A run that was begun would have said so by then: the child is there at once.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let debug = format!("{:?}", probed.reader);
        assert!(debug.contains("running: None"), "{debug}");
    }
}

#[tokio::test]
async fn an_instance_of_mig_that_nobody_uses_is_probed_and_its_card_is_not() {
    const SLICE: &str = "MIG-5eed0000-0000-4000-8000-000000000001";
    let mut bench = Bench::new();
    bench.nvml.gpus[0].mig = vec!["1g.10gb".to_owned()];
    let mut probed = over(bench);
    probed
        .users
        .note(&[card(GPU, Some(&[])), share(SLICE, GPU, &[])]);
    probed.turn(0).await;
    let readings = probed.told(11).await;
    assert_eq!(&*readings.events[0].resource_id, SLICE);
    let verdict = &readings.events[0].attributes["verdict"];
    assert_eq!(verdict, "pass", "{:?}", readings.events[0]);
    let told: Vec<&str> = readings
        .resources
        .iter()
        .map(|it| &*it.resource.id)
        .collect();
    assert_eq!(told, [SLICE]);
}

#[tokio::test]
async fn what_a_training_process_found_is_told_as_the_gpus_own_and_looked_at_once_it_is_idle() {
    let mut probed = over(Bench::new());
    probed.users.note(&[card(GPU, Some(&["77"]))]);
    probed.turn(0).await;
    let found = |minutes: i64, verdict, sm| Found {
        at: Timestamp::from_seconds(1_000_000 + minutes * 60),
        rank: Arc::from("research/llama/0c1d/0/3"),
        judgement: Judgement {
            verdict,
            reason: "3 wrong results of bf16 on SM 4".to_owned(),
            sm,
        },
        measured: Measured {
            gpu_seconds: 0.002,
            ..Measured::default()
        },
        reach: Reach {
            right: Works::of(Work::ALL.into_iter().filter(|it| *it != Work::Bf16)),
            wrong: Works::of((verdict == Verdict::Fail).then_some(Work::Bf16)),
            checked_bytes: 64 << 20,
            is_alone: false,
            link: None,
        },
    };
    for (seconds, verdict) in [(0, Verdict::Pass), (1, Verdict::CouldNotMeasure)] {
        let ordinary = Found {
            at: Timestamp::from_seconds(1_000_000 + seconds),
            ..found(0, verdict, None)
        };
        probed.inside.note(GPU, ordinary);
        let readings = probed.turn(0).await;
        assert!(readings.events.is_empty(), "{:?}", readings.events);
        let number = f64::from(verdict.number());
        assert_eq!(value(&readings, &own::PROBE_VERDICT), Some(number));
    }
    probed.inside.note(GPU, found(1, Verdict::Fail, Some(4)));
    probed
        .inside
        .note("GPU-elsewhere", found(1, Verdict::Fail, None));
    let readings = probed.turn(1).await;
    let [event] = &readings.events[..] else {
        panic!("one event: {:?}", readings.events);
    };
    assert_eq!(event.kind, EventKind::Probed);
    assert!(
        event.message.contains("inside a training process"),
        "{}",
        event.message
    );
    assert_eq!(event.attributes["rank"], "research/llama/0c1d/0/3");
    assert_eq!(value(&readings, &own::PROBE_VERDICT), Some(3.0));
    assert_eq!(value(&readings, &own::PROBE_SM), Some(4.0));
    assert_eq!(value(&readings, &own::PROBE_AT), Some(1_000_060.0));
    assert_eq!(value(&readings, &own::PROBE_GPU_TIME), Some(0.002));
    assert_eq!(value(&readings, &own::PROBE_MEMORY_RATE), None);
    // Older ones say nothing any more, and what could not be measured does not undo it.
    probed.inside.note(GPU, found(0, Verdict::Pass, None));
    probed.turn(1).await;
    probed
        .inside
        .note(GPU, found(2, Verdict::CouldNotMeasure, None));
    let readings = probed.turn(2).await;
    assert!(readings.events.is_empty(), "{:?}", readings.events);
    assert_eq!(value(&readings, &own::PROBE_VERDICT), Some(3.0));
    // Nor does a pass that did not get to all SMs with what was wrong.
    probed.inside.note(GPU, found(3, Verdict::Pass, None));
    let readings = probed.turn(2).await;
    assert!(readings.events.is_empty(), "{:?}", readings.events);
    assert_eq!(value(&readings, &own::PROBE_VERDICT), None, "nothing new");
    // One that did is its end, and a failure of the same the next.
    let mut whole = found(4, Verdict::Pass, None);
    whole.reach.right = Works::of(Work::ALL);
    probed.inside.note(GPU, whole);
    let readings = probed.turn(2).await;
    assert_eq!(readings.events.len(), 1, "{:?}", readings.events);
    assert_eq!(value(&readings, &own::PROBE_VERDICT), Some(1.0));
    probed.inside.note(GPU, found(5, Verdict::Fail, Some(4)));
    probed.turn(2).await;
    // The process has gone: the agent looks for itself, now and not when the GPU would have been due.
    probed.users.note(&[card(GPU, Some(&[]))]);
    let readings = probed.told(2).await;
    assert_eq!(readings.events[0].attributes["verdict"], "pass");
    assert_eq!(value(&readings, &own::PROBE_VERDICT), Some(1.0));
}

#[tokio::test]
async fn who_asks_gets_the_verdict_with_the_sm_and_of_no_such_gpu_the_reason() {
    let mut probed = over(Bench::with(Fault::Wrong(
        "gpufleet_arithmetic".to_owned(),
        5,
    )));
    probed.users.note(&[card(GPU, Some(&[]))]);
    let answer = probed.ask(GPU);
    let readings = probed.told(0).await;
    let judgement = answer.await.expect("an answer").expect("it was probed");
    assert_eq!((judgement.verdict, judgement.sm), (Verdict::Fail, Some(5)));
    assert_eq!(readings.events[0].attributes["sm"], "5");
    assert_eq!(value(&readings, &own::PROBE_SM), Some(5.0));
    let answer = probed.ask("GPU-elsewhere");
    probed.turn(0).await;
    let why = answer.await.expect("an answer").expect_err("no such GPU");
    assert!(why.contains("no such GPU"), "{why}");
}
