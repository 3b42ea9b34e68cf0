//! The inventory: nodes as the cluster tells them, and what happened to them. Each node's row is one as a
//! whole, written again when it changes; one that was made anew under its name takes its place.

use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::inventory::change::Change;
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::{Column, Value};
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::model::FencingToken;

/// Most nodes that are read: as many as memory has room for.
const MAX_NODES: usize = crate::inventory::known::MAX_NODES;

/// Most changes that are read.
const MAX_CHANGES: usize = crate::inventory::known::MAX_CHANGES;

const NODES: &str =
    "INSERT INTO inventory_node (lease, cluster, name, billed_ms, ready_ms, gone_ms, data)";

const NODES_AFTER: &str = "ON CONFLICT (lease, cluster, name) DO UPDATE SET
    billed_ms = excluded.billed_ms, ready_ms = excluded.ready_ms, gone_ms = excluded.gone_ms,
    data = excluded.data";

const CHANGES: &str = "INSERT INTO inventory_change (lease, cluster, at_ms, node, what)";

const CHANGES_AFTER: &str = "ON CONFLICT (lease, cluster, at_ms, node, what) DO NOTHING";

impl Store {
    /// Makes nodes of a cluster durable as they are now, and what happened to them.
    ///
    /// # Errors
    /// When another server has the right to write, or the database refuses; then nothing is written.
    pub async fn write_inventory(
        &self,
        cluster: &str,
        (records, changes): (&[Record], &[Change]),
        token: FencingToken,
    ) -> Result<(), CommitError> {
        if records.is_empty() && changes.is_empty() {
            return Ok(());
        }
        let doing = "writing the inventory";
        let unknown = CommitError::Unknown;
        let mut transaction = self.write().await.map_err(unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let data: Vec<String> = records
            .iter()
            .map(|it| serde_json::to_string(it).expect("texts, numbers and lists are JSON"))
            .collect();
        let millis = |it: Option<Timestamp>| it.map_or(0, Timestamp::millis);
        let columns = [
            Column::Texts(vec![self.0.lease.as_str(); records.len()]),
            Column::Texts(vec![cluster; records.len()]),
            Column::Texts(records.iter().map(|it| it.node.name.as_str()).collect()),
            Column::Ints(records.iter().map(|it| it.billed_from().millis()).collect()),
            Column::Ints(records.iter().map(|it| millis(it.ready_at)).collect()),
            Column::Ints(records.iter().map(|it| millis(it.gone_at)).collect()),
            Column::Texts(data.iter().map(String::as_str).collect()),
        ];
        let written = transaction.rows(NODES, &columns, NODES_AFTER).await;
        written.doing(doing).map_err(unknown)?;
        let columns = [
            Column::Texts(vec![self.0.lease.as_str(); changes.len()]),
            Column::Texts(vec![cluster; changes.len()]),
            Column::Ints(changes.iter().map(|it| it.at.millis()).collect()),
            Column::Texts(changes.iter().map(|it| it.node.as_str()).collect()),
            Column::Texts(changes.iter().map(|it| it.what.as_str()).collect()),
        ];
        let written = transaction.rows(CHANGES, &columns, CHANGES_AFTER).await;
        written.doing(doing).map_err(unknown)?;
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(unknown)
    }

    /// The nodes of a cluster that are there, as far as was known when they were written last, and those
    /// that went at `since` or later.
    ///
    /// # Errors
    /// When the database refuses. A row that cannot be read is told in the log and left out: the cluster
    /// tells its node again, and then it is replaced.
    pub async fn inventory(
        &self,
        cluster: &str,
        since: Timestamp,
    ) -> Result<Vec<Record>, StoreError> {
        let doing = "reading the inventory";
        let sql = format!(
            "SELECT name, data FROM inventory_node WHERE lease = $1 AND cluster = $2
             AND (gone_ms = 0 OR gone_ms >= $3) ORDER BY name LIMIT {MAX_NODES}"
        );
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster),
            Value::Int(since.millis()),
        ];
        let mut transaction = self.read().await?;
        let rows = transaction.fetch(&sql, &values).await;
        drop(transaction);
        let mut found = Vec::new();
        for row in rows.doing(doing)? {
            match serde_json::from_slice(row.bytes(1).doing(doing)?) {
                Ok(record) => found.push(record),
                Err(error) => {
                    let name = row.text(0).doing(doing)?;
                    tracing::error!(%error, name, "a node's row cannot be read; it is written anew");
                }
            }
        }
        Ok(found)
    }

    /// What happened to the nodes of a cluster at `since` or later, the newest first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn inventory_changes(
        &self,
        cluster: &str,
        since: Timestamp,
    ) -> Result<Vec<Change>, StoreError> {
        let doing = "reading what happened to nodes";
        let sql = format!(
            "SELECT at_ms, node, what FROM inventory_change WHERE lease = $1 AND cluster = $2
             AND at_ms >= $3 ORDER BY at_ms DESC, node, what LIMIT {MAX_CHANGES}"
        );
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster),
            Value::Int(since.millis()),
        ];
        let mut transaction = self.read().await?;
        let rows = transaction.fetch(&sql, &values).await;
        let mut found = Vec::new();
        for row in rows.doing(doing)? {
            found.push(Change {
                at: Timestamp::from_millis(row.int(0).doing(doing)?),
                node: row.text(1).doing(doing)?.to_owned(),
                what: row.text(2).doing(doing)?.to_owned(),
            });
        }
        Ok(found)
    }
}
