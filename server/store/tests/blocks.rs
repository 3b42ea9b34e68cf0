//! Hours that are over: packed, read as before, merged with what comes late.

use std::ops::Range;

use rand::{Rng as _, SeedableRng as _};

use super::hours::{at, hour};
use super::*;

/// Later than anything is expected to change these hours.
const LATER_S: i64 = 40 * 3_600;

impl Bench {
    /// Computes at this moment, and again when hours that rest are packed.
    pub(super) async fn close(&self, seconds: i64) {
        self.compute(at(seconds)).await;
        self.compute(at(seconds + 700)).await;
    }
}

fn all() -> Range<Minute> {
    START..Minute(START.0 + 300)
}

/// Minutes of GPU-0 and GPU-1 from `first` to before `end` after [`START`], in one commit.
fn minutes(number: u64, first: i64, end: i64) -> Commit {
    let mut some = commit(number, 2, START);
    some.minutes = (first..end)
        .flat_map(|it| commit(number, 2, Minute(START.0 + it)).minutes)
        .collect();
    some
}

both! {
    async fn an_hour_that_is_over_is_packed_and_read_as_before(bench) {
        bench.commit(&minutes(1, 0, 150)).await;
        let before = bench.store.minutes(&key("GPU-1"), all()).await.unwrap();
        assert_eq!(before.rows.len(), 150);
        bench.compute(at(7_200)).await;
        assert_eq!(bench.int("SELECT COUNT(*) FROM minute_block").await, 0, "more may come");
        bench.close(LATER_S).await;
        assert_eq!(bench.int("SELECT COUNT(*) FROM minute_row").await, 0);
        assert_eq!(bench.int("SELECT COUNT(*) FROM minute_block").await, 6);
        assert_eq!(bench.store.minutes(&key("GPU-1"), all()).await.unwrap(), before);
        let part = Minute(START.0 + 59)..Minute(START.0 + 61);
        assert_eq!(bench.store.minutes(&key("GPU-1"), part).await.unwrap().rows.len(), 2);
        // The ledger computes it from there.
        let hours = bench.hours().await;
        bench.execute("INSERT INTO ledger_dirty (hour, subject, mark, due_ms)
            SELECT hour, subject, 1, 0 FROM ledger_hour").await;
        bench.close(LATER_S).await;
        assert_eq!(bench.hours().await, hours);
    }
}

both! {
    async fn late_data_merges_with_what_is_packed_however_often_it_is(bench) {
        let mut random = rand::rngs::StdRng::seed_from_u64(5);
        let mut expected: BTreeMap<Minute, MinuteRow> = BTreeMap::new();
        for number in 1..60 {
            let mut late = commit(number, 1, START);
            late.minutes.clear();
            for _ in 0..random.random_range(1..9) {
                let minute = Minute(START.0 + random.random_range(0..130));
                let mut some = row(random.random());
                some.bitmaps.observed = random.random::<u64>() & ALL_SECONDS;
                let value = f64::from(random.random_range(0..90_000)) * 0.01;
                some.add(gpu::POWER.id, Aggregate::of_gauge(value, None).expect("finite"));
                expected.entry(minute).or_default().merge(&some);
                late.minutes.push(MinuteDelta { key: key("GPU-0"), minute, row: some });
            }
            bench.commit(&late).await;
            if random.random_ratio(1, 3) {
                bench.close(LATER_S + number as i64 * 1_000).await;
            }
            let found = bench.store.minutes(&key("GPU-0"), all()).await.unwrap();
            assert_eq!(found.rows, expected, "after commit {number}");
        }
        bench.close(LATER_S * 2).await;
        assert_eq!(bench.int("SELECT COUNT(*) FROM minute_row").await, 0);
        let found = bench.store.minutes(&key("GPU-0"), all()).await.unwrap();
        assert_eq!(found.rows, expected);
    }
}

both! {
    async fn an_hour_that_changes_all_the_time_is_packed_when_it_rests(bench) {
        bench.commit(&minutes(1, 0, 60)).await;
        bench.close(LATER_S).await;
        for number in 2..6 {
            bench.commit(&minutes(number, 30, 31)).await;
            bench.compute(at(LATER_S + 700 + number as i64 * 20)).await;
            assert_eq!(bench.int("SELECT COUNT(*) FROM minute_row").await, 2);
        }
        bench.close(LATER_S + 1_000).await;
        assert_eq!(bench.int("SELECT COUNT(*) FROM minute_row").await, 0);
        let found = bench.store.minutes(&key("GPU-0"), all()).await.unwrap();
        assert_eq!(found.rows[&Minute(START.0 + 30)].metrics[&gpu::POWER.id].count, 5);
    }
}

both! {
    async fn a_spoilt_block_is_named_set_aside_and_its_hour_goes_on_with_new_data(bench) {
        bench.commit(&minutes(1, 0, 60)).await;
        bench.close(LATER_S).await;
        let spoil = "UPDATE minute_block SET data = substr(data, 1, 40) WHERE subject =
             (SELECT id FROM subject WHERE resource_id = 'GPU-0')";
        assert_eq!(bench.execute(spoil).await, 1);
        let found = bench.store.minutes(&key("GPU-0"), all()).await.unwrap();
        assert_eq!(found.rows.len(), 0);
        assert!(found.corrupt[0].contains("hour of minutes of gpu GPU-0"), "{:?}", found.corrupt);
        bench.commit(&minutes(2, 30, 31)).await;
        bench.close(LATER_S + 1_000).await;
        assert_eq!(bench.int("SELECT COUNT(*) FROM set_aside").await, 1);
        let rows = async |id: &str| bench.store.minutes(&key(id), all()).await.unwrap().rows.len();
        assert_eq!((rows("GPU-0").await, rows("GPU-1").await), (1, 60));
    }
}

both! {
    async fn packed_hours_go_when_they_are_older_than_they_are_kept(bench) {
        bench.commit(&minutes(1, 0, 150)).await;
        bench.close(LATER_S).await;
        let expiry = Expiry {
            minutes: Minute(START.0 + 125),
            ..keep_all()
        };
        assert_eq!(bench.store.retain(&expiry).await.unwrap().minutes, 4);
        let left = bench.store.minutes(&key("GPU-0"), all()).await.unwrap();
        assert_eq!(left.rows.len(), 30);
        assert_eq!(bench.int("SELECT MIN(hour) FROM minute_block").await, hour() + 2);
    }
}

#[tokio::test]
async fn a_commit_and_the_packing_of_its_hour_wait_for_each_other_on_postgresql() {
    let bench = Bench::postgres().await;
    bench.commit(&minutes(1, 0, 60)).await;
    bench.compute(at(LATER_S)).await;
    let mut number = 1;
    for round in 0..20 {
        let (store, token) = (bench.store.clone(), bench.token);
        number += 1;
        let late = minutes(number, 0, 60);
        let committing = tokio::spawn(async move { store.commit(&late, token).await });
        let now = LATER_S + round * 2_000;
        loop {
            let config = Default::default();
            let rules = hours::no_rules();
            let done = crate::ledger::round(&bench.store, &config, rules, at(now + 1_900)).await;
            if done.is_ok_and(|done| done == 0) && committing.is_finished() {
                break;
            }
        }
        committing.await.unwrap().unwrap();
        let found = bench.store.minutes(&key("GPU-0"), all()).await.unwrap();
        let counts = found
            .rows
            .values()
            .map(|it| it.metrics[&gpu::POWER.id].count);
        assert!(
            counts.eq(std::iter::repeat_n(number as u32, 60)),
            "round {round}"
        );
    }
    bench.drop_database().await;
}
