//! What is wrong with the server itself: its clock, its database, its disks, its jobs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::{Finding, Look, Looked};
use crate::fleet::ServerClock;
use crate::words::text::{self, grouped};
use crate::{files, health};

/// Less room than this and the end is near, bytes: the alert's line.
const NO_ROOM: u64 = 1_000_000_000;

/// Less than this and somebody should look.
const LITTLE_ROOM: u64 = 5_000_000_000;

/// The clock.
pub(super) fn clock(look: &Look<'_>) -> Looked {
    let clock = look.view.server_clock;
    match clock {
        ServerClock::Unknown => {
            Err("it takes three agents that agree to judge the server's clock".to_owned())
        }
        ServerClock::Right => Ok(Vec::new()),
        ServerClock::Wrong { .. } => {
            let what = clock.sentence().unwrap_or_default();
            let found = Finding::new(Severity::Error, "server-clock", what)
                .missing("When things happened; over an hour nothing is taken at all")
                .fix("Have the server's machine synchronise its clock.")
                .line("timedatectl; chronyc tracking");
            Ok(vec![found])
        }
    }
}

/// Whether commits go through.
pub(super) fn commits(look: &Look<'_>) -> Looked {
    let commits = &look.app.commits;
    if let Some(why) = health::commits(look.app) {
        let found = Finding::new(Severity::Error, "commits", why)
            .missing("Nothing for good: agents keep what they send, until their spools are full")
            .fix("Look at the database: its disk, its log, and what blocks it.")
            .line("journalctl -u gpufleet-server --since -10min")
            .since(health::commits_stand_since(look.app));
        return Ok(vec![found]);
    }
    match commits.commits.load(Ordering::Relaxed) {
        0 => Err("no commit was made yet".to_owned()),
        _ => Ok(Vec::new()),
    }
}

/// Whether the database answers, and what of it cannot be read.
pub(super) fn database(look: &Look<'_>) -> Looked {
    let mut all = Vec::new();
    if let Some(why) = &look.store {
        let found = Finding::new(Severity::Error, "database", why.clone())
            .missing("Everything of the past: hours, costs, events, jobs that ended")
            .fix(
                "Start the database, or give this server the right address and rights (store.url).",
            )
            .line("gpufleet-server --check-config");
        all.push(found);
    }
    let unreadable = look.app.store.unreadable_rows().by_table();
    for (table, rows) in unreadable.filter(|it| it.1 > 0) {
        let what = format!(
            "{} of table {table} could not be read and were set aside",
            grouped(rows as f64)
        );
        let found = Finding::new(Severity::Warning, format!("unreadable-{table}"), what)
            .missing("What was in them; what can be computed again is")
            .fix("The log names them and why. Table set_aside keeps them; a disk that spoils rows spoils more.");
        all.push(found);
    }
    Ok(all)
}

/// Room for the spool.
pub(super) fn spool_disk(look: &Look<'_>) -> Looked {
    let room = look
        .room("spool")
        .ok_or("the disk of the spool does not say how full it is")?;
    let what = look.app.config.ingest.spool_dir.as_str();
    Ok(look.little_room("spool", what, room).into_iter().collect())
}

/// Room for the database.
pub(super) fn database_disk(look: &Look<'_>) -> Looked {
    let Some(file) = look.app.store.file() else {
        return Err("a PostgreSQL watches its own disk; this server does not ask".to_owned());
    };
    let room = look
        .room("database")
        .ok_or("the disk of the database does not say how full it is")?;
    let what = file.display().to_string();
    Ok(look
        .little_room("database", &what, room)
        .into_iter()
        .collect())
}

impl Look<'_> {
    fn room(&self, disk: &str) -> Option<u64> {
        let free = self.disks.free.iter().find(|it| it.0 == disk);
        free.map(|it| it.1)
    }

    fn little_room(&self, disk: &str, what: &str, room: u64) -> Option<Finding> {
        let severity = match room {
            ..NO_ROOM => Severity::Error,
            NO_ROOM..LITTLE_ROOM => Severity::Warning,
            _ => return None,
        };
        let said = format!(
            "The disk of the {disk} has {:.1} GB left",
            room as f64 / 1e9
        );
        let found = Finding::new(severity, format!("{disk}-disk"), said)
            .missing("When it is full nothing is made durable, and agents keep what they send until their spools are full")
            .fix("Make room, or keep less: [retention] of the configuration, docs/storage.md has what a GPU takes.")
            .line(format!("df -h {what}"));
        Some(found)
    }

    /// How long ago something was.
    pub(super) fn since_then(&self, at: Timestamp) -> Duration {
        Duration::from_nanos(self.at.since(at).max(0).unsigned_abs())
    }
}

/// Whether the jobs in the background succeed.
pub(super) fn jobs(look: &Look<'_>) -> Looked {
    let jobs = look.app.jobs.all();
    if jobs
        .iter()
        .all(|it| it.succeeded_ms().is_none() && it.failing_ms().is_none())
    {
        return Err("no job has done a round yet".to_owned());
    }
    let failing = jobs.iter().filter_map(|job| {
        let since = Timestamp::from_millis(job.failing_ms()?);
        let name = job.name();
        let found = Finding::new(
            Severity::Error,
            format!("job-{name}"),
            format!("{name} fails"),
        )
        .missing("What it makes: it is as old as its last success")
        .fix("The server's log says why; it is tried again.")
        .line("journalctl -u gpufleet-server --since -1h")
        .since(Some(since));
        Some(found)
    });
    Ok(failing.collect())
}

/// Whether somebody judges.
pub(super) fn detectors(look: &Look<'_>) -> Looked {
    let stands = health::unjudged(look.app);
    if stands.is_none() && look.app.incidents.health.last().is_none() {
        return Err("the detectors have not judged yet".to_owned());
    }
    let mut all = Vec::new();
    if let Some(stands) = stands {
        let found = Finding::new(Severity::Error, "detectors", "The detectors stand")
            .missing("What broke since then: nobody is told of it")
            .fix("Look at the server's CPU and its log.")
            .line("journalctl -u gpufleet-server --since -10min")
            .since(stands.last);
        all.push(found);
    }
    let left_out = look.app.incidents.left_out();
    if left_out > 0 {
        let what = format!(
            "{} incidents had no room since this server started",
            grouped(left_out as f64)
        );
        let found = Finding::new(Severity::Warning, "incidents-left-out", what)
            .missing("What was wrong beyond those that are open")
            .fix("Mend what is open; so many at once have one cause, most likely.");
        all.push(found);
    }
    Ok(all)
}

/// Limits of the system, tokens and certificates.
pub(super) fn files(look: &Look<'_>) -> Looked {
    let limit = files::warning().map(|it| ("limits", it));
    let refused = look.app.access.refused().into_iter();
    let refused = refused.map(|it| ("access", it));
    let finding = |(id, said): (&str, String)| {
        let what = text::harmless(&said, text::TITLE_CHARACTERS);
        Finding::new(Severity::Warning, id, what)
            .missing("Nothing yet; senders beyond the limit, or with the new token, are refused")
            .fix("Mend the file or the limit; files are read again when they change.")
    };
    Ok(limit.into_iter().chain(refused).map(finding).collect())
}

/// Whether the config file as it is can be used.
pub(super) fn config(look: &Look<'_>) -> Looked {
    let Some(told) = look.app.thresholds.get() else {
        return Err("no config file is read again".to_owned());
    };
    if !told.is_refused {
        return Ok(Vec::new());
    }
    let what = format!(
        "The config file {} has changed and cannot be used",
        told.file.display()
    );
    let found = Finding::new(Severity::Warning, "config", what)
        .missing("The thresholds that were meant; those of before hold, and a restart will fail")
        .fix("The log says what is wrong.")
        .line(format!(
            "gpufleet-server --config {} --check-config",
            told.file.display()
        ));
    Ok(vec![found])
}
