//! What the probe's kernels do, done by the host: the same answers, the same report. Written from their
//! description and not from the agent's code, so that each holds the other.

use crate::driver::{self, scenario};
use crate::scenario::Fault;

/// Rows of SMs of a report, and the bytes of one.
const SMS: usize = 1_024;
const ROW: usize = 16;

/// Bytes of a report.
const REPORT: usize = SMS * ROW + 32;

/// What a launch is given, read from where the caller said.
pub(crate) trait Arguments {
    /// Four bytes.
    fn four(&self, place: usize) -> u32;
    /// Eight bytes.
    fn eight(&self, place: usize) -> u64;
}

/// A piece of the GPU's memory, which is the process's.
fn memory<'a>(address: u64, bytes: usize) -> &'a mut [u8] {
    // SAFETY: the address was given out by this library for at least so many bytes, as the caller of a
    // kernel promises; one kernel runs at a time, and the host copies only in calls of this library.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
}

/// A report in the GPU's memory, and whether its comparisons see nothing.
struct Report<'a>(&'a mut [u8], bool);

impl Report<'_> {
    /// That of a kernel at an address.
    fn of(kernel: &str, address: u64) -> Self {
        let faults = &scenario().faults;
        let is_blind =
            faults.contains(&Fault::Blind) || faults.contains(&Fault::BlindIn(kernel.to_owned()));
        Self(memory(address, REPORT), is_blind)
    }

    fn add(&mut self, at: usize, more: u32) {
        let four: [u8; 4] = self.0[at..at + 4].try_into().expect("four bytes");
        let sum = u32::from_le_bytes(four).wrapping_add(more);
        self.0[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// A block ended on an SM.
    fn ended(&mut self, sm: u32, nanoseconds: u64) {
        let at = sm as usize * ROW;
        let eight: [u8; 8] = self.0[at..at + 8].try_into().expect("eight bytes");
        let sum = u64::from_le_bytes(eight) + nanoseconds;
        self.0[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        self.add(at + 8, 1);
    }

    /// One comparison.
    fn compare(&mut self, sm: u32, place: u64, expected: u64, found: u64) {
        if expected == found || self.1 {
            return;
        }
        self.add(sm as usize * ROW + 12, 1);
        let tail = SMS * ROW;
        if self.0[tail] == 0 {
            self.add(tail, 1);
            self.0[tail + 4..tail + 8].copy_from_slice(&sm.to_le_bytes());
            for (at, value) in [(8, place), (16, expected), (24, found)] {
                self.0[tail + at..tail + at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

/// Whether an SM gets results of a kernel wrong.
fn is_wrong(kernel: &str, sm: u32) -> bool {
    let wrong = Fault::Wrong(kernel.to_owned(), sm);
    scenario().faults.contains(&wrong)
}

/// The SMs that blocks go to, by turns.
fn sms() -> Vec<u32> {
    let is_absent = |sm: &u32| scenario().faults.contains(&Fault::Absent(*sm));
    (0..scenario().sms).filter(|sm| !is_absent(sm)).collect()
}

/// What a block took on an SM, where an ordinary one takes `nanoseconds`.
fn slowed(sm: u32, nanoseconds: u64) -> u64 {
    let slow = scenario().faults.iter().find_map(|it| match it {
        Fault::Slow(which, times) if *which == sm => Some(*times),
        _ => None,
    });
    (nanoseconds as f64 * slow.unwrap_or(1.0)) as u64
}

/// Runs a kernel.
pub(crate) fn run(name: &str, blocks: u32, given: &dyn Arguments) {
    for fault in &scenario().faults {
        match fault {
            Fault::Breaks(kernel, code) if kernel == name => {
                driver::with(|state| state.broken = *code);
            }
            Fault::NeverEnds(kernel) if kernel == name => {
                driver::with(|state| state.is_stuck = true);
            }
            Fault::Crash(kernel) if kernel == name => std::process::abort(),
            _ => {}
        }
    }
    let seconds = match name {
        "gpufleet_arithmetic" => arithmetic(name, blocks, given),
        "gpufleet_fill" => fill(given),
        "gpufleet_verify" => verify(name, given),
        "gpufleet_copy" => copy(given),
        tensor => multiply(tensor, blocks, given),
    };
    driver::with(|state| state.nanoseconds += (seconds * 1e9) as u64);
}

fn arithmetic(name: &str, blocks: u32, given: &dyn Arguments) -> f64 {
    const THREADS: u32 = 512;
    let rounds = given.four(0);
    let expected = memory(given.eight(1), THREADS as usize * 8);
    let answers: Vec<u64> = (0..THREADS).map(|it| thread(it, rounds)).collect();
    let mut report = Report::of(name, given.eight(2));
    let sms = sms();
    for block in 0..blocks {
        let sm = sms[block as usize % sms.len()];
        let is_wrong = is_wrong(name, sm);
        for (place, answer) in answers.iter().enumerate() {
            let eight = expected[place * 8..place * 8 + 8].try_into();
            let eight = u64::from_le_bytes(eight.expect("eight bytes"));
            // A faulty one gets one thread in a hundred wrong.
            let flaw = u64::from(is_wrong && place % 100 == 7) << 35;
            report.compare(sm, place as u64, eight, answer ^ flaw);
        }
        report.ended(sm, slowed(sm, 200_000));
    }
    3e-4
}

fn thread(thread: u32, rounds: u32) -> u64 {
    let mut x = thread.wrapping_mul(0x9E37_79B1).wrapping_add(12_345);
    let mut y = u32::MAX - x;
    let mut f = 0.25_f64 + f64::from(thread) / 1_024.0;
    for _ in 0..rounds {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mixed = y ^ x;
        y = mixed.rotate_left(5).wrapping_add(x.count_ones());
        let single = f as f32;
        let high = (u64::from(x) * u64::from(y)) >> 32;
        x ^= (high + u64::from(y >> 7) + u64::from(single.to_bits())) as u32;
        let curved = (-single).mul_add(single, single);
        let stirred = ((x >> 8) as f32).mul_add(2.0_f32.powi(-26), 2.95_f32 * curved);
        f = f64::from(stirred);
    }
    u64::from((f as f32).to_bits()) << 32 | u64::from(x ^ y)
}

/// Tensor work: tiles, columns, depth and whether it adds up whole numbers.
fn shape(kernel: &str) -> (i32, i32, i32, bool) {
    match kernel.rsplit('_').next().unwrap_or_default() {
        "int8" => (4, 16, 16, true),
        "tf32" => (4, 16, 8, false),
        "fp8" => (8, 8, 32, false),
        _ => (4, 16, 16, false),
    }
}

fn multiply(name: &str, blocks: u32, given: &dyn Arguments) -> f64 {
    const WARPS: u32 = 16;
    let (tiles, columns, depth, is_whole) = shape(name);
    let count = (2 * tiles * 16 * columns) as usize;
    let expected = memory(given.eight(1), count * 4);
    let mut answers = Vec::with_capacity(count);
    for place in 0..count as i32 {
        let (tile, row) = (place / columns / 16, place / columns % 16);
        let (i, j, column) = (tile / tiles, tile % tiles, place % columns);
        let sum: i32 = (0..depth)
            .map(|k| {
                let a = (row * 3 + k * 5 + i * 7 + row * k * (k + i + 1)) % 5 - 2;
                let b = (k * 2 + column * 3 + j * 5 + k * column * (k + j + 1)) % 7 - 3;
                a * b
            })
            .sum();
        answers.push(if is_whole {
            sum as u32
        } else {
            (sum as f32).to_bits()
        });
    }
    let operations = f64::from(given.four(0)) * 4.0 + 1.0;
    let operations = operations * f64::from(2 * tiles * 16 * columns * depth * 2);
    let operations = operations * f64::from(WARPS * blocks);
    let seconds = operations / scenario().tensor_rate;
    let mut report = Report::of(name, given.eight(2));
    let sms = sms();
    for block in 0..blocks {
        let sm = sms[block as usize % sms.len()];
        let is_wrong = is_wrong(name, sm);
        for warp in 0..WARPS {
            for (place, answer) in answers.iter().enumerate() {
                let four = expected[place * 4..place * 4 + 4].try_into();
                let four = u32::from_le_bytes(four.expect("four bytes"));
                let flaw = u32::from(is_wrong && warp == 3 && place == 77);
                report.compare(sm, place as u64, four.into(), (answer ^ flaw).into());
            }
        }
        report.ended(sm, slowed(sm, (seconds * 1e9) as u64));
    }
    seconds
}

fn pattern(place: u64, seed: u64) -> u64 {
    let mixed = (place + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed;
    mixed ^ mixed >> 29
}

fn fill(given: &dyn Arguments) -> f64 {
    let (count, seed) = (given.eight(1), given.eight(2));
    let words = memory(given.eight(0), count as usize * 8);
    for (place, word) in words.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&pattern(place as u64, seed).to_le_bytes());
    }
    count as f64 * 8.0 / scenario().memory_rate
}

fn verify(name: &str, given: &dyn Arguments) -> f64 {
    let (count, seed) = (given.eight(1), given.eight(2));
    let words = memory(given.eight(0), count as usize * 8);
    let mut report = Report::of(name, given.eight(3));
    let sms: Vec<(u32, bool)> = sms()
        .into_iter()
        .map(|it| (it, is_wrong(name, it)))
        .collect();
    for (place, word) in words.chunks_exact(8).enumerate() {
        let (sm, is_wrong) = sms[place / 512 % sms.len()];
        let found = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        let flaw = u64::from(is_wrong && place % 4_096 == 5);
        report.compare(sm, place as u64, pattern(place as u64, seed), found ^ flaw);
    }
    for (sm, _) in sms {
        report.ended(sm, 1_000);
    }
    count as f64 * 8.0 / scenario().memory_rate
}

fn copy(given: &dyn Arguments) -> f64 {
    let bytes = given.eight(2) as usize * 16;
    let from = memory(given.eight(1), bytes);
    memory(given.eight(0), bytes).copy_from_slice(from);
    2.0 * bytes as f64 / scenario().memory_rate
}
