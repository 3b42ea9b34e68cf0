//! Names for a recording: scrubbed when it is taken, derived from the node's name when it is played.
//!
//! A derived id is a UUID of (node name, recorded id), so one recording played under two names gives
//! two sets of GPUs, and played twice under one name the same set.

use gpufleet_telemetry::event::Event;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::training::{JobId, RankId};
use uuid::Uuid;

/// The name space of derived ids; a random UUID, for ever.
const NAMESPACE: Uuid = Uuid::from_u128(0x6d1f_3f0e_2c1b_4f0a_9a57_5b8e_1c9d_7e42);

/// What a recording may not carry beside who used the machine: which and where it was.
const PRIVATE: [&str; 10] = [
    attribute::CLUSTER,
    attribute::NODE,
    attribute::BOOT_ID,
    attribute::AGENT_ID,
    attribute::SERIAL,
    attribute::HOST_ID,
    attribute::REGION,
    attribute::ZONE,
    attribute::CLOUD_ACCOUNT,
    attribute::ORIGIN,
];

/// Whether an attribute says who or where. What people call their pods and namespaces is theirs.
fn is_private(name: &str) -> bool {
    let labels = [attribute::LABEL_PREFIX, attribute::NAMESPACE_LABEL_PREFIX];
    let named = [&PRIVATE[..], &attribute::OF_HOLDER];
    named.iter().any(|it| it.contains(&name)) || labels.iter().any(|it| name.starts_with(it))
}

/// Gives everything of a recording new ids.
#[derive(Debug, Clone)]
pub struct Renamer {
    from_node: String,
    to_node: String,
    salt: String,
}

impl Renamer {
    /// From the recorded node's name to the one that is shown.
    pub fn new(from_node: &str, to_node: &str) -> Self {
        Self {
            from_node: from_node.to_owned(),
            to_node: to_node.to_owned(),
            salt: to_node.to_owned(),
        }
    }

    /// For taking a recording: ids that cannot be led back to the machine's.
    pub fn scrubbing(from_node: &str, to_node: &str) -> Self {
        Self {
            salt: Uuid::new_v4().to_string(),
            ..Self::new(from_node, to_node)
        }
    }

    /// The new id of a recorded one. Of `<gpu>/gi<n>` and `<gpu>::<n>` the GPU is renamed.
    pub fn id(&self, kind: ResourceKind, id: &str) -> String {
        if kind == ResourceKind::Node {
            return self.to_node.clone();
        }
        if kind == ResourceKind::Endpoint {
            return format!("{}/{id}", self.to_node);
        }
        if kind == ResourceKind::Rank {
            return self.rank(id);
        }
        // A place stands in for a null UUID: `<node>/00000000:53:00.0`.
        let place = id.strip_prefix(self.from_node.as_str());
        if let Some(place) = place.and_then(|rest| rest.strip_prefix('/')) {
            return format!("{}/{place}", self.to_node);
        }
        let end = id.find("/gi").or_else(|| id.find("::")).unwrap_or(id.len());
        let (whole, share) = id.split_at(end);
        let prefix = ["GPU-", "MIG-"]
            .into_iter()
            .find(|it| whole.starts_with(it));
        let name = format!("{}|{whole}", self.salt);
        let uuid = Uuid::new_v5(&NAMESPACE, name.as_bytes());
        format!("{}{uuid}{share}", prefix.unwrap_or_default())
    }

    /// A rank of a job without its names, which are people's.
    fn rank(&self, id: &str) -> String {
        let found = RankId::parse(id).ok();
        let job = found
            .as_ref()
            .map_or(id.to_owned(), |it| it.job.to_string());
        let uid = Uuid::new_v5(&NAMESPACE, format!("{}|{job}", self.salt).as_bytes());
        let renamed = RankId {
            job: JobId {
                namespace: String::new(),
                name: "job".to_owned(),
                uid: uid.to_string(),
            },
            attempt: found.as_ref().map_or(0, |it| it.attempt),
            rank: found.as_ref().map_or(0, |it| it.rank),
        };
        renamed.to_string()
    }

    /// The resource under its new id, without what is private.
    pub fn resource(&self, resource: &Resource) -> Resource {
        let mut renamed = Resource::new(resource.kind, self.id(resource.kind, &resource.id));
        renamed.attributes.clone_from(&resource.attributes);
        renamed.attributes.retain(|name, _| !is_private(name));
        if let Some(parent) = resource.attribute(attribute::PARENT) {
            let parent = self.id(ResourceKind::Gpu, parent);
            renamed = renamed.with(attribute::PARENT, parent);
        }
        renamed
    }

    /// The event about the renamed resource. Its words may name the machine or its people, and go.
    pub fn event(&self, event: &Event) -> Event {
        let mut renamed = event.clone();
        renamed.resource_id = self.id(event.resource_kind, &event.resource_id).into();
        renamed.message = event
            .message
            .replace(event.resource_id.as_ref(), &renamed.resource_id)
            .replace(&self.from_node, &self.to_node);
        let kept = ["xid", "action", "function", "gpu"];
        renamed
            .attributes
            .retain(|name, _| kept.contains(&name.as_str()));
        renamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_node_name_and_keep_their_kind() {
        let first = Renamer::new("recorded", "a");
        let gpu = first.id(ResourceKind::Gpu, "GPU-1");
        assert!(gpu.starts_with("GPU-") && gpu.len() == 40, "{gpu}");
        assert_eq!(gpu, first.id(ResourceKind::Gpu, "GPU-1"));
        assert_ne!(gpu, first.id(ResourceKind::Gpu, "GPU-2"));
        assert_ne!(
            gpu,
            Renamer::new("recorded", "b").id(ResourceKind::Gpu, "GPU-1")
        );
        assert_eq!(
            first.id(ResourceKind::Share, "GPU-1/gi7"),
            format!("{gpu}/gi7")
        );
        assert_eq!(
            first.id(ResourceKind::Share, "GPU-1::3"),
            format!("{gpu}::3")
        );
        assert_eq!(first.id(ResourceKind::Node, "recorded"), "a");
        assert_eq!(first.id(ResourceKind::Gpu, "recorded/00:1.0"), "a/00:1.0");
        assert_eq!(first.id(ResourceKind::Endpoint, "e:80/m"), "a/e:80/m");
        let rank = |id: &str| first.id(ResourceKind::Rank, id);
        assert!(!rank("team/secret/u/2/7").contains("secret"));
        assert!(rank("team/secret/u/2/7").ends_with("/2/7"));
        assert_eq!(
            rank("team/secret/u/2/7").strip_suffix('7'),
            rank("team/secret/u/2/0").strip_suffix('0')
        );
    }

    #[test]
    fn who_and_where_it_was_is_scrubbed_and_a_share_keeps_its_gpu() {
        let renamer = Renamer::scrubbing("secret-host", "recorded");
        let share = Resource::new(ResourceKind::Share, "MIG-1")
            .with(attribute::NODE, "secret-host")
            .with(attribute::HOLDER, "process:ada/python3")
            .with(attribute::POD, "adas-secret")
            .with("gpufleet.label.team", "ada")
            .with(attribute::SERIAL, "165")
            .with(attribute::GPU_MODEL, "NVIDIA L4")
            .with(attribute::PARENT, "GPU-1");
        let renamed = renamer.resource(&share);
        let names: Vec<&str> = renamed.attributes.keys().map(String::as_str).collect();
        assert_eq!(names, [attribute::GPU_MODEL, attribute::PARENT]);
        let gpu = renamer.id(ResourceKind::Gpu, "GPU-1");
        assert_eq!(renamed.attribute(attribute::PARENT), Some(gpu.as_str()));
        let other = Renamer::scrubbing("secret-host", "recorded");
        assert_ne!(
            gpu,
            other.id(ResourceKind::Gpu, "GPU-1"),
            "not the same in two recordings"
        );
    }
}
