//! Why free GPUs are free.

use super::super::unheld::{Alike, MAX_ALIKE, why_free};
use super::*;
use crate::states::Demand;

#[test]
fn a_free_gpu_is_without_demand_in_pieces_too_small_or_kept_for_others() {
    let kept = Node {
        kept_for: vec!["team=vision:NoSchedule".to_owned()],
        ..node("kept", 8)
    };
    let of_type = |name: &str, model: &str| Node {
        model: model.to_owned(),
        ..node(name, 8)
    };
    let nodes = [node("1", 8), node("2", 8), kept, of_type("l4", "l4")].map(record);
    // Half of each is free.
    let held = nodes.iter().map(|it| (it.node.name.clone(), 4)).collect();
    let why = |claims: &[Claim]| {
        let found = why_free(nodes.iter(), &held, claims).of;
        let of = |model: &str, taints: &[&str]| {
            let kept_for = taints.iter().map(|it| (*it).to_owned()).collect();
            let model = model.to_owned();
            let partitions = Vec::new();
            let alike = Alike {
                model,
                kept_for,
                partitions,
            };
            found.get(&alike).copied()
        };
        [
            of("h100", &[]),
            of("h100", &["team=vision:NoSchedule"]),
            of("l4", &[]),
        ]
    };
    let h100 = |gpus: u32| Claim {
        model: "h100".to_owned(),
        ..claim("job:team/a", gpus, -60, "")
    };
    let (none, pieces, held_back) = (
        Some(Demand::None),
        Some(Demand::Fragmented),
        Some(Demand::Reserved),
    );
    assert_eq!(why(&[]), [none; 3]);
    // Of one type: nobody waits for the other.
    assert_eq!(why(&[h100(8)]), [pieces, held_back, none]);
    // It would fit, and something else keeps it: nothing is said.
    assert_eq!(why(&[h100(4)]), [None, held_back, none]);
    // Each pod of it would, and all together do not: those of a gang begin together, those of a Deployment do not.
    let three = |together| {
        let pod = Claim {
            together,
            ..h100(4)
        };
        [pod.clone(), pod.clone(), pod]
    };
    assert_eq!(why(&three(None)), [pieces, held_back, none]);
    assert_eq!(why(&three(Some(1))), [None, held_back, none]);
    // Of an array of jobs each needs its own nodes at once.
    let array = |together| Claim {
        places: 1_000,
        together: Some(together),
        ..h100(4)
    };
    assert_eq!(why(&[array(2)]), [None, held_back, none]);
    assert_eq!(why(&[array(3)]), [pieces, held_back, none]);
    // One that fits beside one that does not.
    let other = Claim {
        workload: "job:team/b".to_owned(),
        ..h100(2)
    };
    assert_eq!(why(&[h100(8), other]), [None, held_back, none]);
    // Pods of one workload that ask for different things.
    let small = Claim {
        since: at(-30),
        ..h100(2)
    };
    assert_eq!(why(&[h100(8), small]), [None, held_back, none]);
    let of_other_type = Claim {
        model: "l4".to_owned(),
        ..h100(8)
    };
    assert_eq!(why(&[h100(8), of_other_type]), [pieces, held_back, pieces]);
    // Any type would do, and it may go where the taint is.
    let anywhere = Claim {
        model: String::new(),
        tolerates: vec![Toleration::default()],
        ..h100(8)
    };
    assert_eq!(why(&[anywhere]), [pieces; 3]);
    let mut held_back_itself = h100(8);
    held_back_itself.reason = Reason::HeldBack;
    assert_eq!(why(&[held_back_itself]), [None, held_back, none]);
    // Nobody wants it now, whatever type it insists on.
    let by_owner = Claim {
        reason: Reason::ByOwner,
        ..h100(8)
    };
    let of_no_type_here = Claim {
        model: "b200".to_owned(),
        ..by_owner.clone()
    };
    assert_eq!(why(&[by_owner, of_no_type_here]), [none; 3]);
    // Perhaps another word for one of these.
    let strange = Claim {
        model: "NVIDIA-H100-80GB-HBM3".to_owned(),
        ..h100(8)
    };
    assert_eq!(why(&[strange, h100(8)]), [None; 3]);
    let shares = Claim {
        is_shares: true,
        ..h100(1)
    };
    assert_eq!(why(&[shares]), [none; 3], "they wait for no whole one");
}

#[test]
fn who_waits_in_another_partition_waits_for_none_of_these() {
    let of = |name: &str, partitions: &[&str]| {
        record(Node {
            partitions: partitions.iter().map(|it| (*it).to_owned()).collect(),
            ..node(name, 8)
        })
    };
    let nodes = [of("1", &["long"]), of("2", &["short"]), of("3", &["short"])];
    let why = |partitions: &[&str], nodes_at_once: u32| {
        let partitions = partitions.iter().map(|it| (*it).to_owned());
        let job = Claim {
            places: nodes_at_once,
            together: Some(nodes_at_once),
            partitions: partitions.collect(),
            ..claim("slurm:1", 8, 0, "")
        };
        let found = why_free(nodes.iter(), &BTreeMap::new(), &[job]).of;
        [&nodes[0], &nodes[1]].map(|it| found.get(&Alike::of(&it.node)).copied())
    };
    let (none, pieces) = (Some(Demand::None), Some(Demand::Fragmented));
    assert_eq!(why(&["long"], 2), [pieces, none]);
    assert_eq!(why(&["short"], 2), [none, None], "it would fit");
    assert_eq!(why(&["short"], 3), [none, pieces]);
    assert_eq!(why(&["long", "short"], 3), [pieces; 2], "not over both");
}

#[test]
fn of_too_many_kinds_of_gpus_those_with_the_most_free_are_told_and_the_others_counted() {
    let own_taint = |number: usize, gpus: u32| {
        let name = format!("{number:04}");
        record(Node {
            kept_for: vec![format!("dedicated={name}:NoSchedule")],
            ..node(&name, gpus)
        })
    };
    // The last ones are the largest.
    let nodes = 0..MAX_ALIKE + 7;
    let nodes = nodes.map(|it| own_taint(it, if it < 7 { 4 } else { 8 }));
    let nodes: Vec<Record> = nodes.collect();
    let found = why_free(nodes.iter(), &BTreeMap::new(), &[]);
    assert_eq!((found.of.len(), found.left_out), (MAX_ALIKE, 7));
    let is_small = |it: &Record| !found.of.contains_key(&Alike::of(&it.node));
    assert!(nodes[..7].iter().all(is_small), "{found:?}");
}
