//! Resources by their names and by who told of them, for who follows a link to one that the fleet has forgotten; and of
//! which clusters there are any.

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

    /// Whether anything of this cluster is stored.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn has_cluster(&self, name: &str) -> Result<bool, StoreError> {
        let sql = "SELECT cluster FROM subject WHERE lease = $1 AND cluster = $2 LIMIT 1";
        Ok(self.cluster_by(sql, name).await?.is_some())
    }

    /// The next cluster of which anything is stored, in the database's order of names; none behind the last. Each takes
    /// one look into an index, however many resources it has.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn cluster_after(&self, name: &str) -> Result<Option<String>, StoreError> {
        let sql = "SELECT cluster FROM subject WHERE lease = $1 AND cluster > $2
             ORDER BY cluster LIMIT 1";
        self.cluster_by(sql, name).await
    }

    async fn cluster_by(&self, sql: &str, name: &str) -> Result<Option<String>, StoreError> {
        let doing = "reading which clusters there are";
        let values = [Value::Text(&self.0.lease), Value::Text(name)];
        let rows = self.ask(sql, &values).await.doing(doing)?;
        let found = rows.first().map(|it| it.text(0)).transpose();
        Ok(found.doing(doing)?.map(str::to_owned))
    }
}
