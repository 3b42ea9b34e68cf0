//! `gpufleet cost`: what a month costs by team, job or what else is asked for, the dearest first, how much of the
//! time was work, and why the rest was none. The whole report, in other forms, is `gpufleet report`.

use clap::Args;
use serde_json::Value;

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::report::Basis;
use crate::table::Table;
use crate::words;

/// Milliseconds of an hour.
const HOUR_MS: f64 = 3_600_000.0;

/// Which month, by what.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet cost                          this month so far by team, the dearest first
  gpufleet cost --by team,job --top 20   the 20 dearest jobs, each with its team
  gpufleet cost --by day,team            what each team cost day by day
  gpufleet cost --month 2026-10 --cluster prod
  gpufleet cost --basis gpu-only         each GPU at its own price, without its machine
What goes to waste a day, now: gpufleet today. As CSV, FOCUS or a page: gpufleet report.")]
pub(crate) struct Asked {
    /// The month, `2026-10`; without it the one that runs.
    #[arg(long)]
    month: Option<String>,
    /// What lines are grouped by, with commas between: team, cluster, namespace, job, model, project, pool, gpu; or
    /// day, by itself or with team, in the order of the days.
    #[arg(long, default_value = "team")]
    by: String,
    /// Of one cluster, also of one that is simulated; without it of all live ones.
    #[arg(long)]
    cluster: Option<String>,
    /// Most lines; what is left out is said.
    #[arg(long, default_value = "50")]
    top: usize,
    /// At which price a GPU counts: its part of its machine's, or its own.
    #[arg(long, default_value = "fully-loaded")]
    basis: Basis,
}

/// The answer.
pub(crate) fn answer(client: &Client, asked: &Asked) -> anyhow::Result<Answer> {
    let days = Days::of(&asked.by)?;
    let by = days.map_or(asked.by.as_str(), |_| "team");
    let query = ask::given([
        ("by", Some(by)),
        ("format", Some("json")),
        ("month", asked.month.as_deref()),
        ("cluster", asked.cluster.as_deref()),
        ("basis", asked.basis.asked()),
    ]);
    let json = client.get(&ask::with_query("/reports/chargeback", &query))?;
    Ok(Answer {
        text: match days {
            Some(days) => days.text(&json, asked.top),
            None => text(&json, by, asked.top),
        },
        json,
        is_good: true,
    })
}

/// Days, and whether each team has a line of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Days {
    of_teams: bool,
}

impl Days {
    /// Whether days are asked for.
    fn of(by: &str) -> anyhow::Result<Option<Self>> {
        let names: Vec<&str> = by.split(',').map(str::trim).collect();
        match names.as_slice() {
            ["day"] => Ok(Some(Self { of_teams: false })),
            ["day", "team"] | ["team", "day"] => Ok(Some(Self { of_teams: true })),
            names if names.contains(&"day") => {
                anyhow::bail!("--by {by}: days are told by themselves or of teams: --by day,team")
            }
            _ => Ok(None),
        }
    }

    fn text(self, report: &Value, top: usize) -> String {
        let currency = report["currency"].as_str().unwrap_or_default();
        let mut text = heading(report, currency);
        let mut heads = vec!["DAY"];
        heads.extend(self.of_teams.then_some("TEAM"));
        heads.extend([">COST", ">GPU-HOURS"]);
        let mut table = Table::new(&heads);
        let all = report["days"].as_array().map_or(&[][..], Vec::as_slice);
        let lines: Vec<&[Value]> = match self.of_teams {
            true => all.chunks(1).collect(),
            // A day's teams stand one behind the other.
            false => all
                .chunk_by(|one, other| one["day"] == other["day"])
                .collect(),
        };
        for line in lines.iter().take(top) {
            let mut row = vec![words::text(&line[0]["day"])];
            row.extend(self.of_teams.then(|| words::text(&line[0]["team"])));
            let sums = line.iter().map(|it| &it["sum"]);
            let millis = |name: &str| {
                let of = sums.clone().filter_map(|it| it[name].as_i64());
                of.sum::<i64>()
            };
            let cost_of: f64 = sums.clone().map(money).sum();
            let sum = serde_json::json!({
                "gpu_millis": millis("gpu_millis"),
                "unpriced_gpu_millis": millis("unpriced_gpu_millis"),
                "cost": cost_of.to_string(),
            });
            row.push(cost(&sum, currency));
            row.push(hours(&sum["gpu_millis"]));
            table.row(row);
        }
        text.push_str(&table.text("the ledger has no hours of this month"));
        let more = lines.len().saturating_sub(top);
        if more > 0 {
            text.push_str(&format!(
                "… and {more} more, later ones (--top {})\n",
                lines.len()
            ));
        }
        text
    }
}

/// The month, what it costs, how much of it has no price, and what changed since the month before.
fn heading(report: &Value, currency: &str) -> String {
    let total = &report["total"];
    let mut text = format!(
        "{}: {} for {} GPU-hours",
        words::text(&report["title"]),
        cost(total, currency),
        hours(&total["gpu_millis"])
    );
    if unpriced_of(total) > 0.0 {
        let unpriced = hours(&total["unpriced_gpu_millis"]);
        text.push_str(&format!(
            "; {unpriced} of them have no price (gpufleet doctor has the line)"
        ));
    }
    text.push('\n');
    text.push_str(&against(&report["against"], currency));
    text.push('\n');
    text
}

/// What changed since the month before, or why that cannot be said; nothing of a server that does not tell it.
fn against(told: &Value, currency: &str) -> String {
    if let Some(why) = told["not_compared"].as_str() {
        return format!("{}\n", words::plain(why));
    }
    let Some(change) = decimal(&told["change"]) else {
        return String::new();
    };
    let (now, before) = (&told["days"], &told["days_before"]);
    let is_nothing = |sum: &Value| sum["gpu_millis"] == 0;
    let spent = |sum: &Value| match is_nothing(sum) {
        true => words::amount(0.0, currency),
        false => cost(sum, currency),
    };
    let (now_cost, before_cost) = (spent(now), spent(before));
    let apart = |change: f64| {
        let word = if change < 0.0 { "less" } else { "more" };
        format!("{} {word}", words::amount(change.abs(), currency))
    };
    // What has no price is no money less.
    let is_known = now_cost != words::NOTHING && before_cost != words::NOTHING;
    let by = match change / money(before) * 100.0 {
        _ if !is_known => String::new(),
        _ if change == 0.0 => "as much, ".to_owned(),
        percent if !percent.is_finite() => format!("{}, ", apart(change)),
        percent if percent.abs() < 0.5 => format!("{} (under 1 %), ", apart(change)),
        percent => format!("{} ({percent:+.0} %), ", apart(change)),
    };
    let most = decimal(&told["moved_most"]["change"]).filter(|_| is_known);
    let most = most.map_or(String::new(), |moved| {
        let team = words::text(&told["moved_most"]["team"]);
        format!("; {team} moved most, {}", apart(moved))
    });
    format!(
        "against the month before: {by}{now_cost} after {before_cost}{most}. {}\n",
        words::text(&told["compared"])
    )
}

fn text(report: &Value, by: &str, top: usize) -> String {
    let currency = report["currency"].as_str().unwrap_or_default();
    let mut text = heading(report, currency);
    let names: Vec<&str> = by.split(',').map(str::trim).collect();
    let mut heads: Vec<&'static str> = names.iter().map(|it| head(it)).collect();
    heads.extend([">COST", ">GPU-HOURS", ">ACTIVE", ">IDLE"]);
    let mut table = Table::new(&heads);
    let mut groups: Vec<&Value> = report["groups"].as_array().into_iter().flatten().collect();
    // The sort keeps the report's order among equals.
    groups.sort_by(|one, other| money(&other["sum"]).total_cmp(&money(&one["sum"])));
    for group in groups.iter().take(top) {
        let of = |name: &&str| words::text(&group["by"][*name]);
        let mut row: Vec<String> = names.iter().map(of).collect();
        row.push(cost(&group["sum"], currency));
        row.push(hours(&group["sum"]["gpu_millis"]));
        row.push(share(
            group,
            &["active_efficient", "active_inefficient", "active_unrated"],
        ));
        row.push(share(group, &["unallocated", "parked", "held_empty"]));
        table.row(row);
    }
    text.push_str(&table.text("the ledger has no hours of this month"));
    let more = groups.len().saturating_sub(top);
    if more > 0 {
        let mut hidden = groups.iter().skip(top);
        let is_priced = hidden.all(|it| unpriced_of(&it["sum"]) == 0.0);
        let which = if is_priced {
            "which cost less"
        } else {
            "some of them without a price"
        };
        text.push_str(&format!("… and {more} more, {which}\n"));
    }
    text.push_str(&reasons(report, currency));
    for it in report["budgets"].as_array().into_iter().flatten() {
        let amount = |name: &str| {
            decimal(&it[name]).map_or(words::NOTHING.to_owned(), |it| words::amount(it, currency))
        };
        let over = if it["is_over"] == true { ": OVER" } else { "" };
        text.push_str(&format!(
            "budget of {}: {} of {}, forecast {}{over}\n",
            words::text(&it["team"]),
            amount("spent"),
            amount("budget"),
            amount("forecast")
        ));
    }
    text
}

/// The states of the month and why, the dearest first; nothing of a server that does not tell them.
fn reasons(report: &Value, currency: &str) -> String {
    let states = report["states"].as_object().into_iter().flatten();
    let mut all: Vec<(&str, &str, &Value)> = states
        .flat_map(|(state, of)| {
            let reasons = of["reasons"].as_object().into_iter().flatten();
            reasons.map(|(reason, sum)| (state.as_str(), reason.as_str(), sum))
        })
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let hours_of = |sum: &Value| sum["gpu_millis"].as_f64().unwrap_or(0.0);
    all.sort_by(|one, other| {
        let by_cost = money(other.2).total_cmp(&money(one.2));
        by_cost.then(hours_of(other.2).total_cmp(&hours_of(one.2)))
    });
    let mut table = Table::new(&["STATE", "WHY", ">COST", ">GPU-HOURS"]);
    for (state, reason, sum) in all {
        let why = match reason {
            "unknown" => words::NOTHING.to_owned(),
            told => told.replace('_', " "),
        };
        let state = state.replace('_', " ");
        table.row(vec![
            state,
            why,
            cost(sum, currency),
            hours(&sum["gpu_millis"]),
        ]);
    }
    format!("\n{}", table.text(""))
}

/// The head of a column, by what is grouped by.
fn head(by: &str) -> &'static str {
    match by {
        "team" => "TEAM",
        "cluster" => "CLUSTER",
        "namespace" => "NAMESPACE",
        "job" => "JOB",
        "model" => "MODEL",
        "project" => "PROJECT",
        "pool" => "POOL",
        "gpu" => "GPU",
        // The server has refused any other.
        _ => "",
    }
}

/// Money comes as decimal text, so that nobody rounds it; here two decimals are shown.
fn decimal(value: &Value) -> Option<f64> {
    value.as_str()?.parse().ok()
}

fn money(sum: &Value) -> f64 {
    decimal(&sum["cost"]).unwrap_or(0.0)
}

/// GPU-milliseconds of a sum that have no price.
fn unpriced_of(sum: &Value) -> f64 {
    sum["unpriced_gpu_millis"].as_f64().unwrap_or(0.0)
}

/// What a sum costs, at least that where a part of its time has no price; a dash where none of it has one.
fn cost(sum: &Value, currency: &str) -> String {
    let is_unpriced = sum["gpu_millis"] == sum["unpriced_gpu_millis"];
    match decimal(&sum["cost"]).filter(|_| !is_unpriced) {
        Some(cost) if unpriced_of(sum) > 0.0 => format!("≥ {}", words::amount(cost, currency)),
        Some(cost) => words::amount(cost, currency),
        None => words::NOTHING.to_owned(),
    }
}

fn hours(millis: &Value) -> String {
    match millis.as_f64() {
        Some(millis) => format!("{:.1}", millis / HOUR_MS),
        None => words::NOTHING.to_owned(),
    }
}

/// How much of a group's time was in these states.
fn share(group: &Value, states: &[&str]) -> String {
    let of = states.iter();
    let of = of.filter_map(|it| group["states"][*it]["gpu_millis"].as_f64());
    // The sum of nothing would be -0.
    let (of, all) = (
        of.fold(0.0, |sum, it| sum + it),
        group["sum"]["gpu_millis"].as_f64(),
    );
    match all.filter(|all| *all > 0.0) {
        Some(all) => format!("{:.0} %", of / all * 100.0),
        None => words::NOTHING.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_name_that_the_help_offers_has_a_head() {
        let command = Asked::augment_args(Command::new("cost"));
        let by = command.get_arguments().find(|it| it.get_id() == "by");
        let help = by.and_then(|it| it.get_help()).expect("it has a help");
        let help = help.to_string();
        let (_, names) = help.split_once("between: ").expect("names follow");
        let (names, _) = names.split_once(';').expect("days follow");
        assert_eq!(names.split(", ").count(), 8, "{names}");
        for name in names.split(", ") {
            assert_eq!(head(name), name.to_uppercase(), "{name}");
        }
    }

    fn sum(hours: i64, cost: &str, unpriced: i64) -> Value {
        json!({"gpu_millis": hours * 3_600_000, "cost": cost, "unpriced_gpu_millis": unpriced * 3_600_000})
    }

    #[test]
    fn the_dearest_comes_first_and_what_has_no_price_is_not_free() {
        let group = |team: &str, sum: Value| {
            let parked = if team == "large" {
                json!({})
            } else {
                json!({"gpu_millis": 900_000})
            };
            json!({"by": {"team": team}, "sum": sum,
                "states": {"active_unrated": {"gpu_millis": 1_800_000}, "parked": parked}})
        };
        let report = json!({"title": "November 2026", "currency": "USD", "total": sum(13, "110.5", 2),
            "groups": [group("small", sum(1, "10.504", 0)), group("large", sum(10, "100.0", 0)),
                group("free", sum(2, "0", 2))],
            "budgets": [{"team": "large", "budget": "90", "spent": "100", "forecast": null, "is_over": true}]});
        let text = text(&report, "team", 2);
        let expected = "November 2026: ≥ $110.50 for 13.0 GPU-hours; 2.0 of them have no price (gpufleet doctor has the line)\n\n\
             TEAM      COST  GPU-HOURS  ACTIVE  IDLE\n\
             large  $100.00       10.0     5 %   0 %\n\
             small   $10.50        1.0    50 %  25 %\n\
             … and 1 more, some of them without a price\n\
             budget of large: $100.00 of $90.00, forecast –: OVER\n";
        assert_eq!(text, expected);
        let all = super::text(&report, "team", 9);
        let free = all
            .lines()
            .find(|it| it.starts_with("free"))
            .unwrap_or_default();
        assert!(
            free.contains(words::NOTHING) && !free.contains('$'),
            "{free}"
        );
    }

    #[test]
    fn the_month_before_stands_beside_the_month_and_what_cannot_be_compared_says_why() {
        let told = |now: Value, before: Value, change: &str, moved: Value| {
            let told = json!({"days": now, "days_before": before, "change": change,
                "compared": "Nine days against nine.", "not_compared": null, "moved_most": moved});
            against(&told, "USD")
        };
        let ads = json!({"team": "ads", "change": "-15.5"});
        let head = "against the month before: ";
        let tail = ". Nine days against nine.\n";
        for (told, expected) in [
            (
                told(sum(9, "90", 0), sum(9, "100", 0), "-10", ads.clone()),
                "$10.00 less (-10 %), $90.00 after $100.00; ads moved most, $15.50 less",
            ),
            (
                told(sum(9, "100", 0), sum(9, "100", 0), "0.0", Value::Null),
                "as much, $100.00 after $100.00",
            ),
            (
                told(sum(9, "90", 2), sum(0, "0.0", 0), "90", Value::Null),
                "$90.00 more, ≥ $90.00 after $0.00",
            ),
            // No price is no money less.
            (
                told(sum(9, "0.0", 9), sum(9, "100", 0), "-100", ads),
                "– after $100.00",
            ),
        ] {
            assert_eq!(told, format!("{head}{expected}{tail}"));
        }
        let report = json!({"title": "November 2026", "currency": "USD", "total": sum(9, "90", 0), "groups": [],
            "against": {"not_compared": "Not compared with October 2026: October 2026 was not recorded."}});
        let heading = heading(&report, "USD");
        assert_eq!(
            heading,
            "November 2026: $90.00 for 9.0 GPU-hours\n\
             Not compared with October 2026: October 2026 was not recorded.\n\n"
        );
        assert_eq!(against(&Value::Null, "USD"), "", "an older server");
    }

    #[test]
    fn why_time_was_no_work_is_told_with_its_money_the_dearest_first() {
        let of = |reasons: Value| json!({"reasons": reasons});
        let report = json!({"title": "November 2026", "currency": "USD", "total": sum(9, "90", 0), "groups": [],
            "states": {"unallocated": of(json!({"no_demand": sum(2, "20", 0), "fragmented": sum(3, "30", 0)})),
                "active_unrated": of(json!({"unknown": sum(4, "40", 0)}))}});
        let told = text(&report, "team", 9);
        let expected = "\n\
             STATE           WHY           COST  GPU-HOURS\n\
             active unrated  –           $40.00        4.0\n\
             unallocated     fragmented  $30.00        3.0\n\
             unallocated     no demand   $20.00        2.0\n";
        assert!(told.ends_with(expected), "{told}");
    }

    #[test]
    fn days_stand_in_their_order_together_or_by_team() {
        let day = |day: &str, team: &str, sum: Value| json!({"day": day, "team": team, "sum": sum});
        let report = json!({"title": "November 2026", "currency": "USD", "total": sum(13, "110.5", 2),
            "days": [day("2026-11-01", "a", sum(10, "100.0", 0)), day("2026-11-01", "b", sum(1, "0.25", 0)),
                day("2026-11-02", "a", sum(2, "10.25", 2))]});
        let days = |by: &str| Days::of(by).expect("it may be asked").expect("days");
        let together = days("day").text(&report, 9);
        assert!(
            together.ends_with(
                "DAY            COST  GPU-HOURS\n\
                 2026-11-01  $100.25       11.0\n\
                 2026-11-02        –        2.0\n"
            ),
            "{together}"
        );
        let by_team = days("team, day").text(&report, 1);
        assert!(
            by_team.ends_with(
                "DAY         TEAM     COST  GPU-HOURS\n\
                 2026-11-01  a     $100.00       10.0\n\
                 … and 2 more, later ones (--top 3)\n"
            ),
            "{by_team}"
        );
        assert_eq!(Days::of("team,job").expect("it may be asked"), None);
        assert!(Days::of("day,gpu").is_err());
    }
}
