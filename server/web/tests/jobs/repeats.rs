//! Several runs of each of two ways, in the API and on the page.

use super::*;

/// Runs of one rank, each with how long its steps take, milliseconds.
async fn put_runs(server: &Fixture, runs: &[(&str, u64)]) {
    let cluster: Arc<str> = "prod".into();
    let told = [(training::STEPS, 120.0)];
    for (job, millis) in runs {
        let all = server.fleet.runs();
        began(all, &cluster, job);
        for first in (0..120).step_by(10) {
            let mut block = block(first, 600);
            for (times, more) in block.times.iter_mut().zip(0..) {
                times.wall_ns = (millis * 1_000 + more) * 1_000;
            }
            let key = RunKey::of(&cluster, &rank_id(job, 0));
            all.steps(&key, 0, &block, heard(first + 10)).unwrap();
            all.rank(&rank(job, 0, &told), heard(first + 10)).unwrap();
        }
    }
    make_durable(&server.fleet, &server.store).await;
}

/// The names of runs of these jobs, as a link has them.
fn listed(jobs: &[(&str, u64)]) -> String {
    let names: Vec<String> = jobs.iter().map(|it| format!("prod/{}/0", it.0)).collect();
    names.join(",")
}

const A: [(&str, u64); 3] = [
    ("team/way-a/u1", 1_000),
    ("team/way-a/u2", 1_004),
    ("team/way-a/u3", 996),
];
const B: [(&str, u64); 3] = [
    ("team/way-b/u1", 1_100),
    ("team/way-b/u2", 1_120),
    ("team/way-b/u3", 1_110),
];

#[tokio::test]
async fn three_runs_of_each_way_say_which_is_slower_and_the_middle_ones_stand_side_by_side() {
    let server = server().await;
    put_runs(&server, &A).await;
    put_runs(&server, &B).await;
    let (a, b) = (listed(&A), listed(&B));
    let found = server
        .json(&format!("/api/v1/runs/compare?a={a}&b={b}"))
        .await;
    let said = &found["repeats"];
    assert_eq!(said["verdict"], "slower", "{found}");
    // 4 × 1.4826 × 4 ms of 1,000.
    let told_from = said["told_from"].as_f64().unwrap();
    assert!((told_from - 0.0237).abs() < 1e-4, "{told_from}");
    assert_eq!(found["a"]["run"]["job"], A[0].0, "996, 1,000, 1,004 ms");
    assert_eq!(found["b"]["run"]["job"], B[2].0, "1,100, 1,110, 1,120 ms");
    let speed_up = found["speed_up"].as_f64().unwrap();
    assert!((speed_up - 1.0 / 1.11).abs() < 1e-4, "{speed_up}");
    assert_eq!(found["speed_up_uncertainty"], Value::Null);
    let fastest = &said["b"]["runs"][0];
    assert_eq!(fastest["run"]["job"], B[0].0);
    assert_eq!(said["b"]["differ_in"].as_array().unwrap().len(), 0);
    // A form names each run by itself.
    let chosen = |side: &str, jobs: &[(&str, u64)]| {
        let fields = jobs.iter().map(|it| format!("{side}=prod/{}/0", it.0));
        fields.collect::<Vec<_>>().join("&")
    };
    for asked in [
        format!("a={a}&b={b}"),
        format!("{}&{}", chosen("a", &A), chosen("b", &B)),
    ] {
        let (status, page) = server.get(&format!("/compare?{asked}")).await;
        assert_eq!(status, StatusCode::OK);
        assert!(
            page.contains("B is slower: by more than 2.4 %"),
            "{asked}: {page}"
        );
        assert_eq!(page.matches("<td>A</td>").count(), 3, "{page}");
        assert!(page.contains("<td>1.11 s</td>"), "{page}");
        assert_eq!(page.matches(" selected").count(), 6, "{page}");
        assert!(page.contains("<b class=\"failing\">×0.901"), "{page}");
        let fastest_first = listed(&[A[2], A[0], A[1]]);
        let api = format!("/api/v1/runs/compare?a={}", segment(&fastest_first));
        assert!(page.contains(&api), "{page}");
    }
}

#[tokio::test]
async fn what_is_not_told_apart_is_not_marked_as_worse() {
    let server = server().await;
    let b = [
        ("team/way-b/u4", 1_003),
        ("team/way-b/u5", 1_005),
        ("team/way-b/u6", 1_007),
    ];
    put_runs(&server, &A).await;
    put_runs(&server, &b).await;
    for (b, said) in [
        (listed(&b), "B and A are not told apart"),
        (listed(&b[..2]), "that takes three of each"),
    ] {
        let asked = format!("/compare?a={}&b={b}", listed(&A));
        let (_, page) = server.get(&asked).await;
        assert!(page.contains(said), "{page}");
        assert!(page.contains("<b>×0.99"), "{page}");
        assert!(!page.contains("class=\"failing\""), "{page}");
    }
}

#[tokio::test]
async fn fewer_runs_say_nothing_one_run_counts_once_and_too_many_are_refused() {
    let server = server().await;
    put_runs(&server, &A).await;
    put_runs(&server, &B).await;
    let api = async |a: &str, b: &str| {
        let path = format!("/api/v1/runs/compare?a={a}&b={b}");
        server.json(&path).await
    };
    let one = format!("prod/{}/0", A[0].0);
    // A percent sign in a query is written %25.
    let spelled = [
        &one,
        &one.replace("pr", "%2570r"),
        &one.replace("od", "%256Fd"),
    ];
    let thrice = spelled.map(String::as_str).join(",");
    let found = api(&thrice, &listed(&B)).await;
    assert_eq!(found["repeats"]["verdict"], "too_few_runs", "{found}");
    assert_eq!(found["repeats"]["told_from"], Value::Null);
    assert_eq!(found["repeats"]["a"]["runs"].as_array().unwrap().len(), 1);
    let (_, page) = server.get(&format!("/compare?a={thrice}&b={one}")).await;
    assert_eq!(page.matches(" selected").count(), 2, "{page}");
    let found = api(&one, &one).await;
    assert_eq!(found["repeats"], Value::Null);
    let many: Vec<String> = (0..17).map(|it| format!("prod/team/x/u1/{it}")).collect();
    let many = many.join(",");
    for (path, said) in [
        ("/api/v1/runs/compare", "17 runs; at most 16"),
        ("/compare", "At most 16 runs of a side are compared."),
    ] {
        let (status, told) = server.get(&format!("{path}?a={one}&b={many}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        assert!(told.contains(said), "{told}");
    }
}
