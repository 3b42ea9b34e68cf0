//! `gpufleet ladder NAME`: runs tagged as steps of one improvement, each against the one before.

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
    /// Of this cluster; needed where there are several.
    #[arg(long)]
    cluster: Option<String>,
}

/// The answer.
pub(crate) fn answer(client: &Client, ladder: &Ladder) -> anyhow::Result<Answer> {
    let cluster = match &ladder.cluster {
        Some(cluster) => cluster.clone(),
        None => only_cluster(client)?,
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

/// The cluster of the jobs, where there is one.
fn only_cluster(client: &Client) -> anyhow::Result<String> {
    let jobs = ask::all(client, "/jobs", &[])?;
    let mut clusters: Vec<String> = jobs
        .items
        .iter()
        .filter_map(|it| Some(it["cluster"].as_str()?.to_owned()))
        .collect();
    clusters.sort();
    clusters.dedup();
    match clusters.as_slice() {
        [one] => Ok(one.clone()),
        [] => anyhow::bail!("no training job has told of itself; docs/hooks.md says how one does"),
        several => anyhow::bail!("give --cluster: there are jobs in {}", several.join(", ")),
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
            "{} {}",
            words::text(&run["job"]),
            words::text(&run["attempt"])
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
}
