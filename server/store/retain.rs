//! What is old goes, a bounded piece at a time, and never before it was rolled up. Of a database that
//! servers of several clusters share, each deletes only what was written under its own lease.

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::Store;
use super::advice::ADVICE_HORIZON;
use super::database::{Column, Transaction, Value};
use super::error::{Doing, StoreError};
use super::horizon::move_on;
use super::minutes::HORIZON;
use crate::fleet::FOREIGN_AGENT;

/// Most rows that one call deletes of one table: about 50 ms in which commits wait, on SQLite.
pub const MAX_DELETED: u64 = 10_000;

/// Most hours of packed minutes that one call deletes: 5 MB.
const MAX_DELETED_BLOCKS: u64 = 500;

/// Most rows of steps that one call deletes: 2 MB at a step a second.
const MAX_DELETED_STEPS: u64 = 1_000;

/// What is older than this goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry {
    /// Minute rows, in whole hours: rounded down to the hour.
    pub minutes: Minute,
    /// Ten-minute rows, minutes since the Unix epoch divided by ten.
    pub buckets: i64,
    /// Ledger hours.
    pub hours: i64,
    /// Ten minutes of a rank's steps, minutes since the Unix epoch divided by ten.
    pub steps: i64,
    /// Ledger days, and what they cost; who held GPUs, by when they were met; lives of nodes, by their end.
    pub days: i64,
    /// Events, advice, incidents that are over, nodes that are gone, runs that were not heard since, and rows that
    /// were set aside.
    pub events: Timestamp,
    /// Cursors, gaps and marks of senders that were not heard since.
    pub senders: Timestamp,
    /// Epochs that were not heard since, where a younger one of the same agent was heard before:
    /// whatever the older still had to send, its spool has given up by now.
    pub epochs: Timestamp,
    /// Resources that were not seen since: before everything else that is kept of them.
    pub resources: Timestamp,
}

/// How many rows went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Minute rows, and hours of packed minutes.
    pub minutes: u64,
    /// Ten-minute rows.
    pub buckets: u64,
    /// Ledger hours.
    pub hours: u64,
    /// Events.
    pub events: u64,
    /// Runs, their ranks, and ten minutes of a rank's steps.
    pub runs: u64,
    /// Cursors, gaps, marks of foreign series, incidents, nodes that are gone, rows that were set aside.
    pub others: u64,
    /// Resources.
    pub resources: u64,
    /// Whether there may be more to delete.
    pub more: bool,
}

/// Name of the moment in table horizon from which on all runs are kept, ms since the Unix epoch.
pub(super) const RUNS_HORIZON: &str = "runs";

/// Name of the day in table horizon from which on all days of the ledger are kept, since the Unix epoch.
pub(super) const DAYS_HORIZON: &str = "days";

const MINUTES: &str = "DELETE FROM minute_row WHERE (minute, subject) IN (
    SELECT m.minute, m.subject FROM minute_row m WHERE m.minute < $1
    AND NOT EXISTS (SELECT 1 FROM ledger_dirty d WHERE d.subject = m.subject
        AND d.hour IN (m.minute / 60, m.minute / 60 - 1))
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = m.subject AND o.lease <> $3)
    ORDER BY m.minute, m.subject LIMIT $2)";

const BLOCKS: &str = "DELETE FROM minute_block WHERE (hour, subject) IN (
    SELECT b.hour, b.subject FROM minute_block b WHERE b.hour < $1
    AND NOT EXISTS (SELECT 1 FROM ledger_dirty d WHERE d.subject = b.subject
        AND d.hour IN (b.hour, b.hour - 1))
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = b.subject AND o.lease <> $3)
    ORDER BY b.hour, b.subject LIMIT $2)";

const STEPS: &str = "DELETE FROM step_block WHERE (bucket, run, rank) IN (
    SELECT s.bucket, s.run, s.rank FROM step_block s WHERE s.bucket < $1
    AND s.run IN (SELECT r.id FROM run r WHERE r.lease = $3)
    ORDER BY s.bucket, s.run, s.rank LIMIT $2)";

const RANKS: &str = "DELETE FROM rank WHERE (run, rank) IN (
    SELECT n.run, n.rank FROM run r JOIN rank n ON n.run = r.id
    WHERE r.lease = $3 AND r.heard_ms < $1
    ORDER BY n.run, n.rank LIMIT $2)";

/// A run goes when its ranks are gone.
const RUNS: &str = "DELETE FROM run WHERE id IN (
    SELECT r.id FROM run r WHERE r.lease = $3 AND r.heard_ms < $1
    AND NOT EXISTS (SELECT 1 FROM rank n WHERE n.run = r.id)
    ORDER BY r.id LIMIT $2)";

const BUCKETS: &str = "DELETE FROM minute10_row WHERE (bucket, subject) IN (
    SELECT m.bucket, m.subject FROM minute10_row m WHERE m.bucket < $1
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = m.subject AND o.lease <> $3)
    ORDER BY m.bucket, m.subject LIMIT $2)";

const TIMES: &str = "DELETE FROM ledger_time WHERE (hour, subject) IN (
    SELECT h.hour, h.subject FROM ledger_hour h WHERE h.hour < $1
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = h.subject AND o.lease <> $3)
    ORDER BY h.hour, h.subject LIMIT $2)";

const CORRECTIONS: &str = "DELETE FROM ledger_correction WHERE (hour, subject) IN (
    SELECT c.hour, c.subject FROM ledger_correction c WHERE c.hour < $1
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = c.subject AND o.lease <> $3)
    ORDER BY c.hour, c.subject LIMIT $2)";

const SERVED: &str = "DELETE FROM served_hour WHERE (hour, subject) IN (
    SELECT h.hour, h.subject FROM served_hour h WHERE h.hour < $1
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = h.subject AND o.lease <> $3)
    ORDER BY h.hour, h.subject LIMIT $2)";

const HOURS: &str = "DELETE FROM ledger_hour WHERE (hour, subject) IN (
    SELECT h.hour, h.subject FROM ledger_hour h WHERE h.hour < $1
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = h.subject AND o.lease <> $3)
    ORDER BY h.hour, h.subject LIMIT $2)";

const DAYS: &str = "DELETE FROM ledger_day WHERE (day, subject) IN (
    SELECT d.day, d.subject FROM ledger_day d WHERE d.lease = $3 AND d.day < $1
    ORDER BY d.day, d.subject LIMIT $2)";

const MONEY_DAYS: &str = "DELETE FROM money_day WHERE (lease, scope, day, number) IN (
    SELECT m.lease, m.scope, m.day, m.number FROM money_day m WHERE m.lease = $3 AND m.day < $1
    ORDER BY m.day LIMIT $2)";

const MONEY_MARKS: &str = "DELETE FROM money_day_mark WHERE (lease, scope, day) IN (
    SELECT m.lease, m.scope, m.day FROM money_day_mark m WHERE m.lease = $3 AND m.day < $1 LIMIT $2)";

/// A month goes with the last of its days.
const MONEY_MONTHS: &str = "DELETE FROM money_month WHERE (lease, first_day, number) IN (
    SELECT m.lease, m.first_day, m.number FROM money_month m
    WHERE m.lease = $3 AND m.first_day + 31 <= $1 LIMIT $2)";

const HOLDERS: &str = "DELETE FROM holder WHERE (lease, number) IN (
    SELECT h.lease, h.number FROM holder h WHERE h.lease = $3 AND h.met_ms < $1 LIMIT $2)";

const EVENTS: &str = "DELETE FROM event WHERE id IN (
    SELECT id FROM event WHERE lease = $3 AND at_ms < $1 ORDER BY at_ms, id LIMIT $2)";

/// By their end, and never while they are open.
const INCIDENTS: &str = "DELETE FROM incident WHERE (lease, id) IN (
    SELECT i.lease, i.id FROM incident i
    WHERE i.lease = $3 AND i.resolved_ms > 0 AND i.resolved_ms < $1
    ORDER BY i.resolved_ms, i.id LIMIT $2)";

/// The same of what was said of them.
const DELIVERIES: &str = "DELETE FROM delivery WHERE (lease, id) IN (
    SELECT d.lease, d.id FROM delivery d
    WHERE d.lease = $3 AND d.over_ms > 0 AND d.over_ms < $1
    ORDER BY d.over_ms, d.id LIMIT $2)";

/// A link goes when its delivery or its incident is gone: a group that never ends keeps none for ever.
const LINKS: &str = "DELETE FROM delivery_incident WHERE (lease, incident, delivery) IN (
    SELECT l.lease, l.incident, l.delivery FROM delivery_incident l
    WHERE l.lease = $3 AND $1 > 0
    AND (NOT EXISTS (SELECT 1 FROM delivery d WHERE d.lease = l.lease AND d.id = l.delivery)
        OR NOT EXISTS (SELECT 1 FROM incident i WHERE i.lease = l.lease AND i.id = l.incident))
    LIMIT $2)";

/// Nodes that are gone, by when they went; and what happened to nodes.
const NODES: &str = "DELETE FROM inventory_node WHERE (lease, cluster, name) IN (
    SELECT n.lease, n.cluster, n.name FROM inventory_node n
    WHERE n.lease = $3 AND n.gone_ms > 0 AND n.gone_ms < $1 LIMIT $2)";

/// Lives of nodes go with the days that they are billed in.
const LIVES: &str = "DELETE FROM inventory_life WHERE (lease, cluster, name, billed_ms) IN (
    SELECT n.lease, n.cluster, n.name, n.billed_ms FROM inventory_life n
    WHERE n.lease = $3 AND n.gone_ms > 0 AND n.gone_ms < $1 LIMIT $2)";

const FREE: &str =
    "DELETE FROM free_hour WHERE (lease, cluster, hour, model, kept_for, partitions) IN (
    SELECT lease, cluster, hour, model, kept_for, partitions FROM free_hour
    WHERE lease = $3 AND hour < $1 ORDER BY hour LIMIT $2)";

const DEMAND: &str = "DELETE FROM demand_hour WHERE (lease, cluster, hour) IN (
    SELECT d.lease, d.cluster, d.hour FROM demand_hour d
    WHERE d.lease = $3 AND d.hour < $1 LIMIT $2)";

const CHANGES: &str = "DELETE FROM inventory_change WHERE (lease, cluster, at_ms, node, what) IN (
    SELECT c.lease, c.cluster, c.at_ms, c.node, c.what FROM inventory_change c
    WHERE c.lease = $3 AND c.at_ms < $1 LIMIT $2)";

/// By when it last said anything.
const ADVICE: &str = "DELETE FROM advice WHERE (lease, number) IN (
    SELECT a.lease, a.number FROM advice a
    WHERE a.lease = $3 AND a.until_ms < $1 ORDER BY a.until_ms, a.number LIMIT $2)";

/// A phase that another followed before $1 is in force at no moment that is kept; the last one of a node
/// stays as long as the node. After [`NODES`].
const PHASES: &str =
    "DELETE FROM inventory_phase WHERE (lease, cluster, short, node, from_ms) IN (
    SELECT p.lease, p.cluster, p.short, p.node, p.from_ms FROM inventory_phase p
    WHERE p.lease = $3 AND p.from_ms < $1 AND (EXISTS (SELECT 1 FROM inventory_phase l
            WHERE l.lease = p.lease AND l.cluster = p.cluster AND l.short = p.short AND l.node = p.node
            AND l.from_ms > p.from_ms AND l.from_ms < $1)
        OR NOT EXISTS (SELECT 1 FROM inventory_node n
            WHERE n.lease = p.lease AND n.cluster = p.cluster AND n.name = p.node)) LIMIT $2)";

/// The last row of the thresholds stays: it says which are in force (`Store::last_audited`).
const AUDIT: &str = "DELETE FROM audit WHERE id IN (
    SELECT a.id FROM audit a WHERE a.lease = $3 AND a.at_ms < $1
        AND (a.action <> 'change thresholds' OR EXISTS (SELECT 1 FROM audit l
            WHERE l.lease = a.lease AND l.action = a.action AND l.id > a.id))
    ORDER BY a.at_ms LIMIT $2)";

const ASIDE: &str = "DELETE FROM set_aside WHERE id IN (
    SELECT id FROM set_aside WHERE lease = $3 AND at_ms < $1 ORDER BY at_ms LIMIT $2)";

/// An epoch goes with all of its streams: one that has had nothing to say for a month, beside one
/// that has, is not dead. `younger` is the youngest epoch of the same agent that is old enough.
const CURSORS: &str = "DELETE FROM agent_cursor WHERE lease = $5 AND (agent, epoch) IN (
    SELECT agent, epoch FROM (
        SELECT agent, epoch, seen, first, MAX(seen) OVER (PARTITION BY agent) AS heard,
            MAX(CASE WHEN first < $1 THEN first END) OVER (PARTITION BY agent) AS younger
        FROM (SELECT agent, epoch, MAX(seen_ms) AS seen, MIN(first_seen_ms) AS first
              FROM agent_cursor WHERE lease = $5 GROUP BY agent, epoch) e) n
    WHERE (seen < $1 AND first < younger) OR (heard < $2 AND agent <> $3)
    ORDER BY agent, epoch LIMIT $4)";

/// What is older than $1 of a resource that is gone is gone too: only its name is left.
const SUBJECTS: &str = "SELECT n.subject FROM subject_seen n JOIN subject s ON s.id = n.subject
    WHERE s.lease = $3 AND n.last_seen_ms < $1
    AND NOT EXISTS (SELECT 1 FROM ledger_dirty d WHERE d.subject = n.subject)
    ORDER BY n.subject LIMIT $2";

const GAPS: &str = "DELETE FROM gap WHERE (lease, agent, epoch, stream, first) IN (
    SELECT lease, agent, epoch, stream, first FROM gap WHERE lease = $3 AND seen_ms < $1 LIMIT $2)";

const MARKS: &str = "DELETE FROM foreign_mark WHERE (lease, series) IN (
    SELECT lease, series FROM foreign_mark WHERE lease = $3 AND newest_nanos / 1000000 < $1 LIMIT $2)";

const ABANDONED: &str = "SELECT l.name FROM lease l WHERE l.name <> $1 AND l.expires_ms < $2
    AND EXISTS (SELECT 1 FROM subject s WHERE s.lease = l.name)
    AND NOT EXISTS (SELECT 1 FROM subject s JOIN subject_seen n ON n.subject = s.id
        WHERE s.lease = l.name AND n.last_seen_ms >= $2)
    ORDER BY l.name LIMIT 1";

const UNCOMPUTED: &str = "DELETE FROM ledger_dirty WHERE hour < $1 / 3600000
    AND subject IN (SELECT s.id FROM subject s WHERE s.lease = $2)";

const LEFT_OPEN: &str =
    "DELETE FROM incident WHERE since_ms < $1 AND lease = $2 AND resolved_ms = 0";

const STILL_THERE: &str = "DELETE FROM inventory_node WHERE gone_ms = 0 AND $1 > 0 AND lease = $2";

/// Nobody will see them go; days in which they count are older than that.
const STILL_ALIVE: &str =
    "UPDATE inventory_life SET gone_ms = $1 WHERE gone_ms = 0 AND $1 > 0 AND lease = $2";

const UNSAID: &str = "DELETE FROM delivery WHERE over_ms = 0 AND $1 > 0 AND lease = $2";

impl Store {
    /// Deletes up to [`MAX_DELETED`] rows of each table that are older than they are gone. Minute rows
    /// whose hour is still to be computed stay until it is. From then on, data of deleted minutes
    /// that comes late is left out and counted ([`super::model::Committed::too_late`]).
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn retain(&self, expiry: &Expiry) -> Result<Deleted, StoreError> {
        let mut gone = self.retain_of(&self.0.lease, expiry).await?;
        if !gone.more
            && let Some(lease) = self.abandoned(expiry).await?
        {
            gone.more = self.forget_lease(&lease, expiry).await?.more;
        }
        Ok(gone)
    }

    /// A lease that still has resources, none of which was seen since `expiry.resources`, and that
    /// nobody holds: its server will not come back to delete what it wrote.
    async fn abandoned(&self, expiry: &Expiry) -> Result<Option<String>, StoreError> {
        let values = [
            Value::Text(&self.0.lease),
            Value::Int(expiry.resources.millis()),
        ];
        let mut transaction = self.read().await?;
        let found = transaction.fetch(ABANDONED, &values).await;
        let found = found.doing("looking for leases that nobody holds any more")?;
        let name = found.first().map(|row| row.text(0).map(str::to_owned));
        name.transpose()
            .doing("looking for leases that nobody holds any more")
    }

    /// Deletes a piece of what was written under a lease that nobody holds any more. Its name, its token
    /// and its last commit stay: whoever takes it again is fenced as before.
    async fn forget_lease(&self, lease: &str, expiry: &Expiry) -> Result<Deleted, StoreError> {
        let doing = "deleting what was written under a lease that nobody holds any more";
        let mut transaction = self.write().await?;
        let values = [Value::Int(expiry.resources.millis()), Value::Text(lease)];
        // Nobody will compute these hours, nor close these incidents, nor say what was to be said, nor see
        // these nodes go.
        for sql in [UNCOMPUTED, LEFT_OPEN, UNSAID, STILL_THERE, STILL_ALIVE] {
            transaction.execute(sql, &values).await.doing(doing)?;
        }
        transaction.commit().await.doing(doing)?;
        let gone = self.retain_of(lease, expiry).await?;
        tracing::info!(lease, ?gone, "{doing}");
        Ok(gone)
    }

    async fn retain_of(&self, lease: &str, expiry: &Expiry) -> Result<Deleted, StoreError> {
        let first_minute = expiry.minutes.hour() * 60;
        let mut transaction = self.write().await?;
        move_on(&mut transaction, lease, (HORIZON, first_minute)).await?;
        let rows = delete(&mut transaction, lease, MINUTES, first_minute).await?;
        let values = [
            Value::Int(first_minute / 60),
            Value::Int(MAX_DELETED_BLOCKS as i64),
            Value::Text(lease),
        ];
        let blocks = transaction.execute(BLOCKS, &values).await;
        let blocks = blocks.doing("deleting old rows")?;
        let mut gone = Deleted {
            minutes: rows + blocks,
            more: rows == MAX_DELETED || blocks == MAX_DELETED_BLOCKS,
            ..Deleted::default()
        };
        transaction.commit().await.doing("deleting old rows")?;
        // In a transaction of its own, so that a commit can come in between.
        let mut transaction = self.write().await?;
        let (events, senders) = (expiry.events.millis(), expiry.senders.millis());
        gone.buckets = delete(&mut transaction, lease, BUCKETS, expiry.buckets).await?;
        delete(&mut transaction, lease, TIMES, expiry.hours).await?;
        gone.hours = delete(&mut transaction, lease, HOURS, expiry.hours).await?;
        gone.events = delete(&mut transaction, lease, EVENTS, events).await?;
        let runs = [
            (STEPS, expiry.steps, MAX_DELETED_STEPS),
            (RANKS, events, MAX_DELETED),
            (RUNS, events, MAX_DELETED),
        ];
        for (sql, before, most) in runs {
            let values = [
                Value::Int(before),
                Value::Int(most as i64),
                Value::Text(lease),
            ];
            let deleted = transaction.execute(sql, &values).await;
            let deleted = deleted.doing("deleting old runs and steps")?;
            gone.runs += deleted;
            if sql == RUNS && deleted > 0 {
                move_on(&mut transaction, lease, (RUNS_HORIZON, events)).await?;
            }
            gone.more |= deleted == most;
        }
        move_on(&mut transaction, lease, (DAYS_HORIZON, expiry.days)).await?;
        let mut most = 0;
        for (sql, before) in [
            (ASIDE, events),
            (INCIDENTS, events),
            (DELIVERIES, events),
            (LINKS, events),
            (AUDIT, events),
            (ADVICE, events),
            (NODES, events),
            (CHANGES, events),
            (PHASES, events),
            (GAPS, senders),
            (MARKS, senders),
            (CORRECTIONS, expiry.hours),
            (DEMAND, expiry.hours),
            (FREE, expiry.hours),
            (SERVED, expiry.hours),
            (DAYS, expiry.days),
            (MONEY_DAYS, expiry.days),
            (MONEY_MARKS, expiry.days),
            (MONEY_MONTHS, expiry.days),
            (HOLDERS, expiry.days.saturating_mul(MILLIS_PER_DAY)),
            (LIVES, expiry.days.saturating_mul(MILLIS_PER_DAY)),
        ] {
            let deleted = delete(&mut transaction, lease, sql, before).await?;
            if sql == ADVICE && deleted > 0 {
                move_on(&mut transaction, lease, (ADVICE_HORIZON, events)).await?;
            }
            most = deleted.max(most);
            gone.others += deleted;
        }
        let epochs = forget_epochs(&mut transaction, lease, expiry).await?;
        gone.others += epochs;
        transaction.commit().await.doing("deleting old rows")?;
        gone.more |= [gone.buckets, gone.hours, gone.events, most.max(epochs)]
            .iter()
            .any(|it| *it >= MAX_DELETED);
        if !gone.more {
            let before = expiry.resources.millis();
            gone.resources = self.forget_resources(lease, before).await?;
            gone.more = gone.resources == MAX_DELETED;
        }
        Ok(gone)
    }

    /// Deletes resources that were not seen since. Called when everything else that is old is gone.
    async fn forget_resources(&self, lease: &str, before: i64) -> Result<u64, StoreError> {
        let doing = "deleting resources that are gone";
        let mut transaction = self.write().await?;
        let values = [
            Value::Int(before),
            Value::Int(MAX_DELETED as i64),
            Value::Text(lease),
        ];
        let rows = transaction.fetch(SUBJECTS, &values).await.doing(doing)?;
        let ids: Result<Vec<i64>, _> = rows.iter().map(|row| row.int(0)).collect();
        let ids = ids.doing(doing)?;
        // Its hours are gone long since: what is marked of its days cannot be put together any more.
        for (table, column) in [
            ("ledger_day_dirty", "subject"),
            ("subject_seen", "subject"),
            ("subject", "id"),
        ] {
            let before = "WITH k (id) AS (";
            let after =
                format!(") DELETE FROM {table} WHERE {column} IN (SELECT k.id FROM k) RETURNING 1");
            let columns = [Column::Ints(ids.clone())];
            let gone = transaction.rows(before, &columns, &after);
            gone.await.doing(doing)?;
        }
        transaction.commit().await.doing(doing)?;
        self.forget(&ids);
        Ok(ids.len() as u64)
    }
}

async fn forget_epochs(
    transaction: &mut Transaction,
    lease: &str,
    expiry: &Expiry,
) -> Result<u64, StoreError> {
    let values = [
        Value::Int(expiry.epochs.millis()),
        Value::Int(expiry.senders.millis()),
        Value::Blob(FOREIGN_AGENT.0.as_bytes()),
        Value::Int(MAX_DELETED as i64),
        Value::Text(lease),
    ];
    let gone = transaction.execute(CURSORS, &values).await;
    gone.doing("forgetting epochs that are over")
}

async fn delete(
    transaction: &mut Transaction,
    lease: &str,
    sql: &str,
    before: i64,
) -> Result<u64, StoreError> {
    let values = [
        Value::Int(before),
        Value::Int(MAX_DELETED as i64),
        Value::Text(lease),
    ];
    let gone = transaction.execute(sql, &values).await;
    gone.doing("deleting old rows")
}
