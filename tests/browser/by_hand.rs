//! From page to page by clicks, as somebody who was woken goes from the morning page to the card and back.

use std::time::Duration;

use gpufleet_tests::harness::browser::{Browser, Key, Window};
use gpufleet_tests::harness::wait;

use crate::{kinds, stand_still};

/// A page is drawn, on a busy machine.
const PAGE_LIMIT: Duration = Duration::from_secs(60);

/// What is clicked, and the kind of page that it leads to.
const WAY: [(&str, &str); 21] = [
    ("nav a[href='/fleet']", "fleet"),
    (".cluster.simulated .nodes .name > a", "node simulated"),
    ("main table td a", "gpu simulated"),
    (".tabs a:last-child", "gpu simulated chosen"),
    (".crumbs li:nth-child(2) a", "cluster simulated"),
    ("nav a[href='/incidents']", "incidents"),
    ("[data-live=open] .what a", "incident"),
    ("h1 a", "gpu simulated"),
    ("nav a[href='/jobs']", "jobs"),
    ("[data-live=jobs] td a", "job simulated"),
    (".tabs a:last-child", "job simulated chosen"),
    ("main a[href^='/compare']", "compare chosen"),
    (kinds::CHOOSE, "comparison chosen"),
    ("[data-live=differences] dd a", "job simulated"),
    ("nav a[href='/cost']", "cost"),
    ("nav a[href='/queue']", "queue"),
    ("nav a[href='/health']", "health"),
    ("footer a[href='/settings']", "settings"),
    ("nav a[href='/api']", "api"),
    (".brand", "today"),
    (".legend a", "fleet chosen"),
];

fn walk(browser: &Browser, root: &str) {
    browser.open(root);
    for (selector, expected) in WAY {
        // What is clicked is not to be swapped for a newer one meanwhile.
        stand_still(browser);
        let from = browser.run("return location.href");
        browser.click(selector);
        let path = browser.run("return location.pathname + location.search");
        let path = path.as_str().unwrap_or_default();
        assert_eq!(kinds::kind(path), expected, "{selector} on {from}: {path}");
        assert_eq!(browser.console().errors, Vec::<String>::new(), "{path}");
    }
}

/// The whole way, on a desk and on a telephone, and to a node by its name.
pub(crate) fn from_page_to_page(browser: &mut Browser, root: &str) {
    for window in [Window::PHONE, Window::DESK] {
        browser.resize(window);
        walk(browser, root);
    }
    browser.open(root);
    kinds::type_name(browser, "Demo-Node-1");
    browser.leave_by("the box", || browser.press(Key::Enter, 1));
    let path = browser.run("return location.pathname");
    let path = path.as_str().unwrap_or_default();
    assert_eq!(kinds::kind(path), "node simulated", "{path}");
}

/// What is simulated says so; the button changes the light; whoever is woken says so on the page.
pub(crate) fn light_and_words(browser: &Browser, root: &str) {
    // What is far down is drawn, and has its words, only a moment after the page is loaded.
    let says = |words: &str| {
        wait::until(&format!("the page says {words}"), PAGE_LIMIT, || {
            let text = browser.run("return document.body.innerText").to_string();
            text.to_uppercase()
                .contains(&words.to_uppercase())
                .then_some(())
        });
    };
    for page in ["", "fleet"] {
        browser.open(&format!("{root}{page}"));
        says("SIMULATED");
    }
    says("live-node-1");

    // The button changes the light, and every page keeps to it.
    let ground = "return getComputedStyle(document.documentElement).backgroundColor";
    browser.likes_dark(false);
    browser.open(root);
    let light = browser.run(ground);
    browser.click("form[action='/theme'] button");
    let dark = browser.run(ground);
    assert_ne!(dark, light);
    browser.open(&format!("{root}jobs"));
    assert_eq!(browser.run(ground), dark);

    browser.open(&format!("{root}incidents"));
    stand_still(browser);
    browser.click("[data-live=open] .what a");
    // Enter in the field of the name, or Go on a telephone, takes nothing in hand.
    let is_in_hand = "return !!document.querySelector('button[value=release]')";
    browser.run("document.getElementById('note').value = 'a riser card'; const who = document.getElementById('who'); who.value = 'Ada'; who.focus()");
    browser.leave_by("the name", || browser.press(Key::Enter, 1));
    says("a riser card");
    assert_eq!(browser.run(is_in_hand), false);
    browser.run("document.getElementById('who').value = 'Mira'; document.getElementById('note').value = 'on my way'");
    browser.click("button[value=acknowledge]");
    says("Mira");
    says("on my way");
    assert_eq!(browser.run(is_in_hand), true);
    assert_eq!(browser.console().errors, Vec::<String>::new());
}
