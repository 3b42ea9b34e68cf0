//! Why GPUs were free, minute by minute: hours are replaced while they run, and handed to the hours of the GPUs that
//! they are of.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::inventory::Record;
use gpufleet_analysis::inventory::unheld::Alike;

use super::Store;
use super::database::{Column, Row, Transaction};
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::ledger::Inputs;
use super::model::{FencingToken, LedgerInput};

/// Why GPUs that have type, taints and partitions in common were free in an hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreeHour {
    /// Hours since the Unix epoch.
    pub hour: i64,
    /// What they have in common.
    pub alike: Alike,
    /// Minutes of the hour, one bit each, in which it was for each reason, in the order of
    /// [`gpufleet_analysis::states::Demand`].
    pub minutes: [u64; 3],
}

impl Store {
    /// Makes hours of a cluster durable as they are; each replaces what was written of it.
    ///
    /// # Errors
    /// When another server has the right to write, or the database refuses; then nothing is written.
    pub async fn write_free(
        &self,
        cluster: &str,
        hours: &[FreeHour],
        token: FencingToken,
    ) -> Result<(), CommitError> {
        let doing = "writing why GPUs were free";
        let unknown = CommitError::Unknown;
        let mut transaction = self.write().await.map_err(unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let kept: Vec<String> = hours.iter().map(|it| list(&it.alike.kept_for)).collect();
        let partitions = hours.iter().map(|it| list(&it.alike.partitions));
        let partitions: Vec<String> = partitions.collect();
        let minutes = |why: usize| {
            let bits = hours.iter().map(|it| it.minutes[why].cast_signed());
            Column::Ints(bits.collect())
        };
        let columns = [
            Column::Texts(vec![self.0.lease.as_str(); hours.len()]),
            Column::Texts(vec![cluster; hours.len()]),
            Column::Ints(hours.iter().map(|it| it.hour).collect()),
            Column::Texts(hours.iter().map(|it| it.alike.model.as_str()).collect()),
            Column::Texts(kept.iter().map(String::as_str).collect()),
            Column::Texts(partitions.iter().map(String::as_str).collect()),
            minutes(0),
            minutes(1),
            minutes(2),
        ];
        let before = "INSERT INTO free_hour
            (lease, cluster, hour, model, kept_for, partitions, no_demand, fragmented, reserved)";
        let after = "ON CONFLICT (lease, cluster, hour, model, kept_for, partitions) DO UPDATE
            SET no_demand = excluded.no_demand, fragmented = excluded.fragmented,
                reserved = excluded.reserved";
        let written = transaction.rows(before, &columns, after).await;
        written.doing(doing).map_err(unknown)?;
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(unknown)
    }

    /// What is written of one hour of a cluster.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn free_hour(&self, cluster: &str, hour: i64) -> Result<Vec<FreeHour>, StoreError> {
        let mut transaction = self.read().await?;
        let asked = [(cluster, hour)];
        let mut found = hours(&mut transaction, &self.0.lease, &asked).await?;
        let of_cluster = found.get_mut(cluster);
        Ok(of_cluster
            .and_then(|it| it.remove(&hour))
            .unwrap_or_default())
    }
}

/// Taints or partitions as they are kept.
fn list(all: &[String]) -> String {
    serde_json::to_string(all).expect("texts are JSON")
}

/// By cluster, and by what it has there.
type Of<K, T> = BTreeMap<String, BTreeMap<K, T>>;

/// Hours by their number.
async fn hours(
    transaction: &mut Transaction,
    lease: &str,
    asked: &[(&str, i64)],
) -> Result<Of<i64, Vec<FreeHour>>, StoreError> {
    let doing = "reading why GPUs were free";
    let columns = [
        Column::Texts(vec![lease; asked.len()]),
        Column::Texts(asked.iter().map(|it| it.0).collect()),
        Column::Ints(asked.iter().map(|it| it.1).collect()),
    ];
    let after = ") SELECT f.cluster, f.hour, f.model, f.kept_for, f.partitions, f.no_demand,
            f.fragmented, f.reserved
        FROM k CROSS JOIN free_hour f
        WHERE f.lease = k.lease AND f.cluster = k.cluster AND f.hour = k.hour";
    let rows = transaction
        .rows("WITH k (lease, cluster, hour) AS (", &columns, after)
        .await;
    let mut found: Of<i64, Vec<FreeHour>> = BTreeMap::new();
    for row in rows.doing(doing)? {
        let cluster = row.text(0).doing(doing)?;
        match read_hour(&row).doing(doing)? {
            Ok(hour) => {
                let of_cluster = found.entry(cluster.to_owned()).or_default();
                of_cluster.entry(hour.hour).or_default().push(hour);
            }
            Err(error) => {
                tracing::error!(cluster, %error, "why GPUs were free cannot be read; it is left out")
            }
        }
    }
    Ok(found)
}

fn read_hour(row: &Row) -> Result<Result<FreeHour, serde_json::Error>, sqlx::Error> {
    let minutes = |index: usize| row.int(index).map(i64::cast_unsigned);
    let (hour, model) = (row.int(1)?, row.text(2)?.to_owned());
    let minutes = [minutes(5)?, minutes(6)?, minutes(7)?];
    let kept_for = serde_json::from_str(row.text(3)?);
    let partitions = serde_json::from_str(row.text(4)?);
    Ok(kept_for.and_then(|kept_for| {
        Ok(FreeHour {
            hour,
            alike: Alike {
                model,
                kept_for,
                partitions: partitions?,
            },
            minutes,
        })
    }))
}

/// Hands each hour why GPUs like it were free, as the nodes are now that they are on.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    inputs: &mut Inputs,
) -> Result<(), StoreError> {
    let asked = inputs.iter().map(|(key, it)| (cluster(it), key.0));
    let asked: BTreeSet<(&str, i64)> = asked.collect();
    let asked: Vec<(&str, i64)> = asked.into_iter().collect();
    let free = hours(transaction, lease, &asked).await?;
    let of_hour = |it: &LedgerInput, hour: i64| free.get(cluster(it))?.get(&hour);
    let told = inputs.iter().filter_map(|(key, it)| {
        let node = it.around.node.as_deref()?;
        of_hour(it, key.0).map(|_| (cluster(it), node))
    });
    let nodes: BTreeSet<(&str, &str)> = told.collect();
    let nodes: Vec<(&str, &str)> = nodes.into_iter().collect();
    let alike = alike(transaction, lease, &nodes).await?;
    for (key, input) in inputs.iter_mut() {
        let node = input.around.node.as_deref();
        let of_cluster = alike.get(cluster(input));
        let Some(alike) = node.and_then(|it| of_cluster?.get(it)) else {
            continue;
        };
        let of = |wanted: &Alike| {
            let mut hours = of_hour(input, key.0).into_iter().flatten();
            hours.find(|it| it.alike == *wanted)
        };
        // Hours of before partitions were read are of none.
        let theirs = of(alike).or_else(|| {
            of(&Alike {
                partitions: Vec::new(),
                ..alike.clone()
            })
        });
        input.around.free = theirs.map(|it| it.minutes).unwrap_or_default();
    }
    Ok(())
}

fn cluster(input: &LedgerInput) -> &str {
    &input.resource.key.cluster
}

/// What the GPUs of nodes have in common with others, by the node's name.
async fn alike(
    transaction: &mut Transaction,
    lease: &str,
    nodes: &[(&str, &str)],
) -> Result<Of<String, Alike>, StoreError> {
    let doing = "reading nodes of free GPUs";
    let columns = [
        Column::Texts(vec![lease; nodes.len()]),
        Column::Texts(nodes.iter().map(|it| it.0).collect()),
        Column::Texts(nodes.iter().map(|it| it.1).collect()),
    ];
    let after = ") SELECT n.cluster, n.name, n.data FROM k CROSS JOIN inventory_node n
        WHERE n.lease = k.lease AND n.cluster = k.cluster AND n.name = k.name";
    let rows = transaction
        .rows("WITH k (lease, cluster, name) AS (", &columns, after)
        .await;
    let mut found: Of<String, Alike> = BTreeMap::new();
    for row in rows.doing(doing)? {
        // One that cannot be read is named in the log by who reads the inventory.
        if let Ok(record) = serde_json::from_slice::<Record>(row.bytes(2).doing(doing)?) {
            let (cluster, name) = (row.text(0).doing(doing)?, row.text(1).doing(doing)?);
            let of_cluster = found.entry(cluster.to_owned()).or_default();
            of_cluster.insert(name.to_owned(), Alike::of(&record.node));
        }
    }
    Ok(found)
}
