//! `/incidents`: what is wrong, why, since when, what it costs; and what people [`say`] to it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use gpufleet_analysis::cause::Reading;
use gpufleet_analysis::incident::{self, Happened, Incident};
use gpufleet_analysis::lost::{Losing, Lost};
use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::paging::Paging;
use super::problem::{Asked, Place, Problem};
use crate::auth::Grant;
use crate::fleet::naming::origin_of;
use crate::health;
use crate::notify::runbook;
use crate::web::Web;
use crate::words::incident::{is_only_unseen, price};
use crate::words::{address, text};

mod asked;
pub mod say;

pub use asked::IncidentsAsked;
pub(crate) use asked::cursor;

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
    /// What happened: `opened`, `resolved`, `acknowledged`, `silenced`, `unsilenced`, `note` and so on.
    pub what: &'static str,
    /// The note, the other incident, until when, or that it was not seen again: nobody knows that it was mended.
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
    /// `live`, `recorded` or `simulated`.
    pub origin: &'static str,
    /// How many places are in it: GPUs of a node, nodes of a cluster.
    pub places: usize,
    /// Whose it is, as messages say it: a team, or `unowned`. Null in a replay of which that is not known.
    pub owner: Option<String>,
    /// The page of this server that says what to do: `/runbooks/xid`.
    pub runbook: String,
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
    /// Until when nobody is to be told; null where no silence holds now.
    #[schema(format = DateTime)]
    pub silenced_until: Option<String>,
    /// The first piece of evidence of each kind and place.
    pub evidence: Vec<EvidenceKnown>,
    /// Pieces that there was no room for.
    pub more_evidence: u64,
    /// What happened to it.
    pub log: Vec<LogLine>,
}

/// A page of incidents.
#[derive(Debug, Serialize, ToSchema)]
pub struct IncidentsPage {
    /// The incidents.
    pub items: Vec<IncidentKnown>,
    /// Where to go on: the `after` of the next request; none when these were the last.
    pub next: Option<String>,
    /// Since when the detectors judge nothing: what broke since then, and what was over, is in no list, and nobody is told
    /// of it. Null while they judge.
    #[schema(format = DateTime)]
    pub detectors_stand_since: Option<String>,
}

/// Incidents, those that began last first. None in the list is not that nothing is wrong where the detectors stand.
#[utoipa::path(get, path = "/api/v1/incidents", tag = "Incidents", params(IncidentsAsked),
    responses((status = 200, body = IncidentsPage)))]
pub async fn incidents(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(asked): Asked<IncidentsAsked>,
) -> Result<Json<IncidentsPage>, Problem> {
    let paging = Paging {
        limit: asked.limit,
        after: asked.after.clone(),
    };
    let limit = paging.limit()?;
    let before = asked.before()?;
    let filter = asked.filter(&grant)?;
    // What is held in memory is newer than what the store has.
    let written = web.app.incidents.write(&web.app.store).await;
    let stored = web.app.store.incidents(&filter, before, limit).await;
    let (stored, next) = stored.map_err(|error| Problem::store(&error))?;
    written.map_err(|error| Problem::store(&error))?;
    let newest = |it: Incident| web.app.incidents.get(it.id).unwrap_or(it);
    let items = stored.into_iter().map(newest);
    let items = items.filter(|it| filter.is_met(it));
    Ok(Json(IncidentsPage {
        items: items.map(|it| known_now(&web, &it)).collect(),
        next: next.map(cursor),
        detectors_stand_since: health::detectors_stand_since(&web.app).map(text::rfc3339),
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
    let found = find(&web, &grant, id).await?;
    let found = found.ok_or_else(|| unknown(id))?;
    Ok(Json(known_now(&web, &found)))
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

fn unknown(id: Uuid) -> Problem {
    Problem::unknown(format_args!(
        "no incident {id}; /api/v1/incidents lists them"
    ))
}

/// An incident as the API tells it now, and whose it is.
fn known_now(web: &Web, incident: &Incident) -> IncidentKnown {
    let owner = web.app.incidents.owner_of(incident);
    let now = web.app.clock.now();
    known(incident, Some(owner), now, web.app.currency())
}

/// An incident as the API tells it at this moment, whose it is, and its money in this currency.
pub(crate) fn known(
    incident: &Incident,
    owner: Option<String>,
    now: Timestamp,
    currency: &str,
) -> IncidentKnown {
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
        origin: origin_of(&incident.place.cluster).name(),
        places: incident.places,
        owner,
        runbook: address::runbook(runbook::of(incident)),
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
        silenced_until: time(incident.silent_until(now)),
        evidence: evidence.collect(),
        more_evidence: incident.more_evidence,
        log: incident.log.iter().map(|it| line(it, incident)).collect(),
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

fn line(line: &incident::Line, of: &Incident) -> LogLine {
    let (what, detail) = match &line.happened {
        Happened::Opened => ("opened", None),
        Happened::Reopened => ("reopened", None),
        Happened::Widened(place) => ("widened", Some(place.clone())),
        Happened::Merged(other) => ("merged", Some(other.to_string())),
        Happened::Explained(other) => ("explained", Some(other.to_string())),
        Happened::Understood(what) => ("understood", Some(what.clone())),
        Happened::Resolved if is_only_unseen(of) => {
            ("resolved", Some("was not seen again".to_owned()))
        }
        Happened::Resolved => ("resolved", None),
        Happened::Acknowledged => ("acknowledged", None),
        Happened::Silenced(_) if line.ends_silence() => ("unsilenced", None),
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
