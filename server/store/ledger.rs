//! Ledger hours: which are to be computed, from what, and what came out.
//!
//! An hour is replaced only if nothing changed since its input was read (its mark is still the same)
//! and then its mark goes in the same transaction. When what it hands to the next hour changed, the
//! next hour is marked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::states::{Carry, HEALTH_KINDS, Held, LOOKAHEAD_MINUTES, edge};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::{Minute, Timestamp};

use super::Store;
use super::aside::{Place, Unreadable};
use super::database::{Column, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{ComputedHour, DirtyHour, LedgerInput, Surroundings};
use super::restate::{self, VERSION, Why};
use super::{around, days, events, family, hours, minutes, served, subjects};

/// Most dirty hours taken at a time: 64 hours are 4,160 minute rows, about 1 MB.
pub const MAX_DIRTY: usize = 64;

impl Store {
    /// Hours that are to be computed now, the oldest first, at most [`MAX_DIRTY`]; of a resource's
    /// hours one at a time, because each is computed from what the one before it hands over.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn dirty_hours(&self, now: Timestamp) -> Result<Vec<DirtyHour>, StoreError> {
        self.oldest_dirty_hours(now, MAX_DIRTY).await
    }

    /// The same, at most `most` of them.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn oldest_dirty_hours(
        &self,
        now: Timestamp,
        most: usize,
    ) -> Result<Vec<DirtyHour>, StoreError> {
        let doing = "reading which hours are to be computed";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT d.hour, d.subject, d.mark, d.why FROM ledger_dirty d
             LEFT JOIN subject s ON s.id = d.subject
             WHERE d.due_ms <= $1 AND (s.id IS NULL OR s.lease = $2) AND NOT EXISTS (SELECT 1 FROM ledger_dirty p
                WHERE p.hour = d.hour - 1 AND p.subject = d.subject AND p.due_ms <= $1)
             ORDER BY d.hour, d.subject LIMIT {most}"
        );
        let values = [Value::Int(now.millis()), Value::Text(&self.0.lease)];
        let rows = transaction.fetch(&sql, &values).await;
        let rows = rows.doing(doing)?;
        let dirty = |row: &Row| {
            Ok(DirtyHour {
                hour: row.int(0).doing(doing)?,
                subject: row.int(1).doing(doing)?,
                mark: row.int(2).doing(doing)?,
                is_changed: Why(row.int(3).doing(doing)?).has(Why::DATA),
            })
        };
        rows.iter().map(dirty).collect()
    }

    /// What these hours are computed from. An hour of a resource that is not there any more is left
    /// out and its mark goes. What cannot be read is set aside and counts as not known; only what the
    /// hour before handed over is computed anew first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn ledger_inputs(&self, dirty: &[DirtyHour]) -> Result<Vec<LedgerInput>, StoreError> {
        let mut bad = Vec::new();
        let (inputs, unknown) = self.read_inputs(dirty, &mut bad).await?;
        self.set_aside(&bad).await?;
        self.forget_marks(&unknown).await?;
        Ok(inputs.into_values().collect())
    }

    /// The inputs, and the hours of no known resource.
    async fn read_inputs(
        &self,
        dirty: &[DirtyHour],
        bad: &mut Vec<Unreadable>,
    ) -> Result<(Inputs, Vec<DirtyHour>), StoreError> {
        let mut transaction = self.read().await?;
        let mut inputs = resources(&mut transaction, dirty, bad).await?;
        let is_unknown = |it: &&DirtyHour| !inputs.contains_key(&(it.hour, it.subject));
        let unknown = dirty.iter().filter(is_unknown).copied().collect();
        carries(&mut transaction, &mut inputs, bad).await?;
        let (mut wanted, mut of) = (Vec::new(), Vec::new());
        for input in inputs.values() {
            let first = input.dirty.hour * 60;
            wanted.extend(first..first + 60 + LOOKAHEAD_MINUTES);
            of.resize(wanted.len(), input.dirty.subject);
        }
        for (minute, subject, row) in minutes::read(&mut transaction, wanted, of, bad).await? {
            spread(&mut inputs, minute, subject, &row);
        }
        health(&mut transaction, &mut inputs, bad).await?;
        family::read(&mut transaction, &mut inputs, bad).await?;
        around::read(&mut transaction, &self.0.lease, &mut inputs).await?;
        Ok((inputs, unknown))
    }

    /// Removes the marks of hours that cannot be computed: they would be the oldest for ever, and
    /// [`MAX_DIRTY`] of them would keep every other hour waiting.
    async fn forget_marks(&self, dirty: &[DirtyHour]) -> Result<(), StoreError> {
        if dirty.is_empty() {
            return Ok(());
        }
        let mut transaction = self.write().await?;
        for dirty in dirty {
            let (hour, subject) = (dirty.hour, dirty.subject);
            tracing::error!(hour, subject, "an hour of no known resource is left out");
        }
        take_marks(&mut transaction, dirty).await?;
        let gone = transaction.commit().await;
        gone.doing("leaving out hours of no known resource")
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
        let marks: Vec<DirtyHour> = computed.iter().map(|it| it.dirty).collect();
        let taken = take_marks(&mut transaction, &marks).await?;
        let is_ours = |it: &'_ ComputedHour| taken.get(&it.key()).copied();
        let ours = computed.iter().filter_map(|it| Some((it, is_ours(it)?)));
        let (ours, why): (Vec<&ComputedHour>, Vec<Why>) = ours.unzip();
        let before = replaced(&mut transaction, &ours).await?;
        let was_final = |it: &ComputedHour| before.get(&it.key()).is_some_and(|old| old.is_final);
        let finals = ours.iter().copied().zip(why).filter_map(|(it, why)| {
            let old = before.get(&it.key()).filter(|old| old.is_final)?;
            Some((it, why.over(old.version)))
        });
        let finals: Vec<_> = finals.collect();
        restate::write(&mut transaction, &finals, now).await?;
        for table in ["ledger_time", "ledger_hour", "served_hour"] {
            let after = format!(
                ") DELETE FROM {table} WHERE (hour, subject) IN (SELECT hour, subject FROM k)"
            );
            let keys = key_columns(&ours);
            let gone = transaction
                .rows("WITH k (hour, subject) AS (", &keys, &after)
                .await;
            gone.doing("replacing ledger hours")?;
        }
        write_hours(&mut transaction, &ours, was_final, now).await?;
        let is_of_days =
            |it: &&&ComputedHour| !it.held.is_empty() || before.contains_key(&it.key());
        let changed = ours.iter().filter(is_of_days).map(|it| it.key());
        days::mark(&mut transaction, &changed.collect::<Vec<_>>(), now).await?;
        served::write(&mut transaction, &ours).await?;
        hours::write_ten_minutes(&mut transaction, &ours).await?;
        let closed = ours.iter().filter(|it| !it.closed.is_empty());
        let closed: Vec<_> = closed.map(|it| (it.key(), &it.closed)).collect();
        minutes::close(&mut transaction, &closed).await?;
        // One hour may be both its own and its predecessor's next: the earlier time counts.
        let mut again = minutes::Marks::new();
        for hour in &ours {
            let (number, subject) = hour.key();
            let mut mark = |number: i64, due_ms: i64, why: Why| {
                let known = again.entry((number, subject)).or_insert((due_ms, why));
                *known = (due_ms.min(known.0), known.1 | why);
            };
            if let Some(at) = hour.again {
                mark(number, at.millis(), Why::TIME);
            }
            let old = before.get(&hour.key()).map_or(&[][..], |it| &it.carry);
            if old != carry_text(hour.carry.as_ref()).as_bytes() {
                mark(number + 1, now.millis(), Why::HOUR_BEFORE);
            }
        }
        let read: BTreeSet<(i64, i64)> = computed.iter().map(|it| it.key()).collect();
        for hour in &ours {
            let of_hours = [hour.dirty.hour, hour.dirty.hour + 1].into_iter();
            let all = of_hours.flat_map(|number| hour.family.iter().map(move |it| (number, *it)));
            // Those of this round were computed from the same minutes.
            for other in all.filter(|it| !read.contains(it)) {
                let known = again.entry(other).or_insert((now.millis(), Why::FAMILY));
                *known = (now.millis().min(known.0), known.1 | Why::FAMILY);
            }
        }
        minutes::mark_hours(&mut transaction, &again, rand::random()).await?;
        transaction.commit().await.doing("replacing ledger hours")?;
        Ok(ours.len())
    }
}

impl ComputedHour {
    fn key(&self) -> (i64, i64) {
        (self.dirty.hour, self.dirty.subject)
    }
}

/// Inputs by (hour, resource).
pub(super) type Inputs = BTreeMap<(i64, i64), LedgerInput>;

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
    bad: &mut Vec<Unreadable>,
) -> Result<Inputs, StoreError> {
    let doing = "reading resources of the ledger";
    let ids = dirty.iter().map(|it| it.subject);
    let known = subjects::known(transaction, ids, doing, bad).await?;
    let input = |dirty: &DirtyHour| {
        let input = LedgerInput {
            dirty: *dirty,
            resource: known.get(&dirty.subject)?.clone(),
            minutes: BTreeMap::new(),
            health: Vec::new(),
            carry: None,
            away: Vec::new(),
            family: Vec::new(),
            around: Surroundings::default(),
        };
        Some(((dirty.hour, dirty.subject), input))
    };
    Ok(dirty.iter().filter_map(input).collect())
}

async fn carries(
    transaction: &mut Transaction,
    inputs: &mut Inputs,
    bad: &mut Vec<Unreadable>,
) -> Result<(), StoreError> {
    let doing = "reading what the hour before handed over";
    let columns = [
        Column::Ints(inputs.keys().map(|(hour, _)| hour - 1).collect()),
        Column::Ints(inputs.keys().map(|(_, subject)| *subject).collect()),
    ];
    for row in old_hours(transaction, &columns).await? {
        let (hour, subject) = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        let text = row.bytes(2).doing(doing)?;
        if text.is_empty() {
            continue;
        }
        match serde_json::from_slice(text) {
            Ok(carry) => {
                if let Some(input) = inputs.get_mut(&(hour + 1, subject)) {
                    input.carry = Some(carry);
                }
            }
            Err(error) => {
                // Its mark stays: it is computed after the hour before, which is marked with this.
                inputs.remove(&(hour + 1, subject));
                bad.push(Unreadable {
                    place: Place::Carry { hour, subject },
                    data: text.to_vec(),
                    error: error.to_string(),
                    is_unknown: false,
                });
            }
        }
    }
    Ok(())
}

/// (hour, resource, carry, is_final, version) of hours that are there.
async fn old_hours(
    transaction: &mut Transaction,
    columns: &[Column<'_>],
) -> Result<Vec<Row>, StoreError> {
    let after =
        ") SELECT h.hour, h.subject, h.carry, h.is_final, h.version FROM k CROSS JOIN ledger_hour h
        WHERE h.hour = k.hour AND h.subject = k.subject";
    let rows = transaction
        .rows("WITH k (hour, subject) AS (", columns, after)
        .await;
    rows.doing("reading ledger hours")
}

/// Events that broke or healed the resource itself, or the GPU it is a share of.
async fn health(
    transaction: &mut Transaction,
    inputs: &mut Inputs,
    bad: &mut Vec<Unreadable>,
) -> Result<(), StoreError> {
    let doing = "reading what broke or healed";
    let ahead = LOOKAHEAD_MINUTES * 60_000;
    let kinds = HEALTH_KINDS.map(|kind| format!("'{}'", kind.name()));
    let kinds = kinds.join(", ");
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
             WHERE s.id = k.subject AND e.lease = s.lease AND e.cluster = s.cluster AND {whose}
             AND e.at_ms >= k.hour * 3600000 AND e.at_ms < (k.hour + 1) * 3600000 + {ahead}
             AND e.kind IN ({kinds})",
            events::COLUMNS
        );
        let rows = transaction
            .rows("WITH k (hour, subject) AS (", &columns, &after)
            .await;
        for row in rows.doing(doing)? {
            let of = (row.int(10).doing(doing)?, row.int(11).doing(doing)?);
            let read = events::read(&row, bad)?;
            if let (Some(input), Some(edge)) =
                (inputs.get_mut(&of), read.and_then(|it| edge(&it.event)))
            {
                input.health.push(edge);
            }
        }
    }
    Ok(())
}

/// Removes the marks of hours and says why they were there; not of those that changed since.
async fn take_marks(
    transaction: &mut Transaction,
    dirty: &[DirtyHour],
) -> Result<HashMap<(i64, i64), Why>, StoreError> {
    let doing = "taking hours to be replaced";
    let columns = [
        Column::Ints(dirty.iter().map(|it| it.hour).collect()),
        Column::Ints(dirty.iter().map(|it| it.subject).collect()),
        Column::Ints(dirty.iter().map(|it| it.mark).collect()),
    ];
    let after = ") DELETE FROM ledger_dirty
        WHERE (hour, subject, mark) IN (SELECT hour, subject, mark FROM k)
        RETURNING hour, subject, why";
    let rows = transaction
        .rows("WITH k (hour, subject, mark) AS (", &columns, after)
        .await;
    let mut taken = HashMap::new();
    for row in rows.doing(doing)? {
        let of = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        taken.insert(of, Why(row.int(2).doing(doing)?));
    }
    Ok(taken)
}

/// An hour that is about to be replaced.
struct Replaced {
    carry: Vec<u8>,
    is_final: bool,
    /// Which version of the server computed it.
    version: i64,
}

async fn replaced(
    transaction: &mut Transaction,
    hours: &[&ComputedHour],
) -> Result<HashMap<(i64, i64), Replaced>, StoreError> {
    let doing = "reading ledger hours";
    let mut replaced = HashMap::new();
    for row in old_hours(transaction, &key_columns(hours)).await? {
        let of = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        let hour = Replaced {
            carry: row.bytes(2).doing(doing)?.to_vec(),
            is_final: row.int(3).doing(doing)? != 0,
            version: row.int(4).doing(doing)?,
        };
        replaced.insert(of, hour);
    }
    Ok(replaced)
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

/// When in an hour its time is, as it stands in the database: JSON, seconds of the hour, or nothing of a whole one.
fn spans_text(computed: &ComputedHour) -> String {
    let start_s = computed.dirty.hour * 3_600;
    let spans = computed.spans.iter();
    let spans: Vec<(i64, i64)> = spans
        .map(|it| (it.from_s - start_s, it.until_s - start_s))
        .collect();
    match spans[..] {
        [] | [(0, 3_600)] => String::new(),
        _ => serde_json::to_string(&spans).expect("numbers"),
    }
}

/// Time of an hour that is written.
type Entry = (DirtyHour, (i64, State, Reason), Held);

/// Writes hours of which there is something to keep. What was final once stays so, and stays even when
/// nothing is left of it: its corrections belong to it.
async fn write_hours(
    transaction: &mut Transaction,
    hours: &[&ComputedHour],
    was_final: impl Fn(&ComputedHour) -> bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let is_kept =
        |it: &&ComputedHour| !it.ledger.entries.is_empty() || it.carry.is_some() || was_final(it);
    let kept: Vec<&ComputedHour> = hours.iter().copied().filter(is_kept).collect();
    let carries = kept.iter().map(|it| carry_text(it.carry.as_ref()));
    let carries: Vec<String> = carries.collect();
    let spans: Vec<String> = kept.iter().map(|it| spans_text(it)).collect();
    let is_final = |it: &&ComputedHour| i64::from(it.ledger.is_final || was_final(it));
    let [hour, subject] = key_columns(&kept);
    let columns = [
        hour,
        subject,
        Column::Ints(kept.iter().map(|it| it.ledger.total_millis()).collect()),
        Column::Ints(kept.iter().map(is_final).collect()),
        Column::Texts(carries.iter().map(String::as_str).collect()),
        Column::Ints(vec![now.millis(); kept.len()]),
        Column::Ints(vec![*VERSION; kept.len()]),
        Column::Texts(spans.iter().map(String::as_str).collect()),
    ];
    let before = "INSERT INTO ledger_hour
        (hour, subject, total_ms, is_final, carry, computed_ms, version, spans)";
    let rows = transaction.rows(before, &columns, "").await;
    rows.doing("writing ledger hours")?;
    let entries = kept.iter().flat_map(|it| {
        let held = it.held.iter();
        held.map(|(key, held)| (it.dirty, *key, *held))
    });
    let entries: Vec<Entry> = entries.collect();
    let ints = |of: fn(&Entry) -> i64| Column::Ints(entries.iter().map(of).collect());
    let columns = [
        ints(|it| it.0.hour),
        ints(|it| it.0.subject),
        ints(|it| it.1.0),
        ints(|it| it.1.1.code()),
        ints(|it| it.1.2.code()),
        ints(|it| it.2.millis),
        Column::OptionalInts(entries.iter().map(|it| it.2.energy.told()).collect()),
        ints(|it| it.2.energy.metered_millis),
        ints(|it| it.2.lost_millis),
    ];
    let before = "INSERT INTO ledger_time
        (hour, subject, holder, state, reason, time_ms, energy_mj, metered_ms, lost_ms)";
    let rows = transaction.rows(before, &columns, "").await;
    rows.doing("writing ledger hours").map(|_| ())
}
