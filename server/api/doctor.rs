//! `/doctor`: what keeps gpufleet itself from telling the truth, for programs.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::Grant;
use crate::doctor::{self, Check, Finding, Outcome};
use crate::web::Web;
use crate::words::text;

/// What keeps gpufleet from telling the truth, and what was looked at.
#[derive(Debug, Serialize, ToSchema)]
pub struct Doctor {
    /// When it was made; at most 10 s ago.
    #[schema(format = DateTime)]
    pub at: String,
    /// Whether everything that was checked is fine, and something was.
    pub is_fine: bool,
    /// What is to be mended, the worst first.
    pub findings: Vec<DoctorFinding>,
    /// Findings beyond those.
    pub more_findings: usize,
    /// Every check, and how it ended. What could not be looked at is `not_checked`, never `fine`.
    pub checks: Vec<DoctorCheck>,
}

/// One thing that keeps gpufleet from telling the truth.
#[derive(Debug, Serialize, ToSchema)]
pub struct DoctorFinding {
    /// Its name: the anchor on the page Health.
    pub id: String,
    /// The check that found it.
    pub check: &'static str,
    /// `info`, `warning` or `error`: an error is blind or loses data.
    pub severity: &'static str,
    /// What is the case.
    pub what: String,
    /// Where: the first few.
    pub places: Vec<DoctorPlace>,
    /// Places beyond those.
    pub more_places: usize,
    /// GPUs that it is about; 0 where it is about none in particular.
    pub gpus: usize,
    /// Since when, where that is known.
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// What is not known because of it.
    pub missing: String,
    /// What mends it.
    pub fix: String,
    /// The line that mends it: a command, or lines of a configuration.
    pub line: Option<String>,
}

/// Where something is.
#[derive(Debug, Serialize, ToSchema)]
pub struct DoctorPlace {
    /// A node, a cluster or a job.
    pub name: String,
    /// Its page.
    pub page: Option<String>,
}

/// Something that was looked at.
#[derive(Debug, Serialize, ToSchema)]
pub struct DoctorCheck {
    /// Its name.
    pub id: &'static str,
    /// What is so when it is fine.
    pub looks_at: &'static str,
    /// `fine`, `found` or `not_checked`.
    pub outcome: &'static str,
    /// How much was looked at; null when it was not.
    pub scope: Option<String>,
    /// How many findings.
    pub findings: usize,
    /// Why it could not be looked at.
    pub why_not: Option<String>,
}

/// What keeps gpufleet from telling the truth about the fleet, the worst first, with the line that mends it.
#[utoipa::path(get, path = "/api/v1/doctor", tag = "Server",
    responses((status = 200, body = Doctor)))]
pub async fn doctor(
    State(web): State<Arc<Web>>,
    Extension(grant): Extension<Grant>,
) -> Json<Doctor> {
    let view = web.views.get(&web.app).await.seen_with(&grant);
    let found = web.doctors.get(&web.app, &view, &web.specs, &grant).await;
    Json(Doctor {
        at: text::rfc3339(found.at),
        is_fine: found.findings.is_empty() && found.checks.iter().any(Check::was_made),
        findings: found.findings.iter().map(finding).collect(),
        more_findings: found.more_findings,
        checks: found.checks.iter().map(check).collect(),
    })
}

fn finding(it: &Finding) -> DoctorFinding {
    let place = |it: &doctor::Place| DoctorPlace {
        name: it.name.clone(),
        page: it.address.clone(),
    };
    DoctorFinding {
        id: it.id.clone(),
        check: it.check,
        severity: it.severity.name(),
        what: it.what.clone(),
        places: it.places.iter().map(place).collect(),
        more_places: it.more_places,
        gpus: it.gpus,
        since: it.since.map(text::rfc3339),
        missing: it.missing.clone(),
        fix: it.fix.clone(),
        line: it.line.clone(),
    }
}

fn check(it: &Check) -> DoctorCheck {
    let (findings, why_not) = match &it.outcome {
        Outcome::Fine => (0, None),
        Outcome::Found(count) => (*count, None),
        Outcome::NotChecked(why) => (0, Some(why.clone())),
    };
    DoctorCheck {
        id: it.id,
        looks_at: it.looks_at,
        outcome: it.outcome.name(),
        scope: Some(it.scope.clone()).filter(|it| !it.is_empty()),
        findings,
        why_not,
    }
}
