//! What this node is: machine type, place, how it is paid for. Of the config first, then of the labels
//! that every cloud's Kubernetes gives its nodes, then of the cloud itself ([`super::metadata`]).

use gpufleet_telemetry::identity::attribute;
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

/// Labels with what they say.
const LABELS: [(&str, &str); 6] = [
    ("node.kubernetes.io/instance-type", attribute::MACHINE_TYPE),
    ("beta.kubernetes.io/instance-type", attribute::MACHINE_TYPE),
    ("topology.kubernetes.io/region", attribute::REGION),
    ("topology.kubernetes.io/zone", attribute::ZONE),
    (
        "failure-domain.beta.kubernetes.io/region",
        attribute::REGION,
    ),
    ("failure-domain.beta.kubernetes.io/zone", attribute::ZONE),
];

/// Labels that say how a node is paid for; where a provider has none of them it is not known.
const PROVISIONING: [(&str, &str, &str); 7] = [
    ("cloud.google.com/gke-spot", "true", "spot"),
    ("cloud.google.com/gke-preemptible", "true", "spot"),
    ("cloud.google.com/gke-provisioning", "spot", "spot"),
    ("cloud.google.com/gke-provisioning", "standard", "on_demand"),
    ("eks.amazonaws.com/capacityType", "SPOT", "spot"),
    ("eks.amazonaws.com/capacityType", "ON_DEMAND", "on_demand"),
    ("kubernetes.azure.com/scalesetpriority", "spot", "spot"),
];

const RESERVATION: &str = "cloud.google.com/reservation-name";

/// What a node of Kubernetes says of itself.
pub(super) fn facts(node: &Node) -> Facts {
    let labels = &node.metadata.labels;
    let mut facts = Facts::new();
    for (label, name) in LABELS {
        if let Some(value) = labels.get(label) {
            add(&mut facts, name, value);
        }
    }
    let provider = provider(&node.spec.provider_id);
    let paid = PROVISIONING.iter().find(|(label, value, _)| {
        let found = labels.get(*label);
        found.is_some_and(|it| it == value)
    });
    let paid = match paid {
        Some((_, _, paid)) => Some(*paid),
        None if labels.contains_key(RESERVATION) => Some("reserved"),
        // GKE labels every node that is not on demand.
        None if node.spec.provider_id.starts_with("gce://") => Some("on_demand"),
        None => None,
    };
    if let Some(paid) = paid {
        add(&mut facts, attribute::PROVISIONING, paid);
    }
    for (name, value) in provider {
        add(&mut facts, name, value);
    }
    facts
}

/// What the provider calls the machine: `gce://<project>/<zone>/<name>`,
/// `aws:///<zone>/<instance id>`, `azure:///subscriptions/<id>/…`.
fn provider(id: &str) -> Vec<(&'static str, &str)> {
    let Some((scheme, rest)) = id.split_once("://") else {
        return Vec::new();
    };
    let mut parts = rest.split('/');
    match scheme {
        "gce" => {
            let (project, zone) = (parts.next(), parts.next());
            vec![
                (attribute::CLOUD_PROVIDER, "gcp"),
                (attribute::CLOUD_ACCOUNT, project.unwrap_or_default()),
                (attribute::ZONE, zone.unwrap_or_default()),
            ]
        }
        "aws" => vec![
            (attribute::CLOUD_PROVIDER, "aws"),
            (attribute::HOST_ID, parts.next_back().unwrap_or_default()),
        ],
        "azure" => {
            let account = parts.skip_while(|it| *it != "subscriptions").nth(1);
            vec![
                (attribute::CLOUD_PROVIDER, "azure"),
                (attribute::CLOUD_ACCOUNT, account.unwrap_or_default()),
            ]
        }
        _ => Vec::new(),
    }
}

/// Adds a fact, unless it is none or known already.
pub(super) fn add(facts: &mut Facts, name: &str, value: &str) {
    if !value.is_empty() && !facts.iter().any(|(known, _)| known == name) {
        facts.push((name.to_owned(), value.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(provider_id: &str, labels: &[(&str, &str)], expected: &str) {
        let labels = labels.iter();
        let node = Node {
            metadata: Meta {
                labels: labels
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            },
            spec: Spec {
                provider_id: provider_id.to_owned(),
            },
        };
        let facts = facts(&node);
        let told: Vec<String> = facts.iter().map(|(a, b)| format!("{a}={b}")).collect();
        assert_eq!(told.join(" "), expected, "{provider_id}");
    }

    #[test]
    fn a_node_says_what_it_is_in_its_cloud_s_own_words_and_nothing_is_made_up() {
        let place = [
            ("node.kubernetes.io/instance-type", "a3-highgpu-8g"),
            ("topology.kubernetes.io/region", "us-central1"),
            ("topology.kubernetes.io/zone", "us-central1-a"),
        ];
        let gce = "gce://my-project/us-central1-a/gke-x";
        let said = "host.type=a3-highgpu-8g cloud.region=us-central1 \
                    cloud.availability_zone=us-central1-a";
        let in_gcp = "cloud.provider=gcp cloud.account.id=my-project";
        let with = |more: (&'static str, &'static str)| {
            let mut all = place.to_vec();
            all.push(more);
            all
        };
        check(
            gce,
            &place,
            &format!("{said} gpufleet.provisioning=on_demand {in_gcp}"),
        );
        let spot = with(("cloud.google.com/gke-spot", "true"));
        check(
            gce,
            &spot,
            &format!("{said} gpufleet.provisioning=spot {in_gcp}"),
        );
        let reserved = with((RESERVATION, "r1"));
        check(
            gce,
            &reserved,
            &format!("{said} gpufleet.provisioning=reserved {in_gcp}"),
        );
        check(
            "aws:///eu-west-1a/i-0123",
            &[("eks.amazonaws.com/capacityType", "SPOT")],
            "gpufleet.provisioning=spot cloud.provider=aws host.id=i-0123",
        );
        check(
            "azure:///subscriptions/s-1/resourceGroups/g",
            &[],
            "cloud.provider=azure cloud.account.id=s-1",
        );
        check("k3s://node-1", &[], "");
        check("", &[], "");
    }
}
