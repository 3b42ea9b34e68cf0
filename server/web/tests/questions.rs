//! Questions of docs/questions whose answer needs what the fleet of the end-to-end test does not have: a week of
//! measurements, and a job that ran on fewer GPUs before.

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

/// The rows of a page's tables as a person reads them.
fn rows(page: &str) -> Vec<String> {
    let rows = page.split("<tr").skip(1).map(|it| {
        let row = it.split_once("</tr>").map_or(it, |it| it.0);
        let texts = row.split('>').skip(1).filter_map(|it| it.split('<').next());
        let words: Vec<&str> = texts.flat_map(str::split_whitespace).collect();
        words.join(" ")
    });
    rows.collect()
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
    let page = async || server.get(&jobs::address(jobs::JOB)).await.1;
    assert!(
        page()
            .await
            .contains("Not measured: this job has no run on fewer GPUs")
    );
    jobs::put_one(&server, "team/%3Cb%3Ellama/u0", GPU, false).await;
    server.pass(60);
    let page = page().await;
    let says = "12 % of linear (strong scaling) against this job&#39;s run on 1 GPUs: less than normal, published runs from 8 GPUs on reach 90 to 95 %.";
    assert!(page.contains(says), "{page}");
}
