//! Silences by pattern, each as a whole.

use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::Store;
use super::database::Value;
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::model::FencingToken;
use crate::notify::silence::{MAX_SILENCES, Silence};

impl Store {
    /// The silences that are not over, at most [`MAX_SILENCES`]. One that a newer version wrote and this one
    /// cannot read silences nothing, and is told in the log.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn silences(&self, now: Timestamp) -> Result<Vec<Silence>, StoreError> {
        let doing = "reading the silences";
        let sql = format!(
            "SELECT data FROM silence WHERE lease = $1 AND until_ms > $2
             ORDER BY until_ms DESC LIMIT {MAX_SILENCES}"
        );
        let values = [Value::Text(&self.0.lease), Value::Int(now.millis())];
        let rows = self.ask(&sql, &values).await.doing(doing)?;
        let mut found = Vec::new();
        for row in &rows {
            match serde_json::from_str(row.text(0).doing(doing)?) {
                Ok(silence) => found.push(silence),
                Err(error) => {
                    tracing::error!(%error, "a silence cannot be read and silences nothing")
                }
            }
        }
        Ok(found)
    }

    /// Keeps a silence, and forgets those that are over.
    ///
    /// # Errors
    /// When another server has the right to write, or the database refuses; then it is not kept.
    pub async fn keep_silence(
        &self,
        silence: &Silence,
        now: Timestamp,
        token: FencingToken,
    ) -> Result<(), CommitError> {
        let doing = "keeping a silence";
        let data = serde_json::to_string(silence).expect("texts and numbers are JSON");
        let values = [
            Value::Text(&self.0.lease),
            Value::Blob(silence.id.as_bytes()),
            Value::Int(silence.until.millis()),
            Value::Text(&data),
        ];
        let over = [Value::Text(&self.0.lease), Value::Int(now.millis())];
        let mut transaction = self.write().await.map_err(CommitError::Unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        for (sql, values) in [
            (
                "DELETE FROM silence WHERE lease = $1 AND until_ms <= $2",
                &over[..],
            ),
            (
                "INSERT INTO silence (lease, id, until_ms, data) VALUES ($1, $2, $3, $4)",
                &values[..],
            ),
        ] {
            let done = transaction.execute(sql, values).await;
            done.doing(doing).map_err(CommitError::Unknown)?;
        }
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(CommitError::Unknown)
    }

    /// Forgets a silence.
    ///
    /// # Errors
    /// When another server has the right to write, or the database refuses; then it holds on.
    pub async fn forget_silence(&self, id: Uuid, token: FencingToken) -> Result<(), CommitError> {
        let doing = "ending a silence";
        let values = [Value::Text(&self.0.lease), Value::Blob(id.as_bytes())];
        let mut transaction = self.write().await.map_err(CommitError::Unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let sql = "DELETE FROM silence WHERE lease = $1 AND id = $2";
        let done = transaction.execute(sql, &values).await;
        done.doing(doing).map_err(CommitError::Unknown)?;
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(CommitError::Unknown)
    }
}
