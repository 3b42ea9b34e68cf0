//! Whether the server is well: /healthz and /readyz on the web port, open to everyone.
//!
//! They tell the truth: a server whose commits fail says so, because what agents send is then not
//! made durable and they keep it.

use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;

use crate::{App, files};

/// Commits that may fail in a row before the server calls itself ill: the database was restarted.
const MAX_FAILURES: u64 = 3;

/// The routes.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(app)
}

async fn healthy(State(app): State<App>) -> (StatusCode, String) {
    let failures = app.commits.failures_in_a_row.load(Ordering::Relaxed);
    if failures >= MAX_FAILURES {
        let text = format!(
            "the last {failures} commits failed: nothing is made durable, agents keep what they send; the log says why\n"
        );
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    let warning = files::warning().map(|it| format!("warning: {it}\n"));
    (
        StatusCode::OK,
        format!("ok\n{}", warning.unwrap_or_default()),
    )
}

async fn ready(State(app): State<App>) -> (StatusCode, String) {
    match app.store.check().await {
        Ok(()) => healthy(State(app)).await,
        Err(error) => {
            tracing::warn!(%error, "not ready");
            let text = "the database does not answer; the log says why\n".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;
    use crate::config::Config;
    use crate::fleet::Fleet;
    use crate::store::{Store, StoreConfig};
    use gpufleet_program::clock::SystemClock;

    #[tokio::test]
    async fn a_server_whose_commits_or_database_fail_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::for_tests();
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let app = App {
            store: store.unwrap(),
            fleet: Arc::new(Fleet::new(config.fleet.clone())),
            config: Arc::new(config),
            access: Arc::default(),
            commits: Arc::default(),
            rejections: Arc::default(),
            clock: Arc::new(SystemClock::start()),
        };
        let ask = async |path: &str| {
            let request = http::Request::get(path).body(Body::empty()).unwrap();
            let answer = router(app.clone()).oneshot(request).await;
            answer.unwrap().status()
        };
        assert_eq!(ask("/healthz").await, StatusCode::OK);
        assert_eq!(ask("/readyz").await, StatusCode::OK);
        app.commits.failures_in_a_row.store(3, Ordering::Relaxed);
        assert_eq!(ask("/healthz").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask("/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        app.commits.failures_in_a_row.store(0, Ordering::Relaxed);
        app.store.close().await;
        assert_eq!(ask("/healthz").await, StatusCode::OK);
        assert_eq!(ask("/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
    }
}
