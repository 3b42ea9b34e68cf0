//! Whether the server is well: /healthz and /readyz on the web port, open to everyone.
//!
//! A standby is healthy and not ready: nothing is wrong with it, and nothing is to be sent to it.
//!
//! They tell the truth: a server whose commits fail says so, because what agents send is then not
//! made durable and they keep it. The web port has threads of its own, so that they also say when the others stand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use gpufleet_telemetry::time::Timestamp;
use http::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::{App, files, lead};

/// Commits that may fail in a row before the server calls itself ill: the database was restarted.
const MAX_FAILURES: u64 = 3;

/// How long a commit may wait for the database before the server calls itself ill: three intervals.
const MAX_COMMIT: Duration = Duration::from_secs(60);

/// Detectors that have not judged for this long stand: nine ticks. So long they have for the first one too.
const JUDGED_WITHIN: Duration = Duration::from_secs(90);

/// How often the threads that take data in and judge show that they go on.
const BEATS_EVERY: Duration = Duration::from_secs(1);

/// How long they may show nothing before the server calls itself ill; in the fullest second of a tick they are late by
/// milliseconds.
const BEATS_WITHIN: Duration = Duration::from_secs(30);

/// How long the store may take to say that it is there.
const STORE_WITHIN: Duration = Duration::from_secs(2);

/// When the threads that take data in and judge last showed that they go on, milliseconds of the clock that nobody sets;
/// 0 before they first did.
#[derive(Debug, Default)]
pub struct Pulse(AtomicU64);

/// Shows that the threads that this is run on go on, until told to stop.
pub async fn beat(app: App, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let now = app.clock.monotonic().as_millis();
        let now = u64::try_from(now).unwrap_or(u64::MAX).max(1);
        app.pulse.0.store(now, Ordering::Relaxed);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(BEATS_EVERY) => {}
        }
    }
}

/// That those threads stand, as one sentence; nothing while they go on, and where they never began.
fn stands(app: &App) -> Option<String> {
    let last = app.pulse.0.load(Ordering::Relaxed);
    let silent = app.clock.monotonic();
    let silent = silent.saturating_sub(Duration::from_millis(last));
    (last > 0 && silent > BEATS_WITHIN).then(|| {
        format!(
            "the threads that take data in and judge have stood for {} s: nothing is taken, agents keep what they send; start this server again",
            silent.as_secs()
        )
    })
}

/// What is wrong with making data durable, as one sentence; nothing when it goes well.
pub fn commits(app: &App) -> Option<String> {
    let failures = app.commits.failures_in_a_row.load(Ordering::Relaxed);
    if failures >= MAX_FAILURES {
        return Some(format!(
            "the last {failures} commits failed: nothing is made durable, agents keep what they send; the log says why"
        ));
    }
    let began = app.commits.began_ms.load(Ordering::Relaxed);
    let waited = Duration::from_millis((app.clock.now().millis() - began).max(0).unsigned_abs());
    (began > 0 && waited > MAX_COMMIT).then(|| {
        format!(
            "a commit has waited {} s for the database: nothing is made durable, agents keep what they send; look for what blocks the database",
            waited.as_secs()
        )
    })
}

/// Since when nothing is made durable; none where nothing was since the start. It holds only while [`commits`] says
/// what is wrong.
pub fn commits_stand_since(app: &App) -> Option<Timestamp> {
    let round = app.commits.round_ms.load(Ordering::Relaxed);
    (round > 0).then(|| Timestamp::from_millis(round))
}

/// That the detectors stand: what broke since then is not known, and nobody is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unjudged {
    /// When they last judged; none where they have not since the start.
    pub last: Option<Timestamp>,
    /// For how long they have not, by a clock that nobody sets back.
    pub silent: Duration,
}

/// Whether nobody judges though this server leads; none where they do, or have still time for it.
pub fn unjudged(app: &App) -> Option<Unjudged> {
    let health = &app.incidents.health;
    let silent = health.silent(app.clock.monotonic());
    let stands = app.lead.waits().is_none() && silent > JUDGED_WITHIN;
    stands.then(|| Unjudged {
        last: health.last(),
        silent,
    })
}

/// Since when nobody judges though this server leads: before the first tick since it began to lead. None where they do,
/// or have still time for it.
pub fn detectors_stand_since(app: &App) -> Option<Timestamp> {
    let stands = unjudged(app)?;
    let silent = i64::try_from(stands.silent.as_nanos()).unwrap_or(i64::MAX);
    let began = || app.clock.now().shifted(-silent);
    Some(stands.last.unwrap_or_else(began))
}

/// Whether the database takes what this server writes: nothing has to be asked for it.
///
/// Renewals of the lease say it within seconds where the database is away; commits say it where it has no room for
/// data, since a renewal writes over a row that is there and needs none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSeen {
    /// Until when it took everything; none where it never has since the start.
    pub taken: Option<Timestamp>,
    /// Whether it does not take all now.
    pub is_failing: bool,
}

impl StoreSeen {
    /// As it is now.
    pub fn of(app: &App) -> Self {
        let Some(lease) = app.jobs.known(lead::JOB) else {
            return Self::default();
        };
        let renewed = lease.succeeded_ms().map(Timestamp::from_millis);
        let is_away = lease.failing_ms().is_some();
        if commits(app).is_none() {
            return Self {
                taken: renewed,
                is_failing: is_away,
            };
        }
        let written = commits_stand_since(app);
        Self {
            // Renewals that went through tell until when it was well, where nothing came to be committed.
            taken: if is_away {
                written.into_iter().chain(renewed).min()
            } else {
                written
            },
            is_failing: true,
        }
    }
}

/// What does not keep the server from its work and will have to be mended.
pub fn warnings(app: &App) -> Vec<String> {
    let clock = app.fleet.server_clock().sentence();
    let mut warnings: Vec<String> = files::warning().into_iter().chain(clock).collect();
    warnings.extend(app.access.refused());
    warnings.extend(unjudged(app).map(|it| {
        format!(
            "the detectors have judged nothing for {} s: what broke since then is not known, and nobody is told of it",
            it.silent.as_secs()
        )
    }));
    warnings
}

/// What is wrong with the database, as one sentence; nothing when it answers.
pub async fn store(app: &App) -> Option<String> {
    match tokio::time::timeout(STORE_WITHIN, app.store.check()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the store does not answer");
            Some("the database refuses; the log says why".to_owned())
        }
        Err(_) => Some(format!(
            "the database did not answer within {} s",
            STORE_WITHIN.as_secs()
        )),
    }
}

/// The routes.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(app)
}

async fn healthy(State(app): State<App>) -> (StatusCode, String) {
    if let Some(wrong) = stands(&app) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{wrong}\n"));
    }
    if let Some(why) = app.lead.waits() {
        return (StatusCode::OK, format!("{why}\n{}", kept(&app)));
    }
    if let Some(wrong) = commits(&app) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{wrong}\n"));
    }
    let warnings = warnings(&app).into_iter();
    let warnings: String = warnings.map(|it| format!("warning: {it}\n")).collect();
    (StatusCode::OK, format!("ok\n{warnings}"))
}

async fn ready(State(app): State<App>) -> (StatusCode, String) {
    if let Some(why) = app.lead.waits() {
        let text = format!("{why}\n{}", kept(&app));
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    match store(&app).await {
        None => healthy(State(app)).await,
        Some(wrong) => (StatusCode::SERVICE_UNAVAILABLE, format!("{wrong}\n")),
    }
}

/// What a server that does not lead still owes those who sent to it before.
fn kept(app: &App) -> String {
    match app.lead.requests() {
        0 => String::new(),
        1 => "1 request of other senders here waits until this server leads\n".to_owned(),
        many => format!("{many} requests of other senders here wait until this server leads\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use futures::FutureExt as _;
    use tower::ServiceExt;

    use super::*;
    use crate::auth::Access;
    use crate::config::Config;
    use crate::hand::Hand;
    use crate::store::{Store, StoreConfig};
    use gpufleet_program::clock::SystemClock;

    #[tokio::test]
    async fn a_server_whose_commits_or_database_fail_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let (access, clock) = (Access::default(), Arc::new(SystemClock::start()));
        let app = App::new(Config::for_tests(), store.unwrap(), access, clock);
        let ask = async |path: &str| {
            let request = http::Request::get(path).body(Body::empty()).unwrap();
            let answer = router(app.clone()).oneshot(request).await;
            answer.unwrap().status()
        };
        assert_eq!(ask("/healthz").await, StatusCode::OK, "a standby lives");
        assert_eq!(ask("/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        app.begins_to_lead();
        assert_eq!(ask("/healthz").await, StatusCode::OK);
        assert_eq!(ask("/readyz").await, StatusCode::OK);
        app.commits.failures_in_a_row.store(3, Ordering::Relaxed);
        assert_eq!(ask("/healthz").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask("/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        app.commits.failures_in_a_row.store(0, Ordering::Relaxed);
        let now = app.clock.now().millis();
        app.commits.began_ms.store(now - 59_000, Ordering::Relaxed);
        assert_eq!(ask("/healthz").await, StatusCode::OK);
        app.commits.began_ms.store(now - 61_000, Ordering::Relaxed);
        assert_eq!(ask("/healthz").await, StatusCode::SERVICE_UNAVAILABLE);
        app.commits.began_ms.store(0, Ordering::Relaxed);
        app.store.close().await;
        assert_eq!(ask("/healthz").await, StatusCode::OK);
        assert_eq!(ask("/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn a_server_whose_other_threads_stand_says_so_until_they_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let (access, hand) = (Access::default(), Arc::new(Hand::default()));
        let app = App::new(Config::for_tests(), store.unwrap(), access, hand.clone());
        app.begins_to_lead();
        let said = async |second| {
            hand.put_monotonic(Duration::from_secs(second));
            healthy(State(app.clone())).await
        };
        let beats = || beat(app.clone(), CancellationToken::new()).now_or_never();
        assert_eq!(said(50).await.0, StatusCode::OK, "they have not begun");
        assert_eq!(beats(), None, "it goes on");
        assert_eq!(said(80).await.0, StatusCode::OK);
        let (status, why) = said(81).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(why.contains("have stood for 31 s"), "{why}");
        assert_eq!(beats(), None, "it goes on");
        assert_eq!(said(81).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn pages_are_told_what_is_not_taken_by_the_lease_or_by_commits_since_the_first_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let (access, clock) = (Access::default(), Arc::new(SystemClock::start()));
        let app = App::new(Config::for_tests(), store.unwrap(), access, clock);
        assert_eq!(StoreSeen::of(&app), StoreSeen::default(), "it waits");
        let lease = app.jobs.of(lead::JOB);
        let clock = app.clock.as_ref();
        lease.round(clock, async { Ok::<_, String>(()) }).await;
        let renewed = Timestamp::from_millis(lease.succeeded_ms().unwrap());
        let seen = |taken, is_failing| StoreSeen { taken, is_failing };
        assert_eq!(StoreSeen::of(&app), seen(Some(renewed), false));
        let before = renewed.shifted(-60_000_000_000);
        app.commits
            .round_ms
            .store(before.millis(), Ordering::Relaxed);
        app.commits.failures_in_a_row.store(3, Ordering::Relaxed);
        let full = seen(Some(before), true);
        assert_eq!(StoreSeen::of(&app), full, "renewals go through");
        lease.round(clock, async { Err::<(), _>("gone") }).await;
        assert_eq!(StoreSeen::of(&app), full, "the earlier of both");
        app.commits.round_ms.store(0, Ordering::Relaxed);
        let never = seen(Some(renewed), true);
        assert_eq!(StoreSeen::of(&app), never, "no commit was due before");
        app.commits.failures_in_a_row.store(0, Ordering::Relaxed);
        assert_eq!(
            StoreSeen::of(&app),
            seen(Some(renewed), true),
            "nothing came"
        );
    }
}
