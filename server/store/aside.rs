//! Rows that cannot be read: named in the log, counted, and taken out of the way, so that one of
//! them never stops the rest.
//!
//! What such a row held is kept in table set_aside for as long as events are. What can be computed
//! again from minutes that are still kept, is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uuid::Uuid;

use super::Store;
use super::database::{Transaction, Value};
use super::error::{Doing, StoreError};
use super::minutes;
use super::restate::Why;

/// Where a row stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Minute {
        minute: i64,
        subject: i64,
    },
    TenMinutes {
        bucket: i64,
        subject: i64,
    },
    Carry {
        hour: i64,
        subject: i64,
    },
    Time {
        hour: i64,
        subject: i64,
        codes: [i64; 3],
    },
    Resource {
        id: i64,
        seen_ms: i64,
    },
    Event {
        id: i64,
        at_ms: i64,
    },
    Block {
        hour: i64,
        subject: i64,
    },
    Run {
        id: i64,
        heard_ms: i64,
    },
    Rank {
        run: i64,
        rank: i64,
        heard_ms: i64,
    },
    Steps {
        bucket: i64,
        run: i64,
        rank: i64,
    },
    Incident {
        id: Uuid,
        at_ms: i64,
    },
    Delivery {
        id: Uuid,
        at_ms: i64,
    },
}

/// A row that cannot be read.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) place: Place,
    /// What it held.
    pub(super) data: Vec<u8>,
    /// What is wrong with it.
    pub(super) error: String,
    /// Whether it is whole and only says what this version does not know: it stays where it is, for the
    /// newer version that wrote it.
    pub(super) is_unknown: bool,
}

/// How many rows could not be read and were set aside since the start, by table.
#[derive(Debug, Default)]
pub struct UnreadableRows {
    by_table: [AtomicU64; TABLES.len()],
    /// Whether rows that a newer version wrote were told of.
    told_unknown: AtomicBool,
}

/// Every table that [`Place`] names.
const TABLES: [&str; 12] = [
    "minute_row",
    "minute10_row",
    "ledger_hour",
    "ledger_time",
    "subject",
    "event",
    "minute_block",
    "run",
    "rank",
    "step_block",
    "incident",
    "delivery",
];

impl UnreadableRows {
    fn count(&self, bad: &[Unreadable]) {
        for bad in bad.iter().filter(|it| !it.is_unknown) {
            let known = TABLES.iter().position(|it| *it == bad.place.table());
            let known = known.expect("every table of a place is listed");
            self.by_table[known].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The tables with their counts.
    pub fn by_table(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.by_table.iter();
        let counts = counts.map(|it| it.load(Ordering::Relaxed));
        TABLES.into_iter().zip(counts)
    }
}

impl Place {
    const fn table(self) -> &'static str {
        match self {
            Self::Minute { .. } => TABLES[0],
            Self::TenMinutes { .. } => TABLES[1],
            Self::Carry { .. } => TABLES[2],
            Self::Time { .. } => TABLES[3],
            Self::Resource { .. } => TABLES[4],
            Self::Event { .. } => TABLES[5],
            Self::Block { .. } => TABLES[6],
            Self::Run { .. } => TABLES[7],
            Self::Rank { .. } => TABLES[8],
            Self::Steps { .. } => TABLES[9],
            Self::Incident { .. } => TABLES[10],
            Self::Delivery { .. } => TABLES[11],
        }
    }

    /// The incident that it is about, if it is about one.
    pub(super) const fn incident(self) -> Option<Uuid> {
        match self {
            Self::Incident { id, .. } => Some(id),
            _ => None,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Minute { minute, subject } => {
                format!("minute {minute} of resource number {subject}")
            }
            Self::TenMinutes { bucket, subject } => {
                format!("ten minutes {bucket} of resource number {subject}")
            }
            Self::Carry { hour, subject } => {
                format!("carry of hour {hour} of resource number {subject}")
            }
            Self::Time {
                hour,
                subject,
                codes,
            } => {
                let [holder, state, reason] = codes;
                format!(
                    "hour {hour} of resource number {subject}, holder {holder}, state {state}, \
                     reason {reason}"
                )
            }
            Self::Resource { id, .. } => format!("resource number {id}"),
            Self::Event { id, .. } => format!("event number {id}"),
            Self::Block { hour, subject } => {
                format!("minutes of hour {hour} of resource number {subject}")
            }
            Self::Run { id, .. } => format!("run number {id}"),
            Self::Rank { run, rank, .. } => format!("rank {rank} of run number {run}"),
            Self::Steps { bucket, run, rank } => {
                format!("steps in ten minutes {bucket} of rank {rank} of run number {run}")
            }
            Self::Incident { id, .. } => format!("incident {id}"),
            Self::Delivery { id, .. } => format!("delivery {id}"),
        }
    }

    /// The time that the row is about.
    fn at_ms(self) -> i64 {
        match self {
            Self::Minute { minute, .. } => minute * 60_000,
            Self::TenMinutes { bucket, .. } | Self::Steps { bucket, .. } => bucket * 600_000,
            Self::Carry { hour, .. } | Self::Time { hour, .. } | Self::Block { hour, .. } => {
                hour * 3_600_000
            }
            Self::Resource { seen_ms, .. } => seen_ms,
            Self::Event { at_ms, .. }
            | Self::Incident { at_ms, .. }
            | Self::Delivery { at_ms, .. } => at_ms,
            Self::Run { heard_ms, .. } | Self::Rank { heard_ms, .. } => heard_ms,
        }
    }

    /// The hour that gives the row anew when it is computed again.
    fn recomputed(self) -> Option<(i64, i64)> {
        match self {
            Self::TenMinutes { bucket, subject } => Some((bucket.div_euclid(6), subject)),
            Self::Carry { hour, subject } | Self::Time { hour, subject, .. } => {
                Some((hour, subject))
            }
            Self::Minute { .. }
            | Self::Block { .. }
            | Self::Resource { .. }
            | Self::Event { .. }
            | Self::Run { .. }
            | Self::Rank { .. }
            | Self::Steps { .. }
            | Self::Incident { .. }
            | Self::Delivery { .. } => None,
        }
    }
}

impl Unreadable {
    /// A row that holds JSON.
    pub(super) fn json(place: Place, data: &[u8], error: &serde_json::Error) -> Self {
        Self {
            place,
            data: data.to_vec(),
            error: error.to_string(),
            is_unknown: error.is_data(),
        }
    }

    /// A minute row, or an hour of them, with its owner's name, for people.
    pub(super) fn sentence(&self, whose: &str) -> String {
        let what = match self.place {
            Place::Block { .. } => "hour of minutes",
            _ => "minute row",
        };
        let at = self.place.at_ms() / 1_000;
        format!(
            "the {what} of {whose} at Unix time {at} cannot be read: {}",
            self.error
        )
    }

    /// Takes it out of the way: what is left there is as if nothing had been known. What was written anew
    /// since it was read stays.
    async fn remove(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        let int = Value::Int;
        let data = Value::Blob(&self.data);
        let (sql, values) = match self.place {
            Place::Minute { minute, subject } => (
                "DELETE FROM minute_row WHERE minute = $1 AND subject = $2 AND data = $3",
                vec![int(minute), int(subject), data],
            ),
            Place::TenMinutes { bucket, subject } => (
                "DELETE FROM minute10_row WHERE bucket = $1 AND subject = $2 AND data = $3",
                vec![int(bucket), int(subject), data],
            ),
            Place::Carry { hour, subject } => (
                "UPDATE ledger_hour SET carry = '' WHERE hour = $1 AND subject = $2
                 AND BYTES(carry) = $3",
                vec![int(hour), int(subject), data],
            ),
            Place::Time {
                hour,
                subject,
                codes,
            } => (
                "DELETE FROM ledger_time WHERE hour = $1 AND subject = $2
                 AND holder = $3 AND state = $4 AND reason = $5",
                [hour, subject].into_iter().chain(codes).map(int).collect(),
            ),
            Place::Resource { id, .. } => (
                "UPDATE subject SET attributes = '{}', agent = NULL WHERE id = $1
                 AND BYTES(attributes) = $2",
                vec![int(id), data],
            ),
            Place::Run { id, .. } => (
                "UPDATE run SET facts = '{}' WHERE id = $1 AND BYTES(facts) = $2",
                vec![int(id), data],
            ),
            Place::Rank { run, rank, .. } => (
                "DELETE FROM rank WHERE run = $1 AND rank = $2 AND BYTES(facts) = $3",
                vec![int(run), int(rank), data],
            ),
            Place::Steps { bucket, run, rank } => (
                "DELETE FROM step_block
                 WHERE bucket = $1 AND run = $2 AND rank = $3 AND data = $4",
                vec![int(bucket), int(run), int(rank), data],
            ),
            Place::Event { id, .. } => ("DELETE FROM event WHERE id = $1", vec![int(id)]),
            Place::Incident { ref id, .. } => (
                "DELETE FROM incident WHERE id = $1 AND BYTES(data) = $2",
                vec![Value::Blob(id.as_bytes()), data],
            ),
            Place::Delivery { ref id, .. } => (
                "DELETE FROM delivery WHERE id = $1 AND BYTES(data) = $2",
                vec![Value::Blob(id.as_bytes()), data],
            ),
            Place::Block { hour, subject } => (
                "DELETE FROM minute_block WHERE hour = $1 AND subject = $2 AND data = $3",
                vec![int(hour), int(subject), data],
            ),
        };
        let sql = bytes_of(transaction, sql);
        let gone = transaction.execute(&sql, &values).await;
        gone.doing("taking a row that cannot be read out of the way")
            .map(|_| ())
    }
}

/// Texts are compared by their bytes, because a spoilt page of SQLite holds what is none.
fn bytes_of(transaction: &Transaction, sql: &str) -> String {
    let (before, after) = match transaction {
        Transaction::Sqlite(_) => ("CAST(", " AS BLOB)"),
        Transaction::Postgres(_) => ("convert_to(", ", 'UTF8')"),
    };
    let mut words = sql.splitn(2, "BYTES(");
    let first = words.next().unwrap_or_default();
    match words.next().and_then(|it| it.split_once(')')) {
        Some((column, rest)) => format!("{first}{before}{column}{after}{rest}"),
        None => sql.to_owned(),
    }
}

impl Store {
    /// How many rows could not be read since the start.
    pub fn unreadable_rows(&self) -> &UnreadableRows {
        &self.0.unreadable
    }

    /// Sets rows aside that a read has found; of a store that is only read it names them.
    pub(super) async fn set_aside(&self, bad: &[Unreadable]) -> Result<(), StoreError> {
        if bad.iter().all(|it| it.is_unknown) {
            // Told once: pages read them again and again.
            if !bad.is_empty() && !self.0.unreadable.told_unknown.swap(true, Ordering::Relaxed) {
                let (place, error) = (bad[0].place.words(), &bad[0].error);
                tracing::warn!(
                    error,
                    "{place} says what this version does not know; such rows are left as they are"
                );
            }
            return Ok(());
        }
        if self.0.reads_only {
            for bad in bad.iter().filter(|it| !it.is_unknown) {
                let error = &bad.error;
                tracing::warn!(error, "{} cannot be read; left out", bad.place.words());
            }
            return Ok(());
        }
        let mut transaction = self.write().await?;
        put(&mut transaction, &self.0.lease, bad).await?;
        let horizon = minutes::horizon(&mut transaction, &self.0.lease).await?;
        let mut again = minutes::Marks::new();
        for bad in bad {
            let why = match bad.place {
                Place::Time { .. } => Why::UNREADABLE,
                _ => Why::TIME,
            };
            if let Some((hour, subject)) = bad.place.recomputed()
                && hour * 60 >= horizon
            {
                let due_ms = hour * 3_600_000;
                let known = again.entry((hour, subject)).or_insert((due_ms, why));
                known.1 = known.1 | why;
            }
        }
        minutes::mark_hours(&mut transaction, &again, rand::random()).await?;
        let done = transaction.commit().await;
        done.doing("setting rows aside that cannot be read")?;
        self.was_set_aside(bad);
        Ok(())
    }

    /// Counts rows that were set aside, now that it is durable; and forgets what was last written of
    /// resources, so that the next word of them is written again.
    pub(super) fn was_set_aside(&self, bad: &[Unreadable]) {
        self.0.unreadable.count(bad);
        for bad in bad {
            if let Place::Resource { id, .. } = bad.place {
                self.forget(&[id]);
            }
        }
    }
}

/// Names rows in the log and moves them to table set_aside.
pub(super) async fn put(
    transaction: &mut Transaction,
    lease: &str,
    bad: &[Unreadable],
) -> Result<(), StoreError> {
    for bad in bad {
        let place = bad.place.words();
        let (table, error) = (bad.place.table(), &bad.error);
        if bad.is_unknown {
            continue;
        }
        bad.remove(transaction).await?;
        tracing::error!(
            table,
            error,
            "{place} cannot be read; set aside in table set_aside"
        );
        let values = [
            Value::Text(bad.place.table()),
            Value::Text(&place),
            Value::Blob(&bad.data),
            Value::Text(&bad.error),
            Value::Int(bad.place.at_ms()),
            Value::Text(lease),
        ];
        let sql = "INSERT INTO set_aside (source, place, data, error, at_ms, lease)
            VALUES ($1, $2, $3, $4, $5, $6)";
        let kept = transaction.execute(sql, &values).await;
        kept.doing("setting a row aside")?;
    }
    Ok(())
}
