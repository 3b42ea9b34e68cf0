//! Each day as money in tables of the store, for who asks in SQL: the same computation as the report on chargeback, so
//! that the rows of a month add up to it to the nano-unit.
//!
//! The month that runs is made again and again, and the one before it for [`SETTLES_D`] days. An earlier one is made
//! once after the start, and when a day of it was put together anew or prices and rules changed, one a round, the
//! newest first. What says what it said is not written.
//!
//! What is not whole never stands in place of what was: a month of which retention took a day is not made again, and a
//! day of which more cannot be read than before stays as it stood; one that did not stand is made without it. A row says what of
//! its money is not known, and Health that there are such rows ([`super::Money::untold`]).
//!
//! Limits: [`MAX_ROWS`] rows of a day and scope; a round takes at most one [`PART`]th of the time; a column holds
//! 9,223,372,036 of the currency, and more is null.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY};
use gpufleet_analysis::report::day_text;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;
use tokio_util::sync::CancellationToken;

use super::budgets::Standings;
use super::month::{self, Days};
use super::report::{month_around, month_of};
use super::{Terms, tables};
use crate::App;
use crate::store::{MoneyDay, MoneyMonth, Store, StoreError};
use crate::threads::apart;

mod rows;

pub use rows::{MAX_ROWS, OTHERS};
use rows::{TOO_LARGE, rows, standing};

/// For how long after its end a month is made again, days: its last hours become final, and its nodes are missed.
const SETTLES_D: i64 = 3;

/// How long between two rounds at least: the ledger's hours change every five minutes.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Between two rounds is so many times as long as one took: of a large fleet it takes seconds of CPU.
const PART: u32 = 30;

/// Which months are to be made besides the one that runs.
#[derive(Default)]
pub(crate) struct Due {
    /// By what terms the months were asked for.
    terms: Option<Arc<Terms>>,
    /// Their first days.
    months: BTreeSet<i64>,
}

/// Days and standings of a month.
struct Made {
    days: Vec<MoneyDay>,
    /// Where each payer stands.
    standings: Vec<MoneyMonth>,
}

/// What became of a month.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Written {
    /// How many of its days were written or went.
    pub days: usize,
    /// What its rows do not tell though it is kept, one sentence; none where they tell everything.
    pub untold: Option<String>,
    /// Where teams stand to their budgets; none where the month stays as it stands.
    pub standings: Option<Standings>,
}

/// What a month is made for.
struct Asked {
    /// Its days as far as they have begun and are kept.
    days: Range<i64>,
    /// Its first moment, Unix milliseconds.
    first_ms: i64,
    /// The first day of the month after it.
    end_day: i64,
    /// The month, as `2026-11`.
    month: String,
    now: Timestamp,
    /// The first day that is kept, where days of it are deleted.
    lost: Option<i64>,
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
pub(crate) async fn round(app: &App, due: &mut Due) -> anyhow::Result<()> {
    let specs = Specs::with(&app.config.gpu.peaks)?;
    // With the tables of the store from the first round on.
    let terms = app.money.refresh(&app.store, &app.config).await?;
    let kept_since = app.store.days_kept_since().await?;
    let now = app.clock.now();
    let today = now.millis().div_euclid(MILLIS_PER_DAY);
    let running = month_around(today).map_or(today, |it| it.start);
    due.look(&app.store, &terms, app.money.restated(), running)
        .await?;
    if today < running + SETTLES_D && due.months.is_empty() {
        let settling = month_around(running - 1);
        due.months.extend(settling.map(|it| it.start));
    }
    let other = due.months.last().copied();
    for first_day in [running].into_iter().chain(other) {
        let written = make(&app.store, &specs, &terms, (first_day, kept_since), now).await?;
        due.months.remove(&first_day);
        app.money.tell(first_day, written.untold);
        if let Some(standings) = written.standings.filter(|_| first_day == running) {
            app.money.stand(standings);
        }
    }
    app.money.goes_on(due.months.len(), kept_since);
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

/// Makes the month that begins on a day, as far as it has gone, and writes what of it changed. A month that is over and
/// of which days are deleted, because they are kept since a later one, stays as it stands.
///
/// # Errors
/// When the store does not answer.
pub async fn make(
    store: &Store,
    specs: &Specs,
    terms: &Arc<Terms>,
    (first_day, kept_since): (i64, Option<i64>),
    now: Timestamp,
) -> Result<Written, StoreError> {
    let today = now.millis().div_euclid(MILLIS_PER_DAY);
    let whole = month_around(first_day).unwrap_or(first_day..first_day + 1);
    let lost = kept_since.filter(|it| whole.start < *it);
    if lost.is_some() && whole.end <= today {
        return Ok(Written::default());
    }
    let range = whole.start.max(lost.unwrap_or(whole.start))..whole.end.min(today + 1);
    let mut read = month::of_any_origin(store, range.clone(), None).await?;
    read.at = Some(now);
    // Days that retention deleted meanwhile are not in what was read: the month stays as it stands.
    let kept_since = store.days_kept_since().await?;
    if kept_since.is_some_and(|it| range.start < it) {
        return Ok(Written::default());
    }
    let not_read = read.not_read(&range);
    let unread = read.unread();
    let month = month_of(Timestamp::from_millis(first_day * MILLIS_PER_DAY));
    let asked = Asked {
        days: range.clone(),
        first_ms: first_day * MILLIS_PER_DAY,
        end_day: whole.end,
        month: month.clone(),
        now,
        lost,
    };
    let mut scopes = read.apart();
    for (cluster, _, days) in &mut scopes {
        month::train(days, store, &range, cluster.as_deref(), specs).await?;
    }
    let terms = Arc::clone(terms);
    let made = apart(move || charged(&scopes, &asked, &terms)).await;
    let days = store
        .write_money_days(range, &made.days, &unread, now)
        .await?;
    store
        .write_money_month((first_day, &month), &made.standings, now)
        .await?;
    let untold = rows::untold([
        not_read.as_deref(),
        made.is_too_large().then_some(TOO_LARGE),
    ]);
    let untold = (!untold.is_empty()).then(|| format!("{month}: {untold}"));
    let standings = Some(Standings::of(month, made.standings));
    Ok(Written {
        days,
        untold,
        standings,
    })
}

/// What of a month was not read, in words; empty where all was. Days before the one that is lost are deleted.
fn not_told(not_read: Option<String>, lost: Option<i64>) -> String {
    let lost = lost.map(day_text);
    let lost = lost.map(|it| format!("days before {it} are deleted (retention.days_d)"));
    rows::untold([not_read.as_deref(), lost.as_deref()])
}

impl Made {
    /// Whether some of its money is more than a column holds.
    fn is_too_large(&self) -> bool {
        let of_days = self.days.iter().flat_map(|it| &it.rows);
        let of_days = of_days.map(|it| it.untold.as_str());
        let of_month = self.standings.iter().map(|it| it.untold.as_str());
        of_month.chain(of_days).any(|it| it.ends_with(TOO_LARGE))
    }
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
            rows: rows(
                &made,
                &month.fleet,
                days.not_read(&(day..day + 1)).as_deref(),
            ),
            currency: made.currency,
        }));
        let budgets = tables::budgets_at(&terms.budgets, cluster.as_deref(), asked.first_ms);
        let of = |row: MoneyMonth| MoneyMonth {
            scope: scope.clone(),
            origin: *origin,
            cluster: scope.clone(),
            ..row
        };
        let untold = not_told(days.not_read(&asked.days), asked.lost);
        let theirs = standing(&month, &budgets, asked, &untold);
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

/// Budgets that name a live cluster, against what that cluster's report says.
fn of_clusters(live: &Days, asked: &Asked, terms: &Terms) -> Vec<MoneyMonth> {
    let named: BTreeSet<&str> = terms.budgets.iter().map(|it| it.cluster.as_str()).collect();
    let is_live = |name: &&str| live.days.iter().any(|it| it.of.cluster == *name);
    let mut found = Vec::new();
    for cluster in named.into_iter().filter(is_live) {
        let budgets = tables::budgets_at(&terms.budgets, Some(cluster), asked.first_ms);
        let days = live.of_cluster(cluster);
        let month = month::charge(&days, asked.days.clone(), terms, Detail::Nodes);
        let untold = not_told(days.not_read(&asked.days), asked.lost);
        let with_budget = standing(&month, &budgets, asked, &untold).into_iter();
        let with_budget = with_budget.filter(|it| it.budget.is_some());
        found.extend(with_budget.map(|row| MoneyMonth {
            cluster: cluster.to_owned(),
            ..row
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::table;

    use super::*;

    #[test]
    fn what_of_a_month_was_not_read_is_said_in_words() {
        assert_eq!(not_told(None, None), "");
        let first = table::moment("2026-10-07").expect("a date") / MILLIS_PER_DAY;
        let told = not_told(
            Some("3 days of GPUs cannot be read".to_owned()),
            Some(first),
        );
        let expected =
            "3 days of GPUs cannot be read; days before 2026-10-07 are deleted (retention.days_d)";
        assert_eq!(told, expected);
    }
}
