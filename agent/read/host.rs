//! The machine itself: CPU, memory, pressure, disks, network and RDMA devices.
//!
//! A file that is missing is a reason in its metric's place, never an error of the round. The files
//! are read on a thread of their own: a network card whose firmware hangs blocks whoever reads its
//! counters, and that must not be the agent.
//!
//! Limits: [`disk::MAX_DISKS`], [`network::MAX_DEVICES`], [`files::MAX_FILE_BYTES`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_program::section;
use gpufleet_telemetry::catalog::{Metric, node};
use gpufleet_telemetry::identity::{Origin, Part, PartKind, ResourceKind};
use gpufleet_telemetry::sample::{Missing, Reading, Readings, ResourceSamples, Sample};
use gpufleet_telemetry::time::Timestamp;
use tokio::task::JoinHandle;

use super::{Read, ReadError, ReadFuture, Readers, Turn, Wiring, boxed};
use crate::config::Config;

pub mod files;

pub mod cpu;

pub mod memory;

pub mod pressure;

pub mod disk;

pub mod network;

section! {
    /// How the machine is read.
    pub struct HostConfig {
        /// Whether the machine's own numbers are read.
        pub enabled: bool = true,
        /// Seconds between two readings, 1 to 60.
        pub period_seconds: u32 = 5,
        /// Where /proc is; in a container the host's, mounted (`/host/proc`).
        pub proc_folder: PathBuf = PathBuf::from("/proc"),
        /// Where /sys is; in a container the host's, mounted (`/host/sys`).
        pub sys_folder: PathBuf = PathBuf::from("/sys"),
    }
}

/// Longest a round may take: it is some hundred reads of kernel memory.
const DEADLINE: Duration = Duration::from_millis(800);

/// The reader of the machine.
#[derive(Debug)]
pub struct Host {
    folders: Folders,
    period: Duration,
    before: Before,
    /// The round that is being read; one that hangs stays here, so that there is never a second.
    running: Option<(Timestamp, JoinHandle<Round>)>,
}

#[derive(Debug, Clone)]
struct Folders {
    proc: PathBuf,
    sys: PathBuf,
}

/// What the rates of the next round are computed from.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Before {
    monotonic: Duration,
    cpu: Option<cpu::CpuTimes>,
    pressure: [Option<u64>; PRESSURES.len()],
}

#[derive(Debug)]
struct Round {
    samples: Vec<Sample>,
    before: Before,
}

/// File, line and metric of each pressure that is read.
const PRESSURES: [(&str, &str, Metric); 5] = [
    ("cpu", "some", node::PSI_CPU),
    ("memory", "full", node::PSI_MEMORY),
    ("io", "full", node::PSI_IO),
    ("memory", "some", node::PSI_MEMORY_SOME),
    ("io", "some", node::PSI_IO_SOME),
];

/// The reader, where the config wants it.
///
/// # Errors
/// When the period is out of range.
pub(super) fn readers(config: &Config, _: &mut Wiring) -> anyhow::Result<Readers> {
    Ok(boxed(Host::new(&config.host)?))
}

impl Host {
    /// A reader, where the config wants one.
    ///
    /// # Errors
    /// When the period is out of range.
    pub fn new(config: &HostConfig) -> anyhow::Result<Option<Self>> {
        if !config.enabled {
            return Ok(None);
        }
        let period_seconds = config.period_seconds;
        if !(1..=60).contains(&period_seconds) {
            anyhow::bail!("host.period_seconds: {period_seconds} does not lie in 1..=60");
        }
        Ok(Some(Self {
            folders: Folders {
                proc: config.proc_folder.clone(),
                sys: config.sys_folder.clone(),
            },
            period: Duration::from_secs(u64::from(period_seconds)),
            before: Before::default(),
            running: None,
        }))
    }

    async fn round(&mut self, turn: Turn) -> Result<Readings, ReadError> {
        // What an earlier turn left behind was read for its moment, not for this one.
        if let Some((at, running)) = &mut self.running
            && *at != turn.at
        {
            let late = running.await;
            self.running = None;
            if let Ok(round) = late {
                self.before = round.before;
            }
        }
        let (_, running) = self.running.get_or_insert_with(|| {
            let (folders, before) = (self.folders.clone(), self.before);
            let monotonic = turn.monotonic;
            let task = tokio::task::spawn_blocking(move || collect(&folders, before, monotonic));
            (turn.at, task)
        });
        let round = running.await;
        self.running = None;
        let round = round.map_err(|error| ReadError::Unavailable {
            why: format!("the thread that reads the machine broke off: {error}"),
        })?;
        self.before = round.before;
        let name = turn.node.node.as_str();
        let resource = turn
            .node
            .resource(ResourceKind::Node, name, Origin::Live, "host");
        Ok(Readings {
            at: turn.at,
            resources: vec![ResourceSamples {
                resource: Arc::new(resource),
                samples: round.samples,
            }],
            events: Vec::new(),
        })
    }
}

impl Read for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn period(&self) -> Duration {
        self.period
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(self.round(turn))
    }
}

fn collect(folders: &Folders, before: Before, monotonic: Duration) -> Round {
    let mut samples = Vec::with_capacity(64);
    let mut push = |metric: &Metric, part: Option<Part>, reading: Reading| {
        samples.push(Sample {
            metric: metric.id,
            part,
            reading,
        });
    };
    let mut next = Before {
        monotonic,
        ..Before::default()
    };
    let file = |name: &str| files::text(&folders.proc.join(name));

    let times = file("stat").and_then(|text| cpu::parse_stat(&text));
    next.cpu = times.ok();
    let shares = times.and_then(|now| now.shares_since(&before.cpu.ok_or(Missing::NotReady)?));
    push(&node::CPU_BUSY, None, shares.map(|it| it.busy));
    push(&node::CPU_STEAL, None, shares.map(|it| it.steal));
    push(&node::CPU_IOWAIT, None, shares.map(|it| it.iowait));
    push(&node::CPU_COUNT, None, times.map(|it| f64::from(it.count)));
    let load = file("loadavg").and_then(|text| cpu::parse_load(&text));
    push(&node::LOAD_1M, None, load);

    let meminfo = file("meminfo");
    let memory = |name| memory::parse_meminfo(meminfo.as_ref().map_err(|it| *it)?, name);
    push(&node::MEMORY_TOTAL, None, memory("MemTotal"));
    push(&node::MEMORY_AVAILABLE, None, memory("MemAvailable"));
    let kills = file("vmstat").and_then(|text| memory::parse_vmstat(&text, "oom_kill"));
    push(&node::OOM_KILLS, None, kills);
    let uptime = file("uptime").and_then(|text| cpu::parse_load(&text));
    push(&node::UPTIME, None, uptime);

    let elapsed = monotonic.saturating_sub(before.monotonic);
    for (number, (name, line, metric)) in PRESSURES.iter().enumerate() {
        let total = pressure_total(folders, name, line);
        next.pressure[number] = total.ok();
        let earlier = before.pressure[number].ok_or(Missing::NotReady);
        let share = total.and_then(|now| pressure::share(now, earlier?, elapsed));
        push(metric, None, share);
    }

    let physical = |name: &str| disk::is_physical(&folders.sys, name);
    // Without the file there is no list of disks to put a reason to.
    let disks = file("diskstats").and_then(|text| disk::parse(&text, physical));
    for disk in disks.unwrap_or_default() {
        let part = Part::new(PartKind::Disk, disk.name);
        push(&node::DISK_READ, Some(part.clone()), Ok(disk.read_bytes));
        push(
            &node::DISK_WRITTEN,
            Some(part.clone()),
            Ok(disk.written_bytes),
        );
        push(&node::DISK_BUSY, Some(part), Ok(disk.busy_seconds));
    }
    let devices = network::network_devices(&folders.sys).into_iter();
    for (name, readings) in devices.chain(network::rdma_ports(&folders.sys)) {
        for (metric, reading) in readings {
            let part = Part::new(PartKind::Nic, name.as_str());
            push(metric, Some(part), reading);
        }
    }
    Round {
        samples,
        before: next,
    }
}

/// A kernel without pressure files is one that does not support them; a /proc that is not there at
/// all is a source that cannot be reached.
fn pressure_total(folders: &Folders, name: &str, line: &str) -> Result<u64, Missing> {
    let text = files::text(&folders.proc.join("pressure").join(name));
    let text = text.map_err(|missing| match missing {
        Missing::Unreachable if folders.proc.join("stat").exists() => Missing::NotSupported,
        other => other,
    })?;
    pressure::parse_total(&text, line)
}

#[cfg(test)]
#[path = "host/tests.rs"]
mod tests;
