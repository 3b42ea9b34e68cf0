//! What the inventory saw of a node, and of who waits, stands in the hours of GPUs.

use gpufleet_analysis::inventory::unheld::Alike;
use gpufleet_analysis::inventory::{Node, Ready, Record};
use gpufleet_analysis::ledger::{LedgerHour, Reason, State};

use super::hours::{at, hour};
use super::*;

const HOUR_S: i64 = 3_600;

/// A node that was ready when it was first seen, at [`START`].
fn ready(name: &str) -> Record {
    let node = Node {
        name: name.to_owned(),
        gpus: 8,
        allocatable: 8,
        ready: Ready::Yes,
        ..Node::default()
    };
    Record::new(node, at(0))
}

/// It is seen so at a moment, and written.
async fn seen(bench: &Bench, record: &mut Record, seconds: i64, change: impl Fn(&mut Node)) {
    let mut node = record.node.clone();
    change(&mut node);
    record.take(node, at(seconds));
    write(bench, record).await;
}

async fn write(bench: &Bench, record: &Record) {
    let records = [record.clone()];
    let written = bench
        .store
        .write_inventory("live", (&records, &[]), bench.token);
    written.await.expect("the store answers");
}

/// An hour of GPU-0 on node-1: somebody works on it for a quarter, then nobody holds it.
fn worked_and_free(number: u64) -> Commit {
    let mut all = commit(number, 0, START);
    all.resources
        .push(known(&key("GPU-0"), Minute(START.0 + 59)));
    all.resources[0].first_seen = START.start();
    all.minutes.extend((0..60).map(|minute| {
        let mut row = row(minute < 15);
        if minute >= 15 {
            row.bitmaps.held = 0;
        }
        MinuteDelta {
            key: key("GPU-0"),
            minute: Minute(START.0 + minute),
            row,
        }
    }));
    all
}

/// Minutes in each of these states in the first hour.
fn minutes(hours: &[LedgerHour]) -> [i64; 4] {
    let first = hours.iter().find(|it| it.hour == hour());
    let first = first.expect("it is computed");
    [
        State::ActiveUnrated,
        State::Unallocated,
        State::Draining,
        State::Unhealthy,
    ]
    .map(|state| first.millis(state) / 60_000)
}

both! {
    async fn a_free_gpu_of_a_cordoned_node_drains_and_of_one_that_is_not_ready_it_is_unhealthy(bench) {
        let mut node = ready("node-1");
        write(bench, &node).await;
        bench.commit(&worked_and_free(1)).await;
        seen(bench, &mut node, 10 * 60, |it| it.cordoned = true).await;
        seen(bench, &mut node, 20 * 60, |it| it.cordoned = false).await;
        seen(bench, &mut node, 30 * 60, |it| it.ready = Ready::No).await;
        seen(bench, &mut node, 40 * 60, |it| it.ready = Ready::Yes).await;
        seen(bench, &mut node, 58 * 60, |it| it.cordoned = true).await;
        bench.compute(at(2 * HOUR_S)).await;
        // While somebody held it, nothing drained.
        assert_eq!(minutes(&bench.hours().await), [15, 28, 7, 10]);
        // The same in a week: it is by what was, not by what is.
        seen(bench, &mut node, 3 * HOUR_S, |it| it.ready = Ready::No).await;
        node.ends(at(4 * HOUR_S));
        write(bench, &node).await;
        bench.commit(&worked_and_free(2)).await;
        bench.compute(at(7 * 24 * HOUR_S)).await;
        assert_eq!(minutes(&bench.hours().await), [15, 28, 7, 10]);
    }
}

both! {
    async fn a_free_gpu_drains_while_its_machine_is_taken_back_and_not_the_one_that_comes_in_its_place(bench) {
        let mut all = worked_and_free(1);
        // Of a time in which somebody held it nothing is said, nor of another machine.
        for (node, minute) in [("node-1", 5), ("node-1", 30), ("node-2", 40)] {
            let mut noticed = event(EventKind::PreemptionNoticed, node, at(minute * 60));
            noticed.event.resource_kind = ResourceKind::Node;
            all.events.push(noticed);
        }
        bench.commit(&all).await;
        bench.compute(at(2 * HOUR_S)).await;
        assert_eq!(minutes(&bench.hours().await), [15, 44, 1, 0]);
    }
}

both! {
    async fn what_is_told_of_a_node_does_not_outlive_who_watches(bench) {
        let look = async |seconds| {
            let written = bench.store.write_inventory_seen("live", at(seconds), bench.token);
            written.await.expect("the store answers");
        };
        let mut node = ready("node-1");
        write(bench, &node).await;
        look(0).await;
        bench.commit(&worked_and_free(1)).await;
        seen(bench, &mut node, 20 * 60, |it| it.ready = Ready::No).await;
        for minute in (4..=30).step_by(2) {
            look(minute * 60).await;
        }
        bench.compute(at(2 * HOUR_S)).await;
        assert_eq!(minutes(&bench.hours().await), [15, 35, 0, 10]);
        // It is seen again, as it was: of the time between nothing is told.
        look(50 * 60).await;
        look(54 * 60).await;
        bench.commit(&worked_and_free(2)).await;
        bench.compute(at(2 * HOUR_S)).await;
        assert_eq!(minutes(&bench.hours().await), [15, 31, 0, 14]);
        seen(bench, &mut node, 57 * 60, |it| it.ready = Ready::Yes).await;
        look(58 * 60).await;
        bench.commit(&worked_and_free(3)).await;
        bench.compute(at(2 * HOUR_S)).await;
        assert_eq!(minutes(&bench.hours().await), [15, 28, 0, 17]);
    }
}

both! {
    async fn a_node_whose_phase_is_written_late_changes_hours_that_were_final(bench) {
        let mut node = ready("node-1");
        write(bench, &node).await;
        bench.commit(&worked_and_free(1)).await;
        bench.compute(at(2 * HOUR_S)).await;
        let hours = bench.hours().await;
        assert!(hours[0].is_final && minutes(&hours) == [15, 45, 0, 0]);
        seen(bench, &mut node, 30 * 60, |it| it.cordoned = true).await;
        assert!(bench.compute(at(2 * HOUR_S)).await > 0);
        let hours = bench.hours().await;
        assert!(hours[0].is_final && hours[0].is_restated);
        assert_eq!(minutes(&hours), [15, 15, 30, 0]);
        // What was written already, and what is no news of its phase, changes nothing.
        bench.compute(at(100 * HOUR_S)).await;
        seen(bench, &mut node, 40 * 60, |it| it.driver = "570".to_owned()).await;
        assert_eq!(bench.compute(at(100 * HOUR_S)).await, 0);
        assert_eq!(bench.int("SELECT COUNT(*) FROM inventory_phase").await, 2);
    }
}

both! {
    async fn a_node_with_its_domain_is_the_one_without_unless_it_could_be_one_of_two(bench) {
        let mut node = ready("node-1.rack-1");
        bench.commit(&worked_and_free(1)).await;
        seen(bench, &mut node, 30 * 60, |it| it.cordoned = true).await;
        bench.compute(at(2 * HOUR_S)).await;
        assert_eq!(minutes(&bench.hours().await), [15, 15, 30, 0]);
        write(bench, &ready("node-1.rack-2")).await;
        bench.commit(&worked_and_free(2)).await;
        bench.compute(at(2 * HOUR_S)).await;
        assert_eq!(minutes(&bench.hours().await), [15, 45, 0, 0]);
    }
}

both! {
    async fn phases_of_before_go_and_the_one_that_holds_stays_as_long_as_its_node(bench) {
        let mut node = ready("node-1");
        write(bench, &node).await;
        seen(bench, &mut node, 60, |it| it.cordoned = true).await;
        seen(bench, &mut node, 120, |it| it.cordoned = false).await;
        let old = |seconds| Expiry { events: at(seconds), ..keep_all() };
        assert_eq!(bench.store.retain(&old(121)).await.expect("the store answers").others, 2);
        assert_eq!(bench.store.retain(&old(HOUR_S)).await.expect("the store answers").others, 0);
        node.ends(at(HOUR_S));
        write(bench, &node).await;
        assert_eq!(bench.store.retain(&old(2 * HOUR_S)).await.expect("the store answers").others, 3, "with the node");
        assert_eq!(bench.int("SELECT COUNT(*) FROM inventory_phase").await, 0);
    }
}

both! {
    async fn a_free_gpu_is_without_demand_where_all_of_the_hour_nobody_was_seen_to_wait(bench) {
        let mut number = 0;
        for (seen_ms, waiting_gpu_ms, is_said) in [
            (3_599_000, 0, true),
            // Somebody waited for a moment, or half of the hour was not seen.
            (3_599_000, 1, false),
            (1_800_000, 0, false),
        ] {
            let seen = DemandHour { hour: hour(), seen_ms, nodes_seen_ms: 0, waiting_gpu_ms };
            bench.store.write_demand("live", &[seen], bench.token).await.expect("the store answers");
            number += 1;
            bench.commit(&worked_and_free(number)).await;
            bench.compute(at(2 * HOUR_S)).await;
            let hours = bench.hours().await;
            let free = hours[0].entries.iter().find(|it| it.state == State::Unallocated).expect("some of it is free");
            let reason = if is_said { Reason::NoDemand } else { Reason::Unknown };
            assert_eq!((free.reason, free.millis), (reason, 45 * 60_000));
        }
    }
}

both! {
    async fn a_free_gpu_says_minute_by_minute_why_nobody_has_one_like_it(bench) {
        let mut node = ready("node-1.rack-1");
        node.node.model = "h100".to_owned();
        node.node.kept_for = vec!["team=vision:NoSchedule".to_owned()];
        node.node.partitions = vec!["long".to_owned()];
        write(bench, &node).await;
        let in_partition = |partition: &str, model: &str, kept_for: &[String], minutes| FreeHour {
            hour: hour(),
            alike: Alike {
                model: model.to_owned(),
                kept_for: kept_for.to_vec(),
                partitions: vec![partition.to_owned()],
            },
            minutes,
        };
        let free = |model: &str, kept_for: &[String], minutes| in_partition("long", model, kept_for, minutes);
        let all = [
            free("h100", &node.node.kept_for, [0b111 << 14, 1 << 20, 1 << 59]),
            free("h100", &[], [u64::MAX >> 4, 0, 0]),
            free("l4", &node.node.kept_for, [0, u64::MAX >> 4, 0]),
            in_partition("short", "h100", &node.node.kept_for, [0, 0, u64::MAX >> 4]),
        ];
        for hours in [&all[..], &all[..1]] {
            bench.store.write_free("live", hours, bench.token).await.expect("the store answers");
        }
        let mut written = bench.store.free_hour("live", hour()).await.expect("the store answers");
        written.sort_by_key(|it| it.alike.clone());
        let mut expected = all.to_vec();
        expected.sort_by_key(|it| it.alike.clone());
        assert_eq!(written, expected);
        // Free from minute 15 on.
        bench.commit(&worked_and_free(1)).await;
        bench.compute(at(2 * HOUR_S)).await;
        let hours = bench.hours().await;
        let free = hours[0].entries.iter().filter(|it| it.state == State::Unallocated);
        let free: Vec<_> = free.map(|it| (it.reason, it.millis / 60_000)).collect();
        let expected = [
            (Reason::Unknown, 41),
            (Reason::NoDemand, 2),
            (Reason::Fragmented, 1),
            (Reason::ReservedHold, 1),
        ];
        assert_eq!(free, expected);
        let gone = Expiry { hours: hour() + 1, ..keep_all() };
        bench.store.retain(&gone).await.expect("the store answers");
        assert_eq!(bench.int("SELECT COUNT(*) FROM free_hour").await, 0);
    }
}

both! {
    async fn hours_of_before_partitions_were_read_keep_their_reasons(bench) {
        let mut node = ready("node-1.rack-1");
        node.node.partitions = vec!["long".to_owned()];
        write(bench, &node).await;
        let alike = Alike { partitions: Vec::new(), ..Alike::of(&node.node) };
        let before = FreeHour { hour: hour(), alike, minutes: [0b111 << 20, 0, 0] };
        bench.store.write_free("live", &[before], bench.token).await.expect("the store answers");
        bench.commit(&worked_and_free(1)).await;
        bench.compute(at(2 * HOUR_S)).await;
        let hours = bench.hours().await;
        let free = hours[0].entries.iter().find(|it| it.reason == Reason::NoDemand);
        assert_eq!(free.map(|it| it.millis), Some(3 * 60_000));
    }
}
