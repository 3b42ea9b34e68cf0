//! The doctor over the fleet of the tests: what it finds, what it says it did not look at.

use gpufleet_program::clock::SystemClock;
use gpufleet_telemetry::catalog::own;

use super::*;
use crate::auth::Access;
use crate::config::Config;
use crate::fleet::{Live, LiveValue};
use crate::store::{Store, StoreConfig};
use crate::view::fixture;
use crate::view::gather as picture;

async fn doctor(lives: Vec<Live>, grant: &Grant) -> Doctor {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let store = store.expect("it opens");
    let clock = Arc::new(SystemClock::start());
    let app = App::new(Config::for_tests(), store, Access::default(), clock);
    let view = Arc::new(picture::of(lives.iter(), fixture::NOW)).seen_with(grant);
    for live in lives {
        app.fleet.put_for_tests(live);
    }
    looked_at(&app, &view, grant).await
}

async fn looked_at(app: &App, view: &Arc<FleetView>, grant: &Grant) -> Doctor {
    let (view, grant) = (Arc::clone(view), grant.clone());
    make(app.clone(), view, Arc::default(), grant).await
}

fn found<'a>(doctor: &'a Doctor, id: &str) -> &'a Finding {
    let mut all = doctor.findings.iter();
    let ids = || doctor.findings.iter().map(|it| &it.id).collect::<Vec<_>>();
    all.find(|it| it.id == id)
        .unwrap_or_else(|| panic!("{id} is not in {:?}", ids()))
}

fn outcome<'a>(doctor: &'a Doctor, id: &str) -> &'a Outcome {
    let found = doctor.checks.iter().find(|it| it.id == id);
    &found.expect("it is a check").outcome
}

#[tokio::test]
async fn what_blinds_the_fleet_is_found_with_place_time_loss_and_the_line_that_mends_it() {
    let doctor = doctor(fixture::fleet(), &Grant::default()).await;
    let silent = found(&doctor, "state-no_sample");
    assert_eq!((silent.severity, silent.gpus), (Severity::Error, 8));
    assert_eq!(silent.places[0].name, "h100-08");
    let page = "/clusters/prod/nodes/h100-08";
    assert_eq!(silent.places[0].address.as_deref(), Some(page));
    let since = fixture::NOW.shifted(-754_000_000_000);
    assert_eq!(silent.since, Some(since));
    assert!(silent.missing.contains("8 GPUs"), "{}", silent.missing);
    let reader = found(&doctor, "reader-exporter-dcgm");
    assert!(reader.what.ends_with("fails on 8 nodes"), "{}", reader.what);
    assert_eq!((reader.places.len(), reader.more_places), (NAMED, 2));
    let lost = found(&doctor, "missing-gpu_lost");
    assert_eq!((lost.gpus, lost.places.len()), (1, 1));
    assert_eq!(found(&doctor, "state-holder_unknown").gpus, 3);
    let price = found(&doctor, "prices-NVIDIA-H100-80GB-HBM3");
    let line = price.line.as_deref().expect("a line to add");
    assert!(
        line.starts_with("[detect.gpu_hour_usd]\n\"NVIDIA H100"),
        "{line}"
    );
    let unowned = found(&doctor, "owners");
    assert!(unowned.gpus > 0 && unowned.line.is_some());
    assert!(found(&doctor, "hooks").gpus > 0);
    for it in &doctor.findings {
        assert!(!it.missing.is_empty() && !it.fix.is_empty(), "{it:?}");
    }
    let order = doctor.findings.iter().map(|it| (it.severity, it.gpus));
    let order: Vec<_> = order.map(std::cmp::Reverse).collect();
    assert!(order.is_sorted(), "the worst first: {order:?}");
    // A card that does not have a reading is nothing to mend.
    assert!(
        doctor
            .findings
            .iter()
            .all(|it| it.id != "missing-not_supported")
    );
    let told = doctor.reasons.iter().map(|it| it.anchor);
    assert!(told.clone().any(|it| it == "missing-not_supported"));
    assert!(
        told.clone().all(|it| it != "missing-gpu_lost"),
        "it is a finding"
    );
}

#[tokio::test]
async fn processes_that_do_not_say_which_rank_they_are_are_found_on_their_node() {
    let mut lives = fixture::fleet();
    let has_agent = |it: &&mut Live| {
        let mut metrics = it.values.iter().map(|value| value.metric);
        &*it.node == "h100-00" && metrics.any(|metric| metric == own::READER_SUCCESS.id)
    };
    let node = lives.iter_mut().find(has_agent).expect("its agent");
    node.values.push(LiveValue {
        metric: own::HOOKS_RANK_UNKNOWN.id,
        part: None,
        reading: Ok(2.0),
        max: None,
        at: node.last_point,
    });
    node.values
        .sort_by(|one, other| (one.metric, &one.part).cmp(&(other.metric, &other.part)));
    let doctor = doctor(lives, &Grant::default()).await;
    let unknown = found(&doctor, "hooks-rank-unknown");
    let what = "2 training processes do not say which rank they are";
    assert_eq!(
        (unknown.severity, &*unknown.what),
        (Severity::Warning, what)
    );
    assert_eq!(unknown.places.len(), 1);
    assert_eq!(unknown.places[0].name, "h100-00");
}

#[tokio::test]
async fn what_could_not_be_looked_at_says_so_and_is_never_fine() {
    let doctor = doctor(Vec::new(), &Grant::default()).await;
    for check in &doctor.checks {
        let looks_at_fleet = CHECKS
            .iter()
            .any(|it| it.id == check.id && it.scope != Scope::Server);
        if looks_at_fleet {
            assert!(!check.was_made(), "{check:?}");
        }
    }
    for id in [
        "server_clock",
        "commits",
        "detectors",
        "jobs",
        "exports",
        "config",
    ] {
        assert!(
            matches!(outcome(&doctor, id), Outcome::NotChecked(_)),
            "{id}"
        );
    }
    assert_eq!(outcome(&doctor, "database"), &Outcome::Fine);
    // What is simulated is no blind spot, and does not stand for a live fleet.
    let mut simulated = fixture::fleet();
    simulated.retain(|it| it.origin == Origin::Simulated);
    let doctor = super::tests::doctor(simulated, &Grant::default()).await;
    assert!(matches!(
        outcome(&doctor, "readers"),
        Outcome::NotChecked(_)
    ));
}

#[tokio::test]
async fn a_reader_of_one_cluster_is_told_of_that_one_and_nothing_of_the_server() {
    let grant = Grant {
        cluster: Some("hostile".into()),
    };
    let doctor = doctor(fixture::fleet(), &grant).await;
    assert!(doctor.findings.iter().all(|it| it.id != "state-no_sample"));
    for check in CHECKS {
        if check.scope == Scope::Server {
            let outcome = outcome(&doctor, check.id);
            assert!(matches!(outcome, Outcome::NotChecked(why) if why.contains("hostile")));
        }
    }
}

#[tokio::test]
async fn what_was_refused_or_left_out_lately_is_found_and_what_is_long_ago_is_over() {
    use crate::refusals::{Door, Reason};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let clock = Arc::new(SystemClock::start());
    let store = store.expect("it opens");
    let app = App::new(Config::for_tests(), store, Access::default(), clock);
    let now = fixture::NOW;
    let refuse = |door, reason, ago: i64| {
        let at = now.shifted(-ago * 1_000_000_000);
        app.refusals.note(door, reason, None, at);
    };
    refuse(Door::Grpc, Reason::Forbidden, 60);
    refuse(Door::Http, Reason::NoToken, 3_600);
    refuse(Door::Web, Reason::NoToken, 1);
    let view = Arc::new(FleetView {
        at: now,
        ..FleetView::default()
    });
    let doctor = looked_at(&app, &view, &Grant::default()).await;
    let refused = doctor.findings.iter().filter(|it| it.check == "refused");
    let ids: Vec<_> = refused.map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["refused-grpc-forbidden"]);
    app.store.close().await;
    let doctor = looked_at(&app, &view, &Grant::default()).await;
    assert_eq!(found(&doctor, "database").severity, Severity::Error);
}

#[tokio::test]
async fn each_way_on_which_minutes_are_pushed_is_looked_at() {
    use std::sync::atomic::Ordering::Relaxed;

    use crate::export::cloud_monitoring::target::Reason;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let clock = Arc::new(SystemClock::start());
    let mut config = Config::for_tests();
    config.cloud_monitoring.project = "fleet".to_owned();
    let store = store.expect("it opens");
    let app = App::new(config, store, Access::default(), clock);
    let view = Arc::new(FleetView {
        at: fixture::NOW,
        ..FleetView::default()
    });
    let grant = Grant::default();
    let doctor = looked_at(&app, &view, &grant).await;
    assert!(matches!(outcome(&doctor, "exports"), Outcome::NotChecked(why) if why.contains("due")));
    let pushed = &app.cloud_monitoring.pushed;
    let minute = fixture::NOW.minute().0;
    pushed.newest.store(minute - 2, Relaxed);
    let doctor = looked_at(&app, &view, &grant).await;
    assert_eq!(outcome(&doctor, "exports"), &Outcome::Fine);
    pushed.newest.store(minute - 60, Relaxed);
    pushed.refused.store(3, Relaxed);
    let doctor = looked_at(&app, &view, &grant).await;
    let behind = found(&doctor, "exports-cloud_monitoring-behind");
    let end = fixture::NOW.minute().0 - 59;
    let end = gpufleet_telemetry::time::Minute(end).start();
    assert_eq!(behind.since, Some(end));
    found(&doctor, "exports-cloud_monitoring-refused");
    assert!(doctor.findings.iter().all(|it| !it.id.ends_with("-late")));
    pushed.late.store(2, Relaxed);
    pushed.waits.store(true, Relaxed);
    let doctor = looked_at(&app, &view, &grant).await;
    let what = &found(&doctor, "exports-cloud_monitoring-late").what;
    assert!(what.starts_with("2 times"), "{what}");
    let waits = found(&doctor, "exports-cloud_monitoring-waits");
    assert_eq!((waits.severity, waits.since), (Severity::Info, Some(end)));
    let behind = |it: &Finding| it.id == "exports-cloud_monitoring-behind";
    assert!(!doctor.findings.iter().any(behind), "it is no fault");
    let told = &app.cloud_monitoring;
    for (reason, id) in [(Reason::Kind, "kind"), (Reason::TooMany, "too_many")] {
        let id = format!("exports-cloud_monitoring-{id}");
        assert!(doctor.findings.iter().all(|it| it.id != id));
        told.count(reason, 7);
        let doctor = looked_at(&app, &view, &grant).await;
        let what = &found(&doctor, &id).what;
        assert!(what.starts_with("7 points"), "{what}");
    }
}

#[test]
fn names_of_others_become_anchors_and_stay_apart() {
    assert_eq!(anchor("exporter:dcgm <b>"), "exporter-dcgm--b-");
    let named = |id: &str| Finding::new(Severity::Info, id, "x");
    let mut findings = vec![named("a b"), named("a:b"), named("c")];
    name_apart(&mut findings);
    let ids: Vec<_> = findings.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["a-b", "a-b--2", "c"]);
}

#[test]
fn every_check_has_a_name_of_its_own() {
    let ids: std::collections::BTreeSet<_> = CHECKS.iter().map(|it| it.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
}

#[tokio::test]
async fn a_disk_with_little_room_is_found_and_one_that_does_not_say_was_not_looked_at() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let store = store.expect("it opens");
    let clock = Arc::new(SystemClock::start());
    let app = App::new(Config::for_tests(), store, Access::default(), clock);
    let looked = async |room| {
        let app = App {
            room,
            ..app.clone()
        };
        let view = Arc::default();
        looked_at(&app, &view, &Grant::default()).await
    };
    for (room, severity) in [
        ((|_| Some(900_000_000)) as disk::Room, Severity::Error),
        (|_| Some(4_000_000_000), Severity::Warning),
    ] {
        let doctor = looked(room).await;
        for id in ["spool-disk", "database-disk"] {
            assert_eq!(found(&doctor, id).severity, severity);
        }
    }
    let doctor = looked(|_| Some(5_000_000_000)).await;
    assert_eq!(outcome(&doctor, "database_disk"), &Outcome::Fine);
    let doctor = looked(|_| None).await;
    let outcome = outcome(&doctor, "spool_disk");
    assert!(matches!(outcome, Outcome::NotChecked(why) if why.contains("does not say")));
}

#[tokio::test]
async fn a_month_whose_money_is_not_all_told_is_a_warning_of_its_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let store = store.expect("it opens");
    let clock = Arc::new(SystemClock::start());
    let app = App::new(Config::for_tests(), store, Access::default(), clock);
    let looked = async || {
        let view = Arc::default();
        looked_at(&app, &view, &Grant::default()).await
    };
    let doctor = looked().await;
    assert!(matches!(
        outcome(&doctor, "money_months"),
        Outcome::NotChecked(_)
    ));
    let said = "2026-10: 1 days of GPUs cannot be read";
    app.money.tell(0, Some(said.to_owned()));
    let doctor = looked().await;
    let told = found(&doctor, "money_months-0");
    assert_eq!((told.severity, &*told.what), (Severity::Warning, said));
    app.money.goes_on(1, Some(0));
    let doctor = looked().await;
    assert_eq!(
        found(&doctor, "money_months-0").what,
        said,
        "of a month that is kept"
    );
    app.money.goes_on(1, Some(1));
    let doctor = looked().await;
    assert!(matches!(
        outcome(&doctor, "money_months"),
        Outcome::NotChecked(why) if why == "1 month is still to be made as money"
    ));
    app.money.goes_on(0, None);
    let doctor = looked().await;
    assert_eq!(outcome(&doctor, "money_months"), &Outcome::Fine);
}

#[tokio::test]
async fn a_row_for_a_team_or_a_cluster_that_there_is_not_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let store = store.expect("it opens");
    let tables = [
        "from,until,cluster,team,job,measure,least\n2026-01-01,,prdo,sciense,,sm_active,0.5\n",
        "from,until,cluster,team,amount,currency\n2026-01-01,,prd,sience,50000,USD\n",
    ];
    let written = tables.iter().enumerate().map(|(number, rows)| {
        let table = folder.path().join(format!("{number}.csv"));
        std::fs::write(&table, rows).expect("written");
        table.display().to_string()
    });
    let mut config = Config::for_tests();
    config.cost.tables = written.collect();
    config.cost.team_labels = Vec::new();
    let clock = Arc::new(SystemClock::start());
    let app = App::new(config, store, Access::default(), clock);
    let view = Arc::default();
    let doctor = looked_at(&app, &view, &Grant::default()).await;
    for (id, severity, names) in [
        ("targets-0", Severity::Info, "cluster \"prdo\""),
        ("targets-1", Severity::Warning, "team \"sciense\""),
        ("budgets-0", Severity::Warning, "cluster \"prd\""),
        ("budgets-1", Severity::Warning, "team \"sience\""),
    ] {
        let it = found(&doctor, id);
        assert_eq!(it.severity, severity, "{id}");
        assert!(it.what.contains(names), "{id}: {}", it.what);
    }
}

#[tokio::test]
async fn an_owner_rule_for_a_cluster_of_which_nothing_is_heard_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
    let store = store.expect("it opens");
    let table = folder.path().join("owners.csv");
    let rows = "from,until,kind,key,value,team,cluster\n2026-01-01,,namespace,,ml,science,\n\
        2026-01-01,,namespace,,ml,vision,prod\n2026-01-01,,namespace,,ml,vision,prdo\n\
        2026-01-01,2026-02-01,namespace,,ml,vision,gone\n";
    std::fs::write(&table, rows).expect("written");
    let mut config = Config::for_tests();
    config.cost.tables = vec![table.display().to_string()];
    let clock = Arc::new(SystemClock::start());
    let app = App::new(config, store, Access::default(), clock);
    let view = Arc::new(picture::of(fixture::fleet().iter(), fixture::NOW));
    let doctor = looked_at(&app, &view, &Grant::default()).await;
    let told = doctor.findings.iter();
    let told: Vec<_> = told.filter(|it| it.check == "money_tables").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        (&*told[0].id, told[0].severity),
        ("owner_rules-0", Severity::Info)
    );
    assert!(told[0].what.contains("cluster \"prdo\""), "{told:?}");
}

/// Every file of a folder and those in it that ends like this: name and text.
fn files(folder: &std::path::Path, end: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("it can be listed") {
        let path = entry.expect("an entry").path();
        let name = path.display().to_string();
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if name.ends_with(end) {
            let text = std::fs::read_to_string(&path).expect("it is a text");
            found.push((name, text));
        }
    }
    found
}

/// The lines of the page Health that a template names: in links, and in calls of the macros that make one of what is
/// not known.
fn lines_of_health(template: &str) -> Vec<&str> {
    let links = template.split("/health#").skip(1);
    let links = links.filter_map(|it| it.split('"').next());
    let makers = ["said(", "named(", "told("];
    let calls = template.split("{% call ").skip(1);
    let calls = calls.filter_map(|it| it.split("%}").next());
    let calls = calls.filter(|it| makers.iter().any(|maker| it.contains(maker)));
    let calls = calls.filter_map(|it| it.trim_end().strip_suffix("\")")?.rsplit_once('"'));
    let calls = calls.map(|(_, anchor)| anchor);
    // Where the code says which, a test of the page follows the link.
    links
        .chain(calls)
        .filter(|it| !it.starts_with("{{"))
        .collect()
}

/// The lines of the page Health that code names where it says what of its words is open.
fn lines_in_code(code: &str) -> Vec<&str> {
    let makers = ["Said::open(", "Said::ours("];
    let calls = makers.iter().flat_map(|it| code.split(*it).skip(1));
    let lines = calls.filter_map(|it| it.trim_start().strip_prefix('"')?.split('"').next());
    lines.collect()
}

#[test]
fn every_line_of_health_that_a_page_names_is_a_check_or_a_reason() {
    let of_reasons = readings::reasons();
    let there: std::collections::BTreeSet<&str> = CHECKS
        .iter()
        .map(|it| it.id)
        .chain(of_reasons.iter().map(|it| it.anchor))
        .collect();
    let pages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("pages");
    let (mut named, mut wrong) = (0, Vec::new());
    for (name, template) in files(&pages, ".html") {
        for line in lines_of_health(&template) {
            named += 1;
            if !there.contains(line) {
                wrong.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(named > 80, "only {named} are named");
    let mut in_code = 0;
    for folder in ["pages", "runs"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for (name, code) in files(&folder, ".rs") {
            for line in lines_in_code(&code) {
                in_code += 1;
                if !there.contains(line) {
                    wrong.push(format!("{name}: {line}"));
                }
            }
        }
    }
    assert!(in_code > 10, "only {in_code} are named in code");
    assert_eq!(wrong, [""; 0]);
    assert_eq!(lines_in_code("Said::open(\n    \"gone\", why)"), ["gone"]);
    let other = "{% call m::said(x.y, \"nowhere\") %}{% endcall %}<a href=\"/health#gone\">";
    assert_eq!(lines_of_health(other), ["gone", "nowhere"]);
}
