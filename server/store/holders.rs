//! Who held GPUs: what is known of each holder, under its number.

use std::collections::{BTreeSet, HashMap};

use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::{Column, Transaction};
use super::error::{Doing, StoreError};
use super::model::KnownHolder;

/// A holder is noted once a day: a day is put together about every ten minutes while it runs.
const NOTED_EVERY_MS: i64 = 86_400_000;

impl Store {
    /// The holders with these numbers, those that are known.
    ///
    /// # Errors
    /// When the database refuses. One that cannot be read is named in the log and left out: then what
    /// it held is nobody's whom a rule knows.
    pub async fn holders(
        &self,
        numbers: &BTreeSet<i64>,
    ) -> Result<HashMap<i64, Holder>, StoreError> {
        let mut transaction = self.read().await?;
        named(&mut transaction, &self.0.lease, numbers).await
    }
}

/// The holders with these numbers, as [`Store::holders`] gives them.
pub(super) async fn named(
    transaction: &mut Transaction,
    lease: &str,
    numbers: &BTreeSet<i64>,
) -> Result<HashMap<i64, Holder>, StoreError> {
    let doing = "reading holders";
    let columns = [
        Column::Texts(vec![lease; numbers.len()]),
        Column::Ints(numbers.iter().copied().collect()),
    ];
    let before = "WITH k (lease, number) AS (";
    let after = ") SELECT h.number, h.description FROM k CROSS JOIN holder h
        WHERE h.lease = k.lease AND h.number = k.number";
    let rows = transaction.rows(before, &columns, after).await;
    let mut found = HashMap::new();
    for row in rows.doing(doing)? {
        let number = row.int(0).doing(doing)?;
        match serde_json::from_slice(row.bytes(1).doing(doing)?) {
            Ok(holder) => _ = found.insert(number, holder),
            Err(error) => tracing::error!(number, %error, "a holder cannot be read"),
        }
    }
    Ok(found)
}

/// Notes at a moment that days with these holders were put together, to within [`NOTED_EVERY_MS`]: who is in a
/// day that is kept stays known, however long ago he was met.
pub(super) async fn note(
    transaction: &mut Transaction,
    lease: &str,
    numbers: &BTreeSet<i64>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let columns = [
        Column::Texts(vec![lease; numbers.len()]),
        Column::Ints(numbers.iter().copied().collect()),
        Column::Ints(vec![now.millis(); numbers.len()]),
    ];
    let before = "WITH k (lease, number, met_ms) AS (";
    let after = format!(
        ") UPDATE holder SET met_ms = k.met_ms FROM k WHERE holder.lease = k.lease
        AND holder.number = k.number AND holder.met_ms < k.met_ms - {NOTED_EVERY_MS}"
    );
    let rows = transaction.rows(before, &columns, &after).await;
    rows.doing("noting holders").map(|_| ())
}

/// Writes who was met; who is known stays as he is, because the number says all that is known.
pub(super) async fn write(
    transaction: &mut Transaction,
    lease: &str,
    holders: &[KnownHolder],
) -> Result<(), StoreError> {
    let described: Vec<String> = holders
        .iter()
        .map(|it| serde_json::to_string(&it.holder).expect("a holder is made of texts"))
        .collect();
    let columns = [
        Column::Texts(vec![lease; holders.len()]),
        Column::Ints(holders.iter().map(|it| it.number).collect()),
        Column::Texts(described.iter().map(String::as_str).collect()),
        Column::Ints(holders.iter().map(|it| it.met.millis()).collect()),
    ];
    let before = "INSERT INTO holder (lease, number, description, met_ms)";
    let after = "ON CONFLICT (lease, number) DO NOTHING";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing holders").map(|_| ())
}
