//! Teams over their budgets as incidents: whose they are, who is told, and what ends them.

use gpufleet_analysis::incident::Incident;

use super::*;
use crate::detect::tests::World;
use crate::money::Money;
use crate::money::budgets::{is_one, made};
use crate::notify::runbook;
use crate::notify::settings::{ChannelConfig, Kind, NotifyConfig, Settings};

/// Ticks after which what is over has ended.
const ENOUGH: usize = 35;

/// The month stands so.
fn stand(world: &World, month: &str, teams: &[MoneyMonth]) {
    let standings = Standings::of(month.to_owned(), teams.to_vec());
    world.app.money.stand(standings);
}

/// The incidents of budgets that are open after so many ticks.
fn after(world: &mut World, ticks: usize) -> Vec<Incident> {
    world.ticks(ticks, |_| {});
    let open = world.open();
    assert!(
        open.iter().all(|it| it.family == Family::Budget),
        "{open:?}"
    );
    open
}

fn over() -> MoneyMonth {
    made("science", Some(120), Some(300), 100)
}

#[tokio::test]
async fn a_month_over_its_budget_is_a_warning_one_that_will_be_is_information_and_another_is_nothing()
 {
    let rows = [
        (Some(120), Some(300), Some((Severity::Warning, SPENT))),
        (Some(101), None, Some((Severity::Warning, SPENT))),
        (Some(60), Some(101), Some((Severity::Info, FORECAST))),
        (Some(60), Some(100), None),
        (Some(100), None, None),
        (Some(0), None, None),
        (None, None, None),
    ];
    for (spent, forecast, expected) in rows {
        let mut world = World::new().await;
        stand(&world, "2026-11", &[made("science", spent, forecast, 100)]);
        let open = after(&mut world, 1);
        let told = open.first().map(|it| (it.severity, &*it.what));
        assert_eq!(told, expected, "{spent:?} {forecast:?}");
        for incident in open {
            assert!(is_one(&incident.place));
            assert_eq!(incident.owner.as_deref(), Some("science"));
            assert_eq!(runbook::of(&incident), "budget");
            let said = &incident.evidence[0].readings;
            let said: Vec<(&str, f64)> = said.iter().map(|it| (&*it.name, it.value)).collect();
            let told = [
                ("spent in USD", spent),
                ("budget in USD", Some(100)),
                ("forecast in USD", forecast),
            ];
            let told = told
                .into_iter()
                .filter_map(|(name, it)| Some((name, it? as f64)));
            assert_eq!(said, told.collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn a_forecast_that_comes_true_is_told_again_and_one_that_swings_is_one_incident() {
    let mut world = World::new().await;
    let forecast = |it| made("science", Some(60), Some(it), 100);
    stand(&world, "2026-11", &[forecast(101)]);
    let id = after(&mut world, 1)[0].id;
    for (row, severity) in [(forecast(96), Severity::Info), (over(), Severity::Warning)] {
        stand(&world, "2026-11", &[row]);
        let open = after(&mut world, ENOUGH);
        assert_eq!((open.len(), open[0].id), (1, id));
        assert_eq!(open[0].severity, severity);
    }
    assert_eq!(world.open()[0].what, SPENT);
    stand(&world, "2026-11", &[forecast(94)]);
    assert_eq!(after(&mut world, ENOUGH), [], "the budget is another");
}

#[tokio::test]
async fn amounts_are_those_of_now_and_a_budget_that_is_raised_makes_it_less_bad_or_ends_it() {
    let mut world = World::new().await;
    let amount = |of: &Incident, what: &str, name: &str| {
        let its = of.evidence.iter().find(|it| it.what == what);
        let its = its.expect("it was signalled").readings.iter();
        let mut its = its.filter(|it| it.name == name);
        its.next().map(|it| it.value)
    };
    stand(&world, "2026-11", &[over()]);
    let id = after(&mut world, 1)[0].id;
    stand(&world, "2026-11", &[made("science", Some(130), None, 100)]);
    let open = after(&mut world, ENOUGH);
    assert_eq!(amount(&open[0], SPENT, "spent in USD"), Some(130.0));
    stand(
        &world,
        "2026-11",
        &[made("science", Some(130), Some(300), 310)],
    );
    let open = after(&mut world, ENOUGH);
    assert_eq!((open[0].id, open[0].severity), (id, Severity::Info));
    assert_eq!(open[0].what, FORECAST);
    assert_eq!(amount(&open[0], FORECAST, "budget in USD"), Some(310.0));
    let raised = MoneyMonth {
        unpriced_millis: 1,
        ..made("science", Some(130), Some(300), 400)
    };
    stand(&world, "2026-11", &[raised]);
    assert_eq!(after(&mut world, ENOUGH), []);
}

#[tokio::test]
async fn what_is_not_told_of_a_month_ends_nothing_until_the_next_month_begins() {
    let mut world = World::new().await;
    stand(&world, "2026-11", &[over()]);
    let id = after(&mut world, 1)[0].id;
    let unpriced = MoneyMonth {
        unpriced_millis: 1,
        ..made("science", Some(60), None, 100)
    };
    let unread = MoneyMonth {
        untold: "3 days of GPUs cannot be read".to_owned(),
        ..made("science", Some(60), None, 100)
    };
    for row in [unpriced.clone(), unread, made("science", None, None, 100)] {
        stand(&world, "2026-11", &[row]);
        let open = after(&mut world, ENOUGH);
        assert_eq!(open.len(), 1);
        assert!(open[0].id == id && open[0].unheard_since.is_some());
    }
    stand(&world, "2026-12", &[unpriced]);
    assert_eq!(after(&mut world, ENOUGH), []);
}

#[tokio::test]
async fn a_server_that_has_not_made_the_month_ends_nothing_and_a_budget_that_is_gone_does() {
    let mut world = World::new().await;
    stand(&world, "2026-11", &[over()]);
    let id = after(&mut world, 1)[0].id;
    world.app.money = Arc::new(Money::new(&world.app.config));
    let open = after(&mut world, ENOUGH);
    assert_eq!((open.len(), open[0].id), (1, id));
    stand(&world, "2026-11", &[]);
    assert_eq!(after(&mut world, ENOUGH), []);
}

#[tokio::test]
async fn seven_teams_over_their_budgets_are_seven_incidents_and_each_is_told_of_its_own() {
    let mut world = World::new().await;
    let team = |it: usize| format!("team-{it}");
    let mut chat = ChannelConfig::new("chat", Kind::Webhook);
    chat.urls = vec!["http://127.0.0.1:1".to_owned()];
    let route = |it| format!(r#"{{"channels": ["chat"], "teams": ["{}"]}}"#, team(it));
    let routes: Vec<String> = (0..7).map(route).collect();
    let config = NotifyConfig {
        channels: vec![chat],
        // Patterns of nodes are of nodes: a team is none.
        teams: serde_json::from_str(r#"[{"name": "platform", "nodes": ["*"]}]"#).expect("teams"),
        routes: serde_json::from_str(&format!("[{}]", routes.join(","))).expect("routes"),
        ..NotifyConfig::default()
    };
    let settings = Settings::read(&config).expect("they can be used");
    world.app.incidents.tells(Arc::new(settings));
    let row = |it: usize| made(&team(it), Some(120), None, 100);
    let mut all: Vec<MoneyMonth> = (0..7).map(row).collect();
    let of_cluster = MoneyMonth {
        cluster: "prod".to_owned(),
        ..row(0)
    };
    all.push(of_cluster);
    stand(&world, "2026-11", &all);
    // Whose it is stays, however often it is looked at again.
    let open = after(&mut world, 3);
    assert_eq!(open.len(), 8, "one more of a cluster: {open:?}");
    for incident in &open {
        let team = incident.place.node.clone().expect("a team");
        assert_eq!(world.app.incidents.owner_of(incident), team);
        let routes = world.app.incidents.routes_of(incident);
        let told = routes.iter().filter(|it| it.why_not.is_none());
        let told: Vec<String> = told.map(|it| format!("team-{}", it.number - 1)).collect();
        assert_eq!(told, [team]);
    }
}
