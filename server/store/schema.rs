//! Migrations: forward only, the same numbers on both databases, carried inside the program.
//!
//! A migration is two files, `migrations/sqlite/NNNN_name.sql` and `migrations/postgres/…`, and one
//! line in [`MIGRATIONS`]. Old code runs on a schema it knows; a newer one is refused.

use super::database::{Database, Transaction, Value};
use super::error::{Doing, StoreError};

/// A step of the schema.
struct Migration {
    number: i64,
    #[cfg(test)]
    file: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! migration {
    ($number:literal, $file:literal) => {
        Migration {
            number: $number,
            #[cfg(test)]
            file: $file,
            sqlite: include_str!(concat!("../../migrations/sqlite/", $file)),
            postgres: include_str!(concat!("../../migrations/postgres/", $file)),
        }
    };
}

/// Every migration, in order.
const MIGRATIONS: &[Migration] = &[
    migration!(1, "0001_main.sql"),
    migration!(2, "0002_set_aside.sql"),
    migration!(3, "0003_cursor_first_seen.sql"),
    migration!(4, "0004_ledger_correction.sql"),
    migration!(5, "0005_minute_block.sql"),
    migration!(6, "0006_runs.sql"),
    migration!(8, "0008_lease.sql"),
    migration!(10, "0010_incident.sql"),
    migration!(11, "0011_audit.sql"),
];

/// The newest schema that this server knows.
#[cfg(test)]
pub(super) const NEWEST: i64 = MIGRATIONS[MIGRATIONS.len() - 1].number;

/// A migration may rewrite a large table, and waits for another server's.
const LONG: [&str; 2] = [
    "SET LOCAL statement_timeout = '1h'",
    "SET LOCAL lock_timeout = '10min'",
];

/// Any number: servers that start together on one PostgreSQL migrate one after the other.
const ADVISORY_LOCK: &str = "SELECT pg_advisory_xact_lock(7233171)";

const CREATE: &str = "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY)";

/// Brings the database to the newest schema.
pub(super) async fn migrate(database: &Database) -> Result<(), StoreError> {
    migrate_with(database, MIGRATIONS).await
}

/// Brings the database to an older schema.
#[cfg(test)]
pub(super) async fn migrate_until(database: &Database, number: i64) -> Result<(), StoreError> {
    let count = MIGRATIONS.partition_point(|it| it.number <= number);
    migrate_with(database, &MIGRATIONS[..count]).await
}

async fn migrate_with(database: &Database, migrations: &[Migration]) -> Result<(), StoreError> {
    let known = migrations.last().map_or(0, |it| it.number);
    let mut transaction = database.write().await.doing("opening the database")?;
    if let Transaction::Postgres(_) = transaction {
        for bound in LONG {
            transaction
                .execute(bound, &[])
                .await
                .doing("opening the database")?;
        }
        transaction
            .fetch(ADVISORY_LOCK, &[])
            .await
            .doing("waiting for another server's migration")?;
    }
    transaction
        .execute(CREATE, &[])
        .await
        .doing("reading the schema's version")?;
    let found = transaction
        .fetch_int("SELECT COALESCE(MAX(version), 0) FROM schema_version", &[])
        .await
        .doing("reading the schema's version")?
        .unwrap_or(0);
    if found > known {
        return Err(StoreError::NewerSchema { found, known });
    }
    for migration in migrations.iter().filter(|it| it.number > found) {
        let script = match transaction {
            Transaction::Sqlite(_) => migration.sqlite,
            Transaction::Postgres(_) => migration.postgres,
        };
        transaction
            .script(script)
            .await
            .doing("migrating the schema")?;
        transaction
            .execute(
                "INSERT INTO schema_version (version) VALUES ($1)",
                &[Value::Int(migration.number)],
            )
            .await
            .doing("migrating the schema")?;
    }
    transaction.commit().await.doing("migrating the schema")
}

/// The files of the migrations, in order; their numbers are those of their names.
#[cfg(test)]
pub(super) fn files() -> Vec<&'static str> {
    let number = |it: &Migration| it.file[..4].parse() == Ok(it.number);
    assert!(
        MIGRATIONS.iter().all(number),
        "a file's number is its migration's"
    );
    MIGRATIONS.iter().map(|it| it.file).collect()
}
