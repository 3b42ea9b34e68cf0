//! `gpufleet find NAME`: nodes, GPUs and jobs by a part of their name, with their pages.

use clap::Args;
use serde_json::Value;

use crate::Answer;
use crate::ask;
use crate::client::Client;
use crate::table::Table;
use crate::words;

/// What is looked for.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gpufleet find node-7\n  gpufleet find GPU-5a1f\n  gpufleet find llama"
)]
pub(crate) struct Asked {
    /// A part of a name: of a node, of a GPU (its id, node/index, who holds it) or of a training job.
    name: String,
}

/// The answer.
pub(crate) fn answer(client: &Client, asked: &Asked) -> anyhow::Result<Answer> {
    let json = client.get(&ask::with_query("/find", &[("q", &asked.name)]))?;
    Ok(Answer {
        text: text(&json, &client.server()),
        json,
        is_good: true,
    })
}

fn text(found: &Value, server: &str) -> String {
    let mut table = Table::new(&["KIND", "CLUSTER", "NAME", "WHAT IT IS", "PAGE"]);
    let mut notes = String::new();
    for (kind, many) in [("node", "nodes"), ("GPU", "gpus"), ("job", "jobs")] {
        for it in found[many]["items"].as_array().into_iter().flatten() {
            table.row(vec![
                kind.to_owned(),
                words::text(&it["cluster"]) + &words::origin(&it["origin"]),
                words::text(&it["name"]),
                words::text(&it["about"]),
                format!("{server}{}", words::text(&it["page"])),
            ]);
        }
        match found[many]["more"].as_u64() {
            None | Some(0) => {}
            Some(more) => notes.push_str(&format!("… and {more} more {many}\n")),
        }
    }
    if let Some(why) = found["not_all_jobs"].as_str() {
        let why = words::plain(why);
        notes.push_str(&format!("Of jobs there may be more. {why}\n"));
    }
    table.text("nothing that was looked at has this in its name") + &notes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_found_stands_with_its_page_and_what_is_not_told_is_counted() {
        let node = json!({"cluster": "prod", "origin": "live", "name": "n-1", "about": "8 GPUs", "page": "/n"});
        let found = json!({
            "nodes": {"items": [node], "more": 12},
            "gpus": {"items": [], "more": 0},
            "jobs": {"items": [], "more": 0},
            "not_all_jobs": "Only the 5,000 that started last were looked at.",
        });
        let said = text(&found, "http://fleet:8080");
        for words in [
            "http://fleet:8080/n",
            "8 GPUs",
            "… and 12 more nodes\n",
            "Of jobs there may be more. Only the 5,000",
        ] {
            assert!(said.contains(words), "{words} is not in {said}");
        }
        assert!(!said.contains("gpus"), "{said}");
        let nothing = text(&json!({}), "http://fleet:8080");
        assert!(nothing.contains("nothing that was looked at"), "{nothing}");
    }
}
