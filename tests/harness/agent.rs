//! The real agent, by default against the stand-in driver.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpufleet_standin_nvml::load::Load;
use gpufleet_standin_nvml::{SCENARIO_VARIABLE, Scenario};

use super::http::{self, Answer};
use super::process::Process;
use super::{World, built, free_port, standin_nvml, wait};

/// How long an agent may take to catch up: a minute in which a server holds back one whose earlier process
/// sent something from the future, up to another until it asks again, and what is to be sent.
const DRAIN_LIMIT: Duration = Duration::from_secs(150);
/// How old what its endpoint says may be: two ticks, seconds.
const TOLD_AGO: f64 = 2.0;

/// The path of the stand-in driver, as it stands in an agent's config.
pub fn library() -> String {
    standin_nvml().display().to_string()
}

/// GPUs in training that no other number has: a UUID follows from its slot.
pub fn gpus(number: u8, count: u8) -> Scenario {
    let first = number * count;
    Scenario {
        absent: (0..first).collect(),
        ..Scenario::of(first + count, "NVIDIA H100 80GB HBM3", Load::Training)
    }
}

/// Where an agent listens and keeps its data: the same before and after a kill.
#[derive(Debug, Clone)]
pub struct Place {
    /// /metrics, /healthz, /readyz.
    pub listen: String,
    /// Its config file.
    pub config: PathBuf,
    /// Its state folder.
    pub state: PathBuf,
    /// The scenario file of the stand-in driver.
    pub scenario: PathBuf,
    /// Where its log is appended.
    pub log: PathBuf,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    /// Where it is.
    pub place: Place,
    process: Process,
}

impl Place {
    /// An agent named `name` that reads the stand-in and ships to `endpoint` (`http://host:port`;
    /// empty: nowhere). `more` is appended to its config.
    pub fn new(world: &World, name: &str, endpoint: &str, more: &str) -> Self {
        let listen = format!("127.0.0.1:{}", free_port());
        let state = world.path(&format!("{name}-state"));
        let config = format!(
            "[node]\ncluster = \"test\"\nname = \"{name}\"\nstate_folder = \"{}\"\n\
             [listen]\naddress = \"{listen}\"\n\
             [ship]\nendpoint = \"{endpoint}\"\n\
             [prometheus]\ndcgm_names = \"on\"\n\
             [nvml]\nlibrary_path = \"{}\"\n{more}\n",
            state.display(),
            library(),
        );
        Self {
            listen,
            config: world.file(&format!("{name}.toml"), &config),
            state,
            scenario: world.path(&format!("{name}-scenario.toml")),
            log: world.path(&format!("{name}.log")),
        }
    }

    /// Its state folder is another one from now on.
    pub fn keep_state_in(&mut self, folder: &Path) {
        let old = self.state.display().to_string();
        self.replace_in_config(&old, &folder.display().to_string());
        self.state = folder.to_path_buf();
    }

    /// Another text in its config file, from the next start on.
    ///
    /// # Panics
    /// When the old one is not there.
    pub fn replace_in_config(&self, old: &str, new: &str) {
        let text = std::fs::read_to_string(&self.config).expect("it was written here");
        assert!(text.contains(old), "{old} is not in {text}");
        std::fs::write(&self.config, text.replace(old, new)).expect("so can it be again");
    }

    /// What the stand-in driver shows from now on; a running agent sees the change.
    pub fn show(&self, scenario: &Scenario) {
        let text = toml::to_string(scenario).expect("a scenario can be written as TOML");
        let next = self.scenario.with_extension("next");
        std::fs::write(&next, text).expect("the test's own folder can be written");
        std::fs::rename(&next, &self.scenario).expect("so can its files be renamed");
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(built("gpufleet-agent"));
        command
            .arg("--config")
            .arg(&self.config)
            .env(SCENARIO_VARIABLE, &self.scenario)
            // Where the tests run in a pod, the agent is in none.
            .env_remove("KUBERNETES_SERVICE_HOST");
        command
    }

    /// Starts it; does not wait for anything.
    pub fn start(&self) -> Agent {
        self.start_with(&[])
    }

    /// Starts it with these variables in its environment.
    pub fn start_with(&self, variables: &[(&str, &str)]) -> Agent {
        let mut command = self.command();
        command.envs(variables.iter().copied());
        Agent {
            process: Process::start("gpufleet-agent", command, &self.log),
            place: self.clone(),
        }
    }
}

impl Agent {
    /// kill -9 of the agent; the process that talks to the driver must then go by itself.
    pub fn kill(self) -> Place {
        self.process.kill();
        self.place
    }

    /// Asks it to stop; it must do so in time and without an error.
    ///
    /// # Panics
    /// When it does not.
    pub fn stop(self) -> Place {
        let status = self.process.stop();
        assert!(status.success(), "the agent stopped with {status}");
        self.place
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it printed.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// GET of its endpoint, if it answers.
    pub fn get(&self, path: &str) -> Option<Answer> {
        http::get(&self.place.listen, path).ok()
    }

    /// Every value that its endpoint has under a name now; none when it does not answer.
    pub fn values(&self, name: &str) -> Vec<f64> {
        let text = self.get("/metrics").map(|answer| answer.text());
        let text = text.unwrap_or_default();
        text.lines()
            .filter(|line| line.split('{').next() == Some(name))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect()
    }

    /// Waits until all that it had spooled when this was called is durable on the server.
    ///
    /// # Panics
    /// When that does not come to be: it waits up to a minute after failures.
    pub fn catches_up(&self) {
        let begun = wait::now();
        wait::until("the agent has caught up", DRAIN_LIMIT, || {
            let ages = self.values("gpufleet_agent_spool_oldest_age_seconds");
            let since = (wait::now() - begun).as_secs_f64() - TOLD_AGO;
            let caught_up = !ages.is_empty() && ages.iter().all(|age| *age < since);
            caught_up.then_some(())
        });
    }
}
