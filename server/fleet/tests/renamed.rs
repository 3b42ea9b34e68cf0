//! An agent that calls its cluster or its node otherwise than before: what it told of by the former name is gone.

use super::*;
use crate::fleet::Restored;
use crate::store::model::KnownResource;

/// A cluster and a node in it.
type Called = (&'static str, &'static str);

const NOW: Called = ("c", "n");

/// The machine tells of itself and then of its GPU, with this seq and the next.
fn tells(fleet: &Fleet, seq: u64, end: i64, (cluster, node): Called) {
    for (seq, kind, id) in [
        (seq, ResourceKind::Node, node),
        (seq + 1, ResourceKind::Gpu, "GPU-1"),
    ] {
        let resource = Resource::new(kind, id)
            .with(attribute::CLUSTER, cluster)
            .with(attribute::NODE, node);
        let sent = Sent {
            resource,
            ..sent(seq, end)
        };
        folded(sent.offer(fleet));
    }
}

/// What is shown, by cluster and id.
fn shown(fleet: &Fleet) -> Vec<String> {
    let mut all = Vec::new();
    fleet.visit(|it| all.push(format!("{}/{}", it.key.cluster, it.key.id)));
    all.sort_unstable();
    all
}

/// What a commit at this moment stores of resources.
fn stored(fleet: &Fleet, at: i64) -> Vec<KnownResource> {
    let commit = fleet.take_commit(Timestamp::from_seconds(at));
    let commit = commit.expect("something came");
    fleet.committed(commit.number);
    commit.resources.clone()
}

#[test]
fn old_data_does_not_say_where_an_agent_is_by_now() {
    let fleet = fleet();
    for (seq, end, lane, (cluster, node)) in [
        (1, T + 60, Lane::Live, NOW),
        (2, T + 10, Lane::Backfill, ("default", "old")),
    ] {
        let resource = Resource::new(ResourceKind::Node, node)
            .with(attribute::CLUSTER, cluster)
            .with(attribute::NODE, node);
        let sent = Sent {
            resource,
            lane,
            ..sent(seq, end)
        };
        folded(sent.offer(&fleet));
        let agents = fleet.agents();
        assert_eq!((&*agents[0].cluster, &*agents[0].node), NOW);
    }
}

#[test]
fn what_an_agent_told_of_by_a_former_name_is_shown_no_more_also_after_a_start() {
    for former in [("default", "n"), ("c", "old")] {
        let fleet = fleet();
        tells(&fleet, 1, T + 10, former);
        let mut known = stored(&fleet, T + 15);
        tells(&fleet, 3, T + 60, NOW);
        assert_eq!(shown(&fleet), ["c/GPU-1", "c/n"], "{former:?}");
        known.extend(stored(&fleet, T + 65));
        // What comes late of before hides nothing that is newer.
        tells(&fleet, 5, T + 20, former);
        let is_there = |it: &str| shown(&fleet).iter().any(|shown| shown == it);
        assert!(is_there("c/GPU-1") && is_there("c/n"), "{former:?}");
        tells(&fleet, 7, T + 70, NOW);
        assert_eq!(shown(&fleet), ["c/GPU-1", "c/n"], "{former:?}");
        // The store has each once, as it was told of last.
        let known: BTreeMap<ResourceKey, KnownResource> =
            known.into_iter().map(|it| (it.key.clone(), it)).collect();
        let again = self::fleet();
        let restored = Restored {
            resources: known.into_values().collect(),
            ..Restored::default()
        };
        again.restore(restored, Timestamp::from_seconds(T + 80));
        assert_eq!(shown(&again), ["c/GPU-1", "c/n"], "{former:?}");
    }
}
