//! The arithmetic against worked examples; each advice fires, stays quiet, and is silent without data.

use super::*;

mod knobs;
mod pinning;
mod saves;
mod sweep;
pub(crate) mod table;

/// A run of which everything is known and nothing is wrong.
fn well() -> Profile {
    Profile {
        gpus: 64,
        nodes: Some(8),
        nano_usd_per_gpu_second: Some(3_000_000_000),
        step_s: 1.0,
        in_steps: Some(1.0),
        data_wait_s: Some(0.01),
        communication_s: Some(0.02),
        in_collectives_s: None,
        gaps: Some(Gaps {
            first_step: 121,
            last_step: 123,
            data: 0.01,
            synchronisation: 0.0,
            host: 0.0,
            launch: 0.01,
            synchronisations: 12.0,
            kernels: 4_300.0,
            kernel_s: Some(3e-6),
        }),
        host: Host {
            cpu_busy: Some(0.4),
            cpus_per_rank: Some(24.0),
            is_limit_known: true,
            io_pressure: Some(0.0),
            is_network_storage: Some(true),
        },
        gpu: GpuUse {
            engine: Some(0.97),
            sm: Some(0.9),
            tensor: Some(0.4),
            dram: Some(0.4),
            flops_per_byte: Some(300.0),
            peak_flops: Some(312e12),
            peak_plain_flops: Some(19.5e12),
            peak_tensor_flops: Some(312e12),
            peak_bytes: Some(2.039e12),
            memory_part: Some(0.9),
            has_nvlink: Some(true),
            pcie_received: Some(0.005),
        },
        set_up: SetUp {
            num_workers: Some(8),
            data_type: Some("bf16".to_owned()),
            is_compiled: Some(false),
            recomputes_all: Some(false),
            stages: Some(1),
            micro_batches: Some(8),
            accumulation: Some(1),
            ..SetUp::default()
        },
        saving: Saving {
            save_s: Some(10.0),
            interval_s: Some(3_600.0),
            mtbf_s: Some(600_000.0),
        },
    }
}

/// Its GPUs stand still for these parts of the time, and a profile says why.
fn stand_still(run: &mut Profile, synchronisation: f64, launch: f64) {
    run.gpu.engine = Some(0.99 - synchronisation - launch);
    run.gaps = run.gaps.map(|it| Gaps {
        synchronisation,
        launch,
        ..it
    });
}

/// What a knob reads, and what it should: `num_workers: 8 → 10`.
fn said(knob: &Knob) -> String {
    let today = knob.today.as_deref().unwrap_or("?");
    format!("{}: {today} → {}", knob.name, knob.proposed)
}

fn removed(advice: &Advice) -> f64 {
    advice.removed.expect("it can be worked out")
}

fn gain(advice: &Advice) -> f64 {
    advice.gain().expect("it can be worked out")
}

/// The one advice of a run.
fn only(run: &Profile) -> Advice {
    let mut all = advise(run);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn near(value: f64, expected: f64) {
    assert!(
        (value - expected).abs() < 0.006,
        "{value} and not {expected}"
    );
}

#[test]
fn gains_are_those_of_the_worked_examples() {
    // 180 of 300 ms become 40; a training part of 3.6 of 8 h; 1.63 times on a fifth.
    near(amdahl(180.0 / 300.0, 180.0 / 40.0), 1.88);
    near(8.0 / amdahl(3.6 / 8.0, f64::INFINITY), 4.4);
    near(amdahl(0.2, 1.63), 1.08);
    near(bubble::bubble(8, 8), 0.47);
    near(312e12 / 2.039e12, 153.016);
    let mut stalled = well();
    stalled.data_wait_s = Some(0.15);
    near(gain(&only(&stalled)), 1.15);
}

#[test]
fn a_run_that_is_well_is_left_alone() {
    assert_eq!(advise(&well()), []);
}

/// A change of a run, and what is then advised, with the knob's values.
type Case = (
    fn(&mut Profile),
    Bottleneck,
    Option<&'static str>,
    &'static str,
);

#[test]
fn each_bottleneck_is_named_with_its_knob() {
    let cases: [Case; 13] = [
        (
            |it| it.data_wait_s = Some(0.2),
            Bottleneck::DataWorkers,
            Some("8"),
            "10",
        ),
        (
            |it| {
                it.data_wait_s = Some(0.2);
                it.host.cpu_busy = Some(0.95);
            },
            Bottleneck::DataCpu,
            Some("24 a rank"),
            "1.2 times as many, or transforms that cost less",
        ),
        (
            |it| {
                it.data_wait_s = Some(0.2);
                it.host.io_pressure = Some(0.5);
            },
            Bottleneck::DataNetwork,
            Some("network"),
            "a cache of the data on the node's disk",
        ),
        (
            |it| {
                it.data_wait_s = Some(0.2);
                it.host.io_pressure = Some(0.5);
                it.host.is_network_storage = Some(false);
            },
            Bottleneck::DataDisk,
            Some("disk"),
            "fewer, larger files, or a faster disk",
        ),
        (
            |it| stand_still(it, 0.1, 0.0),
            Bottleneck::HostSync,
            Some("12 a step"),
            "every 100 steps: read losses and norms with non_blocking=True",
        ),
        (
            |it| {
                stand_still(it, 0.0, 0.0);
                it.gpu.engine = Some(0.79);
                it.gaps = it.gaps.map(|gaps| Gaps { host: 0.2, ..gaps });
            },
            Bottleneck::HostWork,
            None,
            "beside the GPU: launch the next kernels first, or do it in a thread",
        ),
        (
            |it| it.communication_s = Some(0.3),
            Bottleneck::Communication,
            Some("1"),
            "2",
        ),
        (
            |it| {
                it.communication_s = Some(0.3);
                it.set_up.accumulation = None;
            },
            Bottleneck::Communication,
            None,
            "2.0 times as many",
        ),
        (
            |it| {
                it.gpu.flops_per_byte = Some(60.0);
                it.gpu.dram = Some(0.8);
            },
            Bottleneck::MemoryBandwidth,
            Some("off"),
            "on, with fused optimizer and attention",
        ),
        (
            |it| stand_still(it, 0.0, 0.3),
            Bottleneck::Launch,
            Some("off"),
            "mode=reduce-overhead (CUDA graphs), or a larger micro batch",
        ),
        (
            |it| {
                it.gpu.tensor = Some(0.0);
                it.set_up.data_type = Some("fp32".to_owned());
            },
            Bottleneck::TensorCoresUnused,
            Some("fp32"),
            "bf16, or TF32 where fp32 has to stay",
        ),
        (
            |it| it.set_up.stages = Some(8),
            Bottleneck::PipelineBubble,
            Some("8"),
            "16",
        ),
        (
            |it| {
                it.gpu.memory_part = Some(0.5);
                it.set_up.recomputes_all = Some(true);
            },
            Bottleneck::Recomputation,
            Some("full"),
            "selective",
        ),
    ];
    for (change, bottleneck, today, proposed) in cases {
        let mut run = well();
        change(&mut run);
        let advice = only(&run);
        assert_eq!(advice.bottleneck, bottleneck);
        assert_eq!(advice.knob.today.as_deref(), today, "{bottleneck:?}");
        assert_eq!(advice.knob.proposed, proposed, "{bottleneck:?}");
        assert!(
            gain(&advice) > 1.01 && removed(&advice) <= advice.share,
            "{advice:?}"
        );
        assert!(!advice.measured.is_empty());
    }
}

#[test]
fn nothing_is_advised_from_what_is_not_known() {
    let bare = Profile {
        gpus: 8,
        step_s: 1.0,
        ..Profile::default()
    };
    assert_eq!(advise(&bare), []);
    for step_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(advise(&Profile { step_s, ..well() }), []);
    }
}

#[test]
fn why_gpus_stand_still_is_said_by_a_profile_and_without_one_only_that_they_do() {
    let mut run = well();
    stand_still(&mut run, 0.1, 0.2);
    let kinds = |run: &Profile| {
        advise(run)
            .iter()
            .map(|it| it.bottleneck)
            .collect::<Vec<_>>()
    };
    let both = [Bottleneck::Launch, Bottleneck::HostSync];
    assert_eq!((kinds(&run), unexplained(&run)), (both.to_vec(), None));
    let read = |advice: &Advice| {
        let read = advice.measured.iter();
        read.map(|it| (it.name.clone(), it.value))
            .collect::<Vec<_>>()
    };
    let all = advise(&run);
    let of_profile = "measured in a profile of steps 121 to 123:";
    let launch = read(&all[0]);
    assert_eq!(launch[0].0, format!("{of_profile} gaps between kernels"));
    assert_eq!(
        launch[1..],
        [
            ("kernels a step".to_owned(), 4_300.0),
            ("median kernel".to_owned(), 3e-6),
        ]
    );
    let host = read(&all[1]);
    assert_eq!(
        host[0].0,
        format!("{of_profile} gaps after synchronisations")
    );
    assert_eq!(host[1], ("synchronisations a step".to_owned(), 12.0));
    // Without the profiler there are fewer gaps than it saw: both kinds shrink alike.
    run.gpu.engine = Some(0.84);
    let shares = advise(&run).into_iter().map(|it| it.share);
    let shares: Vec<f64> = shares.collect();
    near(shares[0], 0.1);
    near(shares[1], 0.05);
    run.gpu.engine = Some(0.98);
    assert_eq!(kinds(&run), [], "no gap is left to explain");
    // What the host waits for data may be hidden: the profile measured what is not.
    stand_still(&mut run, 0.19, 0.0);
    run.data_wait_s = Some(0.2);
    let all = advise(&run);
    let host = all.iter().find(|it| it.bottleneck == Bottleneck::HostSync);
    let host = host.expect("the GPUs stand still for it");
    near(host.share, 0.19);
    near(removed(host), 0.1425);
    assert_eq!(host.confidence, Confidence::Medium);
    run.data_wait_s = Some(0.01);
    stand_still(&mut run, 0.1, 0.2);
    run.gpu.engine = None;
    assert_eq!(kinds(&run), both, "the profile says it alone");
    run.gaps = None;
    assert_eq!((kinds(&run), unexplained(&run)), (Vec::new(), None));
    run.gpu.engine = Some(0.69);
    assert_eq!(kinds(&run), [], "it may be either");
    near(unexplained(&run).expect("they stand still"), 0.3);
    run.data_wait_s = Some(0.29);
    assert_eq!(unexplained(&run), None, "data explains it");
    run.data_wait_s = None;
    assert_eq!(unexplained(&run), None, "data may explain it");
}

#[test]
fn as_many_workers_as_cpus_are_not_made_more_without_more_cpus() {
    let mut run = well();
    run.data_wait_s = Some(0.2);
    let told = |run: &Profile| {
        let advice = only(run);
        let knobs: Vec<String> = [&advice.knob]
            .into_iter()
            .chain(&advice.also)
            .map(said)
            .collect();
        assert_eq!(advice.bottleneck, Bottleneck::DataCpu);
        near(removed(&advice), 0.18);
        knobs
    };
    run.set_up.num_workers = Some(24);
    let more = "CPUs that a rank may use: 24 → 1.2 times as many, or transforms that cost less";
    assert_eq!(told(&run), [more, "num_workers: 24 → 30"]);
    // A container that may use 4 of the CPUs of a node that is half idle.
    run.set_up.num_workers = Some(8);
    run.host.cpus_per_rank = Some(4.0);
    let more = "CPUs that a rank may use: 4 → 1.2 times as many, or transforms that cost less";
    assert_eq!(told(&run), [more], "these are workers enough for 5");
}

#[test]
fn no_more_is_promised_of_workers_than_as_many_do_as_there_are_cpus() {
    let mut run = Profile {
        gpus: 8,
        nano_usd_per_gpu_second: Some(277_778),
        step_s: 6.0,
        data_wait_s: Some(4.0),
        ..well()
    };
    for (workers, cpus, expected) in [
        // Three times as many would do; five make a batch in 4.8 s.
        (4, 5.0, Some(("5", 0.2))),
        (4, 24.0, Some(("12", 2.0 / 3.0 - data::LEFT))),
        (63, 64.0, Some(("64", 1.0 / 64.0))),
        (127, 128.0, None),
        // One alone loads for 4 s beside the 2 s of computing.
        (0, 1.0, Some(("1", 1.0 / 3.0))),
    ] {
        run.set_up.num_workers = Some(workers);
        run.host.cpus_per_rank = Some(cpus);
        let advised = advise(&run);
        let mut of_workers = advised.iter().filter(|it| it.knob.name == "num_workers");
        let found = of_workers
            .next()
            .map(|it| (&*it.knob.proposed, removed(it)));
        assert_eq!(found.map(|it| it.0), expected.map(|it| it.0), "{workers}");
        let [found, expected] = [found, expected].map(|it| it.map_or(0.0, |it| it.1));
        near(found, expected);
    }
    run.set_up.num_workers = Some(4);
    run.host.cpus_per_rank = Some(5.0);
    let advice = only(&run);
    near(gain(&advice), 1.25);
    let a_day = advice.nano_usd_per_day(&run).expect("it has a price");
    near(a_day as f64 / 1e9, 38.4);
}

#[test]
fn a_pipeline_that_interleaves_has_a_smaller_bubble() {
    let mut run = well();
    run.set_up.stages = Some(8);
    near(only(&run).share, 7.0 / 15.0);
    for (pieces, bubble) in [(1, 7.0 / 15.0), (4, 7.0 / 39.0), (0, 7.0 / 15.0)] {
        run.set_up.virtual_stages = Some(pieces);
        let advice = only(&run);
        near(advice.share, bubble);
        let half = 7.0 / (7.0 / bubble + 7.0 / bubble - 7.0);
        near(removed(&advice), 1.0 - (1.0 - bubble) / (1.0 - half));
        assert_eq!(advice.measured.len(), 2 + usize::from(pieces > 1));
    }
    run.set_up.virtual_stages = Some(64);
    assert_eq!(advise(&run), [], "7 of 519");
}

#[test]
fn advices_add_up_over_disjoint_parts_and_never_multiply() {
    let mut run = well();
    run.data_wait_s = Some(0.22);
    stand_still(&mut run, 0.3, 0.0);
    run.gpu.engine = None;
    let all = advise(&run);
    assert_eq!(all.len(), 2);
    near(together(&all), 1.0 / (1.0 - 0.2 - 0.225));
    assert!(together(&all) > gain(&all[0]) * gain(&all[1]));
    let mut same = all[0].clone();
    same.removed = Ok(removed(&same) / 2.0);
    near(together(&[all[0].clone(), same]), gain(&all[0]));
    // 0.3 × 0.75 of 64 GPUs at 3 USD a second, for a day.
    assert_eq!(
        all[0].nano_usd_per_day(&run),
        Some(14_400 * 3_000_000 * 86_400)
    );
    run.nano_usd_per_gpu_second = None;
    assert_eq!(all[0].nano_usd_per_day(&run), None);
}
