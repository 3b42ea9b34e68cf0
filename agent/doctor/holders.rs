//! What doctor asks of those who know who holds GPUs: the kubelet, the Kubernetes API, Slurm.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpufleet_program::kubernetes::{Api, ApiError, escaped};
use serde_json::Value;

use super::Finding;
use super::machine::Machine;
use crate::attribute::AttributeConfig;
use crate::attribute::{api, kubelet, slurm};
use crate::config::Config;

pub(super) async fn kubelet(machine: &Machine, config: &AttributeConfig) -> Finding {
    const CHECK: &str = "kubelet";
    if !config.enabled {
        return Finding::skip(CHECK, "attribute.enabled = false");
    }
    if config.kubelet_socket.as_os_str().is_empty() {
        return Finding::skip(
            CHECK,
            "attribute.kubelet_socket is empty; which pod holds which GPU is known as far as an exporter's labels say it",
        );
    }
    let socket = machine.path(&config.kubelet_socket.display().to_string());
    if matches!(socket.try_exists(), Ok(false)) {
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        if in_cluster || machine.path("/var/lib/kubelet").exists() {
            return Finding::no(
                CHECK,
                "its pod-resources socket is not there, so pods that hold GPUs stay unknown",
                "mount hostPath /var/lib/kubelet/pod-resources into the agent's pod",
            );
        }
        return Finding::skip(CHECK, "not a Kubernetes node");
    }
    match kubelet::list(&socket, config.own_pod()).await {
        Ok(list) => {
            let devices = list.held.len() + list.left_out;
            Finding::yes(CHECK, format!("it lists {devices} GPUs that pods hold"))
        }
        Err(error) => Finding::no(
            CHECK,
            format!("its pod-resources socket: {error}"),
            "run the agent as root; if it is, restart the kubelet",
        ),
    }
}

pub(super) async fn kubernetes(config: &Config, node: &str) -> Finding {
    const CHECK: &str = "Kubernetes API";
    let own = &config.attribute;
    if !own.enabled {
        return Finding::skip(CHECK, "attribute.enabled = false");
    }
    let Some(base) = api::base_of(own) else {
        return Finding::skip(CHECK, "not in a pod that has a token for it");
    };
    let api = match api::open(&base, own) {
        Ok(api) => api,
        Err(error) => {
            let fix = "correct [attribute] in the config";
            return Finding::no(CHECK, error.to_string(), fix);
        }
    };
    match asks(&api, config, node).await {
        Ok(what) => Finding::yes(CHECK, format!("{} tells {what}", api.base())),
        Err(error) => Finding::no(
            CHECK,
            error.to_string(),
            "without it labels, owner and queue of pods are unknown; apply deploy/base/accounts.yaml",
        ),
    }
}

/// Asks everything that a running agent asks; pods where the kubelet or an exporter may say which of them holds a GPU.
async fn asks(api: &Api, config: &Config, node: &str) -> Result<String, ApiError> {
    let of_node = format!("/api/v1/nodes/{}", escaped(node));
    api.get::<Value>(&of_node).await?;
    let (own, exporter) = (&config.attribute, &config.exporter);
    let has_exporter = exporter.auto || !exporter.targets.is_empty();
    if own.kubelet_socket.as_os_str().is_empty() && !has_exporter {
        return Ok("of this node".to_owned());
    }
    let pods = api::pods(node);
    api.get::<Value>(&format!("{pods}&limit=1")).await?;
    api.watch(&format!("{pods}&watch=true&timeoutSeconds=1"))
        .await?;
    if !own.namespace_labels.is_empty() {
        api.get::<Value>("/api/v1/namespaces/default").await?;
    }
    if !own.kubelet_socket.as_os_str().is_empty() {
        // That there is none of this name says who may ask.
        let claim = api::claim("v1", "default", "gpufleet-doctor");
        match api.get::<Value>(&claim).await {
            Err(error) if !error.is_not_found() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok("of this node and its pods".to_owned())
}

pub(super) fn of_slurm(machine: &Machine, config: &AttributeConfig) -> Finding {
    const CHECK: &str = "Slurm";
    if !config.enabled {
        return Finding::skip(CHECK, "attribute.enabled = false");
    }
    if !slurm::is_node(&machine.path("/")) {
        return Finding::skip(CHECK, "not a Slurm node");
    }
    let jobs = machine.path(&config.slurm_jobs_folder.display().to_string());
    let (scontrol, squeue) = (program(&config.scontrol_path), program(&config.squeue_path));
    match (jobs.is_dir(), &scontrol, &squeue) {
        (true, ..) => {}
        (false, Some(_), Some(squeue)) => {
            if let Some(old) = without_json(squeue) {
                return Finding::no(
                    CHECK,
                    format!(
                        "no prolog writes which GPUs jobs have, and {old}, so of GPUs without processes it is not known"
                    ),
                    "set Prolog and Epilog in slurm.conf to the scripts of deploy/slurm, which need no JSON, or update Slurm",
                );
            }
            let why = format!(
                "no prolog, so {} is asked which GPUs jobs have",
                squeue.display()
            );
            return Finding::yes(CHECK, why);
        }
        (false, ..) => {
            return Finding::no(
                CHECK,
                "no prolog writes which GPUs jobs have, and squeue and scontrol are not both there, so of GPUs \
                without processes it is not known",
                "set Prolog and Epilog in slurm.conf to the scripts of deploy/slurm, or install Slurm's client commands",
            );
        }
    }
    match scontrol {
        Some(path) => match without_json(&path) {
            Some(old) => Finding::no(
                CHECK,
                format!("{old}, so jobs have a number and no account"),
                "update Slurm to 21.08 or newer",
            ),
            None => Finding::yes(CHECK, format!("{} names jobs", path.display())),
        },
        None => Finding::no(
            CHECK,
            format!(
                "{} is not there, so jobs have a number and no account",
                config.scontrol_path.display()
            ),
            "install Slurm's client commands, or set attribute.scontrol_path",
        ),
    }
}

/// That one of Slurm's commands is too old to be asked; none where it is not, or does not say.
fn without_json(program: &Path) -> Option<String> {
    let mut asked = Command::new(program);
    let said = asked.arg("--version").stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout);
    let version = slurm::without_json(&said)?;
    let name = program.display();
    Some(format!(
        "{name} is of Slurm {version}, which is older than 21.08 and prints no JSON"
    ))
}

/// Where a program is, as the shell looks for it.
fn program(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return name.is_file().then(|| name.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|it| it.join(name));
    paths.find(|it| it.is_file())
}
