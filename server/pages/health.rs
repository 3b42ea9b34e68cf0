//! The doctor of the fleet: what keeps gpufleet itself from telling the truth, the worst first, and every
//! check with how it ended. Each reason for a missing reading has its line here, and pages lead to it.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;

use super::frame::{self, Frame};
use crate::doctor::{self, Doctor, Outcome};
use crate::web::Web;
use crate::words::Why;
use crate::words::text::{self, Name, counted};

/// Longest sentence shown of a finding, characters.
const SENTENCE: usize = 500;

#[derive(Template)]
#[template(path = "health.html")]
struct HealthPage {
    frame: Frame,
    headline: String,
    has_findings: bool,
    not_checked: String,
    findings: Vec<Row>,
    more: usize,
    checks: Vec<Line>,
    reasons: Vec<Why>,
}

/// A finding.
struct Row {
    id: String,
    severity: &'static str,
    what: String,
    gpus: String,
    since: Option<Since>,
    missing: String,
    places: Vec<(Option<String>, Name)>,
    more_places: usize,
    fix: String,
    line: Option<String>,
}

/// Since when it is so.
struct Since {
    datetime: String,
    moment: String,
    ago: String,
}

/// A check.
struct Line {
    /// None where a finding has the anchor.
    id: Option<&'static str>,
    looks_at: &'static str,
    /// The first finding of it.
    first: Option<String>,
    class: &'static str,
    outcome: String,
    scope: String,
}

/// `GET /health`.
pub async fn show(State(web): State<Arc<Web>>, frame: Frame) -> Response {
    let view = web.views.get(&web.app).await.seen_with(&frame.grant);
    let found = web.doctors.get(&web.app, &view, &web.specs, &frame.grant);
    let found = found.await;
    let not_checked = found.checks.iter().filter(|it| !it.was_made()).count();
    let page = HealthPage {
        headline: headline(&found),
        has_findings: !found.findings.is_empty(),
        not_checked: match not_checked {
            0 => String::new(),
            count => format!(
                "{} could not be made: the list below says why.",
                counted(count, "check", "checks")
            ),
        },
        findings: found.findings.iter().map(|it| row(it, found.at)).collect(),
        more: found.more_findings,
        checks: found.checks.iter().map(|it| line(it, &found)).collect(),
        reasons: found.reasons.clone(),
        frame: Frame {
            at: found.at,
            ..frame
        },
    };
    frame::page(StatusCode::OK, &page)
}

/// Everything in one line without its full stop.
fn headline(found: &Doctor) -> String {
    let made = found.checks.iter().filter(|it| it.was_made()).count();
    if found.findings.is_empty() {
        return match made {
            0 => "Nothing could be checked yet".to_owned(),
            _ => "Everything that is checked is fine".to_owned(),
        };
    }
    let of = |severity| {
        let found = found.findings.iter();
        found.filter(|it| it.severity == severity).count()
    };
    let parts = [
        (Severity::Error, "makes it blind", "make it blind"),
        (Severity::Warning, "hides something", "hide something"),
        (Severity::Info, "could be better", "could be better"),
    ];
    let parts = parts.into_iter().filter_map(|(severity, one, many)| {
        let count = of(severity);
        let things = (format!("thing {one}"), format!("things {many}"));
        (count > 0).then(|| counted(count, &things.0, &things.1))
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn row(it: &doctor::Finding, now: Timestamp) -> Row {
    let shown = |it: &str| text::harmless(it, SENTENCE);
    let place = |it: &doctor::Place| (it.address.clone(), Name::new(&it.name));
    Row {
        id: it.id.clone(),
        severity: it.severity.name(),
        what: shown(&it.what),
        gpus: match it.gpus {
            0 => String::new(),
            gpus => counted(gpus, "GPU", "GPUs"),
        },
        since: it.since.map(|since| Since {
            datetime: text::rfc3339(since),
            moment: text::moment(since),
            ago: text::ago(now, since),
        }),
        missing: shown(&it.missing),
        places: it.places.iter().map(place).collect(),
        more_places: it.more_places,
        fix: shown(&it.fix),
        // Its lines are kept apart, and each is harmless.
        line: it.line.as_ref().map(|it| {
            let lines = it.lines().map(shown);
            lines.collect::<Vec<_>>().join("\n")
        }),
    }
}

fn line(it: &doctor::Check, found: &Doctor) -> Line {
    let (class, outcome) = match &it.outcome {
        Outcome::Fine => ("ok", "fine".to_owned()),
        Outcome::Found(1) => ("attention", "one finding".to_owned()),
        Outcome::Found(count) => ("attention", format!("{count} findings")),
        Outcome::NotChecked(why) => (
            "missing",
            format!("not checked: {}", text::harmless(why, SENTENCE)),
        ),
    };
    let mut findings = found.findings.iter();
    let first = findings.find(|finding| finding.check == it.id);
    let has_anchor = found.findings.iter().any(|finding| finding.id == it.id);
    Line {
        id: (!has_anchor).then_some(it.id),
        looks_at: it.looks_at,
        first: first.map(|finding| finding.id.clone()),
        class,
        outcome,
        scope: it.scope.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outcome: Outcome) -> doctor::Check {
        doctor::Check {
            id: "x",
            looks_at: "it is so",
            scope: String::new(),
            outcome,
        }
    }

    #[test]
    fn what_was_not_checked_is_never_called_fine() {
        let of = |outcomes: Vec<Outcome>| Doctor {
            checks: outcomes.into_iter().map(check).collect(),
            ..Doctor::default()
        };
        let not = || Outcome::NotChecked("nobody is there".to_owned());
        assert_eq!(headline(&of(vec![not()])), "Nothing could be checked yet");
        assert_eq!(
            headline(&of(vec![not(), Outcome::Fine])),
            "Everything that is checked is fine"
        );
        assert_eq!(
            line(&check(not()), &Doctor::default()).outcome,
            "not checked: nobody is there"
        );
    }
}
