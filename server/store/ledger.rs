//! Ledger hours: which are to be computed, from what, and what came out.
//!
//! An hour is replaced only if nothing changed since its input was read (its mark is still the same)
//! and then its mark goes in the same transaction. When what it hands to the next hour changed, the
//! next hour is marked.

use std::collections::{BTreeMap, HashMap};

use gpufleet_analysis::states::{Carry, LOOKAHEAD_MINUTES, edge};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::Store;
use super::database::{Column, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{ComputedHour, DirtyHour, LedgerInput, TenMinutes};
use super::{events, minutes, subjects};

/// Most dirty hours taken at a time: 64 hours are 4,160 minute rows, about 1 MB.
pub const MAX_DIRTY: usize = 64;

/// Kinds of events that break or heal, as `states::edge` reads them.
const HEALTH_KINDS: &str = "'gpu_lost', 'driver_hang', 'xid', 'recovery_action', 'gpu_recovered', \
     'gpu_reset', 'gpu_added', 'driver_recovered'";

impl Store {
    /// Hours that are to be computed now, the oldest first, at most [`MAX_DIRTY`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn dirty_hours(&self, now: Timestamp) -> Result<Vec<DirtyHour>, StoreError> {
        let doing = "reading which hours are to be computed";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT hour, subject, mark FROM ledger_dirty WHERE due_ms <= $1
             ORDER BY hour, subject LIMIT {MAX_DIRTY}"
        );
        let rows = transaction.fetch(&sql, &[Value::Int(now.millis())]).await;
        let rows = rows.doing(doing)?;
        let dirty = |row: &Row| {
            Ok(DirtyHour {
                hour: row.int(0).doing(doing)?,
                subject: row.int(1).doing(doing)?,
                mark: row.int(2).doing(doing)?,
            })
        };
        rows.iter().map(dirty).collect()
    }

    /// What these hours are computed from. An hour of an unknown resource is left out.
    ///
    /// # Errors
    /// When the database refuses. A minute row that cannot be read is named in the log and counts as
    /// not observed.
    pub async fn ledger_inputs(&self, dirty: &[DirtyHour]) -> Result<Vec<LedgerInput>, StoreError> {
        let mut transaction = self.read().await?;
        let mut inputs = resources(&mut transaction, dirty).await?;
        let (mut wanted, mut of) = (Vec::new(), Vec::new());
        for input in inputs.values() {
            let first = input.dirty.hour * 60;
            wanted.extend(first..first + 60 + LOOKAHEAD_MINUTES);
            of.resize(wanted.len(), input.dirty.subject);
        }
        for (minute, subject, row) in minutes::read(&mut transaction, wanted, of).await? {
            match row {
                Ok(row) => spread(&mut inputs, minute, subject, &row),
                Err(bad) => {
                    let named = format!("resource number {subject}");
                    tracing::error!(
                        "{}; it counts as not observed",
                        bad.sentence(minute, &named)
                    );
                }
            }
        }
        carries(&mut transaction, &mut inputs).await?;
        health(&mut transaction, &mut inputs).await?;
        shares(&mut transaction, &mut inputs).await?;
        Ok(inputs.into_values().collect())
    }

    /// Replaces hours by what was computed of them, in one transaction. Hours that changed since
    /// their input was read stay as they are, to be computed again. Returns how many were replaced.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn replace_hours(
        &self,
        computed: &[ComputedHour],
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let mut transaction = self.write().await?;
        let mut ours = Vec::new();
        for hour in computed {
            if take_mark(&mut transaction, &hour.dirty).await? {
                ours.push(hour);
            }
        }
        let before = old_carries(&mut transaction, &ours).await?;
        for hour in &ours {
            let values = [Value::Int(hour.dirty.hour), Value::Int(hour.dirty.subject)];
            for table in ["ledger_time", "ledger_hour"] {
                let sql = format!("DELETE FROM {table} WHERE hour = $1 AND subject = $2");
                let gone = transaction.execute(&sql, &values).await;
                gone.doing("replacing ledger hours")?;
            }
        }
        write_hours(&mut transaction, &ours, now).await?;
        write_ten_minutes(&mut transaction, &ours).await?;
        let mut again = Vec::new();
        for hour in &ours {
            let (number, subject) = (hour.dirty.hour, hour.dirty.subject);
            if let Some(at) = hour.again {
                again.push((number, subject, at.millis()));
            }
            let old = before.get(&(number, subject)).map_or("", String::as_str);
            if old != carry_text(hour.carry.as_ref()) {
                again.push((number + 1, subject, now.millis()));
            }
        }
        // One hour may be both its own and its predecessor's next: the earlier time counts.
        again.sort();
        again.dedup_by_key(|(hour, subject, _)| (*hour, *subject));
        minutes::mark_hours(&mut transaction, &again, rand::random()).await?;
        transaction.commit().await.doing("replacing ledger hours")?;
        Ok(ours.len())
    }
}

/// Inputs by (hour, resource).
type Inputs = BTreeMap<(i64, i64), LedgerInput>;

/// Hands a minute row to the hour it lies in and to the hour before, if it is in its lookahead.
fn spread(inputs: &mut Inputs, minute: i64, subject: i64, row: &MinuteRow) {
    let hour = Minute(minute).hour();
    let mut hand = |hour: i64| {
        if let Some(input) = inputs.get_mut(&(hour, subject)) {
            input.minutes.insert(Minute(minute), row.clone());
        }
    };
    hand(hour);
    if minute.rem_euclid(60) < LOOKAHEAD_MINUTES {
        hand(hour - 1);
    }
}

async fn resources(
    transaction: &mut Transaction,
    dirty: &[DirtyHour],
) -> Result<Inputs, StoreError> {
    let doing = "reading resources of the ledger";
    let mut of: Vec<i64> = dirty.iter().map(|it| it.subject).collect();
    of.sort_unstable();
    of.dedup();
    let sql = format!(
        ") SELECT {} FROM k CROSS JOIN subject s LEFT JOIN subject_seen n ON n.subject = s.id
         WHERE s.id = k.subject",
        subjects::COLUMNS
    );
    let rows = transaction
        .rows("WITH k (subject) AS (", &[Column::Ints(of)], &sql)
        .await;
    let mut known = HashMap::new();
    for row in rows.doing(doing)? {
        known.insert(row.int(0).doing(doing)?, subjects::read(&row)?);
    }
    let input = |dirty: &DirtyHour| {
        let input = LedgerInput {
            dirty: *dirty,
            resource: known.get(&dirty.subject)?.clone(),
            minutes: BTreeMap::new(),
            health: Vec::new(),
            carry: None,
            has_shares: false,
        };
        Some(((dirty.hour, dirty.subject), input))
    };
    Ok(dirty.iter().filter_map(input).collect())
}

async fn carries(transaction: &mut Transaction, inputs: &mut Inputs) -> Result<(), StoreError> {
    let doing = "reading what the hour before handed over";
    let columns = [
        Column::Ints(inputs.keys().map(|(hour, _)| hour - 1).collect()),
        Column::Ints(inputs.keys().map(|(_, subject)| *subject).collect()),
    ];
    let rows = old_hours(transaction, &columns).await?;
    for row in rows {
        let (hour, subject) = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        let text = row.text(2).doing(doing)?;
        if text.is_empty() {
            continue;
        }
        let carry: Carry = serde_json::from_str(text).map_err(|error| StoreError::Corrupt {
            what: format!("the carry of hour {hour} of resource number {subject}"),
            why: error.to_string(),
        })?;
        if let Some(input) = inputs.get_mut(&(hour + 1, subject)) {
            input.carry = Some(carry);
        }
    }
    Ok(())
}

/// (hour, resource, carry) of hours that are there.
async fn old_hours(
    transaction: &mut Transaction,
    columns: &[Column<'_>],
) -> Result<Vec<Row>, StoreError> {
    let after = ") SELECT h.hour, h.subject, h.carry FROM k CROSS JOIN ledger_hour h
        WHERE h.hour = k.hour AND h.subject = k.subject";
    let rows = transaction
        .rows("WITH k (hour, subject) AS (", columns, after)
        .await;
    rows.doing("reading ledger hours")
}

/// Events that broke or healed the resource itself, or the GPU it is a share of.
async fn health(transaction: &mut Transaction, inputs: &mut Inputs) -> Result<(), StoreError> {
    let doing = "reading what broke or healed";
    let ahead = LOOKAHEAD_MINUTES * 60_000;
    for whose in [
        "e.resource_kind = s.kind AND e.resource_id = s.resource_id",
        "e.resource_kind = 'gpu' AND e.resource_id = s.parent",
    ] {
        let columns = [
            Column::Ints(inputs.keys().map(|(hour, _)| *hour).collect()),
            Column::Ints(inputs.keys().map(|(_, subject)| *subject).collect()),
        ];
        let after = format!(
            ") SELECT {}, k.hour, k.subject FROM k CROSS JOIN subject s CROSS JOIN event e
             WHERE s.id = k.subject AND e.cluster = s.cluster AND {whose}
             AND e.at_ms >= k.hour * 3600000 AND e.at_ms < (k.hour + 1) * 3600000 + {ahead}
             AND e.kind IN ({HEALTH_KINDS})",
            events::COLUMNS
        );
        let rows = transaction
            .rows("WITH k (hour, subject) AS (", &columns, &after)
            .await;
        for row in rows.doing(doing)? {
            let of = (row.int(10).doing(doing)?, row.int(11).doing(doing)?);
            match events::read(&row)? {
                Ok(stored) => {
                    if let (Some(input), Some(edge)) = (inputs.get_mut(&of), edge(&stored.event)) {
                        input.health.push(edge);
                    }
                }
                Err(why) => tracing::error!(why, "an event that cannot be read"),
            }
        }
    }
    Ok(())
}

/// Which of the resources had shares in their hour.
async fn shares(transaction: &mut Transaction, inputs: &mut Inputs) -> Result<(), StoreError> {
    let doing = "reading which GPUs are shared";
    let columns = [
        Column::Ints(inputs.keys().map(|(hour, _)| *hour).collect()),
        Column::Ints(inputs.keys().map(|(_, subject)| *subject).collect()),
    ];
    let after = ") SELECT k.hour, k.subject FROM k CROSS JOIN subject g
        WHERE g.id = k.subject AND g.kind = 'gpu' AND EXISTS (
            SELECT 1 FROM subject s JOIN subject_seen n ON n.subject = s.id
            WHERE s.cluster = g.cluster AND s.parent = g.resource_id AND s.kind = 'share'
            AND s.first_seen_ms < (k.hour + 1) * 3600000 AND n.last_seen_ms >= k.hour * 3600000)";
    let rows = transaction
        .rows("WITH k (hour, subject) AS (", &columns, after)
        .await;
    for row in rows.doing(doing)? {
        let of = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        if let Some(input) = inputs.get_mut(&of) {
            input.has_shares = true;
        }
    }
    Ok(())
}

/// Removes the mark of an hour; false when the hour changed since.
async fn take_mark(transaction: &mut Transaction, dirty: &DirtyHour) -> Result<bool, StoreError> {
    let values = [
        Value::Int(dirty.hour),
        Value::Int(dirty.subject),
        Value::Int(dirty.mark),
    ];
    let sql = "DELETE FROM ledger_dirty WHERE hour = $1 AND subject = $2 AND mark = $3";
    let taken = transaction.execute(sql, &values).await;
    Ok(taken.doing("taking an hour to be replaced")? > 0)
}

async fn old_carries(
    transaction: &mut Transaction,
    hours: &[&ComputedHour],
) -> Result<HashMap<(i64, i64), String>, StoreError> {
    let doing = "reading ledger hours";
    let rows = old_hours(transaction, &key_columns(hours)).await?;
    let mut carries = HashMap::new();
    for row in rows {
        let of = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        carries.insert(of, row.text(2).doing(doing)?.to_owned());
    }
    Ok(carries)
}

fn key_columns<'a>(hours: &[&ComputedHour]) -> [Column<'a>; 2] {
    [
        Column::Ints(hours.iter().map(|it| it.dirty.hour).collect()),
        Column::Ints(hours.iter().map(|it| it.dirty.subject).collect()),
    ]
}

/// A carry as it stands in the database: JSON, or nothing.
fn carry_text(carry: Option<&Carry>) -> String {
    carry.map_or(String::new(), |it| {
        serde_json::to_string(it).expect("a carry is numbers and names")
    })
}

async fn write_hours(
    transaction: &mut Transaction,
    hours: &[&ComputedHour],
    now: Timestamp,
) -> Result<(), StoreError> {
    let kept: Vec<&ComputedHour> = hours
        .iter()
        .copied()
        .filter(|it| !it.ledger.entries.is_empty() || it.carry.is_some())
        .collect();
    let carries: Vec<String> = kept
        .iter()
        .map(|it| carry_text(it.carry.as_ref()))
        .collect();
    let [hour, subject] = key_columns(&kept);
    let columns = [
        hour,
        subject,
        Column::Ints(kept.iter().map(|it| it.ledger.total_millis()).collect()),
        Column::Ints(
            kept.iter()
                .map(|it| i64::from(it.ledger.is_final))
                .collect(),
        ),
        Column::Texts(carries.iter().map(String::as_str).collect()),
        Column::Ints(vec![now.millis(); kept.len()]),
    ];
    let before = "INSERT INTO ledger_hour
        (hour, subject, total_ms, is_final, carry, computed_ms)";
    let rows = transaction.rows(before, &columns, "").await;
    rows.doing("writing ledger hours")?;
    let entries: Vec<_> = kept
        .iter()
        .flat_map(|it| it.ledger.entries.iter().map(|entry| (it.dirty, *entry)))
        .collect();
    let columns = [
        Column::Ints(entries.iter().map(|(of, _)| of.hour).collect()),
        Column::Ints(entries.iter().map(|(of, _)| of.subject).collect()),
        Column::Ints(vec![0; entries.len()]),
        Column::Ints(entries.iter().map(|(_, it)| it.state.code()).collect()),
        Column::Ints(entries.iter().map(|(_, it)| it.reason.code()).collect()),
        Column::Ints(entries.iter().map(|(_, it)| it.millis).collect()),
    ];
    let before = "INSERT INTO ledger_time (hour, subject, holder, state, reason, time_ms)";
    let rows = transaction.rows(before, &columns, "").await;
    rows.doing("writing ledger hours").map(|_| ())
}

async fn write_ten_minutes(
    transaction: &mut Transaction,
    hours: &[&ComputedHour],
) -> Result<(), StoreError> {
    let rows: Vec<(i64, &TenMinutes)> = hours
        .iter()
        .flat_map(|it| it.ten_minutes.iter().map(|row| (it.dirty.subject, row)))
        .collect();
    let packed: Vec<Vec<u8>> = rows
        .iter()
        .map(|(_, it)| {
            let row = MinuteRow {
                metrics: it.metrics.clone(),
                ..MinuteRow::default()
            };
            row.pack()
        })
        .collect();
    let seconds =
        |of: fn(&TenMinutes) -> i64| Column::Ints(rows.iter().map(|(_, it)| of(it)).collect());
    let columns = [
        Column::Ints(rows.iter().map(|(_, it)| it.bucket).collect()),
        Column::Ints(rows.iter().map(|(subject, _)| *subject).collect()),
        seconds(|it| it.observed_s),
        seconds(|it| it.active_s),
        seconds(|it| it.stalled_s),
        seconds(|it| it.held_s),
        seconds(|it| it.holder_known_s),
        Column::Blobs(packed.iter().map(Vec::as_slice).collect()),
    ];
    let before = "INSERT INTO minute10_row (bucket, subject, observed_s, active_s, stalled_s,
        held_s, holder_known_s, data)";
    let after = "ON CONFLICT (bucket, subject) DO UPDATE SET observed_s = excluded.observed_s,
        active_s = excluded.active_s, stalled_s = excluded.stalled_s, held_s = excluded.held_s,
        holder_known_s = excluded.holder_known_s, data = excluded.data";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing ten-minute rows").map(|_| ())
}
