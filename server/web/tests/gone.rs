//! A node that the cluster says is gone: once it is not heard any more it is in no count, no cost and no list of what is
//! silent, and has its page.

use gpufleet_analysis::owner::Payer;
use gpufleet_telemetry::identity::{Resource, attribute};

use super::queue::{self, node};
use super::today::dollars;
use super::*;
use crate::auth::Grant;
use crate::inventory::gone_for_ns;
use crate::inventory::known::HOUR_NS;
use crate::money::now;
use crate::words::address;

/// The node of the fixture that is silent.
const SILENT: &str = "h100-08";

/// A server with these at ten dollars a GPU-hour, whose cluster `prod` says that it had the nodes of the fixture and has
/// all of them but one.
async fn without(lives: Vec<Live>, gone: Option<&str>) -> Fixture {
    let mut config = Config::for_tests();
    let card = "NVIDIA H100 80GB HBM3".to_owned();
    config.detect.gpu_hour_usd.insert(card, "10".to_owned());
    config.inventory.source = "kubernetes".to_owned();
    config.inventory.cluster = "prod".to_owned();
    config.inventory.kubernetes_url = "http://127.0.0.1:1".to_owned();
    let server = server_with(config, lives, false).await;
    let names = (0..9).map(|number| format!("h100-{number:02}"));
    let mut nodes: Vec<_> = names.map(|it| node(&it)).collect();
    {
        let mut known = server.inventory.known();
        known.all_nodes(nodes.clone(), queue::NOW);
        nodes.retain(|it| Some(&*it.name) != gone);
        known.all_nodes(nodes, queue::NOW);
    }
    server
}

#[tokio::test]
async fn what_is_not_heard_and_gone_is_no_blind_spot_costs_nothing_and_pages_nobody() {
    for (gone, gpus, silent) in [
        (None, 73_i64, 1_i64),
        (Some(SILENT), 65, 0),
        // The cluster may say what it likes of a node whose agent tells something.
        (Some("h100-07"), 73, 1),
    ] {
        let server = without(fixture::fleet(), gone).await;
        let today = server.json("/api/v1/today").await;
        let live = &today["sections"][0];
        let unobserved = &live["counts"]["by_state"]["unobserved"];
        assert_eq!(
            (&live["counts"]["gpus"], unobserved),
            (&gpus.into(), &(3 + 8 * silent).into()),
            "{gone:?}: {live}"
        );
        assert_eq!(dollars(&live["nano_per_day"]), gpus * 240, "{gone:?}");
        let fleet = server.json("/api/v1/fleet").await;
        assert_eq!(fleet["silent_nodes"], silent, "{gone:?}");
        let doctor = server.json("/api/v1/doctor").await;
        let findings = doctor["findings"].as_array().unwrap();
        let is_found = findings.iter().any(|it| it["id"] == "state-no_sample");
        assert_eq!(is_found, silent > 0, "{gone:?}: {doctor}");
        let (_, metrics) = server.get("/metrics").await;
        for series in [
            format!("nodes{{cluster=\"prod\",origin=\"live\",state=\"silent\"}} {silent}\n"),
            format!(
                "gpus{{cluster=\"prod\",origin=\"live\",state=\"unobserved\"}} {}\n",
                3 + 8 * silent
            ),
        ] {
            assert!(metrics.contains(&series), "{gone:?}: {series}");
        }
        let (_, page) = server.get("/").await;
        let is_blind = page.contains("1 node with 8 GPUs silent");
        assert_eq!(is_blind, silent > 0, "{gone:?}: {page}");
    }
}

#[tokio::test]
async fn what_is_gone_stays_gone_for_as_long_as_the_fleet_knows_its_gpus() {
    const DAY_S: u64 = 86_400;
    for (forget_after, hours, silent) in [(3 * DAY_S, 72, 0), (DAY_S, 25, 0), (DAY_S, 26, 1)] {
        let server = without(fixture::fleet(), Some(SILENT)).await;
        {
            let mut known = server.inventory.known();
            // What is not written yet is never forgotten.
            known.unwritten();
            let later = fixture::NOW.shifted(hours * HOUR_NS);
            known.forget(later, gone_for_ns(forget_after));
        }
        let fleet = server.json("/api/v1/fleet").await;
        assert_eq!(fleet["silent_nodes"], silent, "{forget_after} s: {hours} h");
    }
}

#[tokio::test]
async fn what_is_there_without_its_gpus_is_silent_and_not_gone() {
    let server = without(fixture::fleet(), Some(SILENT)).await;
    server
        .inventory
        .known()
        .node_without_gpus(SILENT, fixture::NOW);
    let fleet = server.json("/api/v1/fleet").await;
    assert_eq!(fleet["silent_nodes"], 1, "{fleet}");
}

#[tokio::test]
async fn a_gone_node_has_its_page_and_what_ran_on_it_its_price() {
    let gpu = "GPU-prod-h100-08-0000";
    for is_gone in [false, true] {
        let server = without(fixture::fleet(), is_gone.then_some(SILENT)).await;
        for (address, gone, mend) in [
            (
                format!("/clusters/prod/nodes/{SILENT}"),
                "The cluster says that it is gone",
                "says what stands in its way",
            ),
            (
                format!("/clusters/prod/gpus/{gpu}"),
                "The cluster says that its node is gone",
                "Look whether the agent on its node runs",
            ),
        ] {
            let (status, page) = server.get(&address).await;
            assert_eq!(status, StatusCode::OK, "{address}");
            assert_eq!(page.contains(gone), is_gone, "{address}: {page}");
            assert_eq!(page.contains(mend), !is_gone, "{address}: {page}");
        }
        let (app, terms) = (&server.app, server.app.money.terms());
        let found = now::walked(app, &terms, &Grant::default(), app.clock.now()).await;
        let known = found.gpu("prod", gpu).expect("it is known");
        assert!(known.second.is_some(), "a run on it cost something");
        assert_eq!(found.all["prod"].contains_key(gpu), !is_gone);
    }
}

#[tokio::test]
async fn the_box_finds_what_is_gone_by_its_whole_name_and_says_that_it_is() {
    let server = without(fixture::fleet(), Some(SILENT)).await;
    let gpu = "GPU-prod-h100-08-0000";
    for (asked, leads) in [
        (SILENT, address::node("prod", SILENT)),
        (gpu, address::gpu("prod", gpu)),
    ] {
        let request = Request::get(format!("/find?q={asked}"));
        let found = server.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(found.status(), StatusCode::SEE_OTHER, "{asked}");
        assert_eq!(found.headers()[header::LOCATION], leads, "{asked}");
    }
    for (gone, about) in [(Some(SILENT), "8 GPUs, gone"), (None, "8 GPUs, silent for")] {
        let server = without(fixture::fleet(), gone).await;
        // A part of its name leads nowhere by itself.
        let (_, page) = server.get("/find?q=100-08").await;
        assert!(page.contains(about), "{about}: {page}");
    }
}

#[tokio::test]
async fn what_nobody_held_when_its_node_went_is_nobodys() {
    let gpu = "GPU-prod-h100-08-0000";
    for is_held in [false, true] {
        let mut lives = fixture::fleet();
        let of = lives.iter_mut().find(|it| *it.key.id == *gpu);
        let of = of.expect("it is in the fixture");
        // Who held it last may still be named.
        let told = Resource::clone(&of.resource);
        of.resource = Arc::new(told.with(attribute::HOLDER, "pod:research/train-7b-0"));
        of.bits.held = match is_held {
            true => of.bits.holder_known,
            false => 0,
        };
        let server = without(lives, Some(SILENT)).await;
        let (app, terms) = (&server.app, server.app.money.terms());
        let found = now::walked(app, &terms, &Grant::default(), app.clock.now()).await;
        let payer = &found.gpu("prod", gpu).expect("it is known").payer;
        assert_eq!(*payer == Payer::Nobody, !is_held, "{payer:?}");
    }
}

#[tokio::test]
async fn a_cluster_whose_nodes_are_all_gone_is_scaled_to_zero_and_not_broken() {
    let mut lives = fixture::fleet();
    lives.retain(|it| *it.node == *SILENT);
    let server = without(lives, Some(SILENT)).await;
    let today = server.json("/api/v1/today").await;
    let live = &today["sections"][0];
    let why = "No node with GPUs is there now: the cluster says that 1 that was there is gone";
    assert_eq!((&live["no_gpus"], &live["nodes"]), (&why.into(), &0.into()));
    let (_, page) = server.get("/").await;
    let says = format!("<p class=\"note\">{why}.</p>");
    assert!(page.contains(&says), "{page}");
    assert!(!page.contains("No agent has reported yet"), "{page}");
}
