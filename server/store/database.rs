//! The two databases behind one face: nothing else knows which one it is.
//!
//! SQL is written once, with `$n` for values, in the words both understand. Rows in bulk differ:
//! PostgreSQL takes arrays (UNNEST), SQLite lists of values; [`Transaction::rows`] hides it.
//!
//! What is asked comes back as a boxed future: sqlx's are made of many, and the compiler would look through all of them
//! again for each route and loop above, a tenth of the time in which it builds the server.
//!
//! SQLite: WAL, one writing connection, [`READERS`] reading ones, foreign keys on, and
//! `synchronous=FULL`: a commit is on the disk before it is acknowledged, so it outlives kill -9 and
//! loss of power. That is one fsync a commit, every 20 s: a few milliseconds each.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use futures::future::BoxFuture;
use log::LevelFilter;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{
    Arguments, AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool, Postgres,
    Sqlite, SqlitePool,
};

use super::address::{self, bounds, make_folder, without_password};
use super::error::StoreError;

mod absence;
mod columns;
mod placed;
mod row;

use absence::Absence;
pub(super) use columns::Column;
use columns::{unnest_sql, values_sql};
pub(super) use row::Row;

/// Reading connections to SQLite, a thread each: pages and API wait for one another beyond that. A page asks some eight
/// things at once, and while the server is busy a connection waits longer for whoever asked than for the disk.
const READERS: u32 = 8;

/// Connections to PostgreSQL: one writes, one renews the lease, the others read.
const CONNECTIONS: u32 = 8;

/// Longest wait for a connection or for SQLite's lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// A statement that takes longer is told to who asks for debug messages. sqlx would print every one
/// over a second as a warning, with all its SQL: on a busy machine each commit of a large fleet.
/// How long commits take is a metric.
const SLOW: Duration = Duration::from_secs(5);

/// Page cache of the writing connection, KiB: the minute being written for 20,000 GPUs is 8 MB.
const WRITER_CACHE_KIB: u32 = 16 * 1024;

/// Page cache of each reading connection, KiB.
const READER_CACHE_KIB: u32 = 2 * 1024;

/// Rows in one statement on SQLite, the greatest first. Few sizes, so that few statements are
/// prepared; 512 rows of 10 columns stay under SQLite's 32,766 values.
const SQLITE_ROWS: [usize; 4] = [512, 64, 8, 1];

/// Rows in one statement on PostgreSQL: about 4 MB of minute rows.
const POSTGRES_ROWS: usize = 10_000;

/// A database of either kind.
#[derive(Debug, Clone)]
pub(super) enum Database {
    Sqlite {
        writer: SqlitePool,
        reader: SqlitePool,
        /// None where it has no file.
        placed: Option<placed::Placed>,
    },
    Postgres(PgPool, Arc<Absence>),
}

/// A transaction on either kind. Dropped without commit it is rolled back.
pub(super) enum Transaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>),
    Postgres(sqlx::Transaction<'static, Postgres>),
}

/// A value of a statement.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Int(i64),
    Text(&'a str),
    Blob(&'a [u8]),
}

impl Database {
    /// Opens the database; makes the file if it is SQLite and new, and `makes` says so.
    pub(super) fn open(url: &str, makes: bool) -> BoxFuture<'_, Result<Self, StoreError>> {
        Box::pin(async move {
            let refused = |error: sqlx::Error| StoreError::Url {
                url: without_password(url),
                why: error.to_string(),
            };
            address::check(url)?;
            if address::is_postgres(url) {
                let options = PgConnectOptions::from_str(url)
                    .map_err(refused)?
                    .application_name("gpufleet-server")
                    .log_slow_statements(LevelFilter::Debug, SLOW);
                // Once by itself: the pool would try for as long as its patience lasts and then say
                // "timed out" and not why.
                let first = PgConnection::connect_with(&options).await;
                first.map_err(refused)?.close().await.map_err(refused)?;
                let bounds: Arc<str> = bounds(url).into();
                let pool = PgPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .acquire_timeout(PATIENCE)
                    .after_connect(move |connection, _| {
                        let bounds = Arc::clone(&bounds);
                        Box::pin(async move {
                            let set = sqlx::raw_sql(AssertSqlSafe(&*bounds));
                            set.execute(connection).await.map(|_| ())
                        })
                    })
                    .connect_with(options)
                    .await
                    .map_err(refused)?;
                return Ok(Self::Postgres(pool, Arc::default()));
            }
            let options = SqliteConnectOptions::from_str(url)
                .map_err(refused)?
                .create_if_missing(makes)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .foreign_keys(true)
                .busy_timeout(PATIENCE)
                .log_slow_statements(LevelFilter::Debug, SLOW);
            if !makes && !options.get_filename().is_file() {
                return Err(StoreError::Unused {
                    url: url.to_owned(),
                    why: "there is no such file".to_owned(),
                });
            }
            make_folder(options.get_filename()).map_err(|error| StoreError::Url {
                url: url.to_owned(),
                why: format!("its folder cannot be made: {error}"),
            })?;
            let cache = |kib: u32| format!("-{kib}");
            let own = options.clone();
            let writer = SqlitePoolOptions::new()
                .max_connections(1)
                .acquire_timeout(PATIENCE)
                .max_lifetime(None)
                .idle_timeout(None)
                // When the disk is full SQLite rolls back by itself; the driver then believes for ever
                // that the connection is in a transaction, and begins no other on it.
                .before_acquire(|connection, _| {
                    Box::pin(async move { Ok(!connection.is_in_transaction()) })
                })
                .connect_with(own.pragma("cache_size", cache(WRITER_CACHE_KIB)))
                .await
                .map_err(refused)?;
            let placed = placed::Placed::at(options.get_filename());
            // It is there by now: where it goes later, no reader makes an empty one.
            let reading = options.create_if_missing(false).pragma("query_only", "on");
            let reader = SqlitePoolOptions::new()
                .max_connections(READERS)
                .acquire_timeout(PATIENCE)
                // A file cannot hang up, and what is given back was tested: asking once more is a way to the
                // connection's thread and back for each question.
                .test_before_acquire(false)
                .connect_with(reading.pragma("cache_size", cache(READER_CACHE_KIB)))
                .await
                .map_err(refused)?;
            Ok(Self::Sqlite {
                writer,
                reader,
                placed,
            })
        })
    }

    /// A transaction that may write. On SQLite it waits for the one before it.
    pub(super) fn write(&self) -> BoxFuture<'_, Result<Transaction, sqlx::Error>> {
        Box::pin(async move {
            Ok(match self {
                Self::Sqlite { writer, placed, .. } => {
                    Transaction::Sqlite(placed::begin(writer, placed.as_ref()).await?)
                }
                Self::Postgres(pool, absence) => {
                    Transaction::Postgres(Box::pin(absence.around(pool, pool.begin())).await?)
                }
            })
        })
    }

    /// A transaction that sees one moment of the database.
    pub(super) fn read(&self) -> BoxFuture<'_, Result<Transaction, sqlx::Error>> {
        Box::pin(async move {
            Ok(match self {
                Self::Sqlite { reader, .. } => Transaction::Sqlite(reader.begin().await?),
                Self::Postgres(pool, absence) => {
                    let begun = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
                    Transaction::Postgres(Box::pin(absence.around(pool, begun)).await?)
                }
            })
        })
    }

    /// The rows that one statement returns. It sees one moment of the database by itself: a transaction around it is one
    /// more way to the connection and back, while others wait for the connection.
    pub(super) fn ask<'a>(
        &'a self,
        sql: &'a str,
        values: &'a [Value<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>> {
        Box::pin(async move {
            match self {
                Self::Sqlite { reader, .. } => {
                    let mut connection = reader.acquire().await?;
                    let query = sqlx::query_with(AssertSqlSafe(sql), sqlite_values(values)?);
                    let rows = query.fetch_all(&mut *connection).await?;
                    Ok(rows.into_iter().map(Row::Sqlite).collect())
                }
                Self::Postgres(pool, absence) => {
                    let asked = async {
                        let mut connection = pool.acquire().await?;
                        let query = sqlx::query_with(AssertSqlSafe(sql), postgres_values(values)?);
                        query.fetch_all(&mut *connection).await
                    };
                    let rows = Box::pin(absence.around(pool, asked)).await?;
                    Ok(rows.into_iter().map(Row::Postgres).collect())
                }
            }
        })
    }

    /// Which kind it is, for the log and for metrics.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite { .. } => "sqlite",
            Self::Postgres(..) => "postgres",
        }
    }

    /// SQLite's file.
    pub(super) fn file(&self) -> Option<std::path::PathBuf> {
        match self {
            Self::Sqlite { writer, .. } => {
                Some(writer.connect_options().get_filename().to_path_buf())
            }
            Self::Postgres(..) => None,
        }
    }

    /// Ends all connections, after what is under way.
    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite { writer, reader, .. } => {
                reader.close().await;
                writer.close().await;
            }
            Self::Postgres(pool, _) => pool.close().await,
        }
    }
}

impl Transaction {
    /// Makes everything since its start durable.
    pub(super) fn commit(self) -> BoxFuture<'static, Result<(), sqlx::Error>> {
        Box::pin(async move {
            match self {
                Self::Sqlite(it) => it.commit().await,
                Self::Postgres(it) => it.commit().await,
            }
        })
    }

    /// A word that differs: PostgreSQL's on PostgreSQL, nothing on SQLite.
    pub(super) fn only_postgres(&self, word: &'static str) -> &'static str {
        match self {
            Self::Sqlite(_) => "",
            Self::Postgres(_) => word,
        }
    }

    /// Runs statements without values or results: a migration.
    pub(super) fn script(&mut self, sql: &'static str) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        Box::pin(async move {
            use sqlx::Executor as _;
            match self {
                Self::Sqlite(it) => it.execute(sqlx::raw_sql(sql)).await.map(|_| ()),
                Self::Postgres(it) => it.execute(sqlx::raw_sql(sql)).await.map(|_| ()),
            }
        })
    }

    /// Runs one statement; how many rows it changed.
    pub(super) fn execute<'a>(
        &'a mut self,
        sql: &'a str,
        values: &'a [Value<'a>],
    ) -> BoxFuture<'a, Result<u64, sqlx::Error>> {
        Box::pin(async move {
            match self {
                Self::Sqlite(it) => {
                    let query = sqlx::query_with(AssertSqlSafe(sql), sqlite_values(values)?);
                    Ok(query.execute(&mut **it).await?.rows_affected())
                }
                Self::Postgres(it) => {
                    let query = sqlx::query_with(AssertSqlSafe(sql), postgres_values(values)?);
                    Ok(query.execute(&mut **it).await?.rows_affected())
                }
            }
        })
    }

    /// Runs one statement; the rows it returns.
    pub(super) fn fetch<'a>(
        &'a mut self,
        sql: &'a str,
        values: &'a [Value<'a>],
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>> {
        Box::pin(async move {
            let mut rows = Vec::new();
            let take = |row| {
                rows.push(row);
                Ok(())
            };
            self.each(sql, values, take).await?;
            Ok(rows)
        })
    }

    /// Runs one statement and hands over the rows that it returns one by one, as they come: for so many
    /// that they should not be in memory together. An error of `take` ends it.
    pub(super) fn each<'a>(
        &'a mut self,
        sql: &'a str,
        values: &'a [Value<'a>],
        mut take: impl FnMut(Row) -> Result<(), sqlx::Error> + Send + 'a,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            let take = |row| std::future::ready(take(row));
            match self {
                Self::Sqlite(it) => {
                    let query = sqlx::query_with(AssertSqlSafe(sql), sqlite_values(values)?);
                    let rows = query.fetch(&mut **it).map_ok(Row::Sqlite);
                    rows.try_for_each(take).await
                }
                Self::Postgres(it) => {
                    let query = sqlx::query_with(AssertSqlSafe(sql), postgres_values(values)?);
                    let rows = query.fetch(&mut **it).map_ok(Row::Postgres);
                    rows.try_for_each(take).await
                }
            }
        })
    }

    /// The one integer of the one row that a statement returns; none without a row.
    pub(super) async fn fetch_int(
        &mut self,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<i64>, sqlx::Error> {
        let rows = self.fetch(sql, values).await?;
        rows.first().map(|row| row.int(0)).transpose()
    }

    /// Runs a statement over many rows of values, in as few pieces as the database takes:
    /// `before`, then a list of rows, then `after`. For `INSERT INTO t (a, b)` … `ON CONFLICT …` and
    /// for `WITH k (a, b) AS (` … `) SELECT …`. Returns the rows of all pieces.
    pub(super) fn rows<'a>(
        &'a mut self,
        before: &'a str,
        columns: &'a [Column<'a>],
        after: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>> {
        Box::pin(self.pieces(before, columns, after, false))
    }

    /// The rows that lists of keys name: `WITH k (a, b) AS (` … `) SELECT … FROM k CROSS JOIN t WHERE t.a = k.a …`.
    /// On SQLite in the fewest pieces, each filled up with nulls, which equal nothing: each piece is a way to the
    /// connection's thread and back. So only for joins by equality that take no row of `k` without a partner.
    pub(super) fn keyed<'a>(
        &'a mut self,
        before: &'a str,
        columns: &'a [Column<'a>],
        after: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Row>, sqlx::Error>> {
        Box::pin(self.pieces(before, columns, after, true))
    }

    async fn pieces(
        &mut self,
        before: &str,
        columns: &[Column<'_>],
        after: &str,
        is_filled_up: bool,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let count = columns.first().map_or(0, Column::len);
        let mut found = Vec::new();
        let mut first = 0;
        while first < count {
            let left = count - first;
            match self {
                Self::Sqlite(it) => {
                    let size = sqlite_rows(left, is_filled_up);
                    let sql = values_sql(before, columns.len(), size, after);
                    let mut arguments = SqliteArguments::default();
                    for row in first..first + size {
                        for column in columns {
                            column.add_one(row, &mut arguments)?;
                        }
                    }
                    let query = sqlx::query_with(AssertSqlSafe(sql), arguments);
                    let rows = query.fetch_all(&mut **it).await?;
                    found.extend(rows.into_iter().map(Row::Sqlite));
                    first += size;
                }
                Self::Postgres(it) => {
                    let size = left.min(POSTGRES_ROWS);
                    let sql = unnest_sql(before, columns, after);
                    let mut arguments = PgArguments::default();
                    for column in columns {
                        column.add_many(first..first + size, &mut arguments)?;
                    }
                    let query = sqlx::query_with(AssertSqlSafe(sql), arguments);
                    let rows = query.fetch_all(&mut **it).await?;
                    found.extend(rows.into_iter().map(Row::Postgres));
                    first += size;
                }
            }
        }
        Ok(found)
    }
}

/// How many rows the next statement on SQLite has, where so many are left.
fn sqlite_rows(left: usize, is_filled_up: bool) -> usize {
    let (more, fewer): (Vec<usize>, Vec<usize>) =
        SQLITE_ROWS.into_iter().partition(|size| *size >= left);
    let least_of_more = more.last().filter(|size| is_filled_up || **size == left);
    let size = least_of_more.or(fewer.first());
    *size.expect("a size is 1 and there is a row left")
}

fn sqlite_values(values: &[Value<'_>]) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for value in values {
        match *value {
            Value::Int(it) => arguments.add(it),
            Value::Text(it) => arguments.add(it),
            Value::Blob(it) => arguments.add(it),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

fn postgres_values(values: &[Value<'_>]) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    for value in values {
        match *value {
            Value::Int(it) => arguments.add(it),
            Value::Text(it) => arguments.add(it),
            Value::Blob(it) => arguments.add(it),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the statements for so many rows.
    fn sizes(mut left: usize, is_filled_up: bool) -> Vec<usize> {
        let mut sizes = Vec::new();
        while left > 0 {
            let size = sqlite_rows(left, is_filled_up);
            left = left.saturating_sub(size);
            sizes.push(size);
        }
        sizes
    }

    #[test]
    fn rows_come_in_statements_of_few_sizes_and_keys_in_the_fewest() {
        assert_eq!(sizes(75, false), [64, 8, 1, 1, 1]);
        assert_eq!(sizes(512, false), [512]);
        for (keys, expected) in [(1, 1), (2, 8), (8, 8), (25, 64), (360, 512)] {
            assert_eq!(sizes(keys, true), [expected], "{keys}");
        }
        assert_eq!(sizes(1_000, true), [512, 512]);
        assert_eq!(sizes(0, true), [] as [usize; 0]);
    }
}
