//! Migrations: forward only, the same numbers on both databases, carried inside the program.
//!
//! A migration is two files, `migrations/sqlite/NNNN_name.sql` and `migrations/postgres/…`, and one
//! line in [`MIGRATIONS`]. Old code runs on a schema it knows; a newer one is refused. Whoever opens an
//! empty database makes its schema; one that others may write to is changed by the holder of the lease.

use std::collections::BTreeSet;
use std::time::Duration;

use gpufleet_telemetry::time::Clock;

use super::database::{Database, Transaction, Value};
use super::error::{CommitError, Doing, StoreError};
use super::lease;
use super::model::FencingToken;

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
    migration!(12, "0012_inventory.sql"),
    migration!(13, "0013_advice.sql"),
    migration!(14, "0014_upgrades.sql"),
    migration!(15, "0015_money.sql"),
    migration!(16, "0016_export.sql"),
    migration!(17, "0017_delivery.sql"),
    migration!(18, "0018_holder_by_met.sql"),
    migration!(19, "0019_inventory_life.sql"),
    migration!(20, "0020_silence.sql"),
    migration!(21, "0021_demand.sql"),
    migration!(22, "0022_energy_and_tokens.sql"),
    migration!(23, "0023_digest.sql"),
    migration!(24, "0024_money_day.sql"),
    migration!(25, "0025_run_by_name.sql"),
    migration!(26, "0026_money.sql"),
    migration!(27, "0027_money_partial.sql"),
    migration!(29, "0029_around_hours.sql"),
    migration!(30, "0030_nodes_seen.sql"),
    migration!(31, "0031_partitions.sql"),
    migration!(32, "0032_hour_spans.sql"),
    migration!(34, "0034_incident_by_family.sql"),
    migration!(35, "0035_money_reason.sql"),
    migration!(36, "0036_event_by_kind.sql"),
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

/// Makes the schema of an empty database; refuses one that is newer than this server. Whether the schema
/// is older than this server's: then another server may be writing by it, and only who holds the lease
/// may change it ([`migrate`]).
pub(super) async fn begin(database: &Database) -> Result<bool, StoreError> {
    begin_with(database, MIGRATIONS).await
}

/// Makes an empty database with an older schema.
#[cfg(test)]
pub(super) async fn begin_until(database: &Database, number: i64) -> Result<bool, StoreError> {
    let count = MIGRATIONS.partition_point(|it| it.number <= number);
    begin_with(database, &MIGRATIONS[..count]).await
}

async fn begin_with(database: &Database, migrations: &[Migration]) -> Result<bool, StoreError> {
    let mut transaction = open(database).await?;
    create(&mut transaction).await?;
    let missing = missing(&mut transaction, migrations).await?;
    let is_empty = missing.len() == migrations.len();
    if is_empty {
        apply(&mut transaction, &missing).await?;
    }
    transaction.commit().await.doing("migrating the schema")?;
    Ok(!is_empty && !missing.is_empty())
}

/// Whether the schema is older than this server's; none without any. Changes nothing.
pub(super) async fn look(database: &Database) -> Result<Option<bool>, StoreError> {
    let doing = "looking for the schema";
    let mut transaction = database.read().await.doing(doing)?;
    let sql = match transaction {
        Transaction::Sqlite(_) => {
            "SELECT COUNT(*) FROM sqlite_master WHERE name = 'schema_version'"
        }
        Transaction::Postgres(_) => {
            "SELECT COUNT(*) FROM pg_class WHERE oid = to_regclass('schema_version')"
        }
    };
    if transaction.fetch_int(sql, &[]).await.doing(doing)? == Some(0) {
        return Ok(None);
    }
    let missing = missing(&mut transaction, MIGRATIONS).await?;
    let is_empty = missing.len() == MIGRATIONS.len();
    Ok((!is_empty).then_some(!missing.is_empty()))
}

/// Brings the schema up to date, by the right to write: a server that leads by an older schema may be
/// broken by a newer one. Until this is done nobody else can take the lease, however long it takes,
/// because the transaction holds its row; and it is good for `length` from the end.
pub(super) async fn migrate(
    database: &Database,
    (lease, token): (&str, FencingToken),
    clock: &dyn Clock,
    length: Duration,
) -> Result<(), CommitError> {
    let unknown = CommitError::Unknown;
    let mut transaction = open(database).await.map_err(unknown)?;
    create(&mut transaction).await.map_err(unknown)?;
    lease::fence(&mut transaction, lease, token).await?;
    let missing = missing(&mut transaction, MIGRATIONS).await;
    let missing = missing.map_err(unknown)?;
    for migration in &missing {
        tracing::info!(
            migration = migration.number,
            "the schema is brought up to date"
        );
    }
    apply(&mut transaction, &missing).await.map_err(unknown)?;
    lease::extend(&mut transaction, lease, token, clock.now(), length)
        .await
        .map_err(unknown)?;
    let done = transaction.commit().await.doing("migrating the schema");
    done.map_err(unknown)
}

/// A transaction for migrations: it may take long, and there is one at a time.
async fn open(database: &Database) -> Result<Transaction, StoreError> {
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
    Ok(transaction)
}

/// What the database has not had yet. By number and not by the greatest: migrations of branches that
/// were merged in another order are all made.
async fn missing<'a>(
    transaction: &mut Transaction,
    migrations: &'a [Migration],
) -> Result<Vec<&'a Migration>, StoreError> {
    let doing = "reading the schema's version";
    let rows = transaction
        .fetch("SELECT version FROM schema_version", &[])
        .await
        .doing(doing)?;
    let found: Result<BTreeSet<i64>, _> = rows.iter().map(|row| row.int(0)).collect();
    let found = found.doing(doing)?;
    let is_known = |number: &i64| MIGRATIONS.iter().any(|it| it.number == *number);
    if let Some(newer) = found.iter().rfind(|it| !is_known(it)) {
        return Err(StoreError::NewerSchema {
            found: *newer,
            known: MIGRATIONS.last().map_or(0, |it| it.number),
        });
    }
    let is_missing = |it: &&Migration| !found.contains(&it.number);
    Ok(migrations.iter().filter(is_missing).collect())
}

/// Makes the table of the migrations that were made.
async fn create(transaction: &mut Transaction) -> Result<(), StoreError> {
    let made = transaction.execute(CREATE, &[]).await;
    made.doing("reading the schema's version").map(|_| ())
}

async fn apply(transaction: &mut Transaction, migrations: &[&Migration]) -> Result<(), StoreError> {
    for migration in migrations {
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
    Ok(())
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
