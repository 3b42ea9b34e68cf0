//! Resources and the numbers that stand for them in every other table.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};

use gpufleet_telemetry::identity::{AgentId, Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::Store;
use super::aside::{Place, Unreadable};
use super::database::{Column, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{Commit, KnownResource, ResourceKey, ResourcePage};

/// How far a resource's last_seen in the database may be behind, ms: it is written at most once a
/// minute, since the live view has the exact time.
const SEEN_STEP_MS: i64 = 60_000;

/// The same of a resource whose minutes come without a word about it, ms.
const UNTOLD_STEP_MS: i64 = 3_600_000;

/// Most resources whose numbers are held in memory; beyond it the memory is emptied and filled
/// again. Ten times the largest fleet we plan for, with its nodes.
const MAX_CACHED: usize = 1_500_000;

/// Most resources in one page.
pub const MAX_RESOURCES: usize = 10_000;

/// What was last written of a resource.
#[derive(Debug, Clone)]
pub(super) struct CachedSubject {
    id: i64,
    agent: Option<AgentId>,
    /// None when only the number was looked up.
    resource: Option<Arc<Resource>>,
    seen_ms: i64,
}

/// The numbers of a commit's resources; what to remember of them once it is committed.
pub(super) struct Resolved {
    pub(super) ids: HashMap<ResourceKey, i64>,
    fresh: Vec<(ResourceKey, CachedSubject)>,
}

const UPSERT: &str = "\
    INSERT INTO subject (lease, cluster, kind, resource_id, attributes, parent, agent,
        first_seen_ms)";

const UPSERT_CONFLICT: &str = "\
    ON CONFLICT (lease, cluster, kind, resource_id) DO UPDATE
    SET attributes = excluded.attributes, parent = excluded.parent, agent = excluded.agent,
        first_seen_ms = CASE WHEN excluded.first_seen_ms < subject.first_seen_ms
            THEN excluded.first_seen_ms ELSE subject.first_seen_ms END
    RETURNING id, cluster, kind, resource_id";

/// Columns of a resource as [`read`] takes them.
pub(super) const COLUMNS: &str = "s.id, s.cluster, s.kind, s.resource_id, s.attributes, s.agent, \
     s.first_seen_ms, COALESCE(n.last_seen_ms, s.first_seen_ms)";

impl Store {
    /// Resources in the order in which they were first stored, from `after` on; of one cluster or
    /// kind where one is named. At most [`MAX_RESOURCES`] a page. `last_seen` may be a minute behind.
    ///
    /// # Errors
    /// When the database refuses. A resource whose attributes cannot be read comes without them.
    pub async fn resource_page(
        &self,
        cluster: Option<&str>,
        kind: Option<ResourceKind>,
        after: Option<i64>,
    ) -> Result<ResourcePage, StoreError> {
        let values = [
            Value::Int(after.unwrap_or(0)),
            Value::Text(cluster.unwrap_or_default()),
            Value::Text(kind.map_or("", ResourceKind::name)),
            Value::Text(&self.0.lease),
        ];
        let sql = format!(
            "SELECT {COLUMNS} FROM subject s LEFT JOIN subject_seen n ON n.subject = s.id
             WHERE s.id > $1 AND s.lease = $4 AND ($2 = '' OR s.cluster = $2) AND ($3 = '' OR s.kind = $3)
             ORDER BY s.id LIMIT {MAX_RESOURCES}"
        );
        let rows = self.ask(&sql, &values).await;
        let rows = rows.doing("reading resources")?;
        let next = match rows.last() {
            Some(row) if rows.len() == MAX_RESOURCES => {
                Some(row.int(0).doing("reading resources")?)
            }
            _ => None,
        };
        let mut page = ResourcePage {
            next,
            ..ResourcePage::default()
        };
        let mut bad = Vec::new();
        for row in &rows {
            page.resources.extend(read(row, &mut bad)?);
        }
        self.set_aside(&bad).await?;
        Ok(page)
    }

    /// Every resource, of one cluster or kind where one is named.
    ///
    /// # Errors
    /// When the database refuses. A resource whose attributes cannot be read comes without them.
    pub async fn resources(
        &self,
        cluster: Option<&str>,
        kind: Option<ResourceKind>,
    ) -> Result<Vec<KnownResource>, StoreError> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = self.resource_page(cluster, kind, after).await?;
            all.extend(page.resources);
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// Finds or makes the numbers of all resources of a commit, and writes what changed of them.
    pub(super) async fn resolve(
        &self,
        transaction: &mut Transaction,
        commit: &Commit,
    ) -> Result<Resolved, StoreError> {
        let told: BTreeMap<&ResourceKey, &KnownResource> =
            commit.resources.iter().map(|it| (&it.key, it)).collect();
        let mut resolved = Resolved {
            ids: HashMap::with_capacity(told.len()),
            fresh: Vec::new(),
        };
        let (mut changed, mut unknown, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        let mut untold = BTreeMap::new();
        {
            let cache = self.subjects();
            for (key, known) in &told {
                match cache.get(*key) {
                    Some(cached) if cached.is_same(known) => {
                        resolved.ids.insert((*key).clone(), cached.id);
                        if known.last_seen.millis() - cached.seen_ms >= SEEN_STEP_MS {
                            seen.push(*known);
                        }
                    }
                    _ => changed.push(*known),
                }
            }
            for delta in commit
                .minutes
                .iter()
                .filter(|it| !told.contains_key(&it.key))
            {
                match cache.get(&delta.key) {
                    Some(cached) => {
                        resolved.ids.insert(delta.key.clone(), cached.id);
                        let seen_ms = delta.minute.start().millis();
                        if seen_ms - cached.seen_ms >= UNTOLD_STEP_MS {
                            let seen = CachedSubject {
                                seen_ms,
                                ..cached.clone()
                            };
                            untold.insert(&delta.key, seen);
                        }
                    }
                    None => unknown.push(&delta.key),
                }
            }
        }
        unknown.sort();
        unknown.dedup();
        let bare = look_up(transaction, &self.0.lease, &unknown, &mut resolved).await?;
        let bare: Vec<KnownResource> = bare
            .into_iter()
            .map(|key| without_facts(key, commit))
            .collect();
        changed.extend(&bare);
        upsert(transaction, &self.0.lease, &changed, &mut resolved).await?;
        let fresh: Vec<_> = written(&changed, &seen, &resolved.ids)
            .chain(untold.into_iter().map(|(key, it)| (key.clone(), it)))
            .collect();
        write_seen(transaction, &fresh).await?;
        resolved.fresh.extend(fresh);
        Ok(resolved)
    }

    /// Remembers what a commit has written, now that it is durable.
    pub(super) fn remember(&self, resolved: Resolved) {
        let mut cache = self.subjects();
        if cache.len() + resolved.fresh.len() > MAX_CACHED {
            cache.clear();
        }
        cache.extend(resolved.fresh);
    }

    /// Forgets what was last written of the resources with these numbers.
    pub(super) fn forget(&self, ids: &[i64]) {
        if !ids.is_empty() {
            self.subjects().retain(|_, it| !ids.contains(&it.id));
        }
    }

    fn subjects(&self) -> MutexGuard<'_, HashMap<ResourceKey, CachedSubject>> {
        // A panic while it was locked cannot leave it wrong: entries are whole.
        let subjects = self.0.subjects.lock();
        subjects.unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedSubject {
    fn is_same(&self, known: &KnownResource) -> bool {
        self.agent == known.agent
            && self.resource.as_ref().is_some_and(|resource| {
                Arc::ptr_eq(resource, &known.resource) || resource == &known.resource
            })
    }
}

/// A resource that has minutes but was never described.
fn without_facts(key: ResourceKey, commit: &Commit) -> KnownResource {
    let minutes = commit.minutes.iter().filter(|it| it.key == key);
    let first = minutes
        .map(|it| it.minute.start())
        .min()
        .unwrap_or_default();
    KnownResource {
        resource: Arc::new(Resource::new(key.kind, Arc::clone(&key.id))),
        key,
        agent: None,
        first_seen: first,
        last_seen: first,
    }
}

/// The numbers of those of these resources that are known, in no order.
pub(super) async fn numbers(
    transaction: &mut Transaction,
    lease: &str,
    keys: &[&ResourceKey],
) -> Result<Vec<i64>, StoreError> {
    let rows = named(transaction, lease, keys).await?;
    let number = |row: &Row| row.int(0).doing("looking up resources");
    rows.iter().map(number).collect()
}

/// Rows of these resources as [`id_and_key`] takes them.
async fn named(
    transaction: &mut Transaction,
    lease: &str,
    keys: &[&ResourceKey],
) -> Result<Vec<Row>, StoreError> {
    let columns = [
        Column::Texts(vec![lease; keys.len()]),
        Column::Texts(keys.iter().map(|it| &*it.cluster).collect()),
        Column::Texts(keys.iter().map(|it| it.kind.name()).collect()),
        Column::Texts(keys.iter().map(|it| &*it.id).collect()),
    ];
    let before = "WITH k (lease, cluster, kind, resource_id) AS (";
    let after = ") SELECT s.id, s.cluster, s.kind, s.resource_id FROM k
        CROSS JOIN subject s WHERE s.lease = k.lease AND s.cluster = k.cluster AND s.kind = k.kind
        AND s.resource_id = k.resource_id";
    let rows = transaction.keyed(before, &columns, after).await;
    rows.doing("looking up resources")
}

/// Finds the numbers of resources; returns those that have none.
async fn look_up(
    transaction: &mut Transaction,
    lease: &str,
    keys: &[&ResourceKey],
    resolved: &mut Resolved,
) -> Result<Vec<ResourceKey>, StoreError> {
    for row in named(transaction, lease, keys).await? {
        let (id, key) = id_and_key(&row)?;
        let cached = CachedSubject {
            id,
            agent: None,
            resource: None,
            seen_ms: 0,
        };
        resolved.fresh.push((key.clone(), cached));
        resolved.ids.insert(key, id);
    }
    let missing = keys.iter().filter(|key| !resolved.ids.contains_key(**key));
    Ok(missing.map(|key| (*key).clone()).collect())
}

async fn upsert(
    transaction: &mut Transaction,
    lease: &str,
    changed: &[&KnownResource],
    resolved: &mut Resolved,
) -> Result<(), StoreError> {
    let attributes: Vec<String> = changed
        .iter()
        .map(|it| serde_json::to_string(&it.resource.attributes).expect("a map of strings is JSON"))
        .collect();
    let columns = [
        Column::Texts(vec![lease; changed.len()]),
        Column::Texts(changed.iter().map(|it| &*it.key.cluster).collect()),
        Column::Texts(changed.iter().map(|it| it.key.kind.name()).collect()),
        Column::Texts(changed.iter().map(|it| &*it.key.id).collect()),
        Column::Texts(attributes.iter().map(String::as_str).collect()),
        Column::OptionalTexts(
            changed
                .iter()
                .map(|it| it.resource.attribute(attribute::PARENT))
                .collect(),
        ),
        Column::OptionalBlobs(
            changed
                .iter()
                .map(|it| it.agent.as_ref().map(|id| &id.0.as_bytes()[..]))
                .collect(),
        ),
        Column::Ints(changed.iter().map(|it| it.first_seen.millis()).collect()),
    ];
    let rows = transaction.rows(UPSERT, &columns, UPSERT_CONFLICT).await;
    for row in rows.doing("writing resources")? {
        let (id, key) = id_and_key(&row)?;
        resolved.ids.insert(key, id);
    }
    Ok(())
}

/// What is to be remembered of the changed resources, and of those not written for a while.
fn written<'a>(
    changed: &'a [&'a KnownResource],
    seen: &'a [&'a KnownResource],
    ids: &'a HashMap<ResourceKey, i64>,
) -> impl Iterator<Item = (ResourceKey, CachedSubject)> + 'a {
    changed.iter().chain(seen).filter_map(|known| {
        let cached = CachedSubject {
            id: *ids.get(&known.key)?,
            agent: known.agent,
            resource: Some(Arc::clone(&known.resource)),
            seen_ms: known.last_seen.millis(),
        };
        Some((known.key.clone(), cached))
    })
}

/// Writes when resources were last seen.
async fn write_seen(
    transaction: &mut Transaction,
    seen: &[(ResourceKey, CachedSubject)],
) -> Result<(), StoreError> {
    let columns = [
        Column::Ints(seen.iter().map(|(_, it)| it.id).collect()),
        Column::Ints(seen.iter().map(|(_, it)| it.seen_ms).collect()),
    ];
    let before = "INSERT INTO subject_seen (subject, last_seen_ms)";
    let after = "ON CONFLICT (subject) DO UPDATE SET last_seen_ms = excluded.last_seen_ms
        WHERE excluded.last_seen_ms > subject_seen.last_seen_ms";
    let rows = transaction.rows(before, &columns, after).await;
    rows.doing("writing when resources were seen").map(|_| ())
}

fn id_and_key(row: &Row) -> Result<(i64, ResourceKey), StoreError> {
    let doing = "reading a resource";
    let id = row.int(0).doing(doing)?;
    let kind = row.text(2).doing(doing)?;
    let key = ResourceKey {
        cluster: row.text(1).doing(doing)?.into(),
        kind: ResourceKind::parse(kind).ok_or_else(|| corrupt(id, &format!("kind {kind:?}")))?,
        id: row.text(3).doing(doing)?.into(),
    };
    Ok((id, key))
}

/// Resources by their number, those of them that are there and of a kind that this server knows.
pub(super) async fn known(
    transaction: &mut Transaction,
    ids: impl Iterator<Item = i64>,
    doing: &'static str,
    bad: &mut Vec<Unreadable>,
) -> Result<HashMap<i64, KnownResource>, StoreError> {
    let mut ids: Vec<i64> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    let sql = format!(
        ") SELECT {COLUMNS} FROM k CROSS JOIN subject s LEFT JOIN subject_seen n ON n.subject = s.id
         WHERE s.id = k.subject"
    );
    let columns = [Column::Ints(ids)];
    let rows = transaction
        .rows("WITH k (subject) AS (", &columns, &sql)
        .await;
    let mut known = HashMap::new();
    for row in rows.doing(doing)? {
        let id = row.int(0).doing(doing)?;
        known.extend(read(&row, bad)?.map(|it| (id, it)));
    }
    Ok(known)
}

/// A resource from [`COLUMNS`]. Of one whose attributes or agent cannot be read, what can be; none
/// when it is of no kind that this server knows, which the log says.
pub(super) fn read(
    row: &Row,
    bad: &mut Vec<Unreadable>,
) -> Result<Option<KnownResource>, StoreError> {
    let doing = "reading a resource";
    let (id, key) = match id_and_key(row) {
        Ok(named) => named,
        Err(error @ StoreError::Corrupt { .. }) => {
            tracing::error!(%error, "left out");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let last_seen = Timestamp::from_millis(row.int(7).doing(doing)?);
    let text = row.bytes(4).doing(doing)?;
    let attributes = serde_json::from_slice(text).map_err(|error| format!("attributes: {error}"));
    let from = agent(row.optional_blob(5).doing(doing)?).map_err(|error| format!("agent: {error}"));
    for error in [attributes.as_ref().err(), from.as_ref().err()] {
        bad.extend(error.map(|error| Unreadable {
            place: Place::Resource {
                id,
                seen_ms: last_seen.millis(),
            },
            data: text.to_vec(),
            error: error.clone(),
            is_unknown: false,
        }));
    }
    Ok(Some(KnownResource {
        resource: Arc::new(Resource {
            kind: key.kind,
            id: Arc::clone(&key.id),
            attributes: attributes.unwrap_or_default(),
        }),
        agent: from.unwrap_or_default(),
        first_seen: Timestamp::from_millis(row.int(6).doing(doing)?),
        last_seen,
        key,
    }))
}

/// An agent's id from its 16 bytes.
pub(super) fn agent(bytes: Option<&[u8]>) -> Result<Option<AgentId>, uuid::Error> {
    bytes
        .map(|it| Uuid::from_slice(it).map(AgentId))
        .transpose()
}

fn corrupt(id: i64, why: &str) -> StoreError {
    StoreError::Corrupt {
        what: format!("resource number {id}"),
        why: why.to_owned(),
    }
}
