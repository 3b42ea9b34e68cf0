//! Jobs in the order of what they cost, of their MFU and of their GPUs.

use super::worth::put_stored;
use super::*;
use crate::runs::RunFacts;

const SLOW: &str = "team/slow/u4";

/// One of which nothing is known but that it began.
const LATE: &str = "team/late/u8";

/// One that the store alone knows any more, with the most ranks of all.
const OLD: &str = "team/old/u7";

/// A server that knows what a GPU costs, with five jobs.
async fn of_five() -> Fixture {
    let mut config = Config::for_tests();
    let card = "NVIDIA H100 80GB HBM3".to_owned();
    config.detect.gpu_hour_usd.insert(card, "10".to_owned());
    let server = server_with(config, fixture::fleet(), false).await;
    put_one(&server, SLOW, GPU, false).await;
    let (runs, cluster) = (server.fleet.runs(), Arc::from("prod"));
    began(runs, &cluster, LATE);
    runs.rank(&rank(LATE, 0, &[]), heard(5)).unwrap();
    make_durable(&server.fleet, &server.store).await;
    let facts = RunFacts {
        started: Some(at(-60)),
        heard: at(60),
        ended: Some(at(60)),
        world: 512,
        ..RunFacts::default()
    };
    put_stored(&server, OLD, facts).await;
    server
}

/// The jobs that are answered where a page has one at most.
async fn one_a_page(server: &Fixture, query: &str) -> Vec<String> {
    let first = format!("/api/v1/jobs?limit=1&{query}");
    let (mut found, mut address) = (Vec::new(), first.clone());
    loop {
        let page = server.json(&address).await;
        let items = page["items"].as_array().unwrap().iter();
        found.extend(items.map(|it| it["job"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else {
            return found;
        };
        address = format!("{first}&after={}", segment(next));
    }
}

#[tokio::test]
async fn jobs_come_in_the_order_of_a_figure_and_those_without_it_last_page_by_page_each_once() {
    let server = of_five().await;
    for (query, expected) in [
        ("", &[LATE, SLOW, DEAD, JOB, OLD][..]),
        ("sort=started", &[LATE, SLOW, DEAD, JOB, OLD]),
        ("sort=cost", &[JOB, SLOW, LATE, DEAD, OLD]),
        ("sort=mfu", &[SLOW, LATE, DEAD, JOB, OLD]),
        ("sort=cost&state=running", &[JOB, SLOW]),
        ("sort=cost&name=slow", &[SLOW]),
        ("sort=cost&name=old", &[OLD]),
        ("sort=cost&cluster=demo", &[]),
    ] {
        assert_eq!(one_a_page(&server, query).await, expected, "{query}");
    }
    let by_gpus = one_a_page(&server, "sort=gpus").await;
    assert_eq!((by_gpus[0].as_str(), by_gpus[4].as_str()), (JOB, OLD));
    // All of them are one page as well, of which there is no next one.
    let all = server.json("/api/v1/jobs?sort=mfu").await;
    assert_eq!(all["items"].as_array().unwrap().len(), 5);
    assert_eq!(all["next"], Value::Null);
}

#[tokio::test]
async fn the_pages_of_a_list_are_of_one_look_for_a_minute() {
    let server = of_five().await;
    let first = server.json("/api/v1/jobs?sort=cost&limit=1").await;
    let next = segment(first["next"].as_str().unwrap());
    let next = format!("/api/v1/jobs?sort=cost&limit=1&after={next}");
    let looked = |page: &Value| page["items"][0]["figures_at"].clone();
    server.pass(50);
    // Another begins to be read meanwhile, of newer figures.
    let newer = looked(&server.json("/api/v1/jobs?sort=cost&limit=1").await);
    assert_ne!(newer, looked(&first));
    let second = server.json(&next).await;
    assert_eq!(second["items"][0]["job"], SLOW);
    assert_eq!(looked(&second), looked(&first));
    server.pass(50);
    let late = server.json(&next).await;
    assert_ne!(looked(&late), looked(&first));
}

#[tokio::test]
async fn the_pages_of_a_list_are_of_one_look_however_many_others_read_theirs() {
    let mut server = of_five().await;
    let folder = tempfile::tempdir().unwrap();
    // Who sees all, and as many as looks are kept of each who see a cluster of their own.
    let bound = (0..8).map(|it| Some(format!("other-{it}")));
    let readers = [None].into_iter().chain(bound).enumerate();
    let tokens = readers.map(|(number, cluster)| {
        let file = folder.path().join(number.to_string());
        std::fs::write(&file, format!("{TOKEN}-{number}")).unwrap();
        TokenFile {
            role: Role::Read,
            file: file.display().to_string(),
            cluster,
        }
    });
    let auth = AuthConfig {
        tokens: tokens.collect(),
        ..AuthConfig::default()
    };
    server.router = crate::web::router(App {
        access: Arc::new(Access::load(&auth).unwrap()),
        ..server.app.clone()
    });
    let ask = async |reader: usize, address: &str| {
        let token = format!("Bearer {TOKEN}-{reader}");
        let request = Request::get(address).header(header::AUTHORIZATION, token);
        let answer = server.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::OK, "{reader}: {address}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    let list = "/api/v1/jobs?sort=cost&limit=1";
    let first = ask(0, list).await;
    server.pass(50);
    for reader in 1..=8 {
        ask(reader, list).await;
    }
    let next = segment(first["next"].as_str().unwrap());
    let second = ask(0, &format!("{list}&after={next}")).await;
    let looked = |page: &Value| page["items"][0]["figures_at"].clone();
    assert!(looked(&first).is_string(), "{first}");
    assert_eq!(looked(&second), looked(&first));
}

#[tokio::test]
async fn heads_of_the_table_lead_to_the_same_jobs_in_another_order_and_say_in_which_they_are() {
    let server = of_five().await;
    let (status, page) = server.get("/jobs?state=running&sort=mfu").await;
    assert_eq!(status, StatusCode::OK);
    for says in [
        "<th scope=\"col\" aria-sort=\"ascending\"><a href=\"/jobs?state=running&#38;sort=mfu\" title=\"the worst MFU first\">MFU</a> <span aria-hidden=\"true\">↑</span></th>",
        "<th scope=\"col\"><a href=\"/jobs?state=running&#38;sort=cost\" title=\"the dearest attempt first\">Cost of the attempt</a></th>",
        "<th scope=\"col\"><a href=\"/jobs?state=running\" title=\"the last started first\">Started (UTC)</a></th>",
        "<option value=\"mfu\" selected>",
        "each by its last attempt, the worst MFU first.",
        "Jobs without that figure come last",
    ] {
        assert!(page.contains(says), "{says}: {page}");
    }
    assert_eq!(page.matches("aria-sort").count(), 1, "{page}");
    let place = |job| page.find(&format!("<a href=\"{}\"", address(job)));
    assert!(place(SLOW).is_some() && place(SLOW) < place(JOB), "{page}");
    assert_eq!(place(DEAD), None);
    let (_, page) = server.get("/jobs?sort=started").await;
    let started = "<th scope=\"col\" aria-sort=\"descending\"><a href=\"/jobs\"";
    assert!(page.contains(started), "{page}");
    assert!(!page.contains("without that figure"), "{page}");
    let (status, page) = server.get("/jobs?sort=colour").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(page.contains("one of started, cost, mfu, gpus"), "{page}");
}
