//! Days and months as money in tables: what the report says, to the nano-unit, restated with it, and forgotten with
//! the days.

use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY};
use gpufleet_analysis::owner::Payer;
use gpufleet_telemetry::gpu_specs::Specs;

use super::hours::{at, hour};
use super::money::{node_of_eight, table, tables, terms};
use super::*;
use crate::App;
use crate::auth::Access;
use crate::config::Config;
use crate::hand::Hand;
use crate::ledger::days;
use crate::money::report::month_of;
use crate::money::{Terms, daily, month};

const HOUR_S: i64 = 3_600;

/// The first day of the month of [`START`].
fn first_day() -> i64 {
    let month = month_of(START.start());
    let hours = gpufleet_analysis::table::month_hours(&month).expect("a month");
    hours.start / 24
}

impl Bench {
    /// Makes the month; how many days of it were written, of which everything is told.
    async fn made(&self, terms: &Arc<Terms>, now: Timestamp) -> usize {
        let written = self.written(terms, now).await;
        assert_eq!(written.untold, None);
        written.days
    }

    /// Makes the month.
    async fn written(&self, terms: &Arc<Terms>, now: Timestamp) -> daily::Written {
        let specs = Specs::with(&BTreeMap::new()).expect("no peaks of its own");
        let kept_since = self.store.days_kept_since().await;
        let month = (first_day(), kept_since.expect("the store answers"));
        let made = daily::make(&self.store, &specs, terms, month, now).await;
        made.expect("the store answers")
    }

    /// The month as the report has it: nano-units and GPU-milliseconds.
    async fn reported(&self, terms: &Terms, now: Timestamp) -> (i64, i64) {
        let range = first_day()..now.millis() / MILLIS_PER_DAY + 1;
        let mut days = month::read(&self.store, range.clone(), None)
            .await
            .expect("the store answers");
        days.at = Some(now);
        let total = month::charge(&days, range, terms, Detail::Gpus)
            .made
            .total();
        let cost = i64::try_from(total.cost).expect("it is little");
        (cost, total.gpu_millis)
    }

    async fn sum(&self, what: &str) -> i64 {
        self.int(&format!(
            "SELECT CAST(SUM({what}) AS BIGINT) FROM money_day"
        ))
        .await
    }

    async fn count(&self, from: &str) -> i64 {
        self.int(&format!("SELECT COUNT(*) FROM {from}")).await
    }
}

/// With a commitment for two of the machines, one of which nobody uses: it is paid on days without a node too.
fn with_commitment() -> Vec<MoneyTable> {
    let committed = "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n\
        two,a3-highgpu-8g,us-central1,2,commitment_1y,USD,50.000000001,2026-01-01,2028-01-01,science\n";
    let mut all = tables();
    all.push(table("commitments.csv", "commitments", committed));
    all
}

both! {
    async fn a_month_in_tables_is_the_report_to_the_nano_unit_and_is_written_once(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let now = at(3 * HOUR_S);
        let first = Arc::new(terms(tables()));
        assert_eq!(bench.made(&first, now).await, 1);
        let (cost, gpu_ms) = bench.reported(&first, now).await;
        assert_eq!(cost, 160_000_000_002);
        assert_eq!((bench.sum("cost_nano").await, bench.sum("gpu_ms").await), (cost, gpu_ms));
        assert_eq!(bench.count("money_day WHERE payer = 'science' AND state = 'parked'").await, 1);
        assert_eq!(bench.count("money_day WHERE payer_kind = 'unowned' AND class = 'active'").await, 1);
        assert_eq!(bench.count("money_day WHERE payer_kind = 'nobody' AND class = 'idle'").await, 1);
        assert_eq!(bench.made(&first, now).await, 0, "nothing changed");

        // Prices change: what stood is restated, and days without a node are paid for as well.
        let second = Arc::new(terms(with_commitment()));
        assert_eq!(second.findings, [""; 0]);
        let days = usize::try_from(now.millis() / MILLIS_PER_DAY + 1 - first_day());
        let days = days.expect("it is after the first day");
        assert_eq!(bench.made(&second, now).await, days);
        let (restated, gpu_ms) = bench.reported(&second, now).await;
        assert_ne!(restated, cost);
        assert_eq!((bench.sum("cost_nano").await, bench.sum("gpu_ms").await), (restated, gpu_ms));
        let spent = "SELECT spent_nano FROM money_month WHERE payer_kind = 'everybody'";
        assert_eq!(bench.int(spent).await, restated);
        // And back: days of which nothing is left to say go.
        assert_eq!(bench.made(&first, now).await, days);
        assert_eq!(bench.sum("cost_nano").await, cost);
        assert_eq!(bench.count("money_day_mark").await, 1);
    }
}

both! {
    async fn a_day_that_is_restated_is_written_anew(bench) {
        let all = node_of_eight();
        bench.commit(&all).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let (now, terms) = (at(3 * HOUR_S), Arc::new(terms(tables())));
        assert_eq!(bench.made(&terms, now).await, 1);
        let free = "gpu_ms) FILTER (WHERE payer_kind = 'nobody'";
        assert_eq!(bench.sum(free).await, 2 * HOUR_S * 1_000);
        // The free GPU's second hour is another's after all.
        let sql = "UPDATE ledger_time SET holder = (SELECT MAX(number) FROM holder), state = 10
            WHERE holder = 0";
        bench.execute(sql).await;
        bench.execute("UPDATE ledger_day_dirty SET due_ms = 0").await;
        let (_, which) = days::replace(&bench.store, now).await.expect("the store answers");
        assert_eq!(which.into_iter().collect::<Vec<_>>(), [hour() / 24]);
        assert_eq!(bench.made(&terms, now).await, 1);
        assert_eq!(bench.count("money_day WHERE payer_kind = 'nobody'").await, 0);
        let (cost, _) = bench.reported(&terms, now).await;
        assert_eq!(bench.sum("cost_nano").await, cost);
    }
}

both! {
    async fn what_has_no_price_is_null_and_its_time_is_told(bench) {
        let mut all = node_of_eight();
        all.resources.retain(|it| it.key.kind != ResourceKind::Node);
        bench.commit(&all).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        bench.made(&Arc::new(terms(tables())), at(3 * HOUR_S)).await;
        assert_eq!(bench.sum("unpriced_ms").await, 16 * HOUR_S * 1_000);
        assert_eq!(bench.count("money_day WHERE cost_nano IS NOT NULL").await, 0);
        assert_eq!(bench.count("money_month WHERE spent_nano IS NOT NULL OR forecast_nano IS NOT NULL").await, 0);
    }
}

both! {
    async fn a_budget_stands_beside_what_is_spent_and_what_the_month_will_come_to(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let budgets = "from,until,team,amount,currency\n2020-01-01,,science,1,USD\n2020-01-01,,idlers,5,USD\n";
        let mut all = tables();
        all.push(table("budgets.csv", "budgets", budgets));
        // A day later the first day was whole, if the month began with it; else the one after it.
        let now = at(50 * HOUR_S);
        let written = bench.written(&Arc::new(terms(all)), now).await;
        let standings = written.standings.expect("the month was made");
        assert_eq!(standings.month, month_of(now));
        let told = |team: &str| {
            let payer = Payer::Team(team.to_owned());
            let told = standings.teams.iter().find(|it| it.payer.as_ref() == Some(&payer));
            told.and_then(|it| it.budget)
        };
        assert_eq!((told("science"), told("idlers")), (Some(1_000_000_000), Some(5_000_000_000)));
        assert_eq!(standings.teams.len(), 2, "{standings:?}");
        let of = |column: &str, who: &str| format!("SELECT {column} FROM money_month WHERE payer = '{who}'");
        assert_eq!(bench.int(&of("budget_nano", "science")).await, 1_000_000_000);
        assert!(bench.int(&of("spent_nano", "science")).await > 120_000_000_000);
        assert_eq!(bench.int(&of("gone_on_day", "science")).await, hour() / 24);
        assert_eq!(bench.int(&of("spent_nano", "idlers")).await, 0);
        let forecast = bench.int(&of("forecast_nano", "science")).await;
        assert!(forecast >= bench.int(&of("spent_nano", "science")).await);
        assert_eq!(bench.count("money_month WHERE payer = '' AND payer_kind = 'everybody'").await, 1);
    }
}

both! {
    async fn money_is_forgotten_with_the_days_it_is_of(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        bench.made(&Arc::new(terms(tables())), at(3 * HOUR_S)).await;
        let day = hour() / 24;
        let before = |days| Expiry { days, ..super::forgetting::keep_all() };
        bench.store.retain(&before(day)).await.expect("the store answers");
        assert_eq!(bench.count("money_day_mark").await, 1);
        bench.store.retain(&before(day + 1)).await.expect("the store answers");
        assert_eq!((bench.count("money_day").await, bench.count("money_day_mark").await), (0, 0));
        assert!(bench.count("money_month").await > 0, "the month is not over");
        bench.store.retain(&before(day + 32)).await.expect("the store answers");
        assert_eq!(bench.count("money_month").await, 0);
    }
}

both! {
    async fn a_month_that_is_over_and_lost_a_day_to_retention_stays_as_it_stood(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let (first, over) = (Arc::new(terms(tables())), at(40 * 24 * HOUR_S));
        days::round(&bench.store, over).await.expect("the store answers");
        assert_eq!(bench.made(&first, over).await, 1);
        let spent = "SELECT spent_nano FROM money_month WHERE payer_kind = 'everybody'";
        let before = bench.int(spent).await;
        let kept_from = |days| Expiry { days, ..super::forgetting::keep_all() };
        // Of a whole month another price is another sum.
        bench.store.retain(&kept_from(first_day())).await.expect("the store answers");
        let second = Arc::new(terms(with_commitment()));
        assert!(bench.made(&second, over).await > 0);
        assert_ne!(bench.int(spent).await, before);
        assert!(bench.made(&first, over).await > 0);
        bench.store.retain(&kept_from(first_day() + 1)).await.expect("the store answers");
        assert_eq!(bench.made(&second, over).await, 0);
        assert_eq!(bench.int(spent).await, before);
    }
}

both! {
    async fn a_month_that_runs_and_lost_days_to_retention_says_so(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let (now, terms) = (at(3 * HOUR_S), Arc::new(terms(tables())));
        let expiry = Expiry { days: first_day() + 1, ..super::forgetting::keep_all() };
        bench.store.retain(&expiry).await.expect("the store answers");
        bench.made(&terms, now).await;
        let told = "money_month WHERE untold LIKE 'days before %-02 are deleted (retention.days_d)'";
        assert_eq!(bench.count(told).await, bench.count("money_month").await);
    }
}

both! {
    async fn a_day_that_cannot_be_read_stays_as_it_stood_and_its_month_says_so(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let (now, terms) = (at(3 * HOUR_S), Arc::new(terms(tables())));
        days::round(&bench.store, now).await.expect("the store answers");
        assert_eq!(bench.made(&terms, now).await, 1);
        let cost = bench.sum("cost_nano").await;
        let spoil = "UPDATE ledger_day SET data = substr(data, 1, 9)
            WHERE subject = (SELECT MIN(subject) FROM ledger_day)";
        assert_eq!(bench.execute(spoil).await, 1);
        let written = bench.written(&terms, now).await;
        assert_eq!(written.days, 0);
        let untold = written.untold.expect("it is told");
        assert!(untold.contains(": 1 days of GPUs cannot be read"), "{untold}");
        assert_eq!(bench.sum("cost_nano").await, cost);
        let told = "money_month WHERE untold LIKE '1 days of GPUs cannot be read%'";
        assert_eq!(bench.count(told).await, bench.count("money_month").await);
        // Put together again from its hours, it is read.
        bench.execute("INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
             SELECT day, subject, 1, 0 FROM ledger_day").await;
        assert_eq!(bench.made(&terms, now).await, 0);
        assert_eq!(bench.count("money_month WHERE untold <> ''").await, 0);
    }
}

both! {
    async fn a_day_that_did_not_stand_is_made_without_what_cannot_be_read_and_again_when_it_can(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let (now, first) = (at(3 * HOUR_S), Arc::new(terms(tables())));
        days::round(&bench.store, now).await.expect("the store answers");
        let spoil = "UPDATE ledger_day SET data = substr(data, 1, 9)
            WHERE subject = (SELECT MIN(subject) FROM ledger_day)";
        assert_eq!(bench.execute(spoil).await, 1);
        assert_eq!(bench.written(&first, now).await.days, 1);
        let partial = "money_day WHERE untold LIKE '1 days of GPUs cannot be read%'";
        let rows = bench.count("money_day").await;
        assert!(rows > 0);
        assert_eq!(bench.count(partial).await, rows);
        // What can be read of it becomes less: it stays, and its money with it.
        let cost = bench.sum("cost_nano").await;
        let spoil = "UPDATE ledger_day SET data = substr(data, 1, 9)
            WHERE subject <> (SELECT MIN(subject) FROM ledger_day)
            AND subject <> (SELECT MAX(subject) FROM ledger_day)";
        bench.execute("CREATE TABLE read_before AS SELECT day, subject, data FROM ledger_day").await;
        assert!(bench.execute(spoil).await > 0);
        assert_eq!(bench.written(&first, now).await.days, 0);
        assert_eq!(bench.sum("cost_nano").await, cost);
        bench.execute("UPDATE ledger_day SET data = (SELECT b.data FROM read_before b
             WHERE b.day = ledger_day.day AND b.subject = ledger_day.subject)").await;
        // It is no more whole than it was: prices reach it.
        let stands = "SELECT digest FROM money_day_mark WHERE partial = 1";
        let before = bench.int(stands).await;
        bench.written(&Arc::new(terms(with_commitment())), now).await;
        assert_ne!(bench.int(stands).await, before);
        bench.written(&first, now).await;
        assert_eq!(bench.int(stands).await, before);
        bench.execute("INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
             SELECT day, subject, 1, 0 FROM ledger_day").await;
        assert_eq!(bench.made(&first, now).await, 1);
        assert_eq!(bench.count("money_day WHERE untold <> ''").await, 0);
        let (cost, _) = bench.reported(&first, now).await;
        assert_eq!(bench.sum("cost_nano").await, cost);
        assert_eq!(bench.made(&first, now).await, 0, "it is whole, and nothing changed");
    }
}

both! {
    async fn a_round_that_cannot_tell_all_of_a_month_goes_well_and_says_so_until_it_can(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let now = at(3 * HOUR_S);
        days::round(&bench.store, now).await.expect("the store answers");
        bench.execute("UPDATE ledger_day SET data = substr(data, 1, 9)").await;
        let app = App::new(Config::for_tests(), bench.store.clone(), Access::default(), Arc::new(Hand::at(now)));
        let mut due = daily::Due::default();
        assert_eq!(app.money.untold(), None);
        assert_eq!(app.money.standings(), None);
        daily::round(&app, &mut due).await.expect("it goes well");
        let told = app.money.untold().expect("a month was made");
        assert!(told[0].contains("cannot be read"), "{told:?}");
        bench.execute("INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
             SELECT day, subject, 1, 0 FROM ledger_day").await;
        daily::round(&app, &mut due).await.expect("it goes well");
        assert_eq!(app.money.untold(), Some(Vec::new()));
        let standings = app.money.standings().expect("the month was made");
        assert_eq!(standings.month, month_of(now));
    }
}

both! {
    async fn what_no_column_holds_is_null_and_said_and_never_less(bench) {
        bench.commit(&node_of_eight()).await;
        bench.compute(at(2 * HOUR_S + 90)).await;
        let rates = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
            a3-highgpu-8g,us-central1,on_demand,USD,6000000000,,2026-01-01,,list,contract\n";
        let mut all = tables();
        all[0] = table("mine.csv", "rates", rates);
        let written = bench.written(&Arc::new(terms(all)), at(3 * HOUR_S)).await;
        assert!(written.untold.is_some_and(|it| it.contains("more than a column holds")));
        let everybody = "money_month WHERE payer_kind = 'everybody' AND spent_nano IS NULL
            AND unpriced_ms = 0 AND untold LIKE 'some of its money is more than a column holds%'";
        assert_eq!(bench.count(everybody).await, 1);
        let smaller = "money_month WHERE payer_kind = 'unowned' AND spent_nano = 1500000000000000000 AND untold = ''";
        assert_eq!(bench.count(smaller).await, 1);
    }
}
