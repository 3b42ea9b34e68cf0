//! `/silences`: until when nobody is told of what matches a pattern, and of what somebody has silenced alone.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::audit;
use super::moments::moment;
use super::problem::{self, Body, Place, Problem};
use crate::auth::{Grant, Role};
use crate::incidents::SilenceError;
use crate::notify::silence::{Pattern, Refused, Silence};
use crate::web::{self, Web};
use crate::words::text;

/// A silence, by pattern or of one incident alone.
#[derive(Debug, Serialize, ToSchema)]
pub struct SilenceKnown {
    /// Its id; the incident's, where it is of one alone.
    pub id: Uuid,
    /// What it is about: all that is there has to match, where `*` is any text. Empty where it is of one incident.
    pub matches: Pattern,
    /// The one incident that somebody has silenced alone, by `silence`; `unsilence` ends that. Null for a pattern.
    pub incident: Option<Uuid>,
    /// What that incident is, in few words.
    pub what: Option<String>,
    /// Since when; null where the incident's log says it no more.
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// Until when.
    #[schema(format = DateTime)]
    pub until: String,
    /// Who says so; empty where the incident's log says it no more.
    pub who: String,
    /// Why; may be empty.
    pub note: String,
    /// Open incidents that match now.
    pub incidents: usize,
}

/// A silence to be kept.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SilenceAsked {
    /// What it is about: all that is there has to match, where `*` is any text, and not only that.
    pub matches: Pattern,
    /// Until when, at most 7 days from now.
    #[schema(format = DateTime)]
    pub until: Option<String>,
    /// The same as seconds from now.
    #[schema(example = 7200)]
    pub for_s: Option<i64>,
    /// Who says so. Where a proxy names people (`auth.user_header`) its word counts, and this is not looked at.
    #[schema(example = "ada")]
    pub who: Option<String>,
    /// Why.
    pub note: Option<String>,
}

/// Who ends a silence.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SilenceEnded {
    /// Who says so. Where a proxy names people (`auth.user_header`) its word counts, and this is not looked at.
    #[schema(example = "ada")]
    pub who: Option<String>,
}

/// The silences that hold: by pattern, the first made first, then those of one incident each. A token of one cluster
/// sees those of that cluster alone.
#[utoipa::path(get, path = "/api/v1/silences", tag = "Incidents",
    responses((status = 200, body = [SilenceKnown])))]
pub async fn silences(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
) -> Json<Vec<SilenceKnown>> {
    Json(all(&web, &grant))
}

/// The silences that hold and may be seen.
pub fn all(web: &Web, grant: &Grant) -> Vec<SilenceKnown> {
    let now = web.app.clock.now();
    let patterns = web.app.incidents.silences(grant, now);
    let patterns = patterns.iter().map(|it| known(web, grant, it));
    let open = web.app.incidents.open(grant);
    let of_one = open.iter().filter_map(|it| alone(it, now));
    patterns.chain(of_one).collect()
}

/// Tells nobody of what matches for a while, also of what breaks meanwhile. Needs role operate.
#[utoipa::path(post, path = "/api/v1/silences", tag = "Incidents", request_body = SilenceAsked,
    responses((status = 201, body = SilenceKnown), (status = 409, body = Problem, content_type = "application/problem+json")))]
pub async fn keep(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    peer: Option<Extension<audit::From>>,
    Body(asked): Body<SilenceAsked>,
) -> Result<Response, Problem> {
    let grant = match web::may(&web, &headers, Role::Operate) {
        Ok(grant) => grant,
        Err(error) => return Ok(problem::refused(&error)),
    };
    let now = web.app.clock.now();
    let until = moment("until", asked.until.as_deref())?;
    let lasts = asked.for_s.map(|it| it.saturating_mul(NANOS_PER_SECOND));
    let until = until.or(lasts.map(|nanos| Timestamp(now.0.saturating_add(nanos))));
    let mut silence = Silence {
        id: Uuid::now_v7(),
        pattern: asked.matches.clone(),
        until: until.unwrap_or(now),
        since: now,
        who: asked.who.clone().unwrap_or_default(),
        note: asked.note.as_deref().unwrap_or_default().trim().to_owned(),
    };
    // A token that is good for one cluster silences that one, and says so.
    if let Some(bound) = &grant.cluster {
        let of = silence
            .pattern
            .cluster
            .get_or_insert_with(|| bound.to_string());
        if *of != **bound {
            return Err(Problem::bad(format_args!(
                "this token is good for cluster {bound} alone"
            )));
        }
    }
    let change = audit::Changed {
        action: "silence".to_owned(),
        target: format!("silence {}", silence.id),
        detail: serde_json::to_string(&asked).expect("texts are JSON"),
    };
    let named = audit::write(&web, &headers, peer, change).await?;
    if !web.app.config.auth.user_header.is_empty() {
        silence.who = named;
    }
    tracing::info!(id = %silence.id, who = silence.who, what = silence.pattern.words(), "a silence by pattern");
    let kept = web
        .app
        .incidents
        .keep_silence(&web.app.store, silence.clone(), now)
        .await;
    kept.map_err(refused)?;
    web.app.news.send_replace(());
    Ok((StatusCode::CREATED, Json(known(&web, &grant, &silence))).into_response())
}

/// Ends a silence before its time: people are told of what it kept silent and is still so. Needs role operate.
#[utoipa::path(post, path = "/api/v1/silences/{id}/end", tag = "Incidents", request_body = SilenceEnded,
    params(("id" = Uuid, Path, description = "The silence's id")),
    responses((status = 200, body = SilenceKnown), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn end(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    peer: Option<Extension<audit::From>>,
    Place(id): Place<Uuid>,
    Body(asked): Body<SilenceEnded>,
) -> Result<Response, Problem> {
    let grant = match web::may(&web, &headers, Role::Operate) {
        Ok(grant) => grant,
        Err(error) => return Ok(problem::refused(&error)),
    };
    let change = audit::Changed {
        action: "silence end".to_owned(),
        target: format!("silence {id}"),
        detail: serde_json::to_string(&asked).expect("texts are JSON"),
    };
    let named = audit::write(&web, &headers, peer, change).await?;
    let who = match web.app.config.auth.user_header.is_empty() {
        true => asked.who.unwrap_or_default(),
        false => named,
    };
    let now = web.app.clock.now();
    let of = (&web.app.store, &grant);
    let ended = web.app.incidents.end_silence(of, id, &who, now).await;
    let ended = ended.map_err(refused)?;
    tracing::info!(%id, who, "a silence by pattern ends");
    web.app.news.send_replace(());
    Ok(Json(known(&web, &grant, &ended)).into_response())
}

fn refused(error: SilenceError) -> Problem {
    match error {
        SilenceError::Refused(error @ Refused::Unknown(_)) => Problem::unknown(error),
        SilenceError::Refused(error @ Refused::TooMany) => {
            Problem::new(StatusCode::CONFLICT, error)
        }
        SilenceError::Refused(error) => Problem::bad(error),
        SilenceError::NotYet => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error),
        SilenceError::Store(error) => Problem::store(&error),
    }
}

fn known(web: &Web, grant: &Grant, silence: &Silence) -> SilenceKnown {
    let open = web.app.incidents.open(grant);
    SilenceKnown {
        id: silence.id,
        matches: silence.pattern.clone(),
        incident: None,
        what: None,
        since: Some(text::rfc3339(silence.since)),
        until: text::rfc3339(silence.until),
        who: silence.who.clone(),
        note: silence.note.clone(),
        incidents: web.app.incidents.about(silence, &open),
    }
}

/// What somebody has silenced alone.
fn alone(incident: &Incident, now: Timestamp) -> Option<SilenceKnown> {
    let (until, line) = incident.silenced_alone(now)?;
    let who = line.and_then(|it| it.who.clone());
    Some(SilenceKnown {
        id: incident.id,
        matches: Pattern::default(),
        incident: Some(incident.id),
        what: Some(incident.what.clone()),
        since: line.map(|it| text::rfc3339(it.at)),
        until: text::rfc3339(until),
        who: who.unwrap_or_default(),
        note: String::new(),
        incidents: 1,
    })
}
