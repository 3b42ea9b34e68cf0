//! What has a text in its name, from the box that is on every page: links by kind, or, where the whole name of one
//! thing was asked for, that thing's page at once.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

use super::asked::Query;
use super::frame::{self, Frame};
use super::problem;
use crate::find::{self, Few, Match};
use crate::web::Web;
use crate::words;
use crate::words::text::{self, Name};

/// What the box asks.
#[derive(Debug, Deserialize)]
pub struct Asked {
    /// A part of a name.
    #[serde(default)]
    q: String,
}

#[derive(Template)]
#[template(path = "find.html")]
struct FindPage {
    frame: Frame,
    /// What was asked for; none of an empty box.
    asked: Option<String>,
    kinds: Vec<Kind>,
    /// Why there may be more jobs.
    not_all_jobs: Option<String>,
}

/// Those of a kind.
struct Kind {
    title: &'static str,
    rows: Vec<Row>,
    more: String,
}

/// One of them.
struct Row {
    address: String,
    name: Name,
    about: String,
    cluster: Name,
    mark: Option<&'static str>,
    origin: &'static str,
}

/// `GET /find`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Query(asked): Query<Asked>,
    frame: Frame,
) -> Response {
    let view = web.views.get(&web.app).await.seen_with(&frame.grant);
    let found = match find::find(&web.app, &web.names, &view, &frame.grant, &asked.q).await {
        Ok(found) => found,
        Err(error) => {
            let (title, why) = (
                "No name is so long",
                format!("It is not looked for: {error}."),
            );
            return problem::refused(frame, StatusCode::BAD_REQUEST, title, why, "/find");
        }
    };
    if let Some(only) = found.only() {
        return Redirect::to(&only.address).into_response();
    }
    let kinds = [
        ("Nodes", &found.nodes),
        ("GPUs", &found.gpus),
        ("Jobs", &found.jobs),
    ];
    let kinds = kinds.into_iter().filter(|it| !it.1.told.is_empty());
    let asked = asked.q.trim();
    let page = FindPage {
        asked: (!asked.is_empty()).then(|| text::harmless(asked, text::SHOWN_CHARACTERS)),
        kinds: kinds.map(|(title, few)| kind(title, few)).collect(),
        not_all_jobs: found.not_all_jobs,
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

fn kind(title: &'static str, few: &Few) -> Kind {
    Kind {
        title,
        rows: few.told.iter().map(row).collect(),
        more: match few.more() {
            0 => String::new(),
            more => format!("And {} more.", text::grouped(more as f64)),
        },
    }
}

fn row(it: &Match) -> Row {
    Row {
        address: it.address.clone(),
        name: Name::new(&it.name),
        about: text::harmless(&it.about, text::SENTENCE_CHARACTERS),
        cluster: Name::new(&it.cluster),
        mark: words::watermark(it.origin),
        origin: it.origin.name(),
    }
}
