//! Of nodes that went, those that their provider said to take back: Spot machines for certain, whatever the inventory
//! knows of how they are paid for.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpufleet_analysis::ending::NodeLost;
use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::NANOS_PER_SECOND;

use super::GOES_WITHIN;
use crate::store::model::EventFilter;
use crate::store::{MAX_EVENT_IDS, MAX_EVENTS, Store, StoreError};

/// So long after a node was missed its notice may stand, by clocks that disagree, nanoseconds.
const AFTER_NS: i64 = 60 * NANOS_PER_SECOND;

/// Marks those that were taken back.
pub(super) async fn mark(
    store: &Store,
    cluster: &Arc<str>,
    lost: &mut [NodeLost],
) -> Result<(), StoreError> {
    let in_doubt = lost.iter().filter(|it| !it.is_spot);
    let in_doubt: Vec<Arc<str>> = in_doubt.map(|it| it.name.as_str().into()).collect();
    let first = lost.iter().map(|it| it.at).min();
    let last = lost.iter().map(|it| it.at).max();
    let mut noticed: BTreeSet<Arc<str>> = BTreeSet::new();
    for nodes in in_doubt.chunks(MAX_EVENT_IDS) {
        let filter = EventFilter {
            cluster: Some(Arc::clone(cluster)),
            resource_kind: Some(ResourceKind::Node),
            resource_ids: nodes.to_vec(),
            kind: Some(EventKind::PreemptionNoticed),
            from: first.map(|it| it.shifted(-GOES_WITHIN)),
            until: last.map(|it| it.shifted(AFTER_NS)),
            ..EventFilter::default()
        };
        let page = store.events(&filter, None, MAX_EVENTS).await?;
        noticed.extend(page.events.into_iter().map(|it| it.event.resource_id));
    }
    for it in lost {
        it.is_spot |= noticed.contains(it.name.as_str());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use gpufleet_telemetry::event::{Event, Severity};
    use gpufleet_telemetry::time::Timestamp;

    use super::*;
    use crate::store::StoreConfig;
    use crate::store::model::{Commit, StoredEvent};

    #[tokio::test]
    async fn a_node_that_was_said_to_be_taken_back_is_a_spot_one_and_no_other_is() {
        let at = |seconds: i64| Timestamp::from_seconds(1_790_000_000 + seconds);
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let store = store.expect("a new database opens");
        let lease = store.acquire_lease("s", at(0), Duration::from_secs(15));
        let token = lease.await.expect("nobody has it").token;
        let notice = |node: &str, seconds: i64| StoredEvent {
            cluster: "live".into(),
            agent: None,
            event: Event {
                at: at(seconds),
                kind: EventKind::PreemptionNoticed,
                severity: Severity::Warning,
                resource_kind: ResourceKind::Node,
                resource_id: node.into(),
                message: String::new(),
                attributes: BTreeMap::new(),
            },
        };
        // `b` was taken back long ago, and is another machine since.
        let commit = Commit {
            number: 1,
            events: vec![notice("a", 9_990), notice("b", 10)],
            ..Commit::default()
        };
        let written = store.commit(&commit, token).await;
        written.expect("the present holder");
        let lost = |name: &str| NodeLost {
            name: name.to_owned(),
            at: at(10_020),
            is_spot: false,
        };
        let mut all = [lost("a"), lost("b"), lost("c")];
        let marked = mark(&store, &"live".into(), &mut all).await;
        marked.expect("the store answers");
        assert_eq!(all.map(|it| it.is_spot), [true, false, false]);
    }
}
