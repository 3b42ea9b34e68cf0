//! The inventory: nodes as the cluster tells them, and what happened to them. Each node's row is one as a
//! whole, written again when it changes; one that was made anew under its name takes its place. Beside it
//! stands each life of a node, from when it is billed to when it was gone, for what it cost.

use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::inventory::change::Change;
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::{Column, Transaction, Value};
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::model::{FencingToken, NodeLife};
use super::phases;

/// Most nodes that are read: as many as memory has room for.
const MAX_NODES: usize = crate::inventory::known::MAX_NODES;

/// Most lives of nodes that are read for one report: four of each node.
pub const MAX_LIVES: usize = 4 * MAX_NODES;

/// Most changes that are read at a time.
pub const MAX_CHANGES: usize = crate::inventory::known::MAX_CHANGES;

const NODES: &str =
    "INSERT INTO inventory_node (lease, cluster, name, billed_ms, ready_ms, gone_ms, data)";

const NODES_AFTER: &str = "ON CONFLICT (lease, cluster, name) DO UPDATE SET
    billed_ms = excluded.billed_ms, ready_ms = excluded.ready_ms, gone_ms = excluded.gone_ms,
    data = excluded.data";

const LIVES: &str = "INSERT INTO inventory_life (lease, cluster, name, billed_ms, gone_ms, data)";

const LIVES_AFTER: &str = "ON CONFLICT (lease, cluster, name, billed_ms) DO UPDATE SET
    gone_ms = excluded.gone_ms, data = excluded.data";

const ENDED: &str = "WITH k (lease, cluster, name, billed_ms) AS (";

/// One that was made anew under its name ended the one before at the latest.
const ENDED_AFTER: &str = ") UPDATE inventory_life AS l SET gone_ms = k.billed_ms FROM k
    WHERE l.lease = k.lease AND l.cluster = k.cluster AND l.name = k.name
    AND l.billed_ms < k.billed_ms AND (l.gone_ms = 0 OR l.gone_ms > k.billed_ms)";

const SEEN: &str = "INSERT INTO inventory_seen (lease, cluster, seen_ms) VALUES ($1, $2, $3)
    ON CONFLICT (lease, cluster) DO UPDATE SET seen_ms = excluded.seen_ms
    WHERE excluded.seen_ms > inventory_seen.seen_ms";

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
        let news = self.phase_news(cluster, records).await.map_err(unknown)?;
        let mut transaction = self.write().await.map_err(unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let written = phases::write(&mut transaction, &self.0.lease, cluster, &news).await;
        written.map_err(unknown)?;
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
        let [lease, of_cluster, name, billed, _, gone, data] = columns;
        let columns = [lease, of_cluster, name, billed, gone, data];
        let written = transaction.rows(LIVES, &columns, LIVES_AFTER).await;
        written.doing(doing).map_err(unknown)?;
        let [lease, of_cluster, name, billed, ..] = columns;
        let columns = [lease, of_cluster, name, billed];
        let ended = transaction.rows(ENDED, &columns, ENDED_AFTER).await;
        ended.doing(doing).map_err(unknown)?;
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

    /// Makes durable that the nodes of a cluster were seen up to a moment as they are written.
    ///
    /// # Errors
    /// As [`Self::write_inventory`].
    pub async fn write_inventory_seen(
        &self,
        cluster: &str,
        seen: Timestamp,
        token: FencingToken,
    ) -> Result<(), CommitError> {
        let doing = "writing up to when the inventory was seen";
        let unknown = CommitError::Unknown;
        let mut transaction = self.write().await.map_err(unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster),
            Value::Int(seen.millis()),
        ];
        let of = (self.0.lease.as_str(), cluster);
        let unwatched = phases::unwatched(&mut transaction, of, seen).await;
        unwatched.map_err(unknown)?;
        let written = transaction.execute(SEEN, &values).await;
        written.doing(doing).map_err(unknown)?;
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(unknown)
    }

    /// Up to when the nodes of a cluster were seen, where that was ever written.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn inventory_seen(&self, cluster: &str) -> Result<Option<Timestamp>, StoreError> {
        let mut transaction = self.read().await?;
        seen(&mut transaction, &self.0.lease, cluster).await
    }

    /// Lives of nodes in a time, of one cluster where one is named: by cluster, name and when they began.
    /// At most [`MAX_LIVES`] and one.
    ///
    /// # Errors
    /// When the database refuses. A row that cannot be read is told in the log and left out.
    pub async fn inventory_lives(
        &self,
        (from, until): (Timestamp, Timestamp),
        cluster: Option<&str>,
    ) -> Result<Vec<NodeLife>, StoreError> {
        let doing = "reading lives of nodes";
        let sql = format!(
            "SELECT n.cluster, n.name, n.billed_ms, n.gone_ms, n.data, s.seen_ms
             FROM inventory_life n
             LEFT JOIN inventory_seen s ON s.lease = n.lease AND s.cluster = n.cluster
             WHERE n.lease = $1 AND ($2 = '' OR n.cluster = $2)
             AND n.billed_ms < $4 AND (n.gone_ms = 0 OR n.gone_ms > $3)
             ORDER BY n.cluster, n.name, n.billed_ms LIMIT {}",
            MAX_LIVES + 1
        );
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster.unwrap_or_default()),
            Value::Int(from.millis()),
            Value::Int(until.millis()),
        ];
        let rows = self.ask(&sql, &values).await;
        let mut found = Vec::new();
        for row in rows.doing(doing)? {
            let int = |index: usize| row.int(index).doing(doing);
            let (billed_ms, gone_ms) = (int(2)?, int(3)?);
            let record: Record = match serde_json::from_slice(row.bytes(4).doing(doing)?) {
                Ok(record) => record,
                Err(error) => {
                    let name = row.text(1).doing(doing)?;
                    tracing::error!(%error, name, "a node's life cannot be read; it is left out");
                    continue;
                }
            };
            let seen_ms = row.optional_int(5).doing(doing)?.unwrap_or(billed_ms);
            found.push(NodeLife {
                cluster: row.text(0).doing(doing)?.to_owned(),
                record,
                from_ms: billed_ms,
                until_ms: match gone_ms {
                    0 => seen_ms.max(billed_ms),
                    gone_ms => gone_ms.max(billed_ms),
                },
                is_gone: gone_ms > 0,
            });
        }
        Ok(found)
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
        let rows = self.ask(&sql, &values).await;
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

    /// What happened to the nodes of a cluster at `since` or later, and before `until` where that is said; the newest
    /// first, at most [`MAX_CHANGES`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn inventory_changes(
        &self,
        cluster: &str,
        since: Timestamp,
        until: Option<Timestamp>,
    ) -> Result<Vec<Change>, StoreError> {
        let doing = "reading what happened to nodes";
        let sql = format!(
            "SELECT at_ms, node, what FROM inventory_change WHERE lease = $1 AND cluster = $2
             AND at_ms >= $3 AND at_ms < $4 ORDER BY at_ms DESC, node, what LIMIT {MAX_CHANGES}"
        );
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(cluster),
            Value::Int(since.millis()),
            Value::Int(until.map_or(i64::MAX, Timestamp::millis)),
        ];
        let rows = self.ask(&sql, &values).await;
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

/// Up to when the nodes of a cluster were seen, as [`Store::inventory_seen`] gives it.
pub(super) async fn seen(
    transaction: &mut Transaction,
    lease: &str,
    cluster: &str,
) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT seen_ms FROM inventory_seen WHERE lease = $1 AND cluster = $2";
    let values = [Value::Text(lease), Value::Text(cluster)];
    let seen = transaction.fetch_int(sql, &values).await;
    let seen = seen.doing("reading up to when the inventory was seen")?;
    Ok(seen.map(Timestamp::from_millis))
}
