//! Incidents: written again as they are, read newest first, kept while they are open.

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Book, Family, Incident, Nodes, Place, Signal, State, Tick};
use gpufleet_analysis::lost::Losing;

use super::*;

/// Incidents of GPUs of one node, a minute apart, made by the book itself.
fn made(count: u128) -> (Book, Vec<Incident>) {
    let mut book = Book::default();
    for number in 1..=count {
        let now = START.start().shifted(number as i64 * 60_000_000_000);
        let signals = (1..=number).map(|it| Signal {
            family: Family::GpuFault,
            place: Place::gpu("live", "node-1", &format!("GPU-{it}")),
            severity: Severity::Error,
            what: "XID 79".to_owned(),
            action: String::new(),
            cause: Cause::GpuFault,
            since: None,
            readings: Vec::new(),
            losing: Losing::gpus(1, Some(3_000_000_001)),
            booted_at: None,
        });
        let tick = Tick {
            now,
            signals: signals.collect(),
            is_heard: &|_| true,
            quiet_runs: &std::collections::BTreeSet::new(),
            nodes: &Nodes::from([(("live".to_owned(), "node-1".to_owned()), 100)]),
        };
        book.tick(tick, &mut || Uuid::from_u128(number));
    }
    let all = book.open_ones().cloned().collect();
    (book, all)
}

async fn read(bench: &Bench, filter: IncidentFilter) -> Vec<Incident> {
    let found = bench.store.incidents(&filter, None, 100).await;
    found.expect("the store answers")
}

both! {
    async fn an_incident_is_there_once_as_it_was_written_last(bench) {
        let (mut book, mut all) = made(3);
        bench.store.write_incidents(&all, bench.token).await.unwrap();
        book.acknowledge(all[1].id, "ada", START.start()).unwrap();
        all[1] = book.get(all[1].id).unwrap().clone();
        bench.store.write_incidents(&all[1..2], bench.token).await.unwrap();
        all.reverse();
        assert_eq!(read(bench, IncidentFilter::default()).await, all, "newest first");
        assert_eq!(bench.store.incident(all[0].id).await.unwrap().as_ref(), Some(&all[0]));
        let place = IncidentPlace { since: all[1].since, id: all[1].id };
        let older = bench.store.incidents(&IncidentFilter::default(), Some(place), 100).await;
        assert_eq!(older.unwrap(), all[2..]);
        for filter in [
            IncidentFilter { cluster: Some("other".into()), ..IncidentFilter::default() },
            IncidentFilter { family: Some(Family::Heat), ..IncidentFilter::default() },
            IncidentFilter { state: Some(State::Resolved), ..IncidentFilter::default() },
        ] {
            assert_eq!(read(bench, filter.clone()).await, [], "{filter:?}");
        }
    }
}

both! {
    async fn a_server_that_starts_is_told_what_stands_and_old_ends_go(bench) {
        let (_, mut all) = made(3);
        let over = START.start().shifted(600_000_000_000);
        for (incident, at) in all.iter_mut().zip([over, over.shifted(60_000_000_000)]) {
            (incident.state, incident.resolved_at) = (State::Resolved, Some(at));
        }
        bench.store.write_incidents(&all, bench.token).await.unwrap();
        let standing = bench.store.standing_incidents(over.shifted(1_000_000)).await.unwrap();
        let ids: Vec<_> = standing.iter().map(|it| it.id.as_u128()).collect();
        assert_eq!(ids, [3, 2], "what is open, and what was over lately");
        let expiry = Expiry {
            minutes: Minute(0),
            buckets: 0,
            steps: 0,
            hours: 0,
            events: over.shifted(1_000_000),
            senders: Timestamp(0),
            epochs: Timestamp(0),
            resources: Timestamp(0),
        };
        let gone = bench.store.retain(&expiry).await.unwrap();
        assert_eq!(gone.others, 1);
        assert_eq!(read(bench, IncidentFilter::default()).await.len(), 2);
    }
}

both! {
    async fn a_server_that_was_replaced_writes_none(bench) {
        let (_, all) = made(1);
        let old = FencingToken(bench.token.0 - 1);
        assert!(matches!(
            bench.store.write_incidents(&all, old).await,
            Err(CommitError::Fenced { .. })
        ));
        assert_eq!(read(bench, IncidentFilter::default()).await, []);
    }
}

both! {
    async fn an_incident_that_cannot_be_read_is_set_aside(bench) {
        let (_, all) = made(2);
        bench.store.write_incidents(&all, bench.token).await.unwrap();
        let sql = "UPDATE incident SET data = '{' WHERE since_ms = (SELECT MAX(since_ms) FROM incident)";
        assert_eq!(bench.execute(sql).await, 1);
        assert_eq!(read(bench, IncidentFilter::default()).await, all[..1]);
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside WHERE source = 'incident'").await, 1);
        assert_eq!(bench.int("SELECT COUNT(*) FROM incident").await, 1);
    }
}
