//! The map of ranks and time on a job's page, of runs of all sizes, and for how long it and goodput stand.

use super::*;
use crate::pages::run::Goodputs;
use crate::runs::history;

#[tokio::test]
async fn a_map_of_ranks_offers_no_stretch_of_time_that_it_cannot_show() {
    let server = server().await;
    let many = "team/many/u9";
    let (runs, cluster) = (server.fleet.runs(), Arc::<str>::from("prod"));
    for number in 0..=u32::try_from(history::MAX_RANKS_READ).unwrap() {
        let key = RunKey::of(&cluster, &rank_id(many, number));
        runs.steps(&key, number, &block(110, 600), heard(120))
            .unwrap();
    }
    for (job, maps_from, has_ranges) in [
        (JOB, "2026-09-21 02:14:10", true),
        (many, "2026-09-21 14:13:50", false),
    ] {
        let (status, page) = server.get(&format!("{}?minutes=720", address(job))).await;
        assert_eq!(status, StatusCode::OK, "{job}: {page}");
        let section = |name: &str| {
            let (_, rest) = page.split_once(&format!("data-live=\"{name}\"")).unwrap();
            rest.split_once("</section>").unwrap().0
        };
        let (heat, loss) = (section("heat"), section("loss"));
        let tab = "aria-current=\"true\">12 h</a>";
        assert_eq!(heat.contains(tab), has_ranges, "{job}: {heat}");
        assert_eq!(loss.contains(tab), !has_ranges, "{job}: {loss}");
        let begins = format!("<div class=\"strip-times\"><span>{maps_from}</span>");
        assert!(heat.contains(&begins), "{job}: {heat}");
        let why = "Of a run of more than 256 ranks only the last minutes are shown, from 2026-09-21 14:13:50 UTC on.";
        assert_eq!(heat.contains(why), !has_ranges, "{job}: {heat}");
    }
}

#[tokio::test]
async fn a_map_stands_while_the_next_is_drawn_for_who_looks_as_far_back_and_not_for_ever() {
    let server = server().await;
    let is_drawn = async |minutes: u32| {
        let (_, page) = server
            .get(&format!("{}?minutes={minutes}", address(JOB)))
            .await;
        page.contains("<svg class=\"heat\"")
    };
    assert!(is_drawn(30).await, "there are steps");
    // What is drawn from here on is without them.
    server.store.close().await;
    assert!(!is_drawn(120).await, "it is a map of its own");
    for seconds in [9, 20] {
        server.pass(seconds);
        assert!(is_drawn(30).await, "after {seconds} seconds more");
    }
    server.pass(1);
    assert!(!is_drawn(30).await, "after thirty");
}

#[tokio::test]
async fn goodput_stands_while_the_next_is_added_up_and_says_until_when_it_goes() {
    let server = server().await;
    let (goodputs, attempts) = (Goodputs::default(), Arc::default());
    let key = RunKey::of(&"prod".into(), &rank_id(JOB, 0));
    let run = Arc::new(server.fleet.runs().get(&key).unwrap());
    let get = async || {
        let (of, now) = ((&key, &run), server.app.clock.now());
        goodputs.added_up(&server.app, of, &attempts, now).await
    };
    let first = get().await.unwrap();
    assert!(first.goodput.is_ok(), "{first:?}");
    assert_eq!(first.until, fixture::NOW);
    // What is added up from here on does not come.
    server.store.close().await;
    for seconds in [9, 20] {
        server.pass(seconds);
        let told = get().await.unwrap();
        assert_eq!(told, first, "after {seconds} seconds more");
    }
    server.pass(1);
    assert!(get().await.is_err(), "after thirty");
}

#[tokio::test]
async fn the_api_tells_the_goodput_that_stands_on_the_page() {
    let server = server().await;
    server.get(&address(JOB)).await;
    server.pass(9);
    let run = format!("/api/v1/runs/prod/{}/0", segment(JOB));
    let found = server.json(&run).await;
    assert_eq!(
        found["goodput_ratio"]["value"],
        72.0 / 130.0,
        "of nine seconds ago"
    );
}
