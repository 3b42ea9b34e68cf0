//! Being the active server: the lease, what the store knows at the start, and giving it back.
//!
//! One server writes; a standby waits for the lease. The lease's time only says when a standby may
//! take over; what keeps two from writing is the token that every commit shows.

use std::time::Duration;

use anyhow::Context;
use gpufleet_telemetry::time::{Clock, NANOS_PER_SECOND};
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::commit::{Leased, Replaced};
use crate::fleet::Restored;
use crate::runs;
use crate::store::model::{FencingToken, Lease};
use crate::store::{CommitError, LeaseError, Store};

/// For how long the lease is good: how long a standby waits for a server that died elsewhere.
const LEASE: Duration = Duration::from_secs(30);

/// How often it is renewed: two renewals may fail.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// How often a standby asks for it.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Waits for the right to write, then takes in what the store knows. None when told to stop first.
///
/// # Errors
/// When the store cannot be read.
pub async fn begin(app: &App, stop: &CancellationToken) -> anyhow::Result<Option<Leased>> {
    let holder = holder(&app.config.web.listen);
    let Some(lease) = wait(&app.store, &holder, app.clock.as_ref(), stop).await? else {
        return Ok(None);
    };
    tracing::info!(
        holder,
        token = lease.token.0,
        "active: this server has the right to write"
    );
    restore(app)
        .await
        .context("cannot read what the store knows")?;
    Ok(Some(Leased {
        store: app.store.clone(),
        token: lease.token,
    }))
}

/// Keeps the right to write until told to stop.
///
/// # Errors
/// When another server has taken over.
pub async fn renew(
    store: &Store,
    token: FencingToken,
    clock: &dyn Clock,
    stop: CancellationToken,
) -> Result<(), Replaced> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEW_EVERY) => {}
            () = stop.cancelled() => return Ok(()),
        }
        match store.renew_lease(token, clock.now(), LEASE).await {
            Ok(_) => {}
            Err(CommitError::Fenced { .. }) => return Err(Replaced),
            Err(error) => tracing::warn!(%error, "cannot renew the lease, trying again"),
        }
    }
}

async fn wait(
    store: &Store,
    holder: &str,
    clock: &dyn Clock,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Lease>> {
    let mut is_told = false;
    loop {
        match store.acquire_lease(holder, clock.now(), LEASE).await {
            Ok(lease) => return Ok(Some(lease)),
            Err(error @ LeaseError::Held { .. }) => {
                if !is_told {
                    tracing::info!("standby: {error}; this server takes over when it runs out");
                    is_told = true;
                }
            }
            Err(LeaseError::Store(error)) => return Err(error).context("cannot ask for the lease"),
        }
        tokio::select! {
            () = tokio::time::sleep(ASK_EVERY) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

async fn restore(app: &App) -> anyhow::Result<()> {
    let now = app.clock.now();
    let seconds = i64::try_from(app.config.fleet.forget_after_s).unwrap_or(i64::MAX);
    let since = now.shifted(-seconds.saturating_mul(NANOS_PER_SECOND));
    let mut resources = app.store.resources(None, None).await?;
    resources.retain(|it| it.last_seen >= since);
    let restored = Restored {
        last_commit: app.store.last_commit().await?,
        cursors: app.store.cursors().await?,
        resources,
        health: app.store.broken(since, now).await?,
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

/// The name under which this server holds the lease: the machine and the web port, so that one that
/// is started again after a crash need not wait for itself.
fn holder(listen: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}/{listen}", host.trim())
}
