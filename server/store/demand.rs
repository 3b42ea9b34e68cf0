//! How many GPUs were waited for, hour by hour: replaced while an hour runs, read by range.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use gpufleet_analysis::report::efficiency::Demand;

use super::Store;
use super::database::{Column, Transaction, Value};
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::ledger::Inputs;
use super::model::FencingToken;

/// Hours of a day.
const HOURS: i64 = 24;

/// GPUs that were waited for in an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DemandHour {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// For how long it was seen who waits, milliseconds.
    pub seen_ms: i64,
    /// Of [`Self::seen_ms`], for how long the nodes were seen too.
    pub nodes_seen_ms: i64,
    /// GPUs that were waited for × that time.
    pub waiting_gpu_ms: i64,
}

impl Store {
    /// Makes hours of a cluster durable as they are; each replaces what was written of it.
    ///
    /// # Errors
    /// When another server has the right to write, or the database refuses; then nothing is written.
    pub async fn write_demand(
        &self,
        cluster: &str,
        hours: &[DemandHour],
        token: FencingToken,
    ) -> Result<(), CommitError> {
        let doing = "writing how many GPUs were waited for";
        let unknown = CommitError::Unknown;
        let mut transaction = self.write().await.map_err(unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let columns = [
            Column::Texts(vec![self.0.lease.as_str(); hours.len()]),
            Column::Texts(vec![cluster; hours.len()]),
            Column::Ints(hours.iter().map(|it| it.hour).collect()),
            Column::Ints(hours.iter().map(|it| it.seen_ms).collect()),
            Column::Ints(hours.iter().map(|it| it.nodes_seen_ms).collect()),
            Column::Ints(hours.iter().map(|it| it.waiting_gpu_ms).collect()),
        ];
        let before = "INSERT INTO demand_hour (lease, cluster, hour, seen_ms, nodes_seen_ms, waiting_gpu_ms)";
        let after = "ON CONFLICT (lease, cluster, hour) DO UPDATE SET seen_ms = excluded.seen_ms,
            nodes_seen_ms = excluded.nodes_seen_ms, waiting_gpu_ms = excluded.waiting_gpu_ms";
        let written = transaction.rows(before, &columns, after).await;
        written.doing(doing).map_err(unknown)?;
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(unknown)
    }

    /// What is written of one hour of a cluster; none where nothing is.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn demand_hour(
        &self,
        cluster: &str,
        hour: i64,
    ) -> Result<Option<DemandHour>, StoreError> {
        let doing = "reading how many GPUs were waited for";
        let sql = "SELECT seen_ms, nodes_seen_ms, waiting_gpu_ms FROM demand_hour
            WHERE lease = $1 AND cluster = $2 AND hour = $3";
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster),
            Value::Int(hour),
        ];
        let rows = self.ask(sql, &values).await.doing(doing)?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(DemandHour {
            hour,
            seen_ms: row.int(0).doing(doing)?,
            nodes_seen_ms: row.int(1).doing(doing)?,
            waiting_gpu_ms: row.int(2).doing(doing)?,
        }))
    }

    /// What was waited for in a range of hours, by cluster; of one cluster where one is named.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn demand(
        &self,
        hours: Range<i64>,
        cluster: Option<&str>,
    ) -> Result<Vec<Demand>, StoreError> {
        let doing = "reading how many GPUs were waited for";
        let sql =
            "SELECT cluster, CAST(SUM(seen_ms) AS BIGINT), CAST(SUM(waiting_gpu_ms) AS BIGINT)
            FROM demand_hour WHERE lease = $1 AND hour >= $2 AND hour < $3
            AND ($4 = '' OR cluster = $4) GROUP BY cluster ORDER BY cluster";
        let values = [
            Value::Text(&self.0.lease),
            Value::Int(hours.start),
            Value::Int(hours.end),
            Value::Text(cluster.unwrap_or_default()),
        ];
        let rows = self.ask(sql, &values).await.doing(doing)?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push(Demand {
                cluster: row.text(0).doing(doing)?.to_owned(),
                seen_millis: row.int(1).doing(doing)?,
                waiting_gpu_millis: row.int(2).doing(doing)?,
            });
        }
        Ok(found)
    }

    /// On which days of a range both the nodes and who waits were seen for a time, by cluster; of one cluster where
    /// one is named.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn days_looked(
        &self,
        days: Range<i64>,
        cluster: Option<&str>,
    ) -> Result<BTreeSet<(String, i64)>, StoreError> {
        let doing = "reading on which days clusters were looked at";
        let sql = "SELECT DISTINCT cluster, hour / 24 FROM demand_hour
            WHERE lease = $1 AND hour >= $2 AND hour < $3 AND ($4 = '' OR cluster = $4)
            AND nodes_seen_ms > 0";
        let values = [
            Value::Text(&self.0.lease),
            Value::Int(days.start * HOURS),
            Value::Int(days.end * HOURS),
            Value::Text(cluster.unwrap_or_default()),
        ];
        let rows = self.ask(sql, &values).await.doing(doing)?;
        let mut found = BTreeSet::new();
        for row in &rows {
            let cluster = row.text(0).doing(doing)?.to_owned();
            found.insert((cluster, row.int(1).doing(doing)?));
        }
        Ok(found)
    }
}

/// Hands each hour what was waited for in its cluster.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    inputs: &mut Inputs,
) -> Result<(), StoreError> {
    let doing = "reading how many GPUs were waited for";
    let mut of: BTreeMap<(String, i64), Vec<(i64, i64)>> = BTreeMap::new();
    for (key, input) in inputs.iter() {
        let cluster = input.resource.key.cluster.to_string();
        of.entry((cluster, key.0)).or_default().push(*key);
    }
    let columns = [
        Column::Texts(vec![lease; of.len()]),
        Column::Texts(of.keys().map(|it| it.0.as_str()).collect()),
        Column::Ints(of.keys().map(|it| it.1).collect()),
    ];
    let after = ") SELECT d.cluster, d.hour, d.seen_ms, d.nodes_seen_ms, d.waiting_gpu_ms
        FROM k CROSS JOIN demand_hour d
        WHERE d.lease = k.lease AND d.cluster = k.cluster AND d.hour = k.hour";
    let rows = transaction
        .rows("WITH k (lease, cluster, hour) AS (", &columns, after)
        .await;
    for row in rows.doing(doing)? {
        let hour = row.int(1).doing(doing)?;
        let waited_for = DemandHour {
            hour,
            seen_ms: row.int(2).doing(doing)?,
            nodes_seen_ms: row.int(3).doing(doing)?,
            waiting_gpu_ms: row.int(4).doing(doing)?,
        };
        let asked = (row.text(0).doing(doing)?.to_owned(), hour);
        for key in of.get(&asked).into_iter().flatten() {
            let input = inputs.get_mut(key).expect("it is one of them");
            input.around.waited_for = Some(waited_for);
        }
    }
    Ok(())
}
