//! The whole way: stand-in driver → agent → server → API, on both databases.

use std::time::Duration;

use gpufleet_standin_nvml::load::{self, Load};
use gpufleet_standin_nvml::{Scenario, models};
use gpufleet_telemetry::catalog::{Metric, gpu};
use gpufleet_tests::harness::{World, agent, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::Value;

const GPUS: usize = 8;
const MODEL: &str = "NVIDIA H100 80GB HBM3";
/// Two ship intervals, a commit and the start.
const FIRST_DATA_LIMIT: Duration = Duration::from_secs(120);

fn reading(gpu: &Value, metric: &Metric) -> Option<f64> {
    let readings = gpu["all_readings"].as_array()?;
    let found = readings.iter().find(|it| it["metric"] == metric.name)?;
    found["value"].as_f64()
}

on_both_databases!(eight_gpus_of_the_driver_are_eight_gpus_in_the_api);

fn eight_gpus_of_the_driver_are_eight_gpus_in_the_api(world: World) {
    let server = server::Place::new(&world).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let place = agent::Place::new(&world, "node-1", &endpoint, "");
    // Time stands still in this scenario, so that the mean of a tick is the value of a second.
    let scenario = Scenario::of(8, MODEL, Load::Training);
    place.show(&scenario);
    let agent = place.start();
    let listed = wait::until(
        "the API lists eight GPUs with profiling",
        FIRST_DATA_LIMIT,
        || {
            let items = server.get("/api/v1/gpus?cluster=test").json()["items"]
                .as_array()?
                .clone();
            let detail = |gpu: &Value| {
                let id = gpu["id"].as_str().unwrap_or_default();
                server.get(&format!("/api/v1/gpus/test/{id}")).json()
            };
            let details: Vec<Value> = items.iter().map(detail).collect();
            let all = details
                .iter()
                .all(|it| reading(it, &gpu::TENSOR_ACTIVE).is_some());
            (details.len() == GPUS && all).then_some(details)
        },
    );
    let model = models::by_name(MODEL);
    let at = scenario.time_s.expect("the scenario stands still");
    for (slot, found) in (0_u8..).zip(&listed) {
        let expected = load::values(&scenario.gpus[usize::from(slot)], model, slot, at);
        for (metric, value) in [
            (&gpu::POWER, f64::from(expected.power_mw) / 1000.0),
            (&gpu::TEMPERATURE, f64::from(expected.temperature_c)),
            (&gpu::UTILIZATION, f64::from(expected.gpu_percent) / 100.0),
            (&gpu::TENSOR_ACTIVE, expected.gpm_percent[4] / 100.0),
            (&gpu::SM_CLOCK, f64::from(expected.clock_mhz[0]) * 1e6),
        ] {
            let read = reading(found, metric).unwrap_or(f64::NAN);
            assert!(
                (read - value).abs() <= value.abs() * 1e-6,
                "GPU {slot}, {}: {read}, the scenario says {value}",
                metric.name
            );
        }
        assert_eq!(found["node"], "node-1", "{found}");
        assert_eq!(found["origin"], "live", "{found}");
    }
    agent.stop();
    // What was shown is in the database: a server that starts anew still knows the GPUs.
    let server = server.stop().start();
    let items = server.get("/api/v1/gpus?cluster=test").json()["items"].clone();
    assert_eq!(items.as_array().map(Vec::len), Some(GPUS), "{items}");
    server.stop();
}
