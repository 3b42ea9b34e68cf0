//! The API, version 1: JSON for programs, described by OpenAPI 3.1 from the code itself.
//!
//! Base units, RFC 3339 in UTC, values as {value, missing}, origin on everything, keyset paging,
//! refusals as problem+json. One file per kind of thing; adding a resource is one file and its line
//! in [`router`].

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{OpenApi, SecurityRequirement};
use utoipa::{Modify, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::web::Web;
use incidents::say;

pub mod problem;

pub mod refusals;

pub mod closed;

pub mod parameters;

pub mod shape;

mod moments;

pub mod paging;

pub mod today;

pub mod fleet;

pub mod find;

pub mod queue;

pub mod past;

pub mod jobs;

pub mod runs;

pub mod compare;

pub mod ladder;

pub mod agents;

pub mod audit;

pub mod incidents;

pub mod deliveries;

pub mod silences;

pub mod exports;

pub mod reports;

pub mod savings;

pub mod health;

pub mod doctor;

pub mod settings;

pub mod reference;

/// What the document says of the API as a whole.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "gpufleet",
        description = "What every GPU of the fleet does, did and cost. Values are in base units (watts, bytes, seconds, ratios from 0 to 1), times in RFC 3339, UTC. A value that is not there is null with the reason beside it, never 0. `origin` says whether data is live, recorded or simulated; only live data is in live totals. Money is in `cost.currency`, which answers with money name as `currency`, also where the name of a field says USD; nothing is converted.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "Fleet", description = "What is there now."),
        (name = "Past", description = "What is stored: minutes, ledger hours, events."),
        (name = "Incidents", description = "What is wrong, why, what it costs, and what people say to it."),
        (name = "Money", description = "What GPU time costs, who pays, what it was worth."),
        (name = "Training", description = "Jobs, their attempts, ranks and steps."),
        (name = "Agents", description = "Who sends, and commands for them."),
        (name = "Server", description = "The server itself.")
    ),
    modifiers(&Bearer)
)]
struct Document;

/// Every route takes a bearer token where the server has token files.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "The token of a token file with role read or operate. Without token files none is needed.",
            ))
            .build();
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("token", SecurityScheme::Http(scheme));
        document.security = Some(vec![SecurityRequirement::new::<_, _, String>("token", [])]);
    }
}

/// Routes that need the right to read.
pub fn router() -> Router<Arc<Web>> {
    guarded().split_for_parts().0
}

/// Routes that change something: they check for themselves, because they need another role.
pub fn changing() -> Router<Arc<Web>> {
    changes().split_for_parts().0
}

fn guarded() -> OpenApiRouter<Arc<Web>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(today::today))
        .routes(routes!(fleet::fleet))
        .routes(routes!(fleet::clusters))
        .routes(routes!(fleet::nodes))
        .routes(routes!(fleet::node))
        .routes(routes!(fleet::gpus))
        .routes(routes!(fleet::gpu))
        .routes(routes!(find::find))
        .routes(routes!(queue::queue))
        .routes(routes!(past::minutes))
        .routes(routes!(past::hours))
        .routes(routes!(past::events))
        .routes(routes!(jobs::jobs))
        .routes(routes!(jobs::job))
        .routes(routes!(runs::run))
        .routes(routes!(runs::steps))
        .routes(routes!(compare::compare))
        .routes(routes!(ladder::ladder_places))
        .routes(routes!(ladder::ladder))
        .routes(routes!(agents::agents))
        .routes(routes!(reports::chargeback))
        .routes(routes!(reports::efficiency))
        .routes(routes!(reports::reconcile, reports::reconcile_bill))
        .routes(routes!(savings::savings))
        .routes(routes!(incidents::incidents))
        .routes(routes!(incidents::incident))
        .routes(routes!(deliveries::told))
        .routes(routes!(deliveries::channels))
        .routes(routes!(silences::silences))
        .routes(routes!(doctor::doctor))
        .routes(routes!(exports::exports))
        .routes(routes!(settings::settings))
}

fn changes() -> OpenApiRouter<Arc<Web>> {
    OpenApiRouter::default()
        .routes(routes!(agents::command))
        .routes(routes!(say::say))
        .routes(routes!(silences::keep))
        .routes(routes!(silences::end))
        .routes(routes!(deliveries::test))
}

/// Routes that need no right: health, the document and its page.
pub fn open() -> Router<Arc<Web>> {
    own()
        .split_for_parts()
        .0
        .route("/api/v1/openapi.json", get(openapi))
        .route("/api", get(reference::show))
        .route("/api/{*rest}", axum::routing::any(nothing))
}

fn own() -> OpenApiRouter<Arc<Web>> {
    OpenApiRouter::default().routes(routes!(health::health))
}

/// The whole document.
pub fn document() -> OpenApi {
    let (_, mut document) = guarded().split_for_parts();
    let (_, changes) = changes().split_for_parts();
    document.merge(changes);
    refusals::describe(&mut document);
    let (_, own) = own().split_for_parts();
    document.merge(own);
    refusals::describe_all(&mut document);
    closed::describe(&mut document);
    document.info.version = "1".to_owned();
    document
}

/// The document as it is sent. Everyone may have it, and it never changes: it is made once.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let document = serde_json::to_vec(&document());
    document.expect("what utoipa describes is JSON").into()
});

async fn openapi() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, kind)], DOCUMENT.clone()).into_response()
}

/// Any other address under /api.
async fn nothing() -> problem::Problem {
    problem::Problem::unknown("no such route; /api lists them, /api/v1/openapi.json describes them")
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn the_document_is_made_once_for_all_who_ask() {
        let asked = async || {
            let body = openapi().await.into_body().collect().await;
            body.expect("it is in memory").to_bytes()
        };
        let (first, again) = (asked().await, asked().await);
        let made: serde_json::Value = serde_json::from_slice(&first).expect("it is JSON");
        let described = serde_json::to_value(document()).expect("it is JSON");
        assert_eq!(made, described);
        assert_eq!(first.as_ptr(), again.as_ptr(), "the same bytes");
    }
}
