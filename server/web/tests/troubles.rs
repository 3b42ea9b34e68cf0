//! What is wrong with a run, on the pages of the run, of what it runs on, and of the incident.

use super::jobs::{DEAD, JOB, address};
use gpufleet_analysis::straggler::Confidence;

use super::*;
use crate::words::text;

/// The slow rank as an incident, with more to do than a name has letters.
fn slow_rank() -> Signal {
    Signal {
        family: Family::Straggler,
        place: Place {
            run: Some(format!("{JOB}/0")),
            rank: Some(3),
            ..Place::gpu("prod", "h100-00", GPU)
        },
        severity: Severity::Warning,
        what: "makes the other ranks wait".to_owned(),
        action: "Look at the node's cooling and power; have the scheduler avoid it meanwhile."
            .to_owned(),
        remedy: Remedy::Look,
        cause: Cause::Heat,
        ..signal()
    }
}

#[tokio::test]
async fn the_sentence_of_a_slow_job_says_why_and_what_it_costs_beside_its_incident() {
    let server = server().await.with(slow_rank()).await;
    let why = "and makes the others wait, because of heat; that costs $36.00/h, $36.00 so far.";
    let (_, page) = server.get(&address(JOB)).await;
    assert!(page.contains(why), "{page}");
    assert!(page.contains(&format!("href=\"/incidents/{INCIDENT}\"")));
    let (_, list) = server.get("/jobs").await;
    assert!(list.contains(why), "{list}");
    let (_, other) = server.get(&address(DEAD)).await;
    assert!(!other.contains(INCIDENT) && !other.contains("$36.00"));
}

#[tokio::test]
async fn a_server_that_reckons_in_euros_says_dollars_nowhere() {
    let mut config = Config::for_tests();
    config.cost.currency = "EUR".to_owned();
    let card = "NVIDIA H100 80GB HBM3".to_owned();
    config.detect.gpu_hour_usd.insert(card, "10".to_owned());
    let server = server_with(config, fixture::fleet(), false).await;
    let server = server.with(slow_rank()).await;
    let own = format!("/incidents/{INCIDENT}");
    let job = address(JOB);
    for page in ["/", "/cost", "/fleet", "/jobs", &job, "/incidents", &own] {
        let (status, body) = server.get(page).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        assert!(body.contains(" EUR"), "{page}: {body}");
        let mut behind = body.split('$').skip(1);
        let is_dollars = behind.any(|it| it.starts_with(|it: char| it.is_ascii_digit()));
        assert!(!is_dollars, "{page}: {body}");
    }
    let (_, page) = server.get(&job).await;
    for said in [
        "that costs 36.00 EUR/h, 36.00 EUR so far.",
        "0.0222 EUR",
        "0.6782 EUR a million tokens",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    let run = format!("/api/v1/runs/prod/{}/0", text::segment(JOB));
    for place in [run, format!("/api/v1{own}")] {
        assert_eq!(server.json(&place).await["currency"], "EUR", "{place}");
    }
}

#[tokio::test]
async fn how_sure_an_incident_is_stands_on_its_page_and_in_the_api() {
    for confidence in [None, Some(Confidence::Medium)] {
        let signal = Signal {
            confidence,
            ..slow_rank()
        };
        let server = server().await.with(signal).await;
        let (_, page) = server.get(&format!("/incidents/{INCIDENT}")).await;
        let is_told = page.contains("<dt>Confidence</dt><dd>medium</dd>");
        assert_eq!(is_told, confidence.is_some(), "{page}");
        let (_, known) = server.get(&format!("/api/v1/incidents/{INCIDENT}")).await;
        let known: serde_json::Value = serde_json::from_str(&known).expect("JSON");
        let expected = confidence.map(|_| "medium");
        assert_eq!(known["confidence"].as_str(), expected, "{known}");
    }
}

#[tokio::test]
async fn a_run_that_became_slower_says_on_its_incidents_page_what_changed() {
    let changed = Reading::new("waiting for I/O", 0.45, Some(0.03), Unit::Ratio);
    let signal = Signal {
        family: Family::Slower,
        cause: Cause::Storage,
        readings: vec![changed],
        ..slow_rank()
    };
    let server = server().await.with(signal).await;
    let (_, page) = server.get(&format!("/incidents/{INCIDENT}")).await;
    let why = "<dt>Cause</dt><dd>storage: waiting for I/O 45 % (before 3.0 %)</dd>";
    assert!(page.contains(why), "{page}");
}

#[tokio::test]
async fn what_is_wrong_with_a_jobs_numbers_or_memory_is_not_told_as_why_it_is_slow() {
    for family in [Family::Training, Family::Leak] {
        let other = Signal {
            family,
            cause: Cause::Program,
            ..slow_rank()
        };
        let server = server().await.with(other).await;
        let (_, page) = server.get(&address(JOB)).await;
        assert!(page.contains("and makes the others wait."), "{page}");
        assert!(page.contains(&format!("href=\"/incidents/{INCIDENT}\"")));
    }
}

#[tokio::test]
async fn what_had_no_price_for_a_while_costs_at_least_what_is_known() {
    let unpriced = Signal {
        price: Price::of(Basis::BrokenGpu, Losing::gpus(1, None)),
        ..slow_rank()
    };
    let server = server().await.with(unpriced).await;
    // From the first of them on it has a price.
    for hours in [1, 2] {
        let tick = Tick {
            now: fixture::NOW.shifted(hours * 3_600_000_000_000),
            signals: vec![slow_rank()],
            is_heard: &|_, _| true,
            in_its_place: &|_, _| None,
            is_forgotten: &|_, _| false,
            quiet_runs: &BTreeSet::new(),
            nodes: &BTreeMap::new(),
            runs: &Default::default(),
        };
        server.incidents.tick(tick, &mut uuid::Uuid::now_v7);
    }
    let (_, page) = server.get(&address(JOB)).await;
    assert!(page.contains(", at least $36.00 so far."), "{page}");
}

#[tokio::test]
async fn an_incident_of_a_run_says_all_that_is_to_be_done_and_leads_to_the_job() {
    let server = server().await.with(slow_rank()).await;
    for address in ["/incidents".to_owned(), format!("/incidents/{INCIDENT}")] {
        let (_, page) = server.get(&address).await;
        for said in [
            "rank 3 of &#60;b&#62;llama on GPU 0 of h100-00",
            "have the scheduler avoid it meanwhile.",
        ] {
            assert!(page.contains(said), "{address}: {said} is not in {page}");
        }
    }
    let (_, page) = server.get(&format!("/incidents/{INCIDENT}")).await;
    let link = format!("Job <a href=\"{}\"", address(JOB));
    assert!(page.contains(&link), "{page}");
}

#[tokio::test]
async fn a_job_its_gpu_and_its_node_say_why_it_is_slow_what_that_costs_and_what_to_do() {
    let server = server().await.with(slow_rank()).await;
    let wrong = "makes the other ranks wait</a>, because of heat, for ";
    for place in [
        address(JOB),
        format!("/clusters/prod/gpus/{GPU}"),
        "/clusters/prod/nodes/h100-00".to_owned(),
    ] {
        let (_, page) = server.get(&place).await;
        for said in [wrong, "costs $36.00/h", "have the scheduler avoid it"] {
            assert!(page.contains(said), "{place}: {said} is not in {page}");
        }
    }
    for elsewhere in [address(DEAD), "/clusters/prod/nodes/h100-01".to_owned()] {
        let (status, page) = server.get(&elsewhere).await;
        assert_eq!(status, StatusCode::OK, "{elsewhere}");
        assert!(!page.contains(wrong), "{elsewhere}: {page}");
    }
}

#[tokio::test]
async fn a_run_of_which_no_node_is_suspected_leads_from_the_first_page_to_the_job() {
    let stands = Signal {
        family: Family::Hang,
        place: Place {
            cluster: "prod".to_owned(),
            run: Some(format!("{JOB}/0")),
            ..Place::default()
        },
        ..slow_rank()
    };
    let (_, page) = server().await.with(stands).await.get("/").await;
    let link = format!("<a href=\"{}\"", address(JOB));
    assert!(page.contains(&link), "{page}");
}

#[tokio::test]
async fn an_incident_with_nothing_to_do_says_nothing_of_it() {
    let nothing = Signal {
        action: String::new(),
        ..signal()
    };
    let server = server().await.with(nothing).await;
    for address in ["/incidents".to_owned(), format!("/incidents/{INCIDENT}")] {
        let (_, page) = server.get(&address).await;
        assert!(!page.contains("To do:"), "{address}: {page}");
    }
}

#[tokio::test]
async fn the_list_says_since_when_an_incident_is_and_how_severe_one_was_that_is_over() {
    let server = server().await.with(slow_rank()).await;
    let mut over = crate::notify::fixture::incident(7);
    over.state = gpufleet_analysis::incident::State::Resolved;
    over.resolved_at = Some(over.since.shifted(10_000_000_000));
    let length = Duration::from_secs(15);
    let lease = server.store.acquire_lease("test", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    let written = server.store.write_incidents(&[over], &[], token).await;
    written.unwrap();
    let (_, page) = server.get("/incidents").await;
    let (open, past) = page.split_once("id=\"over\"").expect("one is over");
    let since = |moment: &str, lasted: &str| {
        format!("{moment}</time> <span class=\"soft\">UTC, {lasted}</span>")
    };
    let began = since("2026-09-21 13:14:10", "for 1 h");
    assert!(open.contains(&began), "{open}");
    assert!(
        open.contains("datetime=\"2026-09-21T13:14:10.000Z\""),
        "{open}"
    );
    let was = since("2026-09-21 14:13:20", "over after 10 s");
    assert!(past.contains(&was), "{past}");
    assert!(
        past.contains("<span class=\"tag error\">error</span>"),
        "{past}"
    );
}
