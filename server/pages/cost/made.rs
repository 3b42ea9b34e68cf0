//! A month of a scope as the page has it, with what changed since the month before: both are read and added up at a time,
//! so that who waits for one waits for no more.

use std::sync::Arc;

use gpufleet_analysis::chargeback::budget;
use gpufleet_analysis::chargeback::change::Change;
use gpufleet_analysis::chargeback::commitments::Commitments;
use gpufleet_analysis::chargeback::quota;
use gpufleet_analysis::chargeback::spot::Outcome;
use gpufleet_analysis::chargeback::view::{By, Group, Headline};
use gpufleet_analysis::chargeback::{MILLIS_PER_DAY, Sum};
use gpufleet_analysis::ledger;
use gpufleet_analysis::report::efficiency::Serving;
use gpufleet_telemetry::time::Timestamp;

use super::{Scope, which};
use crate::money::report::{self, Asked, against};
use crate::money::{Terms, month};
use crate::store::{Store, StoreError};

/// A month of who pays.
pub(super) struct TeamTime {
    pub(super) name: String,
    pub(super) sum: Sum,
    pub(super) active: Sum,
    pub(super) waste: Sum,
    /// Of it nobody can say what it did: it is in no share of what was active.
    pub(super) unobserved: Sum,
}

/// A month of a scope.
pub(super) struct Made {
    /// When it was added up.
    pub(super) at: Timestamp,
    /// The month in words.
    pub(super) title: String,
    /// Whether all of its days are over.
    pub(super) is_over: bool,
    /// Whether nothing is recorded of it, nor of the days that it is compared with, and its first hours may come: it was made
    /// in no time.
    pub(super) is_unbegun: bool,
    /// The month before it, `2026-09`.
    pub(super) before: String,
    pub(super) headline: Headline,
    /// All of it, by state and why.
    pub(super) whole: Group,
    /// What the month will come to, nano-units; none before there was a whole day.
    pub(super) forecast: Option<i128>,
    /// What its whole days came to against as many of the month before, or in a sentence why that cannot be said.
    pub(super) change: Result<Change, String>,
    /// What is compared with what there, in a sentence.
    pub(super) compared: String,
    /// By who pays.
    pub(super) teams: Vec<TeamTime>,
    pub(super) budgets: Vec<budget::Standing>,
    pub(super) quotas: Vec<quota::Standing>,
    pub(super) serving: Vec<Serving>,
    pub(super) spot: Outcome,
    pub(super) commitments: Option<Commitments>,
    pub(super) findings: Vec<String>,
    pub(super) currency: String,
}

/// Reads a month and what it is compared with, and adds both up.
///
/// # Errors
/// When the store does not answer.
pub(super) async fn make(
    store: Store,
    terms: Arc<Terms>,
    (scope, month, _): Scope,
    at: Timestamp,
) -> Result<Made, Arc<str>> {
    let asked = which::asked(&month, scope.clone(), at);
    let asked = asked.expect("the month was looked at before");
    let read = async {
        let days = month::read(&store, asked.days.clone(), scope.as_deref());
        let before = against::read_before(&store, &asked);
        let (mut days, before) = tokio::try_join!(days, before)?;
        days.at = Some(at);
        month::serve(&mut days, &store, &asked.days, scope.as_deref()).await?;
        Ok::<_, StoreError>([days, before])
    };
    let days = read.await;
    let days = days.map_err(|error| Arc::from(error.to_string()))?;
    let charged = tokio::task::spawn_blocking(move || charge(&asked, &days, &terms, at)).await;
    charged.map_err(|error| Arc::from(error.to_string()))
}

fn charge(asked: &Asked, [days, before]: &[month::Days; 2], terms: &Terms, at: Timestamp) -> Made {
    let (month, change) = against::charge(asked, [days, before], terms);
    let groups = month.made.grouped(&month.fleet, &[By::Team]);
    let team = |group: Group| {
        let of = |is_in: fn(ledger::State) -> bool| {
            let mut sum = Sum::default();
            let states = group.states.iter().filter(|it| is_in(*it.0));
            states.for_each(|it| sum.add(it.1));
            sum
        };
        TeamTime {
            active: of(ledger::State::is_active),
            waste: of(ledger::State::is_waste),
            unobserved: of(|it| it == ledger::State::Unobserved),
            name: group.words.concat(),
            sum: group.sum,
        }
    };
    let budgets = asked.budgets(terms);
    let (now_ms, end_ms) = (at.millis(), asked.end_day * MILLIS_PER_DAY);
    let mut findings = month.findings;
    findings.extend(month.recorded.missing(&asked.days, at));
    Made {
        is_unbegun: end_ms > now_ms && days.days.is_empty() && before.days.is_empty(),
        at,
        title: asked.title.clone(),
        is_over: end_ms <= now_ms,
        before: report::month_of(Timestamp::from_millis(asked.before_day * MILLIS_PER_DAY)),
        headline: month.made.headline(),
        whole: month.made.whole(),
        forecast: month.made.forecast(now_ms, end_ms),
        change,
        compared: against::words(asked),
        teams: groups.into_iter().map(team).collect(),
        budgets: month.made.budgets(&budgets, now_ms, end_ms),
        quotas: month.made.quotas(&asked.quotas(terms), now_ms, end_ms),
        currency: month.made.currency.clone(),
        serving: month.serving,
        spot: month.spot.total(),
        commitments: Commitments::of(&month.made),
        findings,
    }
}
