//! One run of the probe from the parent's side: the child is started, listened to and, when it is late,
//! killed without waiting for it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use super::measured::{Ended, Measured, Stage, Stopped, Told, Why};
use super::verdict::{Verdict, judge_stopped};

/// Most a child may say: a dozen stages and one result of a few KiB.
const MOST_BYTES: usize = 256 << 10;

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;

/// Most GPUs that one copies to and from: three are enough for one to stand out, and each takes a context.
pub const MOST_PEERS: usize = 3;

/// Least time that must be left of a run for copies between GPUs: several contexts are made for them.
const LEAST_LEFT: Duration = Duration::from_secs(3);

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
    /// Other GPUs of the node that nobody uses, by UUID: it copies to and from the first [`MOST_PEERS`].
    pub peers: Vec<String>,
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
    /// Runs the probe once, and copies between GPUs in a second child. When this future is dropped the child is
    /// killed.
    pub async fn run(&self, order: &Order) -> Ran {
        let began = tokio::time::Instant::now();
        let mut ran = self.child(order, &[], order.deadline).await;
        let Ended::Measured(measured) = &mut ran.ended else {
            return ran;
        };
        if ran.stuck.is_some() {
            return ran;
        }
        let left = order.deadline.saturating_sub(began.elapsed());
        if let Some(why) = no_copies(order, left) {
            measured
                .left_out
                .push(format!("copies between GPUs: {why}"));
            return ran;
        }
        let peers = &order.peers[..order.peers.len().min(MOST_PEERS)];
        let second = self.child(order, peers, left).await;
        ran.stuck = second.stuck;
        add(measured, second.ended, peers);
        ran
    }

    /// Runs one child, which is shown these GPUs besides.
    async fn child(&self, order: &Order, peers: &[String], deadline: Duration) -> Ran {
        let shown = std::iter::once(&order.gpu).chain(peers);
        let shown: Vec<&str> = shown.map(String::as_str).collect();
        let child = Command::new(&self.program)
            .arg("probe-child")
            .args(["--gpu", &order.gpu, "--nvml-library", &order.nvml_library])
            .args(["--region-mib", &order.region_mib.to_string()])
            .args(order.spoil.iter().flat_map(|it| ["--spoil", it]))
            .args(peers.iter().flat_map(|it| ["--peer", it]))
            // Only these are initialised, and a context is made on no other.
            .env("CUDA_VISIBLE_DEVICES", shown.join(","))
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
        let listened = tokio::time::timeout(deadline, heard.listen(&mut child)).await;
        if listened.is_err() {
            let after = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
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

/// Why nothing is copied between GPUs in the time that is left of a run.
fn no_copies(order: &Order, left: Duration) -> Option<&'static str> {
    let reasons = [
        (order.spoil.is_some(), "not where an expectation is spoilt"),
        (
            order.gpu.starts_with("MIG-"),
            "an instance of MIG reaches no other GPU",
        ),
        (
            order.peers.is_empty(),
            "no other GPU is known that nobody uses",
        ),
        (left < LEAST_LEFT, "no time was left for them"),
    ];
    reasons.into_iter().find(|it| it.0).map(|it| it.1)
}

/// Adds what the copies between GPUs came to.
fn add(measured: &mut Measured, ended: Ended, peers: &[String]) {
    match ended {
        Ended::Measured(more) => {
            measured.peers = more.peers;
            measured.gpu_seconds += more.gpu_seconds;
            measured.left_out.extend(more.left_out);
        }
        Ended::Stopped(stopped) => {
            let judgement = judge_stopped(&stopped);
            let named = match stopped.stage {
                Stage::Between(number) => peers.get(number as usize),
                _ => None,
            };
            match (judgement.verdict, named) {
                (Verdict::Fail, Some(gpu)) => measured.broke_with = Some((gpu.clone(), stopped)),
                _ => {
                    let left_out = format!("copies between GPUs: {}", judgement.reason);
                    measured.left_out.push(left_out);
                }
            }
        }
    }
}

/// Whom a GPU copies to and from, of these, which are in the node's order: those after it, around the end, so that
/// each has some and none has all. Nobody where it is not one of them.
pub fn after(gpu: &str, free: &[String]) -> Vec<String> {
    let Some(at) = free.iter().position(|it| it == gpu) else {
        return Vec::new();
    };
    let around = free[at + 1..].iter().chain(&free[..at]);
    around.take(MOST_PEERS).cloned().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_another_gpu_or_time_nothing_is_copied_and_the_reason_is_told() {
        let order = Order {
            gpu: "GPU-a".to_owned(),
            peers: vec!["GPU-b".to_owned()],
            nvml_library: String::new(),
            region_mib: 64,
            deadline: Duration::from_secs(10),
            spoil: None,
        };
        let alone = Order {
            peers: Vec::new(),
            ..order.clone()
        };
        let slice = Order {
            gpu: "MIG-a".to_owned(),
            ..order.clone()
        };
        let spoilt = Order {
            spoil: Some("fp16".to_owned()),
            ..order.clone()
        };
        for (order, seconds, words) in [
            (&order, 3, None),
            (&order, 2, Some("no time")),
            (&alone, 9, Some("no other GPU")),
            (&slice, 9, Some("MIG")),
            (&spoilt, 9, Some("spoilt")),
        ] {
            let why = no_copies(order, Duration::from_secs(seconds));
            let is_so = why
                .zip(words)
                .is_some_and(|(why, words)| why.contains(words));
            assert!(is_so || (why, words) == (None, None), "{words:?}: {why:?}");
        }
    }

    #[test]
    fn a_gpu_copies_to_and_from_the_three_after_it_around_the_end() {
        let free = ["a", "b", "c", "d", "e"].map(str::to_owned);
        for (gpu, expected) in [
            ("a", &["b", "c", "d"][..]),
            ("d", &["e", "a", "b"]),
            ("e", &["a", "b", "c"]),
            ("x", &[]),
        ] {
            assert_eq!(after(gpu, &free), expected, "{gpu}");
        }
        assert_eq!(after("a", &free[..2]), ["b"]);
        assert_eq!(after("a", &free[..1]), [""; 0]);
    }
}
