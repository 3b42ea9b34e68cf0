//! The shared region, byte by byte: what a training process writes and the agent reads.
//!
//! The region is [`SIZE_BYTES`] of 64-bit little-endian words and nothing else: both sides use every
//! word through an atomic, so no bit pattern and no interleaving is undefined. Conventions:
//!
//! - a word is unsigned; `i64` in a help text means two's complement, `f64` the bits of a double;
//! - times are Unix nanoseconds (`i64`) of CLOCK_REALTIME, durations nanoseconds;
//! - a text is UTF-8 in consecutive words, padded with zero bytes, not terminated when it fills them;
//! - a section that begins with `sequence` is a seqlock: odd while it is written, 0 when it never was;
//! - counters only grow; words called `reserved` are 0 and become fields without a new version.
//!
//! Longer than 500 lines because it is one table of words, to be read from offset 0 to the end.
//! `docs/hooks-shm.md` has the table of offsets, generated from this file, and the protocol in words.

mod describe;

use std::sync::atomic::AtomicU64;

use describe::{Described, section};

pub use describe::Field;

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("the shared region is defined for 64-bit little-endian machines");

/// First word of a region: the bytes `GPUFHOOK`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"GPUFHOOK");

/// Version of the layout. A reader refuses newer ones; a new field in a reserved word keeps it.
pub const VERSION: u64 = 1;

/// Size of the region: 80 pages, two thirds of it the ring of steps.
pub const SIZE_BYTES: usize = 320 * 1024;

/// Steps kept one by one: 20 s at 100 steps a second, so an agent may be away that long and still
/// have each; longer, and the totals tell what it missed.
pub const STEPS: usize = 2048;

/// Collectives kept one by one.
pub const COLLECTIVES: usize = 1024;

/// Losses, and gradient norms, kept one by one: ten a second are read of a GPU, so an agent may be late by 12 s.
pub const READINGS: usize = 128;

/// Collectives in flight at once: one bit each of one word.
pub const IN_FLIGHT: usize = 64;

/// Communicators of one process: mesh dimensions times their sub-groups stay far below it.
pub const COMMUNICATORS: usize = 64;

/// Places for totals per function, by [`crate::words::Function`].
pub const FUNCTIONS: usize = 8;

/// Places for totals per phase, by [`crate::words::Phase`].
pub const PHASES: usize = 16;

/// Words of a name: 64 bytes, which is what the agent keeps of any label.
pub const NAME_WORDS: usize = 8;

/// Words of an exception's first line, and of a probe's reason: 256 bytes.
pub const MESSAGE_WORDS: usize = 32;

/// Words of where a profile lies, or why there is none: 512 bytes.
pub const PLACE_WORDS: usize = 64;

/// Words of a traceback's end: 2 KiB.
pub const TRACEBACK_WORDS: usize = 256;

/// Words of the fingerprint: 8 KiB, about 150 keys.
pub const FINGERPRINT_WORDS: usize = 1024;

/// Words of the tags: 1 KiB.
pub const TAGS_WORDS: usize = 128;

/// One 64-bit word of the region.
pub type Word = AtomicU64;

/// A text of up to `8 * WORDS` bytes.
pub type Text<const WORDS: usize> = [Word; WORDS];

section! {
    /// Who writes, and whether it still lives.
    Header {
        /// `GPUFHOOK`; written last, so a region without it is not ready.
        magic: Word,
        /// 1.
        version: Word,
        /// Bytes of the region.
        size: Word,
        /// What the writer is: 1 python, 2 nccl plugin, 3 C, 4 Rust.
        writer: Word,
        /// Process id as the writer sees it, in its own pid namespace.
        pid: Word,
        /// Start of the process, clock ticks since boot: field 22 of /proc/self/stat.
        start_ticks: Word,
        /// Random number of this region, upper half.
        session_high: Word,
        /// Lower half.
        session_low: Word,
        /// When the region was made.
        created_at: Word,
        /// Counts up about once a second while the process lives, even when training hangs.
        heartbeats: Word,
        /// When it last did.
        heartbeat_at: Word,
        /// How often an agent took this region.
        connections: Word,
        /// Writes given up because another thread was writing the same section.
        contended: Word,
        /// What the client does when the agent asks for it, a bit each: 1 a profile; 0 nothing.
        takes: Word,
        /// For later.
        reserved: [Word; 18],
    }
}

section! {
    /// One dimension of the mesh.
    Axis {
        /// i64: this rank's coordinate; -1 unknown.
        coordinate: Word,
        /// Size of the dimension; 0 unknown.
        size: Word,
    }
}

section! {
    /// Who this rank is. Claimed by the process; the agent proves what it can.
    Identity {
        /// Seqlock.
        sequence: Word,
        /// i64: restart attempt; -1 unknown.
        attempt: Word,
        /// i64: global rank; -1 unknown. With -1 here and no 1 in world the process is on no page.
        rank: Word,
        /// i64: number of ranks, 1 of a process that is alone; -1 unknown.
        world: Word,
        /// i64: rank on this node; -1 unknown.
        local_rank: Word,
        /// i64: ranks on this node; -1 unknown.
        local_world: Word,
        /// i64: number of the CUDA device in this process; -1 unknown.
        cuda_device: Word,
        /// i64: process id on the host as the writer knows it; -1 unknown.
        host_pid: Word,
        /// Where the mesh came from: 0 unknown, 1 given, 2 megatron, 3 device_mesh, 4 deepspeed, 5 communicators.
        mesh_source: Word,
        /// Data parallel.
        dp: Axis,
        /// Pipeline parallel.
        pp: Axis,
        /// Tensor parallel.
        tp: Axis,
        /// Context parallel.
        cp: Axis,
        /// Expert parallel.
        ep: Axis,
        /// Cluster.
        cluster: Text<NAME_WORDS>,
        /// Namespace of the job.
        job_namespace: Text<NAME_WORDS>,
        /// Name of the job.
        job_name: Text<NAME_WORDS>,
        /// Unique id of the job.
        job_uid: Text<NAME_WORDS>,
        /// Framework and its version: `pytorch 2.9.1`.
        framework: Text<NAME_WORDS>,
        /// UUID of the GPU: `GPU-…` or `MIG-…`.
        gpu_uuid: Text<NAME_WORDS>,
        /// What said rank and world: `torchrun`, `slurm`, `jobset`, `mpi`, `ray`, `given`.
        launcher: Text<NAME_WORDS>,
        /// For later.
        reserved: [Word; 53],
    }
}

section! {
    /// What the run intends, and what a step is worth.
    Plan {
        /// Seqlock.
        sequence: Word,
        /// Steps planned; 0 not said.
        total_steps: Word,
        /// Tokens planned; 0 not said.
        total_tokens: Word,
        /// i64: when it must be done; 0 not said.
        deadline_at: Word,
        /// f64: model FLOPs of one step of this rank; 0 not said.
        flops_per_step: Word,
        /// f64: model FLOPs per token; 0 not said.
        flops_per_token: Word,
        /// f64: FLOPs of one step with recomputation, of this rank; 0 not said.
        hardware_flops_per_step: Word,
        /// How they were got: 0 unknown, 1 explicit, 2 model_shape, 3 measured.
        flops_source: Word,
        /// Parameters of the model; 0 not said.
        parameters: Word,
        /// Type of the matrix arithmetic, as in the table of peaks: `bf16`, `fp8`.
        dtype: Text<NAME_WORDS>,
        /// For later.
        reserved: [Word; 15],
    }
}

section! {
    /// Totals over every step since the region was made. `started` = `done` when nobody writes.
    Totals {
        /// Records begun. Raised before anything of a step is written.
        started: Word,
        /// Records ended. Raised after everything of a step is written.
        done: Word,
        /// Wall time.
        wall_ns: Word,
        /// Time in which the GPU was given work.
        busy_ns: Word,
        /// Time spent waiting for data.
        data_wait_ns: Word,
        /// Time spent waiting for other ranks.
        comm_wait_ns: Word,
        /// Time spent saving or restoring a checkpoint.
        checkpoint_ns: Word,
        /// Time spent in evaluation.
        evaluation_ns: Word,
        /// Tokens of this rank.
        tokens: Word,
        /// Samples of this rank.
        samples: Word,
        /// f64: model FLOPs of this rank.
        model_flops: Word,
        /// Number of the newest step.
        last_step: Word,
        /// When it ended.
        last_ended_at: Word,
        /// For later.
        reserved: [Word; 19],
    }
}

section! {
    /// A last value and the step it belongs to.
    Reading {
        /// Seqlock.
        sequence: Word,
        /// f64.
        value: Word,
        /// The step.
        step: Word,
        /// When it was read.
        at: Word,
    }
}

section! {
    /// How the learning goes.
    Learning {
        /// Loss.
        loss: Reading,
        /// Gradient norm.
        gradient_norm: Reading,
        /// Learning rate.
        learning_rate: Reading,
        /// Loss of the last evaluation.
        evaluation_loss: Reading,
        /// Steps that the gradient scaler skipped.
        scaler_skips: Word,
        /// Losses that were not finite.
        non_finite_losses: Word,
        /// Gradient norms that were not finite.
        non_finite_gradients: Word,
        /// For later.
        reserved: [Word; 13],
    }
}

section! {
    /// A value that was read.
    ReadingRecord {
        /// Twice its record number (from 1), plus 1 while it is written.
        state: Word,
        /// f64.
        value: Word,
        /// The step.
        step: Word,
        /// When it was read.
        at: Word,
    }
}

section! {
    /// Every value of a kind that was read lately.
    Readings {
        /// Records begun. A client that writes only the last value leaves 0.
        started: Word,
        /// For later.
        reserved: [Word; 7],
        /// Ring: record n is at n modulo 128.
        recent: [ReadingRecord; READINGS],
    }
}

section! {
    /// Something that happens now and then and takes a while.
    Occasion {
        /// Seqlock.
        sequence: Word,
        /// How often.
        count: Word,
        /// How long in all.
        total_ns: Word,
        /// How long the last one took.
        last_ns: Word,
        /// The step of the last one.
        last_step: Word,
        /// When it ended.
        last_at: Word,
        /// How often it failed.
        failures: Word,
        /// For later.
        reserved: [Word; 1],
    }
}

section! {
    /// One phase's totals.
    PhaseTotal {
        /// How long in all.
        total_ns: Word,
        /// How often.
        count: Word,
    }
}

section! {
    /// Where time goes, and where the process is now.
    Phases {
        /// The phase it is in: i64 Unix ns since when, with the low 6 bits replaced by the phase's number; 0 in none.
        now: Word,
        /// For later.
        reserved: [Word; 31],
        /// By the phase's number: 1 data_wait, 2 forward, 3 backward, 4 optimizer, 5 communication, 6 checkpoint_save, 7 checkpoint_restore, 8 evaluation, 9 startup, 10 other.
        totals: [PhaseTotal; PHASES],
    }
}

section! {
    /// The framework's allocator on this GPU.
    Memory {
        /// Seqlock.
        sequence: Word,
        /// When it was read.
        at: Word,
        /// Bytes in tensors.
        allocated_bytes: Word,
        /// Bytes held from the driver.
        reserved_bytes: Word,
        /// Most bytes in tensors so far.
        peak_allocated_bytes: Word,
        /// Most bytes held so far.
        peak_reserved_bytes: Word,
        /// Bytes it may hold; 0 not said.
        limit_bytes: Word,
        /// Allocations that worked only after freeing the cache.
        retries: Word,
        /// Allocations that failed.
        out_of_memory: Word,
        /// For later.
        reserved: [Word; 7],
    }
}

section! {
    /// What the last probe inside the process found. The reason is `probe_reason`.
    Probe {
        /// Seqlock, also over `probe_reason`.
        sequence: Word,
        /// When it was over.
        at: Word,
        /// 0 none, 1 passed, 2 failed, 3 could_not_run.
        verdict: Word,
        /// The step after which it was over.
        step: Word,
        /// The SM that is to blame plus 1; 0 none.
        sm: Word,
        /// SMs of the GPU; 0 not said.
        sms: Word,
        /// SMs that took part in every work.
        covered: Word,
        /// Bytes of memory that were gone through; 0 none.
        checked_bytes: Word,
        /// From its first kernel to its last on the GPU, beside training's.
        gpu_ns: Word,
        /// Probes that were over, this one among them.
        runs: Word,
        /// Works that were right on every SM, a bit each: 1 arithmetic, 2 fp16, 4 int8, 8 bf16, 16 tf32, 32 fp8,
        /// 64 memory; 0 not said.
        right: Word,
        /// The same of those that were wrong on some, and of which no probe since was right.
        wrong: Word,
        /// For later.
        reserved: [Word; 4],
    }
}

section! {
    /// The last profile that an agent asked for and this process began.
    Profile {
        /// Seqlock.
        sequence: Word,
        /// The number it was asked for by.
        number: Word,
        /// 1 running, 2 done, 3 failed.
        state: Word,
        /// When it came to that.
        at: Word,
        /// The step after which it began.
        step: Word,
        /// Steps in it.
        steps: Word,
        /// Bytes of its file; 0 none.
        bytes: Word,
        /// Time of its steps, in which the GPU's gaps were measured; 0 they were not, and the next seven say nothing.
        window_ns: Word,
        /// Of it, time in which the GPU stood still while data was waited for.
        gap_data_ns: Word,
        /// In which it stood still because the host waited for it and launched only then.
        gap_synchronisation_ns: Word,
        /// In which it stood still and neither explains it: kernels were launched too slowly.
        gap_launch_ns: Word,
        /// Calls in which the host waited for the GPU.
        synchronisations: Word,
        /// Kernels.
        kernels: Word,
        /// Median time of a kernel.
        kernel_ns: Word,
        /// Time in which the GPU stood still because the host did something else after it had waited for it.
        gap_host_ns: Word,
        /// Why no gaps were measured: 1 too many events, 2 they could not be read, 3 the GPU had no work; 0 not said.
        untold: Word,
        /// Done: the path of its file, as the process sees it. Failed: why, in words.
        text: Text<PLACE_WORDS>,
    }
}

section! {
    /// How the process said that it ended.
    End {
        /// Seqlock.
        sequence: Word,
        /// 1 finished, 2 stopped, 3 exception.
        kind: Word,
        /// When.
        at: Word,
        /// i64: exit status where it is known; -1 unknown.
        exit_status: Word,
        /// The last step.
        step: Word,
        /// For later.
        reserved: [Word; 11],
    }
}

section! {
    /// The last exception that nobody caught.
    Exception {
        /// Seqlock.
        sequence: Word,
        /// When.
        at: Word,
        /// i64: global rank; -1 unknown.
        rank: Word,
        /// The step it happened in.
        step: Word,
        /// Its type.
        kind: Text<NAME_WORDS>,
        /// Its first line.
        message: Text<MESSAGE_WORDS>,
        /// The end of its traceback.
        traceback: Text<TRACEBACK_WORDS>,
        /// For later.
        reserved: [Word; 4],
    }
}

section! {
    /// What the run is made of: lines of `key=value`.
    Fingerprint {
        /// Seqlock; half of it is the generation.
        sequence: Word,
        /// Pairs that did not fit.
        left_out: Word,
        /// The lines.
        text: Text<FINGERPRINT_WORDS>,
        /// For later.
        reserved: [Word; 6],
    }
}

section! {
    /// What people call the run: lines of `key=value`.
    Tags {
        /// Seqlock; half of it is the generation.
        sequence: Word,
        /// Pairs that did not fit.
        left_out: Word,
        /// The lines.
        text: Text<TAGS_WORDS>,
        /// For later.
        reserved: [Word; 6],
    }
}

section! {
    /// A collective that was begun and not ended.
    InFlight {
        /// Seqlock.
        sequence: Word,
        /// Number of the communicator in `communicators`.
        communicator: Word,
        /// NCCL's sequence number: equal on all ranks, per communicator and function.
        number: Word,
        /// Function in the low 8 bits, data type in the next 8.
        what: Word,
        /// Bytes.
        bytes: Word,
        /// When it was begun; 0 when the place is taken and not written yet.
        started_at: Word,
        /// i64: the peer or root rank; -1 none.
        peer: Word,
        /// For later.
        reserved: [Word; 1],
    }
}

section! {
    /// Totals of one function on one communicator.
    FunctionTotal {
        /// Collectives ended.
        count: Word,
        /// Their bytes.
        bytes: Word,
        /// Those whose duration is known.
        timed: Word,
        /// Time those took on the GPU.
        duration_ns: Word,
        /// Time waited for other ranks, where the writer knows it.
        wait_ns: Word,
    }
}

section! {
    /// One communicator.
    Communicator {
        /// Seqlock over the words before the totals.
        sequence: Word,
        /// NCCL's hash of it: equal on all ranks.
        hash: Word,
        /// Ranks in it.
        ranks: Word,
        /// This process' rank in it.
        rank: Word,
        /// Nodes it spans.
        nodes: Word,
        /// Its name.
        name: Text<NAME_WORDS>,
        /// By the function's number: 0 other, 1 AllReduce, 2 AllGather, 3 ReduceScatter, 4 Broadcast, 5 Reduce, 6 AlltoAll, 7 Send and Recv.
        totals: [FunctionTotal; FUNCTIONS],
        /// For later.
        reserved: [Word; 11],
    }
}

section! {
    /// A collective that ended.
    Collective {
        /// Twice its record number, plus 1 while it is written.
        state: Word,
        /// Number of the communicator in `communicators`.
        communicator: Word,
        /// NCCL's sequence number.
        number: Word,
        /// Function in the low 8 bits, data type in the next 8, channels in the next 8.
        what: Word,
        /// Bytes.
        bytes: Word,
        /// When it was begun.
        started_at: Word,
        /// Time on the GPU; 0 unknown.
        duration_ns: Word,
        /// Time waited for other ranks, where the writer knows it.
        wait_ns: Word,
    }
}

section! {
    /// What the ranks do together.
    Collectives {
        /// Which places of `in_flight` are taken, one bit each.
        in_flight_taken: Word,
        /// Collectives for which there was no place.
        in_flight_left_out: Word,
        /// How many of `communicators` are in use.
        communicators_taken: Word,
        /// Communicators for which there was no place.
        communicators_left_out: Word,
        /// Records of `recent` begun.
        started: Word,
        /// Records of `recent` ended.
        done: Word,
        /// How they are counted: 0 not said, 1 timed, 2 untimed, 3 switched_off, 4 one_rank, 5 silent.
        collecting: Word,
        /// Version of NCCL, 22809 for 2.28.9; 0 unknown.
        nccl_version: Word,
        /// Version of NCCL's profiler interface that is in use; 0 none.
        profiler_interface: Word,
        /// Collectives whose end was never reported in full.
        given_up: Word,
        /// Reports about collectives that were no longer known.
        reports_late: Word,
        /// Durations that cannot be, which count as unknown.
        durations_refused: Word,
        /// For later.
        reserved: [Word; 4],
        /// Begun and not ended.
        in_flight: [InFlight; IN_FLIGHT],
        /// Every communicator seen.
        communicators: [Communicator; COMMUNICATORS],
        /// Ring: record n is at n modulo 1024.
        recent: [Collective; COLLECTIVES],
    }
}

section! {
    /// One step.
    StepRecord {
        /// Twice its record number (from 1), plus 1 while it is written.
        state: Word,
        /// Number of the step, as the run counts.
        step: Word,
        /// When it ended.
        ended_at: Word,
        /// Wall time.
        wall_ns: Word,
        /// Time in which the GPU was given work.
        busy_ns: Word,
        /// Time spent waiting for data.
        data_wait_ns: Word,
        /// Time spent waiting for other ranks.
        comm_wait_ns: Word,
        /// Time spent saving or restoring a checkpoint.
        checkpoint_ns: Word,
        /// Time spent in evaluation.
        evaluation_ns: Word,
        /// Tokens of this rank; 0 not said.
        tokens: Word,
        /// Samples of this rank; 0 not said.
        samples: Word,
        /// f64: model FLOPs of this rank; 0 not said.
        model_flops: Word,
    }
}

section! {
    /// The whole region.
    Region {
        /// Who writes.
        header: Header,
        /// Who this rank is.
        identity: Identity,
        /// What the run intends.
        plan: Plan,
        /// Totals of steps.
        totals: Totals,
        /// How the learning goes.
        learning: Learning,
        /// Checkpoints saved.
        checkpoint_saved: Occasion,
        /// Checkpoints restored.
        checkpoint_restored: Occasion,
        /// Evaluations.
        evaluation: Occasion,
        /// Where time goes.
        phases: Phases,
        /// The allocator.
        memory: Memory,
        /// What the last probe inside the process found.
        probe: Probe,
        /// How it ended.
        end: End,
        /// The last exception.
        exception: Exception,
        /// What the run is made of.
        fingerprint: Fingerprint,
        /// What people call it.
        tags: Tags,
        /// What the ranks do together.
        collectives: Collectives,
        /// Ring: record n is at n modulo 2048.
        steps: [StepRecord; STEPS],
        /// Why the probe came to what it did, in words. Under `probe.sequence`.
        probe_reason: Text<MESSAGE_WORDS>,
        /// The last profile that was asked for.
        profile: Profile,
        /// The losses that were read lately.
        losses: Readings,
        /// The gradient norms.
        gradient_norms: Readings,
        /// For later: whole sections.
        reserved: [Word; TAIL_WORDS],
    }
}

/// Words between the last section and the region's end.
const TAIL_WORDS: usize = (SIZE_BYTES - USED_BYTES) / size_of::<Word>();

/// Bytes of the sections.
const USED_BYTES: usize = size_of::<Header>()
    + size_of::<Identity>()
    + size_of::<Plan>()
    + size_of::<Totals>()
    + size_of::<Learning>()
    + 3 * size_of::<Occasion>()
    + size_of::<Phases>()
    + size_of::<Memory>()
    + size_of::<Probe>()
    + size_of::<End>()
    + size_of::<Exception>()
    + size_of::<Fingerprint>()
    + size_of::<Tags>()
    + size_of::<Collectives>()
    + STEPS * size_of::<StepRecord>()
    + size_of::<Text<MESSAGE_WORDS>>()
    + size_of::<Profile>()
    + 2 * size_of::<Readings>();

const _: () = assert!(
    size_of::<Region>() == SIZE_BYTES,
    "the region has one fixed size"
);
const _: () = assert!(
    STEPS.is_power_of_two() && COLLECTIVES.is_power_of_two(),
    "a ring's place is a mask"
);

/// Every field of the region with its offset: what documentation and the C header are checked with.
pub fn fields() -> Vec<Field> {
    let mut fields = Vec::new();
    Region::describe("", 0, "", "", &mut fields);
    fields
}
