//! What each overlay adds to the base is what the table says, and what is rendered is what kustomize
//! makes of the sources. Where no kubectl with kustomize 5 is found the latter is not tried, and the
//! test says NOT RUN.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde::Deserialize;
use serde_norway::Value;

use super::{OVERLAYS, folder, rendered};
use crate::tree::{none, root};

/// A place in a manifest; elements of lists go by their name where they have one.
type Place = Vec<String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Overlay {
    says: String,
    missing: Vec<String>,
    adds: Vec<Addition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Addition {
    object: String,
    at: String,
    why: String,
}

/// Every leaf of a manifest with its place.
fn leaves(value: &Value, place: &Place, found: &mut BTreeMap<Place, String>) {
    let below = |key: String| [place.clone(), vec![key]].concat();
    match value {
        Value::Mapping(entries) => {
            for (key, value) in entries {
                let key = key.as_str().expect("a key is a text").to_owned();
                leaves(value, &below(key), found);
            }
        }
        Value::Sequence(elements) => {
            for (index, element) in elements.iter().enumerate() {
                let name = ["mountPath", "name"].map(|it| element.get(it).and_then(Value::as_str));
                let name = name.into_iter().flatten().next();
                let key = name.map_or_else(|| index.to_string(), str::to_owned);
                leaves(element, &below(key), found);
            }
        }
        leaf => {
            let text = serde_norway::to_string(leaf).expect("a leaf can be written");
            found.insert(place.clone(), text);
        }
    }
}

/// Whether a row's pattern covers a place: it is the place or above it.
fn covers(pattern: &str, place: &[String]) -> bool {
    let mut keys = place.iter();
    pattern.is_empty()
        || pattern
            .split('.')
            .all(|key| keys.next().is_some_and(|it| key == "*" || key == it))
}

/// Where two sets of objects differ.
fn differences(
    base: &BTreeMap<String, Value>,
    other: &BTreeMap<String, Value>,
) -> BTreeSet<(String, Place)> {
    let mut found = BTreeSet::new();
    for name in base.keys().chain(other.keys()) {
        let [ours, theirs] = [base, other].map(|objects| {
            let mut found = BTreeMap::new();
            if let Some(object) = objects.get(name) {
                leaves(object, &Place::new(), &mut found);
            }
            found
        });
        for place in ours.keys().chain(theirs.keys()) {
            if ours.get(place) != theirs.get(place) {
                found.insert((name.clone(), place.clone()));
            }
        }
    }
    found
}

#[test]
fn every_overlay_adds_what_the_table_says_and_nothing_else() {
    let text = fs::read_to_string(folder().join("overlays.toml")).expect("the table is there");
    let table: BTreeMap<String, Overlay> = toml::from_str(&text).expect("the table can be read");
    assert_eq!(
        table.keys().map(String::as_str).collect::<Vec<_>>(),
        OVERLAYS
    );
    let base = rendered("base");
    let mut broken = Vec::new();
    for (name, overlay) in &table {
        let differences = differences(&base, &rendered(name));
        let covered = |row: &Addition, (object, place): &(String, Place)| {
            row.object == *object && covers(&row.at, place)
        };
        for difference in &differences {
            if !overlay.adds.iter().any(|row| covered(row, difference)) {
                let (object, place) = difference;
                broken.push(format!(
                    "{name}: {object} {} stands in no row",
                    place.join(".")
                ));
            }
        }
        for row in &overlay.adds {
            let is_seen = differences.iter().any(|it| covered(row, it));
            if !is_seen || row.why.is_empty() {
                broken.push(format!(
                    "{name}: {} {} is no difference",
                    row.object, row.at
                ));
            }
        }
        assert!(!overlay.says.is_empty() && overlay.missing.iter().all(|it| !it.is_empty()));
    }
    none("the table of overlays is complete", &broken);
}

#[test]
fn what_is_rendered_is_what_kustomize_makes_of_the_sources() {
    let version = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    let version = version.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
    if !version.is_ok_and(|it| it.contains("Kustomize Version: v5")) {
        eprintln!("NOT RUN: what is rendered, no kubectl with kustomize 5 is on this machine");
        return;
    }
    let again = tempfile::tempdir().expect("a folder");
    let status = Command::new(root().join("scripts/render.sh"))
        .arg(again.path())
        .status();
    assert!(status.expect("the script can be run").success());
    for name in OVERLAYS.iter().chain(&["base"]) {
        let [ours, theirs] = [folder().join("rendered"), again.path().to_path_buf()]
            .map(|it| fs::read_to_string(it.join(format!("{name}.yaml"))).expect("it is there"));
        assert!(ours == theirs, "{name}.yaml is stale: scripts/render.sh");
    }
}
