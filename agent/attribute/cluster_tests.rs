//! For how long the word counts that a pod has ended, and which of its containers wait.

use std::path::PathBuf;

use super::*;

/// How long nothing is asked of a server that answers at once, until it is believed that nothing will be.
const QUIET: Duration = Duration::from_millis(100);

#[tokio::test]
async fn pods_are_watched_from_when_somebody_says_which_of_them_has_which_gpu() {
    let (asked, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let router = axum::Router::new().fallback(move |uri: axum::http::Uri| async move {
        let _ = asked.send(uri.path().to_owned());
        axum::http::StatusCode::NOT_FOUND
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").expect("written");
    let config = AttributeConfig {
        kubelet_socket: PathBuf::new(),
        kubernetes_url: format!("http://{address}"),
        kubernetes_token_file: token,
        ..AttributeConfig::default()
    };
    let cluster = Cluster::start("n", &config).expect("it has an address");
    assert_eq!(seen.recv().await.as_deref(), Some("/api/v1/nodes/n"));
    let more = tokio::time::timeout(QUIET, seen.recv()).await;
    assert!(more.is_err(), "{more:?}");
    cluster.watch_pods();
    assert_eq!(seen.recv().await.as_deref(), Some("/api/v1/pods"));
}

#[test]
fn that_a_pod_has_ended_counts_while_the_server_tells_of_changes() {
    let pod = |uid: &str, is_over| Pod {
        uid: uid.to_owned(),
        namespace: "a".to_owned(),
        name: uid.to_owned(),
        is_over,
        waiting: Waiting::Named(BTreeSet::new()),
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

#[test]
fn a_container_waits_until_the_kubelet_says_otherwise_and_where_nobody_says_it_does_not() {
    let waits = |status: &str, container: &str| {
        let status: Status = serde_json::from_str(status).expect("it is a status");
        status.waiting().has(container)
    };
    // As the API server has a pod that was just bound, and one that was never heard of.
    assert!(waits(r#"{"phase": "Pending"}"#, "main"));
    assert!(!waits(r#"{"phase": "Running"}"#, "main"));
    assert!(!waits("{}", "main"));
    let begins = r#"{"phase": "Pending",
        "initContainerStatuses": [{"name": "fetch", "state": {"running": {"startedAt": "2026-11-23T10:00:00Z"}}}],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}]}"#;
    assert!(waits(begins, "main") && !waits(begins, "fetch"));
    let fails = r#"{"phase": "Running", "containerStatuses": [
        {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}},
        {"name": "done", "state": {"terminated": {"exitCode": 0}}}]}"#;
    assert!(waits(fails, "main") && !waits(fails, "done"));
}

#[test]
fn that_a_container_waits_counts_while_the_server_tells_of_changes() {
    let mut known = Snapshot::default();
    Arc::make_mut(&mut known.pods).put(Pod {
        uid: "u".to_owned(),
        namespace: "a".to_owned(),
        name: "new".to_owned(),
        is_over: false,
        waiting: Waiting::Named(BTreeSet::from(["main".to_owned()])),
        facts: Facts::new(),
    });
    let starts = |known: &Snapshot, container: &str| known.is_starting("a", "new", container);
    assert!(!starts(&known, "main"), "it was never heard");
    known.standing.heard();
    assert!(starts(&known, "main") && !starts(&known, "sidecar"));
    known.standing.failed(Source::Kubernetes, "gone".to_owned());
    assert!(!starts(&known, "main"));
}
