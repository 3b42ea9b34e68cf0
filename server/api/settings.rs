//! `/settings`: the configuration that holds, without its secrets. Read only.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use gpufleet_program::config::Origin;
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::auth::Grant;
use crate::settings::{self, Key, Section, Thresholds};
use crate::web::Web;
use crate::words::text;

/// The configuration that holds.
#[derive(Debug, Serialize, ToSchema)]
pub struct Settings {
    /// Every section.
    pub sections: Vec<SettingsSection>,
    /// How the thresholds were last read; null where no file is read again.
    pub thresholds: Option<SettingsThresholds>,
}

/// A section of the configuration.
#[derive(Debug, Serialize, ToSchema)]
pub struct SettingsSection {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: String,
    /// Its keys.
    pub keys: Vec<SettingsKey>,
}

/// A key of the configuration.
#[derive(Debug, Serialize, ToSchema)]
pub struct SettingsKey {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: String,
    /// What holds, as TOML has it. Of a secret only whether it is set, and from which file or variable.
    pub value: String,
    /// What held if nobody set it.
    pub default: String,
    /// Whether the two are the same.
    pub is_default: bool,
    /// `default`, `file`, `environment` or `command_line`; null when that is not known.
    pub from: Option<&'static str>,
    /// The file or the variable that it comes from.
    pub from_name: Option<String>,
}

/// How the thresholds of `[detect]` were last read.
#[derive(Debug, Serialize, ToSchema)]
pub struct SettingsThresholds {
    /// From which file.
    pub file: String,
    /// When it was last looked at.
    #[schema(format = DateTime)]
    pub looked_at: String,
    /// When one last changed since the server started.
    #[schema(format = DateTime)]
    pub changed_at: Option<String>,
    /// Whether the file as it is cannot be used, so that what was before holds; the log says why.
    pub is_refused: bool,
}

/// The configuration that holds, with where each value comes from, without its secrets.
#[utoipa::path(get, path = "/api/v1/settings", tag = "Server",
    responses((status = 200, body = Settings)))]
pub async fn settings(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
) -> Result<Json<Settings>, Problem> {
    if let Some(why) = refused(&grant) {
        return Err(Problem::new(StatusCode::FORBIDDEN, why));
    }
    let found = settings::of(&web.app);
    Ok(Json(Settings {
        sections: found.sections.into_iter().map(section).collect(),
        thresholds: found.thresholds.map(thresholds),
    }))
}

/// Why a reader is not shown the configuration: it names the other clusters and their tokens' files.
pub fn refused(grant: &Grant) -> Option<String> {
    let cluster = grant.cluster.as_deref()?;
    Some(format!(
        "this token sees the cluster {cluster} alone, and the configuration is of all of them"
    ))
}

fn section(it: Section) -> SettingsSection {
    SettingsSection {
        name: it.name,
        about: it.about,
        keys: it.keys.into_iter().map(key).collect(),
    }
}

fn key(it: Key) -> SettingsKey {
    let is_default = it.is_default();
    let (from, from_name) = match it.from {
        None => (None, None),
        Some(Origin::Default) => (Some("default"), None),
        Some(Origin::File(file)) => (Some("file"), Some(file.display().to_string())),
        Some(Origin::Environment(name)) => (Some("environment"), Some(name)),
        Some(Origin::CommandLine) => (Some("command_line"), None),
    };
    SettingsKey {
        name: it.name,
        about: it.about,
        value: it.value,
        default: it.default,
        is_default,
        from,
        from_name,
    }
}

fn thresholds(it: Thresholds) -> SettingsThresholds {
    SettingsThresholds {
        file: it.file,
        looked_at: text::rfc3339(it.looked_at),
        changed_at: it.changed_at.map(text::rfc3339),
        is_refused: it.is_refused,
    }
}
