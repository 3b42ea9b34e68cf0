//! What people say to an incident: that they work on it or no more, that nobody is to be told for a time or again, a
//! note.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use gpufleet_analysis::incident::{Book, Incident, Refused};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{IncidentKnown, known_now, unknown};
use crate::api::audit;
use crate::api::moments::moment;
use crate::api::problem::{self, Body, Place, Problem};
use crate::auth::{Grant, Role};
use crate::incidents::ChangeError;
use crate::web::{self, Web};

/// Somebody works on it.
pub const ACKNOWLEDGE: &str = "acknowledge";
/// Nobody works on it any more.
pub const RELEASE: &str = "release";
/// Nobody is to be told for a time.
pub const SILENCE: &str = "silence";
/// People are to be told again.
pub const UNSILENCE: &str = "unsilence";
/// A note.
pub const NOTE: &str = "note";
const WORDS: [&str; 5] = [ACKNOWLEDGE, RELEASE, SILENCE, UNSILENCE, NOTE];

/// What a person says to an incident.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// `acknowledge`, `release` (nobody works on it any more), `silence`, `unsilence` or `note`.
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

/// Acknowledges, silences or annotates an incident, or takes the first two back, with the name of who does. What is
/// silent by a pattern alone is refused: the pattern is to be ended. Needs role operate.
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
    Ok((StatusCode::OK, Json(known_now(&web, &changed))).into_response())
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
        RELEASE => book.release(id, &who, now),
        SILENCE => book.silence(id, &who, until.unwrap_or(now), now),
        _ => book.annotate(id, &who, said.note.as_deref().unwrap_or_default(), now),
    };
    let (incidents, store) = (&web.app.incidents, &web.app.store);
    let changed = match said.what.as_str() {
        UNSILENCE => incidents.unsilence(store, id, &who, now).await,
        _ => incidents.change(store, id, change).await,
    };
    let changed = changed.map_err(|error| match error {
        ChangeError::Refused(error) => refused(error),
        ChangeError::Pattern(_) => Problem::new(StatusCode::CONFLICT, error),
        ChangeError::Store(error) => Problem::store(&error),
    })?;
    tracing::info!(%id, who, what = said.what, "somebody said something to an incident");
    web.app.news.send_replace(());
    Ok(changed)
}

fn refused(error: Refused) -> Problem {
    match error {
        Refused::Unknown(_) => Problem::unknown(error),
        Refused::Over(_) | Refused::Free | Refused::Loud => {
            Problem::new(StatusCode::CONFLICT, error)
        }
        Refused::Person | Refused::Note(_) | Refused::Silence => Problem::bad(error),
    }
}
