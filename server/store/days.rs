//! Days of the ledger: what each GPU and share did in a day, put together from its hours.
//!
//! A day is computed, never incremented: when one of its hours is replaced it is marked, and put
//! together again. Whoever reads days that are marked gets them put together from their hours.
//! Their format is `packed`'s.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use gpufleet_analysis::ledger::{Energy, MILLIS_PER_HOUR, Reason, State};
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::{Column, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{DayFacts, DayHour, DayInput, DayTime, KnownResource, LedgerDay, UnreadDay};
use super::{holders, subjects};

pub(super) mod packed;

use packed::{Heads, pack};

/// Most days put together at a time: 256 days are 6,144 hours, about 20,000 rows.
pub const MAX_DIRTY_DAYS: usize = 256;

/// A day is put together this long after an hour of it changed, ms: so several hours that come late together are one change.
/// Hours that run change every five minutes, and who reads a month meanwhile puts together what waits: were this as long,
/// that would be most of the day that runs.
const DUE_AFTER_MS: i64 = 30_000;

/// Hours of a day.
const HOURS: i64 = 24;

/// A mark of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyDay {
    /// Days since the Unix epoch.
    pub day: i64,
    /// The store's number of the resource.
    pub subject: i64,
    /// A new random number with every change.
    pub mark: i64,
}

impl Store {
    /// Days that are to be put together now, the newest first, because the month that runs is looked at; at
    /// most [`MAX_DIRTY_DAYS`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn dirty_days(&self, now: Timestamp) -> Result<Vec<DirtyDay>, StoreError> {
        let order = "d.day DESC, d.subject";
        self.marked(("d.due_ms <= $2", order), &[now.millis()], MAX_DIRTY_DAYS)
            .await
    }

    /// Days in a range that changed since they were put together.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn dirty_days_of(&self, days: Range<i64>) -> Result<Vec<DirtyDay>, StoreError> {
        let range = [days.start, days.end];
        let of_range = ("d.day >= $2 AND d.day < $3", "d.day, d.subject");
        self.marked(of_range, &range, usize::MAX >> 1).await
    }

    async fn marked(
        &self,
        (condition, order): (&str, &str),
        numbers: &[i64],
        most: usize,
    ) -> Result<Vec<DirtyDay>, StoreError> {
        let doing = "reading which days are to be put together";
        let mut transaction = self.read().await?;
        let sql = format!(
            "SELECT d.day, d.subject, d.mark FROM ledger_day_dirty d
             JOIN subject s ON s.id = d.subject
             WHERE s.lease = $1 AND {condition} ORDER BY {order} LIMIT {most}"
        );
        let mut values = vec![Value::Text(&self.0.lease)];
        values.extend(numbers.iter().map(|it| Value::Int(*it)));
        let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
        let dirty = |row: &Row| {
            Ok(DirtyDay {
                day: row.int(0).doing(doing)?,
                subject: row.int(1).doing(doing)?,
                mark: row.int(2).doing(doing)?,
            })
        };
        rows.iter().map(dirty).collect()
    }

    /// What these days are put together from.
    ///
    /// # Errors
    /// When the database refuses. Time in a state that this server does not know is named in the log
    /// and left out.
    pub async fn day_inputs(&self, dirty: &[DirtyDay]) -> Result<Vec<DayInput>, StoreError> {
        let mut transaction = self.read().await?;
        let doing = "reading resources of days";
        let ids = dirty.iter().map(|it| it.subject);
        // What is wrong with attributes is set aside by the ledger, which reads the same resources.
        let known = subjects::known(&mut transaction, ids, doing, &mut Vec::new()).await?;
        let nodes = nodes(&mut transaction, &self.0.lease, &known).await?;
        let siblings = siblings(&mut transaction, &self.0.lease, &known, dirty).await?;
        let mut before = before(&mut transaction, dirty).await?;
        let mut hours = hours(&mut transaction, dirty).await?;
        let input = |it: &DirtyDay| {
            let resource = known.get(&it.subject)?.clone();
            let node = resource
                .resource
                .attribute(attribute::NODE)
                .unwrap_or_default();
            let node = nodes.get(&(resource.key.cluster.to_string(), node.to_owned()));
            Some(DayInput {
                day: it.day,
                subject: it.subject,
                mark: it.mark,
                node: node.cloned(),
                before: before.remove(&(it.day, it.subject)),
                siblings: siblings.get(&(it.day, it.subject)).copied().unwrap_or(1),
                hours: hours.remove(&(it.day, it.subject)).unwrap_or_default(),
                resource,
            })
        };
        Ok(dirty.iter().filter_map(input).collect())
    }

    /// Replaces days; those that changed since their input was read are left as they are.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn replace_days(
        &self,
        days: &[(DayInput, LedgerDay)],
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let doing = "writing days of the ledger";
        let mut transaction = self.write().await?;
        let mut kept = Vec::with_capacity(days.len());
        for day in days {
            let values = [day.0.day, day.0.subject, day.0.mark].map(Value::Int);
            let sql = "DELETE FROM ledger_day_dirty WHERE day = $1 AND subject = $2 AND mark = $3";
            if transaction.execute(sql, &values).await.doing(doing)? > 0 {
                kept.push(day);
            }
        }
        let (empty, full): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|it| it.1.times.is_empty());
        let replaced = empty.len() + full.len();
        for (input, _) in empty {
            let values = [input.day, input.subject].map(Value::Int);
            let sql = "DELETE FROM ledger_day WHERE day = $1 AND subject = $2";
            transaction.execute(sql, &values).await.doing(doing)?;
        }
        let packed: Vec<Vec<u8>> = full.iter().map(|it| pack(&it.1)).collect();
        let columns = [
            Column::Ints(full.iter().map(|it| it.0.day).collect()),
            Column::Ints(full.iter().map(|it| it.0.subject).collect()),
            Column::Texts(vec![self.0.lease.as_str(); full.len()]),
            Column::Texts(full.iter().map(|it| it.1.of.cluster.as_str()).collect()),
            Column::Blobs(packed.iter().map(Vec::as_slice).collect()),
            Column::Ints(vec![now.millis(); full.len()]),
        ];
        let before = "INSERT INTO ledger_day (day, subject, lease, cluster, data, computed_ms)";
        let after = "ON CONFLICT (day, subject) DO UPDATE SET cluster = excluded.cluster,
            data = excluded.data, computed_ms = excluded.computed_ms";
        transaction
            .rows(before, &columns, after)
            .await
            .doing(doing)?;
        let times = full.iter().flat_map(|it| &it.1.times);
        let held_by: BTreeSet<i64> = times.map(|it| it.holder).filter(|it| *it != 0).collect();
        holders::note(&mut transaction, &self.0.lease, &held_by, now).await?;
        transaction.commit().await.doing(doing)?;
        Ok(replaced)
    }

    /// The days of a range with the numbers of their resources, in any order, of one cluster where one is
    /// named; and which of them cannot be read. The log says why.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn ledger_days(
        &self,
        days: Range<i64>,
        cluster: Option<&str>,
    ) -> Result<(Vec<(i64, LedgerDay)>, Vec<UnreadDay>), StoreError> {
        let doing = "reading days of the ledger";
        let mut transaction = self.read().await?;
        let sql = "SELECT day, subject, cluster, data FROM ledger_day
            WHERE day >= $1 AND day < $2 AND lease = $3 AND ($4 = '' OR cluster = $4)";
        let values = [
            Value::Int(days.start),
            Value::Int(days.end),
            Value::Text(&self.0.lease),
            Value::Text(cluster.unwrap_or_default()),
        ];
        let (mut found, mut unreadable, mut heads) = (Vec::new(), Vec::new(), Heads::default());
        let take = |row: Row| {
            let (day, subject, cluster) = (row.int(0)?, row.int(1)?, row.text(2)?);
            match heads.unpack((day, subject), cluster, row.blob(3)?) {
                Ok(read) => found.push((subject, read)),
                Err(error) => {
                    tracing::error!(day, subject, error, "a day of the ledger cannot be read");
                    let cluster = cluster.to_owned();
                    unreadable.push(UnreadDay {
                        day,
                        subject,
                        cluster,
                    });
                }
            }
            Ok(())
        };
        transaction.each(sql, &values, take).await.doing(doing)?;
        Ok((found, unreadable))
    }
}

/// Marks the days of hours that are replaced.
pub(super) async fn mark(
    transaction: &mut Transaction,
    hours: &[(i64, i64)],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut days: Vec<(i64, i64)> = hours
        .iter()
        .map(|(hour, subject)| (hour.div_euclid(HOURS), *subject))
        .collect();
    days.sort_unstable();
    days.dedup();
    let columns = [
        Column::Ints(days.iter().map(|it| it.0).collect()),
        Column::Ints(days.iter().map(|it| it.1).collect()),
        Column::Ints(days.iter().map(|_| rand::random::<i64>()).collect()),
        Column::Ints(vec![now.millis() + DUE_AFTER_MS; days.len()]),
    ];
    let before = "INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)";
    // The first change decides when: else a day that changes all the time would never be due.
    let after = "ON CONFLICT (day, subject) DO UPDATE SET mark = excluded.mark";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("marking days of the ledger").map(|_| ())
}

/// Resources by their number.
type Known = HashMap<i64, KnownResource>;

/// The nodes that these resources are on, by cluster and name.
async fn nodes(
    transaction: &mut Transaction,
    lease: &str,
    known: &Known,
) -> Result<HashMap<(String, String), KnownResource>, StoreError> {
    let doing = "reading nodes of days";
    let name = |it: &KnownResource| {
        let node = it.resource.attribute(attribute::NODE)?;
        Some((it.key.cluster.to_string(), node.to_owned()))
    };
    let mut names: Vec<(String, String)> = known.values().filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    let columns = [
        Column::Texts(vec![lease; names.len()]),
        Column::Texts(names.iter().map(|it| it.0.as_str()).collect()),
        Column::Texts(names.iter().map(|it| it.1.as_str()).collect()),
    ];
    let sql = format!(
        ") SELECT {} FROM k CROSS JOIN subject s LEFT JOIN subject_seen n ON n.subject = s.id
         WHERE s.lease = k.lease AND s.cluster = k.cluster AND s.kind = 'node' AND s.resource_id = k.node",
        subjects::COLUMNS
    );
    let before = "WITH k (lease, cluster, node) AS (";
    let rows = transaction.rows(before, &columns, &sql).await;
    let (mut found, mut bad) = (HashMap::new(), Vec::new());
    for row in rows.doing(doing)? {
        let read = subjects::read(&row, &mut bad)?;
        found.extend(read.map(|it| ((it.key.cluster.to_string(), it.key.id.to_string()), it)));
    }
    Ok(found)
}

/// What days said when they were put together last, by day and resource.
async fn before(
    transaction: &mut Transaction,
    dirty: &[DirtyDay],
) -> Result<HashMap<(i64, i64), DayFacts>, StoreError> {
    let doing = "reading what days said before";
    let columns = [
        Column::Ints(dirty.iter().map(|it| it.day).collect()),
        Column::Ints(dirty.iter().map(|it| it.subject).collect()),
    ];
    let after = ") SELECT d.day, d.subject, d.cluster, d.data FROM k CROSS JOIN ledger_day d
        WHERE d.day = k.day AND d.subject = k.subject";
    let rows = transaction
        .rows("WITH k (day, subject) AS (", &columns, after)
        .await;
    let (mut found, mut heads) = (HashMap::new(), Heads::default());
    for row in rows.doing(doing)? {
        let (day, subject) = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        let (cluster, data) = (row.text(2).doing(doing)?, row.blob(3).doing(doing)?);
        match heads.unpack((day, subject), cluster, data) {
            Ok(read) => {
                found.insert((day, subject), read.of.facts.clone());
            }
            // It is put together of what is said now, as one that never was.
            Err(error) => {
                tracing::error!(day, subject, error, "what a day of the ledger said is lost");
            }
        }
    }
    Ok(found)
}

/// How many shares the card of each share had on the day, by day and share: a card that is cut anew has others.
async fn siblings(
    transaction: &mut Transaction,
    lease: &str,
    known: &Known,
    dirty: &[DirtyDay],
) -> Result<HashMap<(i64, i64), u32>, StoreError> {
    let doing = "counting shares of days";
    let of = |it: &DirtyDay| {
        let share = known.get(&it.subject)?;
        let parent = share.resource.attribute(attribute::PARENT)?;
        let is_share = share.key.kind == ResourceKind::Share;
        is_share.then(|| (*it, share.key.cluster.to_string(), parent.to_owned()))
    };
    let shares: Vec<(DirtyDay, String, String)> = dirty.iter().filter_map(of).collect();
    let columns = [
        Column::Ints(shares.iter().map(|it| it.0.day).collect()),
        Column::Ints(shares.iter().map(|it| it.0.subject).collect()),
        Column::Texts(vec![lease; shares.len()]),
        Column::Texts(shares.iter().map(|it| it.1.as_str()).collect()),
        Column::Texts(shares.iter().map(|it| it.2.as_str()).collect()),
    ];
    let before = "WITH k (day, share, lease, cluster, parent) AS (";
    let after = ") SELECT k.day, k.share, COUNT(*) FROM k CROSS JOIN subject s JOIN subject_seen n ON n.subject = s.id
        WHERE s.lease = k.lease AND s.cluster = k.cluster AND s.parent = k.parent AND s.kind = 'share'
        AND s.first_seen_ms < (k.day + 1) * 86400000 AND n.last_seen_ms >= k.day * 86400000
        GROUP BY k.day, k.share";
    let mut found = HashMap::new();
    for row in transaction
        .rows(before, &columns, after)
        .await
        .doing(doing)?
    {
        let of = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        let count = u32::try_from(row.int(2).doing(doing)?).unwrap_or(1);
        found.insert(of, count);
    }
    Ok(found)
}

/// The hours of days, by day and resource.
async fn hours(
    transaction: &mut Transaction,
    dirty: &[DirtyDay],
) -> Result<HashMap<(i64, i64), Vec<DayHour>>, StoreError> {
    let doing = "reading hours of days";
    let keys = dirty
        .iter()
        .flat_map(|it| (it.day * HOURS..(it.day + 1) * HOURS).map(move |hour| (hour, it.subject)));
    let keys: Vec<(i64, i64)> = keys.collect();
    let columns = [
        Column::Ints(keys.iter().map(|it| it.0).collect()),
        Column::Ints(keys.iter().map(|it| it.1).collect()),
    ];
    let after = ") SELECT t.hour, t.subject, t.holder, t.state, t.reason, t.time_ms,
            COALESCE(t.energy_mj, 0), t.metered_ms, t.lost_ms
        FROM k CROSS JOIN ledger_time t WHERE t.hour = k.hour AND t.subject = k.subject";
    let rows = transaction
        .rows("WITH k (hour, subject) AS (", &columns, after)
        .await;
    let mut found: HashMap<(i64, i64), BTreeMap<i64, DayHour>> = HashMap::new();
    for row in rows.doing(doing)? {
        let int = |index: usize| row.int(index).doing(doing);
        let (hour, subject) = (int(0)?, int(1)?);
        let (state, reason) = (State::from_code(int(3)?), Reason::from_code(int(4)?));
        let (Some(state), Some(reason)) = (state, reason) else {
            tracing::error!(hour, subject, "time in an unknown state is left out");
            continue;
        };
        let day = found.entry((hour.div_euclid(HOURS), subject)).or_default();
        let of_hour = day.entry(hour).or_insert_with(|| DayHour {
            hour,
            ..DayHour::default()
        });
        of_hour.times.push(DayTime {
            holder: int(2)?,
            state,
            reason,
            millis: int(5)?,
            energy: Energy {
                millijoules: int(6)?,
                metered_millis: int(7)?,
            },
            lost_millis: int(8)?,
        });
    }
    for (hour, subject, spans) in hour_spans(transaction, &columns).await? {
        let day = found.get_mut(&(hour.div_euclid(HOURS), subject));
        if let Some(hour) = day.and_then(|it| it.get_mut(&hour)) {
            hour.spans = spans;
        }
    }
    let days = found.into_iter();
    Ok(days
        .map(|(key, hours)| (key, hours.into_values().collect()))
        .collect())
}

/// An hour, its resource, and when in it its time is, Unix milliseconds.
type HourSpans = (i64, i64, Vec<(i64, i64)>);

/// When their time is in hours that are not whole.
async fn hour_spans(
    transaction: &mut Transaction,
    keys: &[Column<'_>],
) -> Result<Vec<HourSpans>, StoreError> {
    let doing = "reading when in an hour its time is";
    let after = ") SELECT h.hour, h.subject, h.spans FROM k CROSS JOIN ledger_hour h
        WHERE h.hour = k.hour AND h.subject = k.subject AND h.spans <> ''";
    let rows = transaction
        .rows("WITH k (hour, subject) AS (", keys, after)
        .await;
    let mut found = Vec::new();
    for row in rows.doing(doing)? {
        let (hour, subject) = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        match serde_json::from_str::<Vec<(i64, i64)>>(row.text(2).doing(doing)?) {
            Ok(spans) => {
                let millis = |second: i64| hour * MILLIS_PER_HOUR + second * 1_000;
                let spans = spans.into_iter().map(|it| (millis(it.0), millis(it.1)));
                found.push((hour, subject, spans.collect()));
            }
            // It is where such hours lay before it was written down.
            Err(error) => {
                tracing::error!(hour, subject, %error, "when in an hour its time is cannot be read");
            }
        }
    }
    Ok(found)
}
