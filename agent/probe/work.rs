//! One run on the GPU: every work in turn, each with the same work under a spoilt expectation, so that
//! a run which could not fail is no pass.
//!
//! Limits: see the constants. A run is meant to cost the GPU under 100 ms.

use super::device::{Buffer, Gpu, Kernel, Module, Moment, Pinned};
use super::expected;
use super::launch::{
    Argument, BLOCKS_A_SM, MEMORY_BLOCKS_A_SM, MEMORY_THREADS, PATTERN, SPOILT_WORDS, bytes_of,
    check, is_seen,
};
use super::look::Look;
use super::measured::{Check, Measured, Stage, Why};
use super::ptx::{FILES, OLDEST, Work};
use super::report::{self, Report};

/// Rounds of the arithmetic: tens of thousands of steps that each depend on the one before.
const ARITHMETIC_ROUNDS: u32 = 4_096;

/// Launches until every SM took part, before that is given up.
const MOST_LAUNCHES: u32 = 8;

/// Rounds of tensor work: a few milliseconds on a T4, one on an H100.
const TENSOR_ROUNDS: u32 = 1_024;

/// Times that tensor work is run: the best one is its rate, all together the speed of each SM.
const TENSOR_RUNS: usize = 3;

/// Copies that the memory's rate is the mean of.
const COPIES: u32 = 8;

/// Least memory to go through: more than the largest cache up to Hopper.
const LEAST_REGION: usize = 64 << 20;

/// A part of the free memory that is left to others: at most one in so many bytes is taken.
const FREE_PART: u64 = 4;

/// Memory of the host that is copied over PCIe, and how often.
const TRANSFER_BYTES: usize = 16 << 20;
const TRANSFERS: u32 = 4;

/// Room for the largest table of expectations.
const TABLE_BYTES: usize = 16 << 10;

/// What a run is told.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// The GPU's UUID, or its index, or that of a MIG instance.
    pub(super) gpu: String,
    /// Where NVML is; empty is where the loader finds it.
    pub(super) nvml_library: String,
    /// Most memory to go through, bytes.
    pub(super) region_bytes: usize,
    /// Work whose expectation is spoilt on purpose, to see the probe fail.
    pub(super) spoil: Option<Work>,
}

/// What a run goes through with.
struct Bench<'a> {
    gpu: Gpu,
    modules: Vec<(&'static str, Module)>,
    report: Buffer,
    table: Buffer,
    region: Buffer,
    spoil: Option<Work>,
    measured: Measured,
    tell: &'a mut dyn FnMut(Stage),
}

/// Measures everything that can be. `tell` hears each stage before it begins.
pub(super) fn run(settings: &Settings, tell: &mut dyn FnMut(Stage)) -> Result<Measured, Why> {
    tell(Stage::Look);
    let mut measured = Measured {
        is_slice: settings.gpu.starts_with("MIG-"),
        ..Measured::default()
    };
    let look = Look::open(&settings.nvml_library, &settings.gpu);
    let look = look.map_err(|why| measured.left_out.push(why)).ok();
    let refusal = |it: &Look| it.refusal(measured.is_slice);
    if let Some(why) = look.as_ref().and_then(refusal) {
        return Err(why);
    }
    let before = look.as_ref().map(Look::counts);
    measured.link = look.as_ref().and_then(Look::link);
    let mut bench = Bench::open(settings, measured, tell)?;
    let known = look.as_ref().and_then(Look::name);
    bench.measured.card = known.unwrap_or_else(|| bench.gpu.name.clone());
    let used = |it: &Look| it.counts().used_bytes;
    let entered = look.as_ref().and_then(used);
    let before_it = before.and_then(|it| it.used_bytes);
    bench.measured.context_bytes = entered
        .zip(before_it)
        .map(|(now, before)| now.saturating_sub(before));
    bench.allocate(settings.region_bytes)?;
    bench.all()?;
    bench.transfer()?;
    (bench.tell)(Stage::Close);
    let mut measured = bench.measured;
    let after = look.as_ref().and_then(|it| it.counts().ecc);
    let grew = |before: (u64, u64), now: (u64, u64)| {
        (
            now.0.saturating_sub(before.0),
            now.1.saturating_sub(before.1),
        )
    };
    measured.ecc = before
        .and_then(|it| it.ecc)
        .zip(after)
        .map(|(a, b)| grew(a, b));
    if measured.ecc.is_none() {
        measured.left_out.push("ECC errors: not read".to_owned());
    }
    Ok(measured)
}

impl<'a> Bench<'a> {
    /// A context on the GPU with the kernels that it can run.
    fn open(
        settings: &Settings,
        mut measured: Measured,
        tell: &'a mut dyn FnMut(Stage),
    ) -> Result<Self, Why> {
        tell(Stage::Library);
        if !super::device::is_driver_here() {
            return Err(Why::NoLibrary);
        }
        tell(Stage::Initialise);
        let gpu = Gpu::open()?;
        if gpu.capability < OLDEST {
            return Err(Why::OldCard(gpu.capability));
        }
        measured.capability = Some(gpu.capability);
        measured.cuda = gpu.cuda;
        measured.sms = gpu.sms;
        tell(Stage::Context);
        gpu.enter()?;
        tell(Stage::Compile);
        let mut modules = Vec::new();
        for file in FILES {
            if gpu.capability < file.oldest || gpu.cuda < file.oldest_cuda {
                continue;
            }
            modules.push((file.name, gpu.compile(file)?));
        }
        let nothing = Buffer {
            address: 0,
            bytes: 0,
        };
        Ok(Self {
            gpu,
            modules,
            report: nothing,
            table: nothing,
            region: nothing,
            spoil: settings.spoil,
            measured,
            tell,
        })
    }

    fn allocate(&mut self, most: usize) -> Result<(), Why> {
        (self.tell)(Stage::Allocate);
        let free = self.gpu.free_bytes()?;
        let may = usize::try_from(free / FREE_PART).unwrap_or(usize::MAX);
        // Whole MiB, so that halves of it are aligned for any access.
        let bytes = most.min(may) >> 20 << 20;
        if bytes < LEAST_REGION {
            return Err(Why::NoMemory(free));
        }
        self.report = self.gpu.allocate(report::BYTES)?;
        self.table = self.gpu.allocate(TABLE_BYTES)?;
        self.region = self.gpu.allocate(bytes)?;
        Ok(())
    }

    /// Every work that the card and the driver can do.
    fn all(&mut self) -> Result<(), Why> {
        for work in Work::ALL {
            if let Some(why) = work.refusal(self.gpu.capability, self.gpu.cuda) {
                self.measured
                    .left_out
                    .push(format!("{}: {why}", work.name()));
                continue;
            }
            (self.tell)(Stage::Run(work));
            let check = match work {
                Work::Arithmetic => self.arithmetic()?,
                Work::Memory => self.memory()?,
                tensor => self.tensor(tensor)?,
            };
            self.measured.checks.push(check);
        }
        Ok(())
    }

    fn kernel(&self, work: Work, name: &str) -> Result<Kernel, Why> {
        let file = work.file().name;
        let module = self.modules.iter().find(|it| it.0 == file);
        module.ok_or(Why::NoGpu)?.1.kernel(name)
    }

    /// Work that was done between two moments.
    fn took(&mut self, from: &Moment, to: &Moment) -> Result<f64, Why> {
        let seconds = self.gpu.between(from, to)?;
        self.measured.gpu_seconds += seconds;
        Ok(seconds)
    }

    /// Launches work that compares with a table, on so many blocks, `times` times; the report of all of
    /// them and the seconds of the quickest.
    fn compared(
        &mut self,
        work: Work,
        rounds: u32,
        table: &[u8],
        blocks: u32,
        times: usize,
    ) -> Result<(Report, f64), Why> {
        let kernel = self.kernel(work, work.kernel())?;
        let threads = match work {
            Work::Arithmetic => expected::ARITHMETIC_THREADS,
            _ => expected::TENSOR_THREADS,
        };
        self.report.clear()?;
        self.table.write(table)?;
        let arguments = [
            Argument::Four(rounds),
            Argument::Eight(self.table.address),
            Argument::Eight(self.report.address),
        ];
        let mut quickest = f64::INFINITY;
        for _ in 0..times {
            let from = self.gpu.mark()?;
            self.gpu.launch(kernel, (blocks, threads), &arguments)?;
            let to = self.gpu.mark()?;
            quickest = quickest.min(self.took(&from, &to)?);
        }
        Ok((Report::parse(&self.report.read()?), quickest))
    }

    fn arithmetic(&mut self) -> Result<Check, Why> {
        let work = Work::Arithmetic;
        let answers = expected::arithmetic(ARITHMETIC_ROUNDS);
        let right = bytes_of(&answers, u64::to_le_bytes);
        let spoilt = bytes_of(&expected::spoilt(&answers), u64::to_le_bytes);
        let blocks = self.gpu.sms * BLOCKS_A_SM;
        let table = if self.spoil == Some(work) {
            &spoilt
        } else {
            &right
        };
        let mut launches = 1;
        let report = loop {
            let times = launches as usize;
            let (report, _) = self.compared(work, ARITHMETIC_ROUNDS, table, blocks, times)?;
            if report.covered() >= self.gpu.sms || launches >= MOST_LAUNCHES {
                break report;
            }
            launches *= 2;
        };
        let (seen, _) = self.compared(work, ARITHMETIC_ROUNDS, &spoilt, blocks, 1)?;
        // One thread of each block is wrong.
        let is_seen = is_seen(&seen, 1);
        Ok(check(work, &report, is_seen, None))
    }

    fn tensor(&mut self, work: Work) -> Result<Check, Why> {
        let answers = expected::tensor(work);
        let right = bytes_of(&answers, u32::to_le_bytes);
        let spoilt = bytes_of(&expected::spoilt(&answers), u32::to_le_bytes);
        let table = if self.spoil == Some(work) {
            &spoilt
        } else {
            &right
        };
        // One block fills an SM, so as many blocks as SMs are one on each, unless something else is
        // there as well.
        let mut blocks = self.gpu.sms;
        let (report, seconds) = loop {
            let ran = self.compared(work, TENSOR_ROUNDS, table, blocks, TENSOR_RUNS)?;
            if ran.0.covered() >= self.gpu.sms || blocks >= self.gpu.sms * BLOCKS_A_SM {
                break ran;
            }
            blocks *= 2;
        };
        let (seen, _) = self.compared(work, 1, &spoilt, blocks, 1)?;
        let is_seen = is_seen(&seen, expected::TENSOR_WARPS);
        let warps = f64::from(blocks * expected::TENSOR_WARPS);
        let rate = expected::operations(work, TENSOR_ROUNDS) * warps / seconds;
        let slowest = report.slowest();
        let is_slower = |it: &(u32, f64)| self.measured.slowest.is_none_or(|known| it.1 < known.1);
        self.measured.slowest = slowest.filter(is_slower).or(self.measured.slowest);
        Ok(check(
            work,
            &report,
            is_seen,
            Some(rate).filter(|it| it.is_finite()),
        ))
    }

    /// Writes and reads all of the region, twice, and copies one half of it onto the other.
    fn memory(&mut self) -> Result<Check, Why> {
        let work = Work::Memory;
        let (fill, verify) = ("gpufleet_fill", work.kernel());
        let (fill, verify) = (self.kernel(work, fill)?, self.kernel(work, verify)?);
        let grid = (self.gpu.sms * MEMORY_BLOCKS_A_SM, MEMORY_THREADS);
        let words = (self.region.bytes / 8) as u64;
        let address = Argument::Eight(self.region.address);
        let report = Argument::Eight(self.report.address);
        let wrong = u64::from(self.spoil == Some(work));
        self.report.clear()?;
        for pattern in [PATTERN, !PATTERN] {
            let from = self.gpu.mark()?;
            let (count, seed) = (Argument::Eight(words), Argument::Eight(pattern));
            self.gpu.launch(fill, grid, &[address, count, seed])?;
            // A spoilt run compares few words, each of which is wrong.
            let seed = Argument::Eight(pattern ^ wrong);
            let count = Argument::Eight(if wrong > 0 { SPOILT_WORDS } else { words });
            self.gpu
                .launch(verify, grid, &[address, count, seed, report])?;
            let to = self.gpu.mark()?;
            self.took(&from, &to)?;
        }
        let found = Report::parse(&self.report.read()?);
        self.report.clear()?;
        let seed = Argument::Eight(!PATTERN ^ 1);
        let count = Argument::Eight(SPOILT_WORDS);
        self.gpu
            .launch(verify, grid, &[address, count, seed, report])?;
        self.gpu.wait()?;
        let is_seen = Report::parse(&self.report.read()?).wrong() == SPOILT_WORDS;
        self.measured.checked_bytes = self.region.bytes as u64;
        self.measured.memory_rate = self.memory_rate(grid)?;
        Ok(check(work, &found, is_seen, None))
    }

    fn memory_rate(&mut self, grid: (u32, u32)) -> Result<Option<f64>, Why> {
        let copy = self.kernel(Work::Memory, "gpufleet_copy")?;
        let half = self.region.bytes / 2;
        let (from, to) = (self.region.part(0, half), self.region.part(half, half));
        let arguments = [
            Argument::Eight(to.address),
            Argument::Eight(from.address),
            Argument::Eight((half / 16) as u64),
        ];
        // The first one brings the clocks up.
        self.gpu.launch(copy, grid, &arguments)?;
        let began = self.gpu.mark()?;
        for _ in 0..COPIES {
            self.gpu.launch(copy, grid, &arguments)?;
        }
        let ended = self.gpu.mark()?;
        let seconds = self.took(&began, &ended)?;
        // Read and written.
        let moved = 2.0 * half as f64 * f64::from(COPIES);
        Ok(Some(moved / seconds).filter(|it| it.is_finite()))
    }

    fn transfer(&mut self) -> Result<(), Why> {
        (self.tell)(Stage::Transfer);
        let pinned = Pinned::allocate(TRANSFER_BYTES)?;
        let buffer = self.region.part(0, TRANSFER_BYTES);
        let moved = TRANSFER_BYTES as f64 * f64::from(TRANSFERS);
        let mut rates = [None, None];
        for (is_down, rate) in [false, true].into_iter().zip(&mut rates) {
            let copy = || match is_down {
                false => pinned.copy_to(buffer),
                true => pinned.copy_from(buffer),
            };
            // The first one wakes the link.
            copy()?;
            let from = self.gpu.mark()?;
            for _ in 0..TRANSFERS {
                copy()?;
            }
            let to = self.gpu.mark()?;
            let seconds = self.took(&from, &to)?;
            *rate = Some(moved / seconds).filter(|it| it.is_finite());
        }
        [self.measured.to_gpu, self.measured.from_gpu] = rates;
        Ok(())
    }
}
