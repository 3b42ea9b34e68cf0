//! What the ledger says of habits, on either side.

use std::collections::BTreeMap;

use gpufleet_analysis::owner::Holder;

use super::hours::{at, hour};
use super::money::node_of_eight;
use super::*;
use crate::ledger::days;
use crate::money::savings::measure;

const HOUR_S: i64 = 3_600;

fn number(name: &str) -> i64 {
    let holder = Holder {
        name: name.to_owned(),
        namespace: format!("of-{name}"),
        job: name.to_owned(),
        ..Holder::default()
    };
    holder.number()
}

both! {
    async fn the_hours_of_a_holder_and_what_was_free_are_those_of_the_ledger(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let range = hour() - 10..hour() + 10;
        for (gpu, holder, hours) in [("GPU-0", "a", 2), ("GPU-0", "b", 0), ("GPU-6", "b", 2), ("GPU-7", "a", 0)] {
            let held = bench.store.hours_held_by(&key(gpu), number(holder), range.clone()).await.unwrap();
            assert_eq!(held, (hour()..hour() + hours).collect::<Vec<_>>(), "{gpu} of {holder}");
        }
        let elsewhere = bench.store.hours_held_by(&key("GPU-99"), number("a"), range.clone()).await.unwrap();
        assert!(elsewhere.is_empty(), "nobody knows it");
        let free = vec![("live".to_owned(), "GPU-7".to_owned())];
        let expected = BTreeMap::from([(hour(), free.clone()), (hour() + 1, free)]);
        assert_eq!(bench.store.free_hours(range).await.unwrap(), expected);
        let today = hour() / 24;
        while days::round(&bench.store, at(24 * HOUR_S)).await.unwrap() > 0 {}
        let first = bench.store.first_days(today - 28..today + 1).await.unwrap();
        assert_eq!(first, BTreeMap::from([("live".to_owned(), today)]));
        assert!(bench.store.first_days(today - 28..today).await.unwrap().is_empty());
    }
}

both! {
    async fn what_is_measured_of_a_gpu_is_of_the_hours_in_which_its_holder_had_it(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let of = async |holder: &str| {
            let now = at(2 * HOUR_S + 90);
            measure(&bench.store, &key("GPU-0"), number(holder), now).await.unwrap()
        };
        let found = of("a").await;
        assert_eq!((found.hours, found.memory_peak, found.memory_p95), (2.0, Some(8e9), Some(8e9)));
        assert_eq!(found.tensor_p95, None, "nobody told it");
        assert_eq!(of("b").await, gpufleet_analysis::right_size::Measured::default());
    }
}
