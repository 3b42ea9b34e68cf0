//! Resources by their names and by who told of them, for who follows a link to one that the fleet has forgotten.

use gpufleet_telemetry::identity::AgentId;

use super::Store;
use super::database::Value;
use super::error::{Doing, StoreError};
use super::model::{KnownResource, ResourceKey};
use super::subjects::{COLUMNS, known, numbers, read};

/// Most GPUs and shares that are read of one agent: sixteen cards of seven shares, and as many that they were cut
/// into before.
const MAX_TOLD: usize = 256;

impl Store {
    /// Those of these resources that were ever stored, in no order. `last_seen` may be a minute behind.
    ///
    /// # Errors
    /// When the database refuses. A resource whose attributes cannot be read comes without them.
    pub async fn resources_named(
        &self,
        keys: &[ResourceKey],
    ) -> Result<Vec<KnownResource>, StoreError> {
        let mut transaction = self.read().await?;
        let keys: Vec<&ResourceKey> = keys.iter().collect();
        let ids = numbers(&mut transaction, &self.0.lease, &keys).await?;
        let mut bad = Vec::new();
        let doing = "reading resources by their names";
        let found = known(&mut transaction, ids.into_iter(), doing, &mut bad).await?;
        drop(transaction);
        self.set_aside(&bad).await?;
        Ok(found.into_values().collect())
    }

    /// The GPUs and shares of a cluster of which this agent told last, in the order in which they were first stored; at
    /// most [`MAX_TOLD`].
    ///
    /// # Errors
    /// When the database refuses. A resource whose attributes cannot be read comes without them.
    pub async fn gpus_told_by(
        &self,
        cluster: &str,
        agent: AgentId,
    ) -> Result<Vec<KnownResource>, StoreError> {
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster),
            Value::Blob(agent.0.as_bytes()),
        ];
        let sql = format!(
            "SELECT {COLUMNS} FROM subject s LEFT JOIN subject_seen n ON n.subject = s.id
             WHERE s.lease = $1 AND s.cluster = $2 AND s.kind IN ('gpu', 'share') AND s.agent = $3
             ORDER BY s.id LIMIT {MAX_TOLD}"
        );
        let rows = self.ask(&sql, &values).await;
        let rows = rows.doing("reading what an agent told of")?;
        let (mut all, mut bad) = (Vec::new(), Vec::new());
        for row in &rows {
            all.extend(read(row, &mut bad)?);
        }
        self.set_aside(&bad).await?;
        Ok(all)
    }
}
