//! What a node of Kubernetes is, from its labels and its provider's id: machine type, place, how it is paid
//! for. Every cloud's own words; nothing is made up.

use std::collections::BTreeMap;

use crate::identity::attribute;

/// Labels with what they say; the first that is there counts.
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
const PROVISIONING: [(&str, &str, &str); 8] = [
    // Before what GKE calls the model of the rest.
    ("cloud.google.com/gke-flex-start", "true", "flex_start"),
    ("cloud.google.com/gke-spot", "true", "spot"),
    ("cloud.google.com/gke-preemptible", "true", "spot"),
    ("cloud.google.com/gke-provisioning", "spot", "spot"),
    ("cloud.google.com/gke-provisioning", "standard", "on_demand"),
    ("eks.amazonaws.com/capacityType", "SPOT", "spot"),
    ("eks.amazonaws.com/capacityType", "ON_DEMAND", "on_demand"),
    ("kubernetes.azure.com/scalesetpriority", "spot", "spot"),
];

const RESERVATION: &str = "cloud.google.com/reservation-name";

/// Attributes of a node with these labels and this `spec.providerID`, each once, none of them empty.
pub fn facts(
    labels: &BTreeMap<String, String>,
    provider_id: &str,
) -> BTreeMap<&'static str, String> {
    let mut facts = BTreeMap::new();
    let mut add = |name: &'static str, value: &str| {
        if !value.is_empty() {
            facts.entry(name).or_insert_with(|| value.to_owned());
        }
    };
    for (label, name) in LABELS {
        add(name, labels.get(label).map_or("", String::as_str));
    }
    let paid = PROVISIONING.iter().find(|(label, value, _)| {
        let found = labels.get(*label);
        found.is_some_and(|it| it == value)
    });
    let paid = match paid {
        Some((_, _, paid)) => paid,
        None if labels.contains_key(RESERVATION) => "reserved",
        // GKE labels every node that is not on demand.
        None if provider_id.starts_with("gce://") => "on_demand",
        None => "",
    };
    add(attribute::PROVISIONING, paid);
    for (name, value) in provider(provider_id) {
        add(name, value);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(provider_id: &str, labels: &[(&str, &str)], expected: &str) {
        let labels = labels.iter();
        let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let told = facts(&labels.collect(), provider_id);
        let told: Vec<String> = told.iter().map(|(a, b)| format!("{a}={b}")).collect();
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
        let expected = |provisioning: &str| {
            format!(
                "cloud.account.id=my-project cloud.availability_zone=us-central1-a \
                 cloud.provider=gcp cloud.region=us-central1 \
                 gpufleet.provisioning={provisioning} host.type=a3-highgpu-8g"
            )
        };
        let with = |more: (&'static str, &'static str)| {
            let mut all = place.to_vec();
            all.push(more);
            all
        };
        check(gce, &place, &expected("on_demand"));
        let spot = with(("cloud.google.com/gke-spot", "true"));
        check(gce, &spot, &expected("spot"));
        let mut flexible = with(("cloud.google.com/gke-flex-start", "true"));
        flexible.push(("cloud.google.com/gke-provisioning", "standard"));
        check(gce, &flexible, &expected("flex_start"));
        let reserved = with((RESERVATION, "r1"));
        check(gce, &reserved, &expected("reserved"));
        check(
            "aws:///eu-west-1a/i-0123",
            &[("eks.amazonaws.com/capacityType", "SPOT")],
            "cloud.provider=aws gpufleet.provisioning=spot host.id=i-0123",
        );
        check(
            "azure:///subscriptions/s-1/resourceGroups/g",
            &[],
            "cloud.account.id=s-1 cloud.provider=azure",
        );
        check("k3s://node-1", &[], "");
        check("", &[], "");
    }
}
