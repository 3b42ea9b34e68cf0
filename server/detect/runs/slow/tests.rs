//! How surely the ranks of a node are told, and what is known of ranks without a GPU.

use gpufleet_analysis::straggler::Verdict;
use gpufleet_telemetry::time::Timestamp;

use super::*;
use crate::detect::runs::snapshot::Machine;

#[test]
fn the_ranks_of_a_node_are_told_as_surely_as_the_surest_of_them() {
    let rank = |rank| RankSnapshot {
        rank,
        node: if rank < 2 { "node-1" } else { "node-2" }.into(),
        ..RankSnapshot::default()
    };
    let run = RunSnapshot {
        ranks: (0..4).map(rank).collect(),
        ..RunSnapshot::default()
    };
    for (other, expected) in [
        (
            Confidence::Low,
            "the ranks of this node probably make the others wait",
        ),
        (
            Confidence::High,
            "the ranks of this node make the others wait",
        ),
    ] {
        let slow = |(rank, confidence)| Straggler {
            rank,
            since_step: 1,
            ratio: 1.5,
            z: 9.0,
            window: 10,
            confidence,
            price: None,
        };
        let stragglers = [(0, Confidence::Low), (1, other)].map(slow).to_vec();
        let judged = Judged {
            verdict: Verdict {
                stragglers,
                ..Verdict::default()
            },
            since: BTreeMap::new(),
            slower: None,
            before: None,
            step: 100,
            ended_at: Timestamp::default(),
            step_ns: 0,
        };
        let around = Around {
            run: &run,
            judged: &judged,
            history: &History::default(),
            gpus: &Gpus::new(),
        };
        let told = signals(&around, &mut Causes::default());
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].what, expected);
        assert_eq!(told[0].confidence, Some(other), "of the surest");
    }
}

/// A run of four ranks without a GPU on these nodes; the last waits half of a step for its data.
fn waits_for_data(nodes: [&str; 4], machine: Option<Machine>) -> RunSnapshot {
    let rank = |(rank, node): (u32, &str)| RankSnapshot {
        rank,
        node: node.into(),
        means: Some(Means {
            data: if rank == 3 { 1e9 } else { 0.0 },
            own: if rank == 3 { 2e9 } else { 1e9 },
            collectives: 0.0,
        }),
        machine,
        ..RankSnapshot::default()
    };
    RunSnapshot {
        ranks: (0..).zip(nodes).map(rank).collect(),
        ..RunSnapshot::default()
    }
}

#[test]
fn a_rank_without_a_gpu_waits_for_its_data_where_its_machine_is_known_not_to_be_why() {
    let calm = Machine {
        host: Host {
            cpu_pressure: Some(0.02),
            io_pressure: Some(0.01),
            ..Host::default()
        },
        price: None,
    };
    let (one, two) = (["a"; 4], ["a", "a", "b", "b"]);
    for (nodes, machine, expected) in [
        (one, Some(calm), Cause::Data),
        (two, Some(calm), Cause::Data),
        // Nothing is read of the machine that all are on: it presses all of them.
        (one, None, Cause::Data),
        (two, None, Cause::Unknown),
        ([""; 4], None, Cause::Unknown),
    ] {
        let run = waits_for_data(nodes, machine);
        let is_blamed = |it: &RankSnapshot| it.rank == 3;
        let read = read(&run, &is_blamed, &run.ranks[3], 2.0, &Gpus::new());
        assert_eq!(cause::judge(&read).cause(), expected, "{nodes:?}");
    }
}

#[test]
fn a_run_without_gpus_costs_what_a_rank_on_its_machines_does() {
    let machine = |price| Machine {
        price,
        ..Machine::default()
    };
    let price = |machine| price_of(&waits_for_data(["a"; 4], machine), &Gpus::new());
    assert_eq!(price(Some(machine(Some(14_000)))), Some(14_000));
    assert_eq!(price(Some(machine(None))), None);
    assert_eq!(price(None), None);
}
