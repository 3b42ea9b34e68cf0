//! Minute rows: merged as they come, read by range.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::aside::{self, Place, Unreadable};
use super::database::{Column, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{Committed, MinuteDelta, Minutes, ResourceKey};
use super::restate::Why;
use super::{Store, block, horizon};

/// Minute rows merged at a time, which bounds the memory of a commit, whatever the fleet: each takes 3 KB as it was read, as it
/// is merged and as it is written.
const MERGE_ROWS: usize = 1_024;

/// Most minutes of one resource in one answer: a week.
pub const MAX_MINUTES: i64 = 7 * 24 * 60;

/// A minute is computed this long after it began, ms: an hour that runs is computed every 5 minutes,
/// not with every commit.
pub(super) const DUE_AFTER_MS: i64 = 300_000;

/// Name of the first kept minute in table horizon.
pub(super) const HORIZON: &str = "minute";

const READ: &str = "\
    ) SELECT m.minute, m.subject, m.data FROM k CROSS JOIN minute_row m
    WHERE m.minute = k.minute AND m.subject = k.subject";

impl Store {
    /// The minute rows of a resource in a range of at most [`MAX_MINUTES`]; of a longer one its last
    /// part. Empty for a resource that is not known.
    ///
    /// # Errors
    /// When the database refuses. A row that cannot be read is no error: it is named in the answer.
    pub async fn minutes(
        &self,
        key: &ResourceKey,
        range: Range<Minute>,
    ) -> Result<Minutes, StoreError> {
        let mut transaction = self.read().await?;
        let Some(subject) = subject(&mut transaction, &self.0.lease, key).await? else {
            return Ok(Minutes::default());
        };
        let first = range.start.0.max(range.end.0.saturating_sub(MAX_MINUTES));
        let minutes: Vec<i64> = (first..range.end.0).collect();
        let subjects = vec![subject; minutes.len()];
        let (mut found, mut bad) = (Minutes::default(), Vec::new());
        for (minute, _, row) in read(&mut transaction, minutes, subjects, &mut bad).await? {
            found.rows.insert(Minute(minute), row);
        }
        let named = format!("{} {} of cluster {}", key.kind.name(), key.id, key.cluster);
        found.corrupt = bad.iter().map(|it| it.sentence(&named)).collect();
        Ok(found)
    }
}

/// The number of a resource; none when it is not known.
pub(super) async fn subject(
    transaction: &mut Transaction,
    lease: &str,
    key: &ResourceKey,
) -> Result<Option<i64>, StoreError> {
    let values = [
        Value::Text(&key.cluster),
        Value::Text(key.kind.name()),
        Value::Text(&key.id),
        Value::Text(lease),
    ];
    let sql = "SELECT id FROM subject
        WHERE cluster = $1 AND kind = $2 AND resource_id = $3 AND lease = $4";
    let id = transaction.fetch_int(sql, &values).await;
    id.doing("looking up a resource")
}

/// What is read of one minute row: its minute, its resource's number, and the row.
pub(super) type ReadRow = (i64, i64, MinuteRow);

/// The minutes with these keys, those that are there and can be read, whether they stand in rows or
/// in blocks. Everyone who reads minutes reads them here.
pub(super) async fn read(
    transaction: &mut Transaction,
    minutes: Vec<i64>,
    subjects: Vec<i64>,
    bad: &mut Vec<Unreadable>,
) -> Result<Vec<ReadRow>, StoreError> {
    let asked: BTreeSet<(i64, i64)> = minutes.iter().copied().zip(subjects.clone()).collect();
    let hours = asked
        .iter()
        .map(|(minute, subject)| (Minute(*minute).hour(), *subject));
    let hours: BTreeSet<(i64, i64)> = hours.collect();
    let rows = read_rows(transaction, minutes, subjects, bad).await?;
    let mut found: BTreeMap<(i64, i64), MinuteRow> = rows
        .into_iter()
        .map(|(minute, subject, row)| ((minute, subject), row))
        .collect();
    for (minute, subject, row) in read_blocks(transaction, &hours, bad).await? {
        if asked.contains(&(minute, subject)) {
            found.entry((minute, subject)).or_default().merge(&row);
        }
    }
    let found = found.into_iter();
    Ok(found
        .map(|((minute, subject), row)| (minute, subject, row))
        .collect())
}

/// Every minute of the blocks of these (hour, resource).
async fn read_blocks(
    transaction: &mut Transaction,
    hours: &BTreeSet<(i64, i64)>,
    bad: &mut Vec<Unreadable>,
) -> Result<Vec<ReadRow>, StoreError> {
    let doing = "reading hours of minutes";
    let columns = [
        Column::Ints(hours.iter().map(|it| it.0).collect()),
        Column::Ints(hours.iter().map(|it| it.1).collect()),
    ];
    let after = ") SELECT b.hour, b.subject, b.data FROM k CROSS JOIN minute_block b
        WHERE b.hour = k.hour AND b.subject = k.subject";
    let before = "WITH k (hour, subject) AS (";
    let blocks = transaction.keyed(before, &columns, after).await;
    let mut found = Vec::new();
    for block in blocks.doing(doing)? {
        let (hour, subject) = (block.int(0).doing(doing)?, block.int(1).doing(doing)?);
        let data = block.blob(2).doing(doing)?;
        match block::unpack(hour, data) {
            Ok(rows) => found.extend(rows.into_iter().map(|(it, row)| (it.0, subject, row))),
            Err(error) => bad.push(Unreadable {
                place: Place::Block { hour, subject },
                data: data.to_vec(),
                error,
                is_unknown: false,
            }),
        }
    }
    Ok(found)
}

/// An hour of a resource, by their numbers, and all its minutes.
type Hour<'a> = ((i64, i64), &'a BTreeMap<Minute, MinuteRow>);

/// Packs the minutes of hours that are over.
pub(super) async fn close(
    transaction: &mut Transaction,
    hours: &[Hour<'_>],
) -> Result<(), StoreError> {
    let doing = "packing the minutes of an hour";
    let mut data = Vec::with_capacity(hours.len());
    for (_, rows) in hours {
        let packed = block::pack(rows.iter());
        data.push(packed.map_err(|source| StoreError::Pack { source })?);
    }
    let columns = [
        Column::Ints(hours.iter().map(|it| it.0.0).collect()),
        Column::Ints(hours.iter().map(|it| it.0.1).collect()),
        Column::Blobs(data.iter().map(Vec::as_slice).collect()),
    ];
    let before = "INSERT INTO minute_block (hour, subject, data)";
    let after = "ON CONFLICT (hour, subject) DO UPDATE SET data = excluded.data";
    let written = transaction.rows(before, &columns, after).await;
    written.doing(doing)?;
    let packed = hours
        .iter()
        .flat_map(|((_, subject), rows)| rows.keys().map(|minute| (minute.0, *subject)));
    let packed: Vec<(i64, i64)> = packed.collect();
    let columns = [
        Column::Ints(packed.iter().map(|it| it.0).collect()),
        Column::Ints(packed.iter().map(|it| it.1).collect()),
    ];
    let before = "WITH k (minute, subject) AS (";
    let after = ") DELETE FROM minute_row
        WHERE (minute, subject) IN (SELECT k.minute, k.subject FROM k)";
    let gone = transaction.rows(before, &columns, after).await;
    gone.doing(doing).map(|_| ())
}

/// The minutes with these keys that stand in rows, in no order.
async fn read_rows(
    transaction: &mut Transaction,
    minutes: Vec<i64>,
    subjects: Vec<i64>,
    bad: &mut Vec<Unreadable>,
) -> Result<Vec<ReadRow>, StoreError> {
    let columns = [Column::Ints(minutes), Column::Ints(subjects)];
    let rows = transaction
        .keyed("WITH k (minute, subject) AS (", &columns, READ)
        .await;
    let rows = rows.doing("reading minute rows")?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        found.extend(unpack(row, bad)?);
    }
    Ok(found)
}

/// A minute row from (minute, resource, data); none when it cannot be read.
fn unpack(row: &Row, bad: &mut Vec<Unreadable>) -> Result<Option<ReadRow>, StoreError> {
    let doing = "reading minute rows";
    let (minute, subject) = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
    let data = row.blob(2).doing(doing)?;
    match MinuteRow::unpack(data) {
        Ok(row) => Ok(Some((minute, subject, row))),
        Err(error) => {
            bad.push(Unreadable {
                place: Place::Minute { minute, subject },
                data: data.to_vec(),
                error: error.to_string(),
                is_unknown: false,
            });
            Ok(None)
        }
    }
}

/// Merges what a commit adds into the rows that are there, and marks their hours dirty.
pub(super) async fn merge(
    transaction: &mut Transaction,
    lease: &str,
    deltas: &[MinuteDelta],
    ids: &HashMap<ResourceKey, i64>,
    bad: &mut Vec<Unreadable>,
) -> Result<Committed, StoreError> {
    let horizon = horizon(transaction, lease).await?;
    let mut committed = Committed::default();
    let mut sorted: Vec<(i64, i64, &MinuteRow)> = Vec::with_capacity(deltas.len());
    for delta in deltas {
        if delta.minute.0 < horizon {
            committed.too_late += 1;
            continue;
        }
        let id = ids
            .get(&delta.key)
            .expect("every key of the commit was resolved");
        sorted.push((delta.minute.0, *id, &delta.row));
    }
    // In the order of the table's key, so that pages are filled one after the other.
    sorted.sort_by_key(|(minute, subject, _)| (*minute, *subject));
    let mark: i64 = rand::random();
    // Marked first: whoever packs these hours beside us on PostgreSQL waits for the marks, and finds
    // what we have written; or we wait, and find what is left.
    let minutes = sorted
        .iter()
        .map(|(minute, subject, _)| (*minute, *subject));
    mark_dirty(transaction, minutes, horizon, mark).await?;
    for piece in sorted
        .chunk_by(|a, b| (a.0, a.1) == (b.0, b.1))
        .collect::<Vec<_>>()
        .chunks(MERGE_ROWS)
    {
        merge_piece(transaction, piece, bad).await?;
    }
    aside::put(transaction, lease, bad).await?;
    committed.corrupt = bad.len() as u64;
    Ok(committed)
}

/// Merges some rows; each item has what is to be merged into one row. A row that cannot be read is
/// written over.
async fn merge_piece(
    transaction: &mut Transaction,
    piece: &[&[(i64, i64, &MinuteRow)]],
    bad: &mut Vec<Unreadable>,
) -> Result<(), StoreError> {
    let minutes: Vec<i64> = piece.iter().map(|it| it[0].0).collect();
    let subjects: Vec<i64> = piece.iter().map(|it| it[0].1).collect();
    let known = read_rows(transaction, minutes.clone(), subjects.clone(), bad).await?;
    let mut known: HashMap<(i64, i64), MinuteRow> = known
        .into_iter()
        .map(|(minute, subject, row)| ((minute, subject), row))
        .collect();
    let mut packed = Vec::with_capacity(piece.len());
    for rows in piece {
        let mut row = known.remove(&(rows[0].0, rows[0].1)).unwrap_or_default();
        rows.iter().for_each(|(_, _, delta)| row.merge(delta));
        packed.push(row.pack());
    }
    let columns = [
        Column::Ints(minutes),
        Column::Ints(subjects),
        Column::Blobs(packed.iter().map(Vec::as_slice).collect()),
    ];
    let before = "INSERT INTO minute_row (minute, subject, data)";
    let after = "ON CONFLICT (minute, subject) DO UPDATE SET data = excluded.data";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing minute rows").map(|_| ())
}

/// Marks the hours that depend on these (minute, resource): their own, and the hour before when they
/// are in its lookahead, unless its minutes are no longer kept.
async fn mark_dirty(
    transaction: &mut Transaction,
    minutes: impl Iterator<Item = (i64, i64)>,
    horizon: i64,
    mark: i64,
) -> Result<(), StoreError> {
    let mut hours: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    for (minute, subject) in minutes {
        let due = Minute(minute).start().millis() + DUE_AFTER_MS;
        let mut add = |hour: i64| {
            let known = hours.entry((hour, subject)).or_insert(due);
            *known = due.min(*known);
        };
        add(Minute(minute).hour());
        let is_ahead = minute.rem_euclid(60) < gpufleet_analysis::states::LOOKAHEAD_MINUTES;
        if is_ahead && minute >= horizon.saturating_add(60) {
            add(Minute(minute).hour() - 1);
        }
    }
    let hours = hours
        .into_iter()
        .map(|(of, due_ms)| (of, (due_ms, Why::DATA)))
        .collect();
    mark_hours(transaction, &hours, mark).await
}

/// Hours (hour, resource) that are to be computed: when, ms, and why.
pub(super) type Marks = BTreeMap<(i64, i64), (i64, Why)>;

/// Marks hours as to be computed.
pub(super) async fn mark_hours(
    transaction: &mut Transaction,
    hours: &Marks,
    mark: i64,
) -> Result<(), StoreError> {
    let columns = [
        Column::Ints(hours.keys().map(|it| it.0).collect()),
        Column::Ints(hours.keys().map(|it| it.1).collect()),
        Column::Ints(vec![mark; hours.len()]),
        Column::Ints(hours.values().map(|it| it.0).collect()),
        Column::Ints(hours.values().map(|it| it.1.0).collect()),
    ];
    let before = "INSERT INTO ledger_dirty (hour, subject, mark, due_ms, why)";
    let after = "ON CONFLICT (hour, subject) DO UPDATE SET mark = excluded.mark,
        why = ledger_dirty.why | excluded.why,
        due_ms = CASE WHEN excluded.due_ms < ledger_dirty.due_ms
            THEN excluded.due_ms ELSE ledger_dirty.due_ms END";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("marking hours").map(|_| ())
}

/// The first minute that is still kept.
pub(super) async fn horizon(transaction: &mut Transaction, lease: &str) -> Result<i64, StoreError> {
    let horizon = horizon::read(transaction, lease, HORIZON).await?;
    Ok(horizon.unwrap_or(i64::MIN))
}
