//! One simulated GPU: what its driver would say of it, tick by tick.

use std::sync::Arc;

use gpufleet_agent::read::NodeFacts;
use gpufleet_agent::read::nvml::xid::TOLD_FOR;
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_telemetry::identity::{Origin, Part, PartKind, Resource, ResourceKind, attribute};
use gpufleet_telemetry::sample::Missing;
use gpufleet_telemetry::tick::{Point, PointValue};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::card::{self, Card, GIB};
use super::evidence::Evidence;
use super::faults::Condition;
use super::noise::Noise;
use super::role::{GROUP, Job, Load, Role, job};
use super::schedule::{ENDING_XID, Schedule, Size};

/// Seconds looked at in a tick, evenly spread: as many as a 10 s tick has samples.
const LOOKS: i64 = 10;
/// Above this the simulated driver slows the GPU down.
const SLOWDOWN_CELSIUS: f64 = 87.0;
/// What the slowdown leaves of the clock.
const SLOWDOWN_CLOCK: f64 = 0.62;
/// What it leaves while the worn fan still turns.
const WORN_CLOCK: f64 = 0.81;
/// What a worn fan adds at full effort while it still does: less than stands out among like GPUs.
const WORN_CELSIUS: f64 = 6.0;
/// The GPU of the thermal story, by node and place: its fan wears out, and half of the time it slows
/// down, and with it the rank that computes on it.
pub const THROTTLING_GPU: (usize, usize) = (2, 5);
/// The GPU whose memory fails at the end of every other attempt of the large job.
pub const XID_GPU: (usize, usize) = (1, 3);

/// One GPU and its running totals.
#[derive(Debug, Clone)]
pub struct SimulatedGpu {
    resource: Arc<Resource>,
    /// The same while nobody holds it.
    nobodys: Arc<Resource>,
    card: Card,
    job: Job,
    noise: Noise,
    is_worn: bool,
    /// Whether its memory ends every other attempt of the job.
    fails: bool,
    /// Degrees that its place in the box adds.
    place_celsius: f64,
    counted_from: Timestamp,
    energy_joules: f64,
    throttled_by_power_seconds: f64,
    throttled_by_heat_seconds: f64,
    corrected_errors: f64,
    /// The newest XID and the tick in which it came.
    last_xid: Option<(f64, Timestamp)>,
    /// The XID that it fell off the bus with, and how often that came.
    xids: Option<(u32, u32)>,
    is_gone: bool,
}

/// A tick's readings before they become points: sums over the looks, and maxima.
#[derive(Default)]
struct Sums {
    looks: f64,
    load: Load,
    engine_max: f64,
    power: f64,
    power_max: f64,
    temperature: f64,
    temperature_max: f64,
    slowed: f64,
    capped: f64,
    /// Whether it is a fan that slows it down.
    is_worn: bool,
    /// Whether somebody set its clock low.
    is_set_low: bool,
}

impl Sums {
    /// What is left of the clock while it computes, but for the power cap.
    fn clock_left(&self) -> f64 {
        match self.slowed > 0.0 {
            _ if self.is_set_low => WORN_CLOCK,
            true if self.is_worn => WORN_CLOCK,
            true => SLOWDOWN_CLOCK,
            false => 1.0,
        }
    }
}

impl SimulatedGpu {
    /// GPU `index` of node `node_index`.
    pub fn new(seed: u64, node_index: usize, index: usize, facts: &NodeFacts) -> Self {
        let number = (node_index * 64 + index) as u64;
        let noise = Noise::new(seed, 2, number);
        let card = card::of_node(node_index);
        let job = job(node_index, index);
        let name = noise.uuid();
        let place = (node_index % GROUP, index);
        let mut resource = facts
            .resource(
                ResourceKind::Gpu,
                format!("GPU-{name}"),
                Origin::Simulated,
                "simulator",
            )
            .with(attribute::GPU_MODEL, card.name)
            .with(attribute::GPU_INDEX, index.to_string())
            .with(attribute::GPU_MINOR, index.to_string())
            .with(
                attribute::PCI_ADDRESS,
                format!("00000000:{:02X}:00.0", 0x11 + index * 0x10),
            )
            .with(attribute::COMPUTE_CAPABILITY, card.capability)
            .with(attribute::DRIVER_VERSION, "570.133.20")
            .with(attribute::CUDA_VERSION, "12.8");
        let nobodys = Arc::new(resource.clone());
        if job.role != Role::Free {
            resource = resource
                .with(
                    attribute::HOLDER,
                    format!("pod:{}/{}-{node_index}", job.namespace, job.name),
                )
                .with(attribute::JOB, job.name)
                .with(attribute::OWNER, job.team);
        }
        Self {
            resource: Arc::new(resource),
            nobodys,
            card,
            job,
            noise,
            is_worn: place == THROTTLING_GPU,
            fails: place == XID_GPU,
            place_celsius: (index % 4) as f64 * 1.5 + noise.even(0, 9) * 2.0,
            counted_from: Timestamp::default(),
            energy_joules: 1e6 + noise.even(0, 8) * 1e9,
            throttled_by_power_seconds: 0.0,
            throttled_by_heat_seconds: 0.0,
            corrected_errors: (noise.bits(0, 7) % 3) as f64,
            last_xid: None,
            xids: None,
            is_gone: false,
        }
    }

    /// The same, saying what started the pod that holds it; each group of nodes has jobs of its own.
    #[must_use]
    pub fn with_workload(mut self, group: usize) -> Self {
        let job = self.job;
        if job.role != Role::Free {
            let number = match group {
                0 => String::new(),
                group => format!("-{group}"),
            };
            let name = format!("{}:{}/{}{number}", job.started_by, job.namespace, job.name);
            let resource = Resource::clone(&self.resource);
            self.resource = Arc::new(resource.with(attribute::WORKLOAD, name));
        }
        self
    }

    /// The GPU with its attributes.
    pub fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }

    /// The same as it is in a condition: nobody holds what its job left.
    pub fn resource_in(&self, condition: Condition) -> &Arc<Resource> {
        match condition {
            Condition::Abandoned => &self.nobodys,
            _ => &self.resource,
        }
    }

    /// The points of the tick of `seconds` that begins at `start`.
    pub fn tick(
        &mut self,
        fleet: Noise,
        start: Timestamp,
        seconds: u32,
        condition: Condition,
    ) -> Vec<Point> {
        if self.counted_from == Timestamp::default() {
            self.counted_from = start;
        }
        if let Condition::Gone { reason, xid } = condition {
            self.last_xid = xid.map(|it| (f64::from(it), start)).or(self.last_xid);
            if let Some(xid) = xid.filter(|_| !self.is_gone) {
                let before = self.xids.map_or(0, |(_, count)| count);
                self.xids = Some((xid, before + 1));
            }
            self.is_gone = true;
            return self.gone(start.seconds(), seconds, reason);
        }
        self.is_gone = false;
        let schedule = Schedule::new(Size::Large, fleet);
        let last_second = start.shifted((i64::from(seconds) - 1) * NANOS_PER_SECOND);
        let ended = schedule.ended(last_second.minute());
        if self.fails && ended.ends_by_xid() && ended.ends >= start {
            self.last_xid = Some((f64::from(ENDING_XID), start));
        }
        let is_told = |it: &(f64, Timestamp)| start.since(it.1) < TOLD_FOR.as_nanos() as i64;
        self.last_xid = self.last_xid.filter(is_told);
        let mut sums = Sums::default();
        let mut evidence = Evidence::default();
        let looks = LOOKS.min(i64::from(seconds)).max(1);
        let stride = i64::from(seconds) / looks;
        for look in 0..looks {
            let second = start.seconds() + look * stride;
            let load = self.load(fleet, second, condition);
            self.look(&mut sums, load, second, condition);
            let bits = ((1_u64 << stride) - 1) << (look * stride);
            evidence.take(load, self.job.role != Role::Free, bits);
        }
        self.count(&sums, f64::from(seconds));
        let mut points = self.points(&sums, evidence, seconds);
        points.extend(self.xid_count());
        points
    }

    /// What is told of it while it does not answer: that none of its readings is known, and the XID it went with.
    fn gone(&self, second: i64, seconds: u32, reason: Missing) -> Vec<Point> {
        let mut sums = Sums::default();
        self.look(&mut sums, Load::default(), second, Condition::Abandoned);
        let read = self.points(&sums, Evidence::default(), seconds);
        let is_reading = |it: &Point| matches!(it.value, PointValue::Gauge { .. });
        let is_told = |it: &Point| it.metric == gpu::LAST_XID.id && self.last_xid.is_some();
        let unread = |it: Point| match is_told(&it) {
            true => it,
            false => Point {
                value: PointValue::Missing(reason),
                ..it
            },
        };
        let mut points = Vec::new();
        push(&mut points, &gpu::OBSERVED, PointValue::SecondBits(0));
        points.extend(read.into_iter().filter(is_reading).map(unread));
        points.extend(self.xid_count());
        points
    }

    /// How often it fell off the bus: the agent has that from the kernel, whether or not the GPU answers.
    fn xid_count(&self) -> Option<Point> {
        let (xid, count) = self.xids?;
        Some(Point {
            metric: gpu::XID.id,
            part: Some(Part::new(PartKind::Xid, xid.to_string())),
            value: PointValue::Counter {
                value: f64::from(count),
                since: self.counted_from,
            },
        })
    }

    fn load(&self, fleet: Noise, second: i64, condition: Condition) -> Load {
        match condition {
            Condition::Stalled if self.job.role != Role::Free => {
                Role::Stalled.load(fleet, self.noise, second)
            }
            Condition::Abandoned => Load::default(),
            _ => self.job.role.load(fleet, self.noise, second),
        }
    }

    fn look(&self, sums: &mut Sums, load: Load, second: i64, condition: Condition) {
        let effort = (0.3 * load.engine + 0.7 * load.tensor + 0.3 * load.dram).min(1.0);
        let range = self.card.power_limit_watts - self.card.idle_watts;
        let jitter = self.noise.around_zero(second, 3) * 4.0;
        let power = self.card.idle_watts + range * effort + jitter;
        let warm = match (condition, self.is_worn) {
            (Condition::Hot, _) => 44.0,
            (Condition::Worn, _) => 50.0,
            (_, true) if load.is_slowed => 50.0,
            (_, true) => WORN_CELSIUS,
            _ => 0.0,
        };
        let temperature = 29.0
            + power / self.card.power_limit_watts * 38.0
            + self.place_celsius
            + warm * effort.max(0.3);
        sums.looks += 1.0;
        sums.is_worn = self.is_worn || condition == Condition::Worn;
        sums.is_set_low = condition == Condition::LowClock;
        for (sum, value) in [
            (&mut sums.load.engine, load.engine),
            (&mut sums.load.tensor, load.tensor),
            (&mut sums.load.dram, load.dram),
            (&mut sums.load.memory, load.memory),
            (&mut sums.load.nvlink, load.nvlink),
            (&mut sums.load.pcie, load.pcie),
            (&mut sums.power, power),
            (&mut sums.temperature, temperature),
            (
                &mut sums.slowed,
                f64::from(u8::from(temperature >= SLOWDOWN_CELSIUS)),
            ),
            (&mut sums.capped, f64::from(u8::from(effort > 0.82))),
        ] {
            *sum += value;
        }
        sums.engine_max = sums.engine_max.max(load.engine);
        sums.power_max = sums.power_max.max(power);
        sums.temperature_max = sums.temperature_max.max(temperature);
    }

    fn count(&mut self, sums: &Sums, seconds: f64) {
        self.energy_joules += sums.power / sums.looks * seconds;
        self.throttled_by_heat_seconds += sums.slowed / sums.looks * seconds;
        self.throttled_by_power_seconds += sums.capped / sums.looks * seconds * 0.2;
    }

    fn points(&self, sums: &Sums, evidence: Evidence, seconds: u32) -> Vec<Point> {
        let mean = Load {
            engine: sums.load.engine / sums.looks,
            tensor: sums.load.tensor / sums.looks,
            dram: sums.load.dram / sums.looks,
            memory: sums.load.memory / sums.looks,
            nvlink: sums.load.nvlink / sums.looks,
            pcie: sums.load.pcie / sums.looks,
            is_slowed: false,
        };
        let mut points = Vec::with_capacity(80);
        evidence.points(seconds, &mut points);
        self.electrical(sums, mean, &mut points);
        self.memory(mean, &mut points);
        self.pipes(mean, sums.clock_left(), &mut points);
        self.links(mean, &mut points);
        self.totals(&mut points);
        points
    }

    fn electrical(&self, sums: &Sums, mean: Load, points: &mut Vec<Point>) {
        let slowed = sums.slowed > 0.0;
        let idle = mean.engine < 0.001;
        let clock = match (idle, sums.clock_left()) {
            (true, _) => 345e6,
            (_, left) if left < 1.0 => self.card.sm_clock_hertz * left,
            _ => self.card.sm_clock_hertz * (1.0 - 0.05 * sums.capped / sums.looks),
        };
        let set_low = u32::from(sums.is_set_low) * 2;
        let reasons = u32::from(idle) | set_low | (u32::from(slowed) * 0x60);
        let power = sums.power / sums.looks;
        let temperature = sums.temperature / sums.looks;
        gauge(
            points,
            &gpu::UTILIZATION,
            mean.engine,
            Some(sums.engine_max),
        );
        gauge(points, &gpu::POWER, power, Some(sums.power_max));
        gauge(points, &gpu::POWER_INSTANT, power * 1.01, None);
        gauge(points, &gpu::POWER_LIMIT, self.card.power_limit_watts, None);
        gauge(
            points,
            &gpu::TEMPERATURE,
            temperature,
            Some(sums.temperature_max),
        );
        let memory_temperature = temperature + 7.0 * mean.dram + 3.0;
        gauge(
            points,
            &gpu::MEMORY_TEMPERATURE,
            memory_temperature,
            Some(memory_temperature),
        );
        gauge(
            points,
            &gpu::TEMPERATURE_MARGIN,
            SLOWDOWN_CELSIUS - temperature,
            None,
        );
        gauge(points, &gpu::TEMPERATURE_SLOWDOWN, SLOWDOWN_CELSIUS, None);
        gauge(points, &gpu::SM_CLOCK, clock, None);
        gauge(
            points,
            &gpu::MEMORY_CLOCK,
            self.card.memory_clock_hertz,
            None,
        );
        gauge(points, &gpu::SM_CLOCK_MAX, self.card.sm_clock_hertz, None);
        gauge(points, &gpu::PERFORMANCE_STATE, 0.0, None);
        gauge(points, &gpu::THROTTLE_REASONS, f64::from(reasons), None);
    }

    fn memory(&self, mean: Load, points: &mut Vec<Point>) {
        let total = self.card.memory_bytes;
        let reserved = 0.6 * GIB;
        let used = (total - reserved) * mean.memory;
        gauge(points, &gpu::MEMORY_UTILIZATION, mean.dram, None);
        gauge(points, &gpu::MEMORY_TOTAL, total, None);
        gauge(points, &gpu::MEMORY_USED, used, Some(used));
        gauge(points, &gpu::MEMORY_FREE, total - reserved - used, None);
        gauge(points, &gpu::MEMORY_RESERVED, reserved, None);
        let processes = f64::from(u8::from(mean.memory > 0.0));
        gauge(points, &gpu::PROCESSES, processes, None);
    }

    fn pipes(&self, mean: Load, clock_left: f64, points: &mut Vec<Point>) {
        // What its job waits for it computes as well, and its cores are busy with it for longer.
        let tensor = (mean.tensor / clock_left).min(1.0);
        for (metric, value) in [
            (&gpu::GRAPHICS_ACTIVE, mean.engine),
            (&gpu::SM_ACTIVE, mean.engine * 0.93),
            (&gpu::SM_OCCUPANCY, mean.engine * 0.24),
            (&gpu::TENSOR_ACTIVE, tensor),
            (&gpu::DRAM_ACTIVE, mean.dram),
            (&gpu::FP64_ACTIVE, 0.0),
            (&gpu::FP32_ACTIVE, tensor * 0.11),
            (&gpu::FP16_ACTIVE, tensor * 0.05),
            (&gpu::INTEGER_ACTIVE, mean.engine * 0.13),
            (&gpu::HMMA_ACTIVE, tensor),
            (&gpu::IMMA_ACTIVE, 0.0),
            (&gpu::DFMA_ACTIVE, 0.0),
            (&gpu::DMMA_ACTIVE, 0.0),
            (&gpu::ENCODER_UTILIZATION, 0.0),
            (&gpu::DECODER_UTILIZATION, 0.0),
        ] {
            gauge(points, metric, value, None);
        }
    }

    fn links(&self, mean: Load, points: &mut Vec<Point>) {
        let nvlink = mean.nvlink * self.card.nvlink_bytes_per_second;
        let pcie = mean.pcie * 55e9;
        for (metric, value) in [
            (&gpu::PCIE_SENT, pcie * 0.4),
            (&gpu::PCIE_RECEIVED, pcie),
            (&gpu::PCIE_GENERATION, 5.0),
            (&gpu::PCIE_WIDTH, 16.0),
            (&gpu::NVLINK_SENT, nvlink),
            (&gpu::NVLINK_RECEIVED, nvlink * 0.98),
            (&gpu::NVLINK_BANDWIDTH, nvlink * 1.98),
            (&gpu::NVLINKS_ACTIVE, 18.0),
        ] {
            gauge(points, metric, value, None);
        }
    }

    fn totals(&self, points: &mut Vec<Point>) {
        for (metric, value) in [
            (&gpu::ENERGY, self.energy_joules),
            (&gpu::THROTTLE_POWER, self.throttled_by_power_seconds),
            (&gpu::THROTTLE_THERMAL, self.throttled_by_heat_seconds),
            (&gpu::THROTTLE_SYNC_BOOST, 0.0),
            (&gpu::THROTTLE_BOARD_LIMIT, 0.0),
            (&gpu::THROTTLE_LOW_UTILIZATION, 0.0),
            (&gpu::THROTTLE_RELIABILITY, 0.0),
            (&gpu::ECC_CORRECTED_VOLATILE, self.corrected_errors),
            (&gpu::ECC_UNCORRECTED_VOLATILE, 0.0),
            (&gpu::ECC_CORRECTED_AGGREGATE, self.corrected_errors),
            (&gpu::ECC_UNCORRECTED_AGGREGATE, 0.0),
            (&gpu::REMAPPED_CORRECTABLE, 0.0),
            (&gpu::REMAPPED_UNCORRECTABLE, 0.0),
            (&gpu::PCIE_REPLAYS, 0.0),
            (&gpu::NVLINK_REPLAYS, 0.0),
            (&gpu::NVLINK_RECOVERIES, 0.0),
            (&gpu::NVLINK_CRC_ERRORS, 0.0),
        ] {
            let since = self.counted_from;
            push(points, metric, PointValue::Counter { value, since });
        }
        for (metric, value) in [
            (&gpu::REMAP_PENDING, 0.0),
            (&gpu::REMAP_FAILURE, 0.0),
            (&gpu::RECOVERY_ACTION, 0.0),
            (&gpu::LAST_XID, self.last_xid.map_or(0.0, |(code, _)| code)),
        ] {
            gauge(points, metric, value, None);
        }
    }
}

/// A GPU that does not answer: no second is observed, and its readings say why.
fn gauge(points: &mut Vec<Point>, metric: &Metric, value: f64, max: Option<f64>) {
    let max = max.filter(|_| metric.with_max);
    push(points, metric, PointValue::Gauge { value, max });
}

pub(super) fn push(points: &mut Vec<Point>, metric: &Metric, value: PointValue) {
    points.push(Point {
        metric: metric.id,
        part: None,
        value,
    });
}

#[cfg(test)]
mod tests;
