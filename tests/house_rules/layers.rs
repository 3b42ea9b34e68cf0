//! Who may know what: SQL, HTTP, the clock and the disk each have their place.

use super::tree::{File, files, none, rust};

fn broken_by(files: &[File], words: &[&str]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files {
        for (index, line) in file.shipped().lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            if let Some(word) = words.iter().find(|word| line.contains(**word))
                && !is_comment
            {
                broken.push(format!("{}:{}: {word}", file.path, index + 1));
            }
        }
    }
    broken
}

/// The Rust files below one of these paths; there must be some.
fn below(paths: &[&str]) -> Vec<File> {
    let found: Vec<_> = rust()
        .into_iter()
        .filter(|file| paths.iter().any(|path| file.path.starts_with(path)))
        .collect();
    assert!(!found.is_empty(), "nothing lies below {paths:?}");
    found
}

#[test]
fn telemetry_and_analysis_do_no_input_output_and_read_no_clock() {
    let words = [
        "std::fs",
        "std::net",
        "std::process",
        "std::env",
        "std::thread",
        "tokio",
        "SystemTime",
        "Instant::",
        "sqlx",
        "axum",
        "use tonic",
        "tonic::transport",
    ];
    let broken = broken_by(&below(&["telemetry/", "analysis/"]), &words);
    none(
        "telemetry and analysis are values and pure functions",
        &broken,
    );
}

#[test]
fn only_the_store_contains_sql() {
    let words = [
        "\"SELECT ",
        "\"INSERT INTO",
        "\"UPDATE ",
        "\"DELETE FROM",
        "\"CREATE ",
        "sqlx::",
    ];
    let others: Vec<_> = rust()
        .into_iter()
        .filter(|file| !file.path.starts_with("server/store"))
        .collect();
    none("SQL lives in server/store", &broken_by(&others, &words));
}

#[test]
fn fleet_and_store_know_no_http() {
    let broken = broken_by(
        &below(&["server/fleet", "server/store"]),
        &["axum", "use tonic", "hyper"],
    );
    none("fleet and store know no HTTP", &broken);
}

#[test]
fn only_who_serves_the_pages_knows_them() {
    let serves = ["server/pages", "server/web", "server/api/reference.rs"];
    let mut others = below(&["server/"]);
    others.retain(|file| !serves.iter().any(|it| file.path.starts_with(it)));
    let broken = broken_by(&others, &["pages::"]);
    none("what others say too lies in server/words", &broken);
}

#[test]
fn both_databases_have_the_same_migrations() {
    let numbers = |side: &str| -> Vec<String> {
        files(&[".sql"])
            .into_iter()
            .filter(|file| file.path.starts_with(&format!("migrations/{side}/")))
            .map(|file| file.path.rsplit('/').next().unwrap_or_default().to_owned())
            .collect()
    };
    assert!(!numbers("sqlite").is_empty(), "no migrations/sqlite");
    assert_eq!(numbers("sqlite"), numbers("postgres"));
}
