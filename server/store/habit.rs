//! What the ledger says of habits: the hours of a holder on a GPU, and GPUs that were free for whole hours.
//!
//! Limits: [`MAX_HOLDER_HOURS`] hours of one GPU; a range of free hours is read a day at a time.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::ledger::{MILLIS_PER_HOUR, State};

use super::Store;
use super::database::{Column, Row, Value};
use super::error::{Doing, StoreError};
use super::minutes;
use super::model::ResourceKey;

/// Most hours of a holder on one GPU in one answer: two weeks.
pub const MAX_HOLDER_HOURS: i64 = 14 * 24;

/// An hour counts as a holder's when he had the GPU for nine tenths of it, milliseconds.
const MOST_OF_AN_HOUR_MS: i64 = MILLIS_PER_HOUR / 10 * 9;

/// Resources that were free for the whole of an hour, by hour.
pub type FreeHours = BTreeMap<i64, Vec<(String, String)>>;

impl Store {
    /// Hours of a range of at most [`MAX_HOLDER_HOURS`] (of a longer one its last part) in which this
    /// holder had a GPU nearly all the time, in their order.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn hours_held_by(
        &self,
        key: &ResourceKey,
        holder: i64,
        range: Range<i64>,
    ) -> Result<Vec<i64>, StoreError> {
        let doing = "reading the hours of a holder";
        let mut transaction = self.read().await?;
        let Some(subject) = minutes::subject(&mut transaction, &self.0.lease, key).await? else {
            return Ok(Vec::new());
        };
        let first = range.start.max(range.end.saturating_sub(MAX_HOLDER_HOURS));
        let hours: Vec<i64> = (first..range.end).collect();
        let columns = [
            Column::Ints(vec![subject; hours.len()]),
            Column::Ints(vec![holder; hours.len()]),
            Column::Ints(hours),
        ];
        let before = "WITH k (subject, holder, hour) AS (";
        let after = format!(
            ") SELECT t.hour FROM k CROSS JOIN ledger_time t
            WHERE t.hour = k.hour AND t.subject = k.subject AND t.holder = k.holder
            GROUP BY t.hour HAVING SUM(t.time_ms) >= {MOST_OF_AN_HOUR_MS} ORDER BY t.hour"
        );
        let rows = transaction.rows(before, &columns, &after).await;
        let rows = rows.doing(doing)?;
        rows.iter().map(|row| row.int(0).doing(doing)).collect()
    }

    /// GPUs and shares (cluster, id) that nobody held for the whole of an hour, by hour.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn free_hours(&self, hours: Range<i64>) -> Result<FreeHours, StoreError> {
        let doing = "reading which GPUs were free";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT t.hour, s.cluster, s.resource_id FROM ledger_time t
             JOIN subject s ON s.id = t.subject
             WHERE t.hour >= $1 AND t.hour < $2 AND t.state = $3 AND s.lease = $4
             GROUP BY t.hour, s.cluster, s.resource_id
             HAVING SUM(t.time_ms) >= {MILLIS_PER_HOUR}"
        );
        let values = [
            Value::Int(hours.start),
            Value::Int(hours.end),
            Value::Int(State::Unallocated.code()),
            Value::Text(&self.0.lease),
        ];
        let mut found = FreeHours::new();
        let take = |row: Row| {
            let who = (row.text(1)?.to_owned(), row.text(2)?.to_owned());
            found.entry(row.int(0)?).or_default().push(who);
            Ok(())
        };
        transaction.each(&sql, &values, take).await.doing(doing)?;
        Ok(found)
    }

    /// The first day of the ledger of each cluster in a range, counted from the epoch.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn first_days(&self, days: Range<i64>) -> Result<BTreeMap<String, i64>, StoreError> {
        let doing = "reading since when clusters are known";
        let sql = "SELECT cluster, MIN(day) FROM ledger_day
            WHERE day >= $1 AND day < $2 AND lease = $3 GROUP BY cluster";
        let values = [
            Value::Int(days.start),
            Value::Int(days.end),
            Value::Text(&self.0.lease),
        ];
        let mut transaction = self.read().await?;
        let rows = transaction.fetch(sql, &values).await.doing(doing)?;
        let of = |row: &Row| -> Result<(String, i64), sqlx::Error> {
            Ok((row.text(0)?.to_owned(), row.int(1)?))
        };
        rows.iter().map(|row| of(row).doing(doing)).collect()
    }
}
