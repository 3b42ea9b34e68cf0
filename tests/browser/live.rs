//! A page that is open follows the fleet: nothing is loaded anew, and what a person did to it stays. The server
//! tells it when, and where there is no place for that the page asks by itself.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use gpufleet_server::pages::live::MOST;
use gpufleet_tests::harness::browser::{Browser, Key};
use gpufleet_tests::harness::wait;
use serde_json::json;

use crate::Fleet;

/// A tick, its way to the server, a tick of the detectors and the page's own 10 s, on a busy machine.
const CHANGE_LIMIT: Duration = Duration::from_secs(300);

/// The page asks no more by itself.
const ASK_NO_MORE: &str = "for (let timer = 0; timer < 1000; timer++) clearInterval(timer)";

/// How the page says that it follows.
const FOLLOWS: &str = "document.getElementById('pulse').title";

/// Fills in fields without going into them, and has the page lack a piece: then its whole content is swapped.
const FILL_IN: &str = "document.getElementById('only-node').value = 'node-9';
    document.getElementById('only-severity').value = 'warning';
    document.querySelector('[data-live=headline]').removeAttribute('data-live')";

/// What is filled in: a text and a choice, and a choice that nobody made; and whether it is seen.
const FILLED_IN: &str = "const [node, severity, family] = ['node', 'severity', 'family'].map(it => document.getElementById('only-' + it));
    return [node.value, severity.value, family.value, node.closest('details').open]";

/// What the page says of itself.
const SAYS: &str = "document.getElementById('pulse').textContent";

/// Puts a note on the page that the server does not: it is to go.
const NOTE: &str = "const note = document.createElement('p');
    note.dataset.live = 'store';
    document.querySelector('main').prepend(note)";

/// Whether that is gone.
const NOTE_IS_GONE: &str = "!document.querySelector('[data-live=store]')";

/// How many tiles are of a GPU that is lost.
const BROKEN: &str = "[...document.querySelectorAll('.cluster.simulated a.t')].filter(it => it.textContent === '×').length";

/// Opens pages and lets the fleet change behind them; in the end the server goes away and comes back.
pub(crate) fn follows(browser: &Browser, fleet: Fleet) {
    told(browser, &fleet);
    browser.open("about:blank");
    let places = take_all_places(&fleet.server.place.web);
    is_held(browser, &fleet);
    asks(browser, &fleet);
    drop(places);
    is_away(browser, fleet);
}

fn is(browser: &Browser, what: &str, found: &str) {
    wait::until(what, CHANGE_LIMIT, || {
        (browser.run(&format!("return {found}")) == true).then_some(())
    });
}

fn is_the_same(browser: &Browser) {
    let is_first = browser.run("return window.isFirst");
    assert_eq!(is_first, true, "it was loaded anew");
}

/// The list of incidents, which the server tells of news: what is mended goes to those that are over.
fn told(browser: &Browser, fleet: &Fleet) {
    browser.open(&format!("{}incidents", fleet.root()));
    browser.run("window.isFirst = true");
    let is_in = |list: &str| {
        format!("!!document.querySelector('[data-live={list}]')?.innerText.includes('XID 79')")
    };
    assert_eq!(browser.run(&format!("return {}", is_in("open"))), true);
    assert_eq!(browser.run(&format!("return {}", is_in("over"))), false);
    let is_told = format!("{FOLLOWS} === 'told by the server'");
    is(browser, "the server tells the page", &is_told);
    browser.run(ASK_NO_MORE);
    browser.run(FILL_IN);
    fleet.simulator.fault("heal");
    is(browser, "the incident is over", &is_in("over"));
    is_the_same(browser);
    let is_swapped = browser.run("return !!document.querySelector('[data-live=headline]')");
    assert_eq!(is_swapped, true);
    assert_eq!(
        browser.run(FILLED_IN),
        json!(["node-9", "warning", "", true])
    );
    assert_eq!(browser.console().errors, Vec::<String>::new());
}

/// A page on which a person is at work stays as it is, and says so; a note of the server's own trouble comes and goes.
fn is_held(browser: &Browser, fleet: &Fleet) {
    browser.open(&format!("{}incidents", fleet.root()));
    let is_live = format!("!{SAYS}.includes('held')");
    let says = |why: &str| format!("/^held at .+ UTC while {why}$/.test({SAYS})");
    browser.run("document.getSelection().selectAllChildren(document.querySelector('h1'))");
    is(
        browser,
        "it says that it is held",
        &says("text is selected"),
    );
    browser.run(NOTE);
    is(browser, "the note is gone", NOTE_IS_GONE);
    let is_selected = "return document.getSelection().toString() !== ''";
    assert_eq!(browser.run(is_selected), true);
    browser.run("document.getSelection().removeAllRanges()");
    is(browser, "it goes on", &is_live);
    // Who is in a field before pieces come or go stays in it.
    browser.run(
        "const node = document.getElementById('only-node');
        node.closest('details').open = true;
        node.focus()",
    );
    browser.run(FILL_IN);
    let by_form = says("a form is filled in");
    is(browser, "it is held by a form", &by_form);
    browser.run(NOTE);
    is(browser, "the note is gone again", NOTE_IS_GONE);
    browser.run("document.activeElement.blur()");
    is(browser, "it goes on again", &is_live);
    is(
        browser,
        "the missing piece is there",
        "!!document.querySelector('[data-live=headline]')",
    );
}

/// The tiles, where all streams are taken: what is focused stays so while one breaks.
fn asks(browser: &Browser, fleet: &Fleet) {
    browser.open(&format!("{}fleet", fleet.root()));
    browser.run("window.isFirst = true");
    wait::until("the page has no stream", CHANGE_LIMIT, || {
        let errors = browser.console().errors;
        let is_refused = |it: &String| it.contains("/live") && it.contains("503");
        errors.iter().any(is_refused).then_some(())
    });
    let asks = format!("{FOLLOWS} === 'asked every 10 s'");
    is(browser, "it says that it asks", &asks);
    is(browser, "no tile is broken", &format!("{BROKEN} === 0"));
    browser.run(
        "document.querySelector('.cluster.simulated .nodes > li:nth-child(2) .name > a').focus()",
    );
    browser.press(Key::Right, 1);
    let focused = "return document.activeElement.getAttribute('href')";
    let before = browser.run(focused);
    fleet.simulator.fault("lost");
    is(browser, "a tile is broken", &format!("{BROKEN} === 1"));
    assert_eq!(browser.run(focused), before);
    is_the_same(browser);
    let mut errors = browser.console().errors;
    errors.retain(|it| !it.contains("/live"));
    assert_eq!(errors, Vec::<String>::new());
}

/// A server that is away is told, and that it is back.
fn is_away(browser: &Browser, fleet: Fleet) {
    // Read out is only that nobody answers, not the time every ten seconds.
    let pulse = |class: &str, read_out: &str| {
        format!(
            "document.querySelector('#pulse.{class}')?.getAttribute('aria-live') === '{read_out}'"
        )
    };
    is(browser, "it says that it is live", &pulse("on", "off"));
    let place = fleet.server.kill();
    let is_told = pulse("off", "polite");
    is(browser, "it says that nobody answers", &is_told);
    let server = place.start();
    is(browser, "it is live again", &pulse("on", "off"));
    is_the_same(browser);
    server.stop();
}

/// Opens streams until the server has no place for another.
fn take_all_places(address: &str) -> Vec<TcpStream> {
    let mut taken = Vec::new();
    wait::until("all places are taken", CHANGE_LIMIT, || {
        taken.extend(std::iter::from_fn(|| place(address)));
        (taken.len() == MOST).then_some(())
    });
    taken
}

/// A stream; none where there is no place for one yet.
fn place(address: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let request = format!("GET /live HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let sent = stream.write_all(request.as_bytes());
    sent.expect("the server reads");
    let mut answer = String::new();
    let read = BufReader::new(&stream).read_line(&mut answer);
    read.expect("the server answers");
    let is_taken = answer.contains("200");
    assert!(is_taken || answer.contains("503"), "{answer}");
    is_taken.then_some(stream)
}
