//! `/gpus/…/minutes`, `/gpus/…/hours` and `/events`: what the store knows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_analysis::ledger::LedgerHour;
use gpufleet_telemetry::event::{EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::{Meter, MinuteRow};
use gpufleet_telemetry::time::{Minute, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::fleet::find_gpu;
use super::moments::{moment, span};
use super::paging::{self, Page, Paging};
use super::problem::{Asked, Place, Problem};
use super::shape::metric_name;
use crate::auth::Grant;
use crate::fleet::Live;
use crate::store::model::{EventFilter, EventPlace, StoredEvent};
use crate::web::Web;
use crate::words::text;

/// Longest range of minutes, hours: two days, 2,880 rows of about 1 KB.
const MAX_MINUTES_RANGE_HOURS: i64 = 48;

/// Minutes that are read before the range, so that growth begins where a counter stood before it.
const LOOK_BACK_MINUTES: i64 = 60;

/// Longest range of ledger hours, days.
const MAX_HOURS_RANGE_DAYS: i64 = 31;

/// A range of time, half open.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RangeAsked {
    /// The first moment, RFC 3339. Without it: one hour of minutes or one day of hours before `to`.
    #[param(format = DateTime)]
    pub from: Option<String>,
    /// The moment it ends before, RFC 3339. Without it: now.
    #[param(format = DateTime)]
    pub to: Option<String>,
}

/// What is kept of one metric in one minute.
#[derive(Debug, Serialize, ToSchema)]
pub struct MinuteMetric {
    /// How many points went in.
    pub count: u32,
    /// Of a gauge: their mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Of a gauge: the least of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Of a gauge: the greatest of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Of a counter: how much it grew since the known minute before. After a silence that is the
    /// growth of the whole silence, until old data fills it; a silence of more than an hour before
    /// the range is not counted. A counter that was reset counts from zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<f64>,
    /// Of a counter: its raw value at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<f64>,
}

/// One minute. A minute of which nothing is known is not in the list.
#[derive(Debug, Serialize, ToSchema)]
pub struct MinuteKnown {
    /// When it began.
    #[schema(format = DateTime)]
    pub at: String,
    /// Seconds with a valid sample, 0 to 60.
    pub observed_seconds: u32,
    /// Seconds in which the engine was active.
    pub active_seconds: u32,
    /// Seconds busy without work.
    pub stalled_seconds: u32,
    /// Seconds in which someone held it.
    pub held_seconds: u32,
    /// Seconds in which it was known whether someone held it.
    pub holder_known_seconds: u32,
    /// By metric name; a metric without a value in this minute is not there.
    pub metrics: BTreeMap<String, MinuteMetric>,
}

/// Which GPU, and from when to when.
#[derive(Debug, Serialize, ToSchema)]
pub struct Span {
    /// The cluster it lives in.
    pub cluster: Arc<str>,
    /// Its id.
    pub id: Arc<str>,
    /// `live`, `recorded` or `simulated`.
    pub origin: &'static str,
    /// The first moment of the range, at the start of a minute or hour.
    #[schema(format = DateTime)]
    pub from: String,
    /// The moment the range ends before.
    #[schema(format = DateTime)]
    pub to: String,
}

/// Minutes of one GPU.
#[derive(Debug, Serialize, ToSchema)]
pub struct Minutes {
    /// Which GPU, and from when to when.
    #[serde(flatten)]
    pub span: Span,
    /// The minutes of which something is known.
    pub minutes: Vec<MinuteKnown>,
    /// How many minutes of the range nothing is known of.
    pub unknown_minutes: usize,
    /// A sentence for each row that is there but cannot be read.
    pub unreadable: Vec<String>,
}

/// Time in one state.
#[derive(Debug, Serialize, ToSchema)]
pub struct StateTime {
    /// The state.
    pub state: &'static str,
    /// Why; `unknown` where the state says it all.
    pub reason: &'static str,
    /// How long, milliseconds.
    pub millis: i64,
}

/// One hour of the ledger.
#[derive(Debug, Serialize, ToSchema)]
pub struct HourKnown {
    /// When it began.
    #[schema(format = DateTime)]
    pub at: String,
    /// Whether no data in time can change it any more.
    pub is_final: bool,
    /// Whether data that came after it was final changed it.
    pub restated: bool,
    /// Milliseconds accounted for: a whole hour, or less where it was not there or the hour runs.
    pub accounted_millis: i64,
    /// Where the time went.
    pub states: Vec<StateTime>,
    /// What the accounted time costs, nano-units of `currency`; none without a price.
    pub cost_nano_usd: Option<i64>,
}

/// Ledger hours of one GPU.
#[derive(Debug, Serialize, ToSchema)]
pub struct Hours {
    /// Which GPU, and from when to when.
    #[serde(flatten)]
    pub span: Span,
    /// What its money is in, as ISO 4217 has it: `cost.currency`. Nothing is converted, also where a name says USD.
    #[schema(example = "USD")]
    pub currency: String,
    /// The hours of which something is known.
    pub hours: Vec<HourKnown>,
}

/// Which events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventsAsked {
    /// Of this cluster.
    pub cluster: Option<String>,
    /// About this kind of resource: `node`, `gpu`, `share`, `endpoint` or `rank`.
    pub resource_kind: Option<String>,
    /// About the resource with this id.
    pub resource_id: Option<String>,
    /// Of this kind, for example `xid`.
    pub kind: Option<String>,
    /// At least this bad: `info`, `warning` or `error`.
    pub severity: Option<String>,
    /// Not before this moment, RFC 3339.
    #[param(format = DateTime)]
    pub from: Option<String>,
    /// Before this moment, RFC 3339.
    #[param(format = DateTime)]
    pub to: Option<String>,
    /// Most items of the answer, 1 to 1000.
    #[param(default = 200, minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the answer before; without it the first page.
    pub after: Option<String>,
}

/// Something that happened.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventKnown {
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
    /// The cluster it happened in.
    pub cluster: Arc<str>,
    /// What happened.
    pub kind: &'static str,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// What kind of resource it is about.
    pub resource_kind: &'static str,
    /// The resource's id.
    pub resource_id: Arc<str>,
    /// Who told it; none for other OTLP senders.
    pub agent: Option<String>,
    /// One sentence.
    pub message: String,
    /// The readings behind it.
    pub attributes: BTreeMap<String, String>,
}

/// Minutes of a GPU or share, at most 48 hours at once.
#[utoipa::path(get, path = "/api/v1/gpus/{cluster}/{id}/minutes", tag = "Past",
    params(("cluster" = String, Path, description = "The cluster's name"), ("id" = String, Path, description = "The GPU's or share's id"), RangeAsked),
    responses((status = 200, body = Minutes), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn minutes(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, id)): Place<(String, String)>,
    Asked(range): Asked<RangeAsked>,
) -> Result<Json<Minutes>, Problem> {
    let live = find_gpu(&web, &grant, &cluster, &id).await?;
    let (from, to) = range.resolve(web.app.clock.now(), 1, MAX_MINUTES_RANGE_HOURS)?;
    // Whole minutes: a part of one cannot be told from the rest.
    let minutes = from.minute()..Minute(to.shifted(-1).minute().0 + 1);
    let read = async |range| {
        let read = web.app.store.minutes(&live.key, range).await;
        read.map_err(|error| Problem::store(&error))
    };
    let first = minutes.start;
    let before = read(Minute(first.0 - LOOK_BACK_MINUTES)..first).await?;
    let found = read(minutes.clone()).await?;
    let mut meter = Meter::default();
    for (metric, counter) in before.rows.values().flat_map(|row| &row.counters) {
        meter.read(*metric, counter);
    }
    let asked = usize::try_from(minutes.end.0 - minutes.start.0).unwrap_or(0);
    Ok(Json(Minutes {
        span: Span::of(&live, &minutes),
        unknown_minutes: asked.saturating_sub(found.rows.len()),
        minutes: found
            .rows
            .iter()
            .map(|(at, row)| minute(*at, row, &mut meter))
            .collect(),
        unreadable: found.corrupt,
    }))
}

/// Ledger hours of a GPU or share, at most 31 days at once.
#[utoipa::path(get, path = "/api/v1/gpus/{cluster}/{id}/hours", tag = "Past",
    params(("cluster" = String, Path, description = "The cluster's name"), ("id" = String, Path, description = "The GPU's or share's id"), RangeAsked),
    responses((status = 200, body = Hours), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn hours(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place((cluster, id)): Place<(String, String)>,
    Asked(range): Asked<RangeAsked>,
) -> Result<Json<Hours>, Problem> {
    let live = find_gpu(&web, &grant, &cluster, &id).await?;
    let (from, to) = range.resolve(web.app.clock.now(), 24, MAX_HOURS_RANGE_DAYS * 24)?;
    let hours = from.minute().hour()..to.shifted(-1).minute().hour() + 1;
    let start = |hour: i64| Minute(hour * 60);
    let found = web.app.store.hours(&live.key, hours.clone()).await;
    let found = found.map_err(|error| Problem::store(&error))?;
    Ok(Json(Hours {
        currency: web.app.currency().to_owned(),
        span: Span::of(&live, &(start(hours.start)..start(hours.end))),
        hours: found
            .iter()
            .map(|it| hour(it, text::rfc3339(start(it.hour).start())))
            .collect(),
    }))
}

/// What happened, the newest first.
#[utoipa::path(get, path = "/api/v1/events", tag = "Past", params(EventsAsked),
    responses((status = 200, body = Page<EventKnown>)))]
pub async fn events(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<EventsAsked>,
) -> Result<Json<Page<EventKnown>>, Problem> {
    let filter = asked.filter(&grant)?;
    let paging = Paging {
        limit: asked.limit,
        after: asked.after.clone(),
    };
    let limit = paging.limit()?;
    let before = asked.after.as_deref().map(place).transpose()?;
    let found = web
        .app
        .store
        .events(&filter, before, limit)
        .await
        .map_err(|error| Problem::store(&error))?;
    Ok(Json(Page {
        items: found.events.into_iter().map(event).collect(),
        next: found
            .next
            .map(|it| paging::write_cursor(&[it.at.millis().to_string(), it.id.to_string()])),
    }))
}

impl Span {
    fn of(live: &Live, minutes: &Range<Minute>) -> Self {
        Self {
            cluster: Arc::clone(&live.key.cluster),
            id: Arc::clone(&live.key.id),
            origin: live.origin.name(),
            from: text::rfc3339(minutes.start.start()),
            to: text::rfc3339(minutes.end.start()),
        }
    }
}

impl RangeAsked {
    /// The range asked for, with the defaults filled in.
    pub(super) fn resolve(
        &self,
        now: Timestamp,
        default_hours: i64,
        most_hours: i64,
    ) -> Result<(Timestamp, Timestamp), Problem> {
        const HOUR: i64 = 3_600 * gpufleet_telemetry::time::NANOS_PER_SECOND;
        let to = moment("to", self.to.as_deref())?.unwrap_or(now);
        let from =
            moment("from", self.from.as_deref())?.unwrap_or(to.shifted(-default_hours * HOUR));
        let length = to.since(from);
        if length <= 0 {
            return Err(Problem::bad(format_args!(
                "from={} is not before to={}",
                text::rfc3339(from),
                text::rfc3339(to)
            )));
        }
        if length > most_hours * HOUR {
            return Err(Problem::bad(format_args!(
                "the range is {} long; one answer holds at most {most_hours} h, ask for parts of it",
                text::span(length / 1_000_000)
            )));
        }
        Ok((from, to))
    }
}

impl EventsAsked {
    fn filter(&self, grant: &Grant) -> Result<EventFilter, Problem> {
        fn named<T>(
            what: &str,
            name: Option<&str>,
            parse: impl Fn(&str) -> Option<T>,
            all: &str,
        ) -> Result<Option<T>, Problem> {
            name.map(|name| {
                parse(name).ok_or_else(|| {
                    Problem::bad(format_args!("{what}=“{name}”: it is one of {all}"))
                })
            })
            .transpose()
        }
        let kinds = EventKind::ALL.map(EventKind::name).join(", ");
        let resources = ResourceKind::ALL.map(ResourceKind::name).join(", ");
        let (from, until) = span(self.from.as_deref(), self.to.as_deref())?;
        Ok(EventFilter {
            resource_ids: Vec::new(),
            id_prefix: None,
            cluster: Problem::of_cluster(grant, self.cluster.as_deref())?,
            resource_kind: named(
                "resource_kind",
                self.resource_kind.as_deref(),
                ResourceKind::parse,
                &resources,
            )?,
            resource_id: self.resource_id.as_deref().map(Arc::from),
            kind: named("kind", self.kind.as_deref(), EventKind::parse, &kinds)?,
            severity: named(
                "severity",
                self.severity.as_deref(),
                Severity::parse,
                "info, warning, error",
            )?,
            from,
            until,
        })
    }
}

fn place(cursor: &str) -> Result<EventPlace, Problem> {
    let words = paging::read_cursor(cursor).unwrap_or_default();
    let parsed = match words.as_slice() {
        [millis, id] => millis.parse::<i64>().ok().zip(id.parse().ok()),
        _ => None,
    };
    // Multiplying a hostile number of milliseconds must not overflow.
    let parsed = parsed.filter(|(millis, _)| millis.checked_mul(1_000_000).is_some());
    let (millis, id) = parsed.ok_or_else(|| {
        Problem::bad(
            "after: this is no cursor of this list; use the next of the answer before, as it is",
        )
    })?;
    Ok(EventPlace {
        at: Timestamp::from_millis(millis),
        id,
    })
}

fn minute(at: Minute, row: &MinuteRow, meter: &mut Meter) -> MinuteKnown {
    let gauges = row.metrics.iter().map(|(id, it)| {
        let known = MinuteMetric {
            count: it.count,
            mean: Some(it.mean()),
            min: Some(it.min),
            max: Some(it.max),
            growth: None,
            last: None,
        };
        (metric_name(*id), known)
    });
    let counters = row.counters.iter().map(|(id, it)| {
        let known = MinuteMetric {
            count: it.count(),
            mean: None,
            min: None,
            max: None,
            growth: Some(meter.read(*id, it)),
            last: Some(it.last()),
        };
        (metric_name(*id), known)
    });
    let metrics = gauges.chain(counters).collect();
    let bits = &row.bitmaps;
    MinuteKnown {
        at: text::rfc3339(at.start()),
        observed_seconds: bits.observed.count_ones(),
        active_seconds: bits.active.count_ones(),
        stalled_seconds: bits.stalled.count_ones(),
        held_seconds: bits.held.count_ones(),
        holder_known_seconds: bits.holder_known.count_ones(),
        metrics,
    }
}

fn hour(hour: &LedgerHour, at: String) -> HourKnown {
    let states = hour.entries.iter().map(|entry| StateTime {
        state: entry.state.name(),
        reason: entry.reason.name(),
        millis: entry.millis,
    });
    HourKnown {
        at,
        is_final: hour.is_final,
        restated: hour.is_restated,
        accounted_millis: hour.total_millis(),
        states: states.collect(),
        cost_nano_usd: hour.cost_nano_usd,
    }
}

fn event(stored: StoredEvent) -> EventKnown {
    let event = stored.event;
    EventKnown {
        at: text::rfc3339(event.at),
        cluster: stored.cluster,
        kind: event.kind.name(),
        severity: event.severity.name(),
        resource_kind: event.resource_kind.name(),
        resource_id: event.resource_id,
        agent: stored.agent.map(|agent| agent.to_string()),
        message: event.message,
        attributes: event.attributes,
    }
}

#[cfg(test)]
mod tests;
