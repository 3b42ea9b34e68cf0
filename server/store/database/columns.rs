//! Many rows in one statement, column by column.

use sqlx::Arguments as _;
use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;

/// One column of many rows.
pub(in crate::store) enum Column<'a> {
    Ints(Vec<i64>),
    OptionalInts(Vec<Option<i64>>),
    Texts(Vec<&'a str>),
    OptionalTexts(Vec<Option<&'a str>>),
    Blobs(Vec<&'a [u8]>),
    OptionalBlobs(Vec<Option<&'a [u8]>>),
}

impl Column<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ints(it) => it.len(),
            Self::OptionalInts(it) => it.len(),
            Self::Texts(it) => it.len(),
            Self::OptionalTexts(it) => it.len(),
            Self::Blobs(it) => it.len(),
            Self::OptionalBlobs(it) => it.len(),
        }
    }

    fn postgres_type(&self) -> &'static str {
        match self {
            Self::Ints(_) | Self::OptionalInts(_) => "bigint",
            Self::Texts(_) | Self::OptionalTexts(_) => "text",
            Self::Blobs(_) | Self::OptionalBlobs(_) => "bytea",
        }
    }

    /// The value of a row; null behind the last.
    pub(super) fn add_one(&self, row: usize, to: &mut SqliteArguments) -> Result<(), sqlx::Error> {
        if row >= self.len() {
            return to.add(None::<i64>).map_err(sqlx::Error::Encode);
        }
        match self {
            Self::Ints(it) => to.add(it[row]),
            Self::OptionalInts(it) => to.add(it[row]),
            Self::Texts(it) => to.add(it[row]),
            Self::OptionalTexts(it) => to.add(it[row]),
            Self::Blobs(it) => to.add(it[row]),
            Self::OptionalBlobs(it) => to.add(it[row]),
        }
        .map_err(sqlx::Error::Encode)
    }

    pub(super) fn add_many(
        &self,
        rows: std::ops::Range<usize>,
        to: &mut PgArguments,
    ) -> Result<(), sqlx::Error> {
        match self {
            Self::Ints(it) => to.add(&it[rows]),
            Self::OptionalInts(it) => to.add(&it[rows]),
            Self::Texts(it) => to.add(&it[rows]),
            Self::OptionalTexts(it) => to.add(&it[rows]),
            Self::Blobs(it) => to.add(&it[rows]),
            Self::OptionalBlobs(it) => to.add(&it[rows]),
        }
        .map_err(sqlx::Error::Encode)
    }
}

/// `before VALUES (?,?),(?,?) after`.
pub(super) fn values_sql(before: &str, columns: usize, rows: usize, after: &str) -> String {
    let row = format!("({})", vec!["?"; columns].join(","));
    format!(
        "{before} VALUES {} {after}",
        vec![row.as_str(); rows].join(",")
    )
}

/// `before SELECT * FROM UNNEST($1::bigint[],$2::text[]) after`.
pub(super) fn unnest_sql(before: &str, columns: &[Column<'_>], after: &str) -> String {
    let arrays: Vec<String> = (1..)
        .zip(columns)
        .map(|(number, column)| format!("${number}::{}[]", column.postgres_type()))
        .collect();
    format!(
        "{before} SELECT * FROM UNNEST({}) {after}",
        arrays.join(",")
    )
}
