//! Being the active server: the lease, what the store knows at the start, and giving it back.
//!
//! One server of a cluster writes; a standby waits for the lease. Its doors are open meanwhile: it says
//! that it is a standby, and takes nothing, so that agents keep what they have. The lease's time only
//! says when a standby may take over; what keeps two from writing is the token that every commit shows.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use gpufleet_analysis::health::REPEAT_NS;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::App;
use crate::commit::{Leased, Replaced};
use crate::fleet::Restored;
use crate::runs;
use crate::store::model::{FencingToken, Lease};
use crate::store::{CommitError, LeaseError};

/// For how long the lease is good: how long a standby waits for a server that died elsewhere.
const LEASE: Duration = Duration::from_secs(30);

/// How often it is renewed: two renewals may fail.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// How often a standby asks for it.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// The job that renews it, every [`RENEW_EVERY`]: whether it goes well says whether the database is there.
pub const JOB: &str = "lease";

/// What a standby with a database of an older schema adds to why it waits.
const SCHEMA_WAITS: &str = ", and brings the database's schema up to date then";

/// The file in the spool's folder with the name of this server. The folder belongs to one process at
/// a time, so two servers never have one name, whatever their machines are called.
const ID_FILE: &str = "server-id";

/// Whether this server has the right to write, for everyone who asks.
#[derive(Debug)]
pub struct Lead {
    /// Why it has not; none when it has.
    waits: watch::Sender<Option<String>>,
    /// Since when it is that, Unix milliseconds; 0 before it was first asked for.
    since_ms: AtomicI64,
    /// Requests of others than agents that lie in its own spool until it leads.
    requests: AtomicU64,
}

impl Default for Lead {
    fn default() -> Self {
        Self::new(Some("this server is starting".to_owned()))
    }
}

impl Lead {
    /// One that leads already.
    pub fn leading() -> Self {
        Self::new(None)
    }

    fn new(waits: Option<String>) -> Self {
        Self {
            waits: watch::Sender::new(waits),
            since_ms: AtomicI64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// Why this server does not lead, as a sentence; none when it does.
    pub fn waits(&self) -> Option<String> {
        self.waits.borrow().clone()
    }

    /// Since when this server waits for the reason that it waits for now; none where that is not known, and when it
    /// leads.
    pub fn waits_since(&self) -> Option<Timestamp> {
        let since = self.since_ms.load(Ordering::Relaxed);
        (since > 0 && self.waits.borrow().is_some()).then(|| Timestamp::from_millis(since))
    }

    /// Requests that this server has acknowledged and folds when it leads.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Waits until this server leads; false when it is told to stop first.
    pub async fn wait(&self, stop: &CancellationToken) -> bool {
        let mut waits = self.waits.subscribe();
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            leads = waits.wait_for(Option::is_none) => leads.is_ok(),
        }
    }

    /// From now on this server leads: what it knows is restored.
    pub fn begin(&self) {
        self.requests.store(0, Ordering::Relaxed);
        self.waits.send_replace(None);
    }

    /// Says how many requests wait in this server's own spool.
    pub fn keeps(&self, requests: u64) {
        self.requests.store(requests, Ordering::Relaxed);
    }

    /// Says why this server does not lead; whether that is news.
    fn because(&self, why: &str, now: Timestamp) -> bool {
        self.waits.send_if_modified(|known| {
            let is_news = known.as_deref() != Some(why);
            if is_news {
                self.since_ms.store(now.millis(), Ordering::Relaxed);
            }
            *known = Some(why.to_owned());
            is_news
        })
    }
}

/// Waits for the right to write, and brings the schema up to date by it. None when told to stop first.
///
/// # Errors
/// When another server has taken over meanwhile, or the schema cannot be brought up to date.
pub async fn take(
    app: &App,
    holder: &str,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Leased>> {
    let Some(lease) = wait(app, holder, stop).await else {
        return Ok(None);
    };
    tracing::info!(
        holder,
        token = lease.token.0,
        "active: this server has the right to write"
    );
    let migrated = app.store.migrate(lease.token, app.clock.as_ref(), LEASE);
    if let Err(error) = migrated.await {
        release(app, lease.token).await;
        return Err(anyhow::Error::from(error).context("cannot bring the schema up to date"));
    }
    Ok(Some(Leased {
        store: app.store.clone(),
        token: lease.token,
    }))
}

/// Gives the right to write back.
pub async fn release(app: &App, token: FencingToken) {
    if let Err(error) = app.store.release_lease(token).await {
        tracing::warn!(%error, "cannot release the lease; a standby waits until it runs out");
    }
}

/// Does `work` by the right to write, and keeps the right beside it from the first moment: what a server
/// restores before it leads may take longer than the lease is good for, and a standby that took over
/// from it would fare the same.
///
/// # Errors
/// As `work`, and when another server has taken over.
pub async fn hold(
    app: &App,
    token: FencingToken,
    stop: &CancellationToken,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    hold_at(app, token, RENEW_EVERY, stop, work).await
}

async fn hold_at(
    app: &App,
    token: FencingToken,
    every: Duration,
    stop: &CancellationToken,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    // A task of its own, which goes with this set: `work` computes for long between two waits.
    let mut renewals = JoinSet::new();
    renewals.spawn(renew(app.clone(), token, every, stop.clone()));
    let renewed = async {
        let ended = renewals.join_next().await;
        let ended = ended.expect("it was spawned above and nobody else waits for it");
        Ok(ended.context("the renewal of the lease")??)
    };
    tokio::try_join!(work, renewed).map(|_| ())
}

/// Keeps the right to write until told to stop.
///
/// # Errors
/// When another server has taken over.
async fn renew(
    app: App,
    token: FencingToken,
    every: Duration,
    stop: CancellationToken,
) -> Result<(), Replaced> {
    let (job, clock) = (app.jobs.of(JOB), app.clock.as_ref());
    // The right was taken just before: up to here the database took everything.
    job.round(clock, async { Ok::<_, CommitError>(()) }).await;
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let work = async {
            match app.store.renew_lease(token, clock.now(), LEASE).await {
                Ok(_) => Ok(true),
                Err(CommitError::Fenced { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        if job.round(clock, work).await == Some(false) {
            return Err(Replaced);
        }
    }
}

async fn wait(app: &App, holder: &str, stop: &CancellationToken) -> Option<Lease> {
    loop {
        let asked = app.store.acquire_lease(holder, app.clock.now(), LEASE);
        let why = match asked.await {
            Ok(lease) => return Some(lease),
            Err(LeaseError::Held { lease, holder, .. }) => format!(
                "standby: {holder} has the right to write (lease {lease}); this server takes over within {} s when that one is gone{}. If it is another cluster's server, give this one a store.lease of its own",
                (LEASE + ASK_EVERY).as_secs(),
                if app.store.is_behind() {
                    SCHEMA_WAITS
                } else {
                    ""
                },
            ),
            Err(LeaseError::Store(error)) => {
                tracing::debug!(%error, "cannot ask for the lease");
                "the database does not answer when asked for the right to write; this server goes on asking".to_owned()
            }
        };
        if app.lead.because(&why, app.clock.now()) {
            tracing::warn!("{why}");
        }
        tokio::select! {
            () = tokio::time::sleep(ASK_EVERY) => {}
            () = stop.cancelled() => return None,
        }
    }
}

/// Takes in what the store knows; false when told to stop first.
///
/// # Errors
/// When the store cannot be read.
pub async fn restore(app: &App, stop: &CancellationToken) -> anyhow::Result<bool> {
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(false),
        restored = read_all(app) => restored
            .map(|()| true)
            .context("cannot read what the store knows"),
    }
}

async fn read_all(app: &App) -> anyhow::Result<()> {
    let now = app.clock.now();
    let seconds = i64::try_from(app.config.fleet.forget_after_s).unwrap_or(i64::MAX);
    let since = now.shifted(-seconds.saturating_mul(NANOS_PER_SECOND));
    let mut resources = app.store.resources(None, None).await?;
    resources.retain(|it| it.last_seen >= since);
    let mut told = app.store.told(now.shifted(-REPEAT_NS)).await?;
    told.extend(app.store.removed(since).await?);
    let restored = Restored {
        last_commit: app.store.last_commit().await?,
        cursors: app.store.cursors().await?,
        resources,
        health: app.store.broken(since, now).await?,
        told,
        foreign: app.store.foreign_marks().await?,
        runs: Vec::new(),
        steps: Vec::new(),
    };
    let runs = runs::stored(&app.store, now).await?;
    let restored = Restored {
        steps: runs::stored_steps(&app.store, &runs, now).await?,
        runs,
        ..restored
    };
    tracing::info!(
        commit = restored.last_commit,
        streams = restored.cursors.len(),
        resources = restored.resources.len(),
        runs = restored.runs.len(),
        "took in what the store knows"
    );
    app.fleet.restore(restored, now);
    Ok(())
}

/// The name under which this server holds the lease: the machine's, for people, and one of its own
/// that stays with the spool's folder, so that a server that is started again after a crash need not
/// wait for itself, and one on another machine of the same name does.
///
/// # Errors
/// When the file in the folder can neither be read nor made.
pub fn holder(folder: &Path) -> io::Result<String> {
    let file = folder.join(ID_FILE);
    let known = match std::fs::read_to_string(&file) {
        Ok(text) => Uuid::parse_str(text.trim()).ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let id = match known {
        Some(id) => id,
        None => {
            let id = Uuid::new_v4();
            std::fs::write(&file, format!("{id}\n"))?;
            id
        }
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok(format!("{} ({id})", host.trim()))
}

#[cfg(test)]
mod tests;
