//! Who this agent is: a random id in its state folder, bound to the machine it was made on.
//!
//! A cloned disk brings the file along, but not the machine: then a new id is made, and the spool
//! of the original is not sent a second time.

use std::path::Path;

use anyhow::Context;
use gpufleet_telemetry::identity::AgentId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The file in the state folder.
const FILE: &str = "identity.json";

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    agent_id: Uuid,
    machine_id: String,
    node: String,
}

/// Where the id came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It was there, and is this machine's.
    Kept,
    /// There was none.
    New,
    /// There was one of another machine: this disk is a clone.
    Cloned,
}

/// The agent's id on this machine, made if need be.
///
/// # Errors
/// When the state folder cannot be written, or holds something that is no identity.
pub fn load(
    state_folder: &Path,
    machine_id: &str,
    node: &str,
    random: Uuid,
) -> anyhow::Result<(AgentId, Found)> {
    let path = state_folder.join(FILE);
    let found = match std::fs::read(&path) {
        Ok(bytes) => {
            let identity: Identity = serde_json::from_slice(&bytes).with_context(|| {
                format!(
                    "{} is no identity: remove it and the agent makes a new one",
                    path.display()
                )
            })?;
            if identity.machine_id == machine_id && identity.node == node {
                return Ok((AgentId(identity.agent_id), Found::Kept));
            }
            Found::Cloned
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Found::New,
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    renew(state_folder, machine_id, node, random)?;
    Ok((AgentId(random), found))
}

/// Writes a new id in place of the old one.
///
/// # Errors
/// When the state folder cannot be written.
pub fn renew(
    state_folder: &Path,
    machine_id: &str,
    node: &str,
    random: Uuid,
) -> anyhow::Result<()> {
    let identity = Identity {
        agent_id: random,
        machine_id: machine_id.to_owned(),
        node: node.to_owned(),
    };
    let path = state_folder.join(FILE);
    let new = state_folder.join("identity.json.new");
    let text = serde_json::to_vec_pretty(&identity).expect("three strings are JSON");
    std::fs::create_dir_all(state_folder)
        .and_then(|()| std::fs::write(&new, text))
        .and_then(|()| std::fs::File::open(&new)?.sync_all())
        .and_then(|()| std::fs::rename(&new, &path))
        .with_context(|| {
            format!(
                "cannot write {}: give node.state_folder a folder that this user may write",
                path.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_with_its_machine_and_a_cloned_disk_gets_another() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let load = |machine, node, number| {
            load(folder.path(), machine, node, Uuid::from_u128(number)).expect("it can be written")
        };
        let id = |number| AgentId(Uuid::from_u128(number));
        assert_eq!(load("m1", "a", 1), (id(1), Found::New));
        assert_eq!(load("m1", "a", 2), (id(1), Found::Kept));
        assert_eq!(load("m2", "a", 3), (id(3), Found::Cloned));
        assert_eq!(load("m2", "b", 4), (id(4), Found::Cloned));
        assert_eq!(load("m2", "b", 5), (id(4), Found::Kept));
    }

    #[test]
    fn a_file_that_is_no_identity_is_named_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join(FILE), "{").expect("a file");
        let error = load(folder.path(), "m", "n", Uuid::nil()).expect_err("not JSON");
        assert!(error.to_string().contains("remove it"), "{error}");
    }
}
