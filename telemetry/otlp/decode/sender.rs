//! Who sent, and which resource a point is about.
//!
//! Ours say it in the Resource. Of others a GPU is what `hw.id` or dcgm-exporter's `UUID` names on
//! the point, else what the Resource names so; a node is `host.name`, an endpoint
//! `service.instance.id`; so is a rank, whose identity is then a claim. A GPU is never guessed from a host's name: eight would become one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::KeyValue;

use super::{as_text, text};
use crate::catalog::{Metric, gpu};
use crate::identity::{Resource, ResourceKind, attribute};
use crate::otlp::limits::{Limits, Reject, Rejected, has_control, printable};
use crate::otlp::{HW_ID_KEY, INSTANCE_ID_KEY, SERVICE_NAME, SERVICE_NAME_KEY};
use crate::training::{RankId, Trust};

/// The reader that foreign data is marked with.
const SOURCE_OTLP: &str = "otlp";
/// dcgm-exporter's label for a GPU's UUID.
const DCGM_UUID: &str = "UUID";
/// dcgm-exporter's label for a MIG instance's GPU instance id.
const DCGM_GPU_INSTANCE: &str = "GPU_I_ID";
/// dcgm-exporter's label for the host.
const DCGM_HOST: &str = "Hostname";
/// What dcgm-exporter's labels are called here.
const DCGM_ATTRIBUTES: [(&str, &str); 5] = [
    ("modelName", attribute::GPU_MODEL),
    ("gpu", attribute::GPU_INDEX),
    ("pci_bus_id", attribute::PCI_ADDRESS),
    ("GPU_I_PROFILE", attribute::MIG_PROFILE),
    (DCGM_HOST, attribute::NODE),
];

/// What names the sender, its node or its cluster: refused, not mended, when it cannot be printed,
/// because a mended name would be another's.
const IDENTITY: [&str; 3] = [INSTANCE_ID_KEY, attribute::NODE, attribute::CLUSTER];

/// The Resource of a request.
pub(super) enum Sender {
    /// One of our agents: it names its resource.
    Ours(Resource),
    /// Anyone else: its points name theirs.
    Foreign(BTreeMap<String, String>),
    /// Someone whose name has control characters: nothing of it is kept.
    Unprintable,
}

/// Which resource a point is about.
pub(super) struct Target<'a> {
    pub(super) kind: ResourceKind,
    pub(super) id: Cow<'a, str>,
    /// Of a share: the GPU it belongs to.
    parent: Option<&'a str>,
}

impl Sender {
    /// Reads the Resource; attributes that are too many or too long are left out and counted.
    pub(super) fn read(
        attributes: Vec<KeyValue>,
        limits: &Limits,
        rejected: &mut Rejected,
    ) -> Self {
        let mut known = BTreeMap::new();
        let over = attributes.len().saturating_sub(limits.attributes);
        rejected.add(Reject::TooManyAttributes, over as u64, || {
            format!("{} of a resource", attributes.len())
        });
        for KeyValue { key, value, .. } in attributes.into_iter().take(limits.attributes) {
            let Some(value) = as_text(value).filter(|it| !it.is_empty()) else {
                continue;
            };
            if IDENTITY.contains(&key.as_str()) && has_control(&value) {
                return Self::Unprintable;
            }
            let (key, value) = (printable(key), printable(value));
            if value.len().max(key.len()) > limits.label_bytes {
                rejected.add(Reject::TooLong, 1, || format!("attribute {key}"));
            } else {
                known.insert(key, value);
            }
        }
        let is_ours = known
            .get(SERVICE_NAME_KEY)
            .is_some_and(|it| it == SERVICE_NAME);
        let kind = known
            .get(attribute::KIND)
            .and_then(|name| ResourceKind::parse(name));
        match (is_ours, kind, known.get(INSTANCE_ID_KEY)) {
            (true, Some(kind), Some(id)) => {
                let id = id.as_str().into();
                for identity in [SERVICE_NAME_KEY, INSTANCE_ID_KEY, attribute::KIND] {
                    known.remove(identity);
                }
                Self::Ours(Resource {
                    kind,
                    id,
                    attributes: known.into_iter().collect(),
                })
            }
            _ => Self::Foreign(known),
        }
    }

    /// What to call it in an answer.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Ours(resource) => &resource.id,
            Self::Foreign(known) => [INSTANCE_ID_KEY, attribute::NODE, SERVICE_NAME_KEY]
                .into_iter()
                .find_map(|key| known.get(key))
                .map_or("an unnamed resource", String::as_str),
            Self::Unprintable => "a resource whose name has control characters",
        }
    }

    /// Which resource a point of this metric with these attributes is about.
    pub(super) fn target<'a>(
        &'a self,
        metric: &Metric,
        attributes: &'a [KeyValue],
        limits: &Limits,
    ) -> Result<Target<'a>, Reject> {
        let target = match self {
            Self::Ours(resource) => {
                let is_gpu = matches!(resource.kind, ResourceKind::Gpu | ResourceKind::Share);
                let is_right = resource.kind == metric.resource
                    || (is_gpu && metric.resource == ResourceKind::Gpu);
                if !is_right {
                    return Err(Reject::WrongResource);
                }
                Target::new(resource.kind, &resource.id)
            }
            Self::Foreign(known) => foreign_target(known, metric, attributes)?,
            Self::Unprintable => return Err(Reject::UnprintableId),
        };
        match target.id.len() {
            0 => Err(Reject::UnidentifiedResource),
            length if length > limits.label_bytes => Err(Reject::LongId),
            _ if has_control(&target.id) => Err(Reject::UnprintableId),
            _ => Ok(target),
        }
    }

    /// The resource of a target with all that is known about it.
    pub(super) fn resource(
        &self,
        target: &Target<'_>,
        attributes: &[KeyValue],
        limits: &Limits,
    ) -> Resource {
        let known = match self {
            Self::Ours(resource) => return resource.clone(),
            Self::Foreign(known) => known,
            Self::Unprintable => return Resource::new(target.kind, &*target.id),
        };
        let mut resource = Resource {
            attributes: known.clone().into_iter().collect(),
            ..Resource::new(target.kind, &*target.id)
        };
        let mut learn = |name: &str, value: &str| {
            let value = printable(value.to_owned());
            if value.len() <= limits.label_bytes && !resource.attributes.contains_key(name) {
                resource.attributes.insert(name.to_owned(), value);
            }
        };
        learn(attribute::SOURCE, SOURCE_OTLP);
        if let Some(parent) = target.parent {
            learn(attribute::PARENT, parent);
            if let Some(instance) = text(attributes, DCGM_GPU_INSTANCE) {
                learn(attribute::MIG_GPU_INSTANCE, instance);
            }
        }
        if target.kind == ResourceKind::Rank {
            // No agent stands behind it: whatever it says of itself is a claim.
            let claimed = Trust::Claimed.name().to_owned();
            resource
                .attributes
                .insert(attribute::TRUST.to_owned(), claimed);
            return resource;
        }
        if target.kind != ResourceKind::Endpoint {
            for (label, name) in DCGM_ATTRIBUTES {
                if let Some(value) = text(attributes, label) {
                    learn(name, value);
                }
            }
        }
        resource
    }
}

fn foreign_target<'a>(
    known: &'a BTreeMap<String, String>,
    metric: &Metric,
    attributes: &'a [KeyValue],
) -> Result<Target<'a>, Reject> {
    let said = |key: &str| text(attributes, key).or_else(|| known.get(key).map(String::as_str));
    let is_uuid = |id: &&str| id.starts_with("GPU-") || id.starts_with("MIG-");
    let id = match metric.resource {
        ResourceKind::Gpu | ResourceKind::Share => said(HW_ID_KEY)
            .or_else(|| said(DCGM_UUID))
            .or_else(|| said(INSTANCE_ID_KEY).filter(is_uuid)),
        ResourceKind::Node => said(attribute::NODE).or_else(|| said(DCGM_HOST)),
        ResourceKind::Endpoint => said(INSTANCE_ID_KEY),
        ResourceKind::Rank => said(INSTANCE_ID_KEY).filter(|id| RankId::parse(id).is_ok()),
    };
    let id = id.ok_or(Reject::UnidentifiedResource)?;
    if metric.resource != ResourceKind::Gpu {
        return Ok(Target::new(metric.resource, id));
    }
    match text(attributes, DCGM_GPU_INSTANCE) {
        // dcgm-exporter repeats the card's own readings on each of its instances.
        Some(instance) if gpu::shares_have(metric) => Ok(Target {
            kind: ResourceKind::Share,
            id: Cow::Owned(format!("{id}/gi{instance}")),
            parent: Some(id),
        }),
        _ if id.starts_with("MIG-") => Ok(Target::new(ResourceKind::Share, id)),
        _ => Ok(Target::new(ResourceKind::Gpu, id)),
    }
}

impl<'a> Target<'a> {
    fn new(kind: ResourceKind, id: &'a str) -> Self {
        Self {
            kind,
            id: Cow::Borrowed(id),
            parent: None,
        }
    }

    /// Whether this is that resource.
    pub(super) fn is(&self, resource: &Resource) -> bool {
        self.kind == resource.kind && *self.id == *resource.id
    }
}
