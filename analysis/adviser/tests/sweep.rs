//! Seeded runs of many sizes: of those that are well nothing is advised, whatever is not known of them, and of those with
//! one bottleneck that one comes first, with a knob that the table of the documents names.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Runs of each kind.
const SEEDS: u64 = 300;

/// Peaks of an H100: brain floats on tensor cores, floats on the others, memory.
const PEAKS: (f64, f64, f64) = (989.4e12, 66.9e12, 3.35e12);

fn part(random: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * random.random::<f64>()
}

fn whole(random: &mut ChaCha8Rng, low: u32, high: u32) -> u32 {
    low + (part(random, 0.0, 1.0) * f64::from(high - low + 1)) as u32
}

fn is_so(random: &mut ChaCha8Rng, probability: f64) -> bool {
    random.random::<f64>() < probability
}

/// Of one in seven runs this is not known.
fn forget<T>(random: &mut ChaCha8Rng, value: &mut Option<T>) {
    if is_so(random, 1.0 / 7.0) {
        *value = None;
    }
}

/// A run with nothing that is worth a change, of which some things are not known.
fn healthy(random: &mut ChaCha8Rng) -> Profile {
    let mut run = well();
    let nodes = whole(random, 1, 32);
    run.nodes = Some(nodes);
    run.gpus = u64::from(nodes) * 8;
    run.step_s = part(random, 0.05, 20.0);
    run.data_wait_s = Some(run.step_s * part(random, 0.0, 0.025));
    run.communication_s = Some(run.step_s * part(random, 0.0, 0.025));
    run.in_collectives_s = Some(run.step_s * part(random, 0.0, 0.025));
    run.gaps = run.gaps.map(|it| Gaps {
        data: part(random, 0.0, 0.025),
        synchronisation: part(random, 0.0, 0.025),
        host: part(random, 0.0, 0.025),
        launch: part(random, 0.0, 0.025),
        ..it
    });
    run.host.cpu_busy = Some(part(random, 0.0, 1.0));
    run.host.io_pressure = Some(part(random, 0.0, 1.0));
    run.host.is_limit_known = is_so(random, 0.5);
    on_cards(&mut run.gpu, random);
    // Of several nodes a busy link says nothing.
    let received = if nodes > 1 { 1.0 } else { 0.025 };
    run.gpu.pcie_received = Some(part(random, 0.0, received));
    set_up(&mut run, random);
    // Saves take 2 % of the time at most, and a failure loses less than 1 %.
    let save = part(random, 0.5, 120.0);
    let interval = save * part(random, 50.0, 500.0);
    run.saving = Saving {
        save_s: Some(save),
        interval_s: Some(interval),
        mtbf_s: Some(interval * part(random, 80.0, 2_000.0)),
    };
    forget_some(&mut run, random);
    run
}

fn on_cards(gpu: &mut GpuUse, random: &mut ChaCha8Rng) {
    (gpu.peak_flops, gpu.peak_tensor_flops) = (Some(PEAKS.0), Some(PEAKS.0));
    (gpu.peak_plain_flops, gpu.peak_bytes) = (Some(PEAKS.1), Some(PEAKS.2));
    gpu.engine = Some(part(random, 0.85, 1.0));
    gpu.sm = Some(part(random, 0.5, 1.0));
    gpu.tensor = Some(part(random, 0.06, 0.9));
    let ridge = PEAKS.0 / PEAKS.2;
    // Either the memory is not busy, or it is and there is more than enough to compute on each byte.
    let (dram, flops_per_byte) = match is_so(random, 0.5) {
        true => (part(random, 0.0, 0.59), part(random, 10.0, 900.0)),
        false => (part(random, 0.0, 1.0), ridge * part(random, 1.01, 3.0)),
    };
    (gpu.dram, gpu.flops_per_byte) = (Some(dram), Some(flops_per_byte));
    gpu.memory_part = Some(part(random, 0.3, 0.98));
}

fn set_up(run: &mut Profile, random: &mut ChaCha8Rng) {
    let set_up = &mut run.set_up;
    set_up.num_workers = Some(whole(random, 0, 64));
    set_up.pin_memory = Some(is_so(random, 0.5));
    set_up.is_compiled = Some(is_so(random, 0.5));
    set_up.graph_breaks = Some(whole(random, 0, 40));
    set_up.zero_stage = Some(whole(random, 0, 3));
    set_up.recomputes_all = Some(run.gpu.memory_part.is_some_and(|it| it >= 0.75));
    let stages = whole(random, 1, 16);
    set_up.stages = Some(stages);
    set_up.micro_batches = Some(stages * whole(random, 40, 80));
    set_up.virtual_stages = Some(whole(random, 1, 4));
    for (name, value) in [
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_ALGO", "Ring"),
    ] {
        if is_so(random, 0.3) {
            set_up.nccl.insert(name.to_owned(), value.to_owned());
        }
    }
}

fn forget_some(run: &mut Profile, random: &mut ChaCha8Rng) {
    for value in [
        &mut run.data_wait_s,
        &mut run.communication_s,
        &mut run.in_collectives_s,
        &mut run.host.cpu_busy,
        &mut run.host.cpus_per_rank,
        &mut run.host.io_pressure,
        &mut run.gpu.engine,
        &mut run.gpu.sm,
        &mut run.gpu.tensor,
        &mut run.gpu.dram,
        &mut run.gpu.flops_per_byte,
        &mut run.gpu.peak_flops,
        &mut run.gpu.peak_bytes,
        &mut run.gpu.memory_part,
        &mut run.gpu.pcie_received,
        &mut run.saving.save_s,
        &mut run.saving.mtbf_s,
    ] {
        forget(random, value);
    }
    forget(random, &mut run.gaps);
    forget(random, &mut run.nodes);
    forget(random, &mut run.gpu.has_nvlink);
    forget(random, &mut run.set_up.num_workers);
    forget(random, &mut run.set_up.virtual_stages);
    forget(random, &mut run.set_up.data_type);
}

/// Gives a run a bottleneck, of a size that is worth a change.
fn suffers(run: &mut Profile, bottleneck: Bottleneck, random: &mut ChaCha8Rng) {
    match bottleneck {
        Bottleneck::DataWorkers => waits_for_data(run, (Some(false), Some(false)), random),
        Bottleneck::DataCpu => wants_cpus(run, random),
        Bottleneck::DataDisk => of_storage(run, Some(false), random),
        Bottleneck::DataNetwork => of_storage(run, Some(true), random),
        Bottleneck::DataStorage => of_storage(run, None, random),
        Bottleneck::DataUnknown => waits_for_data(run, (None, Some(false)), random),
        Bottleneck::DataNotPinned => not_pinned(run, random),
        Bottleneck::HostSync => stands(run, |gaps, it| gaps.synchronisation = it, random),
        Bottleneck::HostWork => stands(run, |gaps, it| gaps.host = it, random),
        Bottleneck::Launch => stands(run, |gaps, it| gaps.launch = it, random),
        Bottleneck::Communication => {
            run.communication_s = Some(run.step_s * part(random, 0.1, 0.5));
        }
        Bottleneck::MemoryBandwidth => {
            (run.gpu.peak_flops, run.gpu.peak_bytes) = (Some(PEAKS.0), Some(PEAKS.2));
            run.gpu.dram = Some(part(random, 0.65, 1.0));
            run.gpu.flops_per_byte = Some(part(random, 10.0, 250.0));
        }
        Bottleneck::TensorCoresUnused => {
            run.gpu.tensor = Some(part(random, 0.0, 0.04));
            run.gpu.sm = Some(part(random, 0.55, 1.0));
            run.set_up.data_type = Some("fp32".to_owned());
        }
        Bottleneck::PipelineBubble => {
            let stages = whole(random, 4, 16);
            run.set_up.stages = Some(stages);
            run.set_up.micro_batches = Some(stages * whole(random, 1, 2));
            run.set_up.virtual_stages = Some(whole(random, 1, 2));
        }
        Bottleneck::Recomputation => {
            run.gpu.memory_part = Some(part(random, 0.2, 0.74));
            run.set_up.recomputes_all = Some(true);
        }
        Bottleneck::Checkpoint => run.saving = saving(random),
    }
}

/// Waits for data, with disk and CPUs full or not.
fn waits_for_data(
    run: &mut Profile,
    (disk, cpus): (Option<bool>, Option<bool>),
    random: &mut ChaCha8Rng,
) {
    run.data_wait_s = Some(run.step_s * part(random, 0.1, 0.5));
    run.host.io_pressure = disk.map(|it| match it {
        true => part(random, 0.1, 1.0),
        false => part(random, 0.0, 0.09),
    });
    run.host.cpu_busy = cpus.map(|it| match it {
        true => part(random, 0.86, 1.0),
        false => part(random, 0.0, 0.84),
    });
    run.host.cpus_per_rank = Some(part(random, 12.0, 32.0));
    run.set_up.num_workers = Some(whole(random, 0, 8));
}

/// The node's CPUs are full, or those that a rank may use.
fn wants_cpus(run: &mut Profile, random: &mut ChaCha8Rng) {
    let is_node_full = is_so(random, 0.5);
    waits_for_data(run, (Some(false), Some(is_node_full)), random);
    if !is_node_full {
        run.set_up.num_workers = Some(whole(random, 32, 64));
        (run.set_up.pin_memory, run.host.is_limit_known) = (Some(true), true);
    }
}

fn of_storage(run: &mut Profile, is_network: Option<bool>, random: &mut ChaCha8Rng) {
    waits_for_data(run, (Some(true), None), random);
    run.host.is_network_storage = is_network;
}

/// Batches that are not pinned: it waits with workers enough, or its link is busy and nothing else comes over it.
fn not_pinned(run: &mut Profile, random: &mut ChaCha8Rng) {
    run.set_up.pin_memory = Some(false);
    if is_so(random, 0.5) {
        waits_for_data(run, (Some(false), Some(false)), random);
        run.set_up.num_workers = Some(whole(random, 32, 64));
    } else {
        (run.gpus, run.nodes, run.gpu.has_nvlink) = (8, Some(1), Some(true));
        run.gpu.pcie_received = Some(part(random, 0.1, 0.9));
    }
}

/// Its GPUs stand still, for what a profile says.
fn stands(run: &mut Profile, of: fn(&mut Gaps, f64), random: &mut ChaCha8Rng) {
    let mut gaps = run.gaps.or(well().gaps).expect("a profile was taken");
    of(&mut gaps, part(random, 0.1, 0.5));
    let all = gaps.data + gaps.synchronisation + gaps.host + gaps.launch;
    run.gaps = Some(gaps);
    run.gpu.engine = Some(1.0 - all);
}

/// Saves that take long, too far apart or as far as is best, or short ones too far apart.
fn saving(random: &mut ChaCha8Rng) -> Saving {
    let interval = part(random, 600.0, 14_400.0);
    let long = interval * part(random, 0.1, 0.5);
    let (save, mtbf) = match whole(random, 0, 2) {
        0 => (long, None),
        1 => (long, Some(interval * interval / (2.0 * long))),
        _ => (interval * 0.005, Some(interval * part(random, 1.0, 3.0))),
    };
    Saving {
        save_s: Some(save),
        interval_s: Some(interval),
        mtbf_s: mtbf,
    }
}

#[test]
fn runs_that_are_well_are_left_alone_whatever_is_not_known_of_them() {
    for seed in 0..SEEDS * 10 {
        let run = healthy(&mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!(advise(&run), [], "seed {seed}: {run:?}");
    }
}

#[test]
fn the_bottleneck_that_a_run_has_comes_first_with_a_gain_that_it_can_have() {
    for bottleneck in Bottleneck::ALL.iter().copied() {
        let is_unknown = bottleneck == Bottleneck::DataNotPinned;
        for seed in 0..SEEDS {
            let random = &mut ChaCha8Rng::seed_from_u64(seed);
            let mut run = healthy(random);
            suffers(&mut run, bottleneck, random);
            let advised = advise(&run);
            let first = advised.first().map(|it| it.bottleneck);
            assert_eq!(first, Some(bottleneck), "seed {seed}: {run:?}");
            for it in advised {
                let (knob, share) = (it.knob.name, it.share);
                assert!(table::names(it.bottleneck, knob), "{bottleneck:?}: {knob}");
                assert!(share <= 1.0, "seed {seed}: {it:?}");
                assert_eq!(it.removed.is_err(), is_unknown, "seed {seed}: {it:?}");
                let Ok(removed) = it.removed else { continue };
                assert!(removed <= share, "seed {seed}: {it:?}");
                let gain = gain(&it);
                assert!(gain > 1.01 && gain.is_finite(), "seed {seed}: {it:?}");
            }
        }
    }
}
