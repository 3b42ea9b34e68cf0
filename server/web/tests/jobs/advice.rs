//! What limits a job, by what it, its GPUs and its place in a mesh tell.

use gpufleet_analysis::adviser::{Bottleneck, advise};
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::gpu_specs::Specs;

use super::*;
use crate::runs::advice::profile;

/// The fleet, one card of which has one reading more.
fn fleet_with(metric: Metric, value: f64) -> Vec<Live> {
    let mut lives = fixture::fleet();
    let card = lives.iter_mut().find(|it| &*it.key.id == GPU);
    let card = card.expect("it is in the fleet");
    card.values.push(LiveValue {
        metric: metric.id,
        part: None,
        reading: Ok(value),
        max: None,
        at: card.last_point,
    });
    card.values.sort_by_key(|it| it.metric);
    lives
}

#[tokio::test]
async fn a_pipeline_on_cards_whose_memory_is_busy_is_told_of_both() {
    let lives = fleet_with(gpu::DRAM_ACTIVE, 0.8);
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

/// The address of a job's first attempt in the API.
fn run_of(job: &str) -> String {
    format!("/api/v1/runs/prod/{}/0", segment(job))
}

/// A profile of the job says that its GPU stands still for synchronisations.
fn profiled(server: &Fixture) {
    let told = [
        (training::STEPS, 120.0),
        (training::PROFILE_STEP, 100.0),
        (training::PROFILE_STEPS, 3.0),
        (training::PROFILE_GAP_DATA, 0.1),
        (training::PROFILE_GAP_SYNCHRONISATION, 0.2),
        (training::PROFILE_GAP_LAUNCH, 0.0),
        (training::PROFILE_SYNCHRONISATIONS, 12.0),
        (training::PROFILE_KERNELS, 4_300.0),
        (training::PROFILE_GAP_HOST, 0.0),
    ];
    let runs = server.fleet.runs();
    runs.rank(&rank(JOB, 0, &told), heard(AGE)).unwrap();
}

#[tokio::test]
async fn gpus_that_stand_still_are_told_until_a_profile_says_why() {
    // Of each second a tenth is waited for data.
    let server = server_of(fleet_with(gpu::GRAPHICS_ACTIVE, 0.68), false).await;
    let asked = run_of(JOB);
    let said = "The GPUs stand still for 22 % of the time";
    let found = server.json(&asked).await;
    let told = found["unexplained_gaps"].as_str();
    assert!(told.is_some_and(|it| it.starts_with(said)), "{found}");
    let (_, page) = server.get(&address(JOB)).await;
    assert!(page.contains(said), "{page}");
    profiled(&server);
    let found = server.json(&asked).await;
    assert_eq!(found["unexplained_gaps"], Value::Null);
    let (_, page) = server.get(&address(JOB)).await;
    assert!(!page.contains(said), "{page}");
    for said in ["profile of steps 101 to 103", "12 a step"] {
        assert!(page.contains(said), "{said}: {page}");
    }
}

#[tokio::test]
async fn the_api_advises_what_the_page_does() {
    let server = server_of(fleet_with(gpu::GRAPHICS_ACTIVE, 0.68), false).await;
    profiled(&server);
    // It waits for data with as many workers as CPUs, and does not pin its batches.
    let set_up = [(
        attribute::FINGERPRINT,
        "cpus=8\ncpus.ranks=8\nloader.num_workers=8\nloader.pin_memory=False\n",
    )];
    let told = event(JOB, 0, 60, EventKind::FingerprintChanged, &set_up);
    let runs = server.fleet.runs();
    runs.event(&"prod".into(), &told, heard(AGE)).unwrap();
    let found = server.json(&run_of(JOB)).await;
    let (_, page) = server.get(&address(JOB)).await;
    let page = page.replace("&#39;", "'");
    assert_eq!(found["advice_missing"], Value::Null);
    let all = found["advice"].as_array().expect("it runs");
    let limits: Vec<_> = all.iter().map(|it| it["limit"].as_str()).collect();
    assert!(limits.contains(&Some("host_sync")), "{found}");
    assert_eq!(limits.last(), Some(&Some("data_not_pinned")), "{found}");
    for advice in all {
        let [gain, removed] = ["gain", "removed"].map(|it| advice[it].as_f64());
        let hours = advice["gpu_hours_per_day"].as_f64();
        let gain = match gain.zip(removed) {
            Some((gain, removed)) => {
                assert!((gain * (1.0 - removed) - 1.0).abs() < 1e-9, "{advice}");
                assert!(hours > Some(0.0), "{advice}");
                format!("{gain:.2} × as fast")
            }
            None => {
                assert_eq!(advice["limit"], "data_not_pinned");
                assert_eq!((gain, removed, hours), (None, None, None), "{advice}");
                let why = advice["gain_missing"].as_str();
                format!("unknown: {}", why.expect("why it is not known"))
            }
        };
        assert!(page.contains(&gain), "{gain}: {page}");
        let name = &advice["knob"]["name"];
        let said = ["what", "measured", "worth", "confidence"].map(|it| &advice[it]);
        for said in said.into_iter().chain([name, &advice["knob"]["proposed"]]) {
            let said = said.as_str().expect("a text");
            assert!(page.contains(said), "{said}: {page}");
        }
        // Its cards have no price.
        assert_eq!(advice["usd_per_day"], Value::Null);
    }
    let together = found["advice_together"].as_f64();
    assert_eq!(together.is_some(), all.len() > 2, "{found}");
    let together = together.map(|it| format!("All of it together: {it:.2} × as fast"));
    assert_eq!(
        together.is_some_and(|it| page.contains(&it)),
        page.contains("All of it together")
    );
}

#[tokio::test]
async fn of_a_run_that_does_not_go_on_nothing_is_advised_and_it_is_said_why() {
    let server = server().await;
    let running = server.json(&run_of(JOB)).await;
    assert!(running["advice"].is_array(), "{running}");
    server.pass(3_600);
    for (job, why) in [(DEAD, "it has ended"), (JOB, "nothing is heard of it")] {
        let found = server.json(&run_of(job)).await;
        assert_eq!(found["advice"], Value::Null);
        assert_eq!(found["advice_missing"], why);
        let (_, page) = server.get(&address(job)).await;
        assert!(!page.contains("What would make it faster"), "{page}");
    }
}
