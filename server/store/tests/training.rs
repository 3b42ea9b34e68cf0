//! Which holders train stands in their hours, and what was missing to their target in their days.

use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::{Holder, Owners};
use gpufleet_telemetry::training::{JobId, RunId};

use super::hours::{at, hour};
use super::*;
use crate::ledger::{Rules, days};
use crate::money::tables::{self, Standby, Targets};
use crate::runs::{KnownRun, RunFacts, RunKey};

const HOUR_S: i64 = 3_600;

fn holder(job: &str) -> KnownHolder {
    let holder = Holder {
        name: job.to_owned(),
        namespace: "ml".to_owned(),
        job: job.to_owned(),
        ..Holder::default()
    };
    KnownHolder {
        number: holder.number(),
        holder,
        met: START.start(),
    }
}

/// Two hours of GPU-0 in the hands of a job, of which tensor cores are active for this share.
fn works(number: u64, job: &str, tensor: f64) -> Commit {
    let mut all = commit(number, 0, START);
    all.resources
        .push(known(&key("GPU-0"), Minute(START.0 + 119)));
    all.resources[0].first_seen = START.start();
    let holder = holder(job);
    all.minutes.extend((0..120).map(|minute| {
        let mut row = row(true);
        row.hold(holder.number, ALL_SECONDS);
        let point = Aggregate::of_gauge(tensor, None).expect("finite");
        row.add(gpu::TENSOR_ACTIVE.id, point);
        MinuteDelta {
            key: key("GPU-0"),
            minute: Minute(START.0 + minute),
            row,
        }
    }));
    all.holders = vec![holder];
    all
}

/// A run of `ml/train` that was heard in the first hour only.
fn run() -> KnownRun {
    let job = JobId::parse("ml/train/u1").expect("an id");
    KnownRun {
        key: RunKey {
            cluster: "live".into(),
            run: RunId { job, attempt: 0 },
        },
        facts: RunFacts {
            started: Some(at(0)),
            heard: at(40 * 60),
            ..RunFacts::default()
        },
        ranks: Vec::new(),
        is_part: false,
    }
}

/// Minutes of the first two hours that were efficient, inefficient, and held against nothing.
async fn rated(bench: &Bench) -> [[i64; 3]; 2] {
    rated_by(bench, &Targets::default()).await
}

/// The same by targets of one's own.
async fn rated_by(bench: &Bench, targets: &Targets) -> [[i64; 3]; 2] {
    let rules = Rules {
        targets,
        standby: &Standby::default(),
    };
    bench.compute_by(rules, at(3 * HOUR_S)).await;
    let hours = bench.hours().await;
    let of = |number: i64| {
        let found = hours.iter().find(|it| it.hour == hour() + number);
        let found = found.expect("it is computed");
        [
            State::ActiveEfficient,
            State::ActiveInefficient,
            State::ActiveUnrated,
        ]
        .map(|state| found.millis(state) / 60_000)
    };
    [of(0), of(1)]
}

both! {
    async fn what_a_jobset_misses_of_its_target_is_in_its_hours_and_days(bench) {
        // A fifth is missing to 0.35.
        bench.commit(&works(1, "jobset:ml/train", 0.28)).await;
        assert_eq!(rated(bench).await, [[0, 60, 0], [0, 60, 0]]);
        days::round(&bench.store, at(4 * HOUR_S)).await.expect("the store answers");
        let day = hour() / 24;
        let (days, _) = bench.store.ledger_days(day..day + 2, None).await.expect("the store answers");
        let times = days.iter().flat_map(|it| &it.1.times);
        let times = times.filter(|it| it.state == State::ActiveInefficient);
        let lost: i64 = times.map(|it| it.lost_millis).sum();
        assert_eq!(lost, 2 * HOUR_S * 1_000 / 5);
    }
}

both! {
    async fn a_gpu_whose_holders_container_does_not_run_is_starting_for_him(bench) {
        let mut all = works(1, "jobset:ml/train", 0.36);
        let starts = Holder {
            is_starting: true,
            ..all.holders[0].holder.clone()
        };
        let number = starts.number();
        all.holders.push(KnownHolder { number, holder: starts, met: START.start() });
        for delta in all.minutes.iter_mut().take(10) {
            delta.row = row(false);
            delta.row.hold(number, ALL_SECONDS);
        }
        bench.commit(&all).await;
        assert_eq!(rated(bench).await, [[50, 0, 0], [60, 0, 0]]);
        let starting = "SELECT CAST(SUM(time_ms) AS BIGINT) FROM ledger_time WHERE state = 5";
        assert_eq!(bench.int(starting).await, 10 * 60_000);
        let his = format!("{starting} AND holder = {number}");
        assert_eq!(bench.int(&his).await, 10 * 60_000);
    }
}

both! {
    async fn a_target_of_ones_own_goes_before_what_is_shipped_and_holds_from_its_date(bench) {
        let second = gpufleet_analysis::table::moment_text(at(HOUR_S).millis());
        let text = format!(
            "from,until,cluster,team,job,measure,least\n\
            2020-01-01,{second},live,,train,tensor_active,0.2\n\
            {second},,,,,tensor_active,0.4\n"
        );
        let (rows, findings) = tables::targets(&text);
        assert_eq!(findings, [""; 0]);
        let targets = Targets::new(&Owners::default(), rows);
        bench.commit(&works(1, "jobset:ml/train", 0.36)).await;
        assert_eq!(rated_by(bench, &targets).await, [[60, 0, 0], [0, 60, 0]]);
    }
}

both! {
    async fn a_jobset_at_its_target_is_efficient(bench) {
        bench.commit(&works(1, "jobset:ml/train", 0.36)).await;
        assert_eq!(rated(bench).await, [[60, 0, 0], [60, 0, 0]]);
    }
}

both! {
    async fn a_deployment_is_held_against_nothing_unless_it_has_a_target_of_its_own(bench) {
        bench.commit(&works(1, "deployment:ml/chat", 0.28)).await;
        assert_eq!(rated(bench).await, [[0, 0, 60], [0, 0, 60]]);
        let text = "from,until,cluster,team,job,measure,least\n2020-01-01,,,,chat,tensor_active,0.28\n";
        let targets = Targets::new(&Owners::default(), tables::targets(text).0);
        let mark = "INSERT INTO ledger_dirty (hour, subject, mark, due_ms, why)
            SELECT hour, subject, 1, 0, 1 FROM ledger_hour WHERE 1 = 1
            ON CONFLICT (hour, subject) DO UPDATE SET due_ms = 0, why = ledger_dirty.why | 1";
        bench.execute(mark).await;
        assert_eq!(rated_by(bench, &targets).await, [[60, 0, 0], [60, 0, 0]]);
    }
}

both! {
    async fn a_pod_trains_in_the_hours_in_which_a_run_of_its_name_was_heard(bench) {
        let mut all = works(1, "pod:ml/train", 0.28);
        all.runs = vec![run()];
        bench.commit(&all).await;
        assert_eq!(rated(bench).await, [[0, 60, 0], [0, 0, 60]]);
    }
}
