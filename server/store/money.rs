//! Days and months of the ledger as money, for who asks in SQL: written as they were made, never added to.
//!
//! A day that says what it said is not written again: its digest tells. Each day is a transaction of its own, so that
//! commits come in between. Which lease a row is of tells servers that share a database apart.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::owner::Payer;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::database::{Column, Transaction, Value};
use super::error::{Doing, StoreError};
use super::retain::DAYS_HORIZON;
use super::{Store, horizon};

/// A day of a scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MoneyDay {
    /// Empty: all live clusters together; else the cluster that is not live.
    pub scope: String,
    /// Where its data comes from.
    pub origin: Origin,
    /// Days since the Unix epoch.
    pub day: i64,
    /// The month that it is in, as `2026-11`.
    pub month: String,
    /// The currency of all its money.
    pub currency: String,
    /// What was spent in it.
    pub rows: Vec<MoneyRow>,
}

/// What a payer spent on a job in one state for one reason in a day.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MoneyRow {
    /// The cluster; empty of a commitment that nobody used.
    pub cluster: String,
    /// Who pays.
    pub payer: Payer,
    /// The namespace; empty where there is none.
    pub namespace: String,
    /// The job; empty where there is none.
    pub job: String,
    /// The project; empty where it is not known.
    pub project: String,
    /// The state.
    pub state: State,
    /// Why.
    pub reason: Reason,
    /// GPU-milliseconds.
    pub gpu_millis: i64,
    /// Nano-units of what has a price; none where nothing of it has.
    pub cost: Option<i64>,
    /// Of [`Self::gpu_millis`], what has no price.
    pub unpriced_millis: i64,
    /// What of its money is not told, and why; empty where all is.
    pub untold: String,
}

/// Where a payer stands in a month.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoneyMonth {
    /// As in [`MoneyDay`].
    pub scope: String,
    /// Where its data comes from.
    pub origin: Origin,
    /// Whose budget it is; empty: all live clusters together.
    pub cluster: String,
    /// Who pays; none: everybody together.
    pub payer: Option<Payer>,
    /// The currency of all its money.
    pub currency: String,
    /// GPU-milliseconds.
    pub gpu_millis: i64,
    /// Nano-units of what has a price; none where nothing of it has.
    pub spent: Option<i64>,
    /// Of [`Self::gpu_millis`], what has no price.
    pub unpriced_millis: i64,
    /// What the month will come to, nano-units.
    pub forecast: Option<i64>,
    /// What it may spend, nano-units.
    pub budget: Option<i64>,
    /// By the end of which day the budget is gone, days since the Unix epoch.
    pub gone_on_day: Option<i64>,
    /// Goodput of its training runs, millionths.
    pub goodput: Option<i64>,
    /// The time of the runs behind that, GPU-milliseconds.
    pub goodput_gpu_millis: i64,
    /// What of its figures is not told, and why; empty where all is.
    pub untold: String,
}

/// How a day stands.
#[derive(Debug, Clone, Copy)]
struct Mark {
    digest: i64,
    /// How many of its GPUs' days could not be read when it was made.
    unread: i64,
}

impl MoneyDay {
    fn digest(&self) -> i64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish().cast_signed()
    }
}

/// The kind of a payer.
const fn kind(payer: &Payer) -> &'static str {
    match payer {
        Payer::Team(_) => "team",
        Payer::Unowned => "unowned",
        Payer::Nobody => "nobody",
    }
}

/// What a state is, in one word for each way of looking at money.
const fn class(state: State) -> &'static str {
    match state {
        State::Unobserved => "unobserved",
        _ if state.is_active() => "active",
        _ if state.is_idle() => "idle",
        _ if state.is_waste() => "wasted",
        _ => "gap",
    }
}

impl Store {
    /// The first day of the ledger; none where there is none yet.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn first_ledger_day(&self) -> Result<Option<i64>, StoreError> {
        let doing = "looking for the first day of the ledger";
        let sql = "SELECT day FROM ledger_day WHERE lease = $1 ORDER BY day LIMIT 1";
        let mut transaction = self.read().await?;
        let values = [Value::Text(&self.0.lease)];
        transaction.fetch_int(sql, &values).await.doing(doing)
    }

    /// The first day from which on all days of the ledger are kept; none where none was ever deleted.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn days_kept_since(&self) -> Result<Option<i64>, StoreError> {
        let mut transaction = self.read().await?;
        horizon::read(&mut transaction, &self.0.lease, DAYS_HORIZON).await
    }

    /// Makes these days stand for a range of days: those that changed are written, those that are not among them go.
    /// Of some of them, by scope and day, so many days of GPUs could not be read: one that stands with fewer of these stays
    /// as it stands, and any other is written without them. Returns how many were written or went.
    ///
    /// # Errors
    /// When the database refuses; then some of them stand as before.
    pub async fn write_money_days(
        &self,
        range: Range<i64>,
        days: &[MoneyDay],
        unread: &BTreeMap<(String, i64), i64>,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let mut known = self.money_marks(range).await?;
        let mut written = 0;
        for day in days.iter().filter(|it| !it.rows.is_empty()) {
            let key = (day.scope.clone(), day.day);
            let mark = Mark {
                digest: day.digest(),
                unread: unread.get(&key).copied().unwrap_or(0),
            };
            let stays = |it: Mark| it.digest == mark.digest || it.unread < mark.unread;
            if known.remove(&key).is_some_and(stays) {
                continue;
            }
            self.write_money_day(day, mark, now).await?;
            written += 1;
        }
        known.retain(|it, _| !unread.contains_key(it));
        for (scope, day) in known.keys() {
            let doing = "deleting a day as money";
            let mut transaction = self.write().await?;
            self.clear(&mut transaction, scope, *day).await?;
            transaction.commit().await.doing(doing)?;
        }
        Ok(written + known.len())
    }

    /// How the days of a range stand, by scope and day.
    async fn money_marks(
        &self,
        range: Range<i64>,
    ) -> Result<BTreeMap<(String, i64), Mark>, StoreError> {
        let doing = "reading which days stand as money";
        let sql = "SELECT scope, day, digest, partial FROM money_day_mark
            WHERE lease = $1 AND day >= $2 AND day < $3";
        let values = [
            Value::Text(&self.0.lease),
            Value::Int(range.start),
            Value::Int(range.end),
        ];
        let mut transaction = self.read().await?;
        let rows = transaction.fetch(sql, &values).await.doing(doing)?;
        let mut found = BTreeMap::new();
        for row in &rows {
            let scope = row.text(0).doing(doing)?.to_owned();
            let day = row.int(1).doing(doing)?;
            let mark = Mark {
                digest: row.int(2).doing(doing)?,
                unread: row.int(3).doing(doing)?,
            };
            found.insert((scope, day), mark);
        }
        Ok(found)
    }

    async fn write_money_day(
        &self,
        day: &MoneyDay,
        mark: Mark,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let doing = "writing a day as money";
        let (lease, rows) = (self.0.lease.as_str(), &day.rows);
        let mut transaction = self.write().await?;
        self.clear(&mut transaction, &day.scope, day.day).await?;
        let text =
            |of: for<'a> fn(&'a MoneyRow) -> &'a str| Column::Texts(rows.iter().map(of).collect());
        let all = |text| Column::Texts(vec![text; rows.len()]);
        let columns = [
            all(lease),
            all(&day.scope),
            Column::Ints(vec![day.day; rows.len()]),
            Column::Ints((0..).take(rows.len()).collect()),
            all(&day.month),
            all(day.origin.name()),
            text(|it| &it.cluster),
            text(|it| it.payer.name()),
            text(|it| kind(&it.payer)),
            text(|it| &it.namespace),
            text(|it| &it.job),
            text(|it| &it.project),
            text(|it| it.state.name()),
            text(|it| class(it.state)),
            text(|it| it.reason.name()),
            all(&day.currency),
            Column::Ints(rows.iter().map(|it| it.gpu_millis).collect()),
            Column::OptionalInts(rows.iter().map(|it| it.cost).collect()),
            Column::Ints(rows.iter().map(|it| it.unpriced_millis).collect()),
            text(|it| &it.untold),
        ];
        let before = "INSERT INTO money_day (lease, scope, day, number, month, origin, cluster, payer, payer_kind,
            namespace, job, project, state, class, reason, currency, gpu_ms, cost_nano, unpriced_ms, untold)";
        transaction.rows(before, &columns, "").await.doing(doing)?;
        let sql = "INSERT INTO money_day_mark (lease, scope, day, digest, made_ms, partial)
            VALUES ($1, $2, $3, $4, $5, $6)";
        let values = [
            Value::Text(lease),
            Value::Text(&day.scope),
            Value::Int(day.day),
            Value::Int(mark.digest),
            Value::Int(now.millis()),
            Value::Int(mark.unread),
        ];
        transaction.execute(sql, &values).await.doing(doing)?;
        transaction.commit().await.doing(doing)
    }

    async fn clear(
        &self,
        transaction: &mut Transaction,
        scope: &str,
        day: i64,
    ) -> Result<(), StoreError> {
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(scope),
            Value::Int(day),
        ];
        for sql in [
            "DELETE FROM money_day WHERE lease = $1 AND scope = $2 AND day = $3",
            "DELETE FROM money_day_mark WHERE lease = $1 AND scope = $2 AND day = $3",
        ] {
            let gone = transaction.execute(sql, &values).await;
            gone.doing("replacing a day as money")?;
        }
        Ok(())
    }

    /// Makes these rows stand for the month that begins on a day.
    ///
    /// # Errors
    /// When the database refuses; then the month stands as before.
    pub async fn write_money_month(
        &self,
        (first_day, month): (i64, &str),
        rows: &[MoneyMonth],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let doing = "writing a month as money";
        let lease = self.0.lease.as_str();
        let mut transaction = self.write().await?;
        let sql = "DELETE FROM money_month WHERE lease = $1 AND first_day = $2";
        let values = [Value::Text(lease), Value::Int(first_day)];
        transaction.execute(sql, &values).await.doing(doing)?;
        let all = |text| Column::Texts(vec![text; rows.len()]);
        let int = |of: fn(&MoneyMonth) -> i64| Column::Ints(rows.iter().map(of).collect());
        let perhaps = |of: fn(&MoneyMonth) -> Option<i64>| {
            Column::OptionalInts(rows.iter().map(of).collect())
        };
        let text = |of: for<'a> fn(&'a MoneyMonth) -> &'a str| {
            Column::Texts(rows.iter().map(of).collect())
        };
        let columns = [
            all(lease),
            Column::Ints(vec![first_day; rows.len()]),
            Column::Ints((0..).take(rows.len()).collect()),
            text(|it| &it.scope),
            all(month),
            text(|it| it.origin.name()),
            text(|it| &it.cluster),
            text(|it| it.payer.as_ref().map_or("", Payer::name)),
            text(|it| it.payer.as_ref().map_or("everybody", kind)),
            text(|it| &it.currency),
            int(|it| it.gpu_millis),
            perhaps(|it| it.spent),
            int(|it| it.unpriced_millis),
            perhaps(|it| it.forecast),
            perhaps(|it| it.budget),
            perhaps(|it| it.gone_on_day),
            perhaps(|it| it.goodput),
            int(|it| it.goodput_gpu_millis),
            text(|it| &it.untold),
            Column::Ints(vec![now.millis(); rows.len()]),
        ];
        let before = "INSERT INTO money_month (lease, first_day, number, scope, month, origin, cluster, payer,
            payer_kind, currency, gpu_ms, spent_nano, unpriced_ms, forecast_nano, budget_nano, gone_on_day,
            goodput_millionths, goodput_gpu_ms, untold, made_ms)";
        transaction.rows(before, &columns, "").await.doing(doing)?;
        transaction.commit().await.doing(doing)
    }
}
