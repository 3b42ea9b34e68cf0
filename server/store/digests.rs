//! Which weeks had their digest made, written with the messages that it makes.

use gpufleet_analysis::digest::Week;
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::Value;
use super::deliveries;
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::model::FencingToken;
use crate::notify::group::Group;

impl Store {
    /// Whether a week's digest was made.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn is_digest_made(&self, week: Week) -> Result<bool, StoreError> {
        let doing = "reading which weeks were sent";
        let sql = "SELECT COUNT(*) FROM digest_week WHERE lease = $1 AND week = $2";
        let values = [Value::Text(&self.0.lease), Value::Int(week.days().start)];
        let mut transaction = self.read().await?;
        let count = transaction.fetch_int(sql, &values).await.doing(doing)?;
        Ok(count.is_some_and(|it| it > 0))
    }

    /// Makes a week's messages durable, and that it was made.
    ///
    /// # Errors
    /// When another server has the right to write, the week was made already, or the database refuses; then nothing is
    /// written.
    pub async fn write_digest(
        &self,
        week: Week,
        groups: &[Group],
        now: Timestamp,
        token: FencingToken,
    ) -> Result<(), CommitError> {
        let doing = "writing the messages of a week";
        let unknown = CommitError::Unknown;
        let mut transaction = self.write().await.map_err(unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        // No second row of a week: whoever comes late writes nothing.
        let sql =
            "INSERT INTO digest_week (lease, week, made_ms, messages) VALUES ($1, $2, $3, $4)";
        let values = [
            Value::Text(&self.0.lease),
            Value::Int(week.days().start),
            Value::Int(now.millis()),
            Value::Int(i64::try_from(groups.len()).unwrap_or(i64::MAX)),
        ];
        let noted = transaction.execute(sql, &values).await;
        noted.doing(doing).map_err(unknown)?;
        let written = deliveries::write(&mut transaction, &self.0.lease, groups).await;
        written.doing(doing).map_err(unknown)?;
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(unknown)
    }
}
