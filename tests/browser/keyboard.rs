//! All there is to follow and to press, without a mouse: in the order of the page, and to be seen.

use std::collections::BTreeMap;

use gpufleet_tests::harness::browser::{Browser, Key, Window};
use serde_json::{Value, json};

use crate::{kinds, stand_still};

/// Numbers what may be reached, and notes what is.
const WATCH: &str = r"
    const controls = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]';
    const wanted = [...document.querySelectorAll(controls)].filter(it => it.tabIndex >= 0 && it.checkVisibility());
    wanted.forEach((it, number) => { it.numbered = number; });
    window.reached = [];
    document.addEventListener('focusin', ({ target }) => {
        const style = getComputedStyle(target), box = target.getBoundingClientRect();
        window.reached.push({
            number: target.numbered ?? -1,
            html: target.outerHTML.slice(0, 120),
            isSeen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.height > 0,
        });
    });
    return wanted.length;";

/// Watches the open page, which stands still from here on; how much there is to reach.
fn watch(browser: &Browser) -> Value {
    stand_still(browser);
    browser.run(WATCH)
}

/// The number of an element that was reached; none of what a browser adds, like a piece that scrolls.
fn number(reached: &Value) -> Option<u64> {
    reached["number"].as_u64()
}

/// Whether the key for the next control reaches all of each page, in its order, and shows it.
pub(crate) fn wrong_with(browser: &mut Browser, pages: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for window in [Window::DESK, Window::PHONE] {
        browser.resize(window);
        for (kind, url) in pages {
            browser.open(url);
            let wanted = watch(browser).as_u64().expect("a count");
            assert!(wanted > 10, "{kind} has {wanted} controls");
            // What the browser adds is reached too.
            browser.press(Key::Tab, wanted as usize + 20);
            let reached = browser.run("return window.reached");
            let reached = reached.as_array().cloned().unwrap_or_default();
            let mut order: Vec<u64> = reached.iter().filter_map(number).collect();
            // After the last one it begins anew.
            order.truncate(wanted as usize);
            if order != (0..wanted).collect::<Vec<_>>() {
                wrong.push(format!(
                    "{window:?} {kind} {url}: 0 to {wanted} are {order:?}"
                ));
            }
            let unseen = reached.iter().filter(|it| it["isSeen"] != true);
            wrong
                .extend(unseen.map(|it| format!("{kind}: not seen to be reached: {}", it["html"])));
        }
    }
    wrong
}

/// Whether the first key skips to the content, and arrows walk the tiles.
pub(crate) fn wrong_with_shortcuts(browser: &mut Browser, root: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut is = |what: &str, found: Value, expected: Value| {
        if found != expected {
            wrong.push(format!("{what}: {found} is not {expected}"));
        }
    };
    browser.resize(Window::DESK);
    browser.open(&format!("{root}fleet"));
    watch(browser);
    browser.press(Key::Tab, 1);
    let skip = "const it = document.activeElement; return [it.className, it.getBoundingClientRect().top >= 0]";
    is("the first key", browser.run(skip), json!(["skip", true]));
    browser.press(Key::Enter, 1);
    let id = "return document.activeElement.id";
    is("it skips", browser.run(id), json!("content"));
    browser.press(Key::Tab, 1);
    let inside = "return !!document.activeElement.closest('main')";
    is(
        "the next is in the content",
        browser.run(inside),
        json!(true),
    );

    browser.run("document.querySelector('.nodes .name > a').focus()");
    let place = "const it = document.activeElement; const all = [...it.closest('.nodes > li').querySelectorAll('.name > a, a.t')]; \
                 return [all.indexOf(it), getComputedStyle(it).outlineStyle !== 'none']";
    browser.press(Key::Right, 3);
    is("three to the right", browser.run(place), json!([3, true]));
    browser.press(Key::Left, 1);
    is("one to the left", browser.run(place), json!([2, true]));
    browser.leave_by("a tile", || browser.press(Key::Enter, 1));
    let path = browser.run("return location.pathname");
    let kind = kinds::kind(path.as_str().unwrap_or_default());
    is(
        "the tile leads to its card",
        kind.starts_with("gpu").into(),
        json!(true),
    );
    wrong
}
