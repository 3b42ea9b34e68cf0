//! Incidents: written again as they are, read newest first, kept while they are open.

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{
    Book, Evidence, Family, Incident, Nodes, Place, Signal, State, Tick,
};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::price::{Basis, Price};

use super::*;
use crate::money::budgets;
use crate::notify::fixture::{broken, settings};
use crate::notify::group::Group;
use crate::notify::outbox::Unread;
use crate::notify::settings::Kind;
use crate::notify::silence::{Pattern, Silence};
use crate::store::aside::{Place as Where, Unreadable};

/// Incidents of GPUs of one node, a minute apart, made by the book itself.
fn made(count: u128) -> (Book, Vec<Incident>) {
    let mut book = Book::default();
    for number in 1..=count {
        let now = START.start().shifted(number as i64 * 60_000_000_000);
        let signals = (1..=number).map(|it| Signal {
            price: Price::of(Basis::BrokenGpu, Losing::gpus(1, Some(3_000_000_001))),
            ..broken(Place::gpu("live", "node-1", &format!("GPU-{it}")))
        });
        let tick = Tick {
            now,
            signals: signals.collect(),
            is_heard: &|_, _| true,
            in_its_place: &|_, _| None,
            is_forgotten: &|_, _| false,
            quiet_runs: &std::collections::BTreeSet::new(),
            nodes: &Nodes::from([(("live".to_owned(), "node-1".to_owned()), 100)]),
            runs: &Default::default(),
        };
        book.tick(tick, &mut || Uuid::from_u128(number));
    }
    let all = book.open_ones().cloned().collect();
    (book, all)
}

/// Incidents that were over before this go, and nothing else does.
fn expiry(events: Timestamp) -> Expiry {
    Expiry {
        events,
        ..keep_all()
    }
}

async fn read(bench: &Bench, filter: IncidentFilter) -> Vec<Incident> {
    let found = bench.store.incidents(&filter, None, 100).await;
    found.expect("the store answers").0
}

both! {
    async fn an_incident_is_there_once_as_it_was_written_last(bench) {
        let (mut book, mut all) = made(3);
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        book.acknowledge(all[1].id, "ada", START.start()).unwrap();
        all[1] = book.get(all[1].id).unwrap().clone();
        bench.store.write_incidents(&all[1..2], &[], bench.token).await.unwrap();
        all.reverse();
        assert_eq!(read(bench, IncidentFilter::default()).await, all, "newest first");
        assert_eq!(bench.store.incident(all[0].id).await.unwrap().as_ref(), Some(&all[0]));
        let place = IncidentPlace { since: all[1].since, id: all[1].id };
        let older = bench.store.incidents(&IncidentFilter::default(), Some(place), 100).await;
        assert_eq!(older.unwrap(), (all[2..].to_vec(), None));
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
    async fn who_asks_for_a_cluster_gets_the_budgets_that_name_it_and_not_those_of_all(bench) {
        let mut all: Vec<Incident> = (1..=4).map(|it| of(it, None)).collect();
        for (one, cluster) in all[1..].iter_mut().zip(["", "prod", "other"]) {
            (one.family, one.place) = (Family::Budget, budgets::place(cluster, "science"));
        }
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let of_prod = IncidentFilter { cluster: Some("prod".into()), ..IncidentFilter::default() };
        let expected = [all[2].clone(), all[0].clone()];
        assert_eq!(read(bench, of_prod.clone()).await, expected);
        let met: Vec<bool> = all.iter().map(|it| of_prod.is_met(it)).collect();
        assert_eq!(met, [true, false, true, false]);
    }
}

/// The incident of a GPU of its own node, `node-<number>`; of a `run` its evidence says.
fn of(number: u128, run: Option<&str>) -> Incident {
    let mut one = crate::notify::fixture::incident(number);
    one.since = START.start().shifted(number as i64 * 60_000_000_000);
    one.place.node = Some(format!("node-{number}"));
    one.evidence.extend(run.map(|run| Evidence {
        at: one.since,
        place: Place {
            run: Some(run.to_owned()),
            ..one.place.clone()
        },
        what: "slow".to_owned(),
        cause: Cause::Heat,
        readings: Vec::new(),
    }));
    one
}

both! {
    async fn names_and_severities_are_looked_for_behind_what_others_are_and_one_that_is_spoilt(bench) {
        let quoted = "node\"1\\ü";
        let mut all: Vec<Incident> = (1..=12).map(|it| of(it, None)).collect();
        all[0] = of(1, Some("team/llama/u1/0"));
        all[1] = of(2, Some("team/llama-b/u2/0"));
        all[2].place.node = Some(quoted.to_owned());
        all[3].severity = Severity::Info;
        all[4].severity = Severity::Warning;
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let spoil = "UPDATE incident SET data = replace(data, 'gpu_fault', 'of_a_newer_version') WHERE since_ms =
            (SELECT MAX(since_ms) FROM incident)";
        assert_eq!(bench.execute(spoil).await, 1);
        let none = IncidentFilter::default();
        let some = |it: &str| Some(it.to_owned());
        for (filter, expected) in [
            (IncidentFilter { node: some("node-1"), ..none.clone() }, vec![1]),
            (IncidentFilter { node: some(quoted), ..none.clone() }, vec![3]),
            (IncidentFilter { node: some("node-12"), ..none.clone() }, vec![]),
            (IncidentFilter { gpu: some("GPU-7"), ..none.clone() }, vec![7]),
            (IncidentFilter { run: some("llama"), ..none.clone() }, vec![1]),
            (IncidentFilter { run: some("team/llama"), ..none.clone() }, vec![1]),
            (IncidentFilter { run: some("team/llama-b/u2/0"), ..none.clone() }, vec![2]),
            (IncidentFilter { severity: Some(Severity::Error), ..none.clone() }, vec![11, 10]),
            (IncidentFilter { severity: Some(Severity::Warning), node: some("node-4"), ..none.clone() }, vec![]),
            (IncidentFilter { severity: Some(Severity::Info), node: some("node-4"), ..none }, vec![4]),
        ] {
            // On a page of three what is asked for has its place, whatever is newer.
            let (mut found, _) = bench.store.incidents(&filter, None, 3).await.unwrap();
            found.retain(|it| filter.is_met(it));
            let found: Vec<u128> = found.iter().map(|it| it.id.as_u128()).collect();
            assert_eq!(found, expected, "{filter:?}");
        }
    }
}

both! {
    async fn incidents_of_a_time_are_those_that_had_begun_and_were_not_over(bench) {
        let mut all: Vec<Incident> = (1..=4).map(|it| of(it, None)).collect();
        let minute = |number: i64| START.start().shifted(number * 60_000_000_000);
        for (one, end) in all.iter_mut().zip([2, 6]) {
            (one.state, one.resolved_at) = (State::Resolved, Some(minute(end)));
        }
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        for (from, to, expected) in [
            (None, Some(3), vec![2, 1]),
            (Some(2), None, vec![4, 3, 2, 1]),
            (Some(3), None, vec![4, 3, 2]),
            (Some(7), None, vec![4, 3]),
            (Some(3), Some(4), vec![3, 2]),
        ] {
            let filter = IncidentFilter { from: from.map(minute), to: to.map(minute), ..IncidentFilter::default() };
            let found = read(bench, filter.clone()).await;
            assert!(found.iter().all(|it| filter.is_met(it)), "{filter:?}");
            let found: Vec<u128> = found.iter().map(|it| it.id.as_u128()).collect();
            assert_eq!(found, expected, "{filter:?}");
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
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let (standing, unread) = bench.store.standing_incidents(over.shifted(1_000_000)).await.unwrap();
        assert_eq!(unread, Unread::default());
        let ids: Vec<_> = standing.iter().map(|it| it.id.as_u128()).collect();
        assert_eq!(ids, [3, 2], "what is open, and what was over lately");
        let gone = bench.store.retain(&expiry(over.shifted(1_000_000))).await.unwrap();
        assert_eq!(gone.others, 1);
        assert_eq!(read(bench, IncidentFilter::default()).await.len(), 2);
    }
}

both! {
    async fn one_that_cannot_be_read_ends_no_list_before_those_behind_it(bench) {
        let (_, all) = made(5);
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let spoil = "UPDATE incident SET data = replace(data, 'gpu_fault', 'of_a_newer_version') WHERE since_ms =
            (SELECT MAX(since_ms) FROM incident)";
        assert_eq!(bench.execute(spoil).await, 1);
        let (mut pages, mut place) = (Vec::new(), None);
        loop {
            let (page, next) = bench.store.incidents(&IncidentFilter::default(), place, 2).await.unwrap();
            pages.push(page.iter().map(|it| it.id.as_u128()).collect::<Vec<_>>());
            place = next;
            if place.is_none() {
                break;
            }
        }
        assert_eq!(pages, [vec![4], vec![3, 2], vec![1]], "the newest is the one");
        assert_eq!(read(bench, IncidentFilter::default()).await.len(), 4);
    }
}

both! {
    async fn a_server_that_was_replaced_writes_none(bench) {
        let (_, all) = made(1);
        let old = FencingToken(bench.token.0 - 1);
        assert!(matches!(
            bench.store.write_incidents(&all, &[], old).await,
            Err(CommitError::Fenced { .. })
        ));
        assert_eq!(read(bench, IncidentFilter::default()).await, []);
    }
}

both! {
    async fn an_incident_that_cannot_be_read_is_set_aside(bench) {
        let (_, all) = made(2);
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let sql = "UPDATE incident SET data = '{' WHERE since_ms = (SELECT MAX(since_ms) FROM incident)";
        assert_eq!(bench.execute(sql).await, 1);
        assert_eq!(read(bench, IncidentFilter::default()).await, all[..1]);
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside WHERE source = 'incident'").await, 1);
        assert_eq!(bench.int("SELECT COUNT(*) FROM incident").await, 1);
    }
}

both! {
    async fn an_open_incident_that_is_spoilt_is_known_to_a_server_that_starts(bench) {
        let (_, all) = made(2);
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let sql = "UPDATE incident SET data = '{' WHERE since_ms = (SELECT MAX(since_ms) FROM incident)";
        assert_eq!(bench.execute(sql).await, 1);
        let (standing, unread) = bench.store.standing_incidents(START.start()).await.unwrap();
        assert_eq!(standing, all[..1]);
        assert_eq!(unread, Unread { spoilt: [all[1].id].into(), ..Unread::default() });
    }
}

both! {
    async fn a_link_goes_with_its_incident_although_its_group_never_ends(bench) {
        let (_, mut all) = made(2);
        let over = START.start().shifted(600_000_000_000);
        (all[0].state, all[0].resolved_at) = (State::Resolved, Some(over));
        let way = settings(&[("am", Kind::Alertmanager)]).ways.remove(0);
        let mut group = Group::new(Uuid::from_u128(9), &way, Vec::new(), START.start());
        for incident in &all {
            let mut open = incident.clone();
            open.resolved_at = None;
            group.take(&open, None, START.start());
        }
        bench.store.write_incidents(&all, &[group], bench.token).await.unwrap();
        assert_eq!(bench.int("SELECT COUNT(*) FROM delivery_incident").await, 2);
        for _ in 0..2 {
            bench.store.retain(&expiry(over.shifted(1_000_000))).await.unwrap();
        }
        assert_eq!(bench.int("SELECT COUNT(*) FROM delivery").await, 1);
        assert_eq!(bench.int("SELECT COUNT(*) FROM delivery_incident").await, 1);
        let told = bench.store.deliveries_of(all[1].id).await.unwrap();
        assert_eq!(told.len(), 1, "what is open has its link");
    }
}

both! {
    async fn what_only_a_newer_version_understands_stays_where_it_is(bench) {
        let (_, all) = made(2);
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let newest = "since_ms = (SELECT MAX(since_ms) FROM incident)";
        let sql = format!("UPDATE incident SET data = '{{\"family\":\"not known yet\"}}' WHERE {newest}");
        assert_eq!(bench.execute(&sql).await, 1);
        for _ in 0..2 {
            assert_eq!(read(bench, IncidentFilter::default()).await, all[..1]);
            let (_, unread) = bench.store.standing_incidents(START.start()).await.unwrap();
            assert_eq!(unread, Unread { newer: [all[1].id].into(), ..Unread::default() });
        }
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside").await, 0);
        assert_eq!(bench.int("SELECT COUNT(*) FROM incident").await, 2);
    }
}

both! {
    async fn a_row_that_was_written_anew_since_it_was_read_is_left_alone(bench) {
        let (_, all) = made(1);
        bench.store.write_incidents(&all, &[], bench.token).await.unwrap();
        let error = serde_json::from_str::<serde_json::Value>("{").unwrap_err();
        let place = Where::Incident { id: all[0].id, at_ms: 0 };
        let stale = Unreadable::json(place, b"{", &error);
        bench.store.set_aside(&[stale]).await.unwrap();
        assert_eq!(read(bench, IncidentFilter::default()).await, all);
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside").await, 1, "what was read");
    }
}

both! {
    async fn a_silence_is_kept_until_it_ends_by_lease_and_only_by_who_has_the_right_to_write(bench) {
        let silence = |number: u128, seconds: i64| Silence {
            id: Uuid::from_u128(number),
            pattern: Pattern { node: Some("gke-a3-*".to_owned()), ..Pattern::default() },
            until: START.start().shifted(seconds * 1_000_000_000),
            since: START.start(),
            who: "ada".to_owned(),
            note: "cooling works".to_owned(),
        };
        let now = START.start();
        for one in [silence(1, 60), silence(2, 120)] {
            bench.store.keep_silence(&one, now, bench.token).await.unwrap();
        }
        assert_eq!(bench.store.silences(now).await.unwrap(), [silence(2, 120), silence(1, 60)]);
        let later = now.shifted(60_000_000_000);
        assert_eq!(bench.store.silences(later).await.unwrap(), [silence(2, 120)]);
        let wrong = FencingToken(bench.token.0 + 1);
        assert!(bench.store.keep_silence(&silence(3, 60), now, wrong).await.is_err());
        assert!(bench.store.forget_silence(silence(2, 0).id, wrong).await.is_err());
        bench.store.keep_silence(&silence(4, 180), later, bench.token).await.unwrap();
        assert_eq!(bench.store.silences(now).await.unwrap(), [silence(4, 180), silence(2, 120)]);
        bench.store.forget_silence(silence(2, 0).id, bench.token).await.unwrap();
        assert_eq!(bench.store.silences(now).await.unwrap(), [silence(4, 180)]);
        let config = StoreConfig { lease: "other".to_owned(), ..bench.config.clone() };
        let store = Store::open(&config).await.unwrap();
        assert_eq!(store.silences(now).await.unwrap(), []);
        store.close().await;
    }
}
