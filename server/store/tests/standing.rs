//! A run that stands still by its incident, and a holder that is idle by design, stand in the hours of their GPUs.

use std::collections::BTreeSet;

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Book, Family, Nodes, Place, Remedy, Signal, Tick};
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::lost::Losing;
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::price::{Basis, Price};

use super::hours::{at, hour, no_rules};
use super::*;
use crate::ledger::Rules;
use crate::money::tables::{Standby, standby};

const HOUR_S: i64 = 3_600;

/// An hour of GPU-0 in the hands of `ml/train`: it works for ten minutes, then nothing of it is active.
fn worked_and_quiet(number: u64) -> Commit {
    let holder = Holder {
        name: "train-0".to_owned(),
        namespace: "ml".to_owned(),
        job: "jobset:ml/train".to_owned(),
        ..Holder::default()
    };
    let mut all = commit(number, 0, START);
    all.resources
        .push(known(&key("GPU-0"), Minute(START.0 + 59)));
    all.resources[0].first_seen = START.start();
    all.minutes.extend((0..60).map(|minute| {
        let mut row = row(minute < 10);
        row.hold(holder.number(), ALL_SECONDS);
        MinuteDelta {
            key: key("GPU-0"),
            minute: Minute(START.0 + minute),
            row,
        }
    }));
    all.holders = vec![KnownHolder {
        number: holder.number(),
        holder,
        met: START.start(),
    }];
    all
}

/// The book's word, written, of a run of this name that made its last step ten minutes after the start and stands until
/// so many seconds after it.
async fn stands(bench: &Bench, run: &str, until: i64) {
    stand(bench, &[(run, until)]).await;
}

/// The same of several, of which many are one incident.
async fn stand(bench: &Bench, runs: &[(&str, i64)]) {
    let mut book = Book::default();
    let signal = |run: &str| Signal {
        family: Family::Hang,
        place: Place {
            cluster: "live".to_owned(),
            run: Some(run.to_owned()),
            ..Place::default()
        },
        severity: Severity::Error,
        what: "stands still".to_owned(),
        action: String::new(),
        remedy: Remedy::Look,
        cause: Cause::Unknown,
        since: Some(at(600)),
        readings: Vec::new(),
        price: Price::of(Basis::RunStands, Losing::default()),
        confidence: None,
        booted_at: None,
    };
    let nodes = Nodes::default();
    let watched = std::collections::BTreeMap::from([("live".to_owned(), runs.len())]);
    let last = runs.iter().map(|it| it.1).max().unwrap_or(0);
    let mut id = 6;
    for second in (720..last + 60).step_by(10) {
        let standing = runs.iter().filter(|(_, until)| second < *until);
        let signals = standing.map(|(run, _)| signal(run)).collect();
        let tick = Tick {
            now: at(second),
            signals,
            is_heard: &|_, _| true,
            in_its_place: &|_, _| None,
            is_forgotten: &|_, _| false,
            quiet_runs: &BTreeSet::new(),
            nodes: &nodes,
            runs: &watched,
        };
        book.tick(tick, &mut || {
            id += 1;
            Uuid::from_u128(id)
        });
    }
    assert_eq!(id, 7, "all of it is one incident");
    let incident = book.get(Uuid::from_u128(7)).expect("it opened").clone();
    let incidents = [incident];
    let written = bench.store.write_incidents(&incidents, &[], bench.token);
    written.await.expect("the store answers");
}

/// Minutes of the first hour that were active, stalled and parked or empty.
async fn minutes(bench: &Bench) -> [i64; 3] {
    let hours = bench.hours().await;
    let first = hours.iter().find(|it| it.hour == hour());
    let first = first.expect("it is computed");
    let of = |state: State| first.millis(state) / 60_000;
    [
        of(State::ActiveUnrated) + of(State::ActiveEfficient) + of(State::ActiveInefficient),
        of(State::Stalled),
        of(State::Parked) + of(State::HeldEmpty),
    ]
}

both! {
    async fn gpus_of_a_run_that_stands_are_stalled_and_not_idle_also_where_that_is_known_late(bench) {
        bench.commit(&worked_and_quiet(1)).await;
        bench.compute(at(2 * HOUR_S)).await;
        assert_eq!(minutes(bench).await, [10, 0, 50], "nobody said that it stands");
        // Of another job, and of one elsewhere.
        stands(bench, "ml/other/u1/0", 40 * 60).await;
        stands(bench, "ads/train/u1/0", 40 * 60).await;
        assert_eq!(bench.compute(at(2 * HOUR_S)).await, 0, "nothing of it changed");
        // From five minutes after the last step until it was last seen to stand.
        stands(bench, "ml/train/u1/0", 40 * 60).await;
        assert!(bench.compute(at(2 * HOUR_S)).await > 0, "the hour is computed again");
        let [active, stalled, idle] = minutes(bench).await;
        assert_eq!(active, 10);
        assert!((24..=26).contains(&stalled), "{stalled}");
        assert!((24..=26).contains(&idle), "{idle}");
        // An end that moves changes it again.
        stands(bench, "ml/train/u1/0", 2 * HOUR_S).await;
        bench.compute(at(3 * HOUR_S)).await;
        let [_, stalled, idle] = minutes(bench).await;
        // Five minutes went by before it stood: they are idle, as by the GPU alone.
        assert!((44..=46).contains(&stalled) && (4..=6).contains(&idle), "{stalled} {idle}");
    }
}

both! {
    async fn gpus_of_a_run_that_stands_with_many_for_one_cause_are_stalled_as_long_as_it_does(bench) {
        bench.commit(&worked_and_quiet(1)).await;
        bench.compute(at(2 * HOUR_S)).await;
        let others: Vec<String> = (0..9).map(|it| format!("ml/other-{it}/u1/0")).collect();
        let mut runs: Vec<(&str, i64)> = others.iter().map(|it| (&**it, HOUR_S)).collect();
        stand(bench, &runs).await;
        assert_eq!(bench.compute(at(2 * HOUR_S)).await, 0, "it is none of them");
        // It goes on before the others do.
        runs.push(("ml/train/u1/0", 40 * 60));
        stand(bench, &runs).await;
        assert!(bench.compute(at(2 * HOUR_S)).await > 0, "the hour is computed again");
        let [active, stalled, idle] = minutes(bench).await;
        assert_eq!(active, 10);
        assert!((24..=26).contains(&stalled), "{stalled}");
        assert!((24..=26).contains(&idle), "{idle}");
    }
}

both! {
    async fn what_a_standby_does_not_use_says_so(bench) {
        bench.commit(&worked_and_quiet(1)).await;
        let (rows, _) = standby("from,until,cluster,namespace,job\n2000-01-01,,live,ml,train\n");
        let rules = Rules {
            standby: &Standby::new(rows),
            ..no_rules()
        };
        bench.compute_by(rules, at(2 * HOUR_S)).await;
        let hours = bench.hours().await;
        let idle = hours[0].entries.iter().filter(|it| matches!(it.state, State::Parked | State::HeldEmpty));
        let reasons: Vec<Reason> = idle.map(|it| it.reason).collect();
        assert_eq!(reasons, [Reason::WarmStandby]);
    }
}
