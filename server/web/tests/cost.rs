//! The money on the web port: the page, the reports, and what they refuse.

use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::training::RunId;

use super::*;
use crate::auth::Grant;
use crate::money::Terms;
use crate::money::now::{self, MoneySnapshot};
use crate::money::savings::Savings;
use crate::runs::{KnownRun, RankFacts, Run, RunFacts, RunKey, cost};
use crate::words::text;

mod owners;

#[tokio::test]
async fn the_page_names_what_is_idle_and_what_has_no_price_with_the_line_that_mends_it() {
    let (status, page) = server().await.get("/cost").await;
    assert_eq!(status, StatusCode::OK);
    for words in [
        "Idle now:",
        "<b>September 2026: the ledger has no hours yet</b>.",
        "without a price",
        "[detect.gpu_hour_usd]",
        "SIMULATED",
        "The ledger has no hours of this month yet",
        // Who closes the books in the first days of a month wants the one before.
        "format=html&amp;by=team,job&amp;month=2026-08\"",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    assert!(
        !page.contains("$0.00"),
        "what is not known is not shown as nothing"
    );
}

#[tokio::test]
async fn a_month_that_is_over_has_a_page_without_what_is_idle_now_and_one_to_come_has_none() {
    let server = server().await;
    let (_, page) = server.get("/cost").await;
    let before = "<a href=\"/cost?month=2026-08\">August 2026</a>";
    assert!(page.contains(before), "{page}");
    let (status, page) = server.get("/cost?month=2026-08").await;
    assert_eq!(status, StatusCode::OK);
    for words in [
        "<b>August 2026: the ledger has no hours</b>.",
        "<h2>Live clusters: August 2026</h2>",
        "The ledger has no hours of August 2026.",
        "<a href=\"/cost\">September 2026</a>",
        "by=team,job&amp;month=2026-07\">the month before</a>",
    ] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    for words in ["Idle now:", "Without a price", "/cost?month=2026-07"] {
        assert!(!page.contains(words), "{words} is in {page}");
    }
    for (month, says) in [
        ("2026-10", "October 2026 has not begun"),
        ("soon", "is no month"),
    ] {
        let (status, page) = server.get(&format!("/cost?month={month}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{month}");
        assert!(page.contains(says), "{page}");
    }
}

#[tokio::test]
async fn a_month_stands_while_the_next_one_is_made_and_not_for_ever() {
    let server = server().await;
    super::filled::fill(&server).await;
    let added_up = format!("Added up at {} UTC", text::moment(fixture::NOW));
    let months = async || server.get("/cost").await.1.contains(&added_up);
    assert!(months().await, "it is made");
    // What is made from here on does not come.
    server.store.close().await;
    for seconds in [59, 840] {
        server.pass(seconds);
        assert!(months().await, "after {seconds} seconds more");
    }
    let now = format!("As of {} UTC", text::moment(server.app.clock.now()));
    let (_, page) = server.get("/cost").await;
    assert!(page.contains(&now), "what is idle is newer: {page}");
    server.pass(1);
    assert!(!months().await, "it would be far behind its page");
}

#[tokio::test]
async fn a_month_at_the_prices_of_before_is_given_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("targets.csv");
    let write = |least: f64| {
        let head = "from,until,cluster,team,job,measure,least";
        let rows = format!("{head}\n2026-01-01,,prod,ml,,sm_active,{least}\n");
        std::fs::write(&table, rows).unwrap();
    };
    write(0.5);
    let mut config = Config::for_tests();
    config.cost.tables = vec![table.display().to_string()];
    let server = server_with(config, fixture::fleet(), false).await;
    let status = async || server.get("/cost").await.0;
    assert_eq!(status().await, StatusCode::OK);
    let refresh = async || {
        let (app, store) = (&server.app, &server.store);
        app.money.refresh(store, &app.config).await.unwrap().number
    };
    let before = refresh().await;
    assert_eq!(before, refresh().await, "nothing changed");
    assert_eq!(status().await, StatusCode::OK);
    write(0.6);
    assert_ne!(before, refresh().await);
    // What is made from here on does not come.
    server.store.close().await;
    assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn who_asks_within_a_second_shares_one_walk_of_the_fleet() {
    let server = server().await;
    let grants = [None, None, Some("prod"), Some("demo")];
    let mut walks = Vec::new();
    for cluster in grants {
        let grant = Grant {
            cluster: cluster.map(Arc::from),
        };
        let (app, terms) = (&server.app, server.app.money.terms());
        walks.push(now::walked(app, &terms, &grant, app.clock.now()).await);
    }
    assert!(Arc::ptr_eq(&walks[0], &walks[1]));
    // And nobody sees what another may.
    let clusters = |it: &MoneySnapshot| it.all.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(clusters(&walks[2]), ["prod"]);
    assert_eq!(clusters(&walks[3]), ["demo"]);
    assert!(walks[0].all.len() >= 2);
    let other = Arc::new(Terms::of(server.app.money.terms().sources.clone()));
    let all = Grant::default();
    let by_other = now::walked(&server.app, &other, &all, server.app.clock.now()).await;
    assert!(!Arc::ptr_eq(&walks[0], &by_other), "at other prices");
    server.pass(10);
    let (app, terms) = (&server.app, server.app.money.terms());
    let later = now::walked(app, &terms, &Grant { cluster: None }, app.clock.now()).await;
    assert!(
        !Arc::ptr_eq(&walks[0], &later),
        "nobody is told what is older"
    );
}

#[tokio::test]
async fn each_gpu_of_a_node_costs_what_its_own_model_does() {
    let of = |index| fixture::gpu("prod", "desk", index, Does::Nothing, Origin::Live);
    let (dear, mut cheap) = (of(0), of(1));
    let other = Resource::clone(&cheap.resource).with(attribute::GPU_MODEL, "NVIDIA L4");
    cheap.resource = Arc::new(other);
    let mut config = Config::for_tests();
    let prices = [("NVIDIA H100 80GB HBM3", "3.6"), ("NVIDIA L4", "0.36")];
    let prices = prices.map(|it| (it.0.to_owned(), it.1.to_owned()));
    config.detect.gpu_hour_usd = prices.into_iter().collect();
    let ids = [&dear, &cheap].map(|it| Arc::clone(&it.key.id));
    let server = server_with(config, vec![dear, cheap], false).await;
    let (app, terms) = (&server.app, server.app.money.terms());
    let found = now::walked(app, &terms, &Grant { cluster: None }, app.clock.now()).await;
    let second = |id: &str| found.gpu("prod", id).and_then(|it| it.second);
    assert_eq!(ids.map(|it| second(&it)), [Some(1_000_000), Some(100_000)]);
}

#[tokio::test]
async fn a_rank_on_a_mig_instance_costs_that_part_of_its_card() {
    let mut share = fixture::gpu("prod", "desk", 0, Does::Work, Origin::Live);
    let (id, whole) = (Arc::clone(&share.key.id), Arc::clone(&share.resource));
    share.key.kind = ResourceKind::Share;
    let mut config = Config::for_tests();
    let price = ("NVIDIA H100 80GB HBM3".to_owned(), "3.6".to_owned());
    config.detect.gpu_hour_usd = [price].into();
    let rank = RankFacts {
        gpu: Arc::clone(&id),
        ..RankFacts::default()
    };
    let key = RunKey {
        cluster: "prod".into(),
        run: RunId::parse("n/job/u/0").expect("an id"),
    };
    let run = Run::of_store(KnownRun {
        key: key.clone(),
        facts: RunFacts::default(),
        ranks: vec![(0, rank)],
        is_part: false,
    });
    for (slices, hour) in [("1/7", Some(514_285_714)), ("", None)] {
        let told = Resource::clone(&whole).with(attribute::MIG_SLICES, slices);
        share.resource = Arc::new(Resource {
            kind: ResourceKind::Share,
            ..told
        });
        let server = server_with(config.clone(), vec![share.clone()], false).await;
        let price = cost::price(&server.app, (&key, &run));
        assert_eq!(price.clone().ok(), hour, "{slices}: {price:?}");
    }
}

#[tokio::test]
async fn a_rank_that_computes_on_more_gpus_than_it_names_has_no_price() {
    let card = fixture::gpu("prod", "desk", 0, Does::Work, Origin::Live);
    let mut config = Config::for_tests();
    let price = ("NVIDIA H100 80GB HBM3".to_owned(), "3.6".to_owned());
    config.detect.gpu_hour_usd = [price].into();
    let rank = RankFacts {
        gpu: Arc::clone(&card.key.id),
        ..RankFacts::default()
    };
    let key = RunKey {
        cluster: "prod".into(),
        run: RunId::parse("n/job/u/0").expect("an id"),
    };
    let mut run = Run::of_store(KnownRun {
        key: key.clone(),
        facts: RunFacts::default(),
        ranks: vec![(0, rank)],
        is_part: false,
    });
    let server = server_with(config, vec![card], false).await;
    for (gpus, hour) in [("1", Some(3_600_000_000)), ("4", None)] {
        let pair = ("gpus_per_process".to_owned(), gpus.to_owned());
        run.facts.fingerprint.extend([pair]);
        let price = cost::price(&server.app, (&key, &run));
        assert_eq!(price.clone().ok(), hour, "{gpus}: {price:?}");
    }
}

#[tokio::test]
async fn a_card_is_one_gpu_without_a_price_or_an_owner_however_many_replicas_it_has() {
    let card = fixture::gpu("prod", "desk", 0, Does::Unknown, Origin::Live);
    let replica = |number: u32| {
        let mut it = fixture::gpu("prod", "desk", number + 1, Does::Work, Origin::Live);
        let told = Resource::clone(&it.resource).with(attribute::PARENT, &*card.key.id);
        let told = told.with(attribute::REPLICA_OF, &*card.key.id);
        it.resource = Arc::new(Resource {
            kind: ResourceKind::Share,
            ..told.with(attribute::REPLICAS, "4")
        });
        it.key.kind = ResourceKind::Share;
        it
    };
    let all = [vec![card.clone()], (0..4).map(replica).collect()].concat();
    let server = server_of(all, false).await;
    let (app, terms) = (&server.app, server.app.money.terms());
    let found = now::walked(app, &terms, &Grant { cluster: None }, app.clock.now()).await;
    let unpriced: Vec<usize> = found.unpriced.values().map(BTreeSet::len).collect();
    assert_eq!(unpriced, [1]);
    let unowned: Vec<usize> = found.unowned.values().map(|it| it.cards.len()).collect();
    assert_eq!(unowned, [1]);
    assert!(found.idle.is_empty(), "{:?}", found.idle);
}

#[tokio::test]
async fn what_mig_instances_leave_of_their_card_is_free_and_costs_its_part() {
    let card = fixture::gpu("prod", "desk", 0, Does::Unknown, Origin::Live);
    let told = Resource::new(ResourceKind::Share, "MIG-1");
    let told = told.with(attribute::PARENT, &*card.key.id);
    let told = told.with(attribute::GPU_MODEL, "NVIDIA H100 80GB HBM3");
    let mut share = fixture::gpu("prod", "desk", 1, Does::Work, Origin::Live);
    share.resource = Arc::new(told.with(attribute::MIG_SLICES, "1/7"));
    (share.key.kind, share.key.id) = (ResourceKind::Share, "MIG-1".into());
    let mut config = Config::for_tests();
    let price = ("NVIDIA H100 80GB HBM3".to_owned(), "7".to_owned());
    config.detect.gpu_hour_usd = [price].into();
    let id = Arc::clone(&card.key.id);
    let server = server_with(config, vec![card, share], false).await;
    let (app, terms) = (&server.app, server.app.money.terms());
    let found = now::walked(app, &terms, &Grant { cluster: None }, app.clock.now()).await;
    let idle: Vec<_> = found.idle.iter().map(|it| (&it.key.id, it.part)).collect();
    assert_eq!(idle, [(&id, (6, 7))]);
    assert_eq!(now::milli_gpus(&found.idle), 857);
    let dollars = |nano: i128| (nano as f64 / 1e9 * 100.0).round() / 100.0;
    let day = found.idle[0].day_cost.map(dollars);
    assert_eq!(day, Some(144.0), "6 of 7 dollars an hour");
    let hour = found.hour_cost.get(&Origin::Live).copied().map(dollars);
    assert_eq!(hour, Some(7.0), "as in the month");
    assert!(
        found.gpu("prod", &id).is_none(),
        "it is no GPU of anybody's"
    );
}

#[tokio::test]
async fn the_page_leads_to_the_dashboard_on_cost_where_grafana_is_known() {
    let words = "the dashboard on cost";
    let (_, page) = server().await.get("/cost").await;
    assert!(!page.contains(words), "{page}");
    let mut config = Config::for_tests();
    config.cost.dashboard_url = "https://grafana.example/d/gpufleet-cost?a=1&b=\"".to_owned();
    let server = server_with(config, fixture::fleet(), false).await;
    let (_, page) = server.get("/cost").await;
    let link = "<a href=\"https://grafana.example/d/gpufleet-cost?a=1&#38;b=&#34;\">";
    assert!(page.contains(&format!("{link}{words}</a>")), "{page}");
}

#[tokio::test]
async fn idle_gpus_of_one_holder_are_one_row_with_the_gpus_behind_it() {
    let (_, page) = server().await.get("/cost").await;
    let (_, live) = page.split_once("data-live=\"idle:Live clusters\"").unwrap();
    let (live, _) = live.split_once("</article>").unwrap();
    assert_eq!(
        live.matches("<tr><td data-label=\"Held by\">").count(),
        1,
        "{live}"
    );
    let cell = |label: &str, text: &str| format!("<td data-label=\"{label}\">{text}");
    let row = cell("Held by", "nobody</td>")
        + &cell("State", "free</td>")
        + &cell(
            "GPUs",
            "<details><summary>8 GPUs on 1 node of prod</summary>",
        );
    assert!(live.contains(&row), "{live}");
    assert_eq!(live.matches("<li><a href=").count(), 8);
    assert!(live.contains("GPU 7 of h100-05"), "{live}");
    // The same as on Today.
    assert!(live.contains(&cell("Owner", "platform</td>")), "{live}");
    let demo = fixture::gpu("demo", "sim-0", 0, Does::Nothing, Origin::Simulated);
    let (_, page) = server_of(vec![demo], false).await.get("/cost").await;
    assert!(page.contains("<b>No GPU is live</b>."), "{page}");
}

#[tokio::test]
async fn a_gpu_that_nobody_holds_is_not_told_as_that_of_who_held_it_last() {
    let mut free = fixture::gpu("prod", "h100-09", 0, Does::Nothing, Origin::Live);
    let left = Resource::clone(&free.resource).with(attribute::HOLDER, "pod:research/gone-0");
    free.resource = Arc::new(left);
    let (_, page) = server_of(vec![free], false).await.get("/cost").await;
    assert!(page.contains("GPU 0 of h100-09"), "{page}");
    assert!(!page.contains("gone-0"), "{page}");
}

#[tokio::test]
async fn a_report_comes_in_the_form_that_was_asked_for_and_refuses_what_it_cannot_answer() {
    let server = server().await;
    let json = server.json("/api/v1/reports/chargeback?by=team,gpu").await;
    assert_eq!(json["balance"]["is_exact"], true);
    let (status, csv) = server.get("/api/v1/reports/efficiency?format=csv").await;
    assert_eq!(status, StatusCode::OK);
    assert!(csv.starts_with("team,gpu_hours,"), "{csv}");
    for (format, way, style) in [
        ("html", "inline; filename", "style-src 'unsafe-inline'"),
        ("csv", "attachment; filename", "style-src 'self'"),
    ] {
        let path = format!("/api/v1/reports/chargeback?format={format}");
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let headers = server.ask(request).await.headers().clone();
        let says = |name| headers[&name].to_str().expect("text").to_owned();
        assert!(says(header::CONTENT_DISPOSITION).starts_with(way));
        let policy = says(header::CONTENT_SECURITY_POLICY);
        assert!(policy.contains("default-src 'none'") && policy.contains(style));
        assert!(!policy.contains("script-src 'unsafe"), "{policy}");
    }
    for (query, says) in [
        ("chargeback?month=2026-13", "2026-10 is one"),
        ("chargeback?by=shoe", "`shoe`"),
        ("chargeback?format=pdf", "`pdf`"),
        ("chargeback?shape=round", "shape"),
        ("efficiency?format=focus", "not as focus"),
        (
            "chargeback?format=focus&focus_version=1.1",
            "1.2 and 1.3 are",
        ),
        (
            "chargeback?format=csv&focus_version=1.3",
            "of no other form",
        ),
    ] {
        let (status, body) = server.get(&format!("/api/v1/reports/{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert!(body.contains(says), "{query}: {body}");
    }
}

#[tokio::test]
async fn a_report_of_rows_has_what_is_missing_in_it_in_a_header() {
    let server = server().await;
    super::filled::fill(&server).await;
    let told = async |format: &str| {
        let path = format!("/api/v1/reports/chargeback?format={format}");
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let answer = server.ask(request).await;
        assert_eq!(answer.status(), StatusCode::OK, "{format}");
        let header = answer.headers().get("gpufleet-findings")?;
        let said = serde_json::from_slice::<Value>(header.as_bytes());
        Some(said.expect("it is JSON"))
    };
    for format in ["csv", "focus"] {
        let told = told(format).await.expect("there is something to say");
        let said = told["said"].as_array().expect("sentences");
        let count = told["count"].as_u64().expect("how many");
        assert!(count >= said.len() as u64, "{told}");
        // The hours are of one day alone.
        let missing = |it: &Value| {
            it.as_str()
                .is_some_and(|it| it.contains("nothing of 20 days before"))
        };
        assert!(said.iter().any(missing), "{told}");
    }
    assert_eq!(told("json").await, None, "it has them itself");
}

#[tokio::test]
async fn who_may_read_holds_a_month_against_the_bill_that_he_sends_and_a_wrong_bill_is_refused() {
    let server = server_of(fixture::fleet(), true).await;
    let row = |month: &str| {
        format!(
            r#"{{"cost":1.5,"currency":"USD","invoice":{{"month":"{}"}},"service":{{"description":"Compute Engine"}},"sku":{{"description":"Nvidia H100 80GB GPU"}}}}"#,
            month.replace('-', "")
        )
    };
    let send = async |query: &str, kind: &str, rows: &str| {
        let address = format!("/api/v1/reports/reconcile{query}");
        let answer = server.post(&address, kind, rows, Some(TOKEN)).await;
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    let now = row(&crate::money::report::month_of(fixture::NOW));
    let (json, lines) = ("application/json", "application/x-ndjson; charset=utf-8");
    for (kind, rows) in [
        (json, format!("[{now},{now}]")),
        (lines, format!("{now}\n{now}\n")),
    ] {
        let (status, said) = send("", kind, &rows).await;
        assert_eq!(status, StatusCode::OK, "{said}");
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["balance"]["is_exact"], true);
        let invoice = &said["invoice"];
        // The ledger is empty: all of the bill is left.
        for (figure, amount) in [("billed", "3.0"), ("residual", "3.0"), ("total", "3.0")] {
            assert_eq!(invoice[figure], amount, "{figure}");
        }
        assert_eq!(invoice["is_off"], true);
        assert!(said["findings"].to_string().contains("US Pacific time"));
    }
    let (status, csv) = send("?format=csv", json, &now).await;
    assert_eq!(status, StatusCode::OK);
    assert!(csv.contains("residual,1.5,USD"), "{csv}");
    let long = " ".repeat(crate::api::reports::MAX_BILL_BYTES + 1);
    let other = row("2020-01");
    for (query, kind, rows, status, says) in [
        ("?month=2026-13", json, &now, 400, "2026-10 is one"),
        ("?format=focus", json, &now, 400, "not as focus"),
        ("?by=team", json, &now, 400, "“by” is no parameter"),
        ("", json, &other, 400, "of the invoice of `202001`"),
        ("", json, &long, 413, "at most 16777216 bytes"),
        ("", "text/plain", &now, 415, "x-ndjson"),
    ] {
        let (answered, said) = send(query, kind, rows).await;
        assert_eq!(answered.as_u16(), status, "{query} {kind}: {said}");
        assert!(said.contains(says), "{query} {kind}: {said}");
    }
    let address = "/api/v1/reports/reconcile";
    let nobody = server.post(address, json, &now, None).await;
    assert_eq!(nobody.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn who_comes_back_after_hours_is_not_shown_what_could_have_been_saved_then() {
    let server = server().await;
    let saved = Savings::default();
    server.app.savings.put_for_tests(&server.app, saved).await;
    // The next answer never comes.
    server.pass(61);
    server.app.savings.stuck_for_tests(&server.app);
    let (app, specs) = (&server.app, Arc::new(Specs::default()));
    let is_shown = || {
        let (grant, at) = (Grant::default(), app.clock.now());
        app.savings.last(app, &specs, &grant, at).is_some()
    };
    server.pass(2 * 3_600 - 62);
    assert!(is_shown(), "a second before it is two hours old");
    server.pass(1);
    assert!(!is_shown(), "two hours old");
}

#[tokio::test]
async fn the_month_that_runs_is_made_before_anybody_asks_for_it() {
    let server = server().await;
    super::filled::fill(&server).await;
    let status = async |web| {
        let asked = Request::get("/cost").body(Body::empty()).unwrap();
        let answer = crate::web::router_of(web).oneshot(asked).await;
        answer.unwrap().status()
    };
    let [ahead, late] = [(); 2].map(|()| crate::web::shared(server.app.clone()));
    crate::pages::cost::warm::make(&ahead).await;
    // Nothing more can be read.
    server.store.close().await;
    assert_eq!(status(ahead).await, StatusCode::OK);
    assert_eq!(status(late).await, StatusCode::SERVICE_UNAVAILABLE);
}
