//! How often the API server is asked, on the test's clock, and what the lines of a watch say.

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
        way_out: String::new(),
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

#[derive(Debug, PartialEq, Deserialize)]
struct Named {
    kind: String,
}

#[test]
fn a_line_of_a_watch_says_what_happened_and_from_where_to_go_on() {
    let object = r#"{"kind": "Pod", "metadata": {"resourceVersion": "8"}}"#;
    let pod = || Named {
        kind: "Pod".to_owned(),
    };
    for (kind, expected) in [
        ("ADDED", Event::Put(pod())),
        ("MODIFIED", Event::Put(pod())),
        ("DELETED", Event::Removed(pod())),
        ("BOOKMARK", Event::Bookmark),
        ("SOMETHING-NEW", Event::Bookmark),
    ] {
        let line = format!(r#"{{"type": "{kind}", "object": {object}}}"#);
        let read = read::<Named>(line.as_bytes(), "/p").expect("it is a line");
        assert_eq!(read, (expected, "8".to_owned()), "{kind}");
    }
}

#[test]
fn a_watch_that_fails_in_its_midst_says_so_and_what_is_no_line_is_none() {
    let gone = br#"{"type": "ERROR", "object": {"code": 410, "message": "too old"}}"#;
    let error = read::<Named>(gone, "/p").expect_err("it failed");
    assert!(error.is_gone(), "{error}");
    for line in [
        &b"{"[..],
        b"{}",
        br#"{"type": "ADDED", "object": {}}"#,
        b"[]",
    ] {
        let error = read::<Named>(line, "/p").expect_err("no line");
        assert!(matches!(error, ApiError::Malformed { .. }), "{error}");
    }
}
