//! The scenario file: which GPU the stand-in shows and what goes wrong with it.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// A whole scenario. The default is an H100 of few SMs with nothing wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scenario {
    /// The driver's CUDA version, as CUDA codes it: 12080 is 12.8.
    pub cuda: i32,
    /// UUIDs of the GPUs that are here; empty: whatever CUDA_VISIBLE_DEVICES names is.
    pub gpus: Vec<String>,
    /// The card's name.
    pub name: String,
    /// What it can do: major, minor.
    pub capability: [i32; 2],
    /// SMs it has.
    pub sms: u32,
    /// Its compute mode: 0 default, 2 prohibited, 3 exclusive.
    pub compute_mode: i32,
    /// The context of every thread; 0 none.
    pub context: u64,
    /// How often an event that was recorded is asked for before the GPU is past it.
    pub ready_after: u32,
    /// The CUDA graph that is being captured, if one is.
    pub capture: Capture,
    /// Bytes of memory, and how many are free, MiB.
    pub memory_mib: u64,
    /// See `memory_mib`.
    pub free_mib: u64,
    /// Bytes a second that its memory moves.
    pub memory_rate: f64,
    /// Operations a second that its tensor cores do, all SMs together.
    pub tensor_rate: f64,
    /// Bytes a second over PCIe, each way.
    pub link_rate: f64,
    /// Whether GPUs reach each other's memory.
    pub peer_access: bool,
    /// Bytes a second between two GPUs, each way.
    pub peer_rate: f64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// What is captured into a graph while the process goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    /// Nothing.
    #[default]
    Nothing,
    /// What is launched on the stream that is asked for.
    Own,
    /// A stream that the default stream waits for.
    Implicit,
    /// A stream of another thread: calls that could wait for it are forbidden and end the capture, but in
    /// relaxed mode.
    Other,
}

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A function of the driver returns this error.
    Error(String, u32),
    /// A function of the driver does not return.
    Hang(String),
    /// This kernel breaks: what waits for it returns this error.
    Breaks(String, u32),
    /// This kernel never ends.
    NeverEnds(String),
    /// An SM gets results of this kernel wrong.
    Wrong(String, u32),
    /// Comparisons on the GPU always say that all is right.
    Blind,
    /// Those of this kernel do.
    BlindIn(String),
    /// An SM never gets a block.
    Absent(u32),
    /// An SM takes so many times as long as the others.
    Slow(u32, f64),
    /// Copies to and from this GPU take so many times as long as between others.
    SlowPeer(String, f64),
    /// The process ends in this kernel.
    Crash(String),
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            cuda: 12_080,
            gpus: Vec::new(),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            capability: [9, 0],
            sms: 6,
            compute_mode: 0,
            context: 1,
            ready_after: 0,
            capture: Capture::Nothing,
            memory_mib: 81_920,
            free_mib: 80_000,
            memory_rate: 3.0e12,
            tensor_rate: 620e12,
            link_rate: 52e9,
            peer_access: true,
            peer_rate: 370e9,
            faults: Vec::new(),
        }
    }
}

impl Scenario {
    /// Writes the file.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = toml::to_string(self).map_err(std::io::Error::other)?;
        std::fs::write(path, text)
    }
}
