//! A region from both sides: what one writes the other reads, whole, and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use gpufleet_hooks_shm::layout::{COMMUNICATORS, IN_FLIGHT, STEPS, fields};
use gpufleet_hooks_shm::process::unix_ns;
use gpufleet_hooks_shm::reader::{ReadError, Reader, Reason};
use gpufleet_hooks_shm::records::*;
use gpufleet_hooks_shm::words::*;
use gpufleet_hooks_shm::writer::Writer;

#[path = "region/garbage.rs"]
mod garbage;

#[path = "region/readings.rs"]
mod readings;

/// A writer, a reader of its region, and the file between them.
fn region() -> (Writer, Reader, File) {
    let writer = Writer::create(WriterKind::Rust).expect("a region");
    let file = File::from(writer.file().expect("its file"));
    let reader = Reader::new(&file).expect("a region");
    (writer, reader, file)
}

/// A step whose every number follows from its own.
fn step(number: u64, at: i64) -> Step {
    Step {
        step: number,
        ended_at: at,
        wall_ns: 100 + number,
        busy_ns: number % 50,
        data_wait_ns: number % 7,
        comm_wait_ns: number % 11,
        checkpoint_ns: number % 3,
        evaluation_ns: number % 5,
        tokens: number * 2,
        samples: number * 3,
        model_flops: number as f64,
    }
}

/// Where a field lies.
fn offset(path: &str) -> u64 {
    let field = fields().into_iter().find(|it| it.path == path);
    field.expect("a field").offset as u64
}

fn put(file: &File, path: &str, value: u64) {
    file.write_all_at(&value.to_le_bytes(), offset(path))
        .expect("the file takes it");
}

#[test]
fn every_section_comes_back_as_it_was_written() {
    let (writer, mut reader, _file) = region();
    let now = unix_ns();
    let identity = Identity {
        cluster: "north".to_owned(),
        job_name: "größer".to_owned(),
        job_uid: "0c1d".to_owned(),
        rank: 7,
        world: 16,
        mesh: Mesh {
            source: MeshSource::Megatron,
            tp: Axis {
                coordinate: 3,
                size: 4,
            },
            ..Mesh::default()
        },
        gpu_uuid: "GPU-1".to_owned(),
        cuda_device: 3,
        ..Identity::default()
    };
    let plan = Plan {
        total_steps: 1000,
        deadline_at: now + 1_000_000,
        flops_per_step: 1e15,
        flops_source: FlopsSource::ModelShape,
        dtype: "bf16".to_owned(),
        ..Plan::default()
    };
    let memory = Memory {
        at: now,
        allocated_bytes: 5,
        reserved_bytes: 9,
        peak_allocated_bytes: 6,
        peak_reserved_bytes: 9,
        limit_bytes: 80,
        retries: 1,
        out_of_memory: 2,
    };
    let exception = Exception {
        at: now,
        rank: 7,
        step: 12,
        kind: "RuntimeError".to_owned(),
        message: "CUDA error".to_owned(),
        traceback: "a\nb\n".to_owned(),
    };
    let end = End {
        kind: EndKind::Exception,
        at: now,
        exit_status: 1,
        step: 12,
    };
    let loss = Reading {
        value: f64::NAN,
        step: 12,
        at: now,
    };
    writer.identity(&identity);
    writer.plan(&plan);
    writer.memory(&memory);
    writer.exception(&exception);
    writer.end(end);
    writer.loss(loss);
    writer.scaler_skipped(2);
    writer.checkpoint_saved(10, 5, now);
    writer.checkpoint_saved(11, 7, now);
    writer.checkpoint_failed();
    writer.fingerprint(&[("torch", "2.9.1")]);
    writer.fingerprint(&[("torch", "2.9.2"), ("nccl", "2.27")]);
    writer.spent(Phase::Forward, 40);
    writer.spent(Phase::Forward, 2);
    let outer = writer.enter(Phase::Backward, now);
    let inner = writer.enter(Phase::Communication, now + 640);

    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.refused, Default::default());
    assert_eq!(snapshot.identity, Some(identity));
    assert_eq!(snapshot.plan, Some(plan));
    assert_eq!(snapshot.memory, Some(memory));
    assert_eq!(snapshot.exception, Some(exception));
    assert_eq!(snapshot.end, Some(end));
    assert!(snapshot.learning.loss.is_some_and(|it| it.value.is_nan()));
    assert_eq!(snapshot.learning.non_finite_losses, 1);
    assert_eq!(snapshot.learning.gradient_norm, None);
    assert_eq!(snapshot.learning.scaler_skips, 2);
    let saved = snapshot.checkpoint_saved.expect("a checkpoint");
    assert_eq!((saved.count, saved.total_ns, saved.failures), (2, 12, 1));
    assert_eq!((saved.last_step, saved.last_ns), (11, 7));
    assert_eq!(snapshot.checkpoint_restored, None);
    let fingerprint = snapshot.fingerprint.expect("a fingerprint");
    assert_eq!(fingerprint.generation, 2);
    assert_eq!(fingerprint.pairs[1], ("nccl".to_owned(), "2.27".to_owned()));
    assert_eq!(snapshot.phases.len(), 1);
    assert_eq!(
        (snapshot.phases[0].total_ns, snapshot.phases[0].count),
        (42, 2)
    );
    assert_eq!(outer, None);
    let in_phase = snapshot.now.expect("a phase");
    assert_eq!(in_phase.phase, Phase::Communication);
    assert!((0..64).contains(&(now + 640 - in_phase.since)));
    writer.back_in(inner);
    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.now.map(|it| it.phase), Some(Phase::Backward));
    writer.back_in(outer);
    assert_eq!(reader.snapshot(now).expect("a region").now, None);
}

#[test]
fn steps_are_read_once_and_in_order_and_those_the_ring_lost_are_in_the_totals() {
    let (writer, mut reader, _file) = region();
    let now = unix_ns();
    let (mut wall, mut tokens) = (0, 0);
    let mut record = |upto: std::ops::Range<u64>| {
        for number in upto {
            let step = step(number, now);
            wall += step.wall_ns;
            tokens += step.tokens;
            writer.step(&step);
        }
        (wall, tokens)
    };
    record(0..10);
    let first = reader.snapshot(now).expect("a region");
    assert_eq!(first.steps.len(), 10);
    assert_eq!(first.steps[3], step(3, now));
    assert!(reader.snapshot(now).expect("a region").steps.is_empty());

    let (wall, tokens) = record(10..10 + STEPS as u64 + 5);
    let second = reader.snapshot(now).expect("a region");
    assert_eq!((second.steps.len(), second.steps_missed), (STEPS, 5));
    assert_eq!(second.steps[0], step(15, now));
    assert!(second.totals.is_whole);
    assert_eq!(second.totals.steps, 15 + STEPS as u64);
    assert_eq!(
        (second.totals.wall_ns, second.totals.tokens),
        (wall, tokens)
    );
    assert_eq!(second.totals.last_step, 14 + STEPS as u64);

    // Another agent goes on where this one stopped.
    let mut other = Reader::new(_file).expect("a region");
    other.go_on_from(reader.place());
    record(5000..5001);
    let third = other.snapshot(now).expect("a region");
    assert_eq!(third.steps, [step(5000, now)]);
}

#[test]
fn a_step_that_is_being_written_is_not_read_before_it_is_whole() {
    let (writer, mut reader, file) = region();
    let now = unix_ns();
    writer.step(&step(1, now));
    writer.step(&step(2, now));
    // As if the second were in the middle of being written.
    let second = offset("steps[0].state") + 2 * 96;
    let state = |value: u64| file.write_all_at(&value.to_le_bytes(), second).expect("it");
    state(5);
    put(&file, "totals.done", 1);
    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.steps, [step(1, now)]);
    assert!(!snapshot.totals.is_whole);
    state(4);
    put(&file, "totals.done", 2);
    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.steps, [step(2, now)]);
    assert!(snapshot.totals.is_whole);
}

#[test]
fn a_reader_never_sees_half_a_step_while_threads_write() {
    const EACH: u64 = 20_000;
    let (writer, mut reader, _file) = region();
    let now = unix_ns();
    let is_done = AtomicBool::new(false);
    let (mut seen, mut missed) = (0, 0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    for number in 0..EACH {
                        writer.step(&step(number * 2 + thread, now));
                    }
                })
            })
            .collect();
        let waiter = scope.spawn(|| {
            writers
                .into_iter()
                .for_each(|it| it.join().expect("a writer"));
            is_done.store(true, Ordering::Release);
        });
        loop {
            let was_done = is_done.load(Ordering::Acquire);
            let snapshot = reader.snapshot(now).expect("a region");
            for read in &snapshot.steps {
                assert_eq!(*read, step(read.step, now), "half a step");
            }
            seen += snapshot.steps.len() as u64;
            missed += snapshot.steps_missed;
            if was_done {
                break;
            }
        }
        waiter.join().expect("the waiter");
    });
    assert_eq!(seen + missed, 2 * EACH);
    let totals = reader.snapshot(now).expect("a region").totals;
    assert!(totals.is_whole);
    assert_eq!(totals.tokens, (0..2 * EACH).map(|it| it * 2).sum::<u64>());
    assert_eq!(totals.model_flops, totals.tokens as f64 / 2.0);
}

#[test]
fn a_collective_is_in_flight_until_it_is_given_back() {
    let (writer, mut reader, _file) = region();
    let now = unix_ns();
    let communicator = Communicator {
        hash: 0xabc,
        ranks: 8,
        rank: 2,
        nodes: 1,
        name: "tp".to_owned(),
    };
    let index = writer.communicator(&communicator).expect("a place");
    let collective = Collective {
        communicator: index,
        number: 41,
        function: Function::AllReduce,
        data_type: DataType::Bfloat16,
        channels: 16,
        bytes: 1 << 20,
        started_at: now,
        peer: -1,
        duration_ns: 0,
        wait_ns: 0,
    };
    let begun = writer.collective_begun(&collective).expect("a place");
    let together = reader.snapshot(now).expect("a region").together;
    assert_eq!(together.in_flight, [collective]);

    let ended = Collective {
        duration_ns: 900,
        wait_ns: 100,
        ..collective
    };
    writer.collective_left(begun);
    writer.collective_ended(&ended);
    let together = reader.snapshot(now).expect("a region").together;
    assert!(together.in_flight.is_empty());
    assert_eq!(together.recent, [ended]);
    assert_eq!(together.communicators[0].communicator, communicator);
    let total = together.communicators[0].functions[0];
    assert_eq!((total.function, total.count), (Function::AllReduce, 1));
    assert_eq!(
        (total.bytes, total.timed, total.duration_ns, total.wait_ns),
        (1 << 20, 1, 900, 100)
    );
    let again = reader.snapshot(now).expect("a region").together;
    assert!(again.recent.is_empty());
}

#[test]
fn why_there_are_no_collectives_is_a_word() {
    let (writer, mut reader, _file) = region();
    let mut together = || reader.snapshot(unix_ns()).expect("a region").together;
    assert_eq!(together().collecting, Some(Collecting::NotSaid));
    writer.nccl(22_809, 5);
    writer.collecting(Collecting::Untimed);
    writer.collective_given_up();
    (0..2).for_each(|_| writer.report_late());
    (0..3).for_each(|_| writer.duration_refused());
    let it = together();
    assert_eq!(it.collecting, Some(Collecting::Untimed));
    assert_eq!((it.nccl_version, it.profiler_interface), (22_809, 5));
    let counts = [it.given_up, it.reports_late, it.durations_refused];
    assert_eq!(counts, [1, 2, 3]);
}

#[test]
fn tables_that_are_full_take_no_more_and_say_so() {
    let (writer, mut reader, _file) = region();
    let now = unix_ns();
    let communicator = Communicator {
        ranks: 1,
        ..Communicator::default()
    };
    let made = (0..COMMUNICATORS + 3)
        .filter_map(|_| writer.communicator(&communicator))
        .count();
    assert_eq!(made, COMMUNICATORS);
    let collective = Collective {
        communicator: CommunicatorIndex(0),
        number: 1,
        function: Function::Other,
        data_type: DataType::Unknown,
        channels: 0,
        bytes: 0,
        started_at: now,
        peer: -1,
        duration_ns: 0,
        wait_ns: 0,
    };
    let begun: Vec<_> = (0..IN_FLIGHT + 2)
        .filter_map(|_| writer.collective_begun(&collective))
        .collect();
    assert_eq!(begun.len(), IN_FLIGHT);
    let together = reader.snapshot(now).expect("a region").together;
    assert_eq!(together.communicators_left_out, 3);
    assert_eq!(together.in_flight_left_out, 2);
    writer.collective_left(begun[17]);
    assert_eq!(writer.collective_begun(&collective), Some(begun[17]));
}

#[test]
fn a_region_that_is_none_or_changes_its_mind_is_refused_by_name() {
    let check = |path: &str, value: u64, expected: ReadError| {
        let (writer, mut reader, file) = region();
        writer.step(&step(1, unix_ns()));
        reader.snapshot(unix_ns()).expect("it was good before");
        put(&file, path, value);
        assert_eq!(reader.snapshot(unix_ns()), Err(expected));
    };
    check("header.magic", 0, ReadError::Magic);
    check("header.version", 2, ReadError::Version(2));
    check("header.size", 4096, ReadError::Size(4096));
    check("header.session_low", 1, ReadError::Session);
    let went_back = ReadError::WentBack { from: 1, to: 0 };
    check("totals.started", 0, went_back);
    check("totals.started", u64::MAX, ReadError::Count(u64::MAX));
    let count = u64::MAX / 2;
    check("collectives.started", count, ReadError::Count(count));
}

#[test]
fn numbers_that_cannot_be_are_refused_by_section_and_reason() {
    let check = |path: &str, value: u64, section: &'static str, reason: Reason| {
        let (writer, mut reader, file) = region();
        let now = unix_ns();
        writer.identity(&Identity {
            rank: 1,
            world: 2,
            ..Identity::default()
        });
        writer.plan(&Plan::default());
        writer.memory(&Memory {
            at: now,
            ..Memory::default()
        });
        writer.enter(Phase::Forward, now);
        // Record 2048 lies in the ring's first place.
        for number in 0..STEPS as u64 {
            writer.step(&step(number, now));
        }
        assert!(reader.snapshot(now).expect("good").refused.is_empty());
        let mut reader = Reader::new(&file).expect("a region");
        put(&file, path, value);
        let snapshot = reader.snapshot(now).expect("the rest is good");
        assert_eq!(snapshot.refused.get(&(section, reason)), Some(&1), "{path}");
    };
    check("identity.rank", 2, "identity", Reason::Number);
    check("identity.world", -2_i64 as u64, "identity", Reason::Number);
    check(
        "identity.dp.coordinate",
        u64::MAX - 1,
        "identity",
        Reason::Number,
    );
    check("identity.mesh_source", 99, "identity", Reason::Word);
    check("identity.job_name", 0x1b, "identity", Reason::Text);
    check("identity.sequence", 3, "identity", Reason::Torn);
    check("plan.deadline_at", i64::MAX as u64, "plan", Reason::Time);
    check(
        "plan.flops_per_step",
        f64::NAN.to_bits(),
        "plan",
        Reason::Number,
    );
    check("memory.at", 1, "memory", Reason::Time);
    check("memory.allocated_bytes", 1, "memory", Reason::Parts);
    check("phases.now", 63, "phases", Reason::Word);
    check("steps[0].ended_at", -1_i64 as u64, "steps", Reason::Time);
    check("steps[0].wall_ns", u64::MAX, "steps", Reason::Duration);
    check("steps[0].busy_ns", 1 << 20, "steps", Reason::Parts);
    check(
        "steps[0].model_flops",
        (-1.0_f64).to_bits(),
        "steps",
        Reason::Number,
    );
}
