//! Everything that is made once for a context and kept: kernels, the stream, events, pinned memory with the
//! answers; and one run with it on memory that was lent.
//!
//! The memory that is lent: the answers, then the reports, then the region that is gone through. A run is one
//! copy there, the launches, one copy back.

use super::driver::{Context, Driver, Event, Kernel, MAJOR, MINOR, Pinned, SM_COUNT, Stream};
use super::{Cannot, Lent};
use crate::expected;
use crate::launch::{
    Argument, BLOCKS_A_SM, MEMORY_BLOCKS_A_SM, MEMORY_THREADS, PATTERN, SPOILT_WORDS, bytes_of,
    check, is_seen,
};
use crate::measured::{Check, Measured};
use crate::ptx::{Capability, FILES, OLDEST, OLDEST_CUDA, Work};
use crate::report::{self, Report};

/// Rounds of the arithmetic: a quarter of those of a probe that has the GPU for itself.
const ARITHMETIC_ROUNDS: u32 = 1_024;

/// Rounds of tensor work, the same quarter.
const TENSOR_ROUNDS: u32 = 256;

/// Blocks of tensor work for each SM: two, because a step may keep some busy.
const TENSOR_BLOCKS_A_SM: u32 = 2;

/// Least memory to go through; less is left out.
const LEAST_REGION: usize = 8 << 20;

/// What every place in the lent memory begins at a multiple of.
const ALIGNMENT: usize = 256;

/// Bytes of one report with its padding.
const REPORT_BYTES: usize = report::BYTES.next_multiple_of(ALIGNMENT);

/// What one context is probed with.
pub(super) struct Kit {
    driver: Driver,
    context: Context,
    stream: Stream,
    /// After what training had launched; before and after the probe's own.
    gate: Event,
    began: Event,
    ended: Event,
    pinned: Pinned,
    works: Vec<Prepared>,
    memory: Walk,
    answers_bytes: usize,
    known: Measured,
}

/// A work whose answers are in a table.
struct Prepared {
    work: Work,
    kernel: Kernel,
    rounds: u32,
    threads: u32,
    blocks_a_sm: u32,
    /// Comparisons of a block that a spoilt answer makes wrong.
    wrong_a_block: u32,
    /// Where the answers are, right and spoilt.
    right: usize,
    spoilt: usize,
}

/// The kernels that go through memory.
struct Walk {
    fill: Kernel,
    verify: Kernel,
}

/// A run on its way.
pub(super) struct Run {
    /// Bytes that are gone through; none: left out.
    region: usize,
}

impl Kit {
    /// Everything, for the context of this thread, which is not the one that trains: the driver compiles for
    /// up to some seconds.
    pub(super) fn make(driver: Driver, context: Context) -> Result<Self, Cannot> {
        driver.enter(context)?;
        let _relaxed = driver.relaxed()?;
        let cuda = driver.version()?;
        if cuda < OLDEST_CUDA {
            return Err(Cannot::OldDriver(cuda));
        }
        let capability = Capability(driver.attribute(MAJOR)?, driver.attribute(MINOR)?);
        if capability < OLDEST {
            return Err(Cannot::OldCard(capability));
        }
        let sms = u32::try_from(driver.attribute(SM_COUNT)?).unwrap_or(0);
        let mut modules = Vec::new();
        for file in FILES {
            if capability >= file.oldest && cuda >= file.oldest_cuda {
                modules.push((file.name, driver.compile(file.text)?));
            }
        }
        let kernel = |work: Work, name: &str| {
            let mut found = modules.iter().filter(|it| it.0 == work.file().name);
            let module = found.next().ok_or(Cannot::Lacks("kernels"))?.1;
            driver.kernel(module, name)
        };
        let mut known = Measured {
            capability: Some(capability),
            cuda,
            sms,
            ..Measured::default()
        };
        let mut answers = Vec::new();
        let mut works = Vec::new();
        for work in Work::ALL.into_iter().filter(|it| *it != Work::Memory) {
            match work.refusal(capability, cuda) {
                Some(why) => known.left_out.push(format!("{}: {why}", work.name())),
                None => works.push(Prepared::new(
                    work,
                    kernel(work, work.kernel())?,
                    &mut answers,
                )),
            }
        }
        let memory = Walk {
            fill: kernel(Work::Memory, "gpufleet_fill")?,
            verify: kernel(Work::Memory, Work::Memory.kernel())?,
        };
        let reports = reports(works.len()) * REPORT_BYTES;
        Ok(Self {
            stream: driver.stream()?,
            gate: driver.event(false)?,
            began: driver.event(true)?,
            ended: driver.event(true)?,
            pinned: driver.pinned(&answers, answers.len() + reports)?,
            answers_bytes: answers.len(),
            works,
            memory,
            driver,
            context,
            known,
        })
    }

    /// Whether the context of this thread is the one that this is for.
    pub(super) fn is_here(&self) -> Result<(), Cannot> {
        match self.driver.context()? == self.context {
            true => Ok(()),
            false => Err(Cannot::OtherContext),
        }
    }

    /// The driver.
    pub(super) const fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Bytes that a run takes at least: no region.
    fn least_bytes(&self) -> usize {
        self.answers_bytes + reports(self.works.len()) * REPORT_BYTES
    }

    /// Launches a run after what is on `after`, on memory that stays ours until [`Kit::is_over`]. What was
    /// launched by then is on its way also where this is an error.
    pub(super) fn launch(&self, lent: Lent, after: Stream, spoil: Option<Work>) -> Launched {
        let is_lent = lent.bytes >= self.least_bytes()
            && self.driver.is_of_device(lent.address)
            && self
                .driver
                .is_of_device(lent.address + lent.bytes as u64 - 1);
        if !is_lent {
            return Launched::Nothing(Cannot::NotLent(lent.bytes));
        }
        // What was in the memory before may still be read by what training has launched.
        let ordered = self
            .driver
            .record(self.gate, after)
            .and_then(|()| self.driver.wait(self.stream, self.gate));
        if let Err(cannot) = ordered {
            return Launched::Nothing(cannot);
        }
        let region = lent.bytes - self.least_bytes();
        let region = if region < LEAST_REGION {
            0
        } else {
            region >> 20 << 20
        };
        let run = Run { region };
        let begun = self.driver.record(self.began, self.stream);
        let broken = begun.and_then(|()| self.works(&run, lent, spoil)).err();
        match self.driver.record(self.ended, self.stream) {
            Ok(()) => Launched::Run(run, broken),
            Err(cannot) => Launched::Lost(broken.unwrap_or(cannot)),
        }
    }

    fn works(&self, run: &Run, lent: Lent, spoil: Option<Work>) -> Result<(), Cannot> {
        let (driver, stream) = (&self.driver, self.stream);
        let reports = lent.address + self.answers_bytes as u64;
        let report = |number: usize| reports + (number * REPORT_BYTES) as u64;
        let reports_bytes = self.reports_bytes();
        driver.copy_to(lent.address, &self.pinned, self.answers_bytes, stream)?;
        driver.clear(reports, reports_bytes, stream)?;
        for (number, it) in self.works.iter().enumerate() {
            let answers = if spoil == Some(it.work) {
                it.spoilt
            } else {
                it.right
            };
            let blocks = self.known.sms * it.blocks_a_sm;
            // Tensor work ends with the same after any number of rounds; the arithmetic does not.
            let few = if it.work == Work::Arithmetic {
                it.rounds
            } else {
                1
            };
            for (rounds, answers, report) in [
                (it.rounds, answers, report(2 * number)),
                (few, it.spoilt, report(2 * number + 1)),
            ] {
                let arguments = [
                    Argument::Four(rounds),
                    Argument::Eight(lent.address + answers as u64),
                    Argument::Eight(report),
                ];
                driver.launch(it.kernel, (blocks, it.threads), &arguments, stream)?;
            }
        }
        if run.region > 0 {
            let number = 2 * self.works.len();
            let region = reports + reports_bytes as u64;
            let wrong = u64::from(spoil == Some(Work::Memory));
            self.walk(
                region,
                run.region,
                (report(number), report(number + 1)),
                wrong,
            )?;
        }
        driver.copy_from(
            &self.pinned,
            self.answers_bytes,
            reports,
            reports_bytes,
            stream,
        )
    }

    /// Goes through the region, twice, and once under a spoilt expectation.
    fn walk(&self, at: u64, bytes: usize, reports: (u64, u64), wrong: u64) -> Result<(), Cannot> {
        let grid = (self.known.sms * MEMORY_BLOCKS_A_SM, MEMORY_THREADS);
        let words = (bytes / 8) as u64;
        let launch = |kernel, arguments: &[Argument]| {
            self.driver.launch(kernel, grid, arguments, self.stream)
        };
        let region = Argument::Eight(at);
        for pattern in [PATTERN, !PATTERN] {
            let arguments = [region, Argument::Eight(words), Argument::Eight(pattern)];
            launch(self.memory.fill, &arguments)?;
            // A spoilt run compares few words, each of which is wrong.
            let count = if wrong > 0 { SPOILT_WORDS } else { words };
            let (count, seed) = (Argument::Eight(count), Argument::Eight(pattern ^ wrong));
            launch(
                self.memory.verify,
                &[region, count, seed, Argument::Eight(reports.0)],
            )?;
        }
        let (count, seed) = (Argument::Eight(SPOILT_WORDS), Argument::Eight(!PATTERN ^ 1));
        launch(
            self.memory.verify,
            &[region, count, seed, Argument::Eight(reports.1)],
        )
    }

    /// Whether the GPU is through with it.
    pub(super) fn is_over(&self) -> Result<bool, Cannot> {
        self.driver.is_past(self.ended)
    }

    /// What a run that is over came to.
    pub(super) fn read(&self, run: &Run) -> Result<Measured, Cannot> {
        let report = |number: usize| {
            let at = self.answers_bytes + number * REPORT_BYTES;
            Report::parse(&self.pinned.read(at, report::BYTES))
        };
        let mut measured = self.known.clone();
        let mut checks: Vec<Check> = Vec::new();
        for (number, it) in self.works.iter().enumerate() {
            let (found, spoilt) = (report(2 * number), report(2 * number + 1));
            checks.push(check(
                it.work,
                &found,
                is_seen(&spoilt, it.wrong_a_block),
                None,
            ));
        }
        if run.region > 0 {
            let number = 2 * self.works.len();
            let (found, spoilt) = (report(number), report(number + 1));
            let is_seen = spoilt.wrong() == SPOILT_WORDS;
            checks.push(check(Work::Memory, &found, is_seen, None));
            measured.checked_bytes = run.region as u64;
        } else {
            measured
                .left_out
                .push("memory: too little is free to go through".to_owned());
        }
        measured.checks = checks;
        measured.gpu_seconds = self.driver.between(self.began, self.ended)?;
        Ok(measured)
    }

    fn reports_bytes(&self) -> usize {
        reports(self.works.len()) * REPORT_BYTES
    }
}

/// What a launch came to.
pub(super) enum Launched {
    /// Nothing is on its way: the memory is free.
    Nothing(Cannot),
    /// A run is on its way; where something was refused, less than all of it.
    Run(Run, Option<Cannot>),
    /// Something may be on its way, and nobody will know when it is over.
    Lost(Cannot),
}

/// Reports of so many works and of the memory, two each.
const fn reports(works: usize) -> usize {
    2 * (works + 1)
}

impl Prepared {
    /// A work with its answers, which are added to the table.
    fn new(work: Work, kernel: Kernel, table: &mut Vec<u8>) -> Self {
        let is_tensor = work.shape().is_some();
        let (right, spoilt) = if is_tensor {
            let answers = expected::tensor(work);
            let spoilt = expected::spoilt(&answers);
            (
                bytes_of(&answers, u32::to_le_bytes),
                bytes_of(&spoilt, u32::to_le_bytes),
            )
        } else {
            let answers = expected::arithmetic(ARITHMETIC_ROUNDS);
            let spoilt = expected::spoilt(&answers);
            (
                bytes_of(&answers, u64::to_le_bytes),
                bytes_of(&spoilt, u64::to_le_bytes),
            )
        };
        let mut put = |bytes: &[u8]| {
            let at = table.len();
            table.extend(bytes);
            table.resize(table.len().next_multiple_of(ALIGNMENT), 0);
            at
        };
        Self {
            work,
            kernel,
            rounds: if is_tensor {
                TENSOR_ROUNDS
            } else {
                ARITHMETIC_ROUNDS
            },
            threads: if is_tensor {
                expected::TENSOR_THREADS
            } else {
                expected::ARITHMETIC_THREADS
            },
            blocks_a_sm: if is_tensor {
                TENSOR_BLOCKS_A_SM
            } else {
                BLOCKS_A_SM
            },
            wrong_a_block: if is_tensor { expected::TENSOR_WARPS } else { 1 },
            right: put(&right),
            spoilt: put(&spoilt),
        }
    }
}
