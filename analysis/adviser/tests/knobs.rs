//! What of a run is told tells which knob is turned, and what nobody tells is said to be unknown.

use super::*;

/// A run that waits a fifth of its time for data.
fn starved() -> Profile {
    Profile {
        data_wait_s: Some(0.2),
        ..well()
    }
}

fn also(advice: &Advice) -> Vec<String> {
    advice.also.iter().map(said).collect()
}

#[test]
fn what_a_loader_waits_for_is_said_as_far_as_the_host_tells_it() {
    use Bottleneck::{DataCpu, DataDisk, DataStorage, DataUnknown, DataWorkers};
    use Confidence::{High, Low, Medium};
    for (io, cpu, is_network, expected) in [
        (Some(0.0), Some(0.4), Some(false), (DataWorkers, High)),
        (Some(0.1), Some(0.9), Some(false), (DataDisk, Medium)),
        (Some(0.1), None, None, (DataStorage, Medium)),
        (None, Some(0.9), Some(false), (DataCpu, Medium)),
        // A kernel with psi=0: it may be the disk.
        (None, Some(0.4), Some(false), (DataUnknown, Low)),
        (Some(0.0), None, Some(false), (DataUnknown, Low)),
        (None, None, None, (DataUnknown, Low)),
    ] {
        let mut run = starved();
        run.host.io_pressure = io;
        run.host.cpu_busy = cpu;
        run.host.is_network_storage = is_network;
        let advice = only(&run);
        let found = (advice.bottleneck, advice.confidence);
        assert_eq!(found, expected, "{io:?} {cpu:?}");
        let known = [io, cpu].into_iter().flatten().count();
        let of_workers = matches!(expected.0, DataWorkers | DataUnknown);
        assert_eq!(advice.measured.len(), 1 + known + usize::from(of_workers));
    }
}

#[test]
fn more_workers_are_sure_only_where_the_process_tells_how_many_cpus_it_may_use() {
    let mut run = starved();
    let told = |run: &Profile| {
        let advice = only(run);
        let cpus = advice.measured.last().expect("CPUs are known");
        assert_eq!(
            (advice.bottleneck, cpus.value),
            (Bottleneck::DataWorkers, 24.0)
        );
        (advice.confidence, cpus.name.clone())
    };
    let (confidence, name) = told(&run);
    assert_eq!(
        (confidence, &*name),
        (Confidence::High, "CPUs that a rank may use")
    );
    run.host.is_limit_known = false;
    let (confidence, name) = told(&run);
    assert_eq!(confidence, Confidence::Medium);
    assert!(name.contains("is not known"), "{name}");
}

#[test]
fn a_container_that_has_used_up_its_cpus_wants_more_however_idle_its_node_is() {
    use Confidence::{Low, Medium};
    let mut run = starved();
    run.set_up.num_workers = Some(8);
    run.host.cpus_per_rank = Some(8.0);
    for (is_limit_known, io, cpu, expected) in [
        (true, Some(0.0), Some(0.15), (Medium, true)),
        (true, None, Some(0.15), (Low, true)),
        (true, Some(0.0), None, (Low, true)),
        // Eight are the node's share of a rank, and the node is idle.
        (false, Some(0.0), Some(0.15), (Low, false)),
        (false, Some(0.0), None, (Low, true)),
    ] {
        run.host.is_limit_known = is_limit_known;
        run.host.io_pressure = io;
        run.host.cpu_busy = cpu;
        let advice = only(&run);
        assert_eq!(advice.bottleneck, Bottleneck::DataCpu);
        let found = (advice.confidence, advice.removed.is_ok());
        assert_eq!(found, expected, "{is_limit_known} {io:?} {cpu:?}");
        assert_eq!(advice.knob.name, "CPUs that a rank may use");
        let today = is_limit_known.then_some("8");
        assert_eq!(advice.knob.today.as_deref(), today);
        let read = advice.measured.last().map(|it| it.value);
        assert_eq!(read, Some(8.0), "its CPUs");
        let workers = found.1.then(|| "num_workers: 8 → 10".to_owned());
        assert_eq!(also(&advice), Vec::from_iter(workers));
    }
    // Nothing says how many it may use.
    run.host.cpus_per_rank = None;
    assert_eq!(only(&run).bottleneck, Bottleneck::DataUnknown);
}

#[test]
fn a_loader_is_told_all_that_it_has_off() {
    let mut run = starved();
    run.set_up.prefetch_factor = Some(2);
    run.set_up.persistent_workers = Some(false);
    run.set_up.pin_memory = Some(false);
    let advice = only(&run);
    assert_eq!(said(&advice.knob), "num_workers: 8 → 10");
    assert_eq!(
        also(&advice),
        [
            "prefetch_factor: 2 → 4",
            "persistent_workers: off → on",
            "pin_memory: off → on, with copies that are non_blocking=True"
        ]
    );
    run.set_up.persistent_workers = Some(true);
    run.set_up.pin_memory = None;
    assert_eq!(also(&only(&run)), ["prefetch_factor: 2 → 4"]);
    run.host.io_pressure = Some(0.5);
    assert_eq!(also(&only(&run)), [""; 0], "no loader makes a disk faster");
}

#[test]
fn times_of_nccl_say_that_it_communicates_as_far_as_the_sms_stand_idle() {
    let communicating = |in_collectives, sm, data| Profile {
        communication_s: None,
        in_collectives_s: in_collectives,
        data_wait_s: data,
        gaps: None,
        gpu: GpuUse { sm, ..well().gpu },
        ..well()
    };
    let small = Some(0.01);
    for (in_collectives, sm, data, expected, in_the_dark) in [
        // What is left of the SMs beside NCCL's quarter: 0.4 / 0.75 − 0.01.
        (Some(0.4), Some(0.6), small, Some(0.4), None),
        (Some(0.8), Some(0.6), small, Some(0.523), None),
        (Some(0.4), Some(0.9), small, Some(0.123), None),
        (Some(0.4), Some(0.99), small, None, None),
        (Some(0.02), Some(0.6), small, None, None),
        // Nothing says how much of it is hidden.
        (Some(0.4), None, small, None, Some(0.4)),
        (Some(0.4), Some(0.6), None, None, Some(0.4)),
        (Some(0.02), None, small, None, None),
        (None, None, small, None, None),
    ] {
        let run = communicating(in_collectives, sm, data);
        let advised = advise(&run);
        let found = advised.first().map(|it| (it.bottleneck, it.confidence));
        let low = expected.map(|_| (Bottleneck::Communication, Confidence::Low));
        assert_eq!(found, low, "{in_collectives:?} {sm:?} {data:?}");
        if let Some((advice, share)) = advised.first().zip(expected) {
            near(advice.share, share);
            near(removed(advice), share / 2.0);
        }
        assert_eq!(self::in_collectives(&run), in_the_dark);
    }
    // Data and gaps that are waited for anyway are no communication.
    let mut run = communicating(Some(0.4), Some(0.6), Some(0.3));
    near(not_hidden(&run), 0.4 / 0.75 - 0.3);
    run.gaps = well().gaps;
    near(not_hidden(&run), 0.4 / 0.75 - 0.3 - 0.01);
    // Who tells it is believed.
    run.communication_s = Some(0.05);
    near(not_hidden(&run), 0.05);
}

fn not_hidden(run: &Profile) -> f64 {
    communication::not_hidden(run).expect("it is known")
}

/// How a run is set up, the first knob of its communication, the others, and the part of it that the first removes.
type Case = (fn(&mut Profile), &'static str, &'static [&'static str], f64);

#[test]
fn communication_shrinks_by_what_the_run_is_set_up_to() {
    let nccl = |it: &mut Profile, name: &str, value: &str| {
        it.set_up.nccl.insert(name.to_owned(), value.to_owned());
    };
    let nothing: fn(&mut Profile) = |_| ();
    let cases: [Case; 7] = [
        (nothing, "accumulation: 1 → 2", &[], 0.5),
        (
            |it| it.set_up.bucket_mib = Some(25),
            "accumulation: 1 → 2",
            &["bucket_cap_mb: 25 → 100"],
            0.5,
        ),
        (
            |it| it.set_up.tensor_ranks = Some(8),
            "tp_comm_overlap: ? → on, or fewer ranks that share a tensor",
            &[],
            0.5,
        ),
        (
            |it| it.set_up.zero_stage = Some(3),
            "micro batch: ? → larger, so that weights are gathered for more samples at once",
            &[],
            0.5,
        ),
        (
            |it| {
                it.set_up.zero_stage = Some(3);
                it.gpu.memory_part = Some(0.5);
            },
            "ZeRO stage: 3 → 2",
            &["micro batch: ? → larger, so that weights are gathered for more samples at once"],
            1.0 / 3.0,
        ),
        (
            |it| {
                it.set_up.fsdp = Some("FULL_SHARD".to_owned());
                it.gpu.memory_part = Some(0.5);
            },
            "FSDP sharding: FULL_SHARD → SHARD_GRAD_OP",
            &["micro batch: ? → larger, so that weights are gathered for more samples at once"],
            1.0 / 3.0,
        ),
        (
            |it| {
                it.set_up.fsdp = Some("SHARD_GRAD_OP".to_owned());
                it.gpu.memory_part = Some(0.5);
            },
            "accumulation: 1 → 2",
            &[],
            0.5,
        ),
    ];
    for (change, first, others, expected) in cases {
        let mut run = Profile {
            communication_s: Some(0.3),
            ..well()
        };
        change(&mut run);
        let advice = only(&run);
        assert_eq!(said(&advice.knob), first);
        assert_eq!(also(&advice), others, "{first}");
        near(removed(&advice), 0.3 * expected);
    }
    let mut run = Profile {
        communication_s: Some(0.3),
        ..well()
    };
    let (closed, pinned) = (
        "unset, where the machine has that way",
        "unset, unless the machine's maker asks for it",
    );
    for (name, value) in [
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_NET", "gIB"),
        ("NCCL_DEBUG", "INFO"),
    ] {
        nccl(&mut run, name, value);
    }
    assert_eq!(only(&run).knob.name, "accumulation", "none holds it back");
    assert_eq!(only(&run).confidence, Confidence::Medium);
    nccl(&mut run, "NCCL_ALGO", "Ring");
    nccl(&mut run, "NCCL_P2P_DISABLE", "1");
    let advice = only(&run);
    assert_eq!(
        said(&advice.knob),
        format!("NCCL_P2P_DISABLE: 1 → {closed}")
    );
    assert_eq!(advice.confidence, Confidence::Low);
    let ring = format!("NCCL_ALGO: Ring → {pinned}");
    assert_eq!(also(&advice), ["accumulation: 1 → 2".to_owned(), ring]);
}

#[test]
fn a_way_of_nccl_that_a_run_does_not_have_is_not_asked_for_and_one_that_it_may_have_gains_nothing()
{
    let accumulation = "accumulation: 1 → 2";
    let closed = |name: &str| format!("{name} → unset, where the machine has that way");
    for (pair, name, nodes, gpus, has_nvlink, is_there) in [
        (
            "NCCL_IB_DISABLE=1",
            "NCCL_IB_DISABLE: 1",
            Some(2),
            16,
            None,
            Some(true),
        ),
        (
            "NCCL_IB_DISABLE=1",
            "NCCL_IB_DISABLE: 1",
            Some(1),
            8,
            None,
            Some(false),
        ),
        (
            "NCCL_IB_DISABLE=1",
            "NCCL_IB_DISABLE: 1",
            None,
            8,
            None,
            None,
        ),
        (
            "NCCL_NET=Socket",
            "NCCL_NET: Socket",
            Some(1),
            8,
            None,
            Some(false),
        ),
        (
            "NCCL_NET_GDR_LEVEL=LOC",
            "NCCL_NET_GDR_LEVEL: LOC",
            Some(1),
            8,
            None,
            Some(false),
        ),
        (
            "NCCL_P2P_DISABLE=1",
            "NCCL_P2P_DISABLE: 1",
            Some(1),
            8,
            Some(true),
            Some(true),
        ),
        (
            "NCCL_P2P_DISABLE=1",
            "NCCL_P2P_DISABLE: 1",
            Some(1),
            8,
            Some(false),
            Some(false),
        ),
        (
            "NCCL_P2P_DISABLE=1",
            "NCCL_P2P_DISABLE: 1",
            None,
            8,
            Some(false),
            Some(false),
        ),
        (
            "NCCL_P2P_DISABLE=1",
            "NCCL_P2P_DISABLE: 1",
            Some(1),
            8,
            None,
            None,
        ),
        (
            "NCCL_P2P_LEVEL=LOC",
            "NCCL_P2P_LEVEL: LOC",
            None,
            8,
            Some(true),
            None,
        ),
        // One card a node has no neighbour.
        (
            "NCCL_P2P_DISABLE=1",
            "NCCL_P2P_DISABLE: 1",
            Some(4),
            4,
            Some(true),
            Some(false),
        ),
    ] {
        let mut run = Profile {
            communication_s: Some(0.3),
            nodes,
            gpus,
            ..well()
        };
        run.gpu.has_nvlink = has_nvlink;
        let (key, value) = pair.split_once('=').expect("a variable and its value");
        run.set_up.nccl.insert(key.to_owned(), value.to_owned());
        let advice = only(&run);
        let found = (said(&advice.knob), also(&advice));
        let expected = match is_there {
            Some(true) => (closed(name), vec![accumulation.to_owned()]),
            Some(false) => (accumulation.to_owned(), Vec::new()),
            None => (accumulation.to_owned(), vec![closed(name)]),
        };
        assert_eq!(found, expected, "{pair} {nodes:?} {has_nvlink:?}");
        let sure = match is_there {
            Some(true) => Confidence::Low,
            _ => Confidence::Medium,
        };
        assert_eq!(advice.confidence, sure, "{pair}");
    }
    // What only pins is named as far as it is of a way that is there.
    let mut run = Profile {
        communication_s: Some(0.3),
        nodes: Some(4),
        gpus: 4,
        ..well()
    };
    for (name, value) in [("NCCL_SHM_DISABLE", "1"), ("NCCL_NVLS_ENABLE", "0")] {
        run.set_up.nccl.insert(name.to_owned(), value.to_owned());
    }
    assert_eq!(also(&only(&run)), [""; 0]);
    run.gpus = 32;
    let pinned = |name: &str| format!("{name} → unset, unless the machine's maker asks for it");
    let both = [pinned("NCCL_SHM_DISABLE: 1"), pinned("NCCL_NVLS_ENABLE: 0")];
    assert_eq!(also(&only(&run)), both);
}

#[test]
fn compilers_types_and_sharding_are_told_with_what_the_run_says_of_them() {
    let mut run = well();
    stand_still(&mut run, 0.0, 0.3);
    run.set_up.graph_breaks = Some(12);
    let breaks = "graph breaks: 12 → 0: TORCH_LOGS=graph_breaks names them";
    assert_eq!(also(&only(&run)), [breaks]);
    run.set_up.graph_breaks = Some(0);
    run.set_up.uses_graphs = Some(true);
    let advice = only(&run);
    assert_eq!(
        said(&advice.knob),
        "compile: on, with CUDA graphs → as it is, with a larger micro batch"
    );
    assert_eq!(also(&advice), [""; 0]);

    let mut run = well();
    run.gpu.flops_per_byte = Some(60.0);
    run.gpu.dram = Some(0.8);
    run.set_up.graph_breaks = Some(12);
    assert_eq!(also(&only(&run)), [breaks]);

    let mut run = well();
    run.gpu.tensor = Some(0.0);
    // What Lightning calls it.
    run.set_up.data_type = Some("32-true".to_owned());
    let advice = only(&run);
    assert_eq!(advice.bottleneck, Bottleneck::TensorCoresUnused);
    assert_eq!(also(&advice), [""; 0], "nothing tells whether TF32 is on");
    run.set_up.uses_tf32 = Some(false);
    assert_eq!(
        also(&only(&run)),
        ["TF32: off → on: torch.set_float32_matmul_precision(\"high\")"]
    );

    let mut run = well();
    run.set_up.recomputes_all = Some(true);
    run.set_up.zero_stage = Some(3);
    run.gpu.memory_part = Some(0.5);
    assert_eq!(also(&only(&run)), ["ZeRO stage: 3 → 2"]);
}
