//! Final hours that change: the hour as it was, plus its corrections, is the hour as it stands.

use gpufleet_analysis::ledger::LedgerHour;
use rand::{Rng as _, SeedableRng as _};

use super::hours::{at, hour};
use super::*;

/// (hour, state, reason) → ms.
type Times = BTreeMap<(i64, i64, i64), i64>;

fn times(hours: &[LedgerHour]) -> Times {
    let of = |it: &LedgerHour| {
        let number = it.hour;
        let entries = it.entries.clone().into_iter();
        entries.map(move |it| ((number, it.state.code(), it.reason.code()), it.millis))
    };
    hours.iter().flat_map(of).collect()
}

/// One minute of GPU-0 with this evidence.
fn minute(number: u64, offset: i64, row: MinuteRow) -> Commit {
    let mut one = commit(number, 1, Minute(START.0 + offset));
    one.resources.clear();
    one.minutes[0].row = row;
    one
}

async fn corrections(bench: &Bench) -> Vec<Correction> {
    let found = bench
        .store
        .corrections(&key("GPU-0"), hour() - 2..hour() + 10)
        .await;
    found.expect("the store answers")
}

both! {
    async fn data_that_comes_after_an_hour_is_final_is_a_restatement(bench) {
        bench.commit(&commit(1, 1, START)).await;
        bench.compute(at(60 * 60)).await;
        bench.commit(&minute(2, 1, row(true))).await;
        bench.compute(at(60 * 90)).await;
        let original = bench.hours().await;
        assert!(original[0].is_final && !original[0].is_restated);
        assert_eq!(corrections(bench).await, [], "what comes before it is final is none");

        bench.commit(&minute(3, 2, row(true))).await;
        bench.compute(at(60 * 95)).await;
        let hours = bench.hours().await;
        assert!(hours[0].is_final && hours[0].is_restated && !hours[1].is_restated);
        let found = corrections(bench).await;
        let told: Vec<_> = found.iter().map(|it| (it.number, it.millis, it.why.as_str())).collect();
        let why = "data came late";
        assert_eq!(told, [(1, -60_000, why), (1, 60_000, why)]);
        assert!(found.iter().all(|it| it.computed == at(60 * 95)));
        let cluster = bench.store.cluster_hours("live", hour()..hour() + 2).await.unwrap();
        assert_eq!(cluster.iter().map(|it| it.is_restated).collect::<Vec<_>>(), [true, false]);

        // The same again, and what changes nothing, is no restatement.
        bench.commit(&minute(4, 2, row(true))).await;
        bench.compute(at(60 * 96)).await;
        assert_eq!(corrections(bench).await.len(), 2);
        bench.commit(&minute(5, 3, row(false))).await;
        bench.compute(at(60 * 97)).await;
        assert!(corrections(bench).await.iter().any(|it| it.number == 2));
    }
}

both! {
    async fn what_another_version_had_computed_is_restated_as_that(bench) {
        bench.commit(&commit(1, 1, START)).await;
        bench.commit(&minute(2, 1, row(true))).await;
        bench.compute(at(60 * 90)).await;
        bench.execute("UPDATE ledger_hour SET version = 0").await;
        bench.commit(&minute(3, 2, row(true))).await;
        bench.compute(at(60 * 95)).await;
        let told = async || corrections(bench).await.into_iter().map(|it| it.why).collect::<Vec<_>>();
        let by_other = "data came late, and another version of the server had computed it";
        assert_eq!(told().await, [by_other, by_other]);
        // From then on it is of this version.
        bench.commit(&minute(4, 3, row(true))).await;
        bench.compute(at(60 * 97)).await;
        assert_eq!(told().await[2..], ["data came late", "data came late"]);
    }
}

both! {
    async fn the_hour_as_it_was_plus_its_corrections_is_the_hour_as_it_stands(bench) {
        let mut random = rand::rngs::StdRng::seed_from_u64(11);
        bench.commit(&commit(1, 1, START)).await;
        bench.compute(at(10 * 3_600)).await;
        let mut number = 1;
        let mut original: BTreeMap<i64, Times> = BTreeMap::new();
        for round in 0..25 {
            for hour in bench.hours().await {
                // One that was there without any time is seen only when it is restated.
                let as_seen = if hour.is_restated { Times::new() } else { times(std::slice::from_ref(&hour)) };
                if hour.is_final {
                    original.entry(hour.hour).or_insert(as_seen);
                }
            }
            for _ in 0..random.random_range(1..4) {
                number += 1;
                let mut some = row(random.random());
                if random.random() {
                    some.bitmaps.observed = random.random::<u64>() & ALL_SECONDS;
                    some.bitmaps.held = random.random::<u64>() & ALL_SECONDS;
                }
                bench.commit(&minute(number, random.random_range(0..180), some)).await;
            }
            bench.compute(at(10 * 3_600 + round * 700)).await;
            let mut sums: Times = original.values().flatten().map(|(k, v)| (*k, *v)).collect();
            for it in corrections(bench).await {
                *sums.entry((it.hour, it.state, it.reason)).or_default() += it.millis;
            }
            sums.retain(|_, millis| *millis != 0);
            let current = bench.hours().await;
            let known = |it: &LedgerHour| original.contains_key(&it.hour);
            let current: Vec<LedgerHour> = current.into_iter().filter(known).collect();
            assert_eq!(sums, times(&current), "round {round}");
        }
        assert!(corrections(bench).await.len() > 20);
        let expiry = Expiry {
            hours: hour() + 10,
            ..keep_all()
        };
        bench.store.retain(&expiry).await.unwrap();
        assert_eq!(corrections(bench).await, []);
    }
}
