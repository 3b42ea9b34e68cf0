//! The money: this month, or another one, in a line and by team, what is idle now with whose it is and since when,
//! and what has no price or no owner, with the line that mends it.
//!
//! Live clusters are one sum; each simulated cluster has a section of its own, marked. The month comes
//! from the ledger's days and is made again at most once in [`FRESH_FOR`], one at a time and to its end,
//! whether who asked for it waits or not; nobody waits for it where the last one at the same prices is no older than
//! [`STANDS_FOR`], and [`warm`] makes the month that runs before anybody asks. With it is made what changed since the month
//! before, of as many days. What is idle is of the last seconds. Both say of which moment they are.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_analysis::chargeback::Sum;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::asked::Query;
use super::frame::{self, Frame};
use super::problem;
use crate::App;
use crate::answers::Answers;
use crate::auth::Grant;
use crate::money::{Terms, now};
use crate::store::StoreError;
use crate::view::{FleetView, forgotten};
use crate::web::Web;
use crate::words::text::{self, amount, segment};
use crate::words::{self, Said};

mod changed;

mod idle;

mod line;

mod made;

mod notices;

mod savings;

mod serving;

mod states;

mod teams;

mod terms;

pub mod warm;

mod which;

use made::{Made, make};
use notices::Notices;
pub use which::CostAsked;
use which::Which;

/// How old the month may be: the ledger's hours change every five minutes.
const FRESH_FOR: Duration = Duration::from_secs(60);

/// How old a month may be that is given while the next one is made: who looks now and then does not wait, and it is a
/// quarter of an hour of a month.
const STANDS_FOR: Duration = Duration::from_secs(900);

/// Most rows of a table.
const MAX_ROWS: usize = 50;

/// Most months that are kept, the newest: of what is live, and of simulated clusters.
const KEPT: usize = 8;

/// Most months that wait to be made: an address may ask for any.
const WAITING: usize = 16;

/// What is said of who could do with less before anybody looked.
const NOT_LOOKED: &str = "anybody yet: it is being worked out, within minutes of the first look";

/// Why one more is not made.
const TOO_MANY: &str = "too many months are asked for at once";

#[derive(Template)]
#[template(path = "cost.html")]
struct CostPage {
    frame: Frame,
    which: Which,
    /// The month of what is live, in one line.
    headline: Said,
    sections: Vec<Section>,
    unpriced: Notices,
    unowned: Notices,
    findings: Vec<String>,
    /// The address of Grafana's dashboard of it; empty where it is not configured.
    dashboard: String,
    /// Of which holders it is not said whether they could do with less.
    not_judged: String,
}

/// Live clusters, or one that is not.
struct Section {
    origin: Origin,
    title: String,
    word: Option<&'static str>,
    sentence: &'static str,
    query: String,
    /// The month before it, `2026-09`.
    last_month: String,
    tiles: Vec<(&'static str, String, String)>,
    teams: Vec<teams::Row>,
    /// How many teams are in no row, and their money; none where each is in one.
    teams_more: Option<String>,
    /// Where the time went, and why.
    states: Vec<states::Row>,
    /// The month in one line, without its full stop.
    line: Said,
    /// What changed since the month before.
    changed: Said,
    /// When it was added up.
    made_at: String,
    idle: Vec<idle::Row>,
    idle_more: usize,
    idle_sum: String,
    /// Of which moment what is idle is.
    idle_at: String,
    saved: savings::Part,
    serving: Vec<serving::Row>,
    serving_more: usize,
}

/// Months as they were last made, by what they are of: one is made at a time, each holds the days of a month
/// and of the one before.
pub struct Months(Answers<Scope, Made, Arc<str>>);

/// A cluster, or all live ones; the month, as `2026-11`; and the number of the terms.
type Scope = (Option<String>, String, u64);

/// `GET /cost`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Query(asked): Query<CostAsked>,
    frame: Frame,
) -> Response {
    let mut which = match Which::of(&asked, frame.at) {
        Ok(which) => which,
        Err(error) => {
            let (title, why) = ("There is no such month", error.to_string());
            return problem::refused(frame, StatusCode::BAD_REQUEST, title, why, "/cost");
        }
    };
    let (app, grant) = (&web.app, &frame.grant);
    let terms = app.money.terms();
    let view = web.views.get(app).await.seen_with(grant);
    let found = now::walked(app, &terms, grant, frame.at).await;
    let saved = app.savings.last(app, &web.specs, grant, frame.at);
    let mut sections: Vec<Section> = Vec::new();
    let mut findings = terms.findings.clone();
    let scopes = match scopes(app, &view, grant, which.runs).await {
        Ok(scopes) => scopes,
        Err(error) => return problem::store_failed(frame, &error),
    };
    for (origin, cluster) in scopes {
        let scope = (cluster.clone(), which.month.clone(), terms.number);
        let made = match kept(&web, &terms, scope, frame.at).await {
            Ok(made) => made,
            Err(error) => return unread(frame, &error),
        };
        let more = made.findings.iter();
        findings.extend(more.filter(|it| !terms.findings.contains(it)).cloned());
        let mut section = section(origin, cluster.clone(), &made, &found, frame.at);
        if let Some(saved) = &saved {
            section.saved = savings::part(saved, origin, cluster.as_deref());
            let has_it = |it: &Section| it.origin == origin && it.saved.has_anchor;
            section.saved.has_anchor = !section.saved.is_empty() && !sections.iter().any(has_it);
        }
        sections.push(section);
    }
    // Who goes back ends where nothing was.
    if !which.runs && sections.iter().all(|it| it.teams.is_empty()) {
        which.before = None;
    }
    let page = CostPage {
        which,
        headline: headline(&sections),
        sections,
        dashboard: app.config.cost.dashboard_url.clone(),
        not_judged: saved
            .as_deref()
            .map_or_else(|| NOT_LOOKED.to_owned(), savings::not_said),
        unpriced: notices::unpriced(&found),
        unowned: notices::unowned(&found),
        findings,
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

/// What has a section: all live clusters together, or the only one that the token sees, also where no node of it is heard
/// any more, and each simulated one.
///
/// # Errors
/// When nothing is heard and the store does not answer.
async fn scopes(
    app: &App,
    view: &FleetView,
    grant: &Grant,
    is_of_now: bool,
) -> Result<Vec<(Origin, Option<String>)>, StoreError> {
    let mut scopes: Vec<(Origin, Option<String>)> = Vec::new();
    let clusters = view.clusters.iter();
    for cluster in clusters.filter(|it| it.origin != Origin::Recorded) {
        let is_apart = cluster.origin != Origin::Live || grant.cluster.is_some();
        let scope = (cluster.origin, is_apart.then(|| cluster.name.to_string()));
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    let is_heard = match grant.cluster {
        Some(_) => !scopes.is_empty(),
        None => scopes.iter().any(|it| it.0 == Origin::Live),
    };
    if is_heard {
        return Ok(scopes);
    }
    let was = match forgotten::was_there(app, grant).await {
        Ok(was) => was.filter(|it| *it != Origin::Recorded),
        Err(error) if scopes.is_empty() => return Err(error),
        Err(error) => {
            tracing::error!(%error, "whether a cluster was ever live cannot be read");
            None
        }
    };
    let is_all = !is_of_now && scopes.is_empty();
    if let Some(origin) = was.or(is_all.then_some(Origin::Live)) {
        scopes.insert(0, (origin, grant.cluster.as_deref().map(str::to_owned)));
    }
    Ok(scopes)
}

/// A month as it was last made, or anew. Why the next one could not be made is told where the last is too old. One
/// that has not begun does not stand: it is made in no time, and the first hours are what people wait for.
async fn kept(
    web: &Web,
    terms: &Arc<Terms>,
    scope: Scope,
    at: Timestamp,
) -> Result<Arc<Made>, Arc<str>> {
    let making = make(web.app.store.clone(), Arc::clone(terms), scope.clone(), at);
    let (months, clock) = (&web.months.0, &web.app.clock);
    if months.last(&scope).is_some_and(|it| it.is_unbegun) {
        months.forget(&scope);
    }
    months.get_standing(scope, clock, STANDS_FOR, making).await
}

/// That a month could not be made.
fn unread(frame: Frame, error: &str) -> Response {
    if error != TOO_MANY {
        return problem::store_failed(frame, &error);
    }
    let title = "Too many months are asked for at once";
    let why = "Those that were asked for before are still being read. Try it again in a moment."
        .to_owned();
    problem::refused(frame, StatusCode::SERVICE_UNAVAILABLE, title, why, "/cost")
}

/// The money of what is live, in one line without its full stop.
fn headline(sections: &[Section]) -> Said {
    let live = sections.iter().find(|it| it.origin == Origin::Live);
    live.map_or_else(|| "No GPU is live".into(), |it| it.line.clone())
}

impl Default for Months {
    fn default() -> Self {
        let refuses = (WAITING, Arc::from(TOO_MANY));
        Self(Answers::refusing(FRESH_FOR, KEPT, 1, refuses))
    }
}

fn section(
    origin: Origin,
    cluster: Option<String>,
    made: &Made,
    found: &now::MoneySnapshot,
    at: Timestamp,
) -> Section {
    let is_here = |it: &&now::Idle| {
        it.origin == origin
            && cluster
                .as_deref()
                .is_none_or(|cluster| cluster == &*it.key.cluster)
    };
    let idle: Vec<&now::Idle> = found.idle.iter().filter(is_here).collect();
    let headline = &made.headline;
    let tile = |name, sum: &Sum| {
        let hours = format!("{} GPU-hours", text::hours(sum.gpu_millis));
        (name, money(&made.currency, sum), hours)
    };
    let (idle_rows, idle_more) = idle::rows(&idle, &made.currency, at);
    let (serving, serving_more) = serving::rows(&made.serving, &made.currency);
    let standings = (&*made.budgets, &*made.quotas);
    let (teams, teams_more) = teams::rows(&made.teams, standings, &made.currency);
    let of_terms = terms::tiles(&made.currency, &made.spot, made.commitments.as_ref());
    Section {
        origin,
        title: cluster
            .clone()
            .unwrap_or_else(|| "Live clusters".to_owned()),
        word: words::watermark(origin),
        sentence: words::watermark_sentence(origin),
        query: cluster
            .map(|it| format!("&cluster={}", segment(&it)))
            .unwrap_or_default(),
        last_month: made.before.clone(),
        tiles: [
            tile("Total", &headline.total),
            tile("Active", &headline.active),
            tile("Idle", &headline.idle),
            tile("Stalled", &headline.stalled),
            tile("Not observed", &headline.unobserved),
            tile("Unowned", &headline.unowned),
        ]
        .into_iter()
        .chain([states::gpus_alone(&headline.total, &made.currency)])
        .chain(of_terms)
        .collect(),
        teams,
        teams_more,
        states: states::rows(&made.whole, &made.currency),
        line: line::of(made),
        changed: changed::of(made),
        made_at: text::moment(made.at),
        idle_at: text::moment(found.at),
        idle_sum: idle::sum(&idle, &made.currency),
        idle: idle_rows,
        idle_more,
        saved: savings::Part::default(),
        serving,
        serving_more,
    }
}

/// Money of time, and that some or all of it has no price.
fn money(currency: &str, sum: &Sum) -> String {
    match (sum.unpriced_millis, sum.gpu_millis) {
        (0, _) => amount(currency, sum.cost),
        (unpriced, all) if unpriced >= all => "no price".to_owned(),
        (unpriced, _) => format!(
            "{} and {} GPU-hours without a price",
            amount(currency, sum.cost),
            text::hours(unpriced)
        ),
    }
}
