//! The dead-man's switch: a service outside is asked every minute while this server does its work, and
//! raises the alarm when it is not. Nothing else can tell that the one who would tell is gone.
//!
//! It is asked only while the server leads, judges, and makes what comes durable: a server that only
//! lives is not alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio_util::sync::CancellationToken;

use super::channel::{Post, address, json_headers};
use super::secret::Secret;
use super::settings::NotifyConfig;
use super::wire::Wire;
use crate::{App, health};

/// How the heartbeat goes, for the server's own metrics.
#[derive(Debug, Default)]
pub struct Heartbeat {
    /// Whether one is configured.
    pub is_wanted: std::sync::atomic::AtomicBool,
    /// When it last got through, Unix milliseconds; 0 before the first.
    pub sent_ms: AtomicI64,
}

/// The address that is asked; none when none is configured.
///
/// # Errors
/// When it is configured and cannot be used.
pub fn address_of(config: &NotifyConfig) -> Result<Option<Secret>, String> {
    let read = Secret::read(&config.heartbeat_file, &config.heartbeat_env);
    let secret = read.map_err(|why| format!("notify.heartbeat_file, heartbeat_env: {why}"))?;
    let Some(text) = secret.get() else {
        return Ok(None);
    };
    let checked = address(&text);
    checked.map_err(|why| {
        format!(
            "notify.heartbeat_file, heartbeat_env: {}",
            secret.hidden(&why)
        )
    })?;
    Ok(Some(secret))
}

/// Asks until told to stop; ends at once when no address is configured.
pub async fn run(app: App, stop: CancellationToken) {
    let config = &app.config.notify;
    let made = || -> Result<_, String> {
        let Some(secret) = address_of(config)? else {
            return Ok(None);
        };
        let wire = Wire::new(&config.heartbeat_ca_file, Arc::clone(&app.clock))?;
        Ok(Some((secret, wire)))
    };
    let beats = match made() {
        Ok(Some(beats)) => beats,
        Ok(None) => return stop.cancelled().await,
        Err(error) => {
            tracing::error!(error, "there will be no heartbeat");
            return stop.cancelled().await;
        }
    };
    app.incidents
        .heartbeat
        .is_wanted
        .store(true, Ordering::Relaxed);
    if !app.lead.wait(&stop).await {
        return;
    }
    let job = app.jobs.of("the heartbeat");
    let every = Duration::from_secs(config.heartbeat_every_s);
    while !stop.is_cancelled() {
        let now = app.clock.now();
        let beat = async {
            match wrong(&app) {
                Some(why) => Err(format!("it is not sent: {why}")),
                None => beat(&beats).await,
            }
        };
        if job.round(app.clock.as_ref(), beat).await.is_some() {
            app.incidents
                .heartbeat
                .sent_ms
                .store(now.millis(), Ordering::Relaxed);
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(every) => {}
        }
    }
}

async fn beat((secret, wire): &(Secret, Wire)) -> Result<(), String> {
    let hidden = |why: String| secret.hidden(&why);
    let to = address(&secret.get().unwrap_or_default()).map_err(hidden)?;
    let post = Post {
        to,
        headers: json_headers(),
        body: Bytes::from_static(b"{}"),
    };
    let answer = wire.post(Method::POST, post).await;
    let answer = answer.map_err(|error| hidden(error.why))?;
    match answer.status.is_success() {
        true => Ok(()),
        false => Err(format!("its receiver answered {}", answer.status)),
    }
}

/// What keeps the server from its work; nothing when it does it.
pub fn wrong(app: &App) -> Option<String> {
    if let Some(why) = app.lead.waits() {
        return Some(why);
    }
    if let Some(why) = health::commits(app) {
        return Some(why);
    }
    let stands = health::unjudged(app)?;
    Some(format!(
        "the detectors have not judged for {} s",
        stands.silent.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::{Clock, Timestamp};

    use super::*;
    use crate::auth::Access;
    use crate::config::Config;
    use crate::hand::Hand;
    use crate::store::{Store, StoreConfig};

    #[tokio::test]
    async fn a_server_whose_detectors_never_judge_or_stand_is_not_called_alive() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let clock = Arc::new(Hand::at(Timestamp::from_seconds(1_790_000_000)));
        clock.put_monotonic(Duration::from_secs(1_000));
        let time: Arc<dyn Clock> = Arc::clone(&clock) as _;
        let app = App::new(Config::for_tests(), store.unwrap(), Access::default(), time);
        assert_eq!(health::unjudged(&app), None, "a standby judges nothing");
        app.begins_to_lead();
        assert_eq!(wrong(&app), None, "they have had no time");
        clock.pass(Duration::from_secs(91));
        let said = wrong(&app).expect("they never judged");
        assert!(said.contains("91 s"), "{said}");
        let moment = (app.clock.now(), app.clock.monotonic());
        app.incidents.health.note(moment, Duration::ZERO, 8);
        assert_eq!(wrong(&app), None);
        // They stand from now on, and the wall clock is set back by hours.
        clock.pass(Duration::from_secs(91));
        clock.put(Timestamp::from_seconds(1_789_990_000));
        assert!(wrong(&app).is_some());
    }
}
