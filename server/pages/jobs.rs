//! Training jobs: each by its last attempt, how it stands in one sentence, whose it is, how well it uses how many GPUs and
//! what that costs. A form that needs no scripts asks for some of them, as the API does.
//!
//! Limits: [`SHOWN`] jobs of one reading, [`READS`] readings of a page.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_analysis::incident::Incident;
use gpufleet_telemetry::time::Timestamp;

use super::asked::{Query, given};
use super::frame::{self, Frame};
use super::problem;
use crate::api::jobs::{self as known, JobsAsked, STATES};
use crate::runs::order::{After, List, Order};
use crate::runs::worth::{Worth, Worths};
use crate::runs::{KnownRun, Run, RunKey, State as RunState, lookup, words as sentences};
use crate::store::StoreError;
use crate::web::Web;
use crate::words::text::{self, Name};
use crate::words::{self, Said, address};

/// Jobs of one reading, and so of a page that leaves none out: what a person reads through.
const SHOWN: usize = 100;

/// Readings of a page: how a job stands the store cannot say, so that others are read too and left out.
const READS: usize = 10;

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    frame: Frame,
    jobs: Vec<Job>,
    /// How a job may stand, and whether those are asked for.
    states: Vec<(&'static str, bool)>,
    name: String,
    cluster: String,
    /// What may come first: how it is asked for, in words, and whether it is.
    orders: Vec<(&'static str, &'static str, bool)>,
    order: Order,
    /// The heads of columns that a list may be in the order of.
    heads: Heads,
    /// That there is none of what is asked for; none where all are.
    nothing: Option<String>,
    /// Where a page leads back to that is not the first.
    first: Option<String>,
    next: Option<String>,
    /// Of which moment the figures are.
    figures_at: String,
    failed: bool,
}

/// Heads that lead to the same jobs in another order.
struct Heads {
    gpus: Head,
    mfu: Head,
    cost: Head,
    started: Head,
}

/// One of them.
struct Head {
    name: &'static str,
    address: String,
    /// What comes first behind it.
    words: &'static str,
    /// Of the order that the page is in, as `aria-sort` has it.
    sorted: Option<&'static str>,
    arrow: &'static str,
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
    sentence: Said,
    /// None where nobody can say whose it is.
    owner: Option<Name>,
    gpus: String,
    ranks: String,
    /// None of one whose page alone has them.
    figures: Option<Figures>,
    started: String,
}

/// How well a job uses its GPUs, and what they cost; each or why it is not known.
struct Figures {
    mfu: Result<String, String>,
    /// What they cost an hour, where it runs, and what this attempt has cost so far.
    costs: Vec<Result<String, String>>,
}

/// `GET /jobs`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Query(asked): Query<JobsAsked>,
    frame: Frame,
) -> Response {
    let asked = JobsAsked {
        cluster: given(asked.cluster),
        name: given(asked.name),
        state: given(asked.state),
        // The order without one has one address.
        sort: given(asked.sort).filter(|it| it != Order::Started.name()),
        after: given(asked.after),
        limit: None,
    };
    let list = match known::list(&web.app, &frame.grant, &asked) {
        Ok(list) => list,
        Err(refused) => {
            let (title, why) = ("There are no such jobs", refused.detail().to_owned());
            return problem::refused(frame, refused.status(), title, why, "/jobs");
        }
    };
    let worths = known::worths(&web, &frame.grant, &list).await;
    let (state, order) = (list.state, list.order);
    let found = read(&web, list, &worths, frame.at).await;
    let failed = found.is_err();
    let (jobs, next) = found.unwrap_or_else(|error| {
        tracing::error!(%error, "the jobs cannot be read");
        (Vec::new(), None)
    });
    let sort = asked.sort.clone();
    let all = JobsAsked {
        sort,
        ..JobsAsked::default()
    };
    let is_of_all = link(&asked, asked.after.as_deref()) == link(&all, None);
    let page = JobsPage {
        nothing: (!is_of_all).then(|| nothing(&asked, next.is_none())),
        first: asked.after.is_some().then(|| link(&asked, None)),
        next: next.map(|it| link(&asked, Some(&known::cursor(&it, order)))),
        figures_at: text::moment(worths.at),
        states: STATES.map(|it| (it, state == Some(it))).to_vec(),
        orders: Order::ALL
            .map(|it| (asked_as(it).unwrap_or_default(), it.words(), it == order))
            .to_vec(),
        heads: Heads::of(&asked, order),
        order,
        name: asked.name.unwrap_or_default(),
        cluster: asked.cluster.unwrap_or_default(),
        jobs,
        failed,
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

impl Heads {
    fn of(asked: &JobsAsked, current: Order) -> Self {
        let head = |name, order: Order| {
            let asked = [
                ("state", asked.state.as_deref()),
                ("name", asked.name.as_deref()),
                ("cluster", asked.cluster.as_deref()),
                ("sort", asked_as(order)),
            ];
            let (way, arrow) = match order.is_ascending() {
                true => ("ascending", "↑"),
                false => ("descending", "↓"),
            };
            Head {
                name,
                address: address::with_query("/jobs", asked),
                words: order.words(),
                sorted: (order == current).then_some(way),
                arrow,
            }
        };
        Self {
            gpus: head("GPUs", Order::Gpus),
            mfu: head("MFU", Order::Mfu),
            cost: head("Cost of the attempt", Order::Cost),
            started: head("Started (UTC)", Order::Started),
        }
    }
}

/// How an order is asked for; none of what there is without one.
fn asked_as(order: Order) -> Option<&'static str> {
    (order != Order::Started).then(|| order.name())
}

/// The jobs that are asked for, and where those begin that nobody looked at.
async fn read(
    web: &Web,
    mut list: List,
    worths: &Worths,
    at: Timestamp,
) -> Result<(Vec<Job>, Option<After>), StoreError> {
    let mut jobs = Vec::new();
    for _ in 0..READS {
        let (found, next) = list.page(&web.app, worths, SHOWN).await?;
        let rows = found.into_iter().map(|stored: KnownRun| {
            let open = web.app.incidents.of_run(&stored.key);
            let currency = web.app.currency();
            let job = |key: &RunKey, run: &Run| job((key, run), &open, worths, at, currency);
            lookup::as_it_is(&web.app, stored, job)
        });
        jobs.extend(rows.filter(|it| list.state.is_none_or(|state| it.state == state)));
        list.after = next;
        if list.after.is_none() || jobs.len() >= SHOWN {
            break;
        }
    }
    Ok((jobs, list.after))
}

/// The page of what is asked for, from behind `after` on.
fn link(asked: &JobsAsked, after: Option<&str>) -> String {
    let asked = [
        ("state", asked.state.as_deref()),
        ("name", asked.name.as_deref()),
        ("cluster", asked.cluster.as_deref()),
        ("sort", asked.sort.as_deref()),
        ("after", after),
    ];
    address::with_query("/jobs", asked)
}

/// That there is none of what is asked for, as far as was looked.
fn nothing(asked: &JobsAsked, is_all: bool) -> String {
    let shown = |it: &String| text::harmless(it, text::SHOWN_CHARACTERS);
    let mut words = match (is_all, &asked.after, &asked.sort) {
        (false, _, _) => format!(
            "None of the {} jobs that were looked at",
            text::grouped((SHOWN * READS) as f64)
        ),
        (true, Some(_), None) => "No earlier job".to_owned(),
        (true, Some(_), Some(_)) => "No other job".to_owned(),
        (true, None, _) => "No job".to_owned(),
    };
    if let Some(name) = &asked.name {
        words.push_str(&format!(" called “{}”", shown(name)));
    }
    if let Some(cluster) = &asked.cluster {
        words.push_str(&format!(" in {}", shown(cluster)));
    }
    words.push_str(match asked.state.as_deref() {
        None => " is there",
        Some("ended") => " has ended",
        Some("silent") => " is silent",
        Some(_) => " is running",
    });
    words
}

fn job(
    (key, run): (&RunKey, &Run),
    open: &[Incident],
    worths: &Worths,
    at: Timestamp,
    currency: &str,
) -> Job {
    let facts = &run.facts;
    let state = run.state(at);
    let ending = facts.ending.as_ref();
    let known = run.ranks.len();
    let payer = worths.payer(key, facts);
    let gpus = worths.gpus(key, facts);
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
        sentence: sentences::said(run, open, at, currency).shown(sentences::LISTED_CHARACTERS),
        owner: payer.map(|it| Name::new(it.name())),
        gpus: gpus.map_or_else(|| "not known".to_owned(), |it| text::grouped(it as f64)),
        figures: worths.of(key).map(|it| figures(it, state, currency)),
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

/// The figures of a run that stands so.
fn figures(worth: &Worth, state: RunState, currency: &str) -> Figures {
    let mfu = worth.mfu.as_ref().map(|it| {
        let questioned = match it.is_questioned {
            true => ", too good to be taken without a question",
            false => "",
        };
        format!("{:.1} %{questioned}", it.ratio * 100.0)
    });
    let money = |nano: &Result<i64, String>, over: &str| {
        let told = nano.as_ref().map(|it| text::money(currency, *it));
        told.map(|it| format!("{it} {over}")).map_err(|it| why(it))
    };
    let hour = (state == RunState::Running).then(|| money(&worth.nano_usd_per_hour, "an hour"));
    let so_far = money(&worth.attempt_nano_usd, "so far");
    let mut costs: Vec<_> = hour.into_iter().chain([so_far]).collect();
    // Without a price both lack the same.
    costs.dedup();
    Figures {
        mfu: mfu.map_err(|it| why(it)),
        costs,
    }
}

/// Why there is no figure: names of others may be in it.
fn why(raw: &str) -> String {
    text::harmless(raw, sentences::LISTED_CHARACTERS)
}
