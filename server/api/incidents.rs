//! `/incidents`: what is wrong, why, since when, what it costs; and what people say to it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use gpufleet_analysis::cause::Reading;
use gpufleet_analysis::incident::{self, Book, Family, Happened, Incident, Refused};
use gpufleet_analysis::lost::{Losing, Lost};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::audit;
use super::paging::{self, Page, Paging};
use super::past::moment;
use super::problem::{self, Asked, Body, Place, Problem};
use crate::auth::{Grant, Role};
use crate::incidents::ChangeError;
use crate::store::model::{IncidentFilter, IncidentPlace};
use crate::web::{self, Web};
use crate::words::{incident::price, text};

/// Somebody works on it.
pub const ACKNOWLEDGE: &str = "acknowledge";
/// Nobody is to be told for a time.
pub const SILENCE: &str = "silence";
/// A note.
pub const NOTE: &str = "note";
const WORDS: [&str; 3] = [ACKNOWLEDGE, SILENCE, NOTE];

/// Which incidents.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct IncidentsAsked {
    /// Only of this cluster.
    pub cluster: Option<String>,
    /// Only of this family: `gpu_fault`, `heat`, `blind` and so on.
    pub family: Option<String>,
    /// `open` or `resolved`; without it both.
    pub state: Option<String>,
    /// Most items of the answer, 1 to 1000.
    #[param(default = 200, minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the answer before; without it the first page.
    pub after: Option<String>,
}

/// Where it is. What is null is not narrowed down.
#[derive(Debug, Serialize, ToSchema)]
pub struct IncidentWhere {
    /// The cluster.
    pub cluster: String,
    /// The node in it.
    pub node: Option<String>,
    /// The GPU on the node.
    pub gpu: Option<String>,
    /// The run or job, of what is about one.
    pub run: Option<String>,
    /// The rank of the run.
    pub rank: Option<u32>,
}

/// What was read, beside what is usual.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReadingKnown {
    /// What was read.
    pub name: String,
    /// The value, in base units.
    pub value: f64,
    /// What is usual, or the limit that it is over.
    pub usual: Option<f64>,
    /// The unit's suffix, `celsius` or `ratio`; empty for plain counts.
    pub unit: String,
}

/// A piece of evidence.
#[derive(Debug, Serialize, ToSchema)]
pub struct EvidenceKnown {
    /// When it was first seen.
    #[schema(format = DateTime)]
    pub at: String,
    /// Where.
    pub place: IncidentWhere,
    /// What.
    pub what: String,
    /// Why, as far as this piece says.
    pub cause: &'static str,
    /// What was read.
    pub readings: Vec<ReadingKnown>,
}

/// One line of an incident's log.
#[derive(Debug, Serialize, ToSchema)]
pub struct LogLine {
    /// When.
    #[schema(format = DateTime)]
    pub at: String,
    /// Who; null is the server.
    pub who: Option<String>,
    /// What happened: `opened`, `resolved`, `acknowledged`, `note` and so on.
    pub what: &'static str,
    /// The note, the other incident, or until when.
    pub detail: Option<String>,
}

/// One thing that is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub struct IncidentKnown {
    /// Its id, for ever.
    pub id: Uuid,
    /// `open` or `resolved`.
    pub state: &'static str,
    /// What kind of trouble.
    pub family: &'static str,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// What it is, in few words.
    pub what: String,
    /// What to do about it; may be empty.
    pub action: String,
    /// The likeliest cause, or `unknown`.
    pub cause: &'static str,
    /// How sure it is: `low`, `medium` or `high`; null of what its detector does not grade.
    pub confidence: Option<&'static str>,
    /// Where.
    pub place: IncidentWhere,
    /// How many places are in it: GPUs of a node, nodes of a cluster.
    pub places: usize,
    /// When the trouble began.
    #[schema(format = DateTime)]
    pub since: String,
    /// When it opened.
    #[schema(format = DateTime)]
    pub opened_at: Option<String>,
    /// When it was last seen.
    #[schema(format = DateTime)]
    pub seen_at: String,
    /// Since when its place is not heard from, so that nobody knows whether it is over.
    #[schema(format = DateTime)]
    pub unheard_since: Option<String>,
    /// When it was over.
    #[schema(format = DateTime)]
    pub resolved_at: Option<String>,
    /// What its figures are: `lost`; `at_stake`, `unobserved` or `repeated`, which are no losses and told beside; or
    /// `none`.
    pub figure: &'static str,
    /// What they are reckoned by, or why there are none.
    pub reckoned: &'static str,
    /// Whether a place that is in it has no figure, so that it costs this at least.
    pub is_least: bool,
    /// What its money is in, as ISO 4217 has it: `cost.currency`. Nothing is converted, also where a name says USD.
    #[schema(example = "USD")]
    pub currency: String,
    /// Its price in one sentence.
    pub price: String,
    /// GPU-seconds lost to it so far; null where that was not measured.
    pub lost_gpu_seconds: Option<f64>,
    /// What they cost, nano-units of `currency`; null without a price, or where it was not measured.
    pub lost_nano_usd: Option<i64>,
    /// Whether all of the lost time had a price.
    pub lost_is_priced: bool,
    /// GPU-seconds that it loses an hour now; null where that is not measured.
    pub losing_gpu_seconds_per_hour: Option<u64>,
    /// What it loses an hour now, nano-units of `currency`; null without a price, or where it is not measured.
    pub losing_nano_usd_per_hour: Option<i64>,
    /// GPU-seconds at stake, unobserved or repeated; null where `figure` is none of these.
    pub stake_gpu_seconds: Option<f64>,
    /// What they cost, nano-units of `currency`; null without a price.
    pub stake_nano_usd: Option<i64>,
    /// How many GPU-seconds more an hour.
    pub stake_gpu_seconds_per_hour: Option<u64>,
    /// What these cost, nano-units of `currency`; null without a price.
    pub stake_nano_usd_per_hour: Option<i64>,
    /// Who works on it.
    pub acknowledged_by: Option<String>,
    /// Until when nobody is to be told.
    #[schema(format = DateTime)]
    pub silenced_until: Option<String>,
    /// The first piece of evidence of each kind and place.
    pub evidence: Vec<EvidenceKnown>,
    /// Pieces that there was no room for.
    pub more_evidence: u64,
    /// What happened to it.
    pub log: Vec<LogLine>,
}

/// What a person says to an incident.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// `acknowledge`, `silence` or `note`.
    #[schema(example = "acknowledge")]
    pub what: String,
    /// Who says so. Where a proxy names people (`auth.user_header`) its word counts, and this is not looked at.
    #[schema(example = "ada")]
    pub who: Option<String>,
    /// The note.
    pub note: Option<String>,
    /// Until when it is silenced, at most 7 days from now.
    #[schema(format = DateTime)]
    pub until: Option<String>,
    /// The same as seconds from now.
    #[schema(example = 7200)]
    pub for_s: Option<i64>,
}

/// Incidents, those that began last first.
#[utoipa::path(get, path = "/api/v1/incidents", tag = "Incidents", params(IncidentsAsked),
    responses((status = 200, body = Page<IncidentKnown>)))]
pub async fn incidents(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<IncidentsAsked>,
) -> Result<Json<Page<IncidentKnown>>, Problem> {
    let paging = Paging {
        limit: asked.limit,
        after: asked.after.clone(),
    };
    let limit = paging.limit()?;
    let before = asked.after.as_deref().map(place).transpose()?;
    let filter = asked.filter(&grant)?;
    // What is held in memory is newer than what the store has.
    let written = web.app.incidents.write(&web.app.store).await;
    let stored = web.app.store.incidents(&filter, before, limit).await;
    let (stored, next) = stored.map_err(|error| Problem::store(&error))?;
    written.map_err(|error| Problem::store(&error))?;
    let next =
        next.map(|it| paging::write_cursor(&[it.since.millis().to_string(), it.id.to_string()]));
    let items = stored.iter().map(|it| {
        let newest = web.app.incidents.get(it.id);
        known(newest.as_ref().unwrap_or(it), web.app.currency())
    });
    Ok(Json(Page {
        items: items.collect(),
        next,
    }))
}

/// One incident.
#[utoipa::path(get, path = "/api/v1/incidents/{id}", tag = "Incidents",
    params(("id" = Uuid, Path, description = "The incident's id")),
    responses((status = 200, body = IncidentKnown), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn incident(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place(id): Place<Uuid>,
) -> Result<Json<IncidentKnown>, Problem> {
    let found = find(&web, &grant, id).await?.ok_or_else(|| unknown(id))?;
    Ok(Json(known(&found, web.app.currency())))
}

/// An incident that a reader may see, the newest that is known of it.
///
/// # Errors
/// When the store does not answer.
pub async fn find(web: &Web, grant: &Grant, id: Uuid) -> Result<Option<Incident>, Problem> {
    let held = web.app.incidents.get(id);
    let found = match held {
        Some(held) => Some(held),
        None => {
            let stored = web.app.store.incident(id).await;
            stored.map_err(|error| Problem::store(&error))?
        }
    };
    Ok(found.filter(|it| grant.may_see(&it.place.cluster)))
}

/// Acknowledges, silences or annotates an incident, with the name of who does. Needs role operate.
#[utoipa::path(post, path = "/api/v1/incidents/{id}/say", tag = "Incidents", request_body = Said,
    params(("id" = Uuid, Path, description = "The incident's id")),
    responses((status = 200, body = IncidentKnown), (status = 404, body = Problem, content_type = "application/problem+json"), (status = 409, body = Problem, content_type = "application/problem+json")))]
pub async fn say(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    peer: Option<Extension<audit::From>>,
    Place(id): Place<Uuid>,
    Body(words): Body<Said>,
) -> Result<Response, Problem> {
    let grant = match web::may(&web, &headers, Role::Operate) {
        Ok(grant) => grant,
        Err(error) => return Ok(problem::refused(&error)),
    };
    let changed = said(&web, (&headers, peer), &grant, id, &words).await?;
    Ok((StatusCode::OK, Json(known(&changed, web.app.currency()))).into_response())
}

/// Does what a person says to an incident, and writes down who says so.
///
/// # Errors
/// When there is no such incident that may be seen, the words make no sense, or the store does not answer:
/// then nothing is changed.
pub async fn said(
    web: &Web,
    (headers, peer): (&HeaderMap, Option<Extension<audit::From>>),
    grant: &Grant,
    id: Uuid,
    said: &Said,
) -> Result<Incident, Problem> {
    let held = web.app.incidents.get(id);
    if !held.is_some_and(|it| grant.may_see(&it.place.cluster)) {
        return Err(unknown(id));
    }
    let now = web.app.clock.now();
    let until = moment("until", said.until.as_deref())?;
    let lasts = said
        .for_s
        .map(|seconds| seconds.saturating_mul(NANOS_PER_SECOND));
    let until = until.or(lasts.map(|nanos| Timestamp(now.0.saturating_add(nanos))));
    if !WORDS.contains(&said.what.as_str()) {
        return Err(Problem::bad(format_args!(
            "what=“{}”: it is one of {}",
            said.what,
            WORDS.join(", ")
        )));
    }
    let change = audit::Changed {
        action: format!("incident {}", said.what),
        target: format!("incident {id}"),
        detail: serde_json::to_string(said).expect("texts are JSON"),
    };
    let named = audit::write(web, headers, peer, change).await?;
    let who = match web.app.config.auth.user_header.is_empty() {
        // Nobody else knows the name.
        true => said.who.clone().unwrap_or_default(),
        false => named,
    };
    let change = |book: &mut Book| match said.what.as_str() {
        ACKNOWLEDGE => book.acknowledge(id, &who, now),
        SILENCE => book.silence(id, &who, until.unwrap_or(now), now),
        _ => book.annotate(id, &who, said.note.as_deref().unwrap_or_default(), now),
    };
    let changed = web.app.incidents.change(&web.app.store, id, change).await;
    let changed = changed.map_err(|error| match error {
        ChangeError::Refused(error) => refused(error),
        ChangeError::Store(error) => Problem::store(&error),
    })?;
    tracing::info!(%id, who, what = said.what, "somebody said something to an incident");
    web.app.news.send_replace(());
    Ok(changed)
}

fn unknown(id: Uuid) -> Problem {
    Problem::unknown(format_args!(
        "no incident {id}; /api/v1/incidents lists them"
    ))
}

fn refused(error: Refused) -> Problem {
    match error {
        Refused::Unknown(_) => Problem::unknown(error),
        Refused::Over(_) => Problem::new(StatusCode::CONFLICT, error),
        Refused::Person | Refused::Note(_) | Refused::Silence => Problem::bad(error),
    }
}

impl IncidentsAsked {
    fn filter(&self, grant: &Grant) -> Result<IncidentFilter, Problem> {
        let family = self.family.as_deref().map(|name| {
            Family::parse(name).ok_or_else(|| {
                let names = Family::ALL.map(Family::name).join(", ");
                Problem::bad(format_args!("family=“{name}”: it is one of {names}"))
            })
        });
        let state = match self.state.as_deref() {
            None => None,
            Some("open") => Some(incident::State::Open),
            Some("resolved") => Some(incident::State::Resolved),
            Some(other) => {
                return Err(Problem::bad(format_args!(
                    "state=“{other}”: it is open or resolved"
                )));
            }
        };
        let cluster = match (&grant.cluster, &self.cluster) {
            // A token bound to a cluster sees that one, whatever is asked for.
            (Some(bound), _) => Some(Arc::clone(bound)),
            (None, asked) => asked.as_deref().map(Arc::from),
        };
        Ok(IncidentFilter {
            cluster,
            family: family.transpose()?,
            state,
            resolved_since: None,
        })
    }
}

fn place(cursor: &str) -> Result<IncidentPlace, Problem> {
    let words = paging::read_cursor(cursor).unwrap_or_default();
    let parsed = match words.as_slice() {
        [millis, id] => millis.parse::<i64>().ok().zip(id.parse().ok()),
        _ => None,
    };
    let parsed = parsed.filter(|(millis, _)| millis.checked_mul(1_000_000).is_some());
    let (millis, id) = parsed.ok_or_else(|| {
        Problem::bad(
            "after: this is no cursor of this list; use the next of the answer before, as it is",
        )
    })?;
    Ok(IncidentPlace {
        since: Timestamp::from_millis(millis),
        id,
    })
}

/// An incident as the API tells it, its money in this currency.
pub(crate) fn known(incident: &Incident, currency: &str) -> IncidentKnown {
    let time = |at: Option<Timestamp>| at.map(text::rfc3339);
    let evidence = incident.evidence.iter().map(|it| EvidenceKnown {
        at: text::rfc3339(it.at),
        place: shown(&it.place),
        what: it.what.clone(),
        cause: it.cause.name(),
        readings: it.readings.iter().map(reading).collect(),
    });
    let (lost, losing) = (incident.lost_known(), incident.losing_known());
    let stake = incident.stake_known().map(|(_, it)| it);
    IncidentKnown {
        id: incident.id,
        state: incident.state.name(),
        family: incident.family.name(),
        severity: incident.severity.name(),
        what: incident.what.clone(),
        action: incident.action.clone(),
        cause: incident.cause.name(),
        confidence: incident.confidence.map(|it| it.name()),
        place: shown(&incident.place_and_run()),
        places: incident.places,
        since: text::rfc3339(incident.since),
        opened_at: time(incident.opened_at),
        seen_at: text::rfc3339(incident.seen_at),
        unheard_since: time(incident.unheard_since),
        resolved_at: time(incident.resolved_at),
        figure: incident.basis.figure().name(),
        reckoned: incident.basis.words(),
        is_least: incident.is_least,
        currency: currency.to_owned(),
        price: price(incident, currency),
        lost_gpu_seconds: lost.map(Lost::gpu_seconds),
        lost_nano_usd: lost.and_then(Lost::nano_usd),
        lost_is_priced: incident.lost.is_priced(),
        losing_gpu_seconds_per_hour: losing.map(Losing::gpu_seconds_per_hour),
        losing_nano_usd_per_hour: losing.and_then(Losing::nano_usd_per_hour),
        stake_gpu_seconds: stake.map(|it| it.so_far.gpu_seconds()),
        stake_nano_usd: stake.and_then(|it| it.so_far.nano_usd()),
        stake_gpu_seconds_per_hour: stake.map(|it| it.losing.gpu_seconds_per_hour()),
        stake_nano_usd_per_hour: stake.and_then(|it| it.losing.nano_usd_per_hour()),
        acknowledged_by: incident.acknowledged_by.clone(),
        silenced_until: time(incident.silenced_until),
        evidence: evidence.collect(),
        more_evidence: incident.more_evidence,
        log: incident.log.iter().map(line).collect(),
    }
}

fn shown(place: &incident::Place) -> IncidentWhere {
    IncidentWhere {
        cluster: place.cluster.clone(),
        node: place.node.clone(),
        gpu: place.gpu.clone(),
        run: place.run.clone(),
        rank: place.rank,
    }
}

fn reading(reading: &Reading) -> ReadingKnown {
    ReadingKnown {
        name: reading.name.clone(),
        value: reading.value,
        usual: reading.usual,
        unit: reading.unit.clone(),
    }
}

fn line(line: &incident::Line) -> LogLine {
    let (what, detail) = match &line.happened {
        Happened::Opened => ("opened", None),
        Happened::Reopened => ("reopened", None),
        Happened::Widened(place) => ("widened", Some(place.clone())),
        Happened::Merged(other) => ("merged", Some(other.to_string())),
        Happened::Explained(other) => ("explained", Some(other.to_string())),
        Happened::Understood(what) => ("understood", Some(what.clone())),
        Happened::Resolved => ("resolved", None),
        Happened::Acknowledged => ("acknowledged", None),
        Happened::Silenced(until) => ("silenced", Some(text::rfc3339(*until))),
        Happened::Note(note) => ("note", Some(note.clone())),
    };
    LogLine {
        at: text::rfc3339(line.at),
        who: line.who.clone(),
        what,
        detail,
    }
}
