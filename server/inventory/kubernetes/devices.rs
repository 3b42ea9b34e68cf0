//! Of the objects of dynamic resource allocation (`resource.k8s.io`) as much as is read, and what they are to us.
//!
//! Read are v1, v1beta2 and v1beta1; they differ in one level each of a request and of a device. GPUs are devices of
//! NVIDIA's driver; what an expression of a class or a request says is not evaluated: of a class it is looked for
//! the driver's name and for `mig`, of a request for nothing.

use std::collections::BTreeMap;

use gpufleet_telemetry::holder;
use serde::Deserialize;

use super::super::known::{Asks, ByClaim, Count, Device, DeviceClaim, Gives, Slice};
use super::objects::Meta;

/// NVIDIA's driver.
const DRIVER: &str = "gpu.nvidia.com";

/// Most devices of a slice: the API allows as many.
const MAX_DEVICES: usize = 128;

/// Most requests of a claim, and devices that one is given: the API allows 32.
const MAX_OF_A_CLAIM: usize = 32;

/// Most claims of a pod.
const MAX_CLAIMS_OF_A_POD: usize = 64;

/// A slice, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SliceObject {
    pub(super) metadata: Meta,
    spec: SliceSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SliceSpec {
    driver: String,
    node_name: String,
    pool: Pool,
    devices: Vec<DeviceObject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pool {
    name: String,
    generation: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DeviceObject {
    name: String,
    #[serde(flatten)]
    said: Said,
    /// Where v1beta1 has the rest.
    basic: Option<Said>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    attributes: BTreeMap<String, Attribute>,
    taints: Vec<Taint>,
    #[serde(rename = "consumesCounters")]
    takes: Vec<Takes>,
}

/// What a device takes from counters that it has in common with others.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Takes {
    counter_set: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Attribute {
    string: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    effect: String,
}

/// A class, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClassObject {
    pub(super) metadata: Meta,
    spec: ClassSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClassSpec {
    selectors: Vec<Selector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selector {
    cel: Expression,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Expression {
    expression: String,
}

/// A claim, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimObject {
    pub(super) metadata: Meta,
    spec: ClaimSpec,
    status: ClaimStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimSpec {
    devices: Asked,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    requests: Vec<Request>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request {
    #[serde(flatten)]
    flat: Exact,
    /// Where v1 and v1beta2 have it.
    exactly: Option<Exact>,
    /// One of these will do, the first best.
    first_available: Vec<Exact>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Exact {
    device_class_name: String,
    allocation_mode: String,
    count: Option<u32>,
    admin_access: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimStatus {
    allocation: Option<Allocation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: Given,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Given {
    results: Vec<GivenDevice>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct GivenDevice {
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
}

/// What claims are made of, of which this much is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TemplateObject {
    pub(super) metadata: Meta,
    spec: TemplateSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TemplateSpec {
    spec: ClaimSpec,
}

/// A claim that a pod names, or a template of one.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodClaim {
    name: String,
    resource_claim_name: Option<String>,
    resource_claim_template_name: Option<String>,
}

/// The claim that was made of a template for a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MadeClaim {
    name: String,
    resource_claim_name: Option<String>,
}

/// GPUs of a slice; none where it is of another driver, or of no single node.
pub(super) fn slice(object: SliceObject) -> Option<Slice> {
    let spec = object.spec;
    if spec.driver != DRIVER || spec.node_name.is_empty() {
        return None;
    }
    let mut model = String::new();
    let devices = spec.devices.into_iter().take(MAX_DEVICES).map(|it| {
        let said = it.basic.unwrap_or(it.said);
        let text = |name: &str| {
            let own = format!("{DRIVER}/{name}");
            let found = said.attributes.get(name);
            let found = found.or_else(|| said.attributes.get(&own));
            found.and_then(|it| it.string.as_deref())
        };
        if let (true, Some(name)) = (model.is_empty(), text("productName")) {
            model = holder::cut(name).to_owned();
        }
        let card = said.takes.first().map(|it| it.counter_set.clone());
        Device {
            gives: match text("type") {
                Some("gpu") | None => Gives::Whole,
                Some("mig") => Gives::Share,
                // The same GPU once more, for virtual machines.
                Some(_) => Gives::Nothing,
            },
            is_free_of_taints: !said.taints.iter().any(|it| it.effect.starts_with("No")),
            card: card.unwrap_or_default(),
            name: it.name,
        }
    });
    let devices = devices.collect();
    Some(Slice {
        node: spec.node_name,
        pool: spec.pool.name,
        generation: spec.pool.generation,
        model,
        devices,
    })
}

/// What devices of a class are.
pub(super) fn class(object: &ClassObject) -> Gives {
    let selectors = object.spec.selectors.iter();
    let words: Vec<&str> = selectors.map(|it| it.cel.expression.as_str()).collect();
    let says = |word: &str| words.iter().any(|it| it.contains(word));
    match (says(DRIVER), says("'mig'") || says("\"mig\"")) {
        (true, true) => Gives::Share,
        (true, false) => Gives::Whole,
        (false, _) => Gives::Nothing,
    }
}

/// What a claim asks for and was given. What only looks at a device (admin access) neither holds nor asks for it.
pub(super) fn claim(object: ClaimObject) -> DeviceClaim {
    let asks = asks(object.spec);
    let is_given = object.status.allocation.is_some();
    let results = object.status.allocation.unwrap_or_default().devices.results;
    let given = results
        .into_iter()
        .filter(|it| it.driver == DRIVER && it.admin_access != Some(true));
    let given = given.take(MAX_OF_A_CLAIM).map(|it| (it.pool, it.device));
    DeviceClaim {
        asks,
        given: given.collect(),
        is_given,
    }
}

/// What claims that are made of a template ask for.
pub(super) fn template(object: TemplateObject) -> Asks {
    asks(object.spec.spec)
}

fn asks(spec: ClaimSpec) -> Asks {
    let requests = spec.devices.requests.into_iter();
    let asks = requests.take(MAX_OF_A_CLAIM).filter_map(|it| {
        let first = it.first_available.into_iter().next();
        let one = it.exactly.or(first).unwrap_or(it.flat);
        let count = match one.allocation_mode.as_str() {
            "All" => Count::All,
            _ => Count::Exactly(one.count.unwrap_or(1)),
        };
        let is_asked = one.admin_access != Some(true) && !one.device_class_name.is_empty();
        is_asked.then_some((one.device_class_name, count))
    });
    asks.collect()
}

/// The claims of a pod: those that it names, and those that were made for it or will be.
pub(super) fn of_pod(namespace: &str, named: &[PodClaim], made: &[MadeClaim]) -> Vec<ByClaim> {
    let full = |name: &String| format!("{namespace}/{name}");
    let claims = named.iter().take(MAX_CLAIMS_OF_A_POD).filter_map(|it| {
        let own = made.iter().find(|made| made.name == it.name);
        let name = it.resource_claim_name.as_ref();
        let name = name.or_else(|| own?.resource_claim_name.as_ref());
        // A template of which none is made, because the pod needs none, asks for nothing.
        let template = it.resource_claim_template_name.as_ref();
        let template = template.filter(|_| name.is_some() || own.is_none());
        let by = ByClaim {
            claim: name.map(full),
            template: template.map(full),
        };
        (by.claim.is_some() || by.template.is_some()).then_some(by)
    });
    claims.collect()
}

/// What pods that are not there yet ask for by templates. A claim that all of them share is told when they are.
pub(super) fn of_template(namespace: &str, named: &[PodClaim]) -> Vec<ByClaim> {
    let mut all = of_pod(namespace, named, &[]);
    all.retain(|it| it.claim.is_none());
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_slice(spec: Value) -> Option<Slice> {
        let object = json!({"metadata": {"name": "s"}, "spec": spec});
        slice(serde_json::from_value(object).expect("it is a slice"))
    }

    fn read_claim(object: Value) -> DeviceClaim {
        claim(serde_json::from_value(object).expect("it is a claim"))
    }

    #[test]
    fn a_slice_says_which_gpus_a_node_has_in_every_version() {
        let said = |kind: &str| {
            json!({"attributes": {"type": {"string": kind}, "index": {"int": 0},
                "productName": {"string": "NVIDIA H100 80GB HBM3"}}, "capacity": {"memory": {"value": "80Gi"}}})
        };
        let of = |devices: Value| {
            read_slice(json!({"driver": DRIVER, "nodeName": "n", "pool":
                {"name": "n", "generation": 3, "resourceSliceCount": 1}, "devices": devices}))
        };
        let with = |mut said: Value, more: Value| {
            for (key, value) in more.as_object().expect("an object") {
                said[key] = value.clone();
            }
            said
        };
        let v1 = of(json!([
            with(said("gpu"), json!({"name": "gpu-0"})),
            with(
                said("gpu"),
                json!({"name": "gpu-1", "taints": [{"key": "xid", "effect": "NoSchedule"}]})
            ),
            with(
                said("mig"),
                json!({"name": "gpu-2-mig-1", "consumesCounters": [{"counterSet": "gpu-2", "counters": {}}]})
            ),
            with(said("vfio"), json!({"name": "gpu-vfio-0"}))
        ]));
        let v1 = v1.expect("it has GPUs");
        let device = |name: &str, gives, is_free_of_taints| Device {
            name: name.to_owned(),
            gives,
            is_free_of_taints,
            card: String::new(),
        };
        let part = Device {
            card: "gpu-2".to_owned(),
            ..device("gpu-2-mig-1", Gives::Share, true)
        };
        let expected = [
            device("gpu-0", Gives::Whole, true),
            device("gpu-1", Gives::Whole, false),
            part,
            device("gpu-vfio-0", Gives::Nothing, true),
        ];
        assert_eq!(v1.devices, expected);
        assert_eq!(
            (v1.model.as_str(), v1.generation),
            ("NVIDIA H100 80GB HBM3", 3)
        );
        let v1beta1 = of(json!([{"name": "gpu-0", "basic": said("gpu")}])).expect("it has GPUs");
        assert_eq!(v1beta1.devices, expected[..1]);
        assert_eq!(v1beta1.model, v1.model);
        assert_eq!(
            read_slice(json!({"driver": "dra.net", "nodeName": "n"})),
            None
        );
        assert_eq!(
            read_slice(json!({"driver": DRIVER, "allNodes": true})),
            None
        );
    }

    #[test]
    fn a_claim_asks_for_so_many_of_a_class_in_every_version() {
        let gpus = |count: u32| ("gpu.nvidia.com".to_owned(), Count::Exactly(count));
        for (request, asks) in [
            (json!({"deviceClassName": "gpu.nvidia.com"}), Some(gpus(1))),
            (
                json!({"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 4}),
                Some(gpus(4)),
            ),
            (
                json!({"exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}),
                Some(gpus(8)),
            ),
            (
                json!({"exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}}),
                Some(("gpu.nvidia.com".to_owned(), Count::All)),
            ),
            (
                json!({"firstAvailable": [{"name": "a", "deviceClassName": "gpu.nvidia.com", "count": 2},
                    {"name": "b", "deviceClassName": "mig.nvidia.com"}]}),
                Some(gpus(2)),
            ),
            (
                json!({"exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": true}}),
                None,
            ),
        ] {
            let read = read_claim(json!({"spec": {"devices": {"requests": [request]}}}));
            assert_eq!(read.asks, Vec::from_iter(asks), "{request}");
            assert!(!read.is_given && read.given.is_empty());
        }
        let result = |driver: &str, device: &str| json!({"request": "r", "driver": driver, "pool": "n", "device": device});
        let mut looks = result(DRIVER, "gpu-7");
        looks["adminAccess"] = json!(true);
        let results = [result(DRIVER, "gpu-0"), result("dra.net", "nic-0"), looks];
        let read = read_claim(json!({"status": {"allocation": {"devices": {"results": results}}}}));
        assert!(read.is_given);
        assert_eq!(read.given, [("n".to_owned(), "gpu-0".to_owned())]);
    }

    #[test]
    fn a_class_is_of_gpus_when_it_asks_for_the_driver() {
        for (expression, gives) in [
            (
                "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
                Gives::Whole,
            ),
            (
                "device.driver == \"gpu.nvidia.com\" && device.attributes[\"gpu.nvidia.com\"].type == \"mig\"",
                Gives::Share,
            ),
            ("device.driver == 'dra.net'", Gives::Nothing),
        ] {
            let object = json!({"spec": {"selectors": [{"cel": {"expression": expression}}]}});
            let object = serde_json::from_value(object).expect("it is a class");
            assert_eq!(class(&object), gives, "{expression}");
        }
    }

    #[test]
    fn a_pod_names_its_claims_or_the_templates_that_they_are_made_of() {
        let named = json!([{"name": "mine", "resourceClaimName": "shared"},
            {"name": "gpus", "resourceClaimTemplateName": "eight"},
            {"name": "none-yet", "resourceClaimTemplateName": "eight"}]);
        let made =
            json!([{"name": "gpus", "resourceClaimName": "train-0-gpus-x7"}, {"name": "else"}]);
        let named: Vec<PodClaim> = serde_json::from_value(named).expect("claims");
        let made: Vec<MadeClaim> = serde_json::from_value(made).expect("claims");
        let by = |claim: Option<&str>, template: Option<&str>| ByClaim {
            claim: claim.map(str::to_owned),
            template: template.map(str::to_owned),
        };
        let expected = [
            by(Some("a/shared"), None),
            by(Some("a/train-0-gpus-x7"), Some("a/eight")),
            by(None, Some("a/eight")),
        ];
        assert_eq!(of_pod("a", &named, &made), expected);
        let none = [("none-yet", None)].map(|(name, claim)| MadeClaim {
            name: name.to_owned(),
            resource_claim_name: claim,
        });
        let unneeded = of_pod("a", &named, &none);
        assert_eq!(unneeded.len(), 2, "of one it was said that none is made");
        assert_eq!(
            of_template("a", &named),
            [expected[2].clone(), expected[2].clone()]
        );
    }
}
