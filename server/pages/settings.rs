//! The configuration that holds, for whoever wonders why the server does what it does. Read only, and
//! without secrets.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_program::config::Origin;

use super::frame::{self, Frame};
use super::problem;
use crate::App;
use crate::api::settings::refused;
use crate::settings::{self, Key, Section, Thresholds};
use crate::web::Web;
use crate::words::text;

mod written;

/// Longest value shown, characters: a list of channels and routes.
const VALUE: usize = 4_000;

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    frame: Frame,
    headline: String,
    thresholds: Option<String>,
    is_refused: bool,
    sections: Vec<Part>,
}

/// A section.
struct Part {
    name: &'static str,
    about: String,
    rows: Vec<Row>,
    /// Of the section on Cloud Monitoring: what is written and what that costs.
    written: Option<written::Written>,
}

/// A key.
struct Row {
    name: &'static str,
    about: String,
    value: String,
    default: Option<String>,
    from: String,
}

/// `GET /settings`.
pub async fn show(State(web): State<Arc<Web>>, frame: Frame) -> Response {
    if let Some(why) = refused(&frame.grant) {
        let title = "The settings are not of one cluster";
        return problem::refused(frame, StatusCode::FORBIDDEN, title, why, "/");
    }
    let found = settings::of(&web.app);
    let keys = || found.sections.iter().flat_map(|it| &it.keys);
    let changed = keys().filter(|it| !it.is_default()).count();
    let page = SettingsPage {
        headline: format!(
            "{} of {} settings differ from their defaults",
            changed,
            keys().count()
        ),
        is_refused: found.thresholds.as_ref().is_some_and(|it| it.is_refused),
        thresholds: found.thresholds.as_ref().map(|it| reread(it, &frame)),
        sections: found.sections.iter().map(|it| part(it, &web.app)).collect(),
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

/// How the thresholds were last read.
fn reread(it: &Thresholds, frame: &Frame) -> String {
    let file = text::harmless(&it.file, text::TITLE_CHARACTERS);
    let looked = text::ago(frame.at, it.looked_at);
    let changed = match it.changed_at {
        Some(at) => format!("one last changed at {} UTC", text::moment(at)),
        None => "none has changed since this server started".to_owned(),
    };
    format!(
        "Thresholds (inventory.agent_within_s and all of detect but gpu_hour_usd) are read again from {file} while the server runs: last looked at {looked}; {changed}. Everything else holds until the next start."
    )
}

fn part(it: &Section, app: &App) -> Part {
    Part {
        written: (it.name == "cloud_monitoring")
            .then(|| written::of(app))
            .flatten(),
        name: it.name,
        about: it.about.clone(),
        rows: it.keys.iter().map(row).collect(),
    }
}

fn row(it: &Key) -> Row {
    let shown = |it: &str| text::harmless(it, VALUE);
    Row {
        name: it.name,
        about: it.about.clone(),
        value: shown(&it.value),
        default: (!it.is_default()).then(|| shown(&it.default)),
        from: match &it.from {
            None => "not known".to_owned(),
            Some(Origin::Default) => "default".to_owned(),
            Some(Origin::File(file)) => format!("file {}", shown(&file.display().to_string())),
            Some(Origin::Environment(name)) => format!("variable {}", shown(name)),
            Some(Origin::CommandLine) => "command line (--set)".to_owned(),
        },
    }
}
