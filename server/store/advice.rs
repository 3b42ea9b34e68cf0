//! Advice that was given, each as a whole, and since when it is kept.
//!
//! Limits: [`MAX_ADVICE`] rows in one answer; how many are written in a day the writer says.

use std::ops::Range;

use gpufleet_analysis::taken::Record;
use gpufleet_telemetry::time::Timestamp;

use super::database::{Column, Row, Value};
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::model::FencingToken;
use super::{Store, horizon};

/// Most rows of one answer, the newest: half a year at the most of a day.
pub const MAX_ADVICE: usize = 20_000;

/// Name of the moment in table horizon from which on advice is kept, ms since the Unix epoch.
pub(super) const ADVICE_HORIZON: &str = "advice";

impl Store {
    /// Makes advice durable as it stands; each replaces what was written of it. And that it is kept, from now on
    /// unless it was before.
    ///
    /// # Errors
    /// When another server has the right to write, or the database refuses; then nothing is written.
    pub async fn write_advice(
        &self,
        all: &[&Record],
        now: Timestamp,
        token: FencingToken,
    ) -> Result<(), CommitError> {
        let doing = "writing what advice was given";
        let unknown = CommitError::Unknown;
        let texts = all.iter().map(serde_json::to_string);
        let texts: Result<Vec<String>, _> = texts.collect();
        let texts = texts.expect("texts and numbers are JSON");
        let mut transaction = self.write().await.map_err(unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let since = "INSERT INTO horizon (name, value, lease) VALUES ($1, $2, $3)
            ON CONFLICT (lease, name) DO NOTHING";
        let values = [
            Value::Text(ADVICE_HORIZON),
            Value::Int(now.millis()),
            Value::Text(&self.0.lease),
        ];
        let begun = transaction.execute(since, &values).await;
        begun.doing(doing).map_err(unknown)?;
        if !all.is_empty() {
            let ints = |of: fn(&Record) -> i64| Column::Ints(all.iter().map(|it| of(it)).collect());
            let clusters = all.iter().map(|it| it.advice.cluster.as_str());
            let columns = [
                Column::Texts(vec![self.0.lease.as_str(); all.len()]),
                ints(|it| it.number),
                Column::Texts(clusters.collect()),
                ints(|it| it.first_ms),
                ints(Record::until_ms),
                ints(|it| i64::from(it.standing.is_over())),
                Column::Texts(texts.iter().map(String::as_str).collect()),
            ];
            let before =
                "INSERT INTO advice (lease, number, cluster, first_ms, until_ms, is_over, data)";
            let after = "ON CONFLICT (lease, number) DO UPDATE SET until_ms = excluded.until_ms,
                is_over = excluded.is_over, data = excluded.data";
            let written = transaction.rows(before, &columns, after).await;
            written.doing(doing).map_err(unknown)?;
        }
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(unknown)
    }

    /// Advice that something may still move, and the number of the next one.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is told in the log and left out.
    pub async fn open_advice(&self) -> Result<(Vec<Record>, i64), StoreError> {
        let doing = "reading what advice is open";
        let mut transaction = self.read().await?;
        let sql = "SELECT MAX(number) FROM advice WHERE lease = $1";
        let lease = [Value::Text(&self.0.lease)];
        let last = transaction.fetch(sql, &lease).await.doing(doing)?;
        let last = last.first().map(|it| it.optional_int(0));
        let last = last.transpose().doing(doing)?.flatten();
        let sql = format!(
            "SELECT data FROM advice WHERE lease = $1 AND is_over = 0
             ORDER BY number DESC LIMIT {MAX_ADVICE}"
        );
        let rows = transaction.fetch(&sql, &lease).await.doing(doing)?;
        Ok((read(&rows)?, last.unwrap_or(0) + 1))
    }

    /// Advice that was given or saved anything in a time, of one cluster where one is named; since when advice is
    /// kept; and whether this is all of it.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is told in the log and left out.
    pub async fn advice(
        &self,
        time: Range<Timestamp>,
        cluster: Option<&str>,
    ) -> Result<(Vec<Record>, Option<Timestamp>, bool), StoreError> {
        let doing = "reading what advice was given";
        let mut transaction = self.read().await?;
        let since = horizon::read(&mut transaction, &self.0.lease, ADVICE_HORIZON).await?;
        let sql = format!(
            "SELECT data FROM advice WHERE lease = $1 AND first_ms < $3 AND until_ms >= $2
             AND ($4 = '' OR cluster = $4) ORDER BY number DESC LIMIT {MAX_ADVICE}"
        );
        let values = [
            Value::Text(&self.0.lease),
            Value::Int(time.start.millis()),
            Value::Int(time.end.millis()),
            Value::Text(cluster.unwrap_or_default()),
        ];
        let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
        let found = read(&rows)?;
        let are_all = rows.len() < MAX_ADVICE;
        Ok((found, since.map(Timestamp::from_millis), are_all))
    }
}

fn read(rows: &[Row]) -> Result<Vec<Record>, StoreError> {
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let data = row.text(0).doing("reading what advice was given")?;
        match serde_json::from_str(data) {
            Ok(record) => found.push(record),
            Err(error) => tracing::error!(%error, "an advice cannot be read and is left out"),
        }
    }
    Ok(found)
}
