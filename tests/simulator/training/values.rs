//! What a simulated rank has done so far, and that as readings.

use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::steps::StepRecord;
use gpufleet_telemetry::tick::{Point, PointValue};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{Phase, collective_id};

use super::cast::{Cast, Seat};
use crate::simulator::card::GIB;
use crate::simulator::gpu::push;
use crate::simulator::noise::Noise;
use crate::simulator::schedule::Size;
use crate::simulator::trouble::Trouble;

/// Shares of the busy time of a step that forward, backward and optimizer have.
const OF_BUSY: [(Phase, f64); 3] = [
    (Phase::Forward, 0.31),
    (Phase::Backward, 0.58),
    (Phase::Optimizer, 0.11),
];
/// What a rank does together with others in a step: function, times, bytes, and the bus bandwidth of the
/// links it goes over: with its tensor-parallel group over NVLink, with its data-parallel one over the network.
const COLLECTIVES: [(&str, f64, f64, f64); 2] = [
    ("AllReduce", 320.0, 5.4e9, 3.1e11),
    ("ReduceScatter", 1.0, 4.4e9, 4.5e10),
];
/// What a port at half its speed leaves of the bandwidth, and the hosts' ports do.
const SLOW_PORT: f64 = 0.5;
const WRONG_NETWORK: f64 = 0.06;

/// Running totals of one rank's process.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    steps: u64,
    tokens: u64,
    samples: u64,
    wall_ns: u64,
    busy_ns: u64,
    data_wait_ns: u64,
    comm_wait_ns: u64,
    /// Seconds of the phases in which nobody steps.
    still: [f64; Phase::ALL.len()],
    last: Option<(u64, Timestamp)>,
    saves: u64,
    saved: Option<(u64, Timestamp)>,
    restores: u64,
}

/// What a tick has beside steps.
#[derive(Debug, Clone, Default)]
pub(super) struct Stands {
    seconds: [f64; Phase::ALL.len()],
    pub(super) saved: Option<(u64, Timestamp)>,
    pub(super) restored: bool,
}

/// How the job is at the end of a tick.
pub(super) struct Now {
    pub(super) at: Timestamp,
    /// When the totals began.
    pub(super) since: Timestamp,
    pub(super) phase: (Option<Phase>, Timestamp),
    pub(super) trouble: Trouble,
    pub(super) planned_steps: Option<u64>,
}

impl Stands {
    /// A second in this phase; those of steps are counted with the steps.
    pub(super) fn second(&mut self, phase: Option<Phase>) {
        if let Some(phase) = phase.filter(|it| *it != Phase::Backward) {
            self.seconds[phase as usize] += 1.0;
        }
    }
}

impl Totals {
    pub(super) fn step(&mut self, record: &StepRecord) {
        self.steps += 1;
        self.tokens += record.tokens;
        self.samples += record.samples;
        self.wall_ns += record.times.wall_ns;
        self.busy_ns += record.times.busy_ns;
        self.data_wait_ns += record.times.data_wait_ns;
        self.comm_wait_ns += record.times.comm_wait_ns;
        self.last = Some((record.step, record.ended_at));
    }

    pub(super) fn stand(&mut self, stands: &Stands) {
        for (total, seconds) in self.still.iter_mut().zip(stands.seconds) {
            *total += seconds;
        }
        if stands.saved.is_some() {
            self.saves += 1;
            self.saved = stands.saved;
        }
        self.restores += u64::from(stands.restored);
    }

    /// Seconds of a phase in all.
    fn phase(&self, phase: Phase) -> f64 {
        let of_steps = match phase {
            Phase::DataWait => seconds(self.data_wait_ns),
            Phase::Communication => seconds(self.comm_wait_ns),
            _ => {
                let share = OF_BUSY.iter().find(|(it, _)| *it == phase);
                share.map_or(0.0, |(_, share)| share * seconds(self.busy_ns))
            }
        };
        of_steps + self.still[phase as usize]
    }
}

/// The readings of a rank.
pub(super) fn points(
    (cast, seat): (&Cast, Seat),
    totals: &Totals,
    now: &Now,
    noise: Noise,
) -> Vec<Point> {
    let mut points = Points(Vec::with_capacity(64), now.since);
    points.steps(cast, totals, now);
    for phase in Phase::ALL {
        points.count(phase.seconds(), totals.phase(*phase));
    }
    let (phase, since) = now.phase;
    let code = phase.map_or(0.0, Phase::code);
    points.value(&training::PHASE_NOW, code);
    points.value(
        &training::PHASE_AGE,
        now.at.since(since).max(0) as f64 / 1e9,
    );
    if let Some((step, _)) = totals.last {
        points.learning(step, now, noise);
    }
    points.memory(cast, totals);
    points.occasions(totals);
    if cast.size() == Size::Large {
        points.together((cast, seat), totals, now, noise);
    }
    points.0
}

/// Points that are being put together, and when the totals among them began.
struct Points(Vec<Point>, Timestamp);

impl Points {
    fn count(&mut self, metric: &Metric, value: f64) {
        let since = self.1;
        push(&mut self.0, metric, PointValue::Counter { value, since });
    }

    fn value(&mut self, metric: &Metric, value: f64) {
        let max = metric.with_max.then_some(value);
        push(&mut self.0, metric, PointValue::Gauge { value, max });
    }

    fn moment(&mut self, metric: &Metric, at: Timestamp) {
        self.value(metric, at.0 as f64 / 1e9);
    }

    fn steps(&mut self, cast: &Cast, totals: &Totals, now: &Now) {
        for (metric, value) in [
            (&training::STEPS, totals.steps as f64),
            (&training::TOKENS, totals.tokens as f64),
            (&training::SAMPLES, totals.samples as f64),
            (&training::STEP_WALL, seconds(totals.wall_ns)),
            (&training::STEP_BUSY, seconds(totals.busy_ns)),
            (&training::STEP_DATA_WAIT, seconds(totals.data_wait_ns)),
            (
                &training::STEP_COMMUNICATION_WAIT,
                seconds(totals.comm_wait_ns),
            ),
            (&training::CONTENDED, 0.0),
        ] {
            self.count(metric, value);
        }
        if let Some(flops) = cast.flops_per_step() {
            self.count(&training::MODEL_FLOPS, flops * totals.steps as f64);
        }
        self.moment(&training::HEARTBEAT_AT, now.at);
        if let Some((step, at)) = totals.last {
            self.value(&training::LAST_STEP, step as f64);
            self.moment(&training::LAST_STEP_AT, at);
        }
        if let Some(steps) = now.planned_steps {
            self.value(&training::PLANNED_STEPS, steps as f64);
        }
        if let Some(parameters) = cast.parameters() {
            self.value(&training::PARAMETERS, parameters);
        }
    }

    fn learning(&mut self, step: u64, now: &Now, noise: Noise) {
        let wobble = noise.around_zero(now.at.seconds(), 60);
        let share = step as f64 / now.planned_steps.unwrap_or(4_000) as f64;
        let loss = 1.62 + 9.0 / (1.0 + step as f64 / 400.0).powf(0.42) + 0.02 * wobble;
        let norm = 0.34 + 0.05 * wobble;
        // Steps of a minute share its noise, and the loss falls: of three in a row the last is the least.
        let first = step.saturating_sub(2) as f64;
        for (metric, value) in [
            (&training::LOSS, loss),
            (&training::LOSS_HELD, loss),
            (&training::LOSS_HELD_STEP, first),
            (&training::GRADIENT_NORM, norm),
            (&training::GRADIENT_NORM_HELD, norm),
            (&training::GRADIENT_NORM_HELD_STEP, first),
        ] {
            self.value(metric, value);
        }
        let decay = 0.5 + 0.5 * (share.min(1.0) * std::f64::consts::PI).cos();
        self.value(&training::LEARNING_RATE, 1.5e-5 + 1.35e-4 * decay);
        for metric in [
            &training::SCALER_SKIPS,
            &training::NON_FINITE_LOSSES,
            &training::NON_FINITE_GRADIENTS,
        ] {
            self.count(metric, 0.0);
        }
    }

    fn memory(&mut self, cast: &Cast, totals: &Totals) {
        let is_full = match cast.size() {
            Size::Large => 1.0,
            Size::Small => 0.76,
        };
        // What a process holds before its first step is the model alone.
        let at_work = if totals.steps > 0 { 1.0 } else { 0.55 };
        for (metric, gib) in [
            (&training::MEMORY_ALLOCATED, 64.2 * at_work),
            (&training::MEMORY_RESERVED, 71.5 * at_work),
            (&training::MEMORY_PEAK_ALLOCATED, 69.8 * at_work),
            (&training::MEMORY_PEAK_RESERVED, 72.9 * at_work),
        ] {
            self.value(metric, gib * is_full * GIB);
        }
        self.value(&training::MEMORY_LIMIT, 79.1 * GIB);
        self.count(&training::MEMORY_RETRIES, 0.0);
        self.count(&training::OUT_OF_MEMORY, 0.0);
    }

    fn occasions(&mut self, totals: &Totals) {
        if let Some((step, at)) = totals.saved {
            self.count(&training::CHECKPOINT_SAVES, totals.saves as f64);
            let seconds = totals.phase(Phase::CheckpointSave);
            self.count(&training::CHECKPOINT_SAVE_DURATION, seconds);
            self.count(&training::CHECKPOINT_SAVE_FAILURES, 0.0);
            self.value(&training::CHECKPOINT_STEP, step as f64);
            self.moment(&training::CHECKPOINT_AT, at);
        }
        if totals.restores > 0 {
            self.count(&training::CHECKPOINT_RESTORES, totals.restores as f64);
            let seconds = totals.phase(Phase::CheckpointRestore);
            self.count(&training::CHECKPOINT_RESTORE_DURATION, seconds);
        }
    }

    fn together(&mut self, (cast, seat): (&Cast, Seat), totals: &Totals, now: &Now, noise: Noise) {
        let is_stuck = now.trouble == Trouble::Stuck;
        let stuck = if is_stuck { 1.0 } else { 0.0 };
        self.value(&training::COLLECTIVES_IN_FLIGHT, stuck);
        let age = now.at.since(now.phase.1).max(0) as f64 / 1e9;
        self.value(&training::COLLECTIVE_OLDEST_AGE, stuck * age);
        let steps = totals.steps as f64;
        let groups = [seat.tensor_group(), seat.data_group()];
        for (place, (function, calls, bytes, bandwidth)) in (0_u64..).zip(COLLECTIVES) {
            let group = groups[place as usize];
            let hash = 0x5c1e_0000 + (place << 12) + u64::from(group.0 << 6 | group.1);
            let part = Part::new(PartKind::Collective, collective_id(hash, function));
            let waited = seconds(totals.comm_wait_ns) / 2.0;
            for (metric, value) in [
                (&training::COLLECTIVE_CALLS, calls * steps),
                (&training::COLLECTIVE_TIMED, calls * steps),
                (&training::COLLECTIVE_TRAFFIC, bytes * steps),
                (
                    &training::COLLECTIVE_DURATION,
                    bytes / bandwidth * steps + waited,
                ),
                (&training::COLLECTIVE_WAIT, waited),
            ] {
                let since = self.1;
                self.part(metric, &part, PointValue::Counter { value, since });
            }
            if now.phase.0 != Some(Phase::Backward) {
                continue;
            }
            // Who comes last waits for nobody; the others measure their waits with it.
            let within = [seat.data_group(), seat.tensor_group()][place as usize].1;
            let turn = (now.at.seconds() / 10 + i64::from(within)).rem_euclid(2) as f64;
            let wobble = 1.0 + 0.02 * noise.around_zero(now.at.seconds(), hash);
            let left = match now.trouble {
                Trouble::WrongNetwork if place == 1 => WRONG_NETWORK,
                Trouble::SlowLink(it) if place == 1 => {
                    let own = cast.seat_on((it.node, it.gpu)).data_group() == seat.data_group();
                    if own { SLOW_PORT } else { 1.0 }
                }
                _ => 1.0,
            };
            let value = bandwidth * left * wobble / (1.0 + 0.4 * turn);
            let metric = &training::COLLECTIVE_BUS_BANDWIDTH;
            self.part(metric, &part, PointValue::Gauge { value, max: None });
        }
    }

    fn part(&mut self, metric: &Metric, part: &Part, value: PointValue) {
        self.0.push(Point {
            metric: metric.id,
            part: Some(part.clone()),
            value,
        });
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
