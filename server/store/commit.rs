//! The commit: folded data and cursors become durable together, once.
//!
//! One transaction: the fencing token and the last commit number are checked, then everything is
//! written. A commit with a number that is already there does nothing and succeeds, so a commit
//! whose fate is unknown may be tried again as it is.

use std::collections::BTreeMap;

use gpufleet_telemetry::identity::{AgentId, Epoch};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::wire::Stream;
use uuid::Uuid;

use super::Store;
use super::aside::Unreadable;
use super::database::{Column, Row, Transaction, Value};
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::model::{Commit, Committed, Cursor, CursorKey, FencingToken, ForeignMark, Gap};
use super::subjects::Resolved;
use super::{events, holders, minutes, runs, steps};

/// Most gaps that one question returns, the newest first.
pub const MAX_GAPS: usize = 10_000;

/// Most cursors of one agent in one answer: a spool has at most 16 epochs of two streams.
pub const MAX_CURSORS: usize = 32;

/// Most cursors that a server begins with, 200 bytes each: all agents that it takes with four epochs each,
/// of two streams.
const MAX_CURSORS_READ: usize = 1_000_000;

/// Most marks of foreign series that are read at the start: 1 million series of 24 bytes.
pub const MAX_FOREIGN_MARKS: usize = 1_000_000;

impl Store {
    /// Makes a commit durable. Calling it again with the same number is harmless.
    ///
    /// # Errors
    /// [`CommitError::Fenced`] when another server has the lease; [`CommitError::Unknown`] when the
    /// database failed: then [`Store::last_commit`] says whether it happened.
    pub async fn commit(
        &self,
        commit: &Commit,
        token: FencingToken,
    ) -> Result<Committed, CommitError> {
        let mut transaction = self.write().await.map_err(CommitError::Unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let written = Box::pin(self.write_commit(&mut transaction, commit, token)).await;
        let Some((committed, resolved, bad)) = written.map_err(CommitError::Unknown)? else {
            return Ok(Committed {
                already: true,
                ..Committed::default()
            });
        };
        let done = transaction.commit().await.doing("committing");
        done.map_err(CommitError::Unknown)?;
        self.remember(resolved);
        self.was_set_aside(&bad);
        Ok(committed)
    }

    /// Writes everything but does not commit; none when the number is there already.
    async fn write_commit(
        &self,
        transaction: &mut Transaction,
        commit: &Commit,
        token: FencingToken,
    ) -> Result<Option<(Committed, Resolved, Vec<Unreadable>)>, StoreError> {
        let lease = self.0.lease.as_str();
        let number = to_sql(commit.number, "commit number")?;
        let last = last_commit(transaction, lease).await?;
        if last.is_some_and(|last| number <= last) {
            return Ok(None);
        }
        let resolved = self.resolve(transaction, commit).await?;
        let mut bad = Vec::new();
        let minutes = &commit.minutes;
        let merged = minutes::merge(transaction, lease, minutes, &resolved.ids, &mut bad).await;
        let mut committed = merged?;
        holders::write(transaction, lease, &commit.holders).await?;
        write_cursors(transaction, lease, &commit.cursors).await?;
        write_gaps(transaction, lease, &commit.gaps).await?;
        write_marks(transaction, lease, &commit.foreign).await?;
        events::write(transaction, lease, &commit.events).await?;
        let runs = runs::write(transaction, lease, &commit.runs, &mut bad).await?;
        steps::merge(transaction, lease, &commit.steps, runs, &mut bad)
            .await?
            .note(&mut committed);
        let values = [Value::Text(lease), Value::Int(number), Value::Int(token.0)];
        let sql = "INSERT INTO commit_log (lease, number, token) VALUES ($1, $2, $3)
            ON CONFLICT (lease) DO UPDATE SET number = excluded.number, token = excluded.token";
        let logged = transaction.execute(sql, &values).await;
        logged.doing("writing the commit's number")?;
        Ok(Some((committed, resolved, bad)))
    }

    /// The number of the newest commit under this lease; 0 before the first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn last_commit(&self) -> Result<u64, StoreError> {
        // With the lock that a commit takes first, so that one still under way is waited for.
        let mut transaction = self.write().await?;
        let lock = transaction.only_postgres("FOR UPDATE");
        let sql = format!("SELECT token FROM lease WHERE name = $1 {lock}");
        let waited = transaction.fetch(&sql, &[Value::Text(&self.0.lease)]).await;
        waited.doing("waiting for a commit under way")?;
        let last = last_commit(&mut transaction, &self.0.lease).await?;
        Ok(last.map_or(0, i64::unsigned_abs))
    }

    /// How far every stream is folded: where a server begins after a start.
    ///
    /// # Errors
    /// When the database refuses, or holds a row that cannot be read.
    pub async fn cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        self.cursors_up_to(MAX_CURSORS_READ).await
    }

    /// Not some of them: what a forgotten stream sends would be counted twice.
    pub(super) async fn cursors_up_to(&self, most: usize) -> Result<Vec<Cursor>, StoreError> {
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT agent, epoch, stream, seq, clock_offset_nanos, seen_ms
             FROM agent_cursor WHERE lease = $1 ORDER BY agent, epoch, stream LIMIT {}",
            most + 1
        );
        let rows = transaction.fetch(&sql, &[Value::Text(&self.0.lease)]).await;
        let rows = rows.doing("reading cursors")?;
        if rows.len() > most {
            return Err(StoreError::TooManyCursors { most });
        }
        rows.iter().map(cursor).collect()
    }

    /// How far the streams of some agents are folded, of each the [`MAX_CURSORS`] that were heard
    /// last. Costs what these agents have, however many others there are.
    ///
    /// # Errors
    /// When the database refuses, or holds a row that cannot be read.
    pub async fn cursors_of(&self, agents: &[AgentId]) -> Result<Vec<Cursor>, StoreError> {
        let mut transaction = self.read().await?;
        let columns = [
            Column::Texts(vec![self.0.lease.as_str(); agents.len()]),
            Column::Blobs(agents.iter().map(|it| &it.0.as_bytes()[..]).collect()),
        ];
        let after = format!(
            ") SELECT agent, epoch, stream, seq, clock_offset_nanos, seen_ms FROM (
                SELECT c.*, ROW_NUMBER() OVER (PARTITION BY c.agent
                    ORDER BY c.seen_ms DESC, c.epoch, c.stream) AS place
                FROM k CROSS JOIN agent_cursor c WHERE c.lease = k.lease AND c.agent = k.agent) n
             WHERE place <= {MAX_CURSORS}"
        );
        let rows = transaction
            .rows("WITH k (lease, agent) AS (", &columns, &after)
            .await;
        rows.doing("reading cursors")?.iter().map(cursor).collect()
    }

    /// What senders gave up, the newest first, at most [`MAX_GAPS`]; of one agent where one is named.
    ///
    /// # Errors
    /// When the database refuses, or holds a row that cannot be read.
    pub async fn gaps(&self, agent: Option<AgentId>) -> Result<Vec<Gap>, StoreError> {
        let doing = "reading gaps";
        let mut transaction = self.read().await?;
        let agent = agent.map_or(Vec::new(), |it| it.0.as_bytes().to_vec());
        let sql = format!(
            "SELECT agent, epoch, stream, first, last, seen_ms FROM gap
             WHERE lease = $3 AND ($1 = $2 OR agent = $1) ORDER BY seen_ms DESC LIMIT {MAX_GAPS}"
        );
        let values = [
            Value::Blob(&agent),
            Value::Blob(&[]),
            Value::Text(&self.0.lease),
        ];
        let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
        let gap = |row: &Row| {
            Ok(Gap {
                key: cursor_key(row)?,
                first: from_sql(row.int(3).doing(doing)?),
                last: from_sql(row.int(4).doing(doing)?),
                seen: Timestamp::from_millis(row.int(5).doing(doing)?),
            })
        };
        rows.iter().map(gap).collect()
    }

    /// How far foreign series have been seen, the newest first, at most [`MAX_FOREIGN_MARKS`].
    ///
    /// # Errors
    /// When the database refuses, or holds a row that cannot be read.
    pub async fn foreign_marks(&self) -> Result<Vec<ForeignMark>, StoreError> {
        let doing = "reading marks of foreign series";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT series, newest_nanos FROM foreign_mark WHERE lease = $1
             ORDER BY newest_nanos DESC LIMIT {MAX_FOREIGN_MARKS}"
        );
        let values = [Value::Text(&self.0.lease)];
        let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
        let mark = |row: &Row| {
            let series = row.blob(0).doing(doing)?;
            let corrupt = |_| StoreError::Corrupt {
                what: "a mark of a foreign series".to_owned(),
                why: format!("its key has {} bytes instead of 16", series.len()),
            };
            Ok(ForeignMark {
                series: series.try_into().map_err(corrupt)?,
                newest: Timestamp(row.int(1).doing(doing)?),
            })
        };
        rows.iter().map(mark).collect()
    }
}

/// A cursor from (agent, epoch, stream, seq, offset, seen).
fn cursor(row: &Row) -> Result<Cursor, StoreError> {
    let doing = "reading cursors";
    Ok(Cursor {
        key: cursor_key(row)?,
        seq: from_sql(row.int(3).doing(doing)?),
        clock_offset_nanos: row.int(4).doing(doing)?,
        seen: Timestamp::from_millis(row.int(5).doing(doing)?),
    })
}

async fn last_commit(
    transaction: &mut Transaction,
    lease: &str,
) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT number FROM commit_log WHERE lease = $1";
    let last = transaction.fetch_int(sql, &[Value::Text(lease)]).await;
    last.doing("reading the last commit's number")
}

async fn write_cursors(
    transaction: &mut Transaction,
    lease: &str,
    cursors: &[Cursor],
) -> Result<(), StoreError> {
    let cursors: BTreeMap<CursorKey, &Cursor> = cursors.iter().map(|it| (it.key, it)).collect();
    let [agent, epoch, stream] = key_columns(cursors.keys());
    let mut seqs = Vec::with_capacity(cursors.len());
    for cursor in cursors.values() {
        seqs.push(to_sql(cursor.seq, "seq")?);
    }
    let columns = [
        Column::Texts(vec![lease; cursors.len()]),
        agent,
        epoch,
        stream,
        Column::Ints(seqs),
        Column::Ints(cursors.values().map(|it| it.clock_offset_nanos).collect()),
        Column::Ints(cursors.values().map(|it| it.seen.millis()).collect()),
        Column::Ints(cursors.values().map(|it| it.seen.millis()).collect()),
    ];
    let before = "INSERT INTO agent_cursor
        (lease, agent, epoch, stream, seq, clock_offset_nanos, seen_ms, first_seen_ms)";
    let after = "ON CONFLICT (lease, agent, epoch, stream) DO UPDATE
        SET seq = excluded.seq, clock_offset_nanos = excluded.clock_offset_nanos,
            seen_ms = excluded.seen_ms
        WHERE excluded.seq >= agent_cursor.seq";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing cursors").map(|_| ())
}

async fn write_gaps(
    transaction: &mut Transaction,
    lease: &str,
    gaps: &[Gap],
) -> Result<(), StoreError> {
    let gaps: BTreeMap<(CursorKey, u64), &Gap> =
        gaps.iter().map(|it| ((it.key, it.first), it)).collect();
    let [agent, epoch, stream] = key_columns(gaps.keys().map(|(key, _)| key));
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for gap in gaps.values() {
        first.push(to_sql(gap.first, "seq")?);
        last.push(to_sql(gap.last, "seq")?);
    }
    let columns = [
        Column::Texts(vec![lease; gaps.len()]),
        agent,
        epoch,
        stream,
        Column::Ints(first),
        Column::Ints(last),
        Column::Ints(gaps.values().map(|it| it.seen.millis()).collect()),
    ];
    let before = "INSERT INTO gap (lease, agent, epoch, stream, first, last, seen_ms)";
    let after =
        "ON CONFLICT (lease, agent, epoch, stream, first) DO UPDATE SET last = excluded.last
        WHERE excluded.last > gap.last";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing gaps").map(|_| ())
}

async fn write_marks(
    transaction: &mut Transaction,
    lease: &str,
    marks: &[ForeignMark],
) -> Result<(), StoreError> {
    let mut newest: BTreeMap<[u8; 16], i64> = BTreeMap::new();
    for mark in marks {
        let known = newest.entry(mark.series).or_insert(mark.newest.0);
        *known = mark.newest.0.max(*known);
    }
    let columns = [
        Column::Texts(vec![lease; newest.len()]),
        Column::Blobs(newest.keys().map(|it| &it[..]).collect()),
        Column::Ints(newest.values().copied().collect()),
    ];
    let before = "INSERT INTO foreign_mark (lease, series, newest_nanos)";
    let after = "ON CONFLICT (lease, series) DO UPDATE SET newest_nanos = excluded.newest_nanos
        WHERE excluded.newest_nanos > foreign_mark.newest_nanos";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing marks of foreign series").map(|_| ())
}

fn key_columns<'a>(keys: impl Iterator<Item = &'a CursorKey> + Clone) -> [Column<'a>; 3] {
    [
        Column::Blobs(keys.clone().map(|it| &it.agent.0.as_bytes()[..]).collect()),
        Column::Blobs(keys.clone().map(|it| &it.epoch.0.as_bytes()[..]).collect()),
        Column::Texts(keys.map(|it| it.stream.name()).collect()),
    ]
}

fn cursor_key(row: &Row) -> Result<CursorKey, StoreError> {
    let doing = "reading a stream's name";
    let uuid = |index: usize| {
        let bytes = row.blob(index).doing(doing)?;
        Uuid::from_slice(bytes).map_err(|error| StoreError::Corrupt {
            what: "a stream's agent or epoch".to_owned(),
            why: error.to_string(),
        })
    };
    let stream = row.text(2).doing(doing)?;
    Ok(CursorKey {
        agent: AgentId(uuid(0)?),
        epoch: Epoch(uuid(1)?),
        stream: Stream::parse(stream).ok_or_else(|| StoreError::Corrupt {
            what: "a stream's name".to_owned(),
            why: format!("{stream:?} is none"),
        })?,
    })
}

fn to_sql(number: u64, what: &str) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| StoreError::Corrupt {
        what: format!("a {what}"),
        why: format!("{number} is beyond the range of the database"),
    })
}

/// Numbers that [`to_sql`] wrote are never negative.
fn from_sql(number: i64) -> u64 {
    number.unsigned_abs()
}
