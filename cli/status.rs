//! `gpufleet status`: whether the server is well, and the fleet in numbers.

use serde_json::{Value, json};

use crate::Answer;
use crate::client::Client;
use crate::table::Table;
use crate::words;

/// The answer.
pub(crate) fn answer(client: &Client) -> anyhow::Result<Answer> {
    let health = client.get("/health")?;
    let fleet = client.get("/fleet")?;
    let is_good = health["status"] == "ok";
    Ok(Answer {
        text: text(&client.server(), &health, &fleet),
        json: json!({ "health": health, "fleet": fleet }),
        is_good,
    })
}

fn text(server: &str, health: &Value, fleet: &Value) -> String {
    let mut text = format!(
        "server {server}, version {}: {}\n",
        words::text(&health["version"]),
        words::text(&health["status"])
    );
    let checks = health["checks"].as_array().into_iter().flatten();
    for check in checks.filter(|it| it["ok"] != true) {
        let (name, why) = (words::text(&check["name"]), words::text(&check["why"]));
        text.push_str(&format!("  {name}: {why}\n"));
    }
    for warning in health["warnings"].as_array().into_iter().flatten() {
        text.push_str(&format!("  {}\n", words::text(warning)));
    }
    let mut table = Table::new(&["", ">GPUS", ">MEASURED", "STATES"]);
    for origin in ["live", "recorded", "simulated"] {
        let counts = &fleet[origin];
        if counts["gpus"].as_u64().unwrap_or(0) == 0 && origin != "live" {
            continue;
        }
        let states = counts["by_state"].as_object().into_iter().flatten();
        let states = states.map(|(state, count)| format!("{} {count}", state.replace('_', " ")));
        table.row(vec![
            origin.to_owned(),
            words::text(&counts["gpus"]),
            words::text(&counts["measured"]),
            states.collect::<Vec<_>>().join(", "),
        ]);
    }
    text.push_str(&table.text(""));
    let silent = fleet["silent_nodes"].as_u64().unwrap_or(0);
    if silent > 0 {
        text.push_str(&format!("silent nodes: {silent}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_named_and_a_fleet_that_is_not_there_has_no_line() {
        let health = json!({"status": "failing", "version": "1", "warnings": [],
            "checks": [{"name": "store", "ok": false, "why": "the disk is full"}]});
        let fleet = json!({"silent_nodes": 2,
            "live": {"gpus": 8, "measured": 7, "by_state": {"active_unrated": 7, "unhealthy": 1}},
            "recorded": {"gpus": 0, "measured": 0, "by_state": {}},
            "simulated": {"gpus": 64, "measured": 64, "by_state": {"parked": 64}}});
        let text = text("http://s", &health, &fleet);
        let expected = "server http://s, version 1: failing\n  store: the disk is full\n           \
             GPUS  MEASURED  STATES\nlive          8         7  active unrated 7, unhealthy 1\n\
             simulated    64        64  parked 64\nsilent nodes: 2\n";
        assert_eq!(text, expected);
    }
}
