//! What this node is: machine type, place, how it is paid for. Of the config first, then of the labels
//! that every cloud's Kubernetes gives its nodes ([`machine`]), then of the cloud itself ([`super::metadata`]).

use gpufleet_telemetry::machine;
use serde::Deserialize;

use super::labels::{Facts, Labels};

/// A node of Kubernetes, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    metadata: Meta,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Meta {
    labels: Labels,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "providerID")]
    provider_id: String,
}

/// What a node of Kubernetes says of itself.
pub(super) fn facts(node: &Node) -> Facts {
    let facts = machine::facts(&node.metadata.labels, &node.spec.provider_id);
    let owned = |(name, value): (&'static str, String)| (name.to_owned(), value);
    facts.into_iter().map(owned).collect()
}

/// Adds a fact, unless it is none or known already.
pub(super) fn add(facts: &mut Facts, name: &str, value: &str) {
    if !value.is_empty() && !facts.iter().any(|(known, _)| known == name) {
        facts.push((name.to_owned(), value.to_owned()));
    }
}
