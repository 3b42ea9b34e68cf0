//! Which kinds of pages there are, and one address of each, found by following links as a person does whose browser
//! runs no scripts.

use std::collections::{BTreeMap, VecDeque};

use gpufleet_tests::harness::browser::{Browser, Key};
use serde_json::{Value, json};

use crate::RECORDED;

/// Every kind of page that a link leads to; with "recorded" and "simulated" those that carry such a watermark, with
/// "chosen" those whose address says what of them is shown.
pub(crate) const ALL: [&str; 35] = [
    "api",
    "cluster",
    "cluster recorded",
    "cluster simulated",
    "compare",
    "compare chosen",
    "comparison chosen",
    "cost",
    "cost chosen",
    "find chosen",
    "fleet",
    "fleet chosen",
    "gpu",
    "gpu chosen",
    "gpu recorded",
    "gpu recorded chosen",
    "gpu simulated",
    "gpu simulated chosen",
    "health",
    "incident",
    "incidents",
    "incidents chosen",
    "job simulated",
    "job simulated chosen",
    "jobs",
    "jobs chosen",
    "ladder simulated",
    "node",
    "node recorded",
    "node simulated",
    "queue",
    "runbook",
    "runbooks",
    "settings",
    "today",
];

/// The button that compares the two runs which are chosen.
pub(crate) const CHOOSE: &str = "main form button";

/// The kind of the page at an address on this server.
pub(crate) fn kind(path: &str) -> String {
    let (path, asked) = path.split_once('?').unwrap_or((path, ""));
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let name = match parts.as_slice() {
        [""] => "today",
        ["incidents", _] => "incident",
        ["runbooks", _] => "runbook",
        ["clusters", _] => "cluster",
        ["clusters", _, "nodes", _] => "node",
        ["clusters", _, "nodes", _, _] | ["clusters", _, "gpus", _] => "gpu",
        ["clusters", _, "jobs", _] | ["clusters", _, "jobs", _, _] => "job",
        ["clusters", _, "ladders", _] => "ladder",
        ["compare"] if asked.starts_with("a=") => "comparison",
        [one] => one,
        _ => path,
    };
    let origin = match parts.as_slice() {
        ["clusters", "demo", ..] => " simulated",
        ["clusters", RECORDED, ..] => " recorded",
        _ => "",
    };
    // A list goes on behind its end as it began.
    let is_chosen = !asked.is_empty() && !asked.starts_with("after=");
    let chosen = if is_chosen { " chosen" } else { "" };
    format!("{name}{origin}{chosen}")
}

/// The links of the open page that stay on the server and show a page.
fn links(browser: &Browser, root: &str) -> Vec<String> {
    let found = browser.run(
        "return Array.from(document.querySelectorAll('a[href]')).map(it => it.href.split('#')[0])",
    );
    let found = found.as_array().cloned().unwrap_or_default();
    found
        .iter()
        .filter_map(|link| link.as_str())
        .filter(|link| {
            link.starts_with(root) && !link.contains("/api/") && !link.contains("/metrics")
        })
        .map(str::to_owned)
        .collect()
}

/// What of the open page, which ran no script, cannot be read.
fn unreadable(browser: &Browser) -> Option<Value> {
    let said = browser.run(
        "const [pulse, main] = ['#pulse', 'main'].map(it => document.querySelector(it).innerText);
        const status = performance.getEntriesByType('navigation')[0].responseStatus;
        const title = document.querySelector('main h1')?.innerText ?? '';
        return [status, pulse.startsWith('as of '), title !== '', main.length > title.length]",
    );
    (said != json!([200, true, true, true])).then_some(said)
}

/// One address of each kind that links lead to from the first page on, and of those that forms do, by kind: all of
/// them whole without scripts.
pub(crate) fn found(browser: &Browser, root: &str) -> BTreeMap<String, String> {
    browser.runs_scripts(false);
    let mut found = BTreeMap::from([("today".to_owned(), root.to_owned())]);
    let mut waiting = VecDeque::from([root.to_owned()]);
    while let Some(url) = waiting.pop_front() {
        browser.open(&url);
        assert_eq!(unreadable(browser), None, "{url} without scripts");
        for link in links(browser, root) {
            let kind = kind(&link[root.len()..]);
            found.entry(kind).or_insert_with(|| {
                waiting.push_back(link.clone());
                link
            });
        }
    }
    let mut led = || {
        let there = browser.run("return location.href");
        let there = there.as_str().unwrap_or_default();
        assert_eq!(unreadable(browser), None, "{there} without scripts");
        found.insert(kind(&there[root.len()..]), there.to_owned());
    };
    type_name(browser, "demo-node");
    browser.leave_by("the box", || browser.press(Key::Enter, 1));
    led();
    browser.open(&format!("{root}compare"));
    if browser.run(&format!("return !!document.querySelector('{CHOOSE}')")) == true {
        browser.click(CHOOSE);
        led();
    }
    browser.runs_scripts(true);
    found
}

/// Types into the box that is on every page.
pub(crate) fn type_name(browser: &Browser, name: &str) {
    browser.run(&format!(
        "const box = document.querySelector('.find input'); box.value = '{name}'; box.focus()"
    ));
}
