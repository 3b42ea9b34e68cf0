//! Energy from the counter in the minutes to the report, and days of before there was any.

use gpufleet_analysis::chargeback::Detail;
use gpufleet_analysis::ledger::Energy;
use gpufleet_telemetry::minute::Counter;

use super::hours::{at, hour};
use super::money::{node_of_eight, tables, terms};
use super::*;
use crate::ledger::days;
use crate::money::month;
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
        let data = super::super::days::pack_without_energy(day);
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
