//! `gpufleet gpus`: every GPU and what it does; with `--idle` those that do nothing.

use clap::Args;
use serde_json::Value;

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::named;
use crate::table::Table;
use crate::words;

/// States of a GPU in which it could work and does not, as the API is asked for them.
const IDLE: &str = "unallocated,parked,held_empty";

/// Which GPUs.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Only those that could work and do not: held by nobody, or held and inactive for five minutes. Those that are
    /// not observed are not among them.
    #[arg(long)]
    idle: bool,
    /// Only of this cluster.
    #[arg(long)]
    cluster: Option<String>,
    /// Only on this node.
    #[arg(long)]
    node: Option<String>,
    /// Only `live`, `recorded` or `simulated` ones.
    #[arg(long)]
    origin: Option<String>,
}

/// The answer.
pub(crate) fn answer(client: &Client, filter: &Filter) -> anyhow::Result<Answer> {
    let list = ask::all(client, "/gpus", &filter.given())?;
    if list.items.is_empty() {
        named::known_place(client, filter.cluster.as_deref(), filter.node.as_deref())?;
    }
    let none = match filter.idle {
        true => "no GPU is idle",
        false => "no GPU is there; `gpufleet status` says whether any reports",
    };
    Ok(Answer {
        text: table(&list.items).text(none) + &list.note(),
        json: list.json(),
        is_good: true,
    })
}

impl Filter {
    /// What the server is asked.
    fn given(&self) -> Vec<(&str, &str)> {
        ask::given([
            ("cluster", self.cluster.as_deref()),
            ("node", self.node.as_deref()),
            ("origin", self.origin.as_deref()),
            ("state", self.idle.then_some(IDLE)),
        ])
    }
}

fn table(gpus: &[Value]) -> Table {
    let mut table = Table::new(&[
        "CLUSTER", "NODE", ">GPU", "MODEL", "STATE", ">BUSY", ">MEMORY", ">POWER", "HOLDER",
    ]);
    for gpu in gpus {
        let readings = &gpu["readings"];
        let state = words::text(&gpu["state"]).replace('_', " ");
        let why = gpu["reason"].as_str().filter(|it| *it != "unknown");
        let why = why.map(|it| format!(": {}", it.replace('_', " ")));
        let holder = match gpu["holder"]["known"].as_bool() {
            Some(true) => words::text(&gpu["holder"]["name"]),
            _ => "not known".to_owned(),
        };
        table.row(vec![
            words::text(&gpu["cluster"]) + &words::origin(&gpu["origin"]),
            words::text(&gpu["node"]),
            words::text(&gpu["index"]),
            words::text(&gpu["model"]),
            state + &why.unwrap_or_default(),
            words::percent(&readings["utilization_ratio"]),
            words::gib(&readings["memory_used_bytes"]),
            words::measured(&readings["power_watts"], 0, " W"),
            holder,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_server_is_asked_for_those_that_are_idle_and_what_is_not_observed_is_not() {
        let mut filter = Filter {
            idle: false,
            cluster: Some("prod".to_owned()),
            node: None,
            origin: None,
        };
        assert_eq!(filter.given(), [("cluster", "prod")]);
        filter.idle = true;
        let states = "unallocated,parked,held_empty";
        assert_eq!(filter.given(), [("cluster", "prod"), ("state", states)]);
    }

    #[test]
    fn a_row_says_what_is_simulated_and_what_is_not_known() {
        let gpu = json!({"cluster": "demo", "node": "n-1", "index": 3, "model": "NVIDIA H100",
            "origin": "simulated", "state": "unhealthy", "reason": "device_lost",
            "holder": {"known": false, "name": null},
            "readings": {"utilization_ratio": {"value": null, "missing": "gpu_lost"},
                "memory_used_bytes": {"value": null, "missing": "gpu_lost"},
                "power_watts": {"value": 71.6, "missing": null}}});
        let text = table(&[gpu]).text("");
        let row = text.lines().nth(1).unwrap_or_default();
        let cells: Vec<_> = row
            .split("  ")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .collect();
        assert_eq!(
            cells,
            [
                "demo (simulated)",
                "n-1",
                "3",
                "NVIDIA H100",
                "unhealthy: device lost",
                "gpu lost",
                "gpu lost",
                "72 W",
                "not known"
            ]
        );
    }
}
