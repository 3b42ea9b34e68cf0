//! What is known of a run that the adviser needs: where a step's time goes, what its GPUs and hosts do,
//! and how its knobs are set.
//!
//! Data is waited for as the median rank waits; for communication as the rank does that waits least, because the others also
//! wait for the slowest, where the run marks that phase (`run.phase("communication")`). Beside it stands what NCCL measured
//! ([`collectives`]). GPUs and hosts are read as they are at the moment.
//!
//! What is advised by it ([`of`], [`advisory`]) page and API say alike.
//!
//! A step is one without saves and evaluations, and how much of the time such steps take is what the rank counted that stands
//! for the run, over its life: what is advised of steps is worth as much of a day and no more.
//!
//! Why GPUs stand still is known of the newest profile that somebody had a living rank take, as it was then.
//!
//! Limits: of the ranks that speak for the run the first [`RANKS`] speak for all. Whether synchronisations or launches
//! leave GPUs without work is not known before a profile was taken: then only that they stand still is said
//! ([`unexplained`]). How often a job breaks off is known where somebody has read its attempts ([`with_failures`]).

use std::collections::BTreeMap;

use gpufleet_analysis::adviser::{GpuUse, Host, Profile, Saving, SetUp};
use gpufleet_analysis::ending::Reliability;
use gpufleet_analysis::robust::median;
use gpufleet_telemetry::catalog::{Metric, gpu, node, training};
use gpufleet_telemetry::gpu_specs::{DataType, Specs};
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{Mesh, Phase, Place};

use super::cost::Cost;
use super::{Rank, Run, RunKey, State, words};
use crate::fleet::{Fleet, Live};
use crate::store::model::ResourceKey;

mod collectives;
mod gaps;
mod machines;
mod set_up;
mod told;

pub use gaps::unexplained;
pub use set_up::{KNOBS, set_up};
pub use told::{Advised, Advisory, advisory, maybe_hidden};

/// Ranks that are looked at: more change no median.
const RANKS: usize = 64;

/// Steps that times are means of.
const STEPS: u64 = 100;

/// Why nothing is advised of a run that has no pace yet.
const NO_PACE: &str = "how long its steps take is not known yet";

/// What a rank does in a step on average, seconds.
struct Times {
    data_wait_s: f64,
    communication_s: f64,
}

/// What the adviser is told of a run as it is now, with what its GPUs cost and how often its job broke off, where
/// somebody has looked.
///
/// # Errors
/// Why nothing is advised of it, in words that end a sentence.
pub fn of(
    fleet: &Fleet,
    specs: &Specs,
    (key, run): (&RunKey, &Run),
    (cost, broke_off): (&Cost, Option<&Reliability>),
    now: Timestamp,
) -> Result<Profile, &'static str> {
    match run.state(now) {
        State::Ended { .. } => return Err("it has ended"),
        State::Silent { .. } => return Err("nothing is heard of it"),
        State::Running if run.stands_since(now).is_some() => return Err(words::STANDS),
        State::Running => {}
    }
    let hour = cost.nano_usd_per_gpu_hour.as_ref();
    let second = hour.ok().map(|it| it / 3_600);
    let profile = profile(key, run, fleet, second, specs).ok_or(NO_PACE)?;
    Ok(with_failures(profile, broke_off))
}

/// What the adviser is told of a run, of which a second of a GPU costs this; none before it has a pace.
pub fn profile(
    key: &RunKey,
    run: &Run,
    fleet: &Fleet,
    price: Option<i64>,
    specs: &Specs,
) -> Option<Profile> {
    let (step_s, in_steps) = pace(run)?;
    let ranks = speakers(run);
    let find = |kind: ResourceKind, id: &str| {
        fleet.get(&ResourceKey {
            cluster: key.cluster.clone(),
            kind,
            id: id.into(),
        })
    };
    let gpus: Vec<Live> = ranks
        .iter()
        .filter_map(|it| find(ResourceKind::Gpu, &it.facts.gpu))
        .collect();
    let times: Vec<Times> = ranks.iter().filter_map(|it| Times::of(it)).collect();
    let mut waits: Vec<f64> = times.iter().map(|it| it.data_wait_s).collect();
    // Who marks no communication tells none: that is not known, and no zero.
    let together = times.iter().map(|it| it.communication_s);
    let together = together.filter(|it| *it > 0.0);
    let card = gpus
        .first()
        .and_then(|it| it.resource.attribute(attribute::GPU_MODEL));
    Some(Profile {
        gpus: run.gpus().len() as u64,
        nodes: machines::nodes(run),
        nano_usd_per_gpu_second: price,
        step_s,
        in_steps,
        data_wait_s: median(&mut waits),
        communication_s: together.reduce(f64::min),
        in_collectives_s: collectives::of_a_step(key, run, fleet),
        gaps: gaps::of(run),
        host: Host {
            is_network_storage: is_network_storage(&run.facts.fingerprint),
            ..host(&run.facts.fingerprint, &ranks, &find)
        },
        gpu: gpu_use((run, step_s), &gpus, card, specs),
        set_up: SetUp {
            stages: places(&ranks, |it| it.pp),
            tensor_ranks: places(&ranks, |it| it.tp),
            ..set_up(&run.facts.fingerprint, &run.facts.data_type)
        },
        saving: saving(&ranks),
    })
}

/// The same with how often the job broke off, where somebody has looked: by that checkpoints are too far apart.
pub fn with_failures(profile: Profile, broke_off: Option<&Reliability>) -> Profile {
    let mtbf_s = broke_off.and_then(|it| Some(it.mtbf_ns? / 1e9));
    let saving = Saving {
        mtbf_s,
        ..profile.saving
    };
    Profile { saving, ..profile }
}

/// The living ranks that speak for a run, as many as are looked at.
fn speakers(run: &Run) -> Vec<&Rank> {
    let living = run.living().map(|(_, rank)| rank);
    living.take(RANKS).collect()
}

impl Times {
    fn of(rank: &Rank) -> Option<Self> {
        let (mut steps, mut data, mut together) = (0_u64, 0_u64, 0_u64);
        for block in rank.ring.blocks().rev() {
            if steps >= STEPS {
                break;
            }
            steps += block.steps_per_entry() * block.times.len() as u64;
            data += block.times.iter().map(|it| it.data_wait_ns).sum::<u64>();
            together += block.times.iter().map(|it| it.comm_wait_ns).sum::<u64>();
        }
        let mean = |nanos: u64| nanos as f64 / 1e9 / steps as f64;
        (steps > 0).then(|| Self {
            data_wait_s: mean(data),
            communication_s: mean(together),
        })
    }
}

fn value(live: &Live, metric: &Metric) -> Option<f64> {
    live.value(metric.id)?.reading.ok()
}

/// Means over the hosts of the ranks, with what one of them told of its CPUs.
fn host(
    told: &BTreeMap<String, String>,
    ranks: &[&Rank],
    find: &dyn Fn(ResourceKind, &str) -> Option<Live>,
) -> Host {
    let mut names: BTreeMap<&str, u32> = BTreeMap::new();
    for rank in ranks.iter().filter(|it| !it.facts.node.is_empty()) {
        *names.entry(&rank.facts.node).or_default() += 1;
    }
    let is_alone = !names.is_empty() && names.values().all(|it| *it == 1);
    let nodes: Vec<(u32, Live)> = names
        .into_iter()
        .filter_map(|(name, count)| Some((count, find(ResourceKind::Node, name)?)))
        .collect();
    let mean = |of: &dyn Fn(&(u32, Live)) -> Option<f64>| mean(nodes.iter().filter_map(of));
    let of_node = mean(&|it| Some(value(&it.1, &node::CPU_COUNT)? / f64::from(it.0)));
    let (cpus_per_rank, is_limit_known) = machines::cpus_per_rank(told, of_node, is_alone);
    Host {
        cpu_busy: mean(&|it| value(&it.1, &node::CPU_BUSY)),
        cpus_per_rank,
        is_limit_known,
        io_pressure: mean(&|it| value(&it.1, &node::PSI_IO_SOME)),
        is_network_storage: None,
    }
}

fn gpu_use((run, step_s): (&Run, f64), gpus: &[Live], card: Option<&str>, specs: &Specs) -> GpuUse {
    let of = |metric: &Metric| mean(gpus.iter().filter_map(|it| value(it, metric)));
    let spec = card.and_then(|it| specs.lookup(it));
    let data_type = DataType::parse(&run.facts.data_type);
    let dram = of(&gpu::DRAM_ACTIVE);
    let peak_bytes = spec.and_then(|it| it.memory_bytes_per_second);
    let moved = dram
        .zip(peak_bytes)
        .map(|(dram, peak)| dram * peak * step_s);
    GpuUse {
        engine: of(&gpu::GRAPHICS_ACTIVE),
        sm: of(&gpu::SM_ACTIVE),
        tensor: of(&gpu::TENSOR_ACTIVE),
        dram,
        flops_per_byte: moved.and_then(|it| flops_per_byte(run, it)),
        peak_flops: spec.zip(data_type).and_then(|(spec, it)| spec.peak(it)),
        peak_plain_flops: spec.and_then(|it| it.peak(DataType::Fp32)),
        peak_tensor_flops: spec.and_then(|it| it.peak(DataType::Bf16Tensor)),
        peak_bytes,
        memory_part: run.tightest_memory().map(|(_, peak, limit)| peak / limit),
        has_nvlink: machines::has_nvlink(
            gpus.iter().filter_map(|it| value(it, &gpu::NVLINKS_ACTIVE)),
            spec,
        ),
        pcie_received: mean(gpus.iter().filter_map(machines::pcie_received)),
    }
}

/// FLOPs of a rank's step, with recomputation where that is told, for each byte of so many that its card moves in it.
fn flops_per_byte(run: &Run, moved: f64) -> Option<f64> {
    let told = [training::HARDWARE_FLOPS, training::MODEL_FLOPS];
    let of_step = told.map(|metric| mean(run.flops_of_step(metric)));
    let flops = of_step.into_iter().flatten().next()?;
    Some(flops / moved).filter(|it| it.is_finite())
}

/// How many places a dimension of the mesh has, as the ranks tell theirs: stages, ranks that share a tensor.
fn places(ranks: &[&Rank], dimension: fn(&Mesh) -> Option<Place>) -> Option<u32> {
    let told = ranks.iter().filter_map(|it| dimension(&it.facts.mesh));
    told.map(|it| it.of).find(|it| *it > 0)
}

/// Whether the run's data is read over the network, by the kind of file system that its loader says it is on; none of
/// memory, and of kinds that nobody knows.
fn is_network_storage(told: &BTreeMap<String, String>) -> Option<bool> {
    match told.get("loader.storage")?.as_str() {
        "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "zfs" | "f2fs" | "overlay" => Some(false),
        "nfs" | "nfs4" | "cifs" | "smb3" | "lustre" | "ceph" | "gpfs" | "beegfs" | "wekafs"
        | "afs" | "fuse.gcsfuse" | "fuse.s3fs" | "fuse.mount-s3" | "fuse.goofys" | "fuse.sshfs"
        | "fuse.juicefs" | "fuse.blobfuse2" | "fuse.glusterfs" | "fuse.rclone" => Some(true),
        _ => None,
    }
}

/// How long a step takes that neither saves nor evaluates, and which part of the time such steps take, where that is told.
fn pace(run: &Run) -> Option<(f64, Option<f64>)> {
    let step_s = run.step_seconds()?;
    let in_steps = run.speaker().and_then(|(_, it)| in_steps(it));
    // The median of the last steps is of such a step; a mean over the life of a rank has all of its time in it.
    let of_mean = in_steps.filter(|_| run.judged.is_none());
    Some((step_s * of_mean.unwrap_or(1.0), in_steps))
}

/// The part of the time of a rank's steps that is no save, no way back to a checkpoint and no evaluation.
fn in_steps(rank: &Rank) -> Option<f64> {
    let told = |metric: Metric| rank.facts.reading(metric.id);
    let wall = told(training::STEP_WALL).filter(|it| *it > 0.0)?;
    let parts = [
        training::STEP_BUSY,
        training::STEP_DATA_WAIT,
        training::STEP_COMMUNICATION_WAIT,
    ];
    let of_steps: f64 = parts.map(told).into_iter().sum::<Option<f64>>()?;
    Some((of_steps / wall).min(1.0)).filter(|it| *it > 0.0)
}

/// How long training stands for a checkpoint, and how far these are apart, of the rank that saves most.
fn saving(ranks: &[&Rank]) -> Saving {
    let of = |rank: &Rank| {
        let told = |metric: Metric| rank.facts.reading(metric.id);
        let saves = told(training::CHECKPOINT_SAVES).filter(|it| *it >= 1.0)?;
        let stood = rank.facts.reading(Phase::CheckpointSave.seconds().id)?;
        let steps = told(training::STEP_WALL)?;
        Some((saves, stood / saves, steps / saves))
    };
    let most = ranks
        .iter()
        .filter_map(|it| of(it))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    Saving {
        save_s: most.map(|it| it.1),
        interval_s: most.map(|it| it.2),
        mtbf_s: None,
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let all: Vec<f64> = values.filter(|it| it.is_finite()).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_analysis::adviser::Bottleneck;
    use gpufleet_telemetry::identity::Resource;
    use gpufleet_telemetry::training::Trust;

    use super::set_up::tests::told;
    use super::*;

    fn rank(run: &mut Run, number: u32, trust: Trust) {
        let id = format!("team/llama/u1/0/{number}");
        let resource = Resource::new(ResourceKind::Rank, id).with(attribute::TRUST, trust.name());
        run.introduce(number, &Arc::new(resource));
    }

    #[test]
    fn who_only_claims_to_be_a_rank_of_a_proved_run_changes_no_advice() {
        let mut run = Run::default();
        for stranger in 0..4 {
            rank(&mut run, stranger, Trust::Claimed);
        }
        assert_eq!(speakers(&run).len(), 4);
        rank(&mut run, 9, Trust::Proved);
        let speakers = speakers(&run);
        assert_eq!(speakers.len(), 1);
        assert_eq!(speakers[0].facts.trust, Some(Trust::Proved));
    }

    #[test]
    fn a_job_that_breaks_off_is_told_how_far_apart_its_checkpoints_should_be() {
        let saving = Saving {
            save_s: Some(30.0),
            interval_s: Some(7_200.0),
            mtbf_s: None,
        };
        let run = Profile {
            step_s: 1.0,
            saving,
            ..Profile::default()
        };
        let advised = |broke_off: Option<&Reliability>| {
            let profile = with_failures(run.clone(), broke_off);
            let all = gpufleet_analysis::adviser::advise(&profile);
            all.into_iter()
                .map(|it| it.knob.proposed)
                .collect::<Vec<_>>()
        };
        assert_eq!(advised(None), [""; 0], "saving itself costs it little");
        let broke_off = Reliability {
            mtbf_ns: Some(15_000e9),
            ..Reliability::default()
        };
        assert_eq!(advised(Some(&broke_off)), ["949 s"]);
    }

    /// A run of two ranks that take a second a step, on cards whose memory is busy for 80 % of it.
    fn advised(flops: &[(Metric, f64)], pairs: &[(&str, &str)], mesh: &str) -> Vec<Bottleneck> {
        let mut run = Run::default();
        for number in 0..2 {
            rank(&mut run, number, Trust::Proved);
        }
        for (_, rank) in run.ranks.changing(|_| true) {
            let steps = [(training::STEPS, 10.0), (training::STEP_WALL, 10.0)];
            let flops = flops.iter().map(|(metric, it)| (*metric, it * 10.0));
            let told = steps.into_iter().chain(flops);
            rank.facts.readings = told.map(|(metric, it)| (metric.id, it)).collect();
            rank.facts.readings.sort_by_key(|it| it.0);
            rank.facts.mesh = Mesh::parse(mesh);
        }
        run.facts.fingerprint = told(pairs);
        let card = Specs::default();
        let card = card.lookup("NVIDIA H100 80GB HBM3").expect("it is known");
        let (flops, bytes) = (989.4e12, card.memory_bytes_per_second.expect("known"));
        let profile = Profile {
            gpus: 2,
            step_s: 1.0,
            gpu: GpuUse {
                dram: Some(0.8),
                flops_per_byte: flops_per_byte(&run, 0.8 * bytes),
                peak_flops: Some(flops),
                peak_bytes: Some(bytes),
                ..GpuUse::default()
            },
            set_up: SetUp {
                stages: places(&speakers(&run), |it| it.pp),
                ..set_up(&run.facts.fingerprint, "bf16")
            },
            ..Profile::default()
        };
        let all = gpufleet_analysis::adviser::advise(&profile);
        all.into_iter().map(|it| it.bottleneck).collect()
    }

    #[test]
    fn a_run_that_does_little_with_each_byte_is_bound_by_the_memory() {
        let model = |share: f64| (training::MODEL_FLOPS, share * 989.4e12);
        let bound = [Bottleneck::MemoryBandwidth];
        // The ridge is where the FLOPs are as large a part of their peak as the bytes are: 80 %.
        assert_eq!(advised(&[model(0.1)], &[], ""), bound);
        assert_eq!(advised(&[model(0.9)], &[], ""), []);
        let again = (training::HARDWARE_FLOPS, 0.9 * 989.4e12);
        assert_eq!(
            advised(&[model(0.1), again], &[], ""),
            [],
            "it computes more than that"
        );
        assert_eq!(advised(&[], &[], ""), [], "no FLOPs are told");
    }

    #[test]
    fn a_pipeline_with_few_micro_batches_is_told_of_its_bubble() {
        for (pair, mesh, is_told) in [
            (Some(("micro_batches", "8")), "pp=0/8", true),
            (
                Some(("deepspeed.gradient_accumulation_steps", "8")),
                "pp=0/8",
                true,
            ),
            (Some(("micro_batches", "512")), "pp=0/8", false),
            (Some(("micro_batches", "8")), "pp=0/1", false),
            (Some(("micro_batches", "8")), "dp=0/8", false),
            (None, "pp=0/8", false),
        ] {
            let found = advised(&[], pair.as_slice(), mesh);
            let is_bubble = found == [Bottleneck::PipelineBubble];
            assert_eq!(is_bubble, is_told, "{pair:?} {mesh}: {found:?}");
        }
        // 7 of 263 by turns of 4, where they would be 7 of 71.
        let (batches, turns) = (("micro_batches", "64"), ("megatron.virtual_stages", "4"));
        let told_of = |pairs: &[(&str, &str)]| advised(&[], pairs, "pp=0/8");
        assert_eq!(told_of(&[batches]), [Bottleneck::PipelineBubble]);
        assert_eq!(told_of(&[batches, turns]), []);
    }

    #[test]
    fn what_the_data_lies_on_tells_network_storage_from_a_disk() {
        for (kind, expected) in [
            ("nfs4", Some(true)),
            ("fuse.gcsfuse", Some(true)),
            ("ext4", Some(false)),
            ("overlay", Some(false)),
            ("tmpfs", None),
            ("", None),
        ] {
            let told = told(&[("loader.storage", kind)]);
            assert_eq!(is_network_storage(&told), expected, "{kind}");
        }
        assert_eq!(is_network_storage(&BTreeMap::new()), None);
    }

    #[test]
    fn steps_take_what_saves_and_evaluations_leave_of_their_time() {
        let of = |told: &[(Metric, f64)]| {
            let mut run = Run::default();
            rank(&mut run, 0, Trust::Proved);
            for (_, rank) in run.ranks.changing(|_| true) {
                let readings = told.iter().map(|(metric, it)| (metric.id, *it));
                rank.facts.readings = readings.collect();
                rank.facts.readings.sort_by_key(|it| it.0);
            }
            pace(&run).expect("its steps are told")
        };
        // Of half an hour 20 minutes are steps, 12 of them busy.
        let counted = [(training::STEPS, 600.0), (training::STEP_WALL, 1_800.0)];
        let parts = [
            (training::STEP_BUSY, 720.0),
            (training::STEP_DATA_WAIT, 360.0),
            (training::STEP_COMMUNICATION_WAIT, 120.0),
        ];
        assert_eq!(of(&counted), (3.0, None), "as long as nobody tells them");
        let (step_s, in_steps) = of(&[&counted[..], &parts[..]].concat());
        assert_eq!(in_steps, Some(2.0 / 3.0));
        assert!((step_s - 2.0).abs() < 1e-9, "{step_s}");
    }

    #[test]
    fn what_is_not_told_is_not_known() {
        assert_eq!(saving(&[]), Saving::default());
        assert_eq!(mean([f64::NAN].into_iter()), None);
    }
}
