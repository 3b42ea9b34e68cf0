//! For how long the word counts that a pod has ended, and which of its containers wait.

use super::*;

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
