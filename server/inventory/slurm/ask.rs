//! What Slurm's commands say, or the files that a cron job writes of them.
//!
//! Limits: [`MAX_BYTES`], [`ANSWER_WITHIN`], [`WRITTEN_WITHIN_NS`].

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::{Semaphore, oneshot};

/// How long a command may take: a busy controller is known to take seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);

/// Most bytes of an answer: 20,000 jobs at 6 KB, those that run among them.
const MAX_BYTES: u64 = 128 << 20;

/// A file that is older is not believed, nanoseconds: a cron job writes it every minute.
const WRITTEN_WITHIN_NS: i64 = 300 * NANOS_PER_SECOND;

/// What a command says, or the file of its name.
pub(super) async fn ask(
    folder: &Path,
    (program, arguments): (&str, &[&str]),
    now: Timestamp,
) -> Result<Vec<u8>, String> {
    let asked = async {
        match folder.as_os_str().is_empty() {
            true => command(program, arguments).await,
            false => file(&folder.join(format!("{program}.json")), now).await,
        }
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
    answer.unwrap_or_else(|_| {
        let seconds = ANSWER_WITHIN.as_secs();
        Err(format!(
            "{program} did not answer within {seconds} s; is slurmctld there?"
        ))
    })
}

async fn command(program: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| {
        format!(
            "{program}: {error}; install Slurm's client commands on the server, or set inventory.slurm_folder"
        )
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut answer = Vec::new();
    let out = child.stdout.take().expect("it was asked for");
    let read = out.take(MAX_BYTES).read_to_end(&mut answer).await;
    read.map_err(failed)?;
    let status = child.wait().await.map_err(failed)?;
    match status.success() {
        true => Ok(answer),
        false => Err(format!("{program} failed with {status}")),
    }
}

/// A folder that hangs, as one of a network does, hangs alone: it is read on a thread of its own, and no other
/// is begun while one does.
async fn file(path: &Path, now: Timestamp) -> Result<Vec<u8>, String> {
    static READING: Semaphore = Semaphore::const_new(1);
    let one = READING.acquire().await.map_err(|it| it.to_string())?;
    let (tell, told) = oneshot::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let _one = one;
        // Who asked may have gone.
        let _ = tell.send(read(&path, now));
    });
    told.await.map_err(|it| it.to_string())?
}

fn read(path: &Path, now: Timestamp) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(failed)?;
    let written = file.metadata().and_then(|it| it.modified());
    let since = written
        .map_err(failed)?
        .duration_since(std::time::UNIX_EPOCH);
    let since = since.map_or(0, |it| i64::try_from(it.as_nanos()).unwrap_or(i64::MAX));
    let age = now.since(Timestamp(since));
    if age > WRITTEN_WITHIN_NS {
        let minutes = age / NANOS_PER_SECOND / 60;
        return Err(format!(
            "{} was written {minutes} min ago; does the cron job that writes it run?",
            path.display()
        ));
    }
    let mut answer = Vec::new();
    let read = std::io::Read::read_to_end(&mut std::io::Read::take(file, MAX_BYTES), &mut answer);
    read.map_err(failed).map(|_| answer)
}
