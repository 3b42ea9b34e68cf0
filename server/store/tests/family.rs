//! Cards that are cut and whole by turns: their hours, their days, and what both add up to.

use gpufleet_analysis::chargeback::Detail;
use gpufleet_analysis::ledger::State;

use super::hours::{at, hour};
use super::*;
use crate::ledger::days::put_together;
use crate::money::month::{Days, charge};
use crate::money::terms::{Sources, Terms};

const HOUR_S: i64 = 3_600;

/// What a card costs an hour, nano-USD: 7 does not go into it.
const CARD: i128 = 1_234_567_891;

fn share(id: &str) -> ResourceKey {
    ResourceKey {
        kind: ResourceKind::Share,
        ..key(id)
    }
}

/// Minutes of one resource from `first` to before `end` after [`START`], in one commit.
fn minutes(number: u64, of: &ResourceKey, (first, end): (i64, i64), slices: &str) -> Commit {
    let mut all = commit(number, 0, START);
    let mut described = known(of, Minute(START.0 + end - 1));
    described.first_seen = Minute(START.0 + first).start();
    let resource = Resource::clone(&described.resource).with(attribute::GPU_MODEL, "NVIDIA H100");
    described.resource = Arc::new(match of.kind {
        ResourceKind::Share => resource
            .with(attribute::PARENT, "GPU-0")
            .with(attribute::MIG_SLICES, slices),
        _ => resource,
    });
    all.resources.push(described);
    all.minutes.extend((first..end).map(|minute| MinuteDelta {
        key: of.clone(),
        minute: Minute(START.0 + minute),
        row: row(true),
    }));
    all
}

impl Bench {
    /// Seconds of these hours after [`START`] that are accounted of a resource, as it is active.
    async fn active(&self, of: &ResourceKey, hours: i64) -> Vec<i64> {
        let range = hour()..hour() + hours;
        let found = self.store.hours(of, range).await;
        let found = found.expect("the store answers");
        let seconds = |number: i64| {
            let of_hour = found.iter().find(|it| it.hour == hour() + number);
            of_hour.map_or(0, |it| {
                assert_eq!(it.millis(State::ActiveUnrated), it.total_millis());
                it.total_millis() / 1_000
            })
        };
        (0..hours).map(seconds).collect()
    }

    /// GPU-milliseconds and money of the month, as it is charged of the days.
    async fn month_of_family(&self) -> (i64, i128, Vec<String>) {
        let day = START.0 / 60 / 24;
        let dirty = self.store.dirty_days_of(day - 1..day + 2).await;
        let inputs = self.store.day_inputs(&dirty.expect("it answers")).await;
        let inputs = inputs.expect("the store answers").into_iter();
        let days: Vec<_> = inputs
            .map(|input| {
                let day = put_together(&input);
                (input, day)
            })
            .collect();
        let replaced = self.store.replace_days(&days, at(0)).await;
        replaced.expect("the store answers");
        let days = self.store.ledger_days(day - 1..day + 2, None).await;
        let (mut days, _) = days.expect("the store answers");
        days.sort_by_key(|it| (it.0, it.1.day));
        let days = Days {
            days: days.into_iter().map(|it| it.1).collect(),
            ..Days::default()
        };
        let price = ("NVIDIA H100".to_owned(), "1.234567891".to_owned());
        let terms = Terms::of(Sources {
            gpu_hour_usd: [price].into_iter().collect(),
            ..Sources::default()
        });
        let month = charge(&days, day - 1..day + 2, &terms, Detail::Gpus);
        let total = month.made.total();
        assert_eq!(total.cost, month.made.nodes_cost());
        let notes = month.made.notes.into_keys().collect();
        (total.gpu_millis, total.cost, notes)
    }
}

both! {
    async fn a_card_that_is_cut_within_an_hour_has_what_its_shares_have_not(bench) {
        bench.commit(&minutes(1, &key("GPU-0"), (0, 120), "")).await;
        bench.commit(&minutes(2, &share("MIG-1"), (30, 120), "3/7")).await;
        bench.commit(&minutes(3, &share("MIG-2"), (45, 120), "2/7")).await;
        bench.compute(at(3 * HOUR_S)).await;
        assert_eq!(bench.active(&key("GPU-0"), 2).await, [30 * 60, 0]);
        assert_eq!(bench.active(&share("MIG-1"), 2).await, [30 * 60, HOUR_S]);
        assert_eq!(bench.active(&share("MIG-2"), 2).await, [15 * 60, HOUR_S]);
        // Its ten-minute rows are kept all the same.
        let bucket = START.0 / 10;
        let rows = bench.store.ten_minutes(&key("GPU-0"), bucket..bucket + 6).await.unwrap();
        assert_eq!(rows.len(), 6);
    }
}

both! {
    async fn cut_whole_and_cut_again_in_an_hour_adds_up_to_the_card_s_hours_to_the_nano_dollar(bench) {
        let end = 10 * HOUR_S;
        bench.commit(&minutes(1, &key("GPU-0"), (0, 180), "")).await;
        // Cut in the hour before and until :20 of it, whole until :40, cut again in the same way from there on.
        bench.commit(&minutes(2, &share("MIG-1"), (20, 80), "3/7")).await;
        bench.commit(&minutes(3, &share("MIG-2"), (20, 80), "2/7")).await;
        bench.commit(&minutes(4, &share("MIG-1"), (100, 150), "3/7")).await;
        bench.commit(&minutes(5, &share("MIG-3"), (100, 150), "4/7")).await;
        bench.compute(at(end)).await;
        assert_eq!(bench.active(&key("GPU-0"), 3).await, [20 * 60, 20 * 60, 30 * 60]);
        assert_eq!(bench.active(&share("MIG-1"), 3).await, [40 * 60, 40 * 60, 30 * 60]);
        assert_eq!(bench.active(&share("MIG-2"), 3).await, [40 * 60, 20 * 60, 0]);
        let (millis, cost, notes) = bench.month_of_family().await;
        // Three hours, and the one until it is gone.
        assert_eq!(notes, [""; 0]);
        assert_eq!((millis, cost), (4 * 3_600_000, 4 * CARD));
        // The same comes again, and all is computed anew.
        bench.commit(&minutes(6, &share("MIG-1"), (100, 150), "3/7")).await;
        assert!(bench.compute(at(end)).await > 0);
        assert_eq!(bench.month_of_family().await, (millis, cost, notes));
    }
}

both! {
    async fn what_comes_late_of_a_share_takes_its_time_from_the_card_in_final_hours_too(bench) {
        let end = 10 * HOUR_S;
        bench.commit(&minutes(1, &key("GPU-0"), (0, 180), "")).await;
        bench.commit(&minutes(2, &share("MIG-1"), (0, 10), "7/7")).await;
        bench.compute(at(end)).await;
        assert_eq!(bench.active(&key("GPU-0"), 3).await, [50 * 60, HOUR_S, HOUR_S]);
        bench.commit(&minutes(3, &share("MIG-1"), (40, 65), "7/7")).await;
        bench.compute(at(end)).await;
        assert_eq!(bench.active(&key("GPU-0"), 3).await, [30 * 60, 55 * 60, HOUR_S]);
        assert_eq!(bench.active(&share("MIG-1"), 3).await, [30 * 60, 5 * 60, 0]);
        let (millis, cost, notes) = bench.month_of_family().await;
        assert_eq!((millis, cost, notes.len()), (4 * 3_600_000, 4 * CARD, 0));
        let why = bench.store.corrections(&key("GPU-0"), hour()..hour() + 1).await.unwrap();
        assert!(why.iter().any(|it| it.millis == -20 * 60_000 && it.why == "data came late"), "{why:?}");
        assert_eq!(bench.int("SELECT COUNT(*) FROM ledger_dirty WHERE due_ms < 1").await, 0);
    }
}

both! {
    async fn what_comes_late_of_a_card_ends_the_shares_that_it_is_seen_without(bench) {
        let end = 10 * HOUR_S;
        bench.commit(&minutes(1, &key("GPU-0"), (0, 30), "")).await;
        bench.commit(&minutes(2, &share("MIG-1"), (0, 30), "7/7")).await;
        bench.compute(at(end)).await;
        let unobserved = async || {
            let hours = bench.store.hours(&share("MIG-1"), hour()..hour() + 3).await.unwrap();
            hours.iter().map(|it| it.millis(State::Unobserved)).sum::<i64>() / 60_000
        };
        assert_eq!(unobserved().await, 60, "until it is gone");
        bench.commit(&minutes(3, &key("GPU-0"), (50, 120), "")).await;
        bench.compute(at(end)).await;
        assert_eq!(unobserved().await, 20, "until the card is seen without it");
        let (millis, cost, notes) = bench.month_of_family().await;
        assert_eq!((millis, cost, notes.len()), (3 * 3_600_000, 3 * CARD, 0));
    }
}

/// Minutes of a replica, one of two, as its agent tells them: evidence and no reading.
fn replica(number: u64, of: &ResourceKey, span: (i64, i64), is_held: bool) -> Commit {
    let id = format!("{}::{number}", of.id);
    let mut all = minutes(10 + number, &share(&id), span, "3/7");
    let resource = Resource::clone(&all.resources[0].resource)
        .with(attribute::REPLICA_OF, &*of.id)
        .with(attribute::REPLICAS, "2");
    all.resources[0].resource = Arc::new(resource);
    for delta in &mut all.minutes {
        delta.row = MinuteRow::default();
        let held: &[_] = if is_held { &[&gpu::HELD] } else { &[] };
        for metric in [&gpu::OBSERVED, &gpu::HOLDER_KNOWN]
            .into_iter()
            .chain(held.iter().copied())
        {
            delta.row.bitmaps.set(metric.id, ALL_SECONDS);
        }
    }
    all
}

both! {
    async fn replicas_of_a_card_are_each_its_part_of_it_and_what_nobody_holds_is_free(bench) {
        bench.commit(&minutes(1, &key("GPU-0"), (0, 60), "")).await;
        bench.commit(&replica(0, &key("GPU-0"), (30, 60), true)).await;
        bench.commit(&replica(1, &key("GPU-0"), (30, 60), false)).await;
        bench.compute(at(10 * HOUR_S)).await;
        assert_eq!(bench.active(&key("GPU-0"), 1).await, [30 * 60]);
        let state = async |id: &str, state: State| {
            let hours = bench.store.hours(&share(id), hour()..hour() + 1).await.unwrap();
            hours[0].millis(state) / 60_000
        };
        // Whether it was active its agent knew, though no reading of it says so.
        assert_eq!(state("GPU-0::0", State::Parked).await, 30);
        assert_eq!(state("GPU-0::1", State::Unallocated).await, 30);
        let (millis, cost, notes) = bench.month_of_family().await;
        assert_eq!((millis, cost, notes.len()), (2 * 3_600_000, 2 * CARD, 0));
    }
}

both! {
    async fn replicas_of_an_instance_are_accounted_in_its_place_and_the_rest_of_the_card_is_free(bench) {
        bench.commit(&minutes(1, &key("GPU-0"), (0, 60), "")).await;
        bench.commit(&minutes(2, &share("MIG-1"), (0, 60), "3/7")).await;
        bench.commit(&replica(0, &share("MIG-1"), (20, 60), true)).await;
        bench.commit(&replica(1, &share("MIG-1"), (20, 60), true)).await;
        bench.compute(at(10 * HOUR_S)).await;
        assert_eq!(bench.active(&key("GPU-0"), 1).await, [0]);
        assert_eq!(bench.active(&share("MIG-1"), 1).await, [20 * 60]);
        for id in ["MIG-1::0", "MIG-1::1"] {
            let hours = bench.store.hours(&share(id), hour()..hour() + 1).await.unwrap();
            assert_eq!(hours[0].total_millis(), 40 * 60_000, "{id}");
        }
        let (millis, cost, notes) = bench.month_of_family().await;
        assert_eq!((millis, cost, notes.len()), (2 * 3_600_000, 2 * CARD, 0));
    }
}
