//! Cards that are cut into shares: who holds one and does nothing with it, and what that costs.

use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::Bitmaps;

use super::*;

/// A seventh of the card of this node and index that works, held by the job of the world's GPUs.
pub(in crate::detect) fn share(id: &str, node: &str, index: u32) -> Live {
    let mut live = fixture::live("prod", node, ResourceKind::Share, id, Origin::Live);
    let resource = Resource::clone(&live.resource)
        .with(attribute::PARENT, format!("GPU-prod-{node}-{index:04}"))
        .with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3")
        .with(attribute::MIG_SLICES, "1/7")
        .with(attribute::HOLDER, "pod:research/train-7b-0");
    live.resource = resource.into();
    live.bits = fixture::gpu("prod", node, index, Does::Work, Origin::Live).bits;
    live
}

#[tokio::test]
async fn a_share_that_is_held_and_idle_is_told_at_its_card_and_costs_its_part_and_the_card_nothing()
{
    let mut world = World::new().await;
    world.detectors.idle.after_s = 60;
    world.lives.push(share("MIG-works", "node-1", 0));
    world.lives.push(share("MIG-idle", "node-1", 0));
    // Of one that tells nothing nobody knows what it does.
    let mut untold = share("MIG-untold", "node-1", 0);
    untold.bits = Bitmaps::default();
    world.lives.push(untold);
    world.ticks(45, |live| {
        if &*live.key.id == "MIG-idle" || is_gpu(live, "node-1", 0) {
            live.bits.active = 0;
        }
    });
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    let told = &open[0];
    assert_eq!((told.family, told.cause), (Family::Idle, Cause::NoWork));
    assert_eq!(told.place.gpu.as_deref(), Some("GPU-prod-node-1-0000"));
    assert_eq!(told.place.run.as_deref(), Some("pod:research/train-7b"));
    assert_eq!(told.losing.milli_gpus, 143);
    assert_eq!(
        told.losing.nano_usd_per_gpu_second,
        Some(PER_SECOND),
        "of its card"
    );
}

#[tokio::test]
async fn a_card_of_whose_shares_none_tells_what_it_does_is_idle_as_a_whole() {
    let mut world = World::new().await;
    world.detectors.idle.after_s = 60;
    let mut untold = share("MIG-untold", "node-1", 0);
    untold.bits = Bitmaps::default();
    world.lives.push(untold);
    world.ticks(45, |live| {
        if is_gpu(live, "node-1", 0) {
            live.bits.active = 0;
        }
    });
    let open = world.open();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].family, Family::Idle);
    assert_eq!(open[0].losing.milli_gpus, 1_000);
}
