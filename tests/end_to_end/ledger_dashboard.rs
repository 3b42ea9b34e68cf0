//! The dashboard on cost, asked as Grafana asks it: the SQL of its variables and of every panel that asks the ledger, run
//! by the user that `dashboards/ledger-role.sql` makes, in a PostgreSQL that a real server filled. What it shows is
//! the server's report on chargeback to the nano-dollar.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gpufleet_analysis::money;
use gpufleet_tests::harness::database::Kind;
use gpufleet_tests::harness::simulator::Simulator;
use gpufleet_tests::harness::{World, repository, server, wait};
use serde_json::Value;

/// Three hours of 64 GPUs are shipped, accounted and made money of, on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// The user that the role's file makes.
const ROLE: &str = "gpufleet_grafana";

const BUDGETS: &str =
    "from,until,team,cluster,amount,currency\n2026-01-01,,foundation-models,demo,1000000,USD\n";

/// Cost, GPU time and time without a price by team, namespace, job, project, state and reason.
type Spent = BTreeMap<[String; 6], (i64, i64, i64)>;

fn folder() -> PathBuf {
    repository().join("dashboards")
}

/// PostgreSQL as one of its users.
struct Psql(String);

impl Psql {
    /// The rows of a statement, its header first; or what PostgreSQL says against it.
    fn ask(&self, sql: &str) -> Result<Vec<Vec<String>>, String> {
        let output = Command::new("psql")
            .args([
                "-q",
                "-A",
                "-F",
                "\t",
                "-P",
                "footer=off",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
            ])
            .args([sql, &self.0])
            .output()
            .expect("psql comes with PostgreSQL");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let cells = |line: &str| line.split('\t').map(str::to_owned).collect();
        Ok(text.lines().map(cells).collect())
    }

    fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let mut rows = self.ask(sql).unwrap_or_else(|why| panic!("{sql}: {why}"));
        assert!(!rows.is_empty(), "{sql}: no header");
        rows.remove(0);
        rows
    }
}

/// What Grafana puts in for what is chosen: where nothing is, the first, or all of them.
struct Chosen(Vec<(String, String)>);

impl Chosen {
    /// Asks for the values of the dashboard's variables, one after the other.
    fn of(dashboard: &Value, grafana: &Psql, first_second: i64, now_second: i64) -> Self {
        let mut chosen = Self(vec![
            ("$__unixEpochFrom()".to_owned(), first_second.to_string()),
            ("$__unixEpochTo()".to_owned(), now_second.to_string()),
            ("$origin".to_owned(), "simulated".to_owned()),
        ]);
        let variables = dashboard["templating"]["list"].as_array();
        for variable in variables.expect("variables") {
            if variable["type"] != "query" {
                continue;
            }
            let sql = chosen.put_into(variable["query"].as_str().expect("a query"));
            let rows = grafana.rows(&sql);
            let values: Vec<String> = rows.into_iter().map(|mut it| it.remove(0)).collect();
            assert!(!values.is_empty(), "nothing to choose from: {sql}");
            let value = match variable["multi"].as_bool() {
                Some(true) => {
                    let quoted = values
                        .iter()
                        .map(|it| format!("'{}'", it.replace('\'', "''")));
                    quoted.collect::<Vec<_>>().join(",")
                }
                _ => values[0].clone(),
            };
            let name = variable["name"].as_str().expect("a name");
            chosen.0.push((format!("${name}"), value));
        }
        chosen
    }

    fn put_into(&self, sql: &str) -> String {
        let put_in = |sql: String, (name, value): &(String, String)| sql.replace(name, value);
        self.0.iter().fold(sql.to_owned(), put_in)
    }

    fn value(&self, name: &str) -> &str {
        let found = self.0.iter().find(|it| it.0 == name);
        &found.expect("it is a variable").1
    }
}

/// The SQL of a dashboard's panels by their titles.
fn panels(dashboard: &Value) -> Vec<(&str, &str)> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let with_sql = panels.flat_map(|panel| {
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.filter_map(move |it| Some((title, it["rawSql"].as_str()?)))
    });
    with_sql.collect()
}

/// A column of a panel, the one of this name, as nano-units.
fn nanos(rows: &[Vec<String>], column: &str) -> i64 {
    let header = rows.first().expect("a header");
    let at = header.iter().position(|it| it == column);
    let at = at.unwrap_or_else(|| panic!("no {column} in {header:?}"));
    let value = |row: &Vec<String>| money::parse(&row[at]).expect("an amount to the nano-unit");
    rows[1..]
        .iter()
        .filter(|it| !it[at].is_empty())
        .map(value)
        .sum()
}

/// What the tables say.
fn stored(grafana: &Psql, month: &str) -> Spent {
    let sql = format!(
        "SELECT payer, namespace, job, project, state, reason, SUM(COALESCE(cost_nano, 0)), SUM(gpu_ms), SUM(unpriced_ms)
         FROM money_day WHERE scope = 'demo' AND month = '{month}' GROUP BY 1, 2, 3, 4, 5, 6"
    );
    let row = |row: Vec<String>| {
        let number = |at: usize| row[at].parse::<i64>().expect("a number");
        let sums = (number(6), number(7), number(8));
        let words = [0, 1, 2, 3, 4, 5].map(|at: usize| row[at].clone());
        (words, sums)
    };
    grafana.rows(&sql).into_iter().map(row).collect()
}

/// What the report says, and its total in nano-dollars.
fn reported(server: &server::Server, month: &str) -> (Spent, i64) {
    let path = format!(
        "/api/v1/reports/chargeback?cluster=demo&by=team,namespace,job,project&month={month}"
    );
    let report = server.get(&path).json();
    let nano = |sum: &Value| money::parse(sum["cost"].as_str().expect("text")).expect("an amount");
    let mut found = Spent::new();
    for group in report["groups"].as_array().into_iter().flatten() {
        let word = |by: &str| group["by"][by].as_str().unwrap_or_default().to_owned();
        let states = group["states"].as_object().into_iter().flatten();
        let reasons = states.flat_map(|(state, sum)| {
            let reasons = sum["reasons"].as_object().into_iter().flatten();
            reasons.map(move |(reason, sum)| (state, reason, sum))
        });
        for (state, reason, sum) in reasons {
            let words = ["team", "namespace", "job", "project"].map(word);
            let [team, namespace, job, project] = words;
            let millis = |name: &str| sum[name].as_i64().expect("a number");
            let sums = (
                nano(sum),
                millis("gpu_millis"),
                millis("unpriced_gpu_millis"),
            );
            let words = [team, namespace, job, project, state.clone(), reason.clone()];
            found.insert(words, sums);
        }
    }
    (found, nano(&report["total"]))
}

/// The panel on states has a row for each reason that the tables have, which adds up to their money, and says of free
/// GPUs why they are, or that it is not known.
fn says_why(chosen: &Chosen, grafana: &Psql, sql: &str) {
    let rows = grafana.ask(&chosen.put_into(sql)).expect("it can be asked");
    let month = chosen.value("$month");
    let sql = format!(
        "SELECT state, reason, SUM(cost_nano) * 1e-9 AS cost FROM money_day
         WHERE scope = 'demo' AND month = '{month}' GROUP BY 1, 2"
    );
    let stored = grafana.ask(&sql).expect("it can be asked");
    let whys = |rows: &[Vec<String>]| {
        let mut all: Vec<_> = rows[1..].iter().map(|it| it[..2].to_vec()).collect();
        all.sort();
        all
    };
    let shown = |it: Vec<String>| match (it[0].as_str(), it[1].as_str()) {
        ("unallocated", "unknown") => vec![it[0].clone(), "not known".to_owned()],
        (_, "unknown") => vec![it[0].clone(), String::new()],
        (_, reason) => vec![it[0].clone(), reason.replace('_', " ")],
    };
    let mut expected: Vec<_> = whys(&stored).into_iter().map(shown).collect();
    expected.sort();
    assert_eq!(whys(&rows), expected);
    assert_eq!(nanos(&rows, "cost"), nanos(&stored, "cost"));
    let is_told = |it: &Vec<String>| it[0] == "unallocated" && !it[1].is_empty();
    assert!(rows[1..].iter().any(is_told), "{rows:?}");
}

#[test]
fn the_dashboard_on_cost_shows_what_the_report_says_to_the_nano_dollar() {
    let world = World::on(Kind::Postgres);
    let budgets = world.file("budgets.csv", BUDGETS).display().to_string();
    let place = server::Place::new(&world).with(&format!("cost.tables=['{budgets}']"));
    let server = place.start();
    let endpoint = format!("http://{}", server.place.grpc);
    let simulator = Simulator::start(
        &world,
        &endpoint,
        &["--history-hours", "3", "--no-training"],
    );
    let owner = Psql(world.database());
    let is_there = || {
        let counted = "SELECT COUNT(*) FROM money_month WHERE spent_nano > 0";
        let found = owner.rows(counted);
        (found[0][0] != "0").then_some(())
    };
    wait::until("days stand as money", LIMIT, is_there);
    simulator.stop();

    let role = fs::read_to_string(folder().join("ledger-role.sql")).expect("it is there");
    owner.rows(&format!("{role}\nSELECT 1 AS done"));
    let grafana = Psql(world.database().replace("postgres@", &format!("{ROLE}@")));
    let may_not = |sql: &str| grafana.ask(sql).expect_err(sql);
    for table in ["money_table", "ledger_day", "holder", "audit"] {
        let why = may_not(&format!("SELECT COUNT(*) FROM {table}"));
        assert!(why.contains("permission denied"), "{why}");
    }
    // Whoever sends SQL may put off what is a default of the role.
    for statement in [
        "DELETE FROM money_day",
        "CREATE TEMPORARY TABLE more (x int)",
        "CREATE TABLE more (x int)",
        "SELECT lo_create(0)",
        "SELECT lo_from_bytea(0, 'x')",
        "SELECT pg_advisory_lock(7233171)",
        "SELECT pg_try_advisory_xact_lock(7233171)",
    ] {
        let why = may_not(&format!("SET transaction_read_only = off; {statement}"));
        assert!(why.contains("permission denied"), "{statement}: {why}");
    }
    let path = &grafana.rows("SHOW search_path")[0][0];
    let schema = &owner.rows("SELECT current_schema()")[0][0];
    assert_eq!(path, schema, "panels name tables without a schema");

    let text = fs::read_to_string(folder().join("cost.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&text).expect("it is JSON");
    let now = wait::unix_seconds();
    let titled = |title: &str| {
        let found = panels(&dashboard).into_iter().find(|it| it.0 == title);
        found.unwrap_or_else(|| panic!("no panel {title}")).1
    };
    let spent = titled("Spent, $currency");
    let by_day = titled("Spend by payer and day, $currency");
    // The ledger goes on: GPUs that are silent are not observed.
    let (chosen, total) = wait::until("tables and report are of one moment", LIMIT, || {
        let chosen = Chosen::of(&dashboard, &grafana, now - 31 * 86_400, now);
        let month = chosen.value("$month").to_owned();
        let ask = |sql: &str, column: &str| {
            let rows = grafana.ask(&chosen.put_into(sql));
            nanos(&rows.expect("it can be asked"), column)
        };
        let (expected, total) = reported(&server, &month);
        let found = stored(&grafana, &month);
        let (spent, by_day) = (ask(spent, "spent"), ask(by_day, "value"));
        let all = &owner.rows("SELECT SUM(cost_nano) FROM money_day")[0][0];
        let (after, _) = reported(&server, &month);
        if found != expected || after != expected {
            let differences = format!("{found:#?}\nis not\n{expected:#?}");
            fs::write(world.path("differences"), differences).expect("it can be written");
            return None;
        }
        assert_eq!(
            spent, total,
            "what the panel on spend shows is not the report's total"
        );
        assert_eq!(Ok(by_day), all.parse(), "days do not add up");
        Some((chosen, total))
    });
    assert!(total > 0, "nothing was spent");

    let asked = panels(&dashboard);
    assert!(
        asked.len() > 12,
        "only {} panels ask the ledger",
        asked.len()
    );
    says_why(&chosen, &grafana, titled("By state and why, $currency"));
    let mut empty = Vec::new();
    for (title, sql) in asked {
        let sql = chosen.put_into(sql);
        assert!(!sql.contains('$'), "{title}: {sql}");
        let rows = grafana
            .ask(&sql)
            .unwrap_or_else(|why| panic!("{title}: {why}"));
        let is_number = |it: &String| it.parse::<f64>().is_ok();
        if !rows[1..].iter().flatten().any(is_number) {
            empty.push(title.to_owned());
        }
    }
    // A day of the month must be whole for a forecast.
    empty.retain(|it| it != "Forecast, $currency");
    assert_eq!(empty, [""; 0]);
    server.stop();
}
