//! Each day as money in tables of the store, for who asks in SQL: the same computation as the report on chargeback, so
//! that the rows of a month add up to it to the nano-unit.
//!
//! The month that runs is made again and again, and the one before it for [`SETTLES_D`] days. An earlier one is made
//! once after the start, and when a day of it was put together anew or prices and rules changed, one a round, the
//! newest first. What says what it said is not written.
//!
//! Limits: [`MAX_ROWS`] rows of a day and scope; a round takes at most one [`PART`]th of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::chargeback::budget::Standing;
use gpufleet_analysis::chargeback::view::By;
use gpufleet_analysis::chargeback::{Chargeback, Detail, Fleet, MILLIS_PER_DAY, Sum};
use gpufleet_analysis::ledger::State;
use gpufleet_analysis::owner::Payer;
use gpufleet_analysis::report::efficiency::training;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;
use tokio_util::sync::CancellationToken;

use super::month::{self, Days, Month};
use super::report::{month_around, month_of};
use super::{Terms, now, tables};
use crate::App;
use crate::store::{MoneyDay, MoneyMonth, MoneyRow, Store, StoreError};

/// Most rows of a day of a scope, the dearest; the others are one row a payer and state. A fleet of 10,000 GPUs has
/// about 5,000.
pub const MAX_ROWS: usize = 10_000;

/// The job of what is beyond [`MAX_ROWS`].
pub const OTHERS: &str = "(others)";

/// For how long after its end a month is made again, days: its last hours become final, and its nodes are missed.
const SETTLES_D: i64 = 3;

/// How long between two rounds at least: the ledger's hours change every five minutes.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Between two rounds is so many times as long as one took: of a large fleet it takes seconds of CPU.
const PART: u32 = 30;

/// Which months are to be made besides the one that runs.
#[derive(Default)]
struct Due {
    /// By what terms the months were asked for.
    terms: Option<Arc<Terms>>,
    /// Their first days.
    months: BTreeSet<i64>,
}

/// Days and standings of a month.
pub struct Made {
    /// Its days.
    pub days: Vec<MoneyDay>,
    /// Where each payer stands.
    pub standings: Vec<MoneyMonth>,
}

/// What a month is made for.
struct Asked {
    /// Its days as far as they have begun.
    days: Range<i64>,
    /// The first day of the month after it.
    end_day: i64,
    /// The month, as `2026-11`.
    month: String,
    now: Timestamp,
}

/// Writes days and months as money from when this server leads until it is told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of("money by day"), app.clock.as_ref());
    let mut due = Due::default();
    while !stop.is_cancelled() {
        let began = clock.monotonic();
        job.round(clock, round(&app, &mut due)).await;
        let took = clock.monotonic().saturating_sub(began);
        let pause = LOOK_EVERY.max(took * PART);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Makes the month that runs and one more.
async fn round(app: &App, due: &mut Due) -> anyhow::Result<()> {
    let specs = Specs::with(&app.config.gpu.peaks)?;
    // With the tables of the store from the first round on.
    let terms = app.money.refresh(&app.store, &app.config).await?;
    let now = app.clock.now();
    let today = now.millis().div_euclid(MILLIS_PER_DAY);
    let running = month_around(today).map_or(today, |it| it.start);
    due.look(&app.store, &terms, app.money.restated(), running)
        .await?;
    make(&app.store, &specs, &terms, running, now).await?;
    let settling = running - 1;
    if today < running + SETTLES_D && due.months.is_empty() {
        due.months.extend(month_around(settling).map(|it| it.start));
    }
    if let Some(first) = due.months.last().copied() {
        make(&app.store, &specs, &terms, first, now).await?;
        due.months.remove(&first);
    }
    Ok(())
}

impl Due {
    /// Takes in what changed since it was asked; `running` is the first day of the month that runs.
    async fn look(
        &mut self,
        store: &Store,
        terms: &Arc<Terms>,
        restated: BTreeSet<i64>,
        running: i64,
    ) -> Result<(), StoreError> {
        let first_of = |day: i64| month_around(day).map(|it| it.start);
        self.months
            .extend(restated.into_iter().filter_map(first_of));
        if !self.terms.as_ref().is_some_and(|it| Arc::ptr_eq(it, terms)) {
            let first = store.first_ledger_day().await?;
            let mut month = first.and_then(month_around);
            while let Some(it) = month.filter(|it| it.start < running) {
                self.months.insert(it.start);
                month = month_around(it.end);
            }
            self.terms = Some(Arc::clone(terms));
        }
        self.months.retain(|it| *it < running);
        Ok(())
    }
}

/// Makes the month that begins on a day, as far as it has gone, and writes what of it changed. Returns how many days.
///
/// # Errors
/// When the store does not answer.
pub async fn make(
    store: &Store,
    specs: &Specs,
    terms: &Arc<Terms>,
    first_day: i64,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let today = now.millis().div_euclid(MILLIS_PER_DAY);
    let whole = month_around(first_day).unwrap_or(first_day..first_day + 1);
    let asked = Asked {
        days: whole.start..whole.end.min(today + 1),
        end_day: whole.end,
        month: month_of(Timestamp::from_millis(first_day * MILLIS_PER_DAY)),
        now,
    };
    let read = month::of_any_origin(store, asked.days.clone(), None).await?;
    let mut scopes = read.apart();
    for (cluster, _, days) in &mut scopes {
        month::train(days, store, &asked.days, cluster.as_deref(), specs).await?;
    }
    let (range, month) = (asked.days.clone(), asked.month.clone());
    let terms = Arc::clone(terms);
    let made = now::apart(move || charged(&scopes, &asked, &terms)).await;
    let written = store
        .write_money_days(range.clone(), &made.days, now)
        .await?;
    store
        .write_money_month((range.start, &month), &made.standings, now)
        .await?;
    Ok(written)
}

/// The money of a month's scopes. Takes seconds of CPU for 10,000 GPUs.
fn charged(scopes: &[(Option<String>, Origin, Days)], asked: &Asked, terms: &Terms) -> Made {
    let (mut all, mut standings) = (Vec::new(), Vec::new());
    for (cluster, origin, days) in scopes {
        let scope = cluster.clone().unwrap_or_default();
        let (month, by_day) = month::charge_with_days(days, asked.days.clone(), terms);
        all.extend(by_day.into_iter().map(|(day, made)| MoneyDay {
            scope: scope.clone(),
            origin: *origin,
            day,
            month: asked.month.clone(),
            rows: rows(&made, &month.fleet),
            currency: made.currency,
        }));
        let budgets = tables::budgets_at(&terms.budgets, cluster.as_deref(), asked.first_ms());
        let of = |row: MoneyMonth| MoneyMonth {
            scope: scope.clone(),
            origin: *origin,
            cluster: scope.clone(),
            ..row
        };
        let theirs = standing(&month, &budgets, asked);
        standings.extend(theirs.into_iter().map(of));
        if cluster.is_none() {
            standings.extend(of_clusters(days, asked, terms));
        }
    }
    Made {
        days: all,
        standings,
    }
}

impl Asked {
    fn first_ms(&self) -> i64 {
        self.days.start * MILLIS_PER_DAY
    }
}

/// Budgets that name a live cluster, against what that cluster's report says.
fn of_clusters(live: &Days, asked: &Asked, terms: &Terms) -> Vec<MoneyMonth> {
    let named: BTreeSet<&str> = terms.budgets.iter().map(|it| it.cluster.as_str()).collect();
    let is_live = |name: &&str| live.days.iter().any(|it| it.of.cluster == *name);
    let mut found = Vec::new();
    for cluster in named.into_iter().filter(is_live) {
        let budgets = tables::budgets_at(&terms.budgets, Some(cluster), asked.first_ms());
        let days = live.of_cluster(cluster);
        let month = month::charge(&days, asked.days.clone(), terms, Detail::Nodes);
        let with_budget = standing(&month, &budgets, asked).into_iter();
        let with_budget = with_budget.filter(|it| it.budget.is_some());
        found.extend(with_budget.map(|row| MoneyMonth {
            cluster: cluster.to_owned(),
            ..row
        }));
    }
    found
}

/// Money as a column holds it: more than nine thousand million of a currency is no sum of a day or month.
fn narrow(nano: i128) -> i64 {
    i64::try_from(nano).unwrap_or(i64::MAX)
}

/// What of a sum has a price; none where nothing of it has.
fn priced(sum: &Sum) -> Option<i64> {
    let is_unpriced = sum.unpriced_millis > 0 && sum.unpriced_millis >= sum.gpu_millis;
    (!is_unpriced).then(|| narrow(sum.cost))
}

/// What rows of a day are told apart by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Words<'a> {
    cluster: &'a str,
    payer: &'a Payer,
    namespace: &'a str,
    job: &'a str,
    project: &'a str,
    state: State,
}

/// A day's lines by what tables tell apart.
fn rows(made: &Chargeback, fleet: &Fleet) -> Vec<MoneyRow> {
    let mut found: BTreeMap<Words<'_>, Sum> = BTreeMap::new();
    for (key, sum) in &made.lines {
        let words = Words {
            cluster: key.node.map_or("", |it| &fleet.nodes[it].cluster),
            payer: &made.payers[key.payer],
            namespace: By::Namespace.word(made, fleet, key),
            job: By::Job.word(made, fleet, key),
            project: By::Project.word(made, fleet, key),
            state: key.state,
        };
        found.entry(words).or_default().add(sum);
    }
    let row = |(words, sum): (Words<'_>, Sum)| MoneyRow {
        cluster: words.cluster.to_owned(),
        payer: words.payer.clone(),
        namespace: words.namespace.to_owned(),
        job: words.job.to_owned(),
        project: words.project.to_owned(),
        state: words.state,
        gpu_millis: sum.gpu_millis,
        cost: priced(&sum),
        unpriced_millis: sum.unpriced_millis,
    };
    dearest(found, MAX_ROWS).into_iter().map(row).collect()
}

/// The dearest of them, and what is beyond as one for each cluster, payer and state.
fn dearest(found: BTreeMap<Words<'_>, Sum>, most: usize) -> BTreeMap<Words<'_>, Sum> {
    if found.len() <= most {
        return found;
    }
    let mut ranked: Vec<_> = found.into_iter().collect();
    ranked.sort_by_key(|it| std::cmp::Reverse((it.1.cost, it.1.gpu_millis)));
    let beyond = ranked.split_off(most);
    let mut kept: BTreeMap<Words<'_>, Sum> = ranked.into_iter().collect();
    for (words, sum) in beyond {
        let words = Words {
            namespace: "",
            job: OTHERS,
            project: "",
            ..words
        };
        kept.entry(words).or_default().add(&sum);
    }
    kept
}

/// Everybody together and each payer, those among them that have a budget and spent nothing.
fn standing(month: &Month, budgets: &BTreeMap<String, i128>, asked: &Asked) -> Vec<MoneyMonth> {
    let made = &month.made;
    let (now_ms, end_ms) = (asked.now.millis(), asked.end_day * MILLIS_PER_DAY);
    let trained = training(made, &month.runs);
    let mut sums: BTreeMap<Payer, Sum> = BTreeMap::new();
    for (key, sum) in &made.lines {
        let payer = made.payers[key.payer].clone();
        sums.entry(payer).or_default().add(sum);
    }
    for team in budgets.keys() {
        sums.entry(Payer::Team(team.clone())).or_default();
    }
    let standings = made.budgets(budgets, now_ms, end_ms);
    let row = |payer: Option<Payer>, sum: &Sum, forecast: Option<i128>| {
        let is_of = |it: &&Standing| matches!(&payer, Some(Payer::Team(team)) if *team == it.team);
        let standing = standings.iter().find(is_of);
        let goodput = payer.as_ref().and_then(|it| trained.get(it.name()));
        MoneyMonth {
            scope: String::new(),
            origin: Origin::Live,
            cluster: String::new(),
            currency: made.currency.clone(),
            gpu_millis: sum.gpu_millis,
            spent: priced(sum),
            unpriced_millis: sum.unpriced_millis,
            forecast: priced(sum).and(forecast).map(narrow),
            budget: standing.map(|it| narrow(it.budget)),
            gone_on_day: standing.and_then(|it| it.gone_on_day),
            goodput: goodput.and_then(|it| it.goodput.millionths()).map(narrow),
            goodput_gpu_millis: goodput.map_or(0, |it| it.goodput.gpu_millis),
            payer,
        }
    };
    let everybody = row(None, &made.total(), made.forecast(now_ms, end_ms));
    let each = sums.iter().map(|(payer, sum)| {
        let forecast = made.forecast_of(payer, now_ms, end_ms);
        row(Some(payer.clone()), sum, forecast)
    });
    [everybody].into_iter().chain(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(job: &'static str, state: State) -> Words<'static> {
        Words {
            cluster: "prod",
            payer: &Payer::Unowned,
            namespace: "a",
            job,
            project: "p",
            state,
        }
    }

    fn sum(gpu_millis: i64, cost: i128, unpriced_millis: i64) -> Sum {
        Sum {
            gpu_millis,
            cost,
            unpriced_millis,
            ..Sum::default()
        }
    }

    #[test]
    fn what_has_no_price_is_no_nothing() {
        assert_eq!(priced(&sum(10, 0, 10)), None);
        assert_eq!(priced(&sum(10, 7, 9)), Some(7));
        assert_eq!(priced(&sum(10, 0, 0)), Some(0));
        // A commitment that nobody used, of a machine whose GPUs are not known.
        assert_eq!(priced(&sum(0, 7, 0)), Some(7));
    }

    #[test]
    fn beyond_the_most_rows_the_cheapest_are_one_a_state_and_no_money_is_lost() {
        let all = BTreeMap::from([
            (words("a", State::Gap), sum(5, 50, 0)),
            (words("b", State::Gap), sum(1, 1, 0)),
            (words("c", State::Gap), sum(2, 2, 0)),
            (words("d", State::Parked), sum(3, 3, 0)),
        ]);
        let kept = dearest(all.clone(), 4);
        assert_eq!(kept, all);
        let kept = dearest(all.clone(), 1);
        let of = |job, state| {
            let found = kept
                .iter()
                .find(|it| it.0.job == job && it.0.state == state);
            found.map(|it| it.1.cost)
        };
        assert_eq!(of("a", State::Gap), Some(50));
        assert_eq!(of(OTHERS, State::Gap), Some(3));
        assert_eq!(of(OTHERS, State::Parked), Some(3));
        let total = |of: &BTreeMap<Words<'_>, Sum>| of.values().map(|it| it.cost).sum::<i128>();
        assert_eq!((kept.len(), total(&kept)), (3, total(&all)));
    }
}
