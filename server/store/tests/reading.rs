//! What pages and API ask for.

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Evidence, Place, State};

use super::*;

both! {
    async fn events_come_newest_first_page_by_page_and_filtered(bench) {
        let at = |second: i64| START.start().shifted(second * 1_000_000_000);
        let mut first = commit(1, 0, START);
        // Three in one moment: the page ends between them.
        for (second, kind, id) in [
            (1, EventKind::Xid, "GPU-0"),
            (2, EventKind::Xid, "GPU-1"),
            (2, EventKind::GpuLost, "GPU-0"),
            (2, EventKind::Xid, "GPU-0"),
            (3, EventKind::GpuRecovered, "GPU-0"),
        ] {
            first.events.push(event(kind, id, at(second)));
        }
        first.events[4].event.severity = Severity::Info;
        bench.commit(&first).await;
        let all: Vec<StoredEvent> = first.events.iter().rev().cloned().collect();

        let mut found = Vec::new();
        let mut before = None;
        loop {
            let filter = EventFilter::default();
            let page = bench.store.events(&filter, before, 2).await.unwrap();
            assert!(page.events.len() <= 2);
            found.extend(page.events);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(found, all);

        let only = |filter: EventFilter| async move {
            bench.store.events(&filter, None, 10).await.unwrap().events
        };
        let of = |wanted: &dyn Fn(&StoredEvent) -> bool| -> Vec<StoredEvent> {
            all.iter().filter(|it| wanted(it)).cloned().collect()
        };
        let id = EventFilter { resource_id: Some("GPU-1".into()), ..EventFilter::default() };
        assert_eq!(only(id).await, of(&|it| &*it.event.resource_id == "GPU-1"));
        let ids: Vec<Arc<str>> = vec!["GPU-1".into(), "GPU-7".into()];
        let ids = EventFilter { resource_ids: ids, kind: Some(EventKind::Xid), ..EventFilter::default() };
        assert_eq!(only(ids).await, of(&|it| &*it.event.resource_id == "GPU-1"));
        let begins = |prefix: &str| EventFilter { id_prefix: Some(prefix.into()), ..EventFilter::default() };
        assert_eq!(only(begins("GPU-0")).await, of(&|it| &*it.event.resource_id == "GPU-0"));
        assert_eq!(only(begins("GPU-")).await.len(), 5);
        assert_eq!(only(begins("GPU_")).await, [], "no pattern");
        let kind = EventFilter { kind: Some(EventKind::Xid), ..EventFilter::default() };
        assert_eq!(only(kind).await, of(&|it| it.event.kind == EventKind::Xid));
        let about = |id: &str| EventFilter { resource_id: Some(id.into()), ..EventFilter::default() };
        let two = [about("GPU-0"), about("GPU-1"), about("GPU-9")];
        let mut newest = bench.store.events_of_each(&two, 1).await.unwrap();
        newest.sort_by(|a, b| a.event.resource_id.cmp(&b.event.resource_id));
        let newest_of = |id: &str| of(&|it| &*it.event.resource_id == id).remove(0);
        assert_eq!(newest, [newest_of("GPU-0"), newest_of("GPU-1")], "one of each");
        assert_eq!(bench.store.events_of_each(&[], 1).await.unwrap(), [], "nobody, not everybody");
        let bad = EventFilter { severity: Some(Severity::Warning), ..EventFilter::default() };
        assert_eq!(only(bad).await, of(&|it| it.event.severity == Severity::Warning));
        let worse = EventFilter { severity: Some(Severity::Error), ..EventFilter::default() };
        assert_eq!(only(worse).await, []);
        let time = EventFilter { from: Some(at(2)), until: Some(at(3)), ..EventFilter::default() };
        assert_eq!(only(time).await, of(&|it| it.event.at == at(2)));
        let elsewhere = EventFilter { cluster: Some("demo".into()), ..EventFilter::default() };
        assert_eq!(only(elsewhere).await, []);
        let nodes = EventFilter { resource_kind: Some(ResourceKind::Node), ..EventFilter::default() };
        assert_eq!(only(nodes).await, []);
    }
}

both! {
    async fn a_range_of_minutes_has_the_minutes_that_are_known_and_no_others(bench) {
        for (number, minute) in [(1, 0), (2, 1), (3, 5)] {
            bench.commit(&commit(number, 2, Minute(START.0 + minute))).await;
        }
        let found = bench.store.minutes(&key("GPU-1"), Minute(START.0 + 1)..Minute(START.0 + 6)).await;
        let found: Vec<i64> = found.unwrap().rows.keys().map(|it| it.0 - START.0).collect();
        assert_eq!(found, [1, 5]);
        let nobody = bench.store.minutes(&key("GPU-9"), START..Minute(START.0 + 6)).await.unwrap();
        assert_eq!(nobody, Minutes::default());
        // Of a range that is too long the last part is read.
        let found = bench.store.minutes(&key("GPU-1"), Minute(0)..Minute(START.0 + 6)).await.unwrap();
        assert_eq!(found.rows.len(), 3);
    }
}

both! {
    async fn resources_come_in_pages(bench) {
        bench.commit(&commit(1, 5, START)).await;
        let page = bench.store.resource_page(None, None, None).await.unwrap();
        assert_eq!((page.resources.len(), page.next), (5, None));
        let second = bench.int("SELECT MIN(id) + 1 FROM subject").await;
        let page = bench.store.resource_page(None, None, Some(second)).await.unwrap();
        assert_eq!(page.resources.len(), 3);
        let none = bench.store.resource_page(None, Some(ResourceKind::Node), None).await.unwrap();
        assert_eq!(none, ResourcePage::default());
    }
}

both! {
    async fn resources_are_found_by_name_and_gpus_by_who_told_of_them(bench) {
        let mut first = commit(1, 3, START);
        let machine = ResourceKey { kind: ResourceKind::Node, id: "node-1".into(), ..key("") };
        first.resources.push(known(&machine, START));
        first.resources[2].agent = Some(AgentId(Uuid::from_u128(9)));
        bench.commit(&first).await;
        let other = ResourceKey { cluster: "other".into(), ..key("GPU-0") };
        let asked = [machine.clone(), key("GPU-1"), key("GPU-9"), other];
        let mut found = bench.store.resources_named(&asked).await.unwrap();
        found.sort_by(|one, two| one.key.cmp(&two.key));
        let mut expected = vec![known(&machine, START), known(&key("GPU-1"), START)];
        expected.sort_by(|one, two| one.key.cmp(&two.key));
        assert_eq!(found, expected);
        assert_eq!(bench.store.resources_named(&[]).await.unwrap(), []);
        let told = async |cluster| bench.store.gpus_told_by(cluster, AGENT).await.unwrap();
        let expected = [known(&key("GPU-0"), START), known(&key("GPU-1"), START)];
        assert_eq!(told("live").await, expected);
        assert_eq!(told("other").await, []);
    }
}

both! {
    async fn the_size_of_the_database_grows_with_what_is_in_it(bench) {
        let before = bench.store.size_bytes().await.unwrap();
        bench.commit(&commit(1, 3_000, START)).await;
        let grown = bench.store.size_bytes().await.unwrap() - before;
        assert!((300_000..5_000_000).contains(&grown), "{grown}");
        bench.store.check().await.unwrap();
    }
}

both! {
    async fn what_broke_is_known_after_a_start_unless_it_worked_since_or_was_mended(bench) {
        let at = |second: i64| START.start().shifted(second * 1_000_000_000);
        let mut first = commit(1, 3, START);
        // All three work in the first minute; GPU-0 also in the third.
        first.minutes.extend(commit(1, 1, Minute(START.0 + 2)).minutes);
        for id in ["GPU-0", "GPU-1", "GPU-2"] {
            first.events.push(event(EventKind::Xid, id, at(30)));
        }
        first.events.push(event(EventKind::GpuReset, "GPU-2", at(40)));
        bench.commit(&first).await;
        let broken = |since| bench.store.broken(at(since), at(300));
        let found = broken(0).await.unwrap();
        let names: Vec<_> = found.iter().map(|(key, health)| (&*key.id, health.at)).collect();
        assert_eq!(names, [("GPU-1", at(30))]);
        assert_eq!(broken(31).await.unwrap(), []);
    }
}

both! {
    async fn what_events_said_of_gpus_that_may_stand_is_known_after_a_start(bench) {
        let at = |second: i64| START.start().shifted(second * 1_000_000_000);
        let xid = |code: &str, action: &str, id: &str, second: i64| {
            let mut xid = event(EventKind::Xid, id, at(second));
            let texts = [("xid", code), ("action", action)];
            xid.event.attributes = texts.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
            xid
        };
        let mut first = commit(1, 3, START);
        for second in [0, 10, 20, 30] {
            first.events.push(xid("79", "reboot_node", "GPU-0", second));
        }
        first.events.extend([
            xid("13", "application_error", "GPU-1", 15),
            xid("43", "observe", "GPU-2", 28),
            event(EventKind::GpuReset, "GPU-0", at(5)),
            event(EventKind::GpuReset, "GPU-0", at(12)),
            event(EventKind::GpuRecovered, "GPU-0", at(14)),
            event(EventKind::GpuReset, "GPU-2", at(25)),
        ]);
        bench.commit(&first).await;
        let named = |told: Vec<StoredEvent>| -> Vec<(String, String, i64)> {
            let of = |it: &StoredEvent| {
                let (kind, id) = (it.event.kind.name(), &it.event.resource_id);
                (id.to_string(), kind.to_owned(), it.event.at.since(at(0)) / 1_000_000_000)
            };
            told.iter().map(of).collect()
        };
        let of = |id: &str, kind: &str, second: i64| (id.to_owned(), kind.to_owned(), second);
        let late = [
            of("GPU-0", "gpu_reset", 12),
            of("GPU-0", "gpu_recovered", 14),
            of("GPU-1", "xid", 15),
            of("GPU-0", "xid", 20),
            of("GPU-0", "xid", 30),
        ];
        assert_eq!(named(bench.store.told(at(11)).await.unwrap()), late);
        assert_eq!(bench.store.told(at(31)).await.unwrap(), []);

        // What is owed for longer is known of what an open incident is about.
        let about = |id: &str, state| {
            let place = Place::gpu("live", "node-1", id);
            let mut incident = crate::notify::fixture::incident(1);
            (incident.state, incident.place) = (state, place.clone());
            incident.evidence = vec![Evidence {
                at: at(0),
                place,
                what: "XID 79".to_owned(),
                cause: Cause::GpuFault,
                readings: Vec::new(),
            }];
            incident
        };
        let standing = [about("GPU-0", State::Open), about("GPU-1", State::Resolved)];
        let before = bench.store.told_before(at(11), &standing).await.unwrap();
        let expected = [
            of("GPU-0", "xid", 0),
            of("GPU-0", "xid", 10),
            of("GPU-0", "gpu_reset", 12),
            of("GPU-0", "gpu_recovered", 14),
        ];
        assert_eq!(named(before), expected);
    }
}

both! {
    async fn gpus_that_were_taken_out_are_known_after_a_start_with_what_brought_them_back(bench) {
        let at = |second: i64| START.start().shifted(second * 1_000_000_000);
        let mut first = commit(1, 3, START);
        first.events.extend([
            event(EventKind::GpuRemoved, "GPU-0", at(5)),
            event(EventKind::GpuAdded, "GPU-0", at(10)),
            event(EventKind::GpuRemoved, "GPU-0", at(20)),
            event(EventKind::GpuRemoved, "GPU-1", at(25)),
            event(EventKind::GpuAdded, "GPU-1", at(30)),
            event(EventKind::GpuAdded, "GPU-2", at(30)),
        ]);
        bench.commit(&first).await;
        let found = bench.store.removed(at(15)).await.unwrap();
        let expected = [1, 2, 3, 4].map(|it| first.events[it].clone());
        assert_eq!(found, expected);
        assert_eq!(bench.store.removed(at(26)).await.unwrap(), []);
    }
}

/// Where SQLite is not told what is in the table, it looks for them among all events of their time: half a second of a
/// million.
#[tokio::test]
async fn events_are_found_by_the_index_of_what_is_asked_for_on_sqlite() {
    let about = EventFilter {
        cluster: Some("live".into()),
        resource_kind: Some(ResourceKind::Gpu),
        resource_id: Some("GPU-0".into()),
        ..EventFilter::default()
    };
    let kind = EventFilter {
        kind: Some(EventKind::Xid),
        from: Some(START.start()),
        ..EventFilter::default()
    };
    let until = Some(Minute(START.0 + 60).start());
    let resource = "event_by_resource (lease=? AND cluster=? AND resource_kind=? AND resource_id";
    let bench = Bench::sqlite().await;
    for (filter, index) in [
        (about.clone(), format!("{resource}=?)")),
        (
            EventFilter {
                kind: kind.kind,
                until,
                ..about.clone()
            },
            format!("{resource}=? AND at_ms<?)"),
        ),
        (
            EventFilter {
                until,
                resource_id: about.resource_id.clone(),
                resource_kind: about.resource_kind,
                cluster: about.cluster.clone(),
                ..kind.clone()
            },
            format!("{resource}=? AND at_ms>? AND at_ms<?)"),
        ),
        (
            EventFilter {
                resource_kind: Some(ResourceKind::Rank),
                resource_id: None,
                id_prefix: Some("team/llama/u1/0/".into()),
                from: kind.from,
                until,
                ..about.clone()
            },
            format!("{resource}>? AND resource_id<?)"),
        ),
        (
            kind.clone(),
            "event_by_kind (lease=? AND kind=? AND at_ms>?)".to_owned(),
        ),
        (
            EventFilter {
                cluster: about.cluster.clone(),
                // A node and its GPUs: of one or two SQLite goes by the index of resources.
                resource_ids: (0..9).map(|it| format!("GPU-{it}").into()).collect(),
                until,
                ..kind.clone()
            },
            "event_by_kind (lease=? AND kind=? AND at_ms>? AND at_ms<?)".to_owned(),
        ),
        (
            EventFilter { kind: None, ..kind },
            "event_by_time (lease=? AND at_ms>?)".to_owned(),
        ),
    ] {
        // As pages ask for many at once.
        let plan = bench.plan_of_events(&vec![filter; 8]).await;
        assert_eq!(plan.matches(&index).count(), 8, "{index}: {plan}");
    }
}

/// Those whose ids begin alike are found among many by the index of resources, whatever order of words the database has.
async fn events_of_one_run(bench: &Bench) {
    let mut first = commit(1, 0, START);
    let ids = [
        "team/a%20b/u1/0/7",
        "team/llama/u1/0/0",
        "team/llama/u1/0/12",
        "team/llama/u1/00/1",
        "team/llama/u1/1/0",
        "team/LLAMA/u1/0/0",
        "team/llama-2/u1/0/0",
    ];
    let events = ids
        .into_iter()
        .map(|id| event(EventKind::RunStarted, id, START.start()));
    first.events.extend(events);
    bench.commit(&first).await;
    let filter = EventFilter {
        cluster: Some("live".into()),
        resource_kind: Some(ResourceKind::Gpu),
        id_prefix: Some("team/llama/u1/0/".into()),
        from: Some(START.start()),
        until: Some(Minute(START.0 + 1).start()),
        ..EventFilter::default()
    };
    let page = bench.store.events(&filter, None, 1).await.unwrap();
    let next = bench.store.events(&filter, page.next, 9).await.unwrap();
    let found = page.events.iter().chain(&next.events);
    let found: Vec<&str> = found.map(|it| &*it.event.resource_id).collect();
    assert_eq!(found, ["team/llama/u1/0/12", "team/llama/u1/0/0"]);
}

#[tokio::test]
async fn events_of_one_run_are_those_of_its_ranks_on_sqlite() {
    events_of_one_run(&Bench::sqlite().await).await;
}

#[tokio::test]
async fn events_of_one_run_are_those_of_its_ranks_on_a_postgres_that_sorts_by_words() {
    let bench = Bench::postgres_by_words().await;
    events_of_one_run(&bench).await;
    bench.drop_database().await;
}
