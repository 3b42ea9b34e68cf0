//! What a series is of, as Cloud Monitoring knows it: a node or container of Kubernetes, a machine of Compute
//! Engine, or a node or task of no such place.
//!
//! What is not known of a resource is first looked up at its node. A resource that lacks a label of the type
//! that is asked for has the next one that it has all labels of: a container's node, in the end the generic
//! one, whose labels are always known. A zone that Cloud Monitoring does not know is none ([`super::location`]).

use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::training::RankId;
use serde::{Deserialize, Serialize};

use super::containers::Container;
use super::location::{EVERYWHERE, Google, aws, google};
use crate::store::model::KnownResource;

/// What series shall be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Monitored {
    /// A node of Kubernetes.
    K8sNode,
    /// The container that holds the GPU; its node while none does.
    K8sContainer,
    /// A machine of Compute Engine.
    GceInstance,
    /// A node, or the task of a training run.
    Generic,
}

/// A monitored resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its type.
    pub kind: &'static str,
    /// Its labels: all that the type has.
    pub labels: Vec<(&'static str, String)>,
}

/// What a resource's series are of, which is in this container.
pub fn place(
    asked: Monitored,
    location: &str,
    known: &KnownResource,
    node: Option<&Resource>,
    container: Option<&Container>,
) -> Place {
    let own = |name| known.resource.attribute(name).filter(|it| !it.is_empty());
    let told = |name| own(name).or_else(|| node.and_then(|it| it.attribute(name)));
    let zone = told(attribute::ZONE);
    let location = Some(location).filter(|it| !it.is_empty());
    let location = location.or(zone.filter(|it| google(it).is_some()));
    let machine_zone = zone.filter(|it| google(it) == Some(Google::Zone));
    let cluster = Some(&*known.key.cluster);
    let name = match known.key.kind {
        ResourceKind::Node => Some(&*known.key.id),
        _ => own(attribute::NODE),
    };
    let container = || {
        let container = container?;
        all(
            "k8s_container",
            &[
                ("location", location),
                ("cluster_name", cluster),
                ("namespace_name", Some(&container.namespace)),
                ("pod_name", Some(&container.pod)),
                ("container_name", Some(&container.name)),
            ],
        )
    };
    let node = || {
        all(
            "k8s_node",
            &[
                ("location", location),
                ("cluster_name", cluster),
                ("node_name", name),
            ],
        )
    };
    let instance = || {
        all(
            "gce_instance",
            &[
                ("zone", machine_zone),
                ("instance_id", told(attribute::HOST_ID)),
            ],
        )
    };
    let found = match asked {
        Monitored::K8sContainer => container().or_else(node),
        Monitored::K8sNode => node(),
        Monitored::GceInstance => instance(),
        Monitored::Generic => None,
    };
    found.unwrap_or_else(|| {
        let of_aws = || aws(zone.filter(|_| told(attribute::CLOUD_PROVIDER) == Some("aws"))?);
        let location = location.map(str::to_owned).or_else(of_aws);
        let location = location.unwrap_or_else(|| EVERYWHERE.to_owned());
        generic(location, known, name)
    })
}

/// The type with its labels, where all of them are known.
fn all(kind: &'static str, labels: &[(&'static str, Option<&str>)]) -> Option<Place> {
    let owned = labels.iter();
    let owned = owned.map(|(name, value)| Some((*name, (*value)?.to_owned())));
    Some(Place {
        kind,
        labels: owned.collect::<Option<_>>()?,
    })
}

fn generic(location: String, known: &KnownResource, node: Option<&str>) -> Place {
    let rank = match known.key.kind {
        ResourceKind::Rank => RankId::parse(&known.key.id).ok(),
        _ => None,
    };
    let (kind, labels) = match rank {
        Some(rank) => (
            "generic_task",
            vec![
                ("job", rank.job.name.clone()),
                ("task_id", format!("{}/{}", rank.attempt, rank.rank)),
            ],
        ),
        None => (
            "generic_node",
            vec![("node_id", node.unwrap_or(&known.key.id).to_owned())],
        ),
    };
    let first = [
        ("location", location),
        ("namespace", known.key.cluster.to_string()),
    ];
    Place {
        kind,
        labels: first.into_iter().chain(labels).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::time::Timestamp;

    use super::*;
    use crate::store::model::ResourceKey;

    fn known(kind: ResourceKind, id: &str, attributes: &[(&str, &str)]) -> KnownResource {
        let mut resource = Resource::new(kind, id);
        for (name, value) in attributes {
            resource = resource.with(name, *value);
        }
        KnownResource {
            key: ResourceKey {
                cluster: "prod".into(),
                kind,
                id: id.into(),
            },
            resource: Arc::new(resource),
            agent: None,
            first_seen: Timestamp(0),
            last_seen: Timestamp(0),
        }
    }

    fn text(place: &Place) -> String {
        let labels = place.labels.iter();
        let labels: Vec<_> = labels
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        format!("{} {}", place.kind, labels.join(","))
    }

    #[test]
    fn a_gpu_is_of_its_container_its_node_its_machine_or_of_a_generic_node() {
        let held = [
            (attribute::NODE, "node-1"),
            (attribute::NAMESPACE, "ml"),
            (attribute::POD, "train-0"),
            (attribute::CONTAINER, "main"),
        ];
        let node = Resource::new(ResourceKind::Node, "node-1")
            .with(attribute::ZONE, "us-central1-a")
            .with(attribute::HOST_ID, "123");
        let held = known(ResourceKind::Gpu, "GPU-1", &held);
        let free = known(ResourceKind::Gpu, "GPU-1", &[(attribute::NODE, "node-1")]);
        let is = |asked, location: &str, known: &KnownResource, node, expected: &str| {
            let container = Container::told_by(&known.resource);
            let place = place(asked, location, known, node, container.as_ref());
            assert_eq!(text(&place), expected);
        };
        let container = "k8s_container location=us-central1-a,cluster_name=prod,namespace_name=ml,pod_name=train-0,container_name=main";
        let k8s = "k8s_node location=us-central1-a,cluster_name=prod,node_name=node-1";
        let generic = "generic_node location=us-central1-a,namespace=prod,node_id=node-1";
        let unknown = "generic_node location=global,namespace=prod,node_id=node-1";
        is(Monitored::K8sContainer, "", &held, Some(&node), container);
        is(Monitored::K8sContainer, "", &free, Some(&node), k8s);
        is(Monitored::K8sNode, "", &held, Some(&node), k8s);
        is(
            Monitored::K8sNode,
            "us-central1",
            &held,
            None,
            "k8s_node location=us-central1,cluster_name=prod,node_name=node-1",
        );
        is(
            Monitored::GceInstance,
            "us-central1",
            &held,
            Some(&node),
            "gce_instance zone=us-central1-a,instance_id=123",
        );
        is(Monitored::Generic, "", &held, Some(&node), generic);
        // Nobody told where the node is: no label is made up.
        is(Monitored::K8sNode, "", &held, None, unknown);
        is(Monitored::GceInstance, "", &held, None, unknown);
    }

    #[test]
    fn a_zone_that_cloud_monitoring_does_not_know_is_no_location() {
        let held = [
            (attribute::NODE, "node-1"),
            (attribute::NAMESPACE, "ml"),
            (attribute::POD, "train-0"),
            (attribute::CONTAINER, "main"),
        ];
        let known = known(ResourceKind::Gpu, "GPU-1", &held);
        let container = Container::told_by(&known.resource);
        let of = |asked, location: &str, zone: &str, provider: &str| {
            let node = Resource::new(ResourceKind::Node, "node-1")
                .with(attribute::ZONE, zone)
                .with(attribute::HOST_ID, "123")
                .with(attribute::CLOUD_PROVIDER, provider);
            text(&place(
                asked,
                location,
                &known,
                Some(&node),
                container.as_ref(),
            ))
        };
        let generic = |location: &str| {
            format!("generic_node location={location},namespace=prod,node_id=node-1")
        };
        for asked in [
            Monitored::K8sNode,
            Monitored::K8sContainer,
            Monitored::GceInstance,
            Monitored::Generic,
        ] {
            assert_eq!(of(asked, "", "rack-7", "own"), generic("global"));
            // Others have names like those of AWS, which mean other places.
            assert_eq!(of(asked, "", "us-east-1a", "own"), generic("global"));
            assert_eq!(
                of(asked, "", "us-east-1a", "aws"),
                generic("aws:us-east-1a")
            );
        }
        assert_eq!(
            of(Monitored::K8sNode, "us-central1", "rack-7", "own"),
            "k8s_node location=us-central1,cluster_name=prod,node_name=node-1"
        );
        // A machine is in a zone.
        assert_eq!(
            of(Monitored::GceInstance, "", "us-central1", "gcp"),
            generic("us-central1")
        );
    }

    #[test]
    fn a_rank_is_a_generic_task_and_a_node_its_own_node() {
        let rank = known(ResourceKind::Rank, "ml/llama/uid-1/2/17", &[]);
        assert_eq!(
            text(&place(Monitored::Generic, "", &rank, None, None)),
            "generic_task location=global,namespace=prod,job=llama,task_id=2/17"
        );
        let zone = (attribute::ZONE, "us-central1-a");
        let node = known(ResourceKind::Node, "node-1", &[zone]);
        assert_eq!(
            text(&place(Monitored::K8sNode, "", &node, None, None)),
            "k8s_node location=us-central1-a,cluster_name=prod,node_name=node-1"
        );
    }
}
