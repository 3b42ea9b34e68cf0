//! What a training process tells of itself: steps, phases, learning, memory, checkpoints and
//! collectives of one rank.
//!
//! A metric for each phase and not a part, because minute rows keep metrics and no parts. Totals
//! begin at 0 with each process; the run's own step number is a value and may go back.

use super::{Metric, Unit, counter, gauge, last, metrics};
use crate::identity::PartKind::Collective;
use crate::identity::ResourceKind::Rank;

metrics! {
    STEPS = counter(700, "gpufleet_training_steps_total", Rank, Unit::Count, "Optimizer steps done by this process.").in_minutes();
    TOKENS = counter(701, "gpufleet_training_tokens_total", Rank, Unit::Count, "Tokens this rank has trained on; absent where the script does not say.").in_minutes();
    SAMPLES = counter(702, "gpufleet_training_samples_total", Rank, Unit::Count, "Samples this rank has trained on; absent where the script does not say.").in_minutes();
    MODEL_FLOPS = counter(703, "gpufleet_training_model_flops_total", Rank, Unit::Count, "Floating-point operations that the model asks for, of this rank, recomputation not counted.").in_minutes();
    HARDWARE_FLOPS = counter(704, "gpufleet_training_hardware_flops_total", Rank, Unit::Count, "Floating-point operations of this rank with recomputation.").in_minutes();
    LAST_STEP = last(705, "gpufleet_training_last_step", Rank, Unit::Count, "The run's number of the newest step. It goes back when the run goes back to a checkpoint.").in_minutes();
    LAST_STEP_AT = last(706, "gpufleet_training_last_step_timestamp_seconds", Rank, Unit::Seconds, "When the newest step ended, Unix time.");
    HEARTBEAT_AT = last(707, "gpufleet_training_heartbeat_timestamp_seconds", Rank, Unit::Seconds, "When the process last showed that it lives, Unix time. It goes on while training hangs.");
    STEP_WALL = counter(708, "gpufleet_training_step_wall_seconds_total", Rank, Unit::Seconds, "Wall time of all steps.").in_minutes();
    STEP_BUSY = counter(709, "gpufleet_training_step_busy_seconds_total", Rank, Unit::Seconds, "Time of all steps in which this rank computed: what is left of the wall time when waiting, checkpoints and evaluation are taken away.").in_minutes();
    STEP_DATA_WAIT = counter(710, "gpufleet_training_step_data_wait_seconds_total", Rank, Unit::Seconds, "Time of all steps spent waiting for data.").in_minutes();
    STEP_COMMUNICATION_WAIT = counter(711, "gpufleet_training_step_communication_wait_seconds_total", Rank, Unit::Seconds, "Time of all steps spent waiting for other ranks.").in_minutes();
    PLANNED_STEPS = last(712, "gpufleet_training_planned_steps", Rank, Unit::Count, "Steps the run intends to do.");
    PLANNED_TOKENS = last(713, "gpufleet_training_planned_tokens", Rank, Unit::Count, "Tokens the run intends to train on.");
    DEADLINE_AT = last(714, "gpufleet_training_deadline_timestamp_seconds", Rank, Unit::Seconds, "When the run has to be done, Unix time.");
    PARAMETERS = last(715, "gpufleet_training_parameters", Rank, Unit::Count, "Parameters of the model.");
    CONTENDED = counter(716, "gpufleet_training_records_given_up_total", Rank, Unit::Count, "Records the process gave up because another of its threads was writing the same.");

    PHASE_DATA_WAIT = counter(720, "gpufleet_training_phase_data_wait_seconds_total", Rank, Unit::Seconds, "Time spent waiting for the next batch.").in_minutes();
    PHASE_FORWARD = counter(721, "gpufleet_training_phase_forward_seconds_total", Rank, Unit::Seconds, "Time of forward passes on the GPU.").in_minutes();
    PHASE_BACKWARD = counter(722, "gpufleet_training_phase_backward_seconds_total", Rank, Unit::Seconds, "Time of backward passes on the GPU, with what communication they overlap.").in_minutes();
    PHASE_OPTIMIZER = counter(723, "gpufleet_training_phase_optimizer_seconds_total", Rank, Unit::Seconds, "Time of the optimizer.").in_minutes();
    PHASE_COMMUNICATION = counter(724, "gpufleet_training_phase_communication_seconds_total", Rank, Unit::Seconds, "Time of collectives, from the NCCL plugin; it may overlap other phases.").in_minutes();
    PHASE_CHECKPOINT_SAVE = counter(725, "gpufleet_training_phase_checkpoint_save_seconds_total", Rank, Unit::Seconds, "Time in which training stood still for a checkpoint.").in_minutes();
    PHASE_CHECKPOINT_RESTORE = counter(726, "gpufleet_training_phase_checkpoint_restore_seconds_total", Rank, Unit::Seconds, "Time spent going back to a checkpoint.").in_minutes();
    PHASE_EVALUATION = counter(727, "gpufleet_training_phase_evaluation_seconds_total", Rank, Unit::Seconds, "Time of evaluation.").in_minutes();
    PHASE_STARTUP = counter(728, "gpufleet_training_phase_startup_seconds_total", Rank, Unit::Seconds, "Time from the start of the process to its first step.").in_minutes();
    PHASE_OTHER = counter(729, "gpufleet_training_phase_other_seconds_total", Rank, Unit::Seconds, "Time of phases that the script named itself.").in_minutes();
    PHASE_NOW = last(730, "gpufleet_training_phase_code", Rank, Unit::Code, "The phase it is in: 0 none, 1 data wait, 2 forward, 3 backward, 4 optimizer, 5 communication, 6 checkpoint save, 7 checkpoint restore, 8 evaluation, 9 startup, 10 other.");
    PHASE_AGE = last(731, "gpufleet_training_phase_age_seconds", Rank, Unit::Seconds, "How long it has been in that phase.");

    LOSS = last(740, "gpufleet_training_loss", Rank, Unit::Count, "The newest loss that was read; a few steps old, because reading it must not wait for the GPU.").in_minutes();
    GRADIENT_NORM = last(741, "gpufleet_training_gradient_norm", Rank, Unit::Count, "The newest norm of the gradient that was read.").in_minutes();
    LEARNING_RATE = last(742, "gpufleet_training_learning_rate", Rank, Unit::Count, "The newest learning rate.");
    EVALUATION_LOSS = last(743, "gpufleet_training_evaluation_loss", Rank, Unit::Count, "Loss of the last evaluation.");
    SCALER_SKIPS = counter(744, "gpufleet_training_scaler_skips_total", Rank, Unit::Count, "Steps that the gradient scaler skipped because a gradient was not finite.").in_minutes();
    NON_FINITE_LOSSES = counter(745, "gpufleet_training_non_finite_losses_total", Rank, Unit::Count, "Losses that were read and were not finite.").in_minutes();
    NON_FINITE_GRADIENTS = counter(746, "gpufleet_training_non_finite_gradients_total", Rank, Unit::Count, "Gradient norms that were read and were not finite.").in_minutes();
    LOSS_HELD = last(747, "gpufleet_training_loss_held", Rank, Unit::Count, "The highest loss that three readings in a row did not fall below in the last minute: of each that was read, also between two ticks. Missing where fewer were read.");
    LOSS_HELD_STEP = last(748, "gpufleet_training_loss_held_step", Rank, Unit::Count, "The step of the first of those three.");
    GRADIENT_NORM_HELD = last(749, "gpufleet_training_gradient_norm_held", Rank, Unit::Count, "The highest norm of the gradient that three readings in a row did not fall below in the last minute. Missing where fewer were read.");
    GRADIENT_NORM_HELD_STEP = last(757, "gpufleet_training_gradient_norm_held_step", Rank, Unit::Count, "The step of the first of those three.");

    MEMORY_ALLOCATED = gauge(750, "gpufleet_training_memory_allocated_bytes", Rank, Unit::Bytes, "Device memory in tensors, as the framework's allocator counts it.").with_max().in_minutes();
    MEMORY_RESERVED = gauge(751, "gpufleet_training_memory_reserved_bytes", Rank, Unit::Bytes, "Device memory that the framework's allocator holds from the driver.").with_max().in_minutes();
    MEMORY_PEAK_ALLOCATED = last(752, "gpufleet_training_memory_peak_allocated_bytes", Rank, Unit::Bytes, "Most device memory in tensors so far.").in_minutes();
    MEMORY_PEAK_RESERVED = last(753, "gpufleet_training_memory_peak_reserved_bytes", Rank, Unit::Bytes, "Most device memory held from the driver so far.");
    MEMORY_LIMIT = last(754, "gpufleet_training_memory_limit_bytes", Rank, Unit::Bytes, "Device memory that the allocator may hold.");
    MEMORY_RETRIES = counter(755, "gpufleet_training_memory_retries_total", Rank, Unit::Count, "Allocations that worked only after the cache was freed; each stops the GPU for a while.").in_minutes();
    OUT_OF_MEMORY = counter(756, "gpufleet_training_out_of_memory_total", Rank, Unit::Count, "Allocations that failed for want of device memory.").in_minutes();

    CHECKPOINT_SAVES = counter(760, "gpufleet_training_checkpoint_saves_total", Rank, Unit::Count, "Checkpoints saved.").in_minutes();
    CHECKPOINT_SAVE_DURATION = counter(761, "gpufleet_training_checkpoint_save_duration_seconds_total", Rank, Unit::Seconds, "How long saving took in all, also where training went on meanwhile.");
    CHECKPOINT_SAVE_FAILURES = counter(762, "gpufleet_training_checkpoint_save_failures_total", Rank, Unit::Count, "Checkpoints that could not be saved.");
    CHECKPOINT_STEP = last(763, "gpufleet_training_checkpoint_step", Rank, Unit::Count, "The step of the last checkpoint that was saved: what a failure now would go back to.");
    CHECKPOINT_AT = last(764, "gpufleet_training_checkpoint_timestamp_seconds", Rank, Unit::Seconds, "When the last checkpoint was saved, Unix time.");
    CHECKPOINT_RESTORES = counter(765, "gpufleet_training_checkpoint_restores_total", Rank, Unit::Count, "Checkpoints gone back to.");
    CHECKPOINT_RESTORE_DURATION = counter(766, "gpufleet_training_checkpoint_restore_duration_seconds_total", Rank, Unit::Seconds, "How long going back to checkpoints took in all.");
    EVALUATIONS = counter(767, "gpufleet_training_evaluations_total", Rank, Unit::Count, "Evaluations done.");

    COLLECTIVE_CALLS = counter(770, "gpufleet_training_collective_calls_total", Rank, Unit::Count, "Collectives of this function done on this communicator.").part(Collective);
    COLLECTIVE_TRAFFIC = counter(771, "gpufleet_training_collective_traffic_bytes_total", Rank, Unit::Bytes, "Bytes that these collectives moved: the size of the message, not of the algorithm's traffic.").part(Collective);
    COLLECTIVE_DURATION = counter(772, "gpufleet_training_collective_duration_seconds_total", Rank, Unit::Seconds, "How long they took in all, from their own start on the GPU to their end.").part(Collective);
    COLLECTIVE_WAIT = counter(773, "gpufleet_training_collective_wait_seconds_total", Rank, Unit::Seconds, "Part of that spent waiting for the slowest rank, where the process knows it: what reads NCCL does not.").part(Collective);
    COLLECTIVE_BUS_BANDWIDTH = gauge(774, "gpufleet_training_collective_bus_bandwidth_bytes_per_second", Rank, Unit::BytesPerSecond, "Bus bandwidth since the last reading, as nccl-tests computes it: comparable to the line rate whatever the function and number of ranks.").part(Collective);
    COLLECTIVE_TIMED = counter(775, "gpufleet_training_collective_timed_total", Rank, Unit::Count, "Those of these collectives whose time was measured: what their duration is the sum of.").part(Collective);
    COLLECTIVES_IN_FLIGHT = last(780, "gpufleet_training_collectives_in_flight", Rank, Unit::Count, "Collectives begun and not ended.");
    COLLECTIVE_OLDEST_AGE = gauge(781, "gpufleet_training_collective_oldest_age_seconds", Rank, Unit::Seconds, "Age of the oldest collective in flight; 0 when none is. Nothing but this grows in a hang.").with_max().in_minutes();
    COLLECTIVES_FROM = last(782, "gpufleet_training_collectives_from_code", Rank, Unit::Code, "Where what is known of this rank's collectives comes from: 1 our plugin, 2 without times, 3 counted when enqueued, 4 NCCL's RAS service, 5 NCCL Inspector's files; or why nothing is: 10 one rank alone, 11 the plugin is switched off, 12 not loaded, 13 another plugin has its place, 14 nothing is set and RAS is not asked, 15 not asked yet, 16 RAS is in another network namespace, 17 nobody answers for RAS, 18 NCCL before 2.28.7 tells no counts, 19 NCCL does not know the process.");

    PROFILE_STEP = last(785, "gpufleet_training_profile_step", Rank, Unit::Count, "The step after which the last profile that somebody asked for began, where the gaps of the GPU were looked for. What follows is of its steps and as old as it is.");
    PROFILE_STEPS = last(786, "gpufleet_training_profile_steps", Rank, Unit::Count, "How many steps that profile has.");
    PROFILE_GAP_DATA = last(787, "gpufleet_training_profile_gap_data_ratio", Rank, Unit::Ratio, "Part of that profile's time in which the GPU stood still while data was waited for.");
    PROFILE_GAP_SYNCHRONISATION = last(788, "gpufleet_training_profile_gap_synchronisation_ratio", Rank, Unit::Ratio, "Part of that profile's time in which the GPU stood still because the host waited for it and launched only then: nothing was launched ahead.");
    PROFILE_GAP_LAUNCH = last(789, "gpufleet_training_profile_gap_launch_ratio", Rank, Unit::Ratio, "Part of that profile's time in which the GPU stood still and neither data nor a synchronisation explains it: kernels were launched too slowly. The profiler itself slows launching, so that it is less when nobody records.");
    PROFILE_SYNCHRONISATIONS = last(790, "gpufleet_training_profile_synchronisations_per_step", Rank, Unit::Count, "Calls of a step in which the host waited for the GPU, in that profile.");
    PROFILE_KERNELS = last(791, "gpufleet_training_profile_kernels_per_step", Rank, Unit::Count, "Kernels of a step, in that profile.");
    PROFILE_KERNEL_TIME = last(792, "gpufleet_training_profile_kernel_seconds", Rank, Unit::Seconds, "Median time of a kernel in that profile.");
    PROFILE_GAP_HOST = last(793, "gpufleet_training_profile_gap_host_ratio", Rank, Unit::Ratio, "Part of that profile's time in which the GPU stood still because the host, having waited for it, did something else before it launched again.");
    PROFILE_UNTOLD = last(794, "gpufleet_training_profile_untold_code", Rank, Unit::Code, "Why that profile tells no gaps: 1 its trace is too large to look through, 2 this version of PyTorch tells its events otherwise, 3 the GPU had no work in its steps or none before.");
}

/// The phases' metrics, in the order of [`crate::training::Phase::ALL`].
pub static PHASES: [Metric; 10] = [
    PHASE_DATA_WAIT,
    PHASE_FORWARD,
    PHASE_BACKWARD,
    PHASE_OPTIMIZER,
    PHASE_COMMUNICATION,
    PHASE_CHECKPOINT_SAVE,
    PHASE_CHECKPOINT_RESTORE,
    PHASE_EVALUATION,
    PHASE_STARTUP,
    PHASE_OTHER,
];
