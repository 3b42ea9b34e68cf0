//! The simulated fleet as a program of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::process::Process;
use super::{World, built, free_port, http, wait};

/// How long it may take from its start until it takes faults: it makes its history first.
const CONTROL_LIMIT: Duration = Duration::from_secs(120);

/// A running simulator.
#[derive(Debug)]
pub struct Simulator {
    /// Where it takes faults.
    pub control: String,
    process: Process,
    log: PathBuf,
}

impl Simulator {
    /// The demo fleet, shipping to `endpoint` ("http://host:port"), with further arguments.
    pub fn start(world: &World, endpoint: &str, more: &[&str]) -> Self {
        let control = format!("127.0.0.1:{}", free_port());
        let log = world.path("simulator.log");
        let mut command = Command::new(built("gpufleet-simulator"));
        command
            .args(["--endpoint", endpoint, "--control", &control])
            .arg("--state")
            .arg(world.path("simulator"))
            .args(more);
        Self {
            control,
            process: Process::start("gpufleet-simulator", command, &log),
            log,
        }
    }

    /// Breaks something; returns what it says was broken.
    ///
    /// # Panics
    /// When the simulator does not know the fault.
    pub fn fault(&self, name: &str) -> String {
        // It takes faults a moment after it was started.
        let answer = wait::until("the simulator takes faults", CONTROL_LIMIT, || {
            http::post(&self.control, &format!("/fault/{name}"), &[], b"").ok()
        });
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Fails the test when it has ended by itself.
    ///
    /// # Panics
    /// With the end of what it printed.
    pub fn must_run(&mut self) {
        self.process.must_run();
    }

    /// Everything it printed.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// kill -9.
    pub fn kill(self) {
        self.process.kill();
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.process.runs()
    }

    /// Waits until it ends by itself: a replay that has caught up and is durable.
    ///
    /// # Panics
    /// When it does not, or ends with an error.
    pub fn ends(self, limit: std::time::Duration) {
        let status = self.process.wait(limit);
        assert!(status.success(), "the simulator ended with {status}");
    }

    /// Asks it to stop; what it has made by then is on its disk.
    ///
    /// # Panics
    /// When it does not stop in time.
    pub fn stop(self) {
        let status = self.process.stop();
        assert!(status.success(), "the simulator stopped with {status}");
    }
}
