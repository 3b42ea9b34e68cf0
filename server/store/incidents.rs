//! Incidents: each row is one as a whole, written again when it changes.
//!
//! What is asked for by (cluster, family, state, time) stands in columns of its own, the rest is JSON.
//! Writing is idempotent: the same incident written twice is there once, as it was written last. Hours of the ledger that
//! one changes, of a run that stands still, are marked with it ([`super::standing`]).

use gpufleet_analysis::incident::{Incident, State};
use gpufleet_telemetry::time::Timestamp;
use uuid::Uuid;

use super::Store;
use super::aside::{Place, Unreadable};
use super::database::{Column, Row, Value};
use super::deliveries;
use super::error::{CommitError, Doing, StoreError};
use super::lease::fence;
use super::minutes;
use super::model::{FencingToken, IncidentFilter, IncidentPlace};
use crate::money::budgets;
use crate::notify::group::Group;
use crate::notify::outbox::Unread;

/// Most incidents in one answer.
pub const MAX_INCIDENTS: usize = 1_000;

const BEFORE: &str =
    "INSERT INTO incident (lease, id, cluster, family, state, since_ms, resolved_ms, data)";

const AFTER: &str = "ON CONFLICT (lease, id) DO UPDATE SET cluster = excluded.cluster,
    family = excluded.family, state = excluded.state, since_ms = excluded.since_ms,
    resolved_ms = excluded.resolved_ms, data = excluded.data";

impl Store {
    /// Makes incidents durable as they are now, with what they make of the outbox.
    ///
    /// # Errors
    /// When another server has the right to write, or the database refuses; then nothing is written.
    pub async fn write_incidents(
        &self,
        incidents: &[Incident],
        groups: &[Group],
        token: FencingToken,
    ) -> Result<(), CommitError> {
        if incidents.is_empty() && groups.is_empty() {
            return Ok(());
        }
        let doing = "writing incidents";
        let changed = self.changed_by(incidents).await;
        let changed = changed.map_err(CommitError::Unknown)?;
        let mut transaction = self.write().await.map_err(CommitError::Unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let data: Vec<String> = incidents
            .iter()
            .map(|it| serde_json::to_string(it).expect("texts, numbers and lists are JSON"))
            .collect();
        let text = |of: fn(&Incident) -> &str| Column::Texts(incidents.iter().map(of).collect());
        let ended = |it: &Incident| it.resolved_at.map_or(0, Timestamp::millis);
        let columns = [
            Column::Texts(incidents.iter().map(|_| self.0.lease.as_str()).collect()),
            Column::Blobs(incidents.iter().map(|it| &it.id.as_bytes()[..]).collect()),
            text(|it| &it.place.cluster),
            text(|it| it.family.name()),
            text(|it| it.state.name()),
            Column::Ints(incidents.iter().map(|it| it.since.millis()).collect()),
            Column::Ints(incidents.iter().map(ended).collect()),
            Column::Texts(data.iter().map(String::as_str).collect()),
        ];
        let written = transaction.rows(BEFORE, &columns, AFTER).await;
        written.doing(doing).map_err(CommitError::Unknown)?;
        let marked = minutes::mark_hours(&mut transaction, &changed, rand::random()).await;
        marked.map_err(CommitError::Unknown)?;
        let written = deliveries::write(&mut transaction, &self.0.lease, groups).await;
        written.doing(doing).map_err(CommitError::Unknown)?;
        let committed = transaction.commit().await.doing(doing);
        committed.map_err(CommitError::Unknown)
    }

    /// Incidents, those that began last first, that began before `before`; at most `limit`, and never
    /// more than [`MAX_INCIDENTS`]. And behind which place the next ones are; none behind the last. Where a name or a
    /// severity is asked for there may be others among them: [`IncidentFilter::is_met`] says it of each.
    ///
    /// # Errors
    /// When the database refuses. One that cannot be read is set aside and left out.
    pub async fn incidents(
        &self,
        filter: &IncidentFilter,
        before: Option<IncidentPlace>,
        limit: usize,
    ) -> Result<(Vec<Incident>, Option<IncidentPlace>), StoreError> {
        let (found, _, next) = self.found(filter, before, limit).await?;
        Ok((found, next))
    }

    async fn found(
        &self,
        filter: &IncidentFilter,
        before: Option<IncidentPlace>,
        limit: usize,
    ) -> Result<(Vec<Incident>, Vec<Unreadable>, Option<IncidentPlace>), StoreError> {
        let (texts, lease) = (filter.texts(), Value::Text(&self.0.lease));
        let of_teams = filter.cluster.as_deref().map(budgets::of_cluster);
        let mut asked = vec![("lease = ?", vec![lease])];
        if let (Some(cluster), Some(of_teams)) = (&filter.cluster, &of_teams) {
            let names = vec![Value::Text(cluster), Value::Text(of_teams)];
            asked.push(("cluster IN (?, ?)", names));
        }
        if let Some(family) = filter.family {
            asked.push(("family = ?", vec![Value::Text(family.name())]));
        }
        if let Some(state) = filter.state {
            asked.push(("state = ?", vec![Value::Text(state.name())]));
        }
        if let Some(since) = filter.resolved_since {
            asked.push(("resolved_ms >= ?", vec![Value::Int(since.millis())]));
        }
        if let Some(from) = filter.from {
            let from = vec![Value::Int(from.millis())];
            asked.push(("(resolved_ms = 0 OR resolved_ms >= ?)", from));
        }
        if let Some(to) = filter.to {
            asked.push(("since_ms < ?", vec![Value::Int(to.millis())]));
        }
        for (stands, text) in &texts {
            let condition = match stands {
                true => "replace(data, ?, '') <> data",
                false => "replace(data, ?, '') = data",
            };
            asked.push((condition, vec![Value::Text(text)]));
        }
        if let Some(place) = &before {
            let (since, id) = (
                Value::Int(place.since.millis()),
                Value::Blob(place.id.as_bytes()),
            );
            let condition = "since_ms <= ? AND (since_ms < ? OR id < ?)";
            asked.push((condition, vec![since, since, id]));
        }
        let conditions: Vec<&str> = asked.iter().map(|it| it.0).collect();
        let mut conditions = conditions.join(" AND ");
        let values: Vec<Value<'_>> = asked.into_iter().flat_map(|it| it.1).collect();
        for number in 1..=values.len() {
            conditions = conditions.replacen('?', &format!("${number}"), 1);
        }
        let limit = limit.clamp(1, MAX_INCIDENTS);
        let sql = format!(
            "SELECT id, since_ms, data FROM incident WHERE {conditions} ORDER BY since_ms DESC, id DESC LIMIT {}",
            limit + 1
        );
        let rows = self.ask(&sql, &values).await;
        let mut rows = rows.doing("reading incidents")?;
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let mut bad = Vec::new();
        let mut found = Vec::new();
        for row in &rows {
            found.extend(read(row, &mut bad)?);
        }
        // By what is there, not by what could be read: the next ones are behind it all the same.
        let last = rows.last().filter(|_| has_more);
        let next = last.map(place).transpose()?;
        self.set_aside(&bad).await?;
        Ok((found, bad, next))
    }

    /// One incident; none when there is none of this id.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn incident(&self, id: Uuid) -> Result<Option<Incident>, StoreError> {
        let sql = "SELECT id, since_ms, data FROM incident WHERE lease = $1 AND id = $2";
        let values = [Value::Text(&self.0.lease), Value::Blob(id.as_bytes())];
        let rows = self.ask(sql, &values).await;
        let mut bad = Vec::new();
        let rows = rows.doing("reading an incident")?;
        let found = rows.first().map(|row| read(row, &mut bad)).transpose()?;
        self.set_aside(&bad).await?;
        Ok(found.flatten())
    }

    /// What a server that starts has to know: what is open, and what was over so late that it may come
    /// back; and what is open of which nothing else is known.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn standing_incidents(
        &self,
        since: Timestamp,
    ) -> Result<(Vec<Incident>, Unread), StoreError> {
        let open = IncidentFilter {
            state: Some(State::Open),
            ..IncidentFilter::default()
        };
        let over = IncidentFilter {
            resolved_since: Some(since),
            ..IncidentFilter::default()
        };
        let (mut standing, bad, _) = self.found(&open, None, MAX_INCIDENTS).await?;
        standing.extend(self.incidents(&over, None, MAX_INCIDENTS).await?.0);
        let mut unread = Unread::default();
        for bad in bad {
            let of = match bad.is_unknown {
                true => &mut unread.newer,
                false => &mut unread.spoilt,
            };
            of.extend(bad.place.incident());
        }
        Ok((standing, unread))
    }
}

fn place(row: &Row) -> Result<IncidentPlace, StoreError> {
    let doing = "reading incidents";
    Ok(IncidentPlace {
        since: Timestamp::from_millis(row.int(1).doing(doing)?),
        id: Uuid::from_slice(row.blob(0).doing(doing)?).unwrap_or_default(),
    })
}

fn read(row: &Row, bad: &mut Vec<Unreadable>) -> Result<Option<Incident>, StoreError> {
    let doing = "reading incidents";
    let data = row.bytes(2).doing(doing)?;
    match serde_json::from_slice(data) {
        Ok(incident) => Ok(Some(incident)),
        Err(error) => {
            let id = Uuid::from_slice(row.blob(0).doing(doing)?).unwrap_or_default();
            let at_ms = row.int(1).doing(doing)?;
            bad.push(Unreadable::json(
                Place::Incident { id, at_ms },
                data,
                &error,
            ));
            Ok(None)
        }
    }
}
