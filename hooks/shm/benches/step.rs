//! What a writer's hot path costs, nanoseconds each.
//!
//! `cargo bench -p gpufleet-hooks-shm`: batches of every hot call, with the median and the slowest
//! batch in a hundred. Exits with 1 when the median of a step is over [`STEP_NS`] or that of a call
//! of the NCCL plugin over [`COLLECTIVE_NS`].
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;
use std::process::ExitCode;

use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::reader::Reader;
use gpufleet_hooks_shm::records::{Collective, Communicator, Reading, Step};
use gpufleet_hooks_shm::words::{DataType, Function, Phase, WriterKind};
use gpufleet_hooks_shm::writer::Writer;

/// Most nanoseconds of a step record: the project's promise.
const STEP_NS: f64 = 300.0;

/// Most nanoseconds of one call about a collective: what a callback of the plugin may take.
const COLLECTIVE_NS: f64 = 60.0;

/// Most nanoseconds of a snapshot with a second's steps: 64 processes at 100 steps a second then take
/// less than 2 % of a core of the agent.
const SNAPSHOT_NS: f64 = 300_000.0;

/// Calls of one batch: enough to make reading the clock not matter.
const BATCH: u64 = 1000;

/// Batches of each call.
const BATCHES: usize = 1000;

fn main() -> ExitCode {
    let writer = Writer::create(WriterKind::Rust).expect("a region");
    let now = unix_ns();
    println!("{:<24} {:>8} {:>8}", "call", "median", "p99");
    let mut step = Step {
        ended_at: now,
        wall_ns: 10_000_000,
        busy_ns: 9_000_000,
        data_wait_ns: 500_000,
        comm_wait_ns: 500_000,
        checkpoint_ns: 1,
        evaluation_ns: 1,
        tokens: 8192,
        samples: 4,
        model_flops: 1e15,
        step: 0,
    };
    let of_step = measure("step", BATCH, || {
        step.step += 1;
        writer.step(black_box(&step));
    });
    measure("phase, in and out", BATCH, || {
        let before = writer.enter(black_box(Phase::Forward), now);
        writer.spent(Phase::Forward, 1000);
        writer.back_in(before);
    });
    measure("loss", BATCH, || {
        writer.loss(black_box(Reading {
            value: 1.0,
            step: 1,
            at: now,
        }));
    });
    let communicator = Communicator::default();
    let index = writer.communicator(&communicator).expect("a place");
    let collective = Collective {
        communicator: index,
        number: 1,
        function: Function::AllReduce,
        data_type: DataType::Bfloat16,
        channels: 16,
        bytes: 1 << 20,
        started_at: now,
        peer: -1,
        duration_ns: 1000,
        wait_ns: 1,
    };
    let of_flight = measure("collective, begun and left", BATCH, || {
        if let Some(begun) = writer.collective_begun(black_box(&collective)) {
            writer.collective_left(begun);
        }
    });
    let of_end = measure("collective, ended", BATCH, || {
        writer.collective_ended(black_box(&collective));
    });
    let mut reader = Reader::new(writer.file().expect("its file")).expect("a region");
    let of_snapshot = measure("snapshot, 100 steps", 1, || {
        (0..100).for_each(|_| writer.step(&step));
        black_box(reader.snapshot(now).expect("a region"));
    });
    // Two calls are measured at once in the first of them.
    if of_step > STEP_NS || of_flight / 2.0 > COLLECTIVE_NS || of_end > COLLECTIVE_NS {
        println!("over {STEP_NS} ns a step or {COLLECTIVE_NS} ns a collective's call");
        return ExitCode::FAILURE;
    }
    if of_snapshot > SNAPSHOT_NS {
        println!("over {SNAPSHOT_NS} ns a snapshot");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The median over batches, in nanoseconds a call.
fn measure(name: &str, calls: u64, mut call: impl FnMut()) -> f64 {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let begin = monotonic_ns();
            for _ in 0..calls {
                call();
            }
            (monotonic_ns() - begin) as f64 / calls as f64
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    let (median, slow) = (batches[BATCHES / 2], batches[BATCHES * 99 / 100]);
    println!("{name:<24} {median:>8.1} {slow:>8.1}");
    median
}
