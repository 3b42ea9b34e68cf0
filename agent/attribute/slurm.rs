//! What Slurm knows of the jobs on this node: account, user and partition, by `scontrol`, asked once
//! for each job.
//!
//! The job's number comes from the cgroup of its processes, from the prolog or from `squeue`. A controller that does not
//! answer costs the names and not the number.
//!
//! Limits: [`MAX_JOBS`], [`ANSWER_WITHIN`], [`MAX_ANSWER_BYTES`].

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gpufleet_telemetry::holder::cut;
use gpufleet_telemetry::identity::attribute;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::labels::Facts;
use super::learned::Ask;
use super::standing::Source;

/// Most jobs that are known at once: one for each share of 16 GPUs.
const MAX_JOBS: usize = 128;

/// How long `scontrol` may take: a busy controller is known to take seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Most bytes of an answer: of the task that has the number of its array Slurm tells all tasks that run or just ended,
/// some 8 KB each, so 4,000 of them.
const MAX_ANSWER_BYTES: u64 = 32 << 20;

/// The first release whose commands print JSON: 21.08.
const FIRST_WITH_JSON: (u32, u32) = (21, 8);

/// What says that this is a node of Slurm. Where the controller hands out the configuration (configless), slurmd keeps
/// what it got in its own folder, with a link in /run; started by systemd it writes no pid file, and has a cgroup.
const SLURMD: [&str; 9] = [
    "/etc/slurm/slurm.conf",
    "/run/slurmd.pid",
    "/var/run/slurm/slurmd.pid",
    "/run/slurm/conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/sys/fs/cgroup/system.slice/slurmd.service",
    "/sys/fs/cgroup/system.slice/slurmstepd.scope",
    "/sys/fs/cgroup/systemd/system.slice/slurmd.service",
    "/sys/fs/cgroup/freezer/slurm",
];

/// What `scontrol show job <id> --json` says, of which this much is read: the job; with the number of an array all of its
/// tasks, with that of a heterogeneous job all of its parts.
#[derive(Debug, Deserialize)]
struct Jobs {
    jobs: Vec<Job>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Job {
    job_id: Value,
    account: String,
    user_name: String,
    partition: String,
    name: String,
}

/// Slurm's controller, asked for jobs by this program.
pub(super) struct Scontrol(pub(super) PathBuf);

/// Whether the machine under `root` is a node of Slurm.
pub fn is_node(root: &Path) -> bool {
    // A link counts, though what it is to may not be looked at.
    let is_there = |it: &&str| {
        let path = root.join(it.trim_start_matches('/'));
        path.symlink_metadata().is_ok()
    };
    SLURMD.iter().any(is_there)
}

impl Ask for Scontrol {
    type Thing = u64;
    type Answer = Facts;

    const SOURCE: Option<Source> = Some(Source::Slurm);
    const MAX: usize = MAX_JOBS;

    async fn ask(&self, job: &u64) -> Result<Facts, String> {
        ask(&self.0, *job).await
    }
}

/// What `scontrol` says of a job.
async fn ask(scontrol: &Path, job: u64) -> Result<Facts, String> {
    let what = format!("job {job}");
    let number = job.to_string();
    let arguments = ["show", "job", number.as_str(), "--json"];
    let answer = say(scontrol, "attribute.scontrol_path", &arguments, &what).await?;
    // Of a large array it is megabytes, and nothing else waits for that.
    let found = tokio::task::spawn_blocking(move || facts(&answer, job)).await;
    let found = found.map_err(|error| error.to_string())?;
    found.map_err(|why| format!("{} said of {what}: {why}", scontrol.display()))
}

/// What one of Slurm's commands prints of `what`; `key` is where the config says which program it is.
pub(super) async fn say(
    program: &Path,
    key: &str,
    arguments: &[&str],
    what: &str,
) -> Result<Vec<u8>, String> {
    let name = program.display();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|error| format!("{name}: {error}; set {key}"))?;
    let asked = async {
        let mut answer = Vec::new();
        let out = child.stdout.take().expect("it was asked for");
        let read = out.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await;
        let read = read.map_err(|error| format!("{name}: {error}"))?;
        if read as u64 == MAX_ANSWER_BYTES {
            let mebibytes = MAX_ANSWER_BYTES >> 20;
            return Err(format!("{name} says more than {mebibytes} MiB of {what}"));
        }
        // One that has more to say than is read would wait for ever.
        let status = child
            .wait()
            .await
            .map_err(|error| format!("{name}: {error}"))?;
        match status.success() {
            true => Ok(answer),
            false => Err(format!("{name} failed with {status} for {what}")),
        }
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
    let seconds = ANSWER_WITHIN.as_secs();
    answer.unwrap_or_else(|_| {
        Err(format!(
            "{name} did not answer within {seconds} s; is slurmctld there?"
        ))
    })
}

/// What is said of this job. A release that does not number what it says is believed that it is of this job.
fn facts(answer: &[u8], job: u64) -> Result<Facts, String> {
    let answer: Jobs = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    let mut jobs = answer.jobs;
    let place = jobs.iter().position(|it| number(&it.job_id) == Some(job));
    let place = place.unwrap_or_default();
    if place >= jobs.len() {
        return Err("no such job".to_owned());
    }
    let job = jobs.swap_remove(place);
    let known = [
        (attribute::SLURM_ACCOUNT, job.account),
        (attribute::SLURM_USER, job.user_name),
        (attribute::SLURM_PARTITION, job.partition),
        (attribute::JOB, job.name),
    ];
    let known = known.into_iter().filter(|(_, value)| !value.is_empty());
    Ok(known
        .map(|(name, value)| (name.to_owned(), cut(&value).to_owned()))
        .collect())
}

/// A number, which some releases wrap: `{"set": true, "number": 9}`.
pub(super) fn number(value: &Value) -> Option<u64> {
    value.get("number").unwrap_or(value).as_u64()
}

/// The version that one of Slurm's commands says it has, `slurm 20.11.9`, where that is of before they printed JSON.
pub fn without_json(said: &str) -> Option<&str> {
    let version = said.split_whitespace().last()?;
    let mut parts = version.split('.').map(str::parse::<u32>);
    let release = (parts.next()?.ok()?, parts.next()?.ok()?);
    (release < FIRST_WITH_JSON).then_some(version)
}

/// Whether these bytes are an answer of `scontrol` with a job.
pub fn understands(bytes: &[u8]) -> bool {
    facts(bytes, 0).is_ok_and(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::learned::Learned;
    use super::*;

    /// A program in place of `scontrol`.
    fn stand_in(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("scontrol");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its own file");
        path
    }

    /// As slurm 23.11 prints it, shortened.
    const ANSWER: &str = r#"{"jobs": [{"account": "ml", "job_id": 77, "name": "train",
        "partition": "gpu", "user_name": "ada", "user_id": 1000, "time_limit":
        {"set": true, "infinite": false, "number": 60}}], "errors": [], "meta": {}}"#;

    #[tokio::test]
    async fn a_job_is_asked_for_by_its_number_and_says_who_pays() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = format!("[ \"$*\" = 'show job 77 --json' ] || exit 3\ncat <<'X'\n{ANSWER}\nX");
        let program = stand_in(folder.path(), &script);
        let facts = ask(&program, 77).await.expect("an answer");
        let facts: Vec<_> = facts
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        let expected = [
            (attribute::SLURM_ACCOUNT, "ml"),
            (attribute::SLURM_USER, "ada"),
            (attribute::SLURM_PARTITION, "gpu"),
            (attribute::JOB, "train"),
        ];
        assert_eq!(facts, expected);
        let refused = ask(&program, 78).await.expect_err("another job");
        assert!(
            refused.contains("failed with") && refused.contains("78"),
            "{refused}"
        );
    }

    /// What a controller says of these jobs and their accounts, each record as long as a real one.
    fn all(jobs: &[(u64, &str)]) -> String {
        let padding = "x".repeat(8_000);
        let records = jobs.iter().map(|(job, account)| {
            format!(
                "{{\"job_id\": {job}, \"array_job_id\": {{\"set\": true, \"number\": 900}}, \
                \"account\": \"{account}\", \"comment\": \"{padding}\"}}"
            )
        });
        let records: Vec<String> = records.collect();
        format!("{{\"jobs\": [{}]}}", records.join(","))
    }

    #[tokio::test]
    async fn of_all_tasks_of_an_array_and_parts_of_a_job_the_one_that_was_asked_for_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let said = folder.path().join("said");
        let script = format!("cat {}", said.display());
        let program = stand_in(folder.path(), &script);
        let account = async |job: u64, jobs: &[(u64, &str)]| {
            fs::write(&said, all(jobs)).expect("written");
            let facts = ask(&program, job).await.expect("an answer");
            facts.first().map(|it| it.1.clone())
        };
        // The task that was split off last has the number of the array, and Slurm tells all of them: 5 MB.
        let tasks: Vec<(u64, &str)> = (301..901)
            .map(|job| (job, if job == 900 { "ml" } else { "other" }))
            .collect();
        assert_eq!(account(900, &tasks).await.as_deref(), Some("ml"));
        let parts = [(900, "gpu-part"), (901, "cpu-part")];
        assert_eq!(account(901, &parts).await.as_deref(), Some("cpu-part"));
        assert_eq!(account(900, &parts).await.as_deref(), Some("gpu-part"));
    }

    #[tokio::test]
    async fn whatever_is_wrong_with_the_answer_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let check = async |script: &str, expected: &str| {
            let program = stand_in(folder.path(), script);
            let error = ask(&program, 77).await.expect_err("no facts");
            assert!(error.contains(expected), "{error}");
        };
        check("echo '{\"jobs\": []}'", "no such job").await;
        check("echo 'slurm_load_jobs error'", "said of job 77").await;
        check("exit 1", "exit status: 1").await;
        let absent = ask(&folder.path().join("none"), 77).await;
        assert!(
            absent
                .expect_err("none")
                .contains("attribute.scontrol_path")
        );
    }

    #[test]
    fn a_release_of_before_there_was_json_is_known_by_its_version() {
        for (said, expected) in [
            ("slurm 20.11.9\n", Some("20.11.9")),
            ("slurm-wlm 19.05.5", Some("19.05.5")),
            ("slurm 21.08.0", None),
            ("slurm 23.11.4-1.2", None),
            ("slurm", None),
            ("", None),
        ] {
            assert_eq!(without_json(said), expected, "{said}");
        }
    }

    #[test]
    fn a_node_that_got_its_configuration_from_the_controller_is_one_of_slurm_too() {
        let root = tempfile::tempdir().expect("a folder");
        assert!(!is_node(root.path()), "nothing of Slurm is there");
        for path in [
            "var/spool/slurmd/conf-cache/slurm.conf",
            "sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs",
            "sys/fs/cgroup/freezer/slurm/uid_1000/tasks",
            "etc/slurm/slurm.conf",
        ] {
            let root = tempfile::tempdir().expect("a folder");
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(&path, "").expect("written");
            assert!(is_node(root.path()), "{}", path.display());
        }
        // The link in /run is to a folder that only root may look into.
        fs::create_dir_all(root.path().join("run/slurm")).expect("made");
        let link = root.path().join("run/slurm/conf");
        std::os::unix::fs::symlink("/nowhere/conf-cache", link).expect("a link");
        assert!(is_node(root.path()));
    }

    #[tokio::test]
    async fn each_job_is_asked_for_once_and_forgotten_when_nobody_wants_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("asked");
        let script = format!("echo \"$3\" >>{}\ncat <<'X'\n{ANSWER}\nX", log.display());
        let slurm = Learned::start(Scontrol(stand_in(folder.path(), &script)));
        let both = BTreeSet::from([77, 78]);
        slurm.want(both.clone());
        let wait_for = async |count| {
            while slurm.known().0.len() != count {
                tokio::task::yield_now().await;
            }
        };
        wait_for(2).await;
        slurm.want(both);
        slurm.want(BTreeSet::from([78]));
        wait_for(1).await;
        let asked = fs::read_to_string(&log).expect("it was asked");
        assert_eq!(asked, "77\n78\n");
        assert!(slurm.known().1.age().is_some());
    }
}
