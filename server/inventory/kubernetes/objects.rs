//! Of a node and a pod of the Kubernetes API as much as is read, and what they are to us.

use std::collections::BTreeMap;

use gpufleet_analysis::inventory::{Claim, Node, Ready, Reason, Toleration, cut};
use gpufleet_analysis::price_book::Basis;
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::workload::{begins_together, queue, workload};
use gpufleet_telemetry::{holder, machine};
use serde::Deserialize;

use super::super::known::{Asking, Bound, Pod};
use super::super::moment;
use super::devices::{self, MadeClaim, PodClaim};

/// Resources that are whole GPUs.
const GPUS: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];

/// Labels that name the type of GPU, the first that is there.
const MODELS: [&str; 3] = [
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",
    "k8s.amazonaws.com/accelerator",
];
const POOLS: [&str; 3] = [
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
];
const BLOCKS: [&str; 1] = ["cloud.google.com/gce-topology-block"];
/// The part of a block, usually a rack.
const SUBBLOCKS: [&str; 1] = ["cloud.google.com/gce-topology-subblock"];
const DRIVERS: [&str; 2] = [
    "nvidia.com/cuda.driver-version.full",
    "cloud.google.com/gke-gpu-driver-version",
];
/// Labels of nodes whose GPUs are given out in shares.
const SHARING: [&str; 2] = [
    "cloud.google.com/gke-gpu-sharing-strategy",
    "cloud.google.com/gke-gpu-partition-size",
];
const REPLICAS: &str = "nvidia.com/gpu.replicas";
/// Of how many slices an instance is that is given out as a GPU.
const SLICES: &str = "nvidia.com/gpu.slices.gi";

/// Taints that say nothing of for whom a node is kept: who asks for GPUs tolerates them, or they are told
/// as cordoned and not ready.
const COMMON_TAINTS: [&str; 5] = [
    "nvidia.com/gpu",
    "amd.com/gpu",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// Of a node that the autoscaler removes.
const SCALED_DOWN: &str = "ToBeDeletedByClusterAutoscaler";
/// Before a Spot machine is taken back, and before any machine is stopped to be maintained.
const TERMINATES: &str = "cloud.google.com/impending-node-termination";

/// How the taints begin of a node that an autoscaler or its provider takes away in a moment: it is as good as cordoned.
const GOES: [&str; 3] = [
    SCALED_DOWN,
    TERMINATES,
    // `disruption` before version 1, `disrupted` since. Others of Karpenter's are of nodes that come.
    "karpenter.sh/disrupt",
];

/// Most taints that are kept of a node.
const MAX_TAINTS: usize = 8;

/// Most taints that something tolerates: those that every pod is given, and some of its own.
const MAX_TOLERATIONS: usize = 16;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) creation_timestamp: Option<String>,
    pub(super) deletion_timestamp: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) owner_references: Vec<Owner>,
}

impl Meta {
    /// Its namespace and name.
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Owner {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) controller: bool,
}

/// A condition of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) message: String,
    /// Null where who wrote it gave no time, as of pods behind a gate.
    last_transition_time: Option<String>,
}

/// A node, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeObject {
    pub(super) metadata: Meta,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(rename = "providerID")]
    provider_id: String,
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
    value: String,
    effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    capacity: Amounts,
    allocatable: Amounts,
    conditions: Vec<Condition>,
    node_info: NodeInfo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeInfo {
    os_image: String,
    kernel_version: String,
}

/// Amounts by resource.
type Amounts = BTreeMap<String, String>;

/// A pod, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodObject {
    pub(super) metadata: Meta,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    node_name: String,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    node_selector: BTreeMap<String, String>,
    resource_claims: Vec<PodClaim>,
    tolerations: Vec<TolerationObject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TolerationObject {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    resources: Resources,
    restart_policy: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: Amounts,
    limits: Amounts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    conditions: Vec<Condition>,
    resource_claim_statuses: Vec<MadeClaim>,
}

/// What an object is to us; none where it has no GPUs and is to have none.
pub(super) fn node(object: NodeObject) -> Option<Node> {
    let NodeObject {
        metadata,
        spec,
        status,
    } = object;
    let labels = &metadata.labels;
    let model = first(labels, &MODELS);
    let (whole, shares) = counted(&status.capacity);
    // The kubelet leaves a 0 where a device plugin was: the node is there, its GPUs cannot be given out.
    let has_gpus = status.capacity.keys().any(|it| is_gpu(it));
    if !has_gpus && model.is_empty() {
        return None;
    }
    let replicas = labels.get(REPLICAS).and_then(|it| it.parse::<u32>().ok());
    let is_labelled = SHARING.iter().any(|it| labels.contains_key(*it));
    // Instances that are given out as GPUs (MIG strategy `single`) are told by labels alone.
    let slices = labels.get(SLICES).is_some_and(|it| it != "0");
    let is_cut = slices || model.to_ascii_uppercase().contains("-MIG-");
    let are_all_shares = is_labelled || is_cut || replicas.is_some_and(|it| it > 1);
    // Beside cards that are cut (MIG strategy `mixed`) the others are given out whole, and counted by themselves.
    let is_shared = are_all_shares || (shares > 0 && whole == 0);
    let (can_whole, can_shares) = counted(&status.allocatable);
    let (gpus, allocatable) = match is_shared {
        true => (
            whole.saturating_add(shares),
            can_whole.saturating_add(can_shares),
        ),
        false => (whole, can_whole),
    };
    let condition = status.conditions.iter().find(|it| it.kind == "Ready");
    let ready = match condition.map(|it| it.status.as_str()) {
        Some("True") => Ready::Yes,
        Some("False") => Ready::No,
        _ => Ready::Unknown,
    };
    let trouble = match condition {
        Some(it) if ready != Ready::Yes => said(it),
        _ => String::new(),
    };
    let info = &status.node_info;
    let image = match info.kernel_version.as_str() {
        "" => info.os_image.clone(),
        kernel => format!("{} ({kernel})", info.os_image),
    };
    let taints = spec
        .taints
        .iter()
        .filter(|it| it.effect.starts_with("No") && !COMMON_TAINTS.contains(&it.key.as_str()));
    let taints = taints.map(|it| {
        let Taint { key, value, effect } = it;
        holder::cut(&format!("{key}={value}:{effect}")).to_owned()
    });
    let is_tainted = |start: &str| {
        let mut taints = spec.taints.iter();
        taints.any(|it| it.effect.starts_with("No") && it.key.starts_with(start))
    };
    let facts = machine::facts(labels, &spec.provider_id);
    let fact = |name: &str| {
        let told = facts.get(name).map_or("", String::as_str);
        holder::cut(told).to_owned()
    };
    let provisioning = fact(attribute::PROVISIONING);
    // What the autoscaler removes is given back.
    let is_taken_back =
        provisioning == Basis::Spot.name() && is_tainted(TERMINATES) && !is_tainted(SCALED_DOWN);
    let goes = GOES.iter().any(|it| is_tainted(it));
    Some(Node {
        model,
        zone: fact(attribute::ZONE),
        region: fact(attribute::REGION),
        machine: fact(attribute::MACHINE_TYPE),
        provisioning,
        provider: fact(attribute::CLOUD_PROVIDER),
        account: fact(attribute::CLOUD_ACCOUNT),
        instance: fact(attribute::HOST_ID),
        pool: first(labels, &POOLS),
        block: first(labels, &BLOCKS),
        subblock: first(labels, &SUBBLOCKS),
        driver: first(labels, &DRIVERS),
        gpus,
        allocatable,
        is_shared,
        ready,
        ready_since: condition.and_then(|it| moment(it.last_transition_time.as_deref()?)),
        trouble,
        cordoned: spec.unschedulable || goes || metadata.deletion_timestamp.is_some(),
        is_taken_back,
        kept_for: taints.take(MAX_TAINTS).collect(),
        partitions: Vec::new(),
        image: holder::cut(&image).to_owned(),
        created: metadata.creation_timestamp.as_deref().and_then(moment),
        name: metadata.name,
        uid: metadata.uid,
    })
}

/// What an object is to us.
pub(super) fn pod(object: PodObject) -> Pod {
    let PodObject {
        metadata,
        spec,
        status,
    } = object;
    let (whole, shares) = asked(&spec);
    let is_over = ["Succeeded", "Failed"].contains(&status.phase.as_str());
    let claims = devices::of_pod(
        &metadata.namespace,
        &spec.resource_claims,
        &status.resource_claim_statuses,
    );
    if is_over || (whole + shares == 0 && claims.is_empty()) {
        return Pod::Neither;
    }
    if !spec.node_name.is_empty() {
        // What its claims were given these say themselves.
        if whole + shares == 0 {
            return Pod::Neither;
        }
        return Pod::Bound(Bound {
            node: spec.node_name.into(),
            gpus: whole,
        });
    }
    // One that is to go waits for nothing.
    if metadata.deletion_timestamp.is_some() {
        return Pod::Neither;
    }
    let scheduled = status
        .conditions
        .iter()
        .find(|it| it.kind == "PodScheduled");
    let scheduled = scheduled.filter(|it| it.status == "False");
    let reason = match scheduled.map(|it| it.reason.as_str()) {
        None => Reason::NotTried,
        Some("SchedulingGated") => Reason::HeldBack,
        Some(_) => Reason::NoPlace,
    };
    let owner = metadata.owner_references.iter().find(|it| it.controller);
    let owner = owner.map(|it| (it.kind.as_str(), it.name.as_str()));
    let named = workload(&metadata.namespace, &metadata.labels, owner);
    let itself = || format!("pod:{}/{}", metadata.namespace, metadata.name);
    let named = named.unwrap_or_else(itself);
    let claim = Box::new(Claim {
        reason,
        words: scheduled.map(|it| cut(&it.message)).unwrap_or_default(),
        ..described(&metadata, &named, &spec, 1)
    });
    match claims.is_empty() {
        true => Pod::Waits(claim),
        false => Pod::WaitsByClaims(claim, claims),
    }
}

/// What so many pods of this kind ask for, held back as long as nobody says otherwise; none where they surely ask for
/// no GPU.
pub(super) fn claim(meta: &Meta, workload: &str, spec: &PodSpec, places: u32) -> Option<Asking> {
    let claim = described(meta, workload, spec, places);
    let by = devices::of_template(&meta.namespace, &spec.resource_claims);
    let may_ask = claim.gpus_each > 0 || !by.is_empty();
    (may_ask && places > 0).then_some((claim, by))
}

/// What so many pods of this kind are to us, with the GPUs that each asks for by count.
fn described(meta: &Meta, workload: &str, spec: &PodSpec, places: u32) -> Claim {
    let (whole, shares) = asked(spec);
    let gpus_each = if whole > 0 { whole } else { shares };
    let since = meta.creation_timestamp.as_deref().and_then(moment);
    Claim {
        namespace: holder::cut(&meta.namespace).to_owned(),
        workload: holder::cut(workload).to_owned(),
        queue: holder::cut(queue(&meta.labels).unwrap_or_default()).to_owned(),
        model: first(&spec.node_selector, &MODELS),
        places,
        gpus_each,
        together: (!begins_together(workload)).then_some(1),
        is_shares: whole == 0 && shares > 0,
        since: since.unwrap_or_default(),
        reason: Reason::HeldBack,
        words: String::new(),
        tolerates: spec
            .tolerations
            .iter()
            .take(MAX_TOLERATIONS)
            .map(tolerated)
            .collect(),
        partitions: Vec::new(),
        scaler: None,
    }
}

fn tolerated(it: &TolerationObject) -> Toleration {
    Toleration {
        key: holder::cut(&it.key).to_owned(),
        value: (it.operator != "Exists").then(|| holder::cut(&it.value).to_owned()),
        effect: holder::cut(&it.effect).to_owned(),
    }
}

/// Whole GPUs and shares of GPUs that a pod asks for: all its containers together, or the greediest of
/// those that run before them.
fn asked(spec: &PodSpec) -> (u32, u32) {
    let add = |(a, b): (u32, u32), (c, d): (u32, u32)| (a.saturating_add(c), b.saturating_add(d));
    let most = |(a, b): (u32, u32), (c, d): (u32, u32)| (a.max(c), b.max(d));
    let of = |it: &Container| {
        let requests = counted(&it.resources.requests);
        most(requests, counted(&it.resources.limits))
    };
    let together = spec.containers.iter().map(of).fold((0, 0), add);
    // One that begins before the others and goes on beside them counts with both.
    let mut beside = (0, 0);
    let mut before = (0, 0);
    for container in &spec.init_containers {
        if container.restart_policy == "Always" {
            beside = add(beside, of(container));
        } else {
            before = most(before, add(beside, of(container)));
        }
    }
    most(add(together, beside), before)
}

/// Whole GPUs and shares among amounts.
fn counted(amounts: &Amounts) -> (u32, u32) {
    let (mut whole, mut shares) = (0_u32, 0_u32);
    for (name, amount) in amounts {
        let amount = amount.parse::<u32>().unwrap_or(0);
        if GPUS.contains(&name.as_str()) {
            whole = whole.saturating_add(amount);
        } else if is_gpu(name) {
            shares = shares.saturating_add(amount);
        }
    }
    (whole, shares)
}

/// Whether a resource is GPUs or shares of them.
fn is_gpu(name: &str) -> bool {
    GPUS.contains(&name) || name.starts_with("nvidia.com/mig-") || name == "nvidia.com/gpu.shared"
}

fn first(labels: &BTreeMap<String, String>, keys: &[&str]) -> String {
    let mut found = keys.iter().filter_map(|key| labels.get(*key));
    let found = found.find(|it| !it.is_empty());
    found
        .map(|it| holder::cut(it).to_owned())
        .unwrap_or_default()
}

/// Why a condition is as it is.
fn said(condition: &Condition) -> String {
    let words = match (condition.reason.as_str(), condition.message.as_str()) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    holder::cut(&words).to_owned()
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
