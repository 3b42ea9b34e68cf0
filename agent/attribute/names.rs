//! What users are called that are in no file of this machine but in a directory (LDAP by SSSD and the like): by
//! `getent`, asked once for each user.
//!
//! Without `getent` and without its answer a user stays a number, and so in a container, whose users are not the node's.
//!
//! Limits: [`MAX_USERS`], [`ANSWER_WITHIN`], [`MAX_ANSWER_BYTES`].

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gpufleet_telemetry::holder::cut;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::learned::{Ask, Learned};
use super::standing::Source;

/// Most users that are known at once: 16 on each of 16 GPUs.
const MAX_USERS: usize = 256;

/// How long `getent` may take: a directory that is away is waited for for minutes.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Most bytes of an answer: one line, of which the first field is read.
const MAX_ANSWER_BYTES: u64 = 4_096;

/// The program that knows; asked beside the rounds ([`Learned`]).
pub(super) struct Getent {
    program: PathBuf,
    within: Duration,
}

impl Getent {
    /// Asks this program; needs a runtime.
    pub(super) fn start(program: &Path) -> Learned<Self> {
        Self::within(program, ANSWER_WITHIN)
    }

    /// The same with another patience.
    pub(super) fn within(program: &Path, within: Duration) -> Learned<Self> {
        Learned::start(Self {
            program: program.to_owned(),
            within,
        })
    }
}

impl Ask for Getent {
    type Thing = u32;
    type Answer = String;

    // A number says as well as a name who holds what.
    const SOURCE: Option<Source> = None;
    const MAX: usize = MAX_USERS;
    // Users come back.
    const KEEPS: bool = true;

    async fn ask(&self, user: &u32) -> Result<String, String> {
        let asked = ask(&self.program, *user, self.within).await;
        asked.inspect_err(|error| tracing::debug!(user, error, "a user stays a number"))
    }
}

/// What `getent` calls a user.
async fn ask(getent: &Path, user: u32, within: Duration) -> Result<String, String> {
    let program = getent.display();
    let mut command = Command::new(getent);
    command
        .args(["passwd", &user.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let asked = async {
        let mut answer = Vec::new();
        let out = child.stdout.take().expect("it was asked for");
        let read = out.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await;
        read.map_err(|error| format!("{program}: {error}"))?;
        // One that has more to say than is read would wait for ever.
        let status = child
            .wait()
            .await
            .map_err(|error| format!("{program}: {error}"))?;
        let name = name(&answer, user).filter(|_| status.success());
        name.ok_or_else(|| format!("{program} has no name for it ({status})"))
    };
    let answer = tokio::time::timeout(within, asked).await;
    answer.unwrap_or_else(|_| Err(format!("{program} did not answer within {within:?}")))
}

/// The name in a line of the list of users, where it is of this one.
fn name(answer: &[u8], user: u32) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let mut fields = text.lines().next()?.split(':');
    let name = fields.next().filter(|it| !it.is_empty())?;
    let number = fields.nth(1)?.parse::<u32>().ok()?;
    (number == user).then(|| cut(name).to_owned())
}

#[cfg(test)]
pub(super) mod stand_in {
    use super::*;

    /// Longer than a busy machine takes to start a program.
    pub(in crate::attribute) const LONG: Duration = Duration::from_secs(60);

    /// A program in place of `getent`.
    pub(in crate::attribute) fn getent(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("getent");
        program(&path, script);
        path
    }

    /// A program in place of another. A program of its own writes it: one that another test starts meanwhile would have
    /// it open if this one did, and what is open for writing cannot be started.
    pub(in crate::attribute) fn program(path: &Path, script: &str) {
        let text = path.with_extension("sh");
        std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).expect("written");
        let install = std::process::Command::new("install")
            .args(["-m", "755"])
            .args([text.as_path(), path])
            .status();
        assert!(install.is_ok_and(|it| it.success()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::stand_in::{LONG, getent};
    use super::*;

    #[tokio::test]
    async fn a_user_has_the_name_that_getent_says_of_his_number_and_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let line = "[ \"$*\" = 'passwd 70001' ] || exit 2; echo 'ada:*:70001:70001:Ada L:/home/ada:/bin/sh'";
        let program = getent(folder, line);
        assert_eq!(ask(&program, 70_001, LONG).await.as_deref(), Ok("ada"));
        for (script, why) in [
            ("exit 2", "exit status: 2"),
            ("echo 'bob:*:70002:1::/:/bin/sh'", "has no name for it"),
            ("echo ':*:70001:1::/:/bin/sh'", "has no name for it"),
            ("echo nonsense", "has no name for it"),
            ("", "has no name for it"),
        ] {
            let program = getent(folder, script);
            let error = ask(&program, 70_001, LONG).await.expect_err("no name");
            assert!(error.contains(why), "{script}: {error}");
        }
        let absent = ask(&folder.join("none"), 70_001, LONG).await;
        assert!(absent.is_err_and(|it| it.contains("none: ")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_is_away_costs_the_name_and_two_seconds() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = getent(folder.path(), "exec sleep 600");
        let error = ask(&program, 70_001, ANSWER_WITHIN).await;
        assert!(error.is_err_and(|it| it.ends_with("did not answer within 2s")));
    }

    #[tokio::test]
    async fn each_user_is_asked_for_once_whether_he_has_a_name_or_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("asked");
        let script = format!(
            "echo \"$2\" >>{}; [ \"$2\" = 70002 ] && exit 2; echo \"u$2:*:$2:1::/:/bin/sh\"",
            log.display()
        );
        let names = Getent::within(&getent(folder.path(), &script), LONG);
        let wait_for = async |user: u32| {
            while !names.known().0.contains_key(&user) {
                tokio::task::yield_now().await;
            }
        };
        names.want(BTreeSet::from([70_001, 70_002, 70_003]));
        wait_for(70_003).await;
        names.want(BTreeSet::new());
        names.want(BTreeSet::from([70_001, 70_002, 70_003, 70_004]));
        wait_for(70_004).await;
        let asked = fs::read_to_string(&log).expect("it was asked");
        assert_eq!(asked, "70001\n70002\n70003\n70004\n");
        let (known, _) = names.known();
        assert_eq!(known[&70_001], "u70001");
        assert!(!known.contains_key(&70_002));
    }
}
