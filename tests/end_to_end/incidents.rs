//! A fault in the demo fleet is one incident: the right GPU, its cause, its price, and its end.

use std::time::Duration;

use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, server, wait};
use gpufleet_tests::on_both_databases;
use serde_json::Value;

/// A tick, its shipping, a tick of the detectors, and a machine that is busy.
const OPEN_LIMIT: Duration = Duration::from_secs(180);
/// What is broken heals, ships, and is not signalled for as long as it takes to be over.
const OVER_LIMIT: Duration = Duration::from_secs(180);
/// An eighth of a3-highgpu-8g in us-central1 on demand, 88.49 USD an hour, rounded in each second.
const GPU_HOUR_NANO_USD: i64 = 11_061_248_400;

/// Those of the demo fleet, also in this state alone. That commits are late on a machine that is this busy is an incident
/// too, of gpufleet itself, and true.
fn incidents(server: &server::Server, and: &str) -> Vec<Value> {
    let answer = server.get(&format!("/api/v1/incidents?cluster=demo{and}"));
    let answer = answer.json();
    let items = answer["items"].as_array().cloned();
    items.unwrap_or_else(|| panic!("no list: {answer}"))
}

/// A line an incident, so that a log that is cut still names each of them.
fn in_lines(incidents: &[Value]) -> String {
    let said = |it: &Value| {
        let seen: Vec<String> = it["evidence"].as_array().map_or(vec![], |all| {
            let word = |it: &Value| format!("{} {} of {}", it["at"], it["what"], it["place"]);
            all.iter().map(word).collect()
        });
        let place = &it["place"];
        format!("{} of {place}: {}\n", it["cause"], seen.join("; "))
    };
    incidents.iter().map(said).collect()
}

/// The run of a cluster's job once its ranks are compared: what stands or is slow before is taken for its start.
pub(crate) fn compared(server: &server::Server, cluster: &str) -> Option<Value> {
    let jobs = server.get(&format!("/api/v1/jobs?cluster={cluster}"));
    let job = jobs.json()["items"].as_array()?.first()?.clone();
    let name = job["job"].as_str()?.replace('/', "%2F");
    let run = server.get(&format!("/api/v1/runs/{cluster}/{name}/{}", job["attempt"]));
    let run = run.json();
    (run["step_seconds"]["value"].is_number() && run["not_judged"].is_null()).then_some(run)
}

on_both_databases!(
    a_rank_that_is_slowed_down_is_one_incident_with_rank_cause_and_price_until_it_is_fast_again
);

fn a_rank_that_is_slowed_down_is_one_incident_with_rank_cause_and_price_until_it_is_fast_again(
    world: World,
) {
    let server = server::Place::new(&world).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let more = ["--nodes", "4", "--seed", &steady_seed()];
    let simulator = Simulator::start(&world, &endpoint, &more);
    let run = wait::until("the ranks are compared", OVER_LIMIT, || {
        compared(&server, "demo")
    });
    assert_eq!(incidents(&server, ""), Vec::<Value>::new(), "{run}");
    let said = simulator.fault("slow");
    let told = wait::until("the rank is told, and why", OVER_LIMIT, || {
        let open = incidents(&server, "");
        assert!(open.len() <= 1, "{}", in_lines(&open));
        let loses = |it: &Value| it["losing_nano_usd_per_hour"].as_i64().unwrap_or(0);
        // All 32 wait about a fifth of each step, once all steps that are compared are slow ones.
        open.into_iter()
            .filter(|it| it["cause"] == "heat" && it["place"]["rank"] == 11)
            .find(|it| loses(it) > 4 * GPU_HOUR_NANO_USD)
    });
    assert!(
        said.contains(told["place"]["gpu"].as_str().unwrap_or("?")),
        "{said}: {told}"
    );
    let id = told["id"].as_str().expect("it has an id").to_owned();
    let page = server.get(&format!("/incidents/{id}")).text();
    assert!(page.contains("rank 11 of"), "{page}");
    simulator.fault("heal");
    let over = wait::until("it is over", 3 * OVER_LIMIT, || {
        let over = incidents(&server, "&state=resolved");
        (!over.is_empty()).then_some(over)
    });
    assert_eq!(over[0]["id"], *id);
    assert!(over[0]["lost_nano_usd"].as_i64() > Some(0), "{over:?}");
    assert_eq!(incidents(&server, "").len(), 1, "one fault, one incident");
    simulator.stop();
    server.stop();
}

on_both_databases!(a_gpu_that_breaks_is_one_incident_with_gpu_cause_and_price_until_it_is_mended);

fn a_gpu_that_breaks_is_one_incident_with_gpu_cause_and_price_until_it_is_mended(world: World) {
    // The machine type goes before the price of the card.
    let price = "detect.gpu_hour_usd={ 'NVIDIA H100 80GB HBM3' = '36' }";
    let server = server::Place::new(&world).with(price).start();
    let endpoint = format!("http://{}", server.place.grpc);
    // Two nodes that train: nothing in them is idle or stalled.
    let more = ["--nodes", "2", "--seed", &steady_seed()];
    let simulator = Simulator::start(&world, &endpoint, &more);
    wait::until("the API lists 16 GPUs", OPEN_LIMIT, || {
        let gpus = server.get("/api/v1/gpus?cluster=demo").json();
        (gpus["items"].as_array()?.len() == 16).then_some(())
    });
    assert_eq!(incidents(&server, ""), Vec::<Value>::new());
    let said = simulator.fault("xid79");
    let open = wait::until("an incident is open", OPEN_LIMIT, || {
        let open = incidents(&server, "&state=open");
        (!open.is_empty()).then_some(open)
    });
    assert_eq!(open.len(), 1, "{open:?}");
    let incident = &open[0];
    let gpu = incident["place"]["gpu"]
        .as_str()
        .expect("it is about a GPU");
    assert!(said.contains(gpu), "{gpu} is not in: {said}");
    assert!(
        said.contains(incident["place"]["node"].as_str().unwrap_or("?")),
        "{said}"
    );
    assert_eq!(incident["cause"], "gpu_fault");
    assert_eq!(incident["what"], "XID 79");
    assert_eq!(incident["losing_nano_usd_per_hour"], GPU_HOUR_NANO_USD);
    let page = server.get("/fleet").text();
    assert!(page.contains("1 incident</a>"), "{page}");
    assert!(
        page.contains("GPU 3 of demo-node-2") && page.contains("costs $11.06/h"),
        "{page}"
    );

    // It survives the server, and people can speak to it.
    let server = server.kill().start();
    let id = incident["id"].as_str().expect("it has an id").to_owned();
    let said = r#"{"what": "acknowledge", "who": "ada"}"#;
    let known = wait::until("the incident is known again", OPEN_LIMIT, || {
        let answer = server.post(&format!("/api/v1/incidents/{id}/say"), said);
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(known["acknowledged_by"], "ada");
    assert_eq!(incidents(&server, "&state=open").len(), 1);

    simulator.fault("heal");
    let over = wait::until("it is over", 2 * OVER_LIMIT, || {
        let over = incidents(&server, "&state=resolved");
        (!over.is_empty()).then_some(over)
    });
    assert_eq!(over.len(), 1);
    assert_eq!(over[0]["id"], *id);
    assert!(over[0]["lost_nano_usd"].as_i64() > Some(0), "{over:?}");
    assert_eq!(incidents(&server, "&state=open"), Vec::<Value>::new());
    assert_eq!(incidents(&server, "").len(), 1, "one fault, one incident");
    simulator.stop();
    server.stop();
}
