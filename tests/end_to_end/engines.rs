//! The agent's own OTLP, given unchanged to VictoriaMetrics: eight GPUs are eight series.
//!
//! The agent speaks OTLP over gRPC and VictoriaMetrics takes it over HTTP, so the test stands between as a
//! Collector would and hands on what it received.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_standin_nvml::load::Load;
use gpufleet_tests::harness::{World, agent, http, wait};
use gpufleet_tests::receiver::Receiver;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message as _;

use crate::peers::Peer;

const GPUS: usize = 8;
/// Two ship intervals and the start.
const FIRST_TICK_LIMIT: Duration = Duration::from_secs(120);
/// How long an engine may take to find a new series.
const INDEX_LIMIT: Duration = Duration::from_secs(90);

/// What an agent with eight GPUs sent until it had told of them.
fn requests(world: &World) -> Vec<ExportMetricsServiceRequest> {
    let receiver = Receiver::start();
    let place = agent::Place::new(world, "node-1", &receiver.endpoint(), "");
    place.show(&Scenario::of(8, "NVIDIA H100 80GB HBM3", Load::Training));
    let _agent = place.start();
    let what = "the agent ships a tick with its GPUs";
    wait::until(what, FIRST_TICK_LIMIT, || {
        let requests = receiver.metrics();
        let mut said = requests.iter().map(|it| format!("{it:?}"));
        said.any(|it| it.contains("hw.gpu.utilization"))
            .then_some(requests)
    })
}

/// Hands the requests on as they are.
fn hand_on(peer: &Peer, path: &str, requests: &[ExportMetricsServiceRequest]) {
    let protobuf = [("content-type", "application/x-protobuf")];
    for request in requests {
        let answer = http::post(&peer.address, path, &protobuf, &request.encode_to_vec());
        let answer = answer.expect("it answers");
        assert!(matches!(answer.status, 200 | 204), "{}", answer.text());
    }
}

#[test]
fn eight_gpus_are_eight_series_to_victoria_metrics() {
    let world = World::new();
    let requests = requests(&world);
    let victoria = Peer::victoria(&world);
    hand_on(&victoria, "/opentelemetry/v1/metrics", &requests);
    for name in ["hw.gpu.utilization", "hw.power", "hw.energy"] {
        let query = format!("last_over_time({{__name__=\"{name}\"}}[10m])");
        // A flush makes samples readable at once, but the index of new series only within a second or
        // so: ask until they are there.
        wait::until(
            &format!("{name} has a series a GPU and task"),
            INDEX_LIMIT,
            || {
                victoria.get("/internal/force_flush");
                let mut of_task: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for series in victoria.query(&query) {
                    let gpus = of_task
                        .entry(series.label("hw.gpu.task").to_owned())
                        .or_default();
                    gpus.push(series.label("hw.id").to_owned());
                }
                let is_whole = |gpus: &Vec<String>| {
                    let different: BTreeSet<_> = gpus.iter().collect();
                    gpus.len() == GPUS && different.len() == GPUS
                };
                (!of_task.is_empty() && of_task.values().all(is_whole)).then_some(())
            },
        );
    }
}
