//! What a process says as readings of its rank. What it did not say is no reading, never 0.

use std::collections::{BTreeMap, HashSet};

use gpufleet_hooks_shm::reader::{CommunicatorTotals, FunctionTotal, Snapshot};
use gpufleet_hooks_shm::records::Profile;
use gpufleet_hooks_shm::words::WriterKind;
use gpufleet_telemetry::catalog::{Metric, training};
use gpufleet_telemetry::identity::{Part, PartKind};
use gpufleet_telemetry::sample::{Missing, Reading, Sample};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{Highest, collective_id};

/// Most collectives of a rank that have series, by communicator and function: a mesh of four
/// dimensions with four functions each.
pub const MAX_COLLECTIVES: usize = 16;

/// What the collectives had moved at the last round, by communicator and function.
type Traffic = BTreeMap<String, (u64, u64)>;

/// What is kept of a rank from one round to the next.
#[derive(Debug, Default)]
pub struct Kept {
    traffic: Traffic,
    loss: Highest,
    gradient_norm: Highest,
}

/// The readings of a rank from what its regions say, the script's first; each snapshot is told once.
pub fn of<'a>(
    snapshots: impl Iterator<Item = &'a Snapshot>,
    now: Timestamp,
    kept: &mut Kept,
) -> Vec<Sample> {
    let mut samples = Samples(Vec::with_capacity(64));
    let before = std::mem::take(&mut kept.traffic);
    for snapshot in snapshots {
        if snapshot.header.writer != Some(WriterKind::Nccl) {
            script(snapshot, now, &mut samples);
            held(snapshot, now, kept, &mut samples);
        }
        for phase in &snapshot.phases {
            // The numbers of the phases begin at 1, here and there in the same order.
            if let Some(metric) = training::PHASES.get(phase.phase as usize - 1) {
                samples.seconds(metric, phase.total_ns);
            }
        }
        together(snapshot, now, &before, &mut kept.traffic, &mut samples);
    }
    // Two regions that tell of one thing are one series: the script's word comes first.
    let mut seen = HashSet::new();
    let mut samples = samples.0;
    samples.retain(|it| seen.insert((it.metric, it.part.clone())));
    samples
}

/// Readings that are being put together.
struct Samples(Vec<Sample>);

impl Samples {
    fn push(&mut self, metric: &Metric, part: Option<&Part>, value: f64) {
        self.0.push(Sample {
            metric: metric.id,
            part: part.cloned(),
            reading: checked(value),
        });
    }

    /// That there is no value yet.
    fn missing(&mut self, metric: &Metric) {
        self.0.push(Sample {
            metric: metric.id,
            part: None,
            reading: Err(Missing::NotReady),
        });
    }

    fn count(&mut self, metric: &Metric, value: u64) {
        self.push(metric, None, value as f64);
    }

    /// A number of which 0 means that it was not said.
    fn said(&mut self, metric: &Metric, value: u64) {
        if value > 0 {
            self.count(metric, value);
        }
    }

    fn seconds(&mut self, metric: &Metric, ns: u64) {
        self.push(metric, None, seconds(ns));
    }

    /// A moment; 0 or less is none.
    fn moment(&mut self, metric: &Metric, at: i64) {
        if at > 0 {
            self.push(metric, None, at as f64 / NANOS_PER_SECOND as f64);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / NANOS_PER_SECOND as f64
}

/// A number that can be; a loss may be infinite, and then there is none.
fn checked(value: f64) -> Reading {
    match value.is_finite() {
        true => Ok(value),
        false => Err(Missing::Invalid),
    }
}

/// What the training script tells.
fn script(snapshot: &Snapshot, now: Timestamp, samples: &mut Samples) {
    samples.moment(
        &training::HEARTBEAT_AT,
        snapshot.header.heartbeat_at.unwrap_or(0),
    );
    samples.count(&training::CONTENDED, snapshot.header.contended);
    steps(snapshot, samples);
    plan(snapshot, samples);
    if let Some(in_phase) = snapshot.now {
        let age = now.since(Timestamp(in_phase.since)).max(0).cast_unsigned();
        samples.count(&training::PHASE_NOW, in_phase.phase.number());
        samples.seconds(&training::PHASE_AGE, age);
    } else {
        samples.count(&training::PHASE_NOW, 0);
    }
    learning(snapshot, samples);
    memory(snapshot, samples);
    occasions(snapshot, samples);
    if let Some(it) = &snapshot.profile {
        profile(it, samples);
    }
}

fn steps(snapshot: &Snapshot, samples: &mut Samples) {
    let totals = &snapshot.totals;
    samples.count(&training::STEPS, totals.steps);
    samples.said(&training::TOKENS, totals.tokens);
    samples.said(&training::SAMPLES, totals.samples);
    let of_steps = [
        (&training::STEP_WALL, totals.wall_ns),
        (&training::STEP_BUSY, totals.busy_ns),
        (&training::STEP_DATA_WAIT, totals.data_wait_ns),
        (&training::STEP_COMMUNICATION_WAIT, totals.comm_wait_ns),
    ];
    for (metric, ns) in of_steps {
        samples.seconds(metric, ns);
    }
    if totals.steps > 0 {
        samples.count(&training::LAST_STEP, totals.last_step);
        samples.moment(&training::LAST_STEP_AT, totals.last_ended_at);
    }
    let plan = snapshot.plan.as_ref();
    let steps = totals.steps as f64;
    // Said with each step, else by the plan for each step or token.
    let planned = plan.map_or(0.0, |it| {
        let of_tokens = it.flops_per_token * totals.tokens as f64;
        (it.flops_per_step * steps).max(of_tokens)
    });
    let model = match totals.model_flops > 0.0 {
        true => totals.model_flops,
        false => planned,
    };
    let hardware = plan.map_or(0.0, |it| it.hardware_flops_per_step * steps);
    let flops = [
        (&training::MODEL_FLOPS, model),
        (&training::HARDWARE_FLOPS, hardware),
    ];
    for (metric, value) in flops {
        if value > 0.0 {
            samples.push(metric, None, value);
        }
    }
}

fn plan(snapshot: &Snapshot, samples: &mut Samples) {
    let Some(plan) = &snapshot.plan else { return };
    samples.said(&training::PLANNED_STEPS, plan.total_steps);
    samples.said(&training::PLANNED_TOKENS, plan.total_tokens);
    samples.moment(&training::DEADLINE_AT, plan.deadline_at);
    samples.said(&training::PARAMETERS, plan.parameters);
}

fn learning(snapshot: &Snapshot, samples: &mut Samples) {
    let learning = &snapshot.learning;
    let values = [
        (&training::LOSS, learning.loss),
        (&training::GRADIENT_NORM, learning.gradient_norm),
        (&training::LEARNING_RATE, learning.learning_rate),
        (&training::EVALUATION_LOSS, learning.evaluation_loss),
    ];
    for (metric, value) in values {
        if let Some(reading) = value {
            samples.push(metric, None, reading.value);
        }
    }
    samples.count(&training::SCALER_SKIPS, learning.scaler_skips);
    samples.count(&training::NON_FINITE_LOSSES, learning.non_finite_losses);
    samples.count(
        &training::NON_FINITE_GRADIENTS,
        learning.non_finite_gradients,
    );
}

/// What losses and gradient norms were at least for some readings in a row, of each that was read since the last round.
fn held(snapshot: &Snapshot, now: Timestamp, kept: &mut Kept, samples: &mut Samples) {
    let learning = &snapshot.learning;
    let kinds = [
        (
            learning.loss,
            &snapshot.losses,
            &mut kept.loss,
            [&training::LOSS_HELD, &training::LOSS_HELD_STEP],
        ),
        (
            learning.gradient_norm,
            &snapshot.gradient_norms,
            &mut kept.gradient_norm,
            [
                &training::GRADIENT_NORM_HELD,
                &training::GRADIENT_NORM_HELD_STEP,
            ],
        ),
    ];
    for (last, readings, highest, [value, step]) in kinds {
        let readings = readings.iter();
        let readings = readings.map(|it| (Timestamp(it.at), it.step, it.value));
        match (highest.take(readings, now), last) {
            (Some(held), _) => {
                samples.push(value, None, held.value);
                samples.count(step, held.step);
            }
            // Said, so that nobody keeps the last one for what is now.
            (None, Some(_)) => {
                samples.missing(value);
                samples.missing(step);
            }
            (None, None) => {}
        }
    }
}

fn memory(snapshot: &Snapshot, samples: &mut Samples) {
    let Some(memory) = &snapshot.memory else {
        return;
    };
    let values = [
        (&training::MEMORY_ALLOCATED, memory.allocated_bytes),
        (&training::MEMORY_RESERVED, memory.reserved_bytes),
        (
            &training::MEMORY_PEAK_ALLOCATED,
            memory.peak_allocated_bytes,
        ),
        (&training::MEMORY_PEAK_RESERVED, memory.peak_reserved_bytes),
        (&training::MEMORY_RETRIES, memory.retries),
        (&training::OUT_OF_MEMORY, memory.out_of_memory),
    ];
    for (metric, value) in values {
        samples.count(metric, value);
    }
    samples.said(&training::MEMORY_LIMIT, memory.limit_bytes);
}

fn occasions(snapshot: &Snapshot, samples: &mut Samples) {
    if let Some(saved) = &snapshot.checkpoint_saved {
        samples.count(&training::CHECKPOINT_SAVES, saved.count);
        samples.seconds(&training::CHECKPOINT_SAVE_DURATION, saved.total_ns);
        samples.count(&training::CHECKPOINT_SAVE_FAILURES, saved.failures);
        if saved.count > 0 {
            samples.count(&training::CHECKPOINT_STEP, saved.last_step);
            samples.moment(&training::CHECKPOINT_AT, saved.last_at);
        }
    }
    if let Some(restored) = &snapshot.checkpoint_restored {
        samples.count(&training::CHECKPOINT_RESTORES, restored.count);
        samples.seconds(&training::CHECKPOINT_RESTORE_DURATION, restored.total_ns);
    }
    if let Some(evaluation) = &snapshot.evaluation {
        samples.count(&training::EVALUATIONS, evaluation.count);
    }
}

/// Why the GPU stood still in a profile, or why that is not known.
fn profile(profile: &Profile, samples: &mut Samples) {
    if profile.steps == 0 || (profile.gaps.is_none() && profile.untold.is_none()) {
        return;
    }
    samples.count(&training::PROFILE_STEP, profile.step);
    samples.count(&training::PROFILE_STEPS, profile.steps);
    if let Some(why) = profile.untold {
        samples.count(&training::PROFILE_UNTOLD, why.number());
    }
    let Some(gaps) = profile.gaps else {
        return;
    };
    let parts = [
        (&training::PROFILE_GAP_DATA, gaps.data_ns),
        (
            &training::PROFILE_GAP_SYNCHRONISATION,
            gaps.synchronisation_ns,
        ),
        (&training::PROFILE_GAP_HOST, gaps.host_ns),
        (&training::PROFILE_GAP_LAUNCH, gaps.launch_ns),
    ];
    for (metric, ns) in parts {
        samples.push(metric, None, ns as f64 / gaps.window_ns as f64);
    }
    let each = [
        (&training::PROFILE_SYNCHRONISATIONS, gaps.synchronisations),
        (&training::PROFILE_KERNELS, gaps.kernels),
    ];
    for (metric, count) in each {
        samples.push(metric, None, count as f64 / profile.steps as f64);
    }
    if gaps.kernels > 0 {
        samples.seconds(&training::PROFILE_KERNEL_TIME, gaps.kernel_ns);
    }
}

/// Collectives, done and in flight.
fn together(
    snapshot: &Snapshot,
    now: Timestamp,
    before: &Traffic,
    traffic: &mut Traffic,
    samples: &mut Samples,
) {
    let together = &snapshot.together;
    // A script tells of what does not end, and of nothing else.
    let is_script = snapshot.header.writer == Some(WriterKind::Python);
    if together.communicators.is_empty() || (is_script && together.in_flight.is_empty()) {
        // Nobody counts collectives in this process: that is not none in flight.
        return;
    }
    let in_flight = together.in_flight.len() as u64;
    let in_flight = in_flight.saturating_add(together.in_flight_left_out);
    samples.count(&training::COLLECTIVES_IN_FLIGHT, in_flight);
    let begun = together.in_flight.iter().map(|it| it.started_at).min();
    let age = begun.map_or(0, |begun| {
        now.since(Timestamp(begun)).max(0).cast_unsigned()
    });
    samples.seconds(&training::COLLECTIVE_OLDEST_AGE, age);
    let each = together.communicators.iter();
    let each = each.flat_map(|it| it.functions.iter().map(move |function| (it, function)));
    for (communicator, function) in each.take(MAX_COLLECTIVES) {
        collective(communicator, function, before, traffic, samples);
    }
}

fn collective(
    communicator: &CommunicatorTotals,
    total: &FunctionTotal,
    before: &Traffic,
    traffic: &mut Traffic,
    samples: &mut Samples,
) {
    let name = collective_id(communicator.communicator.hash, total.function.text());
    let part = Part::new(PartKind::Collective, name.as_str());
    let mut tell = |metric: &Metric, value: f64| samples.push(metric, Some(&part), value);
    tell(&training::COLLECTIVE_CALLS, total.count as f64);
    tell(&training::COLLECTIVE_TRAFFIC, total.bytes as f64);
    if total.timed > 0 {
        tell(&training::COLLECTIVE_DURATION, seconds(total.duration_ns));
        tell(&training::COLLECTIVE_TIMED, total.timed as f64);
    }
    // One rank does not know it, but where it has learnt it from the others.
    if total.wait_ns > 0 {
        tell(&training::COLLECTIVE_WAIT, seconds(total.wait_ns));
    }
    let is_timed = total.timed > 0 && total.timed == total.count;
    if let Some((bytes, duration_ns)) = before.get(&name)
        && is_timed
        && total.bytes >= *bytes
        && total.duration_ns > *duration_ns
        && let Some(factor) = total.function.bus_factor(communicator.communicator.ranks)
    {
        let bytes = (total.bytes - bytes) as f64;
        let per_second = bytes / seconds(total.duration_ns - duration_ns);
        tell(&training::COLLECTIVE_BUS_BANDWIDTH, per_second * factor);
    }
    traffic.insert(name, (total.bytes, total.duration_ns));
}

#[cfg(test)]
mod tests {
    use gpufleet_hooks_shm::records::{Communicator, CommunicatorIndex, Gaps};
    use gpufleet_hooks_shm::words::{Function, ProfileState, Untold};

    use super::*;

    /// The metrics that are told of three collectives.
    fn told(total: FunctionTotal) -> Vec<u16> {
        let of = CommunicatorTotals {
            index: CommunicatorIndex(0),
            communicator: Communicator {
                hash: 7,
                ranks: 8,
                ..Communicator::default()
            },
            functions: Vec::new(),
        };
        let mut samples = Samples(Vec::new());
        let traffic = &mut Traffic::new();
        collective(&of, &total, &Traffic::new(), traffic, &mut samples);
        samples.0.iter().map(|it| it.metric.0).collect()
    }

    #[test]
    fn times_that_nobody_measured_are_not_told_as_none() {
        let total = FunctionTotal {
            function: Function::AllReduce,
            count: 3,
            bytes: 4_096,
            timed: 0,
            duration_ns: 0,
            wait_ns: 0,
        };
        let counted = [&training::COLLECTIVE_CALLS, &training::COLLECTIVE_TRAFFIC];
        let counted = counted.map(|it| it.id.0).to_vec();
        assert_eq!(told(total), counted);
        let timed = FunctionTotal {
            timed: 3,
            duration_ns: 900,
            ..total
        };
        let times = [&training::COLLECTIVE_DURATION, &training::COLLECTIVE_TIMED];
        let and_timed = [counted, times.map(|it| it.id.0).to_vec()].concat();
        assert_eq!(told(timed), and_timed);
        let waited = FunctionTotal {
            wait_ns: 100,
            ..timed
        };
        let and_waited = [and_timed, vec![training::COLLECTIVE_WAIT.id.0]].concat();
        assert_eq!(told(waited), and_waited);
    }

    #[test]
    fn a_profile_tells_parts_of_its_time_and_counts_of_a_step_where_it_measured_them() {
        let told = |gaps, untold, steps| {
            let it = Profile {
                number: 7,
                state: ProfileState::Done,
                at: 1,
                step: 120,
                steps,
                bytes: 0,
                gaps,
                untold,
                text: String::new(),
            };
            let mut samples = Samples(Vec::new());
            profile(&it, &mut samples);
            let told = samples.0.iter();
            told.map(|it| (it.metric.0, it.reading.ok()))
                .collect::<Vec<_>>()
        };
        let gaps = Gaps::of([
            1_000_000, 100_000, 200_000, 50_000, 24, 8_600, 3_000, 90_000,
        ]);
        let expected = [
            (&training::PROFILE_STEP, 120.0),
            (&training::PROFILE_STEPS, 2.0),
            (&training::PROFILE_GAP_DATA, 0.1),
            (&training::PROFILE_GAP_SYNCHRONISATION, 0.2),
            (&training::PROFILE_GAP_HOST, 0.09),
            (&training::PROFILE_GAP_LAUNCH, 0.05),
            (&training::PROFILE_SYNCHRONISATIONS, 12.0),
            (&training::PROFILE_KERNELS, 4_300.0),
            (&training::PROFILE_KERNEL_TIME, 3e-6),
        ];
        let expected = expected.map(|(metric, it)| (metric.id.0, Some(it)));
        assert_eq!(told(Some(gaps), None, 2), expected);
        assert_eq!(told(None, None, 2), [], "nobody measured them");
        assert_eq!(told(Some(gaps), None, 0), [], "no step has ended yet");
        let too_many = (training::PROFILE_UNTOLD.id.0, Some(1.0));
        let untold = told(None, Some(Untold::TooMany), 2);
        assert_eq!(untold, [&expected[..2], &[too_many]].concat());
    }

    #[test]
    fn a_loss_that_is_no_number_is_a_reason_and_no_value() {
        assert_eq!(checked(2.5), Ok(2.5));
        for value in [f64::NAN, f64::INFINITY] {
            assert_eq!(checked(value), Err(Missing::Invalid));
        }
    }
}
