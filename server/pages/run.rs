//! One attempt of a training job: whether it goes on, how fast, who is slow, where the time goes.

mod gather;

mod goodputs;

mod maps;

mod loss;

mod failed;

mod parts;

mod ranks;

mod energy;

mod utilisation;

pub(crate) mod collectives;

pub use goodputs::{AddedUp, Goodputs};
pub use maps::Maps;
pub(super) use parts::{HOOKS, PRICES};

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use futures::FutureExt as _;
use gpufleet_analysis::incident::{Incident, Place};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{JobId, RunId};
use serde::Deserialize;

use super::asked::{Path, Query};
use super::events::Entry;
use super::frame::{self, Frame};
use super::incidents::Beside;
use super::marks::{self, Marks};
use super::meanings::Meanings;
use super::problem;
use super::series::Series;
use crate::runs::advice::{self, Advisory};
use crate::runs::{Run, RunKey, State as RunState, history, lookup, words as sentences};
use crate::store::RunFilter;
use crate::view::FleetView;
use crate::web::Web;
use crate::words::text::{self, Name};
use crate::words::{self, Said, address};
use collectives::Collective;
use parts::{Bar, Ending, Figure, HeatMap};
use ranks::RankLine;

/// How far back map and curve go, minutes.
const RANGES: [i64; 3] = [30, 120, 720];

/// Attempts that are linked.
const ATTEMPTS: usize = 20;

/// What the address may ask for.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Asked {
    /// How far back map and curve go, minutes: 30, 120 or 720.
    #[serde(default)]
    pub minutes: Option<String>,
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunPage {
    frame: Frame,
    title: Name,
    job: Name,
    cluster: Name,
    cluster_address: String,
    origin: Origin,
    watermark: Option<&'static str>,
    watermark_sentence: &'static str,
    attempt: u32,
    attempts: Vec<(u32, String, bool)>,
    state: &'static str,
    is_bad: bool,
    sentence: Said,
    /// How many ranks it has, on how many nodes, since when.
    made_of: Option<String>,
    /// What is wrong with it: why, what it costs, what to do.
    incidents: Beside,
    figures: Vec<Figure>,
    meanings: Meanings,
    ranges: Vec<(i64, String, bool)>,
    heat: HeatMap,
    heat_marks: Marks,
    /// Whether the map goes back as far as is asked for; else it shows what is in memory, and only the curve does.
    heat_has_ranges: bool,
    phases: Vec<Bar>,
    goodput: Result<Vec<Bar>, &'static str>,
    /// Until when it goes.
    goodput_until: String,
    /// None while it has no pace, or is over.
    advice: Option<Advisory>,
    collectives: Result<Vec<Collective>, String>,
    loss: Series,
    loss_marks: Marks,
    /// Where the map begins and ends.
    range_from: String,
    range_to: String,
    ending: Option<Ending>,
    ranks: Vec<RankLine>,
    other_ranks: Vec<RankLine>,
    more_ranks: usize,
    fingerprint: Vec<(Name, Name)>,
    tags: Vec<(Name, Name)>,
    tags_left_out: Option<String>,
    comparison: String,
    ladder: Option<(String, Name)>,
    events: Vec<Entry>,
    past_failed: bool,
}

/// `GET /clusters/{cluster}/jobs/{job}`: its last attempt.
pub async fn last(
    State(web): State<Arc<Web>>,
    Path((cluster, job)): Path<(String, String)>,
    frame: Frame,
) -> Response {
    let Some(key) = key(&frame, &cluster, &job, 0) else {
        return not_found(frame, &cluster, &job);
    };
    let filter = RunFilter {
        cluster: Some(Arc::clone(&key.cluster)),
        job: Some(key.run.job.clone()),
        only_last: true,
        ..RunFilter::default()
    };
    match web.app.store.runs(&filter, None, 1).await {
        Ok((found, _)) => match found.first() {
            Some(found) => Redirect::temporary(&address::run(&found.key)).into_response(),
            None => not_found(frame, &cluster, &job),
        },
        Err(error) => problem::store_failed(frame, &error),
    }
}

/// `GET /clusters/{cluster}/jobs/{job}/{attempt}`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Path((cluster, job, attempt)): Path<(String, String, String)>,
    Query(asked): Query<Asked>,
    frame: Frame,
) -> Response {
    let number = attempt.parse().ok();
    let Some(key) = number.and_then(|attempt| key(&frame, &cluster, &job, attempt)) else {
        return not_found(frame, &cluster, &job);
    };
    let run = match lookup::find(&web.app, &key).await {
        Ok(Some(run)) => Arc::new(run),
        Ok(None) => return not_found(frame, &cluster, &job),
        Err(error) => return problem::store_failed(frame, &error),
    };
    let minutes = asked.minutes.and_then(|it| it.parse().ok());
    let minutes = minutes
        .filter(|it| RANGES.contains(it))
        .unwrap_or(RANGES[0]);
    let end = run.state(frame.at).until(frame.at);
    let start = end.shifted(-minutes * 60 * NANOS_PER_SECOND);
    let asked = start..end;
    let changed = async {
        let view = web.views.get(&web.app).await;
        let changed = gather::changed(&web, &view, (&key, &run), &asked).await;
        (view, changed)
    };
    let (mut past, (view, changed)) = tokio::join!(
        gather::past(&web, (&key, &run), (minutes, &asked), frame.at).boxed(),
        changed.boxed(),
    );
    past.changed = changed;
    let open = web.app.incidents.of_run(&key);
    let broke = failed::incidents(&web.app, &frame.grant, (&key, &run));
    let page = page(
        frame,
        (&web, &view),
        (&key, &run, [open, broke]),
        past,
        (minutes, start, end),
    );
    frame::page(StatusCode::OK, &page)
}

fn key(frame: &Frame, cluster: &str, job: &str, attempt: u32) -> Option<RunKey> {
    let job = JobId::parse(job)
        .ok()
        .filter(|_| frame.grant.may_see(cluster))?;
    Some(RunKey {
        cluster: cluster.into(),
        run: RunId { job, attempt },
    })
}

fn not_found(frame: Frame, cluster: &str, job: &str) -> Response {
    let said = |raw: &str| text::harmless(raw, text::SHOWN_CHARACTERS);
    problem::not_found(
        frame,
        format!(
            "No such attempt of “{}” in cluster “{}”",
            said(job),
            said(cluster)
        ),
        vec![
            "No rank of it was ever heard of there, or it is older than runs are kept.".to_owned(),
            "A job is at /clusters/CLUSTER/jobs/NAMESPACE%2FNAME%2FUID; the page Jobs lists them."
                .to_owned(),
        ],
    )
}

fn page(
    frame: Frame,
    (web, view): (&Web, &FleetView),
    (key, run, [open, broke]): (&RunKey, &Run, [Vec<Incident>; 2]),
    past: gather::Past,
    (minutes, start, end): (i64, Timestamp, Timestamp),
) -> RunPage {
    let state = run.state(frame.at);
    let currency = web.app.currency();
    let here = address::run(key);
    let place = Place {
        cluster: key.cluster.to_string(),
        run: Some(key.run.to_string()),
        ..Place::default()
    };
    let attempts = past.attempts.all().iter().take(ATTEMPTS).map(|it| {
        let (number, address) = (it.key.run.attempt, address::run(&it.key));
        (number, address, number == key.run.attempt)
    });
    let ending = run.facts.ending.as_ref();
    let pairs = |all: &std::collections::BTreeMap<String, String>| {
        all.iter()
            .map(|(name, it)| (Name::new(name), Name::new(it)))
            .collect()
    };
    let listed = ranks::ranks(run, frame.at, (&key.cluster, view));
    let looked_up = (&past.cost, past.reliability.as_ref());
    let told = advice::of(&web.app.fleet, &web.specs, (key, run), looked_up, frame.at);
    let advised = told.map(|it| advice::advisory(&it, run, web.app.currency()));
    let figures = parts::figures(web, (key, run), &past, frame.at);
    let loss = loss::series(&past.loss, loss::minutes(&(start..end)));
    let names = [&*key.run.job.name, &key.run.job.to_string(), &key.cluster].map(Name::new);
    let places = listed.shown.iter().chain(&listed.others);
    let places = places.flat_map(|it| [&it.node, &it.gpu]).flatten();
    let helps = figures.iter().map(|it| (it.name, it.help));
    let meanings = Meanings::of(
        helps.chain([(loss.name.as_str(), loss.help)]),
        names.iter().chain(places.map(|it| &it.1)),
    );
    let [title, job, cluster] = names;
    RunPage {
        title,
        job,
        cluster,
        cluster_address: address::cluster(&key.cluster),
        origin: run.facts.origin,
        watermark: words::watermark(run.facts.origin),
        watermark_sentence: words::watermark_sentence(run.facts.origin),
        attempt: key.run.attempt,
        attempts: attempts.collect(),
        state: state.name(),
        is_bad: match state {
            RunState::Running => false,
            RunState::Silent { .. } => true,
            RunState::Ended { .. } => ending.is_some_and(|it| it.is_interruption()),
        },
        sentence: failed::named(
            sentences::said(run, &open, frame.at, currency),
            (key, run),
            view,
        )
        .shown(sentences::SHOWN_CHARACTERS),
        made_of: ranks::made_of(run),
        incidents: Beside::of([open, broke].concat(), &place, view, frame.at, currency),
        figures,
        meanings,
        ranges: RANGES
            .iter()
            .map(|it| (*it, format!("{here}?minutes={it}"), *it == minutes))
            .collect(),
        heat: parts::heat(&past.map.rows, past.map.cut, run),
        heat_marks: marks::marks(
            &past.changed,
            (past.map.range.start, past.map.range.end),
            i64::try_from(crate::runs::heat::COLUMNS).unwrap_or(0),
        ),
        heat_has_ranges: !history::is_in_memory_alone(run),
        phases: parts::phases(run),
        goodput: past.goodput.told().map(parts::goodput),
        goodput_until: text::moment(state.until(past.goodput.until)),
        advice: advised.ok(),
        collectives: collectives::collectives(&past.lives, run),
        loss,
        loss_marks: marks::of_curves(&past.changed, &loss::minutes(&(start..end))),
        range_from: text::moment(past.map.range.start),
        range_to: text::moment(past.map.range.end),
        ending: ending.map(|it| parts::ending(it, past.cost.of_lost_steps(run).ok(), currency)),
        ranks: listed.shown,
        other_ranks: listed.others,
        more_ranks: listed.more,
        fingerprint: pairs(&run.facts.fingerprint),
        tags: pairs(&run.facts.tags),
        tags_left_out: parts::tags_left_out(run.facts.tags_left_out),
        comparison: super::compare::between(&[], &[key]),
        ladder: run.facts.tags.get(crate::runs::ladder::TAG).map(|name| {
            let address = address::ladder(&key.cluster, name);
            (address, Name::new(name))
        }),
        events: past.events,
        past_failed: past.failed,
        frame,
    }
}
