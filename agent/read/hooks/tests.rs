//! Training processes as the agent meets them: one that trains, one that dies, and bad ones.

use std::path::Path;

use gpufleet_hooks_shm::client::{self, Options};
use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::reader::Reader;
use gpufleet_hooks_shm::records::{
    Collective, Communicator, End, Exception, Identity, Reading, Step,
};
use gpufleet_hooks_shm::server::Peer;
use gpufleet_hooks_shm::words::{EndKind, Function, Phase, WriterKind};
use gpufleet_hooks_shm::writer::Writer;
use gpufleet_telemetry::catalog::{self, training};
use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::attribute as about;

use super::*;

#[path = "tests/bursts.rs"]
mod bursts;

#[path = "tests/ended.rs"]
mod ended;

#[path = "tests/probe.rs"]
mod probe;

#[path = "tests/profiles.rs"]
mod profiled;

#[path = "tests/steps.rs"]
mod steps;

#[path = "tests/together.rs"]
mod together;

/// How long anything here may take before it has failed.
const LONGEST_NS: u64 = 60_000_000_000;

/// A process id that no process has: pids end at 4,194,304.
const NOBODY: i32 = 5_000_000;

fn hooks(folder: &Path) -> Hooks {
    let config = HooksConfig {
        socket_path: folder.join("hooks.sock"),
        ..HooksConfig::default()
    };
    Hooks::new(&config, Duration::from_secs(1), Arc::default(), None).expect("it is enabled")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn round(hooks: &mut Hooks) -> Readings {
    round_at(hooks, Timestamp(unix_ns()))
}

fn round_at(hooks: &mut Hooks, at: Timestamp) -> Readings {
    let turn = Turn {
        at,
        monotonic: Duration::ZERO,
        node: Arc::new(NodeFacts::for_tests()),
    };
    hooks.round(&turn).expect("a round")
}

/// A process with its own region, in a container of its own name.
fn joins(hooks: &mut Hooks, number: i32, group: &str) -> Writer {
    let writer = Writer::create(WriterKind::Python).expect("a region");
    joins_with(hooks, number, group, writer);
    writer
}

fn joins_with(hooks: &mut Hooks, number: i32, group: &str, writer: Writer) {
    let peer = Peer {
        pid: NOBODY + number,
        uid: 1,
        gid: 1,
        start_ticks: 7,
        group: group.to_owned(),
    };
    let reader = Reader::new(writer.file().expect("a file")).expect("a region");
    let id = ClientId(hooks.clients.len() as u64);
    hooks.join(Client { id, peer, reader });
}

fn identity(rank: i64) -> Identity {
    Identity {
        job_name: "llama".to_owned(),
        attempt: 0,
        rank,
        world: 1_000,
        ..Identity::default()
    }
}

fn step(number: u64) -> Step {
    Step {
        step: number,
        ended_at: unix_ns(),
        wall_ns: 1_000_000_000,
        busy_ns: 600_000_000,
        data_wait_ns: 400_000_000,
        tokens: 10,
        ..Step::default()
    }
}

/// The value of a metric of one rank; none where there is none.
fn value(readings: &Readings, rank: &str, metric: &Metric) -> Option<f64> {
    let of_rank = |it: &&ResourceSamples| {
        it.resource.kind == ResourceKind::Rank
            && it.resource.attribute(attribute::RANK) == Some(rank)
    };
    let samples = &readings.resources.iter().find(of_rank)?.samples;
    samples
        .iter()
        .find(|it| it.metric == metric.id)?
        .reading
        .ok()
}

fn kinds(events: &[Event]) -> Vec<EventKind> {
    events.iter().map(|it| it.kind).collect()
}

#[test]
fn nothing_is_read_and_nothing_fails_where_the_folder_is_not_there() {
    let folder = folder();
    let mut hooks = hooks(&folder.path().join("absent"));
    assert_eq!(round(&mut hooks).resources, Vec::new());
    std::fs::create_dir(folder.path().join("absent")).expect("a folder");
    assert_eq!(
        round(&mut hooks).resources.len(),
        1,
        "it listens from now on"
    );
}

#[test]
fn a_second_agent_on_the_socket_is_told_so() {
    let folder = folder();
    let mut first = hooks(folder.path());
    round(&mut first);
    let mut second = hooks(folder.path());
    let turn = Turn {
        at: Timestamp(unix_ns()),
        monotonic: Duration::ZERO,
        node: Arc::new(NodeFacts::for_tests()),
    };
    let error = second.round(&turn).expect_err("it is taken").to_string();
    assert!(error.contains("another agent"), "{error}");
    drop(first);
    second.round(&turn).expect("it is free");
}

#[tokio::test]
async fn a_process_that_connects_is_read_with_all_that_it_wrote_before_there_was_an_agent() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let client = client::Client::start(Options {
        socket: folder.path().join("hooks.sock"),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(10),
        ..Options::new(WriterKind::Python)
    });
    let writer = client.writer();
    writer.identity(&identity(3));
    (1..=5).for_each(|it| writer.step(&step(it)));
    let end = monotonic_ns() + LONGEST_NS;
    let readings = loop {
        let readings = round(&mut hooks);
        if value(&readings, "3", &training::STEPS).is_some() {
            break readings;
        }
        assert!(monotonic_ns() < end, "it never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(value(&readings, "3", &training::STEPS), Some(5.0));
    assert_eq!(value(&readings, "3", &training::TOKENS), Some(50.0));
    let rank = readings.resources.iter();
    let rank = rank
        .map(|it| &it.resource)
        .find(|it| it.kind == ResourceKind::Rank);
    let pid = std::process::id().to_string();
    let rank = rank.expect("the rank");
    assert_eq!(rank.attribute(attribute::PID), Some(pid.as_str()));
    assert_eq!(rank.attribute(attribute::TRUST), Some("claimed"));
    assert_eq!(&*rank.id, "/llama//0/3");
}

#[test]
fn what_a_rank_says_becomes_readings_and_what_it_does_not_say_none() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&identity(0));
    (1..=3).for_each(|it| writer.step(&step(it)));
    writer.spent(Phase::Backward, 2_000_000_000);
    writer.enter(Phase::DataWait, unix_ns() - 5_000_000_000);
    let loss = |value| Reading {
        value,
        step: 3,
        at: unix_ns(),
    };
    writer.loss(loss(2.5));
    writer.gradient_norm(loss(f64::NAN));
    let readings = round(&mut hooks);
    let check = |metric: &Metric, expected: Option<f64>| {
        assert_eq!(value(&readings, "0", metric), expected, "{}", metric.name);
    };
    check(&training::STEPS, Some(3.0));
    check(&training::STEP_WALL, Some(3.0));
    check(&training::LAST_STEP, Some(3.0));
    check(&training::PHASE_BACKWARD, Some(2.0));
    check(&training::PHASE_NOW, Some(1.0));
    check(&training::LOSS, Some(2.5));
    check(&training::GRADIENT_NORM, None);
    check(&training::SAMPLES, None);
    check(&training::COLLECTIVES_IN_FLIGHT, None);
    check(&training::MEMORY_ALLOCATED, None);
    let age = value(&readings, "0", &training::PHASE_AGE).expect("an age");
    assert!(age >= 4.9, "{age}");
}

#[test]
fn a_rank_is_on_the_gpu_that_the_driver_lists_its_process_on_and_not_where_it_says() {
    let folder = folder();
    let users = Arc::<Users>::default();
    let config = HooksConfig {
        socket_path: folder.path().join("hooks.sock"),
        ..HooksConfig::default()
    };
    let period = Duration::from_secs(1);
    let hooks = Hooks::new(&config, period, Arc::clone(&users), None);
    let mut hooks = hooks.expect("it is enabled");
    joins(&mut hooks, 0, "/a").identity(&Identity {
        gpu_uuid: "GPU-b".to_owned(),
        ..identity(0)
    });
    let gpu = |hooks: &mut Hooks| {
        let mut ranks = round(hooks).resources.into_iter();
        let of_rank = |it: &ResourceSamples| it.resource.kind == ResourceKind::Rank;
        let rank = ranks.find(of_rank).expect("a rank").resource;
        let of = |name| rank.attribute(name).unwrap_or_default().to_owned();
        (of(attribute::GPU_ID), of(attribute::GPU_SOURCE))
    };
    assert_eq!(gpu(&mut hooks), ("GPU-b".to_owned(), "claimed".to_owned()));
    let part = Part::new(PartKind::Process, NOBODY.to_string());
    users.note(&[ResourceSamples {
        resource: Arc::new(Resource::new(ResourceKind::Gpu, "GPU-a")),
        samples: vec![Sample {
            metric: catalog::gpu::PROCESS_MEMORY.id,
            part: Some(part),
            reading: Ok(1.0),
        }],
    }]);
    assert_eq!(gpu(&mut hooks), ("GPU-a".to_owned(), "proved".to_owned()));
}

#[test]
fn python_and_nccl_of_one_process_are_one_rank() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let python = joins(&mut hooks, 0, "/a");
    python.identity(&identity(2));
    python.step(&step(1));
    let nccl = Writer::create(WriterKind::Nccl).expect("a region");
    joins_with(&mut hooks, 0, "/a", nccl);
    let communicator = Communicator {
        hash: 7,
        ranks: 4,
        ..Communicator::default()
    };
    let index = nccl.communicator(&communicator).expect("a place");
    let collective = Collective {
        communicator: index,
        number: 1,
        function: Function::AllReduce,
        data_type: gpufleet_hooks_shm::words::DataType::Bfloat16,
        channels: 16,
        bytes: 1_000,
        started_at: unix_ns() - 30_000_000_000,
        peer: -1,
        duration_ns: 0,
        wait_ns: 0,
    };
    nccl.collective_begun(&collective).expect("a place");
    let readings = round(&mut hooks);
    assert_eq!(value(&readings, "2", &training::STEPS), Some(1.0));
    assert_eq!(
        value(&readings, "2", &training::COLLECTIVES_IN_FLIGHT),
        Some(1.0)
    );
    let age = value(&readings, "2", &training::COLLECTIVE_OLDEST_AGE).expect("an age");
    assert!(age >= 29.9, "{age}");
}

#[test]
fn a_run_is_told_from_its_start_to_its_end_and_each_thing_once() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&identity(1));
    assert_eq!(
        kinds(&round(&mut hooks).events),
        [],
        "the fingerprint may still come"
    );
    writer.fingerprint(&[("torch", "2.9.1")]);
    let events = round(&mut hooks).events;
    assert_eq!(kinds(&events), [EventKind::RunStarted]);
    assert_eq!(events[0].attributes[about::FINGERPRINT], "torch=2.9.1\n");
    writer.fingerprint(&[("torch", "2.9.2")]);
    writer.checkpoint_saved(40, 3_000_000_000, unix_ns());
    let events = round(&mut hooks).events;
    assert_eq!(
        kinds(&events),
        [EventKind::FingerprintChanged, EventKind::CheckpointSaved]
    );
    assert_eq!(events[1].attributes[about::STEP], "40");
    writer.step(&step(44));
    writer.exception(&Exception {
        at: unix_ns(),
        rank: 1,
        step: 44,
        kind: "RuntimeError".to_owned(),
        message: "CUDA error".to_owned(),
        traceback: "line 7".to_owned(),
    });
    let at = unix_ns();
    writer.end(End {
        kind: EndKind::Exception,
        at,
        exit_status: 1,
        step: 44,
    });
    let events = round(&mut hooks).events;
    assert_eq!(kinds(&events), [EventKind::RankException], "it still lives");
    assert_eq!(events[0].attributes[about::TRACEBACK], "line 7");
    let events = round_at(&mut hooks, Timestamp(at + 10_000_000_000)).events;
    assert_eq!(kinds(&events), [EventKind::RunEnded]);
    let ended = &events[0].attributes;
    assert_eq!(events[0].at, Timestamp(at));
    assert_eq!(ended[about::ENDED], "exception");
    assert_eq!(ended[about::EXIT_STATUS], "1");
    assert_eq!(ended[about::STEP], "44");
    assert_eq!(ended[about::CHECKPOINT_STEP], "40");
    assert_eq!(kinds(&round(&mut hooks).events), []);
}

#[test]
fn a_process_that_went_without_a_word_has_its_last_state_told_and_is_forgotten() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let writer = joins(&mut hooks, 0, "/a");
    writer.identity(&identity(1));
    round(&mut hooks);
    writer.step(&step(9));
    writer.enter(Phase::Communication, unix_ns());
    // Its connection is over, and no process has its pid.
    hooks.clients.clear();
    let readings = round(&mut hooks);
    assert_eq!(
        kinds(&readings.events),
        [EventKind::RunStarted, EventKind::RunEnded]
    );
    let ended = &readings.events[1].attributes;
    assert_eq!(ended[about::ENDED], "vanished");
    assert_eq!(ended[about::STEP], "9");
    assert_eq!(ended[about::PHASE], "communication");
    assert_eq!(
        value(&readings, "1", &training::STEPS),
        Some(1.0),
        "its last word"
    );
    let after = round(&mut hooks);
    assert_eq!(value(&after, "1", &training::STEPS), None);
    assert!(after.events.is_empty() && hooks.processes.is_empty());
}

/// What a bad process does, as number 1 beside a good one that is rank 0.
type Misdeed = fn(&mut Hooks);

#[test]
fn a_bad_process_is_refused_by_reason_and_a_good_one_beside_it_is_read_as_before() {
    let cases: [(&str, Misdeed); 6] = [
        ("taken_identity", |hooks| {
            let writer = joins(hooks, 1, "/bad");
            writer.identity(&identity(0));
            (0..100).for_each(|it| writer.step(&step(it)));
        }),
        ("other_identity", |hooks| {
            let writer = joins(hooks, 1, "/bad");
            writer.identity(&identity(1));
            round(hooks);
            writer.identity(&identity(2));
        }),
        ("processes", |hooks| {
            for number in 1..=40 {
                joins(hooks, number, "/bad");
            }
        }),
        ("parts", |hooks| {
            let writer = joins(hooks, 1, "/bad");
            writer.identity(&identity(1));
            writer.step(&Step {
                busy_ns: u64::MAX,
                ..step(1)
            });
        }),
        ("time", |hooks| {
            let writer = joins(hooks, 1, "/bad");
            writer.identity(&identity(1));
            writer.step(&Step {
                ended_at: -1,
                ..step(1)
            });
        }),
        ("new_identities", |hooks| {
            for number in 0..=ranks::MAX_NEW_OF_GROUP as i64 {
                let pid = number as i32 + 1;
                joins(hooks, pid, "/bad").identity(&identity(number + 1));
                round(hooks);
                hooks.clients.retain(|_, id| id.pid == NOBODY);
                round(hooks);
            }
        }),
    ];
    for (reason, misdeed) in cases {
        let folder = folder();
        let mut hooks = hooks(folder.path());
        let good = joins(&mut hooks, 0, "/good");
        good.identity(&identity(0));
        (1..=5).for_each(|it| good.step(&step(it)));
        round(&mut hooks);
        misdeed(&mut hooks);
        let readings = round(&mut hooks);
        assert!(
            hooks.refused.contains_key(reason),
            "{reason}: {:?}",
            hooks.refused
        );
        let steps = value(&readings, "0", &training::STEPS);
        assert_eq!(steps, Some(5.0), "{reason}");
        let own = readings.resources.last().expect("the agent's own numbers");
        let told = |it: &&Sample| it.part.as_ref().is_some_and(|it| &*it.id == reason);
        assert!(
            own.samples.iter().any(|it| told(&it)),
            "{reason} is not told"
        );
        let good = readings
            .resources
            .iter()
            .filter(|it| it.resource.kind == ResourceKind::Rank);
        assert!(good.count() <= MAX_RANKS);
    }
}

#[test]
fn who_proves_to_be_a_rank_takes_it_from_who_only_claims_it() {
    let folder = folder();
    let mut hooks = hooks(folder.path());
    let mine = Identity {
        job_uid: "77".to_owned(),
        ..identity(0)
    };
    let claims = joins(&mut hooks, 0, "/user.slice");
    claims.identity(&mine);
    (1..=9).for_each(|it| claims.step(&step(it)));
    assert_eq!(value(&round(&mut hooks), "0", &training::STEPS), Some(9.0));
    let proves = joins(&mut hooks, 1, "/slurm/uid_1/job_77/step_0");
    proves.identity(&mine);
    proves.step(&step(1));
    round(&mut hooks);
    let readings = round(&mut hooks);
    let ranks = readings
        .resources
        .iter()
        .filter(|it| it.resource.kind == ResourceKind::Rank);
    let trusts: Vec<_> = ranks
        .map(|it| it.resource.attribute(attribute::TRUST))
        .collect();
    assert_eq!(trusts, [Some("proved")]);
    assert_eq!(value(&readings, "0", &training::STEPS), Some(1.0));
    assert!(hooks.refused.contains_key("taken_identity"));
}
