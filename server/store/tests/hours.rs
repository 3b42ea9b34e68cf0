//! Ledger hours: computed from minutes, replaced, chained, kept until they are rolled up.

use std::sync::LazyLock;

use gpufleet_analysis::ledger::{LedgerHour, Reason, State};

use super::*;
use crate::ledger::{LedgerConfig, Rules, round};
use crate::money::tables::{Standby, Targets};

const HOUR_S: i64 = 3_600;

/// The hour that [`START`] begins.
pub(super) fn hour() -> i64 {
    START.hour()
}

/// A moment this many seconds after [`START`].
pub(super) fn at(seconds: i64) -> Timestamp {
    START.start().shifted(seconds * 1_000_000_000)
}

/// Minutes of GPU-0 from `first` to before `end` after [`START`], in one commit.
fn minutes_of_one(number: u64, first: i64, end: i64, active: bool) -> Commit {
    let mut all = commit(number, 0, START);
    all.resources
        .push(known(&key("GPU-0"), Minute(START.0 + end - 1)));
    all.resources[0].first_seen = START.start();
    all.minutes.extend((first..end).map(|minute| MinuteDelta {
        key: key("GPU-0"),
        minute: Minute(START.0 + minute),
        row: row(active),
    }));
    all
}

/// What is said of nobody.
pub(super) fn no_rules() -> Rules<'static> {
    static NONE: LazyLock<(Targets, Standby)> = LazyLock::new(Default::default);
    Rules {
        targets: &NONE.0,
        standby: &NONE.1,
    }
}

impl Bench {
    /// Computes until nothing is due; how many hours that took.
    pub(super) async fn compute(&self, now: Timestamp) -> usize {
        self.compute_by(no_rules(), now).await
    }

    /// The same by rules of one's own.
    pub(super) async fn compute_by(&self, rules: Rules<'_>, now: Timestamp) -> usize {
        let mut total = 0;
        loop {
            let done = round(&self.store, &LedgerConfig::default(), rules, now).await;
            let done = done.expect("the store answers");
            total += done;
            assert!(total < 1_000, "the ledger does not come to rest");
            if done == 0 {
                return total;
            }
        }
    }

    pub(super) async fn hours(&self) -> Vec<LedgerHour> {
        let found = self
            .store
            .hours(&key("GPU-0"), hour() - 2..hour() + 10)
            .await;
        found.expect("the store answers")
    }
}

/// (hours after START, state, seconds)
fn told(hours: &[LedgerHour]) -> Vec<(i64, State, i64)> {
    let of = |it: &LedgerHour| {
        let number = it.hour - hour();
        let entries = it.entries.iter();
        entries
            .map(|entry| (number, entry.state, entry.millis / 1_000))
            .collect::<Vec<_>>()
    };
    hours.iter().flat_map(of).collect()
}

both! {
    async fn hours_of_several_resources_are_added_up_and_final_when_all_are(bench) {
        // Three GPUs for an hour, of the last one only a half: more keys than fit a small statement.
        for minute in 0..60 {
            let number = u64::try_from(minute).unwrap() + 1;
            let gpus = if minute < 30 { 3 } else { 2 };
            bench.commit(&commit(number, gpus, Minute(START.0 + minute))).await;
        }
        bench.compute(at(HOUR_S + 300 + 900)).await;
        // Of one of them something comes late: its hour is open again.
        bench.execute("UPDATE ledger_hour SET is_final = 0 WHERE subject = (SELECT id FROM subject WHERE resource_id = 'GPU-1')").await;
        let range = hour() - 2..hour() + 10;
        let mut apart: BTreeMap<(i64, State), i64> = BTreeMap::new();
        let keys = ["GPU-0", "GPU-1", "GPU-2", "GPU-9"].map(key);
        for key in &keys {
            for it in told(&bench.store.hours(key, range.clone()).await.unwrap()) {
                *apart.entry((it.0, it.1)).or_default() += it.2;
            }
        }
        let keys: Vec<&ResourceKey> = keys.iter().collect();
        let together = bench.store.hours_of(&keys, range.clone()).await.unwrap();
        let together_told: BTreeMap<_, _> = told(&together).into_iter().map(|it| ((it.0, it.1), it.2)).collect();
        assert_eq!(together_told, apart);
        assert_eq!(apart[&(0, State::ActiveUnrated)], 2 * 3_600 + 1_800);
        let are_final = async |keys: &[&ResourceKey]| bench.store.hours_of(keys, hour()..hour() + 1).await.unwrap()[0].is_final;
        assert!(are_final(&keys[..1]).await);
        assert!(!are_final(&keys[..2]).await && !are_final(&keys).await);
        assert_eq!(bench.store.hours_of(&keys[3..], range).await.unwrap(), [], "nobody knows it");
    }
}

both! {
    async fn an_hour_is_computed_while_it_runs_again_when_it_is_over_and_then_rests(bench) {
        bench.commit(&minutes_of_one(1, 0, 30, true)).await;
        assert_eq!(bench.compute(at(60)).await, 0, "a minute is due five minutes after it began");
        assert!(bench.compute(at(30 * 60)).await > 0);
        assert_eq!(told(&bench.hours().await), [(0, State::ActiveUnrated, 30 * 60 - 90)]);
        assert_eq!(bench.compute(at(30 * 60 + 10)).await, 0, "it is computed every five minutes");

        bench.commit(&minutes_of_one(2, 30, 60, true)).await;
        bench.compute(at(HOUR_S + 90)).await;
        let hours = bench.hours().await;
        assert_eq!(told(&hours[..1]), [(0, State::ActiveUnrated, 3_600)]);
        assert!(!hours[0].is_final);
        assert_eq!(hours[0].cost_nano_usd, None, "without a price there is no cost, not 0");

        bench.compute(at(HOUR_S + 300 + 900)).await;
        assert!(bench.hours().await[0].is_final);
        // Nothing comes any more: unobserved for an hour, then gone, and the ledger is at rest.
        bench.compute(at(10 * HOUR_S)).await;
        assert_eq!(
            told(&bench.hours().await),
            [(0, State::ActiveUnrated, 3_600), (1, State::Unobserved, 3_600)]
        );
        assert_eq!(bench.compute(at(100 * HOUR_S)).await, 0);
        assert_eq!(bench.int("SELECT COUNT(*) FROM ledger_dirty").await, 0);
    }
}

both! {
    async fn late_data_changes_its_hour_and_what_follows_from_it(bench) {
        // 58 minutes active; in the next hour active from the fourth minute on: a gap of five
        // minutes across the hour, when nothing is known of it.
        bench.commit(&minutes_of_one(1, 0, 58, true)).await;
        bench.commit(&minutes_of_one(2, 63, 120, true)).await;
        bench.compute(at(4 * HOUR_S)).await;
        let found = told(&bench.hours().await);
        assert!(found.contains(&(0, State::Unobserved, 120)), "{found:?}");
        assert!(found.contains(&(1, State::Unobserved, 180)), "{found:?}");

        // Now it comes that it was held and did nothing: five minutes are parked, on both sides.
        bench.commit(&minutes_of_one(3, 58, 63, false)).await;
        bench.compute(at(4 * HOUR_S)).await;
        let found = told(&bench.hours().await);
        assert!(found.contains(&(0, State::Parked, 120)), "{found:?}");
        assert!(found.contains(&(1, State::Parked, 180)), "{found:?}");
        assert_eq!(bench.int("SELECT COUNT(*) FROM ledger_dirty WHERE due_ms < 1").await, 0);
    }
}

both! {
    async fn a_change_while_an_hour_is_computed_is_not_lost(bench) {
        bench.commit(&minutes_of_one(1, 0, 30, true)).await;
        let now = at(2 * HOUR_S);
        // The hour before comes first.
        round(&bench.store, &LedgerConfig::default(), no_rules(), now).await.unwrap();
        let dirty = bench.store.dirty_hours(now).await.unwrap();
        let inputs = bench.store.ledger_inputs(&dirty).await.unwrap();
        let of_hour = |it: &&LedgerInput| it.dirty.hour == hour();
        let input = inputs.iter().find(of_hour).unwrap();
        assert_eq!(input.minutes.len(), 30);
        bench.commit(&minutes_of_one(2, 30, 60, true)).await;
        let stale = ComputedHour {
            dirty: input.dirty,
            ledger: LedgerHour::new(hour(), BTreeMap::from([((State::Gap, Reason::Unknown), 5)])),
            held: BTreeMap::new(),
            spans: Vec::new(),
            family: Vec::new(),
            served: None,
            carry: None,
            again: None,
            ten_minutes: Vec::new(),
            closed: BTreeMap::new(),
        };
        assert_eq!(bench.store.replace_hours(&[stale], now).await.unwrap(), 0);
        bench.compute(now).await;
        assert_eq!(told(&bench.hours().await)[0], (0, State::ActiveUnrated, 3_600));
    }
}

both! {
    async fn a_fatal_event_makes_its_gpu_unhealthy_in_the_ledger(bench) {
        let mut all = minutes_of_one(1, 0, 20, true);
        all.events.push(event(EventKind::Xid, "GPU-0", at(20 * 60)));
        all.events.push(event(EventKind::GpuReset, "GPU-0", at(50 * 60)));
        bench.commit(&all).await;
        bench.compute(at(2 * HOUR_S)).await;
        let found = told(&bench.hours().await);
        assert!(found.contains(&(0, State::Unhealthy, 30 * 60)), "{found:?}");
        assert!(found.contains(&(0, State::Unobserved, 10 * 60)), "{found:?}");
    }
}

both! {
    async fn a_share_counts_the_shares_that_its_card_had_on_its_day(bench) {
        let all_of = |number: u64, day: i64, names: &[&str]| {
            let minute = Minute(START.0 + day * 24 * 60);
            let mut all = commit(number, 1, minute);
            all.minutes.clear();
            for name in names {
                let share = ResourceKey { kind: ResourceKind::Share, ..key(name) };
                let mut described = known(&share, minute);
                described.resource = Arc::new(
                    Resource::new(ResourceKind::Share, *name).with(attribute::PARENT, "GPU-0"),
                );
                all.resources.push(described);
                all.minutes.push(MinuteDelta { key: share, minute, row: row(true) });
            }
            all
        };
        bench.commit(&all_of(1, 0, &["MIG-1", "MIG-2"])).await;
        bench.commit(&all_of(2, 3, &["MIG-3", "MIG-4", "MIG-5"])).await;
        bench.compute(at(4 * 24 * HOUR_S)).await;
        let day = START.0 / 60 / 24;
        let of = async |day: i64| -> Vec<u32> {
            let dirty = bench.store.dirty_days_of(day..day + 1).await.unwrap();
            let inputs = bench.store.day_inputs(&dirty).await.unwrap();
            let shares = inputs.iter().filter(|it| it.resource.key.kind == ResourceKind::Share);
            shares.map(|it| it.siblings).collect()
        };
        assert_eq!(of(day).await, [2, 2]);
        assert_eq!(of(day + 3).await, [3, 3, 3]);
    }
}

both! {
    async fn a_cluster_adds_up_and_other_clusters_stay_out_of_it(bench) {
        let mut all = commit(1, 3, START);
        let mut other = key("GPU-0");
        other.cluster = "demo".into();
        all.resources.push(known(&other, START));
        all.minutes.push(MinuteDelta { key: other, minute: START, row: row(true) });
        bench.commit(&all).await;
        bench.compute(at(10 * HOUR_S)).await;
        let hours = bench.store.cluster_hours("live", hour()..hour() + 1).await.unwrap();
        assert_eq!(hours[0].millis(State::ActiveUnrated), 3 * 60_000);
        assert_eq!(hours[0].millis(State::Unobserved), 3 * 59 * 60_000);
        assert_eq!(hours[0].cost_nano_usd, None);
        assert!(hours[0].is_final);
    }
}

both! {
    async fn minutes_are_rolled_up_and_go_only_when_they_were(bench) {
        bench.commit(&minutes_of_one(1, 0, 60, true)).await;
        let expiry = Expiry {
            minutes: Minute(START.0 + 130),
            ..keep_all()
        };
        let deleted = bench.store.retain(&expiry).await.unwrap();
        assert_eq!(deleted.minutes, 0, "the hour is not computed yet");
        bench.close(10 * HOUR_S).await;
        let deleted = bench.store.retain(&expiry).await.unwrap();
        assert_eq!(deleted.minutes, 1, "an hour of them, packed");
        assert!(!deleted.more);

        let bucket = START.0 / 10;
        let rows = bench.store.ten_minutes(&key("GPU-0"), bucket..bucket + 60).await.unwrap();
        assert_eq!(rows.len(), 6);
        for row in &rows {
            assert_eq!((row.observed_s, row.active_s, row.held_s), (600, 600, 600));
            assert_eq!((row.stalled_s, row.holder_known_s), (0, 600));
            let power = row.metrics[&gpu::POWER.id];
            assert_eq!((power.count, power.mean()), (10, 300.0));
        }
        assert_eq!(told(&bench.hours().await)[0], (0, State::ActiveUnrated, 3_600));
    }
}

both! {
    async fn data_of_minutes_that_are_gone_is_left_out_counted_and_changes_no_hour(bench) {
        bench.commit(&minutes_of_one(1, 0, 60, true)).await;
        bench.close(10 * HOUR_S).await;
        let expiry = Expiry {
            minutes: Minute(START.0 + 61),
            ..keep_all()
        };
        assert_eq!(bench.store.retain(&expiry).await.unwrap().minutes, 1);
        // The last minute of the hour that is gone, and the first two of the hour that is not.
        let committed = bench.commit(&minutes_of_one(2, 59, 62, false)).await;
        assert_eq!(committed.too_late, 1);
        bench.compute(at(10 * HOUR_S)).await;
        let found = told(&bench.hours().await);
        assert_eq!(found[0], (0, State::ActiveUnrated, 3_600), "{found:?}");
        assert!(found.contains(&(1, State::Gap, 120)), "{found:?}");
    }
}

both! {
    async fn where_a_clock_that_was_ahead_said_that_minutes_begin_is_taken_back(bench) {
        bench.commit(&minutes_of_one(1, 0, 50, true)).await;
        bench.close(10 * HOUR_S).await;
        let days_ahead = Expiry {
            minutes: Minute(START.0 + 7_200),
            ..keep_all()
        };
        bench.store.retain(&days_ahead).await.unwrap();
        assert_eq!(bench.commit(&minutes_of_one(2, 130, 131, true)).await.too_late, 1);
        // The clock is right again. What was rolled up is gone, and what comes of that hour stays out.
        let now = at(2 * HOUR_S + 600);
        assert_eq!(bench.store.take_back_horizon(now).await.unwrap(), 7_200 - 60);
        assert_eq!(bench.commit(&minutes_of_one(3, 59, 62, true)).await.too_late, 1);
        assert_eq!(bench.store.take_back_horizon(now).await.unwrap(), 0);
    }
}

both! {
    async fn what_is_older_than_it_is_kept_goes(bench) {
        let mut all = minutes_of_one(1, 0, 60, true);
        all.events.push(event(EventKind::GpuAdded, "GPU-0", at(0)));
        all.events.push(event(EventKind::Xid, "GPU-9", at(HOUR_S)));
        all.gaps.push(Gap { key: cursor(1).key, first: 1, last: 2, seen: at(0) });
        all.foreign.push(ForeignMark { series: [1; 16], newest: at(0) });
        bench.commit(&all).await;
        bench.compute(at(10 * HOUR_S)).await;
        let just_kept = Expiry {
            buckets: START.0 / 10,
            hours: hour(),
            events: at(0),
            senders: at(0),
            ..keep_all()
        };
        let none = bench.store.retain(&just_kept).await.unwrap();
        assert_eq!(none, Deleted::default());
        let expiry = Expiry {
            buckets: START.0 / 10 + 4,
            hours: hour() + 1,
            events: at(1),
            senders: at(1),
            ..keep_all()
        };
        let deleted = bench.store.retain(&expiry).await.unwrap();
        assert_eq!((deleted.buckets, deleted.hours, deleted.events, deleted.others), (4, 1, 1, 3));
        assert_eq!(told(&bench.hours().await), [(1, State::Unobserved, 3_600)]);
        assert_eq!(bench.store.cursors().await.unwrap(), []);
        let left = bench.store.events(&EventFilter::default(), None, 9).await.unwrap();
        assert_eq!(left.events.len(), 1);
    }
}
