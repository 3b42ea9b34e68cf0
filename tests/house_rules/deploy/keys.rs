//! Every key of a manifest is one that Kubernetes has: the API server drops what it does not know, so that a misspelt
//! `tolerations` would leave the agent off half of the nodes, and nothing would say so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Deserialize;
use serde_norway::Value;

use super::{all, folder, rendered, text_at};
use crate::tree::none;

/// What each type has, a type a line, by the reference of Kubernetes' API v1.32, of Google's operator (v1) and of the
/// Prometheus operator (v1): the keys that manifests here have or may come to have. A key alone is a text, a number or
/// a yes; `key:Type` is of another type, `key:[Type]` a list of such, `key:[]` a list of texts, `key:{}` names and texts.
const TYPES: &str = "
Namespace: apiVersion kind metadata:Meta
ServiceAccount: apiVersion kind metadata:Meta automountServiceAccountToken
ConfigMap: apiVersion kind metadata:Meta data:{} immutable
PriorityClass: apiVersion kind metadata:Meta value globalDefault preemptionPolicy description
Meta: name namespace labels:{} annotations:{}
Selector: matchLabels:{} matchExpressions:[Requirement]
Requirement: key operator values:[]

Role: apiVersion kind metadata:Meta rules:[Rule]
ClusterRole: apiVersion kind metadata:Meta rules:[Rule]
Rule: apiGroups:[] resources:[] resourceNames:[] verbs:[]
RoleBinding: apiVersion kind metadata:Meta roleRef:RoleRef subjects:[Subject]
ClusterRoleBinding: apiVersion kind metadata:Meta roleRef:RoleRef subjects:[Subject]
RoleRef: apiGroup kind name
Subject: apiGroup kind name namespace

DaemonSet: apiVersion kind metadata:Meta spec:DaemonSetSpec
DaemonSetSpec: selector:Selector template:Template updateStrategy:Update minReadySeconds revisionHistoryLimit
Deployment: apiVersion kind metadata:Meta spec:DeploymentSpec
DeploymentSpec: replicas selector:Selector template:Template strategy:Update minReadySeconds progressDeadlineSeconds
Update: type rollingUpdate:RollingUpdate
RollingUpdate: maxUnavailable maxSurge

Template: metadata:Meta spec:Pod
Pod: serviceAccountName automountServiceAccountToken enableServiceLinks hostPID hostNetwork hostIPC
Pod: priorityClassName runtimeClassName terminationGracePeriodSeconds dnsPolicy nodeSelector:{} affinity:Affinity
Pod: tolerations:[Toleration] securityContext:Security initContainers:[Container] containers:[Container]
Pod: volumes:[Volume]
Toleration: key operator value effect tolerationSeconds
Affinity: nodeAffinity:NodeAffinity
NodeAffinity: requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
NodeSelector: nodeSelectorTerms:[NodeTerm]
NodeTerm: matchExpressions:[Requirement] matchFields:[Requirement]
Container: name image imagePullPolicy command:[] args:[] workingDir env:[Variable] ports:[ContainerPort]
Container: startupProbe:Probe livenessProbe:Probe readinessProbe:Probe resources:Resources
Container: securityContext:Security terminationMessagePath volumeMounts:[Mount]
Variable: name value valueFrom:VariableSource
VariableSource: fieldRef:FieldRef configMapKeyRef:KeyRef secretKeyRef:KeyRef
FieldRef: apiVersion fieldPath
KeyRef: name key optional
ContainerPort: name containerPort protocol
Probe: httpGet:HttpGet initialDelaySeconds periodSeconds timeoutSeconds failureThreshold successThreshold
HttpGet: path port scheme
Resources: requests:{} limits:{}
Security: runAsUser runAsGroup runAsNonRoot fsGroup fsGroupChangePolicy supplementalGroups:[] privileged
Security: allowPrivilegeEscalation readOnlyRootFilesystem capabilities:Capabilities seccompProfile:Seccomp
Capabilities: add:[] drop:[]
Seccomp: type localhostProfile
Mount: name mountPath readOnly subPath mountPropagation
Volume: name configMap:OfConfigMap secret:OfSecret projected:Projected hostPath:HostPath
Volume: emptyDir:EmptyDir persistentVolumeClaim:OfClaim
OfConfigMap: name items:[Item] defaultMode optional
OfSecret: secretName items:[Item] defaultMode optional
Projected: defaultMode sources:[ProjectedSource]
ProjectedSource: secret:ProjectedSecret
ProjectedSecret: name items:[Item] optional
Item: key path mode
HostPath: path type
EmptyDir: medium sizeLimit
OfClaim: claimName readOnly

PersistentVolumeClaim: apiVersion kind metadata:Meta spec:ClaimSpec
ClaimSpec: accessModes:[] resources:Resources storageClassName volumeMode
Service: apiVersion kind metadata:Meta spec:ServiceSpec
ServiceSpec: type clusterIP selector:{} ports:[ServicePort]
ServicePort: name port targetPort protocol appProtocol
PodDisruptionBudget: apiVersion kind metadata:Meta spec:Disruption
Disruption: maxUnavailable minAvailable selector:Selector unhealthyPodEvictionPolicy
NetworkPolicy: apiVersion kind metadata:Meta spec:Policy
Policy: podSelector:Selector policyTypes:[] ingress:[Ingress]
Ingress: from:[Peer] ports:[PolicyPort]
Peer: namespaceSelector:Selector podSelector:Selector
PolicyPort: protocol port endPort

PodMonitoring: apiVersion kind metadata:Meta spec:Monitoring
Monitoring: selector:Selector endpoints:[Scrape] targetLabels:TargetLabels
TargetLabels: metadata:[]
Scrape: port path interval timeout scheme tls:ScrapeTls authorization:ScrapeToken
ScrapeTls: insecureSkipVerify serverName ca:SecretOf
ScrapeToken: type credentials:SecretOf
SecretOf: secret:KeyRef

PodMonitor: apiVersion kind metadata:Meta spec:PodMonitorSpec
PodMonitorSpec: selector:Selector podMetricsEndpoints:[Endpoint]
ServiceMonitor: apiVersion kind metadata:Meta spec:ServiceMonitorSpec
ServiceMonitorSpec: selector:Selector endpoints:[Endpoint]
Endpoint: port path interval scrapeTimeout scheme honorLabels relabelings:[Relabeling] tlsConfig:Tls
Endpoint: authorization:Token
Relabeling: sourceLabels:[] targetLabel replacement regex action
Tls: serverName ca:SecretOf insecureSkipVerify
Token: type credentials:KeyRef
";

/// The types by name, each with its keys and what is behind them; nothing is behind a plain one.
type Types = BTreeMap<&'static str, BTreeMap<&'static str, &'static str>>;

fn types() -> Types {
    let mut types = Types::new();
    for line in TYPES.lines().filter(|it| !it.is_empty()) {
        let (name, keys) = line.split_once(": ").expect("a type has keys");
        for key in keys.split(' ') {
            let (key, of) = key.split_once(':').unwrap_or((key, ""));
            let before = types.entry(name).or_default().insert(key, of);
            assert!(before.is_none(), "{name}.{key} stands twice");
        }
    }
    types
}

/// Looks through a value of a type, and says where what is not so.
struct Reader {
    types: Types,
    /// Types that were met.
    met: BTreeSet<&'static str>,
    broken: Vec<String>,
}

impl Reader {
    fn new() -> Self {
        Self {
            types: types(),
            met: BTreeSet::new(),
            broken: Vec::new(),
        }
    }

    fn object(&mut self, file: &str, object: &Value) {
        let kind = text_at(object, "kind");
        let place = format!("{file}: {kind}/{}", text_at(object, "metadata.name"));
        let is_object = |keys: &BTreeMap<_, _>| {
            ["apiVersion", "metadata"]
                .iter()
                .all(|it| keys.contains_key(it))
        };
        let found = self.types.get_key_value(kind);
        match found
            .filter(|(_, keys)| is_object(keys))
            .map(|(kind, _)| *kind)
        {
            Some(kind) => self.value(&place, object, kind),
            None => self
                .broken
                .push(format!("{place}: no type is of this kind")),
        }
    }

    fn value(&mut self, place: &str, value: &Value, of: &'static str) {
        let is_plain = |it: &Value| it.is_string() || it.is_number() || it.is_bool();
        if let Some(inner) = of.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            let Some(elements) = value.as_sequence() else {
                return self.broken.push(format!("{place} is no list"));
            };
            for (index, element) in elements.iter().enumerate() {
                self.value(&format!("{place}.{index}"), element, inner);
            }
        } else if of == "{}" {
            let entries = value.as_mapping();
            if !entries.is_some_and(|it| it.iter().all(|(_, value)| is_plain(value))) {
                self.broken
                    .push(format!("{place} is no list of names and texts"));
            }
        } else if of.is_empty() {
            if !is_plain(value) {
                self.broken.push(format!("{place} is no plain value"));
            }
        } else {
            self.mapping(place, value, of);
        }
    }

    fn mapping(&mut self, place: &str, value: &Value, of: &'static str) {
        let keys = self.types.get(of).cloned();
        let keys = keys.unwrap_or_else(|| panic!("the table has no {of}"));
        self.met.insert(of);
        let Some(entries) = value.as_mapping() else {
            return self.broken.push(format!("{place} is no {of}"));
        };
        for (key, value) in entries {
            let key = key.as_str().unwrap_or_default();
            match keys.get(key) {
                Some(of) => self.value(&format!("{place}.{key}"), value, of),
                None => self.broken.push(format!("{place}: {of} has no {key:?}")),
            }
        }
    }
}

/// Every object that is committed, with where it stands.
fn objects() -> Vec<(String, Value)> {
    let overlays = all().into_iter().chain([("base", rendered("base"))]);
    let mut found: Vec<(String, Value)> = overlays
        .flat_map(|(name, objects)| objects.into_values().map(|it| (name.to_owned(), it)))
        .collect();
    let path = folder().join("handoff.yaml");
    let text = fs::read_to_string(path).expect("it is there");
    for document in serde_norway::Deserializer::from_str(&text) {
        let object = Value::deserialize(document).expect("it is YAML");
        found.push(("handoff".to_owned(), object));
    }
    found
}

#[test]
fn every_key_of_a_manifest_is_one_that_kubernetes_has() {
    let mut reader = Reader::new();
    for (file, object) in objects() {
        reader.object(&file, &object);
    }
    none("Kubernetes has each key where it stands", &reader.broken);
    let all: BTreeSet<&str> = reader.types.keys().copied().collect();
    assert_eq!(reader.met, all, "types that no manifest has");
}

#[test]
fn a_key_that_is_misspelt_or_in_the_wrong_place_is_found() {
    let path = folder().join("rendered/gke.yaml");
    let text = fs::read_to_string(path).expect("it is there");
    let of_agent = text
        .split("\n---\n")
        .find(|it| it.contains("kind: DaemonSet"));
    let of_agent = of_agent.expect("the agent");
    for (old, new, found) in [
        ("tolerations:", "toleration:", "Pod has no \"toleration\""),
        ("hostPID:", "hostPid:", "Pod has no \"hostPid\""),
        ("mountPath:", "mountpath:", "Mount has no \"mountpath\""),
        ("kind: DaemonSet", "kind: Pod", "no type is of this kind"),
        (
            "spec:\n",
            "spec:\n  hostPID: true\n",
            "DaemonSetSpec has no \"hostPID\"",
        ),
        (
            "hostPID: true",
            "hostPID: {is: true}",
            "hostPID is no plain value",
        ),
        (
            "      - operator: Exists",
            "        operator: Exists",
            "is no list",
        ),
        ("cpu: 20m", "cpu: {is: 20m}", "requests is no list of names"),
        (
            "privileged: true",
            "priviledged: true",
            "Security has no \"priviledged\"",
        ),
    ] {
        assert!(of_agent.contains(old), "{old}");
        let changed = serde_norway::from_str(&of_agent.replacen(old, new, 1));
        let mut reader = Reader::new();
        reader.object(
            "gke",
            &changed.unwrap_or_else(|error| panic!("{new}: {error}")),
        );
        let said = reader.broken.join("\n");
        assert!(said.contains(found), "{new}: {said}");
    }
}
