//! The steps of ranks, ten minutes a row: what a commit adds is put behind what is there.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use gpufleet_telemetry::steps::{self, StepBlock};

use super::Store;
use super::aside::{self, Place, Unreadable};
use super::database::{Column, Row, Transaction};
use super::error::{Doing, StoreError};
use super::model::Committed;
use super::runs;
use crate::runs::{RunKey, StepDelta};

/// Most bytes of packed steps in one answer, the newest first: 1,024 ranks for two hours at a step a
/// second.
pub const MAX_STEP_BYTES_READ: usize = 64 * 1024 * 1024;

/// Rows read at a time: between two pieces it is seen whether there is enough.
const READ_ROWS: usize = 512;

/// Most ten-minute buckets read at a time of all ranks, how few there may be of them: a run may have had more.
const READ_BUCKETS: usize = 16;

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
        let mut found = Vec::new();
        let keep = |delta| {
            found.push(delta);
            ControlFlow::Continue(())
        };
        self.each_steps(key, (ranks, READ_ROWS), buckets, keep)
            .await?;
        found.sort_by_key(|it| (it.rank, it.bucket));
        Ok(found)
    }

    /// Hands them out a row at a time, some of the newest buckets first, until there are none, `take` breaks off
    /// or [`MAX_STEP_BYTES_READ`] were read; returns the oldest bucket that was read then. Where all ranks are asked for,
    /// the number says about how many there are: of few ranks more buckets are one question.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn each_steps(
        &self,
        key: &RunKey,
        (ranks, about): (Option<&[u32]>, usize),
        buckets: Range<i64>,
        mut take: impl FnMut(StepDelta) -> ControlFlow<()> + Send,
    ) -> Result<Option<i64>, StoreError> {
        let mut transaction = self.read().await?;
        let ids = runs::ids(&mut transaction, &self.0.lease, std::slice::from_ref(key)).await?;
        let Some(run) = ids.get(key).copied() else {
            return Ok(None);
        };
        let (mut bad, mut bytes, mut cut) = (Vec::new(), 0, None);
        let at_a_time = match ranks {
            Some(ranks) => (READ_ROWS / ranks.len().max(1)).max(1),
            None => (READ_ROWS / about.max(1)).clamp(1, READ_BUCKETS),
        };
        let oldest = buckets.start;
        let newest_first: Vec<i64> = buckets.rev().collect();
        'buckets: for buckets in newest_first.chunks(at_a_time) {
            for row in rows_of(&mut transaction, buckets, run, ranks).await? {
                bytes += row.blob(3).doing(DOING)?.len();
                let Some(((bucket, _, rank), blocks)) = unpack(&row, &mut bad)? else {
                    continue;
                };
                let delta = StepDelta {
                    key: key.clone(),
                    rank: u32::try_from(rank).unwrap_or(u32::MAX),
                    bucket,
                    blocks,
                };
                if take(delta).is_break() {
                    break 'buckets;
                }
            }
            let read = buckets.last().copied().unwrap_or(oldest);
            if bytes > MAX_STEP_BYTES_READ && read > oldest {
                cut = Some(read);
                break;
            }
        }
        drop(transaction);
        self.set_aside(&bad).await?;
        Ok(cut)
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
    let rows = transaction.keyed("WITH k (bucket, run) AS (", &columns, after);
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
    let rows = transaction.keyed(before, &columns, after).await;
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
                is_unknown: false,
            });
            Ok(None)
        }
    }
}

/// What a commit did to steps, beside putting them where they belong.
#[derive(Debug, Default)]
pub(super) struct Merged {
    corrupt: u64,
    of_nobody: u64,
    too_many: u64,
}

impl Merged {
    pub(super) fn note(&self, committed: &mut Committed) {
        committed.corrupt += self.corrupt;
        committed.steps_of_nobody += self.of_nobody;
        committed.steps_too_many += self.too_many;
    }
}

/// Puts what a commit adds behind what is there; `ids` are those of the runs that it wrote. A row that
/// cannot be read is set aside and begun anew.
pub(super) async fn merge(
    transaction: &mut Transaction,
    lease: &str,
    deltas: &[StepDelta],
    mut ids: HashMap<RunKey, i64>,
    bad: &mut Vec<Unreadable>,
) -> Result<Merged, StoreError> {
    // Old steps may be of a run that left the memory between the two halves of a commit.
    let others = deltas.iter().filter(|it| !ids.contains_key(&it.key));
    let mut others: Vec<RunKey> = others.map(|it| it.key.clone()).collect();
    others.dedup();
    if !others.is_empty() {
        ids.extend(runs::ids(transaction, lease, &others).await?);
    }
    let (known, unknown): (Vec<&StepDelta>, Vec<&StepDelta>) =
        deltas.iter().partition(|it| ids.contains_key(&it.key));
    let mut merged = Merged {
        of_nobody: unknown.iter().map(|it| count(&it.blocks)).sum(),
        ..Merged::default()
    };
    if !unknown.is_empty() {
        let ranks = unknown.len();
        tracing::warn!(ranks, "steps of a run that nobody knows are left out");
    }
    let mut unreadable = Vec::new();
    for piece in known.chunks(MERGE_ROWS) {
        merged.too_many += merge_piece(transaction, piece, &ids, &mut unreadable).await?;
    }
    aside::put(transaction, lease, &unreadable).await?;
    merged.corrupt = unreadable.len() as u64;
    bad.append(&mut unreadable);
    Ok(merged)
}

/// How many steps blocks are of.
fn count(blocks: &[StepBlock]) -> u64 {
    blocks.iter().map(|it| it.next_step() - it.first_step).sum()
}

/// Returns how many steps were more than is kept.
async fn merge_piece(
    transaction: &mut Transaction,
    piece: &[&StepDelta],
    ids: &HashMap<RunKey, i64>,
    bad: &mut Vec<Unreadable>,
) -> Result<u64, StoreError> {
    let key = |it: &StepDelta| {
        let run = ids.get(&it.key).expect("the others are left out before");
        (it.bucket, *run, i64::from(it.rank))
    };
    let keys: Vec<Key> = piece.iter().copied().map(key).collect();
    let mut known = HashMap::new();
    for row in read(transaction, &keys).await? {
        known.extend(unpack(&row, bad)?);
    }
    let (mut packed, mut too_many) = (Vec::with_capacity(piece.len()), 0);
    for (key, delta) in keys.iter().zip(piece) {
        let all = in_order(known.remove(key).unwrap_or_default(), &delta.blocks);
        let all = steps::joined(all);
        too_many += count(&all) - count(steps::within_limits(&all));
        packed.push(steps::encode(&all));
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
    rows.doing("writing steps")?;
    if too_many > 0 {
        tracing::warn!(
            too_many,
            "more steps came of a rank in ten minutes than are kept"
        );
    }
    Ok(too_many)
}

/// The blocks of a row in the order of time. Old data may come after newer. A rank does one thing at a
/// time: a block that lies wholly in the time of another has come twice.
fn in_order(mut blocks: Vec<StepBlock>, more: &[StepBlock]) -> Vec<StepBlock> {
    blocks.extend_from_slice(more);
    blocks.sort_by_key(|it| (it.started_at, std::cmp::Reverse(it.ended_at)));
    let mut known = None;
    blocks.retain(|it| {
        let is_new = known.is_none_or(|end| it.ended_at > end);
        known = known.max(Some(it.ended_at));
        is_new
    });
    blocks
}
