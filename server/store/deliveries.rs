//! The outbox: what has been said to whom of which incidents, and what is still to be said. Each row is
//! one group of incidents for one receiver as a whole, written with the incidents that change it.

use uuid::Uuid;

use super::Store;
use super::aside::{Place, Unreadable};
use super::database::{Column, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use crate::notify::group::Group;

/// Most groups of one answer: every receiver has a few of an incident.
const MAX_DELIVERIES: usize = 1_000;

/// Groups of all receivers that are taken in at the start.
const MAX_STANDING: usize = 20_000;

const GROUPS: &str = "INSERT INTO delivery (lease, id, way, state, over_ms, data)";

const GROUPS_AFTER: &str = "ON CONFLICT (lease, id) DO UPDATE SET state = excluded.state,
    over_ms = excluded.over_ms, data = excluded.data";

const LINKS: &str = "INSERT INTO delivery_incident (lease, incident, delivery)";

const LINKS_AFTER: &str = "ON CONFLICT (lease, incident, delivery) DO NOTHING";

/// Writes groups as they are now.
pub(super) async fn write(
    transaction: &mut Transaction,
    lease: &str,
    groups: &[Group],
) -> Result<(), sqlx::Error> {
    let data: Vec<String> = groups
        .iter()
        .map(|it| serde_json::to_string(it).expect("texts, numbers and lists are JSON"))
        .collect();
    let over = |it: &Group| it.over_at.map_or(0, |at| at.millis());
    let columns = [
        Column::Texts(groups.iter().map(|_| lease).collect()),
        Column::Blobs(groups.iter().map(|it| &it.id.as_bytes()[..]).collect()),
        Column::Texts(groups.iter().map(|it| &*it.way).collect()),
        Column::Texts(groups.iter().map(|it| it.state().name()).collect()),
        Column::Ints(groups.iter().map(over).collect()),
        Column::Texts(data.iter().map(String::as_str).collect()),
    ];
    transaction.rows(GROUPS, &columns, GROUPS_AFTER).await?;
    // Those that are there already need no second look, each minute of Alertmanager's.
    let links = groups.iter().flat_map(|group| {
        let new = group.members.iter().filter(|(_, it)| !it.is_linked);
        new.map(move |(member, _)| (member, &group.id))
    });
    let (members, ids): (Vec<&Uuid>, Vec<&Uuid>) = links.unzip();
    let columns = [
        Column::Texts(members.iter().map(|_| lease).collect()),
        Column::Blobs(members.iter().map(|it| &it.as_bytes()[..]).collect()),
        Column::Blobs(ids.iter().map(|it| &it.as_bytes()[..]).collect()),
    ];
    transaction.rows(LINKS, &columns, LINKS_AFTER).await?;
    Ok(())
}

impl Store {
    /// What a server that starts has still to say.
    ///
    /// # Errors
    /// When the database refuses. A row that cannot be read is set aside and left out.
    pub async fn standing_groups(&self) -> Result<Vec<Group>, StoreError> {
        let sql = format!(
            "SELECT id, data FROM delivery WHERE lease = $1 AND over_ms = 0
             ORDER BY id LIMIT {MAX_STANDING}"
        );
        self.groups(&sql, &[Value::Text(&self.0.lease)]).await
    }

    /// What was said of an incident, over and not; not more than a receiver each and a few.
    ///
    /// # Errors
    /// When the database refuses. A row that cannot be read is set aside and left out.
    pub async fn deliveries_of(&self, incident: Uuid) -> Result<Vec<Group>, StoreError> {
        let sql = format!(
            "SELECT d.id, d.data FROM delivery d JOIN delivery_incident l
             ON l.lease = d.lease AND l.delivery = d.id
             WHERE l.lease = $1 AND l.incident = $2 ORDER BY d.id LIMIT {MAX_DELIVERIES}"
        );
        let values = [Value::Text(&self.0.lease), Value::Blob(incident.as_bytes())];
        self.groups(&sql, &values).await
    }

    async fn groups(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Group>, StoreError> {
        let doing = "reading deliveries";
        let rows = self.ask(sql, values).await;
        let (mut found, mut bad) = (Vec::new(), Vec::new());
        for row in rows.doing(doing)? {
            match serde_json::from_slice(row.bytes(1).doing(doing)?) {
                Ok(group) => found.push(group),
                Err(error) => bad.push(unreadable(&row, &error).doing(doing)?),
            }
        }
        self.set_aside(&bad).await?;
        Ok(found)
    }
}

fn unreadable(row: &Row, error: &serde_json::Error) -> Result<Unreadable, sqlx::Error> {
    let id = Uuid::from_slice(row.blob(0)?).unwrap_or_default();
    // Version 7 says when.
    let at = id.get_timestamp().map_or((0, 0), |it| it.to_unix());
    let at_ms = i64::try_from(at.0).unwrap_or(0).saturating_mul(1_000);
    let place = Place::Delivery { id, at_ms };
    Ok(Unreadable::json(place, row.bytes(1)?, error))
}
