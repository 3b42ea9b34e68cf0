//! What is forgotten: epochs that are over, resources that are gone; and what is not.

use super::hours::{at, hour};
use super::*;

const DAY_S: i64 = 86_400;

/// A cursor of agent `agent` in its epoch `epoch`, heard so many seconds after [`START`].
fn heard(agent: u128, epoch: u128, stream: Stream, seconds: i64) -> Cursor {
    Cursor {
        key: CursorKey {
            agent: AgentId(Uuid::from_u128(agent)),
            epoch: Epoch(Uuid::from_u128(epoch)),
            stream,
        },
        seen: at(seconds),
        ..cursor(9)
    }
}

/// Nothing is too old.
pub(super) fn keep_all() -> Expiry {
    Expiry {
        minutes: Minute(0),
        buckets: 0,
        steps: 0,
        days: 0,
        hours: 0,
        events: Timestamp(0),
        senders: Timestamp(0),
        epochs: Timestamp(0),
        resources: Timestamp(0),
    }
}

both! {
    async fn an_epoch_is_forgotten_when_a_younger_one_is_older_than_spools_keep_data(bench) {
        use Stream::{Logs, Metrics};
        // Agent 1 replaced its epoch 1 by 2 on the first day and drained it on the second. Agent 2
        // did so on the fifth. Agent 3 has one epoch, silent since the first day.
        let commits = [
            vec![heard(1, 1, Metrics, 0), heard(1, 1, Logs, 0), heard(3, 1, Metrics, 0)],
            vec![heard(1, 2, Metrics, DAY_S), heard(1, 2, Logs, DAY_S), heard(2, 1, Metrics, DAY_S)],
            vec![heard(1, 1, Metrics, 2 * DAY_S)],
            vec![heard(2, 2, Metrics, 5 * DAY_S), heard(1, 2, Metrics, 6 * DAY_S)],
        ];
        for (number, cursors) in (1..).zip(commits) {
            bench.commit(&Commit { number, cursors, ..Commit::default() }).await;
        }
        let left = async |days: i64, month: i64| {
            let expiry = Expiry {
                epochs: at(days * DAY_S),
                senders: at(month * DAY_S),
                ..keep_all()
            };
            let deleted = bench.store.retain(&expiry).await.unwrap();
            let cursors = bench.store.cursors().await.unwrap();
            let mut left: Vec<_> = cursors
                .iter()
                .map(|it| (it.key.agent.0.as_u128(), it.key.epoch.0.as_u128()))
                .collect();
            left.dedup();
            (deleted.others, left)
        };
        // Drained only a moment ago.
        assert_eq!(left(2, -30).await, (0, vec![(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]));
        // Not heard for as long as spools keep data, and the younger one is as old. The younger one's
        // own logs, silent for as long, stay.
        assert_eq!(left(4, -30).await, (2, vec![(1, 2), (2, 1), (2, 2), (3, 1)]));
        assert_eq!(bench.int("SELECT COUNT(*) FROM agent_cursor").await, 5);
        assert_eq!(left(6, -30).await, (1, vec![(1, 2), (2, 2), (3, 1)]));
        // A month of silence of the whole agent.
        assert_eq!(left(6, 1).await, (1, vec![(1, 2), (2, 2)]));
    }
}

both! {
    async fn a_stream_that_says_nothing_for_a_month_is_kept_beside_one_that_does(bench) {
        let cursors = vec![heard(1, 1, Stream::Logs, 0), heard(1, 1, Stream::Metrics, 40 * DAY_S)];
        bench.commit(&Commit { number: 1, cursors, ..Commit::default() }).await;
        let expiry = Expiry { senders: at(10 * DAY_S), epochs: at(38 * DAY_S), ..keep_all() };
        assert_eq!(bench.store.retain(&expiry).await.unwrap().others, 0);
    }
}

both! {
    async fn a_page_of_agents_costs_what_its_agents_have_not_what_the_fleet_has(bench) {
        const AGENTS: u128 = 10_000;
        let cursors = (1..=AGENTS).flat_map(|agent| {
            (0..5).flat_map(move |epoch| {
                [Stream::Logs, Stream::Metrics]
                    .map(|stream| heard(agent, epoch, stream, epoch as i64))
            })
        });
        let cursors = cursors.collect();
        bench.commit(&Commit { number: 1, cursors, ..Commit::default() }).await;
        bench.execute("ANALYZE agent_cursor").await;
        let page: Vec<AgentId> = (1..=200).map(|it| AgentId(Uuid::from_u128(it * 7))).collect();
        #[expect(clippy::disallowed_methods, reason = "the cost itself is under test")]
        let now = std::time::Instant::now;
        let mut fastest = Duration::MAX;
        for _ in 0..3 {
            let began = now();
            let found = bench.store.cursors_of(&page).await.unwrap();
            fastest = fastest.min(began.elapsed());
            assert_eq!(found.len(), 2_000);
            assert!(found.iter().all(|it| page.contains(&it.key.agent)));
        }
        let began = now();
        assert_eq!(bench.store.cursors().await.unwrap().len(), 100_000);
        let all = began.elapsed();
        assert!(fastest * 5 < all, "200 agents took {fastest:?}, 10,000 took {all:?}");
    }
}

both! {
    async fn an_agent_of_many_epochs_shows_the_ones_that_were_heard_last(bench) {
        let cursors = (0..100).map(|it| heard(1, it, Stream::Metrics, it as i64)).collect();
        bench.commit(&Commit { number: 1, cursors, ..Commit::default() }).await;
        let found = bench.store.cursors_of(&[AgentId(Uuid::from_u128(1))]).await.unwrap();
        assert_eq!(found.len(), MAX_CURSORS);
        assert!(found.iter().all(|it| it.seen >= at(68)));
        assert_eq!(bench.store.cursors_of(&[]).await.unwrap(), []);
    }
}

both! {
    async fn a_resource_is_forgotten_when_everything_of_it_is_gone_and_can_come_back(bench) {
        bench.commit(&commit(1, 2, START)).await;
        bench.close(40_000).await;
        let mut second = commit(2, 1, Minute(START.0 + 3_000));
        second.resources[0].first_seen = START.start();
        bench.commit(&second).await;
        let expiry = |resources| Expiry {
            minutes: Minute(START.0 + 600),
            buckets: START.0,
            steps: 0,
            days: 0,
            hours: hour() + 20,
            resources,
            ..keep_all()
        };
        assert_eq!(bench.store.retain(&expiry(at(0))).await.unwrap().resources, 0);
        let deleted = bench.store.retain(&expiry(at(DAY_S))).await.unwrap();
        assert_eq!(deleted.resources, 1);
        let left = bench.store.resources(None, None).await.unwrap();
        assert_eq!(left.iter().map(|it| &it.key).collect::<Vec<_>>(), [&key("GPU-0")]);
        // The server that forgot it still runs when it comes back.
        let third = commit(3, 2, Minute(START.0 + 3_001));
        bench.commit(&third).await;
        let range = Minute(START.0 + 3_000)..Minute(START.0 + 3_002);
        let found = bench.store.minutes(&key("GPU-1"), range).await.unwrap();
        assert_eq!(found.rows.len(), 1);
        assert_eq!(bench.store.resources(None, None).await.unwrap().len(), 2);
    }
}

both! {
    async fn a_resource_whose_minutes_come_without_a_word_about_it_is_not_forgotten(bench) {
        bench.commit(&commit(1, 1, START)).await;
        let mut second = commit(2, 1, Minute(START.0 + 3_000));
        second.resources.clear();
        bench.commit(&second).await;
        let seen = bench.store.resources(None, None).await.unwrap()[0].last_seen;
        assert_eq!(seen, Minute(START.0 + 3_000).start());
    }
}

both! {
    async fn the_last_row_of_the_thresholds_stays_and_the_others_of_the_audit_go_with_the_events(bench) {
        let entry = |seconds: i64, action: &str| AuditEntry::here(at(seconds), "ada", (action, "it"), "{}");
        let thresholds = crate::detect::thresholds::ACTION;
        for (seconds, action) in [(0, thresholds), (1, thresholds), (2, "silence")] {
            bench.store.audit(&entry(seconds, action)).await.unwrap();
        }
        for _ in 0..2 {
            let expiry = Expiry { events: at(DAY_S), ..keep_all() };
            bench.store.retain(&expiry).await.unwrap();
            assert_eq!(bench.store.audited(10).await.unwrap(), [entry(1, thresholds)]);
        }
        bench.store.audit(&entry(3, thresholds)).await.unwrap();
        let expiry = Expiry { events: at(DAY_S), ..keep_all() };
        bench.store.retain(&expiry).await.unwrap();
        assert_eq!(bench.store.audited(10).await.unwrap(), [entry(3, thresholds)]);
    }
}
