//! The first page of the day, and its twin in the API.

use futures::FutureExt;
use gpufleet_analysis::owner::Payer;
use gpufleet_analysis::states::Recent;
use gpufleet_telemetry::gpu_specs::Specs;

use super::*;
use crate::auth::Grant;
use crate::money::advice::round;
use crate::money::savings::reached::{Like, Reached};
use crate::money::savings::{RightSize, Savings};
use crate::today::Todays;
use crate::view::FleetView;

/// The card of the fixture at ten dollars an hour: a GPU-day is $240.
pub(super) async fn priced(lives: Vec<Live>) -> Fixture {
    let mut config = Config::for_tests();
    let card = "NVIDIA H100 80GB HBM3".to_owned();
    config.detect.gpu_hour_usd.insert(card, "10".to_owned());
    server_with(config, lives, false).await
}

/// The section of an origin, and its row of a kind about a place.
fn row<'a>(today: &'a Value, origin: &str, kind: &str) -> Option<&'a Value> {
    let sections = today["sections"].as_array().unwrap();
    let section = sections.iter().find(|it| it["origin"] == origin).unwrap();
    let rows = section["waste"].as_array().unwrap();
    rows.iter().find(|it| it["kind"] == kind)
}

/// Whole dollars: a GPU's second costs a third of a nano-dollar too much.
pub(super) fn dollars(nano: &Value) -> i64 {
    (nano.as_f64().expect("it has a price") / 1e9).round() as i64
}

#[tokio::test]
async fn what_nobody_holds_is_ranked_by_its_price_with_what_to_do_and_what_is_simulated_is_apart() {
    let server = priced(fixture::fleet()).await;
    let today = server.json("/api/v1/today").await;
    let live = &today["sections"][0];
    assert_eq!(live["origin"], "live");
    let free = row(&today, "live", "free").expect("a whole node is free");
    assert_eq!(dollars(&free["nano_per_day"]), 8 * 240);
    assert_eq!(free["what"], "8 GPUs on 1 node that nobody holds");
    assert_eq!(free["owner"], "platform");
    assert!(
        free["action"]
            .as_str()
            .unwrap()
            .contains("the node that is free as a whole")
    );
    assert_eq!(dollars(&live["waste_nano_per_day"]), 8 * 240);
    assert_eq!(dollars(&live["nano_per_day"]), 73 * 240);
    let simulated = row(&today, "simulated", "free").expect("three nodes are free");
    assert_eq!(dollars(&simulated["nano_per_day"]), 24 * 240);
    let said = live["not_measured"].to_string();
    assert!(said.contains("1 running job is not compared"), "{said}");
    for words in ["8 GPUs are not measured", "3 GPUs are measured, holder"] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    assert_eq!(live["counts"]["holder_unknown"], 3);
    assert_eq!(today["recorded_gpus"], 1);
    let (status, page) = server.get("/").await;
    assert_eq!(status, StatusCode::OK);
    for words in [
        "53 of 73 GPUs at work, 8 idle, 1 lost or unhealthy, 8 not measured, 3 holder unknown",
        "In no live total: 64 GPUs simulated and 1 GPU recorded.",
        "$1\u{202f}920.00",
        "SIMULATED",
        "href=\"/fleet?state=unallocated\"",
        "silent",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
}

#[tokio::test]
async fn who_could_do_with_less_is_said_of_nobody_who_was_not_measured_for_a_day() {
    let server = priced(fixture::fleet()).await;
    let savings = server.json("/api/v1/savings").await;
    assert_eq!(
        (&savings["right_size"], &savings["shutdown"]),
        (&serde_json::json!([]), &serde_json::json!([]))
    );
    let why = savings["not_proposed"].to_string();
    assert!(why.contains("held for less than a day"), "{savings}");
    let (status, page) = server.get("/cost").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        page.contains("held for less than a day") && !page.contains("Could be saved"),
        "{page}"
    );
}

#[tokio::test]
async fn what_could_be_saved_is_kept_for_later_though_nobody_waited_for_it() {
    let server = priced(fixture::fleet()).await;
    let (app, specs) = (&server.app, Arc::new(Specs::default()));
    let (grant, at) = (Grant::default(), server.app.clock.now());
    let first = app.savings.last(app, &specs, &grant, at);
    assert!(first.is_none(), "it is being made");
    assert!(app.savings.kept_for_tests(app).await.is_some());
}

#[tokio::test]
async fn advice_is_kept_from_the_first_round_of_the_server_that_leads_on() {
    let server = priced(fixture::fleet()).await;
    let (app, day) = (
        &server.app,
        fixture::NOW..fixture::NOW.shifted(86_400_000_000_000),
    );
    let since = async || app.store.advice(day.clone(), None).await.unwrap().1;
    let mut book = None;
    round(app, &mut book).await.unwrap();
    assert!(
        book.is_none() && since().await.is_none(),
        "it does not lead"
    );
    let length = Duration::from_secs(15);
    let lease = app.store.acquire_lease("test", fixture::NOW, length).await;
    app.money.leads(lease.unwrap().token);
    round(app, &mut book).await.unwrap();
    assert_eq!(since().await, Some(fixture::NOW));
}

#[tokio::test]
async fn who_could_do_with_less_is_a_row_beside_the_sum_that_leads_to_its_figures() {
    let server = priced(fixture::fleet()).await;
    let payer = Payer::Team("science".to_owned());
    let saved = Savings {
        currency: "USD".to_owned(),
        right_size: vec![RightSize::for_tests(HOSTILE, payer)],
        ..Savings::default()
    };
    let before = server.json("/api/v1/today").await;
    assert_eq!(row(&before, "live", "right_size"), None);
    let said = before["sections"][0]["not_measured"].to_string();
    assert!(said.contains("not worked out yet"), "{said}");
    // Each job that is compared with no target is named with what it lacks.
    let lacks = "1 running job is not compared with a target of MFU: ";
    assert!(said.contains(lacks), "{said}");
    assert!(said.contains("llama (the run gives no FLOPs)."), "{said}");

    let server = priced(fixture::fleet()).await;
    server.app.savings.put_for_tests(&server.app, saved).await;
    let today = server.json("/api/v1/today").await;
    let found = row(&today, "live", "right_size").expect("it could do with less");
    assert_eq!(dollars(&found["nano_per_day"]), 1_760);
    assert_eq!(
        (&found["is_in_sum"], &found["owner"]),
        (&false.into(), &"science".into())
    );
    let sum = &today["sections"][0]["waste_nano_per_day"];
    assert_eq!(dollars(sum), 8 * 240, "what works is no waste");
    let said = today["sections"][0]["not_measured"].to_string();
    assert!(!said.contains("not worked out yet"), "{said}");
    let (_, page) = server.get("/").await;
    for words in [
        "right-size",
        "4 of small would do",
        "href=\"/cost#saved-live\"",
        "Not in the sum.",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    let (_, page) = server.get("/cost").await;
    assert!(page.contains("id=\"saved-live\""), "{page}");
}

#[tokio::test]
async fn no_page_waits_for_what_could_be_saved_and_the_last_answer_stands_until_the_next() {
    let server = priced(fixture::fleet()).await;
    // Of a large fleet it takes long; here it is never done.
    server.app.savings.stuck_for_tests(&server.app);
    for (address, words) in [
        ("/", "not worked out yet"),
        ("/api/v1/today", "not worked out yet"),
        ("/cost", "it is being worked out"),
    ] {
        let (status, page) = server.get(address).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        assert!(page.contains(words), "{address}: {page}");
    }
    let (status, said) = server.get("/api/v1/savings").await;
    assert_eq!(status, StatusCode::ACCEPTED, "{said}");
    assert!(said.contains("ask again"), "{said}");

    let server = priced(fixture::fleet()).await;
    let payer = Payer::Team("science".to_owned());
    let saved = Savings {
        currency: "USD".to_owned(),
        right_size: vec![RightSize::for_tests("job:ml/train", payer)],
        ..Savings::default()
    };
    server.app.savings.put_for_tests(&server.app, saved).await;
    // That of a server's first moments is fresh for a minute.
    server.pass(61);
    server.app.savings.stuck_for_tests(&server.app);
    for address in ["/", "/api/v1/today", "/cost", "/api/v1/savings"] {
        let (status, page) = server.get(address).await;
        assert_eq!(status, StatusCode::OK, "{address}");
        assert!(page.contains("job:ml/train"), "{address}: {page}");
    }
}

#[tokio::test]
async fn what_has_no_price_is_told_in_gpus_and_never_as_nothing() {
    let server = server().await;
    let today = server.json("/api/v1/today").await;
    let free = row(&today, "live", "free").unwrap();
    assert_eq!(
        (&free["nano_per_day"], &free["gpus"]),
        (&Value::Null, &8.0.into())
    );
    assert_eq!(today["sections"][0]["waste_nano_per_day"], Value::Null);
    let (_, page) = server.get("/").await;
    assert!(page.contains("<b>8 GPUs</b>") && page.contains("no GPU has a price"));
    assert!(!page.contains('$'), "what is not known is not $0.00");
}

#[tokio::test]
async fn a_gpu_that_works_for_over_a_minute_and_that_nobody_holds_is_not_measured_and_no_waste() {
    let at_work = |ticks: i64| {
        let gpu = |does| fixture::gpu("prod", "h100-09", 0, does, Origin::Live);
        let mut stray = gpu(Does::Work);
        stray.resource = gpu(Does::Nothing).resource;
        stray.bits.held = 0;
        stray.recent = Recent::default();
        for tick in (0..ticks).rev() {
            let start = stray.bits_start.shifted(-tick * 10_000_000_000);
            stray.recent.tick(start, 10, &stray.bits, true);
        }
        priced(vec![stray])
    };
    // As long as the agent's own probe may take, it is free.
    let today = at_work(6).await.json("/api/v1/today").await;
    let free = row(&today, "live", "free").expect("nobody holds it");
    assert_eq!(free["what"], "1 GPU on 1 node that nobody holds");
    let server = at_work(7).await;
    let today = server.json("/api/v1/today").await;
    assert_eq!(row(&today, "live", "free"), None);
    let live = &today["sections"][0];
    assert_eq!(live["counts"]["by_state"]["unobserved"], 1, "{live}");
    assert_eq!(dollars(&live["waste_nano_per_day"]), 0);
    let spots = live["blind_spots"].to_string();
    assert!(
        spots.contains("holder unknown") && spots.contains("nvidia-smi"),
        "{spots}"
    );
    let (_, page) = server
        .get("/clusters/prod/gpus/GPU-prod-h100-09-0000")
        .await;
    assert!(page.contains("Who holds it is not known."), "{page}");
}

#[tokio::test]
async fn gpus_that_are_not_measured_are_not_told_as_none_that_is_idle() {
    let silent = |index| fixture::gpu("prod", "dark", index, fixture::Does::Silent, Origin::Live);
    let server = priced((0..2).map(silent).collect()).await;
    let (_, page) = server.get("/").await;
    assert!(page.contains("no GPU is measured"), "{page}");
    assert!(!page.contains("<dd>0 GPUs"), "{page}");
}

/// The fixture's fleet, in which four GPUs have been held and idle for ten minutes.
fn with_idle() -> Vec<Live> {
    let mut lives = fixture::fleet();
    for it in lives.iter_mut().filter(|it| &*it.node == "h100-06") {
        let (bits, end) = (it.bits, it.bits_start);
        if bits.active != 0 {
            continue;
        }
        it.recent = Recent::default();
        for tick in (0..60).rev() {
            it.recent
                .tick(end.shifted(-tick * 10_000_000_000), 10, &bits, true);
        }
    }
    lives
}

#[tokio::test]
async fn a_request_whose_time_is_up_leaves_its_answer_to_the_next() {
    let server = server().await;
    let access = Access::load(&AuthConfig::default()).unwrap();
    let (config, store) = (Config::for_tests(), server.store.clone());
    let app = App::new(config, store, access, Arc::new(Hand::at(fixture::NOW)));
    let specs = Arc::new(Specs::with(&app.config.gpu.peaks).unwrap());
    let (todays, grant) = (Todays::default(), Grant::default());
    let seen_at = |seconds: i64| {
        let at = fixture::NOW.shifted(seconds * 1_000_000_000);
        Arc::new(FleetView {
            at,
            ..FleetView::default()
        })
    };
    let (first, second) = (seen_at(0), seen_at(1));
    let mut given_up = Box::pin(todays.get(&app, &first, &specs, &grant));
    assert!((&mut given_up).now_or_never().is_none());
    drop(given_up);
    let next = todays.get(&app, &second, &specs, &grant).await;
    assert_eq!(next.at, fixture::NOW, "it is the one that was begun");
}

fn stalled() -> Signal {
    Signal {
        family: Family::Stalled,
        place: Place {
            cluster: "prod".to_owned(),
            run: Some("pod:research/train-7b".to_owned()),
            ..Place::default()
        },
        severity: Severity::Warning,
        what: HOSTILE.to_owned(),
        action: "Look what it waits for.".to_owned(),
        remedy: Remedy::Look,
        cause: Cause::Unknown,
        since: None,
        readings: Vec::new(),
        price: Price::of(Basis::BrokenGpu, Losing::gpus(4, Some(1_000_000_000))),
        confidence: None,
        booted_at: None,
    }
}

#[tokio::test]
async fn a_gpu_that_waits_for_what_an_incident_names_is_in_one_row_only() {
    let today = priced(with_idle()).await.json("/api/v1/today").await;
    let held = row(&today, "live", "held_empty").expect("a job holds four and uses none");
    assert_eq!(dollars(&held["nano_per_day"]), 4 * 240);
    assert_eq!(held["place"], "pod:research/train-7b");
    assert_eq!(held["owner"], "unowned");
    let server = priced(with_idle()).await.with(stalled()).await;
    let today = server.json("/api/v1/today").await;
    assert_eq!(row(&today, "live", "held_empty"), None);
    let stalled = row(&today, "live", "stalled").expect("the incident counts them");
    assert_eq!(dollars(&stalled["nano_per_day"]), 4 * 86_400);
    assert_eq!(stalled["incident"], INCIDENT);
    assert_eq!(stalled["owner"], "unowned");
    let (_, page) = server.get("/").await;
    assert!(page.contains(&format!("/incidents/{INCIDENT}")));
    assert!(!page.contains("<img") && !page.contains('\u{202e}'));
}

#[tokio::test]
async fn a_run_that_broke_off_costs_the_steps_since_its_checkpoint_on_its_gpus() {
    let server = priced(fixture::fleet()).await;
    jobs::put_one(&server, "team/lost/u3", GPU, true).await;
    let today = server.json("/api/v1/today").await;
    let sections = &today["sections"][0]["waste"];
    let rows = sections.as_array().unwrap().iter();
    let of = |name: &str| rows.clone().find(|it| it["place"] == name).unwrap();
    let lost = of("lost");
    assert_eq!(lost["kind"], "failed_run");
    // A minute of a GPU.
    assert_eq!(lost["nano_per_day"].as_i64().unwrap() / 1_000_000, 166);
    assert!(
        lost["what"]
            .as_str()
            .unwrap()
            .contains("60 steps done again"),
        "{lost}"
    );
    let dead = of("dead");
    assert_eq!(dead["nano_per_day"], Value::Null, "it told no checkpoint");
    assert!(
        dead["what"].as_str().unwrap().contains("is not known"),
        "{dead}"
    );
}

#[tokio::test]
async fn a_run_below_its_target_is_ranked_and_in_no_sum() {
    let server = priced(fixture::fleet()).await;
    let before = server.json("/api/v1/today").await;
    let server = priced(fixture::fleet()).await;
    jobs::put_one(&server, "team/slow/u4", GPU, false).await;
    let today = server.json("/api/v1/today").await;
    let slow = row(&today, "live", "below_target").expect("20 % of 40 %");
    assert_eq!(slow["place"], "slow");
    assert_eq!(slow["gpus"], 0.5);
    assert_eq!(slow["is_in_sum"], false);
    assert_eq!(dollars(&slow["nano_per_day"]), 120);
    let sum = |it: &Value| it["sections"][0]["waste_nano_per_day"].clone();
    assert_eq!(sum(&today), sum(&before));
}

#[tokio::test]
async fn a_run_is_held_against_the_mfu_of_its_own_that_a_table_says() {
    let folder = tempfile::tempdir().unwrap();
    for (least, row_of) in [
        ("0.15", None),
        ("0.25", Some("below the target of 25 % (from the tables)")),
    ] {
        let table = folder.path().join("targets.csv");
        let rows = format!(
            "from,until,cluster,team,job,measure,least\n2020-01-01,,prod,,slow,mfu,{least}\n"
        );
        std::fs::write(&table, rows).unwrap();
        let mut config = Config::for_tests();
        config.cost.tables = vec![table.display().to_string()];
        let server = server_with(config, fixture::fleet(), false).await;
        jobs::put_one(&server, "team/slow/u4", GPU, false).await;
        let today = server.json("/api/v1/today").await;
        let slow = row(&today, "live", "below_target").map(|it| it["what"].as_str().unwrap());
        match row_of {
            None => assert_eq!(slow, None, "20 % of 15 %"),
            Some(says) => assert!(slow.is_some_and(|it| it.contains(says)), "{slow:?}"),
        }
    }
}

#[tokio::test]
async fn a_run_without_a_target_is_held_against_what_five_runs_like_it_reached() {
    for (runs, says) in [
        (4, "40 % (default)"),
        (5, "30 % (75th percentile of 5 runs like it)"),
    ] {
        let server = priced(fixture::fleet()).await;
        let like = Like {
            origin: Origin::Live,
            card: "NVIDIA H100 80GB HBM3".to_owned(),
            model: "Llama".to_owned(),
            data_type: "bf16".to_owned(),
            world: 1,
        };
        let saved = Savings {
            reached: Reached::of((0..runs).map(|_| (like.clone(), 0.3))),
            ..Savings::default()
        };
        server.app.savings.put_for_tests(&server.app, saved).await;
        jobs::put_one(&server, "team/slow/u4", GPU, false).await;
        let today = server.json("/api/v1/today").await;
        let slow = row(&today, "live", "below_target").expect("20 % of either");
        assert!(slow["what"].as_str().unwrap().ends_with(says), "{slow}");
    }
}

#[tokio::test]
async fn what_changed_since_yesterday_is_there_newest_first() {
    let mut lives = fixture::fleet();
    for it in lives.iter_mut().filter(|it| &*it.node == "h100-02") {
        it.first_seen = fixture::NOW.shifted(-3_600_000_000_000);
    }
    let server = priced(lives).await.with_an_incident().await;
    let today = server.json("/api/v1/today").await;
    let changes = today["sections"][0]["changes"].as_array().unwrap();
    let kinds: Vec<_> = changes
        .iter()
        .map(|it| it["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["incident_opened", "new_nodes"]);
    assert!(changes[1]["what"].as_str().unwrap().contains("h100-02"));
    let (_, page) = server.get("/").await;
    assert!(
        page.contains("Since yesterday") && page.contains("h100-02 reported for the first time")
    );
}

#[tokio::test]
async fn where_live_nodes_tell_of_no_gpu_that_is_said_and_nothing_is_counted_or_priced() {
    let nodes = ["cpu-0", "cpu-1"].map(|it| fixture::machine("prod", it, Origin::Live));
    let server = server_of(nodes.to_vec(), false).await;
    let today = server.json("/api/v1/today").await;
    let live = &today["sections"][0];
    assert_eq!(
        (&live["nodes"], &live["counts"]["gpus"]),
        (&2.into(), &0.into())
    );
    let why = "2 nodes report and none tells of a GPU; gpufleet-agent doctor on the node says why";
    assert_eq!(live["no_gpus"], why);
    let (_, page) = server.get("/").await;
    let says = format!("<a class=\"missing\" href=\"/health#readers\">{why}</a>");
    assert!(page.contains(&says), "{page}");
    for never in [
        "no GPU has a price",
        "<dt>Idle</dt>",
        "fleet-bar",
        "GPUs by state",
    ] {
        assert!(!page.contains(never), "{never}: {page}");
    }
    let (_, health) = server.get("/health").await;
    assert!(health.contains(" id=\"readers\""), "{health}");
    let silent = nodes.map(|it| Live {
        last_point: fixture::NOW.shifted(-754_000_000_000),
        received: fixture::NOW.shifted(-754_000_000_000),
        ..it
    });
    let server = server_of(silent.to_vec(), false).await;
    let today = server.json("/api/v1/today").await;
    let why = today["sections"][0]["no_gpus"].as_str().unwrap();
    assert!(why.starts_with("No node reports now"), "{why}");
    let (_, page) = super::server().await.get("/").await;
    assert!(
        page.contains("fleet-bar") && page.contains("<dt>Idle</dt>"),
        "{page}"
    );
}
