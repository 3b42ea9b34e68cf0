//! When the runs of GPUs' holders stood still, by the incidents that are kept of it: handed to the hours of their GPUs,
//! and hours that such an incident changes after they were computed are computed again.
//!
//! Many runs that stand for one cause are one incident, which says of each when it stood.
//!
//! Limits: [`MAX_HANGS`] incidents of a round, those that are open or ended last; hours of [`MAX_HOURS`] back are marked,
//! as far as minutes are kept.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_analysis::incident::{Family, Incident};
use gpufleet_analysis::ledger::MILLIS_PER_HOUR;
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::states::{LOOKAHEAD_MINUTES, Span};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{JobId, RunId};

use super::database::{Transaction, Value};
use super::error::{Doing, StoreError};
use super::ledger::Inputs;
use super::minutes::{self, Marks};
use super::restate::Why;
use super::{Store, holders};

/// Most incidents that are read: a hundred runs that stand at once, each time it comes back.
const MAX_HANGS: usize = 1_000;

/// Most hours that are computed again for one incident, as with what becomes known of nodes late.
const MAX_HOURS: i64 = 48;

/// Runs that stood still for one cause: one, or many of a cluster.
struct Stood {
    cluster: String,
    runs: Vec<(JobId, Vec<Span>)>,
}

impl Stood {
    /// What an incident says of them; none where it is about no run that stands.
    fn of(incident: &Incident) -> Option<Self> {
        let span = |(from, until): (_, Option<_>)| Span {
            from_s: Timestamp::seconds(from),
            until_s: until.map_or(i64::MAX, Timestamp::seconds),
        };
        let stood = incident.stood().into_iter();
        let runs = stood.filter_map(|(run, spans)| {
            let spans = spans.into_iter().map(span).collect();
            Some((RunId::parse(run).ok()?.job, spans))
        });
        let runs: Vec<(JobId, Vec<Span>)> = runs.collect();
        (!runs.is_empty()).then(|| Self {
            cluster: incident.place.cluster.clone(),
            runs,
        })
    }

    /// When a holder's run stood by this.
    fn of_holder(&self, holder: &Holder) -> impl Iterator<Item = Span> {
        let its = self.runs.iter().filter(|(job, _)| holder.is_of(job));
        its.flat_map(|(_, spans)| spans.iter().copied())
    }
}

/// Hands each hour when the runs of its holders stood.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    inputs: &mut Inputs,
) -> Result<(), StoreError> {
    let named = inputs.values().filter(|it| !it.around.holders.is_empty());
    let hours: Vec<i64> = named.map(|it| it.dirty.hour).collect();
    let (Some(first), Some(last)) = (hours.iter().min(), hours.iter().max()) else {
        return Ok(());
    };
    let until_ms = (last + 1) * MILLIS_PER_HOUR + LOOKAHEAD_MINUTES * 60_000;
    let all = stood(transaction, lease, (first * MILLIS_PER_HOUR, until_ms)).await?;
    for input in inputs.values_mut() {
        let cluster = &*input.resource.key.cluster;
        let here = || all.iter().filter(|it| it.cluster == cluster);
        for (number, holder) in &input.around.holders {
            let spans: Vec<Span> = here().flat_map(|it| it.of_holder(holder)).collect();
            if !spans.is_empty() {
                input.around.standing.insert(*number, spans);
            }
        }
    }
    Ok(())
}

/// The runs that stood still in a time.
async fn stood(
    transaction: &mut Transaction,
    lease: &str,
    (from_ms, until_ms): (i64, i64),
) -> Result<Vec<Stood>, StoreError> {
    let doing = "reading which runs stood still";
    let mut found = Vec::new();
    // Those that are open have no end; asked for apart, so that the index finds both.
    for when in ["i.resolved_ms = 0 AND $3 = $3", "i.resolved_ms >= $3"] {
        let sql = format!(
            "SELECT i.data FROM incident i WHERE i.lease = $1 AND i.family = $2 AND {when}
             AND i.since_ms < $4 ORDER BY i.resolved_ms DESC, i.id LIMIT {MAX_HANGS}"
        );
        let values = [
            Value::Text(lease),
            Value::Text(Family::Hang.name()),
            Value::Int(from_ms),
            Value::Int(until_ms),
        ];
        let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
        if rows.len() == MAX_HANGS {
            tracing::warn!(
                from_ms,
                "more runs stood still than are read: some of it is idle"
            );
        }
        for row in &rows {
            // What cannot be read is named in the log by who reads incidents.
            let read = serde_json::from_slice(row.bytes(0).doing(doing)?).ok();
            found.extend(read.as_ref().and_then(Stood::of));
        }
    }
    Ok(found)
}

impl Store {
    /// The hours that were computed and that these incidents change.
    pub(super) async fn changed_by(&self, incidents: &[Incident]) -> Result<Marks, StoreError> {
        let all: Vec<Stood> = incidents.iter().filter_map(Stood::of).collect();
        let mut marks = Marks::new();
        if all.is_empty() {
            return Ok(marks);
        }
        let mut transaction = self.read().await?;
        let doing = "reading which hours are computed";
        let sql = "SELECT hour FROM ledger_hour ORDER BY hour DESC LIMIT 1";
        let last = transaction.fetch_int(sql, &[]).await.doing(doing)?;
        let last = last.unwrap_or(i64::MIN);
        let kept = minutes::horizon(&mut transaction, &self.0.lease).await?;
        let least = last.saturating_sub(MAX_HOURS - 1).max(kept.div_euclid(60));
        for it in &all {
            // From the first on: an end that moved changes what comes after it.
            let spans = it.runs.iter().flat_map(|(_, spans)| spans);
            let first = spans.map(|it| it.from_s).min().unwrap_or(i64::MAX);
            let first = first.div_euclid(MILLIS_PER_HOUR / 1_000).max(least);
            let changed = self.held_by(&mut transaction, it, (first, last)).await?;
            marks.extend(changed.into_iter().map(|key| (key, (0, Why::DATA))));
        }
        Ok(marks)
    }

    /// The hours, with their resource, in which one of its jobs held something.
    async fn held_by(
        &self,
        transaction: &mut Transaction,
        it: &Stood,
        (first, last): (i64, i64),
    ) -> Result<Vec<(i64, i64)>, StoreError> {
        let doing = "reading which hours a run held";
        let sql = "SELECT t.hour, t.subject, t.holder FROM ledger_time t
            JOIN subject s ON s.id = t.subject
            WHERE t.hour >= $1 AND t.hour <= $2 AND t.holder <> 0 AND s.lease = $3 AND s.cluster = $4";
        let values = [
            Value::Int(first),
            Value::Int(last),
            Value::Text(&self.0.lease),
            Value::Text(&it.cluster),
        ];
        let mut of_holder: BTreeMap<i64, BTreeSet<(i64, i64)>> = BTreeMap::new();
        for row in transaction.fetch(sql, &values).await.doing(doing)? {
            let key = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
            let holder = row.int(2).doing(doing)?;
            of_holder.entry(holder).or_default().insert(key);
        }
        let numbers = of_holder.keys().copied().collect();
        let known = holders::named(transaction, &self.0.lease, &numbers).await?;
        let is_its = |number: &i64| {
            let holder = known.get(number);
            holder.is_some_and(|holder| it.of_holder(holder).next().is_some())
        };
        of_holder.retain(|number, _| is_its(number));
        Ok(of_holder.into_values().flatten().collect())
    }
}
