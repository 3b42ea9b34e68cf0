//! What became different: nodes that come, are ready, stop being so, are cordoned, go, or have another
//! driver or image.

use gpufleet_telemetry::time::Timestamp;

use super::{Node, Phase, Record};

/// Something that happened to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// When it was seen.
    pub at: Timestamp,
    /// The node.
    pub node: String,
    /// What, as the end of a sentence that begins with the node's name: `is ready`.
    pub what: String,
}

/// What is different of a node now; nothing where only what changes all the time did.
pub fn changes(before: Option<(&Node, Phase)>, after: &Record, now: Timestamp) -> Vec<Change> {
    let node = &after.node;
    let change = |what: String| Change {
        at: now,
        node: node.name.clone(),
        // PostgreSQL keeps no text with it.
        what: what.replace('\0', "\u{fffd}"),
    };
    let Some((old, phase)) = before.filter(|(_, phase)| *phase != Phase::Gone) else {
        let gpus = match (node.gpus, node.model.as_str()) {
            (0, _) => String::new(),
            (count, "") => format!(" with {count} GPUs"),
            (count, model) => format!(" with {count} GPUs of type {model}"),
        };
        return vec![change(format!("came{gpus}"))];
    };
    let mut found = Vec::new();
    let is_other = !node.uid.is_empty() && !old.uid.is_empty() && node.uid != old.uid;
    if is_other {
        found.push("was made anew under its name".to_owned());
    }
    let next = after.phase();
    if next != phase {
        found.extend(match (phase, next) {
            (_, Phase::Gone) => Some("is gone".to_owned()),
            (_, Phase::NotReady) => Some(match node.trouble.as_str() {
                "" => "is not ready any more".to_owned(),
                why => format!("is not ready any more: {why}"),
            }),
            (Phase::Cordoned, Phase::Ready) => Some("takes work again".to_owned()),
            (_, Phase::Ready) => Some("is ready".to_owned()),
            (_, Phase::Cordoned) => Some("is cordoned".to_owned()),
            (_, Phase::Starting) => None,
        });
    }
    if next != Phase::Gone {
        for (name, old, new) in [
            ("driver", &old.driver, &node.driver),
            ("image", &old.image, &node.image),
            ("machine type", &old.machine, &node.machine),
        ] {
            if !old.is_empty() && !new.is_empty() && old != new {
                found.push(format!("has another {name}: {old} → {new}"));
            }
        }
        let had = old.allocatable;
        if phase == Phase::Ready && next == Phase::Ready && had != node.allocatable {
            found.push(format!("can give out {} GPUs, not {had}", node.allocatable));
        }
    }
    found.into_iter().map(change).collect()
}
