//! The simulated fleet as a program of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use super::process::Process;
use super::{World, built, free_port, http, wait};
use crate::simulator::noise::Noise;
use crate::simulator::schedule::{Doing, Schedule, Size};

/// Minutes that both jobs have run for, with a steady seed, and go on running.
const RUN: std::ops::RangeInclusive<i64> = -50..=20;
/// Minutes in which the large job steps at full speed then: more than any test takes.
const AT_FULL_SPEED: std::ops::RangeInclusive<i64> = -2..=15;

/// A seed, for `--seed`, with which nothing happens by itself while a test runs: both jobs of the demo have
/// run for most of an hour and go on, and the large one steps at full speed. With another one a job may end
/// in a test, or be slow for a while, and that is an incident of its own.
///
/// # Panics
/// Never: one in some 25 seeds is steady, at any time.
pub fn steady_seed() -> String {
    steady_seeds().next().expect("there is one")
}

/// All such seeds: fleets of one server need one each, because a seed makes the names of GPUs and agents.
pub fn steady_seeds() -> impl Iterator<Item = String> {
    let now = Timestamp::from_seconds(wait::unix_seconds());
    let minute = move |minutes: i64| now.shifted(minutes * 60 * NANOS_PER_SECOND);
    let is_steady = move |seed: &u64| {
        let [large, small] =
            [Size::Large, Size::Small].map(|size| Schedule::new(size, Noise::new(*seed, 0, 0)));
        let runs = |schedule: &Schedule| {
            let turn = |minutes: i64| schedule.attempt(minute(minutes).minute()).map(|it| it.turn);
            turn(*RUN.start()).is_some() && turn(*RUN.start()) == turn(*RUN.end())
        };
        let steps = |minutes| large.doing(minute(minutes)) == Doing::Training { slow: false };
        let mut minutes = AT_FULL_SPEED;
        minutes.all(steps) && runs(&large) && runs(&small)
    };
    (1..).filter(is_steady).map(|it: u64| it.to_string())
}

/// How long it may take from its start until it takes faults: it makes its history first.
const CONTROL_LIMIT: Duration = Duration::from_secs(120);

/// A running simulator.
#[derive(Debug)]
pub struct Simulator {
    /// Where it takes faults, and serves what its agents would (`/metrics`).
    pub control: String,
    process: Process,
    log: PathBuf,
}

impl Simulator {
    /// The demo fleet, shipping to `endpoint` ("http://host:port"), with further arguments.
    pub fn start(world: &World, endpoint: &str, more: &[&str]) -> Self {
        Self::start_in(world, "simulator", endpoint, more)
    }

    /// The same, where there is more than one: its state lies under this name.
    pub fn start_in(world: &World, name: &str, endpoint: &str, more: &[&str]) -> Self {
        let control = format!("127.0.0.1:{}", free_port());
        let log = world.path(&format!("{name}.log"));
        let mut command = Command::new(built("gpufleet-simulator"));
        command
            .args(["--endpoint", endpoint, "--control", &control])
            .arg("--state")
            .arg(world.path(name))
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
