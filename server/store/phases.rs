//! In which phase nodes were since when: what is written of it once, and read again for the hours of their
//! GPUs, so that an hour that is over is computed the same whenever that is.
//!
//! A phase is from when it was seen, and only what differs from the phase before is written. What comes when
//! hours that it changes are final marks them, the last [`MAX_HOURS`] of them.
//!
//! Nor does it outlive who watches: what is told of a node ends with the last look where no look followed
//! within [`UNWATCHED_NS`], and begins again with the next look ([`unwatched`]). What was written over such a time
//! by an older server stays as it is.
//!
//! Numbers: one look into an index for each node and hour of a round. Which node of the cluster is the one
//! that an agent tells of, its name says, else [`Names`]; only then the names of its other nodes are read.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::inventory::{Phase, Record};
use gpufleet_analysis::ledger::MILLIS_PER_HOUR;
use gpufleet_analysis::states::LOOKAHEAD_MINUTES;
use gpufleet_telemetry::identity::attribute;
use gpufleet_telemetry::time::Timestamp;

use super::database::{Column, Transaction, Value};
use super::error::{Doing, StoreError};
use super::ledger::Inputs;
use super::minutes::{self, Marks};
use super::restate::Why;
use super::{Store, inventory, subjects};
use crate::inventory::known::UNWATCHED_NS;
use crate::inventory::names::{Names, short};

/// Most hours of a GPU that are computed again for what became known of its node late.
const MAX_HOURS: i64 = 48;

/// What became different of nodes.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Node, from when in Unix milliseconds, and its phase.
    phases: Vec<(String, i64, Phase)>,
    /// Final hours that it changes.
    marks: Marks,
}

/// A node as an hour asks for it: its cluster, its name as the agent tells it, and the hour.
type Asked = (String, String, i64);

/// Phases by node, as the cluster names it.
type ByNode = BTreeMap<String, Vec<(i64, Phase)>>;

impl Store {
    /// What of these nodes is not written yet.
    pub(super) async fn phase_news(
        &self,
        cluster: &str,
        records: &[Record],
    ) -> Result<News, StoreError> {
        let mut transaction = self.read().await?;
        let before = in_force(&mut transaction, &self.0.lease, cluster, records).await?;
        let (mut news, mut late) = (News::default(), BTreeMap::new());
        for record in records {
            let (from_ms, phase) = (seen_from(record), record.told_phase());
            let name = &record.node.name;
            let known = before.get(name).copied();
            if known == Some(phase) {
                continue;
            }
            news.phases.push((name.clone(), from_ms, phase));
            if known.is_some_and(is_told) || is_told(phase) {
                late.insert(short(name).to_owned(), from_ms.div_euclid(MILLIS_PER_HOUR));
            }
        }
        if late.is_empty() {
            return Ok(news);
        }
        let doing = "reading which hours are final";
        let sql = "SELECT hour FROM ledger_hour WHERE is_final = 1 ORDER BY hour DESC LIMIT 1";
        let last = transaction.fetch_int(sql, &[]).await.doing(doing)?;
        let last = last.unwrap_or(i64::MIN);
        late.retain(|_, hour| *hour <= last);
        if !late.is_empty() {
            let kept = minutes::horizon(&mut transaction, &self.0.lease).await?;
            let first = (last - MAX_HOURS + 1).max(kept.div_euclid(60));
            news.marks = marks(
                &mut transaction,
                (&self.0.lease, cluster),
                &late,
                first..last + 1,
            )
            .await?;
        }
        Ok(news)
    }
}

/// Ends at the last look what was told of nodes then, and begins it again with this one, where nobody watched
/// between both.
pub(super) async fn unwatched(
    transaction: &mut Transaction,
    (lease, cluster): (&str, &str),
    seen: Timestamp,
) -> Result<(), StoreError> {
    let doing = "writing that nodes were not watched";
    let Some(last) = inventory::seen(transaction, lease, cluster).await? else {
        return Ok(());
    };
    if seen.since(last) <= UNWATCHED_NS {
        return Ok(());
    }
    let values = [
        Value::Text(lease),
        Value::Text(cluster),
        Value::Int(last.millis()),
        Value::Int(seen.millis()),
        Value::Text(Phase::Starting.name()),
    ];
    // What was seen at this look already has a row of its own. The second is without effect on the first.
    for (from, until, phase) in [("$4", "$4", "p.phase"), ("$3", "$3", "$5")] {
        let sql = format!(
            "INSERT INTO inventory_phase (lease, cluster, short, node, from_ms, phase)
             SELECT p.lease, p.cluster, p.short, p.node, {from}, {phase} FROM inventory_phase p
             WHERE p.lease = $1 AND p.cluster = $2 AND p.from_ms <= $3
             AND p.phase IN ('not_ready', 'cordoned') AND $4 > $3 AND $5 <> ''
             AND NOT EXISTS (SELECT 1 FROM inventory_phase b WHERE b.lease = p.lease
                AND b.cluster = p.cluster AND b.short = p.short AND b.node = p.node
                AND b.from_ms > p.from_ms AND b.from_ms <= {until})
             ON CONFLICT (lease, cluster, short, node, from_ms) DO UPDATE
             SET phase = excluded.phase"
        );
        transaction.execute(&sql, &values).await.doing(doing)?;
    }
    Ok(())
}

/// What is told of a node, with what nobody saw left out: from the last look on it is not known.
fn as_seen(phases: &mut Vec<(i64, Phase)>, seen_ms: i64) {
    let seen = phases.partition_point(|it| it.0 <= seen_ms);
    if seen > 0 && is_told(phases[seen - 1].1) {
        phases.insert(seen, (seen_ms, Phase::Starting));
    }
    if let Some((from_ms, phase)) = phases.last().copied()
        && is_told(phase)
    {
        phases.push((from_ms, Phase::Starting));
    }
}

/// Whether time in it is told apart from time in which the node takes work.
fn is_told(phase: Phase) -> bool {
    matches!(phase, Phase::NotReady | Phase::Cordoned)
}

/// Since when it was seen to be in its phase: of what was before it was first seen nobody knows that.
fn seen_from(record: &Record) -> i64 {
    record.phase_since.max(record.first_seen).millis()
}

/// The phase that is written of each node for when its phase began.
async fn in_force(
    transaction: &mut Transaction,
    lease: &str,
    cluster: &str,
    records: &[Record],
) -> Result<BTreeMap<String, Phase>, StoreError> {
    let doing = "reading phases of nodes";
    let names = || records.iter().map(|it| it.node.name.as_str());
    let columns = [
        Column::Texts(vec![lease; records.len()]),
        Column::Texts(vec![cluster; records.len()]),
        Column::Texts(names().map(short).collect()),
        Column::Texts(names().collect()),
        Column::Ints(records.iter().map(seen_from).collect()),
    ];
    let after = ") SELECT p.node, p.phase FROM k CROSS JOIN inventory_phase p
        WHERE p.lease = k.lease AND p.cluster = k.cluster AND p.short = k.short AND p.node = k.node
        AND p.from_ms = (SELECT MAX(b.from_ms) FROM inventory_phase b
            WHERE b.lease = k.lease AND b.cluster = k.cluster AND b.short = k.short
            AND b.node = k.node AND b.from_ms <= k.from_ms)";
    let before = "WITH k (lease, cluster, short, node, from_ms) AS (";
    let rows = transaction.rows(before, &columns, after).await;
    let mut found = BTreeMap::new();
    for row in rows.doing(doing)? {
        let phase = Phase::named(row.text(1).doing(doing)?);
        let node = row.text(0).doing(doing)?.to_owned();
        found.extend(phase.map(|it| (node, it)));
    }
    Ok(found)
}

/// Marks of the hours of a range from when on something became different of the node of each GPU.
async fn marks(
    transaction: &mut Transaction,
    (lease, cluster): (&str, &str),
    late: &BTreeMap<String, i64>,
    hours: std::ops::Range<i64>,
) -> Result<Marks, StoreError> {
    let doing = "reading GPUs of nodes";
    let sql = format!(
        "SELECT {} FROM subject s LEFT JOIN subject_seen n ON n.subject = s.id
         WHERE s.lease = $1 AND s.cluster = $2 AND s.kind IN ('gpu', 'share')",
        subjects::COLUMNS
    );
    let values = [Value::Text(lease), Value::Text(cluster)];
    let mut marks = Marks::new();
    let take = |row: super::database::Row| {
        let id = row.int(0)?;
        // What cannot be read of it, the ledger sets aside.
        let read = subjects::read(&row, &mut Vec::new()).ok().flatten();
        let node = read
            .as_ref()
            .and_then(|it| it.resource.attribute(attribute::NODE));
        if let Some(first) = node.and_then(|it| late.get(short(it))) {
            let changed = hours.start.max(*first)..hours.end;
            marks.extend(changed.map(|hour| ((hour, id), (0, Why::DATA))));
        }
        Ok(())
    };
    transaction.each(&sql, &values, take).await.doing(doing)?;
    Ok(marks)
}

/// Writes what became different of nodes, and marks the hours that it changes.
pub(super) async fn write(
    transaction: &mut Transaction,
    lease: &str,
    cluster: &str,
    news: &News,
) -> Result<(), StoreError> {
    let phases = &news.phases;
    let columns = [
        Column::Texts(vec![lease; phases.len()]),
        Column::Texts(vec![cluster; phases.len()]),
        Column::Texts(phases.iter().map(|it| short(&it.0)).collect()),
        Column::Texts(phases.iter().map(|it| it.0.as_str()).collect()),
        Column::Ints(phases.iter().map(|it| it.1).collect()),
        Column::Texts(phases.iter().map(|it| it.2.name()).collect()),
    ];
    let before = "INSERT INTO inventory_phase (lease, cluster, short, node, from_ms, phase)";
    let after = "ON CONFLICT (lease, cluster, short, node, from_ms) DO UPDATE
        SET phase = excluded.phase";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing phases of nodes")?;
    minutes::mark_hours(transaction, &news.marks, rand::random()).await
}

/// Hands each hour its node and the phases of it.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    inputs: &mut Inputs,
) -> Result<(), StoreError> {
    let mut of: BTreeMap<Asked, Vec<(i64, i64)>> = BTreeMap::new();
    for (key, input) in inputs.iter() {
        if let Some(node) = input.resource.resource.attribute(attribute::NODE) {
            let cluster = input.resource.key.cluster.to_string();
            let asked = (cluster, node.to_owned(), key.0);
            of.entry(asked).or_default().push(*key);
        }
    }
    let asked: Vec<&Asked> = of.keys().collect();
    let mut found = alike(transaction, lease, &asked).await?;
    let is_doubtful = |at: &usize| {
        found
            .get(at)
            .is_some_and(|it| !it.contains_key(&asked[*at].1))
    };
    let doubtful: Vec<usize> = (0..asked.len()).filter(is_doubtful).collect();
    let told = told_alike(transaction, lease, &asked, &doubtful).await?;
    let clusters: BTreeSet<&str> = found.keys().map(|at| asked[*at].0.as_str()).collect();
    let mut seen: BTreeMap<&str, i64> = BTreeMap::new();
    for cluster in clusters {
        let last = inventory::seen(transaction, lease, cluster).await?;
        seen.extend(last.map(|it| (cluster, it.millis())));
    }
    for (at, (node, keys)) in of.iter().map(|(asked, keys)| (&asked.1, keys)).enumerate() {
        let Some(mut by_node) = found.remove(&at) else {
            continue;
        };
        let listed = match by_node.contains_key(node) {
            true => Some(node.clone()),
            false => same(node, &by_node, told.get(&at)),
        };
        let Some((listed, mut phases)) = listed.and_then(|it| by_node.remove_entry(&it)) else {
            continue;
        };
        if let Some(seen_ms) = seen.get(asked[at].0.as_str()) {
            as_seen(&mut phases, *seen_ms);
        }
        for key in keys {
            let input = inputs.get_mut(key).expect("it is one of them");
            input.around.phases.clone_from(&phases);
            input.around.node = Some(listed.clone());
        }
    }
    Ok(())
}

/// The node of the cluster that an agent tells of under another name; none where it could be one of several.
fn same(node: &str, by_node: &ByNode, told: Option<&BTreeSet<String>>) -> Option<String> {
    let mut names = Names::default();
    names.tell(node);
    told.into_iter().flatten().for_each(|it| names.tell(it));
    by_node.keys().for_each(|it| names.list(it));
    let mut listed = by_node.keys();
    listed.find(|it| names.told_of(it).contains(&node)).cloned()
}

/// Phases of all nodes whose name is the same without its domain, by the place of who asks.
async fn alike(
    transaction: &mut Transaction,
    lease: &str,
    asked: &[&Asked],
) -> Result<BTreeMap<usize, ByNode>, StoreError> {
    let doing = "reading phases of nodes";
    let until = |hour: i64| (hour + 1) * MILLIS_PER_HOUR + LOOKAHEAD_MINUTES * 60_000;
    let columns = [
        Column::Ints((0_i64..).take(asked.len()).collect()),
        Column::Texts(vec![lease; asked.len()]),
        Column::Texts(asked.iter().map(|it| it.0.as_str()).collect()),
        Column::Texts(asked.iter().map(|it| short(&it.1)).collect()),
        Column::Ints(asked.iter().map(|it| it.2 * MILLIS_PER_HOUR).collect()),
        Column::Ints(asked.iter().map(|it| until(it.2)).collect()),
    ];
    let after = ") SELECT k.place, p.node, p.from_ms, p.phase FROM k CROSS JOIN inventory_phase p
        WHERE p.lease = k.lease AND p.cluster = k.cluster AND p.short = k.short
        AND p.from_ms < k.until_ms AND p.from_ms >= COALESCE((SELECT MAX(b.from_ms)
            FROM inventory_phase b WHERE b.lease = p.lease AND b.cluster = p.cluster
            AND b.short = p.short AND b.node = p.node AND b.from_ms <= k.start_ms), k.start_ms)
        ORDER BY k.place, p.node, p.from_ms";
    let before = "WITH k (place, lease, cluster, short, start_ms, until_ms) AS (";
    let rows = transaction.rows(before, &columns, after).await;
    let mut found: BTreeMap<usize, ByNode> = BTreeMap::new();
    for row in rows.doing(doing)? {
        let at = usize::try_from(row.int(0).doing(doing)?).unwrap_or(usize::MAX);
        let node = row.text(1).doing(doing)?.to_owned();
        let from_ms = row.int(2).doing(doing)?;
        let Some(phase) = Phase::named(row.text(3).doing(doing)?) else {
            tracing::error!(node, "a phase of a node is not known; it is left out");
            continue;
        };
        let of_node = found.entry(at).or_default().entry(node).or_default();
        of_node.push((from_ms, phase));
    }
    Ok(found)
}

/// The names that agents tell, which are the same as those of some places without their domain.
async fn told_alike(
    transaction: &mut Transaction,
    lease: &str,
    asked: &[&Asked],
    places: &[usize],
) -> Result<BTreeMap<usize, BTreeSet<String>>, StoreError> {
    let doing = "reading names of nodes";
    let columns = [
        Column::Ints((0_i64..).take(places.len()).collect()),
        Column::Texts(vec![lease; places.len()]),
        Column::Texts(places.iter().map(|at| asked[*at].0.as_str()).collect()),
        Column::Texts(places.iter().map(|at| short(&asked[*at].1)).collect()),
    ];
    let after = ") SELECT k.place, s.resource_id FROM k CROSS JOIN subject s
        WHERE s.lease = k.lease AND s.cluster = k.cluster AND s.kind = 'node'
        AND (s.resource_id = k.short
            OR substr(s.resource_id, 1, length(k.short) + 1) = k.short || '.')";
    let before = "WITH k (place, lease, cluster, short) AS (";
    let rows = transaction.rows(before, &columns, after).await;
    let mut found: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for row in rows.doing(doing)? {
        let at = usize::try_from(row.int(0).doing(doing)?).unwrap_or(usize::MAX);
        if let Some(place) = places.get(at) {
            let name = row.text(1).doing(doing)?.to_owned();
            found.entry(*place).or_default().insert(name);
        }
    }
    Ok(found)
}
