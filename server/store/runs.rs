//! Runs and their ranks: replaced as they are told, read by time or by name.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpufleet_analysis::ending::Cause;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::{JobId, RunId};
use serde::de::DeserializeOwned;

use super::aside::{self, Place, Unreadable};
use super::attempts::IS_LAST;
use super::database::{Column, Database, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::retain::RUNS_HORIZON;
use super::{Store, horizon};
use crate::runs::{KnownRun, RankFacts, RunFacts, RunKey};

/// Most runs in one answer.
pub const MAX_RUNS_READ: usize = 1_000;

/// Columns of a run as [`id_and_key`] takes them.
const NAME: &str = "r.id, r.cluster, r.job, r.attempt";

/// Columns of a run as [`read`] takes them.
const COLUMNS: &str = "r.id, r.cluster, r.job, r.attempt, r.heard_ms, r.facts";

/// Which runs are asked for. Empty fields ask for all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunFilter {
    /// Of this cluster.
    pub cluster: Option<Arc<str>>,
    /// Attempts of this job.
    pub job: Option<JobId>,
    /// Of jobs that have this one's namespace and name, whatever their uid.
    pub name_of: Option<JobId>,
    /// Of jobs of this name, whatever their namespace and uid.
    pub called: Option<String>,
    /// Of each job its last attempt only.
    pub only_last: bool,
    /// Heard of since then.
    pub heard_since: Option<Timestamp>,
    /// Ended by this.
    pub cause: Option<Cause>,
    /// Ended against everyone's will.
    pub only_interrupted: bool,
}

impl Store {
    /// The names of runs, the last started first, and whether these are all. Of a run no more than its name is read.
    ///
    /// # Errors
    /// When the database refuses. A name that cannot be read is left out.
    pub async fn run_names(
        &self,
        filter: &RunFilter,
        most: usize,
    ) -> Result<(Vec<RunKey>, bool), StoreError> {
        let (select, page) = (format!("SELECT {NAME}"), (None, most + 1));
        let rows = page_of(&self.0.database, &select, &self.0.lease, filter, page).await;
        let rows = rows.doing("reading names of runs")?;
        let names = rows.iter().take(most);
        let names = names.filter_map(|row| id_and_key(row).transpose());
        let keys = names.map(|it| it.map(|(_, key)| key));
        Ok((keys.collect::<Result<_, _>>()?, rows.len() <= most))
    }

    /// The keys of those that are `asked` for, as [`Self::made_of_runs`] finds them.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn run_keys(
        &self,
        filter: &RunFilter,
        after: Option<(i64, i64)>,
        most: usize,
        asked: impl Fn(&KnownRun) -> bool,
    ) -> Result<(Vec<RunKey>, bool), StoreError> {
        let key = move |it: KnownRun| asked(&it).then_some(it.key);
        self.made_of_runs(filter, after, most, key).await
    }

    /// What is made of runs, of those of which something is, the last started first, from behind `after` on; pages are
    /// read until `most` runs were looked at. And whether these are all: else nobody looked at the others.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn made_of_runs<T>(
        &self,
        filter: &RunFilter,
        mut after: Option<(i64, i64)>,
        most: usize,
        make: impl Fn(KnownRun) -> Option<T>,
    ) -> Result<(Vec<T>, bool), StoreError> {
        let (mut made, mut looked_at) = (Vec::new(), 0);
        while looked_at < most {
            let (page, next) = self.runs(filter, after, MAX_RUNS_READ).await?;
            looked_at += page.len();
            made.extend(page.into_iter().filter_map(&make));
            after = next;
            if after.is_none() {
                return Ok((made, true));
            }
        }
        Ok((made, false))
    }

    /// Since when runs are kept: those that were heard of before that only are deleted; none while none is.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn runs_kept_since(&self) -> Result<Option<Timestamp>, StoreError> {
        let mut transaction = self.read().await?;
        let since = horizon::read(&mut transaction, &self.0.lease, RUNS_HORIZON).await?;
        Ok(since.map(Timestamp::from_millis))
    }

    /// Runs, the last started first, without their ranks; at most [`MAX_RUNS_READ`], from behind
    /// `after` on, which is the start and the number of the last one of the page before.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn runs(
        &self,
        filter: &RunFilter,
        after: Option<(i64, i64)>,
        limit: usize,
    ) -> Result<(Vec<KnownRun>, Option<(i64, i64)>), StoreError> {
        let doing = "reading runs";
        let limit = limit.clamp(1, MAX_RUNS_READ);
        let select = format!("SELECT {COLUMNS}, r.started_ms");
        let page = (after, limit);
        let rows = page_of(&self.0.database, &select, &self.0.lease, filter, page).await;
        let rows = rows.doing(doing)?;
        let mut bad = Vec::new();
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.extend(read(row, &mut bad)?.map(|(_, run)| run));
        }
        self.set_aside(&bad).await?;
        let next = match rows.last() {
            Some(row) if rows.len() == limit => {
                Some((row.int(6).doing(doing)?, row.int(0).doing(doing)?))
            }
            _ => None,
        };
        Ok((found, next))
    }

    /// A run with its ranks; none when it is not known.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn run(&self, key: &RunKey) -> Result<Option<KnownRun>, StoreError> {
        let mut found = self.with_ranks(std::slice::from_ref(key)).await?;
        Ok(found.pop())
    }

    /// These runs with their ranks, those that are known.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn with_ranks(&self, keys: &[RunKey]) -> Result<Vec<KnownRun>, StoreError> {
        self.with_first_ranks(keys, u32::MAX).await
    }

    /// These runs with their ranks below a number: enough to find the one that stands for each.
    ///
    /// # Errors
    /// When the database refuses. What cannot be read is set aside and left out.
    pub async fn with_first_ranks(
        &self,
        keys: &[RunKey],
        below: u32,
    ) -> Result<Vec<KnownRun>, StoreError> {
        let mut transaction = self.read().await?;
        let mut bad = Vec::new();
        let named = (keys, below);
        let found = with_ranks(&mut transaction, &self.0.lease, named, &mut bad).await?;
        drop(transaction);
        self.set_aside(&bad).await?;
        Ok(found)
    }
}

/// What is to be `select`ed of a page of runs, the last started first; a test has the statement explained.
pub(super) async fn page_of(
    database: &Database,
    select: &str,
    lease: &str,
    filter: &RunFilter,
    (after, limit): (Option<(i64, i64)>, usize),
) -> Result<Vec<Row>, sqlx::Error> {
    let job = filter.job.as_ref().map_or(String::new(), JobId::to_string);
    let (name, named) = by_name(filter);
    let (at, id) = after.unwrap_or((i64::MAX, i64::MAX));
    let mut values = vec![
        Value::Text(filter.cluster.as_deref().unwrap_or_default()),
        Value::Text(&job),
        Value::Int(filter.heard_since.map_or(i64::MIN, Timestamp::millis)),
        Value::Int(at),
        Value::Int(id),
        Value::Text(lease),
    ];
    values.extend(name.as_deref().map(Value::Text));
    // The runs of one job or name are few: by the index of names, not by those of times through all.
    let (start, heard) = match named.is_empty() {
        true => ("r.started_ms", "r.heard_ms"),
        false => ("r.started_ms + 0", "r.heard_ms + 0"),
    };
    let only_last = if filter.only_last { IS_LAST } else { "" };
    let cause = match filter.cause {
        Some(it) => format!("AND r.cause = '{}'", it.name()),
        None => String::new(),
    };
    let willed = Cause::ALL.into_iter().filter(|it| !it.is_interruption());
    let willed: Vec<String> = willed.map(|it| format!("'{}'", it.name())).collect();
    let interrupted = match filter.only_interrupted {
        true => format!("AND r.cause NOT IN ({})", willed.join(", ")),
        false => String::new(),
    };
    let of_cluster = match &filter.cluster {
        Some(it) if !it.is_empty() => "r.cluster = $1",
        _ => "($1 = '' OR r.cluster = $1)",
    };
    let sql = format!(
        "{select} FROM run r
         WHERE r.lease = $6 AND {of_cluster} AND ($2 = '' OR r.job = $2) AND {heard} >= $3
         {named} {cause} {interrupted}
         {only_last} AND ({start} < $4 OR ({start} = $4 AND r.id < $5))
         ORDER BY {start} DESC, r.id DESC LIMIT {limit}"
    );
    database.ask(&sql, &values).await
}

/// What the seventh value is, where there is one, and which names are meant.
fn by_name(filter: &RunFilter) -> (Option<String>, String) {
    let without_uid = |namespace: &str, name: &str| {
        let bare = JobId {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
        };
        bare.to_string()
    };
    match (&filter.name_of, &filter.job, &filter.called) {
        // Names of jobs begin with the one that is asked for, by bytes; it ends with a slash, behind which there is
        // a zero.
        (Some(of), _, _) => {
            let name = without_uid(&of.namespace, &of.name);
            let stem = name.chars().count() - 1;
            let range = format!("AND r.job >= $7 AND r.job < substr($7, 1, {stem}) || '0'");
            (Some(name), range)
        }
        (None, Some(_), _) => (None, "AND r.job = $2".to_owned()),
        // All names are looked through, and nothing but the index of them: no part of an id has a slash. That a
        // cluster is asked for has SQLite take this one of the indices that begin with the lease.
        (None, None, Some(name)) => {
            let part = "AND r.cluster >= '' AND replace(r.job, $7, '') <> r.job";
            (Some(without_uid("", name)), part.to_owned())
        }
        (None, None, None) => (None, String::new()),
    }
}

async fn with_ranks(
    transaction: &mut Transaction,
    lease: &str,
    (keys, below): (&[RunKey], u32),
    bad: &mut Vec<Unreadable>,
) -> Result<Vec<KnownRun>, StoreError> {
    let doing = "reading ranks";
    let mut found: BTreeMap<i64, KnownRun> = BTreeMap::new();
    for row in named(transaction, lease, keys, "").await? {
        found.extend(read(&row, bad)?);
    }
    let ids = Column::Ints(found.keys().copied().collect());
    let after = format!(
        ") SELECT n.run, n.rank, n.facts FROM k CROSS JOIN rank n
        WHERE n.run = k.run AND n.rank < {below} ORDER BY n.run, n.rank"
    );
    let rows = transaction.keyed("WITH k (run) AS (", &[ids], &after).await;
    for row in rows.doing(doing)? {
        let (run, rank) = (row.int(0).doing(doing)?, row.int(1).doing(doing)?);
        let text = row.bytes(2).doing(doing)?;
        let heard_ms = found.get(&run).map_or(0, |it| it.facts.heard.millis());
        let place = Place::Rank {
            run,
            rank,
            heard_ms,
        };
        let facts = parse::<RankFacts>(text, place, bad);
        if let (Some(known), Some(facts)) = (found.get_mut(&run), facts) {
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            known.ranks.push((rank, facts));
        }
    }
    Ok(found.into_values().collect())
}

/// The rows of these runs, of those of which `and` is so.
pub(super) async fn named(
    transaction: &mut Transaction,
    lease: &str,
    keys: &[RunKey],
    and: &str,
) -> Result<Vec<Row>, StoreError> {
    let jobs: Vec<String> = keys.iter().map(|it| it.run.job.to_string()).collect();
    let columns = [
        Column::Texts(vec![lease; keys.len()]),
        Column::Texts(keys.iter().map(|it| &*it.cluster).collect()),
        Column::Texts(jobs.iter().map(String::as_str).collect()),
        Column::Ints(keys.iter().map(|it| i64::from(it.run.attempt)).collect()),
    ];
    let before = "WITH k (lease, cluster, job, attempt) AS (";
    let after = format!(
        ") SELECT {COLUMNS} FROM k CROSS JOIN run r
        WHERE r.lease = k.lease AND r.cluster = k.cluster AND r.job = k.job AND r.attempt = k.attempt
        {and}"
    );
    let rows = transaction.keyed(before, &columns, &after).await;
    rows.doing("reading runs")
}

/// The numbers of these runs, those that are known.
pub(super) async fn ids(
    transaction: &mut Transaction,
    lease: &str,
    keys: &[RunKey],
) -> Result<HashMap<RunKey, i64>, StoreError> {
    let rows = named(transaction, lease, keys, "").await?;
    let named = rows
        .iter()
        .map(|row| Ok(id_and_key(row)?.map(|(id, key)| (key, id))));
    named.filter_map(Result::transpose).collect()
}

/// What is to be written: of a run that is told in part, the part over what is stored.
async fn recalled<'a>(
    transaction: &mut Transaction,
    lease: &str,
    runs: &'a [KnownRun],
    bad: &mut Vec<Unreadable>,
) -> Result<Cow<'a, [KnownRun]>, StoreError> {
    let parts = runs.iter().filter(|it| it.is_part);
    let parts: Vec<RunKey> = parts.map(|it| it.key.clone()).collect();
    let mut unreadable = Vec::new();
    let stored = match parts.as_slice() {
        [] => Vec::new(),
        parts => with_ranks(transaction, lease, (parts, u32::MAX), &mut unreadable).await?,
    };
    aside::put(transaction, lease, &unreadable).await?;
    bad.append(&mut unreadable);
    if stored.is_empty() {
        return Ok(Cow::Borrowed(runs));
    }
    let stored = stored.into_iter().map(|it| (it.key.clone(), it));
    let mut stored: HashMap<RunKey, KnownRun> = stored.collect();
    let mut runs = runs.to_vec();
    for run in &mut runs {
        if let Some(stored) = stored.remove(&run.key) {
            run.facts.recall(stored.facts);
            let mut ranks: BTreeMap<u32, RankFacts> = stored.ranks.into_iter().collect();
            for (number, facts) in &mut run.ranks {
                ranks
                    .remove(number)
                    .into_iter()
                    .for_each(|it| facts.recall(it));
            }
        }
    }
    Ok(Cow::Owned(runs))
}

/// Writes the runs of a commit and those of their ranks that it has; returns the runs' numbers.
pub(super) async fn write(
    transaction: &mut Transaction,
    lease: &str,
    runs: &[KnownRun],
    bad: &mut Vec<Unreadable>,
) -> Result<HashMap<RunKey, i64>, StoreError> {
    let runs = &*recalled(transaction, lease, runs, bad).await?;
    let jobs: Vec<String> = runs.iter().map(|it| it.key.run.job.to_string()).collect();
    let facts: Vec<String> = runs.iter().map(|it| json(&it.facts)).collect();
    let started = |it: &KnownRun| it.facts.started.unwrap_or(it.facts.heard).millis();
    let columns = [
        Column::Texts(vec![lease; runs.len()]),
        Column::Texts(runs.iter().map(|it| &*it.key.cluster).collect()),
        Column::Texts(jobs.iter().map(String::as_str).collect()),
        Column::Ints(
            runs.iter()
                .map(|it| i64::from(it.key.run.attempt))
                .collect(),
        ),
        Column::Ints(runs.iter().map(started).collect()),
        Column::Ints(runs.iter().map(|it| it.facts.heard.millis()).collect()),
        Column::OptionalInts(
            runs.iter()
                .map(|it| it.facts.ended.map(Timestamp::millis))
                .collect(),
        ),
        Column::OptionalTexts(runs.iter().map(|it| it.facts.cause()).collect()),
        Column::Texts(facts.iter().map(String::as_str).collect()),
    ];
    let before = "INSERT INTO run
        (lease, cluster, job, attempt, started_ms, heard_ms, ended_ms, cause, facts)";
    let after = "ON CONFLICT (lease, cluster, job, attempt) DO UPDATE
        SET started_ms = CASE WHEN excluded.started_ms < run.started_ms
            THEN excluded.started_ms ELSE run.started_ms END,
            heard_ms = excluded.heard_ms, ended_ms = excluded.ended_ms,
            cause = excluded.cause, facts = excluded.facts
        RETURNING id, cluster, job, attempt";
    let rows = transaction.rows(before, &columns, after).await;
    let mut ids = HashMap::with_capacity(runs.len());
    for row in rows.doing("writing runs")? {
        ids.extend(id_and_key(&row)?.map(|(id, key)| (key, id)));
    }
    write_ranks(transaction, runs, &ids).await?;
    Ok(ids)
}

async fn write_ranks(
    transaction: &mut Transaction,
    runs: &[KnownRun],
    ids: &HashMap<RunKey, i64>,
) -> Result<(), StoreError> {
    let (mut of_run, mut numbers, mut facts) = (Vec::new(), Vec::new(), Vec::new());
    for run in runs {
        for (number, rank) in &run.ranks {
            of_run.push(ids[&run.key]);
            numbers.push(i64::from(*number));
            facts.push(json(rank));
        }
    }
    let columns = [
        Column::Ints(of_run),
        Column::Ints(numbers),
        Column::Texts(facts.iter().map(String::as_str).collect()),
    ];
    let before = "INSERT INTO rank (run, rank, facts)";
    let after = "ON CONFLICT (run, rank) DO UPDATE SET facts = excluded.facts";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing ranks").map(|_| ())
}

/// A run from [`COLUMNS`], with its number; none when its name cannot be read, which the log says.
pub(super) fn read(
    row: &Row,
    bad: &mut Vec<Unreadable>,
) -> Result<Option<(i64, KnownRun)>, StoreError> {
    let doing = "reading runs";
    let Some((id, key)) = id_and_key(row)? else {
        return Ok(None);
    };
    let place = Place::Run {
        id,
        heard_ms: row.int(4).doing(doing)?,
    };
    let text = row.bytes(5).doing(doing)?;
    let facts = parse::<RunFacts>(text, place, bad).unwrap_or_default();
    let run = KnownRun {
        key,
        facts,
        ranks: Vec::new(),
        is_part: false,
    };
    Ok(Some((id, run)))
}

/// A run's number and name from (id, cluster, job, attempt).
fn id_and_key(row: &Row) -> Result<Option<(i64, RunKey)>, StoreError> {
    let doing = "reading runs";
    let id = row.int(0).doing(doing)?;
    let job = JobId::parse(row.text(2).doing(doing)?);
    let attempt = u32::try_from(row.int(3).doing(doing)?);
    let (Ok(job), Ok(attempt)) = (job, attempt) else {
        tracing::error!(id, "the name of a run cannot be read; left out");
        return Ok(None);
    };
    let key = RunKey {
        cluster: row.text(1).doing(doing)?.into(),
        run: RunId { job, attempt },
    };
    Ok(Some((id, key)))
}

fn parse<T: DeserializeOwned>(text: &[u8], place: Place, bad: &mut Vec<Unreadable>) -> Option<T> {
    let parsed = serde_json::from_slice(text);
    let noted = parsed.map_err(|error| Unreadable::json(place, text, &error));
    noted.map_err(|it| bad.push(it)).ok()
}

fn json(facts: &impl serde::Serialize) -> String {
    serde_json::to_string(facts).expect("facts are texts, numbers and lists of them")
}
