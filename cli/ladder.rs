//! `gpufleet ladder NAME`: runs tagged as steps of one improvement, each against the one before.

use std::io::Write as _;

use clap::Args;
use serde_json::Value;

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::table::Table;
use crate::words;

/// Which ladder.
#[derive(Debug, Args)]
pub(crate) struct Ladder {
    /// The text of the tag `ladder` of its runs.
    name: String,
    /// Of this cluster; needed where runs of several have the tag.
    #[arg(long)]
    cluster: Option<String>,
}

/// The answer.
pub(crate) fn answer(client: &Client, ladder: &Ladder) -> anyhow::Result<Answer> {
    let cluster = match &ladder.cluster {
        Some(cluster) => cluster.clone(),
        None => only_cluster(client, &ladder.name)?,
    };
    let place = format!(
        "/ladders/{}/{}",
        ask::encoded(&cluster),
        ask::encoded(&ladder.name)
    );
    let json = client.get(&place)?;
    Ok(Answer {
        text: table(&json).text("no run is on it"),
        json,
        is_good: true,
    })
}

/// The cluster of the ladder, where it is in one.
fn only_cluster(client: &Client, name: &str) -> anyhow::Result<String> {
    let places = client.get(&format!("/ladders/{}", ask::encoded(name)))?;
    let (cluster, note) = only(&places, name)?;
    if let Some(note) = note {
        client.waiting().is_over();
        // Not in the answer, which a program may read.
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    Ok(cluster)
}

/// The one cluster of these, and what is to be said of the others.
fn only(places: &Value, name: &str) -> anyhow::Result<(String, Option<String>)> {
    let clusters = places["clusters"].as_array().map(Vec::as_slice);
    let are_all = places["are_all"] == true;
    let rest = "only the last jobs were looked at: earlier ones may have the tag too";
    match (clusters.unwrap_or_default(), are_all) {
        ([], _) => anyhow::bail!(
            "no run has the tag `ladder` with the text {name}{}; a run has it by gpufleet.init(tags={{\"ladder\": \"{name}\", \"rung\": \"what was changed\"}})",
            if are_all {
                String::new()
            } else {
                format!(" ({rest})")
            }
        ),
        ([one], are_all) => {
            let note = format!("{rest} in another cluster; name one with --cluster");
            let one = one.as_str().unwrap_or_default().to_owned();
            Ok((one, (!are_all).then_some(note)))
        }
        (several, are_all) => {
            let several: Vec<String> = several.iter().map(words::text).collect();
            let rest = if are_all {
                String::new()
            } else {
                format!(" ({rest})")
            };
            anyhow::bail!(
                "give --cluster: runs with this tag are in {}{rest}",
                several.join(", ")
            )
        }
    }
}

fn table(ladder: &Value) -> Table {
    let mut table = Table::new(&[
        "JOB",
        "RUNG",
        ">STEP",
        ">AGAINST BEFORE",
        ">AGAINST FIRST",
        ">LOSS",
        ">1M TOKENS",
    ]);
    for rung in ladder["rungs"].as_array().into_iter().flatten() {
        let run = &rung["run"];
        let job = format!(
            "{} {}{}",
            words::text(&run["job"]),
            words::text(&run["attempt"]),
            words::origin(&run["origin"])
        );
        table.row(vec![
            job,
            words::text(&rung["rung"]),
            words::pace(&rung["step_seconds"]),
            gain(&rung["against_before"]),
            gain(&rung["against_first"]),
            words::measured(&rung["against_before"]["loss"]["b"], 4, ""),
            words::money(&rung["usd_per_million_tokens"], ladder),
        ]);
    }
    table
}

/// How many times as fast, and how uncertain that is.
pub(crate) fn gain(against: &Value) -> String {
    let Some(speed_up) = words::number(&against["speed_up"]) else {
        return words::NOTHING.to_owned();
    };
    match words::number(&against["speed_up_uncertainty"]) {
        Some(part) => format!("×{speed_up:.3} ± {:.3}", part * speed_up),
        None => format!("×{speed_up:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rung_shows_what_it_brought_and_the_first_nothing() {
        let rung = json!({
            "rung": "fused", "step_seconds": 0.5, "run": {"job": "t/a/1", "attempt": 0},
            "against_before": {"speed_up": 1.25, "speed_up_uncertainty": 0.01, "loss": {"b": 2.5}},
            "usd_per_million_tokens": {"value": 1.5, "missing": null},
        });
        let first = json!({"step_seconds": 0.625, "run": {"job": "t/b/1", "attempt": 0},
            "against_before": null});
        let rungs = json!([first, rung]);
        let euros = table(&json!({"rungs": rungs, "currency": "EUR"})).text("");
        assert!(
            euros.contains("1.50 EUR") && !euros.contains('$'),
            "{euros}"
        );
        let text = table(&json!({ "rungs": rungs })).text("");
        assert!(
            text.contains("×1.250 ± 0.013") && text.contains("$1.50"),
            "{text}"
        );
        assert_eq!(gain(&Value::Null), words::NOTHING);
    }

    #[test]
    fn a_rung_that_is_not_live_says_what_it_is() {
        let run = |origin: &str| json!({"run": {"job": "t/a/1", "attempt": 0, "origin": origin}});
        let text = table(&json!({"rungs": [run("live"), run("simulated")]})).text("");
        assert_eq!(text.matches("t/a/1 0 (simulated)").count(), 1, "{text}");
        assert!(!text.contains("live"), "{text}");
    }

    #[test]
    fn a_ladder_is_of_the_one_cluster_that_has_it_and_else_that_is_said() {
        let of = |clusters: &[&str], are_all: bool| {
            let places = json!({"clusters": clusters, "are_all": are_all});
            only(&places, "fp8")
        };
        let refused = |clusters: &[&str], are_all| {
            let why = of(clusters, are_all).expect_err("it is not one");
            why.to_string()
        };
        let (cluster, note) = of(&["prod"], true).expect("it is one");
        assert_eq!((cluster.as_str(), note), ("prod", None));
        let (cluster, note) = of(&["prod"], false).expect("it is one");
        assert_eq!(cluster, "prod");
        assert!(note.is_some_and(|it| it.contains("only the last jobs")));
        let none = refused(&[], true);
        assert!(none.contains("tags={\"ladder\": \"fp8\""), "{none}");
        assert!(!none.contains("only the last"), "{none}");
        assert!(refused(&[], false).contains("only the last jobs"));
        let several = refused(&["a", "b"], true);
        assert!(
            several.contains("--cluster") && several.contains("a, b"),
            "{several}"
        );
        assert!(refused(&["a", "b"], false).contains("only the last jobs"));
    }
}
