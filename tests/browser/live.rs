//! A page that is open follows the fleet: nothing is loaded anew, and what a person did to it stays.

use std::time::Duration;

use gpufleet_tests::harness::browser::{Browser, Key};
use gpufleet_tests::harness::wait;

use crate::Fleet;

/// A tick, its way to the server, a tick of the detectors and the page's own 10 s, on a busy machine.
const CHANGE_LIMIT: Duration = Duration::from_secs(300);

/// Opens pages and lets the fleet change behind them; in the end the server goes away and comes back.
pub(crate) fn follows(browser: &Browser, fleet: Fleet) {
    let root = fleet.root();
    let is = |what: &str, script: &str| {
        wait::until(what, CHANGE_LIMIT, || {
            (browser.run(script) == true).then_some(())
        });
    };
    let is_the_same = || {
        assert_eq!(
            browser.run("return window.isFirst"),
            true,
            "it was loaded anew"
        )
    };

    // The list of incidents: what is mended goes to those that are over.
    browser.open(&format!("{root}incidents"));
    browser.run("window.isFirst = true");
    let is_in = |list: &str| {
        format!(
            "return !!document.querySelector('[data-live={list}]')?.innerText.includes('XID 79')"
        )
    };
    assert_eq!(browser.run(&is_in("open")), true);
    assert_eq!(browser.run(&is_in("over")), false);
    fleet.simulator.fault("heal");
    is("the incident is over", &is_in("over"));
    is_the_same();

    // The tiles: what is focused stays so while one breaks.
    browser.open(&format!("{root}fleet"));
    browser.run("window.isFirst = true");
    let broken = "[...document.querySelectorAll('.cluster.simulated a.t')].filter(it => it.textContent === '×').length";
    is("no tile is broken", &format!("return {broken} === 0"));
    browser.run(
        "document.querySelector('.cluster.simulated .nodes > li:nth-child(2) .name > a').focus()",
    );
    browser.press(Key::Right, 1);
    let focused = "return document.activeElement.getAttribute('href')";
    let before = browser.run(focused);
    fleet.simulator.fault("lost");
    is("a tile is broken", &format!("return {broken} === 1"));
    assert_eq!(browser.run(focused), before);
    is_the_same();
    assert_eq!(browser.console().errors, Vec::<String>::new());

    // A server that is away is told, and that it is back.
    let pulse = |class: &str| {
        format!("return document.getElementById('pulse').classList.contains('{class}')")
    };
    is("it says that it is live", &pulse("on"));
    let place = fleet.server.kill();
    is("it says that nobody answers", &pulse("off"));
    let server = place.start();
    is("it is live again", &pulse("on"));
    is_the_same();
    server.stop();
}
