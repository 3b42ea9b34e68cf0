//! Who changed what through pages and API: written before the change is made, so that nothing is
//! changed that stands nowhere.

use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::Value;
use super::error::{Doing, StoreError};
use super::model::AuditEntry;

/// Most entries of one answer.
pub const MAX_AUDITED: usize = 1_000;

impl AuditEntry {
    /// A change that no request asked for: it came from no address.
    pub fn here(
        at: Timestamp,
        who: &str,
        (action, target): (&str, &str),
        detail: impl Into<String>,
    ) -> Self {
        Self {
            at,
            who: who.to_owned(),
            peer: String::new(),
            action: action.to_owned(),
            target: target.to_owned(),
            detail: detail.into(),
        }
    }
}

impl Store {
    /// Writes that a change is about to be made.
    ///
    /// # Errors
    /// When the database refuses: then the change must not be made.
    pub async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let values = [
            Value::Text(&self.0.lease),
            Value::Int(entry.at.millis()),
            Value::Text(&entry.who),
            Value::Text(&entry.peer),
            Value::Text(&entry.action),
            Value::Text(&entry.target),
            Value::Text(&entry.detail),
        ];
        let sql = "INSERT INTO audit (lease, at_ms, who, peer, action, target, detail)
            VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let mut transaction = self.write().await?;
        let written = transaction.execute(sql, &values).await;
        written.doing("writing who changes what")?;
        transaction.commit().await.doing("writing who changes what")
    }

    /// What was changed, the newest first, at most [`MAX_AUDITED`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn audited(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError> {
        let limit = limit.clamp(1, MAX_AUDITED);
        let which = format!("ORDER BY at_ms DESC, id DESC LIMIT {limit}");
        self.entries(&which, &[Value::Text(&self.0.lease)]).await
    }

    /// The last entry of an action; none where there was none, or it is older than entries are kept.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn last_audited(&self, action: &str) -> Result<Option<AuditEntry>, StoreError> {
        let which = "AND action = $2 ORDER BY id DESC LIMIT 1";
        let values = [Value::Text(&self.0.lease), Value::Text(action)];
        let found = self.entries(which, &values).await?;
        Ok(found.into_iter().next())
    }

    async fn entries(
        &self,
        which: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let doing = "reading who changed what";
        let sql = format!(
            "SELECT at_ms, who, peer, action, target, detail FROM audit WHERE lease = $1 {which}"
        );
        let rows = self.ask(&sql, values).await;
        let mut entries = Vec::new();
        for row in rows.doing(doing)? {
            let text = |index: usize| Ok::<_, StoreError>(row.text(index).doing(doing)?.to_owned());
            entries.push(AuditEntry {
                at: Timestamp::from_millis(row.int(0).doing(doing)?),
                who: text(1)?,
                peer: text(2)?,
                action: text(3)?,
                target: text(4)?,
                detail: text(5)?,
            });
        }
        Ok(entries)
    }
}
