//! The page Health, its twin in the API, and the links that lead there.

use super::*;
use crate::words;
use crate::words::text::segment;

/// Every anchor of a page, and every address that leads to one of another page.
fn anchors(page: &str) -> Vec<&str> {
    let parts = page.split(" id=\"").skip(1);
    parts.filter_map(|it| it.split('"').next()).collect()
}

/// What a page shows as missing and does not lead to the page Health.
fn leads_nowhere(page: &str) -> Vec<&str> {
    let places = page.match_indices("class=\"missing\"");
    let tags = places.map(|(at, _)| {
        let begin = page[..at].rfind('<').unwrap_or(at);
        let (tag, inside) = page[begin..].split_once('>').unwrap_or_default();
        let leads = tag.contains(" href=\"/health#") || inside.starts_with("<a href=\"/health#");
        (!leads).then(|| &page[begin..page.floor_char_boundary(at + 200)])
    });
    tags.flatten().collect()
}

/// Tags that begin and end what a person reads in one piece.
const PIECES: [&str; 15] = [
    "p", "li", "td", "th", "dd", "dt", "h1", "h2", "h3", "div", "section", "article", "summary",
    "header", "small",
];

/// Tags that hold words and no link: a tooltip, whose words stand beside it too, and a choice.
const WITHOUT_LINKS: [&str; 2] = ["title", "option"];

/// What a page says is not known without a link to its line of the page Health in the same piece.
pub(super) fn left_open(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut said, mut leads) = (String::new(), false);
    for part in page.split('<') {
        let (tag, text) = part.split_once('>').unwrap_or_default();
        let name = tag.trim_start_matches('/');
        let name = name.split([' ', '/']).next().unwrap_or_default();
        if PIECES.contains(&name) {
            // What only time tells has no line that mends it.
            said = said.replace("not known yet", "");
            // “Not measured” is the name of a state too, and then nothing is missing on this page.
            let mut open = words::OPEN.iter().filter(|it| **it != "not measured");
            let is_open = open.any(|it| said.contains(*it)) || said.trim() == "–";
            let piece = std::mem::take(&mut said);
            if is_open && !leads {
                found.push(piece);
            }
            leads = false;
        }
        let has_no_links = WITHOUT_LINKS.contains(&name) && !tag.starts_with('/');
        leads |= tag.contains(" href=\"/health#");
        if !has_no_links {
            said.push_str(text);
        }
    }
    found
}

#[test]
fn words_that_leave_something_open_are_found_where_no_link_stands_beside_them() {
    for (page, found) in [
        ("<td>not known</td>", vec!["not known"]),
        ("<td>\u{2013}</td>", vec!["\u{2013}"]),
        (
            "<td><b>cost</b> has no price</td>",
            vec!["cost has no price"],
        ),
        ("<td><a href=\"/health#prices\">no price</a></td>", vec![]),
        ("<td>how fast is not known yet</td>", vec![]),
        (
            "<td>not told: <a href=\"/health#hooks\">mend it</a></td>",
            vec![],
        ),
        (
            "<td><a href=\"/health#hooks\">x</a></td><td>not told</td>",
            vec!["not told"],
        ),
        (
            "<g><title>not known</title></g><p title=\"not told\">1</p>",
            vec![],
        ),
    ] {
        assert_eq!(left_open(page), found, "{page}");
    }
}

#[tokio::test]
async fn every_reading_that_is_missing_leads_to_a_line_that_is_there() {
    let server = server().await.with_an_incident().await;
    let (status, health) = server.get("/health").await;
    assert_eq!(status, StatusCode::OK);
    let there = anchors(&health);
    let apart: BTreeSet<_> = there.iter().collect();
    assert_eq!(
        apart.len(),
        there.len(),
        "an anchor is one place: {there:?}"
    );
    let mut led = BTreeSet::new();
    for address in [
        "/".to_owned(),
        "/clusters/prod/nodes/h100-00".to_owned(),
        "/clusters/prod/nodes/h100-03".to_owned(),
        "/clusters/prod/gpus/GPU-prod-h100-03-0005".to_owned(),
        "/clusters/prod/gpus/GPU-prod-h100-04-0001".to_owned(),
        "/clusters/demo/gpus/GPU-demo-sim-0-0000".to_owned(),
        format!("/clusters/prod/gpus/{GPU}"),
        format!("/clusters/prod/jobs/{}/0", segment(jobs::JOB)),
        format!("/clusters/prod/jobs/{}/0", segment(jobs::DEAD)),
        format!("/compare?a={0}&b={0}", jobs::RUN),
        format!("/incidents/{INCIDENT}"),
        "/incidents".to_owned(),
        "/fleet".to_owned(),
        "/queue".to_owned(),
        "/cost".to_owned(),
        "/jobs".to_owned(),
        "/find?q=h100".to_owned(),
        "/clusters/prod/ladders/fp8%20%26%20more".to_owned(),
    ] {
        let (status, page) = server.get(&address).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        // Only the frame's link to the page itself has no anchor.
        for part in page.split("href=\"/health#").skip(1) {
            let anchor = part.split('"').next().unwrap_or_default();
            assert!(there.contains(&anchor), "{address}: {anchor}");
            led.insert(anchor.to_owned());
        }
        assert_eq!(leads_nowhere(&page), [""; 0], "{address}");
        assert_eq!(left_open(&page), [""; 0], "{address}");
    }
    for anchor in [
        "hooks",
        "prices",
        "collectives",
        "missing-gpu_lost",
        "missing-not_supported",
        "state-holder_unknown",
    ] {
        assert!(led.contains(anchor), "{anchor} is not in {led:?}");
    }
}

/// What a page with money or time on it leaves open, or leads to that is not there.
async fn wrong_with(server: &Fixture, address: &str) -> Vec<String> {
    let (_, health) = server.get("/health").await;
    let there = anchors(&health);
    let page = marks::added_up(server, address).await;
    let leads = page.split("href=\"/health#").skip(1);
    let leads = leads.map(|it| it.split('"').next().unwrap_or_default());
    let nowhere = leads.filter(|it| !there.contains(it));
    let mut wrong: Vec<String> = nowhere.map(|it| format!("leads to {it}")).collect();
    wrong.extend(leads_nowhere(&page).into_iter().map(str::to_owned));
    wrong.extend(left_open(&page));
    wrong
}

#[tokio::test]
async fn with_a_ledger_of_hours_too_every_word_that_leaves_something_open_leads_to_its_line() {
    let unpriced = server().await;
    let priced = today::priced(fixture::fleet()).await;
    for (name, server) in [("without prices", unpriced), ("with prices", priced)] {
        filled::fill(&server).await;
        let (_, cost) = server.get("/cost").await;
        assert!(cost.contains("<h3>States, and why</h3>"), "{name}: {cost}");
        for address in [
            "/cost",
            "/",
            "/fleet",
            "/clusters/prod",
            "/clusters/prod/nodes/h100-00",
            "/clusters/prod/gpus/GPU-prod-h100-00-0000",
            "/jobs",
        ] {
            let wrong = wrong_with(&server, address).await;
            assert_eq!(wrong, [""; 0], "{name}: {address}");
        }
    }
}

#[tokio::test]
async fn page_and_api_say_the_same_of_what_is_wrong_and_of_what_was_not_checked() {
    let server = server().await;
    let doctor = server.json("/api/v1/doctor").await;
    let (_, page) = server.get("/health").await;
    assert_eq!(doctor["is_fine"], false);
    let findings = doctor["findings"].as_array().unwrap();
    for it in findings {
        let anchor = format!("<li id=\"{}\">", it["id"].as_str().unwrap());
        assert!(page.contains(&anchor), "{anchor}");
    }
    assert_eq!(findings[0]["id"], "state-no_sample", "the worst first");
    assert_eq!(findings[0]["since"], "2026-09-21T14:01:36.000Z");
    let checks = doctor["checks"].as_array().unwrap();
    let not = checks.iter().filter(|it| it["outcome"] == "not_checked");
    assert_eq!(page.matches(">not checked: ").count(), not.clone().count());
    assert!(not.clone().all(|it| it["why_not"].is_string()));
    assert!(page.contains("[detect.gpu_hour_usd]"));
    assert!(!page.contains("<img") && !page.contains('\u{202e}'));
}

#[tokio::test]
async fn a_fleet_in_which_nothing_is_wrong_says_so_with_what_was_looked_at() {
    let mut config = Config::for_tests();
    let card = "NVIDIA H100 80GB HBM3".to_owned();
    config.detect.gpu_hour_usd.insert(card, "10".to_owned());
    let live = fixture::gpu("calm", "n", 0, Does::Nothing, Origin::Live);
    let server = server_with(config, vec![live], false).await;
    server
        .incidents
        .tells(Arc::new(settings(&[("pager", Kind::Pagerduty)])));
    let doctor = server.json("/api/v1/doctor").await;
    assert_eq!(doctor["findings"], serde_json::json!([]), "{doctor}");
    assert_eq!(doctor["is_fine"], true);
    let (_, page) = server.get("/health").await;
    assert!(
        page.contains("Everything that is checked is fine"),
        "{page}"
    );
    assert!(page.contains("no agent tells how it is"), "{page}");
    assert!(page.contains("1 GPU that is heard"), "{page}");
}

#[tokio::test]
async fn links_in_messages_that_open_on_the_server_alone_are_found_where_there_are_messages() {
    for (listen, is_told, is_found) in [
        ("0.0.0.0:8080", true, true),
        ("0.0.0.0:8080", false, false),
        ("127.0.0.1:8080", true, false),
    ] {
        let mut config = Config::for_tests();
        config.web.listen = listen.to_owned();
        let server = server_with(config, fixture::fleet(), false).await;
        if is_told {
            let told = settings(&[("pager", Kind::Pagerduty)]);
            server.incidents.tells(Arc::new(told));
        }
        let doctor = server.json("/api/v1/doctor").await;
        let mut findings = doctor["findings"].as_array().unwrap().iter();
        let found = findings.find(|it| it["id"] == "channels-page-url");
        assert_eq!(found.is_some(), is_found, "{listen}, {is_told}");
        if let Some(found) = found {
            let what = found["what"].as_str().unwrap();
            assert!(what.contains("notify.page_url"), "{what}");
        }
    }
}
