//! What model servers served, hour by hour, summed by day for reports.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::serving::Served;
use gpufleet_telemetry::identity::ResourceKind;

use super::Store;
use super::database::{Column, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{ComputedHour, KnownResource};
use super::subjects;

/// Most days of model servers in one answer: a month of 3,000 of them.
pub const MAX_SERVED_DAYS: usize = 100_000;

/// Hours of a day.
const HOURS: i64 = 24;

/// A model server, and what it served day by day.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedDays {
    /// What it says of itself.
    pub resource: KnownResource,
    /// By days since the Unix epoch.
    pub days: BTreeMap<i64, Served>,
}

/// Writes what was served in hours whose rows of before are gone.
pub(super) async fn write(
    transaction: &mut Transaction,
    hours: &[&ComputedHour],
) -> Result<(), StoreError> {
    let rows = hours.iter().filter_map(|it| Some((it.dirty, it.served?)));
    let rows: Vec<_> = rows.collect();
    let columns = [
        Column::Ints(rows.iter().map(|it| it.0.hour).collect()),
        Column::Ints(rows.iter().map(|it| it.0.subject).collect()),
        Column::OptionalInts(rows.iter().map(|it| it.1.prompt_tokens).collect()),
        Column::Ints(rows.iter().map(|it| it.1.generated_tokens).collect()),
        Column::Ints(rows.iter().map(|it| it.1.told_millis).collect()),
    ];
    let before = "INSERT INTO served_hour
        (hour, subject, prompt_tokens, generated_tokens, told_ms)";
    let written = transaction.rows(before, &columns, "").await;
    written.doing("writing what was served").map(|_| ())
}

impl Store {
    /// Model servers that were there in these days, of one cluster where one is named, with what they served; one
    /// that told no tokens has no day. And whether these are all: at most [`MAX_SERVED_DAYS`] are read.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn served(
        &self,
        days: Range<i64>,
        cluster: Option<&str>,
    ) -> Result<(Vec<ServedDays>, bool), StoreError> {
        let doing = "reading what was served";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT s.id FROM subject s JOIN subject_seen n ON n.subject = s.id
             WHERE s.lease = $1 AND s.kind = '{}' AND ($2 = '' OR s.cluster = $2)
             AND s.first_seen_ms < $4 * 86400000 AND n.last_seen_ms >= $3 * 86400000
             ORDER BY s.id LIMIT {MAX_SERVED_DAYS}",
            ResourceKind::Endpoint.name()
        );
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster.unwrap_or_default()),
            Value::Int(days.start),
            Value::Int(days.end),
        ];
        let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
        let mut ids = Vec::with_capacity(rows.len());
        for row in &rows {
            ids.push(row.int(0).doing(doing)?);
        }
        let mut are_all = ids.len() < MAX_SERVED_DAYS;
        let known = ids.iter().copied();
        let known = subjects::known(&mut transaction, known, doing, &mut Vec::new()).await?;
        let empty = |(id, resource)| {
            let days = BTreeMap::new();
            (id, ServedDays { resource, days })
        };
        let mut found: BTreeMap<i64, ServedDays> = known.into_iter().map(empty).collect();
        let after = format!(
            ") SELECT h.subject, h.hour / {HOURS},
                CASE WHEN COUNT(h.prompt_tokens) = COUNT(*) THEN CAST(SUM(h.prompt_tokens) AS BIGINT) END,
                CAST(SUM(h.generated_tokens) AS BIGINT), CAST(SUM(h.told_ms) AS BIGINT)
             FROM k CROSS JOIN served_hour h WHERE h.subject = k.subject
             AND h.hour >= {} AND h.hour < {} GROUP BY h.subject, h.hour / {HOURS}
             ORDER BY h.subject, h.hour / {HOURS} LIMIT {MAX_SERVED_DAYS}",
            days.start * HOURS,
            days.end * HOURS,
        );
        let columns = [Column::Ints(found.keys().copied().collect())];
        let rows = transaction
            .rows("WITH k (subject) AS (", &columns, &after)
            .await
            .doing(doing)?;
        are_all &= rows.len() < MAX_SERVED_DAYS;
        for row in &rows {
            let served = Served {
                prompt_tokens: row.optional_int(2).doing(doing)?,
                generated_tokens: row.int(3).doing(doing)?,
                told_millis: row.int(4).doing(doing)?,
            };
            if let Some(it) = found.get_mut(&row.int(0).doing(doing)?) {
                it.days.insert(row.int(1).doing(doing)?, served);
            }
        }
        Ok((found.into_values().collect(), are_all))
    }
}
