//! What stands before the pages: a server without data, one that asks for a token, an address that is none; and the
//! way from one token to another.

use std::time::Duration;

use gpufleet_tests::harness::browser::{Browser, Window};
use gpufleet_tests::harness::{World, repository, server, wait};

use crate::axe::Axe;
use crate::every_page::wrong_with;

const TOKEN: &str = "a-token-of-whoever-may-read";

/// What takes its place while a page is open.
const ROTATED: &str = "another-token-of-whoever-may-read";

const OPERATOR: &str = "a-token-of-whoever-may-operate";

/// An open page asks every ten seconds, on a busy machine.
const ASKED_LIMIT: Duration = Duration::from_secs(120);

/// Fills in the form.
fn sign_in(browser: &Browser, token: &str) {
    browser.run(&format!(
        "document.getElementById('token').value = '{token}'"
    ));
    browser.click("form.card button");
}

/// The page that is open, and what it says at its foot.
fn foot(browser: &Browser) -> (String, String) {
    let found =
        browser.run("return [location.pathname, document.querySelector('footer').innerText]");
    let text = |place: usize| found[place].as_str().unwrap_or_default().to_owned();
    (text(0), text(1))
}

#[test]
fn a_door_that_asks_for_a_token_and_an_empty_fleet_are_whole_and_usable() {
    let world = World::new();
    let token = world.file("read", TOKEN).display().to_string();
    let operator = world.file("operate", OPERATOR).display().to_string();
    let place = server::Place::sqlite(&world).with(&format!(
        "auth.tokens=[{{ role = 'read', file = '{token}' }}, {{ role = 'operate', file = '{operator}' }}]"
    ));
    let server = place.start();
    let root = format!("http://{}/", server.place.web);
    let mut browser = Browser::start(&world, Window::DESK);
    let axe = Axe::into(&browser);
    let pictures = repository().join("target/screenshots");
    let mut wrong = Vec::new();
    let mut look = |browser: &Browser, name: &str, allowed: &str| {
        let mut its = wrong_with(browser, &root);
        its.retain(|it| allowed.is_empty() || !it.contains(allowed));
        if let Some(axe) = &axe {
            its.extend(axe.complaints(browser));
        }
        let Window { width, .. } = browser.window();
        browser.screenshot(&pictures.join("doors").join(format!("{name}-{width}.png")));
        wrong.extend(its.iter().map(|it| format!("{name} {width}: {it}")));
    };
    for window in [Window::DESK, Window::PHONE] {
        browser.resize(window);
        browser.open(&root);
        look(&browser, "sign-in", "401");
    }
    sign_in(&browser, TOKEN);
    let text = browser.run("return document.body.innerText").to_string();
    assert!(text.contains("No agent has reported yet"), "{text}");
    for window in [Window::DESK, Window::PHONE] {
        browser.resize(window);
        for path in [
            "",
            "fleet",
            "queue",
            "incidents",
            "jobs",
            "cost",
            "health",
            "settings",
        ] {
            browser.open(&format!("{root}{path}"));
            look(&browser, &format!("empty-{path}"), "");
        }
        browser.open(&format!("{root}there-is-no-such-page"));
        look(&browser, "no-page", "404");
    }

    // A token that is rotated ends what an open page is told; the page is the way to the next.
    browser.open(&format!("{root}health"));
    assert!(foot(&browser).1.contains("Token of role read"));
    world.file("read", ROTATED);
    wait::until("the page leads to the form", ASKED_LIMIT, || {
        let is_there = browser.run("return !!document.querySelector('#pulse.off a')");
        (is_there == true).then_some(())
    });
    for window in [Window::DESK, Window::PHONE] {
        browser.resize(window);
        look(&browser, "signed-out", "401");
    }
    browser.click("#pulse a");
    look(&browser, "sign-in-again", "401");
    sign_in(&browser, ROTATED);
    assert_eq!(foot(&browser).0, "/health");
    browser.click("footer a[href^='/sign-in']");
    look(&browser, "sign-in-as-another", "");
    sign_in(&browser, OPERATOR);
    let (path, said) = foot(&browser);
    assert!(
        path == "/health" && said.contains("Token of role operate"),
        "{path}: {said}"
    );
    browser.click("form[action='/sign-out'] button");
    assert_eq!(foot(&browser).0, "/sign-in");
    browser.open(&root);
    look(&browser, "after-signing-out", "401");
    let has_form = browser.run("return !!document.getElementById('token')");
    assert_eq!(has_form, true);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
