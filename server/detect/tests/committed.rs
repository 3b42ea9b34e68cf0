//! What an incident costs where somebody committed to nodes.

use gpufleet_telemetry::identity::ResourceKind;

use super::*;

#[tokio::test]
async fn an_incident_on_nodes_that_are_all_committed_to_costs_what_the_commitment_does() {
    for (nodes, per_second) in [(2, 1_000_000), (1, 2_036_458)] {
        let mut world = World::new().await;
        let table = format!(
            "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n\
             c,a3-highgpu-8g,here,{nodes},commitment_3y,USD,28.8,2026-01-01,2029-01-01,\n"
        );
        let rates = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
             a3-highgpu-8g,here,on_demand,USD,88.5,,2026-01-01,,list,a\n";
        let mut config = (*world.app.config).clone();
        for (name, text) in [("committed.csv", table.as_str()), ("rates.csv", rates)] {
            let path = world.folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            config.cost.tables.push(path.display().to_string());
        }
        let refreshed = world.app.money.refresh(&world.app.store, &config).await;
        assert_eq!(refreshed.expect("the store answers").findings, [""; 0]);
        for live in &mut world.lives {
            if live.key.kind == ResourceKind::Node {
                let told = Resource::clone(&live.resource);
                let told = told.with(attribute::MACHINE_TYPE, "a3-highgpu-8g");
                live.resource = Arc::new(told.with(attribute::REGION, "here"));
            }
        }
        world.ticks(2, |_| {});
        let at = world.hand.now();
        world.ticks(1, breaks("node-2", 3, at));
        let open = world.open();
        assert_eq!(open.len(), 1, "{open:?}");
        let losing = &open[0].losing;
        assert_eq!(losing.nano_usd_per_gpu_second, Some(per_second), "{nodes}");
    }
}
