//! The ledger and the ten-minute rows, read by range.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::ledger::{LedgerHour, Reason, State};
use gpufleet_telemetry::minute::MinuteRow;

use super::Store;
use super::database::{Column, Row, Value};
use super::error::{Doing, StoreError};
use super::minutes;
use super::model::{ResourceKey, TenMinutes};

/// Most hours of one answer: a quarter.
pub const MAX_HOURS: i64 = 92 * 24;

/// Most ten-minute rows of one answer: a month.
pub const MAX_BUCKETS: i64 = 31 * 24 * 6;

impl Store {
    /// The ledger of a resource in a range of hours of at most [`MAX_HOURS`]; of a longer one its last
    /// part. Hours of which nothing is known are not there.
    ///
    /// # Errors
    /// When the database refuses, or holds a state that this server does not know.
    pub async fn hours(
        &self,
        key: &ResourceKey,
        range: Range<i64>,
    ) -> Result<Vec<LedgerHour>, StoreError> {
        let mut transaction = self.read().await?;
        let Some(subject) = minutes::subject(&mut transaction, key).await? else {
            return Ok(Vec::new());
        };
        let first = range.start.max(range.end.saturating_sub(MAX_HOURS));
        let hours: Vec<i64> = (first..range.end).collect();
        let columns = [
            Column::Ints(vec![subject; hours.len()]),
            Column::Ints(hours),
        ];
        let before = "WITH k (subject, hour) AS (";
        let after = ") SELECT h.hour, h.is_final, t.state, t.reason, t.time_ms, t.cost_nano_usd
            FROM k CROSS JOIN ledger_hour h CROSS JOIN ledger_time t
            WHERE h.hour = k.hour AND h.subject = k.subject
            AND t.hour = h.hour AND t.subject = h.subject";
        let rows = transaction.rows(before, &columns, after).await;
        ledger(&rows.doing("reading ledger hours")?)
    }

    /// The ledger of all GPUs and shares of a cluster in a range of hours of at most [`MAX_HOURS`].
    /// An hour is final when all of its resources' are.
    ///
    /// # Errors
    /// When the database refuses, or holds a state that this server does not know.
    pub async fn cluster_hours(
        &self,
        cluster: &str,
        range: Range<i64>,
    ) -> Result<Vec<LedgerHour>, StoreError> {
        let mut transaction = self.read().await?;
        let first = range.start.max(range.end.saturating_sub(MAX_HOURS));
        let sql = "SELECT t.hour, MIN(h.is_final), t.state, t.reason,
                CAST(SUM(t.time_ms) AS BIGINT),
                CASE WHEN COUNT(t.cost_nano_usd) = COUNT(*)
                    THEN CAST(SUM(t.cost_nano_usd) AS BIGINT) END
            FROM ledger_time t JOIN subject s ON s.id = t.subject
            JOIN ledger_hour h ON h.hour = t.hour AND h.subject = t.subject
            WHERE t.hour >= $1 AND t.hour < $2 AND s.cluster = $3
            GROUP BY t.hour, t.state, t.reason";
        let values = [
            Value::Int(first),
            Value::Int(range.end),
            Value::Text(cluster),
        ];
        let rows = transaction.fetch(sql, &values).await;
        ledger(&rows.doing("reading ledger hours")?)
    }

    /// The ten-minute rows of a resource in a range of buckets of at most [`MAX_BUCKETS`]; of a
    /// longer one its last part.
    ///
    /// # Errors
    /// When the database refuses. A row that cannot be read is named in the log and left out.
    pub async fn ten_minutes(
        &self,
        key: &ResourceKey,
        range: Range<i64>,
    ) -> Result<Vec<TenMinutes>, StoreError> {
        let doing = "reading ten-minute rows";
        let mut transaction = self.read().await?;
        let Some(subject) = minutes::subject(&mut transaction, key).await? else {
            return Ok(Vec::new());
        };
        let first = range.start.max(range.end.saturating_sub(MAX_BUCKETS));
        let buckets: Vec<i64> = (first..range.end).collect();
        let columns = [
            Column::Ints(vec![subject; buckets.len()]),
            Column::Ints(buckets),
        ];
        let before = "WITH k (subject, bucket) AS (";
        let after = ") SELECT m.bucket, m.observed_s, m.active_s, m.stalled_s, m.held_s,
            m.holder_known_s, m.data FROM k CROSS JOIN minute10_row m
            WHERE m.bucket = k.bucket AND m.subject = k.subject";
        let rows = transaction.rows(before, &columns, after).await;
        let mut found = BTreeMap::new();
        for row in rows.doing(doing)? {
            let bucket = row.int(0).doing(doing)?;
            let metrics = match MinuteRow::unpack(row.blob(6).doing(doing)?) {
                Ok(packed) => packed.metrics,
                Err(error) => {
                    tracing::error!(%error, bucket, subject, "a ten-minute row cannot be read");
                    continue;
                }
            };
            let row = TenMinutes {
                bucket,
                observed_s: row.int(1).doing(doing)?,
                active_s: row.int(2).doing(doing)?,
                stalled_s: row.int(3).doing(doing)?,
                held_s: row.int(4).doing(doing)?,
                holder_known_s: row.int(5).doing(doing)?,
                metrics,
            };
            found.insert(bucket, row);
        }
        Ok(found.into_values().collect())
    }
}

/// Ledger hours from rows of (hour, is_final, state, reason, ms, cost), in any order.
fn ledger(rows: &[Row]) -> Result<Vec<LedgerHour>, StoreError> {
    let doing = "reading ledger hours";
    let mut hours: BTreeMap<i64, (BTreeMap<_, i64>, bool, Option<i64>)> = BTreeMap::new();
    for row in rows {
        let hour = row.int(0).doing(doing)?;
        let (state, reason) = (row.int(2).doing(doing)?, row.int(3).doing(doing)?);
        let (Some(state), Some(reason)) = (State::from_code(state), Reason::from_code(reason))
        else {
            return Err(StoreError::Corrupt {
                what: format!("hour {hour} of the ledger"),
                why: format!("state {state}, reason {reason} is not known to this server"),
            });
        };
        let (time, is_final, cost) = hours
            .entry(hour)
            .or_insert((BTreeMap::new(), true, Some(0)));
        *time.entry((state, reason)).or_default() += row.int(4).doing(doing)?;
        *is_final &= row.int(1).doing(doing)? != 0;
        // One price that is not known makes the sum not known.
        *cost = match (*cost, row.optional_int(5).doing(doing)?) {
            (Some(sum), Some(more)) => sum.checked_add(more),
            _ => None,
        };
    }
    let ledger = hours.into_iter().map(|(hour, (time, is_final, cost))| {
        let mut ledger = LedgerHour::new(hour, time);
        (ledger.is_final, ledger.cost_nano_usd) = (is_final, cost);
        ledger
    });
    Ok(ledger.collect())
}
