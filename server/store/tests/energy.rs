//! Energy from the counter in the minutes to the report, and days of before there was any.

use gpufleet_analysis::chargeback::Detail;
use gpufleet_analysis::ledger::Energy;
use gpufleet_telemetry::minute::Counter;
use gpufleet_telemetry::time::Clock;
use gpufleet_telemetry::training::{JobId, RunId};

use super::hours::{at, hour};
use super::money::{node_of_eight, tables, terms};
use super::*;
use crate::hand::Hand;
use crate::ledger::days;
use crate::money::month;
use crate::runs::energy::Energies;
use crate::runs::{KnownRun, RankFacts, Run, RunFacts, RunKey};
use crate::store::database::Value;

const HOUR_S: i64 = 3_600;

/// Two hours of a node, of which GPU-0 draws 500 W and GPU-1 100 W; the others tell nothing of it.
pub(super) fn metered() -> Commit {
    let mut all = node_of_eight();
    for it in &mut all.minutes {
        let watts = match &*it.key.id {
            "GPU-0" => 500,
            "GPU-1" => 100,
            _ => continue,
        };
        for tick in 0..6_u32 {
            let (from, to) = (tick * 10_000, (tick + 1) * 10_000);
            let passed_s = (it.minute.0 - START.0) * 60 + i64::from(to / 1_000);
            let point = Counter::point((passed_s * watts) as f64, from, to).expect("finite");
            it.row.add_counter(gpu::ENERGY.id, &point);
        }
    }
    all
}

/// What was drawn in the day, in all: joules, and seconds of which it is known.
async fn drawn(bench: &Bench) -> (i64, i64) {
    let day = hour() / 24;
    let days = month::read(&bench.store, day..day + 2, Some("live"))
        .await
        .unwrap();
    let made = month::charge(&days, day..day + 2, &terms(tables()), Detail::Nodes).made;
    let Energy {
        millijoules,
        metered_millis,
    } = made.total().energy;
    (millijoules / 1_000, metered_millis / 1_000)
}

impl Bench {
    /// Writes a day in the form of before there was energy in it.
    async fn write_day_without_energy(&self, subject: i64, day: &LedgerDay) {
        let data = super::super::days::packed::pack_without_energy(day);
        let mut transaction = self.store.write().await.expect("the database answers");
        let values = [Value::Blob(&data), Value::Int(day.day), Value::Int(subject)];
        let sql = "UPDATE ledger_day SET data = $1 WHERE day = $2 AND subject = $3";
        let changed = transaction
            .execute(sql, &values)
            .await
            .expect("the SQL is right");
        assert_eq!(changed, 1);
        transaction.commit().await.expect("the database answers");
    }
}

both! {
    async fn what_cards_told_of_their_energy_reaches_the_report_and_nothing_is_made_of_the_rest(bench) {
        bench.commit(&metered()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        // Two hours less the first tick, whose beginning nobody told.
        let expected = (7_190 * 600, 2 * 7_190);
        assert_eq!(drawn(bench).await, expected, "put together while it is read");
        assert_eq!(days::round(&bench.store, at(3 * HOUR_S)).await.unwrap(), 8);
        assert_eq!(drawn(bench).await, expected, "from what was put together");
        let untold = "SELECT COUNT(*) FROM ledger_time WHERE energy_mj IS NULL AND metered_ms = 0";
        assert_eq!(bench.int(untold).await, 12, "of six GPUs, hour by hour, not told and not 0");
    }
}

both! {
    async fn hours_and_days_of_before_energy_are_read_as_not_told(bench) {
        bench.commit(&metered()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        // As the version before wrote them.
        bench.execute("UPDATE ledger_time SET energy_mj = NULL, metered_ms = 0").await;
        assert_eq!(drawn(bench).await, (0, 0));
        assert_eq!(days::round(&bench.store, at(3 * HOUR_S)).await.unwrap(), 8);
        let (old, _) = bench.store.ledger_days(hour() / 24..hour() / 24 + 2, None).await.unwrap();
        for (subject, day) in &old {
            bench.write_day_without_energy(*subject, day).await;
        }
        let (read, unreadable) =
            bench.store.ledger_days(hour() / 24..hour() / 24 + 2, None).await.unwrap();
        assert_eq!(unreadable, []);
        let sorted = |mut days: Vec<(i64, LedgerDay)>| {
            days.sort_by_key(|it| it.0);
            days
        };
        assert_eq!(sorted(read), sorted(old));
        assert_eq!(drawn(bench).await, (0, 0));
    }
}

/// A run of two hours of one rank, which is on GPU-0.
fn run_of_one() -> (RunKey, Run) {
    let key = RunKey {
        cluster: key("GPU-0").cluster,
        run: RunId {
            job: JobId::parse("team/llama/u1").expect("an id"),
            attempt: 0,
        },
    };
    let rank = RankFacts {
        gpu: "GPU-0".into(),
        ..RankFacts::default()
    };
    let known = KnownRun {
        key: key.clone(),
        facts: RunFacts {
            started: Some(at(0)),
            heard: at(2 * HOUR_S - 1),
            ended: Some(at(2 * HOUR_S - 1)),
            ..RunFacts::default()
        },
        ranks: vec![(0, rank)],
        is_part: false,
    };
    (key, Run::of_store(known))
}

both! {
    async fn what_a_run_drew_stands_for_some_minutes_and_a_ledger_that_cannot_be_read_is_a_reason(bench) {
        let (key, run) = run_of_one();
        let patient = Energies::waiting(Duration::from_secs(60));
        let (energies, hand) = (patient, Arc::new(Hand::at(START.start())));
        let drawn = async || {
            let clock: Arc<dyn Clock> = hand.clone();
            let from = (&bench.store, &clock);
            let drawn = energies.get(from, (&key, &run), at(3 * HOUR_S)).await;
            drawn.map_err(|why| why.to_string())
        };
        let why = drawn().await.expect_err("nothing is");
        assert!(why.contains("not in the ledger yet"), "{why}");
        bench.commit(&metered()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        assert_eq!(drawn().await.map(|it| it.millijoules), Err(why), "it is kept, too");
        hand.put_monotonic(Duration::from_secs(301));
        assert!(drawn().await.is_err(), "the last one stands while the next is made");
        let told = loop {
            match drawn().await {
                Ok(told) => break told,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        assert_eq!((told.held_millis, told.metered_millis), (7_200_000, 7_190_000));
        assert_eq!(told.millijoules, 7_190 * 500_000);
        bench.execute("ALTER TABLE ledger_time RENAME TO ledger_gone").await;
        assert!(drawn().await.is_ok(), "it is kept");
        hand.put_monotonic(Duration::from_secs(602));
        assert!(drawn().await.is_ok(), "it stands while nobody can read it");
        hand.put_monotonic(Duration::from_secs(301 + 900));
        let why = drawn().await.expect_err("nobody can read it");
        assert!(why.contains("the ledger cannot be read"), "{why}");
        bench.execute("ALTER TABLE ledger_gone RENAME TO ledger_time").await;
        assert!(drawn().await.is_ok(), "that the store did not answer is not kept");
    }
}
