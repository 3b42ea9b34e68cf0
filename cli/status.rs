//! `gpufleet status`: whether the server is well, and the fleet in numbers.

use serde_json::{Value, json};

use crate::Answer;
use crate::client::{Client, Refusal};
use crate::table::Table;
use crate::words;

/// The answer; bad news when the server says that it fails.
pub(crate) fn answer(client: &Client) -> anyhow::Result<Answer> {
    let health = client.get("/health")?;
    let is_good = health["status"] == "ok";
    // One that fails, as a standby that does not lead, may say nothing of the fleet: its checks say why.
    let fleet = match client.get("/fleet") {
        Err(Refusal::Refused { .. }) if !is_good => Value::Null,
        fleet => fleet?,
    };
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
    if fleet.is_null() {
        text.push_str("the fleet: it does not say\n");
        return text;
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

    #[test]
    fn of_a_server_that_says_nothing_of_the_fleet_no_gpu_is_counted() {
        let health = json!({"status": "failing", "version": "1", "warnings": [],
            "checks": [{"name": "lead", "ok": false, "why": "standby: host-1 has it"}]});
        let text = text("http://s", &health, &Value::Null);
        let expected = "server http://s, version 1: failing\n  lead: standby: host-1 has it\n\
            the fleet: it does not say\n";
        assert_eq!(text, expected);
    }
}
