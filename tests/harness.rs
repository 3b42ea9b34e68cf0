//! Runs the real programs on free ports in a temporary folder, and leaves nothing behind.
//!
//! A [`World`] is the folder of one test. A [`process::Process`] is one program: dropping it kills
//! it with everything it started, and fails the test when a child outlived its parent.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub mod wait;

pub mod process;

pub mod http;

pub mod server;

pub mod agent;

pub mod postgres;

pub mod simulator;

pub mod training;

pub mod relay;

pub mod small_disk;

pub mod kubelet;

pub mod kubernetes;

pub mod browser;

pub mod usage;

pub mod checker;

/// The folder of one test; removed when the test passes, kept and named when it fails.
#[derive(Debug)]
pub struct World {
    folder: Option<tempfile::TempDir>,
}

impl World {
    /// A new empty folder.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("gpufleet-test-")
            .tempdir()
            .expect("the system's folder for temporary files can be written");
        Self {
            folder: Some(folder),
        }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder
            .as_ref()
            .expect("the folder is there until the world is dropped")
            .path()
            .join(name)
    }

    /// A file with this content in the folder.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("the test's own folder can be written");
        path
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.take()
            && std::thread::panicking()
        {
            eprintln!(
                "the test's files and logs are kept in {}",
                folder.keep().display()
            );
        }
    }
}

/// The repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests' crate lies below the repository's root")
}

/// A program that is newer than this Debian's, where scripts/setup.sh puts it: `victoria-metrics`, and
/// where it could be fetched the `promtool` of Prometheus 3.
pub fn later(name: &str) -> Option<PathBuf> {
    let program = repository().join("target/tools").join(name);
    program.exists().then_some(program)
}

/// A program or library of the workspace, built with the same profile as this test.
///
/// # Panics
/// When it was not built: the message says how to.
pub fn built(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("the system knows what runs");
    let folder = this
        .ancestors()
        .find(|folder| folder.join("deps").is_dir())
        .expect("a test lies in target/<profile>/deps");
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is not built; run: cargo build --workspace",
        path.display()
    );
    path
}

/// The stand-in for NVIDIA's library.
pub fn standin_nvml() -> PathBuf {
    built("libgpufleet_standin_nvml.so")
}

/// A port of 127.0.0.1 that nobody listens on, and that no other test is given before this process ends:
/// the name of a socket claims it. It is none of those that the system gives to who connects.
///
/// # Panics
/// When every port is taken.
pub fn free_port() -> u16 {
    /// Below the ports of connections, which begin at 32768 where nobody has changed it.
    const PORTS: std::ops::Range<u16> = 12_000..32_000;
    static CLAIMS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    // Each process looks elsewhere first.
    let begin = std::process::id() as usize * 100;
    let count = PORTS.len();
    let mut ports = (0..count).filter_map(|step| PORTS.clone().nth((begin + step) % count));
    let is_free = |port: &u16| {
        let name = SocketAddr::from_abstract_name(format!("gpufleet-test-port-{port}"));
        let claim = UnixListener::bind_addr(&name.expect("the name is short"));
        match claim {
            Err(error) if error.kind() == ErrorKind::AddrInUse => return false,
            claim => claims.push(claim.expect("Linux has sockets with names")),
        }
        TcpListener::bind(("127.0.0.1", *port)).is_ok()
    };
    ports.find(is_free).expect("one of 20,000 ports is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice_and_none_that_somebody_listens_on() {
        let taken = free_port();
        let next = if taken + 1 < 32_000 {
            taken + 1
        } else {
            12_000
        };
        let _listener = TcpListener::bind(("127.0.0.1", next));
        let given: Vec<u16> = (0..50).map(|_| free_port()).collect();
        let different: std::collections::BTreeSet<&u16> = given.iter().collect();
        assert_eq!(different.len(), given.len());
        assert!(!different.contains(&taken) && !different.contains(&next));
    }
}
