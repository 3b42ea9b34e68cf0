//! What stands before the pages: a server without data, one that asks for a token, an address that is none.

use gpufleet_tests::harness::browser::{Browser, Window};
use gpufleet_tests::harness::{World, repository, server};

use crate::axe::Axe;
use crate::every_page::wrong_with;

const TOKEN: &str = "a-token-of-whoever-may-read";

#[test]
fn a_door_that_asks_for_a_token_and_an_empty_fleet_are_whole_and_usable() {
    let world = World::new();
    let token = world.file("read", TOKEN).display().to_string();
    let place = server::Place::sqlite(&world).with(&format!(
        "auth.tokens=[{{ role = 'read', file = '{token}' }}]"
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
    browser.run(&format!(
        "document.getElementById('token').value = '{TOKEN}'"
    ));
    browser.click("form.card button");
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
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
