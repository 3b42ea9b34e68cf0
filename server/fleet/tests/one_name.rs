//! What many readings and resources name is held once: who looks for it compares addresses and reads no names.

use super::*;

/// A tick of a GPU of the node of all, with two readings of each of two links.
fn tick(seq: u64, gpu_id: &str) -> Sent {
    let link = |metric: Metric, id: &str| {
        let part = Part::new(PartKind::NvLink, id);
        (metric, Some(part), watts(1.0))
    };
    Sent {
        resource: Resource {
            id: gpu_id.into(),
            ..gpu_resource()
        },
        points: vec![
            link(gpu::NVLINK_UP, "0"),
            link(gpu::NVLINK_UP, "1"),
            link(gpu::NVLINK_SPEED, "0"),
            link(gpu::NVLINK_SPEED, "1"),
        ],
        ..sent(seq, T)
    }
}

#[test]
fn the_readings_of_a_part_and_the_resources_of_a_node_have_its_name_at_one_address() {
    let fleet = fleet();
    let mut nodes = Vec::new();
    for (seq, id) in [(1, "GPU-1"), (2, "GPU-2")] {
        assert!(matches!(tick(seq, id).offer(&fleet), Outcome::Folded(_)));
        let key = ResourceKey {
            id: id.into(),
            ..key()
        };
        let told = fleet.look(&key, |live| {
            let parts = live.values.iter().filter_map(|it| it.part.clone());
            (parts.collect::<Vec<_>>(), Arc::clone(&live.node))
        });
        let (parts, node) = told.expect("it was told of");
        assert_eq!(parts.len(), 4);
        for one in &parts {
            let same = parts.iter().filter(|it| Arc::ptr_eq(it, one));
            assert_eq!(same.count(), 2, "{one:?} of both metrics");
        }
        nodes.push(node);
    }
    assert!(Arc::ptr_eq(&nodes[0], &nodes[1]), "{nodes:?}");
}
