//! `/agents`: who sends, how far behind, how far folded; and commands for them.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use gpufleet_telemetry::command::{
    ACTIONS, ARGUMENT_GPU, ARGUMENT_RANK, CAPTURE_PROFILE, Command, MAX_COMMAND_BYTES,
    profile_steps,
};
use gpufleet_telemetry::identity::AgentId;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use uuid::Uuid;

use super::audit;
use super::paging::{Page, Paging};
use super::problem::{self, Asked, Body, Place, Problem};
use crate::auth::{Grant, Role};
use crate::fleet::CommandRefused;
use crate::fleet::live::LiveAgent;
use crate::store::model::Cursor;
use crate::web::{self, Web};
use crate::words::text;

/// How long a command is good for unless asked otherwise, seconds.
const DEFAULT_EXPIRY_SECONDS: u32 = 60;

/// Longest a command may be good for, seconds: later nobody remembers having given it.
const MAX_EXPIRY_SECONDS: u32 = 3_600;

/// How far one stream of an agent's spool has been folded and committed.
#[derive(Debug, Serialize, ToSchema)]
pub struct CursorKnown {
    /// The life of its spool.
    pub epoch: String,
    /// `metrics` or `logs`.
    pub stream: &'static str,
    /// The highest seq that is durable.
    pub seq: u64,
    /// When the stream was last heard.
    #[schema(format = DateTime)]
    pub seen: String,
}

/// An agent.
#[derive(Debug, Serialize, ToSchema)]
pub struct Agent {
    /// Its id.
    pub id: String,
    /// The cluster of its data.
    pub cluster: Arc<str>,
    /// The node it runs on.
    pub node: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// When its last request arrived.
    #[schema(format = DateTime)]
    pub heard: String,
    /// How old its newest live point was when it arrived, seconds.
    pub lag_seconds: f64,
    /// What is added to its times, seconds.
    pub clock_offset_seconds: f64,
    /// Whether old data is being drained from it.
    pub backfilling: bool,
    /// How far its streams are durable; the 32 that were heard last.
    pub cursors: Vec<CursorKnown>,
}

/// A command for an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandAsked {
    /// What to do: `release_nvml`, `acquire_nvml`, `reread_config`, `probe_now` of a GPU, or `capture_profile`: a
    /// training process records a trace of its next steps and says where it lies.
    #[schema(example = "release_nvml")]
    pub action: String,
    /// What the action needs to know; `gpu`, a GPU's id, where it is about one. Of `capture_profile`: `gpu` or `rank`,
    /// a rank's id (`<namespace>/<name>/<uid>/<attempt>/<rank>`), and `steps`, `1` to `10`; `3` unless said.
    #[serde(default)]
    pub arguments: BTreeMap<String, String>,
    /// How long it is good for, seconds, 1 to 3600: a profile has to begin in it, at the end of a step.
    #[schema(default = 60, minimum = 1, maximum = 3600)]
    pub expires_in_seconds: Option<u32>,
}

/// A command that is on its way. Its result comes as an event `command_result` with this id and a
/// verdict: `done`, `failed`, `expired` or `unknown` (an older agent).
#[derive(Debug, Serialize, ToSchema)]
pub struct CommandQueued {
    /// Its id.
    pub id: Uuid,
    /// After this it is not done any more.
    #[schema(format = DateTime)]
    pub expires: String,
}

/// Agents that have sent something since the server started, by id.
#[utoipa::path(get, path = "/api/v1/agents", tag = "Agents", params(Paging),
    responses((status = 200, body = Page<Agent>)))]
pub async fn agents(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
    Asked(paging): Asked<Paging>,
) -> Result<Json<Page<Agent>>, Problem> {
    let mut agents = web.app.fleet.agents();
    agents.retain(|it| grant.may_see(&it.cluster));
    agents.sort_by_key(|it| it.agent);
    let page = paging.page(
        agents.iter(),
        |words| match words {
            [id] => Some(AgentId(id.parse().ok()?)),
            _ => None,
        },
        |it, after: &AgentId| it.agent > *after,
        |it| vec![it.agent.to_string()],
        |it| it,
    )?;
    let ids: Vec<AgentId> = page.items.iter().map(|it| it.agent).collect();
    let stored = web.app.store.cursors_of(&ids).await;
    let mut cursors: HashMap<AgentId, Vec<Cursor>> = HashMap::new();
    for cursor in stored.map_err(|error| Problem::store(&error))? {
        cursors.entry(cursor.key.agent).or_default().push(cursor);
    }
    let items = page.items.into_iter();
    let items = items.map(|it| agent(it, cursors.get(&it.agent).map_or(&[], Vec::as_slice)));
    Ok(Json(Page {
        items: items.collect(),
        next: page.next,
    }))
}

/// Gives an agent a command. It rides in the reply to the agent's next request. Needs role operate.
#[utoipa::path(post, path = "/api/v1/agents/{id}/commands", tag = "Agents", request_body = CommandAsked,
    params(("id" = Uuid, Path, description = "The agent's id")),
    responses((status = 202, body = CommandQueued), (status = 404, body = Problem, content_type = "application/problem+json"), (status = 409, body = Problem, content_type = "application/problem+json"), (status = 429, body = Problem, content_type = "application/problem+json")))]
pub async fn command(
    State(web): State<Arc<Web>>,
    headers: HeaderMap,
    peer: Option<Extension<audit::From>>,
    Place(id): Place<Uuid>,
    Body(asked): Body<CommandAsked>,
) -> Result<Response, Problem> {
    let grant = match web::may(&web, &headers, Role::Operate) {
        Ok(grant) => grant,
        Err(error) => return Ok(problem::refused(&error)),
    };
    let agent = AgentId(id);
    let unknown = || {
        Problem::unknown(format_args!(
            "no agent {id} has sent anything since the server started; /api/v1/agents lists them"
        ))
    };
    // An agent of another cluster is not there for a token bound to one.
    if grant.cluster.is_some()
        && !web
            .app
            .fleet
            .agents()
            .iter()
            .any(|it| it.agent == agent && grant.may_see(&it.cluster))
    {
        return Err(unknown());
    }
    let now = web.app.clock.now();
    let command = asked.command(now)?;
    let queued = CommandQueued {
        id: command.id,
        expires: text::rfc3339(command.expires),
    };
    let changed = audit::Changed {
        action: format!("command {}", command.action),
        target: format!("agent {agent}"),
        detail: serde_json::to_string(&command).expect("a command is plain data"),
    };
    let who = audit::write(&web, &headers, peer, changed).await?;
    tracing::info!(%who, agent = %agent, command = %command.id, action = %command.action, "a command is on its way");
    match web.app.fleet.enqueue_command(agent, command, now) {
        Ok(()) => Ok((StatusCode::ACCEPTED, Json(queued)).into_response()),
        Err(CommandRefused::UnknownAgent) => Err(unknown()),
        Err(error @ CommandRefused::QueueFull) => {
            Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, error))
        }
        Err(error) => Err(Problem::new(StatusCode::CONFLICT, error)),
    }
}

impl CommandAsked {
    fn command(self, now: Timestamp) -> Result<Command, Problem> {
        if !ACTIONS.contains(&self.action.as_str()) {
            return Err(Problem::bad(format_args!(
                "action “{}” is not known; it is one of {}",
                self.action,
                ACTIONS.join(", ")
            )));
        }
        let seconds = self.expires_in_seconds.unwrap_or(DEFAULT_EXPIRY_SECONDS);
        if !(1..=MAX_EXPIRY_SECONDS).contains(&seconds) {
            return Err(Problem::bad(format_args!(
                "expires_in_seconds={seconds}: it is 1 to {MAX_EXPIRY_SECONDS}"
            )));
        }
        if self.action == CAPTURE_PROFILE {
            profile_steps(&self.arguments).map_err(Problem::bad)?;
            let names = [ARGUMENT_GPU, ARGUMENT_RANK];
            if !names.iter().any(|it| self.arguments.contains_key(*it)) {
                return Err(Problem::bad(
                    "no process is named: arguments.gpu is the id of its GPU, arguments.rank that of its rank",
                ));
            }
        }
        let command = Command {
            id: Uuid::now_v7(),
            expires: now.shifted(i64::from(seconds) * gpufleet_telemetry::time::NANOS_PER_SECOND),
            action: self.action,
            arguments: self.arguments,
        };
        let bytes = serde_json::to_vec(&command).map_or(usize::MAX, |it| it.len());
        if bytes > MAX_COMMAND_BYTES {
            return Err(Problem::bad(format_args!(
                "the command has {bytes} bytes; it travels in a header and holds at most {MAX_COMMAND_BYTES}"
            )));
        }
        Ok(command)
    }
}

fn agent(live: &LiveAgent, cursors: &[Cursor]) -> Agent {
    Agent {
        id: live.agent.to_string(),
        cluster: Arc::clone(&live.cluster),
        node: Arc::clone(&live.node),
        version: Arc::clone(&live.version),
        heard: text::rfc3339(live.heard),
        lag_seconds: live.lag.as_secs_f64(),
        clock_offset_seconds: live.clock_offset_nanos as f64 / 1e9,
        backfilling: live.backfilling,
        cursors: cursors
            .iter()
            .map(|it| CursorKnown {
                epoch: it.key.epoch.to_string(),
                stream: it.key.stream.name(),
                seq: it.seq,
                seen: text::rfc3339(it.seen),
            })
            .collect(),
    }
}
