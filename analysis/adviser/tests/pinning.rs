//! Where batches come from memory that is not pinned: what is measured is told, and no gain that nobody knows.

use super::*;

const PINNED: &str = "pin_memory: off → on, with copies that are non_blocking=True";

/// A run on one node whose data loader does not pin its batches.
fn unpinned() -> Profile {
    let mut run = Profile {
        gpus: 8,
        nodes: Some(1),
        ..well()
    };
    run.set_up.pin_memory = Some(false);
    run
}

/// The same, which waits a fifth of its time for data with as many workers as CPUs.
fn waiting() -> Profile {
    let mut run = Profile {
        data_wait_s: Some(0.2),
        ..unpinned()
    };
    run.set_up.num_workers = Some(24);
    run
}

fn read(advice: &Advice) -> Vec<(&str, f64)> {
    let read = advice.measured.iter();
    read.map(|it| (it.name.as_str(), it.value)).collect()
}

#[test]
fn a_run_that_waits_with_workers_enough_is_told_to_pin_its_batches_and_that_the_gain_is_unknown() {
    let mut run = waiting();
    run.set_up.prefetch_factor = Some(2);
    let advice = only(&run);
    assert_eq!(
        (advice.bottleneck, advice.confidence),
        (Bottleneck::DataNotPinned, Confidence::Low)
    );
    assert_eq!(said(&advice.knob), PINNED);
    let also: Vec<String> = advice.also.iter().map(said).collect();
    let cpus = "CPUs that a rank may use: 24 → 1.2 times as many, or transforms that cost less";
    assert_eq!(also, ["prefetch_factor: 2 → 4", cpus]);
    assert_eq!(
        read(&advice),
        [
            ("waiting for data", 0.2),
            ("workers", 24.0),
            ("CPUs that a rank may use", 24.0)
        ]
    );
    assert!(advice.removed.is_err() && advice.gain().is_err());
    assert!(run.nano_usd_per_gpu_second.is_some());
    assert_eq!(advice.nano_usd_per_day(&run), None, "not nothing a day");
    for pinned in [Some(true), None] {
        run.set_up.pin_memory = pinned;
        assert_eq!(only(&run).bottleneck, Bottleneck::DataCpu, "that is left");
    }
    // With too few workers it stands beside them, and once.
    run.set_up.pin_memory = Some(false);
    run.set_up.num_workers = Some(8);
    run.gpu.pcie_received = Some(0.3);
    let advice = only(&run);
    assert_eq!(advice.bottleneck, Bottleneck::DataWorkers);
    assert_eq!(advice.also.last().map(said).as_deref(), Some(PINNED));
}

#[test]
fn copies_are_told_where_nothing_else_comes_over_pcie() {
    for (gpus, nodes, has_nvlink, received, is_told) in [
        (8, Some(1), Some(true), Some(0.2), true),
        (1, Some(1), None, Some(0.2), true),
        (8, Some(1), Some(true), Some(0.02), false),
        (8, Some(1), Some(true), None, false),
        // Collectives come the same way.
        (8, Some(1), Some(false), Some(0.2), false),
        (8, Some(1), None, Some(0.2), false),
        (16, Some(2), Some(true), Some(0.2), false),
        (8, None, Some(true), Some(0.2), false),
    ] {
        let mut run = Profile {
            gpus,
            nodes,
            ..unpinned()
        };
        run.gpu.has_nvlink = has_nvlink;
        run.gpu.pcie_received = received;
        let advised = advise(&run);
        let found = advised.first().map(|it| (it.bottleneck, it.share));
        let expected = is_told.then_some((Bottleneck::DataNotPinned, 0.2));
        assert_eq!(
            found, expected,
            "{gpus} {nodes:?} {has_nvlink:?} {received:?}"
        );
        if let Some(advice) = advised.first() {
            assert_eq!(read(advice), [("PCIe busy receiving, at least", 0.2)]);
        }
    }
}

#[test]
fn what_gains_nobody_knows_what_stands_last_and_is_in_no_sum() {
    let mut run = waiting();
    run.communication_s = Some(0.1);
    let all = advise(&run);
    let kinds: Vec<Bottleneck> = all.iter().map(|it| it.bottleneck).collect();
    let expected = [Bottleneck::Communication, Bottleneck::DataNotPinned];
    assert_eq!(kinds, expected, "though it takes twice as long");
    near(together(&all), gain(&all[0]));
    near(together(&all[1..]), 1.0);
    // A disk that is slow and copies that take time are two things.
    let mut run = waiting();
    run.host.io_pressure = Some(0.5);
    run.gpu.pcie_received = Some(0.3);
    let kinds: Vec<Bottleneck> = advise(&run).iter().map(|it| it.bottleneck).collect();
    assert_eq!(kinds, [Bottleneck::DataNetwork, Bottleneck::DataNotPinned]);
}

#[test]
fn a_host_that_waits_for_its_copies_is_told_to_pin_them_too() {
    let mut run = unpinned();
    stand_still(&mut run, 0.1, 0.0);
    let advice = only(&run);
    assert_eq!(advice.bottleneck, Bottleneck::HostSync);
    assert_eq!(advice.also.iter().map(said).collect::<Vec<_>>(), [PINNED]);
}
