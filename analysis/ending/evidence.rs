//! What is known of an attempt that ended, and what each piece of it says on its own.

use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::Ended;

use super::Cause;

/// The signal by which the kernel ends who takes too much memory.
const SIGKILL: u32 = 9;

/// What a shell, and who handles the signal, returns for SIGINT and SIGTERM: 128 and the number of the signal.
const TOLD_TO_END: [i64; 2] = [130, 143];

/// Everything known of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempt {
    /// When it ended; none while that is not known.
    pub ended_at: Option<Timestamp>,
    /// Its ranks, as far as they told anything or were seen to vanish.
    pub ranks: Vec<RankEnd>,
    /// How its pods ended.
    pub pods: Vec<Pod>,
    /// XIDs on its GPUs.
    pub gpu_faults: Vec<GpuFault>,
    /// Its nodes that were lost.
    pub nodes_lost: Vec<NodeLost>,
    /// Who asked for it to stop (a person, a scheduler's time limit), and when.
    pub stop_asked: Option<(String, Timestamp)>,
    /// Whether a rank's hooks were read, so that silence of `ranks` means something.
    pub hooks_were_read: bool,
    /// Whether pods and nodes were watched.
    pub cluster_was_watched: bool,
    /// Whether nodes were watched, if not pods.
    pub nodes_were_watched: bool,
    /// Whether the GPUs' events were read.
    pub gpus_were_read: bool,
    /// Its first step.
    pub first_step: Option<u64>,
    /// Its last step.
    pub last_step: Option<u64>,
    /// The step of its last checkpoint; none when it saved none.
    pub checkpoint_step: Option<u64>,
    /// How long an ideal step takes.
    pub step_ns: Option<u64>,
    /// GPUs it held.
    pub gpus: u32,
    /// Nano-USD of one GPU for one hour.
    pub nano_usd_per_gpu_hour: Option<i64>,
}

/// Where a rank ran; empty what is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// Its node.
    pub node: String,
    /// Its GPU.
    pub gpu_id: String,
    /// Its pod.
    pub pod: String,
}

/// A node that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLost {
    /// Its name.
    pub name: String,
    /// When.
    pub at: Timestamp,
    /// Whether it was paid at Spot and its machine is gone: then the provider took it back.
    pub is_spot: bool,
}

/// How a rank ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankEnd {
    /// Which rank.
    pub rank: u32,
    /// Where it ran.
    pub place: Place,
    /// When it ended, or was last heard of.
    pub at: Option<Timestamp>,
    /// How it said that it ended; none while it lives.
    pub ended: Option<Ended>,
    /// The exception that nobody caught: type and first line.
    pub exception: Option<(String, String)>,
    /// What it returned, 0-255; none where a signal ended it, or nobody knows.
    pub exit_status: Option<i64>,
    /// The signal that ended it; none also where nobody could ask.
    pub signal: Option<u32>,
    /// How many processes the kernel killed for want of memory in its container, pod or job while it was watched; 0 also
    /// where nobody counted.
    pub oom_kills: u64,
    /// The collective that it was in for longer than any before: function and seconds.
    pub stuck: Option<(String, u64)>,
}

/// How a pod ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Kubernetes' reason of pod or container: `OOMKilled`, `Evicted`, `Preempted`, `Error`.
    pub reason: String,
    /// The container's exit code.
    pub exit_code: Option<i32>,
    /// When.
    pub at: Option<Timestamp>,
}

/// An XID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFault {
    /// On which GPU.
    pub gpu_id: String,
    /// Its number.
    pub xid: u32,
    /// When.
    pub at: Timestamp,
}

impl Attempt {
    /// The lowest rank at a place.
    pub(super) fn rank_on(&self, is_there: impl Fn(&Place) -> bool) -> Option<u32> {
        let there = self.ranks.iter().filter(|it| is_there(&it.place));
        there.map(|it| it.rank).min()
    }

    /// What was looked at for a cause.
    pub(super) fn looked_at(&self) -> Vec<&'static str> {
        let sources = [
            (self.hooks_were_read, "what the processes left behind"),
            (self.cluster_was_watched, "pods and nodes"),
            (
                self.nodes_were_watched && !self.cluster_was_watched,
                "nodes",
            ),
            (self.gpus_were_read, "the GPUs' events"),
        ];
        let looked = sources.into_iter().filter(|(was_read, _)| *was_read);
        let looked: Vec<_> = looked.map(|(_, name)| name).collect();
        match looked.is_empty() {
            true => vec!["nothing: neither hooks, cluster nor GPUs were read"],
            false => looked,
        }
    }
}

impl NodeLost {
    /// What its loss says.
    pub(super) const fn cause(&self) -> Cause {
        match self.is_spot {
            true => Cause::Preempted,
            false => Cause::NodeLost,
        }
    }

    /// Its loss in words.
    pub(super) fn words(&self) -> String {
        match self.is_spot {
            true => format!("node {}, paid at Spot, was taken back", self.name),
            false => format!("node {} was lost", self.name),
        }
    }

    /// Whether it can have ended the attempt. A machine that goes after the first failing rank failed of itself goes
    /// because nobody needs it any more; so does one that is not paid at Spot and goes when all ranks on it were stopped.
    pub(super) fn may_end(&self, attempt: &Attempt, first: Option<&RankEnd>) -> bool {
        let failed = first.filter(|it| it.failed_of_itself());
        let failed_before = failed.and_then(|it| it.at).is_some_and(|at| at < self.at);
        let there = attempt.ranks.iter().filter(|it| it.place.node == self.name);
        let mut there = there.peekable();
        let has_left = |it: &RankEnd| it.has_returned() || it.cause() == Some(Cause::StoppedByUser);
        let was_left = there.peek().is_some() && there.all(has_left);
        !failed_before && (self.is_spot || !was_left)
    }
}

impl RankEnd {
    /// Whether it ended otherwise than it should.
    pub(super) fn has_failed(&self) -> bool {
        match self.ended {
            Some(Ended::Finished) => false,
            Some(Ended::Stopped | Ended::Exception | Ended::Vanished) => true,
            None => self.stuck.is_some(),
        }
    }

    /// Whether its end is the echo of another's: it waited for someone who did not come, or its
    /// launcher killed it because another had died.
    pub(super) fn is_echo(&self) -> bool {
        let is_signalled = self.exception.is_none() && self.signal == Some(15);
        is_signalled || self.cause() == Some(Cause::CollectiveTimeout)
    }

    /// Whether what it was running failed, whatever its machine did. A status alone says nothing of that: who is told
    /// that its machine goes may return one.
    pub(super) fn failed_of_itself(&self) -> bool {
        let has_failed = matches!(
            self.cause(),
            Some(Cause::Exception | Cause::CudaOutOfMemory | Cause::HostOutOfMemory)
        );
        has_failed && !self.has_returned()
    }

    /// Whether its script ended its process, and no exception says why.
    fn has_returned(&self) -> bool {
        self.ended == Some(Ended::Stopped) && self.exception.is_none()
    }

    /// The status by which its script says that it failed: launchers that catch every exception leave nothing else
    /// (`sys.exit(1)`).
    fn failure_status(&self) -> Option<i64> {
        let status = self.exit_status.filter(|_| self.has_returned())?;
        (status > 0 && !TOLD_TO_END.contains(&status)).then_some(status)
    }

    /// Whether the kernel killed a process that loads its data for want of memory, of which torch raises an exception in
    /// this one.
    fn lost_its_loader_to_memory(&self) -> bool {
        let is_it = |(_, message): &(String, String)| {
            message.contains("DataLoader worker")
                && ["killed by signal: Killed", "exited unexpectedly"]
                    .iter()
                    .any(|it| message.contains(it))
        };
        self.oom_kills > 0 && self.exception.as_ref().is_some_and(is_it)
    }

    /// How many processes the kernel killed for want of memory, in words.
    fn killed(&self) -> String {
        let processes = match self.oom_kills {
            1 => "1 process".to_owned(),
            count => format!("{count} processes"),
        };
        format!("the kernel killed {processes} there for want of memory")
    }

    /// Whether the kernel killed it for want of memory: it went without a word, by the kernel's signal or by none that is
    /// known, for before Linux 6.15 nobody can ask once its launcher has.
    fn was_short_of_memory(&self) -> bool {
        let went_silently = self.ended == Some(Ended::Vanished) && self.exception.is_none();
        let by_kernel = self.exit_status.is_none() && self.signal.is_none_or(|it| it == SIGKILL);
        went_silently && by_kernel && self.oom_kills > 0
    }

    /// What its own end says.
    pub(super) fn cause(&self) -> Option<Cause> {
        if let Some((kind, message)) = &self.exception {
            let text = format!("{kind}: {message}");
            let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
            let name = kind.rsplit('.').next().unwrap_or_default();
            // Who reads its data over a network raises the same words of another kind.
            let is_of_torch = name == "RuntimeError" || name.starts_with("Dist");
            let peer = ["Connection closed by peer", "Connection reset by peer"];
            // The names that torch and NCCL give them.
            return Some(if self.lost_its_loader_to_memory() {
                Cause::HostOutOfMemory
            } else if says(&[
                "OutOfMemoryError",
                "CUDA out of memory",
                "CUDA_ERROR_OUT_OF_MEMORY",
            ]) {
                Cause::CudaOutOfMemory
            } else if says(&["KeyboardInterrupt", "SignalException", "SystemExit"]) {
                Cause::StoppedByUser
            } else if says(&[
                "collective operation timeout",
                "DistBackendError",
                "NCCL communicator was aborted",
                "DistNetworkError",
            ]) || (is_of_torch && says(&peer))
            {
                Cause::CollectiveTimeout
            } else if says(&["MemoryError", "Cannot allocate memory"]) {
                Cause::HostOutOfMemory
            } else {
                Cause::Exception
            });
        }
        if self.was_short_of_memory() {
            return Some(Cause::HostOutOfMemory);
        }
        match (self.ended, &self.stuck) {
            (_, Some(_)) => Some(Cause::CollectiveTimeout),
            (Some(Ended::Stopped), None) => Some(match self.failure_status() {
                Some(_) => Cause::Exception,
                None => Cause::StoppedByUser,
            }),
            _ => None,
        }
    }

    /// Its end in words.
    pub(super) fn words(&self) -> String {
        if self.was_short_of_memory() {
            let how = match self.signal {
                Some(signal) => format!("{} ended its process", signal_name(signal)),
                None => "its process was gone without a word".to_owned(),
            };
            return format!("{how}, and {}", self.killed());
        }
        match (&self.exception, &self.stuck) {
            (Some((kind, message)), _) if message.is_empty() => kind.clone(),
            (Some((kind, message)), _) if self.lost_its_loader_to_memory() => {
                let message = message.trim_end_matches(['.', ' ']);
                format!("{kind}: {message}, and {}", self.killed())
            }
            (Some((kind, message)), _) => format!("{kind}: {message}"),
            (None, Some((function, seconds))) => {
                format!("{function} had been in flight for {seconds} s")
            }
            (None, None) => {
                let signal = self.signal.filter(|_| self.ended == Some(Ended::Vanished));
                match (signal, self.failure_status()) {
                    (Some(signal), _) => format!(
                        "{} ended its process, and nothing says why",
                        signal_name(signal)
                    ),
                    (None, Some(status)) => format!("its process ended with status {status}"),
                    (None, None) => "the process said that it was stopped".to_owned(),
                }
            }
        }
    }
}

/// A signal by number, and by name those that end a training process.
fn signal_name(signal: u32) -> String {
    let name = match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        SIGKILL => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("signal {signal}{name}")
}

impl Pod {
    /// What its reason and exit code say.
    pub(super) fn cause(&self) -> Option<Cause> {
        match self.reason.as_str() {
            "OOMKilled" => Some(Cause::HostOutOfMemory),
            "Preempted" | "Preempting" | "PreemptionByScheduler" => Some(Cause::Preempted),
            "Evicted"
            | "EvictionByEvictionAPI"
            | "DeletionByTaintManager"
            | "TerminationByKubelet" => Some(Cause::Evicted),
            "NodeLost" | "NodeShutdown" => Some(Cause::NodeLost),
            _ => None,
        }
    }

    /// Its end in words.
    pub(super) fn words(&self) -> String {
        let code = self.exit_code.map(|it| format!(", exit code {it}"));
        format!(
            "pod {} ended: {}{}",
            self.name,
            self.reason,
            code.unwrap_or_default()
        )
    }
}
