//! A test that passes because it could not be run is heard of: it says NOT RUN, nextest shows what it says
//! (`.config/nextest.toml`), and `scripts/test.sh` looks for these words and repeats them.

use std::fs;

use super::tree::{none, root, rust};

/// This file: what its test below looks for stands in it.
const HERE: &str = "tests/house_rules/not_run.rs";

/// What is part of the names of tests whose output is shown though they pass.
fn shown() -> Vec<String> {
    let path = root().join(".config/nextest.toml");
    let text = fs::read_to_string(path).expect("it is there");
    let config: toml::Table = toml::from_str(&text).expect("it can be read");
    let overrides = config["profile"]["default"]["overrides"].as_array();
    let heard = overrides.into_iter().flatten().filter(|it| {
        let shown = it.get("success-output").and_then(toml::Value::as_str);
        shown == Some("immediate")
    });
    let filters = heard.filter_map(|it| it["filter"].as_str());
    filters.flat_map(names).collect()
}

/// The names in `test(name)` and `test(/name|name/)` of a filter.
fn names(filter: &str) -> Vec<String> {
    let inner = filter.split("test(").skip(1);
    let inner = inner.filter_map(|it| it.split_once(')').map(|(it, _)| it.trim_matches('/')));
    inner
        .flat_map(|it| it.split('|'))
        .map(str::to_owned)
        .collect()
}

/// The tests of a file that say in their own body that something was not run, and whatever says so in other words.
fn say_so(text: &str) -> (Vec<&str>, Vec<&str>) {
    let lines: Vec<&str> = text.lines().collect();
    let (mut tests, mut others) = (Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let is_printed = [index, index.saturating_sub(1)]
            .iter()
            .any(|it| lines[*it].contains("eprintln!("));
        let Some((_, said)) = line.split_once("\"NOT ").filter(|_| is_printed) else {
            continue;
        };
        if !said.starts_with("RUN: ") {
            others.push(line.trim());
        }
        let head = lines[..index].iter().rposition(|it| function(it).is_some());
        let head = head.expect("it is said in a function");
        let attributes = lines[..head].iter().rev();
        let mut above = attributes.take_while(|it| it.trim().starts_with('#'));
        if above.any(|it| it.trim().ends_with("test]")) {
            tests.extend(function(lines[head]));
        }
    }
    (tests, others)
}

/// The name of the function that begins on a line.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let is_head = before.is_empty() || before.starts_with("pub") || before.starts_with("async");
    after.split_once('(').map(|it| it.0).filter(|_| is_head)
}

#[test]
fn whatever_was_not_run_is_told() {
    let shown = shown();
    assert!(
        !shown.is_empty(),
        "no output of a test that passes is shown"
    );
    let mut broken = Vec::new();
    let mut seen = 0;
    for file in rust().iter().filter(|it| it.path != HERE) {
        let (tests, others) = say_so(&file.text);
        broken.extend(others.iter().map(|it| format!("{}: {it}", file.path)));
        // Captures that are no part of the repository: nobody else can run these.
        if file.text.contains("shared/data/real") {
            continue;
        }
        seen += tests.len();
        let is_heard = |test: &&str| shown.iter().any(|it| test.contains(it.as_str()));
        let unheard = tests.iter().filter(|it| !is_heard(it));
        broken.extend(unheard.map(|it| format!("{}: {it}", file.path)));
    }
    assert!(seen > 3, "only {seen} tests were found");
    none(
        "who could not run says NOT RUN, and .config/nextest.toml shows it",
        &broken,
    );
}

#[test]
fn a_test_that_is_not_heard_is_found() {
    const TEXT: &str = r#"
#[test]
fn one() {
    eprintln!("NOT RUN: it");
}

fn helper() {
    eprintln!(
        "NOT RUN: that"
    );
}

#[test]
fn two() {
    let else_ = "NOT RUN";
    eprintln!("NOT VERIFIED: this");
}
"#;
    let (tests, others) = say_so(TEXT);
    assert_eq!(tests, ["one", "two"]);
    assert_eq!(others, [r#"eprintln!("NOT VERIFIED: this");"#]);
    let filter = "binary(a) & test(one) | test(/two|three/)";
    assert_eq!(names(filter), ["one", "two", "three"]);
}
