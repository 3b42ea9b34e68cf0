//! For how long the word counts that a pod has ended.

use super::*;

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
