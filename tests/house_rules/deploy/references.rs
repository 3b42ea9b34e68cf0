//! What manifests name is there, and what belongs together fits: references, selectors, ports, mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_norway::Value;

use super::{SECRETS, all, list_at, text_at, workloads};
use crate::tree::{none, root};

/// Kinds of a cluster, not of a namespace.
const OF_THE_CLUSTER: [&str; 4] = [
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "PriorityClass",
];

/// Every config map, secret, claim, account and priority that something names, with the keys asked for.
fn references(value: &Value, found: &mut BTreeSet<(String, String, Option<String>)>) {
    let Value::Mapping(entries) = value else {
        let elements = value.as_sequence().into_iter().flatten();
        elements.for_each(|it| references(it, found));
        return;
    };
    for (key, value) in entries {
        let (kind, name) = match key.as_str().unwrap_or_default() {
            "configMap" | "configMapKeyRef" => ("ConfigMap", text_at(value, "name")),
            "secret" if value.get("secretName").is_some() => {
                ("Secret", text_at(value, "secretName"))
            }
            "secret" | "credentials" => ("Secret", text_at(value, "name")),
            "persistentVolumeClaim" => ("PersistentVolumeClaim", text_at(value, "claimName")),
            "serviceAccountName" => ("ServiceAccount", value.as_str().unwrap_or_default()),
            "priorityClassName" => ("PriorityClass", value.as_str().unwrap_or_default()),
            _ => ("", ""),
        };
        if !name.is_empty() {
            let items = list_at(value, "items").iter().map(|it| text_at(it, "key"));
            let keys: Vec<&str> = items
                .chain([text_at(value, "key")])
                .filter(|it| !it.is_empty())
                .collect();
            let named =
                |key: Option<&str>| (kind.to_owned(), name.to_owned(), key.map(str::to_owned));
            if keys.is_empty() {
                found.insert(named(None));
            }
            found.extend(keys.into_iter().map(|key| named(Some(key))));
        }
        references(value, found);
    }
}

#[test]
fn whatever_a_manifest_names_is_there() {
    let mut broken = Vec::new();
    let mut seen = BTreeSet::new();
    for (overlay, objects) in all() {
        let mut found = BTreeSet::new();
        objects
            .values()
            .for_each(|object| references(object, &mut found));
        for (kind, name, key) in found {
            let is_there = if kind == "Secret" {
                let secret = SECRETS.iter().find(|(secret, _)| *secret == name);
                seen.insert(name.clone());
                secret.is_some_and(|(_, keys)| key.as_deref().is_none_or(|it| keys.contains(&it)))
            } else {
                let object = objects.get(&format!("{kind}/{name}"));
                object.is_some_and(|it| {
                    key.as_deref()
                        .is_none_or(|key| it["data"].get(key).is_some())
                })
            };
            if !is_there {
                broken.push(format!("{overlay}: {kind} {name} {key:?}"));
            }
        }
        for (name, object) in &objects {
            let kind = text_at(object, "kind");
            let namespace = text_at(object, "metadata.namespace");
            if OF_THE_CLUSTER.contains(&kind) != namespace.is_empty()
                || text_at(object, "apiVersion").is_empty()
            {
                broken.push(format!(
                    "{overlay}: {name} is in no namespace or has no version"
                ));
            }
        }
    }
    let made: BTreeSet<String> = SECRETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(seen, made, "a secret that nothing uses");
    let document = fs::read_to_string(root().join("docs/deploy.md")).expect("it is there");
    broken.extend(made.into_iter().filter(|it| !document.contains(it)));
    none(
        "names lead to objects, and to secrets that docs/deploy.md says how to make",
        &broken,
    );
}

#[test]
fn the_agent_is_placed_before_what_it_watches_and_drives_nobody_out() {
    for (overlay, objects) in all() {
        let agent = &objects["DaemonSet/gpufleet-agent"]["spec"]["template"]["spec"];
        let class = text_at(agent, "priorityClassName");
        let class = objects.get(&format!("PriorityClass/{class}"));
        let class = class.unwrap_or_else(|| panic!("{overlay}: the agent has no class of ours"));
        // Pods without a class have 0; from a billion on classes are the system's own.
        let value = class["value"].as_u64().unwrap_or_default();
        assert!((1..1_000_000_000).contains(&value), "{overlay}: {value}");
        assert_eq!(text_at(class, "preemptionPolicy"), "Never", "{overlay}");
        assert_eq!(class["globalDefault"].as_bool(), Some(false), "{overlay}");
    }
}

#[test]
fn managed_prometheus_is_let_in_wherever_its_collector_runs() {
    let document = fs::read_to_string(root().join("docs/deploy.md")).expect("it is there");
    for (overlay, objects) in all() {
        let namespaces: BTreeSet<&str> = if overlay.starts_with("gke") {
            BTreeSet::from(["gmp-system", "gke-gmp-system"])
        } else {
            BTreeSet::new()
        };
        assert!(
            namespaces
                .iter()
                .all(|it| document.contains(&format!("`{it}`")))
        );
        let binding = objects.get("RoleBinding/gpufleet-scrape");
        let subjects = binding.map_or(&[][..], |it| list_at(it, "subjects"));
        let collectors = subjects
            .iter()
            .filter(|it| text_at(it, "name") == "collector");
        let may_read: BTreeSet<&str> = collectors.map(|it| text_at(it, "namespace")).collect();
        assert_eq!(may_read, namespaces, "{overlay}: who may read the token");
        let policy = &objects["NetworkPolicy/gpufleet-agent"];
        let mut named = BTreeSet::new();
        let mut is_labelled = false;
        for peer in list_at(policy, "spec.ingress.0.from") {
            let labels = &peer["namespaceSelector"]["matchLabels"];
            is_labelled |= labels["gpufleet.io/scrapes"].as_str() == Some("true");
            for wanted in list_at(peer, "namespaceSelector.matchExpressions") {
                assert_eq!(text_at(wanted, "key"), "kubernetes.io/metadata.name");
                assert_eq!(text_at(wanted, "operator"), "In");
                named.extend(list_at(wanted, "values").iter().filter_map(Value::as_str));
            }
        }
        assert_eq!(named, namespaces, "{overlay}: who reaches the agent");
        assert!(is_labelled, "{overlay}: and who is labelled");
    }
}

#[test]
fn an_agent_that_finds_the_driver_on_the_node_sees_devices_that_come_later() {
    let mut seen = 0;
    for (overlay, objects) in all() {
        let template = &objects["DaemonSet/gpufleet-agent"]["spec"]["template"];
        let path_of = |mount: &str| {
            let mut mounts = list_at(template, "spec.containers.0.volumeMounts").iter();
            let mount = mounts.find(|it| text_at(it, "mountPath") == mount)?;
            let mut volumes = list_at(template, "spec.volumes").iter();
            let volume = volumes.find(|it| it["name"] == mount["name"])?;
            Some(text_at(volume, "hostPath.path"))
        };
        // Elsewhere the runtime puts driver and devices in, or neither is looked at.
        let is_of_node = path_of("/usr/local/nvidia").is_some();
        let devices = is_of_node.then_some("/dev");
        assert_eq!(path_of("/dev"), devices, "{overlay}");
        seen += usize::from(is_of_node);
    }
    assert_eq!(seen, 1, "GKE Standard");
}

#[test]
fn selectors_ports_and_mounts_fit_together() {
    let mut broken = Vec::new();
    for (overlay, objects) in all() {
        let mut ports: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (name, template) in workloads(&objects) {
            let label = template["metadata"]["labels"]["app.kubernetes.io/name"].as_str();
            let label = label.unwrap_or_default();
            let container = &template["spec"]["containers"][0];
            let names = list_at(container, "ports")
                .iter()
                .map(|it| text_at(it, "name"));
            ports.insert(label.to_owned(), names.collect());
            let volumes: BTreeSet<&str> = list_at(template, "spec.volumes")
                .iter()
                .map(|it| text_at(it, "name"))
                .collect();
            let mounts: BTreeSet<&str> = list_at(container, "volumeMounts")
                .iter()
                .map(|it| text_at(it, "name"))
                .collect();
            if volumes != mounts {
                broken.push(format!(
                    "{overlay}: {name} mounts {mounts:?} of {volumes:?}"
                ));
            }
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                if !ports[label].contains(text_at(container, &format!("{probe}.httpGet.port"))) {
                    broken.push(format!("{overlay}: {name} {probe}"));
                }
            }
        }
        for (name, object) in &objects {
            let (label, asked) = selected(object);
            let Some(label) = label else { continue };
            if !ports
                .get(label)
                .is_some_and(|there| asked.iter().all(|it| there.contains(it)))
            {
                broken.push(format!("{overlay}: {name} asks {label} for {asked:?}"));
            }
        }
    }
    none(
        "selectors meet pods, ports are theirs, mounts are volumes",
        &broken,
    );
}

/// Which pods an object is about, and which of their ports it names.
fn selected(object: &Value) -> (Option<&str>, Vec<&str>) {
    const LABEL: &str = "app.kubernetes.io/name";
    let spec = &object["spec"];
    let selector = [&spec["selector"], &spec["podSelector"]]
        .into_iter()
        .find(|it| it.is_mapping());
    let labels = selector.map(|it| it.get("matchLabels").unwrap_or(it));
    let label = labels.and_then(|it| it[LABEL].as_str());
    let lists = ["ports", "endpoints", "podMetricsEndpoints"];
    let mut asked: Vec<&str> = Vec::new();
    for port in lists.iter().flat_map(|it| list_at(spec, it)) {
        let name = if port.get("targetPort").is_some() {
            "targetPort"
        } else {
            "port"
        };
        asked.push(text_at(port, name));
    }
    for port in list_at(spec, "ingress")
        .iter()
        .flat_map(|it| list_at(it, "ports"))
    {
        asked.push(text_at(port, "port"));
    }
    (label, asked)
}
