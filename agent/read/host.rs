//! The machine itself: CPU, memory, pressure, disks, network and RDMA devices.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How the machine is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostConfig {
    /// Whether the machine's own numbers are read.
    pub enabled: bool,
    /// Where /proc is; in a container the host's, mounted (`/host/proc`).
    pub proc_folder: PathBuf,
    /// Where /sys is; in a container the host's, mounted (`/host/sys`).
    pub sys_folder: PathBuf,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            proc_folder: PathBuf::from("/proc"),
            sys_folder: PathBuf::from("/sys"),
        }
    }
}
