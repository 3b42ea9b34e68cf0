//! Whose jobs are, how well they use their GPUs and what that costs, in the lists of them.

use super::*;
use crate::runs::{KnownRun, RunFacts};
use crate::store::model::Commit;

/// A job as the API lists it.
async fn listed(server: &Fixture, job: &str) -> Value {
    let all = server.json("/api/v1/jobs").await;
    let items = all["items"].as_array().unwrap();
    let found = items.iter().find(|it| it["job"] == job);
    found.expect("it is listed").clone()
}

/// Tells the store alone of a job.
pub(super) async fn put_stored(server: &Fixture, job: &str, facts: RunFacts) {
    let commit = Commit {
        number: 5_000,
        runs: vec![KnownRun {
            key: RunKey::of(&"prod".into(), &rank_id(job, 0)),
            facts,
            ranks: Vec::new(),
            is_part: false,
        }],
        ..Commit::default()
    };
    let length = Duration::from_secs(30);
    let lease = server.store.acquire_lease("tests", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    server.store.commit(&commit, token).await.unwrap();
}

#[tokio::test]
async fn the_list_says_whose_a_job_is_how_well_it_uses_its_gpus_and_what_they_cost() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("owners.csv");
    let rules = "from,until,kind,key,value,team\n2020-01-01,,namespace,,research,science\n\
                 2020-01-01,,namespace,,team,builders\n";
    std::fs::write(&table, rules).unwrap();
    let mut config = Config::for_tests();
    config.cost.tables = vec![table.display().to_string()];
    let card = "NVIDIA H100 80GB HBM3".to_owned();
    config.detect.gpu_hour_usd.insert(card, "10".to_owned());
    let server = server_with(config, fixture::fleet(), false).await;
    put_one(&server, "team/slow/u4", GPU, false).await;
    let slow = listed(&server, "team/slow/u4").await;
    // Who holds the GPU says whose the job is, and not the job's own name.
    assert_eq!(
        (&slow["owner"], &slow["gpus"]),
        (&"science".into(), &1.into())
    );
    let value = |of: &str| slow[of]["value"].as_f64().unwrap_or(f64::NAN);
    assert!((value("mfu_ratio") - 0.2).abs() < 1e-6, "{slow}");
    assert!((value("usd_per_hour") - 10.0).abs() < 1e-4, "{slow}");
    let so_far = 10.0 * AGE as f64 / 3_600.0;
    assert!(
        (value("cost_of_attempt_usd") - so_far).abs() < 1e-4,
        "{slow}"
    );
    assert_eq!(slow["currency"], "USD");
    // Eight ranks of which one says on which GPU it computes.
    let job = listed(&server, JOB).await;
    assert_eq!(job["gpus"], 8, "{job}");
    assert_eq!(
        job["mfu_ratio"]["missing"],
        "not said: the run gives no FLOPs"
    );
    let dead = listed(&server, DEAD).await;
    assert_eq!(dead["owner"], "builders", "a rule knows its namespace");
    assert_eq!(dead["usd_per_hour"]["missing"], "it does not run");
    assert!(dead["cost_of_attempt_usd"]["missing"].is_string(), "{dead}");
    let (_, page) = server.get("/jobs").await;
    let rows = page
        .split("<tr>")
        .filter(|it| it.contains(&address("team/slow/u4")));
    let row = rows.collect::<String>();
    for cell in [
        "<td data-label=\"Team\">science</td>",
        "<td data-label=\"GPUs\">1<br>",
        "<td data-label=\"MFU\">20.0 %</td>",
        "<td data-label=\"Cost\">$10.00 an hour<br>$0.36 so far</td>",
    ] {
        assert!(row.contains(cell), "{cell}: {row}");
    }
}

#[tokio::test]
async fn what_is_not_known_of_a_job_is_never_a_figure_and_one_that_left_the_memory_has_its_page() {
    let server = server().await;
    let job = listed(&server, JOB).await;
    for figure in ["usd_per_hour", "cost_of_attempt_usd"] {
        let missing = job[figure]["missing"].as_str().unwrap_or_default();
        assert!(missing.starts_with("no price: `"), "{figure}: {job}");
    }
    assert_eq!(job["owner"], "unowned", "somebody holds its GPU");
    assert_eq!(listed(&server, DEAD).await["owner"], Value::Null);
    let (_, page) = server.get("/jobs").await;
    let says = "<td data-label=\"Cost\"><a class=\"missing\" href=\"/health#prices\">no price: `";
    assert!(page.contains(says), "{page}");
    assert_eq!(page.matches("on its page</a>").count(), 0, "{page}");
    // One that the store alone knows any more.
    let old = "team/old/u7";
    let facts = RunFacts {
        started: Some(at(0)),
        heard: at(60),
        ended: Some(at(60)),
        world: 16,
        ..RunFacts::default()
    };
    put_stored(&server, old, facts).await;
    let told = listed(&server, old).await;
    for figure in ["mfu_ratio", "usd_per_hour", "cost_of_attempt_usd"] {
        let missing = told[figure]["missing"].as_str().unwrap_or_default();
        assert!(missing.starts_with("on its page: "), "{figure}: {told}");
    }
    assert_eq!(told["gpus"], 16, "one for each rank");
    let (_, page) = server.get("/jobs").await;
    for cell in ["MFU", "Cost"] {
        let address = address(old);
        let link = format!("<td data-label=\"{cell}\"><a href=\"{address}\">on its page</a>");
        assert!(page.contains(&link), "{cell}: {page}");
    }
}
