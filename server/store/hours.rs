//! The ledger and the ten-minute rows, read by range; and ten-minute rows as they are written with their hour.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::ledger::{LedgerHour, Reason, State};
use gpufleet_telemetry::minute::MinuteRow;

use super::Store;
use super::aside::{Place, Unreadable};
use super::database::{Column, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{ComputedHour, ResourceKey, TenMinutes};
use super::{minutes, subjects};

/// Most hours of one answer: a quarter.
pub const MAX_HOURS: i64 = 92 * 24;

/// Most ten-minute rows of one answer: a month.
pub const MAX_BUCKETS: i64 = 31 * 24 * 6;

impl Store {
    /// The ledger of a resource in a range of hours of at most [`MAX_HOURS`]; of a longer one its last
    /// part. Hours of which nothing is known are not there.
    ///
    /// # Errors
    /// When the database refuses. Time in a state that this server does not know is set aside.
    pub async fn hours(
        &self,
        key: &ResourceKey,
        range: Range<i64>,
    ) -> Result<Vec<LedgerHour>, StoreError> {
        self.hours_of(&[key], range).await
    }

    /// The ledgers of some resources added up, a node's GPUs, in a range of hours of at most [`MAX_HOURS`]; of a longer
    /// one its last part. An hour is final when all of theirs are.
    ///
    /// # Errors
    /// When the database refuses. Time in a state that this server does not know is set aside.
    pub async fn hours_of(
        &self,
        keys: &[&ResourceKey],
        range: Range<i64>,
    ) -> Result<Vec<LedgerHour>, StoreError> {
        let mut transaction = self.read().await?;
        let subjects = subjects::numbers(&mut transaction, &self.0.lease, keys).await?;
        let first = range.start.max(range.end.saturating_sub(MAX_HOURS));
        let asked = subjects
            .into_iter()
            .flat_map(|subject| (first..range.end).map(move |hour| (subject, hour)));
        let (subjects, hours) = asked.unzip();
        let columns = [Column::Ints(subjects), Column::Ints(hours)];
        let before = "WITH k (subject, hour) AS (";
        let after = ") SELECT h.hour, h.is_final, t.state, t.reason, t.time_ms, t.cost_nano_usd,
            CASE WHEN EXISTS (SELECT 1 FROM ledger_correction c WHERE c.hour = h.hour
                AND c.subject = h.subject) THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END,
            t.holder, h.subject
            FROM k CROSS JOIN ledger_hour h
            LEFT JOIN ledger_time t ON t.hour = h.hour AND t.subject = h.subject
            WHERE h.hour = k.hour AND h.subject = k.subject";
        let rows = transaction.keyed(before, &columns, after).await;
        let rows = rows.doing("reading ledger hours")?;
        drop(transaction);
        let (mut hours, unknown) = ledger(&rows)?;
        hours.retain(|it| it.is_restated || !it.entries.is_empty());
        let bad: Result<Vec<_>, _> = unknown.iter().map(|row| unreadable(row)).collect();
        self.set_aside(&bad?).await?;
        Ok(hours)
    }

    /// The ledger of all GPUs and shares of a cluster in a range of hours of at most [`MAX_HOURS`].
    /// An hour is final when all of its resources' are.
    ///
    /// # Errors
    /// When the database refuses. Time in a state that this server does not know is named in the log
    /// and left out.
    pub async fn cluster_hours(
        &self,
        cluster: &str,
        range: Range<i64>,
    ) -> Result<Vec<LedgerHour>, StoreError> {
        let first = range.start.max(range.end.saturating_sub(MAX_HOURS));
        let sql = "SELECT t.hour, MIN(h.is_final), t.state, t.reason,
                CAST(SUM(t.time_ms) AS BIGINT),
                CASE WHEN COUNT(t.cost_nano_usd) = COUNT(*)
                    THEN CAST(SUM(t.cost_nano_usd) AS BIGINT) END,
                CAST(MAX(CASE WHEN c.hour IS NULL THEN 0 ELSE 1 END) AS BIGINT)
            FROM ledger_time t JOIN subject s ON s.id = t.subject
            JOIN ledger_hour h ON h.hour = t.hour AND h.subject = t.subject
            LEFT JOIN (SELECT DISTINCT hour, subject FROM ledger_correction
                       WHERE hour >= $1 AND hour < $2) c
                ON c.hour = h.hour AND c.subject = h.subject
            WHERE t.hour >= $1 AND t.hour < $2 AND s.cluster = $3 AND s.lease = $4
            GROUP BY t.hour, t.state, t.reason";
        let values = [
            Value::Int(first),
            Value::Int(range.end),
            Value::Text(cluster),
            Value::Text(&self.0.lease),
        ];
        let rows = self.ask(sql, &values).await;
        let rows = rows.doing("reading ledger hours")?;
        let (hours, unknown) = ledger(&rows)?;
        for row in unknown {
            let hour = row.int(0).doing("reading ledger hours")?;
            tracing::error!(hour, cluster, "time in an unknown state is left out");
        }
        Ok(hours)
    }

    /// The ten-minute rows of a resource in a range of buckets of at most [`MAX_BUCKETS`]; of a
    /// longer one its last part.
    ///
    /// # Errors
    /// When the database refuses. A row that cannot be read is set aside and left out.
    pub async fn ten_minutes(
        &self,
        key: &ResourceKey,
        range: Range<i64>,
    ) -> Result<Vec<TenMinutes>, StoreError> {
        let doing = "reading ten-minute rows";
        let mut transaction = self.read().await?;
        let Some(subject) = minutes::subject(&mut transaction, &self.0.lease, key).await? else {
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
        let rows = transaction.keyed(before, &columns, after).await;
        let (mut found, mut bad) = (BTreeMap::new(), Vec::new());
        drop(transaction);
        for row in rows.doing(doing)? {
            let bucket = row.int(0).doing(doing)?;
            let data = row.blob(6).doing(doing)?;
            let packed = match MinuteRow::unpack(data) {
                Ok(packed) => packed,
                Err(error) => {
                    bad.push(Unreadable {
                        place: Place::TenMinutes { bucket, subject },
                        data: data.to_vec(),
                        error: error.to_string(),
                        is_unknown: false,
                    });
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
                metrics: packed.metrics,
                counters: packed.counters,
            };
            found.insert(bucket, row);
        }
        self.set_aside(&bad).await?;
        Ok(found.into_values().collect())
    }
}

/// A row of [`Store::hours`] whose state or reason this server does not know.
fn unreadable(row: &Row) -> Result<Unreadable, StoreError> {
    let int = |index: usize| row.int(index).doing("reading ledger hours");
    let (state, reason) = (int(2)?, int(3)?);
    Ok(Unreadable {
        place: Place::Time {
            hour: int(0)?,
            subject: int(8)?,
            codes: [int(7)?, state, reason],
        },
        data: format!("{} ms", int(4)?).into_bytes(),
        error: format!("state {state}, reason {reason} is not known to this server"),
        is_unknown: false,
    })
}

/// Ledger hours from rows of (hour, is_final, state, reason, ms, cost, is_restated), in any order;
/// without a state for an hour of which nothing is left. And the rows whose state or reason is not
/// known.
fn ledger(rows: &[Row]) -> Result<(Vec<LedgerHour>, Vec<&Row>), StoreError> {
    let doing = "reading ledger hours";
    let mut hours: BTreeMap<i64, LedgerHour> = BTreeMap::new();
    let mut times: BTreeMap<i64, BTreeMap<_, i64>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for row in rows {
        let number = row.int(0).doing(doing)?;
        let hour = hours.entry(number).or_insert_with(|| LedgerHour {
            hour: number,
            is_final: true,
            cost_nano_usd: Some(0),
            ..LedgerHour::default()
        });
        hour.is_final &= row.int(1).doing(doing)? != 0;
        hour.is_restated |= row.int(6).doing(doing)? != 0;
        let Some(state) = row.optional_int(2).doing(doing)? else {
            continue;
        };
        let reason = row.int(3).doing(doing)?;
        let (Some(state), Some(reason)) = (State::from_code(state), Reason::from_code(reason))
        else {
            unknown.push(row);
            continue;
        };
        let time = times.entry(number).or_default();
        *time.entry((state, reason)).or_default() += row.int(4).doing(doing)?;
        // One price that is not known makes the sum not known.
        let more = row.optional_int(5).doing(doing)?;
        hour.cost_nano_usd = hour
            .cost_nano_usd
            .zip(more)
            .and_then(|(a, b)| a.checked_add(b));
    }
    for (number, time) in times {
        let hour = hours.get_mut(&number).expect("it was made with its time");
        hour.entries = LedgerHour::new(number, time).entries;
    }
    Ok((hours.into_values().collect(), unknown))
}

/// Writes the ten-minute rows of hours.
pub(super) async fn write_ten_minutes(
    transaction: &mut Transaction,
    hours: &[&ComputedHour],
) -> Result<(), StoreError> {
    let rows: Vec<(i64, &TenMinutes)> = hours
        .iter()
        .flat_map(|it| it.ten_minutes.iter().map(|row| (it.dirty.subject, row)))
        .collect();
    let packed: Vec<Vec<u8>> = rows
        .iter()
        .map(|(_, it)| {
            let row = MinuteRow {
                metrics: it.metrics.clone(),
                counters: it.counters.clone(),
                ..MinuteRow::default()
            };
            row.pack()
        })
        .collect();
    let seconds =
        |of: fn(&TenMinutes) -> i64| Column::Ints(rows.iter().map(|(_, it)| of(it)).collect());
    let columns = [
        Column::Ints(rows.iter().map(|(_, it)| it.bucket).collect()),
        Column::Ints(rows.iter().map(|(subject, _)| *subject).collect()),
        seconds(|it| it.observed_s),
        seconds(|it| it.active_s),
        seconds(|it| it.stalled_s),
        seconds(|it| it.held_s),
        seconds(|it| it.holder_known_s),
        Column::Blobs(packed.iter().map(Vec::as_slice).collect()),
    ];
    let before = "INSERT INTO minute10_row (bucket, subject, observed_s, active_s, stalled_s,
        held_s, holder_known_s, data)";
    let after = "ON CONFLICT (bucket, subject) DO UPDATE SET observed_s = excluded.observed_s,
        active_s = excluded.active_s, stalled_s = excluded.stalled_s, held_s = excluded.held_s,
        holder_known_s = excluded.holder_known_s, data = excluded.data";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing ten-minute rows").map(|_| ())
}
