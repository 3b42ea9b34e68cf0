//! `make demo-training` as it is typed, beside an agent and a server that run: the job that it starts, what it prints,
//! and that nothing is left of it when its ranks have ended or somebody has ended it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::{World, agent, built, repository, server, wait};

use super::{ENDED_LIMIT, RANKS, SHOWN_LIMIT, profile, python};

/// The cluster of `make up`.
pub(super) const CLUSTER: &str = "local";

/// What a rank costs on a machine without a GPU: a dollar in a thousand seconds.
pub(super) const PRICE: &str = "detect.gpu_hour_usd={ 'local/CPU' = '3.6' }";
pub(super) const NANO_USD_PER_SECOND: u64 = 1_000_000;

/// What a shell answers when it was ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Where `make up` would keep what it makes.
fn home(world: &World) -> PathBuf {
    world.path("home")
}

/// The part of an agent's config that reads the training processes of `make demo-training`.
pub(super) fn config(world: &World) -> String {
    let socket = home(world).join("hooks/hooks.sock");
    format!("[hooks]\nsocket_path = \"{}\"\n", socket.display())
}

/// Makes the folders, before the agent starts.
pub(super) fn folders(world: &World) {
    for name in ["run", "logs", "hooks"] {
        fs::create_dir_all(home(world).join(name)).expect("the test's own folder can be written");
    }
}

/// Says that these two are those of `make up`.
pub(super) fn are_up(world: &World, server: &server::Server, agent: &agent::Agent) {
    let told = [
        ("run/server.pid", server.id().to_string()),
        ("run/agent.pid", agent.id().to_string()),
        ("run/address", format!("http://{}/", server.place.web)),
    ];
    for (name, text) in told {
        fs::write(home(world).join(name), text).expect("the test's own folder can be written");
    }
}

/// The job, and the script that started it.
pub(super) struct Demo {
    script: Process,
    training_log: PathBuf,
}

impl Demo {
    /// Types it.
    pub(super) fn start(world: &World, name: &str, arguments: &[&str]) -> Self {
        let programs = built("gpufleet-server");
        let programs = programs.parent().expect("it lies in a folder");
        // It says what to do where the package is not installed.
        python();
        let mut command = Command::new(repository().join("scripts/demo_training.sh"));
        command
            .args(["--ranks", &RANKS.to_string()])
            .args(arguments)
            .env("GPUFLEET_HOME", home(world))
            .env("GPUFLEET_PROGRAMS", programs)
            .env("GPUFLEET_PROFILE_DIR", profile::folder(world));
        Self {
            script: Process::start(name, command, &world.path(&format!("{name}.log"))),
            training_log: home(world).join("logs/training.log"),
        }
    }

    /// The processes of its ranks that are there: children of the script that have a rank in their environment.
    pub(super) fn ranks(&self) -> BTreeMap<usize, u32> {
        let processes = fs::read_dir("/proc").expect("the kernel lists processes");
        let mut found = BTreeMap::new();
        for process in processes.flatten() {
            let name = process.file_name();
            let Some(id) = name.to_str().and_then(|it| it.parse().ok()) else {
                continue;
            };
            if let Some(rank) = self.rank_of(process.path()) {
                found.insert(rank, id);
            }
        }
        found
    }

    /// The rank that a process is, if it is one of the script's; what is gone meanwhile is none.
    fn rank_of(&self, process: PathBuf) -> Option<usize> {
        let status = fs::read_to_string(process.join("stat")).ok()?;
        // "pid (name) state parent …": the name may hold spaces and brackets.
        let parent = status.rsplit_once(") ")?.1.split(' ').nth(1)?;
        if parent != self.script.id().to_string() {
            return None;
        }
        let variables = fs::read(process.join("environ")).ok()?;
        let mut variables = variables.split(|byte| *byte == 0);
        let rank = variables.find_map(|it| it.strip_prefix(b"RANK="))?;
        std::str::from_utf8(rank).ok()?.parse().ok()
    }

    /// Fails the test when the script or one of the ranks has ended.
    pub(super) fn must_train(&mut self) {
        self.script.must_run();
        let ranks = self.ranks();
        assert_eq!(ranks.len(), RANKS, "{ranks:?}:\n{}", self.training());
    }

    fn training(&self) -> String {
        fs::read_to_string(&self.training_log).unwrap_or_default()
    }

    /// Waits until it says where its page is, and what it promises beside; the job's id as it stands in addresses.
    pub(super) fn job(&mut self, server: &server::Server) -> String {
        let before = format!(
            "its page: http://{}/clusters/{CLUSTER}/jobs/",
            server.place.web
        );
        let job = wait::until("it says where its page is", SHOWN_LIMIT, || {
            self.script.must_run();
            let said = self.script.output();
            let (_, rest) = said.split_once(&before)?;
            Some(rest.split_once('\n')?.0.to_owned())
        });
        let said = self.script.output();
        let log = self.training_log.display();
        let ranks = format!("{RANKS} ranks train; what they print is in {log}\n");
        assert!(said.contains(&ranks), "{said}");
        let last = server.get(&format!("/clusters/{CLUSTER}/jobs/{job}"));
        let page = format!("/clusters/{CLUSTER}/jobs/{job}/0");
        let led = ("location".to_owned(), page);
        assert!(last.headers.contains(&led), "{:?}: {led:?}", last.headers);
        job
    }

    /// kill -9 of one rank.
    pub(super) fn kill(&self, rank: usize) {
        let id = self.ranks()[&rank];
        let killed = Command::new("sh")
            .args(["-c", &format!("kill -KILL {id}")])
            .status();
        assert!(killed.is_ok_and(|it| it.success()), "rank {rank} is {id}");
    }

    /// Its ranks end by themselves, and so does the script, with nothing left behind.
    pub(super) fn ends(self) {
        let said = wait::until("it says that its ranks have ended", ENDED_LIMIT, || {
            let said = self.script.output();
            said.contains("its ranks have ended").then_some(said)
        });
        let status = self.script.wait(ENDED_LIMIT);
        assert!(status.success(), "{status}: {said}");
    }
}

/// Somebody who has seen enough ends it: the script, and each of its ranks, which are not there yet for the server.
pub(super) fn ends_when_it_is_told_to(world: &World) {
    let mut demo = Demo::start(world, "demo-again", &[]);
    wait::until("its ranks are there", SHOWN_LIMIT, || {
        demo.script.must_run();
        let all = demo.script.output().contains("ranks train");
        (all && demo.ranks().len() == RANKS).then_some(())
    });
    let status = demo.script.stop();
    assert_eq!(status.code(), Some(INTERRUPTED), "{status}");
}
