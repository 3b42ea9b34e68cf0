//! Restatements: what a final hour was changed by, kept as rows that add up.
//!
//! The hour as it was when it became final, plus all of its corrections, is the hour as it stands:
//! per holder, state and reason. Limits: a correction has at most as many rows as the hour before
//! and the hour after it have together.

use std::collections::{BTreeMap, HashMap};
use std::ops::{BitOr, Range};
use std::sync::LazyLock;

use gpufleet_telemetry::time::Timestamp;

use super::database::{Column, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{ComputedHour, Correction, ResourceKey};
use super::{Store, minutes};

/// This version of the server, as hours have it: major × 1,000,000 + minor × 1,000 + patch.
pub(super) static VERSION: LazyLock<i64> = LazyLock::new(|| {
    let parts = env!("CARGO_PKG_VERSION").split(['.', '-', '+']).take(3);
    let parts = parts.map(|it| it.parse::<i64>().unwrap_or(0));
    parts.fold(0, |number, it| number * 1_000 + it)
});

/// Why an hour is to be computed, as bits, because several causes may come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Why(pub(super) i64);

impl Why {
    /// It was time: the hour runs, or has just become final.
    pub(super) const TIME: Self = Self(0);
    /// Minutes or events came.
    pub(super) const DATA: Self = Self(1);
    /// The hour before hands over something else.
    pub(super) const HOUR_BEFORE: Self = Self(2);
    /// Minutes of its card or of other shares of it came, after it was final.
    pub(super) const FAMILY: Self = Self(16);
    /// A part of it could not be read and was set aside: what stands there is not what was final.
    pub(super) const UNREADABLE: Self = Self(4);
    /// Another version of the server computed it before, whose rules may have been others. Is never stored.
    pub(super) const VERSION: Self = Self(8);

    /// The same of an hour that was computed by this version of the server.
    pub(super) fn over(self, version: i64) -> Self {
        match version == *VERSION {
            true => self,
            false => self | Self::VERSION,
        }
    }

    pub(super) fn has(self, cause: Self) -> bool {
        self.0 & cause.0 != 0
    }

    const fn words(self) -> &'static str {
        // Data of others of its card are data.
        let data = (self.0 | self.0 >> 4) & Self::DATA.0;
        match self.0 & 10 | data {
            0 => "computed again",
            1 => "data came late",
            2 => "the hour before was changed",
            3 => "data came late, and the hour before was changed",
            8 => "computed again, by another version of the server",
            9 => "data came late, and another version of the server had computed it",
            10 => "the hour before was changed, and another version of the server had computed it",
            _ => {
                "data came late, the hour before was changed, and another version of the server had computed it"
            }
        }
    }
}

impl BitOr for Why {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Time and cost by holder, state and reason.
type Times = BTreeMap<[i64; 3], (i64, Option<i64>)>;

impl Store {
    /// The corrections of a resource's final hours, the first one first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn corrections(
        &self,
        key: &ResourceKey,
        hours: Range<i64>,
    ) -> Result<Vec<Correction>, StoreError> {
        let doing = "reading corrections";
        let mut transaction = self.read().await?;
        let Some(subject) = minutes::subject(&mut transaction, &self.0.lease, key).await? else {
            return Ok(Vec::new());
        };
        let sql = "SELECT hour, number, holder, state, reason, time_ms, cost_nano_usd, computed_ms,
                why
            FROM ledger_correction WHERE hour >= $1 AND hour < $2 AND subject = $3
            ORDER BY hour, number, holder, state, reason";
        let values = [hours.start, hours.end, subject].map(Value::Int);
        let rows = transaction.fetch(sql, &values).await.doing(doing)?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push(Correction {
                hour: row.int(0).doing(doing)?,
                number: row.int(1).doing(doing)?,
                holder: row.int(2).doing(doing)?,
                state: row.int(3).doing(doing)?,
                reason: row.int(4).doing(doing)?,
                millis: row.int(5).doing(doing)?,
                cost_nano_usd: row.optional_int(6).doing(doing)?,
                computed: Timestamp::from_millis(row.int(7).doing(doing)?),
                why: row.text(8).doing(doing)?.to_owned(),
            });
        }
        Ok(found)
    }
}

/// Writes how hours that were final are changed by what was computed of them now.
pub(super) async fn write(
    transaction: &mut Transaction,
    finals: &[(&ComputedHour, Why)],
    now: Timestamp,
) -> Result<(), StoreError> {
    let finals: Vec<_> = finals
        .iter()
        .filter(|(_, why)| !why.has(Why::UNREADABLE))
        .collect();
    let of = |it: &ComputedHour| (it.dirty.hour, it.dirty.subject);
    let keys: Vec<(i64, i64)> = finals.iter().map(|(it, _)| of(it)).collect();
    let before = times(transaction, &keys).await?;
    let numbers = numbers(transaction, &keys).await?;
    let nothing = Times::new();
    let mut rows = Vec::new();
    for (computed, why) in finals {
        let key = of(computed);
        let number = numbers.get(&key).map_or(1, |last| last + 1);
        let old = before.get(&key).unwrap_or(&nothing);
        for (codes, delta) in differences(old, &computed_times(computed)) {
            rows.push((key, number, codes, delta, why.words()));
        }
    }
    let ints = |of: &dyn Fn(&Row) -> i64| Column::Ints(rows.iter().map(of).collect());
    let columns = [
        ints(&|it| it.0.0),
        ints(&|it| it.0.1),
        ints(&|it| it.1),
        ints(&|it| it.2[0]),
        ints(&|it| it.2[1]),
        ints(&|it| it.2[2]),
        ints(&|it| it.3.0),
        Column::OptionalInts(rows.iter().map(|it| it.3.1).collect()),
        ints(&|_| now.millis()),
        Column::Texts(rows.iter().map(|it| it.4).collect()),
    ];
    let before = "INSERT INTO ledger_correction (hour, subject, number, holder, state, reason,
        time_ms, cost_nano_usd, computed_ms, why)";
    let written = transaction.rows(before, &columns, "").await;
    written.doing("writing corrections").map(|_| ())
}

/// A row to be written: (hour, resource), number, codes, time and cost, why.
type Row = ((i64, i64), i64, [i64; 3], (i64, Option<i64>), &'static str);

fn computed_times(computed: &ComputedHour) -> Times {
    let held = computed.held.iter();
    held.map(|((holder, state, reason), held)| {
        ([*holder, state.code(), reason.code()], (held.millis, None))
    })
    .collect()
}

/// What must be added to `old` for it to become `new`.
fn differences(old: &Times, new: &Times) -> Times {
    let mut codes: Vec<[i64; 3]> = old.keys().chain(new.keys()).copied().collect();
    codes.sort_unstable();
    codes.dedup();
    let mut found = Times::new();
    for code in codes {
        let (before, after) = (old.get(&code), new.get(&code));
        if before == after {
            continue;
        }
        let part = |it: Option<&(i64, Option<i64>)>| it.copied().unwrap_or((0, Some(0)));
        let ((was, cost_was), (is, cost_is)) = (part(before), part(after));
        let cost = cost_is.zip(cost_was).map(|(is, was)| is - was);
        found.insert(code, (is - was, cost));
    }
    found
}

/// The time of hours as it stands.
async fn times(
    transaction: &mut Transaction,
    keys: &[(i64, i64)],
) -> Result<HashMap<(i64, i64), Times>, StoreError> {
    let doing = "reading hours that are restated";
    let after =
        ") SELECT t.hour, t.subject, t.holder, t.state, t.reason, t.time_ms, t.cost_nano_usd
        FROM k CROSS JOIN ledger_time t WHERE t.hour = k.hour AND t.subject = k.subject";
    let rows = transaction.rows(KEYS, &key_columns(keys), after).await;
    let mut found: HashMap<_, Times> = HashMap::new();
    for row in rows.doing(doing)? {
        let int = |index: usize| row.int(index).doing(doing);
        let part = (int(5)?, row.optional_int(6).doing(doing)?);
        let times = found.entry((int(0)?, int(1)?)).or_default();
        times.insert([int(2)?, int(3)?, int(4)?], part);
    }
    Ok(found)
}

/// The number of the last restatement of hours that have one.
async fn numbers(
    transaction: &mut Transaction,
    keys: &[(i64, i64)],
) -> Result<HashMap<(i64, i64), i64>, StoreError> {
    let doing = "reading corrections";
    let after = ") SELECT c.hour, c.subject, MAX(c.number) FROM k CROSS JOIN ledger_correction c
        WHERE c.hour = k.hour AND c.subject = k.subject GROUP BY c.hour, c.subject";
    let rows = transaction.rows(KEYS, &key_columns(keys), after).await;
    let mut found = HashMap::new();
    for row in rows.doing(doing)? {
        let int = |index: usize| row.int(index).doing(doing);
        found.insert((int(0)?, int(1)?), int(2)?);
    }
    Ok(found)
}

const KEYS: &str = "WITH k (hour, subject) AS (";

fn key_columns(keys: &[(i64, i64)]) -> [Column<'static>; 2] {
    [
        Column::Ints(keys.iter().map(|it| it.0).collect()),
        Column::Ints(keys.iter().map(|it| it.1).collect()),
    ]
}
