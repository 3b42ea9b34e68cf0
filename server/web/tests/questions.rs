//! Questions of docs/questions whose answer needs what the fleet of the end-to-end test does not have: a week of
//! measurements, a job that ran on fewer GPUs before, one that stands, and a node that broke before.

use gpufleet_analysis::owner::Payer;
use gpufleet_analysis::right_size::Measured;

use super::*;
use crate::money::savings::{RightSize, Savings};

/// The words that a document promises for its question of this number.
fn promised(user: &str, number: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/questions");
    let text = std::fs::read_to_string(format!("{folder}/{user}.md")).expect("it is there");
    let row = text
        .lines()
        .find(|it| it.starts_with(&format!("| {number} |")));
    let cells: Vec<&str> = row.expect("the question is there").split(" | ").collect();
    let (_, rest) = cells[3].split_once('`').expect("it promises words");
    rest.split_once('`').expect("the words end").0.to_owned()
}

/// What stands between each pair of such tags of a page, as a person reads it.
fn pieces(page: &str, tag: &str) -> Vec<String> {
    let (begin, end) = (format!("<{tag}"), format!("</{tag}>"));
    let all = page.split(&begin).skip(1).map(|it| {
        let piece = it.split_once(&end).map_or(it, |it| it.0);
        let texts = piece.split('>').skip(1);
        let texts = texts.filter_map(|it| it.split('<').next());
        let words: Vec<&str> = texts.flat_map(str::split_whitespace).collect();
        words.join(" ").replace("&#39;", "'")
    });
    all.collect()
}

/// The rows of a page's tables.
fn rows(page: &str) -> Vec<String> {
    pieces(page, "tr")
}

/// Whether a row has the promised words in their order: `#` is a digit, `…` whatever stands between.
fn has(row: &str, promised: &str) -> bool {
    let mut rest: Vec<char> = row.chars().collect();
    for part in promised.split('…').map(str::trim) {
        let part: Vec<char> = part.chars().collect();
        let is_like =
            |(have, want): (&char, &char)| have == want || (*want == '#' && have.is_ascii_digit());
        let fits = |it: &[char]| it.iter().zip(&part).all(is_like);
        let Some(at) = rest.windows(part.len()).position(fits) else {
            return false;
        };
        rest.drain(..at + part.len());
    }
    true
}

#[tokio::test]
async fn who_could_do_with_less_stands_with_what_was_measured_and_what_it_saves() {
    let server = today::priced(fixture::fleet()).await;
    let words = promised("finops", "14");
    let (_, before) = server.get("/cost").await;
    assert!(!rows(&before).iter().any(|it| has(it, &words)), "{before}");
    let server = today::priced(fixture::fleet()).await;
    let mut found = RightSize::for_tests("job:ml/train", Payer::Team("science".to_owned()));
    found.proposal.measured = Measured {
        hours: 30.0,
        memory_peak: Some(12e9),
        memory_p95: Some(11e9),
        tensor_p95: Some(0.2),
        dram_p95: Some(0.3),
    };
    let saved = Savings {
        currency: "USD".to_owned(),
        right_size: vec![found],
        ..Savings::default()
    };
    server.app.savings.put_for_tests(&server.app, saved).await;
    let (_, page) = server.get("/cost").await;
    let rows = rows(&page);
    let row = rows.iter().find(|it| has(it, &words));
    let row = row.unwrap_or_else(|| panic!("{words} is in no row of {rows:#?}"));
    for of_it in [
        "job:ml/train",
        "science",
        "8 of big",
        "4 of small",
        "$1 760.00 a day",
    ] {
        assert!(
            row.replace('\u{2009}', " ").contains(of_it),
            "{of_it} is not in {row}"
        );
    }
}

#[tokio::test]
async fn a_job_that_ran_on_fewer_gpus_before_is_told_whether_its_scaling_is_normal() {
    let server = server().await;
    let words = promised("platform-lead", "9");
    let page = async || server.get(&jobs::address(jobs::JOB)).await.1;
    let is_answered = |page: &str| pieces(page, "dd").iter().any(|it| has(it, &words));
    let before = page().await;
    assert!(before.contains("Not measured: this job has no run on fewer GPUs"));
    assert!(!is_answered(&before), "{before}");
    jobs::put_one(&server, "team/%3Cb%3Ellama/u0", GPU, false).await;
    server.pass(60);
    let page = page().await;
    let says = "12 % of linear (strong scaling) against this job&#39;s run on 1 GPUs: less than normal, published runs from 8 GPUs on reach 90 to 95 %.";
    assert!(page.contains(says), "{page}");
    assert!(is_answered(&page), "{words}: {page}");
}

#[tokio::test]
async fn a_job_whose_ranks_are_heard_and_step_no_more_is_told_from_one_that_runs() {
    let server = server().await;
    let words = promised("on-call", "7");
    let is_answered = |page: &str| rows(page).iter().any(|it| has(it, &words));
    let (_, page) = server.get("/jobs").await;
    assert!(!is_answered(&page), "it runs: {page}");
    server.pass(150);
    jobs::stand(&server, 150);
    let (_, page) = server.get("/jobs").await;
    assert!(is_answered(&page), "{words}: {page}");
}

#[tokio::test]
async fn a_node_that_broke_before_leads_to_what_is_over() {
    let server = server().await.with_an_incident().await;
    let words = promised("on-call", "5");
    let node = "/clusters/prod/nodes/h100-03";
    let all = async || {
        let (_, page) = server.get(node).await;
        let (before, _) = page.split_once("\">All its incidents</a>").expect("a link");
        let (_, address) = before.rsplit_once("href=\"").expect("an address");
        server.get(&address.replace("&#38;", "&")).await.1
    };
    let is_answered = |page: &str| pieces(page, "li").iter().any(|it| has(it, &words));
    let page = all().await;
    assert!(page.contains(INCIDENT), "what is so now: {page}");
    assert!(!is_answered(&page), "nothing was before: {page}");
    let mut over = crate::notify::fixture::incident(7);
    over.place = Place::gpu("prod", "h100-03", "GPU-prod-h100-03-0005");
    over.state = gpufleet_analysis::incident::State::Resolved;
    over.resolved_at = Some(over.since.shifted(10_000_000_000));
    let length = Duration::from_secs(15);
    let lease = server.store.acquire_lease("test", fixture::NOW, length);
    let token = lease.await.unwrap().token;
    let written = server.store.write_incidents(&[over], &[], token).await;
    written.unwrap();
    let page = all().await;
    assert!(is_answered(&page), "{words}: {page}");
}

#[tokio::test]
async fn today_says_on_how_many_nodes_something_is_wrong() {
    let server = server().await;
    let words = promised("on-call", "3");
    let is_answered = |page: &str| {
        let parts = page.split("<dt>").skip(1);
        let parts = parts.map(|it| pieces(&format!("<p>{it}"), "p").concat());
        parts.into_iter().any(|it| has(&it, &words))
    };
    let (_, page) = server.get("/").await;
    assert!(!is_answered(&page), "nothing is open: {page}");
    let server = server.with_an_incident().await;
    // What today says is given for half a minute while it is made anew.
    server.pass(31);
    let (_, page) = server.get("/").await;
    assert!(
        page.contains("1 open<small>on 1 of 10 nodes</small>"),
        "{page}"
    );
    let today = server.json("/api/v1/today").await;
    assert_eq!(today["sections"][0]["nodes_with_incidents"], 1);
}
