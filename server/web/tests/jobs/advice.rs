//! What limits a job, by what it, its GPUs and its place in a mesh tell.

use gpufleet_analysis::adviser::{Bottleneck, advise};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::gpu_specs::Specs;

use super::*;
use crate::runs::advice::profile;

#[tokio::test]
async fn a_pipeline_on_cards_whose_memory_is_busy_is_told_of_both() {
    let mut lives = fixture::fleet();
    let card = lives.iter_mut().find(|it| &*it.key.id == GPU);
    let card = card.expect("it is in the fleet");
    card.values.push(LiveValue {
        metric: gpu::DRAM_ACTIVE.id,
        part: None,
        reading: Ok(0.8),
        max: None,
        at: card.last_point,
    });
    card.values.sort_by_key(|it| it.metric);
    let server = server_of(lives, false).await;
    let (runs, cluster, job) = (server.fleet.runs(), "prod".into(), "team/pipe/u7");
    let about = [(
        attribute::FINGERPRINT,
        "loader.storage=nfs4\nmicro_batches=8\n",
    )];
    let began = event(job, 0, 0, EventKind::RunStarted, &about);
    runs.event(&cluster, &began, heard(0)).unwrap();
    let told = [
        (training::STEPS, 10.0),
        (training::STEP_WALL, 10.0),
        (training::MODEL_FLOPS, 10.0 * 0.1 * 989.4e12),
    ];
    let mut live = rank(job, 0, &told);
    let resource = Resource::clone(&live.resource)
        .with(named::MESH, "pp=0/8")
        .with(named::GPU_ID, GPU);
    live.resource = Arc::new(resource);
    live.values.sort_by_key(|it| it.metric);
    let key = RunKey::of(&cluster, &rank_id(job, 0));
    runs.steps(&key, 0, &block(0, 600), heard(10)).unwrap();
    runs.rank(&live, heard(10)).unwrap();
    let run = runs.get(&key).expect("it was told");
    let found = profile(&key, &run, &server.fleet, None, &Specs::default());
    let found = found.expect("it has a pace");
    assert_eq!(found.host.is_network_storage, Some(true));
    let advised = advise(&found);
    let limits: Vec<Bottleneck> = advised.iter().map(|it| it.bottleneck).collect();
    for one in [Bottleneck::PipelineBubble, Bottleneck::MemoryBandwidth] {
        assert!(limits.contains(&one), "{limits:?}");
    }
}
