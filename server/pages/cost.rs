//! The money: this month by team, what is idle now with whose it is and since when, and what has no price
//! or no owner, with the line that mends it.
//!
//! Live clusters are one sum; each simulated cluster has a section of its own, marked. The month comes
//! from the ledger's days and is made again at most once in [`FRESH_FOR`], one at a time and to its end,
//! whether who asked for it waits or not; what is idle is of this second.

use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_analysis::chargeback::view::{By, Headline};
use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY, Sum};
use gpufleet_analysis::ledger;
use gpufleet_analysis::money::ratio;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::frame::{self, Frame};
use super::text::{self, Name, segment};
use super::{gpu, problem, words};
use crate::answers::Answers;
use crate::money::report::{self, Asked, Form, What};
use crate::money::{Terms, month, now};
use crate::store::Store;
use crate::web::Web;

/// How old the month may be: the ledger's hours change every five minutes.
const FRESH_FOR: Duration = Duration::from_secs(60);

/// Most rows of a table.
const MAX_ROWS: usize = 50;

/// Most scopes whose months are kept, the newest: live, and simulated clusters.
const KEPT: usize = 8;

#[derive(Template)]
#[template(path = "cost.html")]
struct CostPage {
    frame: Frame,
    month: String,
    sections: Vec<Section>,
    unpriced: Vec<Notice>,
    unowned: Vec<Notice>,
    findings: Vec<String>,
}

/// Live clusters, or one that is not.
struct Section {
    origin: Origin,
    title: String,
    word: Option<&'static str>,
    sentence: &'static str,
    query: String,
    tiles: Vec<(&'static str, String, String)>,
    teams: Vec<Team>,
    idle: Vec<IdleRow>,
    idle_more: usize,
    idle_sum: String,
}

/// A team's month.
struct Team {
    name: Name,
    cost: String,
    hours: String,
    active: String,
    waste: String,
    budget: Option<Budget>,
}

struct Budget {
    amount: String,
    forecast: String,
    is_over: bool,
}

struct IdleRow {
    address: String,
    place: Name,
    state: &'static str,
    since: String,
    holder: Name,
    owner: Name,
    cost: String,
}

/// Something that has no price or no owner, and what mends it.
struct Notice {
    what: Name,
    fix: String,
}

/// Months as they were last made, by scope: one is made at a time, each holds the days of a month.
pub struct Months(Answers<Scope, Made, Arc<str>>);

/// A cluster, or all live ones.
type Scope = Option<String>;

/// A month of a scope.
struct Made {
    headline: Headline,
    teams: Vec<(String, Sum, Sum, Sum)>,
    budgets: Vec<gpufleet_analysis::chargeback::budget::Standing>,
    findings: Vec<String>,
    currency: String,
}

/// `GET /cost`.
pub async fn show(State(web): State<Arc<Web>>, frame: Frame) -> Response {
    let terms = web.app.money.terms();
    let view = web.views.get(&web.app).await.seen_with(&frame.grant);
    let found = found_now(&web, &terms, &frame).await;
    let mut sections = Vec::new();
    let mut findings = terms.findings.clone();
    let mut scopes: Vec<(Origin, Option<String>)> = Vec::new();
    for cluster in view
        .clusters
        .iter()
        .filter(|it| it.origin != Origin::Recorded)
    {
        let name = (cluster.origin != Origin::Live || frame.grant.cluster.is_some())
            .then(|| cluster.name.to_string());
        if !scopes.contains(&(cluster.origin, name.clone())) {
            scopes.push((cluster.origin, name));
        }
    }
    for (origin, cluster) in scopes {
        let (store, clock) = (web.app.store.clone(), &web.app.clock);
        let making = make(store, Arc::clone(&terms), cluster.clone(), frame.at);
        let made = match web.months.0.get(cluster.clone(), clock, making).await {
            Ok(made) => made,
            Err(error) => return problem::store_failed(frame, &error),
        };
        findings.extend(
            made.findings
                .iter()
                .filter(|it| !terms.findings.contains(it))
                .cloned(),
        );
        sections.push(section(origin, cluster, &made, &found, frame.at));
    }
    let unpriced = found.unpriced.iter().map(|(it, count)| Notice {
        what: Name::new(&format!(
            "{} in {}: {}",
            text::counted(*count, "GPU", "GPUs"),
            it.cluster,
            if it.model.is_empty() {
                "of a model that is not known"
            } else {
                &it.model
            },
        )),
        fix: it.why.clone(),
    });
    let unowned = found
        .unowned
        .iter()
        .map(|((cluster, job), (count, fix))| Notice {
            what: Name::new(&format!(
                "{job} in {cluster}: {}",
                text::counted(*count, "GPU", "GPUs")
            )),
            fix: format!("from,until,kind,key,value,team: {fix}"),
        });
    let page = CostPage {
        month: report::month_of(frame.at),
        sections,
        unpriced: unpriced.take(MAX_ROWS).collect(),
        unowned: unowned.take(MAX_ROWS).collect(),
        findings,
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

/// What is idle, unpriced and unowned at this moment: a walk over every GPU, where it keeps nobody waiting.
async fn found_now(web: &Arc<Web>, terms: &Arc<Terms>, frame: &Frame) -> now::Now {
    let (fleet, terms) = (Arc::clone(&web.app.fleet), Arc::clone(terms));
    let (grant, at) = (frame.grant.clone(), frame.at);
    let walk = move || now::now(&fleet, &terms, &grant, at);
    let found = tokio::task::spawn_blocking(walk).await;
    found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

impl Default for Months {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, 1))
    }
}

async fn make(
    store: Store,
    terms: Arc<Terms>,
    scope: Scope,
    at: Timestamp,
) -> Result<Made, Arc<str>> {
    let month = report::month_of(at);
    let asked = Asked::new(
        What::Chargeback,
        Form::Html,
        &month,
        "team",
        scope.clone(),
        at,
    );
    let asked = asked.expect("the month that runs is one");
    let days = month::read(&store, asked.days.clone(), scope.as_deref()).await;
    let days = days.map_err(|error| Arc::from(error.to_string()))?;
    let charged = tokio::task::spawn_blocking(move || charge(&asked, &days, &terms, at)).await;
    charged.map_err(|error| Arc::from(error.to_string()))
}

fn charge(asked: &Asked, days: &month::Days, terms: &Terms, at: Timestamp) -> Made {
    let month = month::charge(days, asked.days.clone(), terms, Detail::Nodes);
    let groups = month.made.grouped(&month.fleet, &[By::Team]);
    let team = |group: gpufleet_analysis::chargeback::view::Group| {
        let of = |is_in: fn(ledger::State) -> bool| {
            let mut sum = Sum::default();
            let states = group.states.iter().filter(|it| is_in(*it.0));
            states.for_each(|it| sum.add(it.1));
            sum
        };
        let (active, waste) = (of(ledger::State::is_active), of(ledger::State::is_waste));
        (group.words.concat(), group.sum, active, waste)
    };
    let budgets = asked.budgets(terms);
    Made {
        headline: month.made.headline(),
        teams: groups.into_iter().map(team).collect(),
        budgets: month
            .made
            .budgets(&budgets, at.millis(), asked.end_day * MILLIS_PER_DAY),
        currency: month.made.currency.clone(),
        findings: month.findings,
    }
}

fn section(
    origin: Origin,
    cluster: Option<String>,
    made: &Made,
    found: &now::Now,
    at: Timestamp,
) -> Section {
    let is_here = |it: &&now::Idle| {
        it.origin == origin
            && cluster
                .as_deref()
                .is_none_or(|cluster| cluster == &*it.key.cluster)
    };
    let idle: Vec<&now::Idle> = found.idle.iter().filter(is_here).collect();
    let sum: i128 = idle.iter().filter_map(|it| it.day_cost).sum();
    let unpriced = idle.iter().filter(|it| it.day_cost.is_none()).count();
    let mut idle_sum = format!("{} idle", text::counted(idle.len(), "GPU is", "GPUs are"));
    if idle.len() > unpriced {
        idle_sum.push_str(&format!(", {} a day", amount(&made.currency, sum)));
    }
    if unpriced > 0 {
        idle_sum.push_str(&format!(", {unpriced} of them without a price"));
    }
    let headline = &made.headline;
    let tile = |name, sum: &Sum| {
        let hours = format!("{} GPU-hours", hours(sum.gpu_millis));
        (name, money(&made.currency, sum), hours)
    };
    let row = |it: &&now::Idle| idle_row(it, &made.currency, at);
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
        tiles: vec![
            tile("Total", &headline.total),
            tile("Active", &headline.active),
            tile("Idle", &headline.idle),
            tile("Stalled", &headline.stalled),
            tile("Not observed", &headline.unobserved),
            tile("Unowned", &headline.unowned),
        ],
        teams: made
            .teams
            .iter()
            .take(MAX_ROWS)
            .map(|it| team(it, made))
            .collect(),
        idle_more: idle.len().saturating_sub(MAX_ROWS),
        idle: idle.iter().take(MAX_ROWS).map(row).collect(),
        idle_sum,
    }
}

fn team((name, sum, active, waste): &(String, Sum, Sum, Sum), made: &Made) -> Team {
    let currency = made.currency.as_str();
    let standing = made.budgets.iter().find(|it| it.team == *name);
    let share = ratio(active.gpu_millis.into(), 100, sum.gpu_millis.into());
    Team {
        name: Name::new(name),
        cost: money(currency, sum),
        hours: hours(sum.gpu_millis),
        active: share.map_or("–".to_owned(), |it| format!("{it} %")),
        waste: money(currency, waste),
        budget: standing.map(|it| Budget {
            amount: amount(currency, it.budget),
            forecast: it
                .forecast
                .map_or("no whole day yet".to_owned(), |it| amount(currency, it)),
            is_over: it.is_over(),
        }),
    }
}

fn idle_row(it: &now::Idle, currency: &str, at: Timestamp) -> IdleRow {
    let place = match it.index.as_str() {
        "" => format!("{} on {}", it.key.id, it.node),
        index => format!("GPU {index} of {}", it.node),
    };
    IdleRow {
        address: gpu::address(&it.key.cluster, &it.key.id),
        place: Name::new(&place),
        state: words::look(it.state).name,
        since: it
            .since
            .map_or("not known".to_owned(), |since| text::ago(at, since)),
        holder: Name::new(if it.holder.is_empty() {
            "nobody"
        } else {
            &it.holder
        }),
        owner: Name::new(it.payer.name()),
        cost: it.day_cost.map_or("no price".to_owned(), |it| {
            format!("{}/day", amount(currency, it))
        }),
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
            hours(unpriced)
        ),
    }
}

/// An amount to the cent.
pub(super) fn amount(currency: &str, nano: i128) -> String {
    let cents = ratio(nano, 1, 10_000_000).unwrap_or(0);
    let sign = if cents < 0 { "-" } else { "" };
    let whole = text::grouped((cents.abs() / 100) as f64);
    let part = cents.abs() % 100;
    match currency {
        "USD" => format!("{sign}${whole}.{part:02}"),
        other => format!("{sign}{whole}.{part:02} {other}"),
    }
}

/// GPU-hours to a tenth.
fn hours(gpu_millis: i64) -> String {
    let tenths = ratio(gpu_millis.into(), 10, 3_600_000).unwrap_or(0);
    format!("{}.{}", text::grouped((tenths / 10) as f64), tenths % 10)
}
