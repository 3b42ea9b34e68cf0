//! Nodes that the config names, where nobody else tells them: a few machines under a desk. They are taken
//! for ready, and nothing is known of who waits.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_analysis::inventory::{Node, Ready};
use gpufleet_analysis::price_book::MAX_GPUS;

use super::known::TOLD_FOR;
use crate::App;

/// Why there is no queue.
const NO_CLAIMS: &str =
    "the nodes are a list in the config, which does not say who holds GPUs or waits for them";

/// The nodes of `inventory.nodes`.
///
/// # Errors
/// Names the line that cannot be read.
pub fn nodes(lines: &BTreeMap<String, String>) -> Result<Vec<Node>, String> {
    lines.iter().map(|(name, line)| node(name, line)).collect()
}

fn node(name: &str, line: &str) -> Result<Node, String> {
    let wrong = |why: &str| {
        format!(
            "inventory.nodes: \"{name}\" = \"{line}\": {why}; it may be \"8 NVIDIA H100 80GB HBM3 @zone\""
        )
    };
    let (what, zone) = match line.rsplit_once('@') {
        Some((what, zone)) => (what.trim(), zone.trim()),
        None => (line.trim(), ""),
    };
    let (count, model) = what.split_once(' ').unwrap_or((what, ""));
    let gpus: u32 = count
        .parse()
        .map_err(|_| wrong("it must begin with how many GPUs there are"))?;
    if name.is_empty() || !(1..=MAX_GPUS).contains(&gpus) {
        let why = format!("a node has a name and 1 to {MAX_GPUS} GPUs");
        return Err(wrong(&why));
    }
    Ok(Node {
        name: name.to_owned(),
        model: model.trim().to_owned(),
        zone: zone.to_owned(),
        gpus,
        allocatable: gpus,
        ready: Ready::Yes,
        ..Node::default()
    })
}

/// Keeps them known for ever.
pub(super) async fn run(app: &App) {
    let all = nodes(&app.config.inventory.nodes).expect("Config::check refuses other lines");
    app.inventory.known().claims.is_absent(NO_CLAIMS);
    loop {
        let now = super::now(app);
        app.inventory.known().all_nodes(all.clone(), now);
        tokio::time::sleep(TOLD_FOR.min(Duration::from_secs(60))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_many_of_which_type_and_where() {
        let check = |line: &str, expected: Option<(u32, &str, &str)>| {
            let found = node("n", line);
            let found = found.as_ref().ok();
            let found = found.map(|it| (it.gpus, it.model.as_str(), it.zone.as_str()));
            assert_eq!(found, expected, "{line}");
        };
        check(
            "8 NVIDIA H100 80GB HBM3 @rack-7",
            Some((8, "NVIDIA H100 80GB HBM3", "rack-7")),
        );
        check("2 L4", Some((2, "L4", "")));
        check(" 1 ", Some((1, "", "")));
        check("", None);
        check("H100", None);
        check("0 H100", None);
        check("33 H100", None);
        check("-1 H100", None);
    }
}
