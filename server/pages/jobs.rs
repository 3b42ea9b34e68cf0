//! Training jobs: each by its last attempt, how it stands in one sentence.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::time::Timestamp;

use super::frame::{self, Frame};
use crate::runs::{KnownRun, Run, RunKey, State as RunState, lookup, words as sentences};
use crate::store::RunFilter;
use crate::web::Web;
use crate::words::text::{self, Name};
use crate::words::{self, address};

/// Jobs listed; the API has the rest.
const SHOWN: usize = 100;

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    jobs: Vec<Job>,
    has_more: bool,
    failed: bool,
}

/// A job as a row.
struct Job {
    address: String,
    name: Name,
    namespace: String,
    cluster: Name,
    mark: Option<&'static str>,
    origin: &'static str,
    attempt: u32,
    state: &'static str,
    is_bad: bool,
    sentence: String,
    ranks: String,
    started: String,
}

/// `GET /jobs`.
pub async fn show(State(web): State<Arc<Web>>, frame: Frame) -> Response {
    let filter = RunFilter {
        cluster: frame.grant.cluster.clone(),
        only_last: true,
        ..RunFilter::default()
    };
    let found = web.app.store.runs(&filter, None, SHOWN).await;
    let failed = found.is_err();
    let (found, next) = found.unwrap_or_else(|error| {
        tracing::error!(%error, "the jobs cannot be read");
        (Vec::new(), None)
    });
    let at = frame.at;
    let jobs = found.into_iter().map(|stored: KnownRun| {
        let open = web.app.incidents.of_run(&stored.key);
        let job = |key: &RunKey, run: &Run| job(key, run, &open, at, web.app.currency());
        lookup::as_it_is(&web.app, stored, job)
    });
    let page = JobsPage {
        jobs: jobs.collect(),
        has_more: next.is_some(),
        failed,
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

fn job(key: &RunKey, run: &Run, open: &[Incident], at: Timestamp, currency: &str) -> Job {
    let facts = &run.facts;
    let state = run.state(at);
    let ending = facts.ending.as_ref();
    let known = run.ranks.len();
    Job {
        address: address::run(key),
        name: Name::new(&key.run.job.name),
        namespace: text::harmless(&key.run.job.namespace, text::SHOWN_CHARACTERS),
        cluster: Name::new(&key.cluster),
        mark: words::watermark(facts.origin),
        origin: facts.origin.name(),
        attempt: key.run.attempt,
        state: state.name(),
        is_bad: match state {
            RunState::Running => false,
            RunState::Silent { .. } => true,
            RunState::Ended { .. } => ending.is_some_and(|it| it.is_interruption()),
        },
        sentence: text::harmless(
            &sentences::sentence(run, open, at, currency),
            sentences::LISTED_CHARACTERS,
        ),
        ranks: match (known, facts.world) {
            (0, 0) => "not known".to_owned(),
            (0, world) => text::grouped(f64::from(world)),
            (known, world) if world as usize > known => format!("{known} of {world} heard"),
            (known, _) => text::grouped(known as f64),
        },
        started: facts
            .started
            .map_or_else(|| "not told".to_owned(), text::moment),
    }
}
