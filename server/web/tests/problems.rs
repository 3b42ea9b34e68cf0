//! What pages say when something is away: what happened, since when, what to do, what still holds.

use super::errors::breaking;
use super::*;

/// The renewal of the right to write, as it goes.
async fn renewed(server: &Fixture, went: Result<(), &'static str>) {
    let job = server.app.jobs.of("lease");
    job.round(server.app.clock.as_ref(), async { went }).await;
}

/// What stands under a heading of a problem's page.
fn under<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page
        .split_once(&format!("<dt>{heading}</dt>"))
        .unwrap_or_else(|| panic!("{heading} is not in {page}"));
    rest.split("<dt>").next().unwrap_or_default()
}

const BANNER: &str = "The database takes nothing";

#[tokio::test]
async fn every_page_says_since_when_the_database_takes_nothing_and_no_page_when_it_does() {
    let server = server().await.with_an_incident().await;
    let gpu = format!("/clusters/prod/gpus/{GPU}");
    let pages = [
        "/",
        "/fleet",
        "/queue",
        "/incidents",
        "/jobs",
        "/cost",
        "/health",
        "/settings",
        gpu.as_str(),
        "/clusters/prod/nodes/h100-00",
        "/runbooks/server-stuck",
    ];
    for went in [Ok(()), Err("the disk is full"), Ok(())] {
        renewed(&server, went).await;
        // The pages' pictures of the fleet are made anew.
        server.pass(60);
        for address in pages {
            let (status, page) = server.get(address).await;
            assert_eq!(status, StatusCode::OK, "{address}");
            let said = page.split_once(BANNER).map(|it| it.1);
            assert_eq!(said.is_some(), went.is_err(), "{address}: {page}");
            let Some(said) = said else { continue };
            assert!(said.contains("UTC, 2 min ago"), "{address}: {said}");
            assert!(said.contains("/runbooks/server-stuck"), "{address}: {said}");
            assert!(!page.contains("the disk is full"), "that is the log's");
        }
    }
}

#[tokio::test]
async fn detectors_that_stand_are_said_on_every_page_and_no_list_is_called_empty() {
    let server = server().await;
    let stand = "The detectors judge nothing";
    let (_, page) = server.get("/incidents").await;
    assert!(page.contains("Nothing is wrong that is known"), "{page}");
    // They have 90 s for their first tick, and for each after it.
    for (seconds, judges, since, moment) in [
        (90, false, None, None),
        (
            1,
            false,
            Some("since this server started"),
            Some("2026-09-21T14:14:10.000Z"),
        ),
        (60, true, None, None),
        (
            91,
            false,
            Some("since 2026-09-21 14:16:41 UTC, 1 min 31 s ago"),
            Some("2026-09-21T14:16:41.000Z"),
        ),
    ] {
        server.pass(seconds);
        if judges {
            let moment = (server.app.clock.now(), server.app.clock.monotonic());
            server.incidents.health.note(moment, Duration::ZERO, 8);
        }
        for address in ["/", "/fleet", "/incidents", "/jobs", "/runbooks"] {
            let (status, page) = server.get(address).await;
            assert_eq!(status, StatusCode::OK, "{address}");
            let said = page.split_once(stand).map(|it| it.1);
            assert_eq!(said.is_some(), since.is_some(), "{address}: {page}");
            if let Some((said, since)) = said.zip(since) {
                assert!(said.contains(since), "{address}: {said}");
            }
        }
        let (_, list) = server.get("/incidents").await;
        let is_well = list.contains("Nothing is wrong that is known");
        assert_eq!(is_well, since.is_none(), "{list}");
        let (_, today) = server.get("/").await;
        assert_eq!(today.contains("none open"), since.is_none(), "{today}");
        let unknown = "<dt>Incidents</dt><dd class=\"missing\"><a href=\"/health#detectors\">";
        assert_eq!(today.contains(unknown), since.is_some(), "{today}");
        for address in ["/api/v1/incidents?state=open", "/api/v1/today"] {
            let answer = server.json(address).await;
            let said = answer.get("detectors_stand_since").map(Value::as_str);
            assert_eq!(said, Some(moment), "{address}: {answer}");
        }
        let health = server.json("/api/v1/health").await;
        let mut warnings = health["warnings"].as_array().unwrap().iter();
        let is_warned = warnings.any(|it| {
            let said = it.as_str().unwrap();
            said.starts_with("the detectors have judged nothing for 91 s")
        });
        assert_eq!(is_warned, since.is_some(), "{health}");
    }
    let server = server.with_an_incident().await;
    // What today says is given for half a minute while it is made anew.
    server.pass(31);
    let (_, page) = server.get("/incidents").await;
    assert!(page.contains("<b>1 incident</b> is open"), "{page}");
    let (_, today) = server.get("/").await;
    for said in ["1 open<small>", "what broke since is not known"] {
        assert!(today.contains(said), "{said}: {today}");
    }
}

#[tokio::test]
async fn a_page_made_of_the_past_says_when_the_store_last_answered_and_what_still_holds() {
    let server = server().await;
    let since = async || {
        let (status, page) = server.get("/compare").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            page.contains("<h1>The store does not answer</h1>"),
            "{page}"
        );
        assert!(page.contains("href=\"/compare\">Try again"), "{page}");
        assert!(!page.contains(BANNER), "once is enough: {page}");
        assert!(under(&page, "What to do").contains("runbook"), "{page}");
        assert!(under(&page, "What still holds").contains("live"), "{page}");
        under(&page, "Since when").to_owned()
    };
    server.store.close().await;
    let said = since().await;
    assert!(
        said.contains("Not known: it did not answer this page"),
        "{said}"
    );
    renewed(&server, Ok(())).await;
    server.pass(5);
    let said = since().await;
    assert!(
        said.contains("last took something at") && said.contains("5 s ago"),
        "{said}"
    );
    renewed(&server, Err("gone")).await;
    server.pass(60);
    let said = since().await;
    assert!(
        said.contains("It takes nothing since") && said.contains("1 min 5 s ago"),
        "{said}"
    );
}

#[tokio::test]
async fn a_standby_says_since_when_it_waits_and_leads_to_no_other_host() {
    let mut standby = server().await;
    standby.router = super::super::router(App {
        lead: Arc::default(),
        ..standby.app.clone()
    });
    let (status, page) = standby.get("/fleet?state=free").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        page.contains("href=\"/fleet?state=free\">Try again"),
        "{page}"
    );
    assert!(under(&page, "What to do").contains("/readyz"), "{page}");
    assert!(
        under(&page, "What still holds").contains("send it to the one that leads"),
        "{page}"
    );
    assert!(
        !page.contains("Since when"),
        "it has not asked for the lead yet: {page}"
    );
    let (_, page) = standby.get("//evil.example/").await;
    assert!(!page.contains("href=\"//"), "{page}");
}

#[tokio::test]
async fn what_takes_too_long_or_breaks_says_when_it_was_asked_and_offers_it_again_unless_it_was_sent()
 {
    let server = breaking().await;
    tokio::time::pause();
    for (path, status, says) in [("/x/hangs", 503, "Ask for less"), ("/x/breaks", 500, "log")] {
        let (answered, page) = server.get(path).await;
        assert_eq!(answered, status, "{page}");
        assert!(
            under(&page, "Since when").contains("This was asked at"),
            "{page}"
        );
        assert!(under(&page, "What to do").contains(says), "{page}");
        assert!(
            under(&page, "What still holds").contains("taken and judged"),
            "{page}"
        );
        assert!(
            page.contains(&format!("href=\"{path}\">Try again")),
            "{page}"
        );
    }
    let request = Request::builder().method("POST").uri("/incidents/x/say");
    let long = "x".repeat(super::super::MAX_BODY_BYTES + 1);
    let response = server.ask(request.body(Body::from(long)).unwrap()).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(!String::from_utf8_lossy(&body).contains("Try again"));
}

#[tokio::test]
async fn a_job_that_only_the_store_knows_is_no_fault_of_the_server_where_it_does_not_answer() {
    let server = server().await;
    server.store.close().await;
    for address in [
        "/clusters/prod/jobs/team%2Fold%2Fu9",
        "/clusters/prod/jobs/team%2Fold%2Fu9/3",
        "/clusters/prod/ladders/fp8%20%26%20more",
    ] {
        let (status, page) = server.get(address).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{address}");
        let title = "<h1>The store does not answer</h1>";
        assert!(page.contains(title), "{address}: {page}");
        assert!(page.contains("aria-label=\"Main\""), "{address}: no frame");
    }
}

#[tokio::test]
async fn what_is_not_there_says_where_else_to_look() {
    let server = server().await;
    let (_, page) = server.get("/clusters/prod/gpus/GPU-none").await;
    let todo = under(&page, "What to do");
    assert!(todo.contains("by a part of its name"), "{page}");
    for way in ["/fleet", "/jobs", "/incidents", "/api"] {
        assert!(
            page.contains(&format!("<li><a href=\"{way}\">")),
            "{way}: {page}"
        );
    }
}
