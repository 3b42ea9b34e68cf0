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
