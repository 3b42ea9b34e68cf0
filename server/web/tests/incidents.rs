//! Some of the incidents: by where, when and how bad they are, in the API and on the page; and what the API says of each
//! beside what is wrong.

use gpufleet_analysis::incident::{Incident, State};

use super::*;

/// Makes incidents durable that are over since a minute after they began.
async fn over(server: &Fixture, numbers: std::ops::Range<u128>) {
    let ended = |number| {
        let mut one = crate::notify::fixture::incident(number);
        (one.state, one.resolved_at) = (State::Resolved, Some(one.since.shifted(60_000_000_000)));
        one
    };
    let all: Vec<Incident> = numbers.map(ended).collect();
    let length = Duration::from_secs(15);
    let lease = server.store.acquire_lease("test", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    let written = server.store.write_incidents(&all, &[], token).await;
    written.unwrap();
}

#[tokio::test]
async fn the_api_finds_incidents_by_where_when_and_how_bad_they_are() {
    let server = server().await.with_an_incident().await;
    for (asked, found) in [
        ("node=h100-03", 1),
        ("node=h100-0", 0),
        ("gpu=GPU-prod-h100-03-0005&node=h100-03", 1),
        ("gpu=GPU-other", 0),
        ("run=llama", 0),
        ("severity=warning", 1),
        ("from=2026-09-21T13:00:00Z&to=2026-09-21T14:00:00Z", 1),
        ("to=2026-09-21T13:00:00Z", 0),
    ] {
        let list = server.json(&format!("/api/v1/incidents?{asked}")).await;
        let items = list["items"].as_array().map(Vec::len);
        assert_eq!(items, Some(found), "{asked}: {list}");
    }
}

#[tokio::test]
async fn what_cannot_be_asked_of_incidents_is_refused_with_what_can() {
    let server = server().await;
    for (asked, says) in [
        ("severity=bad", "info, warning or error"),
        ("from=yesterday", "RFC 3339"),
        (
            "from=2026-09-21T14:00:00Z&to=2026-09-21T14:00:00Z",
            "is not before to=",
        ),
        ("family=other", "gpu_fault"),
        ("after=x", "no cursor"),
    ] {
        for address in ["/api/v1/incidents", "/incidents"] {
            let (status, said) = server.get(&format!("{address}?{asked}")).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{address} {asked}");
            assert!(said.contains(says), "{address} {asked}: {said}");
        }
    }
}

#[tokio::test]
async fn the_page_shows_what_is_asked_for_and_an_empty_one_never_says_that_nothing_is_wrong() {
    let server = server().await.with_an_incident().await;
    over(&server, 1..2).await;
    for (asked, says) in [
        ("node=h100-03", "<b>1 open incident</b> is like that."),
        ("node=h100-03", "No incident that is over is like that."),
        ("node=h100-03", "value=\"h100-03\""),
        ("node=node-1", "No open incident is like that."),
        ("node=node-1&severity=error", "XID 79"),
        ("severity=error", "<option value=\"error\" selected>"),
        ("node=nobody", "No incident is like that."),
        ("node=nobody", "<a href=\"/incidents\">Show all</a>"),
        ("to=2026-09-21 13:00", "No incident is like that."),
    ] {
        let address = format!("/incidents?{}", asked.replace(' ', "%20"));
        let (status, page) = server.get(&address).await;
        assert_eq!(status, StatusCode::OK, "{asked}");
        assert!(page.contains(says), "{asked}: {says} is not in {page}");
        assert!(!page.contains("is wrong that is known"), "{asked}: {page}");
    }
    // A form that was sent empty.
    let (_, page) = server.get("/incidents?node=&severity=&from=").await;
    assert!(page.contains("<b>1 incident</b> is open."), "{page}");
    assert!(!page.contains("Show all"), "{page}");
}

#[tokio::test]
async fn the_list_of_those_that_are_over_goes_on_by_a_link() {
    let server = server().await;
    over(&server, 1..56).await;
    let (_, page) = server.get("/incidents").await;
    assert_eq!(page.matches("XID 79").count(), 50, "{page}");
    let (before, _) = page.split_once("\">Older ones</a>").expect("a link");
    let (_, link) = before.rsplit_once("href=\"").expect("a link");
    let link = link.trim_end_matches("#over");
    let (_, page) = server.get(link).await;
    assert_eq!(page.matches("XID 79").count(), 5, "{link}: {page}");
    assert!(!page.contains("Older ones"), "{page}");
}

#[tokio::test]
async fn an_incident_says_whether_it_is_live_whose_it_is_and_which_page_helps() {
    let simulated = Signal {
        place: Place::gpu("demo", "sim-00", "GPU-simulated"),
        ..signal()
    };
    for (signal, origin) in [(signal(), "live"), (simulated, "simulated")] {
        let server = server().await.with(signal).await;
        let one = server.json(&format!("/api/v1/incidents/{INCIDENT}")).await;
        let list = server.json("/api/v1/incidents").await;
        for known in [&one, &list["items"][0]] {
            assert_eq!(known["origin"], origin, "{known}");
            assert_eq!(known["owner"], "unowned", "{known}");
            assert_eq!(known["runbook"], "/runbooks/gpu-lost", "{known}");
        }
        let (_, page) = server.get(&format!("/incidents/{INCIDENT}")).await;
        assert!(page.contains("<dt>Owner</dt><dd>unowned</dd>"), "{page}");
    }
}

#[tokio::test]
async fn the_pages_of_a_node_a_gpu_and_a_job_lead_to_their_own_incidents() {
    let server = server().await.with_an_incident().await;
    let gpu = "GPU-prod-h100-03-0005";
    let of_job = crate::words::text::segment(jobs::JOB);
    for (page, asked, found) in [
        (
            "/clusters/prod/nodes/h100-03".to_owned(),
            "node=h100-03".to_owned(),
            "<b>1 open incident</b> is like that.",
        ),
        (
            format!("/clusters/prod/gpus/{gpu}"),
            format!("gpu={gpu}"),
            "<b>1 open incident</b> is like that.",
        ),
        (
            format!("/clusters/prod/gpus/{GPU}"),
            format!("gpu={GPU}"),
            "No incident is like that.",
        ),
        (
            jobs::address(jobs::JOB),
            format!("run={of_job}"),
            "No incident is like that.",
        ),
    ] {
        let list = format!("/incidents?cluster=prod&{asked}");
        let link = list.replace('&', "&#38;");
        let link = format!("<a href=\"{link}\">All its incidents</a>");
        let (_, text) = server.get(&page).await;
        assert!(text.contains(&link), "{page}: {link} is not in {text}");
        let (_, text) = server.get(&list).await;
        assert!(text.contains(found), "{list}: {text}");
    }
}
