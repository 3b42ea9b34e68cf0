//! Who this agent is: a random id in its state folder, bound to the machine it was made on.
//!
//! A cloned disk brings the file along, but not the machine: then a new id is made, and the spool
//! of the original is not sent a second time. A node that only changes its name stays itself. The
//! folder is locked before any of it is read, so that a second agent changes nothing there.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::Context;
use gpufleet_telemetry::identity::AgentId;
use gpufleet_telemetry::time::Timestamp;
use rustix::fs::Access;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::aside;

/// The file in the state folder.
const FILE: &str = "identity.json";

/// The file that is locked while an agent runs.
const LOCK: &str = "lock";

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

/// Takes the state folder for this process, for as long as the file is held.
///
/// # Errors
/// When another agent has it, or it cannot be written.
pub fn lock(state_folder: &Path) -> anyhow::Result<File> {
    let path = state_folder.display();
    let file = std::fs::create_dir_all(state_folder)
        .and_then(|()| File::create(state_folder.join(LOCK)))
        .with_context(|| {
            format!("cannot write {path}: give node.state_folder a folder that this user may write")
        })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => anyhow::bail!(
            "another agent runs on the state folder {path}: stop that one, or give this one another node.state_folder"
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock the state folder {path}"))
        }
    }
}

/// Whether this user could write the state folder, or make it; it changes nothing there.
///
/// # Errors
/// Says where it cannot.
pub fn may_write(state_folder: &Path) -> anyhow::Result<()> {
    let mut ancestors = state_folder.ancestors();
    let is_there = ancestors.find(|it| it.exists());
    // A path without a beginning is of the working folder.
    let is_there = is_there.filter(|it| !it.as_os_str().is_empty());
    let is_there = is_there.unwrap_or(Path::new("."));
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let may = rustix::fs::access(is_there, access).map_err(anyhow::Error::from);
    may.and_then(|()| {
        anyhow::ensure!(is_there.is_dir(), "it is no folder");
        Ok(())
    })
    .with_context(|| {
        format!(
            "node.state_folder = {}: {} cannot be written: give a folder that this user may write",
            state_folder.display(),
            is_there.display()
        )
    })
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
    now: Timestamp,
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
            // Where the machine has no id, the name is all there is to tell it by.
            let named = !machine_id.is_empty() || identity.node == node;
            if identity.machine_id == machine_id && named {
                if identity.node != node {
                    tracing::info!(
                        before = identity.node,
                        now = node,
                        "this node has a new name"
                    );
                    write(state_folder, machine_id, node, identity.agent_id)?;
                }
                return Ok((AgentId(identity.agent_id), Found::Kept));
            }
            Found::Cloned
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Found::New,
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    renew(state_folder, machine_id, node, random, now)?;
    Ok((AgentId(random), found))
}

/// Writes a new id in place of the old one, whose spool is set aside first.
///
/// # Errors
/// When the state folder cannot be written.
pub fn renew(
    state_folder: &Path,
    machine_id: &str,
    node: &str,
    random: Uuid,
    now: Timestamp,
) -> anyhow::Result<()> {
    aside::set_aside(state_folder, now)?;
    write(state_folder, machine_id, node, random)
}

fn write(state_folder: &Path, machine_id: &str, node: &str, random: Uuid) -> anyhow::Result<()> {
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
            let random = Uuid::from_u128(number);
            load(folder.path(), machine, node, random, Timestamp(0)).expect("it can be written")
        };
        let id = |number| AgentId(Uuid::from_u128(number));
        assert_eq!(load("m1", "a", 1), (id(1), Found::New));
        assert_eq!(load("m1", "a", 2), (id(1), Found::Kept));
        assert_eq!(load("m2", "a", 3), (id(3), Found::Cloned));
        assert_eq!(load("m2", "b", 4), (id(3), Found::Kept), "only the name");
        assert_eq!(load("m1", "b", 5), (id(5), Found::Cloned));
        assert_eq!(load("", "b", 6), (id(6), Found::Cloned));
        assert_eq!(load("", "c", 7), (id(7), Found::Cloned), "a name is all");
    }

    #[test]
    fn a_file_that_is_no_identity_is_named_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join(FILE), "{").expect("a file");
        let error = load(folder.path(), "m", "n", Uuid::nil(), Timestamp(0)).expect_err("not JSON");
        assert!(error.to_string().contains("remove it"), "{error}");
    }
}
