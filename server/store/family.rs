//! Cards that are cut and what they are cut into, for the hours that are computed: when one of them is not there
//! because the others are, and whose hours are to be computed again when data of one comes late.
//!
//! Limits: the hours of a card and of its shares are computed each by itself, from the minutes of all of them. While
//! an hour is not final each is computed every few minutes anyhow; once it is, those of the others are marked.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::states::{Policy, Relative, away, family_minutes};
use gpufleet_telemetry::identity::{ResourceKind, attribute};
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::time::Minute;

use super::aside::Unreadable;
use super::database::{Column, Transaction};
use super::error::{Doing, StoreError};
use super::ledger::Inputs;
use super::{minutes, subjects};

/// Of which hour of which resource others are of the same card: (hour, resource) → (other, whether it is a share).
type Families = BTreeMap<(i64, i64), Vec<(i64, bool)>>;

/// The shares of the card that is asked for, or that the share that is asked for is a part of. Seen is told an hour
/// late at most, and the hour before counts.
const SHARES: &str =
    ") SELECT k.hour, k.subject, s.id, CAST(1 AS BIGINT) FROM k CROSS JOIN subject m
    JOIN subject s ON s.cluster = m.cluster
        AND s.parent = CASE WHEN m.kind = 'gpu' THEN m.resource_id ELSE m.parent END
    JOIN subject_seen n ON n.subject = s.id
    WHERE m.id = k.subject AND m.kind IN ('gpu', 'share') AND s.lease = m.lease AND s.kind = 'share'
    AND s.id <> m.id AND s.first_seen_ms < (k.hour + 2) * 3600000
    AND n.last_seen_ms >= (k.hour - 2) * 3600000";

/// The card of the share that is asked for.
const CARD: &str = ") SELECT k.hour, k.subject, s.id, CAST(0 AS BIGINT) FROM k CROSS JOIN subject m
    JOIN subject s ON s.lease = m.lease AND s.cluster = m.cluster AND s.kind = 'gpu'
        AND s.resource_id = m.parent
    WHERE m.id = k.subject AND m.kind = 'share'";

/// Tells each hour when its resource was not there, and of whose family it is.
pub(super) async fn read(
    transaction: &mut Transaction,
    inputs: &mut Inputs,
    bad: &mut Vec<Unreadable>,
) -> Result<(), StoreError> {
    let mut families = Families::new();
    for sql in [SHARES, CARD] {
        find(transaction, inputs, sql, &mut families).await?;
    }
    let mut asked: BTreeSet<(i64, i64)> = BTreeSet::new();
    for ((hour, subject), others) in &families {
        let members = others.iter().map(|it| it.0).chain([*subject]);
        for member in members {
            asked.extend(family_minutes(*hour).map(|minute| (minute, member)));
        }
    }
    let (wanted, of) = asked.into_iter().unzip();
    let mut rows: BTreeMap<i64, BTreeMap<Minute, MinuteRow>> = BTreeMap::new();
    for (minute, subject, row) in minutes::read(transaction, wanted, of, bad).await? {
        let of_subject = rows.entry(subject).or_default();
        of_subject.insert(Minute(minute), row);
    }
    let doing = "reading which GPUs are shared";
    let ids = families.values().flatten().map(|it| it.0);
    let known = subjects::known(transaction, ids, doing, bad).await?;
    let policy = Policy::default();
    for ((hour, subject), others) in families {
        let Some(input) = inputs.get_mut(&(hour, subject)) else {
            continue;
        };
        let of_hour = |subject: i64| -> BTreeMap<Minute, MinuteRow> {
            let range = family_minutes(hour);
            let rows = rows.get(&subject);
            let rows = rows.map(|it| it.range(Minute(range.start)..Minute(range.end)));
            let rows = rows.into_iter().flatten();
            rows.map(|(minute, row)| (*minute, row.clone())).collect()
        };
        let key = &input.resource.key;
        let is_share = key.kind == ResourceKind::Share;
        let is_replica_of_it = |other: i64| {
            let other = known.get(&other);
            let of = other.and_then(|it| it.resource.attribute(attribute::REPLICA_OF));
            of == Some(&*key.id)
        };
        let relatives = others.iter().map(|(other, is_part)| Relative {
            minutes: of_hour(*other),
            is_part: *is_part && (!is_share || is_replica_of_it(*other)),
        });
        let relatives: Vec<Relative> = relatives.collect();
        input.away = away(hour, (&of_hour(subject), is_share), &relatives, &policy);
        input.family = others.into_iter().map(|it| it.0).collect();
    }
    Ok(())
}

async fn find(
    transaction: &mut Transaction,
    inputs: &Inputs,
    sql: &str,
    families: &mut Families,
) -> Result<(), StoreError> {
    let doing = "reading which GPUs are shared";
    let columns = [
        Column::Ints(inputs.keys().map(|(hour, _)| *hour).collect()),
        Column::Ints(inputs.keys().map(|(_, subject)| *subject).collect()),
    ];
    let rows = transaction
        .rows("WITH k (hour, subject) AS (", &columns, sql)
        .await;
    for row in rows.doing(doing)? {
        let of = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        let other = (row.int(2).doing(doing)?, row.int(3).doing(doing)? != 0);
        families.entry(of).or_default().push(other);
    }
    Ok(())
}
