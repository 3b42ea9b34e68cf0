//! The pages people look at: rendered on the server, readable without scripts, from no other host.
//!
//! One file per page, each with its template beside it. Names from outside go through
//! [`text::Name`], reasons through [`crate::words`], readings through [`reading::Cell`]: a page cannot show
//! a missing value as a number.

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};

use crate::web::Web;
use crate::words::text;

pub mod reading;

pub mod draw;

pub mod assets;

pub mod asked;

pub mod frame;

pub mod problem;

pub mod sign_in;

pub mod today;

pub mod fleet;

pub mod find;

pub mod queue;

pub mod tiles;

pub mod node;

pub mod gpu;

pub mod jobs;

pub mod run;

pub mod ladder;

pub mod compare;

pub mod parts;

pub mod meanings;

pub mod peaks;

pub mod strip;

pub mod series;

pub mod events;

pub mod incidents;

pub mod runbook;

pub mod cost;

pub mod health;

pub mod settings;

pub mod live;

mod marks;

pub mod day;

/// Pages that need the right to read.
pub fn guarded() -> Router<Arc<Web>> {
    Router::new()
        .route("/", get(today::show))
        .route("/fleet", get(fleet::show))
        .route("/find", get(find::show))
        .route("/queue", get(queue::show))
        .route("/incidents", get(incidents::show))
        .route("/incidents/{id}", get(incidents::show_one))
        .route("/incidents/{id}/say", post(incidents::say))
        .route("/clusters/{cluster}", get(fleet::show_cluster))
        .route("/clusters/{cluster}/nodes/{node}", get(node::show))
        .route(
            "/clusters/{cluster}/nodes/{node}/{index}",
            get(gpu::by_index),
        )
        .route("/clusters/{cluster}/gpus/{id}", get(gpu::show))
        .route("/cost", get(cost::show))
        .route("/health", get(health::show))
        .route("/settings", get(settings::show))
        .route("/jobs", get(jobs::show))
        .route("/compare", get(compare::show))
        .route("/live", get(live::follow))
        .route("/clusters/{cluster}/ladders/{name}", get(ladder::show))
        .route("/clusters/{cluster}/jobs/{job}", get(run::last))
        .route("/clusters/{cluster}/jobs/{job}/{attempt}", get(run::show))
}

/// Pages that need the right to read and nothing of the fleet: a server that does not lead has them too, because
/// that is when one of them is looked for.
pub fn always() -> Router<Arc<Web>> {
    Router::new()
        .route("/runbooks", get(runbook::list))
        .route("/runbooks/{name}", get(runbook::show))
}

/// What everyone may have: assets, the sign-in form and the theme.
pub fn open() -> Router<Arc<Web>> {
    Router::new()
        .route("/assets/{version}/{name}", get(assets::serve))
        .route("/sign-in", get(sign_in::show).post(sign_in::take))
        .route("/sign-out", post(sign_in::leave))
        .route("/theme", post(problem::take_theme))
}

/// Any other address.
pub async fn not_found(frame: frame::Frame) -> Response {
    let asked = text::harmless(&frame.here, text::SHOWN_CHARACTERS);
    problem::not_found(
        frame,
        "There is no such page".to_owned(),
        vec![
            format!("Nothing lives at {asked}."),
            "A node is at /clusters/CLUSTER/nodes/NODE, a GPU at /clusters/CLUSTER/gpus/ID, the jobs at /jobs."
                .to_owned(),
        ],
    )
}
