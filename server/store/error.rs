//! What can go wrong in the store, in words that say what to do.

use gpufleet_telemetry::time::Timestamp;

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refused or was not reachable.
    #[error("{doing}: {source}")]
    Database {
        /// What the store was doing.
        doing: &'static str,
        /// What the database said.
        source: sqlx::Error,
    },
    /// The database was made by a newer server.
    #[error(
        "the database has schema {found} and this server knows up to {known}: start the newer \
         server again, or restore a backup made before it was upgraded"
    )]
    NewerSchema {
        /// The schema of the database.
        found: i64,
        /// The newest schema of this server.
        known: i64,
    },
    /// A database that is only to be used, and that no server has.
    #[error(
        "no server has used the database {url} yet: is store.url the one that the server has (--config)? Start a server on it first ({why})"
    )]
    Unused {
        /// Which one, without a password.
        url: String,
        /// What is missing.
        why: String,
    },
    /// More cursors than a server can begin with.
    #[error(
        "the database holds more than {most} cursors of agents, and with some of them left out data \
         would be counted twice: lower retention.epochs_h or retention.senders_d in a server of more \
         memory, or give the fleet a second server"
    )]
    TooManyCursors {
        /// How many are taken.
        most: usize,
    },
    /// The database has not answered at all.
    #[error("the database has not answered within {} s: look for what blocks it", within.as_secs())]
    Silent {
        /// How long was waited.
        within: std::time::Duration,
    },
    /// It was opened to be read.
    #[error("this database was opened to be read, and nothing is written to it")]
    ReadsOnly,
    /// `store.lease` is empty.
    #[error(
        "store.lease is empty: give the right to write a name, \"gpufleet\" unless several clusters share the database"
    )]
    NoLease,
    /// `store.url` is not an address of a database.
    #[error("store.url {url}: {why}; write sqlite:/path/to/file.db or postgres://user@host/name")]
    Url {
        /// What was configured, without a password.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Memory or zstd failed.
    #[error("packing the minutes of an hour: {source}")]
    Pack {
        /// What zstd said.
        source: std::io::Error,
    },
    /// Something stored cannot be read back.
    #[error("the database holds {what} that cannot be read: {why}")]
    Corrupt {
        /// Which row of what.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Why a commit was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Another server has taken over: stop writing.
    #[error("another server holds the lease {lease} (token {found}, ours is {ours})")]
    Fenced {
        /// Which lease.
        lease: String,
        /// The token of the one who holds it.
        found: i64,
        /// Ours.
        ours: i64,
    },
    /// It is not known whether it happened: read the last commit number back before trying again.
    #[error("not known whether the commit happened: {0}")]
    Unknown(#[source] StoreError),
}

/// Why a lease was not given.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else has it.
    #[error("{holder} holds the lease {lease} until {}", expires.seconds())]
    Held {
        /// Which lease.
        lease: String,
        /// Who has it.
        holder: String,
        /// Until when, unless it is renewed.
        expires: Timestamp,
    },
    /// The database refused or was not reachable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Says what was being done when the database refused.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError>;
}

impl<T> Doing<T> for Result<T, sqlx::Error> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Database { doing, source })
    }
}
