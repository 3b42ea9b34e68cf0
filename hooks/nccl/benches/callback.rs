//! What the plugin costs a training process, and whether a callback can ever wait, allocate or panic.
//!
//! `cargo bench -p gpufleet-nccl-profiler`: a collective of 16 channels as NCCL reports it (49
//! callbacks), and each callback alone, in nanoseconds: the median and the slowest batch in a hundred.
//! Then the machine code of the built plugin: no path from a callback leads to a panic, the allocator,
//! a lock or a system call. Exits with 1 where one of it is not so.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(unsafe_code, reason = "the plugin is called as C calls it")]

#[path = "callback/machine_code.rs"]
mod machine_code;

use std::ffi::c_void;
use std::hint::black_box;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use gpufleet_hooks_shm::process::monotonic_ns;
use gpufleet_nccl_profiler::abi::{Collective, Header, Init, KernelChannel, Table};
use gpufleet_nccl_profiler::ncclProfiler_v6;

/// Most nanoseconds of a callback: the project's promise.
const CALLBACK_NS: f64 = 60.0;

/// Most nanoseconds of a collective of 16 channels.
const COLLECTIVE_NS: f64 = 1000.0;

/// Channels of a collective.
const CHANNELS: u8 = 16;

/// Callbacks of one collective: itself, and three for each channel.
const CALLBACKS: f64 = 2.0 + 3.0 * CHANNELS as f64;

/// Collectives of one batch: enough to make reading the clock not matter.
const BATCH: usize = 200;

/// Batches.
const BATCHES: usize = 1000;

/// NCCL's side.
struct Nccl {
    table: &'static Table<Init>,
    context: *mut c_void,
}

impl Nccl {
    fn new() -> Self {
        let table = &ncclProfiler_v6;
        let mut context = null_mut();
        let mut mask = 0;
        // SAFETY: the pointers are ours or null.
        unsafe {
            let name = c"bench".as_ptr();
            (table.init)(&raw mut context, 1, &raw mut mask, name, 1, 8, 0, None);
        }
        assert!(!context.is_null() && mask == 0x46, "the plugin is on");
        Self { table, context }
    }

    fn start(&self, descriptor: *const c_void) -> *mut c_void {
        let mut handle = null_mut();
        // SAFETY: the descriptor is one of the type that it says.
        unsafe { (self.table.start)(self.context, &raw mut handle, descriptor) };
        handle
    }

    fn collective(&self, sequence: u64) -> *mut c_void {
        let descriptor = Collective {
            header: Header {
                kind: 2,
                parent: null_mut(),
                rank: 0,
            },
            sequence,
            function: c"ReduceScatter".as_ptr(),
            send: null(),
            receive: null(),
            count: 1 << 20,
            root: 0,
            data_type: c"ncclBfloat16".as_ptr(),
            channels: CHANNELS,
            warps: 8,
            algorithm: c"RING".as_ptr(),
            protocol: c"SIMPLE".as_ptr(),
        };
        self.start((&raw const descriptor).cast())
    }

    fn kernel(&self, parent: *mut c_void, channel: u8, timer: u64) -> *mut c_void {
        let descriptor = KernelChannel {
            header: Header {
                kind: 64,
                parent,
                rank: 0,
            },
            channel,
            timer,
        };
        self.start((&raw const descriptor).cast())
    }

    fn record(&self, handle: *mut c_void, timer: u64) {
        // SAFETY: the argument is the time.
        unsafe { (self.table.record)(handle, 22, (&raw const timer).cast()) };
    }

    fn stop(&self, handle: *mut c_void) {
        // SAFETY: any handle may be stopped.
        unsafe { (self.table.stop)(handle) };
    }
}

/// Nanoseconds of each part of a batch.
#[derive(Default)]
struct Times {
    enqueue: Vec<f64>,
    kernel: Vec<f64>,
    record: Vec<f64>,
    stop: Vec<f64>,
    all: Vec<f64>,
}

fn main() -> ExitCode {
    let nccl = Nccl::new();
    let mut times = Times::default();
    let mut handles = vec![null_mut(); BATCH];
    let mut channels = vec![null_mut(); BATCH * usize::from(CHANNELS)];
    for batch in 0..BATCHES as u64 {
        part(&mut times.enqueue, BATCH, || {
            for (sequence, handle) in (0..).zip(&mut handles) {
                *handle = nccl.collective(batch + sequence);
            }
        });
        handles.iter().for_each(|handle| nccl.stop(*handle));
        part(&mut times.kernel, channels.len(), || {
            for (number, handle) in (0..).zip(&mut channels) {
                let (of, channel) = (number / usize::from(CHANNELS), number as u8 % CHANNELS);
                *handle = nccl.kernel(handles[of], channel, 1000 + u64::from(channel ^ 5));
            }
        });
        part(&mut times.record, channels.len(), || {
            for (number, handle) in (0..).zip(&channels) {
                nccl.record(*handle, 2000 + (number & 15));
            }
        });
        part(&mut times.stop, channels.len(), || {
            channels.iter().for_each(|handle| nccl.stop(*handle));
        });
        part(&mut times.all, BATCH, || {
            for sequence in 0..BATCH as u64 {
                one(&nccl, black_box(sequence));
            }
        });
    }
    println!("{:<28} {:>8} {:>8}", "call", "median", "p99");
    let each = [
        median("start, a collective", &mut times.enqueue),
        median("start, a channel", &mut times.kernel),
        median("record, a channel", &mut times.record),
        median("stop, a channel and its end", &mut times.stop),
    ];
    let all = median("a collective of 16 channels", &mut times.all);
    println!("{:<28} {:>8.1}", "a callback of it, mean", all / CALLBACKS);
    let mut is_well = true;
    if all > COLLECTIVE_NS || each.iter().any(|it| *it > CALLBACK_NS) {
        println!("over {CALLBACK_NS} ns a callback or {COLLECTIVE_NS} ns a collective");
        is_well = false;
    }
    match machine_code::check() {
        Ok(said) => println!("{said}"),
        Err(said) => {
            println!("{said}");
            is_well = false;
        }
    }
    match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// One collective, from its start to its end.
fn one(nccl: &Nccl, sequence: u64) {
    let handle = nccl.collective(sequence);
    nccl.stop(handle);
    for channel in 0..CHANNELS {
        let of_channel = nccl.kernel(handle, channel, 1000 + u64::from(channel ^ 5));
        nccl.record(of_channel, 2000 + u64::from(channel));
        nccl.stop(of_channel);
    }
}

fn part(times: &mut Vec<f64>, calls: usize, run: impl FnOnce()) {
    let begin = monotonic_ns();
    run();
    times.push((monotonic_ns() - begin) as f64 / calls as f64);
}

fn median(name: &str, times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    let (median, slow) = (times[BATCHES / 2], times[BATCHES * 99 / 100]);
    println!("{name:<28} {median:>8.1} {slow:>8.1}");
    median
}
