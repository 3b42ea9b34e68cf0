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

/// Adds a note on top of what the server answers from here on, as when its database takes nothing.
const NOTED: &str = "const ask = window.fetch;
    window.fetch = async (...how) => {
        const html = await (await ask(...how)).text();
        return new Response(html.replace(/<main[^>]*>/, it => it + '<p data-live=store>a note</p>'));
    };";

/// What holds a page as it is, how that ends, and how the page says it: selected text; a field that somebody is in
/// while the whole content would be swapped.
const HOLDS: [(&str, &str, &str); 2] = [
    (
        "document.getSelection().selectAllChildren(document.querySelector('main h1'))",
        "document.getSelection().removeAllRanges()",
        "text is selected",
    ),
    (
        "const field = document.getElementById('only-node');
        field.closest('details').open = true;
        field.focus();
        document.querySelector('[data-live=headline]').removeAttribute('data-live')",
        "document.activeElement.blur()",
        "you fill in a form",
    ),
];

/// Has what the page asks for answered by a redirect, as of a proxy that wants its reader to sign in again.
const SENT_AWAY: &str = "const ask = window.fetch;
    window.fetch = (address, how) => ask('/find?q=demo-node-1', how)";

/// Streams as other windows have them: with the page's own all six connections that a browser has to a host without TLS.
const OTHERS: &str = "window.others = [...Array(5)].map(() => new EventSource('/live'))";

/// The other windows are closed, and so much time has passed that a page asks for a stream again.
const CLOSED: &str = "window.others.forEach(it => it.close());
    const now = Date.now;
    Date.now = () => now() + 600_000";

/// How many tiles are of a GPU that is lost.
const BROKEN: &str = "[...document.querySelectorAll('.cluster.simulated a.t')].filter(it => it.textContent === '×').length";

/// Opens pages and lets the fleet change behind them; in the end the server goes away and comes back.
pub(crate) fn follows(browser: &Browser, fleet: Fleet) {
    told(browser, &fleet);
    stands_still(browser, &fleet);
    sent_away(browser, &fleet);
    makes_room(browser, &fleet);
    browser.open("about:blank");
    let places = take_all_places(&fleet.server.place.web);
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

/// A page that would disturb somebody stands still and says of which moment it is; what is wrong with the server it
/// says all the same.
fn stands_still(browser: &Browser, fleet: &Fleet) {
    let at = "return document.querySelector('main').dataset.at";
    browser.open(&format!("{}incidents", fleet.root()));
    browser.run("window.isFirst = true");
    browser.run(NOTED);
    for (begins, ends, why) in HOLDS {
        browser.run(begins);
        let shown = browser.run(at);
        let says = format!(
            "'held at {} UTC while {why}'",
            shown.as_str().expect("a moment")
        );
        let says = format!("document.querySelector('#pulse.held')?.textContent === {says}");
        is(browser, "it says that it stands still", &says);
        assert_eq!(browser.run(at), shown);
        let note =
            browser.run("return document.querySelector('main > [data-live=store]')?.textContent");
        assert_eq!(note, "a note", "{why}");
        browser.run(ends);
        let is_live = "!!document.querySelector('#pulse.on')";
        is(browser, "it is live again", is_live);
        assert_ne!(browser.run(at), shown);
    }
    is_the_same(browser);
    assert_eq!(browser.console().errors, Vec::<String>::new());
}

/// A page whose reader has to sign in again at a proxy says so and leads there, and back to itself.
fn sent_away(browser: &Browser, fleet: &Fleet) {
    browser.open(&format!("{}incidents", fleet.root()));
    browser.run(SENT_AWAY);
    let words = "you are asked to sign in again";
    let says = format!("document.querySelector('#pulse.off')?.textContent.includes('{words}')");
    is(browser, "it says what is asked for", &says);
    let leads = browser.run("return document.querySelector('#pulse a').getAttribute('href')");
    assert_eq!(leads, "/incidents");
    browser.click("#pulse a");
    is(
        browser,
        "it is live again",
        "!!document.querySelector('#pulse.on')",
    );
    assert_eq!(browser.console().errors, Vec::<String>::new());
}

/// A page whose browser has no connection left to ask by, as with six windows, gives up its stream and asks, for a while.
fn makes_room(browser: &Browser, fleet: &Fleet) {
    browser.open(&format!("{}incidents", fleet.root()));
    browser.run("window.isFirst = true");
    let is_told = format!("{FOLLOWS} === 'told by the server'");
    is(browser, "the server tells the page", &is_told);
    browser.run(OTHERS);
    let are_open = "window.others.every(it => it.readyState === EventSource.OPEN)";
    is(browser, "no connection is left", are_open);
    let asks = format!("{FOLLOWS} === 'asked every 10 s' && !!document.querySelector('#pulse.on')");
    is(browser, "the page asks by itself", &asks);
    browser.run(CLOSED);
    is(browser, "the server tells the page again", &is_told);
    is_the_same(browser);
    assert_eq!(browser.console().errors, Vec::<String>::new());
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
