//! Runs the real programs on free ports in a temporary folder, and leaves nothing behind.
//!
//! A [`World`] is the folder of one test. A [`process::Process`] is one program: dropping it kills
//! it with everything it started, and fails the test when a child outlived its parent.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use database::{Kind, Record};

pub mod wait;

pub mod process;

pub mod faketime;

pub mod http;

pub mod server;

pub mod client;

pub mod agent;

pub mod postgres;

pub mod database;

pub mod gate;

pub mod simulator;

pub mod training;

pub mod relay;

pub mod small_disk;

pub mod kubelet;

pub mod kubernetes;

pub mod queue;

pub mod browser;

pub mod usage;

pub mod checker;

/// Where SQLite keeps what a world's servers record.
const DATABASE_FILE: &str = "server.db";

/// The folder of one test and its database; removed when the test passes, kept and named when it fails.
#[derive(Debug)]
pub struct World {
    folder: Option<tempfile::TempDir>,
    kind: Kind,
    record: OnceLock<Record>,
}

impl World {
    /// A new empty folder; its servers keep their record in what this run is on.
    pub fn new() -> Self {
        Self::on(Kind::of_this_run())
    }

    /// A new empty folder; its servers keep their record there.
    pub fn on(kind: Kind) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("gpufleet-test-")
            .tempdir()
            .expect("the system's folder for temporary files can be written");
        Self {
            folder: Some(folder),
            kind,
            record: OnceLock::new(),
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

    /// The URL of the database in which its servers keep their record, made when this is first asked for.
    pub fn database(&self) -> String {
        self.record().url(&self.path(DATABASE_FILE))
    }

    /// Runs SQL in it, also beside servers.
    ///
    /// # Panics
    /// When it fails.
    pub fn execute(&self, statement: &str) {
        self.record().execute(&self.path(DATABASE_FILE), statement);
    }

    /// Everything that is in it, as it lies there: bytes as they are with SQLite, in hexadecimal with
    /// PostgreSQL.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn everything_recorded(&self) -> Vec<u8> {
        self.record().everything(&self.path(DATABASE_FILE))
    }

    fn record(&self) -> &Record {
        self.record.get_or_init(|| Record::new(self.kind))
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

/// A program of another Debian than this one, where scripts/setup.sh puts it: `victoria-metrics`, and where they
/// could be fetched the `promtool` of Prometheus 3 and `promtool-2.42`.
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

/// Ports that are claimed at most, the newest: each is a file that is open, and where all tests are one process
/// they would add up. Ten tests at once have less than half as many.
const MOST_CLAIMS: usize = 256;

/// A port of 127.0.0.1 that nobody listens on, and that no other test is given before this process ends or
/// has asked for [`MOST_CLAIMS`] more: the name of a socket claims it. It is none of those that the system
/// gives to who connects.
///
/// # Panics
/// When every port is taken.
pub fn free_port() -> u16 {
    /// Below the ports of connections, which begin at 32768 where nobody has changed it.
    const PORTS: std::ops::Range<u16> = 12_000..32_000;
    /// The last port that was looked at, and the claims.
    static CLAIMS: Mutex<(usize, VecDeque<UnixListener>)> = Mutex::new((0, VecDeque::new()));
    let mut claims = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    let (last, claims) = &mut *claims;
    // Each process looks elsewhere first, and goes on from there.
    let begin = std::process::id() as usize * 100 + *last;
    let count = PORTS.len();
    let mut ports = (0..count).filter_map(|step| PORTS.clone().nth((begin + step) % count));
    let is_free = |port: &u16| {
        *last += 1;
        let name = SocketAddr::from_abstract_name(format!("gpufleet-test-port-{port}"));
        let claim = UnixListener::bind_addr(&name.expect("the name is short"));
        match claim {
            Err(error) if error.kind() == ErrorKind::AddrInUse => return false,
            claim => claims.push_back(claim.expect("Linux has sockets with names")),
        }
        if claims.len() > MOST_CLAIMS {
            claims.pop_front();
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
