//! Teams over their budgets: on the first page of the day, and for whom.

use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::gpu_specs::Specs;

use super::*;
use crate::auth::Grant;
use crate::money::budgets::{self, Standings, made};
use crate::store::MoneyMonth;
use crate::today::Todays;
use crate::view::FleetView;

/// A server that knows that a team is over its budget, of this cluster or, where it is empty, of all live ones.
async fn over(cluster: &str) -> Fixture {
    let server = server().await;
    let signal = Signal {
        family: Family::Budget,
        place: budgets::place(cluster, "science"),
        what: "the month's budget is overspent".to_owned(),
        severity: Severity::Warning,
        cause: Cause::Spending,
        price: Price::none(Basis::BudgetSpent),
        ..signal()
    };
    let tick = Tick {
        now: fixture::NOW,
        signals: vec![signal],
        is_heard: &|_, _| true,
        in_its_place: &|_, _| None,
        is_forgotten: &|_, _| false,
        quiet_runs: &BTreeSet::new(),
        nodes: &BTreeMap::new(),
        runs: &Default::default(),
    };
    let owner = |it: &Incident| it.place.node.clone();
    server
        .incidents
        .tick_owned(tick, &mut || INCIDENT.parse().unwrap(), &owner);
    let other = made("search", Some(7), Some(8), 5);
    let science = MoneyMonth {
        cluster: cluster.to_owned(),
        ..made("science", Some(120), Some(300), 100)
    };
    let standings = Standings::of("2026-09".to_owned(), vec![other, science]);
    server.app.money.stand(standings);
    server
}

#[tokio::test]
async fn a_team_over_its_budget_is_on_the_first_page_with_its_money_and_what_to_do() {
    for (cluster, named) in [("", Value::Null), ("prod", "prod".into())] {
        let server = over(cluster).await;
        let today = server.json("/api/v1/today").await;
        let rows = today["budgets"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{today}");
        for (name, expected) in [
            ("team", "science".into()),
            ("cluster", named),
            ("severity", "warning".into()),
            ("spent_nano", 120_000_000_000_i64.into()),
            ("budget_nano", 100_000_000_000_i64.into()),
            ("forecast_nano", 300_000_000_000_i64.into()),
            ("status", "open, in nobody's hands".into()),
            ("incident", INCIDENT.into()),
        ] {
            assert_eq!(rows[0][name], expected, "{name}");
        }
        let (_, page) = server.get("/").await;
        for words in [
            "<h2>Over budget</h2>",
            "<a href=\"/cost\">science</a>: the month&#39;s budget is overspent",
            "<b>$120.00</b> <small>of $100.00</small>",
            "; the month&#39;s forecast is $300.00.",
            "Drain the node and reboot it.",
            "<dt>Owner</dt><dd>science</dd>",
            &format!("<a href=\"/incidents/{INCIDENT}\">open, in nobody&#39;s hands</a>"),
        ] {
            assert!(page.contains(words), "{words} is not in {page}");
        }
    }
    let server = server().await;
    let (_, page) = server.get("/").await;
    assert!(!page.contains("Over budget"), "{page}");
}

#[tokio::test]
async fn money_that_is_not_known_yet_is_told_so() {
    let server = over("").await;
    let unknown = Standings::default();
    server.app.money.stand(unknown);
    let today = server.json("/api/v1/today").await;
    assert_eq!(today["budgets"][0]["spent_nano"], Value::Null);
    let (_, page) = server.get("/").await;
    let words = "<a class=\"missing\" href=\"/health#prices\">of not known</a>";
    assert!(page.contains(words), "{page}");
}

#[tokio::test]
async fn who_may_see_a_cluster_sees_the_budgets_that_name_it_and_no_others() {
    for (cluster, is_seen) in [("prod", true), ("", false), ("other", false)] {
        let server = over(cluster).await;
        let bound = Grant {
            cluster: Some("prod".into()),
        };
        let app = &server.app;
        assert_eq!(app.incidents.open(&bound).len(), usize::from(is_seen));
        let view = Arc::new(FleetView {
            at: fixture::NOW,
            ..FleetView::default()
        });
        let specs = Arc::new(Specs::with(&app.config.gpu.peaks).unwrap());
        let today = Todays::default();
        let today = today.get(app, &view, &specs, &bound).await;
        assert_eq!(today.budgets.len(), usize::from(is_seen), "{cluster}");
    }
}
