//! The namespace's Pod Security labels let its pods in, on whatever level the cluster is by default, and nothing that
//! needs more than they do. The levels are those of Kubernetes' Pod Security Standards.

use std::collections::BTreeSet;

use serde_norway::Value;

use super::{all, at, list_at, text_at, workloads};
use crate::tree::none;

/// Capabilities that level baseline lets a container add.
const BASELINE_ADDS: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// What a volume may be of on level restricted.
const RESTRICTED_VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What baseline allows a few values of. None of our pods asks for any, so no value is looked at.
const NEVER_ASKED_FOR: [&str; 5] = [
    "appArmorProfile",
    "procMount",
    "seLinuxOptions",
    "sysctls",
    "windowsOptions",
];

/// The strictest level that takes a pod.
fn level(template: &Value) -> &'static str {
    if !is_baseline(template) {
        "privileged"
    } else if !is_restricted(template) {
        "baseline"
    } else {
        "restricted"
    }
}

fn is_baseline(template: &Value) -> bool {
    let spec = &template["spec"];
    let shares = ["hostPID", "hostNetwork", "hostIPC"]
        .iter()
        .any(|it| spec[it].as_bool() == Some(true));
    let mounts_node = list_at(spec, "volumes")
        .iter()
        .any(|it| it.get("hostPath").is_some());
    let opens = |container: &&Value| {
        let mut ports = list_at(container, "ports").iter();
        let mut adds = list_at(container, "securityContext.capabilities.add").iter();
        at(container, "securityContext.privileged").as_bool() == Some(true)
            || ports.any(|it| it.get("hostPort").is_some())
            || adds.any(|it| !BASELINE_ADDS.contains(&it.as_str().unwrap_or_default()))
    };
    let is_unusual = |security: &Value| {
        text_at(security, "seccompProfile.type") == "Unconfined"
            || NEVER_ASKED_FOR.iter().any(|it| security.get(it).is_some())
    };
    !(shares
        || mounts_node
        || containers(spec).iter().any(opens)
        || securities(spec).into_iter().any(is_unusual))
}

fn is_restricted(template: &Value) -> bool {
    let spec = &template["spec"];
    let of_pod = &spec["securityContext"];
    let has_seccomp =
        |it: &Value| ["RuntimeDefault", "Localhost"].contains(&text_at(it, "seccompProfile.type"));
    let are_volumes_plain = list_at(spec, "volumes")
        .iter()
        .all(|volume| RESTRICTED_VOLUMES.iter().any(|it| volume.get(it).is_some()));
    let is_nobody_root = securities(spec)
        .iter()
        .all(|it| it["runAsUser"].as_u64() != Some(0));
    let is_closed = |container: &&Value| {
        let security = &container["securityContext"];
        let is_never_root = security
            .get("runAsNonRoot")
            .unwrap_or(&of_pod["runAsNonRoot"]);
        let drops = list_at(security, "capabilities.drop");
        security["allowPrivilegeEscalation"].as_bool() == Some(false)
            && is_never_root.as_bool() == Some(true)
            && (has_seccomp(security) || has_seccomp(of_pod))
            && drops.iter().any(|it| it == "ALL")
            && list_at(security, "capabilities.add")
                .iter()
                .all(|it| it == "NET_BIND_SERVICE")
    };
    are_volumes_plain && is_nobody_root && containers(spec).iter().all(is_closed)
}

fn containers(spec: &Value) -> Vec<&Value> {
    let lists = ["containers", "initContainers"];
    lists.iter().flat_map(|it| list_at(spec, it)).collect()
}

/// The security contexts of a pod and of its containers.
fn securities(spec: &Value) -> Vec<&Value> {
    let of_containers = containers(spec)
        .into_iter()
        .map(|it| &it["securityContext"]);
    of_containers.chain([&spec["securityContext"]]).collect()
}

#[test]
fn the_namespace_takes_its_pods_and_no_pod_that_needs_more() {
    let mut broken = Vec::new();
    for (overlay, objects) in all() {
        let levels: Vec<&str> = workloads(&objects)
            .into_iter()
            .map(|(_, template)| level(template))
            .collect();
        let needed = ["privileged", "baseline", "restricted"]
            .into_iter()
            .find(|it| levels.contains(it))
            .expect("a level is one of the three");
        let labels = &objects["Namespace/gpufleet"]["metadata"]["labels"];
        for mode in ["enforce", "audit", "warn"] {
            let said = labels[format!("pod-security.kubernetes.io/{mode}")].as_str();
            if said != Some(needed) {
                broken.push(format!("{overlay}: {mode} is {said:?}, pods need {needed}"));
            }
        }
    }
    none("the namespace has the level that its pods need", &broken);
}

#[test]
fn accounts_may_what_their_programs_ask_for_and_no_more() {
    let (mut rights, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    for (_, objects) in all() {
        for (name, object) in &objects {
            for rule in list_at(object, "rules") {
                let texts = |key: &str| -> Vec<&str> {
                    let all = list_at(rule, key).iter();
                    all.filter_map(Value::as_str).collect()
                };
                for (resource, verb) in texts("resources")
                    .into_iter()
                    .flat_map(|it| texts("verbs").into_iter().map(move |verb| (it, verb)))
                {
                    if resource == "secrets" {
                        let names = texts("resourceNames").into_iter();
                        secrets.extend(names.map(str::to_owned));
                    } else {
                        rights.insert(format!("{name} {verb} {resource}"));
                    }
                }
                assert!(
                    !texts("resources").contains(&"secrets") || !texts("resourceNames").is_empty(),
                    "{name} may read any secret"
                );
            }
        }
    }
    let mut expected: BTreeSet<String> = [
        "ClusterRole/gpufleet-agent list pods",
        "ClusterRole/gpufleet-agent watch pods",
        "ClusterRole/gpufleet-agent get nodes",
        "ClusterRole/gpufleet-agent get namespaces",
        "ClusterRole/gpufleet-agent get resourceclaims",
    ]
    .map(str::to_owned)
    .into();
    // The server lists each kind and watches it from there; a single object it asks for only to taint a node.
    let watched = "nodes pods events jobs jobsets workloads resourceslices resourceclaims resourceclaimtemplates deviceclasses";
    for kind in watched.split(' ') {
        let server = "ClusterRole/gpufleet-server";
        expected.extend(["list", "watch"].map(|verb| format!("{server} {verb} {kind}")));
    }
    assert_eq!(rights, expected);
    let readable = ["gpufleet-ca", "gpufleet-read"].map(str::to_owned);
    assert_eq!(secrets, BTreeSet::from(readable));
}

#[test]
fn who_shows_a_token_looks_at_the_certificate_first() {
    let mut shown = 0;
    for (overlay, objects) in all() {
        for (name, object) in &objects {
            for endpoint in list_at(object, "spec.endpoints") {
                if endpoint.get("authorization").is_none() {
                    continue;
                }
                let tls = endpoint.get("tls").or(endpoint.get("tlsConfig"));
                let tls = tls.unwrap_or_else(|| panic!("{overlay}: {name} has no tls"));
                assert_eq!(text_at(endpoint, "scheme"), "https", "{overlay}: {name}");
                assert!(tls.get("insecureSkipVerify").is_none(), "{overlay}: {name}");
                assert_eq!(text_at(tls, "ca.secret.key"), "ca.crt", "{overlay}: {name}");
                assert_eq!(text_at(tls, "serverName"), "gpufleet-server.gpufleet.svc");
                shown += 1;
            }
        }
    }
    assert_eq!(shown, all().len(), "each overlay has the server scraped");
}

#[test]
fn a_pod_needs_the_level_of_the_most_that_it_takes() {
    const CLOSED: &str = "
spec:
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: one
      ports: [{containerPort: 80}]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
  volumes: [{name: state, emptyDir: {}}]
";
    for (old, new, expected) in [
        ("", "", "restricted"),
        ("[ALL]", "[ALL], add: [NET_BIND_SERVICE]", "restricted"),
        ("[ALL]", "[ALL], add: [CHOWN]", "baseline"),
        ("[ALL]", "[ALL], add: [SYS_ADMIN]", "privileged"),
        ("[ALL]", "[CHOWN]", "baseline"),
        ("Escalation: false", "Escalation: true", "baseline"),
        ("allowPrivilegeEscalation", "unknown", "baseline"),
        ("NonRoot: true", "NonRoot: false", "baseline"),
        ("drop: [ALL]}", "drop: [ALL]}, runAsUser: 0", "baseline"),
        (
            "drop: [ALL]}",
            "drop: [ALL]}, runAsNonRoot: false",
            "baseline",
        ),
        (
            "drop: [ALL]}",
            "drop: [ALL]}, privileged: true",
            "privileged",
        ),
        (
            "drop: [ALL]}",
            "drop: [ALL]}, procMount: Unmasked",
            "privileged",
        ),
        (", seccompProfile: {type: RuntimeDefault}", "", "baseline"),
        ("type: RuntimeDefault", "type: Unconfined", "privileged"),
        ("emptyDir: {}", "nfs: {}", "baseline"),
        ("emptyDir: {}", "hostPath: {path: /}", "privileged"),
        ("containerPort: 80", "hostPort: 80", "privileged"),
        ("  volumes", "  hostPID: true\n  volumes", "privileged"),
        ("  volumes", "  hostNetwork: true\n  volumes", "privileged"),
        ("  volumes", "  hostPID: false\n  volumes", "restricted"),
        (
            "  volumes",
            "  initContainers: [{name: two}]\n  volumes",
            "baseline",
        ),
    ] {
        assert!(CLOSED.contains(old), "{old}");
        let template = CLOSED.replacen(old, new, 1);
        let template = serde_norway::from_str(&template).expect("it is YAML");
        assert_eq!(level(&template), expected, "{old} -> {new}");
    }
}
