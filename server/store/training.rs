//! Who the holders of an hour are, and which of them train: those of whose name a run was heard in that hour, and those
//! that were made to.
//!
//! Limits: [`MAX_RUNS`] runs of an hour, those heard first after it began, whatever else is in the round. When a run was heard stands some
//! minutes behind in its row while it runs ([`BEHIND_MS`]).

use std::collections::{BTreeSet, HashMap};

use gpufleet_analysis::ledger::MILLIS_PER_HOUR;
use gpufleet_analysis::owner::Holder;
use gpufleet_telemetry::training::JobId;

use super::database::{Transaction, Value};
use super::error::{Doing, StoreError};
use super::holders;
use super::ledger::Inputs;

/// Most runs that are read: as a month's report reads.
const MAX_RUNS: usize = 20_000;

/// So far the row of a run that goes on may be behind, milliseconds.
const BEHIND_MS: i64 = 600_000;

/// Hands each hour its holders, and which of them train.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    inputs: &mut Inputs,
) -> Result<(), StoreError> {
    let rows = inputs.values().flat_map(|it| it.minutes.values());
    let numbers: BTreeSet<i64> = rows.flat_map(|it| it.holders.keys().copied()).collect();
    if numbers.is_empty() {
        return Ok(());
    }
    let holders = holders::named(transaction, lease, &numbers).await?;
    let hours: BTreeSet<i64> = inputs.keys().map(|it| it.0).collect();
    let mut runs_of = HashMap::new();
    for hour in hours {
        let time = (hour * MILLIS_PER_HOUR, (hour + 1) * MILLIS_PER_HOUR);
        runs_of.insert(hour, runs(transaction, lease, time).await?);
    }
    for ((hour, _), input) in inputs.iter_mut() {
        let rows = input.minutes.values();
        let met = rows.flat_map(|it| it.holders.keys());
        let met = met.filter_map(|it| Some((*it, holders.get(it)?.clone())));
        input.around.holders = met.collect();
        let cluster = input.resource.key.cluster.to_string();
        let trains = |holder: &Holder| {
            let key = (cluster.clone(), holder.job_name().to_owned());
            let mut named = runs_of[hour].get(&key).into_iter().flatten();
            holder.is_made_to_train() || named.any(|job| holder.is_of(job))
        };
        let training = input.around.holders.iter().filter(|it| trains(it.1));
        input.around.training = training.map(|it| *it.0).collect();
    }
    Ok(())
}

/// The jobs of runs that were heard in a time, by cluster and their name.
async fn runs(
    transaction: &mut Transaction,
    lease: &str,
    (first_ms, end_ms): (i64, i64),
) -> Result<HashMap<(String, String), Vec<JobId>>, StoreError> {
    let doing = "reading which jobs train";
    let sql = format!(
        "SELECT r.cluster, r.job FROM run r
         WHERE r.lease = $1 AND r.heard_ms >= $2 AND r.started_ms < $3
         ORDER BY r.heard_ms, r.id LIMIT {MAX_RUNS}"
    );
    let values = [
        Value::Text(lease),
        Value::Int(first_ms - BEHIND_MS),
        Value::Int(end_ms),
    ];
    let rows = transaction.fetch(&sql, &values).await.doing(doing)?;
    if rows.len() == MAX_RUNS {
        tracing::warn!(
            first_ms,
            "more runs than are read in an hour: some of what trains may be unrated"
        );
    }
    let mut found: HashMap<(String, String), Vec<JobId>> = HashMap::new();
    for row in &rows {
        // One whose name cannot be read is named in the log by who reads runs.
        let Ok(job) = JobId::parse(row.text(1).doing(doing)?) else {
            continue;
        };
        let key = (row.text(0).doing(doing)?.to_owned(), job.name.clone());
        found.entry(key).or_default().push(job);
    }
    Ok(found)
}
