//! The report as one page for people: charts, tables, notes; prints well, reads well on a phone.
//!
//! Nothing is fetched, nothing moves: inline SVG and CSS. Charts carry no text, so that they can be
//! as wide as the screen; their words stand beside them and in the tables.

mod advice;

mod against;

mod groups;

mod states;

mod terms;

use askama::Template;

use super::{Report, STACK, bearer, day_text, efficiency, reconcile};
use crate::chargeback::Sum;
use crate::chargeback::view::{By, Group};
use crate::ledger::State;
use crate::money::ratio;
use crate::owner::Payer;

/// Most rows of a table on the page. More is no reading; the CSV has all.
const MAX_ROWS: usize = 200;

/// Most bars of a chart: what a screen shows at once.
const MAX_BARS: usize = 15;

/// The width of a chart in its own units.
const WIDTH: i128 = 10_000;

/// The height of the chart of days in its own units.
const HEIGHT: i128 = 1_000;

#[derive(Template)]
#[template(path = "chargeback.html")]
struct Page {
    title: String,
    currency: String,
    balance: String,
    is_balanced: bool,
    tiles: Vec<Tile>,
    legend: Vec<(&'static str, &'static str)>,
    by: Vec<&'static str>,
    bars: Vec<Bar>,
    groups: Vec<Row>,
    groups_left_out: Option<Row>,
    groups_all: Row,
    columns: groups::Columns,
    states: Vec<Row>,
    days: Vec<DayBar>,
    day_first: String,
    day_last: String,
    day_most: String,
    borne: Vec<Row>,
    uses: Vec<Row>,
    serving: Vec<Row>,
    demand: Vec<Row>,
    waste: Vec<Row>,
    advised: Vec<Row>,
    taken: Vec<Row>,
    advice_not_kept: String,
    compared: String,
    variance: Vec<(&'static str, String)>,
    invoice: Vec<(&'static str, String)>,
    invoice_off: Option<&'static str>,
    budgets: Vec<Row>,
    quotas: Vec<Row>,
    spot: Vec<Row>,
    spot_notes: Vec<String>,
    commitments: Vec<(String, String)>,
    notes: Vec<String>,
    findings: Vec<String>,
}

/// A headline figure.
struct Tile {
    name: &'static str,
    value: String,
    note: String,
}

/// A bar of a group.
struct Bar {
    label: String,
    cost: String,
    segments: Vec<Segment>,
}

struct Segment {
    class: &'static str,
    title: String,
    x: i128,
    width: i128,
}

/// A column of a day.
struct DayBar {
    title: String,
    x: i128,
    y: i128,
    width: i128,
    height: i128,
}

/// A row of a table: its words and its numbers.
struct Row {
    words: Vec<String>,
    numbers: Vec<String>,
    is_bad: bool,
}

/// The page.
pub fn html(report: &Report<'_>) -> String {
    let made = report.chargeback;
    let groups = made.grouped(report.fleet, &report.by);
    let is_off = report.reconciled.as_ref().is_some_and(|it| it.is_off());
    let (days, day_most) = days(report);
    let whole = made.whole();
    let columns = groups::Columns::of(&whole.sum);
    let page = Page {
        title: report.title.clone(),
        currency: made.currency.clone(),
        balance: reconcile::balance(made),
        is_balanced: made.balance().is_exact(),
        tiles: tiles(report),
        legend: LEGEND.to_vec(),
        by: report.by.iter().map(|it| it.name()).collect(),
        bars: bars(&groups),
        groups: groups
            .iter()
            .take(MAX_ROWS)
            .map(|it| columns.row(it))
            .collect(),
        groups_left_out: groups::left_out(&groups, report.by.len(), columns),
        groups_all: groups::all(&whole, report.by.len(), columns),
        columns,
        states: states::rows(&whole),
        day_first: day_text(first_day(report)),
        day_last: day_text(made.until_ms.div_euclid(crate::chargeback::MILLIS_PER_DAY) - 1),
        days,
        day_most: money(day_most),
        borne: groups::borne(report),
        uses: efficiency::uses(report)
            .iter()
            .take(MAX_ROWS)
            .map(use_row)
            .collect(),
        serving: report
            .serving
            .iter()
            .take(MAX_ROWS)
            .map(terms::serving_row)
            .collect(),
        demand: efficiency::balances(report)
            .iter()
            .map(terms::balance_row)
            .collect(),
        waste: efficiency::waste(made, report.fleet)
            .iter()
            .take(MAX_BARS)
            .map(waste_row)
            .collect(),
        advised: advice::kinds(report),
        taken: advice::taken(report),
        advice_not_kept: report.advised.not_kept.clone().unwrap_or_default(),
        compared: report.compared.clone(),
        variance: against::variance(report),
        invoice: against::invoice(report),
        invoice_off: is_off.then_some(reconcile::OFF),
        budgets: report.budgets.iter().map(budget_row).collect(),
        quotas: report.quotas.iter().map(terms::quota_row).collect(),
        spot: terms::spot(report),
        spot_notes: terms::spot_notes(report),
        commitments: terms::commitments(report),
        notes: listed(report.notes()),
        findings: listed(report.findings.iter().cloned()),
    };
    page.render().expect("writing into a text does not fail")
}

/// The first of sentences, and how many more there are: a fleet whose clocks disagree has one for each node.
fn listed(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut all = all.fuse();
    let mut listed: Vec<String> = all.by_ref().take(MAX_ROWS).collect();
    match all.count() {
        0 => {}
        more => listed.push(format!("and {more} more")),
    }
    listed
}

/// Classes of states in charts and what they are called.
const LEGEND: [(&str, &str); 6] = [
    ("active", "active"),
    ("pause", "pause or starting"),
    ("stalled", "stalled"),
    ("idle", "idle"),
    ("broken", "broken or draining"),
    ("unknown", "not observed"),
];

const fn class(state: State) -> &'static str {
    match state {
        State::ActiveEfficient | State::ActiveInefficient | State::ActiveUnrated => "active",
        State::Gap | State::StartingPod | State::StartingNode => "pause",
        State::Stalled => "stalled",
        State::Parked | State::HeldEmpty | State::Unallocated => "idle",
        State::Unhealthy | State::Draining => "broken",
        State::Unobserved => "unknown",
    }
}

fn tiles(report: &Report<'_>) -> Vec<Tile> {
    let headline = report.chargeback.headline();
    let tile = |name, sum: &Sum, note: &str| Tile {
        name,
        value: money(sum.cost),
        note: format!(
            "{}, {} GPU-hours{note}",
            percent(sum.cost, headline.total.cost),
            hours(sum.gpu_millis)
        ),
    };
    let mut tiles = vec![
        Tile {
            name: "Total",
            value: money(headline.total.cost),
            note: format!("{} GPU-hours", hours(headline.total.gpu_millis)),
        },
        tile("Active", &headline.active, ""),
        tile("Idle", &headline.idle, ": free, parked or held empty"),
        tile(
            "Waste",
            &headline.waste,
            ": idle, stalled, broken, starting",
        ),
        tile(
            "Not observed",
            &headline.unobserved,
            "; never counted as idle",
        ),
        tile(
            "Unowned",
            &headline.unowned,
            ": held, and no rule says by whom",
        ),
    ];
    if headline.unused.gpu_millis > 0 {
        tiles.push(tile("Commitments unused", &headline.unused, ""));
    }
    tiles.push(Tile {
        name: "Unpriced",
        value: format!("{} GPU-hours", hours(headline.unpriced.gpu_millis)),
        note: "without a known price; not in any sum of money".to_owned(),
    });
    tiles
}

/// Bars of the dearest groups, as wide as their share of the dearest.
fn bars(groups: &[Group]) -> Vec<Bar> {
    let most = groups.first().map_or(0, |it| it.sum.cost);
    let bar = |group: &Group| {
        let mut x = 0;
        let mut segments = Vec::new();
        for state in STACK {
            let Some(sum) = group.states.get(&state) else {
                continue;
            };
            let width = ratio(sum.cost, WIDTH, most).unwrap_or(0);
            let title = format!(
                "{}: {}, {} GPU-hours",
                state.name(),
                money(sum.cost),
                hours(sum.gpu_millis)
            );
            segments.push(Segment {
                class: class(state),
                title,
                x,
                width,
            });
            x += width;
        }
        Bar {
            label: label(&group.words),
            cost: money(group.sum.cost),
            segments,
        }
    };
    groups.iter().take(MAX_BARS).map(bar).collect()
}

/// The cost of each day, and the most.
fn days(report: &Report<'_>) -> (Vec<DayBar>, i128) {
    let made = report.chargeback;
    let first = first_day(report);
    let end = made.until_ms.div_euclid(crate::chargeback::MILLIS_PER_DAY);
    let count = usize::try_from(end - first).unwrap_or(0);
    let mut costs = vec![0_i128; count];
    for (day, sum) in &made.days {
        if let Some(cost) = usize::try_from(day.day - first)
            .ok()
            .and_then(|at| costs.get_mut(at))
        {
            *cost += sum.cost;
        }
    }
    let most = costs.iter().copied().max().unwrap_or(0);
    let step = WIDTH / i128::try_from(count.max(1)).unwrap_or(1);
    let column = |(at, cost): (i128, i128)| {
        let height = ratio(cost, HEIGHT, most).unwrap_or(0);
        let day = first + i64::try_from(at).unwrap_or(0);
        DayBar {
            title: format!("{}: {}", day_text(day), money(cost)),
            x: at * step,
            y: HEIGHT - height,
            width: step * 8 / 10,
            height,
        }
    };
    ((0..).zip(costs).map(column).collect(), most)
}

fn first_day(report: &Report<'_>) -> i64 {
    report
        .chargeback
        .from_ms
        .div_euclid(crate::chargeback::MILLIS_PER_DAY)
}

fn use_row(it: &efficiency::Use) -> Row {
    Row {
        words: vec![or_dash(&it.payer)],
        numbers: vec![
            hours(it.total.gpu_millis),
            it.active_millionths
                .map_or("not measured".to_owned(), |it| percent(it, 1_000_000)),
            it.cost_per_useful_hour.map_or("–".to_owned(), money),
            priced(&it.waste),
            it.inefficiency.map_or("–".to_owned(), money),
            mean(&it.training, &it.training.goodput),
            mean(&it.training, &it.training.mfu),
        ],
        is_bad: false,
    }
}

/// What time cost; at least so much where some of it has no price.
fn priced(sum: &Sum) -> String {
    at_least(sum.cost, (sum.unpriced_millis, sum.gpu_millis), "no price")
}

/// What is known of a cost: all of it, at least so much where it is not known of a part of the time, and `none` where it
/// is known of none.
fn at_least(cost: i128, (unknown, all): (i64, i64), none: &str) -> String {
    match unknown {
        0 => money(cost),
        unknown if unknown >= all => none.to_owned(),
        _ => format!("≥ {}", money(cost)),
    }
}

/// A figure of training, and how much of the team's time is behind it.
fn mean(training: &efficiency::Training, mean: &efficiency::Mean) -> String {
    let whole = 1_000_000;
    match mean.millionths().zip(training.covered(mean)) {
        Some((figure, covered)) => known_of(&percent(figure, whole), covered, whole),
        None => "–".to_owned(),
    }
}

/// A figure, with how much of the time it is known for where that is not all of it, to a tenth of a percent.
fn known_of(figure: &str, known: i128, whole: i128) -> String {
    match ratio(known, 1_000, whole) {
        Some(0..1_000) => format!("{figure} (known for {} of the time)", percent(known, whole)),
        _ => figure.to_owned(),
    }
}

fn waste_row(it: &efficiency::Waste) -> Row {
    Row {
        words: vec![
            or_dash(&it.payer),
            or_dash(&it.job),
            it.state.name().replace('_', " "),
        ],
        numbers: vec![hours(it.sum.gpu_millis), priced(&it.sum)],
        is_bad: false,
    }
}

fn bearer_words(payer: &Payer) -> String {
    match bearer(payer) {
        (who, Some(what)) => format!("{who}: {what}"),
        (who, None) => who.to_owned(),
    }
}

fn budget_row(it: &crate::chargeback::budget::Standing) -> Row {
    Row {
        words: vec![it.team.clone()],
        numbers: vec![
            money(it.budget),
            money(it.spent),
            it.forecast.map_or("–".to_owned(), money),
            it.gone_on_day.map_or("–".to_owned(), day_text),
        ],
        is_bad: it.is_over(),
    }
}

fn label(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|it| or_dash(it)).collect();
    words.join(" / ")
}

fn or_dash(word: &str) -> String {
    if word.is_empty() { "–" } else { word }.to_owned()
}

/// To the cent, with commas: `12,345.60`.
pub(super) fn money(nanos: i128) -> String {
    let cents = ratio(nanos, 1, 10_000_000).unwrap_or(0);
    let sign = if cents < 0 { "−" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", commas(cents / 100), cents % 100)
}

fn signed(nanos: i128) -> String {
    let plus = if nanos > 0 { "+" } else { "" };
    format!("{plus}{}", money(nanos))
}

/// GPU-hours to a tenth, with commas.
fn hours(gpu_millis: i64) -> String {
    let tenths = ratio(gpu_millis.into(), 1, 360_000)
        .unwrap_or(0)
        .unsigned_abs();
    format!("{}.{}", commas(tenths / 10), tenths % 10)
}

fn commas(number: u128) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share to a tenth of a percent.
fn percent(part: i128, whole: i128) -> String {
    match ratio(part, 1_000, whole) {
        Some(tenths) => format!("{}.{} %", tenths / 10, (tenths % 10).abs()),
        None => "–".to_owned(),
    }
}

impl Page {
    /// Whether a team's share is what the page groups by first.
    fn is_by_team(&self) -> bool {
        self.by.first() == Some(&By::Team.name())
    }
}
