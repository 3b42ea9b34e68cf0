//! What one run of the probe found, as the child process tells its parent: readings, or why there are
//! none. What it means is [`super::verdict`]'s to say.

use serde::{Deserialize, Serialize};

use super::ptx::{Capability, Work};
use super::report::{First, Sm};

/// What the child is at: told before each, so that a call which does not return has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Asking NVML who is on the GPU.
    Look,
    /// Loading CUDA's driver.
    Library,
    /// Initialising it.
    Initialise,
    /// Making a context.
    Context,
    /// Having the driver compile the PTX.
    Compile,
    /// Getting memory.
    Allocate,
    /// Running this work.
    Run(Work),
    /// Copying over PCIe.
    Transfer,
    /// Copying to and from this one of the other GPUs that were named, from 0.
    Between(u32),
    /// Letting go of everything.
    Close,
}

/// Everything that one run read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The card's name as NVML spells it, else as CUDA does.
    pub card: String,
    /// What it can do.
    pub capability: Option<Capability>,
    /// The driver's CUDA version, e.g. 12040.
    pub cuda: i32,
    /// SMs it has.
    pub sms: u32,
    /// Whether it is a part of a card: then no rate is held against the whole card's.
    pub is_slice: bool,
    /// What was compared.
    pub checks: Vec<Check>,
    /// What the memory moved when it was copied within itself, bytes read and written a second.
    pub memory_rate: Option<f64>,
    /// Bytes a second from the host to the GPU.
    pub to_gpu: Option<f64>,
    /// Bytes a second from the GPU to the host.
    pub from_gpu: Option<f64>,
    /// What its PCIe link could move at best one way, bytes a second.
    pub link: Option<f64>,
    /// The slowest SM, and its speed as a part of the middle one's.
    pub slowest: Option<(u32, f64)>,
    /// Memory of the GPU that the context of the probe took, its own buffers left out.
    pub context_bytes: Option<u64>,
    /// Bytes of memory that were written and read back.
    pub checked_bytes: u64,
    /// How long kernels and copies ran on the GPU, seconds.
    pub gpu_seconds: f64,
    /// ECC errors that came while the probe ran: corrected, uncorrected.
    pub ecc: Option<(u64, u64)>,
    /// Copies to and from other GPUs of the node.
    pub peers: Vec<Peer>,
    /// What broke while it copied to and from another GPU, and which.
    pub broke_with: Option<(String, Stopped)>,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

/// Copies to and from one other GPU of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// The other one.
    pub gpu: String,
    /// CUDA's rank of the link between the two among those of the machine: equal ones are of one kind.
    pub link: i32,
    /// Bytes a second to the other one.
    pub to: f64,
    /// Bytes a second from it.
    pub from: f64,
}

/// One work and whether its results were right.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What was done.
    pub work: Work,
    /// SMs that took part.
    pub covered: u32,
    /// Comparisons that failed.
    pub wrong: u64,
    /// The SMs on which some failed.
    pub wrong_sms: Vec<Sm>,
    /// What was first wrong.
    pub first: Option<First>,
    /// Whether the same work, with one expectation spoilt, told every SM that it is wrong.
    pub sees_errors: bool,
    /// Operations a second, of tensor work.
    pub rate: Option<f64>,
}

/// Why a run ended without readings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// What it was at.
    pub stage: Stage,
    /// What happened.
    pub why: Why,
}

/// What kept the probe from measuring, or ended it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// There is no CUDA driver to load.
    NoLibrary,
    /// No such GPU here.
    NoGpu,
    /// The driver is older than the PTX: its CUDA version.
    OldDriver(i32),
    /// The card is.
    OldCard(Capability),
    /// MIG is on: only its instances can compute.
    MigIsOn,
    /// Its compute mode lets nobody in, or only the one who is in.
    ComputeMode(String),
    /// So many processes compute on it.
    Busy(u32),
    /// Not enough free memory: so many bytes are.
    NoMemory(u64),
    /// CUDA returned an error: number and name.
    Cuda(u32, String),
    /// It did not go on within so many milliseconds and was killed.
    Hung(u64),
    /// The process ended without a word.
    Died(String),
}

/// The last word of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It read what there is.
    Measured(Box<Measured>),
    /// It could not, or something ended it.
    Stopped(Stopped),
}

/// One line from the child to the parent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It begins with this.
    Stage(Stage),
    /// It is through.
    Ended(Ended),
}

impl Stage {
    /// In words, after "while".
    pub fn words(self) -> String {
        match self {
            Self::Look => "asking NVML who is on the GPU".to_owned(),
            Self::Library => "loading CUDA's driver".to_owned(),
            Self::Initialise => "initialising CUDA".to_owned(),
            Self::Context => "making a context".to_owned(),
            Self::Compile => "having the driver compile the kernels".to_owned(),
            Self::Allocate => "getting memory".to_owned(),
            Self::Run(work) => format!("running the {} kernel", work.name()),
            Self::Transfer => "copying over PCIe".to_owned(),
            Self::Between(_) => "copying between two GPUs".to_owned(),
            Self::Close => "letting go of the GPU".to_owned(),
        }
    }
}
