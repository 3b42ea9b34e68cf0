//! Every metric of the catalog is made somewhere: a reader, a mapping table, the agent, the server.

use gpufleet_telemetry::catalog::{self, Metric};

use super::tree::{File, files, none};

/// The rooms of the catalog, by the module that declares them, and who makes their metrics.
type Room = (
    &'static str,
    &'static [Metric],
    &'static [&'static str],
    &'static [&'static str],
);

const ROOMS: [Room; 6] = [
    (
        "gpu",
        catalog::gpu::ALL,
        catalog::gpu::CONSTANTS,
        &["agent/"],
    ),
    (
        "node",
        catalog::node::ALL,
        catalog::node::CONSTANTS,
        &["agent/"],
    ),
    (
        "serving",
        catalog::serving::ALL,
        catalog::serving::CONSTANTS,
        &["agent/"],
    ),
    (
        "training",
        catalog::training::ALL,
        catalog::training::CONSTANTS,
        &["hooks/tell/", "agent/"],
    ),
    (
        "own",
        catalog::own::ALL,
        catalog::own::CONSTANTS,
        &["agent/"],
    ),
    (
        "server",
        catalog::server::ALL,
        catalog::server::CONSTANTS,
        &["server/"],
    ),
];

/// Metrics that are made out of a table, by the table's name.
const TABLES: [(&str, &[Metric]); 1] = [("training::PHASES", &catalog::training::PHASES)];

/// The metrics that no file of their makers names, by constant (`gpu::POWER`) or by name.
fn unread(rooms: &[Room], all: &[File]) -> Vec<String> {
    let mut unread = Vec::new();
    for (room, metrics, constants, makers) in rooms {
        let is_its = |file: &&File| makers.iter().any(|it| file.path.starts_with(it));
        let of_makers = all.iter().filter(is_its);
        let texts: Vec<&str> = of_makers
            .map(|file| {
                if file.path.ends_with(".rs") {
                    file.shipped()
                } else {
                    &file.text
                }
            })
            .collect();
        for (metric, constant) in metrics.iter().zip(*constants) {
            let constant = format!("{room}::{constant}");
            let tables = TABLES.iter().filter(|(_, table)| table.contains(metric));
            let mut words = vec![constant.as_str(), metric.name];
            words.extend(tables.map(|(table, _)| *table));
            let is_named = |text: &&str| words.iter().any(|word| has_word(text, word));
            let is_read = texts.iter().any(is_named);
            if !is_read {
                unread.push(format!("{constant} ({})", metric.name));
            }
        }
    }
    unread
}

/// Whether `word` stands in `text` with nothing of a name behind it.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let goes_on = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[at + word.len()..].starts_with(goes_on))
}

#[test]
fn every_metric_of_the_catalog_is_made_somewhere() {
    let unread = unread(&ROOMS, &files(&[".rs", ".toml"]));
    none(
        "a catalog entry is read, derived or counted somewhere",
        &unread,
    );
}

#[test]
fn a_metric_that_nobody_makes_would_be_found() {
    let file = File {
        path: "agent/read.rs".to_owned(),
        text: "push(&gpu::POWER_INSTANT); push(&gpu::TEMPERATURE);".to_owned(),
    };
    let room: Room = (
        "gpu",
        catalog::gpu::ALL,
        catalog::gpu::CONSTANTS,
        &["agent/"],
    );
    let unread = unread(&[room], &[file]);
    assert!(unread.iter().any(|it| it.starts_with("gpu::POWER (")));
    assert!(!unread.iter().any(|it| it.starts_with("gpu::TEMPERATURE (")));
}
