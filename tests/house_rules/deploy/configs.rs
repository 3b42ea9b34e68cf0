//! The programs take the configs that the manifests give them, and no pod takes a right that is not
//! explained.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gpufleet_program::config::{ProgramConfig, Sources};
use serde_norway::Value;

use super::{SECRETS, all, list_at, text_at, workloads};
use crate::tree::{files, none, root};

/// What stands in for a secret's file: a certificate of ours and its key, else a token.
fn stand_in(path: &str) -> String {
    let ours = match path.rsplit('.').next() {
        Some("crt") => "certificate.pem",
        Some("key") => "key.pem",
        _ => return "a".repeat(64),
    };
    let mut found = files(&[ours]);
    found.pop().expect("the tests of TLS have one").text
}

/// Reads a workload's config as the program would in the pod.
fn config_of<C: ProgramConfig>(objects: &BTreeMap<String, Value>, workload: &str) -> (C, String) {
    let container = &objects[workload]["spec"]["template"]["spec"]["containers"][0];
    let volumes = list_at(&objects[workload], "spec.template.spec.volumes");
    let map = volumes
        .iter()
        .map(|it| text_at(it, "configMap.name"))
        .find(|it| !it.is_empty());
    let file = format!("{}.toml", C::PROGRAM);
    let map = map.unwrap_or_else(|| panic!("{workload} has no config map"));
    let text = objects[&format!("ConfigMap/{map}")]["data"][&file]
        .as_str()
        .expect("its config");
    // The loader reads what the config names: the mounted files are there, below another root.
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_str().expect("a text");
    for path in mounted(&objects[workload]["spec"]["template"]) {
        let path = format!("{root}{}", path.display());
        let above = Path::new(&path).parent().expect("it has a folder");
        fs::create_dir_all(above).expect("it can be made");
        fs::write(&path, stand_in(&path)).expect("it can be written");
    }
    let moved = text.replace("\"/etc/", &format!("\"{root}/etc/"));
    fs::write(folder.path().join(&file), moved).expect("it can be written");
    let environment = list_at(container, "env").iter().map(|it| {
        let value = it["value"].as_str().unwrap_or("given-in-the-pod");
        (text_at(it, "name").to_owned(), value.to_owned())
    });
    let sources = Sources {
        file: Some(folder.path().join(&file)),
        environment: environment.collect(),
        set: Vec::new(),
    };
    let config = sources.load().unwrap_or_else(|error| {
        let causes = std::iter::successors(std::error::Error::source(&error), |it| it.source());
        panic!(
            "{workload}: {error} {}",
            causes
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(": ")
        )
    });
    (config, text.to_owned())
}

/// The files that a workload's volumes put into its container.
fn mounted(template: &Value) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for mount in list_at(template, "spec.containers.0.volumeMounts") {
        let volumes = list_at(template, "spec.volumes");
        let volume = volumes.iter().find(|it| it["name"] == mount["name"]);
        let volume = volume.expect("a mount is of a volume");
        let folder = Path::new(text_at(mount, "mountPath"));
        let secrets = list_at(volume, "projected.sources")
            .iter()
            .map(|it| &it["secret"]);
        for secret in secrets.chain([&volume["secret"]]) {
            let items = list_at(secret, "items")
                .iter()
                .map(|it| text_at(it, "path"));
            files.extend(items.map(|it| folder.join(it)));
            if list_at(secret, "items").is_empty() {
                let keys = SECRETS
                    .iter()
                    .find(|it| it.0 == text_at(secret, "secretName"));
                files.extend(
                    keys.into_iter()
                        .flat_map(|it| it.1)
                        .map(|it| folder.join(it)),
                );
            }
        }
    }
    files
}

#[test]
fn the_programs_take_their_configs_and_find_the_files_and_ports_named_there() {
    let mut broken = Vec::new();
    for (overlay, objects) in all() {
        let agent = "DaemonSet/gpufleet-agent";
        let server = "Deployment/gpufleet-server";
        let (of_agent, agent_text) = config_of::<gpufleet_agent::config::Config>(&objects, agent);
        let (of_server, server_text) =
            config_of::<gpufleet_server::config::Config>(&objects, server);
        for (name, text) in [(agent, agent_text), (server, server_text)] {
            let template = &objects[name]["spec"]["template"];
            let files = mounted(template);
            let named = text
                .split('"')
                .filter(|it| it.starts_with("/etc/gpufleet/"));
            broken.extend(
                named
                    .filter(|it| !files.contains(Path::new(it)))
                    .map(|it| format!("{overlay}: {name} {it}")),
            );
        }
        let of = |name: &str| -> BTreeSet<String> {
            let ports = list_at(&objects[name], "spec.template.spec.containers.0.ports");
            ports
                .iter()
                .filter_map(|it| it["containerPort"].as_u64())
                .map(|it| it.to_string())
                .collect()
        };
        let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
        assert_eq!(
            of(agent),
            BTreeSet::from([port(&of_agent.listen.address)]),
            "{overlay}"
        );
        let listened = [
            &of_server.web.listen,
            &of_server.ingest.grpc_listen,
            &of_server.ingest.http_listen,
        ];
        assert_eq!(
            of(server),
            listened.map(|it| port(&it.to_string())).into(),
            "{overlay}"
        );
        let grpc = port(&of_server.ingest.grpc_listen.to_string());
        let endpoint = format!("https://gpufleet-server.gpufleet.svc:{grpc}");
        assert_eq!(of_agent.ship.endpoint, endpoint, "{overlay}");
        assert!(
            !of_server.auth.allow_insecure,
            "{overlay}: the server has TLS and tokens"
        );
    }
    none("a file that a config names is mounted", &broken);
}

#[test]
fn every_right_that_is_asked_for_is_explained_and_nothing_else_is_taken() {
    let document = fs::read_to_string(root().join("docs/deploy.md")).expect("it is there");
    let mut broken = Vec::new();
    for (overlay, objects) in all() {
        for (name, template) in workloads(&objects) {
            let spec = &template["spec"];
            let security = &spec["containers"][0]["securityContext"];
            let is_privileged = security["privileged"].as_bool() == Some(true);
            let drops = list_at(security, "capabilities.drop")
                .iter()
                .any(|it| it == "ALL");
            let is_closed = drops && security["allowPrivilegeEscalation"].as_bool() == Some(false);
            if security["readOnlyRootFilesystem"].as_bool() != Some(true)
                || is_privileged == is_closed
            {
                broken.push(format!("{overlay}: {name} takes more than it needs"));
            }
            // A token for whoever has a right, and for nobody else.
            let account = text_at(spec, "serviceAccountName");
            let has_right = objects.contains_key(&format!("ClusterRoleBinding/{account}"));
            if spec["automountServiceAccountToken"].as_bool() != Some(has_right) {
                broken.push(format!(
                    "{overlay}: {name} and its token of the Kubernetes API"
                ));
            }
            let mut rights: Vec<String> = Vec::new();
            if is_privileged {
                rights.push("`privileged`".to_owned());
            }
            for host in ["hostPID", "hostNetwork", "hostIPC"] {
                if spec[host].as_bool() == Some(true) {
                    rights.push(format!("`{host}`"));
                }
            }
            if security["runAsUser"].as_u64() == Some(0) {
                rights.push("`runAsUser: 0`".to_owned());
            }
            let paths = list_at(spec, "volumes")
                .iter()
                .map(|it| text_at(it, "hostPath.path"));
            rights.extend(
                paths
                    .filter(|it| !it.is_empty())
                    .map(|it| format!("`{it}`")),
            );
            let roles = objects.keys().filter_map(|it| {
                it.strip_prefix("Role/")
                    .or_else(|| it.strip_prefix("ClusterRole/"))
            });
            rights.extend(roles.map(|it| format!("`{it}`")));
            let told = |right: &String| {
                document
                    .lines()
                    .any(|line| line.starts_with('|') && line.contains(right.as_str()))
            };
            broken.extend(
                rights
                    .into_iter()
                    .filter(|it| !told(it))
                    .map(|it| format!("{overlay}: {it}")),
            );
        }
    }
    none("a right stands in the table of docs/deploy.md", &broken);
}

#[test]
fn sqlite_finds_a_folder_for_its_temporary_files() {
    for (overlay, objects) in all() {
        let template = &objects["Deployment/gpufleet-server"]["spec"]["template"];
        let container = &template["spec"]["containers"][0];
        let root = &container["securityContext"]["readOnlyRootFilesystem"];
        assert_eq!(root.as_bool(), Some(true), "{overlay}: or it needs none");
        let mut environment = list_at(container, "env").iter();
        let temporary = environment.find(|it| text_at(it, "name") == "SQLITE_TMPDIR");
        let temporary = Path::new(temporary.map_or("", |it| text_at(it, "value")));
        // The innermost mount is what is written.
        let mounts = list_at(container, "volumeMounts").iter();
        let around = mounts.filter(|it| temporary.starts_with(text_at(it, "mountPath")));
        let mount = around.max_by_key(|it| text_at(it, "mountPath").len());
        let mount = mount.unwrap_or_else(|| panic!("{overlay}: {temporary:?} is in no mount"));
        assert_ne!(mount["readOnly"].as_bool(), Some(true), "{overlay}");
        let mut volumes = list_at(template, "spec.volumes").iter();
        let volume = volumes.find(|it| it["name"] == mount["name"]);
        let volume = volume.expect("a mount is of a volume");
        // What is made of a secret or a config map is read-only whatever the mount says.
        let kinds = ["persistentVolumeClaim", "emptyDir", "hostPath"];
        let takes = kinds.iter().any(|it| volume.get(it).is_some());
        assert!(takes, "{overlay}: {temporary:?} takes no file");
    }
    let unit = super::folder().join("systemd/gpufleet-server.service");
    let unit = fs::read_to_string(unit).expect("it is there");
    let has = |line: &str| unit.lines().any(|it| it == line);
    assert!(has("ProtectSystem=strict"), "or it needs none");
    assert!(has("PrivateTmp=yes"), "/var/tmp would be read-only");
}

#[test]
fn pods_of_the_whole_cluster_are_read_only_where_they_can_be_joined_to_gpus() {
    for (overlay, objects) in all() {
        let rules = list_at(&objects["ClusterRole/gpufleet-agent"], "rules").iter();
        let resources = rules.flat_map(|it| list_at(it, "resources"));
        let may: BTreeSet<&str> = resources.filter_map(Value::as_str).collect();
        let agent = "DaemonSet/gpufleet-agent";
        let volumes = list_at(&objects[agent], "spec.template.spec.volumes").iter();
        let mut paths = volumes.map(|it| text_at(it, "hostPath.path"));
        let has_kubelet = paths.any(|it| it == "/var/lib/kubelet/pod-resources");
        let (config, _) = config_of::<gpufleet_agent::config::Config>(&objects, agent);
        let asks = !config.attribute.kubelet_socket.as_os_str().is_empty();
        // By the kubelet's word, else by the labels of an exporter whose address is given.
        let joins = has_kubelet || !config.exporter.targets.is_empty();
        let found = (may.contains("pods"), may.contains("namespaces"), asks);
        assert_eq!(
            found,
            (joins, joins, has_kubelet),
            "{overlay}: pods, namespaces, kubelet"
        );
    }
}
