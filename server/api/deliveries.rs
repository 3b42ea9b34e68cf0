//! `/channels` and what an incident was told to whom: state, attempts and the reason of a failure of each
//! delivery, and which routes match.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::audit;
use super::incidents::find;
use super::problem::{self, Body, Place, Problem};
use crate::auth::{Grant, Role};
use crate::incidents::Channel;
use crate::notify::Channels;
use crate::notify::group::Group;
use crate::notify::lane::Outcome;
use crate::notify::route::Stranger;
use crate::web::{self, Web};
use crate::words::text;

/// How long the receivers of a channel that is tried may take together: the request itself has 10 s.
const TEST_WITHIN: Duration = Duration::from_secs(8);

/// How a channel goes.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChannelKnown {
    /// Its name; further peers of one have `#2` and so on behind it.
    pub name: String,
    /// `pagerduty`, `slack`, `alertmanager` or `webhook`.
    pub kind: &'static str,
    /// `well`, `failing` (what does not get through is tried again) or `broken`: the receiver takes nothing by this
    /// way, for its key, its address or its certificate, until somebody mends that.
    pub state: &'static str,
    /// Messages that got through since the start.
    pub delivered: u64,
    /// Attempts since the start that are made again.
    pub retried: u64,
    /// Messages since the start that the receiver did not take.
    pub refused: u64,
    /// Messages about what is so that the receiver will not take. They go out again when the secret or a certificate
    /// changes, a test gets through, another message does (where not the message was wrong), or the server starts.
    pub refused_now: usize,
    /// Messages that could go and have not.
    pub waiting: usize,
    /// Since when the oldest of them waits.
    #[schema(format = DateTime)]
    pub waits_since: Option<String>,
    /// When a message last got through; null when none has since the start.
    #[schema(format = DateTime)]
    pub succeeded_at: Option<String>,
    /// Since when it fails; null when it does not.
    #[schema(format = DateTime)]
    pub failing_since: Option<String>,
    /// When an attempt last failed.
    #[schema(format = DateTime)]
    pub failed_at: Option<String>,
    /// Why; null for a token of one cluster.
    pub why: Option<String>,
}

/// What was said to one receiver of a group of incidents.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeliveryKnown {
    /// Its id; the receiver's key is `gpufleet/` and this.
    pub id: Uuid,
    /// The receiver.
    pub channel: String,
    /// `waiting`, `retrying`, `delivered`, `refused` (not tried again before something is mended) or `over`.
    pub state: &'static str,
    /// How many incidents are in it now.
    pub incidents: usize,
    /// What they have in common, by name; empty for what was too much for groups of their own.
    pub common: BTreeMap<String, String>,
    /// When it began.
    #[schema(format = DateTime)]
    pub began_at: String,
    /// When the first message got through.
    #[schema(format = DateTime)]
    pub first_at: Option<String>,
    /// When the last one did.
    #[schema(format = DateTime)]
    pub last_at: Option<String>,
    /// What the last one said: `opened`, `updated` or `resolved`.
    pub last_said: Option<&'static str>,
    /// When the last attempt was.
    #[schema(format = DateTime)]
    pub tried_at: Option<String>,
    /// Attempts since a message last got through.
    pub attempts: u32,
    /// Why the last attempt failed; null for a token of one cluster.
    pub error: Option<String>,
}

/// What one route says to an incident.
#[derive(Debug, Serialize, ToSchema)]
pub struct RouteKnown {
    /// Its number in `notify.routes`, from 1; 0 is what holds without routes, or for gpufleet's own
    /// blindness.
    pub number: usize,
    /// Whether it matches.
    pub matches: bool,
    /// The channels that it tells.
    pub channels: Vec<String>,
    /// Why it does not match.
    pub why_not: Option<String>,
    /// What of it is most likely not meant so: teams that nobody is known to be.
    pub doubts: Vec<String>,
}

/// Who is told of an incident, and who was.
#[derive(Debug, Serialize, ToSchema)]
pub struct ToldKnown {
    /// Whose it is: the first of `notify.teams` that matches, else who pays by the owner rules, else `unowned`.
    pub owner: String,
    /// Every route, with why it does or does not match.
    pub routes: Vec<RouteKnown>,
    /// What was said and is still to be said, the oldest first.
    pub deliveries: Vec<DeliveryKnown>,
    /// Until when nobody is to be told; null where no silence holds now.
    #[schema(format = DateTime)]
    pub silenced_until: Option<String>,
}

/// Who tries a channel.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestAsked {
    /// Who says so. Where a proxy names people (`auth.user_header`) its word counts, and this is not looked at.
    #[schema(example = "ada")]
    pub who: Option<String>,
}

/// What became of a test at one receiver.
#[derive(Debug, Serialize, ToSchema)]
pub struct TestKnown {
    /// The receiver.
    pub receiver: String,
    /// Whether it has the test.
    pub delivered: bool,
    /// Why it has not.
    pub why: Option<String>,
}

/// Every channel and how it goes. Secrets are not shown; why one fails, which may name hosts and proxies, only
/// to those who may see all clusters.
#[utoipa::path(get, path = "/api/v1/channels", tag = "Incidents",
    responses((status = 200, body = [ChannelKnown])))]
pub async fn channels(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
) -> Json<Vec<ChannelKnown>> {
    let now = web.app.clock.now();
    let channels = web.app.incidents.channels(now);
    let known = channels.iter().map(|it| channel(it, shows_why(&grant)));
    Json(known.collect())
}

/// Sends a message that says that it is a test to each receiver of a channel, and says what became of it. A receiver
/// that takes it is sent again what it refused before. Needs role operate, for all clusters.
#[utoipa::path(post, path = "/api/v1/channels/{channel}/test", tag = "Incidents", request_body = TestAsked,
    params(("channel" = String, Path, description = "Its name in notify.channels")),
    responses((status = 200, body = [TestKnown]), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn test(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    peer: Option<Extension<audit::From>>,
    Place(channel): Place<String>,
    Body(asked): Body<TestAsked>,
) -> Result<Response, Problem> {
    let grant = match web::may(&web, &headers, Role::Operate) {
        Ok(grant) => grant,
        Err(error) => return Ok(problem::refused(&error)),
    };
    if let Some(bound) = &grant.cluster {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            format_args!(
                "this token is good for cluster {bound} alone, and a channel is everybody's"
            ),
        ));
    }
    let configured = &web.app.config.notify;
    if !configured.channels.iter().any(|it| it.name == channel) {
        let known: Vec<&str> = configured.channels.iter().map(|it| &*it.name).collect();
        return Err(Problem::unknown(format_args!(
            "there is no channel {channel:?} in notify.channels: {known:?}"
        )));
    }
    let change = audit::Changed {
        action: "channel test".to_owned(),
        target: format!("channel {channel}"),
        detail: serde_json::to_string(&asked).expect("texts are JSON"),
    };
    audit::write(&web, &headers, peer, change).await?;
    let unusable = |why: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, why);
    // Secrets, certificates and templates are files.
    let (own, clock) = (configured.clone(), Arc::clone(&web.app.clock));
    let reading = tokio::task::spawn_blocking(move || Channels::new(&own, &clock)).await;
    let channels = reading.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    let channels = channels.map_err(unusable)?;
    let testing = channels.test(&channel, web.app.currency(), web.app.clock.now());
    let outcomes = tokio::time::timeout(TEST_WITHIN, testing).await;
    let late = |_| unusable(format!("no answer within {} s", TEST_WITHIN.as_secs()));
    let outcomes = outcomes.map_err(late)?.map_err(unusable)?;
    for (receiver, _) in outcomes.iter().filter(|it| it.1 == Outcome::Delivered) {
        web.app.incidents.way_works(receiver, web.app.clock.now());
    }
    let known = outcomes.into_iter().map(|(receiver, outcome)| TestKnown {
        receiver: receiver.to_string(),
        delivered: outcome == Outcome::Delivered,
        why: match outcome {
            Outcome::Delivered => None,
            Outcome::Later { why, .. } | Outcome::Refused { why, .. } => Some(why),
        },
    });
    Ok(Json(known.collect::<Vec<_>>()).into_response())
}

/// Who is told of an incident and why, and what was said to whom.
#[utoipa::path(get, path = "/api/v1/incidents/{id}/told", tag = "Incidents",
    params(("id" = Uuid, Path, description = "The incident's id")),
    responses((status = 200, body = ToldKnown), (status = 404, body = Problem, content_type = "application/problem+json")))]
pub async fn told(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Place(id): Place<Uuid>,
) -> Result<Json<ToldKnown>, Problem> {
    let found = find(&web, &grant, id).await?;
    let found = found.ok_or_else(|| {
        Problem::unknown(format_args!(
            "no incident {id}; /api/v1/incidents lists them"
        ))
    })?;
    let routes = web.app.incidents.routes_of(&found).into_iter();
    let (terms, now) = (web.app.money.terms(), web.app.clock.now());
    let strangers = web.app.incidents.strangers(&terms.owners, now);
    let doubts = |number: usize| {
        let own = strangers
            .iter()
            .filter(move |it| it.route == number && !it.is_of_digest);
        own.map(Stranger::words).collect()
    };
    let deliveries = deliveries(&web, id).await?;
    let silenced_until = found.silent_until(now);
    Ok(Json(ToldKnown {
        owner: web.app.incidents.owner_of(&found),
        routes: routes
            .map(|it| RouteKnown {
                doubts: doubts(it.number),
                number: it.number,
                matches: it.why_not.is_none(),
                channels: it.channels,
                why_not: it.why_not,
            })
            .collect(),
        deliveries: deliveries
            .iter()
            .map(|it| delivery(it, shows_why(&grant)))
            .collect(),
        silenced_until: silenced_until.map(text::rfc3339),
    }))
}

/// What was said of an incident, as it is in memory and else as it is stored, the oldest first.
///
/// # Errors
/// When the store does not answer.
pub async fn deliveries(web: &Web, id: Uuid) -> Result<Vec<Group>, Problem> {
    let stored = web.app.store.deliveries_of(id).await;
    let stored = stored.map_err(|error| Problem::store(&error))?;
    let held = web.app.incidents.messages_of(id);
    let by_id = stored.into_iter().chain(held).map(|it| (it.id, it));
    let newest: BTreeMap<Uuid, Group> = by_id.collect();
    Ok(newest.into_values().collect())
}

/// Whether a reader is shown why messages do not get through, which may name hosts and proxies.
pub fn shows_why(grant: &Grant) -> bool {
    grant.cluster.is_none()
}

fn channel(channel: &Channel, shows_why: bool) -> ChannelKnown {
    let time = |at: Option<Timestamp>| at.map(text::rfc3339);
    let (lane, way) = (&channel.lane, &channel.way);
    let failed = lane.failed.as_ref();
    ChannelKnown {
        name: way.name.to_string(),
        kind: way.kind.name(),
        state: lane.goes().name(),
        delivered: lane.delivered,
        retried: lane.retried,
        refused: lane.refused,
        refused_now: channel.refused,
        waiting: channel.waiting,
        waits_since: time(channel.waits_since),
        succeeded_at: time(lane.succeeded_at),
        failing_since: time(lane.failing_since),
        failed_at: time(failed.map(|(at, _)| *at)),
        why: failed.filter(|_| shows_why).map(|(_, why)| why.clone()),
    }
}

fn delivery(group: &Group, shows_why: bool) -> DeliveryKnown {
    let time = |at: Option<Timestamp>| at.map(text::rfc3339);
    DeliveryKnown {
        id: group.id,
        channel: group.way.to_string(),
        state: group.state().name(),
        incidents: group.members.len(),
        common: group.common.iter().cloned().collect(),
        began_at: text::rfc3339(group.began_at),
        first_at: time(group.first_at),
        last_at: time(group.last.map(|(at, _)| at)),
        last_said: group.last.map(|(_, says)| says.name()),
        tried_at: time(group.tried_at),
        attempts: group.attempts,
        error: group.error.clone().filter(|_| shows_why),
    }
}
