//! The steps of ranks, ten minutes a row: what a commit adds is put behind what is there.

use std::collections::HashMap;
use std::ops::Range;

use gpufleet_telemetry::steps::{self, MAX_ENTRIES, StepBlock};

use super::Store;
use super::aside::{self, Place, Unreadable};
use super::database::{Column, Row, Transaction};
use super::error::{Doing, StoreError};
use super::runs;
use crate::runs::{RunKey, StepDelta};

/// Most bytes of packed steps in one answer, the newest first: 1,024 ranks for two hours at a step a
/// second.
pub const MAX_STEP_BYTES_READ: usize = 64 * 1024 * 1024;

/// Rows read at a time: between two pieces it is seen whether there is enough.
const READ_ROWS: usize = 512;

/// Rows merged at a time: bounds the memory of a commit, whatever the fleet.
const MERGE_ROWS: usize = 1_024;

impl Store {
    /// The steps of a run in a range of ten-minute buckets, of these ranks or of all, oldest first;
    /// of more than [`MAX_STEP_BYTES_READ`] the newest.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn steps(
        &self,
        key: &RunKey,
        ranks: Option<&[u32]>,
        buckets: Range<i64>,
    ) -> Result<Vec<StepDelta>, StoreError> {
        let mut transaction = self.read().await?;
        let ids = runs::ids(&mut transaction, &self.0.lease, std::slice::from_ref(key)).await?;
        let Some(run) = ids.get(key).copied() else {
            return Ok(Vec::new());
        };
        let (mut found, mut bad, mut bytes) = (Vec::new(), Vec::new(), 0);
        let at_a_time = ranks.map_or(1, |it| READ_ROWS / it.len().max(1)).max(1);
        let newest_first: Vec<i64> = buckets.rev().collect();
        for buckets in newest_first.chunks(at_a_time) {
            for row in rows_of(&mut transaction, buckets, run, ranks).await? {
                bytes += row.blob(3).doing(DOING)?.len();
                let unpacked = unpack(&row, &mut bad)?;
                found.extend(unpacked.map(|((bucket, _, rank), blocks)| StepDelta {
                    key: key.clone(),
                    rank: u32::try_from(rank).unwrap_or(u32::MAX),
                    bucket,
                    blocks,
                }));
            }
            if bytes > MAX_STEP_BYTES_READ {
                break;
            }
        }
        drop(transaction);
        self.set_aside(&bad).await?;
        found.sort_by_key(|it| (it.rank, it.bucket));
        Ok(found)
    }
}

const DOING: &str = "reading steps";

/// Bucket, run's number, rank.
type Key = (i64, i64, i64);

/// The rows of some buckets of a run, of these ranks or of all.
async fn rows_of(
    transaction: &mut Transaction,
    buckets: &[i64],
    run: i64,
    ranks: Option<&[u32]>,
) -> Result<Vec<Row>, StoreError> {
    if let Some(ranks) = ranks {
        let of = |bucket: &i64| {
            let bucket = *bucket;
            ranks
                .iter()
                .map(move |rank| (bucket, run, i64::from(*rank)))
        };
        let keys: Vec<Key> = buckets.iter().flat_map(of).collect();
        return read(transaction, &keys).await;
    }
    let columns = [
        Column::Ints(buckets.to_vec()),
        Column::Ints(vec![run; buckets.len()]),
    ];
    let after = ") SELECT s.bucket, s.run, s.rank, s.data FROM k CROSS JOIN step_block s
        WHERE s.bucket = k.bucket AND s.run = k.run";
    let rows = transaction.rows("WITH k (bucket, run) AS (", &columns, after);
    rows.await.doing(DOING)
}

async fn read(transaction: &mut Transaction, keys: &[Key]) -> Result<Vec<Row>, StoreError> {
    let columns = [
        Column::Ints(keys.iter().map(|it| it.0).collect()),
        Column::Ints(keys.iter().map(|it| it.1).collect()),
        Column::Ints(keys.iter().map(|it| it.2).collect()),
    ];
    let after = ") SELECT s.bucket, s.run, s.rank, s.data FROM k CROSS JOIN step_block s
        WHERE s.bucket = k.bucket AND s.run = k.run AND s.rank = k.rank";
    let before = "WITH k (bucket, run, rank) AS (";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing(DOING)
}

/// The blocks of a row; none when it cannot be read.
fn unpack(
    row: &Row,
    bad: &mut Vec<Unreadable>,
) -> Result<Option<(Key, Vec<StepBlock>)>, StoreError> {
    let mut key = [0; 3];
    for (index, part) in key.iter_mut().enumerate() {
        *part = row.int(index).doing(DOING)?;
    }
    let [bucket, run, rank] = key;
    let data = row.blob(3).doing(DOING)?;
    match steps::decode(data) {
        Ok(blocks) => Ok(Some(((bucket, run, rank), blocks))),
        Err(error) => {
            bad.push(Unreadable {
                place: Place::Steps { bucket, run, rank },
                data: data.to_vec(),
                error: error.to_string(),
            });
            Ok(None)
        }
    }
}

/// Puts what a commit adds behind what is there. A row that cannot be read is set aside and begun
/// anew; returns how many there were.
pub(super) async fn merge(
    transaction: &mut Transaction,
    lease: &str,
    deltas: &[StepDelta],
    ids: &HashMap<RunKey, i64>,
    bad: &mut Vec<Unreadable>,
) -> Result<u64, StoreError> {
    let mut unreadable = Vec::new();
    let (known, unknown): (Vec<&StepDelta>, Vec<&StepDelta>) =
        deltas.iter().partition(|it| ids.contains_key(&it.key));
    if !unknown.is_empty() {
        // Old steps of a run that was forgotten between the two halves of a commit.
        tracing::warn!(
            ranks = unknown.len(),
            "steps of a run that is not known are left out"
        );
    }
    for piece in known.chunks(MERGE_ROWS) {
        merge_piece(transaction, piece, ids, &mut unreadable).await?;
    }
    aside::put(transaction, lease, &unreadable).await?;
    let count = unreadable.len() as u64;
    bad.append(&mut unreadable);
    Ok(count)
}

async fn merge_piece(
    transaction: &mut Transaction,
    piece: &[&StepDelta],
    ids: &HashMap<RunKey, i64>,
    bad: &mut Vec<Unreadable>,
) -> Result<(), StoreError> {
    let key = |it: &StepDelta| {
        let run = ids.get(&it.key).expect("the others are left out before");
        (it.bucket, *run, i64::from(it.rank))
    };
    let keys: Vec<Key> = piece.iter().copied().map(key).collect();
    let mut known = HashMap::new();
    for row in read(transaction, &keys).await? {
        known.extend(unpack(&row, bad)?);
    }
    let mut packed = Vec::with_capacity(piece.len());
    for (key, delta) in keys.iter().zip(piece) {
        let before = known.remove(key).unwrap_or_default();
        packed.push(steps::encode(&joined(before, &delta.blocks)));
    }
    let columns = [
        Column::Ints(keys.iter().map(|it| it.0).collect()),
        Column::Ints(keys.iter().map(|it| it.1).collect()),
        Column::Ints(keys.iter().map(|it| it.2).collect()),
        Column::Blobs(packed.iter().map(Vec::as_slice).collect()),
    ];
    let before = "INSERT INTO step_block (bucket, run, rank, data)";
    let after = "ON CONFLICT (bucket, run, rank) DO UPDATE SET data = excluded.data";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing steps").map(|_| ())
}

/// The blocks of a row in the order of time, those that follow each other as one. Old data may come
/// after newer; of what is more than a row holds the newest is left out. A rank does one thing at a
/// time: a block that lies wholly in the time of another has come twice.
fn joined(mut blocks: Vec<StepBlock>, more: &[StepBlock]) -> Vec<StepBlock> {
    let entries = |blocks: &[StepBlock]| blocks.iter().map(|it| it.times.len()).sum::<usize>();
    let room = MAX_ENTRIES.saturating_sub(entries(&blocks));
    if entries(more) > room {
        tracing::warn!("more steps came of a rank in ten minutes than are kept");
    }
    blocks.extend_from_slice(more);
    blocks.sort_by_key(|it| (it.started_at, std::cmp::Reverse(it.ended_at)));
    let mut known = None;
    blocks.retain(|it| {
        let is_new = known.is_none_or(|end| it.ended_at > end);
        known = known.max(Some(it.ended_at));
        is_new
    });
    steps::joined(blocks)
}
