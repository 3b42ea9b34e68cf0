//! The fleet's page beside what it shares with others: the key of its letters, and its day.

use std::io::Read as _;

use futures::FutureExt as _;
use futures::future::join_all;
use gpufleet_analysis::ledger::State;
use gpufleet_telemetry::identity::{Resource, attribute};

use super::*;
use crate::view::Views;
use crate::words::text;

/// The key of a page, and the letters on its tiles.
fn key_and_letters(page: &str) -> (&str, BTreeSet<char>) {
    let (_, rest) = page.split_once("<ul class=\"key\"").expect("it has a key");
    let (key, rest) = rest.split_once("</ul>").expect("it ends");
    let tiles = rest.split("<a class=\"t s-").skip(1);
    let letters = tiles.filter_map(|it| it.split("</a>").next()?.chars().last());
    (key, letters.collect())
}

#[tokio::test]
async fn every_letter_on_a_tile_is_in_the_key_that_is_seen_also_where_nothing_is_live() {
    let (_, page) = server().await.get("/fleet").await;
    let (key, letters) = key_and_letters(&page);
    assert_eq!(letters, BTreeSet::from(['A', 'F', 'G', '?', '×']));
    for letter in letters {
        assert!(
            key.contains(&format!(">{letter}</span>")),
            "{letter}: {key}"
        );
    }
    for words in [
        "<b>active</b>: held, and its engine works",
        "<b>gap</b>: held, a pause of less than 5 minutes",
        "<b>free</b>: nobody holds it",
    ] {
        assert!(key.contains(words), "{words} is not in {key}");
    }
    assert_eq!(key.matches("<b>active</b>").count(), 1);
    let simulated = fixture::gpu("demo", "sim-0", 0, Does::Nothing, Origin::Simulated);
    let server = server_of(vec![simulated], false).await;
    let (_, page) = server.get("/fleet").await;
    let (key, letters) = key_and_letters(&page);
    assert_eq!(letters, BTreeSet::from(['F']));
    assert!(
        key.contains("<b>free</b>") && !key.contains("<b>active</b>"),
        "{key}"
    );
}

#[tokio::test]
async fn a_page_that_is_kept_packed_says_what_the_plain_one_does_and_is_told_apart_from_it() {
    let server = server().await;
    marks::added_up(&server, "/fleet").await;
    let (_, plain) = server.get("/fleet").await;
    for is_kept in [false, true] {
        let request = Request::get("/fleet").header(header::ACCEPT_ENCODING, "br, gzip");
        let answer = server.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.headers()[header::CONTENT_ENCODING], "gzip");
        let vary = answer.headers().get_all(header::VARY).iter();
        let by_encoding = vary.filter(|it| it.as_bytes() == b"accept-encoding");
        assert_eq!(by_encoding.count(), 1);
        let packed = answer.into_body().collect().await.unwrap().to_bytes();
        let mut page = String::new();
        let mut gzip = flate2::read::GzDecoder::new(&*packed);
        gzip.read_to_string(&mut page).unwrap();
        assert_eq!(page, plain, "kept: {is_kept}");
    }
    assert_eq!(
        server.get("/fleet").await.1,
        plain,
        "and the other is still plain"
    );
}

#[tokio::test]
async fn nobody_waits_while_a_picture_is_made_and_none_is_older_than_three_seconds() {
    let server = server().await;
    let views = Views::default();
    let first = views.get(&server.app).await;
    assert_eq!(first.at, fixture::NOW);
    server.pass(2);
    let standing = views.get(&server.app).now_or_never();
    let standing = standing.expect("the last one is given meanwhile");
    assert!(Arc::ptr_eq(&standing, &first));
    let fresh = views.fresh(&server.app).await;
    assert_eq!(fresh.at, server.app.clock.now());
    let next = views.get(&server.app).now_or_never();
    assert!(Arc::ptr_eq(&next.expect("it is there"), &fresh));
    server.pass(3);
    let late = views.get(&server.app).now_or_never();
    assert!(late.is_none(), "the last one is too old");
    let late = views.get(&server.app).await;
    assert_eq!(late.at, server.app.clock.now());
}

#[tokio::test]
async fn a_picture_of_before_this_server_led_is_given_to_nobody_once_it_does() {
    let server = server().await;
    let app = App {
        lead: Arc::default(),
        ..server.app.clone()
    };
    let views = Views::default();
    let before = views.get(&app).await;
    app.lead.begin();
    let after = views.get(&app).now_or_never();
    assert!(after.is_none(), "it is waited for");
    assert!(!Arc::ptr_eq(&views.get(&app).await, &before));
}

#[tokio::test]
async fn the_page_stands_while_it_is_rendered_anew_and_says_of_which_moment_it_is() {
    let server = server().await;
    let moment = |seconds: i64| text::rfc3339(fixture::NOW.shifted(seconds * 1_000_000_000));
    let is_of = async |seconds| server.get("/fleet").await.1.contains(&moment(seconds));
    assert!(is_of(0).await);
    server.pass(2);
    assert!(is_of(0).await, "nobody waits");
    while !is_of(2).await {
        tokio::task::yield_now().await;
    }
    server.pass(3);
    assert!(is_of(5).await, "the last one is too old");
}

#[tokio::test]
async fn what_the_page_does_not_show_of_a_request_makes_no_other_rendering() {
    let server = server().await;
    let pages = [("/fleet", "/fleet"), ("/clusters/prod", "/clusters/%70rod")];
    let mut first = Vec::new();
    for (address, _) in pages {
        first.push(server.get(address).await.1);
    }
    // Whatever is rendered from here on has it.
    let server = server.with_an_incident().await;
    for number in 0..10 {
        for ((_, other), first) in pages.iter().zip(&first) {
            let request = Request::get(format!("{other}?anything={number}"))
                .header(header::HOST, format!("host-{number}.example.org"));
            let answer = server.ask(request.body(Body::empty()).unwrap()).await;
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, first.as_bytes(), "{other} {number}");
        }
    }
    let (_, other) = server.get("/fleet?state=unallocated&anything=1").await;
    assert!(other.contains("GPU 5 of h100-03"), "{other}");
}

#[tokio::test]
async fn no_more_than_so_many_wait_for_their_rendering_and_the_others_are_told_so_at_once() {
    let server = server().await;
    server.get("/fleet").await;
    let mut asked = Vec::new();
    for state in State::ALL {
        for theme in ["system", "light", "dark"] {
            for encoding in ["identity", "gzip"] {
                let request = Request::get(format!("/fleet?state={}", state.name()))
                    .header(header::COOKIE, format!("gpufleet_theme={theme}"))
                    .header(header::ACCEPT_ENCODING, encoding);
                asked.push(server.ask(request.body(Body::empty()).unwrap()));
            }
        }
    }
    let answers = join_all(asked).await;
    let of = |status: StatusCode| answers.iter().filter(|it| it.status() == status).count();
    let (drawn, refused) = (of(StatusCode::OK), of(StatusCode::SERVICE_UNAVAILABLE));
    assert!(drawn >= 64 && refused > 0, "{drawn} drawn, {refused} not");
    assert_eq!(drawn + refused, answers.len());
    assert_eq!(server.get("/fleet").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_day_that_was_added_up_stands_while_the_next_one_is_and_not_for_ever() {
    let server = server().await;
    let is_drawn = async || {
        let (_, page) = server.get("/clusters/prod").await;
        page.contains("class=\"strip\"")
    };
    marks::added_up(&server, "/clusters/prod").await;
    assert!(is_drawn().await, "there is a day");
    // What is added up from here on does not come.
    server.store.close().await;
    for seconds in [30, 60, 120] {
        server.pass(seconds);
        assert!(is_drawn().await, "after {seconds} seconds more");
    }
    server.pass(120);
    assert!(!is_drawn().await, "it would be far behind its page");
}

#[tokio::test]
async fn the_pages_of_a_gpu_and_its_node_say_what_holds_it_in_its_workload_and_which() {
    let mut lives = fixture::fleet();
    let held = lives.iter_mut().find(|it| *it.resource.id == *GPU);
    let held = held.expect("the fixture's");
    let resource = Resource::clone(&held.resource)
        .with(attribute::WORKLOAD_ROLE, "decode")
        .with(attribute::WORKLOAD_INDEX, "1/3");
    held.resource = Arc::new(resource);
    let server = server_of(lives, false).await;
    let (_, page) = server.get(&format!("/clusters/prod/gpus/{GPU}")).await;
    for said in [
        "<dt>Role</dt><dd>decode</dd>",
        "<dt>Number in its workload</dt><dd>1/3</dd>",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    let (_, page) = server.get("/clusters/prod/nodes/h100-00").await;
    let said = "pod:research/train-7b-0 <span class=\"soft\">decode 1/3</span>";
    assert_eq!(page.matches(said).count(), 1, "{page}");
}

#[tokio::test]
async fn what_words_mean_and_names_in_full_are_there_without_a_mouse() {
    let mut lives = fixture::fleet();
    let held = lives.iter_mut().find(|it| *it.resource.id == *GPU);
    let held = held.expect("the fixture's");
    let long = format!("pod:research/{}", "n".repeat(80));
    let resource = Resource::clone(&held.resource).with(attribute::HOLDER, &*long);
    held.resource = Arc::new(resource);
    let server = server_of(lives, false).await;
    let card = format!("/clusters/prod/gpus/{GPU}");
    let full = format!("<dd>{long} (93 bytes in all)</dd>");
    let id = format!("<dt>GPU 0</dt><dd>{GPU}</dd>");
    let of_card = [
        "<dt>Utilisation</dt><dd>",
        "<dt>utilization</dt><dd>",
        &*full,
    ];
    let of_node = [&*id, "<dt>cpu busy</dt><dd>", &*full];
    let of_job = ["<dt>MFU</dt><dd>Model FLOPs", "<dt>loss</dt><dd>", "</dl>"];
    for (address, says) in [
        (card, of_card),
        ("/clusters/prod/nodes/h100-00".to_owned(), of_node),
        (jobs::address(jobs::JOB), of_job),
    ] {
        let (_, page) = server.get(&address).await;
        let (_, rest) = page
            .split_once("<summary>What these mean</summary>")
            .unwrap_or_else(|| panic!("{address}: {page}"));
        let meanings = rest.split_once("</details>").expect("it ends").0;
        for said in says {
            assert!(meanings.contains(said), "{address}: {said}: {meanings}");
        }
        for hidden in ["<dt title=", "<b title=", "<td title="] {
            assert!(!page.contains(hidden), "{address}: {hidden}: {page}");
        }
    }
}
