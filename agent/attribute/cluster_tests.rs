//! How often the API server is asked, on the test's clock, and for how long its word counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Most questions of an hour: the pauses are 15 s at least when they are longest, and the first are short.
const MOST_OF_AN_HOUR: usize = 250;

/// A server of which a list always works, and how a watch ends.
struct Server {
    ends: fn() -> Result<(), ApiError>,
    watch_lasts: Duration,
    lists: AtomicUsize,
    watches: AtomicUsize,
    failures: AtomicUsize,
}

impl Watched for Server {
    async fn list(&self) -> Result<String, ApiError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        Ok("7".to_owned())
    }

    async fn watch(&self, version: String) -> Result<String, ApiError> {
        assert_eq!(version, "7");
        self.watches.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.watch_lasts).await;
        (self.ends)().map(|()| version)
    }

    fn failed(&self, _: &ApiError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often it is asked in an hour for a list and a watch, and how often that failed.
async fn asked(watch_lasts: Duration, ends: fn() -> Result<(), ApiError>) -> [usize; 3] {
    let server = Server {
        ends,
        watch_lasts,
        lists: AtomicUsize::new(0),
        watches: AtomicUsize::new(0),
        failures: AtomicUsize::new(0),
    };
    let hour = Duration::from_secs(3_600);
    let kept = tokio::time::timeout(hour, keep(&server)).await;
    kept.expect_err("it never ends");
    [server.lists, server.watches, server.failures].map(AtomicUsize::into_inner)
}

fn status(code: http::StatusCode) -> Result<(), ApiError> {
    Err(ApiError::Status {
        path: String::new(),
        status: code,
        message: String::new(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_watches_at_once_is_asked_ever_more_seldom() {
    let [lists, watches, failures] = asked(Duration::ZERO, || Ok(())).await;
    assert_eq!(
        (lists, failures),
        (1, 0),
        "the watch goes on from where it was"
    );
    assert!((100..MOST_OF_AN_HOUR).contains(&watches), "{watches}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_what_it_has_just_listed_is_asked_ever_more_seldom() {
    let gone = || status(http::StatusCode::GONE);
    let [lists, watches, failures] = asked(Duration::ZERO, gone).await;
    assert!((100..MOST_OF_AN_HOUR).contains(&lists), "{lists}");
    assert_eq!((watches, failures), (lists, 0), "and that is no failure");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lists_and_refuses_to_be_watched_is_asked_ever_more_seldom() {
    let refused = || status(http::StatusCode::FORBIDDEN);
    let [lists, _, failures] = asked(Duration::ZERO, refused).await;
    assert!((100..MOST_OF_AN_HOUR).contains(&lists), "{lists}");
    assert_eq!(failures, lists);
}

#[tokio::test(start_paused = true)]
async fn after_a_watch_that_lasted_the_pause_is_short_again() {
    let [lists, watches, _] = asked(Duration::from_secs(120), || Ok(())).await;
    assert_eq!(
        (lists, watches),
        (1, 30),
        "an hour of watches of two minutes"
    );
    let broken = || status(http::StatusCode::BAD_GATEWAY);
    let [lists, ..] = asked(Duration::from_secs(119), broken).await;
    assert_eq!(lists, 31);
}

#[test]
fn that_a_pod_has_ended_counts_while_the_server_tells_of_changes() {
    let pod = |uid: &str, is_over| Pod {
        uid: uid.to_owned(),
        namespace: "a".to_owned(),
        name: uid.to_owned(),
        is_over,
        facts: Facts::new(),
    };
    let mut known = Snapshot::default();
    let pods = Arc::make_mut(&mut known.pods);
    pods.put(pod("runs", false));
    pods.put(pod("ended", true));
    let seen = |known: &Snapshot| ["runs", "ended"].map(|it| known.pod("a", it).is_some());
    assert_eq!(seen(&known), [true, false], "it was never heard");
    known.standing.heard();
    assert_eq!(seen(&known), [true, true]);
    known.standing.failed(Source::Kubernetes, "gone".to_owned());
    assert_eq!(seen(&known), [true, false]);
}
