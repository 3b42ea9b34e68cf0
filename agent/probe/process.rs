//! One run of the probe from the parent's side: the child is started, listened to and, when it is late,
//! killed without waiting for it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::measured::{Ended, Stage, Stopped, Told, Why};

/// Most a child may say: a dozen stages and one result of a few KiB.
const MOST_BYTES: usize = 256 << 10;

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;

/// How long a killed child is waited for. One in a driver call that does not return cannot be killed.
const BURIAL: Duration = Duration::from_millis(500);

/// How children are started.
#[derive(Debug, Clone)]
pub struct Spawner {
    /// The program; it must know the argument `probe-child`.
    pub program: PathBuf,
    /// Variables of its environment beside the parent's own.
    pub environment: Vec<(OsString, OsString)>,
}

/// What one run is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The GPU, by UUID, or by index where there is no NVML.
    pub gpu: String,
    /// Where NVML is; empty is where the loader finds it.
    pub nvml_library: String,
    /// Most memory to go through, MiB.
    pub region_mib: u64,
    /// After this the child is killed.
    pub deadline: Duration,
    /// Work whose expectation is spoilt, to see the probe fail.
    pub spoil: Option<String>,
}

/// What came of it.
#[derive(Debug)]
pub struct Ran {
    /// The child's last word, or why there is none.
    pub ended: Ended,
    /// The child, where it could not be killed: nobody else is to be sent after it.
    pub stuck: Option<Child>,
}

impl Default for Spawner {
    fn default() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            environment: Vec::new(),
        }
    }
}

impl Spawner {
    /// Runs the probe once. When this future is dropped the child is killed.
    pub async fn run(&self, order: &Order) -> Ran {
        let child = Command::new(&self.program)
            .arg("probe-child")
            .args(["--gpu", &order.gpu, "--nvml-library", &order.nvml_library])
            .args(["--region-mib", &order.region_mib.to_string()])
            .args(order.spoil.iter().flat_map(|it| ["--spoil", it]))
            // Only this one is initialised, and a context is made on no other.
            .env("CUDA_VISIBLE_DEVICES", &order.gpu)
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                return Ran {
                    ended: stopped(Stage::Look, Why::Died(format!("did not start ({error})"))),
                    stuck: None,
                };
            }
        };
        let mut heard = Heard::default();
        let listened = tokio::time::timeout(order.deadline, heard.listen(&mut child)).await;
        if listened.is_err() {
            let after = u64::try_from(order.deadline.as_millis()).unwrap_or(u64::MAX);
            return bury(child, stopped(heard.stage, Why::Hung(after))).await;
        }
        match heard.ended {
            // It may still hang in the driver's farewell.
            Some(ended) => bury(child, ended).await,
            None => {
                let status = tokio::time::timeout(BURIAL, child.wait()).await;
                let how = match status {
                    Ok(Ok(status)) => format!("ended without a word ({status})"),
                    _ => "closed its output and went on".to_owned(),
                };
                bury(child, stopped(heard.stage, Why::Died(how))).await
            }
        }
    }
}

fn stopped(stage: Stage, why: Why) -> Ended {
    Ended::Stopped(Stopped { stage, why })
}

/// Kills the child unless it has ended, and lets go of it when it is gone.
async fn bury(mut child: Child, ended: Ended) -> Ran {
    let gone = tokio::time::timeout(BURIAL, child.wait()).await.is_ok();
    if gone {
        return Ran { ended, stuck: None };
    }
    // An error here means that it has ended already, which is what is waited for next.
    let _ = child.start_kill();
    let gone = tokio::time::timeout(BURIAL, child.wait()).await.is_ok();
    Ran {
        ended,
        stuck: (!gone).then_some(child),
    }
}

/// What a child said.
struct Heard {
    stage: Stage,
    ended: Option<Ended>,
    bytes: Vec<u8>,
    total: usize,
}

impl Default for Heard {
    fn default() -> Self {
        Self {
            stage: Stage::Look,
            ended: None,
            bytes: Vec::new(),
            total: 0,
        }
    }
}

impl Heard {
    /// Listens until the child's last word, or the end of its output.
    async fn listen(&mut self, child: &mut Child) {
        let Some(mut out) = child.stdout.take() else {
            return;
        };
        while self.ended.is_none() && self.total < MOST_BYTES {
            self.bytes.reserve(READ_BYTES);
            match out.read_buf(&mut self.bytes).await {
                Ok(0) | Err(_) => return,
                Ok(count) => self.total += count,
            }
            self.take();
        }
    }

    /// Takes the whole lines.
    fn take(&mut self) {
        while let Some(end) = self.bytes.iter().position(|it| *it == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Told::Stage(stage)) => self.stage = stage,
                Ok(Told::Ended(ended)) => self.ended = Some(ended),
                // Of a program that is not ours: the end of its output says so.
                Err(_) => {}
            }
        }
    }
}
