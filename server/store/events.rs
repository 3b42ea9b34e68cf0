//! What happened: written with the commit, read newest first, page by page.

use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::aside::{Place, Unreadable};
use super::database::{Column, Database, Row, Transaction, Value};
use super::error::{Doing, StoreError};
use super::model::{EventFilter, EventPage, EventPlace, StoredEvent};
use super::subjects::agent;

/// Most events in one page.
pub const MAX_EVENTS: usize = 1_000;

/// Most resources that one question for events may name.
pub const MAX_EVENT_IDS: usize = 512;

/// Most filters of one question: a node, its GPUs and their shares are fewer.
pub const MAX_AT_ONCE: usize = 128;

/// Columns of an event as [`read`] takes them.
pub(super) const COLUMNS: &str = "e.id, e.at_ms, e.cluster, e.kind, e.severity, e.resource_kind, \
     e.resource_id, e.agent, e.message, e.attributes";

impl Store {
    /// Events, the newest first, that are older than `before`; at most `limit`, and never more than
    /// [`MAX_EVENTS`].
    ///
    /// # Errors
    /// When the database refuses. An event that cannot be read is set aside and left out.
    pub async fn events(
        &self,
        filter: &EventFilter,
        before: Option<EventPlace>,
        limit: usize,
    ) -> Result<EventPage, StoreError> {
        let limit = limit.clamp(1, MAX_EVENTS);
        let mut values = Vec::new();
        let mut conditions = conditions(&self.0.lease, filter, &mut values);
        if let Some(place) = before {
            values.extend([Value::Int(place.at.millis()), Value::Int(place.id)]);
            let (at_ms, at, id) = (at_ms(filter), values.len() - 1, values.len());
            conditions += &format!(" AND {at_ms} <= ${at} AND ({at_ms} < ${at} OR e.id < ${id})");
        }
        let sql = newest(&conditions, filter, limit);
        let rows = self.ask(&sql, &values).await;
        let mut bad = Vec::new();
        let page = page(&rows.doing("reading events")?, limit, &mut bad)?;
        self.set_aside(&bad).await?;
        Ok(page)
    }

    /// Of each of these, at most [`MAX_AT_ONCE`], the newest events, at most `limit` of each, in one question; in no
    /// order.
    ///
    /// # Errors
    /// When the database refuses. An event that cannot be read is set aside and left out.
    pub async fn events_of_each(
        &self,
        filters: &[EventFilter],
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let limit = limit.clamp(1, MAX_EVENTS);
        let rows = each(&self.0.database, "", &self.0.lease, filters, limit).await;
        let (mut found, mut bad) = (Vec::new(), Vec::new());
        for row in &rows.doing("reading events")? {
            found.extend(read(row, &mut bad)?);
        }
        self.set_aside(&bad).await?;
        Ok(found)
    }
}

/// The rows of [`Store::events_of_each`]; a test has the statement explained. Each has an arm of its own, which goes by
/// the index of resources or of kinds: of several in one condition SQLite walks through all events by time.
pub(super) async fn each(
    database: &Database,
    explain: &str,
    lease: &str,
    filters: &[EventFilter],
    limit: usize,
) -> Result<Vec<Row>, sqlx::Error> {
    if filters.is_empty() {
        return Ok(Vec::new());
    }
    let mut values = Vec::new();
    let mut arms = Vec::with_capacity(filters.len());
    for (number, filter) in filters.iter().take(MAX_AT_ONCE).enumerate() {
        let conditions = conditions(lease, filter, &mut values);
        let newest = newest(&conditions, filter, limit);
        arms.push(format!("SELECT * FROM ({newest}) a{number}"));
    }
    let sql = format!("{explain}{}", arms.join(" UNION ALL "));
    database.ask(&sql, &values).await
}

/// The newest events of these conditions of a filter.
fn newest(conditions: &str, filter: &EventFilter, limit: usize) -> String {
    let at_ms = at_ms(filter);
    format!(
        "SELECT {COLUMNS} FROM event e WHERE {conditions} ORDER BY {at_ms} DESC, e.id DESC LIMIT {limit}"
    )
}

/// When an event was, as a filter asks for it: those of ids that begin alike are few, and are to be found by the index
/// of resources, not by an index of times among all.
fn at_ms(filter: &EventFilter) -> &'static str {
    match filter.id_prefix {
        Some(_) => "e.at_ms + 0",
        None => "e.at_ms",
    }
}

/// The conditions of a filter, over values that are added to these.
fn conditions<'a>(lease: &'a str, filter: &'a EventFilter, values: &mut Vec<Value<'a>>) -> String {
    let at_ms = at_ms(filter);
    let mut conditions = Vec::new();
    let mut add = |condition: &str, value| {
        values.push(value);
        conditions.push(condition.replace('?', &format!("${}", values.len())));
    };
    add("e.lease = ?", Value::Text(lease));
    if let Some(cluster) = &filter.cluster {
        add("e.cluster = ?", Value::Text(cluster));
    }
    if let Some(kind) = filter.resource_kind {
        add("e.resource_kind = ?", Value::Text(kind.name()));
    }
    if let Some(id) = &filter.resource_id {
        add("e.resource_id = ?", Value::Text(id));
    }
    if let Some(prefix) = &filter.id_prefix {
        // A range of the index, and no LIKE: ids are percent-encoded. No id has the last of all characters.
        add("e.resource_id >= ?", Value::Text(prefix));
        let until = format!("e.resource_id < ? || '{}'", char::MAX);
        add(&until, Value::Text(prefix));
    }
    if let Some(kind) = filter.kind {
        add("e.kind = ?", Value::Text(kind.name()));
    }
    match filter.severity {
        None | Some(Severity::Info) => {}
        Some(Severity::Warning) => add("e.severity <> ?", Value::Text(Severity::Info.name())),
        Some(Severity::Error) => add("e.severity = ?", Value::Text(Severity::Error.name())),
    }
    if let Some(from) = filter.from {
        add(&format!("{at_ms} >= ?"), Value::Int(from.millis()));
    }
    if let Some(until) = filter.until {
        add(&format!("{at_ms} < ?"), Value::Int(until.millis()));
    }
    if !filter.resource_ids.is_empty() {
        let first = values.len() + 1;
        let ids = filter.resource_ids.iter().take(MAX_EVENT_IDS);
        values.extend(ids.map(|it| Value::Text(it)));
        let places: Vec<String> = (first..=values.len()).map(|it| format!("${it}")).collect();
        conditions.push(format!("e.resource_id IN ({})", places.join(", ")));
    }
    conditions.join(" AND ")
}

fn page(rows: &[Row], limit: usize, bad: &mut Vec<Unreadable>) -> Result<EventPage, StoreError> {
    let mut page = EventPage::default();
    for row in rows {
        page.events.extend(read(row, bad)?);
    }
    if let Some(row) = rows.last().filter(|_| rows.len() == limit) {
        page.next = Some(EventPlace {
            id: row.int(0).doing("reading events")?,
            at: Timestamp::from_millis(row.int(1).doing("reading events")?),
        });
    }
    Ok(page)
}

/// An event from [`COLUMNS`]; none when it cannot be read.
pub(super) fn read(
    row: &Row,
    bad: &mut Vec<Unreadable>,
) -> Result<Option<StoredEvent>, StoreError> {
    let doing = "reading events";
    let at = Timestamp::from_millis(row.int(1).doing(doing)?);
    let agent = row.optional_blob(7).doing(doing)?;
    let mut texts = [&[][..]; 7];
    for (text, index) in texts.iter_mut().zip([2, 3, 4, 5, 6, 8, 9]) {
        *text = row.bytes(index).doing(doing)?;
    }
    match parse(at, agent, texts) {
        Ok(event) => Ok(Some(event)),
        Err(what) => {
            let id = row.int(0).doing(doing)?;
            let at_ms = at.millis();
            bad.push(Unreadable {
                place: Place::Event { id, at_ms },
                data: texts.join(&b'\n'),
                error: format!("its {what} is none"),
                is_unknown: false,
            });
            Ok(None)
        }
    }
}

/// An event from its columns, or the name of the first that is wrong.
fn parse(
    at: Timestamp,
    from: Option<&[u8]>,
    [
        cluster,
        kind,
        severity,
        resource_kind,
        resource_id,
        message,
        attributes,
    ]: [&[u8]; 7],
) -> Result<StoredEvent, &'static str> {
    let word = |bytes, what| std::str::from_utf8(bytes).map_err(|_| what);
    Ok(StoredEvent {
        cluster: word(cluster, "cluster")?.into(),
        agent: agent(from).map_err(|_| "agent")?,
        event: Event {
            at,
            kind: EventKind::parse(word(kind, "kind")?).ok_or("kind")?,
            severity: Severity::parse(word(severity, "severity")?).ok_or("severity")?,
            resource_kind: ResourceKind::parse(word(resource_kind, "kind of resource")?)
                .ok_or("kind of resource")?,
            resource_id: word(resource_id, "resource")?.into(),
            message: word(message, "message")?.to_owned(),
            attributes: serde_json::from_slice(attributes).map_err(|_| "list of attributes")?,
        },
    })
}

/// Writes the events of a commit.
pub(super) async fn write(
    transaction: &mut Transaction,
    lease: &str,
    events: &[StoredEvent],
) -> Result<(), StoreError> {
    let attributes: Vec<String> = events
        .iter()
        .map(|it| serde_json::to_string(&it.event.attributes).expect("a map of strings is JSON"))
        .collect();
    let text = |of: fn(&StoredEvent) -> &str| Column::Texts(events.iter().map(of).collect());
    let columns = [
        Column::Texts(vec![lease; events.len()]),
        Column::Ints(events.iter().map(|it| it.event.at.millis()).collect()),
        text(|it| &it.cluster),
        text(|it| it.event.kind.name()),
        text(|it| it.event.severity.name()),
        text(|it| it.event.resource_kind.name()),
        text(|it| &it.event.resource_id),
        Column::OptionalBlobs(
            events
                .iter()
                .map(|it| it.agent.as_ref().map(|id| &id.0.as_bytes()[..]))
                .collect(),
        ),
        text(|it| &it.event.message),
        Column::Texts(attributes.iter().map(String::as_str).collect()),
    ];
    let before = "INSERT INTO event (lease, at_ms, cluster, kind, severity, resource_kind,
        resource_id, agent, message, attributes)";
    let rows = transaction.rows(before, &columns, "").await;
    rows.doing("writing events").map(|_| ())
}
