//! What users are called that are in no file of this machine but in a directory (LDAP by SSSD and the like): by
//! `getent`, asked once for each user.
//!
//! Without `getent` and without its answer a user stays a number, and so in a container, whose users are not the node's.
//!
//! Limits: [`MAX_USERS`], [`ANSWER_WITHIN`], [`MAX_ANSWER_BYTES`], [`ASK_AGAIN`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpufleet_telemetry::holder::cut;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::task::Task;

/// Most users that are known at once: 16 on each of 16 GPUs.
const MAX_USERS: usize = 256;

/// How long `getent` may take: a directory that is away is waited for for minutes.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Most bytes of an answer: one line, of which the first field is read.
const MAX_ANSWER_BYTES: u64 = 4_096;

/// When a user is asked for again whose name was not learned.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// What is known of users; a task of its own asks.
#[derive(Debug)]
pub(super) struct Names {
    shared: Arc<Shared>,
    _task: Task,
}

#[derive(Debug)]
struct Shared {
    getent: PathBuf,
    within: Duration,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: BTreeSet<u32>,
    known: Arc<BTreeMap<u32, String>>,
    failed: BTreeMap<u32, Instant>,
}

impl Names {
    /// Asks this program; needs a runtime.
    pub(super) fn start(getent: &Path) -> Self {
        Self::within(getent, ANSWER_WITHIN)
    }

    pub(super) fn within(getent: &Path, within: Duration) -> Self {
        let shared = Arc::new(Shared {
            getent: getent.to_owned(),
            within,
            state: Mutex::default(),
            wake: Notify::new(),
        });
        Self {
            _task: Task::start(Arc::clone(&shared).keep()),
            shared,
        }
    }

    /// What users are called, by their numbers.
    pub(super) fn known(&self) -> Arc<BTreeMap<u32, String>> {
        Arc::clone(&self.shared.lock().known)
    }

    /// Says which users have no name.
    pub(super) fn want(&self, users: BTreeSet<u32>) {
        self.shared.lock().wanted = users;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep(self: Arc<Self>) {
        loop {
            match self.next() {
                None => self.wake.notified().await,
                Some(user) => {
                    let asked = ask(&self.getent, user, self.within).await;
                    self.note(user, asked);
                }
            }
        }
    }

    /// A user that is to be asked for.
    fn next(&self) -> Option<u32> {
        let mut state = self.lock();
        let State {
            wanted,
            known,
            failed,
        } = &mut *state;
        failed.retain(|_, at| at.elapsed() <= ASK_AGAIN);
        // Users come back: who has nothing any more is kept while there is room.
        if known.len() >= MAX_USERS && known.keys().any(|it| !wanted.contains(it)) {
            Arc::make_mut(known).retain(|it, _| wanted.contains(it));
        }
        let is_due = |user: &&u32| !known.contains_key(*user) && !failed.contains_key(*user);
        wanted.iter().take(MAX_USERS).find(is_due).copied()
    }

    fn note(&self, user: u32, asked: Result<String, String>) {
        let mut state = self.lock();
        match asked {
            Ok(name) => _ = Arc::make_mut(&mut state.known).insert(user, name),
            Err(error) => {
                tracing::debug!(user, error, "a user stays a number");
                state.failed.insert(user, Instant::now());
            }
        }
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
        let names = Names::within(&getent(folder.path(), &script), LONG);
        let wait_for = async |user: u32| {
            while !names.known().contains_key(&user) {
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
        assert_eq!(names.known()[&70_001], "u70001");
        assert!(!names.known().contains_key(&70_002));
    }
}
