//! The inventory: nodes as they were written last, what happened to them, and what goes when it is old.

use gpufleet_analysis::inventory::change::Change;
use gpufleet_analysis::inventory::{Node, Phase, Ready, Record};

use super::hours::at;
use super::*;

fn record(name: &str, gpus: u32) -> Record {
    let node = Node {
        name: name.to_owned(),
        gpus,
        allocatable: gpus,
        ready: Ready::Yes,
        ..Node::default()
    };
    Record::new(node, at(0))
}

fn change(seconds: i64, node: &str, what: &str) -> Change {
    Change {
        at: at(seconds),
        node: node.to_owned(),
        what: what.to_owned(),
    }
}

/// What is old before this goes.
fn expiry(events: Timestamp) -> Expiry {
    Expiry {
        events,
        ..keep_all()
    }
}

both! {
    async fn a_node_is_there_once_as_it_was_written_last_and_gone_ones_go_when_they_are_old(bench) {
        let (mut first, second) = (record("a", 8), record("b", 4));
        let all = [first.clone(), second.clone()];
        let changes = [change(1, "a", "came"), change(2, "b", "came")];
        let store = &bench.store;
        store.write_inventory("live", (&all, &changes), bench.token).await.unwrap();
        first.ends(at(60));
        let news = [change(60, "a", "is gone")];
        let gone = [first.clone()];
        // Written twice, as after an answer that was lost.
        for _ in 0..2 {
            let written = store.write_inventory("live", (&gone, &news), bench.token);
            written.await.unwrap();
        }
        let known = store.inventory("live", at(0)).await.unwrap();
        assert_eq!(known, [first.clone(), second.clone()]);
        assert_eq!(known[0].phase(), Phase::Gone);
        let still = store.inventory("live", at(61)).await.unwrap();
        assert_eq!(still.iter().collect::<Vec<_>>(), [&second]);
        assert_eq!(store.inventory("other", at(0)).await.unwrap(), []);
        let told = store.inventory_changes("live", at(2)).await.unwrap();
        assert_eq!(told, [news[0].clone(), changes[1].clone()], "the newest first");
        let gone = store.retain(&expiry(at(60))).await.unwrap();
        assert_eq!(gone.others, 2, "the two first changes");
        let gone = store.retain(&expiry(at(61))).await.unwrap();
        assert_eq!(gone.others, 2, "the node that is gone, and that it went");
        assert_eq!(store.inventory("live", at(0)).await.unwrap(), [second]);
    }
}

both! {
    async fn a_server_that_was_replaced_writes_no_node(bench) {
        let old = FencingToken(bench.token.0 - 1);
        let all = [record("a", 8)];
        let written = bench.store.write_inventory("live", (&all, &[]), old).await;
        assert!(matches!(written, Err(CommitError::Fenced { .. })));
        assert_eq!(bench.store.inventory("live", at(0)).await.unwrap(), []);
    }
}

both! {
    async fn a_node_whose_row_is_spoilt_stops_no_other_and_is_written_anew(bench) {
        let all = [record("a", 8), record("b", 4)];
        bench.store.write_inventory("live", (&all, &[]), bench.token).await.unwrap();
        let sql = "UPDATE inventory_node SET data = '{' WHERE name = 'a'";
        assert_eq!(bench.execute(sql).await, 1);
        assert_eq!(bench.store.inventory("live", at(0)).await.unwrap(), all[1..]);
        bench.store.write_inventory("live", (&all[..1], &[]), bench.token).await.unwrap();
        assert_eq!(bench.store.inventory("live", at(0)).await.unwrap(), all);
    }
}
