//! The agent's own health: its readers, its spool, its shipping, its memory and its CPU time.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gpufleet_telemetry::catalog::{Metric, own};
use gpufleet_telemetry::identity::{Origin, Part, PartKind, ResourceKind};
use gpufleet_telemetry::sample::{Missing, Reading, ResourceSamples, Sample};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::wire::Stream;

use super::ReaderHealth;
use super::collect::LeftOut;
use crate::read::NodeFacts;
use crate::ship::failures::Reason;

/// How often memory is measured: the kernel walks every page for it.
const MEMORY_EVERY_SECONDS: i64 = 60;

/// Most children that are looked at; there is one, and two more while a driver hangs.
const MAX_CHILDREN: usize = 8;

/// What shipping tells of itself; written by the shipper, read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamHealth {
    /// Payload bytes that wait.
    pub waiting_bytes: u64,
    /// When the oldest waiting request was made.
    pub oldest: Option<Timestamp>,
    /// Requests given up.
    pub dropped: u64,
    /// Requests that the server has acknowledged.
    pub shipped: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// When the server last acknowledged something; none in this process yet.
    pub durable_at: Option<Timestamp>,
}

/// What shipping tells of itself; written by the shipper, read here and by /healthz.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shipping {
    /// By stream in the order of [`Stream::ALL`].
    pub streams: [StreamHealth; 2],
    /// Attempts that failed, by reason in the order of [`Reason::ALL`].
    pub failures: [u64; Reason::ALL.len()],
    /// What the newest attempt came to; none when it was taken.
    pub failing: Option<String>,
    /// Why the spool took nothing the last time; none when it did.
    pub spool_error: Option<String>,
}

/// Where the shipper puts its health.
#[derive(Debug, Clone, Default)]
pub struct ShipHealth(Arc<Mutex<Shipping>>);

/// Reads the agent's own health.
#[derive(Debug, Default)]
pub struct Own {
    ship: ShipHealth,
    memory: Option<(Timestamp, Reading)>,
}

impl ShipHealth {
    /// What is known now.
    pub fn get(&self) -> Shipping {
        let shipping = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shipping.clone()
    }

    /// Notes what is new.
    pub fn update(&self, change: impl FnOnce(&mut Shipping)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Shipping {
    /// Notes an attempt that failed.
    pub fn failed(&mut self, reason: Reason, message: &str) {
        self.failures[reason as usize] += 1;
        self.failing = Some(message.to_owned());
    }
}

impl Own {
    /// Reads shipping from there.
    pub fn new(ship: ShipHealth) -> Self {
        Self { ship, memory: None }
    }

    /// Everything but the readers.
    pub fn read(&mut self, now: Timestamp, node: &NodeFacts) -> ResourceSamples {
        let resource = node.resource(
            ResourceKind::Node,
            node.node.as_str(),
            Origin::Live,
            "agent",
        );
        let mut samples = Vec::with_capacity(32);
        let shipping = self.ship.get();
        for (stream, health) in Stream::ALL.into_iter().zip(shipping.streams) {
            let part = Part::new(PartKind::Stream, stream.name());
            let age = health.oldest.map_or(0, |oldest| now.since(oldest).max(0));
            let values = [
                (own::SPOOL_BYTES, health.waiting_bytes as f64),
                (own::SPOOL_AGE, age as f64 / NANOS_PER_SECOND as f64),
                (own::SPOOL_DROPPED, health.dropped as f64),
                (own::SHIPPED, health.shipped as f64),
                (own::SHIP_FAILURES, health.failures as f64),
            ];
            samples.extend(values.map(|(metric, value)| sample(&metric, Some(&part), Ok(value))));
        }
        for (reason, count) in Reason::ALL.into_iter().zip(shipping.failures) {
            let part = Part::new(PartKind::Reason, reason.name());
            samples.push(sample(&own::SHIP_REFUSALS, Some(&part), Ok(count as f64)));
        }
        let writable = f64::from(u8::from(shipping.spool_error.is_none()));
        samples.push(sample(&own::SPOOL_WRITABLE, None, Ok(writable)));
        let proc = Path::new("/proc");
        let processes = processes(proc);
        let stale = self.memory.is_none_or(|(at, _)| {
            now.since(at).unsigned_abs() >= (MEMORY_EVERY_SECONDS * NANOS_PER_SECOND).unsigned_abs()
        });
        if stale {
            let bytes = sum(&processes, |pid| pss_bytes(proc, pid));
            self.memory = Some((now, bytes));
        }
        let memory = self
            .memory
            .map_or(Err(Missing::NotReady), |(_, memory)| memory);
        samples.push(sample(&own::AGENT_MEMORY, None, memory));
        let cpu = sum(&processes, |pid| cpu_seconds(proc, pid));
        samples.push(sample(&own::AGENT_CPU, None, cpu));
        ResourceSamples {
            resource: Arc::new(resource),
            samples,
        }
    }
}

/// What there is to say of one reader.
pub(super) fn of_reader(health: &ReaderHealth) -> Vec<Sample> {
    let part = Part::new(PartKind::Reader, Arc::clone(&health.name));
    let tried = |value: f64| health.success.map(|_| value).ok_or(Missing::NotReady);
    let last_success = health
        .last_success
        .map(|at| at.0 as f64 / NANOS_PER_SECOND as f64)
        .ok_or(Missing::NotReady);
    let success = health.success == Some(true);
    vec![
        sample(
            &own::READER_DURATION,
            Some(&part),
            tried(health.duration.as_secs_f64()),
        ),
        sample(
            &own::READER_SUCCESS,
            Some(&part),
            tried(f64::from(u8::from(success))),
        ),
        sample(&own::READER_LAST_SUCCESS, Some(&part), last_success),
        sample(
            &own::READER_FAILURES,
            Some(&part),
            Ok(health.failures as f64),
        ),
    ]
}

/// What the collector left out, by reason.
pub(super) fn of_left_out(left_out: LeftOut) -> [Sample; 4] {
    [
        ("resource_limit", left_out.resource_limit),
        ("series_limit", left_out.series_limit),
        ("unknown_metric", left_out.unknown_metric),
        ("event_limit", left_out.event_limit),
    ]
    .map(|(reason, count)| {
        let part = Part::new(PartKind::Reason, reason);
        sample(&own::LEFT_OUT, Some(&part), Ok(count as f64))
    })
}

fn sample(metric: &Metric, part: Option<&Part>, reading: Reading) -> Sample {
    Sample {
        metric: metric.id,
        part: part.cloned(),
        reading,
    }
}

/// This process and its children.
fn processes(proc: &Path) -> Vec<u32> {
    let own = std::process::id();
    let children = format!("{own}/task/{own}/children");
    let children = std::fs::read_to_string(proc.join(children)).unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    [own]
        .into_iter()
        .chain(children.take(MAX_CHILDREN))
        .collect()
}

/// The sum over the processes; without this process's own number there is none.
fn sum(processes: &[u32], read: impl Fn(u32) -> Option<f64>) -> Reading {
    let own = processes.first().and_then(|pid| read(*pid));
    let children: f64 = processes.iter().skip(1).filter_map(|pid| read(*pid)).sum();
    own.map(|own| own + children).ok_or(Missing::Unreachable)
}

/// A process's proportional memory in bytes (`Pss:` of smaps_rollup).
pub fn pss_bytes(proc: &Path, pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(proc.join(format!("{pid}/smaps_rollup"))).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024.0)
}

/// A process's CPU time in seconds, with that of its children that are gone.
fn cpu_seconds(proc: &Path, pid: u32) -> Option<f64> {
    /// `USER_HZ`: 100 on every architecture Linux has today.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string(proc.join(format!("{pid}/stat"))).ok()?;
    // The name stands in brackets and may hold spaces: count from its end.
    let (_, after) = text.rsplit_once(')')?;
    let fields = after.split_whitespace().skip(11).take(4);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(ticks / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_time_are_read_as_the_kernel_prints_them() {
        let proc = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(proc.path().join("7")).expect("a folder");
        let rollup = "5581-7fff ---p 00000000 00:00 0 [rollup]\nRss: 9000 kB\nPss:    2048 kB\n";
        std::fs::write(proc.path().join("7/smaps_rollup"), rollup).expect("a file");
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 10 40 20 0 1 0 55 1 1";
        std::fs::write(proc.path().join("7/stat"), stat).expect("a file");
        assert_eq!(pss_bytes(proc.path(), 7), Some(2_097_152.0));
        assert_eq!(cpu_seconds(proc.path(), 7), Some(2.5));
        assert_eq!(pss_bytes(proc.path(), 8), None);
    }

    #[test]
    fn shipping_is_told_by_stream_and_a_reader_before_its_first_round_is_not_a_failure() {
        let ship = ShipHealth::default();
        ship.update(|it| {
            it.streams[1].dropped = 7;
            it.failed(Reason::Forbidden, "this token is not known");
            it.spool_error = Some("no space left".to_owned());
        });
        let read = Own::new(ship).read(Timestamp(0), &NodeFacts::for_tests());
        let logs = Part::new(PartKind::Stream, "logs");
        let dropped = read
            .samples
            .iter()
            .find(|it| it.metric == own::SPOOL_DROPPED.id && it.part.as_ref() == Some(&logs));
        assert_eq!(dropped.map(|it| it.reading), Some(Ok(7.0)));
        let of_reason = |reason: Reason| {
            let part = Part::new(PartKind::Reason, reason.name());
            let found = read
                .samples
                .iter()
                .find(|it| it.part.as_ref() == Some(&part));
            found.map(|it| it.reading)
        };
        assert_eq!(of_reason(Reason::Forbidden), Some(Ok(1.0)));
        assert_eq!(of_reason(Reason::Tls), Some(Ok(0.0)));
        let writable = read
            .samples
            .iter()
            .find(|it| it.metric == own::SPOOL_WRITABLE.id);
        assert_eq!(writable.map(|it| it.reading), Some(Ok(0.0)));
        let mut reader = ReaderHealth::for_tests("nvml", true);
        reader.success = None;
        let success = of_reader(&reader)
            .into_iter()
            .find(|it| it.metric == own::READER_SUCCESS.id);
        assert_eq!(success.map(|it| it.reading), Some(Err(Missing::NotReady)));
    }
}
