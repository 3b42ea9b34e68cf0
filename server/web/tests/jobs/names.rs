//! Jobs that are asked for by name and by how they stand.

use super::*;

/// The ids of the jobs that are answered, the last started first.
async fn ids(server: &Fixture, query: &str) -> Vec<String> {
    let listed = server.json(&format!("/api/v1/jobs?{query}")).await;
    let items = listed["items"].as_array().unwrap().iter();
    items
        .map(|it| it["job"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn jobs_are_found_by_id_by_name_or_both_and_all_that_were_submitted_under_it() {
    let server = server().await;
    let again = "team/dead/u9";
    put_one(&server, again, GPU, false).await;
    for (name, expected) in [
        ("team/dead/u9", &[again][..]),
        ("team/dead", &[again, DEAD]),
        ("dead", &[again, DEAD]),
        ("%253Cb%253Ellama", &[JOB]),
        ("u9", &[]),
        ("team", &[]),
        ("dea", &[]),
        ("/dead", &[]),
        ("dead&cluster=demo", &[]),
        ("dead&cluster=prod&state=running", &[again]),
    ] {
        assert_eq!(
            ids(&server, &format!("name={name}")).await,
            expected,
            "{name}"
        );
    }
}

#[tokio::test]
async fn jobs_are_listed_by_how_they_stand_as_those_who_hear_them_know_it() {
    let server = server().await;
    assert_eq!(ids(&server, "state=running").await, [JOB]);
    assert_eq!(ids(&server, "state=ended").await, [DEAD]);
    assert!(ids(&server, "state=silent").await.is_empty());
    server.pass(3_600);
    assert!(ids(&server, "state=running").await.is_empty());
    assert_eq!(ids(&server, "state=silent").await, [JOB]);
}

/// Whether the page of jobs that are asked for has these two.
async fn shown(server: &Fixture, query: &str) -> [bool; 2] {
    let (status, page) = server.get(&format!("/jobs?{query}")).await;
    assert_eq!(status, StatusCode::OK, "{query}");
    [JOB, DEAD].map(|it| {
        page.contains(&format!(
            "<td data-label=\"Job\"><a href=\"{}\"",
            address(it)
        ))
    })
}

#[tokio::test]
async fn the_page_shows_the_jobs_that_are_asked_for_and_says_where_there_are_none() {
    let server = server().await;
    for (query, expected) in [
        ("", [true, true]),
        ("state=&name=&cluster=&after=", [true, true]),
        ("state=running", [true, false]),
        ("state=ended", [false, true]),
        ("name=dead", [false, true]),
        ("name=team/dead&cluster=prod&state=ended", [false, true]),
    ] {
        assert_eq!(shown(&server, query).await, expected, "{query}");
    }
    let (_, page) = server.get("/jobs?state=ended&name=dead").await;
    for kept in ["<option value=\"ended\" selected>", "value=\"dead\">"] {
        assert!(page.contains(kept), "{kept}: {page}");
    }
    for (query, says) in [
        ("state=silent", "<h2>No job is silent</h2>"),
        ("name=nobody", "<h2>No job called “nobody” is there</h2>"),
        (
            "state=running&cluster=demo",
            "<h2>No job in demo is running</h2>",
        ),
        ("after=0/0", "<h2>No earlier job is there</h2>"),
    ] {
        let (status, page) = server.get(&format!("/jobs?{query}")).await;
        assert_eq!(status, StatusCode::OK, "{query}");
        assert!(page.contains(says), "{query}: {page}");
    }
    for (query, says) in [
        ("state=asleep", "one of running, silent, ended"),
        ("after=nonsense", "no cursor of this list"),
    ] {
        let (status, page) = server.get(&format!("/jobs?{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert!(
            page.contains(says) && page.contains("</html>"),
            "{query}: {page}"
        );
    }
}

#[tokio::test]
async fn a_job_that_runs_is_on_the_page_behind_a_hundred_shorter_ones() {
    let server = server().await;
    let (runs, cluster) = (server.fleet.runs(), Arc::from("prod"));
    let ended = [(attribute::ENDED, "finished")];
    for number in 0..100 {
        let job = format!("team/short/u{number}");
        began(runs, &cluster, &job);
        runs.rank(&rank(&job, 0, &[]), heard(5)).unwrap();
        let ended = event(&job, 0, 20, EventKind::RunEnded, &ended);
        runs.event(&cluster, &ended, heard(21)).unwrap();
    }
    Watch::default()
        .round(runs, &server.store, fixture::NOW)
        .await;
    make_durable(&server.fleet, &server.store).await;
    assert_eq!(shown(&server, "").await, [false, false]);
    assert_eq!(shown(&server, "state=running").await, [true, false]);
    let (_, page) = server.get("/jobs").await;
    let mut links = page.split("href=\"").filter_map(|it| it.split('"').next());
    let older = links
        .find(|it| it.starts_with("/jobs?after="))
        .expect("a page");
    let query = older.trim_start_matches("/jobs?");
    assert_eq!(shown(&server, query).await, [true, true]);
    let (_, page) = server.get(older).await;
    assert!(
        page.contains("<a href=\"/jobs\">The newest ones.</a>"),
        "{page}"
    );
}
