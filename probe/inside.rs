//! The probe inside a training process: the same kernels in the context that the framework made, on a stream of
//! the lowest priority, on memory that the framework lends. Nothing here waits for the GPU, takes memory of
//! it, makes a context or loads a driver: what is not there is a reason.
//!
//! [`Inside::prepare`] has a thread compile the kernels; [`Inside::room`] says how much memory to lend;
//! [`Inside::start`] launches a run after what is on the framework's stream; [`Inside::poll`] says, any time
//! later, whether it is over and what it came to. Each is called by the thread that trains, and costs
//! microseconds but for the thirty launches of a start.
//!
//! Limits: [`MOST_LENT`], [`LEAST_LENT`], [`KEPT_FREE`], [`COMPILES_WITHIN`], [`OVER_WITHIN`]; one run at a time.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::measured::Measured;
use crate::ptx::{Capability, Work};
use crate::verdict::{Judgement, judge_inside};

mod driver;

mod answers;

mod kit;

pub use answers::Device;
use driver::{Driver, Stream};
use kit::{Kit, Launched, Run};

/// Most memory that is borrowed, bytes.
pub const MOST_LENT: usize = 64 << 20;

/// Least: answers and reports, and no region to go through. Frameworks keep so small blocks at hand.
pub const LEAST_LENT: usize = 1 << 20;

/// Memory of the GPU that must stay free beside what is borrowed: an allocator that finds none gives all that
/// it has cached back to the driver, for which training would wait.
const KEPT_FREE: u64 = 256 << 20;

/// The same for the least that is borrowed, which is a part of a block of 2 MiB.
const KEPT_FREE_OF_LEAST: u64 = 4 << 20;

/// How long the driver may compile before that is told.
const COMPILES_WITHIN: Duration = Duration::from_secs(120);

/// How long a run may be on its way before it is given up, and its memory with it: nobody can stop it.
const OVER_WITHIN: Duration = Duration::from_secs(600);

/// Stack of the thread that compiles: the driver's compiler is a large one.
const STACK_BYTES: usize = 8 << 20;

/// Why nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cannot {
    /// No framework of this process computes with CUDA.
    #[error("this process has not loaded CUDA's driver (libcuda.so.1)")]
    NotLoaded,
    /// A function of the driver, or kernels for the card.
    #[error("the driver has no {0}: it is older than CUDA 11.0")]
    Lacks(&'static str),
    /// Its CUDA version.
    #[error("the driver is of CUDA {}.{}, older than the kernels (11.0): update it", .0 / 1_000, .0 % 1_000 / 10)]
    OldDriver(i32),
    /// What the card can do.
    #[error("the card's compute capability is {}.{}, the kernels are for 7.5 and newer", .0.0, .0.1)]
    OldCard(Capability),
    /// CUDA was not used in this thread so far.
    #[error("this thread has no CUDA context yet")]
    NoContext,
    /// The script went on to another GPU.
    #[error("this thread computes in another CUDA context than the one that the probe began in")]
    OtherContext,
    /// So many seconds.
    #[error("the driver has been compiling the kernels for {0} s")]
    Compiles(u64),
    /// No thread to compile in.
    #[error("the kernels cannot be compiled: the process gets no thread")]
    NoThread,
    /// Free bytes.
    #[error("too little memory: {} MiB are free, and the allocator's cache is left alone", .0 >> 20)]
    NoMemory(u64),
    /// So many bytes were lent that are too few, or not the GPU's.
    #[error("the {0} bytes that were lent are too few, or are no memory of the GPU")]
    NotLent(usize),
    /// The driver refuses something, or the context is broken: by training's kernels or by the probe's.
    #[error("CUDA error {code} while {doing}")]
    Cuda {
        /// CUDA's number.
        code: u32,
        /// What it was at.
        doing: &'static str,
    },
    /// So many seconds.
    #[error("it was not over after {0} s; its memory is not given back")]
    Late(u64),
    /// Somebody called for a run that was not prepared, or while one is on its way.
    #[error("it is not prepared, or a run is on its way")]
    NotReady,
}

/// Memory of the GPU that the framework lends: nobody else uses it until the run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Its address on the GPU.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
}

/// How much memory a run would take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// So many bytes.
    Bytes(usize),
    /// None now: a CUDA graph is being captured on the framework's stream.
    Captured,
}

/// Where a run is.
#[derive(Debug, PartialEq)]
pub enum Polled {
    /// There is none.
    Idle,
    /// The GPU is not through with it: the memory stays lent.
    Running,
    /// It is over and the memory is free.
    Over(Result<Box<Found>, Cannot>),
    /// It is given up: the memory may never be used again, and no other run comes.
    Lost(Cannot),
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// What it means.
    pub judgement: Judgement,
    /// What was read.
    pub measured: Measured,
}

/// The probe of one process, in one context.
#[derive(Default)]
pub struct Inside {
    state: Mutex<State>,
    spoil: Option<Work>,
}

#[derive(Default)]
enum State {
    #[default]
    New,
    Preparing {
        since: Duration,
        thread: JoinHandle<Made>,
        /// Closed when the thread ends; nothing is sent.
        over: Receiver<()>,
    },
    Ready(Box<Kit>),
    Running(Box<Kit>, OnItsWay),
    /// Nothing will come of it any more.
    Over(Cannot),
}

/// What the thread that compiles came to.
type Made = Result<Box<Kit>, Cannot>;

struct OnItsWay {
    run: Run,
    since: Duration,
    /// What was refused of it.
    broken: Option<Cannot>,
}

impl Inside {
    /// One whose expectation of this work is spoilt, to see it fail.
    pub fn spoilt(work: Option<Work>) -> Self {
        Self {
            state: Mutex::default(),
            spoil: work,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a run can be started; begins to compile where nobody has. `now` by the monotonic clock.
    ///
    /// # Errors
    /// Why not. Some pass: a thread without a context, a compiler that takes its time.
    pub fn prepare(&self, now: Duration) -> Result<bool, Cannot> {
        let mut state = self.state();
        match &*state {
            State::New => {
                let driver = Driver::find()?;
                let context = driver.context()?;
                let (of_thread, over) = channel();
                let thread = std::thread::Builder::new()
                    .name("gpufleet-probe".to_owned())
                    .stack_size(STACK_BYTES)
                    .spawn(move || {
                        driver::block_signals();
                        let made = Kit::make(driver, context).map(Box::new);
                        drop(of_thread);
                        made
                    });
                let thread = thread.map_err(|_none| Cannot::NoThread)?;
                let since = now;
                *state = State::Preparing {
                    since,
                    thread,
                    over,
                };
                Ok(false)
            }
            State::Preparing { since, thread, .. } => {
                let late = now.saturating_sub(*since);
                if !thread.is_finished() {
                    return match late > COMPILES_WITHIN {
                        true => Err(Cannot::Compiles(late.as_secs())),
                        false => Ok(false),
                    };
                }
                let State::Preparing { thread, .. } = std::mem::take(&mut *state) else {
                    return Err(Cannot::NotReady);
                };
                // A thread that panicked made nothing.
                match thread.join().unwrap_or(Err(Cannot::NoThread)) {
                    Ok(kit) => {
                        *state = State::Ready(kit);
                        Ok(true)
                    }
                    Err(cannot) => {
                        *state = State::Over(cannot.clone());
                        Err(cannot)
                    }
                }
            }
            State::Ready(_) => Ok(true),
            State::Running(..) => Ok(false),
            State::Over(cannot) => Err(cannot.clone()),
        }
    }

    /// Whether nothing will come of it any more.
    pub fn is_over(&self) -> bool {
        matches!(&*self.state(), State::Over(_))
    }

    /// Waits for the thread that compiles, so long at most: a process that ends would end it in the driver.
    /// Whether there is none.
    pub fn finish(&self, at_most: Duration) -> bool {
        match &*self.state() {
            State::Preparing { over, .. } => {
                over.recv_timeout(at_most) != Err(std::sync::mpsc::RecvTimeoutError::Timeout)
            }
            _ => true,
        }
    }

    /// How much memory a run would take now; `stream` is the framework's.
    ///
    /// # Errors
    /// Why there can be no run now.
    pub fn room(&self, stream: u64) -> Result<Room, Cannot> {
        let state = self.state();
        let State::Ready(kit) = &*state else {
            return Err(Cannot::NotReady);
        };
        kit.is_here()?;
        let driver = kit.driver();
        if driver.is_capturing(Stream::named(stream))? {
            return Ok(Room::Captured);
        }
        let _relaxed = driver.relaxed()?;
        let free = driver.free_bytes()?;
        if free >= MOST_LENT as u64 + KEPT_FREE {
            Ok(Room::Bytes(MOST_LENT))
        } else if free >= LEAST_LENT as u64 + KEPT_FREE_OF_LEAST {
            Ok(Room::Bytes(LEAST_LENT))
        } else {
            Err(Cannot::NoMemory(free))
        }
    }

    /// Launches a run after what is on the framework's stream. The memory stays ours until [`Inside::poll`]
    /// says that it is over.
    ///
    /// # Errors
    /// Nothing was launched, and the memory is free.
    pub fn start(&self, lent: Lent, stream: u64, now: Duration) -> Result<(), Cannot> {
        let mut state = self.state();
        let State::Ready(kit) = &*state else {
            return Err(Cannot::NotReady);
        };
        kit.is_here()?;
        let launched = {
            let _relaxed = kit.driver().relaxed()?;
            kit.launch(lent, Stream::named(stream), self.spoil)
        };
        let (run, broken) = match launched {
            Launched::Nothing(cannot) => return Err(cannot),
            Launched::Run(run, broken) => (run, broken),
            Launched::Lost(cannot) => {
                *state = State::Over(cannot);
                return Ok(());
            }
        };
        if let State::Ready(kit) = std::mem::take(&mut *state) {
            let since = now;
            *state = State::Running(kit, OnItsWay { run, since, broken });
        }
        Ok(())
    }

    /// Where the run is. Never waits for it.
    pub fn poll(&self, now: Duration) -> Polled {
        let mut state = self.state();
        let (kit, way) = match &*state {
            State::Running(kit, way) => (kit, way),
            State::Over(cannot) => return Polled::Lost(cannot.clone()),
            _ => return Polled::Idle,
        };
        let late = now.saturating_sub(way.since);
        match over(kit, way) {
            Ok(None) if late > OVER_WITHIN => {
                let cannot = Cannot::Late(late.as_secs());
                *state = State::Over(cannot.clone());
                Polled::Lost(cannot)
            }
            Ok(None) => Polled::Running,
            Ok(Some(found)) => {
                if let State::Running(kit, _) = std::mem::take(&mut *state) {
                    *state = State::Ready(kit);
                }
                Polled::Over(found.map(Box::new))
            }
            // What a context says once it goes on saying: training ends of it as well.
            Err(cannot) => {
                *state = State::Over(cannot.clone());
                Polled::Lost(cannot)
            }
        }
    }
}

/// What a run came to; none while it is on its way, or where this thread is in another context.
fn over(kit: &Kit, way: &OnItsWay) -> Result<Option<Result<Found, Cannot>>, Cannot> {
    if kit.is_here().is_err() {
        return Ok(None);
    }
    let _relaxed = kit.driver().relaxed()?;
    if !kit.is_over()? {
        return Ok(None);
    }
    if let Some(broken) = &way.broken {
        return Ok(Some(Err(broken.clone())));
    }
    Ok(Some(kit.read(&way.run).map(|measured| Found {
        judgement: judge_inside(&measured),
        measured,
    })))
}
