//! A row of either database, read by the places of its columns.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

/// A row that came back.
pub(in crate::store) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    pub(in crate::store) fn int(&self, index: usize) -> Result<i64, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(index),
            Self::Postgres(row) => row.try_get(index),
        }
    }

    pub(in crate::store) fn optional_int(&self, index: usize) -> Result<Option<i64>, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(index),
            Self::Postgres(row) => row.try_get(index),
        }
    }

    pub(in crate::store) fn text(&self, index: usize) -> Result<&str, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(index),
            Self::Postgres(row) => row.try_get(index),
        }
    }

    /// The bytes of a text, which need not be one: a spoilt page of SQLite holds anything.
    pub(in crate::store) fn bytes(&self, index: usize) -> Result<&[u8], sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get_unchecked(index),
            Self::Postgres(row) => row.try_get::<&str, _>(index).map(str::as_bytes),
        }
    }

    pub(in crate::store) fn blob(&self, index: usize) -> Result<&[u8], sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(index),
            Self::Postgres(row) => row.try_get(index),
        }
    }

    pub(in crate::store) fn optional_blob(
        &self,
        index: usize,
    ) -> Result<Option<&[u8]>, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(index),
            Self::Postgres(row) => row.try_get(index),
        }
    }
}
