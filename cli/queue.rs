//! `gpufleet queue`: who waits for GPUs and why, what is free, and the largest gang that fits.

use serde_json::Value;

use crate::Answer;
use crate::client::Client;
use crate::table::Table;
use crate::words;

/// The answer.
pub(crate) fn answer(client: &Client) -> anyhow::Result<Answer> {
    let json = client.get("/queue")?;
    Ok(Answer {
        text: text(&json),
        json,
        is_good: true,
    })
}

fn text(queue: &Value) -> String {
    let mut text = String::new();
    for part in ["nodes", "claims"] {
        let seen = &queue[part];
        if let Some(why) = seen["why"].as_str() {
            let fix = seen["fix"].as_str().unwrap_or_default();
            let (why, fix) = (words::plain(why), words::plain(fix));
            text.push_str(&format!("{why} {fix}\n"));
        }
    }
    for it in items(&queue["not_seen_besides"]) {
        let of = |name: &str| words::plain(it[name].as_str().unwrap_or_default());
        text.push_str(&format!("{} {}\n", of("why"), of("fix")));
    }
    if let Some(rows) = queue["waiting"].as_array() {
        text.push_str(&waiting(rows).text("nobody waits for GPUs"));
        more(&mut text, &queue["more_waiting"], "that wait for less long");
    }
    if let Some(pools) = queue["capacity"].as_array() {
        text.push('\n');
        text.push_str(&capacity(pools).text("the cluster has no node with GPUs"));
    }
    let unwell = items(&queue["unwell_nodes"]);
    for node in unwell {
        let why = node["why"].as_str();
        let why = why.map(|it| format!(": {}", words::plain(it)));
        text.push_str(&format!(
            "{} is {} since {}{}\n",
            words::text(&node["node"]),
            words::text(&node["phase"]).replace('_', " "),
            words::moment(&node["since"]),
            why.unwrap_or_default()
        ));
    }
    more(&mut text, &queue["more_unwell_nodes"], "nodes");
    text
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn more(text: &mut String, count: &Value, what: &str) {
    let count = count.as_u64().unwrap_or(0);
    if count > 0 {
        text.push_str(&format!("… and {count} more {what}\n"));
    }
}

fn waiting(rows: &[Value]) -> Table {
    let mut table = Table::new(&[
        "WORKLOAD",
        "QUEUE",
        ">GPUS",
        ">PODS",
        "TYPE",
        "SINCE (UTC)",
        "WHY",
    ]);
    for row in rows {
        let plainly = items(&row["plainly"]).filter_map(Value::as_str);
        let scaler = match row["autoscaler"]["what"].as_str() {
            Some("adds_nodes") => Some("The autoscaler is adding nodes."),
            Some("adds_none") => Some("The autoscaler adds none."),
            Some("failed") => Some("The autoscaler failed to add one."),
            _ => None,
        };
        let plainly = plainly.chain(scaler);
        let unit = if row["is_shares"] == true {
            " shares"
        } else {
            ""
        };
        table.row(vec![
            words::text(&row["workload"]),
            words::text(&row["queue"]),
            words::text(&row["gpus"]) + unit,
            words::text(&row["pods"]),
            words::text(&row["gpu_type"]),
            words::moment(&row["since"]),
            plainly.collect::<Vec<_>>().join(" "),
        ]);
    }
    table
}

fn capacity(pools: &[Value]) -> Table {
    let mut table = Table::new(&[
        "TYPE",
        "ZONE",
        ">NODES",
        ">GPUS",
        ">FREE",
        "LARGEST GANGS (PODS × GPUS)",
    ]);
    for pool in pools {
        // A line for each partition: their names are long.
        let gangs: Vec<&Value> = items(&pool["largest_gangs"]).collect();
        let of_one = gangs.chunk_by(|one, other| one["partition"] == other["partition"]);
        let mut lines = of_one.map(|of_one| {
            let size = |it: &&Value| {
                let (pods, gpus) = (&it["pods"], &it["gpus_per_pod"]);
                format!("{} × {}", words::text(pods), words::text(gpus))
            };
            let sizes: Vec<String> = of_one.iter().map(size).collect();
            let partition = &of_one[0]["partition"];
            match partition.is_string() {
                true => format!("{} in {}", sizes.join(", "), words::text(partition)),
                false => sizes.join(", "),
            }
        });
        table.row(vec![
            words::text(&pool["gpu_type"]),
            words::text(&pool["zone"]),
            words::text(&pool["nodes"]),
            words::text(&pool["gpus"]),
            words::text(&pool["free"]),
            lines.next().unwrap_or_default(),
        ]);
        let left_out = pool["partitions_left_out"].as_u64().filter(|it| *it > 0);
        let left_out = left_out.map(|it| format!("and {it} partitions with less that is free"));
        for line in lines.chain(left_out) {
            let mut row = vec![String::new(); 5];
            row.push(line);
            table.row(row);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_has_its_reason_and_no_number() {
        let seen = json!({"state": "seen", "why": null, "fix": null});
        let never = json!({"state": "never_seen", "why": "No right.", "fix": "Apply it."});
        let queue = json!({"nodes": seen, "claims": never, "waiting": null, "more_waiting": 0,
            "capacity": [{"gpu_type": "h100", "zone": null, "nodes": 2, "gpus": 16, "free": null,
                "largest_gangs": null}],
            "unwell_nodes": [{"node": "n-1", "phase": "not_ready", "why": "KubeletNotReady",
                "since": "2026-11-22T10:00:00Z"}], "more_unwell_nodes": 3});
        let expected = "No right. Apply it.\n\n\
            TYPE  ZONE  NODES  GPUS  FREE  LARGEST GANGS (PODS × GPUS)\n\
            h100  –         2    16     –\n\
            n-1 is not ready since 2026-11-22 10:00:00: KubeletNotReady\n\
            … and 3 more nodes\n";
        assert_eq!(text(&queue), expected);
    }

    #[test]
    fn who_waits_stands_with_what_for_and_why() {
        let seen = json!({"state": "seen", "why": null, "fix": null});
        let queue = json!({"nodes": seen, "claims": seen, "more_waiting": 1,
            "waiting": [{"workload": "jobset:ns/a", "queue": "q", "gpus": 16, "pods": 2,
                "gpu_type": null, "is_shares": false, "since": "2026-11-22T10:00:00Z",
                "plainly": ["2 nodes are cordoned.", "1 node has too few free GPUs."],
                "autoscaler": {"what": "adds_none", "says": "max node group size reached"}}],
            "not_seen_besides": [{"why": "Jobs are not seen.", "fix": "Apply it."}],
            "capacity": [], "unwell_nodes": [], "more_unwell_nodes": 0});
        let text = text(&queue);
        for words in [
            "jobset:ns/a  q        16     2  –     2026-11-22 10:00:00  2 nodes are cordoned. 1 node has",
            "too few free GPUs. The autoscaler adds none.",
            "Jobs are not seen. Apply it.\n",
            "… and 1 more that wait for less long",
            "the cluster has no node with GPUs",
        ] {
            assert!(text.contains(words), "{words} is not in {text}");
        }
    }

    #[test]
    fn a_gang_says_in_which_partition_it_fits_where_there_are_any() {
        let seen = json!({"state": "seen", "why": null, "fix": null});
        let of = |partition: Value| {
            let gang = json!({"partition": partition, "pods": 2, "gpus_per_pod": 8});
            let pool = json!({"gpu_type": "h100", "zone": null, "nodes": 2, "gpus": 16,
                "free": 16, "largest_gangs": [gang]});
            text(&json!({"nodes": seen, "claims": seen, "capacity": [pool]}))
        };
        let told = of(json!("long"));
        assert!(told.contains(" 2 × 8 in long\n"), "{told}");
        let told = of(Value::Null);
        assert!(told.contains(" 2 × 8\n"), "{told}");
    }
}
