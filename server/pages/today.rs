//! The first page of the day: the fleet in one line, what goes to waste and whose it is, what is not seen,
//! and what changed since yesterday.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gpufleet_analysis::ledger;
use gpufleet_analysis::money::ratio;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use super::fleet::{self, Connect};
use super::frame::{self, Frame};
use crate::today::blind::{self, BlindSpot};
use crate::today::{Change, Kind, NO_OWNER, OverBudget, Section, Today, Unmeasured, Waste};
use crate::view::{Counts, forgotten};
use crate::web::Web;
use crate::words;
use crate::words::text::{self, Name, amount, counted, grouped};

mod bar;

use bar::{Slice, bar};

/// What GPUs are called that are measured, and nobody can say who holds them.
const HOLDER_UNKNOWN: &str = "holder unknown";

/// Longest sentence shown of a row, characters: an incident's words with its cause.
const SENTENCE: usize = 300;

#[derive(Template)]
#[template(path = "today.html")]
struct TodayPage {
    frame: Frame,
    headline: String,
    /// Teams over their budgets.
    budgets: Vec<Row>,
    sections: Vec<Part>,
    blind: Vec<BlindSpot>,
    others: Option<String>,
    connect: Option<Connect>,
    /// Whether what reported is in no list any more.
    is_forgotten: bool,
    past_failed: bool,
}

/// Live clusters, or those that are not.
struct Part {
    origin: Origin,
    title: &'static str,
    word: Option<&'static str>,
    sentence: &'static str,
    line: String,
    /// Why there is nothing to count.
    no_gpus: Option<String>,
    /// Whether that is because its nodes went.
    is_scaled_to_zero: bool,
    bar: Vec<Slice>,
    figures: Vec<Figure>,
    rows: Vec<Row>,
    more_rows: usize,
    unmeasured: Vec<Unmeasured>,
    changes: Vec<Entry>,
    more_changes: usize,
}

/// A figure, or why there is none.
struct Figure {
    name: &'static str,
    value: Result<String, &'static str>,
    /// The line of the page Health that makes it known.
    anchor: &'static str,
    small: String,
}

/// One thing that costs money for nothing, or a team that spends more than it may.
struct Row {
    cost: String,
    unit: String,
    meter: usize,
    kind: &'static str,
    severity: &'static str,
    place: Name,
    address: String,
    what: String,
    since: String,
    action: String,
    /// None where it is not known.
    owner: Option<Name>,
    status: String,
    incident: Option<String>,
    is_apart: bool,
}

/// Something that changed.
struct Entry {
    at: String,
    datetime: String,
    severity: &'static str,
    name: &'static str,
    what: String,
    address: Option<String>,
}

/// `GET /`.
pub async fn show(State(web): State<Arc<Web>>, frame: Frame) -> Response {
    let view = web.views.get(&web.app).await.seen_with(&frame.grant);
    let today = web.todays.get(&web.app, &view, &web.specs, &frame.grant);
    let today = today.await;
    let ever = forgotten::ever(&web.app, &view, &frame.grant).await;
    let page = TodayPage {
        headline: headline(&today),
        budgets: today
            .budgets
            .iter()
            .map(|it| over_budget(it, &today))
            .collect(),
        sections: today
            .sections
            .iter()
            .map(|it| part(it, &today, frame.unjudged.is_some()))
            .collect(),
        blind: blind::with_inventory(&web.app, &frame.grant, &view),
        others: others(&today),
        connect: (ever == Some(false))
            .then(|| fleet::connect(&web.app.config.ingest.grpc_listen, &frame.host)),
        is_forgotten: ever == Some(true),
        past_failed: today.past_failed,
        frame: Frame {
            at: today.at,
            ..frame
        },
    };
    frame::page(StatusCode::OK, &page)
}

/// The fleet in one line; of live GPUs alone.
fn headline(today: &Today) -> String {
    let live = today.sections.iter().find(|it| it.origin == Origin::Live);
    live.map_or_else(
        || line_of_live(&Counts::default()),
        |it| line_of_live(&it.counts),
    )
}

/// What the live GPUs do, in one line without its full stop: the first line of Today and of Fleet.
pub(super) fn line_of_live(live: &Counts) -> String {
    match live.all {
        0 => "No GPU is live".to_owned(),
        _ => line(live),
    }
}

/// What is in no live total.
fn others(today: &Today) -> Option<String> {
    let simulated = today.sections.iter();
    let simulated = simulated.filter(|it| it.origin == Origin::Simulated);
    let simulated: usize = simulated.map(|it| it.counts.all).sum();
    let named = [(simulated, "simulated"), (today.recorded, "recorded")];
    let named: Vec<String> = named
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{} {name}", counted(count, "GPU", "GPUs")))
        .collect();
    (!named.is_empty()).then(|| named.join(" and "))
}

/// What so many GPUs do, in one line without its full stop.
fn line(counts: &Counts) -> String {
    let working = counts.sum(|it| it.is_active() || it == ledger::State::Gap);
    let parts = [
        (counts.sum(ledger::State::is_idle), "idle"),
        (counts.of(ledger::State::Stalled), "stalled"),
        (counts.of(ledger::State::Unhealthy), "lost or unhealthy"),
        (counts.sum(is_starting), "starting"),
        (counts.of(ledger::State::Draining), "draining"),
        (counts.unmeasured(), "not measured"),
        (counts.holder_unknown, HOLDER_UNKNOWN),
    ];
    let mut line = format!(
        "{} of {} at work",
        grouped(working as f64),
        counted(counts.all, "GPU", "GPUs")
    );
    for (count, name) in parts.into_iter().filter(|it| it.0 > 0) {
        line.push_str(&format!(", {} {name}", grouped(count as f64)));
    }
    line
}

const fn is_starting(state: ledger::State) -> bool {
    matches!(
        state,
        ledger::State::StartingNode | ledger::State::StartingPod
    )
}

/// The clusters of one origin; `stands` where the detectors judge nothing.
fn part(section: &Section, today: &Today, stands: bool) -> Part {
    let origin = section.origin;
    let dearest = section.waste.iter().filter_map(|it| it.day_cost).max();
    Part {
        origin,
        title: words::origin(origin),
        word: words::watermark(origin),
        sentence: words::watermark_sentence(origin),
        line: match section.counts.all {
            0 => format!("No GPU is {}", origin.name()),
            _ => line(&section.counts),
        },
        no_gpus: section.no_gpus(),
        is_scaled_to_zero: section.is_scaled_to_zero(),
        bar: bar(&section.counts, origin),
        figures: figures(section, &today.currency, stands),
        rows: section
            .waste
            .iter()
            .map(|it| row(it, today, dearest.unwrap_or(0)))
            .collect(),
        more_rows: section.more_waste,
        unmeasured: section.unmeasured.clone(),
        changes: section.changes.iter().map(entry).collect(),
        more_changes: section.more_changes,
    }
}

fn figures(section: &Section, currency: &str, stands: bool) -> Vec<Figure> {
    const NO_PRICE: &str = "no GPU has a price";
    const NOT_JUDGED: &str = "what broke since is not known";
    let incidents = Figure {
        name: "Incidents",
        value: match section.incidents {
            0 if stands => Err("not known"),
            0 => Ok("none open".to_owned()),
            count => Ok(format!("{count} open")),
        },
        anchor: "detectors",
        small: match (stands, section.hurt_nodes) {
            (true, _) => NOT_JUDGED.to_owned(),
            (false, (0, _)) => String::new(),
            (false, (hurt, all)) => format!(
                "on {} of {}",
                grouped(hurt as f64),
                counted(all, "node", "nodes")
            ),
        },
    };
    // What costs nothing and does nothing because nobody tells of it has no figure.
    if section.counts.all == 0 {
        return vec![incidents];
    }
    let money = |nano: Option<i128>| nano.map(|it| amount(currency, it)).ok_or(NO_PRICE);
    let share = section.wasted.zip(section.day_cost);
    let share = share.and_then(|(wasted, all)| ratio(wasted, 100, all));
    let idle = section.counts.sum(ledger::State::is_idle);
    let (unseen, unknown) = (section.counts.unmeasured(), section.counts.holder_unknown);
    let is_open = unseen + unknown == section.counts.all;
    vec![
        Figure {
            name: "Goes to waste a day",
            value: money(section.wasted),
            anchor: "prices",
            small: share.map_or(String::new(), |it| format!("{it} % of what the GPUs cost")),
        },
        Figure {
            name: "The GPUs cost a day",
            value: money(section.day_cost),
            anchor: "prices",
            small: "at the price of now".to_owned(),
        },
        Figure {
            name: "Idle",
            value: match (is_open, unseen, unknown) {
                (false, ..) => Ok(counted(idle, "GPU", "GPUs")),
                (true, _, 0) => Err("no GPU is measured"),
                (true, 0, _) => Err("who holds the GPUs is not known"),
                (true, ..) => Err("not known of any GPU"),
            },
            anchor: if unseen > 0 { "silent" } else { "holders" },
            small: not_idle(unseen, unknown),
        },
        incidents,
    ]
}

/// What is idle, and what may be.
fn not_idle(unseen: usize, unknown: usize) -> String {
    let mut small = "free, or held and not used".to_owned();
    if unseen > 0 {
        small.push_str(&format!("; {} not measured", grouped(unseen as f64)));
    }
    if unknown > 0 {
        let unknown = grouped(unknown as f64);
        small.push_str(&format!("; of {unknown} it is not known who holds them"));
    }
    small
}

fn row(it: &Waste, today: &Today, dearest: i128) -> Row {
    let cost = it.day_cost.map(|nano| amount(&today.currency, nano));
    let meter = it.day_cost.and_then(|nano| ratio(nano, 100, dearest));
    let what = match (it.unpriced, &it.day_cost) {
        (1.., Some(_)) => format!("{}, {} of them without a price", it.what, it.unpriced),
        _ => it.what.clone(),
    };
    Row {
        unit: match (&cost, it.kind) {
            (None, _) => "no price",
            (Some(_), Kind::FailedRun) => "in the last day",
            (Some(_), _) => "a day",
        }
        .to_owned(),
        cost: cost.unwrap_or_else(|| match it.milli_gpus {
            0 => "not known".to_owned(),
            milli => text::gpus(milli),
        }),
        meter: usize::try_from(meter.unwrap_or(0)).unwrap_or(0).min(100),
        kind: kind(it.kind),
        severity: match it.kind {
            Kind::Broken | Kind::Hang | Kind::FailedRun => "error",
            Kind::BelowTarget | Kind::RightSize => "info",
            _ => "warning",
        },
        place: Name::new(&it.place),
        address: it.address.clone(),
        what: text::harmless(&what, SENTENCE),
        since: it
            .since
            .map_or(String::new(), |since| lasted(it.kind, since, today.at)),
        action: text::harmless(&it.action, SENTENCE),
        owner: (it.owner != NO_OWNER).then(|| Name::new(&it.owner)),
        status: text::harmless(&it.status, SENTENCE),
        incident: it.incident.map(|id| format!("/incidents/{id}")),
        is_apart: !it.kind.is_waste(),
    }
}

fn over_budget(it: &OverBudget, today: &Today) -> Row {
    let money = |nano: i64| amount(&today.currency, nano.into());
    let known = |nano: Option<i64>| nano.map_or("not known".to_owned(), money);
    let meter = it.spent.zip(it.budget);
    let meter = meter.and_then(|(spent, budget)| ratio(spent.into(), 100, budget.into()));
    let forecast = it.forecast.map_or(String::new(), |nano| {
        format!("; the month's forecast is {}", money(nano))
    });
    let of = it.cluster.as_ref().map_or(String::new(), |it| {
        format!(", which is of cluster {it} alone")
    });
    let span = text::span(today.at.millis() - it.since.millis());
    Row {
        cost: known(it.spent),
        unit: format!("of {}", known(it.budget)),
        meter: usize::try_from(meter.unwrap_or(0)).unwrap_or(0).min(100),
        kind: "budget",
        severity: it.severity.name(),
        place: Name::new(&it.team),
        address: "/cost".to_owned(),
        what: text::harmless(&format!("{}{of}", it.what), SENTENCE),
        since: format!(", for {span}{forecast}"),
        action: text::harmless(&it.action, SENTENCE),
        owner: Some(Name::new(&it.team)),
        status: text::harmless(&it.status, SENTENCE),
        incident: Some(format!("/incidents/{}", it.incident)),
        is_apart: false,
    }
}

fn lasted(kind: Kind, since: Timestamp, now: Timestamp) -> String {
    match kind {
        Kind::FailedRun => format!(", {}", text::ago(now, since)),
        Kind::Free | Kind::Draining | Kind::Parked | Kind::HeldEmpty => {
            format!(
                ", the longest for {}",
                text::span(now.millis() - since.millis())
            )
        }
        _ => format!(", for {}", text::span(now.millis() - since.millis())),
    }
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Free => "free",
        Kind::Draining => "draining",
        Kind::Parked => "parked",
        Kind::HeldEmpty => "held, empty",
        Kind::Stalled => "stalled",
        Kind::Broken => "broken",
        Kind::Throttled => "slowed down",
        Kind::Hang => "stands still",
        Kind::Straggler => "slow rank",
        Kind::Slower => "became slower",
        Kind::Training => "learns nothing",
        Kind::FailedRun => "broke off",
        Kind::BelowTarget => "below target",
        Kind::RightSize => "right-size",
    }
}

fn entry(change: &Change) -> Entry {
    Entry {
        at: text::moment(change.at),
        datetime: text::rfc3339(change.at),
        severity: change.severity.name(),
        name: change.name,
        what: text::harmless(&change.what, SENTENCE),
        address: change.address.clone(),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ledger::Reason;

    use super::*;

    #[test]
    fn the_line_counts_every_gpu_once_and_names_what_is_not_measured() {
        let mut counts = Counts::default();
        for state in ledger::State::ALL {
            counts.add(state, Reason::Unknown);
        }
        counts.add(ledger::State::Unobserved, Reason::HolderUnknown);
        let line_of_all = line(&counts);
        assert_eq!(
            line_of_all,
            "4 of 14 GPUs at work, 3 idle, 1 stalled, 1 lost or unhealthy, 2 starting, 1 draining, 1 not measured, 1 holder unknown"
        );
        let parts = line_of_all.split(", ");
        let named = parts.filter_map(|it| it.split(' ').next()?.parse::<usize>().ok());
        assert_eq!(named.sum::<usize>(), counts.all, "{line_of_all}");
        assert_eq!(line(&Counts::default()), "0 of 0 GPUs at work");
    }
}
