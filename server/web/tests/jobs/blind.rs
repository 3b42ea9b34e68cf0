//! The page and the API of a job whose steps do not say what of them is waiting for others.

use super::*;

/// A job of four ranks whose steps are all the time of their own.
async fn put_blind(server: &Fixture, job: &str) {
    let runs = server.fleet.runs();
    let cluster: Arc<str> = "prod".into();
    began(runs, &cluster, job);
    let told = [
        (training::STEPS, 120.0),
        (training::STEP_WALL, 120.0),
        (training::STEP_COMMUNICATION_WAIT, 0.0),
    ];
    let mut watch = Watch::default();
    for first in (0..120).step_by(10) {
        for number in 0..4 {
            let mut live = rank(job, number, &told);
            let resource = Resource::clone(&live.resource)
                .with(named::WORLD, "4")
                .with(named::MESH, format!("dp={number}/4"));
            live.resource = Arc::new(resource);
            let key = RunKey::of(&cluster, &rank_id(job, number));
            runs.steps(&key, number, &block(first, 900), heard(first + 10))
                .unwrap();
            runs.rank(&live, heard(first + 10)).unwrap();
        }
        watch.round(runs, &server.store, at(first + 10)).await;
    }
    make_durable(&server.fleet, &server.store).await;
}

#[tokio::test]
async fn who_is_slow_is_not_known_of_a_job_that_tells_no_waits_and_its_page_says_what_would_tell() {
    let server = server().await;
    let job = "team/blind/u6";
    put_blind(&server, job).await;
    let (_, page) = server.get(&address(job)).await;
    for said in [
        "<a class=\"missing\" href=\"/health#collectives\">Who is slow is not known: no step says what of it is waiting for other ranks",
        "our NCCL plugin, would tell (docs/collectives.md).",
        "All ranks look alike here, because no step says what of it is waiting for other ranks.",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    for wrong in ["No rank is slower", "take equally long"] {
        assert!(!page.contains(wrong), "{wrong}: {page}");
    }
    let run = format!("/api/v1/runs/prod/{}/0", segment(job));
    let found = server.json(&run).await;
    let why = found["not_judged"].as_str().expect("it says why");
    assert!(why.starts_with("no step says what of it"), "{why}");
}
