//! The store: the only place with SQL. SQLite without set-up, PostgreSQL in production.
//!
//! Writing: [`Store::commit`] makes folded data and cursors durable in one transaction that also
//! checks the fencing token of [`Store::acquire_lease`]; [`Store::replace_hours`] replaces computed
//! ledger hours and packs the minutes of those that are over; [`Store::retain`] deletes what is old. Reading: everything else.
//!
//! Numbers: a commit of 10,000 minute rows costs about 0.2 s of CPU on SQLite; a minute row takes
//! less than 350 bytes (docs/storage.md). Limits: every list that is read has one, named where it
//! is used.
//!
//! Format: `migrations/`; minute rows in the packed form of telemetry::minute.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub mod model;

pub mod error;

mod address;

mod database;

mod schema;

mod lease;

mod commit;

mod subjects;

mod minutes;

mod block;

mod events;

mod runs;

mod attempts;

mod incidents;

mod deliveries;

mod digests;

mod silences;

mod inventory;

mod around;

mod family;

mod phases;

mod named;

mod notices;

mod training;

mod standing;

mod demand;

mod unheld;

mod steps;

mod audit;

mod aside;

mod ledger;

mod restate;

mod hours;

mod days;

mod habit;

mod holders;

mod tables;

mod money;

mod exports;

mod broken;

mod xids;

mod horizon;

mod retain;

mod served;

mod advice;

mod drawn;

#[cfg(test)]
pub(crate) mod tests;

pub use advice::MAX_ADVICE;
pub use aside::UnreadableRows;
pub use audit::MAX_AUDITED;
pub use commit::{MAX_CURSORS, MAX_FOREIGN_MARKS, MAX_GAPS};
pub use days::{DirtyDay, MAX_DIRTY_DAYS};
pub use drawn::{Drawn, MAX_DRAWN};
pub use error::{CommitError, LeaseError, StoreError};
pub use events::{MAX_AT_ONCE, MAX_EVENT_IDS, MAX_EVENTS};
pub use exports::{MAX_EXPORTED, MinutePage, MinutesPage};
pub use habit::{FreeHours, MAX_HOLDER_HOURS};
pub use hours::{MAX_BUCKETS, MAX_HOURS};
pub use incidents::MAX_INCIDENTS;
pub use inventory::{MAX_CHANGES as MAX_INVENTORY_CHANGES, MAX_LIVES};
pub use ledger::MAX_DIRTY;
pub use minutes::MAX_MINUTES;
pub use money::{MoneyDay, MoneyMonth, MoneyRow};
pub use retain::{Deleted, Expiry, MAX_DELETED};
pub use runs::{MAX_RUNS_READ, RunFilter};
pub use served::{MAX_SERVED_DAYS, ServedDays};
pub use steps::MAX_STEP_BYTES_READ;
pub use subjects::MAX_RESOURCES;
pub use tables::MAX_TABLES;

use database::{Database, Row, Transaction, Value};
use error::Doing;
use gpufleet_program::section;
use gpufleet_telemetry::time::Clock;
use model::{FencingToken, ResourceKey};
use subjects::CachedSubject;

section! {
    /// Where the record is kept.
    pub struct StoreConfig {
        /// The database: `sqlite:/path/to/file.db` or `postgres://user:password@host/name`.
        pub url: String = "sqlite:/var/lib/gpufleet/server/gpufleet.db".to_owned(),
        /// The name of the right to write. Servers of different clusters that share one PostgreSQL
        /// need different names; a server and its standby the same.
        pub lease: String = "gpufleet".to_owned(),
    }
}

impl StoreConfig {
    /// Refuses what cannot be an address of a database, or a name of a lease. Nothing is opened.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.lease.is_empty() {
            return Err(StoreError::NoLease);
        }
        address::check(&self.url)
    }

    /// A database of its own in this folder.
    pub fn for_tests(folder: &std::path::Path) -> Self {
        Self {
            url: format!("sqlite:{}", folder.join("gpufleet.db").display()),
            ..Self::default()
        }
    }
}

/// The record of what every GPU did. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    database: Database,
    is_behind: AtomicBool,
    lease: String,
    /// Whether nothing is written, whoever asks.
    reads_only: bool,
    /// Numbers of resources, and what was last written of them.
    subjects: Mutex<HashMap<ResourceKey, CachedSubject>>,
    unreadable: UnreadableRows,
}

impl Store {
    /// Opens the database, makes it if it is a new SQLite file, and its schema if it is empty. One with
    /// an older schema is left as it is ([`Self::is_behind`]), because another server may be writing to it.
    ///
    /// # Errors
    /// When the address is wrong, the database cannot be reached or its schema is newer than this
    /// server.
    pub async fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        let database = Database::open(&config.url, true).await?;
        let is_behind = schema::begin(&database).await?;
        Ok(Self::over(database, is_behind, config, false))
    }

    /// Opens a database that a server uses, and makes none.
    ///
    /// # Errors
    /// As [`Self::open`], and when no server has used it yet.
    pub async fn open_used(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::used(config, false).await
    }

    /// The same, to read it and nothing else: whatever asks to write is refused, and rows that cannot be read
    /// stay where they are.
    ///
    /// # Errors
    /// As [`Self::open_used`].
    pub async fn open_to_read(config: &StoreConfig) -> Result<Self, StoreError> {
        Self::used(config, true).await
    }

    async fn used(config: &StoreConfig, reads_only: bool) -> Result<Self, StoreError> {
        let database = Database::open(&config.url, false).await?;
        let is_behind = schema::look(&database).await;
        let is_behind = is_behind?.ok_or_else(|| StoreError::Unused {
            url: address::without_password(&config.url),
            why: "it has no schema".to_owned(),
        });
        match is_behind {
            Ok(is_behind) => Ok(Self::over(database, is_behind, config, reads_only)),
            Err(error) => {
                database.close().await;
                Err(error)
            }
        }
    }

    fn over(database: Database, is_behind: bool, config: &StoreConfig, reads_only: bool) -> Self {
        Self(Arc::new(Inner {
            database,
            is_behind: AtomicBool::new(is_behind),
            lease: config.lease.clone(),
            reads_only,
            subjects: Mutex::default(),
            unreadable: UnreadableRows::default(),
        }))
    }

    /// Whether the schema was older than this server's when it was last looked at. Nothing but the lease
    /// can be asked for then, until [`Self::migrate`].
    pub fn is_behind(&self) -> bool {
        self.0.is_behind.load(Ordering::Relaxed)
    }

    /// Brings the schema up to date, by the right to write; it is good for `length` from then on.
    ///
    /// # Errors
    /// When another holder has the right, or the database refuses; then the schema is as it was.
    pub async fn migrate(
        &self,
        token: FencingToken,
        clock: &dyn Clock,
        length: Duration,
    ) -> Result<(), CommitError> {
        if self.is_behind() {
            let right = (self.0.lease.as_str(), token);
            schema::migrate(&self.0.database, right, clock, length).await?;
            self.0.is_behind.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A store that is never asked anything, for tests of what stands beside it.
    #[cfg(test)]
    pub(crate) fn unopened() -> Self {
        let pool = || {
            sqlx::sqlite::SqlitePoolOptions::new()
                .max_lifetime(None)
                .idle_timeout(None)
                .connect_lazy_with(sqlx::sqlite::SqliteConnectOptions::new())
        };
        Self(Arc::new(Inner {
            database: Database::Sqlite {
                writer: pool(),
                reader: pool(),
                placed: None,
            },
            is_behind: AtomicBool::new(false),
            lease: StoreConfig::default().lease,
            reads_only: false,
            subjects: Mutex::default(),
            unreadable: UnreadableRows::default(),
        }))
    }

    /// `sqlite` or `postgres`.
    pub fn kind(&self) -> &'static str {
        self.0.database.kind()
    }

    /// The database's file; none where it is a server of its own.
    pub fn file(&self) -> Option<std::path::PathBuf> {
        self.0.database.file()
    }

    /// Ends all connections, after what is under way. The store refuses everything afterwards.
    pub async fn close(&self) {
        self.0.database.close().await;
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// When it does not, with why.
    pub async fn check(&self) -> Result<(), StoreError> {
        let one = self.ask("SELECT CAST(1 AS BIGINT)", &[]).await;
        one.doing("asking the database for a sign of life")
            .map(|_| ())
    }

    /// How many bytes the database takes on its disk, without SQLite's write-ahead log.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn size_bytes(&self) -> Result<u64, StoreError> {
        let mut transaction = self.read().await?;
        let sql = match transaction {
            Transaction::Sqlite(_) => {
                "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            }
            Transaction::Postgres(_) => "SELECT pg_database_size(current_database())",
        };
        let size = transaction.fetch_int(sql, &[]).await;
        let size = size.doing("asking for the size of the database")?;
        Ok(size.map_or(0, i64::unsigned_abs))
    }

    async fn write(&self) -> Result<Transaction, StoreError> {
        if self.0.reads_only {
            return Err(StoreError::ReadsOnly);
        }
        let transaction = self.0.database.write().await;
        transaction.doing("beginning to write")
    }

    /// The rows of one statement; for several that are to see one moment there is [`Self::read`].
    async fn ask(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, sqlx::Error> {
        self.0.database.ask(sql, values).await
    }

    async fn read(&self) -> Result<Transaction, StoreError> {
        let transaction = self.0.database.read().await;
        transaction.doing("beginning to read")
    }
}
