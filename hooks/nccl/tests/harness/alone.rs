//! A test in a process of its own, with an agent's listener beside the plugin.

use std::any::type_name_of_val;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::reader::{Snapshot, Together};
use gpufleet_hooks_shm::server::{Client, Event, Limits, Listener, cgroup};

/// Says to a process that it is the one a test runs in.
const INSIDE: &str = "GPUFLEET_TEST_INSIDE";

/// How long the plugin may take to come: it comes in milliseconds, the machine may be busy.
pub(crate) const LONGEST_NS: u64 = 60_000_000_000;

/// The socket of a test's process.
fn socket() -> Option<PathBuf> {
    std::env::var_os(INSIDE).map(PathBuf::from)
}

/// Runs `body` in a process of its own with these variables, and fails when it fails.
pub(crate) fn alone(environment: &[(&str, &str)], body: impl FnOnce()) {
    let name = type_name_of_val(&body).to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hooks.sock");
    let Some((status, ())) = process(&name, &path, environment, body, |_| ()) else {
        return;
    };
    assert!(status.success(), "{name} failed in its process");
    let mark = path.with_extension("done");
    assert!(mark.exists(), "{name} is no test: nothing ran");
}

/// The same, for a process that does not come back: `agent` runs in the test itself, as the agent of
/// the process, until the process is gone.
pub(crate) fn watched<T>(
    environment: &[(&str, &str)],
    body: impl FnOnce(),
    agent: impl FnOnce(Listener) -> T,
) -> Option<(ExitStatus, T)> {
    let name = type_name_of_val(&body).to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hooks.sock");
    process(&name, &path, environment, body, |path| {
        let listener = Listener::bind(path, Limits::default(), Box::new(cgroup));
        agent(listener.expect("the socket is free"))
    })
}

fn process<T>(
    name: &str,
    path: &Path,
    environment: &[(&str, &str)],
    body: impl FnOnce(),
    beside: impl FnOnce(&Path) -> T,
) -> Option<(ExitStatus, T)> {
    if let Some(path) = socket() {
        body();
        std::fs::write(path.with_extension("done"), "").expect("a mark");
        return None;
    }
    // `harness::kernel::a_name::{{closure}}`
    let name = name.split_once("::").map_or(name, |(_, it)| it);
    let name = name.split("::{{closure}}").next().unwrap_or(name);
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, path)
        .env("GPUFLEET_HOOKS_SOCKET", path)
        .env_remove("GPUFLEET_NCCL_MASK")
        .envs(environment.iter().copied())
        .spawn()
        .expect("it starts");
    let made = beside(path);
    Some((child.wait().expect("it ends"), made))
}

/// The agent beside the plugin, in the plugin's own process.
pub(crate) struct Agent {
    listener: Listener,
    client: Option<Box<Client>>,
}

impl Agent {
    /// Listens where the plugin will look.
    pub(crate) fn listen() -> Self {
        let path = socket().expect("inside a test's process");
        let listener = Listener::bind(&path, Limits::default(), Box::new(cgroup));
        Self {
            listener: listener.expect("the socket is free"),
            client: None,
        }
    }

    /// What the region says now.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let client = self
            .client
            .get_or_insert_with(|| joined(&mut self.listener));
        let snapshot = client.reader.snapshot(unix_ns()).expect("a region");
        assert_eq!(snapshot.refused, Default::default(), "all of it is clean");
        snapshot
    }

    /// What it says of collectives.
    pub(crate) fn together(&mut self) -> Together {
        self.snapshot().together
    }
}

/// Waits for a client.
pub(crate) fn joined(listener: &mut Listener) -> Box<Client> {
    let end = monotonic_ns() + LONGEST_NS;
    while monotonic_ns() < end {
        for event in listener.turn(Duration::from_millis(20)).expect("a turn") {
            match event {
                Event::Joined(client) => return client,
                Event::Left { .. } => {}
                Event::Refused { reason, .. } => panic!("refused: {reason:?}"),
            }
        }
    }
    panic!("the plugin did not come");
}
