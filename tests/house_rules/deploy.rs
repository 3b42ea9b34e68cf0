//! What is in `deploy/`, held against itself, the programs' own config loaders and docs/deploy.md.
//!
//! The rendered manifests are read, so no cluster and no kustomize are needed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;
use serde_norway::Value;

use super::tree::root;

mod overlays;

mod references;

mod keys;

mod configs;

mod scripts;

mod security;

/// The overlays; the table has one section for each.
const OVERLAYS: [&str; 3] = ["gke", "gke-autopilot", "on-prem"];

/// What people make before they apply an overlay (docs/deploy.md): secrets, and the keys in them.
const SECRETS: [(&str, &[&str]); 5] = [
    ("gpufleet-ingest", &["token"]),
    ("gpufleet-read", &["token"]),
    ("gpufleet-operate", &["token"]),
    ("gpufleet-tls", &["tls.crt", "tls.key", "ca.crt"]),
    ("gpufleet-ca", &["ca.crt"]),
];

fn folder() -> PathBuf {
    root().join("deploy")
}

/// The objects of a rendered file by kind and name.
fn rendered(name: &str) -> BTreeMap<String, Value> {
    let path = folder().join(format!("rendered/{name}.yaml"));
    let text = fs::read_to_string(&path).expect("scripts/render.sh has made it");
    let mut objects = BTreeMap::new();
    for document in serde_norway::Deserializer::from_str(&text) {
        let object = Value::deserialize(document)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let key = format!(
            "{}/{}",
            text_at(&object, "kind"),
            text_at(&object, "metadata.name")
        );
        assert!(objects.insert(key.clone(), object).is_none(), "{key} twice");
    }
    objects
}

/// Everything that is applied, each with the overlay it is of.
fn all() -> Vec<(&'static str, BTreeMap<String, Value>)> {
    OVERLAYS.map(|it| (it, rendered(it))).into()
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| {
        key.parse::<usize>()
            .map_or(&value[key], |index| &value[index])
    })
}

fn text_at<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

fn list_at<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path)
        .as_sequence()
        .map_or(&[], |it| it.as_slice())
}

/// The pod templates of an overlay.
fn workloads(objects: &BTreeMap<String, Value>) -> Vec<(&String, &Value)> {
    let found: Vec<_> = objects
        .iter()
        .map(|(name, object)| (name, at(object, "spec.template")))
        .filter(|(_, template)| template.is_mapping())
        .collect();
    assert_eq!(found.len(), 2, "the agent and the server");
    found
}
